//! The lock manager of one server: which task is due first, a gate that may be shut, portions,
//! which connections are closed; and that its indexes agree after every step.

use crate::support::server::{Key, Server};
use crate::support::{acquire, lease, random, release, renew};
use rlock_core::manager::{At, LockId};
use rlock_core::slow::Outcome;
use rlock_core::{
    Acquire, ClientId, Input, Lock, Mode, Patience, Refusal, Reply, StepContext, Token,
};

#[test]
fn behind_a_shut_gate_nobody_is_granted_and_then_all_in_order() {
    let mut server = Server::new();
    for (key, after) in [(b"m" as Key, 0), (b"k", 1), (b"l", 1)] {
        server.pass_ms(after);
        server.holds(key, "a", None);
        server.waits(key, "b", Mode::Write, 1);
    }
    server.is_open = false;
    server.pass_ms(2000);
    server.sweep();
    assert_eq!(server.told, []);
    assert!(server.manager.shut_since().is_some());
    assert!(server.manager.next_call().when_open);
    server.is_open = true;
    server.sweep();
    assert_eq!(server.swept, [b"m", b"k", b"l" as Key]);
    let granted = |(_, reply): &(u64, Reply)| matches!(reply, Reply::Granted { .. });
    assert!(server.told.len() == 3 && server.told.iter().all(granted), "{:?}", server.told);
    assert!(server.manager.shut_since().is_none());
}

#[test]
fn behind_a_shut_gate_a_session_lasts_as_long_as_its_lease() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.is_open = false;
    for ms in [400, 400] {
        server.pass_ms(ms);
        server.sweep();
        assert_eq!(server.closed(), [0; 0], "its lease is not over");
    }
    server.pass_ms(200);
    server.sweep();
    assert_eq!(server.closed(), [7]);
}

#[test]
fn an_open_gate_renews_a_session() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    for _ in 0..10 {
        server.pass_ms(400);
        server.sweep();
    }
    assert_eq!(server.closed(), [0; 0]);
    assert!(server.keys[b"k" as Key].hold_at(b"a", Mode::Write, server.now()).is_some());
}

/// The lease ended, and then a waiter gave up.
#[test]
fn what_comes_due_twice_behind_a_shut_gate_is_swept_once() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    server.waits(b"k", "b", Mode::Write, 1);
    let gone = server.waits(b"k", "c", Mode::Write, 2);
    server.is_open = false;
    server.pass_ms(1100);
    server.sweep();
    server.pass_ms(100);
    server.manager.departed(gone.into(), Outcome::Disconnected, server.now());
    server.sweep();
    assert!(server.swept.is_empty());
    server.is_open = true;
    server.sweep();
    assert_eq!(server.swept, [b"k" as Key]);
}

/// While somebody waits, the key lives a second longer.
#[test]
fn a_lock_is_swept_when_the_last_who_waited_gave_up() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    let gone = server.waits(b"k", "b", Mode::Write, 1);
    server.manager.departed(gone.into(), Outcome::Disconnected, server.now());
    server.manager.heard_or_forgotten(gone.into());
    server.sweep();
    assert_eq!(server.swept, [b"k" as Key]);
}

/// A waiter gave up, and before the sweep another owner's lock arrived at that name.
#[test]
fn a_lock_that_is_due_and_changed_is_swept_as_changed() {
    let mut server = Server::new();
    server.holds(b"l", "b", None);
    server.holds(b"k", "a", None);
    server.waits(b"k", "d", Mode::Write, 1);
    let again = server.waits(b"k", "b", Mode::Write, 2);
    let gone = server.waits(b"k", "c", Mode::Write, 3);
    server.manager.departed(gone.into(), Outcome::Disconnected, server.now());
    let lock = server.keys[b"l" as Key].clone();
    server.keys.insert(b"k", lock);
    server.manager.was_replayed(0, b"k");
    server.sweep();
    let told: Vec<u64> = server.told.iter().map(|(waiter, _)| *waiter).collect();
    assert_eq!(told, [again], "its owner holds by now");
}

#[test]
fn a_crowd_of_readers_is_granted_in_portions_and_in_order() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    let crowd = StepContext::PORTION * 2 + 10;
    let names: Vec<String> = (0..crowd).map(|number| format!("reader {number}")).collect();
    let ids: Vec<u64> =
        (1..).zip(&names).map(|(at, n)| server.waits(b"k", n, Mode::Read, at)).collect();
    let last = server.waits(b"k", "w", Mode::Write, 9999);
    server.ask(b"k", Input::Release(release(b"a")));
    assert_eq!(server.told.len(), StepContext::PORTION);
    // Nobody overtakes those who are still in line.
    assert!(matches!(server.holds(b"k", "late", None), Reply::NotNow { .. }));
    server.sweep();
    let told: Vec<u64> = server.told.iter().map(|(waiter, _)| *waiter).collect();
    assert_eq!(told, ids);
    assert!(!told.contains(&last));
}

#[test]
fn two_locks_with_much_to_do_take_turns() {
    let mut server = Server::new();
    let crowd = StepContext::PORTION * 3;
    let names: Vec<String> = (0..crowd).map(|number| format!("reader {number}")).collect();
    for key in [b"k", b"l" as Key] {
        server.holds(key, "a", None);
        for (at, name) in (1..).zip(&names) {
            server.waits(key, name, Mode::Read, at + u64::from(key[0]) * 10_000);
        }
        server.pass_ms(1);
    }
    server.pass_ms(2000);
    server.swept.clear();
    // The clock advances from one sweep to the next.
    for _ in 0..6 {
        server.sweep_one();
        server.pass_ms(1);
    }
    let first: Vec<Key> = server.swept[..4].to_vec();
    assert!(first.contains(&(b"k" as Key)) && first.contains(&(b"l" as Key)), "{first:?}");
}

#[test]
fn who_lost_a_session_is_granted_nothing_elsewhere() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.holds(b"l", "x", None);
    server.waits(b"l", "a", Mode::Write, 7);
    server.ask(b"k", Input::Force(None));
    assert!(server.manager.closing.contains(ClientId::from(7)));
    server.ask(b"l", Input::Release(release(b"x")));
    assert_eq!(server.told, []);
    assert_eq!(server.closed(), [7]);
    assert!(server.manager.closing.is_empty());
}

/// The session ends at once, and not with the sweep: a request before the sweep gets no reply about
/// a hold that is about to end.
#[test]
fn a_connection_that_closed_has_no_session_from_then_on() {
    let closed = || {
        let mut server = Server::new();
        server.bounds.max_sessions = 1;
        let reply = server.holds(b"k", "a", Some(7));
        server.manager.connection_ended(ClientId::from(7), server.now());
        server.manager.check().unwrap();
        assert!(server.manager.next_call().soon);
        assert_eq!(server.manager.totals().sessions, 0);
        (server, token_of(&reply))
    };
    let (mut server, _) = closed();
    let renewed = server.ask(b"k", Input::Renew(renew(b"a", 5000)));
    assert!(matches!(renewed, Reply::Refused(Refusal::NotHeld { .. })), "{renewed:?}");
    for owner in ["a", "b"] {
        let (mut server, first) = closed();
        let second = token_of(&server.holds(b"k", owner, None));
        assert!(second > first, "{owner}");
        server.sweep();
        let held = server.keys[b"k" as Key].hold_at(owner.as_bytes(), Mode::Write, server.now());
        assert_eq!(held.map(|hold| hold.token), Some(second), "{owner}");
    }
    token_of(&closed().0.holds(b"l", "a", Some(8)));
}

fn token_of(reply: &Reply) -> Token {
    match reply {
        Reply::Granted { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_that_left_its_name_loses_its_sessions_at_once() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    let lock = server.keys.remove(b"k" as Key).unwrap();
    let at = At { db: 0, key: b"k", now: server.now() };
    server.manager.key_left(at, &lock);
    assert!(server.manager.closing.contains(ClientId::from(7)));
    assert_eq!(server.manager.take_removed(server.now()).len(), 1);
}

#[test]
fn what_is_flushed_and_loaded_again_keeps_its_sessions() {
    for is_loaded in [true, false] {
        let mut server = Server::new();
        server.holds(b"k", "a", Some(7));
        server.manager.flushed(None);
        assert!(server.manager.closing.contains(ClientId::from(7)), "nothing of it runs meanwhile");
        if is_loaded {
            server.manager.loading_begins();
            server.manager.loading_ends();
        } else {
            server.keys.clear();
        }
        server.sweep();
        assert_eq!(server.closed().is_empty(), is_loaded);
    }
}

#[test]
fn a_flush_of_one_database_leaves_the_others_sessions() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.manager.flushed(Some(3));
    assert!(server.manager.closing.is_empty());
    let now = server.now();
    server.manager.swapped(0, 3, now);
    assert_eq!(server.closed(), [7]);
}

#[test]
fn a_replica_has_nothing_to_do_and_closes_its_sessions() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.holds(b"l", "a", None);
    server.waits(b"l", "b", Mode::Write, 8);
    server.manager.set_role(false, server.now());
    assert_eq!(server.closed(), [7]);
    server.pass_ms(5000);
    assert_eq!(server.manager.next_task(server.now()), None);
    assert_eq!(server.manager.next_call().at, None);
}

/// The request has to wait, but when it is parked, nothing is in its way any more.
#[test]
fn a_grant_while_it_is_parked_is_taken_back_from_one_that_does_not_hear() {
    for session in [None, Some(ClientId::from(7))] {
        let mut server = Server::new();
        let (mut lock, now) = (Lock::default(), server.now());
        let parking = server.begin_wait(b"k", b"a", Some(7));
        let ask =
            Acquire { session, patience: Patience::Block, ..acquire(b"a", Mode::Write, 1000) };
        let park = Input::Park(ask, parking);
        let effects = server.decide(&mut lock, b"k", park);
        assert!(matches!(effects.reply, Reply::Granted { .. }), "{effects:?}");
        server.manager.connection_ended(ClientId::from(7), now);
        server.manager.heard_or_forgotten(parking.waiter);
        server.manager.check().unwrap();
        server.keys.insert(b"k", lock);
        server.sweep();
        assert!(server.keys.get(b"k" as Key).is_none_or(Lock::is_free), "{session:?}");
    }
}

#[test]
fn a_token_is_saved_only_while_it_is_ahead_of_the_clock() {
    let mut server = Server::new();
    assert_eq!(server.manager.token_ahead(server.now()), None, "none was issued");
    server.holds(b"k", "a", None);
    let now = server.now();
    let ahead = rlock_core::Token::new(now.us() + 5_000_000).unwrap();
    server.manager.saw(ahead);
    assert_eq!(server.manager.token_ahead(now), Some(ahead));
    server.pass_ms(6000);
    assert_eq!(server.manager.token_ahead(server.now()), None);
}

#[test]
fn the_longest_queues_are_shown_first() {
    let mut server = Server::new();
    let keys: [Key; 5] = [b"e", b"d", b"c", b"b", b"a"];
    for (key, waiters) in keys.into_iter().zip([2, 3, 1, 3, 0]) {
        server.holds(key, "holder", None);
        for number in 0..waiters {
            server.waits(key, &format!("{key:?} {number}"), Mode::Write, 1);
        }
    }
    let shown = |most| {
        let queues = server.manager.longest_queues(0, most);
        queues.iter().map(|queue| (queue.key.to_vec(), queue.len)).collect::<Vec<_>>()
    };
    let all = [(b"b", 3), (b"d", 3), (b"e", 2), (b"c", 1)].map(|(key, len)| (key.to_vec(), len));
    for most in [1, 2, 3, 4, 10] {
        let lens: Vec<usize> = shown(most).iter().map(|(_, len)| *len).collect();
        assert_eq!(lens, [3, 3, 2, 1][..most.min(4)]);
    }
    assert_eq!(shown(2), all[..2]);
    assert_eq!(shown(10), all);
    assert!(server.manager.longest_queues(1, 10).is_empty());
}

#[test]
fn one_deadlock_a_second_is_written_to_the_log() {
    let mut server = Server::new();
    let lock = LockId { db: 0, key: b"k".as_slice().into() };
    let cycle = [(b"a".as_slice().into(), lock)];
    let mut lines = Vec::new();
    for _ in 0..25 {
        lines.extend(server.deadlock(&cycle));
        server.pass_ms(100);
    }
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].ends_with("; 9 more refused since the last such line"), "{lines:?}");
    // If the clock was set back, a line is logged as well.
    server.us = 0;
    assert!(server.deadlock(&cycle).is_some());
}

/// Slots of a Cluster move one by one.
#[test]
fn locks_that_may_have_changed_again_before_the_sweep_are_swept_once() {
    let mut server = Server::new();
    for key in [b"k" as Key, b"l"] {
        server.holds(key, "a", None);
        server.waits(key, "b", Mode::Write, 1);
    }
    (0..100).for_each(|_| server.manager.slots_moved());
    server.sweep_one();
    assert_eq!(server.swept, [b"k" as Key]);
    // What has begun goes on, and another iteration follows.
    (0..100).for_each(|_| server.manager.slots_moved());
    server.sweep();
    assert_eq!(server.swept, [b"k" as Key, b"l", b"k", b"l"]);
}

/// Random events in any order: the indexes agree after every step, and nobody is granted while the
/// gate is shut.
#[test]
fn the_indexes_agree_whatever_happens() {
    let (mut rng, steps) = random(3_000);
    let mut server = Server::new();
    server.bounds.max_sessions = 4;
    let owners: [&'static str; 4] = ["a", "b", "c", "d"];
    for _ in 0..steps {
        let key = [b"k", b"l", b"m" as Key][rng.usize(..3)];
        let owner = owners[rng.usize(..4)];
        let client = ClientId::from(rng.u64(1..6));
        let told = server.told.len();
        match rng.u8(..14) {
            0..=2 => {
                let mode = if rng.bool() { Mode::Read } else { Mode::Write };
                let session = rng.bool().then_some(client);
                let patience =
                    if rng.bool() { Patience::Ticket(lease(50)) } else { Patience::None };
                let ask = acquire(owner.as_bytes(), mode, rng.u64(1..2000));
                server.ask(key, Input::Acquire(Acquire { session, patience, ..ask }));
            }
            3 | 4 => {
                let is_held = matches!(
                    server.ask(key, Input::Acquire(acquire(owner.as_bytes(), Mode::Write, 900))),
                    Reply::NotNow { .. }
                );
                if is_held && server.manager.volatile(0, key).is_none_or(|m| m.queue.len() < 5) {
                    server.waits(key, "blocked", Mode::Write, rng.u64(100..));
                }
            }
            5 => {
                server.ask(key, Input::Release(release(owner.as_bytes())));
            }
            6 => {
                let now = server.now();
                server.manager.connection_ended(client, now);
            }
            7 => {
                if let Some(lock) = server.keys.remove(key) {
                    let at = At { db: 0, key, now: server.now() };
                    server.manager.key_left(at, &lock);
                }
            }
            8 => {
                server.keys.clear();
                server.manager.flushed(None);
            }
            9 => {
                let at = At { db: 0, key, now: server.now() };
                server.manager.dismiss(at, &Refusal::TryAgain);
                let answers = server.manager.take_answers();
                server.tell(answers);
            }
            10 => server.is_open = !server.is_open,
            11 => drop(server.closed()),
            12 => {
                server.ask(key, Input::Cancel(b"blocked"));
            }
            _ => server.pass_ms(rng.u64(1..500)),
        }
        server.manager.check().unwrap();
        let (now, is_open) = (server.told.len(), server.is_open);
        server.sweep();
        let granted = |(_, reply): &(u64, Reply)| matches!(reply, Reply::Granted { .. });
        assert!(is_open || !server.told[now..].iter().any(granted), "granted behind a shut gate");
        assert!(told <= now);
    }
}

/// The reply is sent before the connection is closed; otherwise two owners would rely on one lock.
#[test]
fn what_was_told_is_not_taken_back_when_a_session_elsewhere_is_lost() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.holds(b"l", "x", None);
    let waiter = server.waits(b"l", "a", Mode::Write, 7);
    server.keeps_waits = true;
    server.ask(b"l", Input::Release(release(b"x")));
    assert!(matches!(server.told[..], [(told, Reply::Granted { .. })] if told == waiter));
    // In the same loop iteration.
    server.ask(b"k", Input::Force(None));
    server.manager.heard_or_forgotten(waiter.into());
    server.sweep();
    assert_eq!(server.closed(), [7]);
    assert!(server.keys[b"l" as Key].hold_at(b"a", Mode::Write, server.now()).is_some());
}

#[test]
fn what_a_closed_connection_did_not_live_to_hear_is_taken_back() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.holds(b"l", "x", None);
    let waiter = server.waits(b"l", "a", Mode::Write, 7);
    server.keeps_waits = true;
    server.ask(b"l", Input::Release(release(b"x")));
    server.ask(b"k", Input::Force(None));
    let now = server.now();
    server.manager.connection_ended(ClientId::from(7), now);
    server.manager.heard_or_forgotten(waiter.into());
    server.sweep();
    assert!(!server.keys.contains_key(b"l" as Key));
}

#[test]
fn who_is_to_be_closed_runs_nothing_though_data_is_loaded() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(7));
    server.manager.flushed(None);
    server.manager.set_role(false, server.now());
    server.manager.loading_begins();
    server.manager.check().unwrap();
    assert!(server.manager.closing.contains(ClientId::from(7)));
}

/// A client whose connection broke asks again with DEPTH 1; the server notices the broken
/// connection only when both requests were granted.
#[test]
fn a_level_that_two_connections_were_told_of_stays_until_neither_heard() {
    for is_heard in [true, false] {
        let mut server = Server::new();
        server.holds(b"k", "x", None);
        server.asked_depth = Some(1);
        let first = server.waits(b"k", "a", Mode::Write, 7);
        let second = server.waits(b"k", "a", Mode::Write, 8);
        server.keeps_waits = true;
        server.ask(b"k", Input::Release(release(b"x")));
        assert_eq!(server.told.len(), 2);
        let now = server.now();
        server.manager.connection_ended(ClientId::from(7), now);
        server.manager.heard_or_forgotten(first.into());
        if !is_heard {
            let now = server.now();
            server.manager.connection_ended(ClientId::from(8), now);
        }
        server.sweep();
        server.manager.heard_or_forgotten(second.into());
        server.sweep();
        assert_eq!(server.keys.contains_key(b"k" as Key), is_heard);
    }
}
