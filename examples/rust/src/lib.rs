//! A lock for redis-rs, as a guard. Copy this file.
//!
//! ```no_run
//! # use rlock_example::{Guard, Mode};
//! # fn work(client: &redis::Client) -> Result<(), rlock_example::Error> {
//! let wait = std::time::Duration::from_secs(10);
//! let mut guard = Guard::acquire(client, "order:42", "me", Mode::Write, wait)?;
//! guard.check()?; // before a step that must not be done twice
//! guard.release()
//! # }
//! ```
//!
//! The hold is a session on a connection of the guard's own: the server renews its lease while the connection lives,
//! and closes the connection when the hold ends in another way. So there is nothing to renew here, a dropped guard or
//! a killed process lets the next one in at once, and nothing is sent again. A network that was cut is noticed by each
//! end only after its keepalive; until then the token decides.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, Connection, RedisError};

/// Exclusive, or shared with other readers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nobody else.
    Write,
    /// Readers only.
    Read,
}

/// Why a lock is not held.
#[derive(Debug)]
pub enum Error {
    /// Somebody else held it until the wait was over.
    NotAcquired,
    /// The wait would never end: let go of what you hold, then begin again.
    Deadlock(RedisError),
    /// The hold was over before it was released: others may have worked at the same time.
    Lost,
    /// The server could not be asked, or refused.
    Redis(RedisError),
}

/// A lock that is held until it is released or dropped.
pub struct Guard {
    connection: Connection,
    lock: [String; 3],
    token: u64,
}

/// What is left to a hold if the server fails over, where a session ends. Nothing else waits for it.
const LEASE_MS: u64 = 10_000;

/// How much longer than the wait itself its reply may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Guard {
    /// Waits for `key`, for `wait` at most (0: asks once). `owner` is who holds: one that takes several locks says
    /// the same name, so that the server can see a deadlock.
    pub fn acquire(
        client: &redis::Client,
        key: &str,
        owner: &str,
        mode: Mode,
        wait: Duration,
    ) -> Result<Guard, Error> {
        let mut connection = client.get_connection()?;
        connection.set_read_timeout(Some(wait.saturating_add(PATIENCE)))?;
        let mode = if mode == Mode::Write { "WRITE" } else { "READ" };
        let lock = [key, owner, mode].map(str::to_owned);
        let mut ask = redis::cmd("RLOCK.ACQUIRE");
        ask.arg(&lock).arg("SESSION").arg("LEASE").arg(LEASE_MS).arg("DEPTH").arg(1);
        if !wait.is_zero() {
            // BLOCK 0 would wait for ever, so the shortest wait is 1 ms.
            ask.arg("BLOCK").arg(wait.as_millis().max(1).to_string());
        }
        let token: Option<u64> = ask.query(&mut connection)?;
        let token = token.ok_or(Error::NotAcquired)?;
        Ok(Guard { connection, lock, token })
    }

    /// The fencing token: whatever is written to should refuse a smaller one.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Asks the server whether the hold still lives.
    ///
    /// # Errors
    /// [`Error::Lost`] when it does not, or the connection is gone, which comes to the same.
    pub fn check(&mut self) -> Result<(), Error> {
        let mut ask = redis::cmd("RLOCK.CHECK");
        ask.arg(&self.lock[0]).arg(self.token).arg(&self.lock[2]);
        if self.ask(&ask)? == 1 { Ok(()) } else { Err(Error::Lost) }
    }

    /// Lets go. Dropping the guard does so as well, but cannot tell that the hold was lost.
    ///
    /// # Errors
    /// [`Error::Lost`] when the hold was over before, which is then the caller's to repair.
    pub fn release(mut self) -> Result<(), Error> {
        let mut ask = redis::cmd("RLOCK.RELEASE");
        // Sent but once, on this connection: so with TOKEN a refusal means that the hold was lost.
        ask.arg(&self.lock).arg("TOKEN").arg(self.token);
        self.ask(&ask).map(drop)
    }

    fn ask(&mut self, command: &Cmd) -> Result<i64, Error> {
        match command.query(&mut self.connection) {
            Err(error) if error.is_connection_dropped() || error.is_io_error() => Err(Error::Lost),
            reply => Ok(reply?),
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        match error.code() {
            Some("DEADLOCK") => Error::Deadlock(error),
            Some("NOTHELD") => Error::Lost,
            _ => Error::Redis(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAcquired => {
                f.write_str("somebody else held the lock until the wait was over")
            }
            Error::Lost => f.write_str("the hold was over before it was released"),
            Error::Deadlock(error) | Error::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
