//! Other locks through their own clients, and RLOCK through the same clients. `scripts/peers.sh`
//! takes the measurements, and prints a line of JSON for each.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::book::{Book, short};

/// Records the figures that the script prints, and which peers it skipped.
pub fn measure(book: &mut Book) {
    run(script(), book, |book, figures| {
        println!("  {}", cells(&figures).join(" | "));
        book.peers.push(figures);
    });
}

/// The script that measures the peers.
pub fn script() -> Command {
    Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/peers.sh"))
}

/// Runs the script to its end, and passes each line of figures to `record`.
pub fn run(mut script: Command, book: &mut Book, record: impl Fn(&mut Book, Value)) {
    let mut peers = script.stdout(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(peers.stdout.take().unwrap()).lines().map_while(Result::ok) {
        match serde_json::from_str::<Value>(&line) {
            Ok(figures @ Value::Object(_)) => record(book, figures),
            _ if line.starts_with("SKIPPED") => book.miss(line),
            _ => println!("  {line}"),
        }
    }
    let status = peers.wait().unwrap();
    assert!(status.success(), "not every peer did its work: {status}");
}

/// The columns of the peers' table.
pub const COLUMNS: [&str; 9] = [
    "lock and client",
    "each grant on disk",
    "work",
    "threads × processes",
    "per second",
    "hand-off p50, µs",
    "p99, µs",
    "ratio of most to least served",
    "",
];

/// The columns of the table with one line for each peer.
pub const SUMMARY_COLUMNS: [&str; 9] = [
    "lock and client",
    "each grant on disk",
    "free lock, pairs per second",
    "contended, grants per second: by 4 processes",
    "by 10 threads of one",
    "by 100 threads of one",
    "ratio of most to least served",
    "hand-off p50, µs",
    "p99, µs",
];

/// The lines of the summary table: the peers that were measured with contended locks.
pub fn summary(figures: &[Value]) -> Vec<[String; 9]> {
    let of = |peer: &Value, work: &str, processes: u64, threads: u64| {
        let is_it = |f: &&Value| {
            ["peer", "on_disk"].iter().all(|name| f[name] == peer[name])
                && f["work"] == work
                && f["processes"].as_u64() == Some(processes)
                && f["threads"].as_u64() == Some(threads)
        };
        figures.iter().find(is_it).map_or_else(Default::default, cells)
    };
    let firsts = figures.iter().filter(|figures| figures["work"] == "free pair");
    let line = |first: &Value| {
        let [peer, on_disk, _, _, free, ..] = cells(first);
        let [_, _, _, _, grants, _, _, share, _] = of(first, "contended", 4, 1);
        let [_, _, _, _, ten, ..] = of(first, "contended", 1, 10);
        let [_, _, _, _, hundred, ..] = of(first, "contended", 1, 100);
        let [_, _, _, _, _, p50, p99, ..] = of(first, "hand-off", 1, 2);
        [peer, on_disk, free, grants, ten, hundred, share, p50, p99]
    };
    firsts.map(line).collect()
}

/// One line of the peers' table.
pub fn cells(figures: &Value) -> [String; 9] {
    let text = |name: &str| figures[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| figures[name].as_f64().map_or(String::new(), short);
    let contenders = format!("{} × {}", number("threads"), number("processes"));
    [
        text("peer"),
        if figures["on_disk"] == true { "yes" } else { "no" }.to_owned(),
        text("work"),
        contenders,
        number("ops_per_s"),
        number("hand_off_p50_us"),
        number("hand_off_p99_us"),
        number("max_min_share"),
        text("note"),
    ]
}
