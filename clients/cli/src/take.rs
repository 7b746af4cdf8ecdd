//! `rlock take`: replaces a holder that hangs, ahead of those who wait.

use std::fmt::Write;
use std::time::Duration;

use crate::complain;
use crate::jobs::Take;
use crate::servers::{Trouble, ask_server_of_key, explain};
use crate::snapshot::{self, Name};
use crate::view::short;

/// How long the lock is held unless `--lease` says otherwise: an operator has to repair something.
const LEASE: Duration = Duration::from_secs(600);

/// The exit code when the lock may not be taken yet.
const NOT_YET: u8 = 1;

/// Takes the lock, prints from whom, and returns the exit code.
///
/// # Errors
/// The servers' error.
pub fn take(job: &Take, print: impl FnOnce(&str) -> Result<u8, Trouble>) -> Result<u8, Trouble> {
    let name = Name(job.key.as_bytes().to_vec());
    let servers = job.at.primaries()?;
    let (_, mut connection, lock) =
        ask_server_of_key(&servers, |server| snapshot::look(server, &name))?;
    let owner = job.owner.clone().unwrap_or_else(|| {
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        format!("{}/take", user.as_deref().unwrap_or("operator"))
    });
    let mut words = redis::cmd("RLOCK.TAKE");
    words.arg(&name.0).arg(&owner).arg("LEASE").arg(job.lease.unwrap_or(LEASE).as_millis() as u64);
    if let Some(acks) = job.acks {
        words.arg("ACKS").arg(acks);
    }
    let reply = words.arg("WITHTTL").query(&mut connection);
    let (token, ms): (Option<u64>, u64) = reply.map_err(|error| explain(&error))?;
    let (key, ms) = (&job.key, short(Duration::from_millis(ms)));
    let Some(token) = token else {
        complain(format_args!("not taken: for another {ms}, this new primary grants nothing"));
        return Ok(NOT_YET);
    };
    let mut page = String::new();
    if lock.holders.is_empty() {
        let _ = writeln!(page, "nobody held {key}");
    }
    for hold in lock.holders.iter().filter(|hold| hold.token != token) {
        let held = short(hold.held);
        let _ =
            writeln!(page, "{} held {} for {held}, token {}", hold.owner, hold.mode, hold.token);
    }
    let _ = writeln!(page, "{owner} holds {key} for {ms}, token {token}");
    print(&page)
}
