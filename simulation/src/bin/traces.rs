//! Writes traces of the state machine of `clients/rust`, in the format of
//! `clients/traces/README.md`: `traces <count> [<seed> [<planted fault>]]`.

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
    match std::io::stdout().write_all(traces(seed, planted, count).as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
