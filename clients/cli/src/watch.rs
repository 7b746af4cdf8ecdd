//! `rlock watch`: prints a line each time the holder of a lock changes.

use std::thread;
use std::time::Duration;

use redis::{Connection, RedisResult};
use rlock_client::{Election, Leader};
use tokio::runtime;
use tokio::time::timeout;

use crate::servers::{Trouble, Where, ask_server_of_key, explain};
use crate::snapshot::Name;

/// How long nothing may change before the server is asked whether it still answers.
const QUIET: Duration = Duration::from_secs(2);

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
    /// The token of the last call of `line`.
    known: Option<u64>,
}

impl Watch<'_> {
    /// Follows the lock until `line` returns false.
    fn follow(
        &mut self,
        at: &Where,
        line: &mut impl FnMut(&str) -> bool,
        is_well: &mut bool,
    ) -> Result<(), Trouble> {
        let (mut server, held) = self.find(at)?;
        if held.is_some_and(|held| !self.prints(held, line)) {
            return Ok(());
        }
        // If the URL names a replica, this first question fails at once: the package would wait,
        // since there may be a failover.
        let held = self.ask(&mut server, Some(1)).map_err(|error| explain(&error))?;
        if held.is_some_and(|held| !self.prints(held, line)) {
            return Ok(());
        }
        drop(server);
        let election = at.locker()?.election(self.key);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let ended = runtime.block_on(self.observe(&election, line, is_well));
        runtime.shutdown_background(); // a name that is still looked up may take long
        ended
    }

    /// Prints each change of the holder. The servers send it as a message, so no connection is
    /// blocked.
    async fn observe(
        &mut self,
        election: &Election,
        line: &mut impl FnMut(&str) -> bool,
        is_well: &mut bool,
    ) -> Result<(), Trouble> {
        let mut observer = election.observe();
        let mut is_first = true;
        loop {
            // A silent server looks the same as a lock whose holder does not change.
            let leader = match timeout(QUIET, observer.next()).await {
                Ok(news) => news,
                // The first question may fail only because the connection has ended meanwhile.
                Err(_) => match election.leader().await {
                    Err(_) => election.leader().await,
                    news => news,
                },
            };
            let leader = leader.map_err(|error| error.to_string())?;
            // The first reply proves nothing: a replica also answers requests that do not wait.
            *is_well |= !std::mem::take(&mut is_first);
            if !self.prints(held(leader), line) {
                return Ok(());
            }
        }
    }

    /// Prints the holder if it differs from the last one printed; false if nobody reads the output.
    fn prints(&mut self, (token, owner): Held, line: &mut impl FnMut(&str) -> bool) -> bool {
        if self.known.replace(token) == Some(token) {
            return true;
        }
        let holds = |owner: Name| format!("{owner} holds it, token {token}");
        line(&owner.map_or_else(|| "free".to_owned(), holds))
    }

    /// Connects to the server that has the lock, and asks for the holder if it is not known yet.
    fn find(&self, at: &Where) -> Result<(Connection, Option<Held>), Trouble> {
        let primaries = at.primaries()?;
        let (_, server, held) = ask_server_of_key(&primaries, |server| self.ask(server, None))?;
        Ok((server, held.or_else(|| self.known.is_none().then_some((0, None)))))
    }

    /// Returns the holder if it differs from the known one; waits at most `block` milliseconds for
    /// that.
    fn ask(&self, server: &mut Connection, block: Option<u64>) -> RedisResult<Option<Held>> {
        let mut ask = redis::cmd("RLOCK.AWAIT");
        ask.arg(self.key).arg(self.known.unwrap_or(0));
        if let Some(block) = block {
            ask.arg("BLOCK").arg(block);
        }
        ask.query(server)
    }
}

fn held(leader: Option<Leader>) -> Held {
    leader.map_or((0, None), |leader| (leader.token, Some(Name(leader.owner_bytes().to_vec()))))
}
