//! The fuzz targets of `core/fuzz` on stable Rust, run over their corpus and over mutations of it.
//! `make fuzz` runs them longer, and with cargo-fuzz if there is a nightly compiler.
#![allow(clippy::string_slice, reason = "hexadecimal digits are ASCII")]
#![allow(clippy::duplicate_mod, reason = "the targets are a crate, too, and bring the laws along")]

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{number, random};

/// More than the longest name.
const BYTES_MAX: usize = 1200;

/// The input with which a target failed.
struct Given(Vec<u8>);

impl Drop for Given {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: Vec<String> = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("given {}", hex.concat());
        }
    }
}

/// `RLOCK_STEPS` executions, for at most `RLOCK_SECONDS`.
fn run(name: &str, target: fn(&[u8])) {
    let corpus = corpus(name);
    for data in &corpus {
        target(&Given(data.clone()).0);
    }
    let (mut rng, runs) = random(2_000);
    let seconds = number("RLOCK_SECONDS").map(Duration::from_secs);
    let mut session = mutatis::Session::new().seed(rng.u64(..));
    let (began_at, mut count) = (Instant::now(), 0);
    while count < runs && seconds.is_none_or(|seconds| began_at.elapsed() < seconds) {
        let (one, other) = (&corpus[rng.usize(..corpus.len())], &corpus[rng.usize(..corpus.len())]);
        let (head, tail) = (rng.usize(..=one.len()), rng.usize(..=other.len()));
        let mut data = [&one[..head], &other[tail..]].concat();
        for _ in 0..rng.u8(1..8) {
            session.mutate(&mut data).expect("bytes can always be changed");
        }
        data.truncate(BYTES_MAX);
        target(&Given(data).0);
        count += 1;
    }
    println!("{name}: {} inputs of the corpus, {count} near them", corpus.len());
}

/// One input per line, in hexadecimal.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let text = std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
    let inputs: Vec<Vec<u8>> = text.lines().map(bytes).collect();
    assert!(inputs.len() > 10, "{name} has only {} inputs", inputs.len());
    inputs
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn the_words_of_a_command_may_be_any_bytes() {
    run("grammar", targets::grammar);
}

#[test]
fn a_lock_and_an_effect_may_be_any_bytes() {
    run("snapshot", targets::snapshot);
}

/// The core and a naive model process the same history.
#[test]
fn the_core_and_the_naive_model_say_the_same_of_any_history() {
    run("histories", targets::histories);
}
