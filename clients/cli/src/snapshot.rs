//! A snapshot of the servers: their counters, their longest queues, and who holds and waits.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use redis::{
    Cmd, Connection, FromRedisValue, ParsingError, Pipeline, RedisResult, Value,
    from_redis_value_ref,
};

use crate::servers::code_of;

/// Numbers by their name in `INFO rlock`, without the prefix `rlock_`.
pub type Numbers = BTreeMap<String, u64>;

/// The servers' state at one moment.
pub struct Snapshot {
    /// When they were asked, by this machine's clock.
    pub at: Instant,
    /// `INFO rlock`, summed over the primaries: totals since the servers' start, and current numbers.
    pub numbers: Numbers,
    /// The longest queues, longest first.
    pub queues: Vec<Queue>,
    /// Whether `queues` covers all databases.
    pub is_everywhere: bool,
}

/// How much is asked of each server.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Sections of `INFO` to read, in addition to `rlock`.
    pub sections: &'static [&'static str],
    /// The longest queues, 1 to 1000.
    pub queues: usize,
    /// For how many of these queues to read the holders and waiters.
    pub described: usize,
    /// The most holders listed for each of these queues.
    pub holders: usize,
    /// The most waiters listed for each of these queues.
    pub waiters: usize,
    /// Whether all databases are read, or only that of the connection.
    pub is_everywhere: bool,
}

impl Ask {
    /// The `count` longest queues and their holders.
    #[must_use]
    pub fn longest(count: usize) -> Ask {
        let queues = count.clamp(1, 1000);
        Ask {
            sections: &[],
            queues,
            described: queues,
            holders: 100,
            waiters: 0,
            is_everywhere: false,
        }
    }
}

/// What one server said.
#[derive(Debug)]
pub struct Part {
    /// The fields of `INFO`, with their values as text.
    pub fields: BTreeMap<String, String>,
    /// Its longest queues, longest first.
    pub queues: Vec<Queue>,
    /// Whether this user may not read holders and waiters.
    pub is_denied: bool,
}

/// One lock that somebody waits for.
#[derive(Debug, Clone)]
pub struct Queue {
    /// The index of the server that has it.
    pub server: usize,
    /// In which database.
    pub db: i64,
    /// The lock's key.
    pub key: Name,
    /// How many wait.
    pub length: u64,
    /// How long the first of them has waited.
    pub head_waits: Duration,
    /// Who holds and who waits, if that was asked. Nobody holds while a ticket has its turn, or if
    /// the lock was released between two questions.
    pub lock: Option<Lock>,
}

/// The name of a key or an owner: any bytes. Displayed with bytes outside of printable ASCII as `\xhh`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(to)
    }
}

impl FromRedisValue for Name {
    fn from_redis_value(value: Value) -> Result<Name, ParsingError> {
        Vec::from_redis_value(value).map(Name)
    }
}

/// The details of one lock.
#[derive(Debug, Clone)]
pub struct Lock {
    /// `free`, `read` or `write`.
    pub mode: String,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// How many hold it; only the first are listed.
    pub holder_count: u64,
    /// The first of those who wait.
    pub waiters: Vec<Waiter>,
    /// How many wait.
    pub length: u64,
    /// How many observers it has; 0 if the server does not report them.
    pub observers: u64,
}

/// One hold.
#[derive(Debug, Clone)]
pub struct Holder {
    /// The owner's name.
    pub owner: Name,
    /// `read` or `write`.
    pub mode: String,
    /// Its levels.
    pub depth: u64,
    /// The fencing token.
    pub token: u64,
    /// For how long it has been held.
    pub held: Duration,
    /// The remaining lease.
    pub left: Duration,
    /// The ID of the session's connection, as in `CLIENT LIST`; 0 if the hold has no session.
    pub session: u64,
    /// `none`, `pending` or `done`: whether replicas have acknowledged the hold; empty if the
    /// server does not report it.
    pub acks: String,
}

/// One wait.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The owner's name.
    pub owner: Name,
    /// `read` or `write`.
    pub mode: String,
    /// `block`, `queue` or `tell`.
    pub kind: String,
    /// Whether the lock is reserved for this waiter: a ticket that has its turn, or a group that
    /// still waits for other locks.
    pub has_turn: bool,
    /// For how long it has waited.
    pub waited: Duration,
    /// How long it will still wait; `None` is forever.
    pub left: Option<Duration>,
    /// The ID of the blocked connection, as in `CLIENT LIST`; 0 if there is none.
    pub client: u64,
    /// How many may hold at once; 0 is no limit.
    pub limit: u64,
    /// The channel for its message; empty if it does not wait for one.
    pub channel: Name,
}

/// An answer of the module.
pub type Map = BTreeMap<String, Value>;

impl Part {
    /// Asks a server that has loaded the module. `server` is its index among the servers asked, and
    /// `home` the database of the connection.
    ///
    /// # Errors
    /// If it does not answer, or not like the module.
    pub fn take(
        connection: &mut Connection,
        server: usize,
        home: i64,
        ask: Ask,
    ) -> RedisResult<Part> {
        let mut both = Pipeline::new();
        both.cmd("INFO").arg("rlock").arg(ask.sections);
        both.add_command(longest(ask));
        let (info, longest): (String, Longest) = both.query(connection)?;
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<String, String> =
            fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut all = vec![(home, longest)];
        if ask.is_everywhere {
            all.extend(elsewhere(connection, &fields, home, ask)?);
        }
        let each = all.into_iter().flat_map(|(db, longest)| {
            longest.into_iter().map(move |(key, length, head_ms)| Queue {
                server,
                db,
                key,
                length,
                head_waits: Duration::from_millis(head_ms),
                lock: None,
            })
        });
        let mut queues: Vec<Queue> = each.collect();
        queues.sort_by(Queue::longer);
        queues.truncate(ask.queues);
        let is_denied = !describe(connection, &mut queues, home, ask)?;
        Ok(Part { queues, fields, is_denied })
    }

    /// Whether it is a primary, as far as its role was asked.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.fields.get("role").is_none_or(|role| role == "master")
    }

    /// The numbers of `INFO rlock`.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        let own = self.fields.iter().filter_map(|(name, value)| {
            Some((name.strip_prefix("rlock_")?.to_owned(), value.parse().ok()?))
        });
        own.collect()
    }
}

impl Snapshot {
    /// Asks all `servers`, whose connections are in the database `home`.
    ///
    /// # Errors
    /// As [`Part::take`].
    pub fn take(servers: &mut [Connection], home: i64, ask: Ask) -> RedisResult<Snapshot> {
        let at = Instant::now();
        let each = servers.iter_mut().enumerate();
        let parts = each.map(|(n, server)| Part::take(server, n, home, ask));
        Ok(Snapshot::of(at, &parts.collect::<RedisResult<Vec<_>>>()?, ask))
    }

    /// Merges the answers of several servers.
    #[must_use]
    pub fn of<'p>(at: Instant, parts: impl IntoIterator<Item = &'p Part>, ask: Ask) -> Snapshot {
        let is_everywhere = ask.is_everywhere;
        let mut now = Snapshot { at, numbers: Numbers::new(), queues: Vec::new(), is_everywhere };
        let parts: Vec<&Part> = parts.into_iter().collect();
        let has_primary = parts.iter().any(|part| part.is_primary());
        for part in parts {
            // A replica has copies of its primary's locks.
            if part.is_primary() || !has_primary {
                for (name, number) in part.numbers() {
                    *now.numbers.entry(name).or_default() += number;
                }
            }
            now.queues.extend(part.queues.iter().cloned());
        }
        now.queues.sort_by(Queue::longer);
        now.queues.truncate(ask.queues);
        now
    }

    /// How many wait, in all databases of the servers.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        ["waiters", "tickets", "tells"].iter().map(|name| self.number(name)).sum()
    }

    /// A number of `INFO rlock`; 0 for one that these servers do not have.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }
}

impl Queue {
    /// The key, with its database if several are shown.
    #[must_use]
    pub fn name(&self, is_everywhere: bool) -> String {
        if is_everywhere {
            format!("{} (database {})", self.key, self.db)
        } else {
            self.key.to_string()
        }
    }

    fn longer(&self, other: &Queue) -> Ordering {
        let longest = (other.length, other.head_waits).cmp(&(self.length, self.head_waits));
        longest.then_with(|| (&self.key, self.db).cmp(&(&other.key, other.db)))
    }
}

/// Key, length, how long the first has waited.
type Longest = Vec<(Name, u64, u64)>;

fn longest(ask: Ask) -> Cmd {
    let mut words = redis::cmd("RLOCK.QUEUES");
    words.arg("COUNT").arg(ask.queues);
    words
}

/// The databases in which somebody waits, besides that one. `INFO keyspace` does not list all of them: a free lock that is
/// reserved for somebody in its queue has no key.
#[must_use]
pub fn others(fields: &BTreeMap<String, String>, home: i64) -> Vec<i64> {
    let each = fields.keys().filter_map(|name| name.strip_prefix("rlock_queues_db")?.parse().ok());
    each.filter(|db| *db != home).collect()
}

/// The databases that `INFO keyspace` lists.
#[must_use]
pub fn databases_of(keyspace: &str) -> Vec<i64> {
    let each = keyspace.lines().filter_map(|line| line.split_once(':')?.0.strip_prefix("db"));
    each.filter_map(|db| db.parse().ok()).collect()
}

/// The longest queues of the other databases. Afterward, the connection is back in its own
/// database.
fn elsewhere(
    connection: &mut Connection,
    fields: &BTreeMap<String, String>,
    home: i64,
    ask: Ask,
) -> RedisResult<Vec<(i64, Longest)>> {
    let databases = others(fields, home);
    if databases.is_empty() {
        return Ok(Vec::new());
    }
    let mut each = Pipeline::new();
    for db in &databases {
        each.cmd("SELECT").arg(db).ignore();
        each.add_command(longest(ask));
    }
    each.cmd("SELECT").arg(home).ignore();
    let told: Vec<Longest> = each.query(connection)?;
    Ok(databases.into_iter().zip(told).collect())
}

/// Reads the holders and waiters of the queues. False if this user may not.
fn describe(
    connection: &mut Connection,
    queues: &mut [Queue],
    home: i64,
    ask: Ask,
) -> RedisResult<bool> {
    let mut closer = Pipeline::new();
    let mut db = home;
    for queue in queues.iter().take(ask.described) {
        if std::mem::replace(&mut db, queue.db) != queue.db {
            closer.cmd("SELECT").arg(queue.db).ignore();
        }
        closer.add_command(info_of(&queue.key, ask.holders, ask.waiters));
    }
    if db != home {
        closer.cmd("SELECT").arg(home).ignore();
    }
    // redis-rs refuses an empty pipeline.
    if closer.is_empty() {
        return Ok(true);
    }
    let told: Vec<Map> = match closer.query(connection) {
        Err(error) if code_of(&error).as_deref() == Some("NOPERM") => return Ok(false),
        told => told?,
    };
    for (queue, told) in queues.iter_mut().zip(&told) {
        queue.lock = Some(lock_of(told)?);
    }
    Ok(true)
}

/// Runs `what` in another database, and then selects the connection's own database again.
///
/// # Errors
/// Those of what is done, and of `SELECT`.
pub fn within<T>(
    connection: &mut Connection,
    home: i64,
    db: i64,
    work: impl FnOnce(&mut Connection) -> RedisResult<T>,
) -> RedisResult<T> {
    let select = |connection: &mut Connection, db: i64| -> RedisResult<()> {
        redis::cmd("SELECT").arg(db).query(connection)
    };
    if db == home {
        return work(connection);
    }
    select(connection, db)?;
    let done = work(connection);
    select(connection, home)?;
    done
}

/// Asks who holds a lock, and who waits for it.
#[must_use]
pub fn info_of(key: &Name, holders: usize, waiters: usize) -> Cmd {
    let mut ask = redis::cmd("RLOCK.INFO");
    ask.arg(&key.0).arg("HOLDERS").arg(holders).arg("WAITERS").arg(waiters);
    ask
}

/// One lock and the first hundred of those who wait for it.
///
/// # Errors
/// As [`Snapshot::take`].
pub fn look(connection: &mut Connection, key: &Name) -> RedisResult<Lock> {
    lock_of(&info_of(key, 100, 100).query(connection)?)
}

/// Parses a reply of `RLOCK.INFO`.
///
/// # Errors
/// If it is not like the module's.
pub fn lock_of(lock: &Map) -> RedisResult<Lock> {
    let waiters: Vec<Map> = field(lock, "waiters")?;
    let holders: Vec<Map> = field(lock, "holders")?;
    let holders = holders.iter().map(holder).collect::<RedisResult<Vec<_>>>()?;
    let told = u64::try_from(holders.len()).unwrap_or(u64::MAX);
    Ok(Lock {
        mode: field(lock, "mode")?,
        holder_count: field::<Option<u64>>(lock, "holder-count")?.unwrap_or(told),
        holders,
        waiters: waiters.iter().map(waiter).collect::<RedisResult<_>>()?,
        length: field(lock, "queue-length")?,
        observers: field::<Option<u64>>(lock, "observers")?.unwrap_or(0),
    })
}

fn holder(hold: &Map) -> RedisResult<Holder> {
    Ok(Holder {
        owner: field(hold, "owner")?,
        mode: field(hold, "mode")?,
        depth: field(hold, "depth")?,
        token: field(hold, "token")?,
        held: Duration::from_millis(field(hold, "held-ms")?),
        left: Duration::from_millis(field(hold, "ttl-ms")?),
        session: field(hold, "session")?,
        acks: field::<Option<String>>(hold, "acks")?.unwrap_or_default(),
    })
}

fn waiter(wait: &Map) -> RedisResult<Waiter> {
    let left: i64 = field(wait, "left-ms")?;
    Ok(Waiter {
        owner: field(wait, "owner")?,
        mode: field(wait, "mode")?,
        kind: field(wait, "kind")?,
        has_turn: field::<u64>(wait, "turn")? != 0,
        waited: Duration::from_millis(field(wait, "waited-ms")?),
        left: u64::try_from(left).ok().map(Duration::from_millis),
        client: field::<Option<u64>>(wait, "client")?.unwrap_or(0),
        limit: field::<Option<u64>>(wait, "limit")?.unwrap_or(0),
        channel: field(wait, "channel")?,
    })
}

fn field<T: FromRedisValue>(map: &Map, name: &str) -> RedisResult<T> {
    Ok(from_redis_value_ref(map.get(name).unwrap_or(&Value::Nil))?)
}
