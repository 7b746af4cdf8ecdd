//! Finds locks by a part of their names or of their owners' names, including locks without waiters.

use std::fmt;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::page::listed;
use crate::scan::{Scan, databases, pause, refusal};
use crate::servers::{Server, Trouble};
use crate::snapshot::{Lock, Name};

/// How much of each lock the page lists.
const SCAN: Scan<'_> = Scan { pattern: None, holders: 5, waiters: 0 };
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// Locks of one answer.
const FOUND: usize = 200;

/// Where a search continues: the server, its database, and the cursor of `SCAN`. The beginning is
/// `0.0.0`.
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
            _ => Err("the place of a search is three numbers, like 0.0.17".into()),
        }
    }
}

/// What is searched for.
#[derive(Debug, Clone)]
pub struct Search {
    /// A part of a name, in upper or lower case; an empty text matches every lock.
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
        has(key) || lock.holders.iter().any(|hold| has(&hold.owner))
    }

    /// Continues the search from that place for a moment. The answer has the place where to
    /// continue.
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
            let databases = databases(&mut connection, server.db(), self.is_everywhere);
            let databases = databases.map_err(|error| refusal(server, &error))?;
            while let Some(&db) = databases.get(place.database) {
                let asked = Instant::now();
                let selected = self.is_everywhere.then_some(db);
                let step = SCAN
                    .step(&mut connection, selected, place.cursor)
                    .map_err(|error| refusal(server, &error))?;
                let cost = asked.elapsed();
                read += step.read;
                let locks = step.locks.iter().filter(|(key, lock)| self.finds(key, lock));
                found.extend(locks.map(|(key, lock)| listed(server, db, key, lock)));
                place.cursor = step.next;
                place.database += usize::from(step.next == 0);
                sleep(pause(cost));
                if is_over(&found) && place.database < databases.len() {
                    return Ok(json!({ "locks": found, "read": read, "next": place.to_string() }));
                }
            }
            place = Place { server: place.server + 1, ..Place::default() };
        }
        Ok(json!({ "locks": found, "read": read, "next": null }))
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
