//! What is kept of a run, so that others can count again: one file of JSON lines. The first line
//! says what ran. Then come the failovers, each followed by its claims and what became of them.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::claims::Claim;
use super::judge::Loss;
use rlock_testkit::now_ms;

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
    /// When the primary died, in unix milliseconds.
    pub fallen_ms: i64,
    /// The time from which a claim had to be in effect to be judged, in unix milliseconds.
    pub judged_from_ms: i64,
}

impl fmt::Display for Failover<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failover { variant, round, fall, fallen_ms, .. } = self;
        write!(f, "{variant} round {round}: {fall}, at {fallen_ms}")
    }
}

impl Record {
    /// Creates the file in `$RLOCK_KEEP`, if that is set. `$RLOCK_COMMIT` says what was built.
    pub fn begin(server: &str, seed: u64) -> Record {
        let Ok(folder) = std::env::var("RLOCK_KEEP") else { return Record::default() };
        fs::create_dir_all(&folder).unwrap();
        let name = format!("{server}-{seed}.jsonl");
        let file = File::create_new(Path::new(&folder).join(name)).unwrap();
        let mut record = Record(Some(BufWriter::new(file)));
        let commit = std::env::var("RLOCK_COMMIT").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        record.write(&json!({
            "server": server, "seed": seed, "commit": commit, "cores": cores, "begun_ms": now_ms(),
        }));
        record
    }

    /// Adds a failover, its claims, and for each lost one why it counts as lost.
    pub fn add(&mut self, failover: &Failover<'_>, claims: &[Claim], losses: &[Loss]) {
        if self.0.is_none() {
            return;
        }
        self.write(&json!({ "failover": failover }));
        for (place, claim) in claims.iter().enumerate() {
            let Claim { sort, kind, key, owner, token, depth, until_ms, sent_ms, told_ms, .. } =
                claim;
            let why = losses.iter().find(|loss| loss.claim == place).map(|loss| &loss.why);
            self.write(&json!({
                "sort": format!("{sort:?}"), "kind": format!("{kind:?}"), "key": key,
                "owner": owner, "mode": claim.mode.word(), "token": token, "depth": depth,
                "until_ms": until_ms, "sent_ms": sent_ms, "told_ms": told_ms, "lost": why,
            }));
        }
        self.0.as_mut().unwrap().flush().unwrap();
    }

    fn write(&mut self, line: &serde_json::Value) {
        let Some(file) = &mut self.0 else { return };
        writeln!(file, "{line}").unwrap();
    }
}
