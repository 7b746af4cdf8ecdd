//! What cannot be promised about an acknowledged grant is shown to happen, each in a short story.

use rlock_simulation::run::seen;
use rlock_simulation::seen::Kind;

/// An event that does not occur in this many worlds counts as not seen.
const WORLDS: u64 = 4000;
/// Nobody reads a longer story.
const STORY_MAX: usize = 40;

#[track_caller]
fn told(kind: Kind) {
    let mut seed = 1;
    let story = loop {
        let story = seen(kind, seed, WORLDS).unwrap_or_else(|| panic!("{kind:?} was not seen"));
        // One of many stories is short.
        if story.steps.len() <= STORY_MAX {
            break story;
        }
        seed = story.seed + 1;
    };
    println!("## {kind:?}\n{story}");
}

#[test]
fn a_hold_whose_connection_broke_stands_on_the_next_primary() {
    told(Kind::PendingStands);
}

#[test]
fn a_hold_that_was_taken_back_stands_on_the_next_primary() {
    told(Kind::TakenBackStands);
}

#[test]
fn a_laggard_is_promoted() {
    told(Kind::LaggardPromoted);
}

#[test]
fn all_that_acknowledged_are_with_the_old_primary() {
    told(Kind::AckedPartition);
}

#[test]
fn all_that_acknowledged_died() {
    told(Kind::AcknowledgersLost);
}

#[test]
fn a_clock_is_ahead() {
    told(Kind::AckedClocks);
}
