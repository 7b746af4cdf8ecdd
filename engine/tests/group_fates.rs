//! Groups: deadlocks, sessions, the grace period, the gate, and values from outside.

use crate::support::MapHost;

// --- M25-M29: deadlocks --------------------------------------------------------------------------

#[test]
fn a_group_that_would_close_a_cycle_is_refused_before_it_is_blocked() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire a ann");
    host.ask(1, "acquire a bob BLOCK 0");
    let said = host.ask(2, "macquire 2 b c ann BLOCK 0");
    assert!(said.starts_with("-DEADLOCK"), "{said}");
    assert_eq!((host.line("b"), host.line("c")), (String::new(), String::new()));
}

#[test]
fn whoever_waits_for_a_reserved_lock_waits_for_the_group() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    assert_eq!(host.line("a"), "ann!");
    let said = host.ask(1, "acquire a bob BLOCK 0");
    assert!(said.starts_with("-DEADLOCK"), "{said}");
    assert_eq!(host.line("a"), "ann!");
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_group_that_closes_a_cycle_where_it_comes_to_stand_ends_in_the_next_iteration() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire a cy");
    host.ask(3, "acquire c ann");
    host.ask(1, "acquire c bob BLOCK 0");
    assert_eq!(host.ask(3, "macquire 2 a b ann BLOCK 0"), "", "it stands at a");
    host.take_log();
    host.ask(2, "release a cy");
    let told = [host.turn(), host.turn()].concat();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("3: -DEADLOCK"), "{told:?}");
    assert_eq!((host.line("a"), host.line("b")), (String::new(), String::new()));
    assert_eq!(host.take_log().iter().filter(|line| *line == "seen: deadlock").count(), 1);
}

/// M25: owners that keep to the key order are in no cycle.
#[test]
fn waits_in_key_order_close_no_cycle() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.ask(3, "macquire 2 b c cy BLOCK 0");
    host.ask(1, "acquire c bob BLOCK 0");
    host.ask(4, "macquire 2 a c dan BLOCK 0");
    let told = [host.turn(), host.turn()].concat();
    assert!(told.iter().all(|told| !told.contains("DEADLOCK")), "{told:?}");
}

// --- sessions, grace, gate, values from outside --------------------------------------------------

#[test]
fn a_session_ties_all_holds_of_the_grant() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann SESSION BLOCK 0");
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["2: #2"]);
    host.close(2);
    host.turn();
    assert_eq!((host.holds("a"), host.holds("b")), ("no key".into(), "no key".into()));
}

#[test]
fn too_many_sessions_leave_no_hold() {
    let host = MapHost::primary();
    host.world().bounds.max_sessions = 1;
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann SESSION BLOCK 0");
    host.ask(1, "release b bob");
    let told = host.turn();
    assert!(told[0].starts_with("2: -TOOMANY"), "{told:?}");
    assert_eq!((host.holds("a"), host.holds("b")), ("no key".into(), "no key".into()));
}

#[test]
fn in_the_grace_a_group_stands_at_its_first_key() {
    let host = MapHost::replica();
    host.world().bounds.grace_ms = 1000;
    rlock_engine::events::settings_are(&host);
    rlock_engine::events::set_role(&host, true);
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0"), "");
    assert_eq!((host.line("a"), host.line("b")), ("ann".into(), String::new()));
    host.at(1000);
    assert_eq!([host.turn(), host.turn()].concat(), ["2: #1"]);
}

#[test]
fn a_grace_that_begins_late_holds_a_grant_back() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 300");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    host.world().bounds.grace_ms = 1000;
    rlock_engine::events::settings_are(&host);
    host.at(300);
    assert_eq!([host.turn(), host.turn()].concat(), [""; 0]);
    host.at(1000);
    assert_eq!([host.turn(), host.turn()].concat(), ["2: #2"]);
}

#[test]
fn behind_a_shut_gate_nothing_is_granted_and_time_ends() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 300");
    host.ask(2, "macquire 2 a b ann BLOCK 500");
    host.ask(3, "macquire 2 a b cy BLOCK 0");
    host.world().gate = rlock_engine::Gate::Shut;
    host.at(300);
    assert_eq!([host.turn(), host.turn()].concat(), [""; 0]);
    host.at(500);
    assert_eq!([host.turn(), host.turn()].concat(), ["2: nil"]);
    host.world().gate = rlock_engine::Gate::Open;
    host.at(600);
    assert_eq!([host.turn(), host.turn(), host.turn()].concat(), ["3: #2"]);
}

#[test]
fn a_value_of_another_type_ends_the_wait() {
    for key in ["a", "b", "c"] {
        let host = MapHost::primary();
        host.ask(1, "acquire b bob");
        host.ask(2, "macquire 3 a b c ann BLOCK 0");
        host.put_other(key);
        rlock_engine::events::key_came(&host, 0, key.as_bytes());
        let mut told = [host.turn(), host.turn()].concat();
        if told.is_empty() {
            assert_eq!(key, "c", "it is noticed when the group comes there");
            host.ask(1, "release b bob");
            told = [host.turn(), host.turn()].concat();
        }
        assert_eq!(told.len(), 1, "{key}: {told:?}");
        assert!(told[0].starts_with("2: -WRONGTYPE"), "{key}: {told:?}");
        assert_eq!((host.line("a"), host.line("c")), (String::new(), String::new()));
    }
}

#[test]
fn a_demoted_server_forgets_its_groups() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    rlock_engine::events::set_role(&host, false);
    assert_eq!(host.state_of(|state| state.manager.group_totals()), [0, 0]);
    host.close(2);
    rlock_engine::events::set_role(&host, true);
    host.ask(1, "release b bob");
    assert_eq!(host.ask(3, "macquire 2 a b cy"), "#2");
}

/// If a hold of the group's owner at one of the keys is pending, the grant of the group waits for
/// the same acknowledgments.
#[test]
fn a_pending_cover_holds_the_reply_back() {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "acquire a ann ACKS 1"), "");
    assert_eq!(host.ask(3, "macquire 2 a b ann BLOCK 0"), "");
    host.world().offset = 10;
    assert_eq!(host.turn(), [""; 0]);
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), [""; 0]);
    host.world().acknowledged = vec![1000];
    let told = [host.turn(), host.turn(), host.turn()].concat();
    assert_eq!(told, ["2: #2", "3: #3"]);
}

/// The server itself ends the wait: by `CLIENT UNBLOCK`, or when it closes the connection.
#[test]
fn an_unblocked_group_leaves_all_its_places() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 5000");
    host.ask(2, "macquire 2 a b ann BLOCK 0 WITHTTL");
    host.ask(3, "acquire a cy BLOCK 0");
    let waiter = host.waiter(2);
    assert_eq!(host.deliver(waiter), "2: *2 nil 5000");
    rlock_engine::blocked::over(&host, rlock_core::WaiterId::from(waiter), false);
    assert_eq!(host.turn(), ["3: #2"]);
    assert_eq!(host.line("b"), "");
}

#[test]
fn the_slow_log_has_one_entry_for_a_group() {
    let host = MapHost::primary();
    host.world().bounds.slow.wait_ms = Some(100);
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    host.at(200);
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["2: #2"]);
    let shown = host.state_of(|state| {
        let all = state.manager.slowlog.newest();
        all.map(|one| (one.owner(), one.key(), one.keys, one.outcome, one.ms)).collect::<Vec<_>>()
    });
    assert_eq!(shown, [("ann".into(), "b".into(), 3, "granted", 200)], "it waited at b");
}

/// A command whose waits change more locks than one call may.
#[test]
fn hundreds_of_groups_move_in_portions() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    for number in 0..600 {
        let line = format!("macquire 2 a b{number} o{number} MODES READ WRITE BLOCK 0");
        assert_eq!(host.ask(100 + number, &line), "");
    }
    host.ask(1, "release a bob");
    let mut told = 0;
    for _ in 0..20 {
        told += host.turn().len();
    }
    assert_eq!(told, 600);
}

/// A replica has all holds of a grant or none, after every command.
#[test]
fn a_replica_never_sees_a_part_of_a_grant() {
    let (host, replica) = (MapHost::primary(), MapHost::replica());
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 3 a b c ann BLOCK 0");
    replica.follow(&host);
    assert_eq!(replica.holds("a"), "no key");
    host.ask(1, "release b bob");
    replica.follow(&host);
    for key in ["a", "b", "c"] {
        assert_eq!(replica.holds(key), host.holds(key));
    }
}

#[test]
fn behind_a_shut_gate_a_sweep_asks_the_gate_once_for_all_groups() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    for number in 0..600 {
        let line = format!("macquire 2 a b{number} o{number} MODES READ WRITE BLOCK 0");
        assert_eq!(host.ask(100 + number, &line), "");
    }
    host.ask(1, "release a bob");
    host.deliver_all();
    host.world().gate = rlock_engine::Gate::Shut;
    host.world().gate_asked = 0;
    host.turn();
    let asked = host.world().gate_asked;
    assert!(asked <= 2, "the gate was asked {asked} times");
}

/// Its tickets are withdrawn, the waiters behind them are served, and then it may enter at once.
#[test]
fn a_group_that_is_granted_in_the_call_that_blocks_it_is_answered_after_it() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(2, "acquire a ann QUEUE 60000");
    host.ask(3, "acquire a cy READ QUEUE 60000");
    host.ask(1, "release a bob");
    assert_eq!(host.line("a"), "ann! cy");
    assert_eq!(host.ask(2, "macquire 2 a b ann READ SESSION BLOCK 0"), "");
    assert!(host.world().watches_commands, "there is a session");
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.line("a"), "cy!");
    assert_eq!(host.holds("a"), "ann read depth=1 until=30000");
}

#[test]
fn a_group_is_searched_for_once_where_it_stands() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    assert!(!host.has_deferred(rlock_engine::Deferred::Search), "it was done before");
    host.ask(3, "acquire c cy");
    host.ask(4, "macquire 2 b c dan BLOCK 0");
    host.ask(1, "release b bob");
    host.turn();
    host.ask(2, "mrelease 2 a b ann");
    assert!(host.has_deferred(rlock_engine::Deferred::Search), "it stands at another lock now");
}

#[test]
fn the_holds_of_a_grant_are_counted_one_by_one() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire c ann");
    host.ask(3, "macquire 3 a b c ann BLOCK 0");
    host.take_log();
    host.ask(1, "release b bob");
    let log = host.take_log();
    assert!(log.contains(&"seen: answered #3 for 30000 with 2 holds".to_owned()), "{log:#?}");
}
