//! Failovers with `rlock.grace-ms` instead of acknowledgments: grants, renewals and releases are
//! lost, but no two owners hold at once, by the deadlines in their replies. With a grace period
//! that is too short, they do.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use fastrand::Rng;
use redis::Value;

use super::claims::{Stay, overlaps};
use super::stage::{Servers, Stage};
use super::variants::{Control, Trouble, Variant, Way};
use crate::clock::{Stop, ms, now_ns};
use rlock_testkit::Waiter;

/// The longest lease.
const LEASE_MS: u64 = 600;
const REPLY_MS_MAX: u64 = 10_000;
const KEYS: u32 = 256;
const CLIENTS: u32 = 16;
const LOAD_MS: std::ops::Range<u64> = 150..400;
/// How many violations to print.
const SAID_MAX: usize = 5;
/// How long to continue after the promotion, in addition to the grace period.
const AFTER_MS: u64 = 250;

/// As long as a lease, and a little more.
pub const LONG: Variant = Variant {
    name: "grace",
    share: 0,
    replicas: 1,
    acks: 0,
    is_floor: false,
    control: Control::Nobody,
    trouble: Trouble::Calm,
    way: Way::Greatest,
    cut_ms_max: 100,
    settings: &["rlock.max-lease-ms", "600", "rlock.grace-ms", "620"],
};

pub const SHORT: Variant = Variant {
    name: "short",
    settings: &["rlock.max-lease-ms", "600", "rlock.grace-ms", "150"],
    ..LONG
};

/// The result.
#[derive(Default)]
pub struct Tally {
    name: &'static str,
    failovers: u32,
    took_ms: f64,
    told: u64,
    /// The holds that lasted beyond the promotion, and those that began after it.
    across: usize,
    after: usize,
    /// Overlapping holds, which a grace period is to prevent.
    pub overlaps: Vec<String>,
    /// Violations that no grace excuses.
    pub wrong: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { name, failovers, told, across, after, overlaps, wrong, .. } = self;
        let each_s = self.took_ms / 1000.0 / f64::from((*failovers).max(1));
        write!(
            f,
            "{name:<10} {failovers:>4} failovers of {each_s:.1} s; {told} grants, {across} of them \
             lasted beyond the promotion, {after} came after it; {} overlaps, {} violations",
            overlaps.len(),
            wrong.len()
        )?;
        let mut said = overlaps.iter().take(SAID_MAX).chain(wrong.iter().take(SAID_MAX));
        said.try_for_each(|text| write!(f, "\n  {text}"))
    }
}

/// This many failovers, with the grace of the variant.
pub fn run(variant: &'static Variant, failovers: u32, rng: &mut Rng) -> Tally {
    let mut tally = Tally { name: variant.name, ..Tally::default() };
    let begun_ns = now_ns();
    let grace_ms = variant.settings[3].parse().unwrap();
    let mut stage = Stage::of(variant);
    for round in 0..failovers {
        stage.make_whole();
        one(&mut stage, round, grace_ms, rng, &mut tally);
    }
    tally.took_ms = ms(now_ns() - begun_ns);
    tally
}

fn one(stage: &mut Stage, round: u32, grace_ms: u64, rng: &mut Rng, tally: &mut Tally) {
    let site = Arc::new(Site {
        socket: RwLock::new(stage.primary().socket()),
        round,
        stop: Stop::default(),
    });
    let clients = (0..CLIENTS).map(|number| {
        let (site, rng) = (site.clone(), Rng::with_seed(rng.u64(..)));
        let client = Client {
            name: format!("c{number}"),
            life: 0,
            token: 0,
            rng,
            site,
            notes: Notes::default(),
        };
        std::thread::spawn(move || client.live())
    });
    let clients: Vec<_> = clients.collect();
    // A newly promoted server grants nothing for that long.
    Stop::default().within(grace_ms + rng.u64(LOAD_MS));
    let fall = stage.fall(rng);
    *site.socket.write().unwrap() = stage.primary().socket();
    let promoted_ms = ms(now_ns());
    Stop::default().within(grace_ms + AFTER_MS);
    site.stop.set();
    let mut stays = Vec::new();
    let fallen_ms = ms(fall.at_ns);
    for client in clients {
        let notes = client.join().unwrap();
        tally.told += notes.told;
        tally.wrong.extend(notes.wrong);
        stays.extend(notes.stays);
    }
    tally.failovers += 1;
    let is_new = |stay: &&Stay| stay.from_ms > promoted_ms;
    let is_old = |stay: &&Stay| stay.from_ms < fallen_ms && stay.to_ms > promoted_ms;
    tally.across += stays.iter().filter(is_old).count();
    tally.after += stays.iter().filter(is_new).count();
    let story = format!("round {round}: {fall}, at {fallen_ms:.2}, promoted by {promoted_ms:.2}");
    let early_ms = fallen_ms + grace_ms as f64;
    let early = stays.iter().filter(is_new).filter(|stay| stay.from_ms < early_ms);
    tally.wrong.extend(early.map(|stay| format!("granted within the grace: {stay:?}; {story}")));
    tally.overlaps.extend(overlaps(&stays).into_iter().map(|wrong| format!("{wrong}; {story}")));
}

struct Site {
    /// The socket of the primary.
    socket: RwLock<PathBuf>,
    round: u32,
    stop: Stop,
}

#[derive(Default)]
struct Notes {
    stays: Vec<Stay>,
    told: u64,
    wrong: Vec<String>,
}

struct Client {
    name: String,
    /// Part of the owner's name: a client that stayed away comes back under another name.
    life: u32,
    /// The token of its last hold.
    token: i64,
    rng: Rng,
    site: Arc<Site>,
    notes: Notes,
}

impl Client {
    fn live(mut self) -> Notes {
        while !self.site.stop.is_set() {
            let socket = self.site.socket.read().unwrap().clone();
            let ended = Waiter::may_connect(&socket).and_then(|mut link| self.hold_some(&mut link));
            if ended.is_err() {
                self.site.stop.within(1);
            }
        }
        self.notes
    }

    fn hold_some(&mut self, link: &mut Waiter) -> Result<(), Error> {
        // It still holds what it held when the connection closed, and renews it.
        if let Some(stay) = self.notes.stays.last().cloned()
            && stay.to_ms > ms(now_ns())
        {
            let token = self.token;
            self.life += 1;
            self.renew(link, &stay.key, &stay.owner, token)?;
        }
        while !self.site.stop.is_set() {
            let key = format!("grace:{}:{}", self.site.round, self.rng.u32(..KEYS));
            let owner = format!("{}.{}", self.name, self.life);
            let lease_ms = self.rng.u64(LEASE_MS / 2..=LEASE_MS);
            let sent_ms = ms(now_ns());
            let line = format!("RLOCK.ACQUIRE {key} {owner} LEASE {lease_ms} DEPTH 1");
            let Some(Value::Int(token)) = self.ask(link, &line)? else {
                self.rest(4);
                continue;
            };
            self.token = token;
            self.notes.told += 1;
            let (from_ms, to_ms) = (ms(now_ns()), sent_ms + lease_ms as f64);
            self.notes.stays.push(Stay { key: key.clone(), owner: owner.clone(), from_ms, to_ms });
            self.rest(15);
            if self.rng.u8(..3) == 0 {
                self.renew(link, &key, &owner, token)?;
            }
            if self.rng.u8(..3) == 0 {
                // It stays away, and comes back under another name.
                self.life += 1;
                continue;
            }
            let stay = self.notes.stays.last_mut().unwrap();
            stay.to_ms = stay.to_ms.min(ms(now_ns()));
            self.ask(link, &format!("RLOCK.RELEASE {key} {owner} WRITE DEPTH 0"))?;
        }
        Ok(())
    }

    /// Extends its last hold, if the server confirms that.
    fn renew(
        &mut self,
        link: &mut Waiter,
        key: &str,
        owner: &str,
        token: i64,
    ) -> Result<(), Error> {
        let sent_ms = ms(now_ns());
        let line = format!("RLOCK.RENEW {key} {owner} LEASE {LEASE_MS} TOKEN {token}");
        let is_renewed = self.ask(link, &line)? == Some(Value::Int(1));
        let stay = self.notes.stays.last_mut().unwrap();
        if is_renewed && stay.to_ms > sent_ms {
            stay.to_ms = stay.to_ms.max(sent_ms + LEASE_MS as f64);
        }
        Ok(())
    }

    fn ask(&mut self, link: &mut Waiter, line: &str) -> Result<Option<Value>, Error> {
        if !link.may_say_all(&[line]) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match link.may_reply(REPLY_MS_MAX)? {
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(error)) => {
                if !error.starts_with("NOTHELD") {
                    self.notes.wrong.push(format!("{line}: {error}"));
                }
                Ok(None)
            }
            None => {
                self.notes.wrong.push(format!("{line}: no reply at all"));
                Err(ErrorKind::TimedOut.into())
            }
        }
    }

    fn rest(&mut self, ms_max: u64) {
        let ms = self.rng.u64(..=ms_max);
        self.site.stop.within(ms);
    }
}
