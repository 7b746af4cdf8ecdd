//! A map of keys as a server: the clock moves, deferred work is done and replies are delivered only
//! when the test says so.
//!
//! It panics if the engine borrows its state across a call of the server, keeps a key open during a
//! notification, or replies in the call that blocks the connection.

mod channels;
mod host;
pub mod noise;
mod record;
pub mod replica;
pub mod small;

pub use channels::{Channels, Written};

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

pub use host::{Handle, Name, Waiting};
use rlock_core::grammar::{Arguments, Command, Limits, SeveralKeys, commands as table};
use rlock_core::manager::{Bounds, LockId};
use rlock_core::slow::Slow;
use rlock_core::{ClientId, EpochMs, LeaseMs, Lock, Now, WaiterId};
use rlock_engine::{
    Deferred, Gate, Host, Keys, PlantedFault, State, acks, blocked, commands, events, run_deferred,
    timers,
};

/// When every test begins, in milliseconds since the Unix epoch.
pub const START_MS: u64 = 1_700_000_000_000;

/// What is at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Lock(Lock),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub value: Value,
    pub expires_at: Option<u64>,
}

/// Whose command is running.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub client: Option<u64>,
    pub words: Vec<Vec<u8>>,
}

/// The server around the engine; tests change it through [`MapHost::world`].
pub struct World {
    pub now: Now,
    /// How much time each call of [`Host::monotonic`] takes, so that a portion ends in every test.
    pub tick: Duration,
    worked: Duration,
    pub db: i32,
    pub keys: BTreeMap<LockId, Slot>,
    open: BTreeSet<LockId>,
    caller: Caller,
    /// The wait that the running command began.
    parking: Option<u64>,
    replies: Vec<String>,
    log: Vec<String>,
    pub stream: Vec<Written>,
    pub deferred: Vec<(u64, Deferred)>,
    pub alarm: Option<EpochMs>,
    pub waiting: BTreeMap<u64, Waiting>,
    issued: Vec<u64>,
    handles: Rc<()>,
    pub watches_sleep: bool,
    pub replication_asked: usize,
    pub gate_asked: usize,
    /// How often a key was opened, and how often for writing.
    pub opened: usize,
    pub opened_to_write: usize,
    // --- what a test may switch ---
    pub bounds: Bounds,
    pub detects_deadlocks: bool,
    pub users: BTreeMap<u64, String>,
    pub denied: BTreeSet<String>,
    /// How often the server was asked whether a user may acquire a lock.
    pub rights_asked: usize,
    pub gate: Gate,
    pub gates: BTreeMap<Vec<u8>, Gate>,
    pub offset: u64,
    /// Whether the offset is at least the number of effects.
    pub counts_stream: bool,
    pub acknowledged: Vec<u64>,
    pub is_paused: bool,
    pub is_cluster: bool,
    pub denies_blocking: bool,
    pub refuses_to_block: bool,
    pub is_from_primary: bool,
    pub is_loading: bool,
    pub must_answer_later: bool,
    pub channels: Channels,
    /// As in Redis 7.0: whether the reply is asked for in the call that unblocks.
    pub replies_at_once: bool,
    /// As there: whether connections are blocked at no keys.
    pub blocks_aside: bool,
    /// How long subscribers take with each event.
    pub notify_takes: Duration,
    /// How long it takes to unblock a connection, in milliseconds.
    pub told_takes_ms: u64,
    /// What happens while a connection is being blocked.
    pub meanwhile: Option<fn(&MapHost)>,
    /// What another module does when a key is created.
    pub on_new: Option<fn(&MapHost, &[u8])>,
    pub fault: Option<PlantedFault>,
    /// `rlock.acks`
    pub acks: u8,
    /// Whether connections cannot be closed safely.
    pub cannot_close: bool,
    /// Whether the engine is notified of new keys.
    pub watches_keys: bool,
    /// Whether the engine is notified of each command.
    pub watches_commands: bool,
}

pub struct MapHost {
    state: RefCell<State<Handle>>,
    world: RefCell<World>,
}

type Serve = fn(&MapHost, &Name<'_>, &Arguments<'_>) -> Result<(), String>;
type ServeSeveral =
    fn(&MapHost, &[Name<'_>], &Arguments<'_>, &SeveralKeys<'_>) -> Result<(), String>;

/// How the engine handles a command.
enum Served {
    One(Serve),
    Several(ServeSeveral),
}

impl MapHost {
    /// A replica without data.
    pub fn replica() -> Self {
        let bounds = Bounds {
            max_tells: 1000,
            max_tell_ms: 3_600_000,
            max_depth: 100,
            max_waiters: 1000,
            max_tickets: 1000,
            max_sessions: 1000,
            confirm_ms: 2000,
            grace_ms: 0,
            slow: Slow::default(),
            slowlog_max: 10,
        };
        let world = World {
            now: Now::from_ms(START_MS),
            tick: Duration::from_micros(1),
            worked: Duration::ZERO,
            db: 0,
            keys: BTreeMap::new(),
            open: BTreeSet::new(),
            caller: Caller::default(),
            parking: None,
            replies: Vec::new(),
            log: Vec::new(),
            stream: Vec::new(),
            deferred: Vec::new(),
            alarm: None,
            waiting: BTreeMap::new(),
            issued: Vec::new(),
            handles: Rc::default(),
            watches_sleep: false,
            replication_asked: 0,
            gate_asked: 0,
            opened: 0,
            opened_to_write: 0,
            bounds,
            detects_deadlocks: true,
            users: BTreeMap::new(),
            denied: BTreeSet::new(),
            rights_asked: 0,
            gate: Gate::Open,
            gates: BTreeMap::new(),
            offset: 0,
            counts_stream: false,
            acknowledged: Vec::new(),
            is_paused: false,
            is_cluster: false,
            denies_blocking: false,
            refuses_to_block: false,
            is_from_primary: false,
            is_loading: false,
            must_answer_later: false,
            channels: Channels::default(),
            replies_at_once: false,
            blocks_aside: false,
            notify_takes: Duration::ZERO,
            told_takes_ms: 0,
            meanwhile: None,
            on_new: None,
            fault: None,
            acks: 0,
            cannot_close: false,
            watches_keys: false,
            watches_commands: false,
        };
        Self { state: RefCell::default(), world: RefCell::new(world) }
    }

    pub fn primary() -> Self {
        let host = Self::replica();
        events::set_role(&host, true);
        host
    }

    /// The server. The engine must not borrow its state when it calls the server.
    pub fn world(&self) -> RefMut<'_, World> {
        let is_free = self.state.try_borrow_mut().is_ok();
        assert!(is_free, "a borrow of the state is held across a call of the server");
        self.world.borrow_mut()
    }

    /// Reads the engine's state.
    pub fn state_of<T>(&self, see: impl FnOnce(&State<Handle>) -> T) -> T {
        see(&self.state.borrow())
    }

    // --- commands ------------------------------------------------------------------------------

    /// Runs a command of this connection, such as `acquire k ann BLOCK 0`; `#1` stands for the
    /// first token that this server issued. Returns the reply, or "" if there is none yet.
    pub fn ask(&self, client: u64, line: &str) -> String {
        self.run_as(Some(client), line)
    }

    /// Runs a command without a connection of its own.
    pub fn ask_in_script(&self, line: &str) -> String {
        self.run_as(None, line)
    }

    fn run_as(&self, client: Option<u64>, line: &str) -> String {
        let words = line.split(' ').map(|word| match word.strip_prefix('#') {
            Some(place) => self.token(place.parse().unwrap()).to_string().into_bytes(),
            None => word.as_bytes().to_vec(),
        });
        let mut words: Vec<Vec<u8>> = words.collect();
        words[0] = [b"RLOCK.".as_slice(), &words[0].to_ascii_uppercase()].concat();
        self.call(client, words)
    }

    /// Runs a command that is given as words.
    pub fn call(&self, client: Option<u64>, words: Vec<Vec<u8>>) -> String {
        use Served::{One, Several};
        let (command, serve): (&Command, Served) = match words[0].as_slice() {
            b"RLOCK.ACQUIRE" => (&table::ACQUIRE, One(commands::acquire::<Self>)),
            b"RLOCK.RELEASE" => (&table::RELEASE, One(commands::release::<Self>)),
            b"RLOCK.RENEW" => (&table::RENEW, One(commands::renew::<Self>)),
            b"RLOCK.MACQUIRE" => (&table::MACQUIRE, Several(commands::macquire::<Self>)),
            b"RLOCK.MRELEASE" => (&table::MRELEASE, Several(commands::mrelease::<Self>)),
            b"RLOCK.MRENEW" => (&table::MRENEW, Several(commands::mrenew::<Self>)),
            b"RLOCK.CANCEL" => (&table::CANCEL, One(commands::cancel::<Self>)),
            b"RLOCK.FORCE" => (&table::FORCE, One(commands::force::<Self>)),
            b"RLOCK.TAKE" => (&table::TAKE, One(commands::take::<Self>)),
            b"RLOCK.HOLDS" => (&table::HOLDS, One(commands::holds::<Self>)),
            b"RLOCK.CHECK" => (&table::CHECK, One(commands::check::<Self>)),
            b"RLOCK.AWAIT" => (&table::AWAIT, One(commands::await_holder::<Self>)),
            b"RLOCK.APPLY" => (&table::APPLY, Several(commands::apply::<Self>)),
            other => panic!("no command {}", String::from_utf8_lossy(other)),
        };
        let limits = Limits {
            default_lease: LeaseMs::new(30_000).unwrap(),
            max_lease: LeaseMs::MAX,
            max_depth: 100,
            acks: self.world().acks,
        };
        let mut keys = SeveralKeys::default();
        let said = words[1..].iter().map(Vec::as_slice);
        let arguments = match command.read_several(said, &limits, &mut keys) {
            Ok(arguments) => arguments,
            Err(bad) => return format!("-{}", bad.line()),
        };
        let caller = Caller { client, words: words.clone() };
        let before = std::mem::replace(&mut self.world().caller, caller);
        let replies = std::mem::take(&mut self.world().replies);
        let failed = match serve {
            One(serve) => serve(self, &Name(arguments.key), &arguments),
            Several(serve) => {
                let names: Vec<Name<'_>> = keys.keys.iter().map(|key| Name(key)).collect();
                serve(self, &names, &arguments, &keys)
            }
        };
        let failed = failed.err();
        let mut world = self.world();
        world.parking = None;
        world.caller = before;
        let mut said = std::mem::replace(&mut world.replies, replies);
        drop(world);
        self.check();
        said.extend(failed.map(|line| format!("-{}", self.with_names(&line))));
        said.join(" ")
    }

    /// Applies to this server what another one wrote into its stream.
    pub fn replay(&self, written: &Written) -> String {
        let before = std::mem::replace(&mut self.world().is_from_primary, true);
        let db = std::mem::replace(&mut self.world().db, written.db);
        let said = match written.words.as_slice() {
            [name, key] if name == b"DEL" => {
                self.remove(std::str::from_utf8(key).unwrap());
                String::new()
            }
            words => self.call(None, words.to_vec()),
        };
        self.world().db = db;
        self.world().is_from_primary = before;
        said
    }

    /// Replays what another server's stream has gained since the last call.
    pub fn follow(&self, primary: &Self) {
        for written in std::mem::take(&mut primary.world().stream) {
            self.replay(&written);
        }
    }

    /// The waiters of a key: each owner, with `!` if it has its turn.
    pub fn line(&self, key: &str) -> String {
        self.state_of(|state| {
            let volatile = state.manager.volatile(0, key.as_bytes());
            let waits = volatile.into_iter().flat_map(|volatile| volatile.queue.iter());
            let shown = waits.map(|(entry, has_turn)| {
                let owner = String::from_utf8_lossy(entry.owner.as_bytes()).into_owned();
                owner + if has_turn { "!" } else { "" }
            });
            shown.collect::<Vec<_>>().join(" ")
        })
    }

    // --- time and the server's loop ------------------------------------------------------------

    /// Sets the clock to this many milliseconds after the start.
    pub fn at(&self, ms: u64) {
        self.world().now = Now::from_ms(START_MS + ms);
    }

    /// Does one deferred piece of work, whether it is due or not.
    pub fn run(&self, work: Deferred) {
        let mut world = self.world();
        let place = world.deferred.iter().position(|(_, other)| *other == work);
        world.deferred.remove(place.unwrap_or_else(|| panic!("{work:?} is not deferred")));
        drop(world);
        run_deferred(self, work);
    }

    /// Whether this is deferred.
    pub fn has_deferred(&self, work: Deferred) -> bool {
        self.world().deferred.iter().any(|(_, other)| *other == work)
    }

    /// Runs one loop iteration: the alarm, deferred work that is due, replies, and a sleep. Returns
    /// what blocked connections received.
    pub fn turn(&self) -> Vec<String> {
        let now = self.world().now;
        if self.world().alarm.take_if(|at| at.is_over_at(now)).is_some() {
            timers::soon(self);
        }
        let now_ms = now.ms().get();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.world().deferred)
            .into_iter()
            .partition(|(at, _)| *at <= now_ms);
        self.world().deferred = later;
        for (_, work) in due {
            run_deferred(self, work);
        }
        let told = self.deliver_all();
        if self.world().watches_sleep {
            acks::before_sleep(self);
        }
        let told = [told, self.deliver_all()].concat();
        self.check();
        told
    }

    /// Checks the manager's invariants.
    fn check(&self) {
        self.state(|state| state.manager.check()).unwrap();
    }

    /// Delivers the replies that are due; the connections have read them afterward.
    pub fn deliver_all(&self) -> Vec<String> {
        let due = |world: &World| world.waiting.iter().find(|(_, one)| one.is_due).map(|(w, _)| *w);
        let mut told = Vec::new();
        loop {
            let Some(waiter) = due(&self.world()) else { return told };
            told.push(self.deliver(waiter));
            blocked::over(self, WaiterId::from(waiter), false);
        }
    }

    /// Asks for the reply of a blocked connection. Returns it, after the connection's number.
    pub fn deliver(&self, waiter: u64) -> String {
        let waiting = self.world().waiting.remove(&waiter).unwrap();
        let replies = std::mem::take(&mut self.world().replies);
        blocked::reply(self, WaiterId::from(waiter));
        let said = std::mem::replace(&mut self.world().replies, replies).join(" ");
        let line = format!("{}: {said}", waiting.client);
        self.log(format!("told {line}"));
        if self.world().replies_at_once {
            blocked::over(self, WaiterId::from(waiter), false);
        }
        line
    }

    // --- what the server does to keys and connections ------------------------------------------

    /// The number of this connection's wait.
    pub fn waiter(&self, client: u64) -> u64 {
        let world = self.world();
        let mine = world.waiting.iter().find(|(_, one)| one.client == client);
        *mine.unwrap_or_else(|| panic!("{client} is not blocked")).0
    }

    /// A connection closes; if it is blocked, the server first reports that it departs.
    pub fn close(&self, client: u64) {
        let mine = self.world().waiting.iter().find(|(_, one)| one.client == client).map(|w| *w.0);
        if let Some(waiter) = mine {
            self.world().waiting.remove(&waiter);
            blocked::gone(self, WaiterId::from(waiter));
            blocked::over(self, WaiterId::from(waiter), true);
        }
        events::connection_ended(self, ClientId::from(client));
    }

    pub fn is_expired(&self, at: &LockId) -> bool {
        let expires_at = self.world().keys.get(at).and_then(|slot| slot.expires_at);
        expires_at.is_some_and(|at_ms| at_ms < self.world().now.ms().get())
    }

    fn expire(&self, at: &LockId) {
        self.unlink(at);
        events::key_lost(self, at.db, &at.key, false);
        self.log(format!("expired {}", self.shown(at.db, &at.key)));
        let words = vec![b"DEL".to_vec(), at.key.to_vec()];
        self.world().stream.push(Written { db: at.db, words });
    }

    fn unlink(&self, at: &LockId) {
        assert!(!self.world().open.contains(at), "somebody else removes a key that is open");
        let slot = self.world().keys.remove(at);
        if let Some(Slot { value: Value::Lock(lock), .. }) = slot {
            events::key_left(self, at.db, &at.key, &lock);
        }
    }

    /// `DEL key` by somebody.
    pub fn remove(&self, key: &str) {
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        self.unlink(&at);
    }

    /// The server evicts a key.
    pub fn evict(&self, key: &str) {
        self.remove(key);
        events::key_lost(self, self.db(), key.as_bytes(), true);
    }

    /// A value of another type replaces a key.
    pub fn put_other(&self, key: &str) {
        self.remove(key);
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        self.world().keys.insert(at, Slot { value: Value::Other, expires_at: None });
    }

    /// `RESTORE`: a lock from elsewhere appears.
    pub fn put_lock(&self, key: &str, lock: Lock) {
        self.remove(key);
        events::lock_loaded(self, Some((self.db(), key.as_bytes())), &lock);
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        self.world().keys.insert(at, Slot { value: Value::Lock(lock), expires_at: None });
    }

    /// The lock at a key of the selected database.
    pub fn lock(&self, key: &str) -> Lock {
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        match self.world().keys.get(&at).map(|slot| &slot.value) {
            Some(Value::Lock(lock)) => lock.clone(),
            other => panic!("{other:?} is no lock"),
        }
    }

    /// Sets the key's expiry, as `EXPIRE` and `PERSIST` do.
    pub fn set_expiry(&self, key: &str, ms: Option<u64>) {
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        self.world().keys.get_mut(&at).unwrap().expires_at = ms.map(|ms| START_MS + ms);
    }
}
