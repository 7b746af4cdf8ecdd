//! `make simulate`: many steps of many worlds. STEPS is their number, SEED the first seed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use rlock_simulation::fault::Fault;
use rlock_simulation::run::{WORLD_STEPS, many};
use rlock_simulation::seen::Seen;

/// Steps between two lines that report progress.
const PORTION: u64 = 10_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn main() -> ExitCode {
    let steps = number("STEPS").unwrap_or(100_000_000);
    let first_seed = number("SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let mut out = std::io::stdout();
    let mut say = |line: String| {
        let _ = writeln!(out, "{line}");
    };
    say(format!("SEED={first_seed} STEPS={steps}"));
    let (began, mut done, mut seen) = (Instant::now(), 0_u64, Seen::default());
    while done < steps {
        let portion = PORTION.min(steps.saturating_sub(done));
        let seed = first_seed.wrapping_add(done.div_ceil(WORLD_STEPS));
        match many(seed, Fault::None, portion) {
            Ok(found) => seen.add(&found),
            Err(story) => {
                say(story.to_string());
                say(format!(
                    "a law broke: run it again with SEED={} STEPS={WORLD_STEPS}",
                    story.seed
                ));
                return ExitCode::FAILURE;
            }
        }
        done = done.saturating_add(portion);
        let seconds = began.elapsed().as_secs_f64();
        say(format!("{done} steps, {:.0} a second", done as f64 / seconds));
    }
    say(seen.to_string());
    let missing = seen.missing();
    if missing.is_empty() {
        say("all laws held, and all that cannot be promised was seen".into());
        return ExitCode::SUCCESS;
    }
    say(format!("never seen, so nothing was shown about it: {missing:?}"));
    ExitCode::FAILURE
}
