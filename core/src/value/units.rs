//! Numbers with their unit and bounds in the type. They are checked once, on input.

use std::hash::BuildHasher;
use std::num::NonZeroU64;

use smallvec::SmallVec;

use serde::{Deserialize, Serialize};

/// The server's clock at one moment, in microseconds since the Unix epoch.
///
/// ```
/// use rlock_core::{LeaseMs, Now};
///
/// let lease = LeaseMs::new(30_000).unwrap();
/// let deadline = Now::from_us(1_000_001).after(lease); // rounded up, never shorter
/// assert_eq!(deadline.get(), 31_001);
/// assert!(!deadline.is_over_at(Now::from_us(31_000_999)));
/// assert!(deadline.is_over_at(Now::from_us(31_001_000)));
/// assert_eq!(deadline.left_at(Now::from_ms(31_000)), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now(u64);

impl Now {
    /// From microseconds since the Unix epoch.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// From milliseconds since the Unix epoch.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1000))
    }

    /// Microseconds since the Unix epoch: what tokens are made from.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// The same moment in whole milliseconds, rounded down: what deadlines are compared with.
    pub const fn ms(self) -> EpochMs {
        EpochMs::clamped(self.0 / 1000)
    }

    /// The deadline of a lease that begins now; never beyond [`EpochMs::MAX`].
    pub const fn after(self, lease: LeaseMs) -> EpochMs {
        self.after_ms(lease.get())
    }

    /// The first whole millisecond at which at least `ms` have passed: rounding never shortens a
    /// promised time.
    pub const fn after_ms(self, ms: u64) -> EpochMs {
        EpochMs::clamped(self.0.div_ceil(1000).saturating_add(ms))
    }
}

/// A moment in milliseconds since the Unix epoch, from 0 to [`EpochMs::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct EpochMs(NonZeroU64);

impl EpochMs {
    /// 2^53 - 1, the last integer that every client language holds exactly.
    pub const MAX: Self = Self::clamped((1 << 53) - 1);

    /// The moment, or `None` if it is later than [`EpochMs::MAX`].
    pub const fn new(ms: u64) -> Option<Self> {
        if ms <= Self::MAX.get() { Some(Self::clamped(ms)) } else { None }
    }

    /// Stored plus one, so that `Option<EpochMs>` is no larger.
    const fn clamped(ms: u64) -> Self {
        const LAST: u64 = (1 << 53) - 1;
        let ms = if ms < LAST { ms } else { LAST };
        match NonZeroU64::new(ms.saturating_add(1)) {
            Some(kept) => Self(kept),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub const fn get(self) -> u64 {
        self.0.get().saturating_sub(1)
    }

    /// Whole milliseconds that remain at `now`, rounded down; 0 only if the moment has passed.
    pub const fn left_at(self, now: Now) -> u64 {
        match self.get().saturating_mul(1000).saturating_sub(now.0) {
            1..1000 => 1,
            us => us / 1000,
        }
    }

    /// Milliseconds to wait from `now` until this moment, rounded up; 0 if it is past.
    pub const fn wait_from(self, now: Now) -> u64 {
        self.get().saturating_mul(1000).saturating_sub(now.0).div_ceil(1000)
    }

    /// Whether this deadline has passed: true from the first microsecond of its millisecond on.
    pub const fn is_over_at(self, now: Now) -> bool {
        self.get() <= now.ms().get()
    }

    /// This many milliseconds earlier; the epoch at the earliest.
    pub const fn before_ms(self, ms: u64) -> Self {
        Self::clamped(self.get().saturating_sub(ms))
    }
}

impl TryFrom<u64> for EpochMs {
    type Error = &'static str;
    fn try_from(ms: u64) -> Result<Self, Self::Error> {
        Self::new(ms).ok_or("a moment beyond 2^53 - 1 ms")
    }
}

impl From<EpochMs> for u64 {
    fn from(at: EpochMs) -> Self {
        at.get()
    }
}

/// How long a hold lasts unless it is renewed, in milliseconds, from 1 to [`LeaseMs::MAX`]; a lease
/// plus a window may be up to twice as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseMs(u32);

impl LeaseMs {
    /// Seven days. A longer lease is a forgotten lock, not a longer task.
    pub const MAX: Self = Self(7 * 24 * 60 * 60 * 1000);

    /// The lease, or `None` outside 1..=[`LeaseMs::MAX`] ms.
    pub const fn new(ms: u64) -> Option<Self> {
        // Seven days fit 32 bits.
        #[allow(clippy::cast_possible_truncation, reason = "checked just before")]
        if ms >= 1 && ms <= Self::MAX.get() { Some(Self(ms as u32)) } else { None }
    }

    /// Milliseconds.
    pub const fn get(self) -> u64 {
        self.0 as u64
    }
}

/// A fencing token, from 1 to [`Token::MAX`]: greater than every token before it, of any lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

impl Token {
    /// 2^53 - 1, the last integer that every client language holds exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// 1.
    pub(crate) const MIN: Self = Self(NonZeroU64::MIN);

    /// The token, or `None` outside 1..=[`Token::MAX`].
    pub const fn new(token: u64) -> Option<Self> {
        match NonZeroU64::new(token) {
            Some(token) if token.get() <= Self::MAX => Some(Self(token)),
            _ => None,
        }
    }

    /// The number that clients see.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Milliseconds from the token's own time to `now`; 0 if the token is ahead of the clock.
    pub const fn age_ms(self, now: Now) -> u64 {
        now.us().saturating_sub(self.get()) / 1000
    }

    /// Whether the token is more than a minute ahead of the clock, which a server with a correct
    /// clock never issues. After such a token, all later ones would be ahead of the time.
    pub const fn is_implausible_at(self, now: Now) -> bool {
        const MINUTE_US: u64 = 60 * 1_000_000;
        self.get() > now.us().saturating_add(MINUTE_US)
    }
}

impl TryFrom<u64> for Token {
    type Error = &'static str;
    fn try_from(token: u64) -> Result<Self, Self::Error> {
        Self::new(token).ok_or("a token outside 1..2^53 - 1")
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// Issues tokens: remembers the greatest one that this process issued or saw.
///
/// ```
/// use rlock_core::{Now, Token, Tokens};
///
/// let (mut tokens, now) = (Tokens::default(), Now::from_us(5_000));
/// let first = tokens.issue(now).unwrap();
/// assert_eq!(first.get(), 5_000, "the time, if that is greater than every token so far");
/// tokens.saw(Token::new(9_000).unwrap()); // in data or in the replication stream
/// assert_eq!(tokens.issue(now).unwrap().get(), 9_001);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// No token up to this one is issued.
    last: u64,
    /// The greatest token that was issued or seen.
    highest: u64,
}

impl Tokens {
    /// How much the clocks of successive primaries may differ, in microseconds.
    pub const CLOCK_SKEW_US: u64 = 1_000_000;

    /// The process starts, or becomes a primary: every later token exceeds now +
    /// [`Tokens::CLOCK_SKEW_US`].
    pub fn begin(&mut self, now: Now) {
        self.last = self.last.max(now.us().saturating_add(Self::CLOCK_SKEW_US));
    }

    /// The greatest token that was issued or seen; `None` before the first.
    pub const fn highest(&self) -> Option<Token> {
        Token::new(self.highest)
    }

    /// A token was found in data or in the replication stream: never issue it again.
    pub fn saw(&mut self, token: Token) {
        self.last = self.last.max(token.get());
        self.highest = self.highest.max(token.get());
    }

    /// `max(last + 1, now in µs)`, or `None` if 2^53 - 1 was reached.
    pub fn issue(&mut self, now: Now) -> Option<Token> {
        let token = Token::new(self.last.saturating_add(1).max(now.us()))?;
        self.last = token.get();
        self.highest = token.get();
        Some(token)
    }
}

/// The name of an owner: 1 to [`Owner::MAX_BYTES`] arbitrary bytes.
///
/// ```
/// use rlock_core::Owner;
///
/// assert!(!Owner::is_valid(b""));
/// assert_eq!(Owner::from(b"host:pid:1".as_slice()).as_bytes(), b"host:pid:1");
/// ```
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(SmallVec<[u8; Owner::INLINE_BYTES]>);

impl Owner {
    /// Enough for a host, a process, a thread and a UUID together. Each waiter and each hold has a
    /// copy.
    pub const MAX_BYTES: usize = 512;

    /// Names up to this length need no allocation: enough for a UUID, a colon and a thread's
    /// number.
    pub(crate) const INLINE_BYTES: usize = 40;

    /// Whether these bytes can name an owner.
    pub const fn is_valid(name: &[u8]) -> bool {
        !name.is_empty() && name.len() <= Self::MAX_BYTES
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.len() } else { 0 }
    }

    /// A hash with a random seed for each process, so that nobody can choose names that collide.
    /// Matches are compared by name, and nothing visible depends on the hash.
    pub fn hash_of(name: &[u8]) -> u64 {
        let seed = foldhash::SharedSeed::global_random();
        foldhash::fast::SeedableRandomState::with_seed(0, seed).hash_one(name)
    }

    /// The name as the caller gave it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Owner {
    fn from(name: &[u8]) -> Self {
        debug_assert!(Self::is_valid(name), "an owner is checked where it is read");
        Self(SmallVec::from_slice(name))
    }
}

impl Clone for Owner {
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(self.as_bytes()))
    }
}

/// Identifies a blocked connection's wait within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(NonZeroU64);

impl WaiterId {
    /// The number; never 0, so that an `Option` of it is no larger.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<u64> for WaiterId {
    /// 0 is not a valid number, and is treated as 1.
    fn from(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

/// A connection, by the server's ID for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(NonZeroU64);

impl ClientId {
    /// The number; never 0, so that an `Option` of it is no larger.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<u64> for ClientId {
    /// 0 is not a valid number, and is treated as 1.
    fn from(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}
