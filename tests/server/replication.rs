//! A replica has the same locks as its primary, however they arrived, and decides nothing.

use rlock_testkit::{Client, Server, Waiter, aof_commands, now_ms, say_not_seen, until};

/// What must be the same on both sides.
type Picture = (String, String, Vec<u8>, i64);

#[track_caller]
fn picture(client: &mut Client, key: &str) -> Picture {
    if client.number(&format!("EXISTS {key}")) == 0 {
        return (client.shows(key), String::new(), Vec::new(), -2);
    }
    let holds = format!("{:?}", client.lock(key).lasting());
    let (digest, dump) = (client.digest(key), client.dump(key));
    (holds, digest, dump, client.key_ends_at(key))
}

#[track_caller]
fn assert_same(primary: &Server, replica: &Server, keys: &[&str]) {
    let (mut here, mut there) = (primary.client(), replica.client());
    for key in keys {
        assert_eq!(picture(&mut here, key), picture(&mut there, key), "{key}");
    }
}

fn set_the_scene(client: &mut Client) {
    for line in [
        "RLOCK.ACQUIRE writer ann LEASE 600001",
        "RLOCK.ACQUIRE readers ann READ LEASE 600020",
        "RLOCK.ACQUIRE readers bob READ LEASE 600300",
        "RLOCK.ACQUIRE both cid LEASE 650000",
        "RLOCK.ACQUIRE both cid READ LEASE 660000",
        "RLOCK.ACQUIRE lapsed ann READ LEASE 1",
        "RLOCK.ACQUIRE lapsed bob READ LEASE 600000",
    ] {
        client.granted(line);
    }
    until(5_000, || client.shows("lapsed") == "read: bob read 1");
}

const SCENE: [&str; 4] = ["writer", "readers", "both", "lapsed"];

/// Every kind of change, one after the other, at `door` and `gate`.
const CHANGES: [&str; 24] = [
    "RLOCK.ACQUIRE door ann READ LEASE 600000",
    "RLOCK.ACQUIRE door ann READ LEASE 700000",
    "RLOCK.ACQUIRE door bob READ LEASE 600001",
    "RLOCK.RENEW door bob LEASE 900000",
    "RLOCK.ACQUIRE door cid",
    "RLOCK.RELEASE door bob",
    "RLOCK.ACQUIRE door ann UPGRADE LEASE 650000",
    "RLOCK.ACQUIRE door ann LEASE 1",
    "RLOCK.RELEASE door ann READ DEPTH 1",
    "RLOCK.RENEW door ann WRITE LEASE 990000",
    "RLOCK.RELEASE door ann ALL",
    "PERSIST door",
    "PEXPIRE door 800000",
    "RLOCK.ACQUIRE door dan READ LEASE 600000",
    "RENAME door gate",
    "RLOCK.ACQUIRE door bob LEASE 600000",
    "RLOCK.FORCE gate READ",
    "RLOCK.ACQUIRE gate eve LEASE 600000 DEPTH 1",
    "RLOCK.RELEASE gate eve DEPTH 0",
    "DEL door",
    "RLOCK.ACQUIRE door ann LEASE 600000",
    "RLOCK.ACQUIRE door ann READ LEASE 600000",
    "RLOCK.FORCE door WRITE",
    "FLUSHALL",
];

#[test]
fn a_full_sync_brings_every_lock() {
    let primary = Server::primary(&[]);
    set_the_scene(&mut primary.client());
    for load in ["disabled", "on-empty-db", "swapdb"] {
        let replica = Server::replica_of(&primary, &["repl-diskless-load", load]);
        assert_same(&primary, &replica, &SCENE);
    }
    let on_disk = Server::primary(&["repl-diskless-sync", "no"]);
    set_the_scene(&mut on_disk.client());
    let replica = Server::replica_of(&on_disk, &[]);
    assert_same(&on_disk, &replica, &SCENE);
}

#[test]
fn a_full_sync_replaces_what_the_replica_held_before() {
    let primary = Server::primary(&[]);
    let former = Server::primary(&["repl-diskless-load", "swapdb"]);
    let mut client = former.client();
    client.granted("RLOCK.ACQUIRE writer stranger LEASE 600000");
    client.granted("RLOCK.ACQUIRE elsewhere stranger LEASE 600000");
    set_the_scene(&mut primary.client());
    former.follow(&primary);
    assert_same(&primary, &former, &SCENE);
    assert_eq!(client.number("EXISTS elsewhere"), 0);
}

#[test]
fn a_full_sync_over_two_channels_brings_every_lock() {
    let primary = Server::primary(&[]);
    let replica = Server::primary(&[]);
    for server in [&primary, &replica] {
        let setting = "CONFIG SET dual-channel-replication-enabled yes";
        if server.client().attempt(setting).is_err() {
            let version = server.version();
            say_not_seen(&format!("replication over two channels: {version:?} has none"));
            return;
        }
    }
    set_the_scene(&mut primary.client());
    replica.follow(&primary);
    assert_same(&primary, &replica, &SCENE);
}

#[test]
fn every_change_reaches_the_replica_and_its_replica() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let below = Server::replica_of(&replica, &[]);
    let mut client = primary.client();
    for change in CHANGES {
        client.ask(change);
        replica.until_in_sync_with(&primary);
        below.until_in_sync_with(&primary);
        assert_same(&primary, &replica, &["door", "gate"]);
        assert_same(&primary, &below, &["door", "gate"]);
    }
}

#[test]
fn what_changed_while_the_link_was_cut_comes_by_a_partial_sync() {
    let primary = Server::primary(&["repl-timeout", "600"]);
    let replica = Server::replica_of(&primary, &["repl-timeout", "600"]);
    let mut client = primary.client();
    set_the_scene(&mut client);
    replica.until_in_sync_with(&primary);
    let full_syncs = client.info_number("stats", "sync_full");
    replica.freeze();
    client.ask("CLIENT KILL TYPE replica");
    for line in [
        "RLOCK.RELEASE readers bob",
        "RLOCK.RELEASE both cid WRITE",
        "RLOCK.RENEW writer ann LEASE 900000",
        "RLOCK.ACQUIRE readers dan READ LEASE 600000",
    ] {
        client.ask(line);
    }
    replica.thaw();
    until(30_000, || client.info_number("stats", "sync_partial_ok") > 0);
    replica.until_in_sync_with(&primary);
    assert_eq!(client.info_number("stats", "sync_full"), full_syncs);
    assert_same(&primary, &replica, &SCENE);
}

#[test]
fn effects_between_the_fork_of_a_full_sync_and_its_end_are_not_lost() {
    // The child sleeps while it sends, so that there is time in between.
    let primary = Server::primary(&["rdb-key-save-delay", "20000"]);
    let mut client = primary.client();
    for number in 0..40 {
        client.granted(&format!("RLOCK.ACQUIRE filler:{number} ann LEASE 600000"));
    }
    client.granted("RLOCK.ACQUIRE writer ann LEASE 600000");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let replica = std::thread::scope(|scope| {
        let grants = scope.spawn(|| {
            let mut client = primary.client();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for line in ["RLOCK.ACQUIRE readers ann READ", "RLOCK.RENEW writer ann"] {
                    client.ask(line);
                }
                std::thread::yield_now();
            }
        });
        let replica = Server::replica_during_traffic(&primary);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        grants.join().unwrap();
        replica
    });
    replica.until_in_sync_with(&primary);
    assert_same(&primary, &replica, &["writer", "readers"]);
}

#[test]
fn a_release_goes_along_as_it_was_asked_for_where_that_says_all() {
    let server = Server::with(&["appendonly", "yes"]);
    let mut client = server.client();
    let sent = |client: &mut Client, line: &str| {
        let before = aof_commands(server.folder()).len();
        client.ask(line);
        let commands = aof_commands(server.folder()).into_iter().skip(before);
        let said = commands.map(|words| words.join(&b' '));
        said.map(|line| String::from_utf8_lossy(&line).into_owned()).collect::<Vec<_>>()
    };
    let by_effect = |client: &mut Client, line: &str| {
        let effects = sent(client, line);
        assert!(effects.len() == 1 && effects[0].starts_with("RLOCK.APPLY door "), "{effects:?}");
    };
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE door ann UPGRADE LEASE 600000");
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    // If these were replicated as commands and executed twice, they would count twice.
    by_effect(&mut client, "RLOCK.RELEASE door ann DEPTH 1");
    by_effect(&mut client, "RLOCK.RELEASE door ann");
    for line in ["RLOCK.RELEASE door ann", "rlock.release door ann ALL"] {
        assert_eq!(sent(&mut client, line), [line]);
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    }
    client.error(&format!("RLOCK.RELEASE door ann TOKEN {token}"));
    // The same step lets a waiter in, or finds an expired lease.
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob READ BLOCK 0");
    by_effect(&mut client, "RLOCK.RELEASE door ann");
    bob.granted();
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 600000 DEPTH 1");
    // The server reads both at once: it sleeps until the lease has expired, and notices that at the
    // release.
    client.all(&[
        "RLOCK.ACQUIRE door cid READ LEASE 1",
        "DEBUG SLEEP 0.05",
        "RLOCK.RELEASE door bob ALL",
    ]);
    let commands = aof_commands(server.folder());
    assert!(commands.last().unwrap().starts_with(&[b"RLOCK.APPLY".to_vec(), b"door".to_vec()]));
    assert_eq!(client.number("RLOCK.HOLDS door bob"), 0);
    assert_eq!(sent(&mut client, "RLOCK.RELEASE door bob DEPTH 0"), [""; 0]);
}

/// A server's limits apply to its clients, not to what its primary decided.
#[test]
fn a_replica_with_other_limits_has_the_same_holds() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    replica.client().ask("CONFIG SET rlock.max-depth 3 rlock.max-lease-ms 1000");
    let mut client = primary.client();
    for _ in 0..6 {
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    }
    for line in ["RLOCK.RELEASE door ann DEPTH 5", "RLOCK.RELEASE door ann"] {
        client.ask(line);
        assert_eq!(client.number("WAIT 1 20000"), 1);
        assert_same(&primary, &replica, &["door"]);
    }
    client.ask("RLOCK.RELEASE door ann DEPTH 0");
    assert_eq!(client.number("WAIT 1 20000"), 1);
    assert_same(&primary, &replica, &["door"]);
}

#[test]
fn a_replica_restarted_from_its_own_aof_has_every_lock() {
    let primary = Server::primary(&[]);
    set_the_scene(&mut primary.client());
    let mut replica = Server::replica_of(&primary, &["appendonly", "yes", "appendfsync", "always"]);
    let mut client = primary.client();
    for change in &CHANGES[..19] {
        client.ask(change);
    }
    client.ask("RLOCK.RELEASE readers ann");
    client.ask("RLOCK.ACQUIRE writer ann LEASE 900000");
    replica.until_in_sync_with(&primary);
    // What arrived by the full sync is in the AOF only after the rewrite.
    let mut there = replica.client();
    until(20_000, || {
        let is_rewriting = there.info_number("persistence", "aof_rewrite_in_progress");
        is_rewriting + there.info_number("persistence", "aof_rewrite_scheduled") == 0
    });
    replica.kill_9();
    // On its own, so that nothing can come from the primary.
    replica.configure("replicaof", "no one");
    replica.start_again();
    let role = replica.client().info("replication", "role");
    assert_eq!(role.as_deref(), Some("master"));
    assert_same(&primary, &replica, &["writer", "readers", "both", "door", "gate"]);
}

#[test]
fn a_replica_restarted_from_its_own_rdb_has_every_lock() {
    let primary = Server::primary(&[]);
    let mut replica = Server::replica_of(&primary, &[]);
    set_the_scene(&mut primary.client());
    replica.until_in_sync_with(&primary);
    replica.client().ask("SAVE");
    replica.kill_9();
    replica.configure("replicaof", "no one");
    replica.start_again();
    assert_same(&primary, &replica, &SCENE);
}

#[test]
fn a_promoted_replica_goes_on_with_every_hold() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    set_the_scene(&mut client);
    replica.until_in_sync_with(&primary);
    let before: Vec<Picture> = SCENE.iter().map(|key| picture(&mut client, key)).collect();
    drop(primary);
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    let after: Vec<Picture> = SCENE.iter().map(|key| picture(&mut promoted, key)).collect();
    assert_eq!(after, before);
    promoted.refused("RLOCK.ACQUIRE door bob");
    assert_eq!(promoted.granted("RLOCK.ACQUIRE door ann"), ann);
    assert_eq!(promoted.number(&format!("RLOCK.RELEASE door ann TOKEN {ann} ALL")), 0);
    assert!(promoted.granted("RLOCK.ACQUIRE door bob") > ann);
}

#[test]
fn the_former_primary_follows_the_promoted_replica() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    set_the_scene(&mut primary.client());
    replica.until_in_sync_with(&primary);
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    primary.follow(&replica);
    for line in ["RLOCK.RELEASE writer ann", "RLOCK.ACQUIRE writer bob LEASE 600000"] {
        promoted.ask(line);
    }
    primary.until_in_sync_with(&replica);
    assert_same(&replica, &primary, &SCENE);
    assert_eq!(primary.client().shows("writer"), "write: bob write 1");
}

#[test]
fn a_replica_answers_questions_and_refuses_changes() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let token = primary.client().granted("RLOCK.ACQUIRE door ann LEASE 600000");
    replica.until_in_sync_with(&primary);
    for is_read_only in ["yes", "no"] {
        let mut client = replica.client();
        client.ask(&format!("CONFIG SET replica-read-only {is_read_only}"));
        let before = picture(&mut client, "door");
        assert_eq!(client.shows("door"), "write: ann write 1");
        assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
        client.ask("RLOCK.HELP");
        for change in [
            "ACQUIRE free bob",
            "ACQUIRE door ann",
            "ACQUIRE door bob",
            "RELEASE door ann",
            "RENEW door ann",
            "FORCE door",
            "FORCE free",
        ] {
            let error = client.error(&format!("RLOCK.{change}"));
            assert!(error.starts_with("READONLY "), "{is_read_only} {change}: {error}");
            let arguments: Vec<&str> = change.split(' ').collect();
            let script = format!("return redis.call('RLOCK.{}')", arguments.join("', '"));
            let error = client.error_bytes(&[b"EVAL", script.as_bytes(), b"0"]);
            assert!(error.contains("READONLY"), "{is_read_only} EVAL {change}: {error}");
        }
        assert_eq!(picture(&mut client, "door"), before);
        assert_eq!(client.number("EXISTS free"), 0);
    }
    assert_same(&primary, &replica, &["door"]);
}

#[test]
fn what_is_over_is_gone_on_a_replica_that_hears_nothing() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 2000");
    client.granted("RLOCK.ACQUIRE gate ann READ LEASE 2000");
    client.granted("RLOCK.ACQUIRE gate bob READ LEASE 600000");
    replica.until_in_sync_with(&primary);
    primary.freeze();
    let mut there = replica.client();
    until(10_000, || there.shows("door") == "free:");
    until(10_000, || there.shows("gate") == "read: bob read 1");
    assert_eq!(there.number("RLOCK.HOLDS door ann"), 0);
    assert_eq!(there.number(&format!("RLOCK.CHECK door {ann}")), 0);
    assert_eq!(there.number("RLOCK.HOLDS gate ann"), 0);
    primary.thaw();
}

#[test]
fn a_lock_that_begins_anew_replaces_what_the_replica_still_had() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    for _ in 0..5 {
        client.granted("RLOCK.ACQUIRE door ann LEASE 200");
        client.granted("RLOCK.ACQUIRE door ann READ LEASE 200");
        // Nobody touches it, so the primary finds it when it grants.
        let ends_at = client.key_ends_at("door");
        until(5_000, || now_ms() > ends_at + 1);
        client.granted("RLOCK.ACQUIRE door bob READ LEASE 600000");
        replica.until_in_sync_with(&primary);
        assert_eq!(replica.client().shows("door"), "read: bob read 1");
        assert_same(&primary, &replica, &["door"]);
        client.ask("RLOCK.FORCE door");
    }
}

#[test]
fn what_ran_out_beside_a_living_hold_is_the_same_on_both_sides_after_the_next_change() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 30");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 600000");
    until(5_000, || client.shows("door") == "read: bob read 1");
    client.granted("RLOCK.ACQUIRE door cid READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    replica.until_in_sync_with(&primary);
    assert_same(&primary, &replica, &["door"]);
    assert_eq!(client.shows("door"), "read: ann read 1, bob read 1, cid read 1");
}

#[test]
fn transactions_and_scripts_reach_the_replica_whole() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    for line in [
        "MULTI",
        "SET beside 1",
        "RLOCK.ACQUIRE door ann LEASE 600000",
        "RLOCK.ACQUIRE gate ann LEASE 600000",
        "RLOCK.RELEASE door ann",
        "EXEC",
    ] {
        client.ask(line);
    }
    let script =
        b"redis.call('SELECT', 4) redis.call('RLOCK.ACQUIRE', 'door', 'lua', 'LEASE', 600000) \
        return redis.call('RLOCK.ACQUIRE', 'door', 'lua', 'LEASE', 600000)";
    client.ask_bytes(&[b"EVAL", script, b"0"]);
    replica.until_in_sync_with(&primary);
    assert_same(&primary, &replica, &["door", "gate"]);
    let mut there = replica.client();
    there.ask("SELECT 4");
    assert_eq!(there.shows("door"), "write: lua write 2");
}

#[test]
fn databases_stay_apart_and_move_together() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.ask("SELECT 5");
    client.granted("RLOCK.ACQUIRE door bob LEASE 600000");
    client.granted("RLOCK.ACQUIRE gate cid LEASE 600000");
    client.ask("MOVE gate 0");
    client.ask("SWAPDB 0 5");
    replica.until_in_sync_with(&primary);
    assert_same(&primary, &replica, &["door", "gate"]);
    let mut there = replica.client();
    assert_eq!(there.shows("door"), "write: bob write 1");
    there.ask("SELECT 5");
    assert_eq!(there.shows("door"), "write: ann write 1");
    assert_eq!(there.shows("gate"), "write: cid write 1");
}

#[test]
fn keys_that_are_removed_together_with_sessions_are_removed_from_the_replica_as_well() {
    let expire =
        b"for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('PEXPIRE', key, 20) end";
    for are_evicted in [false, true] {
        let primary = Server::primary(&[]);
        let replica = Server::replica_of(&primary, &[]);
        let (mut here, mut there) = (primary.client(), replica.client());
        let tied = |number| {
            let mut session = Waiter::connect(&primary);
            session.say(&format!("RLOCK.ACQUIRE door:{number} ann SESSION"));
            session.granted();
            session
        };
        let _sessions: Vec<Waiter> = (0..10).map(tied).collect();
        for number in 0..10 {
            here.ask(&format!("SET text:{number} some"));
        }
        replica.until_in_sync_with(&primary);
        if are_evicted {
            here.ask("CONFIG SET maxmemory-policy allkeys-random");
            here.ask("CONFIG SET maxmemory 1");
        } else {
            here.ask_bytes(&[b"EVAL", expire, b"0"]);
        }
        until(5000, || here.number("DBSIZE") == 0);
        until(5000, || there.number("DBSIZE") == 0);
    }
}
