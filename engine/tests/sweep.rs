//! What the engine does outside commands: in the order of deadlines, in portions, and only while
//! the gate is open.

use std::time::Duration;

use crate::support::{MapHost, START_MS, Value};
use rlock_core::manager::LockId;
use rlock_core::{Change, ClientId, EpochMs, Lock, Mode, Token};
use rlock_engine::{Deferred, Gate, events, run_deferred, timers};

/// Keys `k00`, `k01`, … held by ann, each with a waiter until 100 ms.
fn many_waits(count: u64) -> MapHost {
    let host = MapHost::primary();
    for number in 0..count {
        host.ask(1, &format!("acquire k{number:02} ann"));
        host.ask(100 + number, &format!("acquire k{number:02} bob BLOCK 100"));
    }
    host.take_log();
    host
}

fn locked_by(owner: &'static [u8]) -> Lock {
    let mut lock = Lock::default();
    let deadline = EpochMs::new(START_MS + 60_000).unwrap();
    let token = Token::new(START_MS * 1000).unwrap();
    lock.replay(&Change::Granted { owner: owner.into(), mode: Mode::Write, token, deadline });
    lock
}

#[test]
fn a_hold_expires_and_the_next_in_line_gets_the_lock() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 0");
    assert_eq!(host.alarm(), Some(100));
    host.at(99);
    assert_eq!(host.turn(), [""; 0]);
    host.at(100);
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_sweep_is_scheduled_once_however_much_happens() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(1, "acquire l ann");
    host.remove("k");
    host.remove("l");
    timers::soon(&host);
    assert!(!host.state_of(|state| state.is_at_rest()));
    assert_eq!(host.take_deferred(), [(0, Deferred::Sweep)]);
    run_deferred(&host, Deferred::Sweep);
    assert!(host.state_of(|state| state.is_at_rest()));
    timers::soon(&host);
    assert_eq!(host.take_deferred(), [(0, Deferred::Sweep)], "and again the next time");
}

#[test]
fn a_clock_that_is_set_back_delays_nothing_that_is_due() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.at(20_000);
    host.remove("k");
    host.at(1000);
    assert_eq!(host.turn(), [""; 0], "the server's timers follow the clock");
    timers::clock_was_set(&host);
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_clock_that_is_set_while_nothing_is_pending_changes_nothing() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    timers::clock_was_set(&host);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.take_log(), [""; 0]);
    assert_eq!(host.take_deferred(), []);
}

#[test]
fn the_gate_is_asked_once_for_all_keys() {
    let host = many_waits(3);
    host.at(100);
    assert_eq!(host.turn().len(), 3);
    assert_eq!(host.world().gate_asked, 1);
    host.at(30_000);
    host.turn();
    assert_eq!(host.world().gate_asked, 1, "there is nothing to do");
}

#[test]
fn in_a_cluster_the_gate_is_asked_for_every_key() {
    let host = many_waits(3);
    host.world().is_cluster = true;
    host.at(100);
    assert_eq!(host.turn().len(), 3);
    assert_eq!(host.world().gate_asked, 3);
}

#[test]
fn behind_a_shut_gate_waits_end_and_nothing_is_written() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 300");
    host.ask(3, "acquire k cid BLOCK 0");
    host.world().gate = Gate::Shut;
    host.take_log();
    host.at(100);
    assert_eq!(host.turn(), [""; 0]);
    host.at(300);
    assert_eq!(host.turn(), ["2: nil"]);
    assert_eq!(host.did(), ["unblocked 2", "told 2: nil"]);
    host.world().gate = Gate::Open;
    host.at(350);
    assert_eq!(host.turn(), ["3: #2"]);
}

#[test]
fn a_shut_gate_is_asked_again_every_50_ms() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 0");
    host.world().gate = Gate::Shut;
    host.at(100);
    host.turn();
    assert!(host.state_of(|state| state.is_retrying()));
    timers::settle(&host);
    assert_eq!(host.take_deferred(), [(150, Deferred::Retry)], "once");
    host.at(150);
    run_deferred(&host, Deferred::Retry);
    assert_eq!(host.take_deferred(), [(200, Deferred::Retry)]);
    assert_eq!(host.world().gate_asked, 2);
    host.world().gate = Gate::Open;
    host.at(200);
    run_deferred(&host, Deferred::Retry);
    assert_eq!(host.turn(), ["2: #2"]);
    assert!(!host.state_of(|state| state.is_retrying()));
    assert_eq!(host.take_deferred(), []);
}

#[test]
fn a_shut_gate_is_asked_once_in_a_portion() {
    let host = many_waits(5);
    host.world().gate = Gate::Shut;
    host.at(30_000);
    host.turn();
    assert_eq!(host.world().gate_asked, 1);
}

#[test]
fn in_a_cluster_too_a_shut_gate_is_asked_once_in_a_portion() {
    let host = many_waits(5);
    host.world().is_cluster = true;
    host.world().gate = Gate::Shut;
    host.at(30_000);
    host.turn();
    assert_eq!(host.world().gate_asked, 1);
}

#[test]
fn in_a_pause_the_gate_is_shut_and_the_server_is_not_asked() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 0");
    host.world().is_paused = true;
    host.at(100);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.world().gate_asked, 0);
    host.world().is_paused = false;
    host.at(150);
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn waits_for_a_lock_that_is_served_elsewhere_are_told_to_try_again() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(3, "acquire k cid SESSION BLOCK 0");
    host.world().is_cluster = true;
    host.world().gate = Gate::Elsewhere;
    host.take_log();
    host.at(100);
    let told = host.turn();
    assert!(told[0].starts_with("2: -TRYAGAIN") && told[1].starts_with("3: -TRYAGAIN"), "{told:?}");
    assert!(!host.did().iter().any(|line| line.starts_with("replicated")));
    assert_eq!(host.take_deferred(), []);
    assert_eq!(host.state_of(|state| state.manager.shut_since()), None, "the gate is not shut");
}

#[test]
fn one_key_elsewhere_says_nothing_about_the_others() {
    let host = MapHost::primary();
    for (client, key) in [(2, "a"), (3, "b"), (4, "c")] {
        host.ask(1, &format!("acquire {key} ann LEASE 100"));
        host.ask(client, &format!("acquire {key} bob BLOCK 0"));
    }
    host.world().gates.insert(b"a".to_vec(), Gate::Elsewhere);
    host.take_log();
    host.at(100);
    let told = host.turn();
    assert!(told[0].starts_with("2: -TRYAGAIN"), "{told:?}");
    assert_eq!(told[1..], ["3: #4", "4: #5"]);
    assert_eq!(host.did()[..2], ["unblocked 2", "replicated apply"], "one lock after the other");
}

#[test]
fn a_session_of_a_lock_that_is_served_elsewhere_is_closed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION LEASE 3000");
    host.world().is_cluster = true;
    host.world().gate = Gate::Elsewhere;
    host.take_log();
    host.at(1000);
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"]);
}

#[test]
fn waits_at_a_key_of_another_type_are_told_so() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.put_other("k");
    let told = host.turn();
    assert!(told[0].starts_with("2: -WRONGTYPE"), "{told:?}");
    assert_eq!(host.holds("k"), "another value");
}

#[test]
fn a_value_that_comes_from_outside_grants_its_owners_own_waits() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.put_lock("k", locked_by(b"bob"));
    assert_eq!(host.turn().len(), 1);
    assert_eq!(host.holds("k"), "bob write depth=2 until=60000");
}

#[test]
fn a_portion_ends_after_its_time_and_the_rest_follows() {
    let host = many_waits(12);
    host.world().tick = Duration::from_micros(100);
    host.at(100);
    assert_eq!(host.turn().len(), 5);
    assert_eq!(host.turn().len(), 5);
    assert_eq!(host.turn().len(), 2);
    assert_eq!(host.take_deferred(), []);
}

#[test]
fn a_portion_has_time_for_tasks_however_much_is_published() {
    let host = many_waits(30);
    host.ask(1, "acquire other ann");
    host.remove("other");
    host.world().tick = Duration::from_micros(10);
    host.world().notify_takes = Duration::from_micros(600);
    host.at(100);
    assert_eq!(host.turn().len(), 13);
}

#[test]
fn tasks_are_done_in_the_order_of_their_deadlines() {
    let host = MapHost::primary();
    for (client, key, ms) in [(2, "a", 30), (3, "b", 10), (4, "c", 20)] {
        host.ask(1, &format!("acquire {key} ann"));
        host.ask(client, &format!("acquire {key} bob BLOCK {ms}"));
    }
    host.take_log();
    host.at(50);
    host.turn();
    let answered: Vec<String> =
        host.did().into_iter().filter(|line| line.starts_with("unblocked")).collect();
    assert_eq!(answered, ["unblocked 3", "unblocked 4", "unblocked 2"]);
}

#[test]
fn a_session_is_renewed_by_itself() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION LEASE 3000");
    host.take_log();
    host.at(1000);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "ann write depth=1 until=4000");
    assert_eq!(host.did()[0], "replicated apply");
    assert_eq!(host.alarm(), Some(2000));
}

#[test]
fn a_session_that_cannot_be_renewed_is_closed_shortly_before_its_deadline() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION LEASE 3000");
    host.set_expiry("k", None);
    host.world().gate = Gate::Shut;
    host.take_log();
    for ms in [1000, 2989] {
        host.at(ms);
        host.turn();
        assert_eq!(host.did(), [""; 0]);
    }
    host.at(2990);
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"]);
}

/// Meanwhile, replicas may acknowledge another hold of the lock.
#[test]
fn acknowledgments_do_not_keep_a_session_that_cannot_be_renewed() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann READ SESSION LEASE 1200");
    assert_eq!(host.ask(2, "acquire k bob READ ACKS 1 LEASE 9000"), "");
    host.turn();
    host.world().gate = Gate::Shut;
    host.at(400);
    host.turn();
    host.world().acknowledged = vec![1000];
    assert_eq!(host.turn(), ["2: #2"]);
    host.at(1190);
    host.turn();
    assert!(host.did().contains(&"closes 1 (Sweep)".to_owned()));
}

#[test]
fn a_session_whose_lock_was_flushed_behind_a_shut_gate_is_closed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.ask(2, "acquire l bob SESSION");
    host.world().gate = Gate::Shut;
    host.world().keys.remove(&LockId { db: 0, key: b"k".as_slice().into() });
    events::loading_is(&host, false);
    events::loading_is(&host, true);
    host.take_log();
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"], "and no other one");
}

/// The portion asks about the gate for that lock.
#[test]
fn the_first_lock_that_may_have_changed_behind_a_shut_gate_is_seen_too() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.world().gate = Gate::Shut;
    host.world().keys.remove(&LockId { db: 0, key: b"k".as_slice().into() });
    events::slots_moved(&host);
    host.take_log();
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"]);
}

#[test]
fn a_pending_grant_whose_key_is_gone_is_refused_behind_a_shut_gate() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann ACKS 1");
    host.world().gate = Gate::Shut;
    host.world().keys.remove(&LockId { db: 0, key: b"k".as_slice().into() });
    events::loading_is(&host, false);
    events::loading_is(&host, true);
    let told = host.turn();
    assert!(told[0].starts_with("1: -NOACKS"), "{told:?}");
}

#[test]
fn behind_a_shut_gate_another_type_is_seen_as_a_free_lock() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.world().gate = Gate::Shut;
    host.world().keys.get_mut(&LockId { db: 0, key: b"k".as_slice().into() }).unwrap().value =
        Value::Other;
    events::loading_is(&host, false);
    events::loading_is(&host, true);
    host.take_log();
    host.turn();
    assert_eq!(host.did(), ["closes 1 (Sweep)"]);
}

#[test]
fn what_was_postponed_is_done_by_the_next_sweep_after_the_gate_has_opened() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION LEASE 3000");
    host.world().gate = Gate::Shut;
    host.at(1000);
    host.turn();
    host.world().gate = Gate::Open;
    events::connection_ended(&host, ClientId::from(1));
    host.turn();
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_replica_sweeps_nothing() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann LEASE 100");
    host.follow(&primary);
    host.take_log();
    host.at(100);
    timers::soon(&host);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!((host.did(), host.alarm()), (vec![], None));
}
