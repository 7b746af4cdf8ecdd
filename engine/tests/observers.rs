//! `RLOCK.AWAIT`: who gets which reply, when, and that nothing else depends on it.

use std::time::Duration;

use crate::support::{MapHost, START_MS};
use rlock_core::{Lock, WaiterId};
use rlock_engine::{Deferred, Gate, blocked, events};

const NOBODY: &str = "*2 0 nil";

/// ann holds `k`, and connection 2 observes that.
fn observed() -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    assert_eq!(host.ask(2, "await k #1 BLOCK 0"), "");
    host
}

/// The connections that were unblocked, in order.
fn unblocked(host: &MapHost) -> Vec<u64> {
    let number = |line: &String| line.strip_prefix("unblocked ")?.parse().ok();
    host.did().iter().filter_map(number).collect()
}

fn observers(host: &MapHost) -> usize {
    host.state_of(|state| state.manager.observer_count())
}

#[test]
fn who_holds_write_is_replied_if_the_token_differs() {
    let host = MapHost::primary();
    assert_eq!((host.ask(2, "await k 0"), host.ask(2, "await k 5")), ("nil".into(), NOBODY.into()));
    host.ask(1, "acquire k ann LEASE 5000");
    assert_eq!(host.ask(2, "await k 0"), "*2 #1 ann");
    assert_eq!(host.ask(2, "await k 0 BLOCK 0"), "*2 #1 ann");
    assert_eq!(host.ask(2, "await k #1"), "nil");
    host.at(5000);
    assert_eq!(host.ask(2, "await k #1"), NOBODY, "expired, swept or not");
    host.ask(1, "acquire r ann READ");
    assert_eq!(host.ask(2, "await r 0"), "nil", "READ is not seen");
}

#[test]
fn an_observer_is_told_the_next_holder_and_nothing_in_between() {
    let host = observed();
    host.ask(3, "acquire k bob BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["3: #2"]);
    host.at(1);
    assert_eq!(host.turn(), ["2: *2 #2 bob"]);
    assert_eq!((host.handles(), observers(&host)), (0, 0));
}

#[test]
fn without_waiters_it_is_told_in_the_same_iteration_of_the_loop() {
    let host = observed();
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
}

/// An observer that comes between the deadline and the alarm knows the lock as free.
#[test]
fn it_is_told_of_the_deadline_though_another_observer_comes_just_then() {
    let host = observed();
    // The key outlives the hold.
    host.ask(4, "acquire k bob BLOCK 0");
    host.world().gate = Gate::Shut;
    host.at(5000);
    assert_eq!(host.ask(3, "await k 0 BLOCK 0"), "");
    let told: Vec<String> = (0..3).flat_map(|_| host.turn()).collect();
    assert_eq!(told, [format!("2: {NOBODY}")]);
}

#[test]
fn it_never_gets_its_own_token_back() {
    let host = observed();
    host.ask(1, "release k ann");
    host.ask(1, "acquire k ann");
    host.ask(4, "await k #2 BLOCK 0");
    host.ask(1, "release k ann");
    host.ask(5, "await k 0 BLOCK 0");
    host.ask(1, "acquire k ann READ");
    // All earlier news is old: 5 knows of it already.
    assert_eq!(host.turn(), [format!("2: {NOBODY}"), format!("4: {NOBODY}")]);
    assert_eq!(observers(&host), 1);
    host.ask(6, "await k 0 BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), [""; 0]);
}

#[test]
fn renewals_and_levels_are_not_seen() {
    let host = observed();
    host.ask(1, "acquire k ann LEASE 5000");
    host.ask(1, "renew k ann LEASE 9000");
    host.ask(1, "acquire k ann READ LEASE 5000");
    host.ask(1, "release k ann WRITE DEPTH 1");
    assert_eq!(host.turn(), [""; 0]);
    host.at(5000);
    assert_eq!(host.turn(), [""; 0], "the renewal counts");
    host.at(9000);
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
}

#[test]
fn it_is_told_when_the_hold_expires_and_nothing_is_written_for_it() {
    let host = observed();
    assert_eq!(host.alarm(), Some(5000));
    host.at(4999);
    assert_eq!(host.turn(), [""; 0]);
    let opened = host.world().opened_to_write;
    let written = host.world().stream.len();
    host.at(5000);
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
    assert_eq!(host.world().opened_to_write, opened);
    // The server itself deletes an expired key that is read.
    let written = host.world().stream.split_off(written);
    assert!(written.iter().all(|written| written.words[0] == b"DEL"), "{written:?}");
}

#[test]
fn it_is_told_behind_a_shut_gate_and_in_a_pause() {
    for is_paused in [false, true] {
        let host = observed();
        host.ask(3, "acquire k bob BLOCK 0");
        host.world().gate = Gate::Shut;
        host.world().is_paused = is_paused;
        host.at(5000);
        assert_eq!(host.turn(), [format!("2: {NOBODY}")], "bob waits for the gate");
    }
}

#[test]
fn it_is_told_in_the_grace_time() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    host.world().bounds.grace_ms = 60_000;
    assert_eq!(host.ask(2, "await k #1 BLOCK 0"), "");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
}

#[test]
fn its_wait_ends_at_its_time() {
    let host = observed();
    assert_eq!(host.ask(3, "await k #1 BLOCK 500"), "");
    assert_eq!(host.alarm(), Some(500));
    host.world().gate = Gate::Shut;
    host.at(499);
    assert_eq!(host.turn(), [""; 0]);
    host.at(500);
    assert_eq!(host.turn(), ["3: nil"]);
    assert_eq!(observers(&host), 1);
}

#[test]
fn client_unblock_and_a_closed_connection_end_its_wait() {
    let host = observed();
    host.ask(3, "await k #1 BLOCK 9000");
    host.take_log();
    assert_eq!(host.deliver(1), "2: nil");
    blocked::over(&host, WaiterId::from(1), false);
    host.close(3);
    assert_eq!((observers(&host), host.handles(), host.seen()), (0, 0, vec![]));
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), [""; 0]);
}

#[test]
fn it_stands_in_no_queue_and_counts_for_max_waiters() {
    let host = observed();
    assert_eq!(host.state_of(|state| state.manager.totals().waiters), 0);
    assert!(host.state_of(|state| state.manager.volatile(0, b"k").is_none()));
    assert_eq!(host.state_of(|state| state.manager.observers_of(0, b"k")), 1);
    host.world().bounds.max_waiters = 2;
    assert_eq!(host.ask(3, "acquire k bob BLOCK 0 MAXQUEUE 1"), "", "nobody is queued");
    let said = host.ask(4, "acquire k cid BLOCK 0");
    assert!(said.starts_with("-TOOMANY too many blocked connections"), "{said}");
    let said = host.ask(4, "await k #1 BLOCK 0");
    assert_eq!(
        said,
        "-TOOMANY too many blocked connections (rlock.max-waiters is 2): 'k' is not observed"
    );
    assert_eq!(host.ask(4, "await k 0 BLOCK 0"), "*2 #1 ann");
}

#[test]
fn a_pending_hold_counts_as_none_until_it_is_confirmed() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    assert_eq!(host.ask(2, "await k 0 BLOCK 0"), "");
    assert_eq!(host.ask(1, "acquire k ann ACKS 1"), "");
    assert_eq!((host.ask(3, "await k 0"), host.turn()), ("nil".into(), vec![]));
    host.world().acknowledged = vec![100];
    assert_eq!(host.turn(), ["1: #1"]);
    host.at(1);
    assert_eq!(host.turn(), ["2: *2 #1 ann"]);
}

#[test]
fn another_type_is_an_error_at_once_and_later() {
    let host = observed();
    host.put_other("k");
    let error = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    assert_eq!(host.ask(3, "await k 0"), error);
    assert_eq!(host.turn(), [format!("2: {error}")]);
    assert!(!host.world().watches_keys);
    assert_eq!(host.ask(4, "await free 0 BLOCK 0"), "");
    assert!(host.world().watches_keys, "anything may come to a free name");
    host.put_other("free");
    events::key_came(&host, 0, b"free");
    assert_eq!(host.turn(), [format!("4: {error}")]);
}

#[test]
fn it_sees_what_stands_at_the_name_when_keys_are_removed_moved_or_flushed() {
    let host = observed();
    let lock = host.lock("k");
    host.remove("k");
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
    assert_eq!(host.ask(2, "await k 0 BLOCK 0"), "");
    host.put_lock("k", lock.clone());
    blocked::key_came(&host, WaiterId::from(host.waiter(2)));
    assert_eq!(host.turn(), ["2: *2 #1 ann"]);
    for happens in [
        (|host: &MapHost| events::flushed(host, None)) as fn(&MapHost),
        |host| events::flushed(host, Some(0)),
        |host| events::swapped(host, 0, 1),
        |host| events::loading_is(host, true),
    ] {
        host.ask(2, "await k #1 BLOCK 0");
        host.world().keys.clear();
        happens(&host);
        assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
        host.put_lock("k", lock.clone());
    }
    host.ask(2, "await k #1 BLOCK 0");
    host.put_lock("k", Lock::default());
    assert_eq!(host.turn(), [format!("2: {NOBODY}")]);
}

#[test]
fn databases_are_apart() {
    let host = observed();
    host.world().db = 1;
    host.ask(1, "acquire k bob");
    host.ask(1, "release k bob");
    events::flushed(&host, Some(1));
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.ask(3, "await k #1"), NOBODY);
}

#[test]
fn one_without_the_right_gets_noperm_when_it_would_be_told() {
    let host = observed();
    host.world().users.insert(3, "eve".into());
    host.ask(3, "await k #1 BLOCK 0");
    host.ask(4, "await k #1 BLOCK 0");
    host.world().denied.insert("eve".into());
    host.ask(1, "release k ann");
    let refused = "3: -NOPERM the user lost permission for RLOCK.AWAIT or for the key 'k' while \
                   waiting";
    assert_eq!(host.turn(), [format!("2: {NOBODY}"), refused.into(), format!("4: {NOBODY}")]);
}

#[test]
fn where_the_slot_moves_it_gets_tryagain() {
    let host = observed();
    host.world().is_cluster = true;
    host.world().gate = Gate::Elsewhere;
    host.remove("k");
    assert_eq!(host.turn(), ["2: -TRYAGAIN the slot of the key is moving or has moved"]);
}

#[test]
fn a_replica_replies_at_once_or_not_at_all() {
    let primary = MapHost::primary();
    primary.ask(1, "acquire k ann");
    let replica = MapHost::replica();
    replica.follow(&primary);
    let [_, token, ann]: [String; 3] = replica
        .ask(2, "await k 0")
        .split(' ')
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(ann, "ann");
    assert_eq!(replica.ask(2, &format!("await k {token}")), "nil");
    assert!(replica.ask(2, "await k 0 BLOCK 5").starts_with("-ERR RLOCK.AWAIT cannot block"));
    replica.world().denies_blocking = true;
    assert_eq!(replica.ask(2, &format!("await k {token} BLOCK 0")), "nil");
}

#[test]
fn where_nothing_can_block_it_acts_as_without_block() {
    let host = MapHost::primary();
    host.world().denies_blocking = true;
    assert_eq!(host.ask(2, "await k 0 BLOCK 0"), "nil");
    host.world().denies_blocking = false;
    host.world().refuses_to_block = true;
    assert_eq!(host.ask(2, "await k 0 BLOCK 0"), "nil");
    assert_eq!((observers(&host), host.alarm()), (0, None));
}

#[test]
fn a_demoted_server_tells_nobody() {
    let host = observed();
    events::set_role(&host, false);
    assert_eq!(observers(&host), 0);
    host.at(6000);
    assert_eq!(host.turn(), [""; 0]);
    host.close(2);
    assert_eq!(host.handles(), 0);
}

#[test]
fn many_are_told_in_portions_in_order_of_arrival_after_the_waiters() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(100, "acquire k bob BLOCK 0");
    for client in 2..62 {
        host.ask(client, "await k #1 BLOCK 0");
    }
    host.ask(1, "release k ann");
    assert!(!host.has_deferred(Deferred::Sweep), "nothing is due but for the observers");
    host.world().tick = Duration::from_micros(10);
    let mut told = host.turn();
    let mut portions = Vec::new();
    for ms in 1..40 {
        host.at(ms);
        let portion = host.turn();
        portions.push(portion.len());
        told.extend(portion);
    }
    let clients = told.iter().map(|line| line.split(':').next().unwrap().parse().unwrap());
    let clients: Vec<u64> = clients.collect();
    assert_eq!(clients, [100].into_iter().chain(2..62).collect::<Vec<_>>());
    assert!(portions.iter().all(|count| (0..=13).contains(count)), "{portions:?}");
}

#[test]
fn the_hand_off_does_not_wait_for_observers() {
    let host = observed();
    host.ask(3, "acquire k bob BLOCK 0");
    host.take_log();
    host.ask(1, "release k ann");
    let deferred = host.world().deferred.clone();
    assert_eq!(deferred, [(START_MS + 1, Deferred::Observers)], "a millisecond later");
    let rights = host.world().rights_asked;
    host.turn();
    assert_eq!(host.world().rights_asked, rights, "nothing was done for the observer yet");
}

#[test]
fn what_a_script_does_is_one_step() {
    let host = observed();
    host.ask_in_script("release k ann");
    host.ask_in_script("acquire k bob");
    host.ask_in_script("release k bob");
    host.ask_in_script("acquire k cid");
    assert_eq!(host.turn(), ["2: *2 #3 cid"]);
}

#[test]
fn observers_that_know_different_tokens_are_told_in_order_of_arrival() {
    let host = observed();
    host.ask(1, "release k ann");
    host.ask(3, "await k 0 BLOCK 0");
    host.ask(1, "acquire k ann");
    host.ask(4, "await k #2 BLOCK 0");
    host.ask(1, "release k ann");
    host.ask(1, "acquire k bob");
    host.take_log();
    host.turn();
    assert_eq!(unblocked(&host), [2, 3, 4]);
}

#[test]
fn what_it_is_told_is_true_at_that_moment() {
    let host = observed();
    host.ask(3, "await k #1 BLOCK 0");
    host.ask(1, "release k ann");
    host.ask(1, "acquire k bob LEASE 10");
    host.world().replies_at_once = true;
    host.world().told_takes_ms = 10;
    host.turn();
    let told = host.did();
    let told: Vec<&String> = told.iter().filter(|line| line.starts_with("told")).collect();
    assert_eq!(told, ["told 2: *2 #2 bob", &format!("told 3: {NOBODY}")]);
}

#[test]
fn a_flush_looks_only_at_its_own_database() {
    let host = observed();
    let opened = host.world().opened;
    events::flushed(&host, Some(1));
    host.turn();
    assert_eq!(host.world().opened, opened);
}

#[test]
fn they_are_told_after_waiters_that_are_granted_in_portions() {
    let host = observed();
    for client in 100..500 {
        host.ask(client, &format!("acquire k r{client} READ BLOCK 0"));
    }
    host.ask(1, "release k ann");
    for ms in 1..20 {
        host.at(ms);
        host.turn();
    }
    let unblocked = unblocked(&host);
    assert_eq!((unblocked.len(), unblocked.last()), (401, Some(&2)));
}

#[test]
fn it_is_told_of_what_requests_for_several_locks_hold() {
    let host = observed();
    assert_eq!(host.ask(3, "await j 0 BLOCK 0"), "");
    assert_eq!(host.ask(4, "macquire 2 j k bob BLOCK 0"), "");
    assert_eq!(host.turn(), [""; 0], "what is reserved is not held");
    host.ask(1, "release k ann");
    let mut told = host.turn();
    host.at(1);
    told.extend(host.turn());
    told.sort_unstable();
    assert_eq!(told, ["2: *2 #2 bob", "3: *2 #2 bob", "4: #2"]);
    host.ask(2, "await k #2 BLOCK 0");
    host.ask(3, "await j #2 BLOCK 0");
    host.ask(4, "mrenew 2 j k bob");
    assert_eq!(host.turn(), [""; 0]);
    host.ask(4, "mrelease 2 j k bob");
    assert_eq!(host.turn(), [format!("2: {NOBODY}"), format!("3: {NOBODY}")]);
}

/// The lock changes, and its last observer departs before its reply.
#[test]
fn nothing_is_due_when_the_last_observer_has_gone() {
    let host = observed();
    host.ask(3, "release k ann");
    assert!(host.has_deferred(Deferred::Observers));
    host.close(2);
    host.turn();
    assert!(!host.has_deferred(Deferred::Observers));
}
