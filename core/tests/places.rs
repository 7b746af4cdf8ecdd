//! Places in the queue: however many upgrades stand in front, all other waiters keep their order.

use crate::support::{World, acquire, lease, release};
use allocation_counter::measure;
use rlock_core::{Acquire, Input, Mode, Patience, Release, Reply};

fn ask(world: &mut World, owner: &str, mode: Mode, upgrade: bool) -> Reply {
    let patience = Patience::Ticket(lease(60_000));
    let ask = acquire(owner.as_bytes(), mode, 50_000);
    world.drive(Input::Acquire(Acquire { upgrade, patience, ..ask })).reply
}

fn let_go(world: &mut World, owner: &str, mode: Mode) {
    let mode = Some(mode);
    let ended = world.drive(Input::Release(Release { mode, ..release(owner.as_bytes()) }));
    assert_eq!(ended.reply, Reply::Count(0), "{owner} holds no {mode:?}");
}

/// The owner waits in front of the line to upgrade, and stays there after its READ has ended.
fn stack(world: &mut World, owner: &str) {
    assert_eq!(ask(world, owner, Mode::Write, true), Reply::NotNow { wait_ms: None });
    let_go(world, owner, Mode::Read);
}

fn upgrader(number: usize) -> String {
    format!("upgrader {number:06}")
}

/// This many owners hold READ, this many tickets have their turn to READ, and one owner waits for
/// WRITE.
fn readers(count: usize, turns: usize) -> World {
    let mut world = World::new();
    world.portion = usize::MAX;
    let _ = world.drive(Input::Acquire(acquire(b"first", Mode::Write, 50_000)));
    let names: Vec<String> = (0..count).map(upgrader).collect();
    names.iter().for_each(|name| drop(ask(&mut world, name, Mode::Read, false)));
    (0..turns).for_each(|turn| drop(ask(&mut world, &format!("turn {turn}"), Mode::Read, false)));
    ask(&mut world, "last", Mode::Write, false);
    let_go(&mut world, "first", Mode::Write);
    for name in &names {
        let reply = ask(&mut world, name, Mode::Read, false);
        assert!(matches!(reply, Reply::Granted { .. }), "{name} gets {reply:?}");
    }
    world
}

fn line(world: &World) -> Vec<String> {
    let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    world.volatile.queue.iter().map(|(entry, _)| name(entry.owner.as_bytes())).collect()
}

#[test]
fn every_upgrade_stands_in_front_behind_the_turns() {
    let (count, turns) = (3000, 3);
    let mut world = readers(count, turns);
    for number in 0..count {
        stack(&mut world, &upgrader(number));
        if number % 100 < 2 {
            world.volatile.queue.check().unwrap();
            let place = world.volatile.queue.place(upgrader(number).as_bytes());
            assert_eq!(place, Some((turns + 1, false)), "the upgrade {number}");
        }
    }
    let expected = (0..turns).map(|turn| format!("turn {turn}"));
    let expected = expected.chain((0..count).rev().map(upgrader)).chain(["last".into()]);
    assert_eq!(line(&world), expected.collect::<Vec<_>>());
}

/// A turn that is given up stands behind the upgrades, and given-up turns keep their order. The
/// owner's next request takes its place, even after making room has moved it.
#[test]
fn turns_that_are_given_up_stand_behind_every_upgrade() {
    let count = 3000;
    let mut world = readers(count, 2);
    (0..count).for_each(|number| stack(&mut world, &upgrader(number)));
    // The owner of a turn sends another request.
    let reply = ask(&mut world, "turn 1", Mode::Write, false);
    assert_eq!(reply, Reply::NotNow { wait_ms: None });
    world.volatile.queue.check().unwrap();
    let upgraders = (0..count).rev().map(upgrader);
    let expected = ["turn 0".into()].into_iter().chain(upgraders);
    let expected = expected.chain(["turn 1".into(), "last".into()]);
    assert_eq!(line(&world), expected.collect::<Vec<_>>());
    let entries =
        world.volatile.queue.iter().map(|(entry, _)| (entry.owner.as_bytes(), entry.mode));
    assert!(entries.into_iter().any(|entry| entry == (b"turn 1", Mode::Write)));
}

/// Each waiter that is moved costs an allocation.
#[test]
fn making_room_moves_few_waiters_for_each_upgrade() {
    for (count, turns) in [(2000, 1), (20_000, 1), (20_000, 2000)] {
        let mut world = readers(count, turns);
        let names: Vec<String> = (0..count).map(upgrader).collect();
        let info = measure(|| names.iter().for_each(|name| stack(&mut world, name)));
        world.volatile.queue.check().unwrap();
        let each = info.count_total / u64::try_from(count).unwrap();
        println!("{count} upgrades behind {turns} turns: {each} allocations each");
        assert!(each < 25, "{count} upgrades behind {turns} turns: {each} allocations each");
    }
}
