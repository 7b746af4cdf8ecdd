//! Servers whose wall clocks differ from this machine's and from each other's. Each server runs
//! with `skew.c`, which reads from a file by how much; so a clock can also be set while its server
//! runs. The monotonic clocks stay right.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fastrand::Rng;

use super::stage::{Fall, Servers, Stage};
use super::variants::{Trouble, Variant};
use crate::clock::Stop;
use rlock_testkit::{Server, Waiter, items, now_ms, text, until};

const PATIENCE_MS: u64 = 30_000;
/// By how much a clock can be ahead; no two are close to each other.
const AHEAD_MS: [i64; 9] = [-60_000, -5000, -900, -100, 0, 100, 900, 5000, 60_000];
/// A clock that was read within this time is not taken for another one.
const GLANCE_MS: i64 = 40;
/// In one of this many rounds, a clock is set.
const SET_IN: u8 = 3;

/// By how much a server's clock was ahead of this machine's, and when.
pub struct Clock(Mutex<Vec<Setting>>);

/// Times are of this machine. Where two settings overlap, it is not known which of them applied.
struct Setting {
    ahead_ms: i64,
    from_ms: i64,
    to_ms: i64,
}

/// This machine's clock.
impl Default for Clock {
    fn default() -> Clock {
        Clock::ahead_by(0)
    }
}

impl Clock {
    pub fn ahead_by(ahead_ms: i64) -> Clock {
        let (from_ms, to_ms) = (i64::MIN, i64::MAX);
        Clock(Mutex::new(vec![Setting { ahead_ms, from_ms, to_ms }]))
    }

    /// `set` sets it, and returns when the server shows it.
    pub fn change(&self, ahead_ms: i64, set: impl FnOnce()) {
        let new = Setting { ahead_ms, from_ms: now_ms(), to_ms: i64::MAX };
        self.0.lock().unwrap().push(new);
        set();
        let mut settings = self.0.lock().unwrap();
        let old = settings.len() - 2;
        settings[old].to_ms = now_ms();
    }

    /// The least and the most by which it may have been ahead between these moments.
    pub fn ahead_ms(&self, from_ms: i64, to_ms: i64) -> [i64; 2] {
        let settings = self.0.lock().unwrap();
        let then = settings.iter().filter(|of| of.from_ms <= to_ms && from_ms <= of.to_ms);
        let ahead = then.map(|of| of.ahead_ms);
        [ahead.clone().min().unwrap(), ahead.max().unwrap()]
    }

    /// The latest time that it may have shown between these moments.
    pub fn latest_ms(&self, from_ms: i64, to_ms: i64) -> i64 {
        let settings = self.0.lock().unwrap();
        let then = settings.iter().filter(|of| of.from_ms <= to_ms && from_ms <= of.to_ms);
        then.map(|of| of.to_ms.min(to_ms) + of.ahead_ms).max().unwrap()
    }
}

/// The time that a server shows, in unix milliseconds.
pub fn shown_ms(link: &mut Waiter) -> i64 {
    link.say_all(&["TIME"]);
    let reply = link.may_reply(PATIENCE_MS).unwrap().unwrap().unwrap();
    let number = |place: usize| text(&items(&reply)[place]).parse::<i64>().unwrap();
    number(0) * 1000 + number(1) / 1000
}

/// What sets a server's clock.
struct Dial {
    path: PathBuf,
    file: File,
    ahead_ms: i64,
}

impl Dial {
    fn new(number: usize) -> Dial {
        let name = format!("rlock-clock-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut dial = Dial { file: File::create(&path).unwrap(), path, ahead_ms: 0 };
        dial.set(0);
        dial
    }

    /// The program under which a server has this clock.
    fn program(&self, library: &str) -> [String; 3] {
        let file = format!("RLOCK_AHEAD={}", self.path.display());
        ["env".to_owned(), format!("LD_PRELOAD={library}"), file]
    }

    fn set(&mut self, ahead_ms: i64) {
        self.ahead_ms = ahead_ms;
        self.file.write_all_at(&(ahead_ms * 1_000_000).to_ne_bytes(), 0).unwrap();
    }

    /// The server expires a key at the moment that the module names, which may be rounded up.
    fn assert_reaches_module(&mut self, server: &Server) {
        self.set(AHEAD_MS[0]);
        self.until_shown_by(server);
        let mut client = server.client();
        client.ask("RLOCK.ACQUIRE clock ann LEASE 1000");
        let left_ms = client.number("PTTL clock");
        assert!(
            (0..=1000 + GLANCE_MS).contains(&left_ms),
            "the module has another clock: {left_ms} ms"
        );
    }

    fn until_shown_by(&self, server: &Server) {
        let mut link = Waiter::may_connect(&server.socket()).unwrap();
        until(PATIENCE_MS, || {
            let asked_ms = now_ms();
            let ahead_ms = shown_ms(&mut link) - asked_ms;
            let took_ms = now_ms() - asked_ms;
            took_ms < GLANCE_MS && (ahead_ms - self.ahead_ms).abs() <= GLANCE_MS
        });
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

pub struct Skewed {
    stage: Stage,
    /// By the servers' ports.
    dials: BTreeMap<u16, Dial>,
    /// The primary's.
    clock: Arc<Clock>,
    /// What was set in this round.
    said: String,
    rng: Rng,
}

impl Skewed {
    /// Fails where `$RLOCK_SKEW` does not name the library that is built from `skew.c`.
    pub fn of(variant: &Variant, rng: Rng) -> Result<Skewed, String> {
        let library = std::env::var("RLOCK_SKEW").map_err(|_| "there is no $RLOCK_SKEW")?;
        let mut dials = BTreeMap::new();
        let stage = Stage::with(variant, |settings| {
            let mut dial = Dial::new(dials.len());
            let program = dial.program(&library);
            let server = Server::under(&program.each_ref().map(String::as_str), settings);
            dial.assert_reaches_module(&server);
            dials.insert(server.tcp_port(), dial);
            server
        });
        Ok(Skewed { stage, dials, clock: Arc::default(), said: String::new(), rng })
    }

    fn dial_of(&self, server: &Server) -> &Dial {
        &self.dials[&server.tcp_port()]
    }
}

impl Servers for Skewed {
    fn primary(&self) -> &Server {
        self.stage.primary()
    }

    fn door(&self) -> String {
        self.stage.door()
    }

    fn tag(&self) -> &str {
        self.stage.tag()
    }

    fn clock(&self) -> Arc<Clock> {
        self.clock.clone()
    }

    fn make_whole(&mut self) {
        for dial in self.dials.values_mut() {
            dial.set(*self.rng.choice(&AHEAD_MS).unwrap());
        }
        self.stage.start_all();
        self.stage.nodes.iter().for_each(|node| self.dial_of(node).until_shown_by(node));
        self.stage.make_whole();
        let ahead_ms: Vec<i64> =
            self.stage.nodes.iter().map(|node| self.dial_of(node).ahead_ms).collect();
        self.clock = Arc::new(Clock::ahead_by(ahead_ms[0]));
        self.said = format!("clocks ahead by {ahead_ms:?} ms");
    }

    /// Sets the clock of one server, in some rounds.
    fn trouble(&mut self, _: Trouble, rng: &mut Rng) {
        if rng.u8(..SET_IN) > 0 {
            return;
        }
        let place = rng.usize(..self.stage.nodes.len());
        let server = &self.stage.nodes[place];
        let dial = self.dials.get_mut(&server.tcp_port()).unwrap();
        let others: Vec<i64> = AHEAD_MS.into_iter().filter(|ms| *ms != dial.ahead_ms).collect();
        let ahead_ms = *rng.choice(&others).unwrap();
        let mut set = || {
            dial.set(ahead_ms);
            dial.until_shown_by(server);
        };
        if place == 0 {
            self.clock.change(ahead_ms, set);
        } else {
            set();
        }
        self.said += &format!(", that of server {place} set to {ahead_ms}");
        Stop::default().within(rng.u64(20..200));
    }

    fn fall(&mut self, rng: &mut Rng) -> Fall {
        let fall = self.stage.fall(rng);
        Fall { cut: format!("{}, {},", fall.cut, self.said), ..fall }
    }
}
