//! What a slot brings with it, however it moves: key by key, as every server can, or in one step
//! (Valkey since 9.0, Redis since 8.4). `hall` is in the lower half of the slots, so with node 0.

use std::fs;

use rlock_testkit::{Client, Cluster, Payload, newest_aof, say_not_seen, with_token};

const HALL: u16 = 4903;
const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 24 * 3600 * SECOND_US;

/// Ways to move a slot.
#[derive(Clone, Copy, Debug)]
enum Way {
    KeyByKey,
    AtOnce,
}

/// False if the servers cannot move a slot in this way.
#[track_caller]
fn move_hall(cluster: &Cluster, way: Way) -> bool {
    match way {
        Way::KeyByKey => cluster.move_slot(HALL, 0, 1),
        Way::AtOnce if !cluster.move_slot_at_once(HALL, 0, 1) => {
            say_not_seen("a move of a slot in one step");
            return false;
        }
        Way::AtOnce => {}
    }
    true
}

/// A cluster whose node 0 has issued tokens with a clock that was this far ahead and is right
/// again: its own file says so. Its tokens stay ahead.
fn cluster_ahead(ahead_us: i64) -> Cluster {
    let file = ["appendonly", "yes", "appendfsync", "always", "aof-use-rdb-preamble", "no"];
    let mut cluster = Cluster::of_two_with(&file);
    let token = cluster.client(0).granted("RLOCK.ACQUIRE {hall}:first ann LEASE 600000");
    cluster.node_mut(0).kill_9();
    let path = newest_aof(cluster.node(0).folder());
    let bytes = with_token(&fs::read(&path).unwrap(), token, token + ahead_us);
    fs::write(&path, bytes).unwrap();
    cluster.node_mut(0).start_again();
    cluster.until_all_agree();
    let found = cluster.client(0).lock("{hall}:first").hold("ann", "write").token;
    assert_eq!(found, token + ahead_us);
    cluster
}

/// Locks of every kind in the slot of `hall`.
const KINDS: [(&str, &str); 7] = [
    ("{hall}:write", "RLOCK.ACQUIRE {hall}:write bob LEASE 600000"),
    ("{hall}:deep", "RLOCK.ACQUIRE {hall}:deep bob LEASE 600000"),
    ("{hall}:deep", "RLOCK.ACQUIRE {hall}:deep bob LEASE 600000"),
    ("{hall}:read", "RLOCK.ACQUIRE {hall}:read bob READ LEASE 600000"),
    ("{hall}:read", "RLOCK.ACQUIRE {hall}:read cid READ LEASE 600000"),
    ("{hall}:pool", "RLOCK.ACQUIRE {hall}:pool bob LIMIT 3 LEASE 600000"),
    ("{hall}:one", "RLOCK.MACQUIRE 2 {hall}:one {hall}:two bob LEASE 600000"),
];

/// All that is held, by key.
fn held(client: &mut Client) -> Vec<String> {
    let mut keys: Vec<&str> = KINDS.map(|(key, _)| key).to_vec();
    keys.extend(["{hall}:first", "{hall}:two"]);
    keys.iter().map(|key| format!("{key}: {:?}", client.lock(key).lasting())).collect()
}

/// The token was issued by a primary, whatever its clock said.
#[track_caller]
fn no_lock_is_lost_for_the_clock_that_issued_its_token(way: Way) {
    for ahead_us in [120 * SECOND_US, 365 * DAY_US] {
        let cluster = cluster_ahead(ahead_us);
        let (mut source, mut target) = (cluster.client(0), cluster.client(1));
        let mut last = 0;
        for (_, line) in KINDS {
            last = last.max(source.granted(line));
        }
        let before = held(&mut source);
        if !move_hall(&cluster, way) {
            return;
        }
        assert_eq!(held(&mut target), before);
        target.refused("RLOCK.ACQUIRE {hall}:write eve");
        let next = target.granted("RLOCK.ACQUIRE {hall}:new eve");
        assert!(next > last, "{next} after {last}");
    }
}

#[test]
fn keys_that_are_migrated_keep_their_locks_whatever_clock_issued_the_tokens() {
    no_lock_is_lost_for_the_clock_that_issued_its_token(Way::KeyByKey);
}

#[test]
fn a_slot_that_moves_at_once_keeps_its_locks_whatever_clock_issued_the_tokens() {
    no_lock_is_lost_for_the_clock_that_issued_its_token(Way::AtOnce);
}

/// What a client brings to a key that this node serves is no primary's word, in a cluster either.
#[test]
fn a_client_restores_no_token_far_ahead_at_a_node_that_serves_the_slot() {
    let cluster = Cluster::of_two();
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    source.ask("CONFIG SET rdbcompression no");
    let token = source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    let mut payload = Payload::open(&source.dump("hall"));
    payload.body = with_token(&payload.body, token, token + DAY_US);
    let sealed = payload.sealed();
    source.ask("DEL hall");
    let restore = |client: &mut Client, command: &str, key: &str| {
        let words = [command.as_bytes(), key.as_bytes(), b"0", &sealed, b"REPLACE"];
        client.attempt_bytes(&words).map(|_| ())
    };
    cluster.begin_move(HALL, 0, 1);
    // `yard` is in another slot of node 0, `door` is in one of node 1.
    for command in ["RESTORE", "RESTORE-ASKING"] {
        let refused = |client: &mut Client, key| {
            let error = restore(client, command, key).unwrap_err();
            assert!(error.starts_with("ERR Bad data format"), "{command} {key}: {error}");
        };
        refused(&mut source, "yard");
        refused(&mut target, "door");
    }
    // Without ASKING the node sends the client away, as for any command.
    let error = restore(&mut target, "RESTORE", "hall").unwrap_err();
    assert!(error.starts_with("MOVED "), "{error}");
    let next = target.granted("RLOCK.ACQUIRE door eve");
    assert!(next < token + DAY_US, "a refused token is forgotten");
    // The slot is on its way to this node.
    restore(&mut target, "RESTORE-ASKING", "hall").unwrap();
    target.ask("ASKING");
    assert_eq!(target.lock("hall").hold("ann", "write").token, token + DAY_US);
}
