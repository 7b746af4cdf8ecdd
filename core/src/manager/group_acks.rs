//! Grants and renewals of several locks that replicas have not acknowledged yet. Each lock records
//! its own part. What concerns all of them is here: the replicas are asked once, the caller gets
//! one reply, and if one part ends, the others are never reported.

use super::group::{Group, HeldBackReply};
use super::groups::Groups;
use super::tells::PendingRequest;
use super::{LockId, Manager};
use crate::{Ack, Now, Reply, WaiterId, Wake};

impl Groups {
    /// A part of this grant ended, or its caller departed: the grant is not reported, and its other
    /// parts are revoked as one unit.
    pub(super) fn revoke(&mut self, grant: WaiterId) {
        // Checking first whether there are any is cheaper than a look-up.
        if self.held_back_replies.is_empty() || self.held_back_replies.remove(&grant).is_none() {
            return;
        }
        if let Some(group) = self.all.remove(&grant) {
            let ids = group.keys.iter().map(|key| group.id(key)).collect();
            self.unheard.insert(grant, ids);
        }
    }
}

impl Manager {
    /// A grant or a renewal of several locks is in effect, and replicas are to acknowledge it.
    /// `group` has its locks.
    pub fn reply_is_held_back(&mut self, grant: WaiterId, group: Group, reply: HeldBackReply) {
        let Some(first) = group.keys.first().map(|key| group.id(key)) else { return };
        self.tells.is_pending(grant, group.owner.clone(), PendingRequest::Several);
        self.groups.all.insert(grant, Group { is_granted: true, ..group });
        self.groups.held_back_replies.insert(grant, reply);
        self.acks.ask(first, vec![(reply.acks, Ack::Several(grant))]);
    }

    fn locks_of_grant(&self, grant: WaiterId) -> Vec<LockId> {
        let group = self.groups.all.get(&grant);
        group.into_iter().flat_map(|group| group.keys.iter().map(|key| group.id(key))).collect()
    }

    /// This many replicas have acknowledged a grant or renewal of several locks.
    pub(super) fn several_acked(&mut self, grant: WaiterId, acks: u8, now: Now) {
        let Some(reply) = self.groups.held_back_replies.get(&grant).filter(|it| it.acks <= acks)
        else {
            return;
        };
        let (holds, ids) = (reply.holds, self.locks_of_grant(grant));
        let Some(first) = ids.first().cloned() else { return };
        // A change of a key awaits its sweep. Replicas must acknowledge that change, too.
        if ids.iter().any(|id| self.is_unseen(id.db, &id.key)) {
            return self.acks.ask(first, vec![(acks, Ack::Several(grant))]);
        }
        let can_tell = |id: &LockId| {
            let volatile = self.locks.get(id.db, &id.key);
            volatile.is_some_and(|volatile| volatile.can_tell(grant, now))
        };
        // An expired hold is about to be ended, and the others with it.
        if !ids.iter().all(can_tell) {
            return;
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
        }
        if let Some(wake) = told {
            let is_grant = matches!(wake.reply, Reply::Granted { .. });
            self.groups.told = self.groups.told.saturating_add(is_grant.into());
            self.outbox.push(Wake { holds, ..wake });
        }
    }

    /// How many grants of several locks were reported after acknowledgments since the last call.
    pub fn take_told_groups(&mut self) -> usize {
        std::mem::take(&mut self.groups.told)
    }

    /// Checks that each lock of a held-back reply has its part.
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
            if ids.is_empty() || !ids.iter().all(is_pending) {
                return Err(format!("{grant:?} is not pending everywhere: {reply:?} of {ids:?}"));
            }
        }
        Ok(())
    }
}

/// The combined reply about several locks: the newest token, and the earliest deadline.
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
