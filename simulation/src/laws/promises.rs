//! A reply that grants a hold promises its client the lock until a deadline. A promise binds every
//! server whose data contains the effect of the grant, but not the effect that ended it.

use std::collections::BTreeMap;

use rlock_core::{ClientId, Owner, Token};

use super::facts::{Bound, Fact, How, Renewal};
use super::promise::{Acked, Promise};
use super::{Broken, must};
use crate::history::{History, Point};
use crate::keyspace::{Key, KeyRef, LockName, Slot};
use crate::machines::Machine;
use crate::notes::{Asked, Pending};
use crate::printer::Printer;
use crate::seen::{Kind, Seen};
use crate::server::Server;

/// The grant that a promise reports.
#[derive(Clone, Copy)]
pub struct Grant {
    /// The effect that made it.
    pub at: Point,
    /// Its token.
    pub token: Token,
    /// Its deadline, by its server's clock in milliseconds.
    pub until: u64,
    /// When it was granted, in microseconds of the world.
    pub us: u64,
    /// When it was granted, by its server's clock.
    pub now_ms: u64,
}

/// All promises that may still bind a server.
#[derive(Default)]
pub struct Promises {
    all: Vec<Promise>,
    /// Holds of which a level was released in this reign, and which were not reported since: the
    /// remaining levels may be those of unheard grants. Each has the key at which it was released
    /// (it may have another key now), and the number of the effect.
    released: BTreeMap<(Token, u32), BTreeMap<LockName, u64>>,
}

impl Promises {
    /// All of them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Promise> {
        self.all.iter_mut()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Promise> {
        self.all.iter()
    }

    /// The newest promise with this token, for this lock and owner, that this connection got. Two
    /// primaries may each have made one.
    pub fn find(
        &self,
        client: ClientId,
        token: u64,
        db: i32,
        key: &[u8],
        owner: &[u8],
    ) -> Option<&Promise> {
        self.all.iter().rev().find(|promise| {
            promise.token.get() == token
                && (promise.db, &*promise.key) == (db, key)
                && promise.owner.as_bytes() == owner
                && promise.clients.contains(&client)
        })
    }

    /// The same promise, with everything that has happened to it since.
    pub fn again(&self, promise: &Promise) -> Option<&Promise> {
        let mut all = self.all.iter();
        all.find(|one| one.at == promise.at && one.token == promise.token && one.key == promise.key)
    }

    /// The owner of this reported hold on a server with these effects. Two primaries may have
    /// issued the same token.
    pub fn owner_of(&self, token: Token, lock: KeyRef<'_>, history: &History) -> Option<&Owner> {
        let mut all = self.all.iter().rev().filter(|promise| history.has(promise.at));
        all.find(|promise| promise.token == token && promise.is_of(lock)).map(|p| &p.owner)
    }

    /// Whether a client got this token, for any lock: its key may have been renamed since.
    pub fn was_told(&self, token: Token, history: &History) -> bool {
        self.all.iter().any(|promise| promise.token == token && history.has(promise.at))
    }

    /// Everything in them on which the future depends.
    pub(crate) fn print(&self, to: &mut Printer) {
        self.all.iter().for_each(|promise| promise.print(to));
        for (token, reign) in self.released.keys() {
            to.token(token.get());
            to.add(reign);
        }
    }

    /// The locks of a database that have promises.
    pub fn keys_of(&self, db: i32) -> Vec<Key> {
        let mut keys: Vec<Key> =
            self.all.iter().filter(|one| one.db == db).map(|one| one.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// A grant was reported; or it began, and is not reported yet.
    pub fn told(&mut self, asked: &Asked, client: Option<ClientId>, grant: Grant) {
        let Grant { at, token, until, us, now_ms } = grant;
        let session = client.filter(|_| asked.session);
        let pending = u32::from(client.is_none());
        if client.is_some() {
            // A release in the same step that crossed this grant ended the previous hold, not this
            // one.
            self.released_no_more(token, at.reign, asked.key_ref(), at.number);
        }
        let known = self.all.iter_mut().rev().find(|promise| {
            promise.at.reign == at.reign
                && promise.token == token
                && promise.is_of(asked.key_ref())
                && (promise.mode == asked.mode || !promise.has_ended())
        });
        if let Some(known) = known {
            known.facts.push((at, Fact::Until(until)));
            known.session = session.or(known.session);
            known.told += 1;
            known.pending += pending;
            known.clients.extend(client);
            return;
        }
        let (db, key, owner) = (asked.db, asked.key.clone(), asked.owner.clone());
        let (mode, facts) = (asked.mode, vec![(at, Fact::Until(until))]);
        let clients: Vec<ClientId> = client.into_iter().collect();
        self.all.push(Promise {
            db,
            key,
            owner,
            mode,
            token,
            session,
            at,
            us,
            now_ms,
            told: 1,
            pending,
            acked: Vec::new(),
            lost: None,
            clients,
            facts,
        });
    }

    /// The promise, reported or pending, of this hold in the reign of this effect.
    fn of_reign(&mut self, asked: &Asked, token: Token, at: Point) -> Option<&mut Promise> {
        let lock = asked.key_ref();
        let mut all = self.all.iter_mut().rev();
        all.find(|one| one.at.reign == at.reign && one.token == token && one.is_of(lock))
    }

    /// A level of the hold with this token was released in this reign.
    pub fn released(&mut self, lock: KeyRef<'_>, token: Token, at: Point) {
        let all = self.released.entry((token, at.reign)).or_default();
        all.insert(lock.name(), at.number);
    }

    /// This hold was reported again, after the effect with this number.
    fn released_no_more(&mut self, token: Token, reign: u32, lock: KeyRef<'_>, since: u64) {
        let all = self.released.entry((token, reign)).or_default();
        all.retain(|name, number| since <= *number || !lock.is(name));
        self.released.retain(|_, all| !all.is_empty());
    }

    /// A blocked connection will get a hold, or its renewal, as a reply.
    pub fn is_told_to(
        &mut self,
        client: Option<ClientId>,
        asked: &Asked,
        pending: &Pending,
        us: u64,
    ) {
        let (token, reign) = (pending.token, pending.at.reign);
        self.released_no_more(token, reign, asked.key_ref(), u64::MAX);
        if let Some(promise) = self.of_reign(asked, pending.token, pending.at) {
            promise.us = if promise.told == promise.pending { us } else { promise.us };
            promise.pending = promise.pending.saturating_sub(1);
            promise.session = client.filter(|_| asked.session).or(promise.session);
            promise.clients.extend(client);
            let until = pending.granted_at.after(asked.lease).get();
            promise.acked.push(Acked { at: pending.at, until, us });
        }
    }

    /// Whether this hold was reported in this reign, after the last release of one of its levels.
    pub fn is_heard(&self, token: Token, lock: KeyRef<'_>, reign: u32) -> bool {
        let is_it = |promise: &&Promise| {
            promise.at.reign == reign && promise.token == token && promise.is_of(lock)
        };
        let mut all = self.all.iter().filter(is_it);
        all.any(|one| one.told > one.pending) && !self.released.contains_key(&(token, reign))
    }

    /// The connection closed before it got the reply with this grant.
    pub fn unheard(&mut self, asked: &Asked, token: Token, at: Point, was_pending: bool) {
        if let Some(promise) = self.of_reign(asked, token, at) {
            promise.told = promise.told.saturating_sub(1);
            promise.pending = promise.pending.saturating_sub(was_pending.into());
        }
        self.all.retain(|promise| promise.told > 0);
    }

    /// Law: a new promise excludes none of the earlier promises that still bind this server.
    pub fn excludes(&self, history: &History, asked: &Asked, now_ms: u64) -> Result<(), Broken> {
        for promise in &self.all {
            if !promise.is_of(asked.key_ref()) || !promise.excludes(&asked.owner, asked.mode) {
                continue;
            }
            let end = promise.bound(history).map_or(0, Bound::end);
            must(end <= now_ms, "one owner at a time", || {
                format!("{asked:?} was granted beside {promise:?}, which lasts until {end}")
            })?;
        }
        Ok(())
    }

    /// A renewal was decided.
    pub fn renewed(
        &mut self,
        at: Point,
        history: &History,
        lock: KeyRef<'_>,
        renewal: Renewal<'_>,
        now_ms: u64,
    ) {
        let Renewal { owner, mode, only, until, is_told } = renewal;
        let mut told = Vec::new();
        for promise in self.all.iter_mut().filter(|promise| promise.is_of(lock)) {
            let is_meant = promise.owner == *owner
                && mode.is_none_or(|mode| mode == promise.mode)
                && only.is_none_or(|only| only == promise.token);
            let stands = promise.bound(history).is_some_and(|bound| bound.end() > now_ms);
            if is_meant && stands {
                promise.facts.push((at, Fact::Until(until)));
                // Another primary may revoke a grant whose reply none of its own callers has read.
                if is_told && promise.at.reign == at.reign {
                    promise.told += 1;
                    told.push(promise.token);
                }
            }
        }
        for token in told {
            self.released_no_more(token, at.reign, lock, u64::MAX);
        }
    }

    /// A hold ended on its primary.
    pub fn ended(
        &mut self,
        at: Point,
        history: &History,
        lock: KeyRef<'_>,
        token: Token,
        how: How,
        now_ms: u64,
    ) -> Result<(), Broken> {
        let all = self.all.iter_mut().filter(|promise| promise.is_of(lock));
        for promise in all.filter(|promise| promise.token == token) {
            Self::end_one(promise, at, history, how, now_ms)?;
        }
        Ok(())
    }

    /// A key was removed on its primary; `None` means all keys.
    pub fn key_ends(
        &mut self,
        at: Point,
        history: &History,
        lock: Option<KeyRef<'_>>,
        how: How,
        now_ms: u64,
    ) -> Result<(), Broken> {
        let is_meant = |promise: &&mut Promise| lock.is_none_or(|lock| promise.is_of(lock));
        let mut all = self.all.iter_mut().filter(is_meant);
        all.try_for_each(|promise| Self::end_one(promise, at, history, how, now_ms))
    }

    fn end_one(
        promise: &mut Promise,
        at: Point,
        history: &History,
        how: How,
        now_ms: u64,
    ) -> Result<(), Broken> {
        // The fact of this very effect does not count yet.
        let Some(bound) = promise.bound(history) else { return Ok(()) };
        must(how != How::Expired || bound.end() <= now_ms, "a hold lasts as long as told", || {
            format!("{promise:?} ended at {now_ms}, before {}", bound.end())
        })?;
        promise.facts.push((at, Fact::Ended(how)));
        Ok(())
    }

    /// A user set the time to live of a key.
    pub fn tampered(&mut self, at: Point, history: &History, lock: KeyRef<'_>, at_ms: u64) {
        for promise in self.all.iter_mut().filter(|promise| promise.is_of(lock)) {
            if history.has(promise.at) {
                promise.facts.push((at, Fact::Tampered(at_ms)));
            }
        }
    }

    /// A replica with these effects becomes a primary.
    pub fn taken_over(&self, history: &History, now_ms: u64, seen: &mut Seen) {
        for promise in &self.all {
            if promise.bound(history).is_none_or(|bound| bound.end() <= now_ms) {
                continue;
            }
            if promise.told == promise.pending {
                continue;
            }
            seen.count(Kind::Survived);
            let is_released =
                promise.facts.iter().any(|(_, fact)| *fact == Fact::Ended(How::Released));
            if is_released {
                seen.count(Kind::ReleaseLost);
            }
        }
    }

    /// Law: a promise that binds a server is in its data, also on a replica that has the effect,
    /// whenever that replica is promoted.
    pub fn stand(&self, server: &Server, node: usize) -> Result<(), Broken> {
        let now_ms = server.now_ms();
        for promise in &self.all {
            let Some(bound) = promise.bound(&server.history) else { continue };
            if bound.end() <= now_ms {
                continue;
            }
            let slot = server.keys.get(promise.db, &promise.key);
            let hold = slot.and_then(Slot::lock).and_then(|lock| {
                let mut holds = lock.holds();
                holds.find(|(owner, mode, hold)| {
                    *owner == promise.owner.as_bytes()
                        && *mode == promise.mode
                        && hold.token == promise.token
                })
            });
            must(hold.is_some(), "what was told stands", || {
                format!("server {node} at {now_ms} has {slot:?} and not {promise:?}, {bound:?}")
            })?;
            let is_long = hold.is_some_and(|(_, _, hold)| hold.deadline.get() >= bound.until);
            must(is_long, "a deadline is no earlier than told", || {
                format!("server {node} has {slot:?} and not {promise:?}, {bound:?}")
            })?;
            let lives =
                slot.and_then(|slot| slot.expires_at).is_none_or(|at| at >= bound.end() - 1);
            must(lives, "a key lives as long as what was told of it", || {
                format!("server {node} has {slot:?} and not {promise:?}, {bound:?}")
            })?;
        }
        Ok(())
    }

    /// Forgets promises that no longer bind any server.
    pub fn forget_old(&mut self, machines: &[Machine]) {
        const KEPT_MS: u64 = 20_000;
        const ENOUGH: usize = 48;
        if self.all.len() < ENOUGH {
            return;
        }
        let up = machines.iter().filter(|machine| machine.is_up);
        let earliest = up.map(|machine| machine.server.now_ms()).min();
        let earliest = earliest.unwrap_or(0);
        self.all.retain(|promise| {
            let until = promise.facts.iter().map(|(_, fact)| match fact {
                Fact::Until(ms) => *ms,
                _ => 0,
            });
            until.max().unwrap_or(0) + KEPT_MS > earliest
        });
        let all = &self.all;
        self.released.retain(|(token, _), _| all.iter().any(|promise| promise.token == *token));
    }
}
