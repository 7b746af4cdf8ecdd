//! A primary whose replica acknowledges when a test says so.

use crate::support::MapHost;

/// A primary with one replica, which has acknowledged nothing yet.
pub fn primary() -> MapHost {
    let host = MapHost::primary();
    host.world().acknowledged = vec![0];
    host
}

/// The replica acknowledges everything written so far. Returns what connections received.
pub fn acknowledge(host: &MapHost) -> Vec<String> {
    let mut told = host.turn();
    host.world().acknowledged.fill(1_000_000);
    told.extend(host.turn());
    host.world().acknowledged.fill(0);
    told
}

/// The holds at each of these keys.
pub fn held(host: &MapHost, keys: &str) -> Vec<String> {
    keys.split(' ').map(|key| host.holds(key)).collect()
}

/// What `RLOCK.HOLDS` replies for each of these keys.
pub fn counted(host: &MapHost, keys: &str, owner: &str) -> String {
    keys.split(' ').map(|key| host.ask(99, &format!("holds {key} {owner}"))).collect()
}

/// The queue at each of these keys.
pub fn lines(host: &MapHost, keys: &str) -> Vec<String> {
    keys.split(' ').map(|key| host.line(key)).collect()
}

/// How many replies wait for acknowledgments.
pub fn pending(host: &MapHost) -> usize {
    host.state_of(|state| state.manager.totals().pending)
}

/// A hold of ann's.
pub const ANN: &str = "ann write depth=1 until=30000";
