//! The short form of `make simulate`.

use rlock_simulation::fault::Fault;
use rlock_simulation::run::many;

/// The number of steps, which take some seconds: enough for the rarest events.
const STEPS: u64 = 4_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn the_laws_hold_and_what_cannot_be_promised_is_seen() {
    // The same worlds each time, so that no test fails by chance. `make simulate` takes others.
    let seed = number("RLOCK_SEED").unwrap_or(2026);
    let seen = many(seed, Fault::None, STEPS).unwrap_or_else(|story| panic!("{story}"));
    println!("{seen}");
    assert_eq!(seen.missing(), [], "never seen, so nothing was shown about it");
}
