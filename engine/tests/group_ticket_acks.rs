//! Tickets for several locks whose grant replicas must acknowledge: the owner asks, is told of its
//! turn when they have, and asks again.

use crate::support::replica::{ANN, acknowledge, counted, held, lines, pending, primary};

#[test]
fn a_ticket_takes_what_it_has_reached_and_is_told_when_it_asks_again() {
    let host = primary();
    assert_eq!(host.ask(1, "macquire 2 b a ann QUEUE 5000 ACKS 1"), "nil");
    let pending_hold = "ann write depth=1 until=35000";
    assert_eq!(held(&host, "a b"), [pending_hold; 2], "a lease remains when the window ends");
    assert_eq!((counted(&host, "a b", "ann"), pending(&host)), ("00".into(), 0));
    assert_eq!(host.ask(1, "macquire 2 b a ann QUEUE 5000 ACKS 1"), "nil");
    host.take_log();
    assert_eq!(acknowledge(&host), [""; 0]);
    assert_eq!(host.published(), ["rlock.turn:ann a"]);
    assert_eq!(counted(&host, "a b", "ann"), "00", "nobody was told");
    host.at(4000);
    host.take_log();
    assert_eq!(host.ask(1, "macquire 2 b a ann QUEUE 5000 ACKS 1 WITHTTL"), "*2 #1 31000");
    let replicated = host.world().stream.last().unwrap().apart().len();
    assert_eq!(replicated, 2, "what replies a token hands over an effect");
    assert_eq!(
        (held(&host, "a b"), counted(&host, "a b", "ann")),
        (vec![pending_hold.into(); 2], "11".into())
    );
    host.at(20_000);
    host.turn();
    assert_eq!(held(&host, "a b"), [pending_hold; 2], "it is its own");
}

#[test]
fn a_ticket_that_waits_takes_its_locks_when_it_asks_in_its_turn() {
    let host = primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "nil");
    host.take_log();
    host.ask(1, "release b bob");
    assert_eq!(host.published(), ["rlock.released b", "rlock.turn:ann a"]);
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "nil");
    acknowledge(&host);
    assert_eq!(host.published(), ["rlock.acquired a", "rlock.acquired b", "rlock.turn:ann a"]);
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "#2");
    assert_eq!(lines(&host, "a b"), ["", ""]);
}

#[test]
fn a_ticket_whose_grant_is_not_acknowledged_keeps_its_places() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 60000 ACKS 1");
    host.ask(2, "acquire a bob BLOCK 0");
    host.ask(3, "acquire b cy QUEUE 60000");
    host.take_log();
    host.at(2000);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(lines(&host, "a b"), ["ann! bob", "ann! cy"]);
    let published = host.published();
    assert_eq!(published, ["rlock.unconfirmed a", "rlock.unconfirmed b", "rlock.turn:ann a"]);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 60000 ACKS 1"), "nil", "it takes them again");
    acknowledge(&host);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 60000 ACKS 1"), "#3");
}

#[test]
fn a_ticket_whose_owner_does_not_ask_ends_with_its_window() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 1000 ACKS 1");
    acknowledge(&host);
    host.ask(2, "acquire a bob BLOCK 0");
    host.at(999);
    assert_eq!(host.turn(), [""; 0]);
    host.at(1000);
    let told = [host.turn(), host.turn()].concat();
    assert_eq!((told, host.holds("b")), (vec!["2: #3".into()], "no key".into()));
    assert_eq!(host.state_of(|state| state.manager.totals().tickets), 0);
}

#[test]
fn a_ticket_whose_owner_does_not_ask_is_revoked_at_the_end_of_its_first_window() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 1000 ACKS 1");
    acknowledge(&host);
    host.ask(1, "macquire 2 a b ann QUEUE 60000 ACKS 1 LEASE 60000");
    host.at(1000);
    host.turn();
    assert_eq!(held(&host, "a b"), ["no key"; 2]);
    assert_eq!(lines(&host, "a b"), ["ann!"; 2], "the ticket keeps its places");
}

/// What was granted was granted for the first window: a longer one keeps the place, not the holds.
#[test]
fn a_longer_window_does_not_stretch_what_was_granted() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 1000 ACKS 1");
    host.ask(1, "macquire 2 a b ann QUEUE 60000 ACKS 1");
    host.at(1000);
    host.turn();
    assert_eq!(
        (held(&host, "a b"), lines(&host, "a b")),
        (vec!["no key".into(); 2], vec!["ann!".into(); 2])
    );
}

#[test]
fn a_ticket_is_cancelled_with_what_it_was_granted() {
    for key in ["a", "b"] {
        let host = primary();
        host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1");
        assert_eq!(host.ask(2, &format!("cancel {key} ann")), "1");
        assert_eq!(
            (held(&host, "a b"), lines(&host, "a b")),
            (vec!["no key".into(); 2], vec![String::new(); 2])
        );
        assert_eq!(acknowledge(&host), [""; 0]);
    }
}

#[test]
fn another_request_withdraws_the_ticket_with_what_it_was_granted() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1");
    assert_eq!(host.ask(1, "macquire 2 b c ann QUEUE 5000"), "#3");
    assert_eq!(held(&host, "a b c"), ["no key", ANN, ANN]);
}

#[test]
fn a_ticket_that_wants_more_acknowledgments_waits_for_them() {
    let host = primary();
    host.world().acknowledged = vec![0, 0];
    host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 1");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 2"), "nil");
    host.turn();
    host.world().acknowledged = vec![1_000_000, 0];
    host.turn();
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 2"), "nil");
    assert_eq!(host.published().last().unwrap(), "rlock.acquired b", "no turn yet");
    host.world().acknowledged = vec![1_000_000, 1_000_000];
    host.turn();
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 2"), "#1");
}

#[test]
fn who_blocks_for_the_same_takes_the_grant_of_the_ticket_over() {
    for patience in ["BLOCK 0", ""] {
        let host = primary();
        host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1");
        assert_eq!(host.ask(2, format!("macquire 2 a b ann ACKS 1 {patience}").trim()), "");
        assert_eq!(acknowledge(&host), ["2: #1"], "{patience}");
        host.at(10_000);
        host.turn();
        assert_eq!(held(&host, "a b"), ["ann write depth=1 until=35000"; 2]);
        assert_eq!(host.state_of(|state| state.manager.totals().tickets), 0);
    }
}

#[test]
fn a_ticket_behind_a_pending_hold_of_its_owner_is_told_later() {
    let host = primary();
    host.ask(1, "acquire a ann ACKS 1");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    host.take_log();
    assert_eq!(acknowledge(&host), ["1: #1"]);
    host.turn();
    assert!(host.published().contains(&"rlock.turn:ann a".into()));
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "#2");
}

#[test]
fn a_ticket_with_a_session_is_tied_when_it_is_told() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann QUEUE 5000 SESSION ACKS 1");
    acknowledge(&host);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 SESSION ACKS 1"), "#1");
    host.close(1);
    host.turn();
    assert_eq!(held(&host, "a b"), ["no key"; 2]);
}

#[test]
fn maxqueue_refuses_nobody_who_need_not_wait() {
    let host = primary();
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 MAXQUEUE 0 ACKS 1"), "nil");
    assert_eq!(host.ask(2, "macquire 2 c d bob BLOCK 5000 MAXQUEUE 0 ACKS 1"), "");
    assert_eq!(acknowledge(&host), ["2: #3"]);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 MAXQUEUE 0 ACKS 1"), "#1");
}

/// Its owner holds all of it: nothing is pending but the reply.
#[test]
fn a_ticket_of_covered_keys_takes_them_once() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "nil");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "nil");
    acknowledge(&host);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 5000 ACKS 1"), "#1");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 1000 ACKS 1"), "nil");
    host.at(1000);
    host.turn();
    assert_eq!(counted(&host, "a b", "ann"), "11", "nothing of it is revoked");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 1000 ACKS 1"), "nil");
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 1000"), "#1", "it wants no acknowledgments");
    host.turn();
    let waits =
        |key: &str| host.state_of(|state| state.manager.volatile(0, key.as_bytes()).is_some());
    assert_eq!((waits("a"), waits("b")), (false, false), "nothing is remembered");
}

#[test]
fn a_blocked_wait_that_takes_a_ticket_over_needs_its_own_acknowledgments() {
    let host = primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 5000"), "nil");
    assert_eq!(host.ask(3, "macquire 2 a b ann BLOCK 0 ACKS 1"), "");
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(acknowledge(&host), ["3: #2"]);
}

/// The replicas were asked first more than a second ago, and nobody has waited for them since.
#[test]
fn a_ticket_that_wants_more_acknowledgments_later_is_told_of_them() {
    let host = primary();
    host.world().acknowledged = vec![0, 0];
    host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 1");
    host.turn();
    host.world().acknowledged = vec![1_000_000, 0];
    host.turn();
    host.at(1500);
    host.turn();
    assert!(!host.world().watches_sleep);
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 2"), "nil");
    host.turn();
    host.world().acknowledged = vec![1_000_000, 1_000_000];
    host.turn();
    assert_eq!(host.ask(1, "macquire 2 a b ann QUEUE 50000 ACKS 2"), "#1");
}
