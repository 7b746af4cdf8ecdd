//! The syntax of the commands: one table, which drives the parser, the error texts and `COMMAND
//! DOCS`.

pub mod commands;
mod number;
mod requests;
mod several;
mod tell;
mod words;

use std::num::NonZeroU32;

pub use several::{KEYS_MAX, SeveralKeys, Want, key_count};
pub use tell::{CHANNEL_BYTES_MAX, ID_BYTES_MAX, TellTo};
pub use words::{ACKS_MAX, Positional, Word};

use number::integer;

use crate::text::quoted;
use crate::{LeaseMs, Mode, Owner, Token};

/// A command, as clients, the server and the documentation see it.
#[derive(Debug)]
pub struct Command {
    /// Its name, upper case.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What the command costs, as `O(…)`.
    pub complexity: &'static str,
    /// Its flags for the server.
    pub flags: &'static str,
    /// Its ACL categories, for servers that have them for modules.
    pub acl: &'static str,
    /// What it does to its key.
    pub access: Access,
    /// Required arguments, in this order, after the command's name.
    pub positional: &'static [Positional],
    /// Options: in any order, each at most once, and all optional unless `needs_one`.
    pub options: &'static [Word],
    /// Whether one of the options must be given.
    pub needs_one: bool,
}

/// What a command does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It has no key.
    Keyless,
    /// Reads it.
    Reads,
    /// May change it.
    Writes,
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
    /// `rlock.acks`: how many replicas must acknowledge each request, even if it asks for fewer.
    pub acks: u8,
}

/// The arguments of a command, read and checked.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// The lock, or the first of several; empty for a command without a key.
    pub key: &'a [u8],
    /// The owner; empty for a command without one.
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
    /// `ACKS`, or `rlock.acks` if that is more.
    pub acks: u8,
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
    /// `TELL`
    pub tell: Option<TellTo<'a>>,
    /// `HOLDERS`, or 100.
    pub holders: usize,
    /// `WAITERS` or `COUNT`, or 10.
    pub count: usize,
    /// `GET`, `LEN` or `RESET`; `GET` if none is given.
    pub slowlog: SlowLogRequest,
}

/// A request to the slow log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowLogRequest {
    /// Return at most this many of the newest entries.
    Get(usize),
    /// Return the number of entries.
    Len,
    /// Clear it.
    Reset,
}

/// How many waiters or queues are listed by default.
const COUNT_DEFAULT: usize = 10;

/// How many holders are listed by default.
const HOLDERS_DEFAULT: usize = 100;

/// The shortest lease of a session in milliseconds: the server renews it every third of the lease.
const SESSION_LEASE_MS_MIN: u64 = 1000;

/// Why the arguments of a command were refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadWord(String);

impl BadWord {
    /// One printable line that starts with `ERR`.
    pub fn line(&self) -> &str {
        &self.0
    }
}

impl Command {
    /// The minimum number of arguments with the command's name, negative if options may follow: the
    /// server's convention.
    pub fn arity(&self) -> i32 {
        let least = self.positional.len().saturating_add(self.needs_one.into());
        let least = i32::try_from(least).unwrap_or(i32::MAX).saturating_add(1);
        let is_exact = self.options.is_empty() && !self.has_leading_keys();
        if is_exact { least } else { least.saturating_neg() }
    }

    /// Whether it names several keys, after their number.
    pub fn has_several_keys(&self) -> bool {
        self.positional.contains(&Positional::Keys)
    }

    /// Whether the key or keys come before the command's last word.
    pub fn has_leading_keys(&self) -> bool {
        self.positional.contains(&Positional::LeadingKeys)
    }

    /// The syntax on one line.
    pub fn usage(&self) -> String {
        let mut usage = self.name.to_string();
        for positional in self.positional {
            usage.push(' ');
            usage.push_str(positional.name());
            let is_repeated = matches!(positional, Positional::Keys | Positional::LeadingKeys);
            usage.push_str(if is_repeated { " [key ...]" } else { "" });
        }
        for alternatives in self.alternatives() {
            let words: Vec<String> = alternatives.iter().map(|word| word.usage()).collect();
            let words = words.join(" | ");
            usage.push_str(&if self.needs_one {
                format!(" {words}")
            } else {
                format!(" [{words}]")
            });
        }
        usage
    }

    /// The options, in groups of which only one may be given. The options of a group are adjacent
    /// in the table.
    pub fn alternatives(&self) -> impl Iterator<Item = &'static [Word]> {
        self.options.chunk_by(|a, b| a.excludes(*b))
    }

    /// Parses the arguments that follow the command's name.
    ///
    /// ```
    /// use rlock_core::grammar::{Limits, commands::ACQUIRE};
    /// use rlock_core::{LeaseMs, Mode};
    ///
    /// let (default_lease, max_lease) = (LeaseMs::new(30_000).unwrap(), LeaseMs::MAX);
    /// let limits = Limits { default_lease, max_lease, max_depth: 65_535, acks: 0 };
    /// let read = |line: &'static str| ACQUIRE.read(line.split(' ').map(str::as_bytes), &limits);
    ///
    /// let arguments = read("order:42 ann READ LEASE 5000").unwrap();
    /// assert_eq!((arguments.key, arguments.owner), (&b"order:42"[..], &b"ann"[..]));
    /// assert_eq!((arguments.mode, arguments.lease.get()), (Some(Mode::Read), 5_000));
    /// let refused = read("order:42 ann LEASE soon").unwrap_err();
    /// assert!(refused.line().starts_with("ERR LEASE must be an integer from 1"));
    /// ```
    ///
    /// # Errors
    /// [`BadWord`] names the argument, its range and its unit.
    pub fn read<'a>(
        &self,
        words: impl Iterator<Item = &'a [u8]>,
        limits: &Limits,
    ) -> Result<Arguments<'a>, BadWord> {
        self.read_several(words, limits, &mut SeveralKeys::default())
    }

    /// Like [`Command::read`], but appends the keys of a command that names several to `keys`.
    ///
    /// # Errors
    /// [`BadWord`] names the argument, its range and its unit.
    pub fn read_several<'a>(
        &self,
        mut words: impl Iterator<Item = &'a [u8]>,
        limits: &Limits,
        keys: &mut SeveralKeys<'a>,
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
            acks: limits.acks,
            depth: None,
            all: false,
            upgrade: false,
            with_ttl: false,
            block_ms: None,
            queue: None,
            session: false,
            tell: None,
            holders: HOLDERS_DEFAULT,
            count: COUNT_DEFAULT,
            slowlog: SlowLogRequest::Get(COUNT_DEFAULT),
        };
        for positional in self.positional {
            if *positional == Positional::Keys {
                arguments.key = keys.read_keys(&mut words)?;
                continue;
            }
            if *positional == Positional::LeadingKeys {
                let read = keys.read_leading_keys(&mut words)?;
                [arguments.key, arguments.payload] = read.ok_or_else(|| self.wrong_count())?;
                break;
            }
            let given = words.next().ok_or_else(|| match keys.keys.as_slice() {
                [] => self.wrong_count(),
                keys => several::too_few_words(keys.len(), keys.len()),
            })?;
            if *positional == Positional::NumKeys {
                keys.count = several::count(given)?;
            } else {
                arguments.set_positional(*positional, given)?;
            }
        }
        // The options seen so far.
        let mut said: u32 = 0;
        while let Some(given) = words.next() {
            let packed = words::pack(given);
            let Some(word) = self.options.iter().find(|word| word.is(packed)) else {
                return Err(self.unknown(given));
            };
            if said & (word.bit() | word.excluded()) != 0 {
                return Err(self.said_already(*word, said));
            }
            said |= word.bit();
            if *word == Word::Modes {
                keys.read_modes(&mut words)?;
                continue;
            }
            if *word == Word::Tell {
                arguments.tell = Some(tell::read(&mut words)?);
                continue;
            }
            let value = match word.value() {
                None => None,
                Some(_) if word.is_value_optional() => words.next(),
                Some(_) => Some(words.next().ok_or_else(|| word.without_value(limits))?),
            };
            arguments.set_option(*word, value, limits)?;
        }
        if self.needs_one && said == 0 {
            return Err(self.wrong_count());
        }
        if arguments.tell.is_some() || arguments.queue.is_some() {
            self.check_wait(&arguments)?;
        }
        if arguments.session {
            arguments.lease_for_session(said & Word::Lease.bit() != 0, limits)?;
        }
        Ok(arguments)
    }

    fn wrong_count(&self) -> BadWord {
        let name = self.name.to_ascii_lowercase();
        BadWord(format!("ERR wrong number of arguments for '{name}' command"))
    }

    #[cold]
    fn said_already(&self, word: Word, said: u32) -> BadWord {
        let is_it = |other: &&Word| **other != word && said & other.bit() & word.excluded() != 0;
        BadWord(match self.options.iter().find(is_it) {
            Some(other) => {
                let (one, other) = (other.word(), word.word());
                format!("ERR syntax error: {one} and {other} are mutually exclusive")
            }
            None => format!("ERR syntax error: {} is given twice", word.word()),
        })
    }

    #[cold]
    fn unknown(&self, given: &[u8]) -> BadWord {
        if given.eq_ignore_ascii_case(b"QUEUE") && self.options.contains(&Word::Block) {
            return self.without_tickets();
        }
        BadWord(format!("ERR syntax error at {}: the syntax is {}", quoted(given), self.usage()))
    }
}

impl<'a> Arguments<'a> {
    fn set_positional(&mut self, positional: Positional, given: &'a [u8]) -> Result<(), BadWord> {
        match positional {
            Positional::Key => self.key = given,
            Positional::Owner if Owner::is_valid(given) => self.owner = given,
            Positional::Owner => {
                return Err(BadWord(format!(
                    "ERR owner must be 1 to {} bytes long, not {}",
                    Owner::MAX_BYTES,
                    given.len()
                )));
            }
            Positional::Token => self.token = token(given, 1)?,
            Positional::TokenOrZero => self.token = token(given, 0)?,
            Positional::NumKeys
            | Positional::Keys
            | Positional::LeadingKeys
            | Positional::Payload => {}
        }
        Ok(())
    }

    fn set_option(
        &mut self,
        word: Word,
        value: Option<&[u8]>,
        limits: &Limits,
    ) -> Result<(), BadWord> {
        let given = value.unwrap_or_default();
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
            Word::Token => self.token = token(given, 1)?,
            Word::Session => self.session = true,
            Word::Block => self.block_ms = Some(word.number(given, limits)?),
            Word::Queue => self.queue = LeaseMs::new(word.number(given, limits)?),
            Word::Limit => {
                let limit = word.number(given, limits)?;
                self.limit = u32::try_from(limit).ok().and_then(NonZeroU32::new);
            }
            Word::Acks => {
                let asked = word.number(given, limits)?;
                self.acks = self.acks.max(u8::try_from(asked).unwrap_or(u8::MAX));
            }
            Word::MaxQueue => self.max_queue = Some(word.count(given, limits)?),
            Word::Holders => self.holders = word.count(given, limits)?,
            Word::Waiters | Word::Count => self.count = word.count(given, limits)?,
            Word::Get if value.is_none() => self.slowlog = SlowLogRequest::Get(COUNT_DEFAULT),
            Word::Get if given == b"-1" => self.slowlog = SlowLogRequest::Get(usize::MAX),
            Word::Get => self.slowlog = SlowLogRequest::Get(word.count(given, limits)?),
            Word::Len => self.slowlog = SlowLogRequest::Len,
            Word::Reset => self.slowlog = SlowLogRequest::Reset,
            Word::Modes | Word::Tell => {}
        }
        Ok(())
    }

    fn lease_for_session(&mut self, is_given: bool, limits: &Limits) -> Result<(), BadWord> {
        let least = LeaseMs::new(SESSION_LEASE_MS_MIN).unwrap_or(LeaseMs::MAX);
        let (max, given) = (limits.max_lease.get(), self.lease.get());
        if limits.max_lease < least {
            return Err(BadWord(format!(
                "ERR SESSION needs a lease of at least {SESSION_LEASE_MS_MIN} milliseconds, but \
                 rlock.max-lease-ms is {max}"
            )));
        }
        if self.lease < least && is_given {
            return Err(BadWord(format!(
                "ERR LEASE must be an integer from {SESSION_LEASE_MS_MIN} to {max} milliseconds \
                 with SESSION, not '{given}'"
            )));
        }
        self.lease = self.lease.max(least);
        Ok(())
    }
}

/// A token of at least `least`; 0 means none.
fn token(given: &[u8], least: u64) -> Result<Option<Token>, BadWord> {
    match integer(given) {
        Some(number) if (least..=Token::MAX).contains(&number) => Ok(Token::new(number)),
        _ => {
            let (max, given) = (Token::MAX, quoted(given));
            Err(BadWord(format!("ERR TOKEN must be an integer from {least} to {max}, not {given}")))
        }
    }
}
