//! Defects in groups that a hostile reader found.

use std::time::Duration;

use crate::support::MapHost;
use rlock_core::manager::At;
use rlock_core::{Refusal, StepContext};
use rlock_engine::{Deferred, Gate, Host};

fn turns(host: &MapHost) -> Vec<String> {
    (0..3).flat_map(|_| host.turn()).collect()
}

/// A value of another type is at a key now.
fn another_type_comes(host: &MapHost, key: &str) {
    host.put_other(key);
    rlock_engine::events::key_came(host, 0, key.as_bytes());
}

/// Two READ turns; the first belongs to the owner whose WRITE arrives by RENAME.
#[test]
fn a_turn_to_read_is_void_beside_anothers_write() {
    for first in ["acquire k o1 READ QUEUE 60000", "macquire 2 k m o1 MODES READ WRITE BLOCK 0"] {
        for comes_at_once in [false, true] {
            let host = MapHost::primary();
            host.ask(1, "acquire k z");
            host.ask(2, "acquire m z");
            host.ask(2, "acquire n z");
            host.ask(3, first);
            assert_eq!(host.ask(4, "macquire 2 k n o2 MODES READ WRITE BLOCK 0"), "");
            host.ask(1, "release k z");
            host.ask(5, "acquire other o1");
            host.put_lock("k", host.lock("other"));
            if !comes_at_once {
                turns(&host);
            }
            host.ask(2, "release n z");
            turns(&host);
            assert_eq!(host.holds("k"), host.holds("other"), "{first}");
            host.ask(5, "release k o1");
            turns(&host);
            assert!(host.holds("n").contains("o2"), "{first}: {}", host.holds("n"));
        }
    }
}

#[test]
fn what_cannot_be_cancelled_goes_on_waiting() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.ask(4, "acquire a cy BLOCK 0");
    another_type_comes(&host, "c");
    turns(&host);
    assert!(host.ask(3, "cancel c ann").starts_with("-WRONGTYPE"));
    assert_eq!(turns(&host), [""; 0]);
    host.ask(3, "cancel b ann");
    assert_eq!(turns(&host).len(), 2, "ann has her nil, cy the lock");
}

#[test]
fn a_reserved_key_that_cannot_be_cancelled_at_is_left_with_the_group() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    another_type_comes(&host, "a");
    assert!(host.ask(3, "cancel a ann").starts_with("-WRONGTYPE"));
    host.remove("a");
    turns(&host);
    assert_eq!(host.state_of(|state| state.manager.group_totals()[0]), 1);
    host.ask(3, "cancel b ann");
    turns(&host);
    assert_eq!(host.line("a"), "");
}

/// A host where a hundred requests wait until their owner's own hold of `a` is confirmed.
fn held_back(is_cluster: bool) -> MapHost {
    let host = MapHost::primary();
    host.world().is_cluster = is_cluster;
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire a ann ACKS 1");
    for n in 0..100 {
        assert_eq!(host.ask(100 + n, &format!("macquire 2 a b{n} ann BLOCK 0")), "");
    }
    host.world().offset = 10;
    turns(&host);
    host
}

#[test]
fn a_group_that_is_held_back_costs_others_nothing() {
    for is_cluster in [false, true] {
        let host = held_back(is_cluster);
        let opened = || host.world().opened_to_write;
        let before = opened();
        turns(&host);
        assert_eq!(opened(), before, "nothing is due");
        assert!(!host.has_deferred(Deferred::Sweep));
        host.ask(5, "acquire zz q");
        let before = opened();
        host.ask(5, "renew zz q");
        assert_eq!(opened() - before, 1);
        host.world().acknowledged = vec![10];
        turns(&host);
        host.ask(5, "renew zz q");
        assert_eq!(turns(&host), [""; 0]);
        assert_eq!(host.state_of(|state| state.manager.group_totals()[0]), 0, "all are granted");
    }
}

#[test]
fn who_waits_only_for_the_confirmation_of_its_own_hold_closes_no_cycle() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(2, "acquire a ann ACKS 1");
    assert_eq!(host.ask(4, "acquire a cy BLOCK 0"), "");
    assert_eq!(host.ask(3, "macquire 2 a b ann BLOCK 0"), "");
}

#[test]
fn those_behind_a_group_hear_that_the_slot_moves() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 100");
    assert_eq!(host.ask(3, "acquire a cy BLOCK 0"), "");
    turns(&host);
    host.world().gates.insert(b"a".to_vec(), Gate::Elsewhere);
    host.at(100);
    let told = turns(&host);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("3: -TRYAGAIN")), "{told:?}");
}

/// A hold of a connection's session expires, and the step that notices is the one in which a group
/// of that connection reaches the lock. The step stops for the permissions of the next waiter.
#[test]
fn who_comes_where_its_session_ends_leaves_no_place() {
    let host = MapHost::primary();
    host.ask(1, "acquire a z READ LEASE 300");
    host.ask(2, "acquire b ann LEASE 1001 SESSION");
    host.ask(3, "acquire b cy READ BLOCK 0");
    assert_eq!(host.ask(2, "macquire 2 a b bob MODES WRITE READ BLOCK 0"), "");
    host.at(1_100);
    turns(&host);
    assert!(host.holds("b").contains("cy"), "{}", host.holds("b"));
    assert_eq!((host.line("a"), host.line("b")), (String::new(), String::new()));
    host.state_of(|state| state.manager.check()).unwrap();
}

/// The first portion of a lock at which nobody can be granted is used up by waits that have timed
/// out. Then the key is another owner's lock.
#[test]
fn a_group_that_loses_its_turn_with_the_first_portion_gives_up_later_locks() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0"), "");
    for n in 0..StepContext::PORTION {
        host.ask(100 + n as u64, &format!("acquire a owner{n} BLOCK 100"));
    }
    host.at(100);
    let at = At { db: 0, key: b"a", now: host.now() };
    host.state(|state| state.manager.dismiss(at, &Refusal::WrongType));
    host.state_of(|state| state.manager.check()).unwrap();
    host.ask(3, "acquire other zoe");
    host.put_lock("a", host.lock("other"));
    turns(&host);
    assert_eq!(host.ask(4, "acquire b dan BLOCK 0"), "");
    host.ask(1, "release b bob");
    turns(&host);
    assert!(host.holds("b").contains("dan"), "{} {}", host.holds("b"), host.line("b"));
}

/// A command about `other`, in another slot than the locks of a group, opens that key alone.
fn opens_only_its_own_key(host: &MapHost, line: &str) {
    let opened = || host.world().opened_to_write;
    let before = opened();
    host.ask(9, line);
    assert_eq!(opened() - before, 1, "{line}");
}

#[test]
fn in_a_cluster_a_command_does_not_do_what_a_sweep_left() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire {x}a zoe LEASE 1000");
    host.ask(2, "macquire 2 {x}a {x}b ann BLOCK 0");
    host.ask(9, "acquire other bob");
    host.ask(3, "acquire other eve BLOCK 0");
    host.at(1000);
    // The portion is over before the queue of the lock is served.
    host.world().tick = Duration::from_millis(1);
    host.turn();
    assert_eq!((host.holds("{x}a"), host.line("{x}a")), ("no key".into(), "ann".into()));
    opens_only_its_own_key(&host, "release other bob");
    assert!((0..3).flat_map(|_| turns(&host)).any(|line| line.starts_with("2: #")));
}

#[test]
fn in_a_cluster_a_command_that_ends_a_session_revokes_nothing_in_another_slot() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.world().acknowledged = vec![0];
    host.ask(2, "acquire other ann SESSION");
    assert_eq!(host.ask(2, "macquire 2 {x}a {x}b ann ACKS 1"), "");
    opens_only_its_own_key(&host, "force other");
    turns(&host);
    assert_eq!((host.holds("{x}a"), host.holds("{x}b")), ("no key".into(), "no key".into()));
}
