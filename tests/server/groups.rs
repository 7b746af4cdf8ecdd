//! Waiting for several locks, on a real server.

use std::fs;

use rlock_testkit::{
    Client, Cluster, Server, Waiter, aof_commands, flat_map, integer, items, text, until,
};

fn number(client: &mut Client, field: &str) -> i64 {
    client.info_number("rlock", field)
}

#[test]
fn a_group_reserves_what_it_has_reached_and_gets_all_at_once() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE stock bob");
    let line = "RLOCK.MACQUIRE 3 stock basket cart ann BLOCK 10000";
    let mut ann = Waiter::parked(&server, line);
    assert_eq!(number(&mut client, "rlock_groups"), 1);
    assert_eq!(number(&mut client, "rlock_waiters"), 1);
    assert_eq!(number(&mut client, "rlock_group_turns"), 2);
    client.refused("RLOCK.ACQUIRE basket cy");
    assert_eq!(client.number("RLOCK.HOLDS basket ann"), 0);
    assert_eq!(client.number("RLOCK.PLACE basket ann"), 0);
    assert_eq!(client.number("RLOCK.PLACE stock ann"), 1);
    for (key, turn) in [("basket", 1), ("stock", 0)] {
        let shown = flat_map(&client.ask(&format!("RLOCK.INFO {key}")));
        assert_eq!(integer(&shown["queue-length"]), 1, "{key}");
        let row = flat_map(&items(&shown["waiters"])[0]);
        assert_eq!((integer(&row["turn"]), integer(&row["keys"])), (turn, 3), "{key}");
        assert_eq!((text(&row["at"]), text(&row["kind"])), ("stock".into(), "block".into()));
        assert_eq!(integer(&row["client"]), ann.id());
    }
    ann.still_waits(&mut client);
    assert_eq!(client.number("RLOCK.RELEASE stock bob"), 0);
    let token = ann.granted();
    for key in ["basket", "cart", "stock"] {
        assert_eq!(client.number(&format!("RLOCK.CHECK {key} {token}")), 1, "{key}");
    }
    assert_eq!(number(&mut client, "rlock_groups"), 0);
    assert_eq!(number(&mut client, "rlock_group_turns"), 0);
    assert_eq!(client.counted("groups_granted"), 1);
    assert_eq!(client.counted("handed_off"), 3);
    assert_eq!(client.counted("wait_us_count"), 1);
}

#[test]
fn a_wait_ends_at_all_keys_in_every_way() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE c bob LEASE 600000");
    let line = "RLOCK.MACQUIRE 3 a b c ann BLOCK";
    let is_free = |client: &mut Client| {
        until(5_000, || number(client, "rlock_group_turns") == 0);
        for key in ["a", "b"] {
            client.granted(&format!("RLOCK.ACQUIRE {key} cy"));
            client.number(&format!("RLOCK.RELEASE {key} cy"));
        }
    };
    let mut ann = Waiter::parked(&server, &format!("{line} 100"));
    assert_eq!(ann.reply(), Ok(redis::Value::Nil), "its time");
    is_free(&mut client);
    let mut ann = Waiter::parked(&server, &format!("{line} 0"));
    assert_eq!(client.number("RLOCK.CANCEL b ann"), 1);
    assert_eq!(ann.reply(), Ok(redis::Value::Nil), "cancelled");
    is_free(&mut client);
    let mut ann = Waiter::parked(&server, &format!("{line} 0"));
    client.ask(&format!("CLIENT UNBLOCK {}", ann.id()));
    assert_eq!(ann.reply(), Ok(redis::Value::Nil), "unblocked");
    is_free(&mut client);
    let ann = Waiter::parked(&server, &format!("{line} 0"));
    client.ask(&format!("CLIENT KILL ID {}", ann.id()));
    is_free(&mut client);
    let mut ann = Waiter::parked(&server, &format!("{line} 0"));
    client.ask("SET a text");
    let error = ann.reply().unwrap_err();
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    client.ask("DEL a");
    is_free(&mut client);
    assert_eq!(number(&mut client, "rlock_waiters"), 0);
    assert_eq!(client.number("DBSIZE"), 1);
}

#[test]
fn a_user_without_the_right_to_one_of_the_keys_gets_none() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER guest on >secret ~* +@all");
    client.granted("RLOCK.ACQUIRE b bob");
    let mut guest = Waiter::connect_as(&server, "guest");
    guest.park(&server, "RLOCK.MACQUIRE 3 a b c ann BLOCK 0");
    client.ask("ACL SETUSER guest resetkeys ~a ~b");
    client.number("RLOCK.RELEASE b bob");
    let error = guest.reply().unwrap_err();
    assert!(error.starts_with("NOPERM "), "{error}");
    assert_eq!(client.number("EXISTS a b c"), 0);
    client.ask("ACL SETUSER guest ~c");
    client.granted("RLOCK.ACQUIRE b bob");
    guest.park(&server, "RLOCK.MACQUIRE 3 a b c ann BLOCK 0");
    client.number("RLOCK.RELEASE b bob");
    guest.granted();
}

#[test]
fn in_a_transaction_and_a_script_it_does_not_wait() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE b bob");
    client.ask("MULTI");
    client.ask("RLOCK.MACQUIRE 2 a b ann BLOCK 0");
    assert_eq!(items(&client.ask("EXEC")), [redis::Value::Nil]);
    let script = "return redis.call('RLOCK.MACQUIRE', 2, 'a', 'b', 'ann', 'BLOCK', 0)";
    assert_eq!(client.ask_bytes(&[b"EVAL", script.as_bytes(), b"0"]), redis::Value::Nil);
    assert_eq!(number(&mut client, "rlock_groups"), 0);
}

#[test]
fn a_group_that_closes_a_cycle_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE b bob");
    let mut ann = Waiter::parked(&server, "RLOCK.MACQUIRE 2 a b ann BLOCK 0");
    assert!(client.error("RLOCK.ACQUIRE a bob BLOCK 0").starts_with("DEADLOCK "));
    client.number("RLOCK.RELEASE b bob");
    ann.granted();
}

/// The release and the grant that follows it are one transaction, with effects in key order. A file
/// that is cut off within it loads all holds of the grant, or none.
#[test]
fn a_file_cut_within_the_grant_of_a_wait_loads_all_of_it_or_none() {
    let settings = ["appendonly", "yes", "appendfsync", "always", "aof-load-truncated", "yes"];
    let mut server = Server::with(&settings);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE b bob LEASE 600000");
    let mut ann = Waiter::parked(&server, "RLOCK.MACQUIRE 3 a b c ann LEASE 600000 BLOCK 0");
    let before = aof_commands(server.folder()).len();
    let newest = |server: &Server| {
        let folder = server.folder().join("appendonlydir");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().ends_with("incr.aof")).max().unwrap()
    };
    let from = fs::metadata(newest(&server)).unwrap().len() as usize;
    client.number("RLOCK.RELEASE b bob");
    ann.granted();
    let unit = aof_commands(server.folder()).split_off(before);
    let names = unit.iter().map(|words| String::from_utf8_lossy(&words[0]).to_uppercase());
    let names: Vec<String> = names.collect();
    assert_eq!(
        (names.first().unwrap().as_str(), names.last().unwrap().as_str()),
        ("MULTI", "EXEC")
    );
    assert_eq!(names.iter().filter(|name| *name == "MULTI").count(), 1, "{names:?}");
    let bytes = fs::read(newest(&server)).unwrap();
    let factor: usize = std::env::var("RLOCK_SEVERAL").map_or(1, |all| all.parse().unwrap());
    let step = (60 / factor).max(1);
    for cut in (from..bytes.len()).rev().step_by(step).chain([bytes.len()]) {
        server.kill_9();
        fs::write(newest(&server), &bytes[..cut]).unwrap();
        server.start_again();
        let mut client = server.client();
        let held = ["a", "b", "c"].map(|key| client.number(&format!("RLOCK.HOLDS {key} ann")));
        let is_all = cut == bytes.len();
        assert_eq!(held, [i64::from(is_all); 3], "cut at byte {cut} of {}", bytes.len());
        assert_eq!(client.number("RLOCK.HOLDS b bob"), i64::from(!is_all));
    }
}

#[test]
fn in_a_cluster_a_group_waits_in_one_slot() {
    let cluster = Cluster::of_two();
    let mut client = cluster.client(0);
    assert!(client.error("RLOCK.MACQUIRE 2 hall haul ann BLOCK 0").starts_with("CROSSSLOT "));
    client.granted("RLOCK.ACQUIRE {hall}:b bob");
    let line = "RLOCK.MACQUIRE 3 {hall}:a {hall}:b {hall}:c ann BLOCK 0";
    let mut ann = Waiter::parked(cluster.node(0), line);
    client.refused("RLOCK.ACQUIRE {hall}:a cy");
    client.number("RLOCK.RELEASE {hall}:b bob");
    ann.granted();
    // A cycle is found in the next iteration of the loop.
    client.number("RLOCK.MRELEASE 3 {hall}:a {hall}:b {hall}:c ann");
    client.granted("RLOCK.ACQUIRE {hall}:b bob");
    client.granted("RLOCK.ACQUIRE {hall}:a ann");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE {hall}:a bob BLOCK 0");
    let mut ann = Waiter::connect(cluster.node(0));
    ann.say("RLOCK.MACQUIRE 2 {hall}:b {hall}:c ann BLOCK 0");
    let error = ann.reply().unwrap_err();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    client.number("RLOCK.RELEASE {hall}:a ann");
    bob.granted();
}

#[test]
fn a_slot_that_moves_ends_a_group_and_nothing_is_granted() {
    let cluster = Cluster::of_two();
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    // Slot 0 is the one that `reshard` takes first.
    source.granted("RLOCK.ACQUIRE {afps}:2 ann LEASE 600000");
    let line = "RLOCK.MACQUIRE 3 {afps}:1 {afps}:2 {afps}:3 bob BLOCK 0";
    let mut bob = Waiter::parked(cluster.node(0), line);
    let port = cluster.node(0).tcp_port();
    let ends = format!("--cluster-from {} --cluster-to {}", cluster.id(0), cluster.id(1));
    cluster.cli(&format!("reshard 127.0.0.1:{port} {ends} --cluster-slots 1 --cluster-yes"));
    let error = bob.error();
    assert!(error.starts_with("TRYAGAIN ") || error.starts_with("MOVED 0 "), "{error}");
    assert_eq!(target.number("RLOCK.HOLDS {afps}:1 bob"), 0);
    assert_eq!(target.number("RLOCK.HOLDS {afps}:2 ann"), 1);
    until(5_000, || number(&mut source, "rlock_groups") == 0);
    assert_eq!(number(&mut source, "rlock_group_turns"), 0);
    assert_eq!(source.counted("handed_off"), 0);
}

#[test]
fn a_demoted_server_ends_a_group() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE b bob LEASE 600000");
    let mut ann = Waiter::parked(&server, "RLOCK.MACQUIRE 3 a b c ann BLOCK 0");
    client.ask("REPLICAOF 127.0.0.1 1");
    let words = ann.last_words();
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(words[0].as_ref().is_err_and(|error| error.starts_with("UNBLOCKED ")), "{words:?}");
    client.ask("REPLICAOF NO ONE");
    assert_eq!(number(&mut client, "rlock_groups"), 0);
    client.number("RLOCK.RELEASE b bob");
    client.granted("RLOCK.MACQUIRE 3 a b c cy");
}
