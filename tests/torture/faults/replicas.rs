//! A replica whose link is cut and comes back, by a partial or a full resync, with a disk or
//! without. The primary's clients notice nothing, and in the end both have the same locks.

use super::{Blow, Fault, Kind, SETTINGS, Shard};
use crate::actor::Site;
use crate::history::FULL_PROMISE;
use rlock_testkit::{Server, until};

pub const PARTIAL: Kind = Kind {
    name: "link-cut",
    start: || Box::new(Replicas::of(Resync::Partial)),
    promise: FULL_PROMISE,
    every_ms: 150,
    in_processes: false,
    left_out: &[],
};

pub const DISK: Kind =
    Kind { name: "resync-disk", start: || Box::new(Replicas::of(Resync::Disk)), ..PARTIAL };

pub const DISKLESS: Kind =
    Kind { name: "resync-sock", start: || Box::new(Replicas::of(Resync::Diskless)), ..PARTIAL };

#[derive(Clone, Copy, PartialEq)]
enum Resync {
    Partial,
    Disk,
    Diskless,
}

struct Replicas {
    primary: Server,
    replica: Server,
    resync: Resync,
}

impl Replicas {
    fn of(resync: Resync) -> Replicas {
        let (sync, load) = match resync {
            Resync::Disk => ("no", "disabled"),
            Resync::Partial | Resync::Diskless => ("yes", "swapdb"),
        };
        let backlog = ["repl-diskless-sync", sync, "repl-backlog-size", "64mb"];
        let primary = Server::primary(&[&SETTINGS[..], &backlog].concat());
        let replica = Server::replica_of(&primary, &["repl-diskless-load", load]);
        Replicas { primary, replica, resync }
    }

    fn has_link(&self) -> bool {
        let link = self.replica.client().info("replication", "master_link_status");
        link.as_deref() == Some("up")
    }

    fn full_syncs(&self) -> i64 {
        self.primary.client().info_number("stats", "sync_full")
    }
}

impl Fault for Replicas {
    fn site(&self) -> Site {
        Site::fixed(self.primary.url(""))
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        let before = self.full_syncs();
        if self.resync == Resync::Partial {
            self.primary.client().ask("CLIENT KILL TYPE replica");
            blow.rest(50);
        } else {
            // As a primary it gets a new replication id, so it needs a full resync.
            let mut client = self.replica.client();
            client.ask("REPLICAOF NO ONE");
            blow.rest(50);
            client.ask(&format!("REPLICAOF 127.0.0.1 {}", self.primary.tcp_port()));
        }
        until(20_000, || self.has_link());
        let is_full = self.full_syncs() > before;
        assert_eq!(is_full, self.resync != Resync::Partial, "a full resync");
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        vec![Shard { primary: &mut self.primary, replicas: vec![&self.replica] }]
    }
}
