//! Several locks in one step, as a real server routes, checks, saves and replicates them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use rlock_testkit::{
    Client, Cluster, Listener, Server, aof_commands, integer, items, newest_aof, text, until,
};

/// How often to do it, in a short run and in a long one (`RLOCK_SEVERAL` times as often).
fn times(short: usize) -> usize {
    let factor = std::env::var("RLOCK_SEVERAL").map_or(1, |factor| factor.parse().unwrap());
    short * factor
}

#[test]
fn several_locks_are_acquired_renewed_and_released() {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let (mut client, mut ears) = (server.client(), Listener::to(&server));
    let token = client.granted("RLOCK.MACQUIRE 3 b c a ann LEASE 600000");
    assert_eq!(client.granted("RLOCK.MACQUIRE 3 a b c ann LEASE 1"), token, "again");
    let acquired = ["rlock.acquired a", "rlock.acquired b", "rlock.acquired c"];
    assert_eq!(ears.heard(&mut client), acquired, "in key order, once");
    client.refused("RLOCK.MACQUIRE 2 c d bob");
    assert_eq!(client.number("EXISTS d"), 0);
    assert_eq!(client.shows("b"), "write: ann write 1");
    assert_eq!(client.number("RLOCK.MRENEW 3 a b c ann LEASE 700000"), 1);
    assert!(client.number("PTTL c") > 600_000);
    assert!(client.error("RLOCK.MRENEW 3 a d c ann").starts_with("NOTHELD owner 'ann' does not"));
    let line = format!("RLOCK.MRELEASE 3 c b a ann TOKEN {token}");
    assert_eq!(client.number(&line), 3);
    assert_eq!(client.number(&line), 0);
    let released = ["rlock.released a", "rlock.released b", "rlock.released c"];
    assert_eq!(ears.heard(&mut client), released);
    assert_eq!(client.number("DBSIZE"), 0);
    assert_eq!((client.counted("acquired"), client.counted("released")), (3, 3));
}

#[test]
fn a_transaction_and_a_script_run_it_as_one_step() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("MULTI");
    client.ask("RLOCK.MACQUIRE 2 a b ann");
    client.ask("RLOCK.MACQUIRE 2 b c bob");
    client.ask("RLOCK.MRELEASE 2 a b ann");
    client.ask("RLOCK.MACQUIRE 2 b c bob");
    let replies = client.ask("EXEC");
    let replies = items(&replies);
    assert!(integer(&replies[0]) > 0);
    assert_eq!(replies[1], redis::Value::Nil);
    assert_eq!(integer(&replies[2]), 2);
    assert!(integer(&replies[3]) > integer(&replies[0]));
    let script = "return redis.call('RLOCK.MACQUIRE', 2, KEYS[1], KEYS[2], ARGV[1])";
    let ask = |client: &mut Client, owner: &str| {
        client.ask_bytes(&[b"EVAL", script.as_bytes(), b"2", b"x", b"b", owner.as_bytes()])
    };
    assert!(integer(&ask(&mut client, "bob")) > 0);
    assert_eq!(ask(&mut client, "cy"), redis::Value::Nil);
    let session = "return redis.call('RLOCK.MACQUIRE', 1, 'x', 'cy', 'SESSION')";
    let error = client.error_bytes(&[b"EVAL", session.as_bytes(), b"0"]);
    assert!(error.contains("SESSION needs a connection"), "{error}");
}

/// Under `maxmemory`, a server refuses only what takes memory.
#[test]
fn a_full_server_lets_locks_be_renewed_and_released() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.MACQUIRE 2 a b ann");
    client.ask("CONFIG SET maxmemory 1");
    assert!(client.error("RLOCK.MACQUIRE 2 c d ann").starts_with("OOM "));
    assert_eq!(client.number("RLOCK.MRENEW 2 a b ann"), 1);
    assert_eq!(client.number("RLOCK.MRELEASE 2 a b ann"), 2);
}

// --- which keys the server sees -----------------------------------------------------------------

#[test]
fn the_server_finds_every_key() {
    let server = Server::start();
    let mut client = server.client();
    for line in
        ["RLOCK.MACQUIRE 3 c a b ann READ", "RLOCK.MRELEASE 3 c a b x", "RLOCK.MRENEW 3 c a b x"]
    {
        let keys = client.ask(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(items(&keys).iter().map(text).collect::<Vec<_>>(), ["c", "a", "b"], "{line}");
    }
}

/// No text of a number lets a user lock a key without permission: what the server cannot read as
/// the number of keys is refused.
#[test]
fn no_number_of_keys_opens_a_key_without_the_right_to_it() {
    const NUMBERS: [&str; 22] = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "128",
        "129",
        "-1",
        "-2",
        "+1",
        "+2",
        "02",
        "002",
        "2.0",
        "1e0",
        "0x2",
        "2147483648",
        "4294967298",
        "18446744073709551618",
        "a",
        "",
        " 2",
    ];
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER guest on >secret ~mine* +@all");
    client.granted("RLOCK.ACQUIRE other ann");
    let before = client.dump("other");
    let mut guest = server.client_of("guest");
    let commands: [&[u8]; 3] = [b"RLOCK.MACQUIRE", b"RLOCK.MRELEASE", b"RLOCK.MRENEW"];
    for command in commands {
        for number in NUMBERS {
            for keys in [["mine:1", "other"], ["other", "mine:1"], ["mine:1", "free"]] {
                let words =
                    [command, number.as_bytes(), keys[0].as_bytes(), keys[1].as_bytes(), b"ann"];
                let words: Vec<&[u8]> = words.into_iter().collect();
                // With 1, it is a request for one key, whose owner is the second name.
                let is_own = number == "1" && keys[0] == "mine:1";
                match guest.attempt_bytes(&words) {
                    Ok(_) => panic!("{number} {keys:?} was taken"),
                    Err(error) => {
                        let is_known = error.starts_with("NOPERM ") || error.starts_with("ERR ");
                        assert!(is_known, "{number} {keys:?}: {error}");
                        assert!(!is_own || error.starts_with("ERR "), "{number} {keys:?}: {error}");
                    }
                }
            }
        }
    }
    assert_eq!(client.dump("other"), before);
    assert_eq!(client.number("EXISTS free mine:1"), 0);
    let token = guest.granted("RLOCK.MACQUIRE 2 mine:1 mine:2 ann");
    assert_eq!(guest.number(&format!("RLOCK.MRELEASE 2 mine:1 mine:2 ann TOKEN {token}")), 2);
    client.ask("ACL SETUSER watcher on >secret %R~* +@all");
    let mut watcher = server.client_of("watcher");
    for line in ["RLOCK.MACQUIRE 1 x ann", "RLOCK.MRELEASE 1 x ann", "RLOCK.MRENEW 1 x ann"] {
        assert!(watcher.error(line).starts_with("NOPERM "), "{line}: a reader");
    }
}

#[test]
fn a_cluster_locks_keys_of_one_slot_only() {
    let cluster = Cluster::of_two();
    let mut client = cluster.client(0);
    client.granted("RLOCK.MACQUIRE 2 {hall}:a {hall}:b ann");
    for line in [
        "RLOCK.MACQUIRE 2 hall haul ann",
        "RLOCK.MRELEASE 2 hall haul ann",
        "RLOCK.MRENEW 2 hall haul ann",
        "RLOCK.APPLY hall haul payload",
    ] {
        assert!(client.error(line).starts_with("CROSSSLOT "), "{line}");
        client.ask("MULTI");
        assert!(client.error(line).starts_with("CROSSSLOT "), "{line} in MULTI");
        client.error("EXEC");
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let script = format!("return redis.call({})", words.join(", "));
        for keys in [&[b"0".as_slice()][..], &[b"1", b"hall"]] {
            let words = [&[b"EVAL".as_slice(), script.as_bytes()], keys].concat();
            client.error_bytes(&words);
        }
    }
    assert_eq!(client.number("EXISTS hall"), 0);
    // `foo` is in the upper half of the slots.
    assert!(client.error("RLOCK.MACQUIRE 2 {foo}:a {foo}:b ann").starts_with("MOVED "));
}

// --- one unit -----------------------------------------------------------------------------------

const KEYS: [&str; 3] = ["a", "b", "c"];

/// How many of the keys the owner holds.
fn held(client: &mut Client, owner: &str) -> usize {
    client.ask("MULTI");
    for key in KEYS {
        client.ask(&format!("RLOCK.HOLDS {key} {owner}"));
    }
    items(&client.ask("EXEC")).iter().filter(|depth| integer(depth) > 0).count()
}

#[test]
fn a_grant_is_one_command_in_the_append_only_file() {
    let server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.ask("SET first 1");
    let mut names_of = |line: &str| {
        let before = aof_commands(server.folder()).len();
        client.ask(line);
        let commands = aof_commands(server.folder()).split_off(before);
        let name = |words: &Vec<Vec<u8>>| String::from_utf8_lossy(&words[0]).to_uppercase();
        commands.iter().map(name).collect::<Vec<_>>()
    };
    for line in [
        "RLOCK.MACQUIRE 3 a b c ann LEASE 600000",
        "RLOCK.MACQUIRE 3 a b c ann LEASE 1",
        "RLOCK.MRENEW 3 a b c ann LEASE 700000",
        "RLOCK.MRELEASE 3 a b c ann",
        "RLOCK.MACQUIRE 1 a ann LEASE 600000",
    ] {
        assert_eq!(names_of(line), ["RLOCK.APPLY"], "{line}");
    }
    assert_eq!(names_of("RLOCK.MACQUIRE 2 a b bob"), [""; 0], "refused");
    assert_eq!(names_of("RLOCK.MRELEASE 2 b c ann"), [""; 0], "nothing to end");
}

/// A file that is cut off loads all holds of a grant, or none. `RLOCK_SEVERAL=40` cuts it at every
/// byte.
#[test]
fn a_file_cut_within_a_grant_loads_all_of_it_or_none() {
    let settings = ["appendonly", "yes", "appendfsync", "always", "aof-load-truncated", "yes"];
    let mut server = Server::with(&settings);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE before ann LEASE 600000");
    let from = fs::metadata(newest_aof(server.folder())).unwrap().len() as usize;
    client.granted("RLOCK.MACQUIRE 3 a b c ann LEASE 600000");
    let bytes = fs::read(newest_aof(server.folder())).unwrap();
    assert!(bytes.len() > from + 100, "{} bytes of a grant", bytes.len() - from);
    let step = (40 / times(1)).max(1);
    for cut in (from..bytes.len()).rev().step_by(step).chain([bytes.len()]) {
        server.kill_9();
        fs::write(newest_aof(server.folder()), &bytes[..cut]).unwrap();
        server.start_again();
        let mut client = server.client();
        let found = held(&mut client, "ann");
        assert_eq!(
            found,
            if cut == bytes.len() { 3 } else { 0 },
            "cut at byte {cut} of {}",
            bytes.len()
        );
        assert_eq!(client.shows("before"), "write: ann write 1");
    }
}

/// Until 0.3.0 was released, a grant was a transaction of single effects.
#[test]
fn a_file_with_a_grant_of_single_effects_is_loaded() {
    let mut server = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = server.client();
    client.granted("RLOCK.MACQUIRE 3 a b c ann LEASE 600000");
    let dumps = KEYS.map(|key| client.dump(key));
    let bytes = fs::read(newest_aof(server.folder())).unwrap();
    let commands = aof_commands(server.folder());
    let [name, keys @ .., payload] = commands.last().unwrap().as_slice() else { panic!() };
    // The three are equally long, with the same owner, mode, token and deadline.
    let effects: Vec<&[u8]> = payload.chunks(payload.len() / keys.len()).collect();
    let mut unit: Vec<Vec<&[u8]>> = vec![vec![b"MULTI"]];
    unit.extend(keys.iter().zip(&effects).map(|(key, effect)| vec![&name[..], key, effect]));
    unit.push(vec![b"EXEC"]);
    let mut old = bytes[..bytes.len() - resp(commands.last().unwrap()).len()].to_vec();
    old.extend(unit.iter().flat_map(|words| resp(words)));
    server.kill_9();
    fs::write(newest_aof(server.folder()), old).unwrap();
    server.start_again();
    let mut client = server.client();
    assert_eq!(KEYS.map(|key| client.dump(key)), dumps);
}

/// A command in the form of the file.
fn resp(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A reader on a replica sees all holds of a grant, or none, in one transaction.
#[test]
fn a_reader_on_a_replica_never_sees_a_part_of_a_grant() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    replica.until_in_sync_with(&primary);
    let (is_over, is_all_seen) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = primary.client();
            for _ in 0..times(2_500) {
                let token = client.granted("RLOCK.MACQUIRE 3 c a b ann");
                // The first grant lasts until the reader has seen it.
                until(20_000, || is_all_seen.load(Ordering::Relaxed));
                client.number(&format!("RLOCK.MRELEASE 3 a b c ann TOKEN {token}"));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let (mut reader, mut seen) = (replica.client(), [0; 4]);
        while !is_over.load(Ordering::Relaxed) {
            seen[held(&mut reader, "ann")] += 1;
            is_all_seen.fetch_or(seen[3] > 0, Ordering::Relaxed);
        }
        assert_eq!((seen[1], seen[2]), (0, 0), "{seen:?}: parts of a grant");
        assert!(seen[3] > 0, "{seen:?}: no grant was seen");
    });
    replica.until_in_sync_with(&primary);
    until(5_000, || held(&mut replica.client(), "ann") == 0);
}
