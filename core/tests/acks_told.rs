//! Replies that were not read yet when another caller of the same hold departs, releases or asks:
//! what was reported to the owner remains, and nothing else does.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, release};
use rlock_core::slow::Outcome;
use rlock_core::{
    Acquire, ClientId, Confirmation, Input, Levels, Mode, Release, Reply, StepContext,
};

const K: Key = b"k";

/// A server that does not learn whether its replies were read.
fn server() -> Server {
    Server { keeps_waits: true, ..Server::new() }
}

fn to_depth(depth: u16, acks: u8) -> Acquire<'static> {
    Acquire { depth: Some(depth), ..confirmed("a", acks) }
}

fn asks_now(owner: &str, mode: Mode, depth: Option<u16>) -> Input<'_> {
    Input::Acquire(Acquire { depth, ..acquire(owner.as_bytes(), mode, 10_000) })
}

fn tells(server: &mut Server, input: Input<'_>) {
    let reply = server.ask(K, input);
    assert!(matches!(reply, Reply::Granted { .. }), "{reply:?}");
}

fn closes(server: &mut Server, waiter: u64) {
    let now = server.now();
    server.manager.departed(waiter.into(), Outcome::Disconnected, now);
    server.sweep();
}

fn a(server: &Server) -> Option<(u16, Confirmation)> {
    server.hold(K, "a", Mode::Write)
}

#[test]
fn a_hold_that_was_told_stays_when_another_caller_under_way_closes() {
    let deeper = to_depth(2, 1);
    let more_acks = to_depth(1, 2);
    for pending in [deeper, more_acks] {
        let mut server = server();
        let first = server.confirms(K, to_depth(1, 1), 1);
        let second = server.confirms(K, to_depth(1, 1), 2);
        server.replicas(100, &[0, 0]);
        let third = server.confirms(K, pending, 3);
        server.replicas(200, &[100, 0]);
        assert!(server.token_of(first).is_some() && server.token_of(second).is_some());
        closes(&mut server, first);
        assert_eq!(a(&server).unwrap().1, Confirmation::Done, "the second caller was told");
        server.manager.heard_or_forgotten(second.into());
        closes(&mut server, third);
        assert_eq!(a(&server), Some((1, Confirmation::Done)));
    }
}

/// All three are granted in one step.
#[test]
fn a_waiter_that_was_told_keeps_the_hold_beside_one_that_waits_for_acknowledgments() {
    let mut server = server();
    server.holds(K, "b", None);
    server.asked_depth = Some(1);
    let first = server.waits(K, "a", Mode::Write, 1);
    let pending = server.confirms(K, to_depth(1, 1), 2);
    let second = server.waits(K, "a", Mode::Write, 3);
    server.ask(K, Input::Release(release(b"b")));
    closes(&mut server, first);
    assert_eq!(a(&server), Some((1, Confirmation::None)));
    server.manager.heard_or_forgotten(second.into());
    closes(&mut server, pending);
    assert_eq!(a(&server), Some((1, Confirmation::None)));
}

#[test]
fn a_release_to_a_depth_ends_a_level_whose_reply_is_under_way() {
    let mut server = server();
    tells(&mut server, asks_now("a", Mode::Write, Some(1)));
    let second = server.confirms(K, to_depth(2, 1), 2);
    server.replicas(100, &[100]);
    assert!(server.token_of(second).is_some());
    let down = Release { levels: Levels::DownTo(1), ..release(b"a") };
    assert_eq!(server.ask(K, Input::Release(down)), Reply::Count(1));
    closes(&mut server, second);
    assert_eq!(a(&server).map(|(depth, _)| depth), Some(1), "it was told of the first level");
}

/// More late callers than a portion has room for; each re-entered a hold of its own.
fn late_readers() -> (Server, Vec<String>) {
    let mut server = Server::new();
    let names: Vec<String> = (0..StepContext::PORTION + 40).map(|n| format!("o{n}")).collect();
    for name in &names {
        tells(&mut server, asks_now(name, Mode::Read, Some(1)));
        let second = Acquire { depth: Some(2), mode: Mode::Read, ..confirmed(name, 1) };
        server.confirms(K, second, 0);
    }
    server.pass_ms(2100);
    (server, names)
}

#[test]
fn a_request_is_decided_when_its_owners_late_level_is_revoked_however_many_are_late() {
    let (mut server, names) = late_readers();
    tells(&mut server, asks_now(&names[0], Mode::Read, Some(2)));
    server.sweep();
    assert_eq!(server.hold(K, &names[0], Mode::Read).map(|(depth, _)| depth), Some(2));
}

#[test]
fn a_release_is_decided_when_its_owners_late_level_is_revoked_however_many_are_late() {
    let (mut server, names) = late_readers();
    let down = Release { levels: Levels::DownTo(1), ..release(names[0].as_bytes()) };
    assert_eq!(server.ask(K, Input::Release(down)), Reply::Count(1));
    server.sweep();
    assert_eq!(server.hold(K, &names[0], Mode::Read).map(|(depth, _)| depth), Some(1));
}

#[test]
fn an_owner_whose_session_is_gone_gets_a_new_hold_however_many_others_are_late() {
    let (mut server, _) = late_readers();
    let session = Some(ClientId::from(7));
    let ask = Acquire { session, ..acquire(b"s", Mode::Read, 10_000) };
    server.us -= 2_100_000;
    tells(&mut server, Input::Acquire(ask));
    server.pass_ms(2100);
    server.manager.connection_ended(ClientId::from(7), server.now());
    tells(&mut server, asks_now("s", Mode::Read, Some(1)));
    server.sweep();
    assert!(server.hold(K, "s", Mode::Read).is_some(), "it was told that it holds");
}

#[test]
fn a_flush_holds_back_the_locks_that_the_sweep_has_not_come_to() {
    let mut server = Server::new();
    let a = server.confirms(b"k", confirmed("a", 1), 1);
    let b = server.confirms(b"l", confirmed("b", 1), 1);
    // The keys are loaded again.
    server.manager.flushed(None);
    server.manager.sweep_begins(server.now());
    assert!(server.sweep_one());
    server.replicas(100, &[100]);
    server.replicas(100, &[100]);
    assert!(server.token_of(a).is_some(), "the sweep has seen it");
    assert_eq!(server.told_to(b), None);
    server.sweep();
    server.replicas(100, &[100]);
    assert!(server.token_of(b).is_some());
}
