//! Tickets for several locks: groups without a connection. The owner asks again.

use super::{Bounds, LockId, Manager, Outcome};
use crate::grammar::Want;
use crate::{ClientId, EpochMs, LeaseMs, Now, Owner, Refusal, Reply, WaiterId};

impl Manager {
    /// The tickets of this owner for several locks, one of these (in key order) among them.
    pub fn group_tickets_of(&self, db: i32, owner: &[u8], keys: &[Want<'_>]) -> Vec<WaiterId> {
        if self.groups.tickets == 0 {
            return Vec::new();
        }
        let mut tickets: Vec<WaiterId> = Vec::new();
        for want in keys {
            let id = LockId { db, key: want.key.into() };
            let hash = Owner::hash_of(owner);
            let (first, last) = (WaiterId::from(1), WaiterId::from(u64::MAX));
            let all = (hash, id.clone(), first)..=(hash, id, last);
            let all = self.groups.ticket_keys.range(all).map(|(_, _, waiter)| *waiter);
            let is_own = |waiter: &WaiterId| {
                let group = self.groups.waiting(*waiter);
                group.is_some_and(|group| group.owner.as_bytes() == owner)
            };
            tickets.extend(all.filter(is_own));
        }
        tickets.sort_unstable();
        tickets.dedup();
        tickets
    }

    /// So many more locks may have tickets, when so many tickets end.
    ///
    /// # Errors
    /// `rlock.max-tickets` would be exceeded.
    pub fn may_take_tickets(
        &self,
        bounds: &Bounds,
        (more, fewer): (usize, usize),
    ) -> Result<(), Refusal> {
        let now = self.totals().tickets.saturating_sub(fewer).saturating_add(more);
        if now <= bounds.max_tickets { Ok(()) } else { Err(Refusal::TooManyTickets) }
    }

    /// The owner of a ticket asks now: it is told by its reply, if it reaches all locks now.
    pub fn ticket_asks(&mut self, waiter: WaiterId, is_asking: bool) {
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            group.is_asking = is_asking;
        }
    }

    /// The owner of a ticket asks again, and must wait on: its newest window and lease count.
    pub fn keep_ticket(&mut self, waiter: WaiterId, lease: LeaseMs, ends_at: EpochMs) {
        self.waits_until(waiter, Some(ends_at));
        self.group_is(waiter, None, lease);
    }

    fn waits_until(&mut self, waiter: WaiterId, ends_at: Option<EpochMs>) {
        let Some(group) = self.groups.all.get_mut(&waiter) else { return };
        let before = std::mem::replace(&mut group.ends_at, ends_at);
        before.map(|before| self.groups.ends.remove(&(before, waiter)));
        ends_at.map(|ends_at| self.groups.ends.insert((ends_at, waiter)));
    }

    /// It waits on in the same places, for this connection, or as a ticket.
    fn group_is(&mut self, waiter: WaiterId, client: Option<ClientId>, lease: LeaseMs) {
        let Some(group) = self.groups.all.get_mut(&waiter) else { return };
        (group.client, group.lease) = (client, lease);
        let kind = group.kind(waiter);
        let places = group.keys.iter().take(group.reached.saturating_add(1));
        let places: Vec<LockId> = places.map(|key| group.id(key)).collect();
        for LockId { db, key } in places {
            if self.locks.get(db, &key).is_some_and(|volatile| volatile.knows(waiter)) {
                self.locks.change_keeping_alarm(db, &key, |volatile| {
                    volatile.queue.group_is(kind, client, lease);
                });
            }
        }
    }

    /// Others wait for a ticket from now on as for a blocked connection, or no longer do so.
    pub fn ticket_is(&mut self, waiter: WaiterId, is_ticket: bool) {
        let Some(group) = self.groups.all.get_mut(&waiter) else { return };
        if group.is_ticket == is_ticket {
            return;
        }
        group.is_ticket = is_ticket;
        let (group, client, lease) = (group.clone(), group.client, group.lease);
        match is_ticket {
            true => self.groups.ticket_begins(waiter, &group),
            false => self.groups.ticket_ends(waiter, &group),
        }
        self.group_is(waiter, client, lease);
    }

    /// A wait for several locks goes on for this connection, with this lease, until then.
    pub fn group_waits_for(
        &mut self,
        waiter: WaiterId,
        (client, session): (Option<ClientId>, Option<ClientId>),
        (lease, ends_at): (LeaseMs, Option<EpochMs>),
    ) {
        self.waits_until(waiter, ends_at);
        self.group_is(waiter, client, lease);
        if let Some(group) = self.groups.all.get_mut(&waiter) {
            group.session = session;
        }
        // Where its time had passed, what it was about to do was not done.
        let is_idle = self.groups.waiting(waiter).is_some_and(|group| !group.stands);
        if is_idle && !self.groups.is_moving(waiter) && !self.groups.is_going_back(waiter) {
            self.groups.goes_on(waiter);
        }
    }

    /// The reply to this group will be a message from now on, or no longer.
    pub fn group_is_told(&mut self, waiter: WaiterId, is_told: bool) {
        let Some(group) = self.groups.all.get_mut(&waiter) else { return };
        let was_told = std::mem::replace(&mut group.is_told, is_told);
        if !group.is_granted {
            let others = self.groups.by_message.saturating_sub(was_told.into());
            self.groups.by_message = others.saturating_add(is_told.into());
        }
    }

    /// What was a ticket is a blocked wait in the same places from now on.
    pub fn ticket_is_parked(
        &mut self,
        waiter: WaiterId,
        (client, session): (Option<ClientId>, Option<ClientId>),
        (lease, ends_at): (LeaseMs, Option<EpochMs>),
    ) {
        self.ticket_is(waiter, false);
        self.group_waits_for(waiter, (client, session), (lease, ends_at));
        let Some(group) = self.groups.all.get_mut(&waiter) else { return };
        if group.next_key().is_none() {
            self.groups.ready.remove(&waiter);
            self.groups.commits.insert(waiter);
        }
        if let Some(id) = self.stands_at(waiter) {
            self.tells.stands_at(waiter, &id);
            self.waits.stands_at(waiter, id);
        }
    }

    /// Where a group stands, or its last lock.
    pub fn stands_at(&self, waiter: WaiterId) -> Option<LockId> {
        let group = self.group(waiter)?;
        Some(group.id(group.next_key().or(group.keys.last())?))
    }

    /// A ticket has reached all of its locks, and its owner is told.
    pub fn ticket_is_ready(&mut self, waiter: WaiterId) {
        self.groups.ready.insert(waiter);
    }

    /// Whether this ticket has reached all of its locks, and its owner may be granted them.
    pub fn is_ready(&self, waiter: WaiterId) -> bool {
        self.groups.ready.contains(&waiter)
    }

    /// A ticket for several locks is withdrawn. Those behind it are served with the next work for
    /// groups.
    pub fn withdraw_group(&mut self, waiter: WaiterId, now: Now) {
        let reply = Reply::NotNow { wait_ms: None };
        self.end_group_with(waiter, reply, Outcome::Cancelled, now);
    }
}
