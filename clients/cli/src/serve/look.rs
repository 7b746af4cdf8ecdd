//! One look at all servers, and what it costs them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, UNIX_EPOCH};

use redis::{Connection, RedisError, RedisResult, Value, from_redis_value_ref};

use crate::servers::{Server, Trouble, Where, explain, reason};
use crate::snapshot::{Ask, Lock, Name, Part, Snapshot, look as look_closely, others, within};

/// What each look asks: enough for a page, but little work for a server with a million locks.
pub const ASK: Ask = Ask {
    sections: &["server", "replication", "persistence", "errorstats", "commandstats"],
    queues: 1000,
    described: 50,
    holders: 5,
    waiters: 5,
    is_everywhere: false,
};

/// How many entries of the slow log are read.
const SLOW: usize = 20;
/// For how many connections the addresses are asked.
const CLIENTS: usize = 200;
/// How often Sentinel or the Cluster is asked for the primaries while all servers answer.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);
/// The commands that a look may send, by their names in `INFO commandstats`.
const COMMANDS: [&str; 5] = ["info", "rlock.queues", "rlock.info", "rlock.slowlog", "client|list"];

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Followed {
    /// The server; `None` means the one that has the lock.
    pub server: Option<String>,
    /// The database; `None` means that of the connection.
    pub db: Option<i64>,
    /// Its key.
    pub key: Name,
}

/// Why a server cannot be shown.
#[derive(Debug, Clone)]
pub struct Down {
    /// One of [`crate::servers::REASONS`].
    pub reason: &'static str,
    /// The same in words.
    pub words: Trouble,
}

impl From<&RedisError> for Down {
    fn from(error: &RedisError) -> Down {
        Down { reason: reason(error), words: explain(error) }
    }
}

/// What was seen of one server.
#[derive(Debug)]
pub struct Told {
    /// Host and port.
    pub name: String,
    /// The database whose locks are shown.
    pub db: i64,
    /// What it said.
    pub part: Result<Part, Down>,
    /// The newest entries of its slow log, or why not.
    pub slow: Result<Vec<Slow>, Trouble>,
    /// The addresses of connections that hold or wait, as far as the user may see them.
    pub addresses: BTreeMap<u64, String>,
    /// How long the previous look kept the server busy, by the server's own statistics (`INFO
    /// commandstats`).
    pub busy: Duration,
}

/// An entry of the slow log.
#[derive(Debug, Clone)]
pub struct Slow {
    /// When it ended, milliseconds since 1970.
    pub unix_ms: u64,
    /// `wait`, `hold` or `deadlock`.
    pub kind: String,
    /// The lock's database.
    pub db: i64,
    /// The lock's key.
    pub key: Name,
    /// Whose wait or hold.
    pub owner: Name,
    /// How long it lasted, in milliseconds.
    pub ms: u64,
    /// How it ended.
    pub outcome: String,
    /// The owners in the way; for a deadlock, each with the key for which it waits.
    pub holders: Vec<Vec<Name>>,
}

/// One look.
pub struct Seen {
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
    /// Each server.
    pub servers: Vec<Told>,
    /// Why it is unknown which servers there are.
    pub trouble: Option<Trouble>,
    /// All servers together.
    pub now: Snapshot,
    /// The locks that browsers follow, or why they cannot be seen.
    pub locks: BTreeMap<Followed, Result<Lock, Trouble>>,
    /// How long after the beginning of this look the next one begins.
    pub every: Duration,
    /// The share of its time, 0 to 1, that the busiest server spent on the recent looks.
    pub share: f64,
    /// What happened since the previous look, if that was of the same servers.
    pub point: Option<serde_json::Value>,
}

impl Seen {
    /// Nothing yet.
    #[must_use]
    pub fn nothing() -> Seen {
        let (begun, servers) = (Instant::now(), Vec::new());
        Seen {
            unix_ms: 0,
            begun,
            ended: begun,
            servers,
            trouble: Some("no server has been asked yet".into()),
            now: Snapshot::of(begun, [], ASK),
            locks: BTreeMap::new(),
            every: Duration::ZERO,
            share: 0.0,
            point: None,
        }
    }

    /// The same servers, as if none of them answered.
    #[must_use]
    pub fn silent(&self) -> Seen {
        let silent = |told: &Told| {
            let words = "the server's replies are overdue".to_owned();
            Told {
                name: told.name.clone(),
                db: told.db,
                part: Err(Down { reason: "timeout", words: words.clone() }),
                slow: Err(words),
                addresses: BTreeMap::new(),
                busy: Duration::ZERO,
            }
        };
        let servers = self.servers.iter().map(silent).collect();
        Seen { unix_ms: self.unix_ms, every: self.every, servers, ..Seen::nothing() }
    }

    /// Whether all servers answered.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.trouble.is_none() && self.servers.iter().all(|server| server.part.is_ok())
    }

    /// A line for each server.
    #[must_use]
    pub fn in_words(&self) -> String {
        let each = self.servers.iter().map(|server| match &server.part {
            Ok(_) => format!("{} answers\n", server.name),
            Err(down) => format!("{}: {}: {}\n", server.name, down.reason, down.words),
        });
        each.chain(self.trouble.iter().map(|trouble| format!("{trouble}\n"))).collect()
    }
}

/// Keeps a connection to each server.
pub struct Looker {
    at: Where,
    links: Vec<Link>,
    discovered: Option<Instant>,
}

struct Link {
    server: Server,
    connection: Option<Connection>,
    /// Commands that this user may not send.
    denied: BTreeSet<&'static str>,
    /// How often the last look sent each of [`COMMANDS`].
    sent: BTreeMap<&'static str, u64>,
    /// The call statistics of the server when this look began.
    counted: BTreeMap<&'static str, Calls>,
}

/// How often all clients called a command, and how many microseconds the calls took.
#[derive(Debug, Default, Clone, Copy)]
struct Calls {
    calls: u64,
    us: u64,
}

impl Looker {
    /// Asks nobody yet.
    #[must_use]
    pub fn new(at: Where) -> Looker {
        Looker { at, links: Vec::new(), discovered: None }
    }

    /// The servers of the last look.
    #[must_use]
    pub fn servers(&self) -> Vec<Server> {
        self.links.iter().map(|link| link.server.clone()).collect()
    }

    /// Looks at all servers, and at the followed locks.
    pub fn look(&mut self, followed: &BTreeSet<Followed>) -> Seen {
        let begun = Instant::now();
        let trouble = self.discover().err();
        let servers: Vec<Told> = {
            let each = self.links.iter_mut().enumerate();
            each.map(|(at, link)| link.look(at, self.at.is_everywhere)).collect()
        };
        if servers.iter().any(|server| server.part.is_err()) {
            self.discovered = None;
        }
        let parts = servers.iter().filter_map(|server| server.part.as_ref().ok());
        let ask = Ask { is_everywhere: self.at.is_everywhere, ..ASK };
        let now = Snapshot::of(begun, parts, ask);
        let locks = followed.iter().map(|lock| (lock.clone(), self.follow(lock))).collect();
        let unix_ms = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis());
        let unix_ms = u64::try_from(unix_ms).unwrap_or(u64::MAX);
        let (every, share, point) = (Duration::ZERO, 0.0, None);
        Seen { unix_ms, begun, ended: begun, servers, trouble, now, locks, every, share, point }
    }

    /// Finds out which servers there are, unless they were named by address.
    fn discover(&mut self) -> Result<(), Trouble> {
        let is_fixed = self.at.is_fixed();
        let is_known = self
            .discovered
            .is_some_and(|discovered| is_fixed || discovered.elapsed() < DISCOVER_EVERY);
        if is_known || (is_fixed && !self.links.is_empty()) {
            return Ok(());
        }
        let servers = self.at.watched()?;
        let mut old = std::mem::take(&mut self.links);
        self.links = servers
            .into_iter()
            .map(|server| match old.iter().position(|link| link.server.name == server.name) {
                Some(known) => old.swap_remove(known),
                None => Link::new(server),
            })
            .collect();
        self.discovered = Some(Instant::now());
        Ok(())
    }

    fn follow(&mut self, lock: &Followed) -> Result<Lock, Trouble> {
        let mut trouble = "no server answers".to_owned();
        let is_meant =
            |link: &&mut Link| lock.server.as_ref().is_none_or(|name| link.server.name == *name);
        for link in self.links.iter_mut().filter(is_meant) {
            let home = link.server.db();
            let look = |connection: &mut Connection| {
                let look = |connection: &mut Connection| look_closely(connection, &lock.key);
                within(connection, home, lock.db.unwrap_or(home), look)
            };
            match link.ask("rlock.info", 1, look) {
                Some(Ok(lock)) => return Ok(lock),
                Some(Err(error)) => trouble = explain(&error),
                None => {}
            }
        }
        Err(trouble)
    }
}

impl Link {
    fn new(server: Server) -> Link {
        let (denied, sent, counted) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Link { server, connection: None, denied, sent, counted }
    }

    fn look(&mut self, at: usize, is_everywhere: bool) -> Told {
        let part = self.part(at, is_everywhere);
        let mut slow = Err("not asked".to_owned());
        let (mut addresses, mut busy) = (BTreeMap::new(), Duration::ZERO);
        if let Ok(part) = &part {
            busy = self.account(part, is_everywhere);
            slow = self
                .permitted("rlock.slowlog", slow_log)
                .unwrap_or_else(|| Err("This user may not send RLOCK.SLOWLOG.".into()));
            let clients = clients_of(part);
            if !clients.is_empty() {
                let told = self.permitted("client|list", |link| addresses_of(link, &clients));
                addresses = told.and_then(Result::ok).unwrap_or_default();
            }
        }
        let (name, db) = (self.server.name.clone(), self.server.db());
        Told { name, db, part, slow, addresses, busy }
    }

    /// How long the previous look took the server: for each command, the number of calls that it
    /// sent, times the mean time of all calls since then.
    fn account(&mut self, part: &Part, is_everywhere: bool) -> Duration {
        let counted = calls_of(part);
        let each = self.sent.iter().map(|(name, &sent)| {
            let now = counted.get(name).copied().unwrap_or_default();
            let old = self.counted.get(name).copied().unwrap_or_default();
            // After CONFIG RESETSTAT, the statistics start from 0.
            let (calls, us) = match now.calls.checked_sub(old.calls) {
                Some(calls) if calls > 0 => (calls, now.us.saturating_sub(old.us)),
                _ => (now.calls, now.us),
            };
            (us * sent).checked_div(calls).unwrap_or(0)
        });
        let us = each.sum();
        let described = part.queues.iter().filter(|queue| queue.lock.is_some()).count();
        let described = u64::try_from(described).unwrap_or(u64::MAX);
        let databases =
            if is_everywhere { others(&part.fields, self.server.db()).len() } else { 0 };
        let databases = u64::try_from(databases).unwrap_or(u64::MAX).saturating_add(1);
        self.sent =
            BTreeMap::from([("info", 1), ("rlock.queues", databases), ("rlock.info", described)]);
        self.counted = counted;
        Duration::from_micros(us)
    }

    fn part(&mut self, at: usize, is_everywhere: bool) -> Result<Part, Down> {
        if self.connection.is_none() {
            self.connect().map_err(|error| Down::from(&error))?;
        }
        // A command that was denied is not sent again: each refusal adds an entry to the server's
        // ACL log.
        let described = if self.denied.contains("rlock.info") { 0 } else { ASK.described };
        let (ask, home) = (Ask { described, is_everywhere, ..ASK }, self.server.db());
        match self.ask("info", 0, |connection| Part::take(connection, at, home, ask)) {
            Some(Ok(mut part)) => {
                if part.is_denied {
                    self.denied.insert("rlock.info");
                }
                part.is_denied = self.denied.contains("rlock.info");
                Ok(part)
            }
            Some(Err(error)) => Err(Down::from(&error)),
            None => Err(Down { reason: "unreachable", words: "no connection".into() }),
        }
    }

    fn connect(&mut self) -> RedisResult<()> {
        self.connection = Some(self.server.try_connect()?);
        self.denied.clear();
        self.sent.clear();
        self.counted.clear();
        Ok(())
    }

    /// Asks over the connection, if there is one. The question sends the command `what` this many
    /// `times`.
    fn ask<T>(
        &mut self,
        what: &'static str,
        times: u64,
        ask: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Option<RedisResult<T>> {
        let answer = ask(self.connection.as_mut()?);
        *self.sent.entry(what).or_default() += times;
        // A late answer would be taken for the answer to the next question.
        if answer.as_ref().is_err_and(|error| error.is_io_error() || error.is_timeout()) {
            self.connection = None;
        }
        Some(answer)
    }

    /// Sends a question that this user may not be allowed to ask; once refused, it is not sent
    /// again.
    fn permitted<T>(
        &mut self,
        what: &'static str,
        ask: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Option<Result<T, Trouble>> {
        if self.denied.contains(what) {
            return None;
        }
        let answer = self.ask(what, 1, ask)?;
        if answer.as_ref().is_err_and(|error| reason(error) != "timeout" && !error.is_io_error()) {
            self.denied.insert(what);
        }
        Some(answer.map_err(|error| explain(&error)))
    }
}

fn calls_of(part: &Part) -> BTreeMap<&'static str, Calls> {
    let number = |text: &str, name: &str| {
        text.split(',').find_map(|word| word.strip_prefix(name)?.parse().ok()).unwrap_or(0)
    };
    let each = COMMANDS.iter().filter_map(|name| {
        let text = part.fields.get(&format!("cmdstat_{name}"))?;
        Some((*name, Calls { calls: number(text, "calls="), us: number(text, "usec=") }))
    });
    each.collect()
}

fn clients_of(part: &Part) -> Vec<u64> {
    let locks = part.queues.iter().filter_map(|queue| queue.lock.as_ref());
    let each = locks.flat_map(|lock| {
        let holders = lock.holders.iter().map(|hold| hold.session);
        holders.chain(lock.waiters.iter().map(|wait| wait.client))
    });
    let found: BTreeSet<u64> = each.filter(|client| *client != 0).take(CLIENTS).collect();
    found.into_iter().collect()
}

fn addresses_of(connection: &mut Connection, ids: &[u64]) -> RedisResult<BTreeMap<u64, String>> {
    let list: String = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(ids).query(connection)?;
    let word = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name)).map(str::to_owned)
    };
    let each = list
        .lines()
        .filter_map(|line| Some((word(line, "id=")?.parse().ok()?, word(line, "addr=")?)));
    Ok(each.collect())
}

fn slow_log(connection: &mut Connection) -> RedisResult<Vec<Slow>> {
    let told: Vec<BTreeMap<String, Value>> =
        redis::cmd("RLOCK.SLOWLOG").arg("GET").arg(SLOW).query(connection)?;
    told.iter().map(slow).collect()
}

fn slow(entry: &BTreeMap<String, Value>) -> RedisResult<Slow> {
    fn field<T: redis::FromRedisValue>(
        entry: &BTreeMap<String, Value>,
        name: &str,
    ) -> RedisResult<T> {
        Ok(from_redis_value_ref(entry.get(name).unwrap_or(&Value::Nil))?)
    }
    let holders: Vec<Value> = field(entry, "holders")?;
    let names = |holder: &Value| match holder {
        Value::Array(names) => names.iter().map(from_redis_value_ref::<Name>).collect(),
        name => from_redis_value_ref(name).map(|name| vec![name]),
    };
    Ok(Slow {
        unix_ms: field(entry, "unix-ms")?,
        kind: field(entry, "kind")?,
        db: field(entry, "db")?,
        key: field(entry, "key")?,
        owner: field(entry, "owner")?,
        ms: field(entry, "ms")?,
        outcome: field(entry, "outcome")?,
        holders: holders.iter().map(names).collect::<Result<_, _>>()?,
    })
}
