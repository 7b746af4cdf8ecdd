//! What the engine did, in a form that tests can read.

use rlock_core::manager::LockId;
use rlock_core::{Mode, snapshot};
use rlock_engine::{Deferred, Keys};

use super::{MapHost, START_MS, Value, Written};

impl Written {
    /// The effects of this command, each in a command of its own.
    pub fn apart(&self) -> Vec<Self> {
        let [name, keys @ .., payload] = self.words.as_slice() else { return vec![self.clone()] };
        if name != b"RLOCK.APPLY" {
            return vec![self.clone()];
        }
        let effects = snapshot::load_effects(payload, keys.len()).unwrap();
        let alone = keys.iter().zip(effects).map(|(key, effect)| {
            let mut bytes = Vec::new();
            snapshot::save_effect(effect.start, &effect.changes, &mut bytes);
            Self { db: self.db, words: vec![name.clone(), key.clone(), bytes] }
        });
        alone.collect()
    }
}

impl MapHost {
    /// The holds in the selected database, like `ann write depth=1 until=30000`.
    pub fn holds(&self, key: &str) -> String {
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        let world = self.world();
        let lock = match world.keys.get(&at).map(|slot| &slot.value) {
            None => return "no key".into(),
            Some(Value::Other) => return "another value".into(),
            Some(Value::Lock(lock)) => lock.clone(),
        };
        let hold = |(owner, mode, hold): (&[u8], Mode, rlock_core::Hold)| {
            let (owner, mode) = (String::from_utf8_lossy(owner), mode.lower());
            let until = hold.deadline.get() - START_MS;
            format!("{owner} {mode} depth={} until={until}", hold.depth)
        };
        lock.holds().map(hold).collect::<Vec<_>>().join(", ")
    }

    /// When the key expires, in milliseconds after the start.
    pub fn expires_at(&self, key: &str) -> Option<u64> {
        let at = LockId { db: self.db(), key: key.as_bytes().into() };
        let expires_at = self.world().keys.get(&at).unwrap().expires_at;
        expires_at.map(|at_ms| at_ms - START_MS)
    }

    /// The time of the alarm, in milliseconds after the start.
    pub fn alarm(&self) -> Option<u64> {
        self.world().alarm.map(|at| at.get() - START_MS)
    }

    /// Takes the deferred work, each with its delay after the start.
    pub fn take_deferred(&self) -> Vec<(u64, Deferred)> {
        let deferred = std::mem::take(&mut self.world().deferred);
        deferred.into_iter().map(|(at, work)| (at - START_MS, work)).collect()
    }

    /// How many handles of blocked connections the engine keeps.
    pub fn handles(&self) -> usize {
        std::rc::Rc::strong_count(&self.world().handles) - 1
    }

    /// Takes everything that the engine did, in order.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.world().log)
    }

    /// Takes what the engine did, without what it reported about that.
    pub fn did(&self) -> Vec<String> {
        self.take_log().into_iter().filter(|line| !line.starts_with("seen: ")).collect()
    }

    /// Takes what the engine reported ([`rlock_engine::Happening`]).
    pub fn seen(&self) -> Vec<String> {
        let log = self.take_log();
        log.iter().filter_map(|line| line.strip_prefix("seen: ").map(str::to_owned)).collect()
    }

    /// Takes what was published.
    pub fn published(&self) -> Vec<String> {
        let log = self.take_log();
        log.iter().filter_map(|line| line.strip_prefix("published ").map(str::to_owned)).collect()
    }

    /// The n-th token that this server issued; the first has number 1.
    pub fn token(&self, place: usize) -> u64 {
        self.world().issued[place - 1]
    }

    pub fn log(&self, line: String) {
        self.world().log.push(line);
    }

    /// Like `log`, for calls that may lead back into a module: no key may be open.
    pub fn log_closed(&self, line: String) {
        assert!(self.world().open.is_empty(), "a key is open: {line}");
        self.log(line);
    }

    pub fn say(&self, said: String) {
        self.world().replies.push(said);
    }

    /// A waiter gets its reply.
    pub fn note_replies(&self) {
        let mut world = self.world();
        let replies = world.replies.len();
        world.channels.replied_before.push(replies);
    }

    pub fn write(&self, words: Vec<Vec<u8>>) {
        let mut world = self.world();
        assert!(!world.is_paused, "something is written while the server is paused");
        let name = String::from_utf8_lossy(&words[0]).to_lowercase();
        let db = world.db;
        world.offset += 100;
        world.stream.push(Written { db, words });
        drop(world);
        self.log(format!("replicated {}", name.trim_start_matches("rlock.")));
    }

    /// A key of the selected database.
    pub fn named(&self, key: &[u8]) -> String {
        self.shown(self.db(), key)
    }

    pub fn shown(&self, db: i32, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        if db == 0 { key.into() } else { format!("{db}:{key}") }
    }

    pub fn number(&self, value: i64) -> String {
        let issued = self.world().issued.iter().position(|token| token.cast_signed() == value);
        issued.map_or_else(|| value.to_string(), |place| format!("#{}", place + 1))
    }

    pub fn with_names(&self, line: &str) -> String {
        let issued = self.world().issued.clone();
        let tokens = issued.iter().enumerate();
        tokens.fold(line.to_owned(), |line, (place, token)| {
            line.replace(&token.to_string(), &format!("#{}", place + 1))
        })
    }
}
