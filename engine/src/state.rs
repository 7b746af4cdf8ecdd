//! What the engine stores outside keys.

use std::collections::{HashMap, VecDeque};

use rlock_core::WaiterId;
use rlock_core::manager::Manager;

/// The state of one server process. `B` is the server's handle of a blocked connection.
pub struct State<B> {
    /// The lock manager.
    pub manager: Manager,
    /// The server's handles of blocked connections without a reply.
    pub(crate) blocked: HashMap<WaiterId, B, foldhash::fast::RandomState>,
    /// Reused from one effect to the next, so that writing an effect allocates nothing.
    pub(crate) effect: Vec<u8>,
    /// Blocked connections for which the search for a cycle has yet to be done.
    pub(crate) unsearched: VecDeque<WaiterId>,
    /// Connections to which to reply in a later loop iteration.
    pub(crate) late: VecDeque<WaiterId>,
    /// Whether [`crate::Deferred::Sweep`] is scheduled.
    pub(crate) is_coming: bool,
    /// Whether [`crate::Deferred::Observers`] is scheduled.
    pub(crate) is_telling: bool,
    /// Whether [`crate::Deferred::Retry`] is scheduled.
    pub(crate) is_retrying: bool,
    pub(crate) acks: ReplicaWatch,
}

impl<B> Default for State<B> {
    fn default() -> Self {
        Self {
            manager: Manager::default(),
            blocked: HashMap::default(),
            effect: Vec::new(),
            unsearched: VecDeque::new(),
            late: VecDeque::new(),
            is_coming: false,
            is_telling: false,
            is_retrying: false,
            acks: ReplicaWatch::default(),
        }
    }
}

impl<B> State<B> {
    /// How many bytes of capacity the buffer for effects keeps: a hundred thousand holds that end
    /// together need megabytes.
    const EFFECT_KEPT: usize = 64 << 10;

    /// Lends the buffer for effects.
    pub(crate) fn take_effect(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.effect)
    }

    /// Takes the buffer for effects back.
    pub(crate) fn keep_effect(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        bytes.shrink_to(Self::EFFECT_KEPT);
        self.effect = bytes;
    }

    /// Whether nothing remains for the next loop iteration.
    pub fn is_at_rest(&self) -> bool {
        !self.is_coming && !self.is_telling && self.late.is_empty() && self.unsearched.is_empty()
    }

    /// Whether the gate was found shut, and will be checked again.
    pub fn is_retrying(&self) -> bool {
        self.is_retrying
    }

    /// Whether this connection gets its reply in the next loop iteration.
    pub fn is_late(&self, waiter: WaiterId) -> bool {
        self.late.contains(&waiter)
    }
}

/// How the replicas are watched.
#[derive(Debug, Default)]
pub(crate) struct ReplicaWatch {
    /// Whether the server calls the engine before each sleep of its loop.
    pub(crate) is_on: bool,
    /// Whether replicas must be asked for their offset as soon as writes are allowed.
    pub(crate) is_asking: bool,
    /// At least this many replicas are connected and have acknowledged something. Valid since the
    /// server was last asked, until a replica disconnects.
    pub(crate) online: usize,
}
