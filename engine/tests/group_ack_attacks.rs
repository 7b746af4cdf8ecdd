//! Grants of several locks with acknowledgments, against what else happens to their owner.

use crate::support::replica::{acknowledge, lines, primary};

const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1000;

#[test]
fn the_longest_lease_can_be_redeemed() {
    let host = primary();
    let ask = format!("acquire c ann DEPTH 1 QUEUE 5000 ACKS 1 LEASE {WEEK_MS}");
    assert_eq!(host.ask(1, &ask), "nil");
    acknowledge(&host);
    host.at(10);
    assert_eq!(host.ask(1, &ask), "#1", "{ask}");
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
