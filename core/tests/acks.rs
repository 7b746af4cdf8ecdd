//! Grants that are reported once replicas have acknowledged them, and revoked if replicas do not;
//! and the grace period of a new primary.

use crate::support::acks::confirmed;
use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, release, renew};
use rlock_core::manager::{At, Decided, Manager};
use rlock_core::slow::Outcome;
use rlock_core::{
    Acquire, ClientId, Confirmation, Input, Mode, Patience, Refusal, Renew, Reply, Rights, WaiterId,
};

const K: Key = b"k";
const NO_ACKS: Option<Reply> = Some(Reply::Refused(Refusal::NoAcks));
const MOVED: Option<Reply> = Some(Reply::Refused(Refusal::NoAcksMoved));
const PENDING: Option<(u16, Confirmation)> = Some((1, Confirmation::Pending));
const DONE: Option<(u16, Confirmation)> = Some((1, Confirmation::Done));

fn write(server: &Server, owner: &str) -> Option<(u16, Confirmation)> {
    server.hold(K, owner, Mode::Write)
}

/// The server counts as handed off what waited for more than for replicas.
#[test]
fn who_waits_only_for_replicas_has_waited_for_nothing_else() {
    for is_renewal in [false, true] {
        let mut server = Server::new();
        let caller = server.begin_wait(K, b"a", None);
        if is_renewal {
            server.ask(K, Input::Acquire(acquire(b"a", Mode::Write, 10_000)));
        }
        server.pass_ms(1);
        let renewal = Renew { acks: 1, ..renew(b"a", 10_000) };
        let grant = confirmed("a", 1);
        let reply = server.ask(
            K,
            match is_renewal {
                true => Input::ParkRenew(renewal, caller),
                false => Input::Park(grant, caller),
            },
        );
        assert_eq!(reply, Reply::Pending);
        server.pass_ms(2);
        server.manager.stream_is(100);
        let now = server.now();
        server.manager.acked(&mut [100], now);
        let answers = server.manager.take_answers();
        let waited = answers.iter().map(|wake| (wake.waited_us, wake.acks_us));
        assert_eq!(waited.collect::<Vec<_>>(), [(2000, Some(2000))]);
    }
}

#[test]
fn a_grant_is_told_when_enough_replicas_have_all_of_it() {
    for acks in 1..=3 {
        let mut server = Server::new();
        let a = server.confirms(K, confirmed("a", acks), 1);
        assert_eq!(write(&server, "a"), PENDING);
        server.replicas(100, &[99, 99, 99]);
        assert_eq!(server.told_to(a), None, "nobody has all of it");
        // The replicas acknowledge one after another; their order does not matter.
        for have in 0..acks {
            let mut acknowledged = [99; 3];
            acknowledged[3 - usize::from(have)..].fill(100);
            server.replicas(100, &acknowledged);
            assert_eq!(server.told_to(a), None, "{have} of {acks}");
        }
        server.replicas(100, &[100, 120, 100]);
        assert!(server.token_of(a).is_some());
        assert_eq!(write(&server, "a"), DONE);
        assert!(!server.manager.awaits_acks());
    }
}

/// Whether this input needs a step; otherwise it is decided in advance.
fn takes_a_step(server: &mut Server, input: Input<'_>) -> bool {
    let mut lock = server.keys.remove(K).unwrap_or_default();
    let (at, mut effects) = (At { db: 0, key: K, now: server.now() }, None);
    let (manager, bounds) = (&mut server.manager, &server.bounds);
    let decided = manager.decide(at, bounds, &mut lock, &input, Rights::All, &mut effects);
    let takes = matches!(decided, Decided::Step(_));
    let wakes = decided.effects(effects).wakes;
    if !lock.is_free() {
        server.keys.insert(K, lock);
    }
    server.tell(wakes);
    server.manager.check().unwrap();
    takes
}

#[test]
fn a_grant_to_be_confirmed_is_decided_once_where_nothing_is_known_of_the_lock() {
    let ask = confirmed("a", 1);
    let ticket = Patience::Ticket(lease(1000));
    for (ask, takes) in [
        (ask, false),
        (Acquire { depth: Some(1), ..ask }, false),
        (Acquire { depth: Some(2), ..ask }, true),
        (Acquire { patience: ticket, ..ask }, true),
        (Acquire { session: Some(ClientId::from(1)), ..ask }, true),
    ] {
        let mut server = Server::new();
        assert_eq!(takes_a_step(&mut server, Input::Acquire(ask)), takes, "{ask:?}");
        assert_eq!(write(&server, "a"), None, "nothing has changed");
    }
    let mut server = Server::new();
    server.confirms(K, ask, 1);
    assert!(takes_a_step(&mut server, Input::Acquire(ask)), "somebody holds it");
}

#[test]
fn a_confirmed_hold_that_nobody_waits_for_is_released_without_a_step() {
    let gone = |server: &mut Server, takes: bool, what: &str| {
        assert_eq!(takes_a_step(server, Input::Release(release(b"a"))), takes, "{what}");
        assert_eq!(write(server, "a"), None, "{what}");
    };
    let confirmed_to = |ask: Acquire<'_>| {
        let mut server = Server::new();
        let a = server.confirms(K, ask, 1);
        server.replicas(100, &[100]);
        assert!(server.token_of(a).is_some());
        server
    };
    let mut server = confirmed_to(confirmed("a", 1));
    gone(&mut server, false, "it is confirmed");
    // Nothing of the grant remains.
    server.holds(K, "a", None);
    gone(&mut server, false, "a plain hold");
    let mut server = Server::new();
    server.confirms(K, confirmed("a", 1), 1);
    gone(&mut server, true, "it is pending");
    let mut server = confirmed_to(confirmed("a", 1));
    let b = server.waits(K, "b", Mode::Write, 2);
    gone(&mut server, true, "somebody waits");
    assert!(server.token_of(b).is_some());
    let session = Some(ClientId::from(1));
    let mut server = confirmed_to(Acquire { session, ..confirmed("a", 1) });
    gone(&mut server, true, "it is tied to a connection");
    let mut server = confirmed_to(confirmed("a", 1));
    server.manager.was_replayed(0, K);
    gone(&mut server, true, "something else changed the key");
}

#[test]
fn what_is_written_later_is_not_acknowledged_with_what_was_before() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.replicas(100, &[90]);
    let b = server.confirms(b"l", confirmed("b", 1), 2);
    server.replicas(200, &[150]);
    assert!(server.token_of(a).is_some() && server.told_to(b).is_none());
    server.replicas(300, &[200]);
    assert!(server.token_of(b).is_some());
}

#[test]
fn without_a_connection_to_park_nothing_is_granted() {
    let mut server = Server::new();
    assert_eq!(server.ask(K, Input::Acquire(confirmed("a", 1))), Reply::MustConfirm);
    assert_eq!(write(&server, "a"), None);
    server.confirms(K, confirmed("a", 1), 1);
    for input in [
        Input::Acquire(acquire(b"a", Mode::Write, 1000)),
        Input::Renew(renew(b"a", 1000)),
        Input::Acquire(acquire(b"a", Mode::Write, 1000)),
    ] {
        assert_eq!(server.ask(K, input), Reply::MustConfirm, "nobody was told of the hold");
    }
    assert_eq!(write(&server, "a"), PENDING);
}

#[test]
fn a_pending_hold_keeps_others_out_and_its_owner_waits_for_the_same() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    assert!(matches!(server.holds(K, "b", None), Reply::NotNow { .. }));
    // Without ACKS, too.
    let again = server.confirms(K, confirmed("a", 0), 2);
    let renewal = server.renews(K, "a", 20_000, 0);
    assert_eq!((server.told_to(again), server.told_to(renewal)), (None, None));
    server.replicas(100, &[100]);
    assert_eq!(server.token_of(a), server.token_of(again));
    assert_eq!(server.told_to(renewal), Some(Reply::Renewed));
    assert_eq!(write(&server, "a"), Some((2, Confirmation::Done)));
    // From now on, requests are granted at once.
    assert!(matches!(server.holds(K, "a", None), Reply::Granted { .. }));
}

#[test]
fn who_is_not_acknowledged_in_time_is_taken_back_and_the_next_has_it() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    let b = server.waits(K, "b", Mode::Write, 2);
    server.replicas(100, &[99]);
    server.pass_ms(1999);
    server.sweep();
    assert_eq!((server.told_to(a), write(&server, "a")), (None, PENDING));
    server.pass_ms(1);
    server.sweep();
    assert_eq!(server.told_to(a), NO_ACKS);
    assert!(server.token_of(b).is_some());
    server.replicas(200, &[200]);
    assert_eq!(server.told.len(), 2, "what comes too late is nobody's");
}

#[test]
fn a_grant_that_was_waited_for_is_told_no_earlier() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    let b = server.confirms(K, confirmed("b", 1), 2);
    server.ask(K, Input::Release(release(b"a")));
    assert_eq!((server.told_to(b), write(&server, "b")), (None, PENDING));
    server.replicas(100, &[100]);
    assert!(server.token_of(b).is_some());
}

#[test]
fn a_lease_that_ends_first_is_too_late() {
    let mut server = Server::new();
    let ask = Acquire { lease: lease(100), ..confirmed("a", 1) };
    let a = server.confirms(K, ask, 1);
    server.replicas(100, &[50]);
    server.pass_ms(100);
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(a), None, "it is over");
    server.sweep();
    assert_eq!((server.told_to(a), write(&server, "a")), (NO_ACKS, None));
}

#[test]
fn a_renewal_that_is_not_acknowledged_takes_nothing_back() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.replicas(100, &[100]);
    assert!(server.token_of(a).is_some());
    let renewal = server.renews(K, "a", 60_000, 1);
    server.replicas(200, &[100]);
    server.pass_ms(2000);
    server.sweep();
    assert_eq!((server.told_to(renewal), write(&server, "a")), (NO_ACKS, DONE));
    let deadline = server.keys[K].latest_deadline().unwrap();
    assert!(deadline.left_at(server.now()) > 55_000, "a deadline is never shortened");
}

#[test]
fn a_level_that_is_not_acknowledged_is_taken_back_alone() {
    let mut server = Server::new();
    server.holds(K, "a", None);
    let again = server.confirms(K, confirmed("a", 1), 1);
    assert_eq!(write(&server, "a"), Some((2, Confirmation::None)));
    server.replicas(100, &[50]);
    server.pass_ms(2000);
    server.sweep();
    assert_eq!(server.told_to(again), NO_ACKS);
    assert_eq!(write(&server, "a"), Some((1, Confirmation::None)));
}

#[test]
fn who_asked_for_more_acknowledgments_waits_longer() {
    let mut server = Server::new();
    let one = server.confirms(K, confirmed("a", 1), 1);
    let two = server.confirms(K, confirmed("a", 2), 2);
    server.replicas(100, &[100, 0]);
    assert!(server.token_of(one).is_some() && server.told_to(two).is_none());
    server.pass_ms(2000);
    server.sweep();
    assert_eq!((server.told_to(two), write(&server, "a")), (NO_ACKS, DONE));
}

#[test]
fn whoever_lets_go_of_a_pending_hold_lets_go_of_all_of_it() {
    for input in [Input::Release(release(b"a")), Input::Force(None)] {
        let mut server = Server::new();
        let callers = [1, 2].map(|client| server.confirms(K, confirmed("a", 1), client));
        assert!(matches!(server.ask(K, input), Reply::Count(_)));
        assert_eq!(callers.map(|caller| server.told_to(caller)), [NO_ACKS, NO_ACKS]);
        assert_eq!(write(&server, "a"), None);
    }
}

#[test]
fn a_caller_that_is_gone_is_taken_back_unless_another_asked_for_the_same() {
    let mut server = Server::new();
    let gone = |server: &mut Server, waiter| {
        let now = server.now();
        server.manager.departed(WaiterId::from(waiter), Outcome::Disconnected, now);
        server.sweep();
    };
    let first = server.confirms(K, confirmed("a", 1), 1);
    let same = server.confirms(K, Acquire { depth: Some(1), ..confirmed("a", 1) }, 2);
    gone(&mut server, first);
    assert_eq!(write(&server, "a"), PENDING, "another waits for the same level");
    gone(&mut server, same);
    assert_eq!(write(&server, "a"), None);
}

#[test]
fn a_key_that_is_gone_is_told_to_those_who_were_to_hear_of_it() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    let lock = server.keys.remove(K).unwrap();
    let at = At { db: 0, key: K, now: server.now() };
    server.manager.key_left(at, &lock);
    // Nobody gets a reply before the lock was examined.
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(a), MOVED);
    server.sweep();
    assert!(server.manager.volatile(0, K).is_none(), "there is nothing to remember");
    server.replicas(100, &[100]);
    assert!(!server.manager.awaits_acks());
}

#[test]
fn what_was_flushed_is_told_to_nobody() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.keys.clear();
    server.manager.flushed(None);
    server.replicas(100, &[100]);
    assert_eq!(server.told_to(a), None);
    server.sweep();
    assert_eq!(server.told_to(a), MOVED);
}

#[test]
fn behind_a_shut_gate_the_caller_is_told_and_its_hold_stays_until_it_opens() {
    let mut server = Server::new();
    let a = server.confirms(K, confirmed("a", 1), 1);
    server.is_open = false;
    server.pass_ms(2000);
    server.sweep();
    let answers = server.manager.take_answers();
    server.tell(answers);
    assert_eq!((server.told_to(a), write(&server, "a")), (NO_ACKS, PENDING));
    server.is_open = true;
    server.sweep();
    assert_eq!(write(&server, "a"), None);
}

// --- sessions -----------------------------------------------------------------------------------

fn session(owner: &str, client: u64) -> Acquire<'_> {
    Acquire { session: Some(ClientId::from(client)), lease: lease(1000), ..confirmed(owner, 1) }
}

#[test]
fn a_session_lasts_by_acknowledged_deadlines() {
    let mut server = Server::new();
    let a = server.confirms(K, session("a", 7), 7);
    server.replicas(100, &[100]);
    assert!(server.token_of(a).is_some());
    // While renewals are acknowledged, the session lasts.
    for turn in 2..12 {
        server.pass_ms(300);
        server.sweep();
        server.replicas(turn * 100, &[turn * 100]);
    }
    assert_eq!(server.closed(), [0; 0]);
    // The session is renewed, but replicas are silent: it lasts until the last acknowledged
    // deadline.
    for turn in 12..16 {
        server.pass_ms(230);
        server.sweep();
        server.replicas(turn * 100, &[1100]);
    }
    assert_eq!(server.closed(), [0; 0]);
    server.pass_ms(100);
    server.sweep();
    assert_eq!((server.closed(), write(&server, "a")), (vec![7], None));
}

#[test]
fn a_session_that_was_not_told_is_none() {
    let mut server = Server::new();
    let a = server.confirms(K, session("a", 7), 7);
    assert_eq!(server.manager.totals().sessions, 1, "it counts from the grant on");
    server.replicas(100, &[0]);
    server.pass_ms(1000);
    server.sweep();
    assert_eq!((server.told_to(a), write(&server, "a")), (NO_ACKS, None));
    assert_eq!(server.closed(), [0; 0], "it was never told that it holds");
    assert_eq!(server.manager.totals().sessions, 0);
}

// --- grace --------------------------------------------------------------------------------------

fn with_grace() -> Server {
    let mut server = Server::new();
    server.us = 0;
    server.bounds.grace_ms = 5000;
    server
}

#[test]
fn a_new_primary_grants_nothing_in_its_grace() {
    let mut server = with_grace();
    server.bounds.grace_ms = 0;
    server.holds(K, "a", None);
    server.bounds.grace_ms = 5000;
    server.pass_ms(100);
    let grace = Reply::NotNow { wait_ms: Some(4900) };
    for (key, owner) in [(K, "a"), (b"l" as Key, "b")] {
        assert_eq!(server.holds(key, owner, None), grace, "{owner}");
    }
    let upgrade = Acquire { upgrade: true, ..acquire(b"a", Mode::Write, 1000) };
    assert_eq!(server.ask(K, Input::Acquire(upgrade)), grace);
    // Holds can still be renewed and released.
    assert_eq!(server.ask(K, Input::Renew(renew(b"a", 10_000))), Reply::Renewed);
    assert_eq!(server.ask(K, Input::Release(release(b"a"))), Reply::Count(0));
    server.pass_ms(4900);
    assert!(matches!(server.holds(K, "b", None), Reply::Granted { .. }));
}

#[test]
fn who_waits_in_the_grace_is_served_at_its_end() {
    let mut server = with_grace();
    let b = server.waits(K, "b", Mode::Write, 1);
    let c = server.waits(K, "c", Mode::Write, 2);
    let ask = Acquire { patience: Patience::Ticket(lease(9000)), ..acquire(b"d", Mode::Read, 9) };
    assert_eq!(server.ask(b"l", Input::Acquire(ask)), Reply::NotNow { wait_ms: Some(5000) });
    server.pass_ms(4999);
    server.sweep();
    assert_eq!(server.told, []);
    assert_eq!(server.manager.next_call().at.unwrap().left_at(server.now()), 1);
    server.pass_ms(1);
    server.sweep();
    assert!(server.token_of(b).is_some() && server.told_to(c).is_none());
    assert_eq!(server.manager.volatile(0, b"l").unwrap().queue.place(b"d"), Some((1, true)));
}

#[test]
fn who_holds_and_asks_again_in_the_grace_enters_at_its_end() {
    let mut server = with_grace();
    server.bounds.grace_ms = 0;
    let ask = Acquire { lease: lease(60_000), ..acquire(b"a", Mode::Write, 1) };
    assert!(matches!(server.ask(K, Input::Acquire(ask)), Reply::Granted { .. }));
    server.bounds.grace_ms = 5000;
    let again = server.waits(K, "a", Mode::Write, 1);
    server.ask(K, Input::Changed);
    assert_eq!(server.told_to(again), None);
    server.pass_ms(5000);
    server.sweep();
    assert!(server.token_of(again).is_some());
    assert_eq!(write(&server, "a"), Some((2, Confirmation::None)));
}

#[test]
fn a_shorter_grace_counts_for_those_who_wait_already() {
    for shorter in [0, 50, 100, 2000] {
        let mut server = with_grace();
        server.manager.grace_is(5000, server.now());
        let b = server.waits(K, "b", Mode::Write, 1);
        let l = server.waits(b"l", "c", Mode::Write, 2);
        server.pass_ms(100);
        server.bounds.grace_ms = shorter;
        server.manager.grace_is(shorter, server.now());
        assert!(server.manager.next_call().soon);
        server.sweep();
        if shorter > 100 {
            assert_eq!(server.told, [], "{shorter}");
            server.pass_ms(1900);
            server.sweep();
        }
        assert!(server.token_of(b).is_some() && server.token_of(l).is_some(), "{shorter}");
    }
}

#[test]
fn too_few_replicas_are_said_before_anything_else() {
    assert_eq!(Manager::may_confirm(0, 0), Ok(()));
    assert_eq!(Manager::may_confirm(2, 2), Ok(()));
    let too_few = Refusal::NoReplicas { asked: 2, online: 1 };
    assert_eq!(Manager::may_confirm(2, 1), Err(too_few.clone()));
    let line = too_few.line(K, b"a");
    assert!(line.starts_with("NOREPLICAS need 2 acknowledging replicas for 'k'"), "{line}");
}
