//! Fencing tokens: each is greater than all before, whatever happened to the data.

use rlock_testkit::{Client, Payload, Server, TOKEN_END, Version, now_ms, until, with_token};

/// About as far ahead of the clock as a client may set a token.
const AHEAD_US: i64 = 50_000_000;

/// Settings of a server with an append-only file, with or without an RDB file at its beginning.
fn aof(preamble: &'static str) -> [&'static str; 6] {
    ["appendonly", "yes", "appendfsync", "always", "aof-use-rdb-preamble", preamble]
}

/// Rewrites the append-only file, and waits until the new one is in use.
fn rewrite(client: &mut Client) {
    // The server may be rewriting it already, from an earlier state.
    until(20_000, || client.attempt("BGREWRITEAOF").is_ok());
    until_rewritten(client);
}

fn until_rewritten(client: &mut Client) {
    until(20_000, || {
        let is_rewriting = client.info_number("persistence", "aof_rewrite_in_progress");
        let is_due = client.info_number("persistence", "aof_rewrite_scheduled");
        is_rewriting + is_due == 0
    });
    let status = client.info("persistence", "aof_last_bgrewrite_status");
    assert_eq!(status.as_deref(), Some("ok"));
}

/// Whether a file that is in use has a command of the module.
fn is_in_the_aof(server: &Server, word: &str) -> bool {
    let files = std::fs::read_dir(server.folder().join("appendonlydir")).unwrap();
    files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap_or_default())
        .any(|bytes| bytes.windows(word.len()).any(|part| part == word.as_bytes()))
}

/// Puts a lock on `key` whose token was issued by a clock that is `ahead_us` ahead of ours, as it
/// would come from another server: as a payload. Returns its token.
fn plant_a_token_ahead(server: &Server, key: &str, ahead_us: i64) -> i64 {
    let mut client = server.client();
    client.ask("CONFIG SET rdbcompression no");
    let token = client.granted("RLOCK.ACQUIRE sample ann LEASE 600000");
    let dump = client.dump("sample");
    client.ask("DEL sample");
    let mut payload = Payload::open(&dump);
    payload.body = with_token(&payload.body, token, token + ahead_us);
    let (key, sealed) = (key.as_bytes(), payload.sealed());
    client.ask_bytes(&[b"RESTORE", key, b"0", &sealed]);
    token + ahead_us
}

#[test]
fn tokens_grow_over_all_locks_modes_and_databases() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for round in 0..200 {
        client.ask(&format!("SELECT {}", round % 3));
        let mode = ["READ", "WRITE"][round % 2];
        let token = client.granted(&format!("RLOCK.ACQUIRE door:{round} ann {mode}"));
        assert!(token > last && token < TOKEN_END, "{token} after {last}");
        last = token;
    }
}

#[test]
fn re_entry_renewal_and_partial_release_keep_the_token() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE other bob");
    for line in ["RLOCK.ACQUIRE door ann", "RLOCK.RENEW door ann", "RLOCK.RELEASE door ann"] {
        client.ask(line);
        assert_eq!(client.lock("door").hold("ann", "write").token, token);
    }
}

#[test]
fn a_refused_request_leaves_the_holders_token() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann");
    client.refused("RLOCK.ACQUIRE door bob");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
    let next = client.granted("RLOCK.ACQUIRE gate bob");
    assert!(next > token);
}

#[test]
fn tokens_grow_over_deletion_flush_and_reload() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = plant_a_token_ahead(&server, "door", AHEAD_US);
    let ends = ["RLOCK.FORCE door", "DEL door", "FLUSHDB", "FLUSHALL", "DEBUG RELOAD"];
    for end in ends {
        client.ask(end);
        let token = client.granted("RLOCK.ACQUIRE door bob");
        assert!(token > last, "{end}: {token} after {last}");
        client.ask("RLOCK.RELEASE door bob");
        last = token;
    }
}

#[test]
fn tokens_grow_over_a_restart_that_lost_all_data() {
    let mut server = Server::start();
    let mut last = 0;
    for _ in 0..3 {
        let mut client = server.client();
        for _ in 0..20 {
            let token = client.granted("RLOCK.ACQUIRE door ann");
            assert!(token > last, "{token} after {last}");
            client.ask("RLOCK.RELEASE door ann");
            last = token;
        }
        drop(client);
        server.kill_9();
        server.start_again();
    }
}

#[test]
fn a_token_in_an_rdb_is_passed_over_after_the_restart() {
    let mut server = Server::start();
    let last = plant_a_token_ahead(&server, "door", AHEAD_US);
    server.client().ask("SAVE");
    server.restart();
    let mut client = server.client();
    assert_eq!(client.lock("door").hold("ann", "write").token, last);
    client.ask("FLUSHALL");
    assert!(client.granted("RLOCK.ACQUIRE gate bob") > last);
}

#[test]
fn a_token_in_an_aof_is_passed_over_after_the_restart_even_if_its_lock_is_gone() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with(&[
            "appendonly",
            "yes",
            "appendfsync",
            "always",
            "aof-use-rdb-preamble",
            preamble,
        ]);
        let planted = plant_a_token_ahead(&server, "door", AHEAD_US);
        let mut client = server.client();
        let last = client.granted("RLOCK.ACQUIRE gate bob");
        assert!(last > planted);
        client.ask("DEL door gate");
        server.kill_9();
        server.start_again();
        let token = server.client().granted("RLOCK.ACQUIRE gate cid");
        assert!(token > last, "{token} after {last}");
    }
}

#[test]
fn a_token_ahead_is_raised_to_by_restore_in_another_database_too() {
    let server = Server::start();
    let last = plant_a_token_ahead(&server, "door", AHEAD_US);
    let mut client = server.client();
    client.ask("SELECT 7");
    assert!(client.granted("RLOCK.ACQUIRE gate bob") > last);
}

#[test]
fn a_promoted_replica_passes_over_every_token_it_has_seen_in_the_stream() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let planted = plant_a_token_ahead(&primary, "door", AHEAD_US);
    let mut client = primary.client();
    let last = client.granted("RLOCK.ACQUIRE gate bob");
    assert!(last > planted);
    client.ask("FLUSHALL");
    replica.until_in_sync_with(&primary);
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    let token = promoted.granted("RLOCK.ACQUIRE gate cid");
    assert!(token > last, "{token} after {last}");
}

#[test]
fn a_promoted_replica_passes_over_every_token_of_a_full_sync() {
    let primary = Server::primary(&[]);
    let last = plant_a_token_ahead(&primary, "door", AHEAD_US);
    let replica = Server::replica_of(&primary, &[]);
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    promoted.ask("FLUSHALL");
    assert!(promoted.granted("RLOCK.ACQUIRE gate cid") > last);
}

#[test]
fn a_promoted_replica_passes_over_tokens_of_its_primary_that_it_never_saw() {
    let mut primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    // The primary starts again, so that its tokens are as far ahead of the clock as they may be,
    // and the replica never receives them.
    replica.freeze();
    primary.kill_9();
    primary.start_again();
    let mut client = primary.client();
    let mut last = 0;
    for _ in 0..100 {
        last = client.granted("RLOCK.ACQUIRE door ann");
        client.ask("RLOCK.RELEASE door ann");
    }
    drop(primary);
    replica.thaw();
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    let token = promoted.granted("RLOCK.ACQUIRE door bob");
    assert!(token > last, "{token} after {last}");
}

#[test]
fn restore_refuses_a_token_more_than_a_minute_ahead_and_forgets_it() {
    const SECOND_US: i64 = 1_000_000;
    let server = Server::start();
    let mut client = server.client();
    client.ask("CONFIG SET rdbcompression no");
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let sample = Payload::open(&client.dump("door"));
    let mut restore = |ahead_us: i64| {
        let mut payload = sample.clone();
        payload.body = with_token(&payload.body, token, token + ahead_us);
        let sealed = payload.sealed();
        client.attempt_bytes(&[b"RESTORE", b"gate", b"0", &sealed, b"REPLACE"])
    };
    for seconds in [70, 24 * 3600, 24 * 3600 * 365 * 100] {
        let error = restore(seconds * SECOND_US);
        assert!(error.is_err(), "{seconds} seconds ahead: {error:?}");
    }
    assert!(restore(AHEAD_US).is_ok());
    assert_eq!(client.lock("gate").hold("ann", "write").token, token + AHEAD_US);
    let next = client.granted("RLOCK.ACQUIRE other bob");
    assert!(next > token + AHEAD_US && next < token + 2 * AHEAD_US, "{next}");
}

/// Redis 7.0 cannot save it beside the keys: there, only the clock counts.
#[test]
fn a_token_ahead_is_passed_over_after_a_restart_though_no_lock_is_left() {
    let mut server = Server::start();
    if server.version() < Version::Redis(7, 2) {
        return;
    }
    let last = plant_a_token_ahead(&server, "door", AHEAD_US);
    let mut client = server.client();
    client.ask("DEL door");
    client.ask("SAVE");
    server.restart();
    let token = server.client().granted("RLOCK.ACQUIRE door bob");
    assert!(token > last, "{token} after {last}");
}

#[test]
fn a_token_ahead_outlives_rewritten_files_though_no_lock_is_left() {
    for preamble in ["no", "yes"] {
        let mut server = Server::with(&aof(preamble));
        let mut last = plant_a_token_ahead(&server, "door", AHEAD_US);
        let mut client = server.client();
        client.ask("DEL door");
        for _ in 0..2 {
            rewrite(&mut client);
            server.kill_9();
            server.start_again();
            client = server.client();
            assert_eq!(client.number("DBSIZE"), 0);
            // No grant is sent, because the file would contain it.
            rewrite(&mut client);
            server.kill_9();
            server.start_again();
            client = server.client();
            let token = client.granted("RLOCK.ACQUIRE door bob");
            assert!(token > last, "preamble {preamble}: {token} after {last}");
            last = token;
            client.ask("RLOCK.RELEASE door bob");
        }
    }
}

#[test]
fn a_token_ahead_is_in_a_file_that_is_turned_on_later() {
    let mut server = Server::with(&["aof-use-rdb-preamble", "no"]);
    let last = plant_a_token_ahead(&server, "door", AHEAD_US);
    let mut client = server.client();
    client.all(&["DEL door", "CONFIG SET appendonly yes"]);
    until_rewritten(&mut client);
    server.kill_9();
    server.configure("appendonly", "yes");
    server.start_again();
    let token = server.client().granted("RLOCK.ACQUIRE door bob");
    assert!(token > last, "{token} after {last}");
}

/// The server asserts that nothing is written in a pause.
#[test]
fn a_token_ahead_is_written_after_a_pause() {
    let mut server = Server::with(&aof("no"));
    let last = plant_a_token_ahead(&server, "door", AHEAD_US);
    let mut client = server.client();
    client.all(&["DEL door", "CLIENT PAUSE 600000 WRITE"]);
    rewrite(&mut client);
    assert!(!is_in_the_aof(&server, "RLOCK.APPLY"));
    client.ask("CLIENT UNPAUSE");
    until(10_000, || is_in_the_aof(&server, "RLOCK.APPLY"));
    server.kill_9();
    server.start_again();
    let token = server.client().granted("RLOCK.ACQUIRE door bob");
    assert!(token > last, "{token} after {last}");
}

#[test]
fn a_token_ahead_outlives_a_rewritten_file_of_a_replica() {
    let primary = Server::primary(&[]);
    let mut replica = Server::replica_of(&primary, &aof("no"));
    let last = plant_a_token_ahead(&primary, "door", AHEAD_US);
    primary.client().ask("DEL door");
    replica.until_in_sync_with(&primary);
    let mut client = replica.client();
    rewrite(&mut client);
    // What the replica writes to its own file is not in the stream.
    replica.until_in_sync_with(&primary);
    drop(primary);
    replica.kill_9();
    replica.start_again();
    let mut promoted = replica.client();
    promoted.ask("REPLICAOF NO ONE");
    let token = promoted.granted("RLOCK.ACQUIRE door bob");
    assert!(token > last, "{token} after {last}");
}

/// A file without locks can be loaded without the module.
#[test]
fn no_token_is_written_that_the_clock_has_passed() {
    let server = Server::with(&aof("no"));
    let mut client = server.client();
    // In its first second the server issues tokens ahead of the clock.
    let token = client.granted("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.RELEASE door ann");
    until(10_000, || now_ms() * 1000 > token);
    assert!(is_in_the_aof(&server, "RLOCK.ACQUIRE") || is_in_the_aof(&server, "RLOCK.APPLY"));
    rewrite(&mut client);
    assert!(!is_in_the_aof(&server, "RLOCK"));
}
