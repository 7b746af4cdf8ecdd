//! What leaves the server around the engine: its shard channels, and its replication stream.

use std::collections::BTreeSet;

/// Shard channels and scripts, for messages.
#[derive(Default)]
pub struct Channels {
    /// A transaction or a script runs.
    pub is_in_longer: bool,
    /// Those with a subscriber here.
    pub listening: BTreeSet<Vec<u8>>,
    /// How often that was asked.
    pub asked: usize,
    /// The server does not say who listens.
    pub is_hidden: bool,
    /// Users that may not publish to a channel.
    pub silenced: BTreeSet<(String, String)>,
    /// How many replies the caller had when those who waited got theirs.
    pub replied_before: Vec<usize>,
}

/// A command in the replication stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub db: i32,
    pub words: Vec<Vec<u8>>,
}
