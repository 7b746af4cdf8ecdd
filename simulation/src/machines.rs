//! The machines of a world, and the world's properties.

use std::rc::Rc;

use crate::fault::Fault;
use crate::link::Link;
use crate::server::Server;
use crate::snapshot::Snapshot;

/// When the time of every world begins, in microseconds since the Unix epoch.
pub const START_US: u64 = 1_700_000_000_000_000;
/// How long a step takes, in microseconds, except in the search through all states.
pub const STEP_US: u64 = 20;

/// The initial properties of a world.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The number of servers: the first is the primary, the others follow it.
    pub nodes: u8,
    /// Clients.
    pub clients: u8,
    /// Whether an error may replace a blocked connection's reply until it leaves (Valkey 8).
    pub replaces_replies: bool,
    /// Whether a blocked connection's reply leaves as soon as the server asks for it (Redis 7.0 and
    /// 7.2, Valkey 7.2).
    pub replies_at_once: bool,
    /// Whether a flush comes after the report that loading begins (Valkey 9).
    pub loads_before_flush: bool,
    /// How much each clock differs from the first one, in milliseconds.
    pub clocks_ms: Vec<i32>,
    /// `rlock.grace-ms`
    pub grace_ms: u32,
    /// `rlock.max-tells`
    pub max_tells: u16,
    /// `rlock.max-tell-ms`
    pub max_tell_ms: u32,
    /// How long each step takes, in microseconds.
    pub step_us: u64,
    /// What is done wrong.
    pub fault: Fault,
}

/// A machine with a server.
pub struct Machine {
    /// The process.
    pub server: Server,
    /// Whether the process runs.
    pub is_up: bool,
    /// Whether it was a primary when it died.
    pub was_primary: bool,
    /// How much its clock differs from the world's, in milliseconds.
    pub clock_ms: i64,
    /// The connection to the primary that it follows.
    pub link: Option<Link>,
    /// What it saved.
    pub disk: Option<Rc<Snapshot>>,
}
