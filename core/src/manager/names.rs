//! The index of a lock's slot by the lock's name.

use std::array;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// A lock's place in [`Locks`], valid while the lock has a volatile part.
pub(super) type Slot = usize;

/// The number of tables. With a million names, a table that grows moves some 10 000 of them, which
/// takes less than a millisecond.
const TABLES: usize = 64;

/// A hash table of numbers that stores no names: the caller compares them. It consists of several
/// tables, because a single table with a million names took some 200 ms to grow.
pub(super) struct LockIndex {
    tables: [HashTable<(u64, Slot)>; TABLES],
    /// Seeded, because anybody can choose the names.
    state: RandomState,
}

impl Default for LockIndex {
    fn default() -> Self {
        Self { tables: array::from_fn(|_| HashTable::new()), state: RandomState::default() }
    }
}

impl LockIndex {
    fn hash(&self, db: i32, key: &[u8]) -> u64 {
        self.state.hash_one((db, key))
    }

    /// The table of a name. The middle bits of the hash decide: a table itself uses the lowest and
    /// the highest bits.
    const fn table_of(hash: u64) -> usize {
        (hash >> 32) as usize % TABLES
    }

    /// The number of a name; `is_it` says whether a candidate has that name.
    pub fn find(&self, db: i32, key: &[u8], is_it: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = self.hash(db, key);
        let table = self.tables.get(Self::table_of(hash))?;
        let found = table.find(hash, |(other, number)| *other == hash && is_it(*number));
        found.map(|(_, number)| *number)
    }

    /// Gives a name its number.
    pub fn insert(&mut self, db: i32, key: &[u8], number: Slot) {
        let hash = self.hash(db, key);
        if let Some(table) = self.tables.get_mut(Self::table_of(hash)) {
            table.insert_unique(hash, (hash, number), |(hash, _)| *hash);
        }
    }

    /// Forgets the name with this number.
    pub fn remove(&mut self, db: i32, key: &[u8], number: Slot) {
        let hash = self.hash(db, key);
        if let Some(table) = self.tables.get_mut(Self::table_of(hash))
            && let Ok(entry) = table.find_entry(hash, |(_, other)| *other == number)
        {
            entry.remove();
        }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.tables.iter().map(HashTable::len).sum()
    }
}
