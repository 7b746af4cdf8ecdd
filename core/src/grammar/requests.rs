//! What the arguments of a command ask for.

use super::Arguments;
use crate::{Acquire, ClientId, Levels, Mode, Patience, Release, Renew};

impl<'a> Arguments<'a> {
    /// What `RLOCK.ACQUIRE` asks for; `session` is the connection that the hold is to be tied to.
    pub fn acquire(&self, session: Option<ClientId>) -> Acquire<'a> {
        // A limit concerns readers.
        let mode = if self.limit.is_some() { Mode::Read } else { Mode::Write };
        let patience = match (self.block_ms, self.queue) {
            (Some(_), _) if self.tell.is_some() => Patience::Tell,
            (Some(_), _) => Patience::Block,
            (None, Some(window)) => Patience::Ticket(window),
            (None, None) => Patience::None,
        };
        Acquire {
            owner: self.owner,
            mode: self.mode.unwrap_or(mode),
            lease: self.lease,
            upgrade: self.upgrade,
            limit: self.limit,
            depth: self.depth,
            session,
            patience,
            max_queue: self.max_queue,
            acks: self.acks,
        }
    }

    /// What `RLOCK.TAKE` asks for. It names a depth, so that a repeated request changes nothing.
    pub fn take(&self) -> Acquire<'a> {
        Acquire { patience: Patience::Take, depth: Some(1), ..self.acquire(None) }
    }

    /// What `RLOCK.RELEASE` asks for.
    pub fn release(&self) -> Release<'a> {
        let Self { owner, mode, token, .. } = *self;
        let levels = match self.depth {
            Some(depth) => Levels::DownTo(depth),
            None if self.all => Levels::All,
            None => Levels::One,
        };
        Release { owner, mode, token, levels }
    }

    /// What `RLOCK.RENEW` asks for.
    pub fn renew(&self) -> Renew<'a> {
        let Self { owner, mode, token, lease, acks, .. } = *self;
        Renew { owner, mode, token, lease, acks }
    }
}
