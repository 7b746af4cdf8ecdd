//! `rlock watch`: a line for each change of who holds a lock.

use std::thread;
use std::time::Duration;

use redis::{Connection, RedisResult};

use crate::servers::{Trouble, Where, explain, first_of};
use crate::snapshot::Name;

/// How long one request blocks: for less than a connection is patient, so that a silent server is noticed.
const BLOCK_MS: u64 = 2000;

/// How long to wait before the servers are asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Who holds the lock: the token and the owner of the WRITE hold; 0 and nobody if it is free.
type Held = (u64, Option<Name>);

/// Calls `line` with the holder of `key`, and again whenever that changes, until `line` returns false. `trouble` is called
/// once when the servers cannot be asked.
///
/// # Errors
/// The servers' error, if it comes before the first call of `line`.
pub fn watch(
    at: &Where,
    key: &str,
    mut line: impl FnMut(&str) -> bool,
    mut trouble: impl FnMut(&str),
) -> Result<(), Trouble> {
    let mut watch = Watch { key, known: None };
    let mut is_well = true;
    loop {
        let failed = match watch.follow(at, &mut line, &mut is_well) {
            Ok(()) => return Ok(()),
            Err(failed) if watch.known.is_none() => return Err(failed),
            Err(failed) => failed,
        };
        if std::mem::replace(&mut is_well, false) {
            trouble(&format!("still watching {key}: {failed}"));
        }
        thread::sleep(PAUSE);
    }
}

struct Watch<'k> {
    key: &'k str,
    /// The token of the last call.
    known: Option<u64>,
}

impl Watch<'_> {
    /// Follows the lock on its server, until nobody listens any more.
    fn follow(
        &mut self,
        at: &Where,
        line: &mut impl FnMut(&str) -> bool,
        is_well: &mut bool,
    ) -> Result<(), Trouble> {
        let (mut server, mut held) = self.find(at)?;
        loop {
            if let Some((token, owner)) = held
                && self.known.replace(token) != Some(token)
            {
                let told = owner
                    .map_or("free".to_owned(), |owner| format!("{owner} holds it, token {token}"));
                if !line(&told) {
                    return Ok(());
                }
            }
            held = self.ask(&mut server, true).map_err(|error| explain(&error))?;
            *is_well = true; // not before: a replica answers whoever does not wait
        }
    }

    /// Connects to the server that has the lock, and asks it who holds.
    fn find(&self, at: &Where) -> Result<(Connection, Option<Held>), Trouble> {
        let primaries = at.primaries()?;
        let nobody = "no server serves this key";
        let (_, server, held) = first_of(&primaries, nobody, |server| self.ask(server, false))?;
        Ok((server, held.or_else(|| self.known.is_none().then_some((0, None)))))
    }

    /// Returns who holds, if that is not known yet.
    fn ask(&self, server: &mut Connection, blocks: bool) -> RedisResult<Option<Held>> {
        let mut ask = redis::cmd("RLOCK.AWAIT");
        ask.arg(self.key).arg(self.known.unwrap_or(0));
        if blocks {
            ask.arg("BLOCK").arg(BLOCK_MS);
        }
        ask.query(server)
    }
}
