//! No step does more than a portion of work, however much is there to be done, and what is left is
//! done with the next ones: whoever asks in between is told the same as afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "numbers are small")]
mod support;

use std::time::Duration;

use rlock_core::{Acquire, Input, Mode, Moment, Parking, Patience, Reply, WaiterId};
use rustix::time::{ClockId, clock_gettime};
use support::{World, acquire, release};

/// The processor's time of this thread that some work takes: the best of a few.
fn takes(mut work: impl FnMut()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
    };
    let mut once = || {
        let began_at = now();
        work();
        now() - began_at
    };
    (0..5).map(|_| once()).min().unwrap()
}

// --- one owner's waits --------------------------------------------------------------------------

/// An owner waits for READ, so many times for WRITE and so many times for READ; then it may enter.
fn own_waits(count: u64) -> World {
    let mut world = World::new();
    world.portion = usize::MAX;
    let _ = world.drive(Input::Acquire(acquire(b"first", Mode::Write, 600_000)));
    let modes = (0..=2 * count)
        .map(|number| if (1..=count).contains(&number) { Mode::Write } else { Mode::Read });
    for (number, mode) in (1..).zip(modes) {
        let ask = Acquire { patience: Patience::Block, ..acquire(b"own", mode, 600_000) };
        let waiter = WaiterId::from(number);
        let _ = world.drive(Input::Park(ask, Parking { waiter, client: None, ends_at: None }));
    }
    world
}

#[test]
fn one_owners_waits_are_granted_in_linear_time() {
    let time_of = |count| {
        let world = own_waits(count);
        let mut worlds: Vec<World> = (0..5).map(|_| world.fork()).collect();
        takes(|| {
            let effects = worlds.pop().unwrap().drive(Input::Release(release(b"first")));
            assert_eq!(effects.wakes.len() as u64, count + 1);
        })
    };
    let (few, many) = (time_of(250), time_of(4000));
    println!("250: {few:?}, 4000: {many:?}");
    assert!(many < few * 60 + Duration::from_millis(2), "{few:?} became {many:?}");
}

#[test]
fn one_owners_waits_are_granted_in_portions_in_order() {
    const COUNT: u64 = 1000;
    let mut world = own_waits(COUNT);
    world.portion = Moment::PORTION;
    let mut copy = Copy::of(&world);
    let mut granted = Vec::new();
    let mut input = Input::Release(release(b"first"));
    loop {
        let effects = world.drive(input);
        copy.follow(&world, &effects);
        for wake in &effects.wakes {
            assert!(matches!(wake.reply, Reply::Granted { .. }), "{wake:?}");
            granted.push(wake.waiter.get());
        }
        let alarm = world.lock.next_alarm(&world.memory);
        if !alarm.is_some_and(|at| at.is_over_at(world.now)) {
            break;
        }
        input = Input::Tick;
    }
    let reads: Vec<u64> = std::iter::once(1).chain(COUNT + 2..=2 * COUNT + 1).collect();
    assert_eq!(granted, reads);
    let held = world.lock.hold_at(b"own", Mode::Read, world.now).map(|hold| hold.depth);
    assert_eq!(held, u16::try_from(COUNT + 1).ok());
    assert_eq!(world.memory.queue.blocked_count() as u64, COUNT);
}
