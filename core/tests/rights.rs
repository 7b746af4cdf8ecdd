//! Permissions are checked before a grant: a step stops there, and continues when they are known.
//! `support/laws.rs` checks in every history that stopping changes nothing else.

use crate::support::server::{Key, Server};
use crate::support::{acquire, release};
use rlock_core::manager::At;
use rlock_core::{
    Acquire, Effects, Event, Input, Lock, Mode, Patience, Refusal, Reply, Right, Rights,
    StepContext, WaiterId,
};

/// Decides with these permissions, then with those that the step asks for.
fn decide_checked<'a>(
    server: &mut Server,
    lock: &mut Lock,
    input: Input<'a>,
    denied: &[u64],
) -> (Effects<'a>, usize) {
    let (at, bounds) = (At { db: 0, key: b"k", now: server.now() }, server.bounds);
    let (mut rights, mut stops) = (Vec::new(), 0);
    let (none, mut effects) = (Rights::Checked(&[]), None);
    let decided = server.manager.decide(at, &bounds, lock, &input, none, &mut effects);
    let mut effects = decided.effects(effects);
    while let Some(unchecked) = &effects.unchecked {
        stops += 1;
        let right = |waiter: &WaiterId| match denied.contains(&waiter.get()) {
            true => Right::MayNot,
            false => Right::May,
        };
        let may = |waiter: &WaiterId| (*waiter, right(waiter));
        rights.extend(unchecked.waiters.iter().map(may));
        let rights = Rights::Checked(&rights);
        server.manager.step(at, &bounds, lock, &input, rights, &mut effects);
    }
    (effects, stops)
}

#[test]
fn whoever_lost_the_right_is_refused_and_the_next_one_is_granted_in_one_step() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    let first = server.waits(b"k", "b", Mode::Write, 1);
    let second = server.waits(b"k", "c", Mode::Write, 2);
    let now = server.now();
    let mut lock = server.keys.remove(b"k" as Key).unwrap();
    let release = Input::Release(release(b"a"));
    let (effects, stops) = decide_checked(&mut server, &mut lock, release, &[first]);
    assert_eq!(stops, 2);
    let [refused, granted] = effects.wakes.as_slice() else { panic!("{effects:?}") };
    assert_eq!((refused.waiter.get(), granted.waiter.get()), (first, second));
    assert_eq!(refused.reply, Reply::Refused(Refusal::NotPermitted));
    assert_eq!(effects.reply, Reply::Count(0));
    assert_eq!(effects.events.as_slice(), [Event::Released, Event::Acquired]);
    assert!(lock.hold_at(b"c", Mode::Write, now).is_some());
    assert!(!server.manager.expects_keys(), "somebody is blocked at a free name only meanwhile");
}

#[test]
fn a_step_that_stops_goes_on_with_the_rest_of_its_portion() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    for client in 1..=StepContext::PORTION as u64 + 50 {
        server.waits(b"k", &format!("r{client}"), Mode::Read, client);
    }
    let mut lock = server.keys.remove(b"k" as Key).unwrap();
    let release = Input::Release(release(b"a"));
    let (effects, stops) = decide_checked(&mut server, &mut lock, release, &[]);
    assert_eq!(effects.wakes.len(), StepContext::PORTION);
    assert!(stops <= StepContext::PORTION / 8, "{stops}");
}

/// A lease has expired, but its lock was not swept: the waiter enters first, then the request is
/// decided.
#[test]
fn a_request_is_decided_when_those_before_it_have_entered() {
    let mut server = Server::new();
    server.holds(b"k", "a", None);
    let waiter = server.waits(b"k", "b", Mode::Read, 1);
    server.pass_ms(60_000);
    let mut lock = server.keys.remove(b"k" as Key).unwrap();
    let ask = Input::Acquire(acquire(b"c", Mode::Read, 1000));
    let (effects, stops) = decide_checked(&mut server, &mut lock, ask, &[]);
    assert_eq!((stops, effects.wakes[0].waiter.get()), (1, waiter));
    assert!(matches!(effects.reply, Reply::Granted { .. }), "{effects:?}");
}

/// A step ends the hold that the session of the asking connection relied on, and stops for the
/// permission of the next waiter.
#[test]
fn who_is_parked_while_its_session_ends_leaves_no_place() {
    let mut server = Server::new();
    server.holds(b"k", "a", Some(2));
    server.waits(b"k", "b", Mode::Read, 3);
    server.pass_ms(1100);
    let parking = server.begin_wait(b"k", b"c", Some(2));
    let ask = Acquire { patience: Patience::Block, ..acquire(b"c", Mode::Write, 1000) };
    let mut lock = server.keys.remove(b"k" as Key).unwrap();
    let park = Input::Park(ask, parking);
    let (effects, stops) = decide_checked(&mut server, &mut lock, park, &[]);
    assert_eq!(stops, 1, "it asks for the permission of the next waiter");
    server.keys.insert(b"k", lock);
    server.tell(effects.wakes);
    let answers = server.manager.take_answers();
    server.tell(answers);
    assert_eq!(server.manager.totals().waiters, 0, "nobody who waits is left");
    assert_eq!(server.closed(), [2]);
}
