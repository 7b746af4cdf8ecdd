//! Grants and renewals of several locks that replicas have not acknowledged yet. Each lock records
//! its own part. What concerns all of them is here: the replicas are asked once, the caller gets
//! one reply, and if one part ends, the others are never reported.

use super::group::{Group, Stage};
use super::groups::Groups;
use super::tells::PendingRequest;
use super::{LockId, Manager};
use crate::{Ack, Now, Reply, WaiterId, Wake};

impl Groups {
    /// Replicas have acknowledged this grant, and its reply is to be sent.
    fn replies(&mut self, grant: WaiterId) {
        if let Some(group) = self.all.get_mut(&grant) {
            group.stage = Stage::Replied;
            self.pending = self.pending.saturating_sub(1);
        }
    }

    /// A part of this grant ended, or its caller departed: if the grant is pending, it is not
    /// reported, and its other parts are revoked as one unit.
    pub(super) fn revoke(&mut self, grant: WaiterId) {
        // Checking first whether there are any is cheaper than a look-up.
        if self.pending == 0 || !self.all.get(&grant).is_some_and(Group::is_pending) {
            return;
        }
        if let Some(group) = self.take_granted(grant) {
            self.unheard.insert(grant, group.ids());
        }
    }
}

impl Manager {
    /// A grant of several locks that began this many `holds`, or a renewal, is in effect, and
    /// replicas are to acknowledge it. `group` has its locks, and how many replicas.
    pub fn group_is_pending(&mut self, grant: WaiterId, group: Group, holds: usize) {
        let Some(first) = group.keys.first().map(|key| group.id(key)) else { return };
        self.tells.asks_for(grant, &group);
        self.tells.is_pending(grant, group.entry.owner.clone(), PendingRequest::Several);
        self.acks.ask(first, vec![(group.entry.acks, Ack::Wait(grant))]);
        self.groups.all.insert(grant, Group { stage: Stage::Pending { holds }, ..group });
        self.groups.pending = self.groups.pending.saturating_add(1);
    }

    /// Replicas have acknowledged a grant or renewal of several locks.
    pub(super) fn several_acked(&mut self, grant: WaiterId, now: Now) {
        let Some(group) = self.groups.all.get(&grant) else { return };
        let Stage::Pending { holds } = group.stage else { return };
        let (ids, acks) = (group.ids(), group.entry.acks);
        let Some(first) = ids.first().cloned() else { return };
        // A change of a key awaits its sweep. Replicas must acknowledge that change, too.
        if ids.iter().any(|id| self.is_unseen(id.db, &id.key)) {
            return self.acks.ask(first, vec![(acks, Ack::Wait(grant))]);
        }
        let can_tell = |id: &LockId| {
            let volatile = self.locks.get(id.db, &id.key);
            volatile.is_some_and(|volatile| volatile.can_tell(grant, now))
        };
        // An expired hold is about to be ended, and the others with it.
        if !ids.iter().all(can_tell) {
            return;
        }
        self.groups.replies(grant);
        let tell = |id: &LockId| {
            self.observers.mark(id.db, &id.key, true);
            self.locks.change_acks(id, |volatile| volatile.tell(grant, now))
        };
        if let Some(wake) = ids.iter().filter_map(tell).reduce(with) {
            let is_grant = matches!(wake.reply, Reply::Granted { .. });
            self.groups.told = self.groups.told.saturating_add(is_grant.into());
            self.outbox.push(Wake { holds, ..wake });
        }
    }

    /// How many grants of several locks were reported after acknowledgments since the last call.
    pub fn take_told_groups(&mut self) -> usize {
        std::mem::take(&mut self.groups.told)
    }

    /// Checks that each lock of a pending group has its part.
    ///
    /// # Errors
    /// Says which lock lacks it; for tests.
    pub(super) fn check_pending_groups(&self) -> Result<(), String> {
        let pending = || self.groups.all.iter().filter(|(_, group)| group.is_pending());
        if pending().count() != self.groups.pending {
            return Err(format!("not {} groups are pending", self.groups.pending));
        }
        for (grant, group) in pending() {
            let is_pending = |id: &LockId| {
                let volatile = self.locks.get(id.db, &id.key);
                volatile.is_some_and(|volatile| volatile.is_pending(*grant))
            };
            if group.keys.is_empty() || !group.ids().iter().all(is_pending) {
                return Err(format!("{grant:?} is not pending everywhere: {group:?}"));
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
