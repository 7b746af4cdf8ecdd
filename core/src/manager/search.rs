//! Searches for deadlocks: which owner waits for which, before a connection is blocked.

use std::collections::BTreeMap;

use super::{At, Group, LockId, Manager};
use crate::volatile::slow::{Ended, Outcome, What};
use crate::waits_for::{self, Search, Seen, Stand, Steps, WaitGraph};
use crate::{GroupStand, Lock, Mode, Now, OwnPlace, Owner, Standing, Volatile, WaiterId};

/// The server's locks, as the search sees them. No borrow lasts across calls, because the server
/// may call the module while it opens a key.
pub trait World {
    /// The manager.
    fn manager<T>(&mut self, see: impl FnOnce(&Manager) -> T) -> T;
    /// The lock at a key (a free one if there is none) and its volatile part.
    fn lock<T>(&mut self, id: &LockId, see: impl FnOnce(&Lock, &Volatile) -> T) -> T;
    /// Whether the search sees this lock (or any, if `None`) as it will be once the caller has
    /// given up its place there.
    fn is_left(&self, id: Option<&LockId>) -> bool;
}

/// A wait that is about to begin, or has begun.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// The lock.
    pub lock: &'a LockId,
    /// The owner.
    pub owner: &'a Owner,
    /// The user who begins the wait. The search follows only waits of this user; otherwise, anybody
    /// could get another user's requests refused by waiting under that user's owner names.
    pub user: &'a [u8],
    /// Its place in the queue.
    pub stand: Stand<'a>,
}

impl Manager {
    /// Records that a wait was refused because it would have closed a cycle. Returns the line for
    /// the server's log, at most once a second.
    pub fn deadlock(
        &mut self,
        wait: &Wait<'_>,
        cycle: &[(Owner, LockId)],
        now: Now,
    ) -> Option<String> {
        const PAUSE_US: u64 = 1_000_000;
        let volatile = self.volatile(wait.lock.db, &wait.lock.key);
        let (mode, limit) = wait.stand.wants(volatile).unwrap_or((Mode::Write, None));
        if let Some((owner, LockId { db, key })) = cycle.first().cloned() {
            let waits = cycle.iter().map(|(owner, id)| (owner.clone(), id.key.clone()));
            let (outcome, what) = (Outcome::Refused, What::Cycle(waits.collect()));
            let refused = Ended { owner, mode, limit, ms: 0, outcome, what, keys: 1 };
            self.log_slow(At { db, key: &key, now }, Some(refused));
        }
        // If the clock was set back since the last line, it logs as well.
        let since = |at: Now| now.us().checked_sub(at.us());
        if self.logged_at.and_then(since).is_some_and(|us| us < PAUSE_US) {
            self.unlogged = self.unlogged.saturating_add(1);
            return None;
        }
        self.logged_at = Some(now);
        let cycle: Vec<(Owner, &[u8])> =
            cycle.iter().map(|(owner, id)| (owner.clone(), &*id.key)).collect();
        Some(crate::waits_for::log_line(&cycle, std::mem::take(&mut self.unlogged)))
    }
}

/// How many locks to open at most in the check that may make the search unnecessary.
const LOCKS_MAX: usize = 64;

/// Searches for a cycle of owners that this wait closes, or would close. The search takes at most 2
/// ms.
pub fn search<W: World>(world: &mut W, wait: Wait<'_>, now: Now) -> Search<LockId> {
    let steps = &mut Steps::default();
    let is_plain = matches!(wait.stand, Stand::Asking(..)) && !world.is_left(None);
    if is_plain && nobody_waits_for(world, wait, now, steps) {
        return Search::NoCycle;
    }
    let (db, user) = (wait.lock.db, wait.user);
    let mut waits = DbWaitGraph { world, db, user, now, seen: BTreeMap::new() };
    let first = waits.at(wait.lock, wait.stand, steps);
    let at = WaitAt { waiter: None, lock: wait.lock.clone() };
    match waits_for::search(&mut waits, wait.owner, at, first, steps) {
        Search::Cycle(cycle) => {
            Search::Cycle(cycle.into_iter().map(|(owner, at)| (owner, at.lock)).collect())
        }
        Search::GaveUp => Search::GaveUp,
        Search::NoCycle => Search::NoCycle,
    }
}

/// Whether nobody in this database waits for the owner, who is not blocked yet. It is checked only
/// if that is cheaper than the search: if there are no more locks to open than blocked connections
/// ahead.
fn nobody_waits_for<W: World>(world: &mut W, wait: Wait<'_>, now: Now, steps: &mut Steps) -> bool {
    let with_waiters = world.manager(|manager| {
        let volatile = manager.locks.get(wait.lock.db, &wait.lock.key);
        let ahead = volatile.map_or(0, |volatile| {
            let queue = &volatile.queue;
            queue.blocked_count().saturating_add(queue.told_count())
        });
        manager.locks.with_waiters(wait.lock.db, ahead.min(LOCKS_MAX))
    });
    with_waiters.is_some_and(|locks| {
        locks.iter().all(|id| {
            steps.take()
                && world.lock(id, |lock, volatile| {
                    lock.nobody_waits_for(volatile, wait.owner.as_bytes(), now)
                })
        })
    })
}

/// A wait for a lock.
struct WaitAt {
    /// `None` for the wait of the caller, which is not blocked yet.
    waiter: Option<WaiterId>,
    lock: LockId,
}

/// The waits of one database.
struct DbWaitGraph<'w, W> {
    world: &'w mut W,
    db: i32,
    user: &'w [u8],
    now: Now,
    seen: BTreeMap<LockId, Seen>,
}

impl<W: World> DbWaitGraph<'_, W> {
    fn at(&mut self, id: &LockId, who: Stand<'_>, steps: &mut Steps) -> Vec<Owner> {
        let (now, seen) = (self.now, self.seen.entry(id.clone()).or_default());
        let is_left = self.world.is_left(Some(id));
        let is_seen = !is_left
            && self.world.manager(|manager| {
                let volatile = manager.locks.get(id.db, &id.key);
                volatile.is_some_and(|volatile| seen.covers(volatile, who))
            });
        if is_seen || !steps.take() {
            return Vec::new();
        }
        self.world.lock(id, |lock, volatile| lock.blockers(volatile, who, now, seen, steps))
    }
}

impl<W: World> WaitGraph for DbWaitGraph<'_, W> {
    type Wait = WaitAt;

    fn of(&mut self, owner: &Owner, most: usize) -> Vec<Self::Wait> {
        let (db, user) = (self.db, self.user);
        self.world.manager(|manager| {
            let told = manager.told_of_owner(db, None, owner, (!user.is_empty()).then_some(user));
            let waits = manager.waits.of_owner(db, owner, user).chain(told);
            waits
                .take(most)
                .map(|(waiter, lock)| WaitAt { waiter: Some(waiter), lock: lock.clone() })
                .collect()
        })
    }

    fn blockers(&mut self, wait: &WaitAt, steps: &mut Steps) -> Vec<Owner> {
        let WaitAt { waiter: Some(waiter), ref lock } = *wait else { return Vec::new() };
        let is_left = self.world.is_left(Some(lock));
        let next = if is_left { self.next_of(waiter, lock, steps) } else { None };
        let Some((group, number)) = next else {
            return self.at(lock, Stand::Parked(waiter), steps);
        };
        let Some(next) = group.keys.get(number) else { return Vec::new() };
        self.at(&group.id(next), Stand::Coming(group.claim(next), group.entry.arrival), steps)
    }
}

impl<W: World> DbWaitGraph<'_, W> {
    /// If a group moves on from this lock because the caller gives up its place there: the index of
    /// the lock at which it then stands, if it stands at any. `None` if the group stays.
    fn next_of(
        &mut self,
        waiter: WaiterId,
        lock: &LockId,
        steps: &mut Steps,
    ) -> Option<(Group, usize)> {
        let group = self.world.manager(|manager| manager.group(waiter).cloned())?;
        let stand = self.world.lock(lock, |_, volatile| volatile.queue.group_stand(waiter));
        let is_there = matches!(stand, Some(GroupStand::Turn | GroupStand::Covered));
        let mut number = group.number_of(&lock.key).filter(|_| is_there)?.saturating_add(1);
        while let Some(next) = group.keys.get(number).filter(|_| steps.take()) {
            let (now, claim) = (self.now, group.claim(next));
            let standing = self.world.lock(&group.id(next), |lock, volatile| {
                lock.judge(volatile, &claim, OwnPlace::None, volatile.grace, now)
            });
            if !matches!(standing, Standing::Open | Standing::Covered(_)) {
                break;
            }
            number = number.saturating_add(1);
        }
        Some((group, number))
    }
}
