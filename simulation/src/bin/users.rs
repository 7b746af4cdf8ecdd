//! `make simulate-users`: many steps of many worlds of users. STEPS is their number, SEED the first
//! seed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use rlock_simulation::machine::Planted;
use rlock_simulation::users::many;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn main() -> ExitCode {
    let steps = number("STEPS").unwrap_or(10_000_000);
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let mut out = std::io::stdout();
    let mut say = |line: String| {
        let _ = writeln!(out, "{line}");
    };
    say(format!("SEED={seed} STEPS={steps}"));
    let began = Instant::now();
    match many(seed, Planted::Nothing, steps) {
        Ok(found) => {
            say(format!("{found}\nall laws held, {:.0} s", began.elapsed().as_secs_f64()));
            ExitCode::SUCCESS
        }
        Err(story) => {
            say(story.to_string());
            ExitCode::FAILURE
        }
    }
}
