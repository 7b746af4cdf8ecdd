//! A lock as `RLOCK.INFO` shows it, checked to be one that can exist.

use redis::Value;

use crate::replies::{flat_map, integer, items, text};
use crate::{DEPTH_MAX, TOKEN_END};

/// One hold of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    pub owner: Vec<u8>,
    pub mode: String,
    pub depth: i64,
    pub token: i64,
    pub ttl_ms: i64,
    pub held_ms: i64,
}

/// The whole reply; holds sorted by owner, WRITE before READ.
#[derive(Debug, Clone)]
pub struct LockView {
    /// `free`, `read` or `write`.
    pub mode: String,
    /// The holds.
    pub holds: Vec<HoldView>,
}

impl LockView {
    /// Reads the reply, and checks the laws that every lock keeps.
    #[track_caller]
    pub fn read(reply: &Value) -> LockView {
        let fields = flat_map(reply);
        let mode = text(&fields["mode"]);
        let mut holds: Vec<HoldView> = items(&fields["holders"]).iter().map(hold).collect();
        holds.sort_by(|a, b| (&a.owner, &b.mode).cmp(&(&b.owner, &a.mode)));
        let view = LockView { mode, holds };
        view.insist_on_the_laws();
        view
    }

    /// Mode and holds in one line: `write: ann write 2, ann read 1`.
    pub fn line(&self) -> String {
        let holds: Vec<String> = self.holds.iter().map(HoldView::line).collect();
        format!("{}: {}", self.mode, holds.join(", ")).trim_end().to_owned()
    }

    /// Everything that must survive the process, except the deadlines, since `ttl-ms` changes.
    pub fn lasting(&self) -> Vec<(Vec<u8>, String, i64, i64)> {
        let holds = self.holds.iter();
        holds.map(|h| (h.owner.clone(), h.mode.clone(), h.depth, h.token)).collect()
    }

    /// The hold of `owner` in `mode`, which must be there.
    #[track_caller]
    pub fn hold(&self, owner: &str, mode: &str) -> &HoldView {
        let mut holds = self.holds.iter();
        let found = holds.find(|h| h.owner == owner.as_bytes() && h.mode == mode);
        found.unwrap_or_else(|| panic!("no {mode} hold of {owner} in {self:?}"))
    }

    #[track_caller]
    fn insist_on_the_laws(&self) {
        let writers: Vec<_> = self.holds.iter().filter(|h| h.mode == "write").collect();
        let owed_mode = match (writers.len(), self.holds.len()) {
            (0, 0) => "free",
            (0, _) => "read",
            _ => "write",
        };
        assert_eq!(self.mode, owed_mode, "{self:?}");
        assert!(writers.len() <= 1, "two writers: {self:?}");
        if let Some(writer) = writers.first() {
            let is_alone = self.holds.iter().all(|h| h.owner == writer.owner);
            assert!(is_alone, "a writer beside a stranger: {self:?}");
        }
        for (i, hold) in self.holds.iter().enumerate() {
            let twins = &self.holds[i + 1..];
            let has_twin = twins.iter().any(|t| t.owner == hold.owner && t.mode == hold.mode);
            assert!(!has_twin, "one hold twice: {self:?}");
        }
    }
}

impl HoldView {
    fn line(&self) -> String {
        format!("{} {} {}", self.owner.escape_ascii(), self.mode, self.depth)
    }
}

#[track_caller]
fn hold(value: &Value) -> HoldView {
    let fields = flat_map(value);
    let Value::BulkString(owner) = &fields["owner"] else { panic!("an owner is bytes: {value:?}") };
    let hold = HoldView {
        owner: owner.clone(),
        mode: text(&fields["mode"]),
        depth: integer(&fields["depth"]),
        token: integer(&fields["token"]),
        ttl_ms: integer(&fields["ttl-ms"]),
        held_ms: integer(&fields["held-ms"]),
    };
    assert!((1..=512).contains(&hold.owner.len()), "{hold:?}");
    assert!(["read", "write"].contains(&hold.mode.as_str()), "{hold:?}");
    assert!((1..=DEPTH_MAX).contains(&hold.depth), "{hold:?}");
    assert!((1..TOKEN_END).contains(&hold.token), "{hold:?}");
    assert!(hold.ttl_ms >= 1, "a hold that is over is shown: {hold:?}");
    assert!(hold.held_ms >= 0, "{hold:?}");
    hold
}
