//! Busy sessions on a server with I/O threads, while others remove their locks, kill their
//! connections and end their waits. Two things must hold: the server survives, and no command of a
//! session runs after its hold is lost. Each session writes numbers to a key that only the current
//! holder may write to, so the next holder would see a violation.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use redis::{Connection, IntoConnectionInfo, RedisError, RedisResult, Value};

use crate::clock::{Stop, ms, now_ns, ns};
use crate::words::packed;
use rlock_testkit::{Server, text};

/// How many sessions have their own lock; some others want one of those.
const LOCKS: u32 = 8;
const SESSIONS: u32 = LOCKS + 4;
const TAKERS: u32 = 2;
/// Sessions that only send PING, and a client that removes their locks.
const CHOIR: Range<u32> = SESSIONS + TAKERS..SESSIONS + TAKERS + 12;
const LAST: u32 = CHOIR.end;
/// A reply that has not come by then never comes: no session holds for so long.
const REPLY_MS_MAX: u64 = 20_000;
/// How many commands to send at once, and how often before reading the first reply.
const CHUNK: u64 = 30;
const AHEAD: usize = 5;
/// How long the PING sessions run, and then all others, in turn: if all ran at once, the threads
/// would get no time.
const TURN_MS: f64 = 1000.0;
const REST_MS: u64 = 20;
const STAY_MS_MAX: u64 = 60;
const LOOK_MS: u64 = 20;
/// The first violations are enough.
const SAID_MAX: usize = 5;

/// The result.
#[derive(Default)]
pub struct Tally {
    operations: AtomicU64,
    grants: AtomicU64,
    closed: AtomicU64,
    blows: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    fn complain(&self, text: String) {
        self.wrong.lock().unwrap().push(text);
    }

    pub fn is_clean(&self) -> bool {
        self.wrong.lock().unwrap().is_empty()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [operations, grants, closed, blows] =
            [&self.operations, &self.grants, &self.closed, &self.blows]
                .map(|count| count.load(Ordering::Relaxed));
        let wrong = self.wrong.lock().unwrap();
        write!(
            f,
            "chaos      x io-threads   {operations:>7} operations, {} violations, {blows:>3} \
             blows; \
             {grants} grants, {closed} connections closed",
            wrong.len()
        )?;
        wrong.iter().take(SAID_MAX).try_for_each(|text| write!(f, "\n  {text}"))
    }
}

/// Runs it for that long, or until the server is down.
pub fn run(lasts_ms: u64, seed: u64) -> Arc<Tally> {
    let mut server = Server::primary(&["io-threads", "4", "io-threads-do-reads", "yes"]);
    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(Stop::default()));
    // By default Valkey would not use its threads under such a load.
    server.client().attempt("CONFIG SET events-per-io-thread 0").ok();
    // Over both kinds of sockets.
    let urls = [server.url(""), format!("redis://127.0.0.1:{}", server.tcp_port())];
    let actors = (0..=LAST).map(|number| {
        let rng = fastrand::Rng::with_seed(seed.wrapping_add(u64::from(number)));
        let url = urls[number as usize % urls.len()].clone();
        let (tally, stop) = (tally.clone(), stop.clone());
        let actor = Actor { number, life: 0, rng, url, tally, stop };
        let live = match number {
            ..SESSIONS => Actor::be_a_session,
            _ if CHOIR.contains(&number) => Actor::sing,
            LAST => Actor::hush,
            _ => Actor::take,
        };
        std::thread::spawn(move || live(actor))
    });
    let actors: Vec<JoinHandle<()>> = actors.collect();
    let ends_ns = now_ns() + ns(lasts_ms);
    while now_ns() < ends_ns && server.complaint().is_none() {
        stop.within(LOOK_MS);
    }
    stop.set();
    for actor in actors {
        if actor.join().is_err() {
            tally.complain("an actor gave up".to_owned());
        }
    }
    if let Some(complaint) = server.complaint() {
        tally.complain(format!("server down: {complaint}"));
    }
    // Dropping it reports a server that is down, which was recorded already.
    catch_unwind(AssertUnwindSafe(|| drop(server))).ok();
    tally
}

struct Actor {
    number: u32,
    /// Part of the owner's name: one whose connection was closed is another one afterwards.
    life: u32,
    rng: fastrand::Rng,
    url: String,
    tally: Arc<Tally>,
    stop: Arc<Stop>,
}

impl Actor {
    fn be_a_session(mut self) {
        while !self.stop.is_set() {
            if is_for_the_choir() {
                self.stop.within(REST_MS);
                continue;
            }
            self.life += 1;
            match self.live() {
                Ok(()) => {}
                Err(error) if error.is_timeout() => {
                    self.tally.complain(format!("no reply to {}: {error}", self.owner()));
                }
                Err(_) => drop(self.tally.closed.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// Uses one connection, until either side closes it.
    fn live(&mut self) -> RedisResult<()> {
        let mut link = connected(&self.url)?;
        self.ask(&mut link, "CLIENT SETNAME session")?;
        while !self.stop.is_set() && !is_for_the_choir() {
            let key = self.any_lock();
            let Some(token) = self.acquire(&mut link, &key)? else { continue };
            self.hold(&mut link, &key, token)?;
            if self.rng.u8(..8) == 0 {
                // Earlier commands may not have arrived yet.
                let line = format!("SET n:{key} {token}:last");
                link.send_packed_command(&packed(&line).get_packed_command())?;
                return Ok(());
            }
            self.ask(&mut link, &format!("RLOCK.RELEASE {key} {} WRITE DEPTH 0", self.owner()))?;
        }
        Ok(())
    }

    /// A lock: its own, or any of them.
    fn any_lock(&mut self) -> String {
        let is_own = self.number < LOCKS && self.rng.u8(..16) > 0;
        format!("chaos:{}", if is_own { self.number } else { self.rng.u32(..LOCKS) })
    }

    fn owner(&self) -> String {
        format!("s{}.{}", self.number, self.life)
    }

    fn acquire(&mut self, link: &mut Connection, key: &str) -> RedisResult<Option<i64>> {
        let wait = match self.rng.u8(..4) {
            0 => String::new(),
            1 => format!(" BLOCK {}", self.rng.u8(1..50)),
            _ => " BLOCK 0".to_owned(),
        };
        let line = format!("RLOCK.ACQUIRE {key} {} LEASE 2000 SESSION{wait}", self.owner());
        let Some(Value::Int(token)) = self.ask(link, &line)? else { return Ok(None) };
        self.tally.grants.fetch_add(1, Ordering::Relaxed);
        Ok(Some(token))
    }

    /// Uses the lock for a short time, while the connection is answered.
    fn hold(&mut self, link: &mut Connection, key: &str, token: i64) -> RedisResult<()> {
        let count = format!("n:{key}");
        // The previous holder no longer writes.
        let mut last = self.read(link, &count)?;
        for _ in 0..self.rng.u8(..12) {
            self.expect(link, &count, &last)?;
        }
        let ends_ns = now_ns() + ns(self.rng.u64(..STAY_MS_MAX));
        let mut number = 0;
        while now_ns() < ends_ns && !self.stop.is_set() {
            match self.rng.u8(..12) {
                0..5 => (0..20).try_for_each(|_| self.ask(link, "PING").map(drop))?,
                5 => self.wait_elsewhere(link)?,
                6 => drop(self.ask(link, "EVAL return(1) 0")?),
                7 | 8 => {
                    number += 1;
                    self.ask(link, &format!("SET {count} {token}:{number}"))?;
                }
                _ => number = self.flood(link, &format!("SET {count} {token}"), number)?,
            }
            if number > 0 {
                last = Some(format!("{token}:{number}"));
            }
            self.expect(link, &count, &last)?;
        }
        Ok(())
    }

    /// Sends `line:1`, `line:2` and so on, so fast that the server always has something to read.
    /// Returns the last number.
    fn flood(&mut self, link: &mut Connection, line: &str, mut number: u64) -> RedisResult<u64> {
        let chunks = self.rng.usize(1..AHEAD * 4);
        self.tally.operations.fetch_add(chunks as u64 * CHUNK, Ordering::Relaxed);
        for chunk in 0..chunks + AHEAD {
            if chunk < chunks {
                let lines = (number + 1..=number + CHUNK).map(|n| packed(&format!("{line}:{n}")));
                let bytes: Vec<u8> = lines.flat_map(|line| line.get_packed_command()).collect();
                link.send_packed_command(&bytes)?;
                number += CHUNK;
            }
            if chunk >= AHEAD {
                for _ in 0..CHUNK {
                    told(link.recv_response().and_then(Value::extract_error))?;
                }
            }
        }
        Ok(number)
    }

    /// A session that also waits for another lock, for a moment.
    fn wait_elsewhere(&mut self, link: &mut Connection) -> RedisResult<()> {
        let (key, owner) = (self.any_lock(), self.owner());
        let line = format!("RLOCK.ACQUIRE {key} {owner} LEASE 1000 SESSION BLOCK 10 DEPTH 1");
        self.ask(link, &line)?;
        Ok(())
    }

    fn read(&mut self, link: &mut Connection, key: &str) -> RedisResult<Option<String>> {
        let value = self.ask(link, &format!("GET {key}"))?;
        Ok(value.filter(|value| *value != Value::Nil).map(|value| text(&value)))
    }

    /// Checks that nobody else has written there. (All keys may have been flushed.)
    fn expect(
        &mut self,
        link: &mut Connection,
        key: &str,
        last: &Option<String>,
    ) -> RedisResult<()> {
        let found = self.read(link, key)?;
        if found.is_some() && found != *last {
            let owner = self.owner();
            self.tally.complain(format!(
                "closing: {key} is {found:?} where {owner} holds and has seen {last:?}"
            ));
        }
        Ok(())
    }

    /// Removes the locks of others in all possible ways.
    fn take(mut self) {
        while !self.stop.is_set() {
            let Ok(mut link) = connected(&self.url) else { continue };
            while !self.stop.is_set() && self.strike(&mut link).is_ok() {
                let ms = match is_for_the_choir() {
                    true => REST_MS,
                    false => *self.rng.choice(&[0, 0, 0, 0, 0, 0, 1, 5]).unwrap(),
                };
                self.stop.within(ms);
            }
        }
    }

    /// A session that only sends PING, so the server mostly waits for it.
    fn sing(mut self) {
        while !self.stop.is_set() {
            if is_for_the_choir() {
                self.life += 1;
                drop(self.sing_once());
                self.tally.closed.fetch_add(1, Ordering::Relaxed);
            } else {
                self.stop.within(REST_MS);
            }
        }
    }

    fn sing_once(&mut self) -> RedisResult<()> {
        let mut link = connected(&self.url)?;
        let (number, owner) = (self.number, self.owner());
        self.ask(&mut link, &format!("RLOCK.ACQUIRE choir:{number} {owner} LEASE 60000 SESSION"))?;
        self.tally.grants.fetch_add(1, Ordering::Relaxed);
        while !self.stop.is_set() && is_for_the_choir() {
            self.ask(&mut link, "PING")?;
        }
        Ok(())
    }

    /// Removes their locks, one after the other.
    fn hush(mut self) {
        let mut voices = CHOIR.cycle();
        while !self.stop.is_set() {
            let Ok(mut link) = connected(&self.url) else { continue };
            while !self.stop.is_set() {
                if !is_for_the_choir() {
                    self.stop.within(REST_MS);
                    continue;
                }
                self.tally.blows.fetch_add(1, Ordering::Relaxed);
                let line = format!("DEL choir:{}", voices.next().unwrap());
                if self.ask(&mut link, &line).is_err() {
                    break;
                }
            }
        }
    }

    fn strike(&mut self, link: &mut Connection) -> RedisResult<()> {
        self.tally.blows.fetch_add(1, Ordering::Relaxed);
        let key = self.any_lock();
        let deletes = vec![format!("DEL {key}"); 4];
        let lines = match self.rng.u8(..40) {
            0 => vec!["FLUSHALL".to_owned()],
            _ if self.rng.u8(..4) == 0 => {
                let all = (0..LOCKS).map(|lock| format!("chaos:{lock}"));
                vec![format!("DEL {}", all.collect::<Vec<_>>().join(" "))]
            }
            1..4 => vec![format!("RENAME {key} elsewhere")],
            4..8 => vec!["MULTI".to_owned(), deletes[0].clone(), "EXEC".to_owned()],
            8..12 => vec![format!("EVAL return(redis.call('DEL',KEYS[1])) 1 {key}")],
            12..16 => deletes,
            16..22 => vec![format!("UNLINK {key}")],
            22..26 => return self.kill_or_unblock(link),
            26..33 => vec![format!("RLOCK.FORCE {key}")],
            _ => vec![format!("DEL {key}")],
        };
        self.ask_all(link, &lines)
    }

    fn kill_or_unblock(&mut self, link: &mut Connection) -> RedisResult<()> {
        let Some(list) = self.ask(link, "CLIENT LIST TYPE normal")? else { return Ok(()) };
        let list = text(&list);
        let sessions = list.lines().filter(|line| line.contains(" name=session"));
        let ids = sessions.filter_map(|line| line.split(' ').find_map(|f| f.strip_prefix("id=")));
        let Some(id) = self.rng.choice(ids.collect::<Vec<_>>()) else { return Ok(()) };
        let how = if self.rng.bool() { "KILL ID" } else { "UNBLOCK" };
        self.ask(link, &format!("CLIENT {how} {id}"))?;
        Ok(())
    }

    /// The reply; `None` for an error, of which there are many: refused, unblocked, closed.
    fn ask(&mut self, link: &mut Connection, line: &str) -> RedisResult<Option<Value>> {
        self.tally.operations.fetch_add(1, Ordering::Relaxed);
        told(packed(line).query(link))
    }

    /// Sends all of these at once.
    fn ask_all(&mut self, link: &mut Connection, lines: &[String]) -> RedisResult<()> {
        self.tally.operations.fetch_add(lines.len() as u64, Ordering::Relaxed);
        let bytes: Vec<u8> =
            lines.iter().flat_map(|line| packed(line).get_packed_command()).collect();
        link.send_packed_command(&bytes)?;
        for _ in lines {
            told(link.recv_response().and_then(Value::extract_error))?;
        }
        Ok(())
    }
}

/// Whether this group may use the server now.
fn is_for_the_choir() -> bool {
    ms(now_ns()) / TURN_MS % 2.0 < 1.0
}

/// It does not name itself: a server treats connections differently once they have sent two
/// commands at a time, and both kinds should occur here.
fn connected(url: &str) -> RedisResult<Connection> {
    let info = url.into_connection_info()?;
    let silent = info.redis_settings().clone().set_skip_set_lib_name();
    let link = redis::Client::open(info.set_redis_settings(silent))?.get_connection()?;
    link.set_read_timeout(Some(Duration::from_millis(REPLY_MS_MAX)))?;
    Ok(link)
}

fn told(reply: Result<Value, RedisError>) -> RedisResult<Option<Value>> {
    match reply {
        Err(error) if error.code().is_none() => Err(error),
        reply => Ok(reply.ok()),
    }
}
