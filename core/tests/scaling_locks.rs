//! The cost of one operation does not grow with the number of locks that the manager knows.

use crate::support::cost::{Stopwatch, taken, takes_as_long_beside_ten_thousand};
use crate::support::server::Server;
use crate::support::{acquire, lease};
use allocation_counter::measure;
use rlock_core::grammar::{TellTo, Want};
use rlock_core::manager::{Group, LockId, ObserverTask, Parked, Same, SeenHold, Task};
use rlock_core::{Acquire, Input, Lock, Mode, Owner, Parking, Patience, Reply};

/// An owner begins a wait with TELL, at first for this lock.
fn tell_begins(server: &mut Server, owner: &Owner, lock: LockId, is_of_several: bool) -> Parking {
    let (waiter, user) = (server.manager.next_waiter(), (*b"default").into());
    let parked = Parked::new(None, lock, owner.clone(), user, false);
    server.manager.tell_begins(waiter, parked, TellTo { channel: b"c", id: b"1" });
    Parking { waiter, client: None, since: server.now(), ends_at: None, is_of_several }
}

/// An owner that waits with TELL for this many locks. Returns the last one.
fn waits_with_tell(server: &mut Server, owner: &Owner, locks: u64) -> LockId {
    let mut last = LockId::default();
    for number in 0..locks {
        let (key, mut lock) = (number.to_be_bytes(), Lock::default());
        let holds = acquire(b"holder", Mode::Write, 1000);
        let _ = server.decide(&mut lock, &key, Input::Acquire(holds));
        last = LockId { db: 0, key: key.as_slice().into() };
        let parking = tell_begins(server, owner, last.clone(), false);
        let waits = Acquire { owner: owner.as_bytes(), patience: Patience::Tell, ..holds };
        let _ = server.decide(&mut lock, &key, Input::Park(waits, parking));
    }
    last
}

/// It replaces the one that its owner has sent for the same lock before.
#[test]
fn a_request_with_tell_takes_about_as_long_beside_ten_of_its_owner_as_beside_ten_thousand() {
    let owner = Owner::from(&b"node"[..]);
    let time_beside = |others| {
        let mut server = Server::new();
        let last = waits_with_tell(&mut server, &owner, others);
        let same = |lock: &LockId| {
            server.manager.told_request(&owner, b"default", Same::One(lock, Mode::Write))
        };
        let (begun, other) = (Stopwatch::start(), LockId::default());
        for _ in 0..200 {
            assert!(same(&last).is_some() && same(&other).is_none());
        }
        begun.elapsed()
    };
    takes_as_long_beside_ten_thousand(time_beside);
}

fn two_locks(other: &[u8]) -> [Want<&[u8]>; 2] {
    let want = |(number, key)| Want { key, mode: Mode::Write, limit: None, number };
    [(0, &b"busy"[..]), (1, other)].map(want)
}

/// All of them wait for the same lock, and each for one more.
#[test]
fn a_request_for_several_locks_takes_about_as_long_beside_ten_of_its_owner_as_beside_ten_thousand()
{
    let owner = Owner::from(&b"node"[..]);
    let time_beside = |others: u64| {
        let mut server = Server::new();
        let lock = LockId { db: 0, key: b"busy".as_slice().into() };
        for number in 0..others {
            let caller = tell_begins(&mut server, &owner, lock.clone(), true);
            let ask = acquire(owner.as_bytes(), Mode::Write, 1000);
            let ask = Acquire { patience: Patience::Tell, ..ask };
            let group = Group::new(0, &two_locks(&number.to_be_bytes()), &ask, &caller);
            server.manager.group_begins(caller.waiter, group);
        }
        let last = (others - 1).to_be_bytes();
        let same = |same: Same<'_>| server.manager.told_request(&owner, b"default", same);
        let several = |other: &[u8]| {
            let wants = &two_locks(other);
            same(Same::Several { db: 0, wants, is_renewal: false })
        };
        let begun = Stopwatch::start();
        for _ in 0..200 {
            assert!(several(&last).is_some() && several(b"other").is_none());
            assert!(same(Same::One(&lock, Mode::Write)).is_none());
        }
        begun.elapsed()
    };
    takes_as_long_beside_ten_thousand(time_beside);
}

#[test]
fn of_very_many_observed_holds_that_expire_together_one_is_looked_at_at_a_time() {
    const LOCKS: u32 = 10_000;
    let mut server = Server::new();
    let Reply::Granted { token, .. } = server.holds(b"k", "a", None) else { panic!() };
    let (owner, deadline) = (Owner::from(&b"a"[..]), server.now().after(lease(1000)));
    let held = SeenHold { token, owner, deadline };
    for number in 0..LOCKS {
        let id = LockId { db: 0, key: number.to_be_bytes().as_slice().into() };
        let waiter = server.manager.next_waiter();
        server.manager.observe(waiter, id, Some(&held), None);
    }
    server.pass_ms(1000);
    let (now, mut looked) = (server.now(), 0);
    let most = std::iter::from_fn(|| {
        let mut task = None;
        let step = taken(|| task = server.manager.next_observer_task(now));
        looked += u32::from(matches!(task?, ObserverTask::Look(_)));
        Some(step.bytes)
    });
    assert!(most.max().is_some_and(|bytes| bytes < 1000));
    assert_eq!(looked, LOCKS);
}

/// Whether they observe one lock or a lock each.
#[test]
fn a_demotion_drops_ten_thousand_observers_in_portions() {
    for locks in [1, 10_000] {
        let mut server = Server::new();
        for number in 0..10_000_u32 {
            let key = (number % locks).to_be_bytes().as_slice().into();
            let waiter = server.manager.next_waiter();
            server.manager.observe(waiter, LockId { db: 0, key }, None, None);
        }
        let now = server.now();
        let freed = |work: &mut dyn FnMut()| -measure(work).bytes_current;
        let demotion = freed(&mut || drop(server.manager.set_role(false, now)));
        assert!(demotion < 10_000, "{demotion} bytes at once");
        while server.manager.next_call().soon {
            let portion = freed(&mut || server.manager.sweep_begins(now));
            assert!(portion < 1_000_000, "{portion} bytes at once");
        }
    }
}

#[test]
fn a_swap_of_databases_moves_none_of_the_expiries_of_ten_thousand_locks() {
    let (mut server, mut two) = (Server::new(), Lock::default());
    for owner in [b"a", b"b"] {
        let ask = acquire(owner, Mode::Read, 60_000);
        let _ = server.decide(&mut two, &0_u32.to_be_bytes(), Input::Acquire(ask));
    }
    for number in 0..10_000_u32 {
        server.manager.is_at(0, &number.to_be_bytes(), &two);
    }
    let now = server.now();
    let took = taken(|| server.manager.swapped(0, 1, now));
    assert!(took.allocations < 100, "{took:?}");
    server.pass_ms(120_000);
    let mut swept = 0;
    while let Some(task) = server.manager.next_task(server.now()) {
        assert!(matches!(task, Task::Sweep(LockId { db: 1, .. }, ..)), "{task:?}");
        swept += 1;
    }
    assert_eq!(swept, 10_000);
}

/// A flush of another database concerns none of them.
#[test]
fn a_portion_can_end_among_ten_thousand_locks_that_were_not_flushed() {
    const LOCKS: u32 = 10_000;
    let mut server = Server::new();
    for number in 0..LOCKS {
        let (key, mut lock) = (number.to_be_bytes(), Lock::default());
        let holds = acquire(b"holder", Mode::Write, 60_000);
        let waits = Acquire { patience: Patience::Ticket(lease(60_000)), owner: b"next", ..holds };
        for ask in [holds, waits] {
            let _ = server.decide(&mut lock, &key, Input::Acquire(ask));
        }
    }
    server.manager.flushed(Some(1));
    let mut tasks = 0;
    while server.manager.next_task(server.now()).is_some() {
        tasks += 1;
    }
    assert!((5..20).contains(&tasks), "{tasks} tasks");
}
