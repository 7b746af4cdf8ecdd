//! Every state that a small town of locks can get into, breadth first, up to a bound: three owners,
//! and everything that they can do. Each step is held to the laws of `support/`, and each answer of
//! the deadlock search to a naive one. What was done and what was answered is counted: a kind that
//! never came is a failure, because its laws were not tried.
//!
//! Time is what is left of it, tokens are their rank, owners and locks are named in the order in
//! which they appear: states that differ in nothing else are one.

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

/// `RLOCK_STATES` is how many states of each profile are looked for; `make model` looks for more
/// than ten million.
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
