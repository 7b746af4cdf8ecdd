//! One look at a server: its counters, its longest queues, and who holds what they wait for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, Pipeline, RedisResult, Value, from_redis_value_ref};

/// What the server said at one moment.
pub struct Snapshot {
    /// When it was asked, by this machine's clock.
    pub at: Instant,
    /// `INFO rlock`, without the prefix `rlock_`; totals since the server's start, and what is so now.
    pub numbers: BTreeMap<String, u64>,
    /// The longest queues of the database, longest first.
    pub queues: Vec<Queue>,
}

/// One lock that somebody waits for.
pub struct Queue {
    /// The lock's key; bytes outside of printable ASCII as `\xhh`.
    pub key: String,
    /// How many wait.
    pub length: u64,
    /// How long the first of them has waited.
    pub head_waits: Duration,
    /// Who holds it; nobody while a ticket has its turn, or when it was let go between two questions.
    pub holders: Vec<Holder>,
}

/// One hold.
pub struct Holder {
    /// The owner's name; bytes outside of printable ASCII as `\xhh`.
    pub owner: String,
    /// `read` or `write`.
    pub mode: String,
    /// How long it is held.
    pub held: Duration,
    /// What is left of its lease.
    pub left: Duration,
    /// Whether it is tied to a connection, which renews its lease.
    pub is_session: bool,
}

impl Snapshot {
    /// Asks a server, which must have the module, for its `count` longest queues.
    ///
    /// # Errors
    /// When it does not answer, or not as the module would.
    pub fn take(connection: &mut Connection, count: usize) -> RedisResult<Snapshot> {
        let at = Instant::now();
        let info: String = redis::cmd("INFO").arg("rlock").query(connection)?;
        let lines = info.lines().filter_map(|line| line.strip_prefix("rlock_")?.split_once(':'));
        let numbers = lines.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
        let numbers = numbers.collect();
        let longest: Vec<(Vec<u8>, u64, u64)> =
            redis::cmd("RLOCK.QUEUES").arg("COUNT").arg(count).query(connection)?;
        let mut ask = Pipeline::new();
        for (key, ..) in &longest {
            ask.add_command(Cmd::new().arg("RLOCK.INFO").arg(key).arg("WAITERS").arg(0).clone());
        }
        let locks: Vec<BTreeMap<String, Value>> = ask.query(connection)?;
        let queues = longest.into_iter().zip(&locks).map(|((key, length, head_ms), lock)| {
            let holders: Vec<BTreeMap<String, Value>> = field(lock, "holders")?;
            Ok(Queue {
                key: key.escape_ascii().to_string(),
                length,
                head_waits: Duration::from_millis(head_ms),
                holders: holders.iter().map(holder).collect::<RedisResult<_>>()?,
            })
        });
        let queues = queues.collect::<RedisResult<_>>()?;
        Ok(Snapshot { at, numbers, queues })
    }

    /// A number of `INFO rlock`; 0 for one that this server does not have.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }
}

fn holder(hold: &BTreeMap<String, Value>) -> RedisResult<Holder> {
    let owner: Vec<u8> = field(hold, "owner")?;
    Ok(Holder {
        owner: owner.escape_ascii().to_string(),
        mode: field(hold, "mode")?,
        held: Duration::from_millis(field(hold, "held-ms")?),
        left: Duration::from_millis(field(hold, "ttl-ms")?),
        is_session: field::<u64>(hold, "session")? != 0,
    })
}

fn field<T: redis::FromRedisValue>(map: &BTreeMap<String, Value>, name: &str) -> RedisResult<T> {
    Ok(from_redis_value_ref(map.get(name).unwrap_or(&Value::Nil))?)
}
