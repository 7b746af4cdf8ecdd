//! The content of a full sync or of a file.

use rlock_core::Token;

use crate::history::History;
use crate::keyspace::Keyspace;

/// The data of a server at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) keys: Keyspace,
    pub(crate) token: Option<Token>,
    pub(crate) history: History,
    pub(crate) offset: u64,
    pub(crate) effect_events: u64,
}

impl Snapshot {
    /// The length of the stream.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The effects that it contains.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The greatest token that it contains.
    pub fn greatest_token(&self) -> u64 {
        let locks = self.keys.iter().filter_map(|(_, _, slot)| slot.lock());
        let tokens = locks.flat_map(|lock| lock.holds().map(|(_, _, hold)| hold.token));
        tokens.chain(self.token).map(Token::get).max().unwrap_or(0)
    }
}
