//! A server whose replicas are numbers: the offset that each has acknowledged.

use rlock_core::{Acquire, Confirmation, Input, Mode, Parking, Patience, Renew, Reply, Token};

use super::server::{Key, Server};
use super::{acquire, renew};

/// The reply of a parked caller; `None` if it has none yet.
pub type Told = Option<Reply>;

impl Server {
    /// A caller whose reply waits for `acks` replicas. Returns the number of its wait.
    pub fn confirms(&mut self, key: Key, ask: Acquire<'_>, client: u64) -> u64 {
        self.parks(key, ask.owner, client, |parking| Input::Park(ask, parking))
    }

    /// A renewal whose reply waits for replicas.
    pub fn renews(&mut self, key: Key, owner: &str, lease_ms: u64, acks: u8) -> u64 {
        let ask = Renew { acks, ..renew(owner.as_bytes(), lease_ms) };
        self.parks(key, ask.owner, 0, |parking| Input::ParkRenew(ask, parking))
    }

    fn parks<'a>(
        &mut self,
        key: Key,
        owner: &[u8],
        client: u64,
        input: impl FnOnce(Parking) -> Input<'a>,
    ) -> u64 {
        let parking = self.begin_wait(key, owner, (client > 0).then_some(client));
        self.park(key, parking, input(parking))
    }

    /// Sets the length of the stream, and how much of it each replica has acknowledged.
    pub fn replicas(&mut self, stream: u64, acknowledged: &[u64]) {
        let now = self.now();
        self.manager.stream_is(stream);
        self.manager.acked(&mut acknowledged.to_vec(), now);
        let answers = self.manager.take_answers();
        self.tell(answers);
        self.manager.check().unwrap();
    }

    /// The reply that this caller got.
    pub fn told_to(&self, waiter: u64) -> Told {
        let told = self.told.iter().find(|(other, _)| *other == waiter);
        told.map(|(_, reply)| reply.clone())
    }

    /// The token that it got.
    pub fn token_of(&self, waiter: u64) -> Option<Token> {
        match self.told_to(waiter) {
            Some(Reply::Granted { token, .. }) => Some(token),
            _ => None,
        }
    }

    /// The depth of an owner's hold, and whether it is confirmed.
    pub fn hold(&self, key: Key, owner: &str, mode: Mode) -> Option<(u16, Confirmation)> {
        let hold = self.keys.get(key)?.hold_at(owner.as_bytes(), mode, self.now())?;
        let volatile = self.manager.volatile(0, key);
        let told =
            volatile.map_or(Confirmation::None, |volatile| volatile.confirmation(hold.token));
        Some((hold.depth, told))
    }
}

/// A request for WRITE with a lease of 1.5 s and this many acknowledgments.
pub fn confirmed(owner: &str, acks: u8) -> Acquire<'_> {
    let patience = Patience::Block;
    Acquire { acks, patience, ..acquire(owner.as_bytes(), Mode::Write, 10_000) }
}
