//! Requests with TELL that are sent again (T7): whatever differs from the first request, one
//! message follows, to the destination of the last request, and it is right for that request.

use rlock_core::ClientId;
use rlock_engine::events;

use crate::support::{MapHost, replica};

/// A primary with two replicas and a subscriber of `one`, the channel of the requests.
fn primary() -> MapHost {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0, 0];
    host.world().channels.listening.insert(b"one".to_vec());
    host
}

fn told(host: &MapHost) -> Vec<String> {
    host.take_log().into_iter().filter(|line| line.starts_with("told one: ")).collect()
}

/// The requests of an owner that wait for acknowledgments.
const PENDING: [&str; 4] =
    ["acquire a ann", "macquire 2 a b ann", "renew a ann", "mrenew 2 a b ann"];

/// Options that only the second request has; what lets it be granted; and how long the holds last
/// from then on, in milliseconds.
const AGAIN: [(&str, u64); 3] =
    [("LEASE 5000 ACKS 1", 5000), ("LEASE 60000 ACKS 1", 60_000), ("LEASE 5000 ACKS 2", 5000)];

#[test]
fn t7_a_pending_request_that_is_asked_again_is_told_once_and_as_it_was_asked_last() {
    for request in PENDING {
        for (again, lease) in AGAIN {
            let case = format!("{request}, then {again}");
            let host = primary();
            if request.contains("renew") {
                host.ask(1, "macquire 2 a b ann LEASE 5000");
            }
            let first = format!("{request} LEASE 5000 ACKS 1 TELL one 1");
            assert_eq!(host.ask(1, &first), "WAITING", "{case}");
            assert_eq!(host.ask(2, &format!("{request} {again} TELL one 2")), "WAITING", "{case}");
            assert_eq!(host.state_of(|state| state.manager.tell_count()), 1, "{case}");
            // Everything that the first request needs.
            host.take_log();
            host.turn();
            let needs_both = again.contains("ACKS 2");
            host.world().acknowledged = vec![if needs_both { 0 } else { 1_000_000 }, 1_000_000];
            host.turn();
            if needs_both {
                assert_eq!(told(&host), [""; 0], "{case}");
                host.world().acknowledged = vec![1_000_000; 2];
                host.turn();
            }
            let all = told(&host);
            let [message] = all.as_slice() else { panic!("{case}: {all:?}") };
            let is_granted = message.starts_with("told one: 2 token ");
            let is_renewed = message == "told one: 2 renewed";
            assert!(if request.contains("renew") { is_renewed } else { is_granted }, "{message}");
            for key in if request.contains("2 a b") { &["a", "b"][..] } else { &["a"] } {
                let hold = format!("ann write depth=1 until={lease}");
                assert_eq!(host.holds(key), hold, "{case}");
            }
            assert_eq!(host.state_of(|state| state.manager.tell_count()), 0, "{case}");
        }
    }
}

#[test]
fn t7_a_session_that_is_asked_for_again_is_tied_to_who_asked_last() {
    for request in &PENDING[..2] {
        let host = primary();
        host.ask(1, &format!("{request} ACKS 1 SESSION TELL one 1"));
        host.ask(2, &format!("{request} ACKS 1 SESSION TELL one 2"));
        events::connection_ended(&host, ClientId::from(1));
        host.take_log();
        replica::acknowledge(&host);
        assert!(told(&host).len() == 1, "{request}");
        assert_ne!(host.holds("a"), "no key", "{request}");
        events::connection_ended(&host, ClientId::from(2));
        host.turn();
        assert_eq!(host.holds("a"), "no key", "{request}");
    }
}

#[test]
fn t7_an_acquisition_does_not_take_the_place_of_a_renewal() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann");
    host.ask(1, "mrenew 2 a b ann ACKS 1 TELL one 1");
    host.ask(1, "macquire 2 a b ann ACKS 1 TELL one 2");
    host.take_log();
    replica::acknowledge(&host);
    let all = told(&host);
    let is_so = |kind: &str| all.iter().any(|line| line.starts_with(&format!("told one: {kind}")));
    assert!(all.len() == 2 && is_so("1 renewed") && is_so("2 token "), "{all:?}");
}

#[test]
fn t7_a_refused_request_leaves_the_pending_one() {
    let host = primary();
    host.ask(1, "acquire a ann DEPTH 1 ACKS 1 TELL one 1");
    assert!(host.ask(1, "acquire a ann DEPTH 3 ACKS 1 TELL one 2").starts_with("-"));
    host.take_log();
    replica::acknowledge(&host);
    let all = told(&host);
    assert!(all.len() == 1 && all[0].starts_with("told one: 1 token "), "{all:?}");
}

#[test]
fn t7_a_group_whose_time_has_passed_ends_and_what_is_asked_again_is_a_new_request() {
    let host = primary();
    host.world().bounds.max_tell_ms = 1000;
    host.ask(1, "acquire b zoe LEASE 2000");
    host.ask(2, "macquire 2 a b ann LEASE 5000 BLOCK 0 TELL one 1");
    host.at(2500);
    // The lock is free, but neither it nor the wait was swept yet.
    host.take_log();
    host.ask(3, "release b eve");
    assert_eq!(host.ask(2, "macquire 2 a b ann LEASE 5000 BLOCK 0 TELL one 2"), "#2");
    for _ in 0..3 {
        host.turn();
    }
    assert_eq!(told(&host), ["told one: 1 nil -1"]);
}

#[test]
fn t8_who_waits_for_a_message_is_told_that_another_value_has_come() {
    for wait in ["acquire a ann", "macquire 2 a b ann", "await a 0"] {
        let host = primary();
        // A ticket has its turn, so the lock is free while others wait.
        host.ask(1, "acquire a zoe");
        host.ask(1, "acquire a tim QUEUE 60000");
        host.ask(1, "release a zoe");
        host.turn();
        assert_eq!(host.ask(2, &format!("{wait} BLOCK 0 TELL one 1")), "WAITING");
        host.put_other("a");
        events::key_came(&host, 0, b"a");
        host.take_log();
        for _ in 0..3 {
            host.turn();
        }
        let all = told(&host);
        let is_so = all.len() == 1 && all[0].starts_with("told one: 1 error WRONGTYPE");
        assert!(is_so, "{wait}: {all:?}");
    }
}

#[test]
fn t9_every_wait_for_acknowledgments_ends_as_well() {
    for request in PENDING {
        let host = primary();
        host.world().bounds.max_tell_ms = 1000;
        host.world().bounds.confirm_ms = 60_000;
        host.ask(1, "macquire 2 a b ann LEASE 60000");
        host.ask(1, &format!("{request} LEASE 60000 ACKS 1 TELL one 1"));
        host.take_log();
        host.at(1002);
        host.turn();
        host.turn();
        let all = told(&host);
        let is_so = all.len() == 1 && all[0].starts_with("told one: 1 error NOACKS");
        assert!(is_so, "{request}: {all:?}");
    }
}

#[test]
fn t15_what_enters_with_a_grant_is_told_behind_it() {
    let host = primary();
    host.ask(1, "macquire 2 a b zoe");
    host.ask(2, "macquire 2 a b ann BLOCK 0 TELL one 1");
    host.ask(2, "acquire b ann READ BLOCK 0 TELL one 2");
    host.take_log();
    host.ask(1, "mrelease 2 a b zoe");
    let all = told(&host);
    let ids: Vec<&str> = all.iter().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(ids, ["1", "2"], "{all:?}");
}

#[test]
fn t20_requests_that_wait_for_acknowledgments_count() {
    for request in PENDING {
        let host = primary();
        host.world().bounds.max_tells = 1;
        host.ask(1, "macquire 2 a b ann");
        host.ask(3, "acquire c eve ACKS 1 TELL one 0");
        let refused = host.ask(1, &format!("{request} ACKS 1 TELL one 1"));
        assert!(refused.starts_with("-TOOMANY"), "{request}: {refused}");
        assert_eq!(host.state_of(|state| state.manager.tell_count()), 1, "{request}");
    }
}

/// The owner's own ticket is in its way, and in that of a reader. Without it, the request is
/// granted at once, and waits for acknowledgments.
#[test]
fn t20_a_request_that_gives_up_its_ticket_and_waits_for_acknowledgments_counts() {
    let host = primary();
    host.world().bounds.max_tells = 1;
    host.ask(3, "acquire c eve ACKS 1 TELL one 0");
    host.ask(4, "acquire b bob READ");
    host.ask(1, "acquire b ann QUEUE 60000");
    host.ask(5, "acquire b zoe READ BLOCK 0");
    let refused = host.ask(1, "macquire 2 a b ann READ BLOCK 0 ACKS 1 TELL one 1");
    assert!(refused.starts_with("-TOOMANY"), "{refused}");
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 1);
    assert_eq!(host.line("b"), "ann zoe");
}

#[test]
fn t7_several_locks_that_are_asked_for_three_times_wait_once() {
    let host = primary();
    host.ask(1, "acquire b zoe");
    for id in 1..=3 {
        let said = host.ask(2, &format!("macquire 2 a b ann BLOCK 0 TELL one {id}"));
        assert_eq!(said, "WAITING");
    }
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 1);
    host.take_log();
    host.ask(1, "release b zoe");
    let all = told(&host);
    assert!(all.len() == 1 && all[0].starts_with("told one: 3 token "), "{all:?}");
}

#[test]
fn t11_each_database_has_its_own_requests() {
    let host = primary();
    for (db, id) in [(0, 1), (1, 2)] {
        host.world().db = db;
        host.ask(1, "acquire a zoe");
        host.ask(2, &format!("acquire a ann BLOCK 0 TELL one {id}"));
    }
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 2);
    host.take_log();
    for db in [0, 1] {
        host.world().db = db;
        host.ask(1, "release a zoe");
    }
    let all = told(&host);
    assert!(all.len() == 2 && all[1].starts_with("told one: 2 token "), "{all:?}");
}

#[test]
fn t16_in_a_cluster_the_channel_is_in_the_slot_of_the_key() {
    let host = primary();
    host.world().is_cluster = true;
    host.ask(1, "acquire a zoe");
    assert!(host.ask(2, "acquire a ann BLOCK 0 TELL one 1").starts_with("-CROSSSLOT"));
    assert_eq!(host.ask(2, "acquire a ann BLOCK 0 TELL {a}:1 1"), "WAITING");
}

#[test]
fn t19_who_waits_for_a_message_is_part_of_a_cycle() {
    let host = primary();
    host.ask(1, "acquire a ann");
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(1, "acquire b ann BLOCK 0 TELL one 1"), "WAITING");
    assert!(host.ask(2, "acquire a bob BLOCK 0 TELL one 2").starts_with("-DEADLOCK"));
    assert!(host.ask(2, "acquire a bob BLOCK 0").starts_with("-DEADLOCK"));
}

/// A group of the same owner is granted READ in the same command, before the caller is decided. The
/// caller is refused, and nothing waits instead of it.
#[test]
fn t7_who_is_refused_when_it_asks_again_leaves_no_place() {
    for again in ["acquire b ann BLOCK 0", "acquire b ann BLOCK 0 TELL one 2"] {
        let host = primary();
        host.ask(1, "acquire b early LEASE 1000");
        assert_eq!(host.ask(2, "macquire 2 a b ann READ BLOCK 0"), "");
        assert_eq!(host.ask(3, "acquire b ann BLOCK 0 TELL one 1"), "WAITING");
        host.at(1000);
        let said = host.ask(4, again);
        let later = host.turn().into_iter().find(|line| line.starts_with("4: "));
        let refused = later.unwrap_or(said);
        assert!(refused.contains("-DEADLOCK owner 'ann' holds READ of 'b'"), "{refused}");
        assert_eq!(host.line("b"), "", "{again}");
    }
}
