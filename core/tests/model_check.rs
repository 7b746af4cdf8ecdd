//! All states that a small town of locks can reach, breadth first, up to a bound: three owners, and
//! everything that they can do. Each step is checked against the laws of `support/`, and each
//! answer of the deadlock search against a naive search. Steps and replies are counted by kind: a
//! kind that never occurred is a failure, because its laws were not tested.
//!
//! States count as the same if they differ only in names, in absolute times, or in tokens of the
//! same order.

mod explore;
mod kinds;
mod state;
mod steps;
mod town;
mod unit;
mod waits;

use crate::support::number;
use kinds::Kinds;
use steps::Profile;

/// `RLOCK_STATES` is how many states of each profile are visited; `make model` visits more than ten
/// million.
#[test]
fn every_state_of_a_small_town_keeps_the_laws() {
    let states = number("RLOCK_STATES").map_or(3_000, |states| usize::try_from(states).unwrap());
    let mut kinds = Kinds::default();
    let mut seen = 0;
    for profile in [
        Profile::many_connections(),
        Profile::two_locks(),
        Profile::two_locks_in_any_way(),
        Profile::units(),
        Profile::permits(),
        Profile::permits_of_two_locks(),
        Profile::one_lock(),
    ] {
        let found = explore::explore(&profile, states, &mut kinds);
        assert!(found.is_closed || found.states >= states, "only {} states", found.states);
        seen += found.states;
    }
    println!("{seen} states\n{kinds}");
    assert_eq!(kinds.missing(), [], "kinds that never came");
}
