//! A lock's waiters and sessions. They are never saved, and losing them ends no hold.

pub mod confirm;
pub mod confirmations;
pub mod endings;
pub mod kind;
pub mod levels;
pub mod owner_names;
pub mod queue;
pub mod sessions;
pub mod slow;
pub mod unsent;

use crate::value::readers::Readers;
use crate::volatile::confirmations::Confirmations;
use crate::volatile::queue::Entry;
use crate::volatile::sessions::Session;
use crate::volatile::slow::{Ended, Outcome, Slow};
use crate::volatile::unsent::UnsentReplies;
use crate::{ClientId, EpochMs, Hold, Now, Owner, Queue, Sessions, Token, WaiterId};

/// The waiters and sessions of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volatile {
    /// The waiters.
    pub queue: Queue,
    /// The sessions.
    pub sessions: Sessions,
    pub(crate) unsent: UnsentReplies,
    /// What replicas have yet to acknowledge; `None` if nothing.
    pub(crate) acks: Option<Box<Confirmations>>,
    /// While a new primary is in its grace period, no request is granted before this time.
    pub(crate) grace: Option<EpochMs>,
    /// Waits and holds that have ended, for the slow log.
    over: Vec<Ended>,
    /// Waits that ended outside a transition, if they lasted long enough to be logged.
    ended: Vec<(Entry, Outcome)>,
    /// Holds that had expired when a writer's grant replaced them, and whose expiry has not been
    /// published yet.
    pub(crate) replaced: Vec<Readers>,
    /// Owners with blocked requests that are re-entries and that the last portion did not grant.
    pub(crate) entering: Vec<Owner>,
    /// When the last transition stopped at the end of its portion; the next one is due at once
    /// then.
    pub(crate) unfinished: Option<EpochMs>,
    /// The first in line can enter, but the last transition was part of a step for several locks:
    /// all queues are served afterward, in key order.
    pub(crate) is_unserved: bool,
}

impl Volatile {
    /// A copy with only this many of the waiters.
    pub(crate) fn with_first(&self, most: usize) -> Self {
        let Self { queue, sessions, unsent, acks, grace, unfinished, .. } = self;
        let (sessions, unsent, acks) = (sessions.clone(), unsent.clone(), acks.clone());
        let (grace, unfinished) = (*grace, *unfinished);
        let queue = queue.first(most);
        Self { queue, sessions, unsent, acks, grace, unfinished, ..Self::default() }
    }

    /// Whether there are no waiters, no sessions and nothing else.
    pub fn is_empty(&self) -> bool {
        self.has_only_acks() && self.acks.as_deref().is_none_or(Confirmations::is_empty)
    }

    /// Whether the only thing known is that holds were confirmed.
    pub(crate) fn is_only_confirmed(&self) -> bool {
        self.acks.as_deref().is_some_and(Confirmations::are_done) && self.has_only_acks()
    }

    /// Whether nothing is known but what replicas have acknowledged, or are to.
    fn has_only_acks(&self) -> bool {
        self.queue.is_empty()
            && self.sessions.is_empty()
            && self.unsent.is_empty()
            && self.replaced.is_empty()
            && self.unfinished.is_none()
            && !self.queue.has_covered()
    }

    /// Becomes that of another lock, without waiters and unsent replies: an empty tree keeps one
    /// node, which the next queue or reply reuses.
    pub(crate) fn reset(&mut self) {
        let Self {
            queue,
            unsent,
            sessions,
            acks,
            grace,
            over,
            ended,
            replaced,
            entering,
            unfinished,
            is_unserved,
        } = self;
        (*acks, *grace, *unfinished, *is_unserved) = (None, None, None, false);
        *sessions = Sessions::default();
        unsent.forget_revoked();
        // Groups may have departed before they were served.
        drop(queue.take_touched_groups());
        (*over, *ended, *replaced, *entering) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    }

    /// Whether the next input has nothing to do but what comes due, and no turn is given. (What a
    /// portion left undone counts as due.)
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.unsent.has_revoked()
            && !self.sessions.has_gone()
            && self.grace.is_none()
            && self.queue.first_turn().is_none()
    }

    /// Takes one item of the portion. If that is used up, the rest is due at once, and this is
    /// false.
    pub(crate) fn take_item(&mut self, portion: &mut usize, now: Now) -> bool {
        let left = portion.checked_sub(1);
        *portion = left.unwrap_or(0);
        if left.is_none() {
            self.unfinished = Some(now.ms());
        }
        left.is_some()
    }

    /// Whether any next input has to end something first.
    pub(crate) fn has_to_settle(&self) -> bool {
        self.unsent.has_revoked()
            || self.sessions.has_gone()
            || self.unfinished.is_some()
            || self.is_unserved
    }

    /// Whether something is known about the holds that ends with their key: sessions or unsent
    /// replies.
    pub(crate) fn knows_of_holds(&self) -> bool {
        self.session_count() > 0 || !self.unsent.is_empty()
    }

    /// Ends the session of the hold with this token as lost. Returns the connections that it was
    /// tied to: they are to be closed, and are not granted what they wait for here.
    pub(crate) fn lose(&mut self, token: Token) -> Vec<ClientId> {
        let clients = self.sessions.lose(token);
        for client in &clients {
            while let Some(entry) = self.queue.remove_client(*client) {
                self.ended(entry, Outcome::Disconnected);
            }
        }
        clients
    }

    /// Records a wait or a hold that ended and is to be logged.
    pub(crate) fn log_slow(&mut self, over: Option<Ended>) {
        self.over.extend(over);
    }

    /// Records a wait that ended, and when.
    pub(crate) fn ended(&mut self, entry: Entry, outcome: Outcome) {
        if entry.in_the_way.is_some() {
            self.ended.push((entry, outcome));
        }
    }

    /// Takes the waits and holds to be logged that ended since the last call.
    pub fn drain_ended(&mut self, slow: Slow, now: Now) -> Vec<Ended> {
        if self.over.is_empty() && self.ended.is_empty() {
            return Vec::new();
        }
        for (entry, outcome) in std::mem::take(&mut self.ended) {
            self.over.extend(entry.ended(slow, outcome, now));
        }
        std::mem::take(&mut self.over)
    }

    /// Whether a blocked connection waits here, or has yet to get its reply.
    pub fn knows(&self, waiter: WaiterId) -> bool {
        self.queue.blocked(waiter).is_some()
            || self.queue.group_stand(waiter).is_some()
            || self.unsent.knows(waiter)
    }

    /// A blocked connection departed, for whatever reason. It can no longer be granted the lock;
    /// the next input revokes any unheard level. Writes nothing, so it may be called at any time.
    /// Returns whether anything changed.
    pub fn leave(&mut self, waiter: WaiterId) -> bool {
        let waited = self.queue.leave(waiter);
        self.withdraw_tie(waiter);
        self.unsent.leave(waiter) || waited
    }

    /// A parked connection departed before its reply, and its level ends later: the hold is tied
    /// again to the connection that had the session before.
    pub(crate) fn withdraw_tie(&mut self, waiter: WaiterId) {
        if let Some(token) = self.unsent.ties_no_more(waiter) {
            self.sessions.withdraw(token, waiter);
        }
    }

    /// The reply to a parked connection may have been read: its grant can no longer be revoked.
    pub fn heard(&mut self, waiter: WaiterId) {
        let Some(reply) = self.unsent.heard(waiter) else { return };
        if reply.request.is_some() {
            self.unsent.owner_knows(reply.token);
        }
        if reply.ties {
            self.sessions.heard(reply.token, waiter);
        }
    }

    /// A connection closed: its sessions end with the next input.
    pub fn disconnect(&mut self, client: ClientId) {
        self.sessions.end_client(client);
    }

    /// When the next thing happens here that requires no write: a wait times out, or a session may
    /// be lost. The end of a ticket's turn requires a write.
    pub fn next_end(&self) -> Option<EpochMs> {
        let ends = [self.queue.next_check(), self.sessions.next_end(), self.unsent.next_over()];
        ends.into_iter().flatten().min()
    }

    /// Ties a hold to a blocked connection that has no reply yet.
    pub(crate) fn tie_unsent(&mut self, token: Token, waiter: WaiterId, session: Session) {
        self.unsent.ties(waiter);
        self.sessions.tie_unheard(token, waiter, session);
    }

    /// The number of holds that are tied to a connection, or will be once they are confirmed.
    pub fn session_count(&self) -> usize {
        self.sessions.len().saturating_add(self.unsent.sessions())
    }

    /// When to sweep next, without regard to the lock's holds.
    pub(crate) fn next_alarm(&self) -> Option<EpochMs> {
        [self.next_to_end(), self.sessions.next_renewal()].into_iter().flatten().min()
    }

    /// The same without the renewals of sessions, which let nobody in.
    pub(crate) fn next_to_end(&self) -> Option<EpochMs> {
        let next = [
            self.queue.next_check(),
            self.sessions.next_end_by_acks(),
            self.unsent.next_over(),
            self.grace.filter(|_| !self.queue.is_empty()),
        ];
        next.into_iter().flatten().min()
    }

    /// Whether another hold may be tied to a connection; a hold that is already tied may always be
    /// tied again.
    pub(crate) fn may_tie(&self, held: Option<Hold>, sessions_max: usize) -> bool {
        self.session_count() < sessions_max
            || held.is_some_and(|hold| self.sessions.get(hold.token).is_some())
    }

    /// Checks that every index agrees with what it indexes.
    ///
    /// # Errors
    /// Says which index does not; for tests.
    pub fn check(&self) -> Result<(), String> {
        self.queue.check()?;
        if self.queue.has_touched_groups() && !self.is_unserved {
            return Err(format!("groups of a served queue are touched: {:?}", self.queue));
        }
        self.unsent.check()?;
        self.sessions.check()?;
        match self.sessions.unheard().find(|(token, by)| self.unsent.tied_by(*by) != Some(*token)) {
            Some(found) => Err(format!("{found:?} is tied to a caller that has its reply")),
            None => Ok(()),
        }
    }
}
