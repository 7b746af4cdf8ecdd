//! What a slot brings with it, however it moves: key by key, as every server can, or in one step
//! (Valkey since 9.0, Redis since 8.4). `hall` is in the lower half of the slots, on node 0.

use std::fs;

use rlock_testkit::{
    Client, Cluster, Listener, Payload, Version, Waiter, newest_aof, say_not_seen, until,
    with_token,
};

use crate::cluster::sent_away;

const HALL: u16 = 4903;
const EVENTS: [&str; 4] = ["notify-keyspace-events", "KEd", "enable-debug-command", "yes"];
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

/// A cluster whose node 0 has issued tokens with a clock that was this far ahead and has been
/// corrected: its own file shows that. Its tokens stay ahead.
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

/// A primary issued the token, whatever its clock showed.
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

/// A node accepts any token from another server, but not from a client that restores a key whose
/// slot this node serves.
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
    // The slot is being moved to this node.
    restore(&mut target, "RESTORE-ASKING", "hall").unwrap();
    target.ask("ASKING");
    assert_eq!(target.lock("hall").hold("ann", "write").token, token + DAY_US);
}

/// The slot's data is being sent, and its changes follow, until [`move_ends`]. False if the servers
/// cannot move a slot in one step.
fn move_begins(cluster: &Cluster) -> bool {
    let mut source = cluster.client(0);
    let mark = match cluster.node(0).version() {
        Version::Valkey(..) => {
            if cluster.node(0).version() >= Version::Valkey(9, 0) {
                source.ask("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
            }
            "snapshotting -> replicating"
        }
        Version::Redis(..) => {
            // As many bytes as a slot could have: the move takes several seconds.
            for number in 0..100 {
                source.ask(&format!("SET {{hall}}#{number} x"));
            }
            source.ask("CONFIG SET rdb-key-save-delay 50000");
            "started for slots"
        }
    };
    if !cluster.begin_move_at_once(HALL, 0, 1) {
        say_not_seen("a move of a slot in one step");
        return false;
    }
    until(20_000, || cluster.node(0).log().contains(mark));
    true
}

fn move_ends(cluster: &Cluster) {
    assert_eq!(cluster.owner_of(HALL, 0), Some(0), "it is over too soon to see anything");
    if let Version::Valkey(..) = cluster.node(0).version() {
        cluster.client(0).ask("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
    }
    until(30_000, || cluster.owner_of(HALL, 0) == Some(1) && cluster.owner_of(HALL, 1) == Some(1));
}

#[test]
fn a_slot_that_moves_at_once_takes_its_locks_along_and_sends_who_waits_after_them() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    let mut ears = [Listener::to(cluster.node(0)), Listener::to(cluster.node(1))];
    let token = source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    source.granted("RLOCK.ACQUIRE hall ann READ LEASE 600000");
    let mut dan = Waiter::connect(cluster.node(0));
    dan.ask("RLOCK.ACQUIRE {hall}:2 dan LEASE 600000 SESSION");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall bob BLOCK 0");
    source.refused("RLOCK.ACQUIRE hall cid QUEUE 60000");
    let (holds, deadline_ms) = (source.lock("hall").lasting(), source.key_ends_at("hall"));
    ears[0].heard(&mut source);
    if !move_hall(&cluster, Way::AtOnce) {
        return;
    }
    sent_away(&mut bob);
    // At once, and not at the next renewal of its session, minutes later.
    dan.expect_close();
    until(5_000, || source.gauges() == (0, 0, 0) && source.counted("locks") == 0);
    assert_eq!(ears[0].heard_after_a_turn(&mut source), [""; 0]);
    assert_eq!(ears[1].heard_after_a_turn(&mut target), [""; 0]);
    assert_eq!(source.counted("handed_off"), 0);
    assert_eq!(target.lock("hall").lasting(), holds);
    assert_eq!(target.key_ends_at("hall"), deadline_ms);
    assert_eq!(target.shows("{hall}:2"), "write: dan write 1");
    let mut bob = Waiter::parked(cluster.node(1), "RLOCK.ACQUIRE hall bob BLOCK 0");
    target.ask("RLOCK.FORCE hall");
    assert!(bob.granted() > token);
}

#[test]
fn what_is_done_while_a_slot_moves_at_once_is_moved_too_and_told_once() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    let mut ears = [Listener::to(cluster.node(0)), Listener::to(cluster.node(1))];
    source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    source.granted("RLOCK.ACQUIRE {hall}:2 bob LEASE 600000");
    // Their leases end at the source while the slot moves: of a lock with one hold, and of one with
    // two.
    source.granted("RLOCK.ACQUIRE {hall}:4 eve LEASE 1500");
    source.granted("RLOCK.ACQUIRE {hall}:5 eve READ LEASE 1500");
    source.granted("RLOCK.ACQUIRE {hall}:5 fay READ LEASE 600000");
    source.granted("RLOCK.ACQUIRE {hall}:6 gus LEASE 600000");
    if !move_begins(&cluster) {
        return;
    }
    source.ask("RLOCK.RELEASE hall ann");
    source.ask("RLOCK.RELEASE {hall}:2 bob");
    source.ask("DEL {hall}:6");
    source.granted("RLOCK.ACQUIRE {hall}:3 cid LEASE 600000");
    let mut dan =
        Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE {hall}:3 dan LEASE 600000 BLOCK 0");
    source.ask("RLOCK.RELEASE {hall}:3 cid");
    let token = dan.granted();
    until(10_000, || source.number("EXISTS {hall}:4") == 0 && source.counted("expired") == 2);
    move_ends(&cluster);
    let told = ears[0].heard(&mut source);
    let ended = |event: &str| told.iter().filter(|heard| *heard == event).count();
    for event in ["rlock.expired {hall}:4", "rlock.expired {hall}:5", "rlock.removed {hall}:6"] {
        assert_eq!(ended(event), 1, "{event}: {told:?}");
    }
    assert_eq!(target.shows("hall"), "write: ann write 1");
    assert_eq!(target.number("EXISTS {hall}:2 {hall}:4 {hall}:6"), 0);
    assert_eq!(target.shows("{hall}:5"), "read: fay read 1");
    assert_eq!(target.lock("{hall}:3").hold("dan", "write").token, token);
    for (ears, client) in ears.iter_mut().zip([&mut source, &mut target]) {
        assert_eq!(ears.heard_after_a_turn(client), [""; 0]);
    }
    let counted = ["released", "acquired", "expired"].map(|name| target.counted(name));
    assert_eq!(counted, [0, 0, 0]);
}

/// However several locks are changed, the target has the same state.
#[test]
fn what_is_done_to_several_locks_while_their_slot_moves_at_once_is_moved_too() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    source.granted("RLOCK.MACQUIRE 2 {hall}:1 {hall}:2 ann LEASE 600000");
    source.granted("RLOCK.MACQUIRE 2 {hall}:3 {hall}:4 bob LEASE 600000");
    source.granted("RLOCK.MACQUIRE 2 {hall}:5 {hall}:6 cid LEASE 2000");
    source.granted("RLOCK.ACQUIRE {hall}:7 dan LEASE 600000");
    source.granted("RLOCK.ACQUIRE {hall}:8 dan LEASE 600000");
    if !move_begins(&cluster) {
        return;
    }
    // The timer ends the lease of one of them, and grants both to the other.
    let line = "RLOCK.MACQUIRE 2 {hall}:5 {hall}:6 eve LEASE 600000 BLOCK 0";
    let token = Waiter::parked(cluster.node(0), line).granted();
    source.number("RLOCK.MRELEASE 2 {hall}:1 {hall}:2 ann");
    source.granted("RLOCK.MACQUIRE 2 {hall}:1 {hall}:3 bob LEASE 700000");
    source.ask_bytes(&[
        b"EVAL",
        b"return redis.call('RLOCK.RELEASE', KEYS[1], 'dan')",
        b"1",
        b"{hall}:7",
    ]);
    source.ask("MULTI");
    source.ask("RLOCK.RELEASE {hall}:8 dan");
    source.ask("EXEC");
    move_ends(&cluster);
    for key in ["{hall}:1", "{hall}:3", "{hall}:4"] {
        assert_eq!(target.shows(key), "write: bob write 1", "{key}");
    }
    for key in ["{hall}:5", "{hall}:6"] {
        assert_eq!(target.lock(key).hold("eve", "write").token, token, "{key}");
    }
    assert_eq!(target.number("EXISTS {hall}:2 {hall}:7 {hall}:8"), 0);
}
