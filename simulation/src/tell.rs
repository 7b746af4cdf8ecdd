//! Requests that wait for a message, as their server's surroundings see them.

use std::collections::BTreeMap;
use std::rc::Rc;

use rlock_core::{ClientId, Reply, WaiterId, Wake};

use crate::asked::Asked;
pub use crate::asked::To;
use crate::waiting::Waiting;

/// A request that waits for a message.
#[derive(Debug)]
pub struct Tell {
    /// Its request, and what became of it.
    pub waiting: Waiting,
    /// The connection that asked.
    pub client: ClientId,
    /// The user of the request.
    pub user: Rc<str>,
    /// Where the message goes.
    pub to: To,
    /// The reply that its message will have, once that is decided.
    pub reply: Option<Reply>,
    /// Whether its owner withdrew it.
    pub is_withdrawn: bool,
    /// Whether it waits in line, or was granted there: then its result is decided only if somebody
    /// listens.
    pub is_in_line: bool,
}

/// Why a request ended without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its owner withdrew it.
    Withdrawn,
    /// Its hold was to be tied to a connection that closed.
    Closed,
    /// Nobody listens, or its user may not publish.
    Unheard,
}

/// All requests of one server that wait for messages.
#[derive(Debug, Default)]
pub struct Tells {
    /// By the number of the wait.
    pub all: BTreeMap<WaiterId, Tell>,
    /// The request that the running command began.
    pub(crate) opened: Option<WaiterId>,
    /// Messages that the engine counted in this step.
    pub told: u64,
    /// Results that reached nobody, as the engine counted them in this step.
    pub untold: u64,
    /// Requests that were replaced, and may have gone unheard in this step.
    pub(crate) unsure: u64,
    /// Messages that were sent in this step.
    pub sent: u64,
}

impl Tells {
    /// The request that the running command began.
    pub fn opened(&self) -> Option<WaiterId> {
        self.opened
    }

    /// This command has decided the reply. False if the reply was sent in another way.
    pub fn answered(&mut self, wake: &Wake, words: &[Vec<u8>]) -> bool {
        let Some(tell) = self.all.get_mut(&wake.waiter) else { return false };
        tell.reply = Some(wake.reply.clone());
        if let [name, key, owner] = words
            && name == b"RLOCK.CANCEL"
        {
            // If the command names it, its owner withdrew it.
            let is_named =
                |asked: &Asked| *asked.key == **key && asked.owner.as_bytes() == owner.as_slice();
            tell.is_withdrawn = wake.is_withdrawn && tell.waiting.asks().any(is_named);
        }
        true
    }

    /// The request whose message has this destination.
    pub(crate) fn of(&self, to: &To) -> Option<WaiterId> {
        let mut all = self.all.iter();
        all.find(|(_, tell)| tell.to == *to).map(|(waiter, _)| *waiter)
    }
}
