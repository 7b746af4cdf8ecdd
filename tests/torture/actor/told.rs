//! Requests with TELL: one connection asks, and another one, which has subscribed, reads the
//! message. A client that loses the subscription subscribes again, and then asks again.

use redis::Value;

use super::{AWAY_MS_MAX, Actor, of_error, reply_to};
use crate::clock::now_ns;
use crate::history::{Ask, Asked, Reply, Wait};
use crate::words::packed;
use rlock_testkit::{text, until};

/// What a waiting client does to its own subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Never,
    /// After this many milliseconds, it unsubscribes, and then subscribes again.
    Once(u64),
    /// After this many milliseconds, it unsubscribes for good.
    ForGood(u64),
}

/// A connection that has subscribed.
pub(super) struct Ears {
    connection: redis::Connection,
    url: String,
    channel: String,
}

/// The result of a request with TELL.
enum Heard {
    Reply(Reply),
    /// The subscription is lost, and perhaps the message with it.
    Nothing,
}

impl Ears {
    fn subscribe(url: &str, channel: &str) -> Option<Ears> {
        let connection = redis::Client::open(url).unwrap().get_connection().ok()?;
        let mut ears = Ears { connection, url: url.to_owned(), channel: channel.to_owned() };
        ears.say("SSUBSCRIBE")?;
        let (kind, _) = ears.next()?;
        (kind == "ssubscribe").then_some(ears)
    }

    fn say(&mut self, command: &str) -> Option<()> {
        let line = packed(&format!("{command} {}", self.channel)).get_packed_command();
        self.connection.send_packed_command(&line).ok()
    }

    /// What arrives next: its kind, and the text if it is a message. `None`: the connection is
    /// lost, or the subscription is refused.
    fn next(&mut self) -> Option<(String, String)> {
        let parts = match self.connection.recv_response().ok()? {
            Value::Array(parts) if parts.len() == 3 => parts,
            _ => return None,
        };
        let message =
            if let Value::BulkString(_) = &parts[2] { text(&parts[2]) } else { "".into() };
        Some((text(&parts[0]), message))
    }
}

fn reply_in(outcome: &str) -> Reply {
    let words: Vec<&str> = outcome.split(' ').collect();
    match words.as_slice() {
        ["token", token, _] => Reply::Token(token.parse().unwrap()),
        ["nil", _] => Reply::Nil,
        ["error", "DEADLOCK", ..] => Reply::Deadlock,
        ["error", ..] => Reply::Error(outcome.trim_start_matches("error ").to_owned()),
        _ => Reply::Error(format!("it was told {outcome}")),
    }
}

impl Actor {
    /// Waits for a message.
    pub fn acquire_told(&mut self, key: &str, ask: Ask, mut cut: Cut) -> Reply {
        let Wait::Tell { ms, .. } = ask.wait else { panic!("{ask:?} waits otherwise") };
        let (sent_ns, mut again) = (self.announce(key, &Asked::Acquire(ask)), false);
        let mut reply = loop {
            match self.ask_once(key, ask, cut) {
                Heard::Reply(reply) => break reply,
                Heard::Nothing if matches!(cut, Cut::ForGood(_)) => break Reply::Lost,
                Heard::Nothing => (again, cut) = (true, Cut::Never),
            }
        };
        again |= cut != Cut::Never;
        let received_ns = now_ns();
        let asked = Asked::Acquire(Ask { wait: Wait::Tell { ms, again }, ..ask });
        // WAIT concerns what was written before the last command of this connection.
        if let Some(link) = self.link.as_mut().filter(|_| self.site.waits_for_replica) {
            packed("PING").exec(&mut link.connection).ok();
        }
        let secured_ns = self.secure(&asked, &mut reply);
        let id = self.link.as_ref().map_or(0, |link| link.id);
        self.write(key, id, asked, [sent_ns, received_ns], reply.clone(), secured_ns);
        self.consider(key, &reply);
        if let Reply::Token(token) = reply {
            self.held.insert((key.to_owned(), ask.mode), token);
        }
        reply
    }

    fn ask_once(&mut self, key: &str, ask: Ask, cut: Cut) -> Heard {
        let mut ears = self.subscribed(key);
        self.tells += 1;
        let asked = Asked::Acquire(ask);
        let mut command = (self.site.words)(key, &self.owner(), &asked);
        command.arg("TELL").arg(&ears.channel).arg(self.tells);
        let link = self.linked(key);
        match command.query::<Value>(&mut link.connection) {
            Ok(Value::SimpleString(word)) if word == "WAITING" => {}
            // A client that gets no reply does not listen, either: nothing more is granted to it.
            Err(error) if of_error(&error) == Reply::Lost => return Heard::Reply(Reply::Lost),
            received => {
                self.ears = Some(ears);
                return Heard::Reply(reply_to(&asked, received));
            }
        }
        // Another server may have taken over in between.
        if link.url != ears.url {
            return Heard::Nothing;
        }
        if let Cut::Once(ms) | Cut::ForGood(ms) = cut {
            self.stop.within(ms);
            ears.say("SUNSUBSCRIBE");
        }
        let is_for_good = matches!(cut, Cut::ForGood(_));
        let heard = loop {
            let Some((kind, message)) = ears.next() else { return Heard::Nothing };
            match (kind.as_str(), message.split_once(' ')) {
                // Nothing arrived before that, and nothing will.
                ("sunsubscribe", _) if is_for_good => break Heard::Reply(Reply::Nil),
                ("sunsubscribe", _) => return Heard::Nothing,
                ("smessage", Some((id, outcome))) if id == self.tells.to_string() => {
                    break Heard::Reply(reply_in(outcome));
                }
                // A message for an earlier request.
                _ => {}
            }
        };
        if cut == Cut::Never {
            self.ears = Some(ears);
        }
        heard
    }

    /// The connection that listens at the server of the lock `key`.
    fn subscribed(&mut self, key: &str) -> Ears {
        let channel = format!("{{{key}}}:{}", self.owner());
        let mut ears = self.ears.take();
        until(AWAY_MS_MAX, || {
            let url = (self.site.url_of)(key, self.number);
            if !ears.as_ref().is_some_and(|ears| ears.url == url && ears.channel == channel) {
                ears = Ears::subscribe(&url, &channel);
            }
            ears.is_some()
        });
        ears.unwrap()
    }
}
