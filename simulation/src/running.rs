//! What a simulated server is doing while the engine runs.

use std::rc::Rc;

use rlock_core::{ClientId, Token};

use crate::asked::{Asked, By, To};

/// What the server is doing while the engine runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The connection that runs the command; none for a script.
    pub client: Option<ClientId>,
    /// The connection that asked, in a script as well.
    pub asker: Option<ClientId>,
    /// Where the message goes, if it asks for one.
    pub tell: Option<To>,
    /// The database.
    pub db: i32,
    /// The command's words.
    pub words: Rc<[Vec<u8>]>,
    /// It came along the replication stream.
    pub is_replicated: bool,
    /// What it asks, if it may have to wait.
    pub asked: Option<Asked>,
    /// What it asks of the other locks, if it names more than one.
    pub others: Vec<Asked>,
    /// It is a request for several locks, even if it names one only.
    pub is_for_several: bool,
    /// As which it asks to renew: a mode, or all.
    pub renewal: Option<Option<rlock_core::Mode>>,
    /// Which hold it asks to renew, if only one.
    pub renews: Option<Token>,
    /// The token that it knows of, if it only observes.
    pub observes: Option<u64>,
    /// For how long it may be blocked, in milliseconds.
    pub block_ms: Option<u64>,
    /// As what the laws see its changes.
    pub by: By,
    /// The loop is about to sleep.
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
