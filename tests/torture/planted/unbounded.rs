//! A primary that is cut off, on real servers: without the setting that makes it stop, it grants
//! and renews for as long as the partition lasts, beside its successor. So unacknowledged grants
//! are doubled, and this must be reported where confirmed grants were promised.

use crate::faults::PLANTED;
use crate::run::run;
use crate::workloads;

const TRIES: u64 = 5;

#[test]
fn two_primaries_that_nothing_bounds_are_found_out() {
    let stays = workloads::named("stays");
    let unbounded = PLANTED.iter().find(|kind| kind.name == "unbounded").unwrap();
    let outcome = run(stays, unbounded, 1, 1);
    for checker in ["split: ", "gate: "] {
        let is_seen = outcome.violations.iter().any(|wrong| wrong.starts_with(checker));
        assert!(is_seen, "{checker}saw nothing in {} operations", outcome.operations);
    }
}

#[test]
fn grants_of_both_sides_that_were_taken_for_confirmed_are_found_out() {
    let unconfirmed = PLANTED.iter().find(|kind| kind.name == "unconfirmed").unwrap();
    for (workload, checker) in [("confirmed", "exclusion: "), ("quota", "permits: ")] {
        // In one partition of ten, the two sides may happen to hold the lock by turns.
        let is_seen = (0..TRIES).any(|seed| {
            let outcome = run(workloads::named(workload), unconfirmed, 1, seed);
            outcome.violations.iter().any(|wrong| wrong.starts_with(checker))
        });
        assert!(is_seen, "{checker}saw nothing in {TRIES} partitions");
    }
}
