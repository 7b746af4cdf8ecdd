//! Defects that the simulation found in grants that wait for acknowledgments.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release};
use rlock_core::manager::At;
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, ClientId, Confirmation, Input, Levels, Mode, Release, Reply, WaiterId};

const K: Key = b"k";

fn write(server: &Server, owner: &str) -> Option<(u16, Confirmation)> {
    server.hold(K, owner, Mode::Write)
}

/// Two databases were swapped, and the sweep has not visited all locks yet.
#[test]
fn nobody_is_told_of_a_hold_that_a_database_took_along() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.keys.remove(K);
    let now = server.now();
    server.manager.swapped(0, 1, now);
    server.replicas(100, &[100]);
    assert_eq!(server.token_of(a), None, "the hold is gone");
    server.sweep();
    assert!(server.told_to(a).is_some() && server.token_of(a).is_none());
}

/// The gate is shut when the flush is noticed.
#[test]
fn nobody_is_told_of_a_hold_that_was_flushed_behind_the_gate() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.keys.remove(K);
    server.manager.flushed(None);
    server.is_open = false;
    server.sweep();
    server.replicas(100, &[100]);
    assert_eq!(server.token_of(a), None, "the hold is gone");
    server.is_open = true;
    server.sweep();
    assert!(server.told_to(a).is_some() && server.token_of(a).is_none());
}

/// Another connection of the session's owner asks for fewer acknowledgments.
#[test]
fn a_session_lasts_by_as_many_acknowledgments_as_it_was_asked_for_with() {
    let mut server = Server::new();
    let session = Acquire { session: Some(ClientId::from(1)), ..confirmed("a", 2) };
    let a = server.confirms(K, Acquire { lease: lease(1500), ..session }, 1);
    server.replicas(100, &[100, 100]);
    assert!(server.token_of(a).is_some());
    let b = server.confirms(K, Acquire { depth: Some(1), ..confirmed("a", 1) }, 2);
    server.replicas(200, &[200, 100]);
    assert!(server.token_of(b).is_some());
    server.pass_ms(1600);
    server.sweep();
    assert_eq!(server.closed(), [1], "one replica of two knows that it lasts longer");
}

/// The gate is shut at the session's last acknowledged deadline, and the hold lasts longer.
#[test]
fn a_hold_whose_session_was_lost_behind_the_gate_ends_when_it_opens() {
    let mut server = Server::new();
    let session = Acquire { session: Some(ClientId::from(1)), ..confirmed("a", 1) };
    let session = Acquire { lease: lease(1500), ..session };
    let a = server.confirms(K, session, 1);
    server.replicas(100, &[100]);
    assert!(server.token_of(a).is_some());
    server.manager.heard_or_forgotten(a.into());
    // Renewed, and not acknowledged.
    server.pass_ms(600);
    server.sweep();
    server.replicas(200, &[100]);
    server.is_open = false;
    server.pass_ms(1000);
    server.sweep();
    assert_eq!(server.closed(), [1]);
    assert!(write(&server, "a").is_some(), "nothing may be written");
    server.is_open = true;
    server.sweep();
    assert_eq!(write(&server, "a"), None);
}

/// A renewal reported a hold of which only an unreported level remained.
#[test]
fn what_is_left_when_all_that_was_told_is_released_is_pending_again() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    server.confirms(K, confirmed("a", 1), 1);
    assert_eq!(server.ask(K, Input::Release(release(b"a"))), Reply::Count(1));
    assert_eq!(write(&server, "a"), Some((1, Confirmation::Pending)));
    let renewal = server.renews(K, "a", 20_000, 1);
    assert_eq!(server.told_to(renewal), None, "a promise needs acknowledgments now");
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(renewal), Some(Reply::Renewed));
    server.pass_ms(3000);
    server.sweep();
    assert_eq!(write(&server, "a"), Some((1, Confirmation::Done)), "the renewal was told");
}

/// Two connections of one owner: the one that asked last got its reply first, but did not read it.
#[test]
fn a_session_that_is_tied_again_still_needs_its_acknowledgments() {
    let mut server = Server::new();
    server.keeps_waits = true;
    let asks = |client, acks| Acquire {
        session: Some(ClientId::from(client)),
        lease: lease(3000),
        depth: Some(1),
        ..confirmed("a", acks)
    };
    let plain = acquire(b"a", Mode::Write, 3000);
    assert!(matches!(server.ask(K, Input::Acquire(plain)), Reply::Granted { .. }));
    let first = server.confirms(K, asks(1, 2), 1);
    let last = server.confirms(K, asks(2, 1), 2);
    server.replicas(100, &[100, 0]);
    assert!(server.token_of(last).is_some() && server.token_of(first).is_none());
    server.replicas(100, &[100, 100]);
    assert!(server.token_of(first).is_some());
    server.manager.heard_or_forgotten(first.into());
    server.manager.departed(WaiterId::from(last), Outcome::Disconnected, server.now());
    server.sweep();
    // The session is renewed, and one replica of two has acknowledged that.
    server.pass_ms(1500);
    server.sweep();
    server.replicas(200, &[200, 100]);
    server.pass_ms(1600);
    server.sweep();
    assert_eq!((server.closed(), write(&server, "a")), (vec![1], None));
}

/// A renewal already waited for acknowledgments when a request needed more of them.
#[test]
fn a_session_is_not_kept_by_fewer_acknowledgments_than_were_told_last() {
    let mut server = Server::new();
    let session = |acks| Acquire {
        session: Some(ClientId::from(7)),
        lease: lease(1000),
        ..confirmed("a", acks)
    };
    server.confirms(K, session(1), 7);
    server.replicas(100, &[100, 0]);
    let more = server.confirms(K, session(2), 7);
    server.replicas(150, &[100, 0]);
    server.pass_ms(400);
    server.sweep(); // renews, for one replica
    server.replicas(200, &[150, 150]);
    assert!(server.token_of(more).is_some());
    server.replicas(200, &[200, 150]);
    server.pass_ms(700);
    server.sweep();
    assert_eq!((server.closed(), write(&server, "a")), (vec![7], None));
}

/// A client that gave up releases to the depth that it knows of, before the server notices that it
/// disconnected.
#[test]
fn a_release_to_a_depth_ends_what_nobody_was_told_of_first() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    let gave_up = server.confirms(K, confirmed("a", 1), 1);
    let down = Release { levels: Levels::DownTo(1), ..release(b"a") };
    assert_eq!(server.ask(K, Input::Release(down)), Reply::Count(1));
    assert_eq!(write(&server, "a"), Some((1, Confirmation::None)));
    let now = server.now();
    server.manager.departed(WaiterId::from(gave_up), Outcome::Disconnected, now);
    server.pass_ms(600);
    server.sweep();
    assert_eq!(write(&server, "a"), Some((1, Confirmation::None)), "it was told of this one");
}

/// From a replica that was far behind.
#[test]
fn a_late_acknowledgment_shortens_no_session() {
    let mut server = Server::new();
    let session = |acks| Acquire {
        session: Some(ClientId::from(7)),
        lease: lease(3000),
        depth: Some(1),
        ..confirmed("a", acks)
    };
    server.confirms(K, session(2), 7);
    server.replicas(100, &[100, 100]);
    let token = server.keys[K].holds().next().unwrap().2.token;
    let end = |server: &Server| {
        server.manager.volatile(0, K).unwrap().sessions.get(token).unwrap().ends_at
    };
    server.pass_ms(1000);
    server.sweep();
    server.replicas(200, &[200, 100]);
    server.pass_ms(100);
    server.confirms(K, session(1), 7);
    server.replicas(300, &[300, 100]);
    server.pass_ms(1000);
    server.sweep();
    server.replicas(400, &[400, 100]);
    let before = end(&server);
    server.replicas(400, &[400, 200]);
    assert_eq!(end(&server), before);
}

/// Both connections belong to one owner. The lock is renamed before either has read its reply.
#[test]
fn two_connections_that_were_granted_one_session_both_lose_it() {
    let mut server = Server::new();
    server.holds(K, "x", None);
    for client in [7, 8] {
        let session = Some(ClientId::from(client));
        server.confirms(K, Acquire { session, ..confirmed("a", 0) }, client);
    }
    server.keeps_waits = true;
    server.ask(K, Input::Release(release(b"x")));
    assert_eq!(server.told.len(), 2);
    let lock = server.keys.remove(K).unwrap();
    let at = At { db: 0, key: K, now: server.now() };
    server.manager.key_left(at, &lock);
    for client in [7, 8] {
        assert!(
            server.manager.closing.contains(ClientId::from(client)),
            "{client} was told that it holds"
        );
    }
}

/// At the time of the sweep, the replica that acknowledged follows another primary.
#[test]
fn nobody_is_told_by_a_replica_that_is_gone() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    // The key is loaded again, while the gate is shut.
    server.manager.flushed(None);
    server.is_open = false;
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(a), None, "a change of the key awaits its sweep");
    server.is_open = true;
    server.sweep();
    server.replicas(100, &[]);
    server.replicas(100, &[99]);
    assert_eq!(server.told_to(a), None);
    assert!(server.manager.awaits_acks());
    server.replicas(100, &[100]);
    assert!(server.token_of(a).is_some());
}

/// Another connection of the owner got its reply at once, because of a level that was then revoked.
#[test]
fn what_is_left_when_all_that_was_under_way_is_taken_back_is_pending_again() {
    let mut server = Server::new();
    server.holds(K, "b", None);
    server.keeps_waits = true;
    let gone = server.waits(K, "a", Mode::Write, 1);
    let waits = server.confirms(K, confirmed("a", 1), 2);
    assert_eq!(server.ask(K, Input::Release(release(b"b"))), Reply::Count(0));
    assert_eq!(write(&server, "a"), Some((2, Confirmation::None)));
    let now = server.now();
    server.manager.departed(gone.into(), Outcome::Disconnected, now);
    server.sweep();
    assert_eq!(write(&server, "a"), Some((1, Confirmation::Pending)));
    let again = acquire(b"a", Mode::Write, 1000);
    let again = Acquire { depth: Some(1), ..again };
    assert_eq!(server.ask(K, Input::Acquire(again)), Reply::MustConfirm);
    server.replicas(100, &[100]);
    assert!(server.token_of(waits).is_some());
}

/// The same, if the other connection added no level but relies on the level that was revoked.
#[test]
fn a_level_that_is_passed_on_to_who_waits_for_acknowledgments_is_pending_again() {
    let mut server = Server::new();
    server.holds(K, "b", None);
    (server.keeps_waits, server.asked_depth) = (true, Some(1));
    let gone = server.waits(K, "a", Mode::Write, 1);
    let waits = server.confirms(K, Acquire { depth: Some(1), ..confirmed("a", 1) }, 2);
    assert_eq!(server.ask(K, Input::Release(release(b"b"))), Reply::Count(0));
    assert_eq!(write(&server, "a"), Some((1, Confirmation::None)));
    server.manager.departed(gone.into(), Outcome::Disconnected, server.now());
    let renewal = server.renews(K, "a", 20_000, 0);
    assert_eq!(server.told_to(renewal), None, "nobody was told of what it renews");
    assert_eq!(write(&server, "a"), Some((1, Confirmation::Pending)));
    server.pass_ms(3000);
    server.sweep();
    assert_eq!((write(&server, "a"), server.token_of(waits)), (None, None));
}

/// Replicas acknowledged the last deadline, and later an earlier deadline, for which more replicas
/// were asked.
#[test]
fn a_session_lasts_until_the_latest_of_its_acknowledged_deadlines() {
    let mut server = Server::new();
    let session = |acks| Acquire {
        session: Some(ClientId::from(7)),
        lease: lease(3000),
        ..confirmed("a", acks)
    };
    server.confirms(K, session(1), 7);
    server.replicas(100, &[100, 0]);
    server.confirms(K, session(2), 7);
    server.replicas(150, &[100, 0]);
    server.pass_ms(1000);
    server.sweep(); // renews, for one replica
    server.replicas(200, &[150, 150]);
    server.pass_ms(1000);
    server.sweep(); // renews, for two
    server.replicas(300, &[200, 150]);
    server.replicas(400, &[400, 400]);
    server.pass_ms(2500);
    server.sweep();
    assert_eq!(server.closed(), [], "it was acknowledged until five seconds");
    server.pass_ms(600);
    server.sweep();
    assert_eq!(server.closed(), [7]);
}

/// Two databases were swapped and swapped back, and the replica had received only the first swap.
#[test]
fn nobody_is_told_by_a_replica_that_lacks_a_swap() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.replicas(100, &[0]);
    let now = server.now();
    server.manager.swapped(0, 1, now);
    server.manager.swapped(0, 1, now);
    server.sweep();
    server.replicas(200, &[150]);
    assert_eq!(server.told_to(a), None);
    server.replicas(200, &[200]);
    assert!(server.token_of(a).is_some());
}
