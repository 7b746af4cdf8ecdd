//! A cluster of three primaries with a replica each: one primary is killed, and the cluster elects
//! its replica.

use fastrand::Rng;

use super::stage::{Cut, Fall, Servers, has_link, offset, until_acked};
use super::variants::Trouble;
use crate::clock::{Stop, ms, now_ns};
use rlock_testkit::{Cluster, Server, until};

const PATIENCE_MS: u64 = 30_000;
/// With a shorter time, other work on this machine would look like a death.
const DOWN_AFTER_MS: u32 = 1000;
const CUT_MS_MAX: u64 = 100;
/// The slot of this tag is in the first third, as `redis-cli --cluster create` shares them out.
const TAG: &str = "{hall}";

pub struct Shards {
    cluster: Cluster,
    /// The number of the node that has the slot.
    primary: usize,
}

impl Shards {
    pub fn of_six() -> Shards {
        let settings = ["notify-keyspace-events", "KEd", "cluster-require-full-coverage", "no"];
        let cluster = Cluster::of_six(DOWN_AFTER_MS, &settings);
        let slot = cluster.client(0).number(&format!("CLUSTER KEYSLOT {TAG}")) as u16;
        let primary = cluster.owner_of(slot, 0).unwrap();
        Shards { cluster, primary }
    }
}

impl Servers for Shards {
    fn primary(&self) -> &Server {
        self.cluster.node(self.primary)
    }

    fn door(&self) -> String {
        format!("cluster {}", self.primary().tcp_port())
    }

    fn tag(&self) -> &str {
        TAG
    }

    fn make_whole(&mut self) {
        let down = self.cluster.nodes.iter_mut().filter(|node| !node.is_running());
        down.for_each(Server::start_again);
        self.cluster.until_all_agree();
        let replica = self.cluster.replica_of(self.primary);
        let mut client = self.cluster.client(replica);
        until(PATIENCE_MS, || has_link(&mut client));
        let mut client = self.primary().client();
        client.ask("FLUSHALL");
        until_acked(&mut client, 1, TAG);
    }

    fn trouble(&mut self, _: Trouble, _: &mut Rng) {}

    fn fall(&mut self, rng: &mut Rng) -> Fall {
        let replica = self.cluster.replica_of(self.primary);
        let cut = *rng.choice(&[Cut::No, Cut::Stopped, Cut::Stopped]).unwrap();
        let begun_ns = now_ns();
        if cut == Cut::Stopped {
            self.cluster.node(replica).freeze();
            self.primary().client().ask("CLIENT KILL TYPE replica");
            Stop::default().within(rng.u64(..=CUT_MS_MAX));
        }
        let (at_ns, cut_ms) = (now_ns(), ms(now_ns() - begun_ns) as u64);
        self.cluster.node_mut(self.primary).kill_9();
        if cut == Cut::Stopped {
            self.cluster.node(replica).thaw();
        }
        let offsets = vec![offset(self.cluster.node(replica))];
        let mut client = self.cluster.client(replica);
        until(PATIENCE_MS, || client.info("replication", "role").as_deref() == Some("master"));
        until(PATIENCE_MS, || client.attempt(&format!("RLOCK.HOLDS {TAG}:no one")).is_ok());
        self.primary = replica;
        Fall { cut: format!("{cut:?}"), cut_ms, at_ns, offsets }
    }
}
