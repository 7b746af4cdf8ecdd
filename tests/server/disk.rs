//! What an append-only file guarantees, and when it does not do so yet: `rlock_aof_incomplete`.

use rlock_testkit::{Client, Server, until};

const ALWAYS: [&str; 4] = ["appendonly", "yes", "appendfsync", "always"];

/// The number of keys. With `rdb-key-save-delay`, each takes the server some time to write, so that
/// a rewrite takes seconds, as that of many gigabytes would.
const KEYS: usize = 300;
const SLOW: &str = "CONFIG SET rdb-key-save-delay 10000";

fn fill(client: &mut Client) {
    let words: Vec<String> = (0..KEYS).map(|number| format!("x{number} y")).collect();
    client.ask(&format!("MSET {}", words.join(" ")));
}

fn is_incomplete(client: &mut Client) -> bool {
    client.counted("aof_incomplete") == 1
}

/// Whether the server is still writing its file: Valkey 9.1 begins it with what it received.
fn is_writing(client: &mut Client) -> bool {
    let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
    fields.into_iter().any(|field| client.info_number("persistence", field) > 0)
}

/// A primary without a file, and a replica with one, which has completed its full sync but not yet
/// its rewrite.
fn just_synced() -> (Server, Server) {
    let (primary, replica) = (Server::primary(&[]), Server::primary(&ALWAYS));
    fill(&mut primary.client());
    replica.client().ask(SLOW);
    replica.follow(&primary);
    until(20_000, || primary.client().attempt("RLOCK.ACQUIRE first ann ACKS 1").is_ok());
    (primary, replica)
}

#[test]
fn a_replica_says_that_its_file_is_incomplete_after_a_full_sync() {
    let (primary, mut replica) = just_synced();
    let mut client = replica.client();
    let has_gap = is_writing(&mut client);
    assert_eq!(is_incomplete(&mut client), has_gap);
    if has_gap {
        until(5_000, || replica.log().contains("the append-only file is not complete until"));
    }
    let ask = "RLOCK.ACQUIRE gap ann LEASE 600000 ACKS 1";
    primary.client().granted(ask);
    assert_eq!(is_incomplete(&mut client), has_gap, "is the rewrite over too soon to see the gap?");
    replica.kill_9();
    drop(primary);
    replica.start_again();
    // This is the server's own gap: what it acknowledged is in no file that it loads.
    assert_eq!(replica.client().number("RLOCK.HOLDS gap ann"), i64::from(!has_gap));
}

#[test]
fn what_a_replica_acknowledges_once_its_file_is_complete_survives() {
    let (primary, mut replica) = just_synced();
    primary.client().granted("RLOCK.ACQUIRE early ann LEASE 600000 ACKS 1");
    let has_gap = is_incomplete(&mut replica.client());
    until(30_000, || !is_incomplete(&mut replica.client()));
    assert_eq!(replica.log().contains("the append-only file is complete again"), has_gap);
    primary.client().granted("RLOCK.ACQUIRE door ann LEASE 600000 ACKS 1");
    replica.kill_9();
    drop(primary);
    replica.start_again();
    let mut client = replica.client();
    for key in ["early", "door"] {
        assert_eq!(client.number(&format!("RLOCK.HOLDS {key} ann")), 1, "{key}");
    }
    assert!(!is_incomplete(&mut client));
}

/// A promoted server continues to use that file.
#[test]
fn a_server_that_is_promoted_after_its_full_sync_says_so_too() {
    let (primary, replica) = just_synced();
    drop(primary);
    let mut client = replica.client();
    client.ask("REPLICAOF NO ONE");
    client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(is_incomplete(&mut client), is_writing(&mut client));
    until(30_000, || !is_incomplete(&mut client));
}

#[test]
fn a_file_that_is_turned_on_is_incomplete_at_first_and_a_rewrite_leaves_none() {
    let server = Server::start();
    let mut client = server.client();
    fill(&mut client);
    assert!(!is_incomplete(&mut client));
    client.ask(SLOW);
    client.ask("CONFIG SET appendonly yes");
    until(5_000, || is_incomplete(&mut client));
    until(30_000, || !is_incomplete(&mut client));
    // The file from before counts until the new one is complete.
    client.ask("BGREWRITEAOF");
    client.ask("CONFIG SET maxmemory 0");
    until(30_000, || {
        assert!(!is_incomplete(&mut client));
        client.info_number("persistence", "aof_rewrite_in_progress") == 0
    });
    client.ask("CONFIG SET appendonly no");
    assert!(!is_incomplete(&mut client));
}

#[test]
fn without_a_file_nothing_is_incomplete() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    until(5_000, || !is_incomplete(&mut replica.client()));
    assert!(!replica.log().contains("the append-only file"));
}
