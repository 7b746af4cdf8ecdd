//! The disk fails: a snapshot cannot be stored, or the append-only file cannot grow. Meanwhile the
//! server refuses all writes (`MISCONF`), so timers grant and renew nothing either. When the disk
//! works again, everything due is done.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Alone, Blow, Fault, Kind, SETTINGS, Shard};
use crate::actor::Site;
use crate::clock::now_ns;
use crate::history::{Event, FULL_PROMISE, Mark, Promise};
use rlock_testkit::{Client, Server, until};

const PATIENCE_MS: u64 = 30_000;
/// A session's shortest lease.
const LEASE_MS: u64 = 1000;
/// Longer than a lease, so that what is not renewed expires.
const LASTS_MS: u64 = 2500;

pub const KIND: Kind = Kind {
    name: "disk",
    start: || Box::new(Disk::start()),
    promise: Promise { may_close: true, errors: &["MISCONF"], ..FULL_PROMISE },
    every_ms: 500,
    in_processes: false,
    left_out: &[],
};

struct Disk {
    alone: Alone,
    client: Client,
}

impl Disk {
    fn start() -> Disk {
        let settings = [
            ["stop-writes-on-bgsave-error", "yes"],
            // A time that never comes: without one no snapshot counts.
            ["save", "1000000 1000000000"],
            ["appendonly", "yes"],
            ["appendfsync", "everysec"],
            ["auto-aof-rewrite-percentage", "0"],
        ];
        // Makes a file that is too large an error, not a signal.
        let deaf = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
        let server = Server::under(&deaf, &[&SETTINGS[..], settings.as_flattened()].concat());
        Disk { client: server.client(), alone: Alone(server) }
    }

    fn snapshot(&mut self) {
        self.client.ask("BGSAVE");
        let Disk { client, .. } = self;
        until(PATIENCE_MS, || client.info_number("persistence", "rdb_bgsave_in_progress") == 0);
    }

    /// Puts a folder where the snapshot should be.
    fn break_snapshots(&mut self) {
        let place = self.alone.0.folder().join("dump.rdb");
        fs::remove_file(&place).ok();
        fs::create_dir(&place).unwrap();
        self.snapshot();
    }

    fn mend_snapshots(&mut self) {
        fs::remove_dir(self.alone.0.folder().join("dump.rdb")).unwrap();
        self.snapshot();
    }

    /// Limits all files of the server to the present size of its append-only file.
    fn limit_files(&self, bytes: Option<u64>) {
        let id = i32::try_from(self.alone.0.process_id()).unwrap();
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Pid::from_raw(id), Resource::Fsize, limit).unwrap();
    }

    /// The reply to a client's write.
    fn is_refused(&mut self) -> bool {
        let reply = self.client.attempt("SET probe 1");
        reply.is_err_and(|error| error.starts_with("MISCONF"))
    }
}

impl Fault for Disk {
    fn site(&self) -> Site {
        Site { lease_ms: LEASE_MS, ..self.alone.site() }
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let is_snapshot = blow.rng.bool();
        blow.marked(Mark::Refusal, |blow| {
            if is_snapshot {
                self.break_snapshots();
            } else {
                let bytes = self.client.info_number("persistence", "aof_current_size");
                self.limit_files(Some(bytes as u64));
            }
            until(PATIENCE_MS, || self.is_refused());
            let from_ns = now_ns();
            blow.rest(LASTS_MS);
            let (mark, to_ns) = (Mark::Shut(None), now_ns());
            blow.events.push(Event { mark, from_ns, to_ns });
            if is_snapshot {
                self.mend_snapshots();
            } else {
                self.limit_files(None);
            }
            until(PATIENCE_MS, || !self.is_refused());
        });
    }

    fn heal(&mut self) {
        self.client.ask("DEL probe");
        self.client.ask("CONFIG SET appendfsync always");
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
