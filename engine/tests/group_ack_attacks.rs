//! Grants of several locks with acknowledgments, against what else happens to their owner.

use crate::support::replica::{acknowledge, counted, held, lines, pending, primary};
use rlock_engine::acks;

const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// A blocked caller of the same owner answers for the level, and closes before it hears.
#[test]
fn what_a_ticket_was_told_stays_when_a_caller_beside_it_never_hears() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1");
    assert_eq!(host.ask(2, "acquire a ann DEPTH 1"), "");
    host.turn();
    host.world().acknowledged.fill(1_000_000);
    acks::before_sleep(&host);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "#1");
    host.close(2);
    host.turn();
    host.turn();
    assert_eq!(counted(&host, "a b", "ann"), "11");
}

#[test]
fn the_longest_lease_can_be_redeemed() {
    for ask in ["macquire 2 a b ann", "acquire c ann DEPTH 1"] {
        let host = primary();
        let ask = format!("{ask} QUEUE 5000 ACKS 1 LEASE {WEEK_MS}");
        assert_eq!(host.ask(1, &ask), "nil");
        acknowledge(&host);
        host.at(10);
        assert_eq!(host.ask(1, &ask), "#1", "{ask}");
    }
}

/// Nobody was told of the READ hold that the ticket was granted: it is withdrawn with the ticket.
#[test]
fn a_hold_of_a_withdrawn_ticket_is_no_deadlock() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann MODES READ WRITE QUEUE 5000 ACKS 1");
    assert_eq!(host.ask(1, "macquire 2 a c ann QUEUE 5000"), "#3");
    assert_eq!(held(&host, "b"), ["no key"]);
    let host = primary();
    host.ask(1, "macquire 2 a b ann MODES READ WRITE QUEUE 5000 ACKS 1");
    assert_eq!(host.ask(2, "macquire 2 a c ann BLOCK 0"), "");
    assert_eq!(host.turn(), ["2: #3"]);
    assert_eq!(held(&host, "b"), ["no key"]);
}

#[test]
fn maxqueue_does_not_count_the_ticket_that_is_withdrawn() {
    for acks in ["", " ACKS 1"] {
        for patience in ["QUEUE 5000", "BLOCK 5000"] {
            let host = primary();
            host.ask(9, "acquire b bob");
            host.ask(1, &format!("macquire 2 a b ann QUEUE 5000{acks}"));
            host.ask(9, "release b bob");
            let said = host.ask(2, &format!("macquire 2 a c ann {patience} MAXQUEUE 0"));
            let told = host.turn();
            assert!(said == "#2" || told == ["2: #2"], "{acks} {patience}: {said} {told:?}");
        }
    }
}

#[test]
fn a_turn_is_published_only_when_it_is_acknowledged() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann");
    host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1");
    host.take_log();
    host.ask(2, "acquire a ann DEPTH 1 LEASE 60000");
    host.ask(2, "renew b ann LEASE 60000");
    host.turn();
    assert_eq!(host.published().iter().filter(|it| it.contains("turn")).count(), 0);
    assert_eq!((pending(&host), lines(&host, "a b")), (0, vec![String::new(); 2]));
}

/// Both holds of one owner are revoked in the same step.
#[test]
fn an_owner_whose_two_grants_are_late_has_one_ticket() {
    let host = primary();
    host.ask(1, "acquire a ann QUEUE 60000 ACKS 1");
    host.ask(1, "acquire a ann READ QUEUE 60000 ACKS 1");
    host.at(2000);
    host.turn();
    assert_eq!((host.holds("a"), lines(&host, "a")), ("no key".into(), vec!["ann!".into()]));
}
