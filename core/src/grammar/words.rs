//! The words of commands: required arguments, options and their ranges.

use super::number::integer;
use super::{BadWord, Limits};
use crate::text::quoted;
use crate::{LeaseMs, Token};

/// How many holders or waiters one reply lists at most: some ten milliseconds of the server's time.
const LISTED_MAX: u64 = 10_000;

/// The longest wait in milliseconds: seven days. Waiting longer is waiting forever.
const BLOCK_MS_MAX: u64 = LeaseMs::MAX.get();

/// The longest ticket: a client that dies holds up everybody behind it for this long.
const QUEUE_MS_MAX: u64 = 60_000;

/// The most permits of one lock: more holds than fit into one value.
pub(super) const LIMIT_MAX: u64 = 1_000_000;

/// The most replicas that one request may wait for.
pub const ACKS_MAX: u64 = 16;

/// As many tickets as `rlock.max-tickets` allows by default.
const MAXQUEUE_MAX: u64 = 1_000_000;

/// A required argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positional {
    /// The lock.
    Key,
    /// How many keys follow.
    NumKeys,
    /// As many keys as `NumKeys` says.
    Keys,
    /// Keys: every argument but the last, which is the payload.
    LeadingKeys,
    /// The owner.
    Owner,
    /// A fencing token.
    Token,
    /// A fencing token, or 0.
    TokenOrZero,
    /// The bytes of an effect.
    Payload,
}

impl Positional {
    /// Its name in the documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key | Self::Keys | Self::LeadingKeys => "key",
            Self::NumKeys => "numkeys",
            Self::Owner => "owner",
            Self::Token | Self::TokenOrZero => "token",
            Self::Payload => "payload",
        }
    }
}

/// No word is longer.
const LEN_MAX: usize = 8;

/// Clears the bit that distinguishes lower from upper case; maps no other character to a letter.
const UPPER: u8 = !0x20;

/// Packs a client's word into one number, which is compared with a [`Word`] in one step; 0 if it
/// cannot be an option.
pub(super) fn pack(given: &[u8]) -> u64 {
    const UPPER_ALL: u64 = u64::from_be_bytes([UPPER; LEN_MAX]);
    let begins = given.first().is_some_and(|first| first & UPPER != 0);
    if !begins || given.len() > LEN_MAX {
        return 0;
    }
    let append = |packed: u64, byte: &u8| packed << 8 | u64::from(*byte);
    let packed = match (given.split_first_chunk::<4>(), given.last_chunk::<4>()) {
        // The two parts overlap, and agree in the overlap.
        (Some((first, rest)), Some(last)) => {
            let first = rest.iter().fold(u64::from(u32::from_be_bytes(*first)), |p, _| p << 8);
            first | u64::from(u32::from_be_bytes(*last))
        }
        _ => given.iter().fold(0, append),
    };
    packed & UPPER_ALL
}

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `READ`
    Read,
    /// `WRITE`
    Write,
    /// `MODES mode [mode ...]`, one for each key
    Modes,
    /// `LEASE ms`
    Lease,
    /// `LIMIT n`
    Limit,
    /// `TOKEN t`
    Token,
    /// `DEPTH n`, from 1
    Depth,
    /// `DEPTH n`, from 0
    DownTo,
    /// `ALL`
    All,
    /// `UPGRADE`
    Upgrade,
    /// `WITHTTL`
    WithTtl,
    /// `BLOCK ms`
    Block,
    /// `QUEUE ms`
    Queue,
    /// `MAXQUEUE n`
    MaxQueue,
    /// `ACKS n`
    Acks,
    /// `SESSION`
    Session,
    /// `TELL channel id`
    Tell,
    /// `HOLDERS n`
    Holders,
    /// `WAITERS n`
    Waiters,
    /// `COUNT n`
    Count,
    /// `GET [n]`
    Get,
    /// `LEN`
    Len,
    /// `RESET`
    Reset,
}

impl Word {
    /// As in a command.
    pub const fn word(self) -> &'static str {
        let mut word = self.padded().as_slice();
        while let [0, rest @ ..] = word {
            word = rest;
        }
        match str::from_utf8(word) {
            Ok(word) => word,
            Err(_) => "",
        }
    }

    /// The word, padded with NULs in front.
    const fn padded(self) -> &'static [u8; LEN_MAX] {
        match self {
            Self::Read => b"\0\0\0\0READ",
            Self::Write => b"\0\0\0WRITE",
            Self::Modes => b"\0\0\0MODES",
            Self::Lease => b"\0\0\0LEASE",
            Self::Limit => b"\0\0\0LIMIT",
            Self::Token => b"\0\0\0TOKEN",
            Self::Depth | Self::DownTo => b"\0\0\0DEPTH",
            Self::All => b"\0\0\0\0\0ALL",
            Self::Upgrade => b"\0UPGRADE",
            Self::WithTtl => b"\0WITHTTL",
            Self::Block => b"\0\0\0BLOCK",
            Self::Queue => b"\0\0\0QUEUE",
            Self::MaxQueue => b"MAXQUEUE",
            Self::Acks => b"\0\0\0\0ACKS",
            Self::Session => b"\0SESSION",
            Self::Tell => b"\0\0\0\0TELL",
            Self::Holders => b"\0HOLDERS",
            Self::Waiters => b"\0WAITERS",
            Self::Count => b"\0\0\0COUNT",
            Self::Get => b"\0\0\0\0\0GET",
            Self::Len => b"\0\0\0\0\0LEN",
            Self::Reset => b"\0\0\0RESET",
        }
    }

    /// Whether a client's word, packed by [`pack`], is this option.
    pub(super) const fn is(self, packed: u64) -> bool {
        u64::from_be_bytes(*self.padded()) == packed
    }

    /// This word as one bit, for a set of words.
    pub(super) const fn bit(self) -> u32 {
        1_u32.wrapping_shl(self as u32)
    }

    /// The name of its value, if it has one.
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Self::Lease | Self::Block | Self::Queue => Some("ms"),
            Self::Token => Some("t"),
            Self::Modes => Some("mode"),
            Self::Tell => Some("channel id"),
            Self::Limit
            | Self::MaxQueue
            | Self::Acks
            | Self::Depth
            | Self::DownTo
            | Self::Holders
            | Self::Waiters
            | Self::Count
            | Self::Get => Some("n"),
            _ => None,
        }
    }

    /// Whether the two options cannot be combined.
    pub(super) const fn excludes(self, other: Self) -> bool {
        self.excluded() & other.bit() != 0
    }

    /// The set of options that cannot be combined with it.
    pub(super) const fn excluded(self) -> u32 {
        match self {
            Self::Read => Self::Write.bit() | Self::Modes.bit(),
            Self::Write => Self::Read.bit() | Self::Modes.bit() | Self::Limit.bit(),
            Self::Modes => Self::Read.bit() | Self::Write.bit(),
            Self::Limit => Self::Write.bit() | Self::Upgrade.bit(),
            Self::Upgrade => Self::Limit.bit(),
            Self::All => Self::DownTo.bit(),
            Self::DownTo => Self::All.bit(),
            Self::Block => Self::Queue.bit(),
            Self::Queue => Self::Block.bit() | Self::Tell.bit(),
            Self::Tell => Self::Queue.bit(),
            Self::Get => Self::Len.bit() | Self::Reset.bit(),
            Self::Len => Self::Get.bit() | Self::Reset.bit(),
            Self::Reset => Self::Get.bit() | Self::Len.bit(),
            _ => 0,
        }
    }

    /// Whether its value may be left out.
    pub const fn is_value_optional(self) -> bool {
        matches!(self, Self::Get)
    }

    /// How many words its value has.
    pub fn value_count(self) -> usize {
        self.value().map_or(0, |value| value.split(' ').count())
    }

    /// Whether it has one value for each key.
    pub const fn is_value_repeated(self) -> bool {
        matches!(self, Self::Modes)
    }

    pub(super) fn usage(self) -> String {
        match self.value() {
            Some(value) if self.is_value_repeated() => {
                format!("{} {value} [{value} ...]", self.word())
            }
            Some(value) if self.is_value_optional() => format!("{} [{value}]", self.word()),
            Some(value) => format!("{} {value}", self.word()),
            None => self.word().into(),
        }
    }

    /// Minimum, maximum and unit.
    #[inline]
    const fn range(self, limits: &Limits) -> (u64, u64, &'static str) {
        match self {
            Self::Lease => (1, limits.max_lease.get(), " milliseconds"),
            Self::Block => (0, BLOCK_MS_MAX, " milliseconds"),
            Self::Queue => (1, QUEUE_MS_MAX, " milliseconds"),
            Self::Limit => (1, LIMIT_MAX, " permits"),
            Self::MaxQueue => (0, MAXQUEUE_MAX, " waiters"),
            Self::Acks => (0, ACKS_MAX, " replicas"),
            Self::Holders => (0, LISTED_MAX, " holders"),
            Self::Waiters => (0, LISTED_MAX, " waiters"),
            Self::Count => (1, 1000, ""),
            Self::Get => (0, LISTED_MAX, " entries, or -1 for all"),
            Self::Depth => (1, limits.max_depth as u64, " levels"),
            Self::DownTo => (0, limits.max_depth as u64, " levels"),
            _ => (1, Token::MAX, ""),
        }
    }

    #[inline]
    pub(super) fn number(self, given: &[u8], limits: &Limits) -> Result<u64, BadWord> {
        let (min, max, _) = self.range(limits);
        match integer(given) {
            Some(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.out_of_range(given, limits)),
        }
    }

    #[cold]
    fn out_of_range(self, given: &[u8], limits: &Limits) -> BadWord {
        let ((min, max, unit), word, given) = (self.range(limits), self.word(), quoted(given));
        BadWord(format!("ERR {word} must be an integer from {min} to {max}{unit}, not {given}"))
    }

    pub(super) fn count(self, given: &[u8], limits: &Limits) -> Result<usize, BadWord> {
        Ok(usize::try_from(self.number(given, limits)?).unwrap_or(usize::MAX))
    }

    pub(super) fn without_value(self, limits: &Limits) -> BadWord {
        let (min, max, unit) = self.range(limits);
        let usage = self.usage();
        BadWord(format!("ERR syntax error: {usage} needs an integer from {min} to {max}{unit}"))
    }
}
