//! Waits that end without a grant: they time out, or nobody can be granted any more.

use crate::step::input::{Dismissed, Reply, Wake};
use crate::volatile::confirm::refused;
use crate::volatile::queue::{Entry, Place};
use crate::volatile::slow::{Outcome, Slow};
use crate::{ClientId, Now, Refusal, Volatile, WaiterId};

impl Volatile {
    /// Ends sessions whose last known deadline has passed as lost, without reading the lock: their
    /// holds end with the next input. Returns their connections.
    pub fn end_overdue(&mut self, now: Now) -> Vec<ClientId> {
        let mut lost = Vec::new();
        while let Some(token) = self.sessions.first_ended(now) {
            lost.extend(self.lose(token));
            self.sessions.end_later(token);
        }
        lost
    }

    /// Nobody can be granted here any more: blocked connections get `why`, unless their time has
    /// passed, and tickets and sessions end. At most `portion` waits end; if more remain, call it
    /// again. Does not read the lock, which may not exist, or may not be this server's to change.
    pub fn dismiss(
        &mut self,
        why: &Refusal,
        slow: Slow,
        now: Now,
        mut portion: usize,
    ) -> Dismissed {
        // All sessions at once: none of their connections may run another command.
        let tokens = self.sessions.tokens();
        let lost = tokens.into_iter().flat_map(|token| self.lose(token)).collect();
        drop(self.sessions.take_gone());
        let mut groups = self.queue.leave_covered();
        let mut wakes = self.refuse_late(now, &mut portion);
        wakes.extend(self.time_out(now, slow, &mut portion, |_, _, _| None));
        self.queue.take_turns();
        while portion > 0
            && let Some((place, _)) = self.queue.head()
            && let Some(entry) = self.queue.remove(place)
        {
            portion = portion.saturating_sub(1);
            if let Some(waiter) = entry.kind.group() {
                groups.push(waiter);
                continue;
            }
            self.log_slow(entry.ended(slow, Outcome::Refused, now));
            if let Some(waiter) = entry.kind.waiter() {
                wakes.push(wake(waiter, Reply::Refused(why.clone()), &entry, now));
            }
        }
        let touched = self.queue.take_touched_groups();
        self.acks = None;
        let pending = self.unsent.take_pending(portion).into_iter();
        wakes.extend(pending.map(|(waiter, since)| refused(waiter, since, why.clone(), now)));
        self.unsent.forget_revoked();
        self.replaced.clear();
        self.entering.clear();
        self.unfinished = None;
        let is_all = self.queue.is_empty() && self.pending_count() == 0;
        Dismissed { wakes, groups, touched, lost, is_all }
    }

    /// Ends at most `portion` waits whose time has passed, without reading the lock: allowed even
    /// while nothing may be written. Waiters that can enter because of it enter with the next
    /// input.
    pub fn time_out_alone(&mut self, now: Now, slow: Slow, mut portion: usize) -> Vec<Wake> {
        let mut wakes = self.refuse_late(now, &mut portion);
        wakes.extend(self.time_out(now, slow, &mut portion, |_, _, _| None));
        wakes
    }

    pub(crate) fn time_out(
        &mut self,
        now: Now,
        slow: Slow,
        portion: &mut usize,
        wait_ms: impl Fn(&Self, Place, &Entry) -> Option<u64>,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        while let Some(place) = self.queue.first_ended(now) {
            if !self.take_item(portion, now) {
                break;
            }
            let wait_ms = self.queue.get(place).and_then(|entry| wait_ms(self, place, entry));
            if let Some(entry) = self.queue.remove(place) {
                self.log_slow(entry.ended(slow, Outcome::TimedOut, now));
                if let Some(waiter) = entry.kind.waiter() {
                    wakes.push(wake(waiter, Reply::NotNow { wait_ms }, &entry, now));
                }
            }
        }
        wakes
    }
}

pub(crate) fn wake(waiter: WaiterId, reply: Reply, entry: &Entry, now: Now) -> Wake {
    let is_end = !matches!(reply, Reply::MustWait { .. } | Reply::MustConfirm | Reply::Pending);
    debug_assert!(is_end, "{reply:?} ends no wait");
    let waited_us = now.us().saturating_sub(entry.since.us());
    let owner = matches!(reply, Reply::Refused(_)).then(|| Box::new(entry.owner.clone()));
    Wake { waited_us, owner, ..Wake::of(waiter, reply) }
}
