//! The kinds of failovers. To add one, add a line to `ALL`.

/// What happens while there is load, before the primary dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Calm,
    /// A replica is stopped (SIGSTOP) for a while.
    Stop,
    /// A replica does a full resync.
    Resync,
    /// `CLIENT PAUSE` of writes or of all.
    Pause,
    /// `CLIENT KILL` and `CLIENT UNBLOCK` of waiters.
    Clients,
    /// The servers' clocks differ; sometimes, one of them is set.
    Clocks,
}

/// Which server takes over, and what decides that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `REPLICAOF NO ONE` at the replica with the greatest offset.
    Greatest,
    /// The same at the replica with the smallest offset: all replicas have acknowledged.
    Smallest,
    /// The replica dies with the primary, and starts as a primary from its append-only file.
    Disk,
    /// Sentinel notices, and decides.
    Sentinel,
    /// The command `FAILOVER`, which sometimes does not wait for the replica.
    Command,
    /// The nodes of a cluster notice, and decide.
    Cluster,
    /// Sentinel loses the primary, which lives on.
    Apart,
}

/// Which clients must lose some claims, so that the run shows something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Where all requests need acknowledgments.
    Nobody,
    /// Those that have nothing confirmed.
    Unconfirmed,
    /// Those to whom one acknowledgment is enough.
    OneAck,
}

#[derive(Debug)]
pub struct Variant {
    pub name: &'static str,
    /// How many of a hundred failovers are of this kind.
    pub share: u32,
    pub replicas: usize,
    pub acks: u32,
    /// Whether `rlock.acks` is set, instead of an option in each request.
    pub is_floor: bool,
    pub control: Control,
    pub trouble: Trouble,
    pub way: Way,
    /// The longest time from the cut to the primary's death.
    pub cut_ms_max: u64,
    /// Settings of all servers.
    pub settings: &'static [&'static str],
}

const ONE: Variant = Variant {
    name: "one",
    share: 25,
    replicas: 1,
    acks: 1,
    is_floor: false,
    control: Control::Unconfirmed,
    trouble: Trouble::Calm,
    way: Way::Greatest,
    cut_ms_max: 100,
    settings: &[],
};

const TWO: Variant = Variant { name: "two", replicas: 2, ..ONE };

const ON_DISK: &[&str] = &["appendonly", "yes", "appendfsync", "always"];

const DISKLESS: &[&str] = &["repl-diskless-sync", "yes"];

/// A server whose clock is set forward has heard nothing from the others for that long.
const PATIENT: &[&str] = &["repl-timeout", "600"];

const FLOOR: Variant =
    Variant { name: "floor", share: 4, is_floor: true, control: Control::Nobody, ..TWO };

pub const ALL: &[Variant] = &[
    ONE,
    TWO,
    Variant { name: "all", share: 8, acks: 2, way: Way::Smallest, ..TWO },
    FLOOR,
    Variant { name: "stop", share: 10, trouble: Trouble::Stop, ..TWO },
    Variant { name: "resync", share: 5, trouble: Trouble::Resync, settings: DISKLESS, ..TWO },
    Variant { name: "resync-one", share: 4, trouble: Trouble::Resync, settings: DISKLESS, ..ONE },
    Variant { name: "pause", share: 4, trouble: Trouble::Pause, ..ONE },
    Variant { name: "clients", share: 4, trouble: Trouble::Clients, ..ONE },
    Variant { name: "command", share: 4, way: Way::Command, ..ONE },
    Variant { name: "disk", share: 3, way: Way::Disk, settings: ON_DISK, ..ONE },
    Variant { name: "sentinel", share: 2, way: Way::Sentinel, ..TWO },
    Variant { name: "long", share: 1, way: Way::Sentinel, cut_ms_max: 3000, ..FLOOR },
    Variant { name: "apart", share: 1, acks: 2, way: Way::Apart, control: Control::OneAck, ..TWO },
    Variant { name: "skewed", share: 2, trouble: Trouble::Clocks, settings: PATIENT, ..TWO },
    Variant { name: "cluster", share: 2, way: Way::Cluster, ..ONE },
];
