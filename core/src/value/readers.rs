//! Two or more owners that hold READ, indexed so that no operation's cost grows with their number
//! beyond O(log n).
//!
//! If many of them expire together, a step removes only some of them; the others count as ended at
//! once, and decisions see only the remaining ("standing") holds. Which holds count as ended is not
//! saved, compared or replicated.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::Bound::{Included, Unbounded};

use crate::value::count::less;
use crate::{EpochMs, Hold, Now, Owner, Token};

/// The readers of a shared lock. [`crate::value::holders::Holders`] ensures that there are at least
/// two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers {
    by_token: BTreeMap<Token, (Owner, Hold)>,
    /// By a hash of the owner, because numbers compare faster than names.
    by_owner: BTreeSet<(u64, Token)>,
    by_deadline: BTreeSet<(EpochMs, Token)>,
    /// Holds with deadlines up to this one count as ended, and there are this many; `None` if no
    /// hold does.
    ended: Option<(EpochMs, NonZeroUsize)>,
}

impl PartialEq for Readers {
    fn eq(&self, other: &Self) -> bool {
        self.by_token == other.by_token
    }
}

impl Eq for Readers {}

impl Readers {
    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    /// Approximate bytes on the heap: a node of a B-tree has room for 11 entries, and is two thirds
    /// full on average.
    pub(crate) fn heap_bytes(&self) -> usize {
        const ENTRIES: usize = size_of::<(Token, (Owner, Hold))>()
            + size_of::<(u64, Token)>()
            + size_of::<(EpochMs, Token)>();
        self.by_token
            .values()
            .map(|(owner, _)| owner.heap_bytes())
            .fold(0, usize::saturating_add)
            .saturating_add((self.len().saturating_mul(3) / 2).max(11).saturating_mul(ENTRIES))
    }

    pub(crate) fn hold(&self, owner: &[u8]) -> Option<&Hold> {
        let hash = Owner::hash_of(owner);
        let tokens = self
            .by_owner
            .range((hash, Token::MIN)..)
            .map_while(|(other, token)| (*other == hash).then_some(token));
        tokens
            .filter_map(|token| self.by_token.get(token))
            .find(|(holder, _)| holder.as_bytes() == owner)
            .map(|(_, hold)| hold)
    }

    pub(crate) fn by_token(&self, token: Token) -> Option<(&Owner, &Hold)> {
        self.by_token.get(&token).map(|(owner, hold)| (owner, hold))
    }

    /// In the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Owner, &Hold)> {
        self.by_token.values().map(|(owner, hold)| (owner, hold))
    }

    /// Holds with a deadline up to this one count as ended although they are still here.
    pub(crate) fn ended_until(&self) -> Option<EpochMs> {
        self.ended.map(|(until, _)| until)
    }

    /// Whether a hold with this deadline counts as ended.
    pub(crate) fn is_ended(&self, deadline: EpochMs) -> bool {
        self.ended_until().is_some_and(|until| deadline <= until)
    }

    /// From now on, expired holds count as ended. Visits each of these holds only once, however
    /// often it is called.
    pub(crate) fn end_over(&mut self, now: Now) {
        let ended = self.ended.map_or(0, |(_, count)| count.get());
        let new = self.behind(self.ended_until()).take_while(|(at, _)| at.is_over_at(now)).count();
        let until = self.ended_until().max(Some(now.ms()));
        let count = NonZeroUsize::new(ended.saturating_add(new));
        self.ended = until.zip(count);
    }

    /// One of the holds that counted as ended was removed, or counts as standing again.
    fn one_less_ended(&mut self) {
        self.ended = self.ended.and_then(|(until, count)| {
            NonZeroUsize::new(less(count.get(), 1)).map(|count| (until, count))
        });
    }

    /// The number of standing holds.
    pub(crate) fn standing_count(&self) -> usize {
        less(self.len(), self.ended.map_or(0, |(_, count)| count.get()))
    }

    /// The standing holds, in the order of their tokens; in that of their deadlines while other
    /// holds count as ended.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&Owner, &Hold)> {
        self.lasting(self.ended_until())
    }

    /// The standing holds that have not expired. Does not visit the others.
    pub(crate) fn standing_at(&self, now: Now) -> impl Iterator<Item = (&Owner, &Hold)> {
        let over = self.first_over(now).map(|_| now.ms());
        self.lasting(over.max(self.ended_until()))
    }

    fn lasting(&self, until: Option<EpochMs>) -> impl Iterator<Item = (&Owner, &Hold)> {
        let all = until.is_none().then(|| self.iter());
        let some = until.map(|_| self.behind(until).filter_map(|(_, token)| self.by_token(token)));
        all.into_iter().flatten().chain(some.into_iter().flatten())
    }

    /// The holds with later deadlines than this one, earliest first.
    fn behind(&self, until: Option<EpochMs>) -> impl Iterator<Item = (EpochMs, Token)> {
        let from = until.map_or(Unbounded, |until| {
            Included((Now::from_ms(until.get().saturating_add(1)).ms(), Token::MIN))
        });
        self.by_deadline.range((from, Unbounded)).copied()
    }

    /// The standing holds by deadline, earliest first.
    pub(crate) fn by_deadline(&self) -> impl Iterator<Item = (EpochMs, Token)> {
        self.behind(self.ended_until())
    }

    pub(crate) fn first_over(&self, now: Now) -> Option<Token> {
        let (deadline, token) = self.by_deadline.first()?;
        (deadline.is_over_at(now) || self.is_ended(*deadline)).then_some(*token)
    }

    /// Visits only the expired holds.
    pub(crate) fn count_over(&self, now: Now) -> usize {
        self.by_deadline.iter().take_while(|(deadline, _)| deadline.is_over_at(now)).count()
    }

    pub(crate) fn latest_deadline(&self) -> Option<EpochMs> {
        self.by_deadline.last().map(|(deadline, _)| *deadline)
    }

    /// The latest deadline of a standing hold.
    pub(crate) fn latest_standing(&self) -> Option<EpochMs> {
        self.latest_deadline().filter(|at| !self.is_ended(*at))
    }

    /// The latest deadline among the standing holds of all others.
    pub(crate) fn latest_standing_beside(&self, owner: &[u8]) -> Option<EpochMs> {
        let own = self.hold(owner).map(|hold| hold.token);
        let latest = self.by_deadline.iter().rev().find(|(_, token)| Some(*token) != own);
        latest.map(|(deadline, _)| *deadline).filter(|at| !self.is_ended(*at))
    }

    /// Adds a hold with a token that no other reader has.
    pub(crate) fn insert(&mut self, owner: Owner, hold: Hold) {
        if let Some(token) = self.hold(owner.as_bytes()).map(|hold| hold.token) {
            self.remove(token);
        }
        // A replica's clock may be ahead of its new primary's.
        if self.is_ended(hold.deadline) {
            self.ended = None;
        }
        self.by_owner.insert((Owner::hash_of(owner.as_bytes()), hold.token));
        self.by_deadline.insert((hold.deadline, hold.token));
        self.by_token.insert(hold.token, (owner, hold));
    }

    pub(crate) fn set(&mut self, token: Token, depth: u16, deadline: EpochMs) {
        let Some(before) = self.by_token(token).map(|(_, hold)| hold.deadline) else { return };
        match (self.is_ended(before), self.is_ended(deadline)) {
            (true, false) => self.one_less_ended(),
            (false, true) => self.ended = None,
            _ => {}
        }
        if let Some((_, hold)) = self.by_token.get_mut(&token) {
            self.by_deadline.remove(&(before, token));
            self.by_deadline.insert((deadline, token));
            hold.depth = depth;
            hold.deadline = deadline;
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Owner> {
        self.take(token).map(|(owner, _)| owner)
    }

    fn take(&mut self, token: Token) -> Option<(Owner, Hold)> {
        let (owner, hold) = self.by_token.remove(&token)?;
        self.by_owner.remove(&(Owner::hash_of(owner.as_bytes()), token));
        self.by_deadline.remove(&(hold.deadline, token));
        if self.is_ended(hold.deadline) {
            self.one_less_ended();
        }
        Some((owner, hold))
    }

    /// Takes the hold with the earliest deadline.
    pub(crate) fn take_earliest(&mut self) -> Option<(Owner, Hold)> {
        let (_, token) = *self.by_deadline.first()?;
        self.take(token)
    }

    /// Takes the last remaining reader; `None` while there are more.
    pub(crate) fn take_last_one(&mut self) -> Option<(Owner, Hold)> {
        if self.len() != 1 {
            return None;
        }
        self.by_token.pop_first().map(|(_, last)| last)
    }

    /// Checks that the indexes agree with the holds.
    ///
    /// # Errors
    /// The index that does not, for tests.
    pub(crate) fn check(&self) -> Result<(), String> {
        let all = || self.by_token.iter();
        let owners = all().map(|(token, (owner, _))| (Owner::hash_of(owner.as_bytes()), *token));
        let deadlines = all().map(|(token, (_, hold))| (hold.deadline, *token));
        let ended = all().filter(|(_, (_, hold))| self.is_ended(hold.deadline)).count();
        let agree = [
            ("owners", self.by_owner == owners.collect()),
            ("deadlines", self.by_deadline == deadlines.collect()),
            ("those that ended", self.ended.map_or(0, |(_, count)| count.get()) == ended),
            ("tokens", all().all(|(token, (_, hold))| *token == hold.token)),
        ];
        let wrong = agree.into_iter().find(|(_, agrees)| !agrees);
        wrong.map_or(Ok(()), |(what, _)| Err(format!("{what} disagree with {self:?}")))
    }
}
