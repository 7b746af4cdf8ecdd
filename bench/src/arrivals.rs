//! How long jobs wait that each hold one lock for 5 ms and arrive at random times, with RLOCK's
//! packages and with other locks. `scripts/peers.sh` takes the measurements, and prints a line of
//! JSON for each lock and load.

use crate::book::{Book, short};
use crate::peers;

/// How much of the time the lock would be held if handing it over took no time, in percent.
const LOADS: &str = "30 50 80 95";

/// The section of each figure, by the name that the figure has in a line of JSON.
const SECTIONS: [(&str, &str); 7] = [
    ("wait_p50_ms", P50),
    ("wait_p99_ms", P99),
    ("wait_max_ms", LONGEST),
    ("failed_percent", FAILED),
    ("still_waiting_percent", STILL_WAITING),
    ("overtaken_percent", OVERTAKEN),
    ("held_ms", "arrivals: the lock was held for, ms"),
];
const P50: &str = "arrivals: p50 of the wait, ms";
const P99: &str = "arrivals: p99 of the wait, ms";
const LONGEST: &str = "arrivals: longest wait, ms";
const FAILED: &str = "arrivals: jobs that failed, %";
const STILL_WAITING: &str = "arrivals: jobs that still waited at the end, %";
const OVERTAKEN: &str = "arrivals: grants out of order, %";

/// Measures all peers, or those that `$PEERS` names.
pub fn measure(book: &mut Book) {
    let mut script = peers::script();
    script.args(std::env::var("PEERS").unwrap_or_default().split_whitespace());
    let loads = std::env::var("LOADS").ok().filter(|loads| !loads.is_empty());
    script.env("PEER_LOADS", loads.as_deref().unwrap_or(LOADS));
    peers::run(script, book, |book, figures| {
        let (peer, note) = (figures["peer"].as_str().unwrap(), figures["note"].as_str().unwrap());
        println!("  {peer}: {note}");
        let load = format!("{} %", figures["load"]);
        for (name, section) in SECTIONS {
            if let Some(value) = figures[name].as_f64() {
                book.put_value(section, peer, &load, value);
            }
        }
    });
}

/// The headings, and a line of cells for each lock. The lock whose jobs wait longest is last.
pub fn lines(book: &Book) -> Vec<Vec<String>> {
    let mut loads: Vec<&str> = Vec::new();
    let mut peers: Vec<(&str, f64)> = Vec::new();
    for figure in book.figures.iter().filter(|figure| figure.section == P99) {
        if !loads.contains(&figure.column.as_str()) {
            loads.push(&figure.column);
        }
        // Keep a peer's last figure, which is the one at the highest load.
        peers.retain(|(peer, _)| *peer != figure.row);
        peers.push((&figure.row, figure.value));
    }
    peers.sort_by(|one, other| one.1.total_cmp(&other.1));
    let headings = ["lock and client"].into_iter().chain(loads.iter().copied());
    let headings = headings.chain(["failed, %", "out of order, %"]).map(str::to_owned);
    let mut lines = vec![headings.collect()];
    for (peer, _) in peers {
        let waits = loads.iter().map(|load| waits(|section| book.value(section, peer, load)));
        let shares = [FAILED, OVERTAKEN].map(|section| {
            let each = loads.iter().map(|load| book.value(section, peer, load));
            each.map(|share| share.map_or(String::new(), short)).collect::<Vec<_>>().join(" / ")
        });
        lines.push([peer.to_owned()].into_iter().chain(waits).chain(shares).collect());
    }
    lines
}

/// The median, the 99th percentile and the longest wait. The longest wait is a lower bound if jobs
/// were still waiting at the end.
fn waits(number: impl Fn(&str) -> Option<f64>) -> String {
    let still_waiting = number(STILL_WAITING).unwrap_or_default();
    let each = [(P50, 50.0), (P99, 1.0), (LONGEST, 0.0)].map(|(section, rest)| {
        let sign = if still_waiting > rest { "≥ " } else { "" };
        number(section).map_or(String::new(), |ms| format!("{sign}{}", short(ms)))
    });
    each.join(" / ")
}
