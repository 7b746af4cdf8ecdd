//! The simulated server of `simulation/` beside this real one: the same random commands on both
//! have the same replies, events, keys and times to live. What the simulation shows is worth as
//! much as this holds.

mod choice;
mod twins;

use choice::Choice;
use redis::Value;
use rlock_core::Now;
use twins::Twins;

use rlock_testkit::{items, text};

/// Commands of the short form.
const COMMANDS: u64 = 400;
/// Commands until both begin anew.
const EPISODE: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// `RLOCK_SEED` runs the same commands again, `RLOCK_COMMANDS` more of them.
#[test]
fn the_simulated_server_does_what_a_real_one_does() {
    let seed = number("RLOCK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let commands = number("RLOCK_COMMANDS").unwrap_or(COMMANDS);
    println!("RLOCK_SEED={seed}");
    let (mut done, mut compared, mut unsure) = (0, 0, 0);
    while done < commands {
        let mut choice = Choice::new(seed.wrapping_add(done));
        let mut twins = Twins::new();
        for _ in 0..EPISODE.min(commands - done) {
            let deed = choice.next(&twins);
            twins.carry_out(deed);
            done += 1;
            if twins.is_unsure {
                unsure += 1;
                break;
            }
        }
        compared += twins.compared;
    }
    println!("{done} commands, {compared} comparisons, 0 differences");
    println!("{unsure} times the machine was too slow to tell");
    assert!(compared > commands, "hardly anything was compared: {compared}");
}

/// The reply to `TIME`.
fn time_of(value: &Value) -> Now {
    let parts = items(value).iter().map(|part| text(part).parse::<u64>().unwrap());
    let [seconds, micros] = parts.collect::<Vec<_>>()[..] else { panic!("{value:?} is no time") };
    Now::from_us(seconds * 1_000_000 + micros)
}

/// Whether the last deed is a command on whole databases: then locks are swept by their places in
/// the manager, which depend on the order in which connections closed.
fn is_of_all(said: &[String]) -> bool {
    said.last().is_some_and(|deed| deed.contains("FLUSH") || deed.contains("SWAPDB"))
}

/// The events of one deed, those of each lock in their order. The order of all of them counts, too,
/// but after a command on whole databases.
fn in_order(mut events: Vec<String>, said: &[String]) -> Vec<String> {
    if is_of_all(said) {
        events.sort_by_key(|event| event.split_once(' ').map(|(_, lock)| lock.to_owned()));
    }
    events
}

/// Tokens in an error line stand in another place in time.
fn without_tokens(line: &str) -> String {
    let words = line.split_inclusive(' ').map(|word| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        if digits >= 15 { "#" } else { word }
    });
    words.collect()
}
