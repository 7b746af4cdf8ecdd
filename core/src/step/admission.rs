//! Admission: whether something is in the way of a request.

use crate::step::fast_path::is_first_level;
use crate::volatile::owner_names::NAMES_MAX;
use crate::volatile::queue::{Entry, Place};
use crate::{Acquire, EpochMs, Hold, Lock, Mode, Now, Patience, Reply, Step, Volatile, WaiterId};

impl Lock {
    /// The latest deadline of the holds that exclude this request regardless of its limit; `None`
    /// if there is none.
    pub(crate) fn blocked_until(&self, claim: &Acquire<'_>) -> Option<EpochMs> {
        let Acquire { owner, mode, upgrade, .. } = *claim;
        match mode {
            Mode::Read => match self.holders.writer() {
                Some((writer, hold)) if writer != owner => Some(hold.deadline),
                _ => None,
            },
            Mode::Write if upgrade => self.holders.latest_standing_beside(owner),
            Mode::Write => self.holders.latest_standing(),
        }
    }

    /// How many holds must end before the claim has room under its limit. READ holders count, and
    /// so do `turns` tickets that have their turn for READ.
    pub(crate) fn excess_holders(&self, claim: &Acquire<'_>, turns: usize) -> usize {
        let Some(limit) = claim.limit else { return 0 };
        let reads = self.holders.hold(claim.owner, Mode::Read).is_some();
        let others = self.holders.reader_count().saturating_sub(reads.into());
        let limit = usize::try_from(limit.get()).unwrap_or(usize::MAX);
        others.saturating_add(turns).saturating_add(1).saturating_sub(limit)
    }

    /// Like [`Lock::excess_holders`], for a request without a turn.
    fn excess_holders_for_line(&self, volatile: &Volatile, claim: &Acquire<'_>) -> usize {
        match claim.limit {
            Some(_) => self.excess_holders(claim, volatile.queue.read_turn_count()),
            None => 0,
        }
    }

    /// Predicts, without deciding, the reply to a request that has to wait for another owner's hold
    /// or for acknowledgments; `None` if something is due, or if uncertain.
    ///
    /// Saves a second decision: such a request is decided when it is parked.
    pub fn must_wait(&self, volatile: &Volatile, ask: &Acquire<'_>, now: Now) -> Option<Reply> {
        if self.is_free() {
            return self.must_confirm(volatile, ask);
        }
        // Every field has its name here, so that the compiler asks about a new one. Mode and limit
        // decide whether the lock is in the way, and the others matter to grants and re-entries.
        let &Acquire {
            owner,
            mode: _,
            lease: _,
            upgrade: _,
            limit: _,
            depth,
            session: _,
            patience,
            max_queue,
            acks: _,
        } = ask;
        self.blocked_until(ask)?;
        let holds = |mode| self.holders.hold(owner, mode).is_some();
        let is_plain = matches!(patience, Patience::Block | Patience::Tell)
            && max_queue.is_none()
            && is_first_level(depth);
        let is_due = |at: EpochMs| at.is_over_at(now);
        if !is_plain
            || holds(Mode::Write)
            || holds(Mode::Read)
            || !volatile.is_at_rest()
            || volatile.next_alarm().is_some_and(is_due)
            || self.holders.first_over(now).is_some()
            || volatile
                .queue
                .head()
                .is_some_and(|(_, head)| !self.is_shut_to(volatile, &head.into()))
        {
            return None;
        }
        let ticket = volatile.queue.ticket_of(owner);
        let wait_ms = self.estimated_wait_ms(volatile, ask, ticket, false, now);
        Some(Reply::MustWait { wait_ms })
    }

    /// The reply for a lock that nobody holds, but whose grant waits for acknowledgments.
    fn must_confirm(&self, volatile: &Volatile, ask: &Acquire<'_>) -> Option<Reply> {
        let is_plain = ask.acks > 0
            && ask.session.is_none()
            && !matches!(ask.patience, Patience::Ticket(_))
            && is_first_level(ask.depth);
        let is_untouched = || volatile.is_empty() && volatile.is_at_rest();
        (is_plain && is_untouched()).then_some(Reply::MustConfirm)
    }

    /// The one predicate of admission: whether nothing is in the way of a claim at this place, or
    /// of a newcomer if `None`. No hold excludes it, nobody is ahead of it, and there is room under
    /// its limit. An upgrade, a turn and the first in line are ahead of all others.
    pub(crate) fn is_open_to(
        &self,
        volatile: &Volatile,
        claim: &Acquire<'_>,
        is_before_line: bool,
        place: Option<Place>,
    ) -> bool {
        self.blocked_until(claim).is_none()
            && is_at_head(volatile, claim.mode, is_before_line, place)
            && self.has_room(volatile, claim, place)
    }

    /// Whether there is room under its limit. A turn is checked when it is given, and later only
    /// under a smaller limit; turns behind it do not count then.
    fn has_room(&self, volatile: &Volatile, claim: &Acquire<'_>, place: Option<Place>) -> bool {
        let queue = &volatile.queue;
        let Some(turn) = place.filter(|place| queue.has_turn(*place)) else {
            return self.excess_holders_for_line(volatile, claim) == 0;
        };
        self.keeps_turn(volatile, claim, turn) || self.excess_holders(claim, queue.rank(turn)) == 0
    }

    /// Whether the turn, which was given for another claim, also serves this one.
    fn keeps_turn(&self, volatile: &Volatile, claim: &Acquire<'_>, turn: Place) -> bool {
        let given = volatile.queue.get(turn).and_then(|entry| entry.limit);
        claim.limit.is_none_or(|limit| given.is_some_and(|given| given <= limit))
    }

    /// Whether a hold, the limit or a turn keeps out a waiter that has no turn, regardless of its
    /// place.
    pub(crate) fn is_shut_to(&self, volatile: &Volatile, claim: &Acquire<'_>) -> bool {
        self.blocked_until(claim).is_some() || self.excess_holders_for_line(volatile, claim) > 0
    }

    /// The owners of some of the holds in the way.
    pub(crate) fn owners_in_the_way<'l>(
        &'l self,
        volatile: &Volatile,
        claim: &Acquire<'l>,
    ) -> impl Iterator<Item = &'l [u8]> + use<'l> {
        // A reader without a limit waits for a writer, or for no holder.
        let is_in = claim.mode == Mode::Write || self.is_shut_to(volatile, claim);
        let most = if is_in { NAMES_MAX } else { 0 };
        let (owners, own) = (self.holders.owners(), claim.owner);
        owners.filter(move |owner| *owner != own).take(most)
    }

    /// Milliseconds until this request could enter if nobody released or renewed: the latest
    /// deadline in the way; with a limit, the earliest, if only one hold is in the way. `None` if
    /// deadlines do not determine when the lock is free: another request is ahead, or a session
    /// keeps a hold.
    pub(crate) fn estimated_wait_ms(
        &self,
        volatile: &Volatile,
        claim: &Acquire<'_>,
        place: Option<Place>,
        is_upgrade: bool,
        now: Now,
    ) -> Option<u64> {
        let queue = &volatile.queue;
        if queue.has_turn_before(place) || !is_upgrade && queue.has_line_before(place) {
            return None;
        }
        let too_many = match place {
            // Turns behind this request's own turn do not count.
            Some(place) if queue.has_turn(place) => self.excess_holders(claim, 0),
            _ => self.excess_holders_for_line(volatile, claim),
        };
        let until = match (self.blocked_until(claim), too_many) {
            (None, 0) => volatile.grace,
            (until, 0) => until.filter(|_| !self.is_kept(volatile, claim)),
            (None, 1) => self.earliest_unkept(volatile),
            _ => None,
        };
        until.max(until.and(volatile.grace)).map(|until| until.wait_from(now))
    }

    /// Whether a session keeps a hold that excludes this request regardless of its limit.
    fn is_kept(&self, volatile: &Volatile, claim: &Acquire<'_>) -> bool {
        let is_tied = |hold: Hold| volatile.sessions.get(hold.token).is_some();
        if claim.mode == Mode::Read {
            return self.holders.writer().is_some_and(|(_, hold)| is_tied(hold));
        }
        let own = |mode| self.holders.hold(claim.owner, mode).is_some_and(is_tied);
        let own = if claim.upgrade {
            [Mode::Read, Mode::Write].into_iter().filter(|m| own(*m)).count()
        } else {
            0
        };
        volatile.sessions.len() > own
    }

    /// The earliest deadline of a hold without a session. Looks past only a few holds with
    /// sessions, so that its cost does not grow with their number.
    fn earliest_unkept(&self, volatile: &Volatile) -> Option<EpochMs> {
        const SEEN_MAX: usize = 100;
        let first = self.holders.by_deadline().take(SEEN_MAX);
        let mut unkept = first.filter(|(_, token)| volatile.sessions.get(*token).is_none());
        unkept.next().map(|(deadline, _)| deadline)
    }

    /// Like [`Lock::estimated_wait_ms`], for a waiter.
    pub(crate) fn estimated_wait_at(
        &self,
        volatile: &Volatile,
        place: Place,
        entry: &Entry,
        now: Now,
    ) -> Option<u64> {
        self.estimated_wait_ms(volatile, &entry.into(), Some(place), false, now)
    }

    /// The reply to a blocked connection whose wait ends now without a grant, like
    /// [`Reply::NotNow`].
    pub fn estimated_wait_of(
        &self,
        volatile: &Volatile,
        waiter: WaiterId,
        now: Now,
    ) -> Option<u64> {
        let place = volatile.queue.place_of(waiter)?;
        let entry = volatile.queue.get(place)?;
        self.estimated_wait_at(volatile, place, entry, now).filter(|ms| *ms > 0)
    }

    /// Whether turns have become void: another hold is in their way now. They are given up with the
    /// next input.
    pub fn has_void_turns(&self, volatile: &Volatile, now: Now) -> bool {
        let Some(turn) = volatile.queue.first_turn() else { return false };
        let is_barred =
            self.blocked_until(&turn.into()).is_some_and(|until| !until.is_over_at(now));
        // The first of several turns may belong to the writer itself; WRITE excludes the turns of
        // other owners.
        is_barred || volatile.queue.has_several_turns() && self.writer_at(now).is_some()
    }

    /// When the lock must be swept next, or earlier: a wait or a ticket times out, a session is
    /// renewed, or a hold ends while somebody waits.
    pub fn next_alarm(&self, volatile: &Volatile) -> Option<EpochMs> {
        let all = [self.next_to_end(volatile), volatile.sessions.next_renewal()];
        all.into_iter().flatten().min()
    }

    /// The same without the renewals of sessions, which let nobody in.
    pub fn next_to_end(&self, volatile: &Volatile) -> Option<EpochMs> {
        if volatile.unfinished.is_some() {
            return volatile.unfinished;
        }
        // Whoever waits may enter when a hold ends; and a group that is covered by a hold, and
        // therefore stands in no line, must know when that hold ends.
        let is_awaited = !volatile.queue.is_empty() || volatile.queue.has_covered();
        let expiry = self.holders.earliest_deadline().filter(|_| is_awaited);
        [volatile.next_to_end(), expiry].into_iter().flatten().min()
    }
}

impl Step<'_, '_> {
    /// Gives up turns behind this one, if its new limit leaves no room for both.
    pub(crate) fn put_off_behind(&mut self, claim: &Acquire<'_>, turn: Option<Place>) {
        let Some(turn) = turn else { return };
        if !self.lock.keeps_turn(self.volatile, claim, turn)
            && self.lock.excess_holders_for_line(self.volatile, claim) > 1
        {
            self.volatile.queue.take_turns_from(turn);
        }
    }
}

/// Whether nobody is ahead of this place (a newcomer's if `None`) for this mode.
fn is_at_head(volatile: &Volatile, mode: Mode, is_before_line: bool, place: Option<Place>) -> bool {
    let queue = &volatile.queue;
    let is_blocked_by_turn = match mode {
        Mode::Read => queue.turn_mode() == Some(Mode::Write),
        Mode::Write => true,
    };
    let turn = is_blocked_by_turn && queue.has_turn_before(place);
    let line = !is_before_line && queue.has_line_before(place);
    !turn && !line
}
