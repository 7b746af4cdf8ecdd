//! Which server it is, by what it says of itself: one may have two addresses, and a Cluster many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::error::{Error, is_passing};
use crate::servers::{PATIENCE, Servers, lock};
use crate::{Inner, Options};

/// The name of each server's space. The first name of the first server that was met.
fn known() -> &'static Mutex<HashMap<String, String>> {
    static KNOWN: OnceLock<Mutex<HashMap<String, String>>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

/// Asks the server of that key what it is, for as long as the wait lasts, which is then so much shorter.
pub(crate) async fn settle(inner: &Inner, key: &[u8], options: &mut Options) -> Result<(), Error> {
    let (start, mut pause) = (Instant::now(), Duration::from_millis(10));
    let patience = match options.wait {
        Some(Duration::ZERO) => Some(PATIENCE),
        wait => wait,
    };
    loop {
        let left = patience.map_or(PATIENCE, |all| all.saturating_sub(start.elapsed()));
        let error = match ask(&inner.servers, key, left.min(PATIENCE)).await {
            Ok(names) => {
                inner.servers.space.get_or_init(|| space_of(names));
                options.wait = options.wait.map(|wait| match wait {
                    Duration::ZERO => wait,
                    wait => wait.saturating_sub(start.elapsed()).max(Duration::from_millis(1)),
                });
                return Ok(());
            }
            Err(error) if is_passing(&error) => error,
            Err(error) => return Err(error.into()),
        };
        options.tell(&error);
        let left = patience.map_or(pause, |all| all.saturating_sub(start.elapsed()));
        if left.is_zero() {
            return Err(Error::out_of_patience(error));
        }
        sleep(pause.min(left)).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Asks whoever serves that key after a failure, in the background: it may be another server, or have been started again.
pub(crate) fn meet(servers: Arc<Servers>, space: String, key: Vec<u8>) {
    tokio::spawn(async move {
        match ask(&servers, &key, PATIENCE).await {
            Ok(names) => join(&mut lock(known()), names, &space),
            Err(error) if is_passing(&error) => servers.forget(),
            Err(_) => {} // it will not be told
        }
    });
}

/// What it says; where that may not be asked, its addresses.
async fn ask(
    servers: &Arc<Servers>,
    key: &[u8],
    patience: Duration,
) -> redis::RedisResult<Vec<String>> {
    let mut words = redis::cmd(if servers.is_cluster() { "CLUSTER" } else { "INFO" });
    words.arg(if servers.is_cluster() { "SLOTS" } else { "server" });
    let said = match servers.ask(key, &words, patience).await {
        Err(error) if error.code() == Some("NOPERM") => return Ok(vec![servers.identity()]),
        said => said?,
    };
    let names: Vec<String> = match &said {
        Value::Array(ranges) => ranges.iter().filter_map(node_of).collect(),
        text => {
            let text: String = redis::from_redis_value_ref(text)?;
            let run = text.lines().find_map(|line| line.strip_prefix("run_id:"));
            run.map(|run| format!("{run},{}", servers.database())).into_iter().collect()
        }
    };
    Ok(if names.is_empty() { vec![servers.identity()] } else { names })
}

/// The ID of the primary of a range of slots: first, last, (host, port, ID), replicas.
fn node_of(range: &Value) -> Option<String> {
    let Value::Array(range) = range else { return None };
    let Some(Value::Array(primary)) = range.get(2) else { return None };
    redis::from_redis_value_ref(primary.get(2)?).ok()
}

fn space_of(names: Vec<String>) -> String {
    let mut known = lock(known());
    let found = names.iter().find_map(|name| known.get(name).cloned());
    let space = found.or_else(|| names.first().cloned()).unwrap_or_default();
    join(&mut known, names, &space);
    space
}

fn join(known: &mut HashMap<String, String>, names: Vec<String>, space: &str) {
    for name in names {
        known.entry(name).or_insert_with(|| space.to_owned());
    }
}
