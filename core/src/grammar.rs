//! What a command may say: one table of words, from which requests are read, errors are told and
//! `COMMAND DOCS` is written.

pub mod commands;

use std::num::NonZeroU32;

use crate::text::quoted;
use crate::{LeaseMs, Mode, Owner, Token};

/// A command, as clients, the server and its documentation see it.
#[derive(Debug)]
pub struct Command {
    /// Its name, upper case.
    pub name: &'static str,
    /// The version in which it came.
    pub since: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Its cost.
    pub complexity: &'static str,
    /// What the server must know of it.
    pub flags: &'static str,
    /// ACL categories, where the server has them for modules.
    pub acl: &'static str,
    /// What it does to its key.
    pub access: Access,
    /// Required, in this order, after the command's name.
    pub positional: &'static [Positional],
    /// Optional, in any order, each at most once.
    pub options: &'static [Word],
}

/// What a command does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It has none.
    Keyless,
    /// Reads it.
    Reads,
    /// May change it.
    Writes,
}

/// A required argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positional {
    /// The lock.
    Key,
    /// Who holds.
    Owner,
    /// A fencing token.
    Token,
    /// The bytes of an effect.
    Payload,
}

impl Positional {
    /// As documentation calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Owner => "owner",
            Self::Token => "token",
            Self::Payload => "payload",
        }
    }
}

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// `READ`
    Read,
    /// `WRITE`
    Write,
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
    /// `SESSION`
    Session,
    /// `HOLDERS n`
    Holders,
    /// `WAITERS n`
    Waiters,
    /// `COUNT n`
    Count,
}

impl Word {
    /// As clients say it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Lease => "LEASE",
            Self::Limit => "LIMIT",
            Self::Token => "TOKEN",
            Self::Depth | Self::DownTo => "DEPTH",
            Self::All => "ALL",
            Self::Upgrade => "UPGRADE",
            Self::WithTtl => "WITHTTL",
            Self::Block => "BLOCK",
            Self::Queue => "QUEUE",
            Self::MaxQueue => "MAXQUEUE",
            Self::Session => "SESSION",
            Self::Holders => "HOLDERS",
            Self::Waiters => "WAITERS",
            Self::Count => "COUNT",
        }
    }

    /// The name of its value, if it has one.
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Self::Lease | Self::Block | Self::Queue => Some("ms"),
            Self::Token => Some("t"),
            Self::Limit
            | Self::MaxQueue
            | Self::Depth
            | Self::DownTo
            | Self::Holders
            | Self::Waiters
            | Self::Count => Some("n"),
            _ => None,
        }
    }

    /// The version in which it came, where that is not the command's.
    pub const fn since(self) -> Option<&'static str> {
        match self {
            Self::Limit | Self::MaxQueue => Some("0.2.0"),
            _ => None,
        }
    }

    /// The other words that say something else about the same thing.
    const fn excludes(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Read, Self::Write)
                | (Self::Write, Self::Read)
                | (Self::All, Self::DownTo)
                | (Self::DownTo, Self::All)
                | (Self::Block, Self::Queue)
                | (Self::Queue, Self::Block)
                | (Self::Limit, Self::Write | Self::Upgrade)
                | (Self::Write | Self::Upgrade, Self::Limit)
        )
    }

    fn usage(self) -> String {
        match self.value() {
            Some(value) => format!("{} {value}", self.word()),
            None => self.word().into(),
        }
    }
}

/// The bounds that the server's configuration sets.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `rlock.default-lease-ms`.
    pub default_lease: LeaseMs,
    /// `rlock.max-lease-ms`.
    pub max_lease: LeaseMs,
    /// `rlock.max-depth`.
    pub max_depth: u16,
}

/// The arguments of a command, read and checked.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// The lock; empty for a command without a key.
    pub key: &'a [u8],
    /// Who; empty for a command without an owner.
    pub owner: &'a [u8],
    /// The bytes of an effect; empty for every other command.
    pub payload: &'a [u8],
    /// `READ` or `WRITE`.
    pub mode: Option<Mode>,
    /// `LEASE`, or the default.
    pub lease: LeaseMs,
    /// `TOKEN`, or the token among the required arguments.
    pub token: Option<Token>,
    /// `LIMIT`
    pub limit: Option<NonZeroU32>,
    /// `MAXQUEUE`
    pub max_queue: Option<usize>,
    /// `DEPTH`.
    pub depth: Option<u16>,
    /// `ALL`
    pub all: bool,
    /// `UPGRADE`
    pub upgrade: bool,
    /// `WITHTTL`
    pub with_ttl: bool,
    /// `BLOCK`, in milliseconds; 0 is for ever.
    pub block_ms: Option<u64>,
    /// `QUEUE`
    pub queue: Option<LeaseMs>,
    /// `SESSION`
    pub session: bool,
    /// `HOLDERS`, or [`HOLDERS_DEFAULT`].
    pub holders: usize,
    /// `WAITERS` or `COUNT`, or [`COUNT_DEFAULT`].
    pub count: usize,
}

/// Waiters or queues that are listed unless a count is given.
const COUNT_DEFAULT: usize = 10;

/// Holders that are listed unless a count is given.
const HOLDERS_DEFAULT: usize = 100;

/// Holders and waiters that one reply lists at most: some ten milliseconds of the server's time.
const LISTED_MAX: u64 = 10_000;

/// A longer wait is a wait for ever. Milliseconds: seven days.
const BLOCK_MS_MAX: u64 = LeaseMs::MAX.get();

/// A client that asks less often than once a minute holds up everybody behind it for as long.
const QUEUE_MS_MAX: u64 = 60_000;

/// Permits of one lock: more holds than a server has room for in one value.
const LIMIT_MAX: u64 = 1_000_000;

/// As many tickets as `rlock.max-tickets` allows by default.
const MAXQUEUE_MAX: u64 = 1_000_000;

/// A session is renewed every third of its lease: below a second that would be traffic.
/// Milliseconds.
const SESSION_LEASE_MS_MIN: u64 = 1000;

/// Why the words of a command were refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadWord(String);

impl BadWord {
    /// One printable line that begins with `ERR`.
    pub fn line(&self) -> &str {
        &self.0
    }
}

impl Command {
    /// The fewest arguments, the command's name among them; negative because options may follow, as
    /// the server wants it.
    pub fn arity(&self) -> i32 {
        let least = i32::try_from(self.positional.len()).unwrap_or(i32::MAX).saturating_add(1);
        if self.options.is_empty() { least } else { least.saturating_neg() }
    }

    /// Name and arguments on one line.
    pub fn usage(&self) -> String {
        let mut usage = self.name.to_string();
        for positional in self.positional {
            usage.push(' ');
            usage.push_str(positional.name());
        }
        for alternatives in self.alternatives() {
            let words: Vec<String> = alternatives.iter().map(|word| word.usage()).collect();
            usage.push_str(&format!(" [{}]", words.join(" | ")));
        }
        usage
    }

    /// The options, those that exclude each other together. They stand beside each other in the
    /// table.
    pub fn alternatives(&self) -> impl Iterator<Item = &'static [Word]> {
        self.options.chunk_by(|a, b| a.excludes(*b))
    }

    /// Reads the arguments that follow the command's name.
    ///
    /// # Errors
    /// [`BadWord`] names the word, the range and the unit.
    pub fn read<'a>(
        &self,
        mut words: impl Iterator<Item = &'a [u8]>,
        limits: &Limits,
    ) -> Result<Arguments<'a>, BadWord> {
        let mut arguments = Arguments {
            key: &[],
            owner: &[],
            payload: &[],
            mode: None,
            lease: limits.default_lease.min(limits.max_lease),
            token: None,
            limit: None,
            max_queue: None,
            depth: None,
            all: false,
            upgrade: false,
            with_ttl: false,
            block_ms: None,
            queue: None,
            session: false,
            holders: HOLDERS_DEFAULT,
            count: COUNT_DEFAULT,
        };
        for positional in self.positional {
            let given = words.next().ok_or_else(|| self.wrong_count())?;
            arguments.set_positional(*positional, given)?;
        }
        // Who is said what: no command has more words than bits here.
        let mut said: u32 = 0;
        while let Some(given) = words.next() {
            let found = self.options.iter().enumerate().find(|(_, word)| word.is(given));
            let Some((place, word)) = found else { return Err(self.unknown(given)) };
            let other = self.options.iter().enumerate().find(|(at, other)| {
                said & (1_u32 << (at % 32)) != 0 && (*other == word || word.excludes(**other))
            });
            if let Some((_, other)) = other {
                return Err(said_already(*word, *other));
            }
            said |= 1 << (place % 32);
            let value = match word.value() {
                None => &[][..],
                Some(_) => words.next().ok_or_else(|| word.without_value(limits))?,
            };
            arguments.set_option(*word, value, limits)?;
        }
        if arguments.session {
            let is_given =
                self.options.iter().enumerate().any(|(place, word)| {
                    *word == Word::Lease && said & (1_u32 << (place % 32)) != 0
                });
            arguments.lease_for_session(is_given, limits)?;
        }
        Ok(arguments)
    }

    fn wrong_count(&self) -> BadWord {
        let name = self.name.to_ascii_lowercase();
        BadWord(format!("ERR wrong number of arguments for '{name}' command"))
    }

    fn unknown(&self, given: &[u8]) -> BadWord {
        BadWord(format!("ERR syntax error at {}: the command is {}", quoted(given), self.usage()))
    }
}

impl Word {
    fn is(self, given: &[u8]) -> bool {
        self.word().as_bytes().eq_ignore_ascii_case(given)
    }

    /// Least and greatest value, and the unit of both.
    const fn range(self, limits: &Limits) -> (u64, u64, &'static str) {
        match self {
            Self::Lease => (1, limits.max_lease.get(), " milliseconds"),
            Self::Block => (0, BLOCK_MS_MAX, " milliseconds"),
            Self::Queue => (1, QUEUE_MS_MAX, " milliseconds"),
            Self::Limit => (1, LIMIT_MAX, " permits"),
            Self::MaxQueue => (0, MAXQUEUE_MAX, " waiters"),
            Self::Holders => (0, LISTED_MAX, " holders"),
            Self::Waiters => (0, LISTED_MAX, " waiters"),
            Self::Count => (1, 1000, ""),
            Self::Depth => (1, limits.max_depth as u64, " levels"),
            Self::DownTo => (0, limits.max_depth as u64, " levels"),
            _ => (1, Token::MAX, ""),
        }
    }

    fn number(self, given: &[u8], limits: &Limits) -> Result<u64, BadWord> {
        let (min, max, unit) = self.range(limits);
        integer(given).filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            let (word, given) = (self.word(), quoted(given));
            BadWord(format!("ERR {word} must be an integer from {min} to {max}{unit}, not {given}"))
        })
    }

    fn without_value(self, limits: &Limits) -> BadWord {
        let (min, max, unit) = self.range(limits);
        let usage = self.usage();
        BadWord(format!("ERR syntax error: {usage} needs an integer from {min} to {max}{unit}"))
    }
}

impl<'a> Arguments<'a> {
    fn set_positional(&mut self, positional: Positional, given: &'a [u8]) -> Result<(), BadWord> {
        match positional {
            Positional::Key => self.key = given,
            Positional::Payload => self.payload = given,
            Positional::Owner if Owner::is_valid(given) => self.owner = given,
            Positional::Owner => {
                return Err(BadWord(format!(
                    "ERR owner must be 1 to {} bytes long, not {}",
                    Owner::MAX_BYTES,
                    given.len()
                )));
            }
            Positional::Token => self.token = Some(token(given)?),
        }
        Ok(())
    }

    fn set_option(&mut self, word: Word, given: &[u8], limits: &Limits) -> Result<(), BadWord> {
        match word {
            Word::Read => self.mode = Some(Mode::Read),
            Word::Write => self.mode = Some(Mode::Write),
            Word::All => self.all = true,
            Word::Upgrade => self.upgrade = true,
            Word::WithTtl => self.with_ttl = true,
            Word::Lease => {
                let ms = word.number(given, limits)?;
                self.lease = LeaseMs::new(ms).unwrap_or(limits.max_lease);
            }
            Word::Depth | Word::DownTo => {
                let depth = word.number(given, limits)?;
                self.depth = Some(u16::try_from(depth).unwrap_or(limits.max_depth));
            }
            Word::Token => self.token = Some(token(given)?),
            Word::Session => self.session = true,
            Word::Block => self.block_ms = Some(word.number(given, limits)?),
            Word::Queue => self.queue = LeaseMs::new(word.number(given, limits)?),
            Word::Limit => {
                let limit = word.number(given, limits)?;
                self.limit = u32::try_from(limit).ok().and_then(NonZeroU32::new);
            }
            Word::MaxQueue => {
                let most = word.number(given, limits)?;
                self.max_queue = Some(usize::try_from(most).unwrap_or(usize::MAX));
            }
            Word::Holders => {
                let holders = word.number(given, limits)?;
                self.holders = usize::try_from(holders).unwrap_or(usize::MAX);
            }
            Word::Waiters | Word::Count => {
                let count = word.number(given, limits)?;
                self.count = usize::try_from(count).unwrap_or(usize::MAX);
            }
        }
        Ok(())
    }

    fn lease_for_session(&mut self, is_given: bool, limits: &Limits) -> Result<(), BadWord> {
        let least = LeaseMs::new(SESSION_LEASE_MS_MIN).unwrap_or(LeaseMs::MAX);
        if self.lease < least && is_given {
            let (max, given) = (limits.max_lease.get(), self.lease.get());
            return Err(BadWord(format!(
                "ERR LEASE must be an integer from {SESSION_LEASE_MS_MIN} to {max} milliseconds \
                 with SESSION, not '{given}'"
            )));
        }
        self.lease = self.lease.max(least);
        Ok(())
    }
}

fn token(given: &[u8]) -> Result<Token, BadWord> {
    integer(given).and_then(Token::new).ok_or_else(|| {
        let given = quoted(given);
        BadWord(format!("ERR TOKEN must be an integer from 1 to {}, not {given}", Token::MAX))
    })
}

fn said_already(word: Word, other: Word) -> BadWord {
    BadWord(if word == other {
        format!("ERR syntax error: {} is given twice", word.word())
    } else {
        format!("ERR syntax error: {} and {} exclude each other", other.word(), word.word())
    })
}

/// Digits as the server reads them: no sign, no space, no leading zero.
fn integer(given: &[u8]) -> Option<u64> {
    if given.is_empty() || (given.len() > 1 && given.first() == Some(&b'0')) {
        return None;
    }
    given.iter().try_fold(0_u64, |number, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}
