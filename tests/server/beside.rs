//! S3: a hold that expires beside another hold, or while somebody waits for or observes the lock,
//! is noticed at its deadline by everybody who can notice it.

use rlock_testkit::{Client, Listener, Server, Waiter, items, now_ms, until};

const EVENTS: [&str; 2] = ["notify-keyspace-events", "KEd"];

/// How late the end of a hold may be noticed: 2 ms, and what a busy machine adds.
const LATE_MS_MAX: i64 = if cfg!(debug_assertions) { 250 } else { 50 };

/// The lock `door`, on which the hold of `dead` ends in half a second beside others, and the time
/// of that end.
struct Case {
    name: &'static str,
    /// The commands that are sent, the last of them by `dead`.
    lines: &'static [&'static str],
    /// The command that waits meanwhile, on a connection of its own.
    waits: Option<&'static str>,
}

const CASES: [Case; 8] = [
    Case {
        name: "permits",
        lines: &[
            "RLOCK.ACQUIRE door alive LIMIT 5 LEASE 60000",
            "RLOCK.ACQUIRE door dead LIMIT 5 LEASE 500",
        ],
        waits: None,
    },
    Case {
        name: "readers",
        lines: &[
            "RLOCK.ACQUIRE door alive READ LEASE 60000",
            "RLOCK.ACQUIRE door other READ LEASE 50000",
            "RLOCK.ACQUIRE door dead READ LEASE 500",
        ],
        waits: None,
    },
    Case {
        name: "readers, the one that ends came first",
        lines: &[
            "RLOCK.ACQUIRE door dead READ LEASE 500",
            "RLOCK.ACQUIRE door alive READ LEASE 60000",
        ],
        waits: None,
    },
    Case {
        name: "a writer that reads longer",
        lines: &[
            "RLOCK.ACQUIRE door dead WRITE LEASE 500",
            "RLOCK.ACQUIRE door dead READ LEASE 60000",
        ],
        waits: None,
    },
    Case {
        name: "renewed, as the other",
        lines: &[
            "RLOCK.ACQUIRE door alive READ LEASE 300",
            "RLOCK.ACQUIRE door dead READ LEASE 100",
            "RLOCK.RENEW door dead LEASE 500",
            "RLOCK.RENEW door alive LEASE 60000",
        ],
        waits: None,
    },
    Case {
        name: "several locks",
        lines: &[
            "RLOCK.ACQUIRE door alive READ LEASE 60000",
            "RLOCK.MACQUIRE 2 door gate dead READ LEASE 500",
        ],
        waits: None,
    },
    Case {
        name: "a writer waits for both",
        lines: &[
            "RLOCK.ACQUIRE door alive READ LEASE 60000",
            "RLOCK.ACQUIRE door dead READ LEASE 1500",
        ],
        waits: Some("RLOCK.ACQUIRE door eve BLOCK 60000"),
    },
    Case {
        name: "observed",
        lines: &[
            "RLOCK.ACQUIRE door alive LIMIT 5 LEASE 60000",
            "RLOCK.ACQUIRE door dead LIMIT 5 LEASE 1500",
        ],
        waits: Some("RLOCK.AWAIT door 0 BLOCK 60000"),
    },
];

/// The time at which the hold of `dead` ends.
fn deadline_ms(client: &mut Client, mode: &str) -> i64 {
    now_ms() + client.lock("door").hold("dead", mode).ttl_ms
}

#[test]
fn a_hold_that_ends_beside_another_is_noticed_at_its_deadline() {
    for Case { name, lines, waits } in CASES {
        let server = Server::with(&EVENTS);
        let (mut client, mut watcher) = (server.client(), server.client());
        let mut cache = server.client_resp3();
        cache.ask("CLIENT TRACKING ON");
        // In its first second a server issues tokens ahead of its clock, so holds look shorter.
        client.ask("CONFIG SET rlock.slow-hold-ms 0");
        for line in lines {
            client.ask(line);
        }
        let _waiter = waits.map(|line| Waiter::parked(&server, line));
        let mode = if name.starts_with("a writer that") { "write" } else { "read" };
        let ends_at = deadline_ms(&mut client, mode);
        watcher.ask("WATCH door");
        cache.ask("RLOCK.HOLDS door dead");
        let mut ears = Listener::to(&server);
        // The server itself ends the hold of `gate`, which is the only one there.
        let mut heard = Vec::new();
        until(10_000, || {
            heard.extend(ears.heard(&mut client));
            heard.iter().any(|event| event == "rlock.expired door")
        });
        let late_ms = now_ms() - ends_at;
        heard.retain(|event| event != "rlock.expired gate");
        assert_eq!(heard, ["rlock.expired door"], "{name}");
        assert!((-5..=LATE_MS_MAX).contains(&late_ms), "{name}: {late_ms} ms late");
        watcher.ask("MULTI");
        watcher.ask("PING");
        assert_eq!(watcher.ask("EXEC"), redis::Value::Nil, "{name}: WATCH");
        // Nobody asks for the lock: the server notifies the cache by itself.
        assert!(format!("{:?}", cache.receive()).contains("Invalidate"), "{name}");
        until(5_000, || client.counted("expired") >= 1);
        let noted = format!("{:?}", items(&client.ask("RLOCK.SLOWLOG GET 10")));
        assert!(noted.contains("dead") && noted.contains("expired"), "{name}: {noted}");
        let more = ears.heard_after_a_turn(&mut client);
        assert!(more.iter().all(|event| event != "rlock.expired door"), "{name}: {more:?}");
    }
}

/// Two holds of `door`, of which the one of `dead` ends in three seconds.
fn two_readers(client: &mut Client) {
    client.granted("RLOCK.ACQUIRE door alive READ LEASE 60000");
    client.granted("RLOCK.ACQUIRE door dead READ LEASE 3000");
}

/// Asserts that the end of `dead` is published at its deadline, as this event.
#[track_caller]
fn ends_in_time(server: &Server, mut client: Client, key: &str, event: &str) {
    let ends_at = now_ms() + client.lock(key).hold("dead", "read").ttl_ms;
    let mut ears = Listener::to(server);
    until(10_000, || ears.heard(&mut client).iter().any(|heard| heard == event));
    let late_ms = now_ms() - ends_at;
    assert!((-5..=LATE_MS_MAX).contains(&late_ms), "{late_ms} ms late");
}

#[test]
fn it_is_noticed_on_a_server_that_was_restarted() {
    for file in [["appendonly", "yes"], ["save", "3600 1"]] {
        let mut server = Server::with(&[EVENTS[0], EVENTS[1], file[0], file[1]]);
        two_readers(&mut server.client());
        server.restart();
        ends_in_time(&server, server.client(), "door", "rlock.expired door");
    }
}

#[test]
fn it_is_noticed_on_a_server_that_was_promoted() {
    for is_there_before in [true, false] {
        let primary = Server::primary(&[]);
        if is_there_before {
            two_readers(&mut primary.client());
        }
        let replica = Server::replica_of(&primary, &EVENTS);
        if !is_there_before {
            two_readers(&mut primary.client());
        }
        replica.until_in_sync_with(&primary);
        replica.client().ask("REPLICAOF NO ONE");
        ends_in_time(&replica, replica.client(), "door", "rlock.expired door");
    }
}

#[test]
fn it_is_noticed_wherever_the_lock_came_from() {
    let server = Server::with(&EVENTS);
    let mut client = server.client();
    two_readers(&mut client);
    let dump = client.dump("door");
    client.ask("DEL door");
    client.ask_bytes(&[b"RESTORE", b"gate", b"0", &dump]);
    ends_in_time(&server, client, "gate", "rlock.expired gate");
    let mut client = server.client();
    two_readers(&mut client);
    client.ask("SWAPDB 0 1");
    client.ask("SELECT 1");
    ends_in_time(&server, client, "door", "rlock.expired door @1");
}

#[test]
fn it_is_noticed_when_the_gate_opens() {
    let server = Server::with(&EVENTS);
    let (mut client, mut ears) = (server.client(), Listener::to(&server));
    client.granted("RLOCK.ACQUIRE door alive READ LEASE 60000");
    client.granted("RLOCK.ACQUIRE door dead READ LEASE 300");
    client.ask("CLIENT PAUSE 600000 WRITE");
    let ends_at = now_ms() + 300;
    until(10_000, || now_ms() > ends_at + 200);
    client.ask("CLIENT UNPAUSE");
    until(10_000, || ears.heard(&mut client).iter().any(|event| event == "rlock.expired door"));
    assert_eq!(client.counted("expired"), 1);
    assert_eq!(client.shows("door"), "read: alive read 1");
}
