//! The keys of a simulated server: values with a time to live.

use std::collections::BTreeMap;
use std::rc::Rc;

use rlock_core::Lock;

/// A key's name.
pub type Key = Rc<[u8]>;

/// A key of one of the databases.
pub type LockName = (i32, Key);

/// The same, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRef<'k> {
    /// The database.
    pub db: i32,
    /// The key.
    pub key: &'k Key,
}

impl KeyRef<'_> {
    /// A copy of its name.
    pub fn name(self) -> LockName {
        (self.db, self.key.clone())
    }

    /// Whether it has this name.
    pub fn is(self, name: &LockName) -> bool {
        (self.db, self.key) == (name.0, &name.1)
    }
}

/// The value at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A lock.
    Lock(Lock),
    /// Anything else.
    Other,
}

/// A value, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The value.
    pub value: Value,
    /// In milliseconds since the Unix epoch; `None` means never.
    pub expires_at: Option<u64>,
}

impl Slot {
    /// A server keeps a key until the end of the millisecond of its expiry.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at.is_some_and(|at| at < now_ms)
    }

    /// The lock, if the value is one.
    pub fn lock(&self) -> Option<&Lock> {
        match &self.value {
            Value::Lock(lock) => Some(lock),
            Value::Other => None,
        }
    }
}

/// The databases of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyspace {
    slots: BTreeMap<(i32, Key), Slot>,
}

impl Keyspace {
    /// The value at a key, even if it has expired.
    pub fn get(&self, db: i32, key: &Key) -> Option<&Slot> {
        self.slots.get(&(db, key.clone()))
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, db: i32, key: &Key) -> Option<&mut Slot> {
        self.slots.get_mut(&(db, key.clone()))
    }

    /// Puts a value there, replacing whatever is there.
    pub fn set(&mut self, db: i32, key: &Key, slot: Slot) {
        self.slots.insert((db, key.clone()), slot);
    }

    /// Takes it away.
    pub fn take(&mut self, db: i32, key: &Key) -> Option<Slot> {
        self.slots.remove(&(db, key.clone()))
    }

    /// Every key.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Key, &Slot)> {
        self.slots.iter().map(|((db, key), slot)| (*db, key, slot))
    }

    /// Empties a database; `None` means all of them.
    pub fn flush(&mut self, only: Option<i32>) {
        self.slots.retain(|(db, _), _| only.is_some_and(|only| only != *db));
    }

    /// Two databases change places.
    pub fn swap(&mut self, one: i32, other: i32) {
        let all = std::mem::take(&mut self.slots);
        let placed = |db| match db {
            db if db == one => other,
            db if db == other => one,
            db => db,
        };
        self.slots = all.into_iter().map(|((db, key), slot)| ((placed(db), key), slot)).collect();
    }
}
