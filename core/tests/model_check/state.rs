//! Everything on which the future depends, as bytes: two towns with the same state continue alike.

use std::hash::{DefaultHasher, Hash, Hasher};

use rlock_core::{Entry, EpochMs, Kind, Mode};

use super::town::Town;
use crate::support::World;

/// A hash of the state with 64 bits. Among ten million states, two share a hash with a probability
/// of 0.0003 %; then one of them is not continued.
pub fn fingerprint(town: &Town<'_>) -> u64 {
    let (forth, back) = (0..town.locks.len(), (0..town.locks.len()).rev());
    written(town, forth).min(written(town, back))
}

/// The locks in this order; owners and connections are numbered as they appear.
fn written(town: &Town<'_>, order: impl Iterator<Item = usize>) -> u64 {
    let mut writer = Writer::default();
    for lock in order {
        let world = &town.locks[lock];
        writer.holds(world);
        world
            .volatile
            .queue
            .iter()
            .for_each(|(entry, is_turn)| writer.entry(world, entry, is_turn));
        writer.bytes.extend([254, u8::from(world.tickets_left == 0)]);
        writer.unheard(town, lock);
    }
    let mut hasher = DefaultHasher::new();
    writer.bytes.hash(&mut hasher);
    hasher.finish()
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    owners: Vec<Vec<u8>>,
    clients: Vec<u64>,
}

impl Writer {
    fn owner(&mut self, owner: &[u8]) {
        let known = self.owners.iter().position(|other| other == owner);
        let rank = known.unwrap_or_else(|| {
            self.owners.push(owner.to_vec());
            self.owners.len() - 1
        });
        self.small(rank as u64);
    }

    fn client(&mut self, client: Option<u64>) {
        let Some(client) = client else { return self.bytes.push(255) };
        let known = self.clients.iter().position(|other| *other == client);
        let rank = known.unwrap_or_else(|| {
            self.clients.push(client);
            self.clients.len() - 1
        });
        self.small(rank as u64);
    }

    fn small(&mut self, number: u64) {
        let byte = u8::try_from(number).ok().filter(|byte| *byte < 250);
        self.bytes.push(byte.expect("a small town has small numbers"));
    }

    fn moment(&mut self, world: &World, at: EpochMs) {
        self.small(at.left_at(world.now));
    }

    /// The holds, in the order of their tokens.
    fn holds(&mut self, world: &World) {
        for (owner, mode, hold) in world.lock.holds() {
            self.owner(owner);
            self.bytes.push(u8::from(mode == Mode::Write));
            self.small(hold.depth.into());
            self.moment(world, hold.deadline);
            let session = world.volatile.sessions.get(hold.token);
            self.client(session.map(|session| session.client.get()));
            if let Some(session) = session {
                self.small(session.lease.get());
                self.moment(world, session.renew_at);
            }
        }
        self.bytes.push(253);
    }

    fn entry(&mut self, world: &World, entry: &Entry, is_turn: bool) {
        self.owner(entry.owner.as_bytes());
        let is_ticket = entry.kind == Kind::Ticket;
        let flags = [entry.mode == Mode::Write, entry.upgrade, is_ticket, is_turn];
        self.bytes.extend(flags.map(u8::from));
        self.small(entry.lease.get());
        self.small(entry.limit.map_or(0, |limit| limit.get().into()));
        self.small(entry.depth.map_or(0, u64::from));
        self.client(entry.session().map(|client| client.get()));
        match entry.ends_at {
            Some(at) => self.moment(world, at),
            None => self.bytes.push(255),
        }
    }

    /// The holds whose grants may still be revoked; the grant that was sent last comes last.
    fn unheard(&mut self, town: &Town<'_>, lock: usize) {
        let world = &town.locks[lock];
        for (_, token) in &town.unheard[lock] {
            let rank = world.lock.holds().position(|(_, _, hold)| hold.token == *token);
            self.small(rank.map_or(0, |rank| rank as u64 + 1));
        }
        self.bytes.push(252);
    }
}
