//! A snapshot of the servers: their counters, their longest queues, and who holds and waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue, Pipeline, RedisResult, Value, from_redis_value_ref};

/// The servers' state at one moment.
pub struct Snapshot {
    /// When they were asked, by this machine's clock.
    pub at: Instant,
    /// `INFO rlock`, without the prefix `rlock_`, summed: totals since the servers' start, and current numbers.
    pub numbers: BTreeMap<String, u64>,
    /// The longest queues, longest first.
    pub queues: Vec<Queue>,
}

/// One lock that somebody waits for.
pub struct Queue {
    /// Which of the servers has it.
    pub server: usize,
    /// The lock's key.
    pub key: Vec<u8>,
    /// How many wait.
    pub length: u64,
    /// How long the first of them has waited.
    pub head_waits: Duration,
    /// Who holds it; nobody while a ticket has its turn, or when it was released between two questions.
    pub holders: Vec<Holder>,
}

/// The details of one lock.
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
}

/// One hold.
pub struct Holder {
    /// The owner's name; bytes outside of printable ASCII as `\xhh`.
    pub owner: String,
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
    /// The connection that it is tied to, which renews its lease, as in `CLIENT LIST`; 0 is none.
    pub session: u64,
}

/// One wait.
pub struct Waiter {
    /// The owner's name; bytes outside of printable ASCII as `\xhh`.
    pub owner: String,
    /// `read` or `write`.
    pub mode: String,
    /// `block` or `queue`.
    pub kind: String,
    /// Whether it is a ticket that has its turn.
    pub has_turn: bool,
    /// For how long it has waited.
    pub waited: Duration,
    /// How long it will still wait; `None` is forever.
    pub left: Option<Duration>,
    /// The blocked connection, as in `CLIENT LIST`; 0 is none, for a ticket or a server that does not say.
    pub client: u64,
    /// How many may hold at once; 0 is no limit.
    pub limit: u64,
}

type Map = BTreeMap<String, Value>;

impl Snapshot {
    /// Asks all `servers`, which must have the module, for their `count` longest queues.
    ///
    /// # Errors
    /// If one does not answer, or not like the module.
    pub fn take(servers: &mut [Connection], count: usize) -> RedisResult<Snapshot> {
        let mut now = Snapshot { at: Instant::now(), numbers: BTreeMap::new(), queues: Vec::new() };
        for (at, connection) in servers.iter_mut().enumerate() {
            let info: String = redis::cmd("INFO").arg("rlock").query(connection)?;
            let lines =
                info.lines().filter_map(|line| line.strip_prefix("rlock_")?.split_once(':'));
            for (name, number) in
                lines.filter_map(|(name, number)| Some((name, number.parse::<u64>().ok()?)))
            {
                *now.numbers.entry(name.to_owned()).or_default() += number;
            }
            now.queues.extend(queues(connection, at, count)?);
        }
        now.queues.sort_by(|a, b| {
            (b.length, b.head_waits, &a.key).cmp(&(a.length, a.head_waits, &b.key))
        });
        now.queues.truncate(count);
        Ok(now)
    }

    /// A number of `INFO rlock`; 0 for one that these servers do not have.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }
}

/// The longest queues of one server.
///
/// # Errors
/// As [`Snapshot::take`].
pub fn queues(connection: &mut Connection, server: usize, count: usize) -> RedisResult<Vec<Queue>> {
    let longest: Vec<(Vec<u8>, u64, u64)> =
        redis::cmd("RLOCK.QUEUES").arg("COUNT").arg(count.clamp(1, 1000)).query(connection)?;
    let mut ask = Pipeline::new();
    for (key, ..) in &longest {
        ask.add_command(Cmd::new().arg("RLOCK.INFO").arg(key).arg("WAITERS").arg(0).clone());
    }
    // redis-rs refuses an empty pipeline.
    let locks: Vec<Map> = if longest.is_empty() { Vec::new() } else { ask.query(connection)? };
    let described = longest.into_iter().zip(&locks).map(|((key, length, head_ms), lock)| {
        let head_waits = Duration::from_millis(head_ms);
        Ok(Queue { server, key, length, head_waits, holders: holders(lock)? })
    });
    described.collect()
}

/// One lock and the first hundred of those who wait for it.
///
/// # Errors
/// As [`Snapshot::take`].
pub fn look(connection: &mut Connection, key: &[u8]) -> RedisResult<Lock> {
    let lock: Map = redis::cmd("RLOCK.INFO").arg(key).arg("WAITERS").arg(100).query(connection)?;
    let waiters: Vec<Map> = field(&lock, "waiters")?;
    let holders = holders(&lock)?;
    let told = u64::try_from(holders.len()).unwrap_or(u64::MAX);
    Ok(Lock {
        mode: field(&lock, "mode")?,
        holder_count: field::<Option<u64>>(&lock, "holder-count")?.unwrap_or(told),
        holders,
        waiters: waiters.iter().map(waiter).collect::<RedisResult<_>>()?,
        length: field(&lock, "queue-length")?,
    })
}

fn holders(lock: &Map) -> RedisResult<Vec<Holder>> {
    field::<Vec<Map>>(lock, "holders")?.iter().map(holder).collect()
}

fn holder(hold: &Map) -> RedisResult<Holder> {
    Ok(Holder {
        owner: name(hold, "owner")?,
        mode: field(hold, "mode")?,
        depth: field(hold, "depth")?,
        token: field(hold, "token")?,
        held: Duration::from_millis(field(hold, "held-ms")?),
        left: Duration::from_millis(field(hold, "ttl-ms")?),
        session: field(hold, "session")?,
    })
}

fn waiter(wait: &Map) -> RedisResult<Waiter> {
    let left: i64 = field(wait, "left-ms")?;
    Ok(Waiter {
        owner: name(wait, "owner")?,
        mode: field(wait, "mode")?,
        kind: field(wait, "kind")?,
        has_turn: field::<u64>(wait, "turn")? != 0,
        waited: Duration::from_millis(field(wait, "waited-ms")?),
        left: u64::try_from(left).ok().map(Duration::from_millis),
        client: field::<Option<u64>>(wait, "client")?.unwrap_or(0),
        limit: field::<Option<u64>>(wait, "limit")?.unwrap_or(0),
    })
}

fn name(map: &Map, field_name: &str) -> RedisResult<String> {
    Ok(field::<Vec<u8>>(map, field_name)?.escape_ascii().to_string())
}

fn field<T: FromRedisValue>(map: &Map, name: &str) -> RedisResult<T> {
    Ok(from_redis_value_ref(map.get(name).unwrap_or(&Value::Nil))?)
}
