//! The lock manager of one server: the waiters and sessions of every lock, and what concerns
//! several locks. It does no I/O: the module reports what happens, and carries out the effects.
//!
//! The value of a lock is at a key of the server; the caller opens the key and passes the lock.
//! Work outside commands (leases, tickets and waits that end, sessions to renew, keys that changed)
//! comes as [`Task`]s, one at a time and in the order of deadlines, so that the caller can pause
//! and continue later.

mod ack_queue;
mod acks;
mod closing;
mod decide;
mod expiries;
mod grace;
mod group;
mod group_acks;
mod group_check;
mod group_moves;
mod group_replaced;
mod group_work;
mod groups;
mod keys;
mod life;
mod locks;
mod longest;
mod names;
mod observers;
mod outbox;
mod search;
mod several;
mod sight;
mod slowlog;
mod sweep;
mod tells;
mod upheaval;
mod waits;

use std::collections::VecDeque;
use std::rc::Rc;

use ack_queue::AckQueue;
pub use closing::Closing;
pub use decide::Decided;
use expiries::Expiries;
pub use group::Group;
pub use group_work::GroupWork;
use groups::Groups;
pub use keys::Removed;
pub use life::{Cause, ExpiryAction, KeyExpiry};
use locks::Locks;
pub use locks::{LockId, Mark, Totals};
pub use longest::LongQueue;
pub use observers::ObserverTask;
use observers::Observers;
pub use search::{Wait, World, search};
pub use sight::{SeenHold, Sight};
pub use slowlog::{SlowEntry, SlowLog};
use sweep::{Forgotten, Postponed};
pub use sweep::{Next, Task};
use tells::Tells;
pub use tells::{AskingOwner, DueMessage, Line, OwnWait, Same};
use upheaval::Upheaval;
use waits::BlockedConnections;
pub use waits::{Parked, WaitEnd};

use crate::value::count::less;
use crate::volatile::slow::{Outcome, Slow};
use crate::{ClientId, EpochMs, Lock, Now, OwnerNames, Token, Tokens, Volatile, WaiterId, Wake};

/// A fast hash, seeded because anybody can choose the names in it.
type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// The bounds that the server's configuration sets.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// `rlock.max-depth`: the most levels of one hold.
    pub max_depth: u16,
    /// `rlock.max-waiters`: the most blocked connections.
    pub max_waiters: usize,
    /// `rlock.max-tells`: the most requests that wait with `TELL`.
    pub max_tells: usize,
    /// `rlock.max-tell-ms`: how long a request with `TELL` waits at most, in milliseconds.
    pub max_tell_ms: u64,
    /// `rlock.max-tickets`: tickets.
    pub max_tickets: usize,
    /// `rlock.max-sessions`: the most holds that are tied to connections.
    pub max_sessions: usize,
    /// `rlock.acks-timeout-ms`: how long to wait for acknowledgments.
    pub confirm_ms: u64,
    /// `rlock.grace-ms`: how long a new primary grants nothing.
    pub grace_ms: u64,
    /// `rlock.slow-wait-ms`, `rlock.slow-hold-ms`: what the slow log records.
    pub slow: Slow,
    /// `rlock.slowlog-max-len`: the most entries of the slow log.
    pub slowlog_max: usize,
}

/// A key, and the time.
#[derive(Clone, Copy, Debug)]
pub struct At<'k> {
    /// The database.
    pub db: i32,
    /// The key.
    pub key: &'k [u8],
    /// The server's clock.
    pub now: Now,
}

/// Decides for all locks of one server, and remembers their waiters and sessions. The documentation
/// of this crate has an example.
#[derive(Default)]
pub struct Manager {
    tokens: Tokens,
    is_primary: bool,
    is_loading: bool,
    locks: Locks,
    waits: BlockedConnections,
    tells: Tells,
    observers: Observers,
    removed: Vec<Removed>,
    /// The connections that lost a session.
    pub closing: Closing,
    /// Since when the gate has been shut.
    shut_since: Option<EpochMs>,
    is_presumed_open: bool,
    /// What came due while the gate is shut.
    postponed: Postponed,
    upheavals: VecDeque<Upheaval>,
    /// To be freed in portions.
    forgotten: Vec<Forgotten>,
    /// Replies that came due outside a transition.
    outbox: Vec<Wake>,
    /// The latest long waits, long holds and refused cycles.
    pub slowlog: SlowLog,
    expiries: Expiries,
    acks: AckQueue,
    /// As in [`Manager::expects_keys`].
    expects_keys: bool,
    /// When this server became a primary.
    began_at: Option<EpochMs>,
    /// `rlock.grace-ms` as last reported.
    grace_ms: u64,
    /// As in [`StepContext::names`].
    names: Rc<OwnerNames>,
    /// The bounds as configured at the last decision.
    slow: Slow,
    slowlog_max: usize,
    groups: Groups,
    /// The number of the last arrival.
    arrivals: u64,
    /// When a deadlock was last written to the log, and how many have been omitted since.
    logged_at: Option<Now>,
    unlogged: u64,
    /// How many tasks were returned so far: see [`Manager::next_task`].
    tasks: u64,
}

impl Manager {
    // --- what this server is -------------------------------------------------------------------

    /// Whether this server may decide about locks.
    pub fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Whether commands are requests here; otherwise, they replay earlier decisions of this or
    /// another server.
    pub fn decides(&self) -> bool {
        self.is_primary && !self.is_loading
    }

    /// This server became a primary, or is no longer one. A new primary issues no token that the
    /// old one, with another clock, may have issued. Sessions and waits belong to a primary: when
    /// it is demoted, their connections are closed. Returns the requests with `TELL` that get an
    /// error for this.
    pub fn set_role(&mut self, is_primary: bool, now: Now) -> Vec<WaiterId> {
        let mut refused = Vec::new();
        if is_primary && !self.is_primary {
            self.tokens.begin(now);
            self.began_at = Some(now.ms());
        }
        if !is_primary && self.is_primary {
            refused = self.tells.refuse_all();
            let tied = self.locks.tied_in(None);
            self.forgotten.push(Forgotten {
                locks: std::mem::take(&mut self.locks),
                groups: std::mem::take(&mut self.groups),
                observers: std::mem::take(&mut self.observers),
            });
            self.postponed.clear();
            self.upheavals.clear();
            self.acks.clear();
            self.lose(tied, now);
        }
        self.is_primary = is_primary;
        refused
    }

    /// The server begins to load its data.
    pub fn loading_begins(&mut self) {
        self.is_loading = true;
        self.closing.loading_begins();
        self.upheaval(None);
    }

    /// The server has loaded its data, or given up.
    pub fn loading_ends(&mut self) {
        self.is_loading = false;
        self.upheaval(None);
    }

    /// A token was found in data or in the replication stream: never issue it again.
    pub fn saw(&mut self, token: Token) {
        self.tokens.saw(token);
    }

    /// The highest token that this server issued or saw, if it is ahead of the clock: only then
    /// must it be saved for a server that starts with this data.
    pub fn token_ahead(&self, now: Now) -> Option<Token> {
        self.tokens.highest().filter(|token| token.get() > now.us())
    }

    // --- what is remembered --------------------------------------------------------------------

    /// The numbers of waiters and sessions on this server.
    pub fn totals(&self) -> Totals {
        let totals = self.locks.totals();
        Totals {
            waiters: totals
                .waiters
                .saturating_add(less(self.groups.waiting_count(), self.groups.by_message)),
            pending: totals.pending.saturating_add(self.groups.pending),
            ..totals
        }
    }

    /// The volatile part of a lock, if it has one.
    pub fn volatile(&self, db: i32, key: &[u8]) -> Option<&Volatile> {
        self.locks.get(db, key)
    }

    /// When the key of a lock has to expire.
    pub fn life(&self, lock: &Lock, db: i32, key: &[u8]) -> KeyExpiry {
        KeyExpiry::of(lock, self.locks.get(db, key))
    }

    // --- what the server did --------------------------------------------------------------------

    /// A database was flushed; `None` means all of them.
    pub fn flushed(&mut self, db: Option<i32>) {
        self.expiries.flushed(db);
        // Valkey 9 empties its databases after it has begun to load.
        if !self.is_loading {
            self.closing.flush(self.locks.tied_in(db));
        }
        self.upheaval(db);
    }

    /// Two databases were swapped. The server also reports a database that is swapped with itself,
    /// which changes nothing.
    pub fn swapped(&mut self, one: i32, other: i32, now: Now) {
        if one == other {
            return;
        }
        self.expiries.swapped(one, other);
        for db in [one, other] {
            let tied = self.locks.tied_in(Some(db));
            self.lose(tied, now);
            self.upheaval(Some(db));
        }
    }

    // --- parked connections ---------------------------------------------------------------------

    /// A number for a connection that is about to be blocked.
    pub fn next_waiter(&mut self) -> WaiterId {
        self.waits.next_id()
    }

    /// A connection is now blocked.
    pub fn park_begins(&mut self, waiter: WaiterId, parked: Parked) {
        self.waits.begin(waiter, parked);
    }

    /// A blocked connection.
    pub fn parked(&self, waiter: WaiterId) -> Option<&Parked> {
        self.waits.get(waiter)
    }

    /// Whether this connection is blocked by the module. One that may have read its reply is not.
    pub fn is_parked(&self, client: ClientId) -> bool {
        self.waits.of_client(client).is_some()
    }

    /// A blocked connection can no longer be granted the lock, or can no longer get the reply to
    /// its grant, for this reason.
    pub fn departed(&mut self, waiter: WaiterId, by: Outcome, now: Now) {
        if let Some(id) = self.waits.leave(waiter).or_else(|| self.tells.lock_of(waiter)) {
            self.give_up(&id, waiter, by, now);
            self.observers.remove(waiter);
            self.tells.end(waiter);
        }
    }

    /// Withdraws a wait whose connection gets another reply.
    pub fn refuse(&mut self, waiter: WaiterId, now: Now) {
        let id = self.waits.get(waiter).map(|parked| parked.lock.clone());
        if let Some(id) = id.or_else(|| self.tells.lock_of(waiter)) {
            self.give_up(&id, waiter, Outcome::Refused, now);
        }
    }

    fn give_up(&mut self, id: &LockId, waiter: WaiterId, by: Outcome, now: Now) {
        if self.end_group(waiter, by, now) {
            return;
        }
        let entry =
            self.volatile(id.db, &id.key).and_then(|volatile| volatile.queue.blocked(waiter));
        let over = entry.and_then(|entry| entry.ended(self.slow, by, now));
        self.log_slow(At { db: id.db, key: &id.key, now }, over);
        self.leave_and_sweep(id, waiter, Some(now.ms()));
    }

    /// A blocked connection may have read its reply, or the server has unblocked it. From now on, a
    /// grant in that reply is final, however soon the connection closes: only its lease ends it. If
    /// the reply cannot reach the connection, [`Manager::departed`] was called first. False if the
    /// connection is unknown, or no longer known.
    pub fn heard_or_forgotten(&mut self, waiter: WaiterId) -> bool {
        let id = self.waits.end(waiter).map(|parked| parked.lock);
        let Some(id) = id.or_else(|| self.tells.end(waiter)) else { return false };
        if self.group_heard_or_forgotten(waiter) {
            return true;
        }
        if self.volatile(id.db, &id.key).is_some_and(|volatile| volatile.is_pending(waiter)) {
            // Something else sent it a reply.
            self.leave_and_sweep(&id, waiter, None);
        } else {
            self.change_known(&id, waiter, |volatile| volatile.heard(waiter));
        }
        true
    }

    /// A connection closed. Its sessions and its wait end with it, and so does a grant whose reply
    /// it did not get.
    pub fn connection_ended(&mut self, client: ClientId, now: Now) {
        self.closing.closed(client);
        if let Some(waiter) = self.waits.of_client(client) {
            self.departed(waiter, Outcome::Disconnected, now);
        }
        self.end_tells_of(client, now);
        self.locks.disconnect(client, now);
    }

    /// The connection to which holds were to be tied has closed, or has lost another session: its
    /// requests end without a message.
    fn end_tells_of(&mut self, client: ClientId, now: Now) {
        while let Some(waiter) = self.tells.of_session(client) {
            self.departed(waiter, Outcome::Disconnected, now);
        }
    }

    // --- connections to be closed ---------------------------------------------------------------

    /// These connections lost a session: they will be closed, and get no further grant.
    fn lose(&mut self, lost: Vec<ClientId>, now: Now) {
        for client in lost {
            // The connection keeps a grant whose reply is sent before the close; any other grant is
            // revoked.
            if let Some(waiter) = self.waits.of_client(client)
                && self.waits.get(waiter).is_some_and(Parked::waits)
            {
                self.departed(waiter, Outcome::Disconnected, now);
            }
            self.end_tells_of(client, now);
            self.closing.lose(client);
        }
    }

    /// When the first session is lost, unless it is renewed. From then on, [`Manager::end_overdue`]
    /// must be called before any connection's command runs.
    pub fn next_session_end(&self) -> Option<EpochMs> {
        self.locks.next_session_end()
    }

    /// Ends the sessions whose last known deadline has passed as lost, without waiting for their
    /// sweep: the process may have been stopped, and another server may have granted their locks.
    pub fn end_overdue(&mut self, now: Now) {
        let lost = self.locks.end_overdue(now);
        self.lose(lost, now);
    }

    /// Whether to ask [`Closing::contains`] before each command: some connection lost a session,
    /// or may lose one.
    pub fn watches_commands(&self) -> bool {
        !self.closing.is_empty() || self.locks.totals().sessions > 0
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold, for tests.
    pub fn check(&self) -> Result<(), String> {
        self.locks.check()?;
        self.waits.check()?;
        self.check_tells()?;
        self.observers.check()?;
        self.check_groups_of_all()?;
        self.check_pending_groups()?;
        self.closing.check()
    }
}
