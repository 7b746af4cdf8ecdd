//! How a wait for acknowledgments ends without them.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release};
use rlock_core::manager::{At, WaitEnd};
use rlock_core::{Acquire, ClientId, Confirmation, Input, Mode, Refusal, Reply, StepContext};

const K: Key = b"k";

/// The error that the server gets if it ends the wait before the module has replied.
fn asked(server: &Server, waiter: u64) -> Option<Refusal> {
    let parked = server.manager.parked(waiter.into()).unwrap();
    assert!(!matches!(parked.end, WaitEnd::Replied(_)), "it has its reply");
    parked.refusal.clone()
}

/// Something other than RLOCK deletes the key.
fn vanishes(server: &mut Server) {
    let lock = server.keys.remove(K).unwrap();
    let at = At { db: 0, key: K, now: server.now() };
    server.manager.key_left(at, &lock);
}

/// After a stall, the server expires the key first; then it asks for the replies that are late.
#[test]
fn whoever_is_pending_gets_no_nil_after_a_stall() {
    let mut server = Server::new();
    let short = |owner| Acquire { lease: lease(1000), ..confirmed(owner, 1) };
    let a = server.confirms(K, short("a"), 1);
    assert_eq!(asked(&server, a), Some(Refusal::NoAcks));
    let renewal = server.renews(K, "a", 1000, 1);
    server.pass_ms(5000);
    vanishes(&mut server);
    for waiter in [a, renewal] {
        assert_eq!(asked(&server, waiter), Some(Refusal::NoAcks));
    }
    server.sweep();
    for waiter in [a, renewal] {
        assert_eq!(server.told_to(waiter), Some(Reply::Refused(Refusal::NoAcks)));
    }
}

/// The caller waits for the lock first.
#[test]
fn whoever_waits_for_the_lock_gets_nil_until_it_is_granted() {
    let mut server = Server::new();
    server.holds(K, "b", None);
    let a = server.confirms(K, confirmed("a", 1), 1);
    assert_eq!(asked(&server, a), None);
    server.ask(K, Input::Release(release(b"b")));
    assert_eq!(asked(&server, a), Some(Refusal::NoAcks));
}

/// The key was renamed, or moved to another database or server.
#[test]
fn whoever_is_pending_hears_that_the_hold_may_go_on_under_a_new_name() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    let renewal = server.renews(K, "a", 1000, 1);
    vanishes(&mut server);
    assert_eq!(asked(&server, a), Some(Refusal::NoAcksMoved));
    server.sweep();
    for waiter in [a, renewal] {
        assert_eq!(server.told_to(waiter), Some(Reply::Refused(Refusal::NoAcksMoved)));
    }
}

/// The owner has another reply about its hold, so the first caller's reply matters only for the
/// session.
#[test]
fn a_level_is_revoked_beside_a_caller_without_a_reply_whose_own_level_stands() {
    let mut server = Server::new();
    server.keeps_waits = true;
    server.holds(K, "x", None);
    let session = Some(ClientId::from(7));
    server.confirms(K, Acquire { session, ..confirmed("a", 0) }, 7);
    server.ask(K, Input::Release(release(b"x")));
    server.holds(K, "a", None);
    server.confirms(K, confirmed("a", 1), 9);
    assert_eq!(server.hold(K, "a", Mode::Write), Some((3, Confirmation::None)));
    server.manager.connection_ended(ClientId::from(9), server.now());
    server.sweep();
    assert_eq!(server.hold(K, "a", Mode::Write), Some((2, Confirmation::None)));
}

/// The writer's grant replaced many expired holds, whose events are published in portions.
#[test]
fn an_acknowledgment_delays_nothing_that_a_portion_left_undone() {
    let mut server = Server::new();
    for number in 0..3 * StepContext::PORTION {
        let name = number.to_string();
        server.ask(K, Input::Acquire(acquire(name.as_bytes(), Mode::Read, 1000)));
    }
    let writer = server.confirms(K, confirmed("a", 1), 1);
    server.pass_ms(1000);
    assert!(server.sweep_one());
    assert_eq!(server.hold(K, "a", Mode::Write), Some((1, Confirmation::Pending)));
    let is_due = |server: &Server| {
        let at = server.manager.next_call().at;
        at.is_some_and(|at| at.is_over_at(server.now()))
    };
    assert!(is_due(&server), "not all of them were told in one portion");
    server.replicas(100, &[100]);
    assert!(server.token_of(writer).is_some() && is_due(&server));
    server.sweep();
    assert!(server.swept.len() > 2 && !is_due(&server));
}

/// Another lock of the same grant, which therefore has the same token, is renamed to this name.
#[test]
fn a_level_that_nobody_heard_of_goes_with_its_key() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    let other = server.keys[K].clone();
    server.confirms(K, confirmed("a", 1), 9);
    server.manager.connection_ended(ClientId::from(9), server.now());
    vanishes(&mut server);
    server.keys.insert(K, other.clone());
    server.manager.key_came(0, K);
    server.sweep();
    assert_eq!(server.keys[K], other);
}
