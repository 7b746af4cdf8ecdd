//! What the engine reports of its work: the only source of the counters.

use rlock_core::manager::Removed;
use rlock_core::{Change, Event, Now, Reply, Token, WaiterId, Wake};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'e> {
    /// A decision was carried out: its changes are in the replication stream.
    Decided {
        /// The database.
        db: i32,
        /// The key.
        key: &'e [u8],
        /// The changes, in order.
        changes: &'e [Change<'e>],
        /// The events, in order.
        events: &'e [Event],
        /// The reply to the caller.
        reply: &'e Reply,
        /// The owner that asks for the lock, if that was decided.
        asks: Option<&'e [u8]>,
        /// Blocked connections whose grant now waits for acknowledgments.
        pending: &'e [WaiterId],
        /// Expired holds that a writer's grant replaced: no change names them.
        replaced: &'e [Token],
        /// When.
        now: Now,
    },
    /// A replica made changes that its primary had made, with these events.
    Replayed(&'e [Event]),
    /// A caller that is not blocked gets this reply to `RLOCK.ACQUIRE`.
    Acquired(&'e Reply),
    /// A caller gets this reply to `RLOCK.RENEW`.
    Renewed(&'e Reply),
    /// A blocked connection has its reply.
    Answered(&'e Wake),
    /// The server ended the wait of a blocked connection before we did, with this reply.
    Unblocked(WaiterId, &'e Reply),
    /// A request waits for a message from now on, with this number; perhaps in place of another.
    Waits(WaiterId),
    /// A message was sent.
    Told,
    /// Nobody had subscribed to the channel when a message or a grant was due.
    Untold(WaiterId),
    /// A ticket has its turn.
    Turn {
        /// The database.
        db: i32,
        /// The key.
        key: &'e [u8],
        /// The owner.
        owner: &'e [u8],
    },
    /// A request was refused because too few replicas are connected.
    TooFewReplicas,
    /// A wait was refused because it would have closed a cycle.
    Deadlock,
    /// The search for a cycle gave up.
    SearchGivenUp,
    /// A request for several locks was granted, at once or after a wait.
    GrantedSeveral,
    /// The server removed a lock.
    Removed(&'e Removed),
}
