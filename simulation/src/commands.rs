//! RLOCK's commands on a simulated server, as `src/commands.rs` has them.

use std::rc::Rc;

use rlock_core::grammar::{self, Access, Command, commands};
use rlock_core::{
    Acquire, ClientId, Input, Kind as Standing, Mode, Now, Patience, Refusal, Renew, Reply,
    snapshot,
};

use crate::fault::Fault;
use crate::hands::Stop;
use crate::history::Item;
use crate::keyspace::{Key, Slot, Value};
use crate::notes::{Asked, Note};
use crate::parking::{Asks, to_acquire};
use crate::seen::Kind;
use crate::server::Server;
use crate::words::{Said, Words};

/// Whose command it is.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) client: Option<ClientId>,
    pub(crate) db: i32,
}

const WRITES: [&[u8]; 11] = [
    b"DEL",
    b"RENAME",
    b"MOVE",
    b"PEXPIRE",
    b"PEXPIREAT",
    b"PERSIST",
    b"SET",
    b"FLUSHDB",
    b"FLUSHALL",
    b"SWAPDB",
    b"COPY",
];

fn ours(words: &[Vec<u8>]) -> Option<&'static Command> {
    let name = words.first()?;
    commands::COMMANDS.iter().find(|command| command.name.as_bytes() == name.as_slice())
}

/// Whether a server refuses it where it refuses writes.
pub fn is_write(words: &[Vec<u8>]) -> bool {
    ours(words).map_or_else(
        || words.first().is_some_and(|name| WRITES.contains(&name.as_slice())),
        |command| command.access == Access::Writes,
    )
}

pub(crate) fn number(words: &[Vec<u8>], at: usize) -> i64 {
    let text = words.get(at).and_then(|word| std::str::from_utf8(word).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn line(stop: Stop) -> Said {
    Said::error(match stop {
        Stop::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
        Stop::Implausible => {
            "ERR malformed payload: its token is more than a minute ahead of the clock"
        }
    })
}

impl Server {
    /// Carries out what a connection says.
    pub fn run(&mut self, client: ClientId, words: &[Vec<u8>]) {
        let Some(conn) = self.conns.get(&client) else { return };
        let caller = Caller { client: Some(client), db: conn.db };
        if self.fault != Fault::OverdueRuns {
            self.manager.end_overdue(self.now);
            self.settle();
            self.settle_closing();
        }
        let refusal = if self.manager.is_closing(client) {
            Some(Refusal::Closing.line(&[], &[]))
        } else if is_write(words) {
            self.refusal().map(str::to_owned)
        } else {
            None
        };
        let said = match refusal {
            Some(line) => Some(Said::Error(line)),
            None => {
                self.note(Note::Ran(client));
                self.serve(caller, words)
            }
        };
        said.into_iter().for_each(|said| self.say(client, said));
    }

    /// Why the server itself refuses a client's write. A paused one does not read it at all.
    fn refusal(&mut self) -> Option<&'static str> {
        let conditions = self.conditions;
        if !self.is_primary {
            return Some("READONLY You can't write against a read only replica.");
        }
        if conditions.disk_fails {
            return Some("MISCONF the disk failed");
        }
        if conditions.good_replicas < conditions.min_replicas {
            self.note(Note::Saw(Kind::TooFewReplicas));
            return Some("NOREPLICAS Not enough good replicas to write.");
        }
        None
    }

    /// Carries out what came along the replication stream.
    pub fn apply(&mut self, item: &Item) {
        self.history.arrived(item.at);
        self.offset += 1;
        self.serve(Caller { client: None, db: item.db }, &item.words);
    }

    fn serve(&mut self, caller: Caller, words: &[Vec<u8>]) -> Option<Said> {
        let Some(command) = ours(words) else { return Some(self.serve_own(caller, words)) };
        let all = words.iter().skip(1).map(Vec::as_slice);
        let said = match command.read(all, &self.limits) {
            Ok(said) => said,
            Err(bad) => return Some(Said::error(bad.line())),
        };
        let key: Key = said.key.into();
        let (db, now) = (caller.db, self.now);
        Some(match command.name {
            "RLOCK.ACQUIRE" => return self.acquire(caller, &key, &said, words),
            "RLOCK.RELEASE" => self.release(caller, &key, &said, words),
            "RLOCK.RENEW" => return self.renew(caller, &key, &said, words),
            "RLOCK.CANCEL" => self.count(db, &key, Input::Cancel(said.owner), words, said.owner),
            "RLOCK.FORCE" => self.count(db, &key, Input::Force(said.mode), words, &[]),
            "RLOCK.APPLY" => self.apply_effect(caller, &key, said.payload),
            "RLOCK.HOLDS" => self.holds(db, &key, &said, now),
            "RLOCK.CHECK" => self.check_token(db, &key, &said, now),
            _ => Said::Nil,
        })
    }

    fn count(
        &mut self,
        db: i32,
        key: &Key,
        input: Input<'_>,
        words: &[Vec<u8>],
        owner: &[u8],
    ) -> Said {
        match self.decide(db, key, input, words) {
            Ok(Reply::Refused(refusal)) => Said::Error(refusal.line(key, owner)),
            Ok(Reply::Count(count)) => Said::Int(count.cast_signed()),
            Ok(_) => Said::Nil,
            Err(stop) => line(stop),
        }
    }

    fn acquire(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Option<Said> {
        let (client, db) = (caller.client?, caller.db);
        let ask = said.acquire(said.session.then_some(client));
        if let Err(refusal) = self.may_confirm(ask.acks) {
            return Some(Said::Error(refusal.line(key, said.owner)));
        }
        self.expire_if_due(db, key);
        self.arrivals += 1;
        let asked = self.asked(db, key, &ask, said);
        if said.session {
            let (key, owner) = (key.clone(), asked.owner.clone());
            self.note(Note::AskedSession { client, db, key, owner });
        }
        if asked.ticket_until.is_some() {
            self.note(Note::AskedTicket { asked: Box::new(asked.clone()) });
        }
        let mut reply = match self.decide(db, key, Input::Acquire(ask), words) {
            Ok(reply) => reply,
            Err(stop) => return Some(line(stop)),
        };
        if let (Reply::MustWait { .. }, Some(block_ms)) = (&reply, said.block_ms) {
            reply = self.park(client, asked.clone(), ask, block_ms, words)?;
        }
        if reply == Reply::MustConfirm {
            let block_ms = said.block_ms;
            reply =
                self.park_to_confirm(client, asked.clone(), Asks::Acquire(ask), block_ms, words)?;
        }
        if let Reply::Granted { token, left_ms } = reply {
            let (asked, granted_at) = (Box::new(asked.clone()), self.now);
            let (waited, pending) = (false, None);
            self.note(Note::Told { client, asked, token, granted_at, left_ms, waited, pending });
        }
        Some(to_acquire(&reply, &asked))
    }

    fn asked(&self, db: i32, key: &Key, ask: &Acquire<'_>, said: &grammar::Arguments<'_>) -> Asked {
        let memory = self.manager.memory(db, key);
        let is_own = |standing: &rlock_core::Entry| {
            standing.kind == Standing::Ticket && standing.owner.as_bytes() == ask.owner
        };
        let had_ticket = memory.is_some_and(|memory| memory.queue.iter().any(|(e, _)| is_own(e)));
        let holds = |mode| {
            let lock = self.visible(db, key).and_then(Slot::lock);
            lock.is_some_and(|lock| lock.hold_at(ask.owner, mode, self.now).is_some())
        };
        Asked {
            db,
            key: key.clone(),
            owner: ask.owner.into(),
            mode: ask.mode,
            lease: ask.lease,
            session: ask.session.is_some(),
            acks: ask.acks,
            limit: ask.limit.map(std::num::NonZeroU32::get),
            ticket_until: match ask.patience {
                Patience::Ticket(window) => Some(self.now.after(window).get()),
                _ => None,
            },
            upgrade: ask.upgrade,
            with_ttl: said.with_ttl,
            had_ticket,
            held: holds(Mode::Write) || holds(Mode::Read),
            arrival: self.arrivals,
            ends_at: None,
        }
    }

    fn release(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Said {
        let ask = said.release();
        if self.manager.decides() {
            return self.count(caller.db, key, Input::Release(ask), words, said.owner);
        }
        self.replay_release(caller.db, key, &ask);
        Said::Ok
    }

    fn renew(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Option<Said> {
        let ask = said.renew();
        let Renew { owner, mode, lease, acks, .. } = ask;
        if let Err(refusal) = self.may_confirm(acks) {
            return Some(Said::Error(refusal.line(key, owner)));
        }
        let db = caller.db;
        let mut reply = match self.decide(db, key, Input::Renew(ask), words) {
            Ok(reply) => reply,
            Err(stop) => return Some(line(stop)),
        };
        let asked = || Asked::to_renew(db, key, &ask);
        if let (Reply::MustConfirm, Some(client)) = (&reply, caller.client) {
            reply = self.park_to_confirm(client, asked(), Asks::Renew(ask), None, words)?;
        }
        if reply == Reply::Count(1) {
            let (key, owner) = (key.clone(), owner.into());
            self.note(Note::Renewed { db, key, owner, mode, lease });
        }
        Some(to_acquire(&reply, &asked()))
    }

    fn apply_effect(&mut self, caller: Caller, key: &Key, payload: &[u8]) -> Said {
        if payload.is_empty() {
            return Said::Ok;
        }
        let effect = match snapshot::load_effect(payload) {
            Ok(effect) => effect,
            Err(why) => return Said::error(format!("ERR malformed payload: {why}")),
        };
        let done = self.replay(caller.db, key, &effect, caller.client.is_none());
        done.map_or_else(line, |()| Said::Ok)
    }

    fn holds(&self, db: i32, key: &Key, said: &grammar::Arguments<'_>, now: Now) -> Said {
        let lock = match self.visible(db, key).map(|slot| &slot.value) {
            None => return Said::Int(0),
            Some(Value::Other) => return line(Stop::WrongType),
            Some(Value::Lock(lock)) => lock,
        };
        let modes = [Mode::Write, Mode::Read].into_iter();
        let asked = modes.filter(|mode| said.mode.is_none_or(|only| only == *mode));
        let held = asked.filter_map(|mode| lock.hold_at(said.owner, mode, now));
        let held = held.filter(|hold| !self.manager.is_pending(db, key, hold.token));
        Said::Int(held.map(|hold| i64::from(hold.depth)).sum())
    }

    fn check_token(&self, db: i32, key: &Key, said: &grammar::Arguments<'_>, now: Now) -> Said {
        let lock = match self.visible(db, key).map(|slot| &slot.value) {
            None => return Said::Int(0),
            Some(Value::Other) => return line(Stop::WrongType),
            Some(Value::Lock(lock)) => lock,
        };
        let mode = said.mode.unwrap_or(Mode::Write);
        let is_told = |token| !self.manager.is_pending(db, key, token);
        let is_held =
            said.token.is_some_and(|token| lock.has_token_at(token, mode, now) && is_told(token));
        Said::Int(i64::from(is_held))
    }

    /// Whether the server reads this command now: while it is paused it reads no write.
    pub fn postpones(&self, words: &Words) -> bool {
        self.is_paused() && is_write(words)
    }

    /// A user may not do what it may any more, or may again.
    pub fn may(&mut self, user: &Rc<str>, may: bool) {
        if may {
            self.denied.remove(user);
        } else {
            self.denied.insert(user.clone());
            self.has_denied = true;
        }
    }
}
