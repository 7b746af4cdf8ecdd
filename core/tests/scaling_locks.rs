//! The cost of one operation does not grow with the number of locks that the manager knows.

use crate::support::cost::{Stopwatch, takes_as_long_beside_ten_thousand};
use crate::support::server::Server;
use crate::support::acquire;
use rlock_core::grammar::TellTo;
use rlock_core::manager::{LockId, Parked, Same};
use rlock_core::{Acquire, Input, Lock, Mode, Owner, Parking, Patience};

/// An owner that waits with TELL for this many locks. Returns the last one.
fn waits_with_tell(server: &mut Server, owner: &Owner, locks: u64) -> LockId {
    let mut last = LockId::default();
    for number in 0..locks {
        let (key, mut lock) = (number.to_be_bytes(), Lock::default());
        let holds = acquire(b"holder", Mode::Write, 1000);
        let _ = server.decide(&mut lock, &key, Input::Acquire(holds));
        last = LockId { db: 0, key: key.as_slice().into() };
        let waiter = server.manager.next_waiter();
        let user = (*b"default").into();
        let parked = Parked::new(None, last.clone(), owner.clone(), user, false);
        server.manager.tell_begins(waiter, parked, TellTo { channel: b"c", id: b"1" });
        let parking =
            Parking { waiter, client: None, since: server.now(), ends_at: None, is_of_several: false };
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
