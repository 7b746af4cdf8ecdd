//! The slow log: the latest long waits, long holds and refused cycles.

use std::collections::VecDeque;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::Now;
use crate::text::{NAME_BYTES_MAX, cut, escaped};
use crate::volatile::owner_names::{NAMES_MAX, OwnerNames};
use crate::volatile::slow::{Ended, What};

use super::{At, Manager};

/// A name, cut; it is escaped only when it is asked for, since most entries are overwritten before
/// anybody reads them.
type Name = SmallVec<[u8; NAME_BYTES_MAX]>;

/// One entry of `RLOCK.SLOWLOG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowEntry {
    /// A number that increases with each entry, even after the log was cleared.
    pub id: u64,
    /// When it ended, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// `wait`, `hold` or `deadlock`.
    pub kind: &'static str,
    /// The lock's database.
    pub db: i32,
    key: Name,
    owner: Name,
    /// `read` or `write`.
    pub mode: &'static str,
    /// `LIMIT`; 0 is none.
    pub limit: u32,
    /// How long it lasted, in milliseconds.
    pub ms: u64,
    /// How it ended.
    pub outcome: &'static str,
    /// How many locks a wait was for; 1 for every other entry.
    pub keys: usize,
    others: Others,
}

/// The other owners that an entry names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Others {
    /// None in a hold.
    None,
    /// The owners in the way when the wait began.
    Held(Rc<OwnerNames>),
    /// The owners of a cycle, each with the key for which it waits.
    Cycle(Vec<(Name, Name)>),
}

impl SlowEntry {
    /// The lock's key, cut and escaped.
    pub fn key(&self) -> String {
        escaped(&self.key)
    }

    /// The owner, cut and escaped.
    pub fn owner(&self) -> String {
        escaped(&self.owner)
    }

    /// Who was in the way when the wait began; for a deadlock, each owner of the cycle with the key
    /// for which it waits. Cut and escaped.
    pub fn holders(&self) -> Vec<(String, Option<String>)> {
        match &self.others {
            Others::None => Vec::new(),
            Others::Held(names) => names.iter().map(|owner| (escaped(owner), None)).collect(),
            Others::Cycle(all) => {
                all.iter().map(|(owner, key)| (escaped(owner), Some(escaped(key)))).collect()
            }
        }
    }
}

/// The entries, the newest first.
#[derive(Default)]
pub struct SlowLog {
    entries: VecDeque<SlowEntry>,
    last: u64,
}

fn name(bytes: &[u8]) -> Name {
    Name::from_slice(cut(bytes))
}

impl SlowLog {
    /// Logs that a wait or a hold of the lock at this key ended, or that a wait there was refused.
    pub(super) fn add(&mut self, db: i32, key: &[u8], over: Ended, now: Now, len_max: usize) {
        let (kind, others) = match over.what {
            What::Wait(names) => ("wait", Others::Held(names)),
            What::Hold => ("hold", Others::None),
            What::Cycle(cycle) => {
                let each = cycle.iter().take(NAMES_MAX);
                let each = each.map(|(owner, key)| (name(owner.as_bytes()), name(key)));
                ("deadlock", Others::Cycle(each.collect()))
            }
        };
        self.last = self.last.saturating_add(1);
        self.entries.push_front(SlowEntry {
            id: self.last,
            unix_ms: now.ms().get(),
            kind,
            db,
            key: name(key),
            owner: name(over.owner.as_bytes()),
            mode: over.mode.lower(),
            limit: over.limit.map_or(0, |limit| limit.get()),
            ms: over.ms,
            outcome: over.outcome.word(),
            keys: over.keys,
            others,
        });
        self.entries.truncate(len_max);
    }

    /// Its entries, the newest first.
    pub fn newest(&self) -> impl Iterator<Item = &SlowEntry> {
        self.entries.iter()
    }

    /// Number of its entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

impl Manager {
    /// Logs waits and holds of this lock that ended.
    pub(super) fn log_slow(
        &mut self,
        At { db, key, now }: At<'_>,
        over: impl IntoIterator<Item = Ended>,
    ) {
        for over in over {
            self.slowlog.add(db, key, over, now, self.slowlog_max);
        }
    }
}
