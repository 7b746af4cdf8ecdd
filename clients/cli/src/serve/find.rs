//! Finds locks by a part of their names or of their owners' names, also those that nobody waits for. That reads the names of
//! all keys, a thousand at a time, and with pauses, so that the server spends a twentieth of its time on it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Connection, Pipeline, RedisResult};
use serde_json::{Value, json};

use super::page::{lock_closely, name};
use crate::servers::{Server, Trouble, code_of, explain};
use crate::snapshot::{Lock, Map, Name, databases_of, info_of, lock_of};

/// What `TYPE` says of a lock.
const TYPE: &str = "rlock-key";
/// Keys of one request.
const KEYS: u32 = 1000;
/// One request is to take at most one part in this many of the server's time.
const SHARE: u32 = 20;
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// Locks of one answer.
const FOUND: usize = 200;

/// Where a search goes on: the server, its database, and the cursor of `SCAN`. Written `0.0.0`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    server: usize,
    database: usize,
    cursor: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}.{}", self.server, self.database, self.cursor)
    }
}

impl FromStr for Place {
    type Err = Trouble;

    fn from_str(text: &str) -> Result<Place, Trouble> {
        let parts: Vec<u64> = text.split('.').filter_map(|part| part.parse().ok()).collect();
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        match *parts.as_slice() {
            [server, database, cursor] => {
                Ok(Place { server: index(server), database: index(database), cursor })
            }
            _ => Err("a search goes on at three numbers, like 0.0.17".into()),
        }
    }
}

/// What is searched for.
#[derive(Debug, Clone)]
pub struct Search {
    /// A part of a name, in any case; empty is every lock.
    pub text: String,
    /// Whether in all databases.
    pub is_everywhere: bool,
}

impl Search {
    fn finds(&self, key: &Name, lock: &Lock) -> bool {
        let text = self.text.to_lowercase();
        let has = |name: &Name| {
            let shown = name.to_string().to_lowercase();
            shown.contains(&text) || String::from_utf8_lossy(&name.0).to_lowercase().contains(&text)
        };
        !lock.holders.is_empty() && (has(key) || lock.holders.iter().any(|hold| has(&hold.owner)))
    }

    /// Goes on from that place for a moment. The answer says where to go on.
    ///
    /// # Errors
    /// What the server says.
    pub fn go_on(&self, servers: &[Server], mut place: Place) -> Result<Value, Trouble> {
        let (begun, mut found, mut read) = (Instant::now(), Vec::new(), 0);
        let is_over = |found: &Vec<Value>| begun.elapsed() > PATIENCE || found.len() >= FOUND;
        while let Some(server) = servers.get(place.server) {
            if is_over(&found) {
                return Ok(json!({ "locks": found, "read": read, "next": place.to_string() }));
            }
            let mut connection = server.connect()?;
            let refused = |error: &redis::RedisError| match code_of(error).as_deref() {
                Some("NOPERM") => "this user may not send SCAN, RLOCK.INFO or SELECT".to_owned(),
                _ => format!("{}: {}", server.name, explain(error)),
            };
            let databases = self.databases(&mut connection, server).map_err(|e| refused(&e))?;
            while let Some(&db) = databases.get(place.database) {
                let step = Step { search: self, server, db };
                let asked = Instant::now();
                let (cursor, keys, locks) =
                    step.take(&mut connection, place.cursor).map_err(|error| refused(&error))?;
                let cost = asked.elapsed();
                read += keys;
                found.extend(locks);
                place.cursor = cursor;
                place.database += usize::from(cursor == 0);
                sleep((cost * (SHARE - 1)).min(PATIENCE));
                if is_over(&found) && place.database < databases.len() {
                    return Ok(json!({ "locks": found, "read": read, "next": place.to_string() }));
                }
            }
            place = Place { server: place.server + 1, ..Place::default() };
        }
        Ok(json!({ "locks": found, "read": read, "next": null }))
    }

    fn databases(&self, connection: &mut Connection, server: &Server) -> RedisResult<Vec<i64>> {
        let home = server.db();
        if !self.is_everywhere {
            return Ok(vec![home]);
        }
        let text: String = redis::cmd("INFO").arg("keyspace").query(connection)?;
        Ok(databases_of(&text))
    }
}

struct Step<'s> {
    search: &'s Search,
    server: &'s Server,
    db: i64,
}

impl Step<'_> {
    /// The next cursor, how many keys were found to be locks, and those that are searched for.
    fn take(
        &self,
        connection: &mut Connection,
        cursor: u64,
    ) -> RedisResult<(u64, usize, Vec<Value>)> {
        let mut scan = Pipeline::new();
        if self.search.is_everywhere {
            scan.cmd("SELECT").arg(self.db).ignore();
        }
        scan.cmd("SCAN").arg(cursor).arg("TYPE").arg(TYPE).arg("COUNT").arg(KEYS);
        let ((cursor, keys),): ((u64, Vec<Name>),) = scan.query(connection)?;
        if keys.is_empty() {
            return Ok((cursor, 0, Vec::new()));
        }
        let mut closer = Pipeline::new();
        for key in &keys {
            closer.add_command(info_of(key, 5, 0));
        }
        let told: Vec<Map> = closer.query(connection)?;
        let mut found = Vec::new();
        for (key, told) in keys.iter().zip(&told) {
            let lock = lock_of(told)?;
            if self.search.finds(key, &lock) {
                found.push(json!({
                    "server": self.server.name,
                    "db": self.db,
                    "key": name(key),
                    "lock": lock_closely(&lock, &BTreeMap::new()),
                }));
            }
        }
        Ok((cursor, keys.len(), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_on_where_it_was() {
        let place = Place { server: 1, database: 3, cursor: u64::MAX };
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "1", "1.2", "1.2.x", "1.2.3.4", "-1.0.0"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
