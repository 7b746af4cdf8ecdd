//! Writes traces of the machine of `clients/rust`, as `clients/traces/README.md` has them:
//! `traces <count> [<seed> [<planted fault> [<first=0 only: 0>]]]`.

use std::io::Write;
use std::process::ExitCode;

use rlock_simulation::machine::Planted;
use rlock_simulation::users::traces;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut number = |or: u64| words.next().map_or(Some(or), |word| word.parse().ok());
    let (Some(count), Some(seed)) = (number(5000), number(1)) else { return ExitCode::FAILURE };
    let name = words.next().unwrap_or_else(|| "Nothing".into());
    let all = Planted::ALL.into_iter().chain([Planted::Nothing]);
    let Some(planted) = all.into_iter().find(|one| format!("{one:?}") == name) else {
        return ExitCode::FAILURE;
    };
    let is_plain = words.next().is_some_and(|word| word == "0");
    let text = traces(seed, planted, count, is_plain);
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
