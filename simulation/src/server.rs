//! A simulated server: what a real one keeps and does around the module.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rlock_core::grammar::Limits;
use rlock_core::manager::Bounds;
use rlock_core::slow::Slow;
use rlock_core::{ClientId, EpochMs, LeaseMs, Now, Token, WaiterId};
use rlock_engine::{Deferred, State, blocked, events};

pub use crate::conn::Conn;
use crate::fault::Fault;
use crate::history::{History, Item, Units};
use crate::keyspace::{Key, Keyspace, Slot, Value};
use crate::notes::{Deed, Loss, Note, Noted};
pub use crate::snapshot::Snapshot;
use crate::tell::Tells;
use crate::waiting::Waiting;
use crate::words::{Out, Said};

/// When the module is called next.
#[derive(Debug, Default)]
pub struct Timers {
    /// The kernel's timer.
    pub alarm: Option<EpochMs>,
    /// The deferred work, with the time when it is due by the server's clock, in milliseconds.
    pub calls: Vec<(u64, Deferred)>,
    /// Whether the engine is called before each sleep of the loop.
    pub is_watching: bool,
    /// Loop iterations until connections are closed; 0 if none is to be closed.
    pub closing: u8,
}

/// Conditions in which a server refuses writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// The end of `CLIENT PAUSE … WRITE`, by its clock in milliseconds.
    pub paused_until: u64,
    /// The disk failed.
    pub disk_fails: bool,
    /// `min-replicas-to-write`.
    pub min_replicas: usize,
    /// The number of replicas that are connected and acknowledged recently.
    pub good_replicas: usize,
    /// Whether an error may replace a blocked connection's reply until it leaves (Valkey 8).
    pub replaces_replies: bool,
    /// Whether a blocked connection's reply leaves as soon as the server asks for it (Redis 7.0 and
    /// 7.2, Valkey 7.2).
    pub replies_at_once: bool,
    /// Whether a flush comes after the report that loading begins (Valkey 9).
    pub loads_before_flush: bool,
    /// Whether a time to live in the past is an expiry, and not a deletion (Valkey).
    pub expires_at_once: bool,
    /// Whether a value that `RENAME`, `MOVE` or `COPY` brings is not reported, unless it is a lock
    /// and a connection is blocked for it alone (Valkey from 8.1 on).
    pub misses_moved_strings: bool,
}

/// One server process.
pub struct Server {
    /// The engine's state; the engine is the code that runs in production.
    pub state: State<WaiterId>,
    /// The module's settings.
    pub bounds: Bounds,
    /// The module's settings.
    pub limits: Limits,
    /// The databases.
    pub keys: Keyspace,
    /// Its clock.
    pub now: Now,
    /// Whether it accepts writes from clients.
    pub is_primary: bool,
    /// When its present role began, by its clock.
    pub began: Now,
    /// Its connections.
    pub conns: BTreeMap<ClientId, Conn>,
    /// When the module is called next.
    pub timers: Timers,
    /// Conditions in which it refuses writes.
    pub conditions: Conditions,
    /// Users that have lost their permissions.
    pub denied: BTreeSet<Rc<str>>,
    /// Users that may publish to no channel.
    pub muted: BTreeSet<Rc<str>>,
    /// Requests that wait for messages.
    pub tells: Tells,
    /// Whether a transaction or a script is running.
    pub in_longer: bool,
    /// A script is running.
    pub in_script: bool,
    /// What it has yet to send to its replicas.
    pub stream: Vec<Item>,
    /// The length of the stream; on a replica, how much of it has arrived.
    pub offset: u64,
    /// The offsets of the replicas that are connected and have acknowledged something.
    pub replicas: Vec<u64>,
    /// The effects that its data contains.
    pub history: History,
    /// The published events: database, key, event.
    pub events: Vec<(i32, Key, String)>,
    /// How many events of effects were published since the last full sync.
    pub effect_events: u64,
    /// Its actions in this step, as far as their order matters.
    pub deeds: Vec<Deed>,
    /// Whether it ran a transaction or a script in this step, so that the order of its actions is
    /// unknown.
    pub had_longer: bool,
    /// The number of invented users: [`Fault::UserUnknown`].
    pub(crate) strangers: u64,
    /// Whether its clock was stepped.
    pub clock_stepped: bool,
    /// What it sent.
    pub out: Vec<(ClientId, Out)>,
    /// Notes for the laws: [`Server::take_notes`].
    pub(crate) notes: Vec<Noted>,
    /// The notes in `notes` that the last decision left pending.
    pub(crate) pending: Vec<Noted>,
    /// Callers with a pending grant at a lock that is open now.
    pub(crate) gated: Vec<(WaiterId, i32, Key, usize)>,
    /// The tokens of holds that began since then.
    pub(crate) begun: Vec<Token>,
    /// What is done wrong.
    pub fault: Fault,
    /// Whether new keys are reported to the engine.
    pub(crate) watches_keys: bool,
    /// How many tasks the engine may do in this loop iteration.
    pub(crate) portion: usize,
    /// How often the engine read its clock in this iteration.
    pub(crate) ticks: u32,
    pub(crate) effects: u64,
    pub(crate) units: Units,
    pub(crate) arrivals: u64,
    /// The length of the stream at the last sleep of the loop.
    pub(crate) slept_at: u64,
}

impl Server {
    /// An empty server that is neither a primary nor a replica yet.
    pub fn new(fault: Fault) -> Self {
        let bounds = Bounds {
            max_depth: 4,
            max_waiters: 1000,
            max_tells: 1000,
            max_tell_ms: 3_600_000,
            max_tickets: 1000,
            max_sessions: 1000,
            confirm_ms: 2000,
            grace_ms: 0,
            slow: Slow { wait_ms: Some(20), hold_ms: Some(20) },
            slowlog_max: 8,
        };
        let lease = |ms| LeaseMs::new(ms).unwrap();
        let (default_lease, max_lease) = (lease(30_000), LeaseMs::MAX);
        let limits = Limits { default_lease, max_lease, max_depth: bounds.max_depth, acks: 0 };
        Self {
            state: State::default(),
            bounds,
            limits,
            keys: Keyspace::default(),
            now: Now::from_us(0),
            is_primary: false,
            began: Now::from_us(0),
            conns: BTreeMap::new(),
            timers: Timers::default(),
            conditions: Conditions::default(),
            denied: BTreeSet::new(),
            muted: BTreeSet::new(),
            tells: Tells::default(),
            in_longer: false,
            in_script: false,
            stream: Vec::new(),
            offset: 0,
            replicas: Vec::new(),
            history: History::default(),
            events: Vec::new(),
            effect_events: 0,
            deeds: Vec::new(),
            had_longer: false,
            strangers: 0,
            clock_stepped: false,
            out: Vec::new(),
            notes: Vec::new(),
            pending: Vec::new(),
            gated: Vec::new(),
            begun: Vec::new(),
            fault,
            watches_keys: false,
            portion: usize::MAX,
            ticks: 0,
            effects: 0,
            units: Units::default(),
            arrivals: 0,
            slept_at: 0,
        }
    }

    /// Its clock in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now.ms().get()
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.notes.push(self.noted(note));
    }

    pub(crate) fn noted(&self, note: Note) -> Noted {
        Noted { at: self.history.point(), now: self.now, note }
    }

    pub(crate) fn say(&mut self, client: ClientId, said: Said) {
        self.out.push((client, Out::Said(said)));
    }

    /// Whether the server would refuse a client's write.
    pub fn refuses_writes(&self) -> bool {
        let Conditions { disk_fails, min_replicas, good_replicas, .. } = self.conditions;
        !self.state.manager.decides()
            || disk_fails
            || good_replicas < min_replicas
            || self.is_paused()
    }

    /// `rlock.grace-ms`: whether nothing is granted yet.
    pub fn is_in_grace(&self) -> bool {
        self.now_ms() < self.began.after_ms(self.bounds.grace_ms).get()
    }

    /// Whether `CLIENT PAUSE` is in force.
    pub fn is_paused(&self) -> bool {
        self.conditions.paused_until > self.now_ms()
    }

    // --- connections ----------------------------------------------------------------------------

    /// A connection begins.
    pub fn connect(&mut self, client: ClientId, user: &Rc<str>) {
        self.conns.insert(client, Conn::new(user));
    }

    /// A connection ends, from either side. The steps have the order in which a server frees it.
    pub fn free(&mut self, client: ClientId) {
        let Some(conn) = self.conns.remove(&client) else { return };
        self.note(Note::Closed(client));
        if let Some(waiting) = conn.waiting.as_ref().filter(|waiting| !waiting.granted.is_empty())
            && self.fault == Fault::UndoForgotten
        {
            self.over(waiting.waiter, false);
        }
        let is_untold = self.fault == Fault::DepartureUntold
            && conn.waiting.as_ref().is_some_and(|waiting| waiting.is_for_several);
        let is_kept = self.fault == Fault::AskerKept
            && self.tells.all.values().any(|tell| tell.client == client);
        if self.fault != Fault::SessionKept && !is_untold && !is_kept {
            self.engine(|edge| events::connection_ended(edge, client));
        }
        if let Some(waiting) = conn.waiting.filter(|_| !is_untold) {
            self.forget_wait(waiting);
        }
        self.out.push((client, Out::Closed));
    }

    pub(crate) fn forget_wait(&mut self, mut waiting: Waiting) {
        waiting.take_unconfirmed().into_iter().for_each(|note| self.note(note));
        let unheard = waiting.take_unheard();
        let Waiting { waiter, is_answered, is_lost, .. } = waiting;
        if !is_answered {
            self.engine(|edge| blocked::gone(edge, waiter));
        }
        unheard.into_iter().for_each(|note| self.note(note));
        self.over(waiter, is_lost);
    }

    /// Whether the server now reads the next command of this connection.
    pub fn reads(&self, client: ClientId) -> bool {
        self.conns.get(&client).is_some_and(|conn| conn.waiting.is_none())
    }

    /// `CLIENT UNBLOCK`.
    pub fn unblock(&mut self, client: ClientId, with_error: bool) {
        let replaces = self.conditions.replaces_replies;
        let Some(waiting) = self.waiting_mut(client) else { return };
        let (waiter, is_answered) = (waiting.waiter, waiting.is_answered);
        match (is_answered, with_error) {
            (false, false) => self.reply_to(client),
            (false, true) => {
                waiting.is_answered = true;
                waiting.aside = Some(unblocked());
                // The request was granted while it was blocked, but gets this reply instead.
                let (unheard, unconfirmed) = (waiting.take_unheard(), waiting.take_unconfirmed());
                unconfirmed.into_iter().for_each(|note| self.note(note));
                unheard.into_iter().for_each(|note| self.note(note));
                self.engine(|edge| blocked::gone(edge, waiter));
            }
            (true, true) if replaces => {
                waiting.is_lost = true;
                waiting.aside = Some(unblocked());
            }
            (true, _) => {}
        }
    }

    pub(crate) fn waiting_mut(&mut self, client: ClientId) -> Option<&mut Waiting> {
        self.conns.get_mut(&client)?.waiting.as_mut()
    }

    // --- keys -----------------------------------------------------------------------------------

    /// A key as a reader sees it.
    pub fn visible(&self, db: i32, key: &Key) -> Option<&Slot> {
        self.keys.get(db, key).filter(|slot| !slot.is_expired(self.now_ms()))
    }

    /// Whether some lock has a hold with this token.
    pub fn holds(&self, token: Token) -> bool {
        let locks = self.keys.iter().filter_map(|(_, _, slot)| slot.lock());
        locks.flat_map(rlock_core::Lock::holds).any(|(.., hold)| hold.token == token)
    }

    /// Removes a key, and notifies the module as the server does: in the middle of the removal.
    pub(crate) fn unlink(&mut self, db: i32, key: &Key) -> Option<Slot> {
        let lock = self.keys.get(db, key)?.lock().cloned();
        if let Some(lock) = lock.filter(|_| self.fault != Fault::KeyLossUntold) {
            self.engine(|edge| events::key_left(edge, db, key, &lock));
        }
        self.keys.take(db, key)
    }

    /// What a server does before a command sees a key: a primary deletes an expired key, and
    /// replicates that.
    pub(crate) fn expire_if_due(&mut self, db: i32, key: &Key) {
        let is_due = self.keys.get(db, key).is_some_and(|slot| slot.is_expired(self.now_ms()));
        if !is_due || !self.is_primary || self.is_paused() {
            return;
        }
        self.unlink(db, key);
        self.engine(|edge| events::key_lost(edge, db, key, false));
        self.propagate(db, &[b"DEL", key]);
        self.note(Note::KeyLost { db, key: key.clone(), by: Loss::Expiry });
    }

    /// The server searches for expired keys.
    pub fn expire_some(&mut self) {
        let due: Vec<(i32, Key)> = self
            .keys
            .iter()
            .filter(|(_, _, slot)| slot.is_expired(self.now_ms()))
            .map(|(db, key, _)| (db, key.clone()))
            .collect();
        for (db, key) in due {
            self.expire_if_due(db, &key);
        }
    }

    /// The server makes room.
    pub fn evict(&mut self, db: i32, key: &Key) {
        if !self.is_primary || self.is_paused() || self.keys.get(db, key).is_none() {
            return;
        }
        self.unlink(db, key);
        self.engine(|edge| events::key_lost(edge, db, key, true));
        self.propagate(db, &[b"DEL", key]);
        self.note(Note::KeyLost { db, key: key.clone(), by: Loss::Stranger });
    }

    /// Replicates a command.
    pub(crate) fn propagate(&mut self, db: i32, words: &[&[u8]]) {
        if !self.is_primary {
            return;
        }
        self.effects += 1;
        let at = self.history.advance();
        let is_picked = self.effects.is_multiple_of(5);
        if is_picked && self.fault == Fault::EffectLost {
            return;
        }
        let words: Rc<[Vec<u8>]> = words.iter().map(|word| word.to_vec()).collect();
        if words.iter().any(|word| word == b"TELL") {
            let what = format!("{words:?}");
            self.note(Note::Wrong { law: "a wait is not replicated", what });
        }
        let unit = self.units.current();
        if is_picked && self.fault == Fault::EffectTwice {
            self.send(Item { at, unit, db, words: words.clone() });
        }
        self.send(Item { at, unit, db, words });
        if self.fault == Fault::UnitSplit {
            self.units.next();
        }
    }

    /// Does the work of one command or timer: everything that it writes is replicated as one unit.
    pub(crate) fn in_one_unit<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.units.begin();
        let done = work(self);
        // What follows from a new key happens while the other keys are still open.
        if self.units.is_outermost() {
            self.pend_gated();
        }
        self.units.end();
        done
    }

    // --- role and data --------------------------------------------------------------------------

    /// The server becomes a primary, or ceases to be one.
    pub fn set_role(&mut self, is_primary: bool, reign: u32) {
        if !is_primary && self.is_primary {
            let blocked: Vec<ClientId> = self.blocked().collect();
            for client in blocked {
                self.say(client, Said::error("UNBLOCKED force unblock, instance state changed"));
                self.free(client);
            }
        }
        if is_primary && !self.is_primary {
            self.history.begin(reign);
            self.began = self.now;
        }
        self.is_primary = is_primary;
        self.engine(|edge| events::set_role(edge, is_primary));
    }

    fn blocked(&self) -> impl Iterator<Item = ClientId> {
        let waits = |(_, conn): &(&ClientId, &Conn)| {
            conn.waiting.as_ref().is_some_and(|waiting| !waiting.is_answered)
        };
        self.conns.iter().filter(waits).map(|(client, _)| *client)
    }

    /// A flush, as the server reports it to the module.
    pub(crate) fn flush(&mut self, db: Option<i32>) {
        if self.fault != Fault::KeyLossUntold {
            self.engine(|edge| events::flushed(edge, db));
        }
        self.keys.flush(db);
    }

    /// The server replaces its data: by that of a full sync, or by a file, as a primary whose reign
    /// begins with it.
    pub fn load(&mut self, snapshot: &Snapshot, reign: Option<u32>) {
        if self.conditions.loads_before_flush {
            self.engine(|edge| events::loading_is(edge, false));
            self.flush(None);
        } else {
            self.flush(None);
            self.engine(|edge| events::loading_is(edge, false));
        }
        self.history = snapshot.history.clone();
        self.offset = snapshot.offset;
        reign.into_iter().for_each(|reign| self.history.begin(reign));
        for (db, key, slot) in snapshot.keys.iter() {
            // A primary does not load what has expired.
            if self.is_primary && slot.is_expired(self.now_ms()) {
                self.note(Note::KeyLost { db, key: key.clone(), by: Loss::Expiry });
                continue;
            }
            let value = match slot.lock() {
                Some(lock) => {
                    let mut bytes = Vec::new();
                    rlock_core::snapshot::save(lock, &mut bytes);
                    let lock = rlock_core::snapshot::load(&bytes).unwrap();
                    self.engine(|edge| events::lock_loaded(edge, Some((db, &**key)), &lock));
                    Value::Lock(lock)
                }
                None => Value::Other,
            };
            self.keys.set(db, key, Slot { value, expires_at: slot.expires_at });
        }
        snapshot.token.into_iter().for_each(|token| self.state.manager.saw(token));
        self.effect_events = snapshot.effect_events;
        self.engine(|edge| events::loading_is(edge, true));
    }

    /// What a full sync or a data file contains.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            keys: self.keys.clone(),
            token: self.state.manager.token_ahead(self.now),
            history: self.history.clone(),
            offset: self.offset,
            effect_events: self.effect_events,
        }
    }
}

fn unblocked() -> Said {
    Said::error("UNBLOCKED client unblocked via CLIENT UNBLOCK")
}
