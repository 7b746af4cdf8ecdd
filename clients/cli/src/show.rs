//! `rlock who` and `rlock queues`: one snapshot, as text.

use std::fmt::Write;

use redis::Connection;

use crate::servers::{Server, Trouble, UNSERVED, Where, ask_server_of_key, explain, home_of};
use crate::snapshot::{self, Ask, Lock, Name, Snapshot, Waiter};
use crate::view::short;

/// Connections to all primaries.
///
/// # Errors
/// If one cannot be reached.
pub fn connect(servers: &[Server]) -> Result<Vec<Connection>, Trouble> {
    servers.iter().map(Server::connect).collect()
}

/// Inspects `key` in database `db` on its server: in a Cluster, the node that has its slot. The
/// connections are in the database `home`.
///
/// # Errors
/// The servers' error.
pub fn look(
    connections: &mut [Connection],
    home: i64,
    db: i64,
    key: &Name,
) -> Result<Lock, Trouble> {
    let mut trouble = UNSERVED.to_owned();
    for connection in connections {
        let look = |connection: &mut Connection| snapshot::look(connection, key);
        match snapshot::within(connection, home, db, look) {
            Ok(lock) => return Ok(lock),
            Err(error) if error.code() == Some("MOVED") => trouble = error.to_string(),
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(trouble)
}

/// Who holds `key`, and who waits for it.
///
/// # Errors
/// The servers' error.
pub fn who(at: &Where, key: &str) -> Result<String, Trouble> {
    let name = Name(key.as_bytes().to_vec());
    let (_, _, lock) = ask_server_of_key(&at.primaries()?, |server| snapshot::look(server, &name))?;
    let mut page = if lock.holders.is_empty() { format!("{key} is free\n") } else { String::new() };
    for hold in &lock.holders {
        let tie = match hold.session {
            0 => format!("lease {}", short(hold.left)),
            client => format!("session of client {client}"),
        };
        let depth = if hold.depth > 1 { format!(", depth {}", hold.depth) } else { String::new() };
        let _ = writeln!(
            page,
            "{} holds {} for {}{depth}, {tie}, token {}",
            hold.owner,
            hold.mode,
            short(hold.held),
            hold.token
        );
    }
    for wait in &lock.waiters {
        let _ = writeln!(page, "{}", waiter(wait));
    }
    let more = lock.length.saturating_sub(u64::try_from(lock.waiters.len()).unwrap_or(u64::MAX));
    if more > 0 {
        let _ = writeln!(page, "and {more} more wait");
    }
    Ok(page)
}

/// Who waits, and how.
#[must_use]
pub fn waiter(wait: &Waiter) -> String {
    let how = match (wait.kind.as_str(), wait.client) {
        ("block", 0) => "blocked".to_owned(),
        ("block", client) => format!("client {client}"),
        ("tell", _) => format!("by a message to {}", wait.channel),
        _ if wait.has_turn => "ticket, has its turn".to_owned(),
        _ => "ticket".to_owned(),
    };
    let limit = if wait.limit > 0 { format!(" of {}", wait.limit) } else { String::new() };
    let still = wait.left.map_or("no limit".to_owned(), |left| format!("{} left", short(left)));
    format!(
        "{} has waited for {} to {}{limit}, {still}, {how}",
        wait.owner,
        short(wait.waited),
        wait.mode
    )
}

/// The longest queues.
///
/// # Errors
/// The servers' error.
pub fn queues(at: &Where, count: usize) -> Result<String, Trouble> {
    let servers = at.primaries()?;
    let ask = Ask { is_everywhere: at.is_everywhere, ..Ask::longest(count) };
    let now = Snapshot::take(&mut connect(&servers)?, home_of(&servers), ask)
        .map_err(|error| explain(&error))?;
    if now.queues.is_empty() {
        return Ok(nobody(&now, &servers, at.is_everywhere));
    }
    let mut page = String::new();
    for queue in &now.queues {
        let held = match queue.lock.as_ref().map(|lock| &lock.holders[..]) {
            None => "this user may not see who holds it".to_owned(),
            Some([]) => "held by nobody".to_owned(),
            Some([one]) => format!("held by {}", one.owner),
            Some([first, others @ ..]) => {
                format!("held by {} and {} more", first.owner, others.len())
            }
        };
        let key = queue.name(at.is_everywhere);
        let _ = writeln!(
            page,
            "{key}: {} in line, the first for {}, {held}",
            queue.length,
            short(queue.head_waits)
        );
    }
    Ok(page)
}

/// The servers count waiters of all databases.
fn nobody(now: &Snapshot, servers: &[Server], is_everywhere: bool) -> String {
    let others = now.waiting();
    if is_everywhere || others == 0 {
        return "nobody waits".into();
    }
    let db = home_of(servers);
    format!("nobody waits in database {db}; {others} in other databases (see --all-databases)")
}
