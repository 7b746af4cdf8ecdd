//! A sorted map that usually has a single entry.

use std::collections::BTreeMap;
use std::mem;

/// A sorted map that stores a single entry inline. A B-tree with one entry allocates space for
/// eleven: four such trees took most of a session's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SmallMap<K, V = ()> {
    /// No entry.
    #[default]
    None,
    /// One entry.
    One(K, V),
    /// Two or more.
    Many(BTreeMap<K, V>),
}

impl<K: Ord + Copy, V> SmallMap<K, V> {
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(tree) => tree.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub fn get(&self, key: K) -> Option<&V> {
        match self {
            Self::One(only, value) if *only == key => Some(value),
            Self::Many(tree) => tree.get(&key),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        match self {
            Self::One(only, value) if *only == key => Some(value),
            Self::Many(tree) => tree.get_mut(&key),
            _ => None,
        }
    }

    /// Adds an entry, or replaces the one with this key.
    pub fn insert(&mut self, key: K, value: V) {
        *self = match mem::take(self) {
            Self::One(only, old) if only != key => {
                Self::Many(BTreeMap::from([(only, old), (key, value)]))
            }
            Self::Many(mut tree) => {
                tree.insert(key, value);
                Self::Many(tree)
            }
            _ => Self::One(key, value),
        }
    }

    /// Removes the entry with this key, and returns its value.
    pub fn remove(&mut self, key: K) -> Option<V> {
        match mem::take(self) {
            Self::One(only, value) if only == key => Some(value),
            Self::Many(mut tree) => {
                let removed = tree.remove(&key);
                *self = if tree.len() > 1 { Self::Many(tree) } else { Self::of_last(tree) };
                removed
            }
            same => {
                *self = same;
                None
            }
        }
    }

    /// Moves the value of one key to another key, which has none.
    pub fn rename(&mut self, from: K, to: K) {
        match self {
            Self::One(only, _) if *only == from => *only = to,
            Self::Many(tree) => {
                if let Some(value) = tree.remove(&from) {
                    tree.insert(to, value);
                }
            }
            _ => {}
        }
    }

    fn of_last(mut tree: BTreeMap<K, V>) -> Self {
        tree.pop_first().map_or(Self::None, |(key, value)| Self::One(key, value))
    }

    /// The least key.
    pub fn first(&self) -> Option<K> {
        self.keys().next()
    }

    /// The least key that is not less than this one.
    pub fn first_from(&self, key: K) -> Option<K> {
        match self {
            Self::None => None,
            Self::One(only, _) => Some(*only).filter(|only| *only >= key),
            Self::Many(tree) => tree.range(key..).next().map(|(key, _)| *key),
        }
    }

    /// All keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.keys().filter_map(|key| Some((key, self.get(key)?)))
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(only, _) => (Some(*only), None),
            Self::Many(tree) => (None, Some(tree.keys().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is done, the map agrees with a B-tree, and equal maps compare as equal whatever led
    /// to them.
    #[test]
    fn it_is_a_sorted_map() {
        /// Keys to look up: one before and one after those that are inserted.
        const KEYS: u32 = 4;
        // Each digit of `way` is one of six steps: insert or remove one of three keys; then a key
        // is renamed if that is possible, and renamed back.
        for way in 0..6_u32.pow(6) {
            let (mut few, mut tree) = (SmallMap::None, BTreeMap::new());
            for step in 0..6 {
                let choice = way / 6_u32.pow(step) % 6;
                let key = choice / 2 + 1;
                if choice % 2 == 0 {
                    few.insert(key, step);
                    tree.insert(key, step);
                } else {
                    assert_eq!(few.remove(key), tree.remove(&key));
                }
                assert_eq!((few.len(), few.is_empty()), (tree.len(), tree.is_empty()));
                assert!(few.keys().eq(tree.keys().copied()));
                assert_eq!(few.first(), tree.keys().next().copied());
                for key in 0..=KEYS {
                    assert_eq!(few.get(key), tree.get(&key));
                    assert_eq!(few.get_mut(key), tree.get_mut(&key));
                    let next = tree.range(key..).next().map(|(key, _)| *key);
                    assert_eq!(few.first_from(key), next);
                }
                let free = KEYS;
                few.rename(key, free);
                assert_eq!(few.get(free), tree.get(&key));
                assert_eq!((few.len(), few.get(key)), (tree.len(), None));
                few.rename(free, key);
                let mut anew = SmallMap::None;
                tree.iter().for_each(|(key, value)| anew.insert(*key, *value));
                assert_eq!(few, anew);
            }
        }
    }
}
