//! Observers: connections that are blocked until the holder of WRITE differs from the one that they
//! know of. They stand in no queue, and no decision about a lock depends on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use super::sight::{SeenHold, Sight};
use super::{At, HashMap, LockId, Manager, WaitEnd};
use crate::{EpochMs, Lock, Now, Token, Volatile, WaiterId};

/// The next piece of work for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObserverTask {
    /// The wait of this observer has timed out.
    TimedOut(WaiterId),
    /// The holder of this lock may have changed: look at it, and notify each observer that
    /// [`Manager::next_observer`] returns, until it returns none.
    Look(LockId),
}

/// A blocked connection that observes a lock.
struct Observer {
    id: LockId,
    /// The token that it knows of; `None` if it knows the lock as free.
    known: Option<Token>,
    ends_at: Option<EpochMs>,
    is_told: bool,
}

/// The observers of one lock.
#[derive(Default)]
struct Observed {
    /// In order of arrival, by the token that they know of.
    by_token: BTreeMap<Option<Token>, BTreeSet<WaiterId>>,
    /// For each known token, the first observer that knows it: the next observer to notify is found
    /// without visiting those that need no news.
    firsts: BTreeSet<(WaiterId, Option<Token>)>,
    /// When the hold expires that the observers know of.
    alarm: Option<EpochMs>,
    /// Whether it is in [`Observers::marked`].
    is_marked: bool,
}

impl Observed {
    fn insert(&mut self, known: Option<Token>, waiter: WaiterId) {
        let same = self.by_token.entry(known).or_default();
        if let Some(first) = same.first() {
            self.firsts.remove(&(*first, known));
        }
        same.insert(waiter);
        self.firsts.extend(same.first().map(|first| (*first, known)));
    }

    fn remove(&mut self, known: Option<Token>, waiter: WaiterId) {
        let Some(same) = self.by_token.get_mut(&known) else { return };
        same.remove(&waiter);
        if self.firsts.remove(&(waiter, known)) {
            self.firsts.extend(same.first().map(|first| (*first, known)));
        }
        if same.is_empty() {
            self.by_token.remove(&known);
        }
    }

    /// The first observer, by arrival, for whom `sight` is news.
    fn first_to_tell(&self, sight: &Sight) -> Option<WaiterId> {
        let is_news = |known: &Option<Token>| match sight {
            Ok(held) => held.as_ref().map(|held| held.token) != *known,
            Err(_) => true,
        };
        self.firsts.iter().find(|(_, known)| is_news(known)).map(|(waiter, _)| *waiter)
    }
}

/// The observers of all locks.
#[derive(Default)]
pub(super) struct Observers {
    all: HashMap<WaiterId, Observer>,
    /// Locks that have observers, by database and key.
    locks: BTreeMap<i32, BTreeMap<Rc<[u8]>, Observed>>,
    /// When each wait with a time limit ends.
    ends: BTreeSet<(EpochMs, WaiterId)>,
    /// The locks by [`Observed::alarm`].
    alarms: BTreeSet<(EpochMs, LockId)>,
    /// Locks to be looked at, in the order in which they were marked.
    marked: VecDeque<LockId>,
    /// Whether other replies must leave the server before those to observers.
    is_later: bool,
    /// How many observers get a message.
    pub told: usize,
}

impl Observers {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn knows(&self, waiter: WaiterId) -> bool {
        self.all.contains_key(&waiter)
    }

    fn of(&self, db: i32, key: &[u8]) -> Option<&Observed> {
        self.locks.get(&db)?.get(key)
    }

    fn of_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut Observed> {
        self.locks.get_mut(&db)?.get_mut(key)
    }

    /// Whether this lock has observers.
    pub fn has(&self, db: i32, key: &[u8]) -> bool {
        !self.all.is_empty() && self.of(db, key).is_some()
    }

    fn insert(&mut self, waiter: WaiterId, observer: Observer, alarm: Option<EpochMs>) {
        let LockId { db, key } = observer.id.clone();
        let observed = self.locks.entry(db).or_default().entry(key).or_default();
        observed.insert(observer.known, waiter);
        let has_news_for_others = observed.by_token.len() > 1;
        self.ends.extend(observer.ends_at.map(|at| (at, waiter)));
        self.set_alarm(&observer.id, alarm);
        let id = observer.id.clone();
        self.told = self.told.saturating_add(observer.is_told.into());
        self.all.insert(waiter, observer);
        // The alarm was for these observers: the hold that they know of may have expired a moment
        // ago.
        if has_news_for_others {
            self.mark(id.db, &id.key, false);
        }
    }

    /// Removes an observer. Nothing happens if it is unknown.
    pub fn remove(&mut self, waiter: WaiterId) {
        if self.all.is_empty() {
            return;
        }
        let Some(observer) = self.all.remove(&waiter) else { return };
        let Observer { id, known, ends_at, is_told } = observer;
        self.told = self.told.saturating_sub(is_told.into());
        if self.all.is_empty() {
            // No observer is notified about the locks that were marked.
            (self.marked, self.is_later) = (VecDeque::new(), false);
        }
        if let Some(at) = ends_at {
            self.ends.remove(&(at, waiter));
        }
        let Some(observed) = self.of_mut(id.db, &id.key) else { return };
        observed.remove(known, waiter);
        if !observed.by_token.is_empty() {
            return;
        }
        self.set_alarm(&id, None);
        if let Some(locks) = self.locks.get_mut(&id.db) {
            locks.remove(&id.key);
            if locks.is_empty() {
                self.locks.remove(&id.db);
            }
        }
    }

    /// Drops one observer, so that many can be dropped in portions. False if there is none.
    pub fn drop_one(&mut self) -> bool {
        let observed = self.locks.values().next().and_then(|locks| locks.values().next());
        let first = observed.and_then(|observed| observed.firsts.first().copied());
        first.inspect(|(waiter, _)| self.remove(*waiter)).is_some()
    }

    fn set_alarm(&mut self, id: &LockId, at: Option<EpochMs>) {
        let Some(observed) = self.of_mut(id.db, &id.key) else { return };
        let before = std::mem::replace(&mut observed.alarm, at);
        if before != at {
            before.map(|at| self.alarms.remove(&(at, id.clone())));
            at.map(|at| self.alarms.insert((at, id.clone())));
        }
    }

    /// The holder of this lock may have changed. With `tells_others`, replies to other connections
    /// are about to be sent, and replies to observers must not delay them.
    pub fn mark(&mut self, db: i32, key: &[u8], tells_others: bool) {
        if self.all.is_empty() {
            return;
        }
        let Some(locks) = self.locks.get_mut(&db) else { return };
        let Some((key, _)) = locks.get_key_value(key) else { return };
        let key = key.clone();
        if let Some(observed) = locks.get_mut(&key)
            && !std::mem::replace(&mut observed.is_marked, true)
        {
            self.marked.push_back(LockId { db, key });
        }
        self.is_later |= tells_others;
    }

    /// The holder of any lock in this database, or in all if `None`, may have changed.
    pub fn mark_all(&mut self, db: Option<i32>) {
        for (number, locks) in &mut self.locks {
            for (key, observed) in locks.iter_mut().filter(|_| db.is_none_or(|db| db == *number)) {
                if !std::mem::replace(&mut observed.is_marked, true) {
                    self.marked.push_back(LockId { db: *number, key: key.clone() });
                }
            }
        }
    }

    /// In how many milliseconds a marked lock is to be looked at; `None` if none is marked.
    pub fn marked_in_ms(&self) -> Option<u64> {
        (!self.marked.is_empty()).then_some(self.is_later.into())
    }

    /// When the next hold expires that observers know of, or the next wait of an observer times
    /// out.
    pub fn next_alarm(&self) -> Option<EpochMs> {
        let ends = self.ends.first().map(|(at, _)| *at);
        ends.into_iter().chain(self.alarms.first().map(|(at, _)| *at)).min()
    }

    fn take_timed_out(&mut self, now: Now) -> Option<WaiterId> {
        let (_, waiter) = *self.ends.first().filter(|(at, _)| at.is_over_at(now))?;
        self.remove(waiter);
        Some(waiter)
    }

    fn take_marked(&mut self, now: Now) -> Option<LockId> {
        // One at a time: the holds of very many locks may expire together.
        if let Some((_, id)) = self.alarms.first().filter(|(at, _)| at.is_over_at(now)).cloned() {
            self.set_alarm(&id, None);
            self.mark(id.db, &id.key, false);
        }
        loop {
            let id = self.marked.pop_front()?;
            if let Some(observed) = self.of_mut(id.db, &id.key)
                && std::mem::take(&mut observed.is_marked)
            {
                return Some(id);
            }
        }
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut locks: BTreeMap<i32, BTreeMap<Rc<[u8]>, Observed>> = BTreeMap::new();
        for (waiter, Observer { id, known, .. }) in &self.all {
            let keys = locks.entry(id.db).or_default();
            keys.entry(id.key.clone()).or_default().insert(*known, *waiter);
        }
        let all = |locks: &BTreeMap<i32, BTreeMap<Rc<[u8]>, Observed>>| {
            let keys = locks.iter().flat_map(|(db, keys)| keys.iter().map(move |it| (*db, it)));
            let keys = keys
                .map(|(db, (key, it))| (db, key.clone(), it.by_token.clone(), it.firsts.clone()));
            keys.collect::<Vec<_>>()
        };
        let ends = self.all.iter().filter_map(|(waiter, it)| Some((it.ends_at?, *waiter)));
        let (mut alarms, mut marks) = (BTreeSet::new(), BTreeSet::new());
        for (db, keys) in &self.locks {
            for (key, it) in keys {
                let id = LockId { db: *db, key: key.clone() };
                marks.extend(it.is_marked.then(|| id.clone()));
                alarms.extend(it.alarm.map(|at| (at, id)));
            }
        }
        let agree = [
            ("locks", all(&locks) == all(&self.locks)),
            ("ends", ends.collect::<BTreeSet<_>>() == self.ends),
            ("alarms", alarms == self.alarms),
            ("marks", marks.iter().all(|id| self.marked.contains(id))),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with the observers")))
    }
}

impl Manager {
    /// What observers see of a lock now. A pending hold may still be revoked, so it counts as no
    /// hold.
    pub fn seen_hold(&self, at: At<'_>, lock: &Lock) -> Option<SeenHold> {
        let (owner, hold) = lock.writer_at(at.now)?;
        if self.is_pending(at.db, at.key, hold.token) {
            return None;
        }
        Some(SeenHold { token: hold.token, owner: owner.into(), deadline: hold.deadline })
    }

    /// The number of observers on this server.
    pub fn observer_count(&self) -> usize {
        self.observers.len()
    }

    /// The number of observers of one lock.
    pub fn observers_of(&self, db: i32, key: &[u8]) -> usize {
        let observed = self.observers.of(db, key);
        observed.map_or(0, |it| it.by_token.values().map(BTreeSet::len).sum())
    }

    /// An observer sent another request, and is no longer an observer.
    pub fn observes_no_more(&mut self, waiter: WaiterId) {
        self.observers.remove(waiter);
        self.tell_ends(waiter);
    }

    /// From now on, a blocked connection or a request with `TELL` observes a lock, which it knows
    /// as `held`.
    pub fn observe(
        &mut self,
        waiter: WaiterId,
        id: LockId,
        held: Option<&SeenHold>,
        ends_at: Option<EpochMs>,
    ) {
        // Any value may appear at a free name.
        self.expects_keys |= held.is_none();
        let (known, deadline) = (held.map(|held| held.token), held.map(|held| held.deadline));
        let is_told = self.is_told(waiter);
        self.observers.insert(waiter, Observer { id, known, ends_at, is_told }, deadline);
    }

    /// The next piece of work for observers; `None` if there is none.
    pub fn next_observer_task(&mut self, now: Now) -> Option<ObserverTask> {
        if !self.is_primary || self.is_loading {
            return None;
        }
        if let Some(waiter) = self.observers.take_timed_out(now) {
            return Some(ObserverTask::TimedOut(waiter));
        }
        let Some(id) = self.observers.take_marked(now) else {
            self.observers.is_later = false;
            return None;
        };
        let is_unfinished = |volatile: &Volatile| volatile.unfinished.is_some();
        if self.shut_since.is_none() && self.locks.get(id.db, &id.key).is_some_and(is_unfinished) {
            // The lock's waiters come first, in their portions.
            self.observers.mark(id.db, &id.key, true);
            return None;
        }
        Some(ObserverTask::Look(id))
    }

    /// Takes the next observer to notify about this lock. If none remains, the lock is looked at
    /// again when it changes, or when the hold expires.
    pub fn next_observer(&mut self, id: &LockId, sight: &Sight) -> Option<WaiterId> {
        let waiter = self.observers.of(id.db, &id.key)?.first_to_tell(sight);
        match waiter {
            Some(waiter) => self.observers.remove(waiter),
            None => {
                let held = sight.as_ref().ok().and_then(Option::as_ref);
                self.observers.set_alarm(id, held.map(|held| held.deadline));
            }
        }
        waiter
    }

    /// Marks this lock to be looked at again.
    pub fn look_again(&mut self, id: &LockId) {
        self.observers.mark(id.db, &id.key, false);
    }

    /// A portion is used up: the remaining observers are notified after other work.
    pub fn observers_wait(&mut self) {
        self.observers.is_later = true;
    }

    /// Sets the reply of an observer. False if it has a reply already, or has departed.
    pub fn tell(&mut self, waiter: WaiterId, end: WaitEnd) -> bool {
        self.tells.end_with(waiter, (Some(end.clone()), None)) || self.waits.end_with(waiter, end)
    }
}
