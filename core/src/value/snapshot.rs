//! A lock and its changes as bytes, for RDB files, `DUMP` payloads and the replication stream.
//!
//! The first byte is the version of the format; the rest is postcard's wire format (numbers as
//! varints, byte strings with their length), which is documented and stable. The tests have golden
//! bytes of each version. The bytes may come from anywhere, so everything that cannot be
//! a lock is refused.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use crate::value::holders::Holders;
use crate::{Change, End, EpochMs, Hold, Lock, Mode, Now, Owner, Token};

/// The version that is written and read.
pub const VERSION: u8 = 1;

/// Why bytes are not a lock, or not an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// An unknown version, perhaps that of a newer module.
    Version(u8),
    /// The bytes are not in this format: truncated, out of range, or followed by more bytes.
    Format,
    /// Well formed, but no lock can have this state.
    Contradiction,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(to, "unknown format version {version} (supported: {VERSION})")
            }
            Self::Format => to.write_str("it is cut off, out of range, or too long"),
            Self::Contradiction => to.write_str("its holds are mutually exclusive"),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    #[serde(borrow, serialize_with = "as_bytes")]
    owner: Cow<'a, [u8]>,
    mode: Mode,
    token: Token,
    deadline: EpochMs,
    depth: u16,
}

/// Serializes as one byte string, which is faster than serde's sequence of numbers, and gives the
/// same bytes.
fn as_bytes<S: Serializer>(owner: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(owner)
}

/// What an effect is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Start {
    /// The lock at the key.
    Existing,
    /// A new lock, which replaces whatever is at the key.
    Begins,
    /// Like [`Start::Begins`], in a rewritten append-only file: the key's time to live follows
    /// separately, and may differ from the latest deadline, or be missing.
    Rewritten,
}

/// The changes of one effect, as replicas and the append-only file get them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Effect<C> {
    /// What it is applied to.
    pub start: Start,
    /// In the order in which they happened.
    pub changes: C,
}

/// The lock, appended to `to`. Equal locks give equal bytes.
///
/// ```
/// use rlock_core::{Change, EpochMs, Lock, Mode, Token, snapshot};
///
/// let mut lock = Lock::default();
/// lock.replay(&Change::Granted {
///     owner: b"ann".into(),
///     mode: Mode::Write,
///     token: Token::new(7).unwrap(),
///     deadline: EpochMs::new(5_000).unwrap(),
/// });
/// let mut bytes = Vec::new();
/// snapshot::save(&lock, &mut bytes);
/// assert_eq!(snapshot::load(&bytes), Ok(lock));
/// assert!(snapshot::load(b"something else").is_err());
/// ```
pub fn save(lock: &Lock, to: &mut Vec<u8>) {
    let records: Vec<Record<'_>> = lock
        .holds()
        .map(|(owner, mode, hold)| Record {
            owner: Cow::Borrowed(owner),
            mode,
            token: hold.token,
            deadline: hold.deadline,
            depth: hold.depth,
        })
        .collect();
    to.push(VERSION);
    // Writing these types to a Vec cannot fail.
    if let Ok(written) = postcard::to_extend(&records, std::mem::take(to)) {
        *to = written;
    }
}

/// Reads a lock that [`save`] wrote. The lock is never free, because a lock without holds is not
/// stored. Numbers that are encoded longer than necessary are accepted.
///
/// # Errors
/// [`Malformed`] if the bytes are not a lock.
pub fn load(bytes: &[u8]) -> Result<Lock, Malformed> {
    let (records, []): (Vec<Record<'_>>, _) = take(bytes)? else { return Err(Malformed::Format) };
    let mut holders = Holders::default();
    let mut last = None;
    for record in &records {
        let is_after = last.is_none_or(|token| token < record.token);
        if record.depth == 0 || !Owner::is_valid(&record.owner) || !is_after {
            return Err(Malformed::Format);
        }
        last = Some(record.token);
        let hold = Hold { token: record.token, deadline: record.deadline, depth: record.depth };
        let before = holders.len();
        holders.insert(&record.owner, record.mode, hold);
        if holders.len() != before.saturating_add(1) {
            return Err(Malformed::Contradiction);
        }
    }
    if records.is_empty() { Err(Malformed::Format) } else { Ok(Lock::from(holders)) }
}

/// Appends the effect to `to`. Every grant is written by this function, so it produces what
/// postcard would in a third of the time.
pub fn save_effect(start: Start, changes: &[Change<'_>], to: &mut Vec<u8>) {
    to.extend([VERSION, start as u8]);
    put_len(changes.len(), to);
    for change in changes {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                to.push(0);
                put_len(owner.len(), to);
                to.extend_from_slice(owner);
                to.push(*mode as u8);
                put(token.get(), to);
                put(deadline.get(), to);
            }
            Change::Updated { token, depth, deadline } => {
                to.push(1);
                put(token.get(), to);
                put((*depth).into(), to);
                put(deadline.get(), to);
            }
            Change::Ended { token, by } => {
                to.push(2);
                put(token.get(), to);
                to.push(*by as u8);
            }
        }
    }
}

/// Reads this many effects that [`save_effect`] wrote one after the other: those of one step at
/// several locks. Each effect has at least one change.
///
/// # Errors
/// [`Malformed`] if the bytes are anything else.
pub fn load_effects(
    mut bytes: &[u8],
    count: usize,
) -> Result<Vec<Effect<Vec<Change<'_>>>>, Malformed> {
    let mut effects = Vec::with_capacity(count);
    for _ in 0..count {
        let (effect, rest) = take_effect(bytes)?;
        effects.push(effect);
        bytes = rest;
    }
    if bytes.is_empty() { Ok(effects) } else { Err(Malformed::Format) }
}

/// Reads one effect, and returns it with the bytes that follow.
fn take_effect(bytes: &[u8]) -> Result<(Effect<Vec<Change<'_>>>, &[u8]), Malformed> {
    let (effect, rest): (Effect<Vec<Change<'_>>>, _) = take(bytes)?;
    let is_sound = |change: &Change<'_>| match change {
        Change::Granted { owner, .. } => Owner::is_valid(owner),
        Change::Updated { depth, .. } => *depth > 0,
        Change::Ended { .. } => true,
    };
    // No primary sends an effect that changes nothing, nor a lock that begins without a hold.
    let is_whole = match effect.changes.first() {
        Some(Change::Granted { .. }) => true,
        Some(_) => effect.start == Start::Existing,
        None => false,
    };
    if is_whole && effect.changes.iter().all(is_sound) {
        Ok((effect, rest))
    } else {
        Err(Malformed::Format)
    }
}

/// The changes that turn a free lock into this one, for rewriting the append-only file.
pub fn as_changes(lock: &Lock) -> Vec<Change<'_>> {
    let mut changes = Vec::new();
    for (owner, mode, hold) in lock.holds() {
        let (token, deadline, depth) = (hold.token, hold.deadline, hold.depth);
        let owner = Cow::Borrowed(owner);
        changes.push(Change::Granted { owner, mode, token, deadline });
        if depth > 1 {
            changes.push(Change::Updated { token, depth, deadline });
        }
    }
    changes
}

/// Changes whose only trace is this token, which the server that reads them never issues again: a
/// hold that began and ended. Their key has no value.
pub fn as_token(token: Token) -> [Change<'static>; 2] {
    let owner = Cow::Borrowed(b"rlock".as_slice());
    let deadline = Now::from_us(token.get()).ms();
    let granted = Change::Granted { owner, mode: Mode::Write, token, deadline };
    [granted, Change::Ended { token, by: End::Released }]
}

fn put_len(len: usize, to: &mut Vec<u8>) {
    put(u64::try_from(len).unwrap_or(u64::MAX), to);
}

/// A varint: seven bits in each byte, the lowest first.
fn put(mut number: u64, to: &mut Vec<u8>) {
    loop {
        let [lowest, ..] = number.to_le_bytes();
        if number < 0x80 {
            return to.push(lowest);
        }
        to.push(lowest | 0x80);
        number >>= 7;
    }
}

/// Reads a value from the beginning of the bytes, and returns it with the bytes that follow.
fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), Malformed> {
    let (version, rest) = bytes.split_first().ok_or(Malformed::Format)?;
    if *version != VERSION {
        return Err(Malformed::Version(*version));
    }
    postcard::take_from_bytes(rest).map_err(|_| Malformed::Format)
}
