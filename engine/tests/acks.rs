//! Grants and renewals that replicas must acknowledge before their caller gets its reply.

use crate::support::MapHost;
use rlock_core::WaiterId;
use rlock_engine::{Deferred, acks, blocked};

/// A primary with replicas that have acknowledged these offsets.
fn primary_with(replicas: &[u64]) -> MapHost {
    let host = MapHost::primary();
    host.world().acknowledged = replicas.to_vec();
    host
}

fn replicas_are_at(host: &MapHost, offset: u64) {
    host.world().acknowledged.fill(offset);
}

fn asked(host: &MapHost) -> usize {
    host.did().iter().filter(|line| *line == "asked replicas").count()
}

#[test]
fn a_grant_is_told_when_enough_replicas_have_acknowledged_it() {
    let host = primary_with(&[0, 0]);
    assert_eq!(host.ask(1, "acquire k ann ACKS 2"), "");
    assert_eq!(
        host.did(),
        [
            "blocked 1",
            "set k",
            "replicated apply",
            "signalled k",
            "published rlock.acquired k",
            "watches",
        ]
    );
    assert_eq!(host.turn(), [""; 0]);
    host.world().acknowledged = vec![100, 99];
    assert_eq!(host.turn(), [""; 0], "one is enough only for ACKS 1");
    host.world().acknowledged = vec![100, 100];
    assert_eq!(host.turn(), ["1: #1"]);
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_pending_hold_is_nobodys_yet() {
    let host = primary_with(&[0]);
    host.world().db = 1;
    host.ask(1, "acquire k ann ACKS 1");
    assert_eq!(host.holds("k"), "ann write depth=1 until=30000");
    assert_eq!((host.ask(2, "holds k ann"), host.ask(2, "check k #1")), ("0".into(), "0".into()));
    host.turn();
    replicas_are_at(&host, 100);
    host.turn();
    assert_eq!((host.ask(2, "holds k ann"), host.ask(2, "check k #1")), ("1".into(), "1".into()));
}

#[test]
fn too_few_replicas_are_refused_before_anything_changes() {
    let host = primary_with(&[0]);
    for command in ["acquire k ann ACKS 2", "renew k ann ACKS 2"] {
        let said = host.ask(1, command);
        assert!(said.starts_with("-NOREPLICAS need 2 acknowledging replicas for 'k'"), "{said}");
    }
    let seen = vec!["seen: too few replicas".to_owned(); 2];
    assert_eq!((host.take_log(), host.holds("k")), (seen, "no key".into()));
}

#[test]
fn a_caller_that_cannot_be_blocked_is_refused_before_anything_changes() {
    let host = primary_with(&[0]);
    host.world().denies_blocking = true;
    for command in ["acquire k ann ACKS 1", "renew k ann ACKS 1"] {
        let said = host.ask(1, command);
        assert!(said.starts_with("-ERR ACKS needs a connection that can block"), "{said}");
    }
    assert_eq!(host.take_log(), [""; 0]);
    assert_eq!(host.ask(1, "acquire k ann"), "#1", "without ACKS it may");
}

#[test]
fn who_must_wait_for_acknowledgments_unasked_and_cannot_be_blocked_is_refused() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.world().denies_blocking = true;
    for command in ["acquire k ann", "renew k ann"] {
        let said = host.ask(2, command);
        assert!(said.starts_with("-ERR ACKS needs a connection that can block"), "{said}");
    }
    host.world().denies_blocking = false;
    host.world().refuses_to_block = true;
    for command in ["acquire k ann", "renew k ann"] {
        let said = host.ask(2, command);
        assert!(said.starts_with("-ERR ACKS needs a connection that can block"), "{said}");
    }
    assert_eq!(host.holds("k"), "ann write depth=1 until=30000");
}

#[test]
fn the_number_of_replicas_is_asked_again_only_if_one_has_left() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire a ann ACKS 1");
    host.ask(1, "acquire b ann ACKS 1");
    assert_eq!(host.world().replication_asked, 1);
    acks::replica_left(&host);
    host.world().acknowledged.clear();
    assert!(host.ask(1, "acquire c ann ACKS 1").starts_with("-NOREPLICAS"));
    assert_eq!(host.world().replication_asked, 2);
}

#[test]
fn a_replica_that_came_meanwhile_counts() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire a ann ACKS 1");
    host.world().acknowledged = vec![0, 0];
    assert_eq!(host.ask(2, "acquire b ann ACKS 2"), "");
}

#[test]
fn requests_without_acks_ask_for_no_replicas() {
    let host = primary_with(&[]);
    host.ask(1, "acquire k ann");
    host.ask(1, "renew k ann");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.world().replication_asked, 0);
    acks::before_sleep(&host);
    assert_eq!(host.world().replication_asked, 0, "nobody waits for acknowledgments");
}

#[test]
fn the_sleeps_are_watched_while_somebody_waits_and_a_second_longer() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire a ann ACKS 1");
    host.ask(2, "acquire b ann ACKS 1");
    let watches = |log: &[String]| log.iter().filter(|line| line.starts_with("watches")).count();
    assert_eq!(watches(&host.take_log()), 1, "once for both");
    assert_eq!(host.take_deferred(), [(1000, Deferred::Unsubscribe)]);
    host.at(1000);
    rlock_engine::run_deferred(&host, Deferred::Unsubscribe);
    assert_eq!(host.take_deferred(), [(2000, Deferred::Unsubscribe)], "they still wait");
    host.turn();
    replicas_are_at(&host, 1000);
    assert_eq!(host.turn(), ["1: #1", "2: #2"]);
    host.take_log();
    rlock_engine::run_deferred(&host, Deferred::Unsubscribe);
    assert_eq!((host.did(), host.take_deferred()), (vec!["watches no more".into()], vec![]));
    host.ask(1, "acquire c ann ACKS 1");
    assert!(host.did().contains(&"watches".into()), "and again the next time");
}

#[test]
fn replicas_are_asked_once_for_everything_written_before_a_sleep() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire a ann ACKS 1");
    host.ask(2, "acquire b ann ACKS 1");
    acks::before_sleep(&host);
    acks::before_sleep(&host);
    assert_eq!(asked(&host), 1);
    host.ask(3, "acquire c ann ACKS 1");
    acks::before_sleep(&host);
    assert_eq!(asked(&host), 1);
}

#[test]
fn replicas_are_asked_after_a_pause() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.take_log();
    host.world().is_paused = true;
    acks::before_sleep(&host);
    acks::before_sleep(&host);
    assert_eq!(asked(&host), 0);
    host.world().is_paused = false;
    acks::before_sleep(&host);
    assert_eq!(asked(&host), 1);
    acks::before_sleep(&host);
    assert_eq!(asked(&host), 0);
}

#[test]
fn acknowledgments_that_come_during_a_pause_are_told() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.turn();
    host.world().is_paused = true;
    replicas_are_at(&host, 100);
    assert_eq!(host.turn(), ["1: #1"]);
}

#[test]
fn a_grant_without_acknowledgments_ends_in_time() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    assert_eq!(host.alarm(), Some(2000));
    host.take_log();
    host.at(2000);
    let told = host.turn();
    assert!(told[0].starts_with("1: -NOACKS too few replicas"), "{told:?}");
    assert_eq!(host.published(), ["rlock.unconfirmed k"]);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn the_remaining_time_of_block_is_the_time_for_acknowledgments() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1 BLOCK 300");
    host.ask(2, "acquire l ann ACKS 1 BLOCK 0");
    assert_eq!(host.alarm(), Some(300));
    host.at(300);
    assert!(host.turn()[0].starts_with("1: -NOACKS"));
    host.at(1999);
    assert_eq!(host.turn(), [""; 0], "without an end the setting counts");
    host.at(2000);
    assert!(host.turn()[0].starts_with("2: -NOACKS"));
}

#[test]
fn client_unblock_while_acknowledgments_are_missing_is_told_so() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.take_log();
    let said = host.deliver(1);
    assert!(said.starts_with("1: -NOACKS"), "{said}");
    assert_eq!(host.seen(), ["unblocked NOACKS"]);
    blocked::over(&host, WaiterId::from(1), false);
    host.turn();
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_pending_grant_is_revoked_if_the_server_forgets_its_connection() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    assert!(!host.has_deferred(Deferred::Sweep));
    host.world().waiting.remove(&1);
    blocked::over(&host, WaiterId::from(1), false);
    host.run(Deferred::Sweep);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_pending_grant_ends_with_its_connection() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.turn();
    host.close(1);
    replicas_are_at(&host, 100);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_waiters_grant_is_told_when_replicas_have_acknowledged_it() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob ACKS 1 BLOCK 0 WITHTTL");
    assert!(!host.world().watches_sleep, "nothing to acknowledge yet");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), [""; 0]);
    replicas_are_at(&host, 200);
    assert_eq!(host.turn(), ["2: *2 #2 30000"]);
}

#[test]
fn a_renewal_is_told_when_replicas_have_acknowledged_it() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann");
    assert_eq!(host.ask(1, "renew k ann LEASE 60000 ACKS 1"), "");
    assert_eq!(host.holds("k"), "ann write depth=1 until=60000");
    assert_eq!(host.turn(), [""; 0]);
    replicas_are_at(&host, 200);
    assert_eq!(host.turn(), ["1: 1"]);
}

#[test]
fn a_renewal_without_acknowledgments_takes_nothing_back() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann");
    host.ask(1, "renew k ann LEASE 60000 ACKS 1");
    host.at(2000);
    assert!(host.turn()[0].starts_with("1: -NOACKS"));
    assert_eq!(host.holds("k"), "ann write depth=1 until=60000");
}

#[test]
fn a_session_that_acknowledgments_begin_is_renewed_in_time() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann SESSION LEASE 3000 ACKS 1");
    assert_eq!(host.alarm(), Some(2000));
    host.turn();
    replicas_are_at(&host, 100);
    acks::before_sleep(&host);
    assert_eq!(host.alarm(), Some(1000), "a third of the lease");
    assert_eq!(host.turn(), ["1: #1"]);
}

#[test]
fn a_grant_whose_key_is_removed_is_never_confirmed() {
    let host = primary_with(&[0]);
    host.ask(1, "acquire k ann ACKS 1");
    host.turn();
    host.remove("k");
    replicas_are_at(&host, 100);
    let told = host.turn();
    assert!(told[0].starts_with("1: -NOACKS"), "{told:?}");
}

#[test]
fn a_newly_connected_replica_is_asked_for_its_first_acknowledgment() {
    let host = primary_with(&[]);
    acks::replica_came(&host);
    assert_eq!((asked(&host), host.has_deferred(Deferred::Greet)), (0, true), "it is being added");
    host.run(Deferred::Greet);
    assert_eq!(asked(&host), 1);
}

#[test]
fn a_newly_connected_replica_is_not_asked_during_a_pause_or_by_a_replica() {
    let (host, replica) = (primary_with(&[]), MapHost::replica());
    host.world().is_paused = true;
    for host in [&host, &replica] {
        acks::replica_came(host);
        host.run(Deferred::Greet);
        assert_eq!(asked(host), 0);
    }
}

#[test]
fn a_ticket_cannot_wait_for_acknowledgments() {
    let host = primary_with(&[0]);
    let needs = "-ERR QUEUE cannot wait for acknowledgments";
    assert!(host.ask(1, "acquire k ann QUEUE 5000 ACKS 1").starts_with(needs));
    host.world().acks = 1;
    assert!(host.ask(1, "acquire k ann QUEUE 5000").starts_with(needs));
    host.world().acks = 0;
    assert_eq!(host.ask(1, "acquire k ann ACKS 1"), "");
    assert!(host.ask(2, "acquire k ann QUEUE 5000").starts_with("-TRYAGAIN"));
    assert_eq!(host.line("k"), "");
    replicas_are_at(&host, 200);
    assert_eq!(host.turn(), ["1: #1"]);
    assert_eq!(host.ask(2, "acquire k ann QUEUE 5000"), "#1");
}
