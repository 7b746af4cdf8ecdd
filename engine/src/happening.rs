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
        /// The owner that asked for the lock, if this was the decision about its request.
        asks: Option<&'e [u8]>,
        /// Blocked connections whose grant now waits for acknowledgments.
        pending: &'e [WaiterId],
        /// Expired holds that a writer's grant replaced: no change names them.
        replaced: &'e [Token],
        /// The server's clock.
        now: Now,
    },
    /// A replica applied changes that its primary had made, with these events.
    Replayed(&'e [Event]),
    /// A caller that is not blocked got this reply to `RLOCK.ACQUIRE`.
    Acquired(&'e Reply),
    /// A caller got this reply to `RLOCK.RENEW`.
    Renewed(&'e Reply),
    /// A blocked connection got its reply.
    Answered(&'e Wake),
    /// The server itself ended the wait of a blocked connection, with this reply.
    Unblocked(WaiterId, &'e Reply),
    /// From now on, a request waits for a message, with this number; perhaps in place of another
    /// request.
    Waits(WaiterId),
    /// A message was sent.
    Told,
    /// The channel had no subscriber when a message or a grant was due.
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
