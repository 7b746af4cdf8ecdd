//! A connection that listens to the unlock messages.

use std::sync::atomic::{AtomicU32, Ordering};

use redis::Value;

use crate::{Client, Server, items, text};

/// The channel of the marks that end what is to be heard: messages of one server keep their order.
const MARKS: &str = "marks";

/// A connection that is subscribed to everything.
pub struct Listener {
    ears: Client,
}

impl Listener {
    /// Listens to every channel of `server`.
    pub fn to(server: &Server) -> Listener {
        let mut ears = server.client();
        ears.send(&["PSUBSCRIBE", "*"]);
        let confirmed = ears.receive();
        assert_eq!(text(&items(&confirmed)[0]), "psubscribe");
        Listener { ears }
    }

    /// All events of this module that were published before now, as `event key`, from the
    /// `keyevent` channels of database 0 (`event key @db` for another one). `speaker` is a client
    /// of the same server, or of its primary: PUBLISH is replicated like everything before it.
    pub fn heard(&mut self, speaker: &mut Client) -> Vec<String> {
        let messages = self.heard_raw(speaker);
        let events = messages.iter().filter_map(|(channel, key)| {
            let (db, event) = channel.strip_prefix("__keyevent@")?.split_once("__:")?;
            let place = if db == "0" { String::new() } else { format!(" @{db}") };
            Some(format!("{event} {key}{place}"))
        });
        events.filter(|event| event.starts_with("rlock.")).collect()
    }

    /// As `heard`, for events that are published one iteration of the server's loop after their
    /// cause.
    pub fn heard_after_a_turn(&mut self, speaker: &mut Client) -> Vec<String> {
        let mut events = self.heard(speaker);
        // Each round trip takes at least one iteration of the loop.
        for _ in 0..20 {
            events.extend(self.heard(speaker));
        }
        events
    }

    /// All messages that were published before now: channel and payload.
    pub fn heard_raw(&mut self, speaker: &mut Client) -> Vec<(String, String)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // A new mark each time: other listeners' marks arrive here as well.
        let mark = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        speaker.ask(&format!("PUBLISH {MARKS} {mark}"));
        let mut messages = Vec::new();
        loop {
            let (channel, payload) = self.next();
            if channel != MARKS {
                messages.push((channel, payload));
            } else if payload == mark {
                return messages;
            }
        }
    }

    /// Waits for the next message on a `keyevent` channel of this module, as `event key`.
    pub fn next_event(&mut self) -> String {
        loop {
            let (channel, key) = self.next();
            if let Some((_, event)) = channel.split_once("__:")
                && channel.starts_with("__keyevent@")
                && event.starts_with("rlock.")
            {
                return format!("{event} {key}");
            }
        }
    }

    fn next(&mut self) -> (String, String) {
        let message = self.ears.receive();
        let (Value::Array(parts) | Value::Push { data: parts, .. }) = &message else {
            panic!("not a message: {message:?}")
        };
        (text(&parts[parts.len() - 2]), text(&parts[parts.len() - 1]))
    }
}
