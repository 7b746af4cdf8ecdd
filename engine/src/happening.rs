//! What the engine reports of its work: the only source of the counters.

use std::slice;

use rlock_core::manager::{At, Removed};
use rlock_core::{Change, Effects, Event, FastStep, Reply, Token, WaiterId, Wake};

/// The results of a decision, to be carried out.
#[derive(Clone, Copy, Debug)]
pub struct Done<'e> {
    /// The changes, in order.
    pub changes: &'e [Change<'e>],
    /// The events, in order.
    pub events: &'e [Event],
    /// The reply to the caller.
    pub reply: &'e Reply,
    /// Blocked connections whose grant now waits for acknowledgments.
    pub pending: &'e [WaiterId],
    /// Expired holds that a writer's grant replaced: no change names them.
    pub replaced: &'e [Token],
    /// Whether a replica can derive everything from the request, which is then replicated
    /// unchanged.
    pub is_request_enough: bool,
}

impl<'e> From<&'e FastStep<'_>> for Done<'e> {
    fn from(step: &'e FastStep<'_>) -> Self {
        let FastStep { change, event, reply, is_request_enough } = step;
        Self {
            changes: slice::from_ref(change),
            events: event.as_slice(),
            is_request_enough: *is_request_enough,
            ..Self::of_reply(reply)
        }
    }
}

impl<'e> From<&'e Effects<'_>> for Done<'e> {
    fn from(effects: &'e Effects<'_>) -> Self {
        let Effects { reply, changes, events, pending, replaced, .. } = effects;
        let is_request_enough = effects.is_request_enough;
        Self { changes, events, reply, pending, replaced, is_request_enough }
    }
}

impl<'e> Done<'e> {
    /// Nothing but this reply.
    pub(crate) const fn of_reply(reply: &'e Reply) -> Self {
        let (changes, events, pending, replaced) = (&[], &[], &[], &[]);
        Self { changes, events, reply, pending, replaced, is_request_enough: false }
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'e> {
    /// A decision was carried out: its changes are in the replication stream.
    Decided {
        /// The key, and the server's clock.
        at: At<'e>,
        /// The owner that asked for the lock, if this was the decision about its request.
        asks: Option<&'e [u8]>,
        /// What was decided.
        done: Done<'e>,
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
