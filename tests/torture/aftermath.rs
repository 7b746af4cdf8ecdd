//! After the load: holds must survive every way in which a server can lose its memory, and when
//! they are released, nothing may remain.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::faults::Shard;
use rlock_testkit::{Client, Server, until};

/// Holds that end earlier than this may end while they are compared.
const TTL_MS_MIN: i64 = 20_000;
const PATIENCE_MS: u64 = 10_000;
/// The longest lease of a client that disconnects without releasing.
const LEASE_MS_MAX: u64 = 2_000;

/// The violations, in words.
pub fn look(shard: &mut Shard<'_>, has_ghosts: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut client = shard.primary.client();
    wrong.extend(not_zero(&mut client, &["waiters", "tells", "tickets", "sessions"]));
    wrong.extend(unexpected_keys(&mut client, has_ghosts));
    let held = picture(&mut client);
    if held.is_empty() {
        wrong.push("nothing is left to compare".to_owned());
    }
    for replica in &shard.replicas {
        replica.until_in_sync_with(shard.primary);
        wrong.extend(differs(&held, &mut replica.client(), "on the replica"));
    }
    client.ask("DEBUG RELOAD");
    wrong.extend(differs(&held, &mut client, "in the reloaded RDB"));
    restart_from_aof(shard.primary);
    let mut client = shard.primary.client();
    wrong.extend(differs(&held, &mut client, "in the reloaded AOF"));
    everybody_leaves(&mut client);
    wrong.extend(not_zero(&mut client, &["waiters", "tells", "tickets", "sessions", "locks"]));
    wrong.extend(locks(&mut client).into_iter().map(|key| format!("{key} is left")));
    wrong
}

/// Mode, holds and digest by key, of locks that are held long enough.
type Picture = BTreeMap<String, (String, String)>;

fn picture(client: &mut Client) -> Picture {
    let keys = locks(client).into_iter();
    let shown = keys.filter_map(|key| {
        let lock = client.lock(&key);
        let lasts = lock.holds.iter().all(|hold| hold.ttl_ms > TTL_MS_MIN);
        (lasts && !lock.holds.is_empty())
            .then(|| (key.clone(), (format!("{:?}", lock.lasting()), client.digest(&key))))
    });
    shown.collect()
}

fn differs(held: &Picture, client: &mut Client, place: &str) -> Option<String> {
    for (key, expected) in held {
        let found = match client.number(&format!("EXISTS {key}")) {
            0 => ("no key".to_owned(), String::new()),
            _ => (format!("{:?}", client.lock(key).lasting()), client.digest(key)),
        };
        if found != *expected {
            return Some(format!("{key} was {expected:?} and is {found:?} {place}"));
        }
    }
    let there = picture(client);
    let unknown = there.keys().find(|key| !held.contains_key(*key));
    unknown.map(|key| format!("{key} was not held and is {:?} {place}", there[key]))
}

fn locks(client: &mut Client) -> Vec<String> {
    let keys = client.ask("KEYS *");
    let keys: Vec<String> = rlock_testkit::items(&keys).iter().map(rlock_testkit::text).collect();
    keys.into_iter().filter(|key| client.text(&format!("TYPE {key}")) == "rlock-key").collect()
}

/// Gauges of `INFO rlock` that do not become 0.
fn not_zero(client: &mut Client, gauges: &[&str]) -> Vec<String> {
    let patience_ends_at = Instant::now() + Duration::from_millis(PATIENCE_MS);
    loop {
        let counted = gauges.iter().map(|gauge| (gauge, client.counted(gauge)));
        let left: Vec<_> = counted.filter(|(_, count)| *count != 0).collect();
        if left.is_empty() || Instant::now() > patience_ends_at {
            let texts = left.iter().map(|(gauge, count)| format!("rlock_{gauge} is {count}"));
            return texts.collect();
        }
    }
}

/// Everybody has released everything, except what was left on purpose and expires soon; unless its
/// owner died.
fn unexpected_keys(client: &mut Client, has_ghosts: bool) -> Vec<String> {
    if has_ghosts {
        return Vec::new();
    }
    let patience_ends_at = Instant::now() + Duration::from_millis(LEASE_MS_MAX);
    loop {
        let keys = locks(client).into_iter().filter(|key| !key.starts_with("left:"));
        let held: Vec<String> = keys.filter(|key| client.shows(key) != "free:").collect();
        if held.is_empty() || Instant::now() > patience_ends_at {
            return held.iter().map(|key| format!("{key} is held")).collect();
        }
    }
}

fn restart_from_aof(server: &mut Server) {
    let mut client = server.client();
    client.ask("CONFIG SET appendonly yes");
    until(PATIENCE_MS, || is_rewritten(&mut client));
    server.configure("appendonly", "yes");
    server.kill_9();
    server.start_again();
}

/// No rewrite of the AOF is scheduled or running. Checked in that order, because a scheduled one
/// may begin.
pub fn is_rewritten(client: &mut Client) -> bool {
    let fields = ["aof_rewrite_scheduled", "aof_rewrite_in_progress"];
    fields.iter().all(|field| client.info_number("persistence", field) == 0)
}

fn everybody_leaves(client: &mut Client) {
    for key in locks(client) {
        for hold in client.lock(&key).holds {
            let owner = String::from_utf8(hold.owner).unwrap();
            client.ask(&format!("RLOCK.RELEASE {key} {owner} {} DEPTH 0", hold.mode));
        }
    }
}
