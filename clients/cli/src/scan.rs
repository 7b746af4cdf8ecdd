//! Scans all locks of a server, a thousand keys at a time, with pauses, so that the server spends
//! about a twentieth of its time on the scan.

use std::time::Duration;

use redis::{Connection, Pipeline, RedisError, RedisResult};

use crate::servers::{Server, Trouble, code_of, explain};
use crate::snapshot::{Lock, Map, Name, databases_of, info_of, lock_of};

/// What `TYPE` replies for a lock.
const TYPE: &str = "rlock-key";
/// Keys of one request.
pub const KEYS: u64 = 1000;
/// A scan may take at most one part in this many of the server's time.
const SHARE: u32 = 20;
/// The longest pause.
const PAUSE: Duration = Duration::from_millis(500);
/// How many holders of one lock are read to find one owner: the server lists no more.
const HOLDERS: usize = 10_000;

/// What is asked of each lock.
#[derive(Debug, Clone, Copy)]
pub struct Scan<'p> {
    /// A pattern of `SCAN … MATCH`; `None` is all keys.
    pub pattern: Option<&'p str>,
    /// How many holders of each lock are listed at most.
    pub holders: usize,
    /// The most waiters.
    pub waiters: usize,
}

/// What one request found.
pub struct Found {
    /// The cursor of the next request; 0 at the end.
    pub next: u64,
    /// How many of the keys were locks.
    pub read: usize,
    /// Those that are held.
    pub locks: Vec<(Name, Lock)>,
}

impl Scan<'_> {
    /// Sends one request, in the given database if it is not the connection's own.
    ///
    /// # Errors
    /// The server's. A key that has become something else, or has moved to another server
    /// meanwhile, is left out.
    pub fn step(
        &self,
        connection: &mut Connection,
        db: Option<i64>,
        cursor: u64,
    ) -> RedisResult<Found> {
        let mut scan = Pipeline::new();
        if let Some(db) = db {
            scan.cmd("SELECT").arg(db).ignore();
        }
        scan.cmd("SCAN").arg(cursor).arg("TYPE").arg(TYPE).arg("COUNT").arg(KEYS);
        if let Some(pattern) = self.pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let ((next, keys),): ((u64, Vec<Name>),) = scan.query(connection)?;
        let mut found = Found { next, read: keys.len(), locks: Vec::new() };
        if keys.is_empty() {
            return Ok(found); // redis-rs refuses an empty pipeline
        }
        let mut closer = Pipeline::new();
        for key in &keys {
            closer.add_command(info_of(key, self.holders, self.waiters));
        }
        let told: Vec<RedisResult<Map>> = closer.ignore_errors().query(connection)?;
        for (key, told) in keys.into_iter().zip(told) {
            match told {
                Ok(told) => found.locks.push((key, lock_of(&told)?)),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        found.locks.retain(|(_, lock)| !lock.holders.is_empty());
        Ok(found)
    }
}

fn is_gone(error: &RedisError) -> bool {
    matches!(error.code(), Some("WRONGTYPE" | "MOVED" | "ASK"))
}

/// The lock with as many of its holders as the server lists.
///
/// # Errors
/// The server's.
pub fn all_holders(connection: &mut Connection, key: &Name, waiters: usize) -> RedisResult<Lock> {
    lock_of(&info_of(key, HOLDERS, waiters).query(connection)?)
}

/// How long to pause after a request that took `cost`.
#[must_use]
pub fn pause(cost: Duration) -> Duration {
    (cost * (SHARE - 1)).min(PAUSE)
}

/// The databases to scan: all that have keys, or only the connection's own.
///
/// # Errors
/// The server's.
pub fn databases(
    connection: &mut Connection,
    home: i64,
    is_everywhere: bool,
) -> RedisResult<Vec<i64>> {
    if !is_everywhere {
        return Ok(vec![home]);
    }
    let text: String = redis::cmd("INFO").arg("keyspace").query(connection)?;
    Ok(databases_of(&text))
}

/// How many keys the connection's database has, if the user may ask.
#[must_use]
pub fn size(connection: &mut Connection) -> Option<u64> {
    redis::cmd("DBSIZE").query(connection).ok()
}

/// Why a server cannot be scanned.
#[must_use]
pub fn refusal(server: &Server, error: &RedisError) -> Trouble {
    match code_of(error).as_deref() {
        Some("NOPERM") => "this user may not send SCAN, RLOCK.INFO or SELECT".to_owned(),
        _ => format!("{}: {}", server.name, explain(error)),
    }
}
