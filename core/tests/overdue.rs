//! Sessions that have ended before a sweep notices it.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease};
use rlock_core::{Acquire, ClientId, Input, Mode, Renew, Reply};

const K: Key = b"k";
const G: Key = b"g";

fn session(owner: &'static str, client: u64, ms: u64) -> Acquire<'static> {
    let session = Some(ClientId::from(client));
    Acquire { session, ..acquire(owner.as_bytes(), Mode::Write, ms) }
}

fn may_run(server: &mut Server, client: u64) -> bool {
    let now = server.now();
    if server.manager.next_session_end().is_some_and(|at| at.is_over_at(now)) {
        server.manager.end_overdue(now);
    }
    server.manager.check().unwrap();
    !server.manager.closing.contains(ClientId::from(client))
}

#[test]
fn no_command_runs_from_ten_milliseconds_before_the_deadline_on() {
    let mut server = Server::new();
    server.ask(K, Input::Acquire(session("a", 7, 1000)));
    server.ask(G, Input::Acquire(session("b", 8, 5000)));
    server.pass_ms(989);
    assert!(may_run(&mut server, 7));
    server.pass_ms(1);
    assert!(!may_run(&mut server, 7));
    assert!(may_run(&mut server, 8), "another session goes on");
    assert_eq!(server.closed(), [7]);
    server.sweep();
    assert_eq!(server.hold(K, "a", Mode::Write), None, "its hold ends with it");
    assert!(server.hold(G, "b", Mode::Write).is_some());
}

#[test]
fn whoever_waits_is_granted_when_the_sweep_has_ended_the_hold() {
    let mut server = Server::new();
    server.ask(K, Input::Acquire(session("a", 7, 1000)));
    let waits = server.waits(K, "b", Mode::Write, 8);
    server.pass_ms(5000);
    assert!(!may_run(&mut server, 7));
    assert_eq!(server.told_to(waits), None, "nothing is granted before a command");
    server.sweep();
    assert!(server.token_of(waits).is_some());
}

#[test]
fn a_renewal_in_time_moves_the_end() {
    let mut server = Server::new();
    server.ask(K, Input::Acquire(session("a", 7, 1000)));
    server.pass_ms(900);
    let (owner, mode, token) = (&b"a"[..], None, None);
    server.ask(K, Input::Renew(Renew { owner, mode, token, lease: lease(4000), acks: 0 }));
    server.pass_ms(3980);
    assert!(may_run(&mut server, 7));
    server.pass_ms(10);
    assert!(!may_run(&mut server, 7));
}

#[test]
fn a_reentry_with_a_longer_lease_moves_the_end() {
    let mut server = Server::new();
    server.ask(K, Input::Acquire(session("a", 7, 1000)));
    server.ask(K, Input::Acquire(acquire(b"a", Mode::Write, 4000)));
    server.pass_ms(2000);
    assert!(may_run(&mut server, 7));
}

/// A renewal that no replica acknowledges postpones nothing.
#[test]
fn with_acks_the_last_acknowledged_deadline_counts() {
    let mut server = Server::new();
    let ask = Acquire { lease: lease(3000), ..session("a", 7, 3000) };
    server.confirms(K, Acquire { acks: 1, ..ask }, 7);
    server.replicas(100, &[100]);
    server.pass_ms(1000);
    server.sweep();
    server.replicas(200, &[100]);
    server.pass_ms(1989);
    assert!(may_run(&mut server, 7));
    server.pass_ms(1);
    assert!(!may_run(&mut server, 7));
}

/// Its renewals continue, so that nothing else sweeps its lock then.
#[test]
fn a_session_whose_renewals_are_not_acknowledged_ends_with_the_next_sweep() {
    let mut server = Server::new();
    server.confirms(K, Acquire { acks: 1, ..session("a", 7, 3000) }, 7);
    server.replicas(100, &[100]);
    for renewal in 1..=2 {
        server.pass_ms(1000);
        server.sweep();
        server.replicas(100 + renewal, &[100]);
    }
    server.pass_ms(990);
    assert!(!may_run(&mut server, 7));
    server.sweep();
    assert_eq!(server.hold(K, "a", Mode::Write), None);
}

#[test]
fn a_session_whose_first_acknowledgment_was_slow_is_renewed_at_once() {
    let mut server = Server::new();
    server.bounds.confirm_ms = 60_000;
    let ask = Acquire { session: Some(ClientId::from(7)), lease: lease(3000), ..confirmed("a", 1) };
    let a = server.confirms(K, ask, 7);
    server.pass_ms(2500);
    server.replicas(100, &[100]);
    assert!(matches!(server.told_to(a), Some(Reply::Granted { .. })));
    server.sweep();
    server.replicas(200, &[200]);
    server.pass_ms(1500);
    server.sweep();
    assert_eq!(server.closed(), []);
    assert!(server.hold(K, "a", Mode::Write).is_some());
}
