//! What a command line asks for.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use rlock_client::One;

use crate::servers::Where;

/// A parsed command line.
#[derive(Debug)]
pub enum Job {
    /// `rlock run`
    Run(Box<Run>),
    /// `rlock top`
    Top {
        /// Which servers.
        at: Where,
        /// Print one snapshot.
        is_once: bool,
        /// How many locks to show.
        count: usize,
    },
    /// `rlock who`
    Who {
        /// Which servers.
        at: Where,
        /// Which lock.
        key: String,
    },
    /// `rlock watch`
    Watch {
        /// Which servers.
        at: Where,
        /// Which lock.
        key: String,
    },
    /// `rlock queues`
    Queues {
        /// Which servers.
        at: Where,
        /// How many locks to show.
        count: usize,
    },
    /// `rlock ls`
    Ls(List),
    /// `rlock release`
    Release(Release),
    /// `rlock take`
    Take(Take),
    /// `rlock serve`
    Serve(Serve),
    /// `rlock mcp`
    Mcp(Mcp),
    /// `--help`, for all commands or for one.
    Help(Option<&'static str>),
    /// `--version`
    Version,
}

/// What `rlock ls` is to list.
#[derive(Debug, Default, Clone)]
pub struct List {
    /// Which servers.
    pub at: Where,
    /// A pattern of keys, as in `SCAN … MATCH`.
    pub pattern: Option<String>,
    /// Only this owner's holds.
    pub owner: Option<String>,
    /// One JSON object for each lock.
    pub is_json: bool,
}

/// What `rlock release` is to release.
#[derive(Debug, Default, Clone)]
pub struct Release {
    /// Which holds.
    pub list: List,
    /// Whether to release the holds; otherwise they are only listed.
    pub is_sure: bool,
}

/// What `rlock take` is to take.
#[derive(Debug, Default, Clone)]
pub struct Take {
    /// Which servers.
    pub at: Where,
    /// Which lock.
    pub key: String,
    /// The owner; `None` means the user.
    pub owner: Option<String>,
    /// How long the lock is held; `None` means ten minutes.
    pub lease: Option<Duration>,
    /// How many replicas must acknowledge the grant.
    pub acks: Option<u32>,
}

/// What `rlock mcp` is to do.
#[derive(Debug, Default, Clone)]
pub struct Mcp {
    /// Which servers.
    pub at: Where,
    /// The folder whose paths are claimed; `None` means the current folder.
    pub root: Option<String>,
    /// The prefix of the keys; `None` means the name of that folder.
    pub prefix: Option<String>,
    /// The beginning of the names of the agent's owners; `None` means that of the environment
    /// variable, or host and process ID.
    pub agent: Option<String>,
    /// Only say whether the agent has claimed this path.
    pub check: Option<String>,
}

/// What happens to the lock of an interval whose run failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum IfItFails {
    /// Keep the lock until its lease ends: at most one run in each interval.
    #[default]
    Keep,
    /// It is released: another run may begin.
    Again,
}

/// What `rlock serve` is to do.
#[derive(Debug, Default, Clone)]
pub struct Serve {
    /// Which servers.
    pub at: Where,
    /// The address to listen on; `None` means the default.
    pub listen: Option<SocketAddr>,
    /// Names that the `Host` header of a request may have.
    pub hosts: Vec<String>,
    /// What the keys of leader elections begin with.
    pub elections: Vec<String>,
    /// Whether the page offers actions.
    pub allows_actions: bool,
}

/// What `rlock run` is to do.
#[derive(Debug, Default)]
pub struct Run {
    /// Which servers.
    pub at: Where,
    /// What is locked.
    pub key: String,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The longest wait; `None` is no limit.
    pub wait: Option<Duration>,
    /// The read lock.
    pub is_read: bool,
    /// The lock is a semaphore with this many permits, of which one is acquired.
    pub limit: Option<u32>,
    /// Further locks, which are held as well.
    pub others: Vec<One>,
    /// How long the lock lasts if nothing renews it, as after a failover.
    pub lease: Option<Duration>,
    /// How many replicas must acknowledge the grant.
    pub acks: Option<u32>,
    /// Do not wait if this many others already wait.
    pub max_queue: Option<u32>,
    /// The owner.
    pub owner: Option<String>,
    /// The exit code when the lock is not acquired.
    pub conflict: Option<u8>,
    /// How long a command may outlive the loss of the lock.
    pub kill_after: Option<Duration>,
    /// In this process group.
    pub is_foreground: bool,
    /// At most one run in each interval of this length.
    pub once_per: Option<Duration>,
    /// What happens to the lock after a run that failed.
    pub if_it_fails: Option<IfItFails>,
    /// Say what is done.
    pub is_verbose: bool,
}
