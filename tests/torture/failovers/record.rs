//! What is kept of a run, so that others can count again: one file of JSON lines. The first line
//! says what ran. Then come the failovers, each followed by its claims and what became of them.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::claims::Claim;
use super::judge::Loss;
use rlock_testkit::{Server, now_ms};

/// Writes the lines, or nothing if the run is not to be kept.
#[derive(Default)]
pub struct Record(Option<BufWriter<File>>);

/// A failover.
#[derive(Serialize)]
pub struct Failover<'r> {
    pub variant: &'r str,
    pub round: u32,
    /// How the primary was cut off, and how far the replicas were.
    pub fall: String,
    /// When the primary died, by its clock, in unix milliseconds.
    pub fallen_ms: i64,
    /// The time from which a claim had to be in effect to be judged, by the clock of the server
    /// that took over.
    pub judged_from_ms: i64,
    /// The same by the owners' clock.
    pub asked_ms: i64,
}

impl Failover<'_> {
    /// Whether the claim has ended by the clock of the server that took over, but not by its
    /// owner's.
    pub fn cuts_short(&self, claim: &Claim) -> bool {
        claim.until_ms <= self.judged_from_ms && claim.owner_until_ms > self.asked_ms
    }
}

impl fmt::Display for Failover<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failover { variant, round, fall, fallen_ms, .. } = self;
        write!(f, "{variant} round {round}: {fall}, at {fallen_ms}")
    }
}

impl Record {
    /// Creates the file in `$RLOCK_KEEP`, if that is set. `$RLOCK_COMMIT` says what was built.
    pub fn begin(seed: u64) -> Record {
        let Ok(folder) = std::env::var("RLOCK_KEEP") else { return Record::default() };
        fs::create_dir_all(&folder).unwrap();
        let server = Server::start().version().to_string().to_lowercase().replace(' ', "-");
        let name = format!("{server}-{seed}.jsonl");
        let mut file = BufWriter::new(File::create_new(Path::new(&folder).join(name)).unwrap());
        let commit = std::env::var("RLOCK_COMMIT").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let head = json!({
            "server": server, "seed": seed, "commit": commit, "cores": cores, "begun_ms": now_ms(),
        });
        writeln!(file, "{head}").unwrap();
        Record(Some(file))
    }

    /// Adds a failover, its claims, and for each lost one why it counts as lost.
    pub fn add(&mut self, failover: &Failover<'_>, claims: &[Claim], losses: &[Loss]) {
        let Some(file) = &mut self.0 else { return };
        writeln!(file, "{}", json!({ "failover": failover })).unwrap();
        let why: HashMap<usize, &str> =
            losses.iter().map(|loss| (loss.claim, loss.why.as_str())).collect();
        for (place, claim) in claims.iter().enumerate() {
            let Claim { key, owner, token, depth, until_ms, owner_until_ms, .. } = claim;
            let Claim { sent_ms, told_ms, .. } = claim;
            let line = json!({
                "sort": format!("{:?}", claim.sort), "kind": format!("{:?}", claim.kind),
                "key": key, "owner": owner, "mode": claim.mode.word(), "token": token,
                "depth": depth, "until_ms": until_ms, "owner_until_ms": owner_until_ms,
                "sent_ms": sent_ms, "told_ms": told_ms, "lost": why.get(&place),
            });
            writeln!(file, "{line}").unwrap();
        }
        file.flush().unwrap();
    }
}
