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

/// A request for levels of which its owner has not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelRequest {
    /// The caller.
    pub(crate) waiter: WaiterId,
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

    pub(crate) fn get(&self, token: Token, number: u64) -> Option<&LevelRequest> {
        self.all.get(&(token, number))
    }

    /// A request was decided. Returns its number.
    pub(crate) fn insert(&mut self, token: Token, waiter: WaiterId, asked: Asked) -> u64 {
        let Asked { before, depth } = asked;
        self.last = self.last.saturating_add(1);
        let (before, after) = (before.into(), DepthChange::NONE);
        let request = LevelRequest { waiter, depth, before, after };
        self.all.insert((token, self.last), request);
        self.last
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

    /// By how many levels the hold is less deep without this request.
    pub(crate) fn lost_without(&self, token: Token, number: u64) -> u16 {
        if self.is_covered(token, number) {
            return 0;
        }
        let Some((_, first)) = self.of(token).next() else { return 0 };
        let (mut with, mut without) = (first.before, first.before);
        for (other, request) in self.of(token) {
            let change = DepthChange::asked(request.depth);
            with = request.after.of(change.of(with));
            without = request.after.of(if other == number { without } else { change.of(without) });
            // From here on they are the same.
            if other >= number && with == without {
                return 0;
            }
        }
        depth(with).saturating_sub(depth(without))
    }

    /// Whether the request before this one makes the hold deep enough for this one as well. If many
    /// ask for the same depth, this is true of all but the first, and saves visiting the others.
    fn is_covered(&self, token: Token, number: u64) -> bool {
        let Some(asked) = self.get(token, number).and_then(|it| it.depth) else { return false };
        let before = self.all.range((token, 0)..(token, number)).next_back();
        let covers = |it: &LevelRequest| {
            it.depth.is_some_and(|depth| depth >= asked) && it.after.most >= i32::from(asked)
        };
        before.is_some_and(|(_, it)| covers(it))
    }

    /// The depth of the hold that was reported to its owner, and the most acknowledgments for which
    /// a level above that waits. `None` if every level was reported. `acks_of` returns how many the
    /// request of a caller needs; 0 if its reply is on its way.
    pub(crate) fn told_depth(
        &self,
        token: Token,
        acks_of: impl Fn(WaiterId) -> u8,
    ) -> Option<(u16, u8)> {
        let (_, first) = self.of(token).next()?;
        let (mut all, mut told, mut most) = (first.before, first.before, 0);
        for (_, it) in self.of(token) {
            let (change, acks) = (DepthChange::asked(it.depth), acks_of(it.waiter));
            let raised = change.of(all);
            most = most.max(if raised > all { acks } else { 0 });
            told = it.after.of(if acks == 0 { change.of(told) } else { told });
            all = it.after.of(raised);
        }
        Some((depth(told), most))
    }
}

fn depth(levels: i32) -> u16 {
    u16::try_from(levels.max(0)).unwrap_or(u16::MAX)
}
