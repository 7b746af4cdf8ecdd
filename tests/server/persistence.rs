//! What survives the process: holds, depths, tokens and deadlines to the millisecond.

use rlock_testkit::{Client, Server, aof_commands, integer, items, now_ms, text, until};

/// Everything that must be the same afterward, for every lock in the scene.
type Picture = Vec<(String, String, Vec<u8>, i64)>;

const KEYS: [&str; 6] = ["writer", "readers", "both", "deep", "lapsed", "persisted"];

/// Creates locks of every form, whose deadlines all differ.
fn set_the_scene(client: &mut Client) {
    for line in [
        "RLOCK.ACQUIRE writer ann LEASE 600001",
        "RLOCK.ACQUIRE readers ann READ LEASE 600020",
        "RLOCK.ACQUIRE readers bob READ LEASE 600300",
        "RLOCK.ACQUIRE readers bob READ LEASE 600300",
        "RLOCK.ACQUIRE readers gone READ LEASE 604000",
        "RLOCK.RELEASE readers gone",
        "RLOCK.ACQUIRE both cid LEASE 650000",
        "RLOCK.ACQUIRE both cid READ LEASE 660000",
        "RLOCK.ACQUIRE lapsed ann READ LEASE 1",
        "RLOCK.ACQUIRE lapsed bob READ LEASE 600000",
        "RLOCK.ACQUIRE persisted ann LEASE 600000",
        "PERSIST persisted",
    ] {
        client.ask(line);
    }
    until(5_000, || client.shows("lapsed") == "read: bob read 1");
    for _ in 0..300 {
        client.ask("RLOCK.ACQUIRE deep dan LEASE 700000");
    }
}

/// What can be seen of the scene: holds with tokens, the value's digest and bytes, the key's
/// expiry.
#[track_caller]
fn picture(client: &mut Client) -> Picture {
    let see = |key: &&str| {
        let holds = format!("{key}: {:?}", client.lock(key).lasting());
        let (digest, dump) = (client.digest(key), client.dump(key));
        (holds, digest, dump, client.key_ends_at(key))
    };
    KEYS.iter().map(see).collect()
}

/// Compares key by key, so that a failure is short.
#[track_caller]
fn assert_same(before: &Picture, after: &Picture) {
    for (before, after) in before.iter().zip(after) {
        assert_eq!(before, after);
    }
}

#[test]
fn a_digest_and_a_dump_tell_deadlines_tokens_and_depths_apart() {
    // Otherwise, the comparisons below would prove nothing.
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    for change in ["RLOCK.RENEW door ann LEASE 90000", "RLOCK.ACQUIRE door ann LEASE 1"] {
        let before = (client.digest("door"), client.dump("door"));
        client.ask(change);
        assert_ne!(client.digest("door"), before.0, "{change}");
        assert_ne!(client.dump("door"), before.1, "{change}");
    }
    let before = client.digest("door");
    assert_ne!(before, "0".repeat(40));
    client.ask("RLOCK.FORCE door");
    client.granted("RLOCK.ACQUIRE door ann LEASE 90000");
    assert_ne!(client.digest("door"), before);
}

#[test]
fn nothing_is_forgotten_over_kill_9() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    set_the_scene(&mut client);
    let before = picture(&mut client);
    let last = client.granted("RLOCK.ACQUIRE last zoe");
    server.kill_9();
    server.start_again();
    let mut client = server.client();
    assert_same(&before, &picture(&mut client));
    assert_eq!(client.lock("last").hold("zoe", "write").token, last);
    client.refused("RLOCK.ACQUIRE writer bob");
    assert!(client.granted("RLOCK.ACQUIRE free bob") > last);
    assert_eq!(client.number("RLOCK.RELEASE deep dan"), 299);
}

#[test]
fn nothing_is_forgotten_by_an_rdb() {
    let mut server = Server::start();
    let mut client = server.client();
    set_the_scene(&mut client);
    let before = picture(&mut client);
    client.ask("SAVE");
    server.restart();
    assert_same(&before, &picture(&mut server.client()));
}

#[test]
fn nothing_is_forgotten_by_a_background_save_beside_later_changes() {
    let mut server = Server::start();
    let mut client = server.client();
    set_the_scene(&mut client);
    let before = picture(&mut client);
    client.ask("BGSAVE");
    client.ask("RLOCK.FORCE writer");
    client.ask("RLOCK.ACQUIRE deep dan");
    until(20_000, || client.info_number("persistence", "rdb_bgsave_in_progress") == 0);
    server.kill_9();
    server.start_again();
    assert_same(&before, &picture(&mut server.client()));
}

#[test]
fn nothing_is_forgotten_by_a_rewritten_aof_of_either_format() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with(&[
            "appendonly",
            "yes",
            "appendfsync",
            "always",
            "aof-use-rdb-preamble",
            preamble,
        ]);
        let mut client = server.client();
        set_the_scene(&mut client);
        client.ask("BGREWRITEAOF");
        until(20_000, || {
            let is_rewriting = client.info_number("persistence", "aof_rewrite_in_progress");
            let is_due = client.info_number("persistence", "aof_rewrite_scheduled");
            is_rewriting + is_due == 0
        });
        let status = client.info("persistence", "aof_last_bgrewrite_status");
        assert_eq!(status.as_deref(), Some("ok"));
        let before = picture(&mut client);
        server.kill_9();
        server.start_again();
        assert_same(&before, &picture(&mut server.client()));
    }
}

#[test]
fn a_rewritten_aof_goes_on_where_it_was_rewritten() {
    let mut server =
        Server::with(&["appendonly", "yes", "appendfsync", "always", "aof-use-rdb-preamble", "no"]);
    let mut client = server.client();
    set_the_scene(&mut client);
    client.ask("BGREWRITEAOF");
    until(20_000, || client.info_number("persistence", "aof_rewrite_in_progress") == 0);
    for line in [
        "RLOCK.RELEASE readers ann",
        "RLOCK.RELEASE both cid WRITE",
        "RLOCK.RENEW writer ann LEASE 800000",
        "RLOCK.RELEASE deep dan DEPTH 7",
    ] {
        client.ask(line);
    }
    let before = picture(&mut client);
    server.kill_9();
    server.start_again();
    assert_same(&before, &picture(&mut server.client()));
}

#[test]
fn nothing_is_forgotten_by_debug_reload_and_debug_loadaof() {
    let server = Server::with(&["appendonly", "yes"]);
    let mut client = server.client();
    set_the_scene(&mut client);
    let before = picture(&mut client);
    client.ask("DEBUG RELOAD");
    assert_same(&before, &picture(&mut client));
    client.ask("DEBUG LOADAOF");
    assert_same(&before, &picture(&mut client));
    client.refused("RLOCK.ACQUIRE writer bob");
}

#[test]
fn a_lock_released_before_the_kill_stays_released() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    for (key, end) in [
        ("a", "RLOCK.RELEASE a ann"),
        ("b", "RLOCK.FORCE b"),
        ("c", "DEL c"),
        ("d", "RLOCK.RELEASE d ann ALL"),
        ("e", "RLOCK.RELEASE e ann DEPTH 0"),
    ] {
        client.granted(&format!("RLOCK.ACQUIRE {key} ann"));
        client.ask(end);
    }
    server.kill_9();
    server.start_again();
    assert_eq!(server.client().number("DBSIZE"), 0);
}

#[test]
fn a_lease_goes_on_running_while_the_server_is_down() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE gate ann READ LEASE 300");
    client.granted("RLOCK.ACQUIRE gate bob READ LEASE 600000");
    // The hold with the latest deadline is compared.
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 300");
    let key_ends_at = client.key_ends_at("door");
    server.kill_9();
    until(5_000, || now_ms() > key_ends_at);
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.shows("door"), "free:");
    assert_eq!(client.shows("gate"), "read: bob read 1");
    assert!(client.granted("RLOCK.ACQUIRE door bob") > token);
}

#[test]
fn a_dumped_lock_is_restored_whole() {
    let server = Server::start();
    let mut client = server.client();
    set_the_scene(&mut client);
    let before = picture(&mut client);
    for (key, (_, _, dump, ends_at)) in KEYS.iter().zip(&before) {
        client.ask(&format!("DEL {key}"));
        // RESTORE uses 0 for a key that never expires, PTTL -1.
        let (key, ends_at) = (key.as_bytes(), (*ends_at).max(0).to_string());
        client.ask_bytes(&[b"RESTORE", key, ends_at.as_bytes(), dump, b"ABSTTL"]);
    }
    assert_same(&before, &picture(&mut client));
    assert_eq!(client.number("RLOCK.RELEASE deep dan"), 299);
}

#[test]
fn a_restored_lock_whose_deadlines_are_over_is_free_whatever_its_ttl() {
    let server = Server::start();
    let mut client = server.client();
    let replies = client.all(&["RLOCK.ACQUIRE door ann LEASE 200", "DUMP door"]);
    let redis::Value::BulkString(dump) = &replies[1] else { panic!("{replies:?}") };
    until(5_000, || client.number("EXISTS door") == 0);
    client.ask_bytes(&[b"RESTORE", b"door", b"600000", dump]);
    assert_eq!(client.shows("door"), "free:");
    client.granted("RLOCK.ACQUIRE door bob");
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn a_renamed_or_moved_lock_is_held_at_its_new_place_only() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let (dump, ends_at) = (client.dump("door"), client.key_ends_at("door"));
    client.ask("RENAME door gate");
    assert_eq!(client.shows("door"), "free:");
    assert_eq!((client.dump("gate"), client.key_ends_at("gate")), (dump, ends_at));
    client.refused("RLOCK.ACQUIRE gate bob");
    assert_eq!(client.number("MOVE gate 2"), 1);
    assert_eq!(client.shows("gate"), "free:");
    client.ask("SELECT 2");
    assert_eq!(client.lock("gate").hold("ann", "write").token, token);
    client.ask("SWAPDB 2 0");
    assert_eq!(client.shows("gate"), "free:");
    client.ask("SELECT 0");
    assert_eq!(client.key_ends_at("gate"), ends_at);
    assert_eq!(client.number("RLOCK.RELEASE gate ann"), 0);
}

#[test]
fn a_lock_that_migrates_is_held_at_its_new_server() {
    let (from, to) = (Server::primary(&[]), Server::primary(&[]));
    let mut client = from.client();
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 700000");
    let (digest, dump) = (client.digest("door"), client.dump("door"));
    client.ask(&format!("MIGRATE 127.0.0.1 {} door 0 10000", to.tcp_port()));
    assert_eq!(client.shows("door"), "free:");
    let mut there = to.client();
    assert_eq!((there.digest("door"), there.dump("door")), (digest, dump));
    there.refused("RLOCK.ACQUIRE door bob");
    assert!(there.granted("RLOCK.ACQUIRE gate bob") > token);
}

#[test]
fn a_lock_is_not_a_value_to_copy() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.error("COPY door gate");
    client.error("COPY door gate DB 1 REPLACE");
    assert_eq!(client.number("EXISTS gate"), 0);
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn a_persisted_key_outlasts_its_holds_and_is_free() {
    let server = Server::start();
    let mut client = server.client();
    for lengthen in ["PERSIST door", "EXPIRE door 600"] {
        // A busy server ends the READ hold late, and removes the key if both have expired by then.
        let lines = ["RLOCK.ACQUIRE door ann LEASE 2000", "RLOCK.ACQUIRE door ann READ LEASE 500"];
        let replies = client.all(&[lines[0], lines[1], lengthen]);
        let token = integer(&replies[0]);
        assert_eq!(integer(&replies[2]), 1);
        until(5_000, || client.shows("door") == "free:");
        assert_eq!(client.number("EXISTS door"), 1);
        assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
        assert!(client.error("RLOCK.RELEASE door ann").starts_with("NOTHELD "));
        assert!(client.error("RLOCK.RENEW door ann").starts_with("NOTHELD "));
        assert!(client.granted("RLOCK.ACQUIRE door bob LEASE 60000") > token);
        assert_eq!(client.shows("door"), "write: bob write 1");
        // From then on, the key lives as long as its holds again.
        assert!((0..=60_000).contains(&client.lives_ms("door")));
        client.ask("RLOCK.RELEASE door bob");
        assert_eq!(client.number("EXISTS door"), 0);
    }
}

#[test]
fn a_shorter_expire_ends_the_lock_when_the_server_removes_the_key() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.ask("PEXPIRE door 30");
    until(5_000, || client.shows("door") == "free:");
    client.granted("RLOCK.ACQUIRE door bob");
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn an_aof_sent_to_another_server_makes_the_same_locks() {
    let server =
        Server::with(&["appendonly", "yes", "appendfsync", "always", "aof-use-rdb-preamble", "no"]);
    set_the_scene(&mut server.client());
    let other = Server::start();
    let mut client = other.client();
    for command in aof_commands(server.folder()) {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        client.ask_bytes(&words);
    }
    let (mut before, mut after) = (picture(&mut server.client()), picture(&mut client));
    // A primary that is not loading removes at once what arrives with a deadline in the past, so
    // only the other keys are the same there.
    let lapsed = KEYS.iter().position(|key| *key == "lapsed").unwrap();
    assert_eq!(before.remove(lapsed).0, after.remove(lapsed).0);
    assert_same(&before, &after);
}

#[test]
fn a_change_is_one_command_in_the_aof_and_a_refusal_is_none() {
    let server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    // Its SELECT comes first.
    client.ask("SET first 1");
    let mut commands_of = |line: &str| {
        let before = aof_commands(server.folder()).len();
        client.attempt(line).ok();
        if line.ends_with("LEASE 5") {
            until(5_000, || client.counted("expired") == 1);
        }
        aof_commands(server.folder()).len() - before
    };
    for line in [
        "RLOCK.ACQUIRE door ann READ LEASE 600000",
        "RLOCK.ACQUIRE door ann READ LEASE 600000",
        "RLOCK.RENEW door ann LEASE 700000",
        "RLOCK.RELEASE door ann",
        "RLOCK.ACQUIRE door ann UPGRADE LEASE 600000",
        "RLOCK.RENEW door ann LEASE 800000",
        "RLOCK.RELEASE door ann",
        "RLOCK.ACQUIRE door short READ LEASE 5",
        "RLOCK.ACQUIRE door bob READ LEASE 600000",
        "RLOCK.ACQUIRE door cid READ LEASE 600000",
        "RLOCK.FORCE door",
        "RLOCK.ACQUIRE door ann LEASE 600000 DEPTH 1",
        // A reply that changes nothing is a promise, too: its client may send WAIT for it.
        "RLOCK.ACQUIRE door ann LEASE 1000 DEPTH 1",
        "RLOCK.RENEW door ann LEASE 1000",
    ] {
        // The end of a lease beside another hold is a change of its own, at its deadline.
        let commands = if line.ends_with("LEASE 5") { 2 } else { 1 };
        assert_eq!(commands_of(line), commands, "{line}");
    }
    for line in [
        "RLOCK.ACQUIRE door bob",
        "RLOCK.RELEASE door ann DEPTH 1",
        "RLOCK.RELEASE door bob",
        "RLOCK.RENEW door bob",
        "RLOCK.FORCE door READ",
        "RLOCK.FORCE nowhere",
        "RLOCK.INFO door",
        "RLOCK.HOLDS door ann",
        "RLOCK.CHECK door 5",
    ] {
        assert_eq!(commands_of(line), 0, "{line}");
    }
    assert_eq!(commands_of("RLOCK.RELEASE door ann"), 1);
}

#[test]
fn a_key_of_another_database_keeps_its_lock_over_a_reload() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("SELECT 9");
    client.granted("RLOCK.ACQUIRE door ann");
    client.ask("DEBUG RELOAD");
    assert_eq!(client.shows("door"), "write: ann write 1");
    let keys = client.ask("KEYS *");
    assert_eq!(text(&items(&keys)[0]), "door");
}
