//! The keys of a command that names several, and how each is wanted.

use std::num::NonZeroU32;

use super::number::integer;
use super::words::LIMIT_MAX;
use super::{Arguments, BadWord};
use crate::Mode;
use crate::text::quoted;

/// The most keys that one command names.
pub const KEYS_MAX: usize = 128;

/// The keys of a command that names several, in the order of the request.
#[derive(Clone, Debug, Default)]
pub struct SeveralKeys<'a> {
    /// How many keys were named.
    pub(super) count: usize,
    /// The keys: each is named once.
    pub keys: Vec<&'a [u8]>,
    /// `MODES`: one mode for each key, or none at all.
    modes: Vec<(Mode, Option<NonZeroU32>)>,
}

/// A key, and how it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want<K> {
    /// The key.
    pub key: K,
    /// The mode.
    pub mode: Mode,
    /// READ only while fewer than this many other owners hold READ.
    pub limit: Option<NonZeroU32>,
    /// Its number in the request, from 0.
    pub number: usize,
}

impl<K: AsRef<[u8]>> Want<K> {
    /// The same, with a borrowed key.
    pub fn borrowed(&self) -> Want<&[u8]> {
        let Self { ref key, mode, limit, number } = *self;
        Want { key: key.as_ref(), mode, limit, number }
    }
}

impl<'a> SeveralKeys<'a> {
    /// Returns how each key is wanted, in key order: bytewise ascending, a prefix first.
    pub fn wants(&self, said: &Arguments<'_>) -> Vec<Want<&'a [u8]>> {
        let (mode, limit) = (said.mode.unwrap_or(Mode::Write), None);
        let mut wants: Vec<Want<&'a [u8]>> = self
            .keys
            .iter()
            .copied()
            .enumerate()
            .map(|(number, key)| {
                let (mode, limit) = self.modes.get(number).copied().unwrap_or((mode, limit));
                Want { key, mode, limit, number }
            })
            .collect();
        wants.sort_unstable_by_key(|want| want.key);
        wants
    }

    /// Reads as many keys as `numkeys` announced. Returns the first.
    pub(super) fn read_keys(
        &mut self,
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<&'a [u8], BadWord> {
        self.keys.extend(words.take(self.count));
        let Some(first) = self.keys.first().filter(|_| self.keys.len() == self.count) else {
            return Err(too_few_words(self.count, self.keys.len()));
        };
        let mut sorted = self.keys.clone();
        sorted.sort_unstable();
        let twice = sorted.iter().zip(sorted.iter().skip(1)).find(|(one, other)| one == other);
        match twice {
            Some((key, _)) => Err(BadWord(format!("ERR key {} is named twice", quoted(key)))),
            None => Ok(first),
        }
    }

    /// Reads the keys of an effect. Returns the first key, and the last argument, which is not a
    /// key; `None` if there are fewer than two arguments.
    pub(super) fn read_leading_keys(
        &mut self,
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<[&'a [u8]; 2]>, BadWord> {
        self.keys.extend(words.by_ref().take(KEYS_MAX.saturating_add(1)));
        if words.next().is_some() {
            return Err(BadWord(format!("ERR an effect has at most {KEYS_MAX} keys")));
        }
        let last = self.keys.pop();
        if !self.keys.is_sorted_by(|one, next| one < next) {
            let line = "ERR the keys of an effect must be in ascending order, each named once";
            return Err(BadWord(line.into()));
        }
        Ok(self.keys.first().copied().zip(last).map(|(first, last)| [first, last]))
    }

    /// Reads one mode for each key.
    pub(super) fn read_modes(
        &mut self,
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), BadWord> {
        for _ in 0..self.keys.len() {
            let Some(given) = words.next() else {
                let (given, keys) = (self.modes.len(), self.keys.len());
                return Err(BadWord(format!(
                    "ERR MODES needs as many modes as there are keys: {keys}, not {given}"
                )));
            };
            self.modes.push(mode(given)?);
        }
        Ok(())
    }
}

/// Parses `numkeys`, as strictly as the server does when it locates the keys.
pub fn key_count(given: &[u8]) -> Option<usize> {
    let number = integer(given).and_then(|number| usize::try_from(number).ok());
    number.filter(|number| (1..=KEYS_MAX).contains(number))
}

pub(super) fn count(given: &[u8]) -> Result<usize, BadWord> {
    key_count(given).ok_or_else(|| {
        let given = quoted(given);
        BadWord(format!("ERR numkeys must be an integer from 1 to {KEYS_MAX}, not {given}"))
    })
}

/// The error for `numkeys count` if too few arguments follow for all keys and the owner.
pub(super) fn too_few_words(count: usize, given: usize) -> BadWord {
    let (keys, words) = (plural(count, "key"), plural(given, "word"));
    BadWord(format!("ERR numkeys is {count}: {keys} and an owner must follow it, not {words}"))
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// One word of `MODES`.
fn mode(given: &[u8]) -> Result<(Mode, Option<NonZeroU32>), BadWord> {
    if given.eq_ignore_ascii_case(b"WRITE") {
        return Ok((Mode::Write, None));
    }
    if given.eq_ignore_ascii_case(b"READ") {
        return Ok((Mode::Read, None));
    }
    let limit = integer(given).filter(|number| *number <= LIMIT_MAX);
    let limit = limit.and_then(|number| u32::try_from(number).ok()).and_then(NonZeroU32::new);
    limit.map(|limit| (Mode::Read, Some(limit))).ok_or_else(|| {
        let given = quoted(given);
        BadWord(format!(
            "ERR each of MODES must be WRITE, READ, or an integer from 1 to {LIMIT_MAX} permits, \
             not {given}"
        ))
    })
}
