//! The depth of a hold, computed from its requests. A request of which its owner has not heard can
//! be left out, as if it had never been decided: the hold is then as deep as the others make it.

use std::collections::BTreeMap;

use crate::{Hold, Token, WaiterId};

/// What requests and releases do to the depth of a hold: add a number of levels, then clamp to a
/// minimum and a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DepthChange {
    add: i32,
    least: i32,
    most: i32,
}

impl DepthChange {
    const NONE: Self = Self { add: 0, least: i32::MIN, most: i32::MAX };

    /// What a request for this depth, or for one level more, does to the depth.
    fn asked(depth: Option<u16>) -> Self {
        match depth {
            Some(depth) => Self { least: depth.into(), ..Self::NONE },
            None => Self { add: 1, ..Self::NONE },
        }
    }

    fn of(self, depth: i32) -> i32 {
        depth.saturating_add(self.add).max(self.least).min(self.most)
    }

    /// Both, one after the other.
    fn followed_by(self, next: Self) -> Self {
        let (least, most) = (next.of(self.least), next.of(self.most));
        Self { add: self.add.saturating_add(next.add), least, most }
    }

    /// The same for a hold that has one level less at the bottom.
    fn one_lower(self) -> Self {
        let (least, most) = (self.least.saturating_sub(1), self.most.saturating_sub(1));
        Self { least, most, ..self }
    }
}

/// What a caller asked of a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// How deep the hold was then; 0 if it began with this request.
    pub(crate) before: u16,
    /// To be this deep; `None`: one level more.
    pub(crate) depth: Option<u16>,
}

impl Asked {
    /// A request for this depth of a hold, or for a new one if there is `None`.
    pub(crate) fn new(held: Option<Hold>, depth: Option<u16>) -> Self {
        Self { before: held.map_or(0, |hold| hold.depth), depth }
    }
}

/// What is to become of a request of which its owner has not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its reply is under way.
    Told,
    /// Its reply waits for this many acknowledgments.
    Pending(u8),
    /// It is revoked: the next input leaves it out.
    Revoked,
}

/// A request for levels of which its owner has not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelRequest {
    /// The caller.
    pub(crate) waiter: WaiterId,
    pub(crate) fate: Fate,
    /// As [`Asked::depth`].
    depth: Option<u16>,
    /// How deep the hold is by what stands, if this is the first of its requests.
    before: i32,
    /// How the requests between this one and the next one, which remain in effect, change the
    /// depth.
    after: DepthChange,
}

/// These requests of all holds of a lock, each hold's in the order in which they were decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelRequests {
    all: BTreeMap<(Token, u64), LevelRequest>,
    last: u64,
}

impl LevelRequests {
    /// Those of one hold, by their numbers.
    pub(crate) fn of(&self, token: Token) -> impl DoubleEndedIterator<Item = (u64, &LevelRequest)> {
        self.all.range((token, 0)..=(token, u64::MAX)).map(|((_, number), it)| (*number, it))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The hold of each revoked request.
    pub(crate) fn revoked(&self) -> Vec<Token> {
        let revoked = self.all.iter().filter(|(_, it)| it.fate == Fate::Revoked);
        revoked.map(|((token, _), _)| *token).collect()
    }

    pub(crate) fn get(&self, token: Token, number: u64) -> Option<&LevelRequest> {
        self.all.get(&(token, number))
    }

    /// A request was decided. Returns its number.
    pub(crate) fn insert(
        &mut self,
        token: Token,
        waiter: WaiterId,
        asked: Asked,
        fate: Fate,
    ) -> u64 {
        let Asked { before, depth } = asked;
        self.last = self.last.saturating_add(1);
        let (before, after) = (before.into(), DepthChange::NONE);
        let request = LevelRequest { waiter, fate, depth, before, after };
        self.all.insert((token, self.last), request);
        self.last
    }

    pub(crate) fn set_fate(&mut self, token: Token, number: u64, fate: Fate) {
        if let Some(request) = self.all.get_mut(&(token, number)) {
            request.fate = fate;
        }
    }

    /// A request stands: its owner knows of its levels.
    pub(crate) fn stands(&mut self, token: Token, number: u64) {
        self.take(token, number, DepthChange::asked);
    }

    /// A request is left out.
    pub(crate) fn remove(&mut self, token: Token, number: u64) {
        self.take(token, number, |_| DepthChange::NONE);
    }

    fn take(&mut self, token: Token, number: u64, stays: impl Fn(Option<u16>) -> DepthChange) {
        let Some(request) = self.all.remove(&(token, number)) else { return };
        if self.all.is_empty() {
            return;
        }
        let change = stays(request.depth).followed_by(request.after);
        let (first, last) = ((token, 0), (token, u64::MAX));
        if let Some((_, before)) = self.all.range_mut(first..(token, number)).next_back() {
            before.after = before.after.followed_by(change);
        } else if let Some((_, next)) = self.all.range_mut((token, number)..=last).next() {
            next.before = change.of(request.before);
        }
    }

    /// Another request for levels of this hold was granted, and answered.
    pub(crate) fn told(&mut self, token: Token, depth: Option<u16>) {
        self.add_last(token, DepthChange::asked(depth));
    }

    /// A change that came after all of the hold's requests, and remains in effect.
    fn add_last(&mut self, token: Token, change: DepthChange) {
        let range = (token, 0)..=(token, u64::MAX);
        if let Some((_, last)) = self.all.range_mut(range).next_back() {
            last.after = last.after.followed_by(change);
        }
    }

    /// The owner released one level that it knew of; `left` levels remain. So an unheard request to
    /// a depth now asks for one level less, but for at least one: when its reply comes, its owner
    /// is to hold the lock.
    pub(crate) fn release_one(&mut self, token: Token, left: u16) {
        for (_, request) in self.all.range_mut((token, 0)..=(token, u64::MAX)) {
            request.before = request.before.saturating_sub(1);
            request.depth = request.depth.map(|depth| depth.saturating_sub(1).max(1));
            request.after = request.after.one_lower();
        }
        self.cap(token, left);
    }

    /// The owner has released all levels except `left`.
    pub(crate) fn cap(&mut self, token: Token, left: u16) {
        self.add_last(token, DepthChange { most: left.into(), ..DepthChange::NONE });
    }

    /// Leaves out the revoked requests of this hold. Returns by how many levels it is less deep
    /// without them.
    pub(crate) fn drop_revoked(&mut self, token: Token) -> u16 {
        let Some((_, first)) = self.of(token).next() else { return 0 };
        let (mut with, mut without, mut revoked) = (first.before, first.before, Vec::new());
        for (number, it) in self.of(token) {
            let change = DepthChange::asked(it.depth);
            with = it.after.of(change.of(with));
            let is_revoked = it.fate == Fate::Revoked;
            without = it.after.of(if is_revoked { without } else { change.of(without) });
            revoked.extend(is_revoked.then_some(number));
        }
        for number in revoked {
            self.remove(token, number);
        }
        depth(with).saturating_sub(depth(without))
    }

    /// The depth of the hold that was reported to its owner, and the most acknowledgments for which
    /// a level above that waits. `None` if every level was reported.
    pub(crate) fn told_depth(&self, token: Token) -> Option<(u16, u8)> {
        let (_, first) = self.of(token).next()?;
        let (mut all, mut told, mut most) = (first.before, first.before, 0);
        for (_, it) in self.of(token) {
            let change = DepthChange::asked(it.depth);
            let raised = change.of(all);
            told = it.after.of(if it.fate == Fate::Told { change.of(told) } else { told });
            if let Fate::Pending(acks) = it.fate
                && raised > all
            {
                most = most.max(acks);
            }
            all = it.after.of(raised);
        }
        Some((depth(told), most))
    }
}

fn depth(levels: i32) -> u16 {
    u16::try_from(levels.max(0)).unwrap_or(u16::MAX)
}
