//! The cost of one operation does not grow with the number of readers. It is counted in
//! allocations, which are the same on every machine. Times are only compared with each other, with
//! generous bounds.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::acks::confirmed;
use crate::support::cost::{Stopwatch, Taken, taken, takes_as_long_beside_ten_thousand};
use crate::support::server::{Key, Server};
use crate::support::{World, acquire, lease, release, renew};
use allocation_counter::measure;
use rlock_core::manager::At;
use rlock_core::{
    Acquire, Input, Lock, Mode, Now, Parking, Patience, Release, Renew, Reply, Standing, WaiterId,
    snapshot,
};

const NOTHING: Taken = Taken { allocations: 0, bytes: 0 };

fn granted(world: &mut World, input: Input<'_>) {
    assert!(matches!(world.drive(input).reply, Reply::Granted { .. }), "{input:?} is not granted");
}

fn counted(world: &mut World, input: Input<'_>, count: u64) {
    assert_eq!(world.drive(input).reply, Reply::Count(count), "{input:?}");
}

fn renewed(world: &mut World, ask: Renew<'_>) {
    assert_eq!(world.drive(Input::Renew(ask)).reply, Reply::Renewed, "{ask:?}");
}

/// This many readers, each with a name of its own and a lease of a minute or more.
fn readers(count: u64) -> World {
    let mut world = World::new();
    for number in 0..count {
        let name = format!("reader {number:08}");
        granted(&mut world, Input::Acquire(acquire(name.as_bytes(), Mode::Read, 60_000 + number)));
    }
    world
}

#[test]
fn a_free_lock_that_is_held_and_let_go_takes_nothing_but_a_long_owners_name() {
    let mut world = World::new();
    for (name_bytes, takes) in
        [(1, NOTHING), (40, NOTHING), (41, Taken { allocations: 1, bytes: 41 })]
    {
        let owner = vec![b'o'; name_bytes];
        for mode in [Mode::Write, Mode::Read] {
            let pair = taken(|| {
                granted(&mut world, Input::Acquire(acquire(&owner, mode, 1000)));
                counted(&mut world, Input::Release(release(&owner)), 0);
            });
            assert_eq!(pair, takes, "{mode:?}, {name_bytes} bytes");
        }
    }
}

#[test]
fn entering_again_renewing_and_being_refused_take_nothing() {
    let mut world = World::new();
    granted(&mut world, Input::Acquire(acquire(b"a", Mode::Write, 1000)));
    let took = taken(|| {
        granted(&mut world, Input::Acquire(acquire(b"a", Mode::Write, 2000)));
        renewed(&mut world, renew(b"a", 3000));
        counted(&mut world, Input::Release(release(b"a")), 1);
        for mode in [Mode::Write, Mode::Read] {
            let refused = world.drive(Input::Acquire(acquire(b"b", mode, 1000))).reply;
            assert_eq!(refused, Reply::NotNow { wait_ms: Some(3000) });
        }
    });
    assert_eq!(took, NOTHING);
}

#[test]
fn asking_about_a_lock_takes_nothing_beside_any_number_of_readers() {
    let mut world = readers(10_000);
    let first = world.lock.holds().next().map(|(_, _, hold)| hold.token).unwrap();
    let took = taken(|| {
        for _ in 0..1000 {
            assert!(world.lock.hold_at(b"reader 00000007", Mode::Read, world.now).is_some());
            assert!(world.lock.has_token_at(first, Mode::Read, world.now));
            assert_eq!(world.lock.mode_at(world.now), Some(Mode::Read));
            assert_eq!(world.lock.hold_count(), 10_000);
            assert!(world.lock.latest_deadline().is_some());
        }
        let refused = world.drive(Input::Acquire(acquire(b"w", Mode::Write, 1000))).reply;
        assert_eq!(refused, Reply::NotNow { wait_ms: Some(69_999) });
        let not_held = world.drive(Input::Release(release(b"w"))).reply;
        assert!(matches!(not_held, Reply::Refused(_)));
    });
    assert_eq!(took, NOTHING);
}

/// All operations of one reader, beside the others; the last request but one is refused.
fn a_readers_life(world: &mut World, number: u64) {
    let name = format!("newcomer {number:08}");
    let name = name.as_bytes();
    granted(world, Input::Acquire(acquire(name, Mode::Read, 100)));
    granted(world, Input::Acquire(acquire(name, Mode::Read, 90_000)));
    renewed(world, renew(name, 100_000));
    counted(world, Input::Release(release(name)), 1);
    let token = world.lock.hold_at(name, Mode::Read, world.now).map(|hold| hold.token);
    let refused = world.drive(Input::Acquire(acquire(b"w", Mode::Write, 1000))).reply;
    assert!(matches!(refused, Reply::NotNow { .. }));
    counted(world, Input::Release(Release { token, ..release(name) }), 0);
    // A reader that does not return: its lease ends.
    granted(world, Input::Acquire(acquire(name, Mode::Read, 1)));
    world.advance_ms(1);
    granted(world, Input::Acquire(acquire(b"reader 00000003", Mode::Read, 60_000)));
    counted(world, Input::Release(release(b"reader 00000003")), 1);
}

#[test]
fn a_reader_takes_about_as_much_beside_ten_as_beside_ten_thousand() {
    const LIVES: u64 = 1000;
    let life_beside = |others| {
        let mut world = readers(others);
        let took = taken(|| (0..LIVES).for_each(|number| a_readers_life(&mut world, number)));
        println!("beside {others}: {took:?}");
        took
    };
    let (few, many) = (life_beside(10), life_beside(10_000));
    // Three B-trees may split a node each: that is a few allocations more, not ten thousand.
    assert!(many.allocations <= few.allocations + 20 * LIVES, "{few:?} became {many:?}");
    assert!(many.bytes <= few.bytes + 5000 * LIVES, "{few:?} became {many:?}");
}

/// A linear search would take a thousand times as long; a B-tree has three levels instead of one.
#[test]
fn a_reader_takes_about_as_long_beside_ten_as_beside_ten_thousand() {
    const LIVES: u64 = 20_000; // of ten operations each
    let time_beside = |others| {
        let mut world = readers(others);
        let begun = Stopwatch::start();
        (0..LIVES).for_each(|number| a_readers_life(&mut world, number));
        begun.elapsed()
    };
    takes_as_long_beside_ten_thousand(time_beside);
}

#[test]
fn the_first_waiter_of_one_more_lock_moves_little_of_a_hundred_thousand_others() {
    const LOCKS: u32 = 100_000;
    let mut server = Server::new();
    let most = (0..LOCKS).map(|number| {
        let (key, mut lock) = (number.to_be_bytes(), Lock::default());
        let holds = acquire(b"holder", Mode::Write, 1000);
        let waits = Acquire { owner: b"next", patience: Patience::Ticket(lease(1000)), ..holds };
        let step = taken(|| {
            for ask in [holds, waits] {
                let _ = server.decide(&mut lock, &key, Input::Acquire(ask));
            }
        });
        assert_eq!(server.manager.totals().tickets, number as usize + 1);
        step.bytes
    });
    let most = most.max().unwrap();
    // A few numbers for each lock, when the containers grow.
    assert!(most < u64::from(LOCKS) * 20, "{most} bytes");
}

/// Ten thousand leases that end at once cost ten thousand times as much as one, and not the square
/// of that.
#[test]
fn many_leases_that_end_at_once_take_as_long_as_one_by_one() {
    let time_of = |count| {
        let mut world = readers(count);
        world.advance_ms(100_000);
        let begun = Stopwatch::start();
        let mut ended = world.drive(Input::Force(None)).changes.len();
        while !world.lock.is_free() {
            ended += world.drive(Input::Tick).changes.len();
        }
        assert_eq!(ended, usize::try_from(count).unwrap());
        begun.elapsed()
    };
    let (few, many) = (time_of(1000), time_of(30_000));
    println!("1000: {few:?}, 30 000: {many:?}");
    assert!(many < few * 150 + Duration::from_millis(50), "{few:?} became {many:?}");
}

/// The length that a payload claims is not trusted: about 1 MiB is allocated before the bytes run
/// out.
#[test]
fn a_payload_that_lies_about_its_length_takes_little_memory() {
    let lie = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, b'a', 0, 7, 100, 1];
    let effect = [1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 2, 5, 0];
    let took = taken(|| {
        assert!(snapshot::load(&lie).is_err());
        assert!(snapshot::load_effects(&effect, 1).is_err());
    });
    assert!(took.bytes < 4 << 20, "{took:?}");
}

/// `MEMORY USAGE` reports about what was allocated: exactly for one hold, and within a factor of
/// two for many readers.
#[test]
fn the_memory_that_is_told_is_about_the_memory_that_is_taken() {
    assert_eq!(readers(0).lock.heap_bytes(), 0);
    assert_eq!(readers(1).lock.heap_bytes(), 0);
    let mut world = World::new();
    granted(&mut world, Input::Acquire(acquire(&[b'o'; 300], Mode::Read, 1000)));
    assert_eq!(world.lock.heap_bytes(), 300);
    for count in [2, 100, 10_000] {
        let world = readers(count);
        let mut copy = None;
        let took = taken(|| copy = Some(world.lock.clone()));
        let told = world.lock.heap_bytes();
        println!("{count} readers: told {told}, a copy took {}", took.bytes);
        assert!(
            (took.bytes / 2..=took.bytes * 2).contains(&(told as u64)),
            "told {told}, took {took:?}"
        );
    }
}

/// This many blocked connections and tickets, in alternation, behind one writer.
fn parking(number: u64) -> Parking {
    let (waiter, since) = (WaiterId::from(number + 1), Now::from_ms(0));
    Parking { waiter, client: None, since, ends_at: None, is_of_several: false }
}

fn crowd(count: u64) -> World {
    let mut world = World::new();
    granted(&mut world, Input::Acquire(acquire(b"first", Mode::Write, 600_000)));
    for number in 0..count {
        let name = format!("waiter {number:08}");
        let patience = Patience::Ticket(lease(60_000));
        let ask = Acquire { patience, ..acquire(name.as_bytes(), Mode::Write, 600_000) };
        if number % 2 == 0 {
            let _ = world
                .drive(Input::Park(Acquire { patience: Patience::Block, ..ask }, parking(number)));
        } else {
            let _ = world.drive(Input::Acquire(ask));
        }
    }
    world
}

/// A hand-off, a poll of a ticket in the middle, a newcomer that gives up, and a waiter that
/// departs.
#[test]
fn waiting_takes_about_as_long_beside_ten_as_beside_ten_thousand() {
    const ROUNDS: u64 = 20_000;
    let time_beside = |others: u64| {
        let mut world = crowd(others);
        let poll = format!("waiter {:08}", (others / 2) | 1);
        let begun = Stopwatch::start();
        for round in 0..ROUNDS {
            let waiter = WaiterId::from(1_000_000 + round);
            let block = Acquire { patience: Patience::Block, ..acquire(b"leaver", Mode::Read, 1) };
            let parking = Parking {
                waiter,
                client: None,
                since: world.now,
                ends_at: None,
                is_of_several: false,
            };
            let _ = world.drive(Input::Park(block, parking));
            world.volatile.leave(waiter);
            let ticket = Acquire {
                patience: Patience::Ticket(lease(60_000)),
                ..acquire(poll.as_bytes(), Mode::Write, 600_000)
            };
            let _ = world.drive(Input::Acquire(ticket));
            let _ = world.drive(Input::Acquire(acquire(b"newcomer", Mode::Read, 1)));
            let _ = world.drive(Input::Renew(renew(b"first", 600_000)));
        }
        begun.elapsed()
    };
    takes_as_long_beside_ten_thousand(time_beside);
}

/// The cost of readers that are granted together grows linearly with their number.
#[test]
fn many_readers_that_enter_together_take_as_long_as_one_by_one() {
    let time_of = |count: u64| {
        let mut world = World::new();
        world.portion = usize::MAX;
        granted(&mut world, Input::Acquire(acquire(b"first", Mode::Write, 600_000)));
        for number in 0..count {
            let name = format!("waiter {number:08}");
            let ask = acquire(name.as_bytes(), Mode::Read, 600_000);
            let ask = Acquire { patience: Patience::Block, ..ask };
            let _ = world.drive(Input::Park(ask, parking(number)));
        }
        let begun = Stopwatch::start();
        let effects = world.drive(Input::Release(release(b"first")));
        assert_eq!(effects.wakes.len() as u64, count);
        begun.elapsed()
    };
    let (few, many) = (time_of(1000).min(time_of(1000)), time_of(10_000).min(time_of(10_000)));
    println!("1000: {few:?}, 10 000: {many:?}");
    assert!(many < few * 40 + Duration::from_millis(20), "{few:?} became {many:?}");
}

/// A permit that is granted, refused, released and handed off; and a place.
#[test]
fn a_permit_takes_about_as_long_beside_ten_as_beside_ten_thousand() {
    const LIVES: u64 = 20_000;
    let time_beside = |others: u64| {
        let mut world = readers(others);
        let limit = NonZeroU32::new(u32::try_from(others).unwrap() + 1);
        let ticket = Patience::Ticket(lease(60_000));
        let ask = |owner| Acquire { limit, ..acquire(owner, Mode::Read, 600_000) };
        for number in 0..others {
            let name = format!("waits {number}");
            let (limit, patience) = (NonZeroU32::new(1), ticket);
            let one = acquire(name.as_bytes(), Mode::Read, 600_000);
            let one = Acquire { limit, patience, ..one };
            let _ = world.drive(Input::Acquire(one));
        }
        let begun = Stopwatch::start();
        for _ in 0..LIVES {
            let _ = world.drive(Input::Acquire(Acquire { patience: ticket, ..ask(b"last") }));
            assert!(world.volatile.queue.place(b"last").is_some());
            let _ = world.drive(Input::Acquire(ask(b"nobody")));
            let _ = world.drive(Input::Cancel(b"last"));
        }
        begun.elapsed()
    };
    takes_as_long_beside_ten_thousand(time_beside);
}

/// This many tickets at two locks, in alternation, each behind a hundred readers.
#[test]
fn a_ticket_takes_little_memory_at_whichever_lock_it_begins() {
    const TICKETS: u64 = 4000;
    let mut server = Server::new();
    server.bounds.slow.wait_ms = Some(1000);
    let mut locks = [(b"k" as Key, Lock::default()), (b"l", Lock::default())];
    for (key, lock) in &mut locks {
        for number in 0..100 {
            let name = format!("{} reader with a name of some length {number:08}", key[0]);
            let ask = acquire(name.as_bytes(), Mode::Read, 600_000);
            let _ = server.decide(lock, key, Input::Acquire(ask));
        }
    }
    let ticket = Patience::Ticket(lease(60_000));
    let took = measure(|| {
        for number in 0..TICKETS {
            let name = format!("waiter {number:08}");
            let ask = Acquire { patience: ticket, ..acquire(name.as_bytes(), Mode::Write, 1000) };
            let (key, lock) = &mut locks[usize::try_from(number % 2).unwrap()];
            let _ = server.decide(lock, key, Input::Acquire(ask));
        }
    });
    let each = took.bytes_current / i64::try_from(TICKETS).unwrap();
    println!("by turns: {each} bytes each");
    assert!(each < 400, "{each} bytes each");
}

/// This is so even if no two of them wait for the same hundred readers.
#[test]
fn tickets_that_all_wait_for_others_take_little_memory() {
    const TICKETS: u64 = 20_000;
    let mut server = Server::new();
    server.bounds.slow.wait_ms = Some(1000);
    let mut lock = Lock::default();
    let readers: Vec<String> = (0..TICKETS + 100)
        .map(|number| format!("reader with a name of some length {number:08}"))
        .collect();
    for name in &readers {
        let ask = acquire(name.as_bytes(), Mode::Read, 600_000);
        let _ = server.decide(&mut lock, b"k", Input::Acquire(ask));
    }
    let ticket = Patience::Ticket(lease(60_000));
    let names: Vec<String> = (0..TICKETS).map(|number| format!("waiter {number:08}")).collect();
    let took = measure(|| {
        for (name, reader) in names.iter().zip(&readers) {
            let ask = Acquire { patience: ticket, ..acquire(name.as_bytes(), Mode::Write, 1000) };
            let _ = server.decide(&mut lock, b"k", Input::Acquire(ask));
            let gone = Input::Release(release(reader.as_bytes()));
            let _ = server.decide(&mut lock, b"k", gone);
        }
    });
    let each = took.bytes_current / i64::try_from(TICKETS).unwrap();
    println!("behind others each: {each} bytes each");
    assert!(each < 1000, "{each} bytes each");
}

/// One ticket has its turn, and all others wait behind it.
#[test]
fn judging_a_request_without_its_owners_ticket_copies_no_long_queue() {
    let takes = |waiting: u64| {
        let (mut server, mut lock) = (Server::new(), Lock::default());
        let patience = Patience::Ticket(lease(600_000));
        let mut asks = |owner: &[u8]| {
            let ask = Acquire { patience, ..acquire(owner, Mode::Write, 1000) };
            server.decide(&mut lock, b"k", Input::Acquire(ask)).reply
        };
        assert!(matches!(asks(b"holder"), Reply::Granted { .. }));
        assert_eq!(asks(b"own"), Reply::NotNow { wait_ms: Some(1000) });
        for number in 0..waiting {
            asks(format!("waiter {number:08}").as_bytes());
        }
        let _ = server.decide(&mut lock, b"k", Input::Release(release(b"holder")));
        let at = At { db: 0, key: b"k", now: server.now() };
        let claim = acquire(b"own", Mode::Write, 1000);
        let (manager, bounds) = (&server.manager, &server.bounds);
        taken(|| {
            let standing = manager.open_lock(at, bounds, &lock).standing_without_ticket(&claim);
            assert_eq!(standing, Standing::Barred { wait_ms: None });
        })
    };
    assert_eq!(takes(200), takes(20_000));
}

/// One owner with a pending level, and this many connections that renew it.
#[test]
fn a_renewal_that_is_told_looks_at_no_other() {
    let each = |renewals: u32| {
        let mut server = Server::new();
        server.holds(b"k", "a", None);
        server.confirms(b"k", confirmed("a", 2), 1);
        let waiters: Vec<u64> =
            (0..renewals).map(|_| server.renews(b"k", "a", 60_000, 1)).collect();
        server.manager.stream_is(100);
        let (now, watch) = (server.now(), Stopwatch::start());
        server.manager.acked(&mut [100], now);
        let answers = server.manager.take_answers();
        let took = watch.elapsed();
        assert_eq!(answers.len(), waiters.len());
        took / renewals
    };
    let (few, many) = ((0..3).map(|_| each(300)).min(), (0..3).map(|_| each(3000)).min());
    let ratio = many.unwrap().as_secs_f64() / few.unwrap().as_secs_f64();
    println!("a renewal beside 3000 others takes {ratio:.2} times as long as beside 300");
    assert!(ratio < 5.0, "{ratio:.2}");
}

/// One owner has one level of a hold, and asks for this many more, of which no replica is heard in
/// time, or whose connections close: the hold's requests are gone through once for a portion.
#[test]
fn many_levels_that_are_revoked_together_take_as_long_as_one_by_one() {
    let time_of = |count: u64, close: bool| {
        let mut world = World::new();
        granted(&mut world, Input::Acquire(acquire(b"a", Mode::Write, 600_000)));
        for number in 0..count {
            let reply = world.drive(Input::Park(confirmed("a", 1), parking(number))).reply;
            assert_eq!(reply, Reply::Pending);
        }
        let begun = Stopwatch::start();
        if close {
            (0..count).for_each(|number| assert!(world.volatile.leave(parking(number).waiter)));
        } else {
            world.advance_ms(100_000);
        }
        let depth = |world: &World| world.lock.hold_at(b"a", Mode::Write, world.now).unwrap().depth;
        while depth(&world) > 1 {
            let _ = world.drive(Input::Tick);
        }
        begun.elapsed()
    };
    for close in [false, true] {
        let best = |count| time_of(count, close).min(time_of(count, close));
        let (few, many) = (best(1000), best(10_000));
        println!("1000: {few:?}, 10 000: {many:?}");
        assert!(many < few * 40 + Duration::from_millis(20), "{few:?} became {many:?}");
    }
}
