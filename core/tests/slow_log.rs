//! What the manager records of long waits, long holds and refused cycles.

use std::num::NonZeroU32;

use crate::support::server::Server;
use crate::support::{acquire, lease, release};
use rlock_core::manager::{At, LockId, Task};
use rlock_core::slow::{Outcome, Slow};
use rlock_core::{Acquire, Input, Lock, Mode, Owner, Patience, WaiterId};

/// A server that logs waits and holds of at least this many milliseconds.
fn noting(wait_ms: u64, hold_ms: u64) -> Server {
    let mut server = Server::new();
    server.bounds.slow = Slow { wait_ms: Some(wait_ms), hold_ms: Some(hold_ms) };
    server
}

#[test]
fn what_lasted_as_long_as_its_threshold_is_noted_with_how_it_ended() {
    let mut server = noting(10, 50);
    server.holds(b"k", "a", None);
    server.waits(b"k", "b", Mode::Write, 2);
    server.waits(b"k", "c", Mode::Read, 3);
    let ticket = Patience::Ticket(lease(30));
    server.ask(b"k", Input::Acquire(Acquire { patience: ticket, ..acquire(b"d", Mode::Read, 9) }));
    server.pass_ms(9);
    let fourth = server.waits(b"k", "e", Mode::Write, 4);
    server.ask(b"k", Input::Cancel(b"c"));
    assert_eq!(server.slowlog(), [""; 0], "too short");
    server.pass_ms(1);
    server.ask(b"k", Input::Release(release(b"a")));
    assert_eq!(server.slowlog(), ["1 wait k b write=0 10 granted [a]"]);
    server.pass_ms(20);
    server.sweep();
    let now = server.now();
    server.manager.departed(WaiterId::from(fourth), Outcome::Unblocked, now);
    server.sweep();
    server.pass_ms(1000);
    server.sweep();
    server.ask(b"k", Input::Tick);
    assert_eq!(
        server.slowlog(),
        [
            "4 hold k b write=0 1000 expired []",
            "3 wait k e write=0 21 unblocked [a]",
            "2 wait k d read=0 30 timed-out [a]",
            "1 wait k b write=0 10 granted [a]",
        ]
    );
}

#[test]
fn each_wait_keeps_who_was_in_its_way_in_printable_names() {
    const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nand more";
    let mut server = noting(0, 1_000_000);
    for (holder, waiter) in [("a\\", "b\r"), (LONG, "d")] {
        server.holds(b"k", holder, None);
        server.waits(b"k", waiter, Mode::Write, 2);
        for owner in [holder, waiter] {
            server.ask(b"k", Input::Release(release(owner.as_bytes())));
        }
    }
    let cut = "x".repeat(63);
    assert_eq!(
        server.slowlog(),
        [
            format!("2 wait k d write=0 0 granted [{cut}\\x0a]"),
            "1 wait k b\\x0d write=0 0 granted [a\\x5c]".to_owned(),
        ]
    );
}

#[test]
fn a_wait_for_a_permit_names_who_has_it() {
    let mut server = noting(0, 1_000_000);
    let permit = |owner| Acquire { limit: NonZeroU32::new(1), ..acquire(owner, Mode::Read, 1000) };
    server.ask(b"k", Input::Acquire(permit(b"a")));
    server.waits_for(b"k", permit(b"b"), 1);
    server.ask(b"k", Input::Release(release(b"a")));
    assert_eq!(server.slowlog(), ["1 wait k b read=1 0 granted [a]"]);
}

#[test]
fn the_slow_log_has_a_bound_and_goes_on_counting() {
    let mut server = noting(1_000_000, 0);
    for _ in 0..12 {
        server.holds(b"k", "a", None);
        server.ask(b"k", Input::Release(release(b"a")));
    }
    assert_eq!(server.manager.slowlog.count(), 9);
    assert!(server.slowlog()[8].starts_with("4 hold k a write=0 0 released"), "the last nine");
    server.manager.slowlog.clear();
    assert_eq!(server.manager.slowlog.count(), 0);
    server.holds(b"k", "a", None);
    server.ask(b"k", Input::Force(None));
    assert_eq!(server.slowlog(), ["13 hold k a write=0 0 forced []"]);
}

#[test]
fn each_cycle_is_noted() {
    let mut server = noting(0, 1_000_000);
    let at = |key: &[u8]| LockId { db: 0, key: key.into() };
    let long = [b'x'; 70];
    let cycle = [(Owner::from(&b"a"[..]), at(b"1\n")), (Owner::from(&long[..]), at(b"2"))];
    server.holds(b"k", "a", None);
    server.deadlock(&cycle);
    let cut = "x".repeat(64);
    assert_eq!(
        server.slowlog(),
        [format!("1 deadlock 1\\x0a a read=1 0 refused [a@1\\x0a,{cut}@2]")]
    );
}

#[test]
fn holds_of_a_lock_that_leaves_its_name_are_noted() {
    let mut server = noting(1_000_000, 5);
    for (by, word) in [(None, "removed"), (Some(true), "removed"), (Some(false), "expired")] {
        server.holds(b"k", "a", None);
        server.pass_ms(1100);
        let (now, lock) = (server.now(), server.keys.remove(&b"k"[..]).unwrap());
        server.manager.key_left(At { db: 0, key: b"k", now }, &lock);
        by.into_iter().for_each(|is_evicted| server.manager.key_lost(0, b"k", is_evicted));
        let removed = server.manager.take_removed(now);
        assert_eq!(removed[0].held_us.as_slice(), [1_100_000]);
        let ms = if word == "expired" { 1000 } else { 1100 };
        assert!(server.slowlog()[0].ends_with(&format!("write=0 {ms} {word} []")), "{word}");
    }
}

#[test]
fn a_wait_that_ends_with_the_session_of_its_connection_is_noted() {
    let has_both = || {
        let mut server = noting(0, 1_000_000);
        server.holds(b"k", "a", Some(1));
        server.waits(b"k", "b", Mode::Write, 1);
        let lock = server.keys.remove(&b"k"[..]).unwrap();
        (server, lock)
    };
    let noted = ["1 wait k b write=0 0 disconnected [a]"];

    let (mut server, lock) = has_both();
    let now = server.now();
    server.manager.key_left(At { db: 0, key: b"k", now }, &lock);
    server.sweep();
    assert_eq!(server.slowlog(), noted, "the key was removed");

    let (mut server, _) = has_both();
    server.manager.was_replayed(0, b"k");
    server.manager.gate_is(false, now);
    let task = server.manager.next_task(now);
    let Some(Task::See(id, why)) = task else { panic!("{task:?} behind a gate") };
    server.manager.see(&id, why, &Lock::default(), now);
    assert_eq!(server.slowlog(), noted, "the gate is shut");
}
