//! The connections that the server keeps blocked for the module: what each waits for, its reply,
//! and which owner waits for which locks.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{HashMap, LockId, SeenHold};
use crate::{ClientId, Owner, Refusal, Reply, WaiterId};

/// How the wait of a blocked connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Nothing yet.
    Waits,
    /// It has this reply.
    Replied(Reply),
    /// It observed the lock, and gets the hold that exists now, if there is one.
    Saw(Option<Rc<SeenHold>>),
    /// The connection departed first.
    Departed,
}

/// A blocked connection.
#[derive(Clone, Debug)]
pub struct Parked {
    /// Its ID.
    pub client: Option<ClientId>,
    /// The lock for which it waits.
    pub lock: LockId,
    /// The owner; an observer has none.
    pub owner: Option<Owner>,
    /// The user as which its connection is authenticated.
    pub user: Rc<[u8]>,
    /// Whether it asked `WITHTTL`.
    pub with_ttl: bool,
    /// How its wait ended.
    pub end: WaitEnd,
    /// The error if the server ends the wait before the module replies: replicas have not
    /// acknowledged the grant, or a refusal is about to be sent.
    pub refusal: Option<Refusal>,
    /// The hash of owner and user, as in [`BlockedConnections::by_owner`].
    hash: u64,
}

impl Parked {
    /// A connection that waits.
    pub fn new(
        client: Option<ClientId>,
        lock: LockId,
        owner: Owner,
        user: Rc<[u8]>,
        with_ttl: bool,
    ) -> Self {
        let hash = hash_of(&owner, &user);
        let (owner, end, refusal) = (Some(owner), WaitEnd::Waits, None);
        Self { client, lock, owner, user, with_ttl, end, refusal, hash }
    }

    /// A connection that only observes the lock.
    pub fn observer(client: Option<ClientId>, lock: LockId, user: Rc<[u8]>) -> Self {
        let (end, refusal) = (WaitEnd::Waits, None);
        Self { client, lock, owner: None, user, with_ttl: false, end, refusal, hash: 0 }
    }

    /// Whether it still waits for its reply.
    pub fn waits(&self) -> bool {
        self.end == WaitEnd::Waits
    }

    /// Whether it only observes the lock.
    pub fn is_observer(&self) -> bool {
        self.owner.is_none()
    }
}

fn hash_of(owner: &Owner, user: &[u8]) -> u64 {
    Owner::hash_of(owner.as_bytes()).rotate_left(1) ^ Owner::hash_of(user)
}

/// All blocked connections, until the server reports that it has unblocked them.
#[derive(Default)]
pub struct BlockedConnections {
    parked: HashMap<WaiterId, Parked>,
    by_client: HashMap<ClientId, WaiterId>,
    /// The current waits, by database and a hash of owner and user.
    by_owner: BTreeSet<(i32, u64, WaiterId)>,
    last: u64,
}

impl BlockedConnections {
    /// Its entry in the index; an observer has none.
    fn key(id: WaiterId, parked: &Parked) -> Option<(i32, u64, WaiterId)> {
        (!parked.is_observer()).then_some((parked.lock.db, parked.hash, id))
    }

    /// A number for the next wait.
    pub fn next_id(&mut self) -> WaiterId {
        self.last = self.last.wrapping_add(1).max(1);
        WaiterId::from(self.last)
    }

    /// A connection is now blocked.
    pub fn begin(&mut self, id: WaiterId, parked: Parked) {
        self.by_owner.extend(Self::key(id, &parked));
        if let Some(client) = parked.client {
            self.by_client.insert(client, id);
        }
        self.parked.insert(id, parked);
    }

    /// One blocked connection.
    pub fn get(&self, id: WaiterId) -> Option<&Parked> {
        self.parked.get(&id)
    }

    /// The wait of this connection, if it waits.
    pub fn of_client(&self, client: ClientId) -> Option<WaiterId> {
        self.by_client.get(&client).copied()
    }

    /// The connection now waits for this lock.
    pub fn stands_at(&mut self, id: WaiterId, lock: LockId) {
        if let Some(parked) = self.parked.get_mut(&id) {
            parked.lock = lock;
        }
    }

    /// Sets the error that it gets if the server ends the wait before the module replies.
    pub fn expect(&mut self, id: WaiterId, refusal: Refusal) {
        if let Some(parked) = self.parked.get_mut(&id) {
            parked.refusal = Some(refusal);
        }
    }

    /// Sets the end of its wait. False if it has ended already.
    pub fn end_with(&mut self, id: WaiterId, end: WaitEnd) -> bool {
        let Some(parked) = self.parked.get_mut(&id).filter(|parked| parked.waits()) else {
            return false;
        };
        Self::key(id, parked).map(|key| self.by_owner.remove(&key));
        parked.end = end;
        true
    }

    /// A connection has departed. Returns the lock for which it waited, if that is known.
    pub fn leave(&mut self, id: WaiterId) -> Option<LockId> {
        let parked = self.parked.get_mut(&id)?;
        Self::key(id, parked).map(|key| self.by_owner.remove(&key));
        if parked.waits() {
            parked.end = WaitEnd::Departed;
        }
        Some(parked.lock.clone())
    }

    /// The server has unblocked the connection: removes it.
    pub fn end(&mut self, id: WaiterId) -> Option<Parked> {
        let parked = self.parked.remove(&id)?;
        Self::key(id, &parked).map(|key| self.by_owner.remove(&key));
        if let Some(client) = parked.client
            && self.by_client.get(&client) == Some(&id)
        {
            self.by_client.remove(&client);
        }
        Some(parked)
    }

    /// The waits of this owner's blocked connections in a database that `user` began.
    pub fn of_owner<'a>(
        &'a self,
        db: i32,
        owner: &'a Owner,
        user: &'a [u8],
    ) -> impl Iterator<Item = (WaiterId, &'a LockId)> {
        let hash = hash_of(owner, user);
        let all = (db, hash, WaiterId::from(1))..=(db, hash, WaiterId::from(u64::MAX));
        let ids = self.by_owner.range(all).map(|(_, _, id)| *id);
        ids.filter_map(|id| self.parked.get(&id).map(|parked| (id, parked)))
            .filter(move |(_, parked)| {
                parked.owner.as_ref() == Some(owner) && &*parked.user == user
            })
            .map(|(id, parked)| (id, &parked.lock))
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        for (id, parked) in &self.parked {
            let key = Self::key(*id, parked);
            if key.is_some_and(|key| self.by_owner.contains(&key) != parked.waits()) {
                return Err(format!("{id:?} is indexed wrongly by its owner"));
            }
        }
        let strays = self.by_owner.iter().filter(|(_, _, id)| !self.parked.contains_key(id));
        let clients = self.by_client.values().filter(|id| !self.parked.contains_key(id));
        match (strays.count(), clients.count()) {
            (0, 0) => Ok(()),
            found => Err(format!("{found:?} waits are indexed that are not there")),
        }
    }
}
