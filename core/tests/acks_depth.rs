//! `DEPTH n` where levels wait for acknowledgments: nobody is told of one that may be revoked.

use crate::support::acks::{confirmed, ticket};
use crate::support::acquire;
use crate::support::server::{Key, Server};
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, Confirmation, Input, Mode, Refusal, Reply, WaiterId};

const K: Key = b"k";
const NO_ACKS: Option<Reply> = Some(Reply::Refused(Refusal::NoAcks));
const NIL: Reply = Reply::NotNow { wait_ms: None };

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

/// One level that was told, and one that waits for two replicas.
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

/// Its turn shares the level of a connection that closes.
#[test]
fn a_turn_of_which_the_level_is_gone_is_taken_anew() {
    let ask = Input::Acquire(Acquire { depth: Some(2), ..ticket("a", 1) });
    let shared = || {
        let mut server = Server::new();
        assert!(matches!(server.ask(K, Input::Acquire(asks_now(1))), Reply::Granted { .. }));
        let second = server.confirms(K, to_depth(2, 1), 2);
        assert_eq!(server.ask(K, ask), NIL);
        assert_eq!(depth(&server), Some((2, Confirmation::None)));
        closes(&mut server, second);
        assert_eq!(depth(&server), Some((1, Confirmation::None)));
        assert_eq!(server.replicas(100, &[100]), ["a"]);
        server
    };
    let mut server = shared();
    assert_eq!(server.ask(K, ask), NIL, "not at this depth yet");
    assert_eq!(depth(&server), Some((2, Confirmation::None)));
    assert_eq!(server.replicas(200, &[200]), ["a"]);
    assert!(matches!(server.ask(K, ask), Reply::Granted { .. }));
    server.pass_ms(3000);
    server.sweep();
    assert_eq!(depth(&server), Some((2, Confirmation::None)));
    // A blocked connection takes the turn over.
    let mut server = shared();
    let third = server.confirms(K, to_depth(2, 1), 3);
    server.replicas(200, &[200]);
    assert!(server.token_of(third).is_some());
    server.pass_ms(3000);
    server.sweep();
    assert_eq!(depth(&server), Some((2, Confirmation::None)));
}
