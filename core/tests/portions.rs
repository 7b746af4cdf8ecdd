//! No step does more than a portion of work, however much there is; the next steps do the rest. A
//! request between these steps gets the same answer as after them.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::support::server::{Key, Server};
use crate::support::{World, acquire, lease, release, renew};
use rlock_core::grammar::Want;
use rlock_core::manager::{At, Group, LockId, Manager, Mark, Task, Wait, World as Locks, search};
use rlock_core::waits_for::{Search, Stand};
use rlock_core::{
    Acquire, Change, ClientId, Effects, End, Event, Input, Lock, Mode, Now, Parking, Patience,
    Refusal, Reply, StepContext, Volatile, WaiterId,
};
use rustix::time::{ClockId, clock_gettime};

/// The processor time of this thread that some work takes: the best of a few runs.
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

// --- holds that expire together -----------------------------------------------------------------

const EXPIRED: u64 = 5000;

/// Expired holds, and one that lasts.
fn expired(count: u64) -> World {
    let mut world = World::new();
    let lasting = Input::Acquire(acquire(b"lasting", Mode::Read, 600_000));
    assert!(matches!(world.drive(lasting).reply, Reply::Granted { .. }));
    for number in 0..count {
        let name = format!("reader {number:08}");
        let _ = world.drive(Input::Acquire(acquire(name.as_bytes(), Mode::Read, 60_000)));
    }
    world.advance_ms(60_000);
    world
}

/// The replica of a lock, and what subscribers received.
#[derive(Default)]
struct Copy {
    lock: Lock,
    events: Vec<Event>,
}

impl Copy {
    fn of(world: &World) -> Self {
        Self { lock: world.lock.clone(), events: Vec::new() }
    }

    /// Applies the changes of one step, of which there are few.
    fn follow(&mut self, world: &World, effects: &Effects<'_>) {
        assert!(effects.changes.len() <= StepContext::PORTION + 4, "{}", effects.changes.len());
        assert!(effects.events.len() <= StepContext::PORTION + 4, "{}", effects.events.len());
        for change in &effects.changes {
            self.lock.replay(change);
        }
        assert_eq!(self.lock, world.lock, "the replica differs");
        self.events.extend(&effects.events);
    }

    /// Lets time pass until nothing remains to be done.
    fn settle(&mut self, world: &mut World) {
        while world.lock.next_alarm(&world.volatile).is_some_and(|at| at.is_over_at(world.now)) {
            let effects = world.drive(Input::Tick);
            self.follow(world, &effects);
        }
    }

    fn count(&self, event: Event) -> u64 {
        self.events.iter().filter(|other| **other == event).count() as u64
    }
}

fn told(world: &mut World, copy: &mut Copy, input: Input<'_>) -> Reply {
    let effects = world.drive(input);
    copy.follow(world, &effects);
    effects.reply
}

#[test]
fn a_request_ends_a_portion_of_the_expired_holds_and_none_of_them_counts() {
    let mut world = expired(EXPIRED);
    let mut copy = Copy::of(&world);
    let one = NonZeroU32::new(1);
    let two = NonZeroU32::new(2);
    // The lasting hold is the only reader.
    let limited = |limit| Input::Acquire(Acquire { limit, ..acquire(b"new", Mode::Read, 60_000) });
    assert_eq!(told(&mut world, &mut copy, limited(one)), Reply::NotNow { wait_ms: Some(540_000) });
    assert!(matches!(told(&mut world, &mut copy, limited(two)), Reply::Granted { .. }));
    // The owners of expired holds hold nothing, and may acquire anew.
    let last = format!("reader {:08}", EXPIRED - 1);
    let last = last.as_bytes();
    for input in [Input::Release(release(last)), Input::Renew(renew(last, 1000))] {
        let refused = told(&mut world, &mut copy, input);
        assert!(matches!(refused, Reply::Refused(Refusal::NotHeld { .. })), "{refused:?}");
    }
    let again = told(&mut world, &mut copy, Input::Acquire(acquire(last, Mode::Read, 100)));
    let Reply::Granted { remaining_ms: 100, .. } = again else { panic!("{again:?}") };
    assert_eq!(told(&mut world, &mut copy, Input::Release(release(last))), Reply::Count(0));
    // A writer waits for those two holds.
    let write = Input::Acquire(acquire(b"writer", Mode::Write, 1000));
    assert_eq!(told(&mut world, &mut copy, write), Reply::NotNow { wait_ms: Some(540_000) });
    assert!(world.lock.hold_count() > 2000, "all of them were ended by few requests");
    copy.settle(&mut world);
    assert_eq!(world.lock.hold_count(), 2);
    // One event for each of them, and events for the owner that acquired anew and released.
    assert_eq!(copy.count(Event::Expired), EXPIRED);
    assert_eq!((copy.count(Event::Acquired), copy.count(Event::Released)), (2, 1));
}

#[test]
fn writers_enter_at_once_where_all_other_holds_have_expired() {
    // As an upgrade of the only remaining hold.
    let mut world = expired(EXPIRED);
    let mut copy = Copy::of(&world);
    let upgrade = Acquire { upgrade: true, ..acquire(b"lasting", Mode::Write, 1000) };
    let granted = told(&mut world, &mut copy, Input::Acquire(upgrade));
    assert!(matches!(granted, Reply::Granted { .. }), "{granted:?}");
    assert_eq!(copy.events.last(), Some(&Event::Upgraded));
    copy.settle(&mut world);
    assert_eq!(world.lock.hold_count(), 2);
    assert_eq!(copy.count(Event::Expired), EXPIRED);

    // By another owner, and by an owner whose own READ expired with the others.
    for owner in ["stranger", "reader 00001234"] {
        let mut world = expired(EXPIRED);
        let mut copy = Copy::of(&world);
        let _ = told(&mut world, &mut copy, Input::Release(release(b"lasting")));
        let write = Input::Acquire(acquire(owner.as_bytes(), Mode::Write, 1000));
        let granted = told(&mut world, &mut copy, write);
        assert!(matches!(granted, Reply::Granted { .. }), "{owner}: {granted:?}");
        assert_eq!(copy.events.last(), Some(&Event::Acquired), "{owner}");
        assert_eq!(world.lock.hold_count(), 1);
        copy.settle(&mut world);
        assert_eq!(copy.count(Event::Expired), EXPIRED, "{owner}");
        assert!(world.volatile.is_empty());
    }
}

/// The waiter enters with the first step, however much remains to be ended; and when the last
/// reader releases, the expired holds do not become valid again.
#[test]
fn who_waits_is_not_kept_waiting_by_holds_that_have_expired() {
    for (count, owner) in [
        (EXPIRED, "writer"),
        // The writer's own READ is one of those.
        (EXPIRED, "reader 00004999"),
        // One of the expired holds remains when the last valid one is released.
        (StepContext::PORTION as u64 + 1, "writer"),
    ] {
        let mut world = expired(count);
        let after = world.now;
        world.now = Now::from_us(after.us() - 1000);
        let upgrade = owner != "writer";
        let ask = Acquire { upgrade, ..acquire(owner.as_bytes(), Mode::Write, 1000) };
        let waiter = WaiterId::from(1);
        let parking =
            Parking { waiter, client: None, since: world.now, ends_at: None, is_of_several: false };
        let ask = Acquire { patience: Patience::Block, ..ask };
        let parked = world.drive(Input::Park(ask, parking)).reply;
        assert!(matches!(parked, Reply::MustWait { .. }), "{parked:?}");
        world.now = after;
        let mut copy = Copy::of(&world);
        let effects = world.drive(Input::Release(release(b"lasting")));
        copy.follow(&world, &effects);
        let granted = matches!(effects.wakes[0].reply, Reply::Granted { .. });
        assert!(granted && effects.wakes[0].waiter == waiter, "{:?}", effects.wakes);
        assert_eq!(copy.events.last(), Some(&Event::Acquired));
        copy.settle(&mut world);
        assert_eq!(copy.count(Event::Expired), count);
        assert_eq!(world.lock.hold_count(), 1);
    }
}

/// A session whose lease has ended is lost in the step that notices it: its connection must run no
/// command while the next owner holds.
#[test]
fn sessions_whose_holds_have_expired_are_lost_at_once() {
    let mut world = World::new();
    for number in 1..=1000 {
        let name = format!("reader {number:08}");
        let session = Some(ClientId::from(number));
        let ask = Acquire { session, ..acquire(name.as_bytes(), Mode::Read, 60_000) };
        let _ = world.drive(Input::Acquire(ask));
    }
    world.advance_ms(60_000);
    let mut copy = Copy::of(&world);
    let effects = world.drive(Input::Acquire(acquire(b"writer", Mode::Write, 1000)));
    copy.follow(&world, &effects);
    assert!(matches!(effects.reply, Reply::Granted { .. }), "{:?}", effects.reply);
    let mut lost: Vec<u64> = effects.lost.iter().map(|client| client.get()).collect();
    lost.sort_unstable();
    assert_eq!(lost, (1..=1000).collect::<Vec<_>>());
    copy.settle(&mut world);
    assert_eq!(copy.count(Event::Expired), 1000);
}

/// Holds that counted as ended still do if the clock is set back before they are swept.
#[test]
fn a_clock_that_is_set_back_lets_no_expired_hold_hold_again() {
    let mut world = expired(EXPIRED);
    let mut copy = Copy::of(&world);
    let two = NonZeroU32::new(2);
    let ask = Acquire { limit: two, ..acquire(b"new", Mode::Read, 60_000) };
    assert!(matches!(told(&mut world, &mut copy, Input::Acquire(ask)), Reply::Granted { .. }));
    world.now = Now::from_us(world.now.us() - 30_000_000);
    let effects = world.drive(Input::Release(release(b"reader 00004999")));
    assert!(matches!(effects.reply, Reply::Refused(Refusal::NotHeld { .. })));
    let expired = |change: &Change<'_>| matches!(change, Change::Ended { by: End::Expired, .. });
    assert!(effects.changes.iter().all(expired));
    assert_eq!(world.lock.hold_count(), 2);
}

// --- waits that end together --------------------------------------------------------------------

fn park(server: &mut Server, lock: &mut Lock, key: Key, ask: Acquire<'_>) {
    let parking = server.begin_wait(key, ask.owner, None);
    let ask = Acquire { patience: Patience::Block, ..ask };
    let _ = server.decide(lock, key, Input::Park(ask, parking));
}

/// A writer holds, and this many tickets and blocked connections wait in alternation.
fn crowd(server: &mut Server, key: Key, count: u64) -> Lock {
    let mut lock = Lock::default();
    let first = Input::Acquire(acquire(b"first", Mode::Write, 600_000));
    let _ = server.decide(&mut lock, key, first);
    for number in 0..count {
        let name = format!("waiter {number:08}");
        let ask = acquire(name.as_bytes(), Mode::Write, 600_000);
        let ticket = Patience::Ticket(lease(60_000));
        if number % 2 == 0 {
            park(server, &mut lock, key, ask);
        } else {
            let ask = Acquire { patience: ticket, ..ask };
            let _ = server.decide(&mut lock, key, Input::Acquire(ask));
        }
    }
    lock
}

#[test]
fn waits_at_a_key_that_is_no_lock_any_more_end_in_portions_in_order() {
    const COUNT: u64 = 3000;
    let mut server = Server::new();
    let lock = crowd(&mut server, b"k", COUNT);
    let at = At { db: 0, key: b"k", now: server.now() };
    server.manager.key_left(at, &lock);
    let (mut answered, mut steps) = (Vec::new(), 0);
    loop {
        server.manager.presume_open();
        let before = server.manager.totals();
        let Some(task) = server.manager.next_task(server.now()) else { break };
        let Task::Sweep(id, _, Mark::Changed) = task else { panic!("{task:?} of a changed key") };
        assert_eq!(&*id.key, b"k");
        server.manager.dismiss(at, &Refusal::WrongType);
        let after = server.manager.totals();
        let ended = before.waiters + before.tickets - after.waiters - after.tickets;
        assert!((1..=StepContext::PORTION).contains(&ended), "{ended} waits ended in one step");
        for wake in server.manager.take_answers() {
            assert_eq!(wake.reply, Reply::Refused(Refusal::WrongType));
            assert!(server.manager.answer(&wake), "{wake:?} twice");
            server.manager.heard_or_forgotten(wake.waiter);
            answered.push(wake.waiter);
        }
        server.manager.check().unwrap();
        steps += 1;
    }
    assert!(steps >= 3000 / StepContext::PORTION, "{steps} steps");
    assert_eq!(answered, (1..=COUNT / 2).map(WaiterId::from).collect::<Vec<_>>());
    assert!(server.manager.volatile(0, b"k").is_none());
}

/// The key is a lock again before all waits were ended: the remaining waiters are served as if
/// nothing had happened.
#[test]
fn a_key_that_is_a_lock_again_serves_whom_it_has_not_turned_away() {
    let mut server = Server::new();
    let lock = crowd(&mut server, b"k", 1000);
    let at = At { db: 0, key: b"k", now: server.now() };
    server.manager.key_left(at, &lock);
    server.manager.dismiss(at, &Refusal::WrongType);
    let refused = server.manager.take_answers().len() as u64;
    assert!((1..500).contains(&refused), "{refused} were turned away");
    let newcomer = Input::Acquire(acquire(b"newcomer", Mode::Write, 1000));
    let effects = server.decide(&mut Lock::default(), b"k", newcomer);
    assert!(matches!(effects.reply, Reply::NotNow { .. }), "{:?} passes the line", effects.reply);
    assert_eq!(effects.wakes.len(), 1);
    assert_eq!(effects.wakes[0].waiter, WaiterId::from(refused + 1));
    assert!(matches!(effects.wakes[0].reply, Reply::Granted { .. }));
}

// --- one owner's waits --------------------------------------------------------------------------

/// An owner waits for READ, then this many times for WRITE and this many times for READ; then it
/// may enter.
fn own_waits(count: u64) -> World {
    let mut world = World::new();
    world.portion = usize::MAX;
    let _ = world.drive(Input::Acquire(acquire(b"first", Mode::Write, 600_000)));
    let modes = (0..=2 * count)
        .map(|number| if (1..=count).contains(&number) { Mode::Write } else { Mode::Read });
    for (number, mode) in (1..).zip(modes) {
        let ask = Acquire { patience: Patience::Block, ..acquire(b"own", mode, 600_000) };
        let waiter = WaiterId::from(number);
        let parking =
            Parking { waiter, client: None, since: world.now, ends_at: None, is_of_several: false };
        let _ = world.drive(Input::Park(ask, parking));
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
    world.portion = StepContext::PORTION;
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
        let alarm = world.lock.next_alarm(&world.volatile);
        if !alarm.is_some_and(|at| at.is_over_at(world.now)) {
            break;
        }
        input = Input::Tick;
    }
    let reads: Vec<u64> = std::iter::once(1).chain(COUNT + 2..=2 * COUNT + 1).collect();
    assert_eq!(granted, reads);
    let held = world.lock.hold_at(b"own", Mode::Read, world.now).map(|hold| hold.depth);
    assert_eq!(held, u16::try_from(COUNT + 1).ok());
    assert_eq!(world.volatile.queue.blocked_count() as u64, COUNT);
}

// --- the search for a cycle ---------------------------------------------------------------------

/// The server's locks, without a server.
struct Hands<'s>(&'s Manager, Vec<(Key, Lock)>);

impl Locks for Hands<'_> {
    fn is_left(&self, _: Option<&LockId>) -> bool {
        false
    }

    fn manager<T>(&mut self, see: impl FnOnce(&Manager) -> T) -> T {
        see(self.0)
    }

    fn lock<T>(&mut self, id: &LockId, see: impl FnOnce(&Lock, &Volatile) -> T) -> T {
        let (free, unknown) = (Lock::default(), Volatile::default());
        let lock = self.1.iter().find(|(key, _)| **key == *id.key).map_or(&free, |(_, lock)| lock);
        see(lock, self.0.volatile(id.db, &id.key).unwrap_or(&unknown))
    }
}

/// The owner that holds the caller's lock waits this many times for another owner.
fn search_past(reads: usize, writes: usize) -> (Search<LockId>, Duration) {
    let mut server = Server::new();
    let (mut k, mut l) = (Lock::default(), Lock::default());
    let now = server.now();
    for (lock, key, owner) in [(&mut k, b"k" as Key, b"own" as Key), (&mut l, b"l", b"first")] {
        let ask = acquire(owner, Mode::Write, 600_000);
        let _ = server.decide(lock, key, Input::Acquire(ask));
    }
    for number in 0..reads + writes {
        let mode = if number < reads { Mode::Read } else { Mode::Write };
        park(&mut server, &mut l, b"l", acquire(b"own", mode, 600_000));
    }
    let mut hands = Hands(&server.manager, vec![(b"k", k), (b"l", l)]);
    // The caller has a place somewhere: only the search can show that it closes no cycle.
    let ask = acquire(b"first", Mode::Write, 1000);
    let lock = LockId { db: 0, key: b"k".as_slice().into() };
    let owner = b"stranger".as_slice().into();
    let user = b"default";
    let wait = Wait { lock: &lock, owner: &owner, user, stand: Stand::Asking(ask) };
    let mut found = None;
    let took = takes(|| found = Some(search(&mut hands, wait, now)));
    (found.unwrap(), took)
}

#[test]
fn the_search_takes_no_longer_past_many_waits_of_one_owner() {
    let (found, _) = search_past(200, 150);
    assert_eq!(found, Search::NoCycle, "some of them were seen more than once");
    let (_, took) = search_past(500, 480);
    println!("past 500 READ and 480 WRITE: {took:?}");
    assert!(took < Duration::from_millis(2), "{took:?}");
    // Its limit counts those waits, too.
    let (found, took) = search_past(5000, 4900);
    println!("past 5000 READ and 4900 WRITE: {took:?}");
    assert_eq!(found, Search::GaveUp);
    assert!(took < Duration::from_millis(2), "{took:?}");
}

// --- what is due first --------------------------------------------------------------------------

/// The lock of a closed connection stands among those whose leases end, in the order of time.
#[test]
fn a_closed_sessions_lock_is_swept_in_its_time() {
    let mut server = Server::new();
    for (key, client, ms) in [(b"e" as Key, None, 100), (b"k", Some(7), 60_000), (b"l", None, 300)]
    {
        let session = client.map(ClientId::from);
        server.ask(key, Input::Acquire(Acquire { session, ..acquire(b"ann", Mode::Write, ms) }));
        server.waits(key, "bob", Mode::Write, 100 + ms);
    }
    server.pass_ms(200);
    server.manager.connection_ended(ClientId::from(7), server.now());
    server.pass_ms(200);
    server.sweep();
    assert_eq!(server.swept, [b"e" as Key, b"k", b"l"]);
}

/// The locks of a closed connection are swept in the order of time, like everything else that is
/// due.
#[test]
fn a_closed_sessions_lock_is_swept_before_what_comes_due_later() {
    let mut server = Server::new();
    for (key, client, ms) in [(b"k" as Key, 7, 60_000), (b"l", 8, 1000), (b"m", 9, 1000)] {
        let session = Some(ClientId::from(client));
        let ask = Acquire { session, ..acquire(b"ann", Mode::Write, ms) };
        assert!(matches!(server.ask(key, Input::Acquire(ask)), Reply::Granted { .. }));
        server.waits(key, "bob", Mode::Write, 100 + client);
    }
    // Each session is renewed after a third of its lease.
    server.pass_ms(332);
    server.manager.connection_ended(ClientId::from(7), server.now());
    server.pass_ms(10);
    server.sweep();
    assert_eq!(server.swept[0], b"k", "{:?}", server.swept);
    assert_eq!(server.told.len(), 1, "{:?}", server.told);

    let mut server = Server::new();
    let _ = server.holds(b"l", "ann", Some(8));
    let _ = server.holds(b"k", "ann", Some(7));
    server.pass_ms(334);
    // Work that came due earlier but lets nobody in comes after it.
    server.manager.connection_ended(ClientId::from(7), server.now());
    server.sweep();
    assert_eq!(server.swept[..2], [b"k" as Key, b"l"]);
}

/// An owner with very many groups in line acquires the lock, so that they need no turn.
#[test]
fn groups_that_a_hold_covers_leave_the_line_in_portions() {
    let mut world = World::new();
    let _ = world.drive(Input::Acquire(acquire(b"x", Mode::Write, 600_000)));
    let ask = acquire(b"a", Mode::Write, 600_000);
    let want = Want { key: &b"k"[..], mode: Mode::Write, limit: None, number: 0 };
    for number in 1..=5000 {
        let (waiter, since) = (WaiterId::from(number), world.now);
        let caller = Parking { waiter, client: None, since, ends_at: None, is_of_several: true };
        let _ =
            world.drive(Input::Join(&Group::new(0, &[want], &ask, &caller).next_entry().unwrap()));
    }
    let mut input = Input::Acquire(Acquire { patience: Patience::Take, ..ask });
    while world.volatile.queue.group_count() > 0 {
        let before = world.volatile.queue.group_count();
        let _ = world.drive(input);
        let covered = before - world.volatile.queue.group_count();
        assert!((1..=StepContext::PORTION).contains(&covered), "{covered} of {before}");
        input = Input::Tick;
    }
}
