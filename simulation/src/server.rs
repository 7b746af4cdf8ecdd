//! A simulated server: what the real one keeps and does around the module.

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
    /// What the engine wants to be called for, and when, by the server's clock in milliseconds.
    pub calls: Vec<(u64, Deferred)>,
    /// The engine is called before each sleep of the loop.
    pub is_watching: bool,
    /// Iterations of the loop until connections are closed; 0 is none.
    pub closing: u8,
}

/// What may keep a server from writing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// `CLIENT PAUSE … WRITE` until then, by its clock in milliseconds.
    pub paused_until: u64,
    /// The disk failed.
    pub disk_fails: bool,
    /// `min-replicas-to-write`.
    pub min_replicas: usize,
    /// Replicas that are there and acknowledged a moment ago.
    pub good_replicas: usize,
    /// An error may take the place of a blocked connection's reply until it leaves (Valkey 8).
    pub replaces_replies: bool,
    /// A blocked connection's reply leaves when it is asked for (Redis 7.0 and 7.2, Valkey 7.2).
    pub replies_at_once: bool,
    /// A flush comes after the word that loading begins (Valkey 9).
    pub loads_before_flush: bool,
    /// A time to live that is past already is an expiry, and not a deletion (Valkey).
    pub expires_at_once: bool,
    /// A value that `RENAME`, `MOVE` or `COPY` brings is not reported, unless it is a lock and a
    /// connection is blocked for it alone: Valkey from 8.1 on.
    pub misses_moved_strings: bool,
}

/// One server process.
pub struct Server {
    /// The engine's: the code that runs in production.
    pub state: State<WaiterId>,
    /// The module's settings.
    pub bounds: Bounds,
    /// The module's settings.
    pub limits: Limits,
    /// The databases.
    pub keys: Keyspace,
    /// Its clock.
    pub now: Now,
    /// Whether it takes writes from clients.
    pub is_primary: bool,
    /// Since when, by its clock.
    pub began: Now,
    /// Its connections.
    pub conns: BTreeMap<ClientId, Conn>,
    /// When the module is called next.
    pub timers: Timers,
    /// What may keep it from writing.
    pub conditions: Conditions,
    /// Users that may not do what they may do.
    pub denied: BTreeSet<Rc<str>>,
    /// Users that may publish to no channel.
    pub muted: BTreeSet<Rc<str>>,
    /// Requests that wait for messages.
    pub tells: Tells,
    /// A transaction or a script is running.
    pub in_longer: bool,
    /// A script is running.
    pub in_script: bool,
    /// What it has to send to its replicas.
    pub stream: Vec<Item>,
    /// How long the stream is; on a replica, how much of it arrived.
    pub offset: u64,
    /// How far the replicas are that are connected and have acknowledged anything.
    pub replicas: Vec<u64>,
    /// Which effects its data has.
    pub history: History,
    /// What it published: the database, the key, the event.
    pub events: Vec<(i32, Key, String)>,
    /// Published of effects, since the last full sync.
    pub effect_events: u64,
    /// What it did in this step, as far as the order matters.
    pub deeds: Vec<Deed>,
    /// The server ran a transaction or a script in this step, so the order of what happened in it
    /// is unknown.
    pub had_longer: bool,
    /// Users that it made up: [`Fault::UserUnknown`].
    pub(crate) strangers: u64,
    /// Its clock was stepped.
    pub clock_stepped: bool,
    /// What it sent.
    pub out: Vec<(ClientId, Out)>,
    /// What the laws must know: [`Server::take_notes`].
    pub(crate) notes: Vec<Noted>,
    /// Those of `notes` that the last decision left pending.
    pub(crate) pending: Vec<Noted>,
    /// The callers whose grant is pending, at a lock that is open now.
    pub(crate) gated: Vec<(WaiterId, i32, Key, usize)>,
    /// The tokens of holds that began since those were looked at.
    pub(crate) begun: Vec<Token>,
    /// What is done wrong.
    pub fault: Fault,
    /// New keys are reported to the engine.
    pub(crate) watches_keys: bool,
    /// How many tasks the engine may do in this iteration of the loop.
    pub(crate) portion: usize,
    /// How often it looked at its clock in this iteration.
    pub(crate) ticks: u32,
    pub(crate) effects: u64,
    pub(crate) units: Units,
    pub(crate) arrivals: u64,
    /// How long the stream was when the loop slept last.
    pub(crate) slept_at: u64,
}

impl Server {
    /// A server with nothing in it that is neither primary nor replica yet.
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

    /// Nothing may be written now by whatever a client's write would be refused for.
    pub fn refuses_writes(&self) -> bool {
        let Conditions { disk_fails, min_replicas, good_replicas, .. } = self.conditions;
        !self.state.manager.decides()
            || disk_fails
            || good_replicas < min_replicas
            || self.is_paused()
    }

    /// `rlock.grace-ms`: nothing is granted.
    pub fn is_in_grace(&self) -> bool {
        self.now_ms() < self.began.after_ms(self.bounds.grace_ms).get()
    }

    /// `CLIENT PAUSE` is in force.
    pub fn is_paused(&self) -> bool {
        self.conditions.paused_until > self.now_ms()
    }

    // --- connections ----------------------------------------------------------------------------

    /// A connection begins.
    pub fn connect(&mut self, client: ClientId, user: &Rc<str>) {
        self.conns.insert(client, Conn::new(user));
    }

    /// A connection ends, from whichever side: in the order in which a server frees it.
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

    /// Whether the server reads the next command of this connection now.
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
                // The request was granted while it was blocked, and gets this reply instead.
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

    /// Some lock is held with this token.
    pub fn holds(&self, token: Token) -> bool {
        let locks = self.keys.iter().filter_map(|(_, _, slot)| slot.lock());
        locks.flat_map(rlock_core::Lock::holds).any(|(.., hold)| hold.token == token)
    }

    /// Removes a key from its name, and notifies the module as the server does: in the middle of
    /// it.
    pub(crate) fn unlink(&mut self, db: i32, key: &Key) -> Option<Slot> {
        let lock = self.keys.get(db, key)?.lock().cloned();
        if let Some(lock) = lock.filter(|_| self.fault != Fault::KeyLossUntold) {
            self.engine(|edge| events::key_left(edge, db, key, &lock));
        }
        self.keys.take(db, key)
    }

    /// What a server does before a command sees a key: a primary deletes a key that has expired,
    /// and replicates that.
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

    /// The server looks for expired keys by itself.
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

    /// Hands a command to the replicas.
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

    /// Does what a server does in one go: all that it writes reaches the replicas as one unit.
    pub(crate) fn in_one_unit<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.units.begin();
        let done = work(self);
        // What a new key leads to happens while the others are still open.
        if self.units.is_outermost() {
            self.pend_gated();
        }
        self.units.end();
        done
    }

    // --- role and data --------------------------------------------------------------------------

    /// It becomes a primary, or ceases to be one.
    pub fn role_is(&mut self, is_primary: bool, reign: u32) {
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
        self.engine(|edge| events::role_is(edge, is_primary));
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

    /// It reads data in the place of its own: what a full sync brings, or, as a primary whose reign
    /// begins with it, a file.
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
            // A primary does not read what has expired.
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
