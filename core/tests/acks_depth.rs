//! `DEPTH n` where levels wait for acknowledgments: nobody is told of one that may be revoked.

use crate::support::acks::{confirmed, ticket};
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release};
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, Confirmation, Input, Levels, Mode, Refusal, Release, Reply, WaiterId};

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
fn a_turn_keeps_the_level_that_it_shares() {
    let ask = Input::Acquire(Acquire { depth: Some(2), ..ticket("a", 1) });
    let shared = || {
        let mut server = Server::new();
        assert!(matches!(server.ask(K, Input::Acquire(asks_now(1))), Reply::Granted { .. }));
        let second = server.confirms(K, to_depth(2, 1), 2);
        assert_eq!(server.ask(K, ask), NIL);
        assert_eq!(depth(&server), Some((2, Confirmation::None)));
        closes(&mut server, second);
        assert_eq!(depth(&server), Some((2, Confirmation::None)));
        assert_eq!(server.replicas(100, &[100]), ["a"]);
        server
    };
    let mut server = shared();
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
    // Nobody asks again.
    let mut server = shared();
    server.pass_ms(3000);
    server.sweep();
    assert_eq!(depth(&server), Some((1, Confirmation::None)));
}

/// Its owner said that it is not that deep, and asks again.
#[test]
fn a_tickets_level_that_was_released_is_added_anew() {
    for depth_asked in [None, Some(2)] {
        let ask = Input::Acquire(Acquire { depth: depth_asked, ..ticket("a", 1) });
        let mut server = Server::new();
        server.holds(K, "a", None);
        assert_eq!(server.ask(K, ask), NIL);
        let down = Release { levels: Levels::DownTo(1), ..release(b"a") };
        assert_eq!(server.ask(K, Input::Release(down)), Reply::Count(1));
        assert_eq!(server.replicas(100, &[100]), [""; 0], "it was given up");
        assert_eq!(server.ask(K, ask), NIL);
        assert_eq!(server.replicas(200, &[200]), ["a"]);
        assert!(matches!(server.ask(K, ask), Reply::Granted { .. }));
        assert_eq!(depth(&server), Some((2, Confirmation::None)));
    }
}

/// A re-entry has the token of the hold: what a replica has of one says nothing of the next.
#[test]
fn an_acknowledgment_of_an_earlier_turn_does_not_confirm_a_later_one() {
    let ask = |ms| Input::Acquire(Acquire { lease: lease(ms), ..ticket("a", 1) });
    let mut server = Server::new();
    server.holds(K, "a", None);
    // What is behind it stays noted, whether somebody waits for it or not.
    server.confirms(b"l", confirmed("b", 1), 2);
    assert_eq!(server.ask(K, ask(10_000)), NIL);
    assert_eq!(server.replicas(100, &[50]), [""; 0]);
    let down = Release { levels: Levels::DownTo(1), ..release(b"a") };
    assert_eq!(server.ask(K, Input::Release(down)), Reply::Count(1));
    assert_eq!(server.ask(K, ask(60_000)), NIL);
    assert_eq!(server.replicas(200, &[100]), [""; 0], "no replica knows of the longer lease");
    assert_eq!(server.ask(K, ask(60_000)), NIL);
    assert_eq!(server.replicas(200, &[200]), ["a"]);
}

/// The hold on which it counted ended while it waited for the end of the grace.
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
fn who_asks_for_a_level_above_a_tickets_is_told_of_both_or_of_neither() {
    for below in [0, 1] {
        for is_acknowledged in [true, false] {
            let mut server = Server::new();
            if below == 1 {
                server.holds(K, "a", None);
            }
            let by_ticket = |depth| Input::Acquire(Acquire { depth, ..ticket("a", 1) });
            assert_eq!(server.ask(K, by_ticket(Some(below + 1))), NIL);
            assert_eq!(server.ask(K, by_ticket(Some(below + 2))), NIL);
            let levels = |server: &Server| depth(server).map(|(depth, _)| depth);
            assert_eq!(levels(&server), Some(below + 1), "the first one's turn comes first");
            let above = server.confirms(K, to_depth(below + 2, 1), 2);
            assert_eq!(levels(&server), Some(below + 2));
            if is_acknowledged {
                server.replicas(100, &[100]);
                assert!(server.token_of(above).is_some());
            }
            server.pass_ms(3000);
            server.sweep();
            if is_acknowledged {
                assert_eq!(levels(&server), Some(below + 2));
            } else {
                assert_eq!(server.told_to(above), NO_ACKS);
                assert_eq!(levels(&server).unwrap_or(0), below);
            }
        }
    }
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

/// The level below it was released: its own is the only one that is left.
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

#[test]
fn who_asks_for_a_level_below_a_tickets_leaves_it_alone() {
    let by_ticket = |depth| Input::Acquire(Acquire { depth: Some(depth), ..ticket("a", 1) });
    for is_blocked in [true, false] {
        let mut server = Server::new();
        server.holds(K, "a", None);
        assert_eq!(server.ask(K, by_ticket(2)), NIL);
        let below = is_blocked.then(|| server.confirms(K, to_depth(1, 1), 2));
        assert_eq!(server.replicas(100, &[100]), ["a"]);
        match below {
            Some(below) => assert!(server.token_of(below).is_some()),
            None => assert_eq!(server.ask(K, by_ticket(1)), NIL, "the ticket is told first"),
        }
        server.pass_ms(600);
        server.sweep();
        assert_eq!(depth(&server), Some((1, Confirmation::None)), "nobody was told of the other");
    }
}
