//! S4: work that may let a waiter in comes before renewals of sessions, however many are due, at
//! the same lock or at others. But some of the renewals are done all the same.

use rlock_core::{Acquire, ClientId, Input, Mode, Now, Reply, StepContext};

use crate::support::acquire;
use crate::support::server::{Key, Server};

/// A key for this number.
fn key_of(number: usize) -> Key {
    format!("k{number:05}").into_bytes().leak()
}

/// This many renewals are due, each at a lock of its own; ann's session is at `door`, where bob
/// waits.
fn many_renewals(count: usize) -> Server {
    let mut server = Server::new();
    for number in 0..count {
        let _ = server.holds(key_of(number), "owner", Some(1000 + number as u64));
    }
    let session = Some(ClientId::from(7));
    let ask = Acquire { session, ..acquire(b"ann", Mode::Write, 60_000) };
    assert!(matches!(server.ask(b"door", Input::Acquire(ask)), Reply::Granted { .. }));
    server.waits(b"door", "bob", Mode::Write, 8);
    server.pass_ms(400);
    server
}

#[test]
fn a_waiter_whose_holder_left_does_not_wait_for_the_renewals_at_other_locks() {
    let mut server = many_renewals(500);
    server.manager.connection_ended(ClientId::from(7), server.now());
    server.sweep();
    let place = server.swept.iter().position(|key| *key == b"door").unwrap();
    assert!(place < 4, "swept as number {place}");
    assert_eq!(server.swept.len(), 501);
}

#[test]
fn a_waiter_whose_holders_lease_ends_does_not_wait_for_them_either() {
    let mut server = many_renewals(0);
    server.manager.connection_ended(ClientId::from(7), server.now());
    server.sweep();
    for number in 0..500 {
        let _ = server.holds(key_of(number), "owner", Some(1000 + number as u64));
    }
    let ask = acquire(b"ann", Mode::Write, 380);
    assert!(matches!(server.ask(b"gate", Input::Acquire(ask)), Reply::Granted { .. }));
    server.waits(b"gate", "bob", Mode::Write, 9);
    server.pass_ms(400);
    server.swept.clear();
    server.sweep();
    let place = server.swept.iter().position(|key| *key == b"gate").unwrap();
    assert!(place < 4, "swept as number {place}");
}

/// While connections keep closing, every fourth task renews.
#[test]
fn renewals_are_done_while_much_else_is_due() {
    let mut server = many_renewals(20);
    for number in 0..200 {
        let _ = server.holds(key_of(1000 + number), "owner", Some(5000 + number as u64));
        server.manager.connection_ended(ClientId::from(5000 + number as u64), server.now());
    }
    server.sweep();
    let renewed = |key: &&Key| **key < key_of(1000);
    assert!(server.swept[..100].iter().filter(renewed).count() >= 20, "{:?}", server.swept);
}

/// More renewals are due at a lock than a step performs, and the hold that keeps out the first in
/// line has ended.
#[test]
fn a_waiter_does_not_wait_for_the_renewals_at_its_own_lock() {
    const SESSIONS: u64 = 4 * StepContext::PORTION as u64;
    for by_command in [false, true] {
        let mut server = Server::new();
        for number in 0..SESSIONS {
            let session = Some(ClientId::from(1000 + number));
            let owner = format!("o{number}").into_bytes();
            let ask = Acquire { session, ..acquire(owner.leak(), Mode::Read, 1000) };
            assert!(matches!(server.ask(b"pool", Input::Acquire(ask)), Reply::Granted { .. }));
        }
        let ask = Acquire { session: Some(ClientId::from(7)), ..acquire(b"ann", Mode::Read, 1000) };
        assert!(matches!(server.ask(b"pool", Input::Acquire(ask)), Reply::Granted { .. }));
        let limit = u32::try_from(SESSIONS + 1).ok().and_then(std::num::NonZeroU32::new);
        server.waits_for(b"pool", Acquire { limit, ..acquire(b"bob", Mode::Read, 1000) }, 8);
        server.pass_ms(400);
        server.manager.connection_ended(ClientId::from(7), server.now());
        match by_command {
            true => drop(server.ask(b"pool", Input::Tick)),
            false => drop(server.sweep_one()),
        }
        assert_eq!(server.told.len(), 1, "served by the first step, {by_command}");
        server.sweep();
        let late = Now::from_us(server.now().us());
        let deadlines = server.keys[&b"pool"[..]].holds().map(|(_, _, hold)| hold.deadline);
        assert!(deadlines.min().is_some_and(|at| at.wait_from(late) >= 900), "all are renewed");
    }
}
