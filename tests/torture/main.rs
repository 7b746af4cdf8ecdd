//! Real servers under load, with faults. Every request and reply is recorded and checked. Prints
//! one line for each workload and fault, then the sum. `make torture` runs it; the environment sets
//! how long (RLOCK_SECONDS), the seed of the choices (RLOCK_SEED), and which faults and workloads
//! (FAULT and WORKLOAD, names separated by commas; default: all).

// An impossible case panics here, and the numbers of a run are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod actor;
mod aftermath;
mod chaos;
mod checks;
mod clock;
mod crowd;
mod failovers;
mod faults;
mod history;
mod run;
mod thousand;
mod witness;
mod words;
mod workloads;

use std::env;
use std::process::ExitCode;

use clock::{ms, now_ns, ns};
use failovers::record::Record;
use failovers::rivals::Rivals;
use failovers::variants::{self, Variant};
use failovers::{Promise, Tally, grace};
use faults::Kind;
use run::Outcome;
use workloads::Workload;

/// The shortest time for a pair.
const LOAD_MS_MIN: u64 = 300;

/// Divides the remaining time.
struct Shares {
    ends_ns: u64,
    /// How long the last pair took in addition to its load: for starting servers, and for the
    /// checks.
    besides_ms: u64,
}

impl Shares {
    /// How long the load of the next of this many pairs may last.
    fn next_ms(&self, pairs_left: usize) -> u64 {
        let left_ms = ms(self.ends_ns.saturating_sub(now_ns())) as u64;
        let share_ms = left_ms / pairs_left as u64;
        share_ms.saturating_sub(self.besides_ms).max(LOAD_MS_MIN)
    }
}

fn main() -> ExitCode {
    // `cargo bench` adds `--bench`.
    let words: Vec<String> = env::args().skip(1).filter(|w| w != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => torture(),
        ["chaos"] => chaos(),
        ["failovers", ref programs @ ..] => fail_over(&mut Rivals::of(programs)),
        ["grace"] => grace(),
        ["permits"] => permits(),
        ["permits", "redisson", program] => redisson(program),
        ["act", ref words @ ..] => {
            crowd::act(words);
            ExitCode::SUCCESS
        }
        _ => panic!("no arguments are known, {words:?} were given"),
    }
}

/// How long to run, and with which seed.
fn wishes() -> (u64, u64) {
    let seconds = number("RLOCK_SECONDS").unwrap_or(60);
    (seconds, number("RLOCK_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000)))
}

fn chaos() -> ExitCode {
    let (seconds, seed) = wishes();
    let tally = chaos::run(seconds * 1000, seed);
    println!("{tally}");
    if tally.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Failovers of all kinds, or of those named, each with its share; also of locks by those programs.
fn fail_over(rivals: &mut Rivals) -> ExitCode {
    let failovers = number("RLOCK_FAILOVERS").unwrap_or(100) as u32;
    let (_, seed) = wishes();
    let wanted = env::var("VARIANT").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|word| word == name);
    let variants: Vec<&Variant> = variants::ALL.iter().filter(|v| is_wanted(v.name)).collect();
    assert!(!variants.is_empty(), "no such VARIANT");
    let shares: u32 = variants.iter().map(|variant| variant.share).sum();
    println!("{failovers} failovers, SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sum = Tally::of("in all");
    let mut record = Record::begin(seed);
    for variant in variants {
        let times = (failovers * variant.share).div_ceil(shares);
        let promise = Promise::ToThoseWhoMakeSure;
        let tally = failovers::run(variant, times, promise, &mut rng, &mut record, rivals);
        println!("{tally}");
        sum.add(tally);
    }
    println!("{}\n{sum}, SEED={seed}", sum.kinds());
    // The variant `floor` has no control group.
    let idle = sum.idle_controls();
    if !idle.is_empty() {
        println!("the control has lost nothing: nothing is shown by this ({idle:?})");
    }
    if idle.is_empty() && sum.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Failovers with a grace period, and some with one that is too short, where overlaps must be seen.
fn grace() -> ExitCode {
    let failovers = number("RLOCK_FAILOVERS").unwrap_or(100) as u32;
    let (_, seed) = wishes();
    println!("{failovers} failovers with a grace, SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let long = grace::run(&grace::LONG, failovers, &mut rng);
    println!("{long}");
    let short = grace::run(&grace::SHORT, failovers.div_ceil(5), &mut rng);
    println!("{short}");
    let is_kept = long.overlaps.is_empty() && !short.overlaps.is_empty();
    let is_well = is_kept && long.wrong.is_empty() && short.wrong.is_empty();
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A thousand workers at ten permits, with a lease and with `SESSION`, for half of the time each.
fn permits() -> ExitCode {
    let (seconds, seed) = wishes();
    println!("{seconds} s, SEED={seed}");
    let tallies = workloads::THOUSAND.iter().map(|workload| {
        let tally = thousand::run(workload, seconds * 500, seed);
        println!("{tally}");
        tally.is_clean()
    });
    let clean = tallies.filter(|is_clean| *is_clean).count();
    if clean == workloads::THOUSAND.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The same work with Redisson's semaphore, in processes of that program.
fn redisson(program: &str) -> ExitCode {
    let (seconds, seed) = wishes();
    let tally = thousand::redisson::run(program.into(), seconds * 1000, seed);
    println!("{tally}, SEED={seed}");
    if tally.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn torture() -> ExitCode {
    let (seconds, seed) = wishes();
    let pairs = pairs();
    assert!(!pairs.is_empty(), "no such FAULT or WORKLOAD");
    println!("{} pairs of workload and fault, {seconds} s for all, SEED={seed}", pairs.len());
    let mut sum = Outcome::default();
    let mut shares = Shares { ends_ns: now_ns() + ns(seconds * 1000), besides_ms: 0 };
    for (number, (workload, kind)) in pairs.iter().enumerate() {
        let load_ms = shares.next_ms(pairs.len() - number);
        let begun_ns = now_ns();
        let outcome = run::run(workload, kind, load_ms, seed.wrapping_add(number as u64));
        shares.besides_ms = (ms(now_ns() - begun_ns) as u64).saturating_sub(load_ms);
        say(workload, kind, &outcome);
        sum.operations += outcome.operations;
        sum.holds += outcome.holds;
        sum.linear.add(outcome.linear);
        sum.judged_ns += outcome.judged_ns;
        sum.blows += outcome.blows;
        sum.violations.extend(outcome.violations);
    }
    let Outcome { operations, holds, linear, judged_ns, blows, violations, .. } = sum;
    println!(
        "{operations} operations checked, {holds} holds compared, {blows} blows, {} violations, \
         SEED={seed}",
        violations.len()
    );
    println!("{linear}, judged in {:.1} s", ms(judged_ns) / 1e3);
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The combinations of workloads and faults.
fn pairs() -> Vec<(&'static Workload, &'static Kind)> {
    let [fault, workload] = ["FAULT", "WORKLOAD"].map(|name| env::var(name).unwrap_or_default());
    let is_wanted =
        |wanted: &str, name: &str| wanted.is_empty() || wanted.split(',').any(|word| word == name);
    let kinds = faults::ALL.iter().filter(|kind| is_wanted(&fault, kind.name));
    let planted =
        faults::PLANTED.iter().filter(|kind| !fault.is_empty() && is_wanted(&fault, kind.name));
    let kinds = kinds.chain(planted);
    let mut pairs = Vec::new();
    for kind in kinds {
        let fits = |w: &&Workload| !w.is_acked || kind.has_replicas();
        let wanted = workloads::ALL.iter().filter(|w| is_wanted(&workload, w.name));
        for workload in wanted.filter(fits) {
            match kind.left_out.iter().find(|(name, _)| *name == workload.name) {
                Some((name, why)) => println!("left out: {name} x {}: {why}", kind.name),
                None => pairs.push((workload, kind)),
            }
        }
    }
    pairs
}

fn say(workload: &Workload, kind: &Kind, outcome: &Outcome) {
    let Outcome { operations, blows, hand_offs, violations, .. } = outcome;
    let mut sorted = hand_offs.clone();
    sorted.sort_by(f64::total_cmp);
    let percentile = |percent: usize| match sorted.len() {
        0 => "-".to_owned(),
        len => format!("{:.2}", sorted[(len * percent).div_ceil(100).max(1) - 1]),
    };
    println!(
        "{:<10} x {:<12} {operations:>7} operations, {} violations, {blows:>3} blows; \
         hand-off p50 {} p99 {} ms",
        workload.name,
        kind.name,
        violations.len(),
        percentile(50),
        percentile(99)
    );
    // Repeated messages are left out.
    let mut said: Vec<&str> = Vec::new();
    for violation in violations {
        let checker = violation.split(':').next().unwrap_or_default();
        if !said.contains(&checker) {
            println!("  {violation}");
            let alike = violations.iter().filter(|other| other.starts_with(checker));
            println!("  {} of {checker} in all", alike.count());
            said.push(checker);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
