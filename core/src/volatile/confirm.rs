//! Grants whose reply waits for acknowledgments: what is remembered of them, and what becomes of
//! them.

use crate::step::input::{Reply, Wake};
use crate::volatile::confirmations::{Ack, Confirmation, Confirmations};
use crate::volatile::levels::Asked;
use crate::volatile::unsent::{AckWait, HeldBack};
use crate::{EpochMs, Hold, Now, Refusal, Token, Volatile, WaiterId};

impl Volatile {
    pub(crate) fn acks_mut(&mut self) -> &mut Confirmations {
        self.acks.get_or_insert_default()
    }

    /// How many acknowledgments a pending hold needs.
    pub(crate) fn pending_acks(&self, token: Token) -> Option<u8> {
        self.acks.as_deref()?.pending_acks(token)
    }

    /// Levels were released or revoked. If no reply has named any of the remaining ones, the hold
    /// is pending again.
    pub(crate) fn levels_remain(&mut self, token: Token) {
        let Some(acks) = self.acks.as_deref_mut() else { return };
        if let Some((0, most @ 1..)) = self.unsent.levels.told_depth(token) {
            acks.begin(token, most);
        }
    }

    /// How many acknowledgments a request of the owner of `held` needs: at least as many as it asks
    /// for. If the hold is pending, at least as many as the hold. If only pending levels
    /// make the hold as deep as the request asks, at least as many as these.
    pub(crate) fn acks_for(&self, asked: u8, held: Option<Hold>, depth: Option<u16>) -> u8 {
        let Some(hold) = held.filter(|_| self.acks.is_some()) else { return asked };
        let pending = self.pending_acks(hold.token).unwrap_or(0);
        // If the first level is pending, the hold is.
        let shared = depth.filter(|depth| *depth > 1).and_then(|depth| {
            let (told, most) = self.unsent.levels.told_depth(hold.token)?;
            (depth > told).then_some(most)
        });
        asked.max(pending).max(shared.unwrap_or(0))
    }

    /// Whether replicas have acknowledged the hold with this token.
    pub fn confirmation(&self, token: Token) -> Confirmation {
        self.acks.as_deref().map_or(Confirmation::None, |acks| acks.of(token))
    }

    /// A blocked connection was granted, but replicas have not acknowledged that yet.
    pub fn is_pending(&self, waiter: WaiterId) -> bool {
        self.unsent.ack_wait(waiter).is_some()
    }

    /// Number of callers whose reply waits for acknowledgments.
    pub fn pending_count(&self) -> usize {
        self.unsent.pending()
    }

    /// Holds back the reply to a grant or a renewal until replicas have acknowledged it.
    pub(crate) fn await_acks(
        &mut self,
        waiter: WaiterId,
        token: Token,
        asked: Asked,
        wait: AckWait,
    ) {
        let acks = self.acks_mut();
        if asked.before == 0 {
            acks.begin(token, wait.acks);
        }
        if !wait.is_of_several {
            acks.ask(wait.acks, Ack::Wait(waiter));
        }
        self.unsent.insert(waiter, token, asked, Some(wait));
    }

    /// What replicas are to acknowledge, since the last call.
    pub fn take_asked(&mut self) -> Vec<(u8, Ack)> {
        self.acks.as_deref_mut().map_or_else(Vec::new, Confirmations::take_asked)
    }

    /// Replicas have acknowledged this. Returns the reply that leaves now.
    pub fn acked(&mut self, ack: Ack, now: Now) -> Option<Wake> {
        match ack {
            Ack::Wait(waiter) => {
                // What is left of a grant of several locks is about to be revoked.
                let is_part = self.unsent.ack_wait(waiter)?.is_of_several;
                if is_part { None } else { self.tell(waiter, now) }
            }
            // Its owner asked for more meanwhile: they are asked for once more.
            Ack::Deadline(token, until, by) => {
                match self.sessions.acks_of(token) {
                    acks if acks > by => self.ask_deadline(token, until, acks),
                    // An old one that comes late takes nothing back.
                    _ => self.sessions.lasts_at_least(token, until, by),
                }
                None
            }
        }
    }

    /// Whether the reply to this caller may leave when replicas have acknowledged it: its hold has
    /// not expired.
    pub(crate) fn can_tell(&self, waiter: WaiterId, now: Now) -> bool {
        self.unsent.ack_wait(waiter).is_some_and(|wait| !wait.deadline.is_over_at(now))
    }

    /// The reply to this caller, which replicas have acknowledged.
    pub(crate) fn tell(&mut self, waiter: WaiterId, now: Now) -> Option<Wake> {
        // Otherwise the hold has expired and is about to be ended.
        if !self.can_tell(waiter, now) {
            return None;
        }
        let (token, wait) = self.unsent.open(waiter)?;
        self.acks_mut().confirm(token);
        if let Some(session) = wait.reply.session(now) {
            self.tie_unsent(token, waiter, session.by_acks(wait.acks, wait.deadline));
        } else {
            self.sessions.lasts_at_least(token, wait.deadline, wait.acks);
        }
        let reply = match wait.reply {
            HeldBack::Renewal => Reply::Renewed,
            _ => Reply::Granted { token, remaining_ms: wait.deadline.left_at(now) },
        };
        let since = |at: Now| now.us().saturating_sub(at.us());
        let (waited_us, acks_us) = (since(wait.since), Some(since(wait.granted_at)));
        Some(Wake { waited_us, acks_us, ..Wake::of(waiter, reply) })
    }

    /// A session was renewed: the new deadline counts once enough replicas have acknowledged it.
    pub(crate) fn renewed(&mut self, token: Token, deadline: EpochMs) {
        match self.sessions.acks_of(token) {
            0 => self.sessions.lasts_until(token, deadline),
            acks => self.ask_deadline(token, deadline, acks),
        }
    }

    fn ask_deadline(&mut self, token: Token, deadline: EpochMs, acks: u8) {
        self.acks_mut().ask(acks, Ack::Deadline(token, deadline, acks));
    }

    /// Refuses pending callers whose acknowledgments did not come in time. Does not read the lock:
    /// their grants are revoked afterward, or with the next input.
    pub(crate) fn refuse_late(&mut self, now: Now, portion: &mut usize) -> Vec<Wake> {
        let mut wakes = Vec::new();
        while let Some((waiter, since)) = self.unsent.first_over(now) {
            if !self.take_item(portion, now) {
                break;
            }
            self.leave(waiter);
            wakes.push(refused(waiter, since, Refusal::NoAcks, now));
        }
        wakes
    }

    /// A hold has ended: refuses the pending callers.
    pub(crate) fn end_acks(&mut self, token: Token, now: Now) -> Vec<Wake> {
        let Some(acks) = self.acks.as_deref_mut() else { return Vec::new() };
        acks.end(token);
        let pending = self.unsent.remove_pending(token).into_iter();
        pending.map(|(waiter, since)| refused(waiter, since, Refusal::NoAcks, now)).collect()
    }
}

/// The refusal of a caller that has waited for acknowledgments since then.
pub(crate) fn refused(waiter: WaiterId, since: Now, why: Refusal, now: Now) -> Wake {
    let waited_us = now.us().saturating_sub(since.us());
    Wake { waited_us, ..Wake::of(waiter, Reply::Refused(why)) }
}
