//! Connections that lost a session: they may run no further command, and the caller closes them.

use std::collections::BTreeSet;

use crate::ClientId;

/// These connections, until they are closed.
#[derive(Default)]
pub struct Closing {
    all: BTreeSet<ClientId>,
    /// Connections in `all` that [`Closing::next_lost`] has not returned yet.
    lost: Vec<ClientId>,
    /// Connections in `all` that the caller has yet to close.
    to_close: BTreeSet<ClientId>,
    /// Connections whose session's key was just flushed; a load may bring the key back.
    flushed: Vec<ClientId>,
}

impl Closing {
    /// This connection lost a session.
    pub(super) fn lose(&mut self, client: ClientId) {
        self.all.insert(client);
        self.to_close.insert(client);
        self.lost.push(client);
    }

    /// The keys of their sessions are flushed.
    pub(super) fn flush(&mut self, tied: Vec<ClientId>) {
        self.all.extend(&tied);
        self.lost.extend(&tied);
        self.flushed.extend(tied);
    }

    /// The server begins to load its data. `DEBUG RELOAD`: flushed locks may come back.
    pub(super) fn loading_begins(&mut self) {
        self.lost.clear();
        for client in std::mem::take(&mut self.flushed) {
            // Unless the connection lost another session, too.
            if !self.to_close.contains(&client) {
                self.all.remove(&client);
            }
        }
    }

    /// The flushed locks were not replaced by a load.
    pub(super) fn take_flushed(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.flushed)
    }

    /// The connections whose session was flushed and that were not handled yet.
    pub fn just_flushed(&self) -> &[ClientId] {
        &self.flushed
    }

    /// How many connections [`Closing::next_lost`] may return.
    pub fn lost_count(&self) -> usize {
        self.lost.len()
    }

    /// A connection that lost a session since this was last called. If the server has blocked it,
    /// close it in this step: otherwise, its command runs as soon as its key has a value.
    pub fn next_lost(&mut self) -> Option<ClientId> {
        while let Some(client) = self.lost.pop() {
            if self.all.contains(&client) {
                return Some(client);
            }
        }
        None
    }

    /// Whether this connection lost a session, and may run no further command.
    pub fn contains(&self, client: ClientId) -> bool {
        self.all.contains(&client)
    }

    /// Whether every connection that lost a session is closed.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// These connections could not be closed now, and must be closed later.
    pub fn close_later(&mut self, clients: Vec<ClientId>) {
        self.all.extend(&clients);
        self.to_close.extend(clients);
    }

    /// The next connection to close.
    pub fn next_to_close(&mut self) -> Option<ClientId> {
        self.to_close.pop_first()
    }

    /// Whether a connection must be closed.
    pub fn has_to_close(&self) -> bool {
        !self.to_close.is_empty()
    }

    /// The server has closed this connection, or does not know it.
    pub fn closed(&mut self, client: ClientId) {
        if self.all.remove(&client) {
            self.to_close.remove(&client);
        }
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.to_close.iter().find(|client| !self.all.contains(client)) {
            Some(client) => Err(format!("{client:?} is to be closed and may go on")),
            None => Ok(()),
        }
    }
}
