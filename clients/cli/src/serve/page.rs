//! The data of the page, as JSON. Names are given as text and, for use in requests, as bytes in hexadecimal.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::look::{ASK, Seen, Slow, Told};
use crate::servers::{Server, Trouble};
use crate::snapshot::{Holder, Lock, Name, Part, Queue, Waiter};

/// A look as one server-sent event; `lock` is the lock that this browser follows.
#[must_use]
pub fn event(
    seen: &Seen,
    lock: Option<&Result<Lock, Trouble>>,
    can_act: bool,
    is_fixed: bool,
) -> String {
    let lock = lock.map(|found| match found {
        Ok(lock) => lock_closely(lock, &all_addresses(seen)),
        Err(trouble) => json!({ "trouble": trouble }),
    });
    let told = json!({
        "unix_ms": seen.unix_ms,
        "trouble": seen.trouble,
        "servers": seen.servers.iter().map(server).collect::<Vec<_>>(),
        "numbers": seen.now.numbers,
        "queues": seen.now.queues.iter().take(ASK.described).map(|one| queue(one, seen)).collect::<Vec<_>>(),
        "queue_count": seen.now.queues.len(),
        "queue_count_max": ASK.queues,
        "every_ms": ms(seen.every),
        "share": seen.share,
        "point": seen.point,
        "can_act": can_act,
        "is_fixed": is_fixed,
        "is_everywhere": seen.now.is_everywhere,
        "lock": lock,
    });
    told.to_string()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Of a longer name, only the beginning is sent, so it has no link.
const NAME_LEN_MAX: usize = 1024;

/// A name, as it is sent to the page.
#[must_use]
pub fn name(name: &Name) -> Value {
    if let Some(begin) = name.0.get(..NAME_LEN_MAX).filter(|begin| begin.len() < name.0.len()) {
        let text = format!("{}… ({} bytes)", begin.escape_ascii(), name.0.len());
        return json!({ "text": text, "hex": null });
    }
    let hex: String = name.0.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "text": name.to_string(), "hex": hex })
}

fn server(told: &Told) -> Value {
    let slow = match &told.slow {
        Ok(entries) => json!({ "entries": entries.iter().map(slow).collect::<Vec<_>>() }),
        Err(why) => json!({ "why": why }),
    };
    match &told.part {
        Err(down) => {
            json!({ "name": told.name, "is_up": false, "reason": down.reason, "why": down.words })
        }
        Ok(part) => json!({
            "name": told.name,
            "is_up": true,
            "db": told.db,
            "version": version(part),
            "role": part.fields.get("role"),
            "replicas": replicas(part),
            "persistence": persistence(part),
            "numbers": part.numbers(),
            "slow": slow,
            "is_denied": part.is_denied,
            "noreplicas": noreplicas(part),
            "busy_us": u64::try_from(told.busy.as_micros()).unwrap_or(u64::MAX),
        }),
    }
}

fn version(part: &Part) -> String {
    let field = |name: &str| part.fields.get(name).map_or("", String::as_str);
    match field("valkey_version") {
        "" => format!("Redis {}", field("redis_version")),
        version => format!("Valkey {version}"),
    }
}

/// The `slaveN` lines of `INFO replication`, with each replica's lag.
#[must_use]
pub fn replicas(part: &Part) -> Vec<BTreeMap<String, Value>> {
    let offset: u64 = number(part, "master_repl_offset");
    let each = part.fields.iter().filter_map(|(name, value)| {
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let words = value.split(',').filter_map(|word| word.split_once('='));
        let mut found: BTreeMap<String, Value> =
            words.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let acked = found.get("offset").and_then(Value::as_str).and_then(|text| text.parse().ok());
        found.insert("behind".into(), json!(acked.map(|acked| offset.saturating_sub(acked))));
        Some(found)
    });
    each.collect()
}

/// A number that is not part of `INFO rlock`; 0 if it is missing.
#[must_use]
pub fn number(part: &Part, name: &str) -> u64 {
    part.fields.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// How many commands of all kinds were refused with `-NOREPLICAS`. Commands that
/// `min-replicas-to-write` refuses never reach the module.
#[must_use]
pub fn noreplicas(part: &Part) -> u64 {
    let errors = part.fields.get("errorstat_NOREPLICAS");
    errors.and_then(|text| text.strip_prefix("count=")?.parse().ok()).unwrap_or(0)
}

fn persistence(part: &Part) -> Value {
    let field = |name: &str| part.fields.get(name);
    json!({
        "aof": number(part, "aof_enabled") == 1,
        "aof_status": field("aof_last_write_status"),
        "rdb_status": field("rdb_last_bgsave_status"),
        "rdb_last_save": number(part, "rdb_last_save_time"),
        "unsaved": number(part, "rdb_changes_since_last_save"),
    })
}

fn slow(entry: &Slow) -> Value {
    json!({
        "unix_ms": entry.unix_ms,
        "kind": entry.kind,
        "db": entry.db,
        "key": name(&entry.key),
        "owner": name(&entry.owner),
        "ms": entry.ms,
        "outcome": entry.outcome,
        "holders": entry.holders.iter()
            .map(|names| names.iter().map(Name::to_string).collect::<Vec<_>>())
            .collect::<Vec<_>>(),
    })
}

fn all_addresses(seen: &Seen) -> BTreeMap<u64, String> {
    match seen.servers.as_slice() {
        // With several servers, an ID alone does not name a connection.
        [one] => one.addresses.clone(),
        _ => BTreeMap::new(),
    }
}

fn queue(queue: &Queue, seen: &Seen) -> Value {
    let server = seen.servers.get(queue.server);
    let none = BTreeMap::new();
    let addresses = server.map_or(&none, |server| &server.addresses);
    json!({
        "server": server.map(|server| &server.name),
        "db": queue.db,
        "key": name(&queue.key),
        "length": queue.length,
        "head_ms": ms(queue.head_waits),
        "lock": queue.lock.as_ref().map(|lock| lock_closely(lock, addresses)),
    })
}

/// A lock of a list, with the server and database that have it.
#[must_use]
pub fn listed(server: &Server, db: i64, key: &Name, lock: &Lock) -> Value {
    json!({
        "server": server.name,
        "db": db,
        "key": name(key),
        "lock": lock_closely(lock, &BTreeMap::new()),
    })
}

/// A lock, as it is sent to the page.
#[must_use]
pub fn lock_closely(lock: &Lock, addresses: &BTreeMap<u64, String>) -> Value {
    json!({
        "mode": lock.mode,
        "holder_count": lock.holder_count,
        "length": lock.length,
        "holders": lock.holders.iter().map(|hold| holder(hold, addresses)).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(|wait| waiter(wait, addresses)).collect::<Vec<_>>(),
    })
}

fn holder(hold: &Holder, addresses: &BTreeMap<u64, String>) -> Value {
    json!({
        "owner": name(&hold.owner),
        "mode": hold.mode,
        "depth": hold.depth,
        "token": hold.token,
        "held_ms": ms(hold.held),
        "left_ms": ms(hold.left),
        "session": hold.session,
        "address": addresses.get(&hold.session),
        "acks": hold.acks,
    })
}

fn waiter(wait: &Waiter, addresses: &BTreeMap<u64, String>) -> Value {
    json!({
        "owner": name(&wait.owner),
        "mode": wait.mode,
        "kind": wait.kind,
        "has_turn": wait.has_turn,
        "waited_ms": ms(wait.waited),
        "left_ms": wait.left.map(ms),
        "client": wait.client,
        "address": addresses.get(&wait.client),
        "limit": wait.limit,
        "channel": wait.channel.to_string(),
    })
}
