//! What the engine needs from the server around it.

use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use rlock_core::grammar::Access;
use rlock_core::manager::{Bounds, LockId};
use rlock_core::{ClientId, EpochMs, Lock, Now};

use crate::happening::Happening;
use crate::planted::PlantedFault;
use crate::reply::Replies;
use crate::state::State;

/// A key's name, as the server has it.
pub trait KeyName {
    /// Its bytes.
    fn bytes(&self) -> &[u8];
}

/// What is at a key.
pub enum Content<'k> {
    /// Nothing.
    Missing,
    /// A lock.
    Lock(&'k mut Lock),
    /// Something else.
    Other,
}

/// An open key; dropping it closes it.
pub trait OpenKey {
    /// Passes what is at the key to the caller. The borrow ends before the next call of the server.
    fn content(&mut self) -> Content<'_>;

    /// Puts a lock at the key, replacing whatever is there.
    fn set(&mut self, lock: Lock);

    /// Deletes the key.
    fn delete(&mut self);

    /// Returns when the key expires, in milliseconds since the Unix epoch; `None` if it does not.
    fn expires_at(&self) -> Option<u64>;

    /// Sets when the key expires, in milliseconds since the Unix epoch.
    fn expire_at(&mut self, at_ms: u64);

    /// Returns the lock at the key, or `free` if there is no key; `None` if the value has another
    /// type.
    fn lock<'k>(&'k mut self, free: &'k Lock) -> Option<&'k Lock> {
        match self.content() {
            Content::Missing => Some(free),
            Content::Lock(lock) => Some(lock),
            Content::Other => None,
        }
    }
}

/// Whether a key may be written outside a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The server would accept a client's write.
    Open,
    /// Another server serves the key's slot, or this server would redirect a client there for this
    /// very key.
    Elsewhere,
    /// The server would refuse the write: too few replicas, a disk error, or a Cluster that is
    /// down.
    Shut,
}

/// The replication stream of a server.
#[derive(Clone, Debug, Default)]
pub struct Replication {
    /// Its length in bytes, including everything written so far.
    pub offset: u64,
    /// The offset that each replica has acknowledged; only of replicas that are connected and fully
    /// loaded, and have acknowledged something.
    pub acknowledged: Vec<u64>,
}

/// Work that the engine does in a later loop iteration: [`crate::run_deferred`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deferred {
    /// A sweep, because something is due.
    Sweep,
    /// A sweep, because the gate may have opened.
    Retry,
    /// Tells observers.
    Observers,
    /// Replies to connections that the last command blocked, or to which a script could not reply.
    Answer,
    /// A search for cycles that waits have closed.
    Search,
    /// The end of the subscription to the sleeps of the loop, if nothing waits for acknowledgments.
    Unsubscribe,
    /// A request to a newly connected replica for its first acknowledgment.
    Greet,
}

/// The engine's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The bounds of decisions.
    pub bounds: Bounds,
    /// `rlock.deadlock-detection`
    pub detects_deadlocks: bool,
}

/// The keys of a server, and what it passes on about them.
pub trait Keys {
    /// A key's name.
    type Name<'n>: KeyName;
    /// An open key.
    type Key<'h>: OpenKey
    where
        Self: 'h;

    /// Returns the selected database.
    fn db(&self) -> i32;

    /// Does `work` in the database of a lock, with the lock's key name.
    fn with_name<T>(&self, id: &LockId, work: impl FnOnce(&Self::Name<'_>) -> T) -> T;

    /// Like `with_name`, for several keys of one database.
    fn with_names<T>(
        &self,
        db: i32,
        keys: &[&[u8]],
        work: impl FnOnce(&[Self::Name<'_>]) -> T,
    ) -> T;

    /// Opens a key of the selected database.
    fn open(&self, name: &Self::Name<'_>, access: Access) -> Self::Key<'_>;

    /// Propagates `RLOCK.APPLY name [name ...] effects` to replicas and the append-only file, with
    /// one effect for each name.
    fn replicate(&self, names: &[&Self::Name<'_>], effects: &[u8]);

    /// Propagates the running command unchanged to replicas and the append-only file.
    fn replicate_as_it_came(&self);

    /// Notifies `WATCH` and client-side caches that the key changed.
    fn signal_modified(&self, name: &Self::Name<'_>);

    /// Publishes a keyspace notification.
    fn notify(&self, event: &CStr, name: &Self::Name<'_>);

    /// Returns whether the server would let a client write this key now.
    fn gate_of(&self, name: &Self::Name<'_>) -> Gate;

    /// Whether the server is paused, and asserts that nothing is written.
    fn is_paused(&self) -> bool;

    /// Whether each key has a gate of its own, and may be served by another node.
    fn is_cluster(&self) -> bool;
}

/// The running command, and who sent it.
pub trait Caller {
    /// Returns the caller's connection, if it has one; scripts and other modules do not.
    fn client(&self) -> Option<ClientId>;

    /// Returns the user as which the caller is authenticated; the name need not be UTF-8. Only for
    /// a caller that may be blocked ([`Caller::denies_blocking`]): another module has no user.
    fn user(&self) -> Rc<[u8]>;

    /// Returns the user, like [`Caller::user`], but for any caller; empty if the caller is another
    /// module.
    fn any_user(&self) -> Rc<[u8]>;

    /// Whether the caller cannot be blocked.
    fn denies_blocking(&self) -> bool;

    /// Whether the command came from this server's primary, from a node that migrates a slot to
    /// this one, or from the server's own file.
    fn is_from_primary(&self) -> bool;

    /// Whether the server is loading its data.
    fn is_loading(&self) -> bool;

    /// Whether the command is part of a transaction or a script, or comes from another module: a
    /// message must not leave before that has ended.
    fn is_in_longer(&self) -> bool;

    /// Whether a reply to a blocked connection would leave before the writes of the running script.
    fn must_answer_later(&self) -> bool;
}

/// Shard channels.
pub trait Channels {
    /// Whether the server reports the subscribers of a channel ([`Channels::has_listener`]): an
    /// administrator can take that away, until the next restart.
    fn knows_listeners(&self) -> bool;

    /// Whether this channel has a subscriber on this server.
    fn has_listener(&self, channel: &[u8]) -> bool;

    /// Like `has_listener`, for many channels at once.
    fn have_listeners(&self, channels: &[&[u8]]) -> Vec<bool> {
        channels.iter().map(|channel| self.has_listener(channel)).collect()
    }

    /// Whether this user may publish to this channel now. `None` stands for another module, which
    /// always may.
    fn may_publish(&self, user: Option<&[u8]>, channel: &[u8]) -> bool;

    /// Publishes a message to the subscribers of a channel. Returns whether this server has any; in
    /// a cluster, other servers may have some as well.
    fn publish_message(&self, channel: &[u8], message: &[u8]) -> bool;
}

/// A server, as the engine uses it in one callback: a command, a timer, an event.
///
/// Any function of these traits may call the engine back, so the engine borrows its state across
/// none of them, except within [`Host::state`] itself.
pub trait Host: Replies + Keys + Caller + Channels {
    /// The server's handle of a blocked connection.
    type Blocked: 'static;

    // --- the engine's own ----------------------------------------------------------------------

    /// Accesses the engine's state. `work` must not call the server.
    fn state<T>(&self, work: impl FnOnce(&mut State<Self::Blocked>) -> T) -> T;

    /// Returns the current settings.
    fn settings(&self) -> Settings;

    /// Returns the wall clock, which deadlines refer to.
    fn now(&self) -> Now;

    /// Returns a clock that is never set back, which measures how long the engine works.
    fn monotonic(&self) -> Duration;

    /// Reports what happened, for counters and for observers of the engine.
    fn observe(&self, happening: Happening<'_>);

    /// Writes a warning to the server's log.
    fn warn(&self, line: &str);

    // --- blocked connections -------------------------------------------------------------------

    /// Blocks the caller at these keys, with this number, until it is unblocked: the engine's own
    /// timers end each wait. `None` if the server does not allow it.
    fn block(&self, names: &[Self::Name<'_>], waiter: u64) -> Option<Self::Blocked>;

    /// Whether each caller has to be blocked at a name that is no key's, because the server errs if
    /// a key comes at which connections are blocked.
    fn blocks_aside(&self) -> bool;

    /// Makes the server ask for the connection's reply ([`crate::blocked::reply`]), in this call or
    /// in this loop iteration.
    fn unblock(&self, blocked: Self::Blocked);

    /// From now on, [`crate::events::key_came`] is to be called for new keys, at least for those
    /// whose type the server does not report to the connections that are blocked there
    /// ([`crate::blocked::key_came`]).
    fn watch_new_keys(&self);

    /// Whether this user may acquire this lock now.
    fn may_acquire(&self, user: &[u8], name: &Self::Name<'_>) -> bool;

    /// Like `may_acquire`, for several locks in one step.
    fn may_acquire_several(&self, user: &[u8], names: &[Self::Name<'_>]) -> bool;

    /// Whether this user may observe this lock now.
    fn may_observe(&self, user: &[u8], name: &Self::Name<'_>) -> bool;

    // --- sessions ------------------------------------------------------------------------------

    /// Whether a connection can be closed without harm; if not, there are no sessions.
    fn can_close(&self) -> bool;

    /// From now on, [`crate::events::command_is_read`] is to be called before each command while
    /// there are sessions ([`rlock_core::manager::Manager::watches_commands`]).
    fn watch_commands(&self);

    /// Closes the connections that lost a session, at once or later
    /// ([`rlock_core::manager::Closing`]).
    fn close_lost(&self, during: During);

    // --- the server's loop ---------------------------------------------------------------------

    /// Calls [`crate::run_deferred`] after this many milliseconds; 0 means in this loop iteration
    /// or the next.
    fn defer(&self, ms: u64, work: Deferred);

    /// Runs [`Deferred::Sweep`] at this moment, or earlier.
    fn set_alarm(&self, at: EpochMs);

    /// Sets whether [`crate::acks::before_sleep`] is called before each sleep of the loop.
    fn watch_sleep(&self, is_on: bool);

    /// Returns the state of the replication stream.
    fn replication(&self) -> Replication;

    /// Asks the replicas for acknowledgments, which they otherwise send once a second.
    fn ask_replicas(&self);

    // --- for tests -----------------------------------------------------------------------------

    /// Whether this fault is planted in the engine. Only hosts of tests have any.
    fn has_fault(&self, _: PlantedFault) -> bool {
        false
    }
}

/// What is being executed when a session is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// A command of ours.
    Command,
    /// An unknown command.
    Callback,
    /// An unknown command, or the server is serving connections blocked at a key, and removed
    /// another key that one of them opens.
    Removal,
    /// No command yet: the server has only read one ([`crate::events::command_is_read`]).
    Reading,
    /// No command.
    Sweep,
}
