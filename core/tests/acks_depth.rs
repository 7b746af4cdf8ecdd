//! `DEPTH n` while levels wait for acknowledgments: no reply relies on a level that may be revoked.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release};
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, Confirmation, Input, Mode, Refusal, Reply, WaiterId};

const K: Key = b"k";
const NO_ACKS: Option<Reply> = Some(Reply::Refused(Refusal::NoAcks));

fn to_depth(depth: u16, acks: u8) -> Acquire<'static> {
    Acquire { depth: Some(depth), ..confirmed("a", acks) }
}

fn depth(server: &Server) -> Option<(u16, Confirmation)> {
    server.hold(K, "a", Mode::Write)
}

fn closes(server: &mut Server, waiter: u64) {
    let now = server.now();
    server.manager.departed(WaiterId::from(waiter), Outcome::Disconnected, now);
    server.sweep();
}

/// A hold with one reported level, and one level that waits for two replicas.
fn with_pending_level() -> (Server, u64) {
    let mut server = Server::new();
    assert!(matches!(server.ask(K, Input::Acquire(asks_now(1))), Reply::Granted { .. }));
    let second = server.confirms(K, to_depth(2, 2), 2);
    assert_eq!(depth(&server), Some((2, Confirmation::None)));
    (server, second)
}

fn asks_now(depth: u16) -> Acquire<'static> {
    Acquire { depth: Some(depth), ..acquire(b"a", Mode::Write, 10_000) }
}

#[test]
fn who_counts_on_a_pending_level_is_told_with_it() {
    for asked in [2, 3] {
        let (mut server, second) = with_pending_level();
        assert_eq!(server.ask(K, Input::Acquire(asks_now(asked))), Reply::MustConfirm);
        let third = server.confirms(K, to_depth(asked, 0), 3);
        server.replicas(100, &[100, 0]);
        assert_eq!((server.told_to(second), server.told_to(third)), (None, None));
        server.replicas(200, &[200, 200]);
        assert!(server.token_of(second).is_some() && server.token_of(third).is_some());
        server.pass_ms(3000);
        server.sweep();
        assert_eq!(depth(&server), Some((asked, Confirmation::None)));
    }
}

#[test]
fn who_counts_on_a_level_that_is_not_acknowledged_is_not_told_of_it() {
    let (mut server, second) = with_pending_level();
    let third = server.confirms(K, to_depth(2, 0), 3);
    server.replicas(100, &[100, 0]);
    server.pass_ms(2000);
    server.sweep();
    assert_eq!((server.told_to(second), server.told_to(third)), (NO_ACKS, NO_ACKS));
    assert_eq!(depth(&server), Some((1, Confirmation::None)));
}

#[test]
fn who_counts_on_no_pending_level_is_told_at_once() {
    let (mut server, _) = with_pending_level();
    for asked in [Some(1), None] {
        let ask = Acquire { depth: asked, ..asks_now(1) };
        assert!(matches!(server.ask(K, Input::Acquire(ask)), Reply::Granted { .. }), "{asked:?}");
    }
}

#[test]
fn who_counts_on_no_pending_level_of_two_is_told_at_once() {
    let mut server = Server::new();
    for told in [1, 2] {
        assert!(matches!(server.ask(K, Input::Acquire(asks_now(told))), Reply::Granted { .. }));
    }
    server.confirms(K, to_depth(3, 1), 2);
    assert_eq!(depth(&server), Some((3, Confirmation::None)));
    assert!(matches!(server.ask(K, Input::Acquire(asks_now(2))), Reply::Granted { .. }));
}

#[test]
fn who_enters_behind_a_pending_level_is_told_with_it() {
    let mut server = Server::new();
    (server.us, server.bounds.grace_ms) = (0, 0);
    assert!(matches!(server.ask(K, Input::Acquire(asks_now(1))), Reply::Granted { .. }));
    server.bounds.grace_ms = 5000;
    let second = server.confirms(K, to_depth(2, 1), 2);
    let third = server.confirms(K, to_depth(2, 0), 3);
    server.pass_ms(5000);
    server.sweep();
    assert_eq!(depth(&server), Some((2, Confirmation::None)));
    assert_eq!((server.told_to(second), server.told_to(third)), (None, None));
    server.replicas(100, &[100]);
    assert!(server.token_of(second).is_some() && server.token_of(third).is_some());
}

/// The hold that the request relied on ended during the request's wait for the end of the grace
/// period.
#[test]
fn a_wait_for_a_level_is_refused_if_the_level_below_has_ended() {
    let mut server = Server::new();
    (server.us, server.bounds.grace_ms) = (0, 0);
    let short = Acquire { lease: lease(1000), ..asks_now(1) };
    assert!(matches!(server.ask(K, Input::Acquire(short)), Reply::Granted { .. }));
    server.bounds.grace_ms = 5000;
    let inner = server.confirms(K, to_depth(2, 0), 2);
    server.pass_ms(5000);
    server.sweep();
    let told = server.told_to(inner);
    assert!(matches!(told, Some(Reply::Refused(Refusal::NotHeld { .. }))), "{told:?}");
    assert_eq!(depth(&server), None);
}

#[test]
fn a_level_that_is_taken_back_is_not_left_to_a_renewal() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    let inner = server.confirms(K, confirmed("a", 1), 2);
    server.pass_ms(1000);
    let renewal = server.renews(K, "a", 20_000, 1);
    server.pass_ms(1000);
    server.sweep();
    assert_eq!((server.told_to(inner), server.told_to(renewal)), (NO_ACKS, None));
    assert_eq!(depth(&server), Some((1, Confirmation::None)));
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(renewal), Some(Reply::Renewed));
    assert_eq!(depth(&server), Some((1, Confirmation::None)));
}

#[test]
fn who_counts_on_a_level_has_it_if_the_caller_that_added_it_closes() {
    for is_acknowledged in [true, false] {
        let (mut server, second) = with_pending_level();
        let third = server.confirms(K, to_depth(3, 0), 3);
        closes(&mut server, second);
        assert_eq!(depth(&server), Some((3, Confirmation::None)));
        if is_acknowledged {
            server.replicas(200, &[200, 200]);
            assert!(server.token_of(third).is_some());
        }
        server.pass_ms(3000);
        server.sweep();
        let (told, left) = if is_acknowledged { (None, 3) } else { (NO_ACKS, 1) };
        assert_eq!(server.told_to(third).filter(|_| !is_acknowledged), told);
        assert_eq!(depth(&server), Some((left, Confirmation::None)));
    }
}

/// The level below was released, so the request's own level is the only one that remains.
#[test]
fn a_level_that_moved_down_is_passed_on_to_who_counts_on_it() {
    let (mut server, second) = with_pending_level();
    assert_eq!(server.ask(K, Input::Release(release(b"a"))), Reply::Count(1));
    assert_eq!(depth(&server), Some((1, Confirmation::Pending)));
    let again = server.confirms(K, to_depth(1, 0), 3);
    closes(&mut server, second);
    assert_eq!(depth(&server), Some((1, Confirmation::Pending)));
    server.replicas(100, &[100, 100]);
    assert!(server.token_of(again).is_some());
    assert_eq!(depth(&server), Some((1, Confirmation::Done)));
}
