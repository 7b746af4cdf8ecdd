//! Who may enter: what is in the way of a request.

use std::num::NonZeroU32;

use crate::queue::{Entry, Place};
use crate::slow::NAMES_MAX;
use crate::{Acquire, EpochMs, Hold, Lock, Memory, Mode, Now, Patience, Reply};

/// What a request wants of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The mode.
    pub mode: Mode,
    /// Whether WRITE may be added to the owner's READ.
    pub upgrade: bool,
    /// READ only while fewer than this many other owners hold READ.
    pub limit: Option<NonZeroU32>,
}

impl<'a> From<&Acquire<'a>> for Wish<'a> {
    fn from(ask: &Acquire<'a>) -> Self {
        let Acquire { owner, mode, upgrade, limit, .. } = *ask;
        Self { owner, mode, upgrade, limit }
    }
}

impl<'a> From<&'a Entry> for Wish<'a> {
    fn from(entry: &'a Entry) -> Self {
        let Entry { mode, upgrade, limit, .. } = *entry;
        Self { owner: entry.owner.as_bytes(), mode, upgrade, limit }
    }
}

impl Lock {
    /// The latest deadline of the holds that exclude this request whatever its limit; `None` if
    /// there is none.
    pub(crate) fn in_the_way(&self, wish: Wish<'_>) -> Option<EpochMs> {
        let Wish { owner, mode, upgrade, .. } = wish;
        match mode {
            Mode::Read => match self.holders.writer() {
                Some((writer, hold)) if writer != owner => Some(hold.deadline),
                _ => None,
            },
            Mode::Write if upgrade => self.holders.latest_standing_beside(owner),
            Mode::Write => self.holders.latest_standing(),
        }
    }

    /// How many others must release before there is room under its limit: of the READ holders, and
    /// of this many tickets that have their turn to READ.
    pub(crate) fn too_many(&self, wish: Wish<'_>, turns: usize) -> usize {
        let Some(limit) = wish.limit else { return 0 };
        let reads = self.holders.hold(wish.owner, Mode::Read).is_some();
        let others = self.holders.reader_count().saturating_sub(reads.into());
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        others.saturating_add(turns).saturating_add(1).saturating_sub(limit)
    }

    /// Like [`Lock::too_many`], for a request without a turn.
    fn too_many_for_line(&self, memory: &Memory, wish: Wish<'_>) -> usize {
        match wish.limit {
            Some(_) => self.too_many(wish, memory.queue.read_turn_count()),
            None => 0,
        }
    }

    /// There is room under its limit. A turn is judged when it is given, and again only under a
    /// smaller limit; then turns given behind it do not count, and are given up if there is no room
    /// for both.
    pub(crate) fn has_room(
        &self,
        memory: &mut Memory,
        wish: Wish<'_>,
        turn: Option<Place>,
    ) -> bool {
        let Some(place) = turn else { return self.too_many_for_line(memory, wish) == 0 };
        let given = memory.queue.get(place).and_then(|entry| entry.limit);
        if wish.limit.is_none_or(|limit| given.is_some_and(|given| given <= limit)) {
            return true;
        }
        let has_room = self.too_many(wish, memory.queue.rank(place)) == 0;
        if has_room && self.too_many_for_line(memory, wish) > 1 {
            memory.queue.take_turns_from(place);
        }
        has_room
    }

    /// The reply to a request that would be told to wait and change nothing, seen without deciding
    /// it: a stranger's hold is in its way, and nothing is due here. `None` where that is not sure.
    ///
    /// Whoever blocks on a held lock is decided when it is parked; this saves deciding it twice.
    pub fn must_wait(&self, memory: &Memory, ask: &Acquire<'_>, now: Now) -> Option<Reply> {
        let wish = Wish::from(ask);
        self.in_the_way(wish)?;
        let holds = |mode| self.holders.hold(ask.owner, mode).is_some();
        let is_plain = ask.patience == Patience::Block
            && ask.max_queue.is_none()
            && ask.depth.is_none_or(|depth| depth == 1);
        let is_due = |at: EpochMs| at.is_over_at(now);
        if !is_plain
            || holds(Mode::Write)
            || holds(Mode::Read)
            || !memory.is_at_rest()
            || memory.next_alarm().is_some_and(is_due)
            || self.holders.first_over(now).is_some()
            || memory.queue.head().is_some_and(|(_, head)| !self.is_shut_to(memory, head.into()))
        {
            return None;
        }
        let ticket = memory.queue.ticket_of(ask.owner);
        let is_behind = is_behind(memory, false, ticket);
        Some(Reply::MustWait { wait_ms: self.known_wait(memory, wish, ticket, is_behind, now) })
    }

    /// A waiter without a turn could not enter even if nobody else waited.
    pub(crate) fn is_shut_to(&self, memory: &Memory, wish: Wish<'_>) -> bool {
        self.in_the_way(wish).is_some() || self.too_many_for_line(memory, wish) > 0
    }

    /// The owners of some of the holds in the way.
    pub(crate) fn owners_in_the_way<'l>(
        &'l self,
        memory: &Memory,
        wish: Wish<'l>,
    ) -> impl Iterator<Item = &'l [u8]> {
        // A reader without a limit waits for a writer, or for no holder.
        let is_in = wish.mode == Mode::Write || self.is_shut_to(memory, wish);
        let most = if is_in { NAMES_MAX } else { 0 };
        let owners = self.holders.owners();
        owners.filter(move |owner| *owner != wish.owner).take(most)
    }

    /// When the next hold expires that may let a waiter in; `None` if none is in the way.
    pub(crate) fn next_opening(&self, memory: &Memory, wish: Wish<'_>) -> Option<EpochMs> {
        self.in_the_way(wish).or_else(|| {
            let is_full = self.too_many_for_line(memory, wish) > 0;
            self.holders.earliest_deadline().filter(|_| is_full)
        })
    }

    /// Milliseconds until this request could enter if nobody released or renewed: the latest
    /// deadline in the way, or with a limit the earliest, if one hold is in the way. `None` if that
    /// does not tell when the lock is free: somebody comes before, or a session keeps a hold.
    pub(crate) fn known_wait(
        &self,
        memory: &Memory,
        wish: Wish<'_>,
        place: Option<Place>,
        is_behind: bool,
        now: Now,
    ) -> Option<u64> {
        if is_behind {
            return None;
        }
        let too_many = match place {
            // Its turn is the first, and those behind it give way.
            Some(place) if memory.queue.has_turn(place) => self.too_many(wish, 0),
            _ => self.too_many_for_line(memory, wish),
        };
        let until = match (self.in_the_way(wish), too_many) {
            (None, 0) => memory.grace,
            (until, 0) => until.filter(|_| !self.is_kept(memory, wish)),
            (None, 1) => self.earliest_unkept(memory),
            _ => None,
        };
        until.max(until.and(memory.grace)).map(|until| until.wait_from(now))
    }

    /// Whether a session keeps a hold that excludes this request whatever its limit.
    fn is_kept(&self, memory: &Memory, wish: Wish<'_>) -> bool {
        let is_tied = |hold: Hold| memory.sessions.get(hold.token).is_some();
        if wish.mode == Mode::Read {
            return self.holders.writer().is_some_and(|(_, hold)| is_tied(hold));
        }
        let own = |mode| self.holders.hold(wish.owner, mode).is_some_and(is_tied);
        let own = if wish.upgrade {
            [Mode::Read, Mode::Write].into_iter().filter(|m| own(*m)).count()
        } else {
            0
        };
        memory.sessions.len() > own
    }

    /// The earliest deadline of a hold without a session. Skips only a few with one, so that its
    /// cost does not grow with their number.
    fn earliest_unkept(&self, memory: &Memory) -> Option<EpochMs> {
        const SEEN_MAX: usize = 100;
        let first = self.holders.by_deadline().take(SEEN_MAX);
        let mut unkept = first.filter(|(_, token)| memory.sessions.get(*token).is_none());
        unkept.next().map(|(deadline, _)| deadline)
    }
}

/// Whether somebody comes before this place, or before a newcomer if `None`.
pub(crate) fn is_behind(memory: &Memory, is_upgrade: bool, place: Option<Place>) -> bool {
    memory.queue.has_turn_before(place) || !is_upgrade && memory.queue.has_line_before(place)
}

/// Whether nobody comes before this place (a newcomer's if `None`) for this mode.
pub(crate) fn is_reached(
    memory: &Memory,
    mode: Mode,
    is_upgrade: bool,
    place: Option<Place>,
) -> bool {
    let queue = &memory.queue;
    let is_blocked_by_turn = match mode {
        Mode::Read => queue.turn_mode() == Some(Mode::Write),
        Mode::Write => true,
    };
    let turn = queue.has_turn_before(place) && is_blocked_by_turn;
    let line = queue.has_line_before(place) && !is_upgrade;
    !turn && !line
}
