//! A client that listens to shard channels.

use redis::Value;

use crate::{Server, Waiter, items, text};

/// A connection that is subscribed to shard channels.
pub struct Subscriber {
    ears: Waiter,
}

impl Subscriber {
    /// A new connection that listens to this channel.
    #[track_caller]
    pub fn to(server: &Server, channel: &str) -> Subscriber {
        let mut ears = Waiter::connect(server);
        let confirmed = ears.ask(&format!("SSUBSCRIBE {channel}"));
        assert_eq!(text(&items(&confirmed)[0]), "ssubscribe");
        Subscriber { ears }
    }

    /// The server's number for its connection.
    pub fn id(&self) -> i64 {
        self.ears.id()
    }

    /// Unsubscribes from this channel.
    #[track_caller]
    pub fn leave(&mut self, channel: &str) {
        let confirmed = self.ears.ask(&format!("SUNSUBSCRIBE {channel}"));
        assert_eq!(text(&items(&confirmed)[0]), "sunsubscribe");
    }

    /// Subscribes to this channel, too.
    #[track_caller]
    pub fn come(&mut self, channel: &str) {
        let confirmed = self.ears.ask(&format!("SSUBSCRIBE {channel}"));
        assert_eq!(text(&items(&confirmed)[0]), "ssubscribe");
    }

    /// The next message.
    #[track_caller]
    pub fn heard(&mut self) -> String {
        self.heard_bytes().escape_ascii().to_string()
    }

    /// The bytes of the next message.
    #[track_caller]
    pub fn heard_bytes(&mut self) -> Vec<u8> {
        let message = self.ears.answer();
        let [kind, _, said] = items(&message) else { panic!("{message:?}") };
        assert_eq!(text(kind), "smessage", "{message:?}");
        match said {
            Value::BulkString(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The token and the time in the next message, which must be about `id`.
    #[track_caller]
    pub fn granted(&mut self, id: &str) -> (i64, i64) {
        let message = self.heard();
        let words: Vec<&str> = message.split(' ').collect();
        let [of, "token", token, ms] = words[..] else { panic!("{message}") };
        assert_eq!(of, id, "{message}");
        (token.parse().unwrap(), ms.parse().unwrap())
    }

    /// Asserts that there is no further message: what comes next is the reply to a question.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        let mark = Value::BulkString(b"no-more".to_vec());
        let pong = self.ears.ask("PING no-more");
        let is_it = match &pong {
            Value::Array(parts) => parts.contains(&mark),
            other => *other == mark,
        };
        assert!(is_it, "{pong:?}");
    }

    /// The next message, whatever it is: its kind, and its last word.
    #[track_caller]
    pub fn next_message(&mut self) -> (String, String) {
        let message = self.ears.answer();
        let parts = items(&message);
        let last = match &parts[parts.len() - 1] {
            Value::Int(number) => number.to_string(),
            other => text(other),
        };
        (text(&parts[0]), last)
    }
}
