//! Two or more owners that hold READ, indexed so that no operation's cost grows with their number
//! beyond O(log n).

use std::collections::{BTreeMap, BTreeSet};

use crate::{EpochMs, Hold, Now, Owner, Token};

/// The readers of a shared lock. Kept to two or more by [`crate::holders::Holders`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readers {
    by_token: BTreeMap<Token, (Owner, Hold)>,
    /// By a hash of the owner, because numbers compare faster than names.
    by_owner: BTreeSet<(u64, Token)>,
    by_deadline: BTreeSet<(EpochMs, Token)>,
}

impl Readers {
    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    /// Approximate bytes on the heap: a node of a B-tree has room for 11 entries and is two thirds
    /// full.
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

    pub(crate) fn by_token(&self, token: Token) -> Option<&Hold> {
        self.by_token.get(&token).map(|(_, hold)| hold)
    }

    pub(crate) fn owner(&self, token: Token) -> Option<&Owner> {
        self.by_token.get(&token).map(|(owner, _)| owner)
    }

    /// In the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Owner, &Hold)> {
        self.by_token.values().map(|(owner, hold)| (owner, hold))
    }

    /// The earliest deadline first.
    pub(crate) fn by_deadline(&self) -> impl Iterator<Item = (EpochMs, Token)> {
        self.by_deadline.iter().copied()
    }

    pub(crate) fn first_over(&self, now: Now) -> Option<Token> {
        let (deadline, token) = self.by_deadline.first()?;
        deadline.is_over_at(now).then_some(*token)
    }

    /// Visits only the expired holds.
    pub(crate) fn count_over(&self, now: Now) -> usize {
        self.by_deadline.iter().take_while(|(deadline, _)| deadline.is_over_at(now)).count()
    }

    pub(crate) fn latest_deadline(&self) -> Option<EpochMs> {
        self.by_deadline.last().map(|(deadline, _)| *deadline)
    }

    /// The latest deadline among the holds of all others.
    pub(crate) fn latest_deadline_beside(&self, owner: &[u8]) -> Option<EpochMs> {
        let own = self.hold(owner).map(|hold| hold.token);
        self.by_deadline
            .iter()
            .rev()
            .find(|(_, token)| Some(*token) != own)
            .map(|(deadline, _)| *deadline)
    }

    /// Adds a hold with a token that no other reader has.
    pub(crate) fn insert(&mut self, owner: Owner, hold: Hold) {
        if let Some(token) = self.hold(owner.as_bytes()).map(|hold| hold.token) {
            self.remove(token);
        }
        self.by_owner.insert((Owner::hash_of(owner.as_bytes()), hold.token));
        self.by_deadline.insert((hold.deadline, hold.token));
        self.by_token.insert(hold.token, (owner, hold));
    }

    pub(crate) fn set(&mut self, token: Token, depth: u16, deadline: EpochMs) {
        if let Some((_, hold)) = self.by_token.get_mut(&token) {
            self.by_deadline.remove(&(hold.deadline, token));
            self.by_deadline.insert((deadline, token));
            hold.depth = depth;
            hold.deadline = deadline;
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Owner> {
        let (owner, hold) = self.by_token.remove(&token)?;
        self.by_owner.remove(&(Owner::hash_of(owner.as_bytes()), token));
        self.by_deadline.remove(&(hold.deadline, token));
        Some(owner)
    }

    /// Takes the last remaining reader; `None` while there are more.
    pub(crate) fn take_last_one(&mut self) -> Option<(Owner, Hold)> {
        if self.len() != 1 {
            return None;
        }
        self.by_token.pop_first().map(|(_, last)| last)
    }
}
