//! What a simulated server is doing while the engine runs.

use std::rc::Rc;

use rlock_core::{ClientId, Token};

use crate::asked::{Asked, By, To};

/// What the server is doing while the engine runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The connection that runs the command; `None` for a script.
    pub client: Option<ClientId>,
    /// The connection that sent the command or the script.
    pub asker: Option<ClientId>,
    /// The destination of the message, if it asks for one.
    pub tell: Option<To>,
    /// The database.
    pub db: i32,
    /// The command's words.
    pub words: Rc<[Vec<u8>]>,
    /// Whether it came from the replication stream.
    pub is_replicated: bool,
    /// Its request, if it may have to wait.
    pub asked: Option<Asked>,
    /// Its requests for the other locks, if it names more than one.
    pub others: Vec<Asked>,
    /// Whether it is a request for several locks, even if it names only one.
    pub is_for_several: bool,
    /// Set if it renews: the mode, or `Some(None)` for all modes.
    pub renewal: Option<Option<rlock_core::Mode>>,
    /// The hold to be renewed, if only one is.
    pub renews: Option<Token>,
    /// The token that it knows of, if it is an observer.
    pub observes: Option<u64>,
    /// For how long it may be blocked, in milliseconds.
    pub block_ms: Option<u64>,
    /// To what the laws attribute its changes.
    pub by: By,
    /// Whether the loop is about to sleep.
    pub is_sleeping: bool,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            client: None,
            asker: None,
            tell: None,
            db: 0,
            words: Rc::new([]),
            is_replicated: false,
            asked: None,
            others: Vec::new(),
            is_for_several: false,
            renewal: None,
            renews: None,
            observes: None,
            block_ms: None,
            by: By::Itself,
            is_sleeping: false,
        }
    }
}
