//! The machines of a world, and what the world is like.

use std::rc::Rc;

use crate::fault::Fault;
use crate::link::Link;
use crate::server::Server;
use crate::snapshot::Snapshot;

/// Where the time of every world begins, in microseconds since the Unix epoch.
pub const START_US: u64 = 1_700_000_000_000_000;
/// A step takes so long, in microseconds, unless all states are looked for.
pub const STEP_US: u64 = 20;

/// What a world is like from the beginning.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Servers: the first is the primary, the others follow it.
    pub nodes: u8,
    /// Clients.
    pub clients: u8,
    /// An error may take the place of a blocked connection's reply until it leaves (Valkey 8).
    pub replaces_replies: bool,
    /// A blocked connection's reply leaves when it is asked for (Redis 7.0 and 7.2, Valkey 7.2).
    pub replies_at_once: bool,
    /// A flush comes after the word that loading begins (Valkey 9).
    pub loads_before_flush: bool,
    /// How far each clock is from the first one's, in milliseconds.
    pub clocks_ms: Vec<i32>,
    /// `rlock.grace-ms`
    pub grace_ms: u32,
    /// `rlock.max-tells`
    pub max_tells: u16,
    /// `rlock.max-tell-ms`
    pub max_tell_ms: u32,
    /// Each step takes so long, in microseconds.
    pub step_us: u64,
    /// What is done wrong.
    pub fault: Fault,
}

/// A machine with a server.
pub struct Machine {
    /// The process.
    pub server: Server,
    /// It runs.
    pub is_up: bool,
    /// What it was when it died.
    pub was_primary: bool,
    /// How far its clock is from the world's, in milliseconds.
    pub clock_ms: i64,
    /// The connection to the primary that it follows.
    pub link: Option<Link>,
    /// What it saved.
    pub disk: Option<Rc<Snapshot>>,
}
