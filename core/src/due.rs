//! What comes due by itself: leases, sessions and waits that end, sessions to renew, and what can
//! be done while nothing may be written.

use crate::decide::wake;
use crate::input::{Dismissed, Effects, Moment, Reply, Wake};
use crate::queue::{Entry, Kind, Place};
use crate::sessions::Session;
use crate::slow::{Outcome, Slow};
use crate::way::is_behind;
use crate::{ClientId, End, EpochMs, Lock, Memory, Now, Refusal, Token, WaiterId};

impl Lock {
    /// When to look next for what happens by itself, never too late: a wait or a ticket ends, a
    /// session is renewed, or a hold ends that the head of the line waits for.
    pub fn next_alarm(&self, memory: &Memory) -> Option<EpochMs> {
        if memory.unfinished.is_some() {
            return memory.unfinished;
        }
        let head = memory.queue.head().and_then(|(_, head)| self.next_opening(memory, head.into()));
        [memory.next_alarm(), head].into_iter().flatten().min()
    }

    /// What came due, before anything new: who left is not granted, what is over has ended.
    pub(crate) fn catch_up<'a>(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        owner: Option<&[u8]>,
        effects: &mut Effects<'a>,
    ) {
        self.end_expired(memory, moment, owner, effects);
        if memory.is_empty() {
            return;
        }
        if !self.be_late(memory, moment, effects) {
            return;
        }
        self.take_back(memory, moment, effects);
        for token in memory.sessions.take_gone() {
            self.end(token, End::Disconnected, memory, moment, effects);
        }
        self.renew_sessions(memory, moment, effects);
        self.end_unacknowledged(memory, moment, effects);
        self.time_out(memory, moment, effects);
        self.go_on_entering(memory, moment, effects);
        self.serve(memory, moment, effects);
    }

    fn time_out(&self, memory: &mut Memory, moment: &mut Moment<'_>, effects: &mut Effects<'_>) {
        let now = moment.now;
        let wait_ms =
            |memory: &Memory, place, entry: &Entry| self.known_wait_at(memory, place, entry, now);
        let wakes = memory.time_out(now, moment.slow, &mut moment.portion, wait_ms);
        effects.wakes.extend(wakes);
    }

    /// Like [`Lock::known_wait`], for a waiter.
    pub(crate) fn known_wait_at(
        &self,
        memory: &Memory,
        place: Place,
        entry: &Entry,
        now: Now,
    ) -> Option<u64> {
        let is_behind = is_behind(memory, false, Some(place));
        self.known_wait(memory, entry.into(), Some(place), is_behind, now)
    }

    /// The reply to a blocked connection whose wait ends now without a grant, like
    /// [`Reply::NotNow`].
    pub fn known_wait_of(&self, memory: &Memory, waiter: WaiterId, now: Now) -> Option<u64> {
        let place = memory.queue.place_of(waiter)?;
        let entry = memory.queue.get(place)?;
        self.known_wait_at(memory, place, entry, now).filter(|ms| *ms > 0)
    }

    /// The turns that were given are void: something put another hold in their way, and they are
    /// given up with the next input.
    pub fn has_void_turns(&self, memory: &Memory, now: Now) -> bool {
        memory.queue.first_turn().is_some_and(|turn| {
            self.in_the_way(turn.into()).is_some_and(|until| !until.is_over_at(now))
        })
    }

    /// Renews the sessions that are due. One whose hold was removed without notice is lost.
    fn renew_sessions(
        &mut self,
        memory: &mut Memory,
        moment: &mut Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        let now = moment.now;
        while memory.sessions.next_renewal().is_some_and(|at| at.is_over_at(now)) {
            if !moment.take() {
                memory.unfinished = Some(moment.now.ms());
                return;
            }
            let Some((token, lease)) = memory.sessions.renew_next(now) else { return };
            match self.holders.by_token(token).map(|(_, hold)| hold) {
                Some(hold) if !hold.deadline.is_over_at(now) => {
                    let deadline = hold.deadline.max(now.after(lease));
                    self.hold_on(hold, hold.depth, deadline, effects);
                    memory.renewed(token, deadline);
                }
                Some(_) => {}
                None => effects.lost.extend(memory.lose(token)),
            }
        }
    }

    /// Sessions whose last deadline that replicas acknowledged is over: they are lost, and their
    /// holds end with them.
    fn end_unacknowledged(
        &mut self,
        memory: &mut Memory,
        moment: &Moment<'_>,
        effects: &mut Effects<'_>,
    ) {
        while memory.sessions.next_end_by_acks().is_some_and(|at| at.is_over_at(moment.now)) {
            let Some(token) = memory.sessions.first_ended(moment.now) else { return };
            self.end_session(token, memory, moment, effects);
        }
    }

    /// Something outside of RLOCK happened to the key, or nothing may be written: sessions whose
    /// hold is not there any more are lost.
    pub fn lost_sessions(&self, memory: &mut Memory, now: Now) -> Vec<ClientId> {
        let gone = |token: &Token| {
            let hold = self.holders.by_token(*token);
            hold.is_none_or(|(_, hold)| hold.deadline.is_over_at(now))
        };
        let gone: Vec<Token> = memory.sessions.tokens().into_iter().filter(gone).collect();
        gone.into_iter().flat_map(|token| memory.lose(token)).collect()
    }

    /// Nothing may be written, so no session is renewed: one whose lease has expired is lost. The
    /// others last until their deadlines.
    pub fn ended_sessions(&self, memory: &mut Memory, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some(token) = memory.sessions.first_ended(now) {
            let deadline = self.holders.by_token(token).map(|(_, hold)| hold.deadline);
            let is_acked = memory.sessions.acks_of(token) == 0;
            let lasts = |deadline: &EpochMs| !Session::closes_at(*deadline).is_over_at(now);
            match deadline.filter(|deadline| is_acked && lasts(deadline)) {
                Some(deadline) => memory.sessions.lasts_until(token, deadline),
                None => {
                    lost.extend(memory.lose(token));
                    // It may still be there when the gate opens.
                    if deadline.is_some_and(|deadline| !deadline.is_over_at(now)) {
                        memory.sessions.end_later(token);
                    }
                }
            }
        }
        lost
    }
}

impl Memory {
    /// Loses the sessions whose last known deadline has come, without reading the lock: their holds
    /// end with the next input. Returns their connections.
    pub fn end_overdue(&mut self, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some(token) = self.sessions.first_ended(now) {
            lost.extend(self.lose(token));
            self.sessions.end_later(token);
        }
        lost
    }

    /// A reply promises this deadline: a session that needs no acknowledgements lasts until then.
    pub(crate) fn promised(&mut self, token: Token, deadline: EpochMs) {
        if self.sessions.acks_of(token) == 0 {
            self.sessions.lasts_at_least(token, deadline);
        }
    }

    /// Nobody can be granted here any more: blocked connections get `why`, unless their time has
    /// passed, and tickets and sessions end. So many waits end; if that is not all of them, this is
    /// to be called again. Does not read the lock: there is none, or it is not ours to change.
    pub fn dismiss(
        &mut self,
        why: &Refusal,
        slow: Slow,
        now: Now,
        mut portion: usize,
    ) -> Dismissed {
        // All at once: none of their connections may run another command.
        let tokens = self.sessions.tokens();
        let lost = tokens.into_iter().flat_map(|token| self.lose(token)).collect();
        self.sessions.forget_gone();
        let mut wakes = self.late_alone(now, &mut portion);
        wakes.extend(self.time_out(now, slow, &mut portion, |_, _, _| None));
        self.queue.take_turns();
        while portion > 0
            && let Some((place, _)) = self.queue.head()
            && let Some(entry) = self.queue.remove(place)
        {
            portion = portion.saturating_sub(1);
            self.note(slow.wait(&entry, Outcome::Refused, now));
            if let Kind::Blocked(waiter) = entry.kind {
                wakes.push(wake(waiter, Reply::Refused(why.clone()), &entry, now));
            }
        }
        for (waiter, since) in self.forget_gated(&mut portion) {
            let waited_us = now.us().saturating_sub(since.us());
            let reply = Reply::Refused(why.clone());
            wakes.push(Wake { waiter, reply, waited_us, acks_us: None });
        }
        self.forget_taken_back();
        self.replaced.clear();
        self.entering.clear();
        self.unfinished = None;
        let is_all = self.queue.is_empty() && self.gated_count() == 0;
        Dismissed { wakes, lost, is_all }
    }

    /// Ends at most `portion` waits whose time has passed, without reading the lock: allowed even
    /// while nothing may be written. Whoever can enter because of it enters with the next input.
    pub fn time_out_alone(&mut self, now: Now, slow: Slow, mut portion: usize) -> Vec<Wake> {
        let mut wakes = self.late_alone(now, &mut portion);
        wakes.extend(self.time_out(now, slow, &mut portion, |_, _, _| None));
        wakes
    }

    fn time_out(
        &mut self,
        now: Now,
        slow: Slow,
        portion: &mut usize,
        wait_ms: impl Fn(&Self, Place, &Entry) -> Option<u64>,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        while let Some(place) = self.queue.first_ended(now) {
            let Some(left) = portion.checked_sub(1) else {
                self.unfinished = Some(now.ms());
                break;
            };
            *portion = left;
            let wait_ms = self.queue.get(place).and_then(|entry| wait_ms(self, place, entry));
            if let Some(entry) = self.queue.remove(place) {
                self.note(slow.wait(&entry, Outcome::TimedOut, now));
                if let Kind::Blocked(waiter) = entry.kind {
                    wakes.push(wake(waiter, Reply::NotNow { wait_ms }, &entry, now));
                }
            }
        }
        wakes
    }
}
