//! The simulated server of `simulation/` beside this real one: the same random commands get the
//! same replies, events, keys and times to live on both. The simulation proves something about real
//! servers only as far as this test passes.

mod choice;
mod twins;

use std::time::Duration;

use choice::Choice;
use redis::Value;
use rlock_core::Now;
use twins::Twins;

use rlock_testkit::{items, text};

/// The number of commands in the short form.
const COMMANDS: u64 = 400;
/// The number of commands until both servers start again.
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
        let most = EPISODE.min(commands - done);
        let told = on_a_machine_with_time(|| episode(seed.wrapping_add(done), most));
        done += told.commands;
        compared += told.compared;
        unsure += u64::from(told.is_unsure);
    }
    println!("{done} commands, {compared} comparisons, 0 differences");
    println!("{unsure} times the machine was too slow to tell");
    assert!(compared > commands, "hardly anything was compared: {compared}");
}

/// How many of some commands had which result.
struct Told {
    commands: u64,
    compared: u64,
    is_unsure: bool,
}

/// Starts both servers again, and executes the commands of this seed.
fn episode(seed: u64, most: u64) -> Told {
    let mut choice = Choice::new(seed);
    let mut twins = Twins::new();
    let mut commands = 0;
    while commands < most && !twins.is_unsure {
        let deed = choice.next(&twins);
        twins.carry_out(deed);
        commands += 1;
    }
    Told { commands, compared: twins.compared, is_unsure: twins.is_unsure }
}

/// On a machine that is too busy, milliseconds prove nothing. So a failure is repeated, at most
/// twice, if this thread was ready to run but waited for a processor for that long meanwhile.
fn on_a_machine_with_time<T>(work: impl Fn() -> T + std::panic::RefUnwindSafe) -> T {
    const BUSY: Duration = Duration::from_millis(100);
    for _ in 0..2 {
        let before = waited();
        match std::panic::catch_unwind(&work) {
            Ok(done) => return done,
            Err(why) if waited() - before < BUSY => std::panic::resume_unwind(why),
            Err(_) => println!("again: this thread waited for {:?}", waited() - before),
        }
    }
    work()
}

/// How long this thread has been ready to run without a processor.
fn waited() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split(' ').nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// The reply to `TIME`.
fn time_of(value: &Value) -> Now {
    let parts = items(value).iter().map(|part| text(part).parse::<u64>().unwrap());
    let [seconds, micros] = parts.collect::<Vec<_>>()[..] else { panic!("{value:?} is no time") };
    Now::from_us(seconds * 1_000_000 + micros)
}

/// Whether this is a command on whole databases: after one, locks are swept by their places in the
/// manager, which depend on the order in which connections were closed.
fn is_on_databases(deed: &str) -> bool {
    deed.contains("FLUSH") || deed.contains("SWAPDB")
}

/// The events of one action, those of each lock in their order. The order of all of them counts,
/// too, unless it is open: see [`Twins::is_order_open`].
fn in_order(mut events: Vec<String>, is_open: bool) -> Vec<String> {
    if is_open {
        events.sort_by_key(|event| event.split_once(' ').map(|(_, lock)| lock.to_owned()));
    }
    events
}

/// Tokens in an error line are replaced: they differ between the servers.
fn without_tokens(line: &str) -> String {
    let words = line.split_inclusive(' ').map(|word| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        if digits >= 15 { "#" } else { word }
    });
    words.collect()
}
