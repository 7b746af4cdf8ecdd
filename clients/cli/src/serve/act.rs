//! What `--allow-actions` allows: to force a lock, to cancel a wait, to kill a connection.

use std::fmt;

use redis::Cmd;
use serde::Deserialize;

use crate::servers::{Server, Trouble, first_of};
use crate::snapshot::Name;

/// An action, as the page sends it. Names are bytes in hexadecimal.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    /// `RLOCK.FORCE`
    Force {
        /// Which lock.
        key: String,
        /// The server's name on the page; required if several servers are named, since each may
        /// have a lock of that name.
        server: Option<String>,
        /// The database; `None` means that of the URL.
        db: Option<i64>,
    },
    /// `RLOCK.CANCEL`
    Cancel {
        /// Which lock.
        key: String,
        /// Whose waits.
        owner: String,
        /// As in [`Action::Force`].
        server: Option<String>,
        /// As in [`Action::Force`].
        db: Option<i64>,
    },
    /// `CLIENT KILL ID`
    Kill {
        /// The server's name on the page.
        server: String,
        /// The connection, as in `CLIENT LIST`.
        client: u64,
    },
}

impl Action {
    fn server(&self) -> Option<&String> {
        match self {
            Action::Force { server, .. } | Action::Cancel { server, .. } => server.as_ref(),
            Action::Kill { server, .. } => Some(server),
        }
    }

    /// The database in which the action takes place.
    #[must_use]
    pub fn db(&self) -> Option<i64> {
        match self {
            Action::Force { db, .. } | Action::Cancel { db, .. } => *db,
            Action::Kill { .. } => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |hex: &str| bytes_of(hex).map_or("?".into(), |name| Name(name).to_string());
        match self {
            Action::Force { key, .. } => write!(to, "RLOCK.FORCE {}", shown(key))?,
            Action::Cancel { key, owner, .. } => {
                write!(to, "RLOCK.CANCEL {} {}", shown(key), shown(owner))?;
            }
            Action::Kill { client, .. } => write!(to, "CLIENT KILL ID {client}")?,
        }
        self.db().map_or(Ok(()), |db| write!(to, " in database {db}"))?;
        self.server().map_or(Ok(()), |server| write!(to, " of {server}"))
    }
}

/// Sends the action to the server that has the lock or the connection.
///
/// # Errors
/// What the server says, or why none was asked.
pub fn carry_out(action: &Action, servers: &[Server], is_fixed: bool) -> Result<String, Trouble> {
    let ask: Cmd = match action {
        Action::Force { key, .. } => redis::cmd("RLOCK.FORCE").arg(bytes_of(key)?).clone(),
        Action::Cancel { key, owner, .. } => {
            redis::cmd("RLOCK.CANCEL").arg(bytes_of(key)?).arg(bytes_of(owner)?).clone()
        }
        Action::Kill { client, .. } => {
            redis::cmd("CLIENT").arg("KILL").arg("ID").arg(client).clone()
        }
    };
    let named = action.server();
    if named.is_none() && is_fixed && servers.len() > 1 {
        return Err("several servers are watched: the action must name one".into());
    }
    let named = servers.iter().filter(|known| named.is_none_or(|name| known.name == *name));
    let nobody = "rlock serve does not watch that server";
    let (_, _, count) = first_of(named, nobody, |server| {
        if let Some(db) = action.db() {
            redis::cmd("SELECT").arg(db).query::<()>(server)?;
        }
        ask.query::<u64>(server)
    })?;
    Ok(count.to_string())
}

/// The bytes that a text of hexadecimal digits stands for.
///
/// # Errors
/// If the text is none.
pub fn bytes_of(hex: &str) -> Result<Vec<u8>, Trouble> {
    let digits: Option<Vec<u32>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let byte = |pair: &[u32]| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    };
    digits
        .and_then(|digits| digits.chunks(2).map(byte).collect())
        .ok_or_else(|| "a name must be given as bytes in hexadecimal".to_owned())
}

#[cfg(test)]
mod tests {
    use super::bytes_of;

    #[test]
    fn a_name_is_given_as_bytes_in_hexadecimal() {
        assert_eq!(bytes_of("00ff4A"), Ok(vec![0, 255, 74]));
        assert_eq!(bytes_of(""), Ok(vec![]));
        for wrong in ["0", "0g", "+1", "é0"] {
            assert!(bytes_of(wrong).is_err(), "{wrong}");
        }
    }
}
