//! Several locks that were granted together: no server ever has only a part of the grant, whatever
//! was lost on the way.

use rlock_core::{Lock, Token};

use super::{Broken, must};
use crate::history::{History, Point};
use crate::keyspace::{Key, KeyRef, Slot};
use crate::notes::Asked;
use crate::seen::{Kind, Seen};
use crate::server::Server;

/// How many grants are remembered before old ones are forgotten.
const ENOUGH: usize = 48;
/// How long after its deadline a grant is forgotten, in milliseconds.
const KEPT_MS: u64 = 20_000;

/// One of the holds that a grant began.
struct Part {
    db: i32,
    key: Key,
    /// The effect that made it.
    at: Point,
    /// Effects that may have ended it.
    ends: Vec<Point>,
}

/// The holds that began with one token.
struct Grant {
    token: Token,
    /// Its deadline, by its server's clock in milliseconds.
    deadline: u64,
    parts: Vec<Part>,
    /// Whether replicas had acknowledged it before it was reported.
    is_acked: bool,
}

/// All grants of several locks.
#[derive(Default)]
pub struct Several {
    all: Vec<Grant>,
    /// Grants that began in the present step.
    step: Vec<Grant>,
}

impl Several {
    /// A hold began, perhaps with others in this step.
    pub fn granted(
        &mut self,
        at: Point,
        lock: KeyRef<'_>,
        token: Token,
        deadline: u64,
    ) -> Result<(), Broken> {
        let KeyRef { db, key } = lock;
        let part = Part { db, key: key.clone(), at, ends: Vec::new() };
        let known = self.step.iter_mut().find(|grant| grant.token == token);
        let Some(grant) = known else {
            let (parts, is_acked) = (vec![part], false);
            self.step.push(Grant { token, deadline, parts, is_acked });
            return Ok(());
        };
        must(grant.deadline == deadline, "the leases of one grant end together", || {
            format!("{key:?} with {token:?} until {deadline}, another until {}", grant.deadline)
        })?;
        let is_new = grant.parts.iter().all(|other| (other.db, &other.key) != (db, key));
        must(is_new, "a token is of one hold of each lock", || format!("{key:?}, {token:?}"))?;
        grant.parts.push(part);
        Ok(())
    }

    /// A hold may have ended, or all holds of a lock, a database or a server.
    pub fn ended(&mut self, at: Point, db: Option<i32>, key: Option<&Key>, token: Option<Token>) {
        let all = self.all.iter_mut().chain(&mut self.step);
        for grant in all.filter(|grant| token.is_none_or(|token| token == grant.token)) {
            for part in &mut grant.parts {
                let is_meant =
                    db.is_none_or(|db| db == part.db) && key.is_none_or(|key| *key == part.key);
                part.ends.extend(is_meant.then_some(at));
            }
        }
    }

    /// Law: after each step, a server has all of a grant, or nothing of it.
    pub fn stepped(&mut self, node: usize, server: &Server, are_sure: bool) -> Result<(), Broken> {
        let began = std::mem::take(&mut self.step).into_iter();
        self.all.extend(began.filter(|grant| grant.parts.len() > 1));
        let now_ms = server.now_ms();
        for grant in &self.all {
            grant.is_whole(node, server, are_sure, now_ms)?;
        }
        if self.all.len() > ENOUGH {
            self.all.retain(|grant| grant.deadline + KEPT_MS > now_ms);
        }
        Ok(())
    }

    /// A caller got the confirmation of this grant.
    pub fn acked(&mut self, token: Token) {
        let all = self.all.iter_mut().filter(|grant| grant.token == token);
        all.for_each(|grant| grant.is_acked = true);
    }

    /// A replica with these effects becomes a primary.
    pub fn taken_over(&self, history: &History, now_ms: u64, seen: &mut Seen) {
        for grant in self.all.iter().filter(|grant| grant.deadline > now_ms) {
            let is_there = grant.parts.iter().all(|part| history.has(part.at));
            seen.count(if is_there { Kind::SeveralSurvived } else { Kind::SeveralLost });
            if is_there && grant.is_acked {
                seen.count(Kind::SeveralAckedSurvived);
            }
        }
    }
}

impl Grant {
    fn is_whole(
        &self,
        node: usize,
        server: &Server,
        are_sure: bool,
        now_ms: u64,
    ) -> Result<(), Broken> {
        let law = "nobody has a part of a grant";
        let is_there = self.parts.first().is_some_and(|part| server.history.has(part.at));
        for part in &self.parts {
            let has = server.history.has(part.at);
            must(has == is_there, law, || {
                let (token, key) = (self.token, &part.key);
                format!("server {node} has a part of {token:?}: of {key:?} {has}, not of the first")
            })?;
            let lock = server.keys.get(part.db, &part.key).and_then(Slot::lock);
            let mut holds = lock.into_iter().flat_map(Lock::holds);
            let is_held = holds.any(|(.., hold)| hold.token == self.token);
            let is_over = self.deadline <= now_ms
                || part.ends.iter().any(|at| server.history.has(*at) || !has);
            let is_right = if has { is_held || is_over } else { !is_held || !are_sure };
            must(is_right || is_over, law, || {
                let (token, key) = (self.token, &part.key);
                format!("server {node}: {key:?} with {token:?} is held: {is_held}, arrived: {has}")
            })?;
        }
        Ok(())
    }
}

/// Law: a caller that gets several locks holds each of them, with no token newer than the one in
/// the reply.
pub fn all_held(asks: &[Asked], held: &[Option<Token>], newest: Token) -> Result<(), Broken> {
    for (asked, token) in asks.iter().zip(held) {
        must(token.is_some(), "a grant holds all of its locks", || {
            format!("{newest:?} is told, and {asked:?} is not held")
        })?;
    }
    let most = held.iter().flatten().max();
    must(most == Some(&newest), "the newest token is told", || format!("{newest:?} of {held:?}"))
}
