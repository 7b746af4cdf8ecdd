//! Which connection has the session of a hold: the one that asked last, among those whose grant was
//! not revoked.

use std::collections::BTreeSet;

use rlock_core::{ClientId, LeaseMs, WaiterId};

use super::{Hold, Naive, Tie, after, third};

/// A grant of a hold with SESSION.
#[derive(Clone, Debug)]
pub struct Claim {
    token: u64,
    /// The wait whose reply is still to be sent; `None` if the caller has it, which sorts first.
    waiter: Option<WaiterId>,
    tie: Tie,
    /// Its connection ended.
    is_gone: bool,
}

impl Naive {
    pub(super) fn tie(
        &mut self,
        token: u64,
        waiter: Option<WaiterId>,
        client: Option<ClientId>,
        lease: LeaseMs,
    ) {
        let Some(client) = client else { return };
        if waiter.is_none() {
            self.claims.retain(|claim| claim.token != token);
        }
        let tie = Tie { client, lease, renew_at: after(self.now_us, third(lease)) };
        self.claims.push(Claim { token, waiter, tie, is_gone: false });
        self.count_claims();
    }

    /// Sessions from before it are no longer restored.
    pub(super) fn hears_of_tie(&mut self, waiter: WaiterId) {
        let is_it = |claim: &Claim| claim.waiter == Some(waiter);
        let Some(place) = self.claims.iter().position(is_it) else { return };
        let mut told = self.claims.remove(place);
        self.claims.retain(|claim| claim.token != told.token || claim.waiter > told.waiter);
        told.waiter = None;
        self.claims.push(told);
        self.count_claims();
    }

    pub(super) fn take_back_tie(&mut self, waiter: WaiterId) {
        self.claims.retain(|claim| claim.waiter != Some(waiter));
        self.count_claims();
    }

    pub(super) fn end_ties(&mut self, client: ClientId) {
        let is_its = |hold: &&Hold| hold.session.is_some_and(|tie| tie.client == client);
        let ended: Vec<u64> = self.holds.iter().filter(is_its).map(|hold| hold.token).collect();
        self.claims.retain(|claim| !ended.contains(&claim.token));
        self.orphans.extend(ended);
        let others = self.claims.iter_mut().filter(|claim| claim.tie.client == client);
        others.for_each(|claim| claim.is_gone = true);
        self.count_claims();
    }

    pub(super) fn renew_ties(&mut self) {
        let (now, now_us) = (self.now, self.now_us);
        for hold in &mut self.holds {
            let is_due = |tie: &&Tie| tie.renew_at <= now;
            let Some(tie) = hold.session.as_ref().filter(is_due) else { continue };
            hold.deadline = hold.deadline.max(after(now_us, tie.lease.get()));
            let all = self.claims.iter_mut().filter(|claim| claim.token == hold.token);
            if let Some(claim) = all.max_by_key(|claim| claim.waiter) {
                claim.tie.renew_at = after(now_us, third(claim.tie.lease));
            }
        }
        self.count_claims();
    }

    /// The connections to close when this hold's session is lost: all those whose reply has said,
    /// or will say, that it is tied to them.
    pub(super) fn losers(&self, hold: &Hold) -> Vec<ClientId> {
        let its = self.claims.iter().filter(|claim| claim.token == hold.token && !claim.is_gone);
        let clients: BTreeSet<ClientId> = its.map(|claim| claim.tie.client).collect();
        clients.into_iter().filter(|_| hold.session.is_some()).collect()
    }

    /// Ties each hold according to the last of its claims; if that connection ended, the hold ends,
    /// too.
    pub(super) fn count_claims(&mut self) {
        let mut claims = std::mem::take(&mut self.claims);
        claims.retain(|claim| self.holds.iter().any(|hold| hold.token == claim.token));
        for hold in &mut self.holds {
            let all = claims.iter().filter(|claim| claim.token == hold.token);
            let last = all.max_by_key(|claim| claim.waiter);
            hold.session = last.filter(|claim| !claim.is_gone).map(|claim| claim.tie);
            if last.is_some_and(|claim| claim.is_gone) {
                self.orphans.push(hold.token);
                claims.retain(|claim| claim.token != hold.token);
            }
        }
        self.claims = claims;
    }
}
