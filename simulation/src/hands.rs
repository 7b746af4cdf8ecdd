//! The hands of a simulated server: as `src/executor.rs` does it, with the simulated keyspace in
//! the place of the server's.

use std::borrow::Cow;

use rlock_core::manager::{At, Life, Ttl, Why};
use rlock_core::snapshot::{self, Effect, Start};
use rlock_core::{
    Change, Effects, End, EpochMs, Event, Input, Lock, Refusal, Release, Reply, WaiterId, Wake,
    text,
};

use crate::fault::Fault;
use crate::keyspace::{Key, Slot, Value};
use crate::notes::{By, Note};
use crate::server::Server;

/// What stops a request before the core is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The key is something else than a lock.
    WrongType,
    /// A client brought a token that no server with a right clock issued.
    Implausible,
}

/// A change that outlives the request that it came of.
fn kept(change: &Change<'_>) -> Change<'static> {
    match change {
        Change::Granted { owner, mode, token, deadline } => Change::Granted {
            owner: Cow::Owned(owner.to_vec()),
            mode: *mode,
            token: *token,
            deadline: *deadline,
        },
        Change::Held { token, depth, deadline } => {
            Change::Held { token: *token, depth: *depth, deadline: *deadline }
        }
        Change::Ended { token, by } => Change::Ended { token: *token, by: *by },
    }
}

/// Nothing happened but that holds end which replicas did not acknowledge.
fn is_taken_back(effects: &Effects<'_>) -> bool {
    let is_it = |change: &Change<'_>| matches!(change, Change::Ended { by: End::Unconfirmed, .. });
    !effects.changes.is_empty() && effects.changes.iter().all(is_it)
}

impl Server {
    pub(crate) fn at<'k>(&self, db: i32, key: &'k Key) -> At<'k> {
        At { db, key, now: self.now }
    }

    /// A command's request.
    pub(crate) fn decide<'a>(
        &mut self,
        db: i32,
        key: &Key,
        input: Input<'a>,
        words: &[Vec<u8>],
    ) -> Result<Reply, Stop> {
        let by = match &input {
            Input::Release(ask) => By::Release(ask.owner.into()),
            Input::Force(_) => By::Force,
            _ => By::Command,
        };
        let effects = self.carry_out(db, key, input, words, &by)?;
        self.settle();
        self.settle_closing();
        Ok(effects.reply)
    }

    fn open(&mut self, db: i32, key: &Key) {
        self.expire_if_due(db, key);
        self.publish_removed();
    }

    pub(crate) fn publish_removed(&mut self) {
        for lock in self.manager.take_removed(self.now) {
            let event = lock.event.name().to_string_lossy().into_owned();
            self.events.push((lock.db, lock.key.as_slice().into(), event));
        }
    }

    /// Lets the manager decide about the lock at a key, and carries out what it says.
    pub(crate) fn carry_out<'a>(
        &mut self,
        db: i32,
        key: &Key,
        input: Input<'a>,
        words: &[Vec<u8>],
        by: &By,
    ) -> Result<Effects<'a>, Stop> {
        self.open(db, key);
        let (at, bounds) = (self.at(db, key), self.bounds);
        let mut effects = Effects::default();
        let (start, ttl) = match self.keys.get_mut(db, key) {
            Some(Slot { value: Value::Other, .. }) => return Err(Stop::WrongType),
            Some(Slot { value: Value::Lock(lock), .. }) => {
                let standing = lock.clone();
                let (before, after) = self.manager.decide(at, &bounds, lock, input, &mut effects);
                if self.fault == Fault::TakeBackForgotten && is_taken_back(&effects) {
                    *lock = standing;
                    effects.changes.clear();
                    self.tell_waiters(std::mem::take(&mut effects.wakes));
                    return Ok(effects);
                }
                (Start::GoesOn, after.after(before, Why::of(&input, &effects)))
            }
            None => {
                let mut lock = Lock::default();
                let (_, life) = self.manager.decide(at, &bounds, &mut lock, input, &mut effects);
                if !lock.is_free() {
                    self.keys.set(db, key, Slot { value: Value::Lock(lock), expires_at: None });
                }
                (Start::Begins, life.begin())
            }
        };
        self.set_ttl(db, key, ttl);
        let gated = self.deny(db, key, &mut effects);
        self.tell(db, key, start, &effects, words, by);
        for owner in &effects.turns {
            let event = format!("rlock.turn:{}", text::escaped(owner.as_bytes()));
            self.events.push((db, key.clone(), event));
        }
        self.tell_waiters(std::mem::take(&mut effects.wakes));
        gated.into_iter().rev().for_each(|waiter| self.pend(waiter));
        Ok(effects)
    }

    /// Takes the grant back from whoever lost the right to it while it waited. Those whose grants
    /// stand, and wait for acknowledgements.
    fn deny(&mut self, db: i32, key: &Key, effects: &mut Effects<'_>) -> Vec<WaiterId> {
        let (mut at, mut gated) = (0, Vec::new());
        loop {
            while let Some(wake) = effects.wakes.get(at) {
                let is_granted = matches!(wake.reply, Reply::Granted { .. });
                if is_granted && self.take_back(db, key, wake.waiter, effects) {
                    effects.wakes[at].reply = Reply::Refused(Refusal::NotPermitted);
                }
                at += 1;
            }
            let Some(waiter) = effects.gated.pop() else { return gated };
            if self.take_back(db, key, waiter, effects) {
                let reply = Reply::Refused(Refusal::NotPermitted);
                effects.wakes.push(Wake { waiter, reply, waited_us: 0, acks_us: None });
            } else {
                gated.push(waiter);
            }
        }
    }

    /// Takes the grant of a blocked connection back, if it lost the right to it.
    fn take_back(
        &mut self,
        db: i32,
        key: &Key,
        waiter: WaiterId,
        effects: &mut Effects<'_>,
    ) -> bool {
        let user = self.manager.parked(waiter).map(|parked| parked.user.clone());
        let is_denied = user.is_some_and(|user| self.denied.contains(&user));
        let (here, bounds) = (self.at(db, key), self.bounds);
        if is_denied && let Some(Slot { value: Value::Lock(lock), .. }) = self.keys.get_mut(db, key)
        {
            let reply = effects.reply.clone();
            let deny = Input::Deny(waiter);
            let (before, after) = self.manager.decide(here, &bounds, lock, deny, effects);
            effects.reply = reply;
            effects.is_request_enough = false;
            self.set_ttl(db, key, after.after(before, Why::Other));
        }
        is_denied
    }

    /// Hands the changes to replicas, then to subscribers.
    fn tell(
        &mut self,
        db: i32,
        key: &Key,
        start: Start,
        effects: &Effects<'_>,
        words: &[Vec<u8>],
        by: &By,
    ) {
        if effects.changes.is_empty() {
            return;
        }
        if effects.is_request_enough {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.propagate(db, &words);
        } else {
            let mut bytes = Vec::new();
            snapshot::save_effect(start, &effects.changes, &mut bytes);
            self.propagate(db, &[b"RLOCK.APPLY", key, &bytes]);
        }
        for change in &effects.changes {
            let change = kept(change);
            self.note(Note::Changed { db, key: key.clone(), change, by: by.clone() });
        }
        self.announce(db, key, &effects.events);
    }

    fn announce(&mut self, db: i32, key: &Key, events: &[Event]) {
        self.effect_events += events.len() as u64;
        for event in events {
            let event = event.name().to_string_lossy().into_owned();
            self.events.push((db, key.clone(), event));
        }
    }

    /// Makes the changes of an effect.
    pub(crate) fn replay(
        &mut self,
        db: i32,
        key: &Key,
        effect: &Effect<Vec<Change<'_>>>,
        is_from_primary: bool,
    ) -> Result<(), Stop> {
        let is_implausible = |change: &Change<'_>| match change {
            Change::Granted { token, .. } => token.is_implausible_at(self.now),
            _ => false,
        };
        if effect.changes.iter().any(is_implausible) && !is_from_primary {
            return Err(Stop::Implausible);
        }
        self.open(db, key);
        let mut events = Vec::new();
        let goes_on = effect.start == Start::GoesOn;
        let standing = self.keys.get(db, key);
        match standing.map(|slot| slot.lock().cloned()) {
            Some(None) if goes_on => return Err(Stop::WrongType),
            Some(Some(mut lock)) if goes_on => {
                let before = self.life_of(&lock, db, key);
                self.make(&mut lock, &effect.changes, &mut events);
                let after = self.life_of(&lock, db, key);
                if let Some(slot) = self.keys.get_mut(db, key) {
                    slot.value = Value::Lock(lock);
                }
                self.set_ttl(db, key, after.after(before, Why::of_changes(&effect.changes)));
            }
            _ => {
                let mut lock = Lock::default();
                self.make(&mut lock, &effect.changes, &mut events);
                self.remove(db, key);
                if !lock.is_free() {
                    let life = self.life_of(&lock, db, key);
                    self.keys.set(db, key, Slot { value: Value::Lock(lock), expires_at: None });
                    self.set_ttl(db, key, life.begin());
                }
            }
        }
        self.replayed(db, key, &events);
        Ok(())
    }

    /// Makes the change of a release that its primary sent as it was asked for.
    pub(crate) fn replay_release(&mut self, db: i32, key: &Key, ask: &Release<'_>) {
        self.open(db, key);
        let mut event = None;
        if let Some(mut lock) = self.keys.get(db, key).and_then(|slot| slot.lock().cloned()) {
            let before = self.life_of(&lock, db, key);
            event = lock.replay_release(ask);
            let after = self.life_of(&lock, db, key);
            if let Some(slot) = self.keys.get_mut(db, key) {
                slot.value = Value::Lock(lock);
            }
            self.set_ttl(db, key, after.after(before, Why::Other));
        }
        self.replayed(db, key, event.as_slice());
    }

    fn replayed(&mut self, db: i32, key: &Key, events: &[Event]) {
        self.announce(db, key, events);
        self.manager.was_replayed(db, key);
        self.settle();
    }

    fn life_of(&self, lock: &Lock, db: i32, key: &Key) -> Life {
        self.manager.life(lock, db, key)
    }

    fn make(&mut self, lock: &mut Lock, changes: &[Change<'_>], events: &mut Vec<Event>) {
        for change in changes {
            let mut change = kept(change);
            if let Change::Granted { token, .. } = &change
                && self.fault != Fault::TokensUnseen
            {
                self.manager.saw(*token);
            }
            if let (
                Fault::RenewedOnReplica,
                Change::Granted { deadline, .. } | Change::Held { deadline, .. },
            ) = (self.fault, &mut change)
            {
                *deadline = EpochMs::new(deadline.get() + 1000).unwrap_or(*deadline);
            }
            events.extend(lock.replay(&change));
        }
    }

    /// Does with a key what was decided about its life.
    fn set_ttl(&mut self, db: i32, key: &Key, ttl: Ttl) {
        if ttl == Ttl::Delete {
            return self.remove(db, key);
        }
        let is_forgotten = self.fault == Fault::TtlForgotten;
        let Some(slot) = self.keys.get_mut(db, key) else { return };
        if matches!(ttl, Ttl::Set(_)) && is_forgotten && slot.expires_at.is_some() {
            return;
        }
        if let Some(at_ms) = ttl.expiry(|| slot.expires_at) {
            slot.expires_at = Some(at_ms);
        }
    }

    fn remove(&mut self, db: i32, key: &Key) {
        self.removing = true;
        self.unlink(db, key);
        self.removing = false;
    }
}
