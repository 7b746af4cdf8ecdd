//! The waiters of a lock, as `RLOCK.INFO` shows them, checked to be a queue that can exist.

use redis::Value;

use crate::{Client, flat_map, integer, items, text};

/// One waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    pub owner: String,
    pub mode: String,
    pub kind: String,
    pub has_turn: bool,
    pub waited_ms: i64,
    pub left_ms: i64,
}

impl Client {
    /// The waiters of the lock, the first in line first.
    #[track_caller]
    pub fn waiters(&mut self, key: &str) -> Vec<WaiterView> {
        let reply = self.ask(&format!("RLOCK.INFO {key} WAITERS 10000"));
        let fields = flat_map(&reply);
        let waiters: Vec<_> = items(&fields["waiters"]).iter().map(waiter).collect();
        assert_eq!(integer(&fields["queue-length"]), waiters.len() as i64);
        let turns = waiters.iter().take_while(|waiter| waiter.has_turn).count();
        let is_turn_behind = waiters[turns..].iter().any(|waiter| waiter.has_turn);
        assert!(!is_turn_behind, "a turn behind the line: {waiters:?}");
        waiters
    }

    /// The waiters of the lock in one line: `ann read queue turn, bob write block`.
    #[track_caller]
    pub fn queue(&mut self, key: &str) -> String {
        let waiters = self.waiters(key);
        waiters.iter().map(WaiterView::line).collect::<Vec<_>>().join(", ")
    }

    /// The total or gauge `rlock_<name>` of `INFO rlock`.
    #[track_caller]
    pub fn counted(&mut self, name: &str) -> i64 {
        self.info_number("rlock", &format!("rlock_{name}"))
    }

    /// How many connections wait, how many tickets exist, and how many holds are tied to a
    /// connection.
    #[track_caller]
    pub fn gauges(&mut self) -> (i64, i64, i64) {
        (self.counted("waiters"), self.counted("tickets"), self.counted("sessions"))
    }

    /// The connection that the hold of `owner` is tied to; 0 = none.
    #[track_caller]
    pub fn session_of(&mut self, key: &str, owner: &str) -> i64 {
        let reply = self.ask(&format!("RLOCK.INFO {key}"));
        let fields = flat_map(&reply);
        let holds: Vec<_> = items(&fields["holders"]).iter().map(flat_map).collect();
        let hold = holds.iter().find(|hold| text(&hold["owner"]) == owner);
        integer(&hold.unwrap_or_else(|| panic!("{owner} holds nothing"))["session"])
    }
}

impl WaiterView {
    fn line(&self) -> String {
        let turn = if self.has_turn { " turn" } else { "" };
        format!("{} {} {}{turn}", self.owner, self.mode, self.kind)
    }
}

#[track_caller]
fn waiter(value: &Value) -> WaiterView {
    let fields = flat_map(value);
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    let all = [
        "at",
        "channel",
        "client",
        "keys",
        "kind",
        "left-ms",
        "limit",
        "mode",
        "owner",
        "turn",
        "waited-ms",
    ];
    assert_eq!(names, all);
    let waiter = WaiterView {
        owner: text(&fields["owner"]),
        mode: text(&fields["mode"]),
        kind: text(&fields["kind"]),
        has_turn: integer(&fields["turn"]) != 0,
        waited_ms: integer(&fields["waited-ms"]),
        left_ms: integer(&fields["left-ms"]),
    };
    assert!(["read", "write"].contains(&waiter.mode.as_str()), "{waiter:?}");
    assert!(["block", "tell", "queue"].contains(&waiter.kind.as_str()), "{waiter:?}");
    let is_single = integer(&fields["keys"]) == 1;
    assert!(waiter.kind == "queue" || !waiter.has_turn || !is_single, "{waiter:?}");
    assert!(waiter.waited_ms >= 0 && waiter.left_ms >= -1, "{waiter:?}");
    waiter
}
