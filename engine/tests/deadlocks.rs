//! Waits that would close a cycle of owners: refused before the connection is blocked; in a
//! Cluster, soon after.

use crate::support::MapHost;
use rlock_engine::Deferred;

/// Ann holds `a`, bob holds `b` and waits for `a`.
fn half_a_cycle(host: &MapHost) {
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire b bob");
    assert_eq!(host.ask(2, "acquire a bob BLOCK 0"), "");
    host.take_log();
}

#[test]
fn a_wait_that_would_close_a_cycle_is_refused_before_it_begins() {
    let host = MapHost::primary();
    half_a_cycle(&host);
    let said = host.ask(1, "acquire b ann BLOCK 0");
    assert!(said.starts_with("-DEADLOCK owner 'ann' would close a cycle of 2 owners"), "{said}");
    let log = host.take_log();
    assert!(log.contains(&"seen: deadlock".into()), "{log:?}");
    assert_eq!(log.iter().filter(|line| line.starts_with("warned: ")).count(), 1);
    assert!(!log.contains(&"blocked 1".into()), "{log:?}");
    host.ask(1, "release a ann");
    assert_eq!(host.turn(), ["2: #3"]);
}

#[test]
fn the_log_has_one_line_a_second_about_refused_cycles() {
    let host = MapHost::primary();
    half_a_cycle(&host);
    host.ask(1, "acquire b ann BLOCK 0");
    host.ask(1, "acquire b ann BLOCK 0");
    host.at(1000);
    host.ask(1, "acquire b ann BLOCK 0");
    let warned = host.take_log().into_iter().filter(|line| line.starts_with("warned: "));
    assert_eq!(warned.count(), 2);
}

#[test]
fn no_cycle_is_searched_where_the_server_is_told_not_to() {
    let host = MapHost::primary();
    host.world().detects_deadlocks = false;
    half_a_cycle(&host);
    assert_eq!(host.ask(1, "acquire b ann BLOCK 0"), "");
    assert_eq!(host.world().waiting.len(), 2);
    host.world().is_cluster = true;
    host.ask(3, "acquire a cid BLOCK 0");
    assert!(!host.has_deferred(Deferred::Search));
}

#[test]
fn a_cycle_through_the_waits_of_another_user_is_not_refused() {
    let host = MapHost::primary();
    host.world().users.insert(1, "other".into());
    half_a_cycle(&host);
    assert_eq!(host.ask(1, "acquire b ann BLOCK 0"), "");
}

#[test]
fn a_cycle_of_another_database_is_found_there() {
    let host = MapHost::primary();
    host.world().db = 5;
    half_a_cycle(&host);
    assert!(host.ask(1, "acquire b ann BLOCK 0").starts_with("-DEADLOCK"));
    host.world().db = 0;
    half_a_cycle(&host);
    host.world().db = 5;
    host.ask(9, "force a");
    host.ask(9, "force b");
    assert_eq!(host.ask(1, "acquire b ann"), "#6", "the databases are apart");
}

#[test]
fn a_search_that_gives_up_lets_the_caller_wait() {
    let host = MapHost::primary();
    for owner in 0..1100 {
        host.ask(1, &format!("acquire k r{owner} READ"));
    }
    host.ask(1, "acquire other bob");
    host.ask(3, "acquire other cy BLOCK 0");
    host.take_log();
    assert_eq!(host.ask(2, "acquire k ann BLOCK 0"), "");
    assert!(host.seen().contains(&"search given up".into()));
}

#[test]
fn where_nobody_waits_nothing_is_searched() {
    let host = MapHost::primary();
    for owner in 0..1100 {
        host.ask(1, &format!("acquire k r{owner} READ"));
    }
    host.take_log();
    assert_eq!(host.ask(2, "acquire k ann BLOCK 0"), "");
    assert!(!host.seen().contains(&"search given up".into()), "the first wait closes no cycle");
}

#[test]
fn in_a_cluster_a_wait_that_closed_a_cycle_is_refused_in_the_next_iteration() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    half_a_cycle(&host);
    assert_eq!(host.turn(), [""; 0]);
    host.take_log();
    assert_eq!(host.ask(1, "acquire b ann BLOCK 0"), "", "it can open only its own slot's keys");
    assert_eq!(host.did(), ["blocked 1"]);
    assert!(host.has_deferred(Deferred::Search));
    let told = host.turn();
    assert!(told[0].starts_with("1: -DEADLOCK owner 'ann' would close a cycle of 2"), "{told:?}");
    assert_eq!(told.len(), 1);
    host.ask(2, "release b bob");
    assert_eq!((host.turn(), host.holds("b")), (vec![], "no key".into()), "it waits no more");
}

#[test]
fn in_a_cluster_a_wait_without_a_cycle_goes_on() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire a bob BLOCK 0");
    assert!(!host.state_of(|state| state.is_at_rest()));
    assert_eq!(host.turn(), [""; 0]);
    assert!(host.state_of(|state| state.is_at_rest()), "it is searched for once");
    host.ask(1, "release a ann");
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn in_a_cluster_every_new_wait_is_searched_for() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire b bob");
    host.ask(2, "acquire a bob BLOCK 0");
    host.ask(1, "acquire b ann BLOCK 0");
    let told = host.turn();
    assert_eq!(told.len(), 1, "one refusal breaks the cycle: {told:?}");
}

#[test]
fn a_wait_that_has_ended_before_the_search_is_not_refused() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    half_a_cycle(&host);
    assert_eq!(host.turn(), [""; 0]);
    host.take_log();
    host.ask(1, "acquire b ann BLOCK 0");
    let waiter = host.waiter(1);
    assert_eq!(host.deliver(waiter), "1: nil");
    host.take_log();
    host.run(Deferred::Search);
    assert!(!host.seen().contains(&"deadlock".into()));
}

#[test]
fn a_caller_that_is_granted_while_it_is_blocked_is_not_searched_for() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire a ann");
    host.world().meanwhile = Some(|host| host.remove("a"));
    host.ask(2, "acquire a bob BLOCK 0");
    assert!(!host.has_deferred(Deferred::Search));
}

#[test]
fn a_refused_wait_lets_those_behind_it_enter() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire a ann READ");
    host.ask(2, "acquire b bob");
    host.ask(1, "acquire b ann BLOCK 0");
    assert_eq!(host.turn(), [""; 0]);
    host.ask(2, "acquire a bob BLOCK 0");
    host.ask(3, "acquire a cid READ BLOCK 0");
    host.run(Deferred::Search);
    assert!(host.has_deferred(Deferred::Sweep));
    let told = host.turn();
    assert!(told[0].starts_with("2: -DEADLOCK") && told[1] == "3: #3", "{told:?}");
}

/// In the grace period, a re-entry waits only for the end of the period.
#[test]
fn an_owner_that_asks_again_in_the_grace_for_what_it_holds_is_in_no_cycle() {
    for again in ["acquire a ann BLOCK 0", "macquire 2 a z ann BLOCK 0"] {
        let host = MapHost::primary();
        host.ask(1, "acquire a ann LEASE 60000");
        host.world().bounds.grace_ms = 5000;
        assert_eq!(host.ask(2, "acquire a bob BLOCK 0"), "");
        assert_eq!(host.ask(3, again), "", "{again}");
        host.at(5000);
        host.turn();
        host.ask(1, "mrelease 2 a z ann");
        assert_eq!(host.holds("a"), "bob write depth=1 until=35000", "{again}");
    }
}

/// Nor does anybody wait, through such a re-entry, for those ahead of it.
#[test]
fn a_parked_re_entry_in_the_grace_is_no_link_of_a_cycle() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann LEASE 60000");
    host.ask(2, "acquire b bob LEASE 60000");
    host.world().bounds.grace_ms = 5000;
    assert_eq!(host.ask(4, "acquire a cy BLOCK 0"), "");
    assert_eq!(host.ask(3, "acquire a ann BLOCK 0"), "");
    // cy waits for ann. ann waits only for the end of the grace period, not for cy, who stands
    // ahead.
    host.ask(5, "acquire c cy LEASE 60000");
    assert_eq!(host.ask(6, "acquire a dan BLOCK 0"), "");
}
