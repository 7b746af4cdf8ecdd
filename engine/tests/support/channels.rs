//! The server's outputs around the engine: its shard channels and its replication stream.

use std::collections::BTreeSet;

/// Shard channels and scripts, for messages.
#[derive(Default)]
pub struct Channels {
    /// Whether a transaction or a script is running.
    pub is_in_longer: bool,
    /// Channels with a subscriber here.
    pub listening: BTreeSet<Vec<u8>>,
    /// How often the engine asked for subscribers.
    pub asked: usize,
    /// Whether the server does not report subscribers.
    pub is_hidden: bool,
    /// Users that may not publish to a channel.
    pub silenced: BTreeSet<(String, String)>,
    /// How many replies the caller had got when the waiters got theirs.
    pub replied_before: Vec<usize>,
}

/// A command in the replication stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub db: i32,
    pub words: Vec<Vec<u8>>,
}
