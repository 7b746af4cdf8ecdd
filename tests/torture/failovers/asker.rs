//! A client that requests many locks in a short time, and records the replies until its server
//! dies.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;

use super::claims::{Claim, Kind, Sort, Stay};
use super::skew::Clock;
use crate::clock::{Stop, ms, now_ns};
use crate::history::Mode;
use rlock_testkit::{Waiter, integer, now_ms};

/// The longest time for a reply: a later one never comes.
const REPLY_MS_MAX: u64 = 10_000;
/// How many requests wait for acknowledgments at once.
const LINKS: usize = 6;
/// The longest time that `WAIT` waits.
const WAIT_MS: u64 = 100;
/// Errors with which a server sends clients elsewhere, and those that waits then get.
const FAREWELLS: [&str; 6] =
    ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED"];

/// Without a space, because lines are taken apart at spaces.
const COMPARE_AND_DELETE: &str =
    "return(redis.call('GET',KEYS[1])==ARGV[1]and(redis.call('DEL',KEYS[1]))or(0))";

/// The last words to a connection that is about to be closed because its session is lost.
const LOST_SESSION: &str = "rlock.session-was-lost";

/// Where and how the clients of a round ask.
pub struct Site {
    pub socket: PathBuf,
    /// The prefix of all keys of the round.
    pub prefix: String,
    pub acks: u32,
    /// Whether `rlock.acks` asks for acknowledgments, so that no request has to.
    pub is_floor: bool,
    /// The primary's.
    pub clock: Arc<Clock>,
    pub stop: Stop,
    /// How many keys all clients have used so far.
    pub keys: AtomicU64,
}

/// What a command asks for.
#[derive(Clone)]
pub struct Ask {
    pub kind: Kind,
    pub key: String,
    /// Further locks in the same step.
    pub more: Vec<String>,
    pub owner: String,
    pub mode: Mode,
    pub lease_ms: i64,
    /// The requested depth.
    pub depth: i64,
    /// More words of an ACQUIRE.
    pub words: &'static str,
    /// The channel to which its late reply goes; its key is the id of the message.
    pub channel: Option<String>,
    /// The token of a hold that is to be renewed.
    pub token: Option<i64>,
    /// Whether nobody relies on the reply: it is enough that the command is executed.
    pub is_loose: bool,
}

impl Ask {
    /// A new lock, without waiting.
    pub fn new(key: &str, owner: &str, mode: Mode, lease_ms: i64) -> Ask {
        let (key, owner) = (key.to_owned(), owner.to_owned());
        let (kind, depth, words, token, is_loose) = (Kind::Grant, 1, "", None, false);
        let (more, channel) = (Vec::new(), None);
        Ask { kind, key, more, owner, mode, lease_ms, depth, words, channel, token, is_loose }
    }

    /// All locks that it names.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.key).chain(&self.more)
    }

    fn line_of_several(&self) -> String {
        let Ask { owner, mode, lease_ms, words, .. } = self;
        let (keys, mode): (Vec<&str>, _) = (self.keys().map(String::as_str).collect(), mode.word());
        let (count, keys) = (keys.len(), keys.join(" "));
        match self.token {
            Some(token) => {
                format!("RLOCK.MRENEW {count} {keys} {owner} LEASE {lease_ms} TOKEN {token}")
            }
            None => {
                format!("RLOCK.MACQUIRE {count} {keys} {owner} {mode} LEASE {lease_ms} {words}")
            }
        }
    }

    fn line(&self) -> String {
        if !self.more.is_empty() {
            return self.line_of_several();
        }
        let Ask { key, owner, mode, lease_ms, words, .. } = self;
        let mode = mode.word();
        match self.token {
            Some(token) => {
                format!("RLOCK.RENEW {key} {owner} {mode} LEASE {lease_ms} TOKEN {token}")
            }
            None => format!("RLOCK.ACQUIRE {key} {owner} {mode} LEASE {lease_ms} {words}"),
        }
    }
}

/// What one client recorded.
#[derive(Default)]
pub struct Notes {
    claims: BTreeMap<(String, String, Mode), Claim>,
    pub stays: Vec<Stay>,
    pub told: u64,
    pub no_acks: u64,
    pub no_replicas: u64,
    pub wrong: Vec<String>,
    /// When its connections ended, and its sessions with them.
    closed_ms: Vec<i64>,
}

impl Notes {
    /// Its claims at that moment, without those that have ended by this clock.
    pub fn claims_at(self, at_ms: i64, clock: &Clock) -> impl Iterator<Item = Claim> {
        let closed_ms = self.closed_ms.into_iter().filter(|closed_ms| *closed_ms < at_ms).max();
        let has_ended = move |claim: &Claim| {
            let is_closed = closed_ms.is_some_and(|ms| claim.told_ms <= ms);
            !claim.lasts(clock, at_ms) || claim.kind == Kind::Session && is_closed
        };
        self.claims.into_values().filter(move |claim| !has_ended(claim))
    }
}

pub struct Asker {
    pub sort: Sort,
    pub name: String,
    pub rng: fastrand::Rng,
    pub site: Arc<Site>,
    pub notes: Notes,
}

impl Asker {
    pub fn new(sort: Sort, name: String, seed: u64, site: Arc<Site>) -> Asker {
        let rng = fastrand::Rng::with_seed(seed);
        Asker { sort, name, rng, site, notes: Notes::default() }
    }

    /// Plays this role again and again, with a new connection when the old one has ended.
    pub fn live(mut self, role: fn(&mut Asker) -> Result<(), Error>) -> Notes {
        while !self.is_over() {
            if role(&mut self).is_err() {
                self.notes.closed_ms.push(now_ms());
                self.site.stop.within(2);
            }
        }
        self.notes
    }

    pub fn is_over(&self) -> bool {
        self.site.stop.is_set()
    }

    pub fn link(&self) -> Result<Waiter, Error> {
        Waiter::may_connect(&self.site.socket)
    }

    /// Enough connections for the requests that block them.
    pub fn links(&self) -> Result<Vec<Waiter>, Error> {
        let count = if self.sort.makes_sure() { LINKS } else { 1 };
        (0..count).map(|_| self.link()).collect()
    }

    /// A new key each time.
    pub fn new_key(&self) -> String {
        let number = self.site.keys.fetch_add(1, Ordering::Relaxed);
        format!("{}:{number}", self.site.prefix)
    }

    /// Usually long, and different each time: it shows which reply a deadline comes from.
    pub fn any_lease_ms(&mut self) -> i64 {
        match self.rng.u8(..8) {
            0 => self.rng.i64(400..1200),
            _ => self.rng.i64(10_000..60_000),
        }
    }

    pub fn any_mode(&mut self) -> Mode {
        if self.rng.u8(..4) == 0 { Mode::Read } else { Mode::Write }
    }

    /// Sends nothing for some time, so that the machine has room for all.
    pub fn rest(&mut self, ms_max: u64) {
        let ms = self.rng.u64(..=ms_max);
        self.site.stop.within(ms);
    }

    /// Distributes these requests among connections, sends each connection its own in one piece,
    /// and records each reply as it comes. Returns which of them got a hold.
    pub fn ask_all(&mut self, links: &mut [Waiter], asks: &[Ask]) -> Result<Vec<bool>, Error> {
        let (sent_ms, count) = (now_ms(), links.len());
        for (number, link) in links.iter_mut().enumerate() {
            let own: Vec<Ask> = asks.iter().skip(number).step_by(count).cloned().collect();
            self.say(link, &own)?;
        }
        let numbered = asks.iter().enumerate();
        numbered.map(|(number, ask)| self.hear(&mut links[number % count], ask, sent_ms)).collect()
    }

    /// Sends these requests without waiting for replies.
    pub fn say(&self, link: &mut Waiter, asks: &[Ask]) -> Result<(), Error> {
        let mut lines = Vec::new();
        for ask in asks {
            let mut line = ask.line();
            if let Some(channel) = &ask.channel {
                line += &format!(" TELL {channel} {}", ask.key);
            }
            match self.sort {
                Sort::Acked if !ask.is_loose && !self.site.is_floor => {
                    line += &format!(" ACKS {}", self.site.acks);
                }
                Sort::OneAck if !ask.is_loose => line += " ACKS 1",
                _ => {}
            }
            lines.push(line);
            if self.sort == Sort::Waited && !ask.is_loose {
                lines.push(format!("WAIT {} {WAIT_MS}", self.site.acks));
            }
        }
        self.say_lines(link, &lines)
    }

    pub fn say_lines(&self, link: &mut Waiter, lines: &[String]) -> Result<(), Error> {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        if link.may_say_all(&lines) { Ok(()) } else { Err(ErrorKind::BrokenPipe.into()) }
    }

    /// Sets strings that do not exist, and holds them. Returns which were set.
    pub fn set_all(&mut self, link: &mut Waiter, asks: &[Ask]) -> Result<Vec<bool>, Error> {
        let sent_ms = now_ms();
        let line = |ask: &Ask| format!("SET {} {} NX PX {}", ask.key, ask.owner, ask.lease_ms);
        self.say_lines(link, &asks.iter().map(line).collect::<Vec<_>>())?;
        let mut are_set = Vec::new();
        for ask in asks {
            let reply = self.next(link)?;
            let told_ms = now_ms();
            match &reply {
                Ok(Value::Okay) => self.claim(ask, 0, [sent_ms, told_ms]),
                Err(error) => self.take_error(ask, error, told_ms),
                Ok(_) => {}
            }
            are_set.push(reply == Ok(Value::Okay));
        }
        Ok(are_set)
    }

    /// Deletes its string, which it no longer claims from the moment of the request.
    pub fn delete(&mut self, link: &mut Waiter, ask: &Ask) -> Result<(), Error> {
        let Ask { key, owner, mode, .. } = ask;
        self.notes.claims.remove(&(key.clone(), owner.clone(), *mode));
        self.say_lines(link, &[format!("EVAL {COMPARE_AND_DELETE} 1 {key} {owner}")])?;
        self.next(link).map(drop)
    }

    /// Reads the reply to what `say` has sent; the lease counts from `sent_ms` at the earliest.
    pub fn hear(&mut self, link: &mut Waiter, ask: &Ask, sent_ms: i64) -> Result<bool, Error> {
        let reply = self.next(link)?;
        let is_sure = self.sort != Sort::Waited || ask.is_loose || {
            // Too few replicas: the client must not rely on it.
            matches!(self.next(link)?, Ok(Value::Int(count)) if count >= i64::from(self.site.acks))
        };
        Ok(self.note(ask, &reply, is_sure, sent_ms))
    }

    /// Records a reply, or a message in its place. Returns whether it reports a hold.
    pub fn note(
        &mut self,
        ask: &Ask,
        reply: &Result<Value, String>,
        is_sure: bool,
        sent_ms: i64,
    ) -> bool {
        let told_ms = now_ms();
        let (number, left_ms) = match reply {
            Ok(Value::Int(number)) => (Some(*number), None),
            Ok(Value::Array(parts)) if parts[0] != Value::Nil => {
                (Some(integer(&parts[0])), Some(integer(&parts[1])))
            }
            Ok(_) => (None, None),
            Err(error) => {
                self.take_error(ask, error, told_ms);
                (None, None)
            }
        };
        let [least_ms, most_ms] = self.site.clock.ahead_ms(sent_ms, told_ms);
        let set_back_ms = most_ms - least_ms;
        if left_ms.is_some_and(|left_ms| left_ms > ask.lease_ms + set_back_ms) {
            self.notes.wrong.push(format!("{}: more than its lease: {reply:?}", ask.line()));
        }
        let Some(number) = number.filter(|_| is_sure) else { return false };
        let is_counted = !ask.is_loose || !self.sort.makes_sure();
        if is_counted {
            self.claim(ask, ask.token.unwrap_or(number), [sent_ms, told_ms]);
        }
        true
    }

    pub fn next(&mut self, link: &mut Waiter) -> Result<Result<Value, String>, Error> {
        let reply = link.may_reply(REPLY_MS_MAX)?;
        if reply.is_none() {
            self.notes.wrong.push(format!("{}: no reply at all", self.name));
        }
        reply.ok_or(ErrorKind::TimedOut.into())
    }

    fn take_error(&mut self, ask: &Ask, error: &str, told_ms: i64) {
        let code = error.split(' ').next().unwrap_or_default();
        let is_held = self.claim_of(ask).is_some_and(|it| it.lasts(&self.site.clock, told_ms));
        match code {
            "NOACKS" => self.notes.no_acks += 1,
            "NOREPLICAS" => self.notes.no_replicas += 1,
            "NOTHELD" if !is_held => {}
            _ if FAREWELLS.contains(&code) || error.contains(LOST_SESSION) => {}
            _ => self.notes.wrong.push(format!("{}: {error}; held: {is_held}", ask.line())),
        }
    }

    /// The claim to the first of its locks.
    pub fn claim_of(&self, ask: &Ask) -> Option<&Claim> {
        self.notes.claims.get(&(ask.key.clone(), ask.owner.clone(), ask.mode))
    }

    fn claim(&mut self, ask: &Ask, token: i64, [sent_ms, told_ms]: [i64; 2]) {
        for key in &ask.more {
            let one = Ask { key: key.clone(), more: Vec::new(), ..ask.clone() };
            self.claim(&one, token, [sent_ms, told_ms]);
        }
        self.notes.told += 1;
        let owner_until_ms = sent_ms + ask.lease_ms;
        let [ahead_ms, _] = self.site.clock.ahead_ms(sent_ms, told_ms);
        let mut claim = Claim {
            sort: self.sort,
            kind: ask.kind,
            key: ask.key.clone(),
            owner: ask.owner.clone(),
            mode: ask.mode,
            token,
            depth: ask.depth,
            until_ms: owner_until_ms + ahead_ms,
            owner_until_ms,
            sent_ms,
            told_ms,
        };
        if let Some(before) = self.claim_of(ask) {
            if before.token == token {
                claim.until_ms = claim.until_ms.max(before.until_ms);
                claim.owner_until_ms = claim.owner_until_ms.max(before.owner_until_ms);
                claim.depth = claim.depth.max(before.depth);
            } else if before.lasts(&self.site.clock, told_ms) {
                self.notes.wrong.push(format!("another token: {before}; {claim}"));
            }
        }
        self.notes.claims.insert((ask.key.clone(), ask.owner.clone(), ask.mode), claim);
    }

    /// Releases a hold, which it no longer claims from the moment of the request.
    pub fn give_back(&mut self, link: &mut Waiter, ask: &Ask) -> Result<(), Error> {
        let Ask { key, owner, mode, .. } = ask;
        self.notes.claims.remove(&(key.clone(), owner.clone(), *mode));
        self.say_lines(link, &[release(key, owner, *mode)])?;
        self.next(link).map(drop)
    }

    /// Like `give_back`, with these words.
    pub fn give_back_late(
        &mut self,
        link: &mut Waiter,
        ask: &Ask,
        lines: &[String],
    ) -> Result<(), Error> {
        self.notes.claims.remove(&(ask.key.clone(), ask.owner.clone(), ask.mode));
        self.say_lines(link, lines)?;
        lines.iter().try_for_each(|_| self.next(link).map(drop))
    }

    /// Records that it held the lock alone from then until now, if its lease has not ended.
    pub fn stayed(&mut self, ask: &Ask, from_ms: f64) {
        if !self.claim_of(ask).is_some_and(|it| it.lasts(&self.site.clock, now_ms())) {
            return;
        }
        let (key, owner) = (ask.key.clone(), ask.owner.clone());
        self.notes.stays.push(Stay { key, owner, from_ms, to_ms: ms(now_ns()) });
    }
}

pub fn release(key: &str, owner: &str, mode: Mode) -> String {
    format!("RLOCK.RELEASE {key} {owner} {} DEPTH 0", mode.word())
}
