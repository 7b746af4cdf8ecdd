//! What the primary remembers of a lock beside its value: who waits, whose hold is tied to a
//! connection, and which grants may still be taken back. It is lost with the process, and that
//! harms nobody's hold.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::Entry;
use crate::slow::{Outcome, Over, Slow};
use crate::{ClientId, EpochMs, Now, Queue, Sessions, Token, WaiterId};

/// The primary's memory of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Who waits.
    pub queue: Queue,
    /// Whose hold is tied to a connection.
    pub sessions: Sessions,
    fresh: Fresh,
    /// Levels that were granted to connections that were gone before the reply left.
    taken_back: Vec<Token>,
    /// Waits and holds that ended and are to be noted.
    over: Vec<Over>,
    /// Waits that ended other than in a transition, if they lasted long enough to be noted.
    ended: Vec<(Entry, Outcome)>,
    /// When the last transition stopped at the end of its portion: the next one is due at once.
    pub(crate) unfinished: Option<EpochMs>,
}

/// Grants to parked connections whose reply has not left yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Fresh {
    by_waiter: BTreeMap<WaiterId, Grant>,
    by_token: BTreeSet<(Token, WaiterId)>,
}

/// The hold that was granted, and whether a level of it is the connection's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    token: Token,
    adds: bool,
}

impl Fresh {
    fn insert(&mut self, waiter: WaiterId, grant: Grant) {
        self.by_waiter.insert(waiter, grant);
        self.by_token.insert((grant.token, waiter));
    }

    fn remove(&mut self, waiter: WaiterId) -> Option<Grant> {
        let grant = self.by_waiter.remove(&waiter)?;
        self.by_token.remove(&(grant.token, waiter));
        Some(grant)
    }

    fn of_token(&self, token: Token) -> impl Iterator<Item = WaiterId> {
        let all = (token, WaiterId::from(1))..=(token, WaiterId::from(u64::MAX));
        self.by_token.range(all).map(|(_, waiter)| *waiter)
    }

    fn remove_token(&mut self, token: Token) {
        loop {
            let next = self.of_token(token).next();
            let Some(waiter) = next else { return };
            self.remove(waiter);
        }
    }

    /// Gives a level to another connection that entered this hold without one of its own. False if
    /// there is none.
    fn pass_on(&mut self, token: Token) -> bool {
        let has_none =
            |waiter: &WaiterId| self.by_waiter.get(waiter).is_some_and(|grant| !grant.adds);
        let Some(heir) = self.of_token(token).find(has_none) else { return false };
        self.insert(heir, Grant { token, adds: true });
        true
    }
}

impl Memory {
    /// There is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
            && self.sessions.is_empty()
            && self.fresh.by_waiter.is_empty()
            && self.taken_back.is_empty()
            && self.unfinished.is_none()
    }

    /// The hold with this token is lost to its session: the connection that it was tied to, which
    /// is to be closed, and which is not granted here what it waits for.
    pub(crate) fn lose(&mut self, token: Token) -> Option<ClientId> {
        let client = self.sessions.untie(token)?;
        while let Some(entry) = self.queue.remove_client(client) {
            self.ended(entry, Outcome::Disconnected);
        }
        Some(client)
    }

    /// A wait or a hold ended that is to be noted.
    pub(crate) fn note(&mut self, over: Option<Over>) {
        self.over.extend(over);
    }

    /// A wait ended, and how long it lasted is to be seen.
    pub(crate) fn ended(&mut self, entry: Entry, outcome: Outcome) {
        if entry.in_the_way.is_some() {
            self.ended.push((entry, outcome));
        }
    }

    /// The waits and holds that ended and are to be noted, since this was asked last.
    pub fn take_over(&mut self, slow: Slow, now: Now) -> Vec<Over> {
        if self.over.is_empty() && self.ended.is_empty() {
            return Vec::new();
        }
        for (entry, outcome) in std::mem::take(&mut self.ended) {
            self.over.extend(slow.wait(&entry, outcome, now));
        }
        std::mem::take(&mut self.over)
    }

    /// A parked connection waits here, or has not heard of its grant yet.
    pub fn knows(&self, waiter: WaiterId) -> bool {
        self.queue.blocked(waiter).is_some() || self.fresh.by_waiter.contains_key(&waiter)
    }

    /// A parked connection is gone, by whatever cause: it is not granted any more, and a level that
    /// it did not hear of is taken back with the next input. Needs nothing written, so it may
    /// be said at any time. True if it makes a difference to somebody.
    pub fn leave(&mut self, waiter: WaiterId) -> bool {
        let waited = self.queue.remove_waiter(waiter).is_some();
        let granted = self.fresh.remove(waiter);
        // A level that another connection of the same owner was told of as well stays.
        if let Some(Grant { token, adds: true }) = granted
            && !self.fresh.pass_on(token)
        {
            self.taken_back.push(token);
        }
        waited || granted.is_some()
    }

    /// A parked connection has its reply: what it was granted is its owner's own now.
    pub fn answered(&mut self, waiter: WaiterId) {
        if let Some(grant) = self.fresh.remove(waiter) {
            self.confirm(grant.token);
        }
    }

    /// A connection ended: its sessions end with the next input. True if it has any.
    pub fn disconnect(&mut self, client: ClientId) -> bool {
        self.sessions.end_client(client);
        self.sessions.has_gone()
    }

    /// When something happens here next that needs nothing written: a wait is over, or a session
    /// may be lost.
    pub fn next_end(&self) -> Option<EpochMs> {
        [self.queue.next_look(), self.sessions.next_end()].into_iter().flatten().min()
    }

    pub(crate) fn remember_grant(&mut self, waiter: WaiterId, token: Token, adds: bool) {
        self.fresh.insert(waiter, Grant { token, adds });
    }

    /// A reply told the owner that it holds: the grant stands, whoever is gone.
    pub(crate) fn confirm(&mut self, token: Token) {
        self.fresh.remove_token(token);
    }

    pub(crate) fn take_back_next(&mut self) -> Option<Token> {
        self.taken_back.pop()
    }

    pub(crate) fn forget_taken_back(&mut self) {
        self.taken_back.clear();
    }
}
