//! Grants and renewals of several locks that replicas have not acknowledged yet. Each of the locks
//! has its part in its ledger; what concerns all of them is here: the replicas are asked once, the
//! caller gets one reply, and if one part ends, the others are never reported.

use super::group::Group;
use super::groups::Groups;
use super::tells::PendingRequest;
use super::{LockId, Manager};
use crate::value::count::less;
use crate::{Ack, EpochMs, LeaseMs, Now, Owner, Reply, WaiterId, Wake};

/// A grant or a renewal of several locks whose reply is held back.
#[derive(Clone, Copy, Debug)]
pub struct HeldBackReply {
    /// How many replicas must acknowledge it.
    pub acks: u8,
    /// How many holds it began.
    pub holds: usize,
    /// The ticket that was granted; `None` if the caller is blocked.
    pub ticket: Option<WaiterId>,
    /// The owner of the ticket must ask again by then.
    pub told_by: EpochMs,
    /// The earliest deadline of the ticket's holds.
    pub deadline: EpochMs,
    /// Replicas have acknowledged it: the owner of the ticket may be told.
    pub is_acked: bool,
}

impl Groups {
    /// How many blocked callers wait for acknowledgments.
    pub(super) fn blocked_and_held_back(&self) -> usize {
        less(self.held_back_replies.len(), self.taken.len())
    }

    /// A part of this grant ended, or its caller waits no more: nothing of it is told, and the rest
    /// is revoked in one unit. Its ticket waits on.
    pub(super) fn revoke(&mut self, grant: WaiterId) {
        if self.held_back_replies.is_empty() {
            return;
        }
        let Some(reply) = self.held_back_replies.remove(&grant) else { return };
        if let Some(ticket) = reply.ticket {
            self.taken.remove(&ticket);
            self.goes_on(ticket);
        }
        if let Some(group) = self.all.remove(&grant) {
            let ids = group.keys.iter().map(|key| group.id(key)).collect();
            self.unheard.insert(grant, ids);
        }
    }
}

impl Manager {
    /// A grant of several locks, or a renewal, stands, and replicas are to acknowledge it. The
    /// `group` says which locks.
    pub fn reply_is_held_back(&mut self, grant: WaiterId, group: Group, reply: HeldBackReply) {
        let Some(first) = group.keys.first().map(|key| group.id(key)) else { return };
        if let Some(ticket) = reply.ticket {
            self.groups.taken.insert(ticket, grant);
            self.groups.ready.remove(&ticket);
        }
        self.tells.is_pending(grant, group.owner.clone(), PendingRequest::Several);
        self.groups.all.insert(grant, Group { is_granted: true, ..group });
        self.groups.held_back_replies.insert(grant, reply);
        self.acks.ask(first, vec![(reply.acks, Ack::Several(grant))]);
    }

    /// This many replicas must acknowledge the grant of a group that waits.
    pub fn group_needs(&mut self, waiter: WaiterId, acks: u8) {
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            group.acks = acks;
        }
    }

    /// What the owner of this ticket has been granted and was not told.
    pub fn taken_by(&self, ticket: WaiterId) -> Option<(WaiterId, &HeldBackReply)> {
        let grant = *self.groups.taken.get(&ticket)?;
        Some((grant, self.groups.held_back_replies.get(&grant)?))
    }

    /// Whether the owner of this ticket, who asks for so many acknowledgments and this lease, is
    /// told now. Returns the grant.
    pub fn may_be_told(
        &self,
        ticket: WaiterId,
        (acks, lease): (u8, LeaseMs),
        now: Now,
    ) -> Option<WaiterId> {
        let (grant, reply) = self.taken_by(ticket)?;
        let is_enough = reply.is_acked && reply.acks >= acks && reply.deadline >= now.after(lease);
        let can_tell = |id: &LockId| {
            let volatile = self.locks.get(id.db, &id.key);
            volatile.is_some_and(|volatile| volatile.can_tell(grant, now))
                && !self.is_unseen(id.db, &id.key)
        };
        (is_enough && self.locks_of_grant(grant).iter().all(can_tell)).then_some(grant)
    }

    /// The owner of this ticket is told of its grant, which is its own from now on.
    pub fn ticket_is_told(&mut self, ticket: WaiterId) {
        if let Some(grant) = self.groups.taken.remove(&ticket) {
            self.groups.held_back_replies.remove(&grant);
            self.groups.all.remove(&grant);
        }
    }

    /// The owner of this ticket asks again before it may be told. If it wants more acknowledgments
    /// than before, the replicas are asked anew; they have until `late_at`.
    pub fn ticket_wants(&mut self, ticket: WaiterId, acks: u8, late_at: EpochMs) {
        let Some(grant) = self.groups.taken.get(&ticket).copied() else { return };
        let Some(reply) = self.groups.held_back_replies.get_mut(&grant) else { return };
        if reply.acks >= acks {
            return;
        }
        (reply.acks, reply.is_acked) = (acks, false);
        let until = late_at.min(reply.told_by);
        self.ticket_lasts(grant, until);
        if let Some(first) = self.locks_of_grant(grant).into_iter().next() {
            self.acks.ask(first, vec![(acks, Ack::Several(grant))]);
        }
    }

    fn ticket_lasts(&mut self, grant: WaiterId, until: EpochMs) {
        for id in self.locks_of_grant(grant) {
            self.locks.change_acks(&id, |volatile| volatile.ticket_lasts(grant, until));
        }
    }

    fn locks_of_grant(&self, grant: WaiterId) -> Vec<LockId> {
        let group = self.groups.all.get(&grant);
        group.into_iter().flat_map(|group| group.keys.iter().map(|key| group.id(key))).collect()
    }

    /// So many replicas have acknowledged a grant or renewal of several locks. Returns the owner of
    /// a ticket whose turn it is, and the first of its locks.
    pub(super) fn several_acked(
        &mut self,
        grant: WaiterId,
        acks: u8,
        now: Now,
    ) -> Option<(LockId, Owner)> {
        let reply = *self.groups.held_back_replies.get(&grant).filter(|it| it.acks <= acks)?;
        let ids = self.locks_of_grant(grant);
        let first = ids.first()?.clone();
        // A change of a key awaits its sweep. Replicas must have that change, too.
        if ids.iter().any(|id| self.is_unseen(id.db, &id.key)) {
            self.acks.ask(first, vec![(acks, Ack::Several(grant))]);
            return None;
        }
        let can_tell = |id: &LockId| {
            let volatile = self.locks.get(id.db, &id.key);
            volatile.is_some_and(|volatile| volatile.can_tell(grant, now))
        };
        // A hold that has expired is about to be ended, and the others with it.
        if !ids.iter().all(can_tell) {
            return None;
        }
        if reply.ticket.is_some() {
            if let Some(reply) = self.groups.held_back_replies.get_mut(&grant) {
                reply.is_acked = true;
            }
            self.ticket_lasts(grant, reply.told_by);
            return Some((first, self.groups.all.get(&grant)?.owner.clone()));
        }
        self.groups.held_back_replies.remove(&grant);
        let mut told: Option<Wake> = None;
        for id in &ids {
            let part = self.locks.change_acks(id, |volatile| volatile.tell(grant, now));
            told = match (told, part) {
                (Some(all), Some(part)) => Some(with(all, part)),
                (all, part) => all.or(part),
            };
            self.observers.mark(id.db, &id.key, true);
            self.retry_held_back(id.db, &id.key);
        }
        if let Some(wake) = told {
            let is_grant = matches!(wake.reply, Reply::Granted { .. });
            self.groups.told = self.groups.told.saturating_add(is_grant.into());
            self.outbox.push(Wake { holds: reply.holds, ..wake });
        }
        None
    }

    /// How many grants of several locks were told, after acknowledgments, since this was asked
    /// last.
    pub fn take_told_groups(&mut self) -> usize {
        std::mem::take(&mut self.groups.told)
    }

    /// Checks that each lock of a reply that is held back has its part.
    ///
    /// # Errors
    /// The one that has not, for tests.
    pub(super) fn check_held_back_replies(&self) -> Result<(), String> {
        for (grant, reply) in &self.groups.held_back_replies {
            let is_pending = |id: &LockId| {
                let volatile = self.locks.get(id.db, &id.key);
                volatile.is_some_and(|volatile| volatile.is_pending(*grant))
            };
            let ids = self.locks_of_grant(*grant);
            let is_taken = |ticket| self.groups.taken.get(&ticket) == Some(grant);
            if ids.is_empty() || !ids.iter().all(is_pending) || !reply.ticket.is_none_or(is_taken) {
                return Err(format!("{grant:?} is not pending everywhere: {reply:?} of {ids:?}"));
            }
        }
        match self.groups.taken.values().find(|it| !self.groups.held_back_replies.contains_key(it))
        {
            Some(grant) => Err(format!("{grant:?} of a ticket is not known")),
            None => Ok(()),
        }
    }
}

/// The reply about several locks: the newest token, and the earliest deadline.
fn with(all: Wake, part: Wake) -> Wake {
    let reply = match (all.reply, part.reply) {
        (
            Reply::Granted { token, remaining_ms },
            Reply::Granted { token: other, remaining_ms: ms },
        ) => Reply::Granted { token: token.max(other), remaining_ms: remaining_ms.min(ms) },
        (reply, _) => reply,
    };
    Wake { reply, ..all }
}
