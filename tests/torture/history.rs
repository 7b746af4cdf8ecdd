//! What was done and when, as the clients and faults saw it: the checkers read nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::ms;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    Write,
    Read,
}

impl Mode {
    pub fn word(self) -> &'static str {
        match self {
            Mode::Write => "WRITE",
            Mode::Read => "READ",
        }
    }
}

/// What an ACQUIRE does if the lock is not free, with its milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    No,
    /// 0 = forever.
    Block(u64),
    Queue(u64),
    /// With TELL. `again` says whether it lost or gave up its subscription while it waited.
    Tell {
        ms: u64,
        again: bool,
    },
}

/// The options of an ACQUIRE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub mode: Mode,
    pub lease_ms: u64,
    pub wait: Wait,
    pub upgrade: bool,
    pub session: bool,
    pub depth: Option<i64>,
    /// READ beside fewer than this many others; all who use a lock send the same number.
    pub limit: Option<u32>,
    /// How many replicas must acknowledge it before the reply; 0 if none.
    pub acks: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Asked {
    Acquire(Ask),
    /// `down_to`: DEPTH, or else one level. `token`: of which hold.
    Release {
        mode: Mode,
        down_to: Option<i64>,
        token: Option<i64>,
    },
    Renew {
        mode: Mode,
        lease_ms: u64,
        token: i64,
        acks: u32,
    },
    Cancel,
    /// RLOCK.INFO with all waiters.
    Info,
    /// RLOCK.INFO: how long its own hold lasts, in milliseconds.
    Look {
        mode: Mode,
        token: i64,
    },
    /// Runs a script that counts if RLOCK.CHECK allows it.
    Count {
        token: i64,
    },
    /// ECHO of a mark: shows whether every earlier request had one reply.
    Echo,
    /// The client closed its connection.
    HangUp,
}

impl Asked {
    /// Whether a replica has the effect as soon as its caller has the reply.
    pub fn is_acked(&self) -> bool {
        match self {
            Asked::Acquire(ask) => ask.acks > 0,
            Asked::Renew { acks, .. } => *acks > 0,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Token(i64),
    Nil,
    Number(i64),
    NotHeld,
    Deadlock,
    /// The waiters, in order.
    Waiters(Vec<String>),
    Error(String),
    /// The connection closed first: the request was executed or not.
    Lost,
    /// No reply came in time, and the connection stayed open.
    Never,
}

/// Errors after which a client asks again later.
const REFUSALS: [&str; 2] = ["NOREPLICAS", "MISCONF"];

impl Reply {
    /// Whether the server lets nobody write for now.
    pub fn is_refusal(&self) -> bool {
        match self {
            Reply::Error(error) => REFUSALS.iter().any(|begin| error.starts_with(begin)),
            _ => false,
        }
    }
}

/// One request to a server, and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Op {
    pub actor: u32,
    /// The server's ID of the connection.
    pub connection: i64,
    /// Which of the actor's connections it was, since each server counts its own.
    pub link: u32,
    pub key: String,
    pub owner: String,
    pub asked: Asked,
    pub sent_ns: u64,
    pub received_ns: u64,
    pub reply: Reply,
    /// When a replica was known to have it (WAIT).
    pub secured_ns: Option<u64>,
}

/// A fault: what it did to the servers or clients.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// The holds of this key, or of all, were ended.
    Wiped(Option<String>),
    /// This connection was closed.
    Closed(i64),
    /// Nobody was served; queues survive.
    Outage,
    /// The server was killed and came back: queues and sessions are lost, holds are not.
    Restart,
    /// Another server took over, with what had reached it.
    Failover,
    /// The primary was cut off from its replicas, and went on.
    Cut,
    /// The server refused writes; queues survive, sessions are not renewed.
    Refusal,
    /// The server of these actors certainly let nobody write: of the even or odd ones (their number
    /// modulo two), or of all.
    Shut(Option<u32>),
}

impl Mark {
    /// Whether it ends queues.
    fn ends_queues(&self) -> bool {
        matches!(self, Mark::Restart | Mark::Failover)
    }

    /// Whether nobody is served during it.
    fn is_outage(&self) -> bool {
        matches!(self, Mark::Outage | Mark::Restart | Mark::Failover | Mark::Refusal)
    }
}

/// A mark and the time in which it happened.
#[derive(Debug, Clone)]
pub struct Event {
    pub mark: Mark,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// What is promised under one kind of fault.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// A hold survives the fault from its grant on; otherwise only once a replica is known to have
    /// it (WAIT), and others are not counted.
    pub holds_at_once: bool,
    /// Tokens rise over all keys; otherwise (several primaries) for each key.
    pub one_primary: bool,
    /// Connections may close without their owner's doing.
    pub may_close: bool,
    /// Waits may end early with nil.
    pub may_unblock: bool,
    /// The beginnings of other errors that may occur.
    pub errors: &'static [&'static str],
    /// Whether callers ask for acknowledgments, and get errors if there are too few in time.
    pub is_acked: bool,
    /// How long a primary that was cut off still grants and renews. Until these leases end, its
    /// successor may grant the same locks; afterward, two owners of one lock are a violation.
    pub goes_on_ms: u64,
    /// A free lock goes to a waiter within this time, not counting outages. The server does it
    /// within 2 ms; this bound leaves room for a busy machine.
    pub granted_within_ms: u64,
}

impl Promise {
    /// Whether this error needs no other cause.
    pub fn excuses(&self, error: &str) -> bool {
        let unconfirmed = if self.is_acked { &UNCONFIRMED[..] } else { &[] };
        self.errors.iter().chain(unconfirmed).any(|begin| error.starts_with(begin))
    }
}

/// There were too few replicas, or they acknowledged too late.
const UNCONFIRMED: [&str; 2] = ["NOREPLICAS", "NOACKS"];

/// What is promised as long as only clients act.
pub const FULL_PROMISE: Promise = Promise {
    holds_at_once: true,
    one_primary: true,
    may_close: false,
    may_unblock: false,
    errors: &[],
    is_acked: false,
    goes_on_ms: 0,
    granted_within_ms: 1500,
};

pub struct History {
    pub ops: Vec<Op>,
    pub events: Vec<Event>,
    pub promise: Promise,
}

impl History {
    /// For how long nobody was served in `from_ns..to_ns`.
    pub fn outage_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        let outages = self.events.iter().filter(|event| event.mark.is_outage());
        let mut times: Vec<(u64, u64)> =
            outages.map(|event| (event.from_ns.max(from_ns), event.to_ns.min(to_ns))).collect();
        times.sort_unstable();
        let (mut sum, mut counted_ns) = (0, from_ns);
        for (begin_ns, end_ns) in times {
            sum += end_ns.saturating_sub(begin_ns.max(counted_ns));
            counted_ns = counted_ns.max(end_ns);
        }
        sum
    }

    /// Whether queues were lost in this time.
    pub fn lost_queues(&self, from_ns: u64, to_ns: u64) -> bool {
        let mut losses = self.events.iter().filter(|event| event.mark.ends_queues());
        losses.any(|event| event.from_ns < to_ns && event.to_ns > from_ns)
    }

    /// The operations on `key` in this time, and the faults: at most 40 lines.
    pub fn excerpt(&self, key: &str, from_ns: u64, to_ns: u64) -> Vec<String> {
        let overlaps = |from: u64, to: u64| from <= to_ns && to >= from_ns;
        let ops = self.ops.iter().filter(|op| op.key == key);
        let ops = ops.filter(|op| op.asked != Asked::Echo && overlaps(op.sent_ns, op.received_ns));
        // Clients that must ask again later do so all the time: these requests are left out.
        let ops = ops.filter(|op| !op.reply.is_refusal());
        let mut lines: Vec<(u64, String)> = ops.map(|op| (op.sent_ns, op.to_string())).collect();
        let events = self.events.iter().filter(|event| overlaps(event.from_ns, event.to_ns));
        lines.extend(events.map(|event| {
            let text =
                format!("{:>12.3} {:>12.3}  {:?}", ms(event.from_ns), ms(event.to_ns), event.mark);
            (event.from_ns, text)
        }));
        lines.sort();
        lines.into_iter().map(|(_, line)| line).take(40).collect()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, received) = (ms(self.sent_ns), ms(self.received_ns));
        let Op { connection, key, owner, asked, reply, .. } = self;
        write!(f, "{sent:>12.3} {received:>12.3}  #{connection} {key} {owner} {asked:?}: {reply:?}")
    }
}
