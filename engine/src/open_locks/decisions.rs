//! Decisions about several open locks: they are replicated in one command, and then reported.

use rlock_core::manager::At;
use rlock_core::snapshot::{self, Start};
use rlock_core::{Effects, FastStep, Now, Reply};
use smallvec::SmallVec;

use crate::happening::{Done, Happening};
use crate::host::{Host, KeyName};

/// Decisions in the order in which they were made.
pub(crate) struct Decisions<'a> {
    all: Vec<Decision<'a>>,
    /// How many of the decisions were replicated, or need no replication.
    sent: usize,
    /// The effects of the remaining ones, one after another.
    effects: Vec<u8>,
}

/// A decision about one of the locks.
pub(crate) struct Decision<'a> {
    /// The index of the lock, in key order.
    pub(crate) place: usize,
    /// The owner that asked for the lock, if this was the decision about its request.
    asks: Option<&'a [u8]>,
    pub(crate) done: ToPublish<'a>,
}

/// What was done, and is to be published once it is replicated.
pub(crate) enum ToPublish<'a> {
    /// At a lock without waiters and sessions.
    Fast(FastStep<'a>),
    Step(Box<Effects<'a>>),
}

impl ToPublish<'_> {
    pub(crate) fn parts(&self) -> Done<'_> {
        match self {
            Self::Fast(step) => step.into(),
            Self::Step(effects) => (&**effects).into(),
        }
    }
}

impl<'a> Decisions<'a> {
    /// No decisions yet about this many locks. `effects` is an empty buffer.
    pub(crate) fn new(locks: usize, effects: Vec<u8>) -> Self {
        Self { all: Vec::with_capacity(locks), sent: 0, effects }
    }

    /// Whether a decision about this lock fits into the command with the previous ones: the keys of
    /// a command are in key order.
    pub(crate) fn continues(&self, place: usize) -> bool {
        self.unsent().last().is_none_or(|last| last.place < place)
    }

    /// Adds a decision. Returns its reply.
    pub(crate) fn add(
        &mut self,
        place: usize,
        start: Start,
        asks: Option<&'a [u8]>,
        done: ToPublish<'a>,
    ) -> Reply {
        let Done { changes, reply, .. } = done.parts();
        if !changes.is_empty() {
            snapshot::save_effect(start, changes, &mut self.effects);
        }
        let reply = reply.clone();
        self.all.push(Decision { place, asks, done });
        reply
    }

    fn unsent(&self) -> &[Decision<'a>] {
        self.all.get(self.sent..).unwrap_or_default()
    }

    /// Replicates the changes in one command, and reports the decisions.
    pub(crate) fn send<'n, 'm: 'n, H: Host>(
        &mut self,
        host: &H,
        db: i32,
        now: Now,
        named: impl Fn(usize) -> Option<&'n H::Name<'m>>,
    ) where
        H::Name<'m>: 'n,
    {
        let has_changed = |one: &&Decision<'_>| !one.done.parts().changes.is_empty();
        let changed = self.unsent().iter().filter(has_changed);
        let names: SmallVec<[&H::Name<'m>; 16]> =
            changed.filter_map(|one| named(one.place)).collect();
        if !names.is_empty() {
            host.replicate(&names, &self.effects);
            self.effects.clear();
        }
        for Decision { place, asks, done } in self.unsent() {
            if let Some(name) = named(*place) {
                let (at, asks) = (At { db, key: name.bytes(), now }, *asks);
                host.observe(Happening::Decided { at, asks, done: done.parts() });
            }
        }
        self.sent = self.all.len();
    }

    /// Takes the decisions, and the buffer.
    pub(crate) fn take(&mut self) -> (Vec<Decision<'a>>, Vec<u8>) {
        (std::mem::take(&mut self.all), std::mem::take(&mut self.effects))
    }
}
