//! `RLOCK.SLOWLOG`: what took long, and why.

use redis::Value;

use rlock_testkit::{Client, Server, Waiter, flat_map, integer, items, text, until};

fn noting(settings: &[&str]) -> (Server, Client) {
    let server = Server::with(settings);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    (server, client)
}

const ALL: &[&str] = &["rlock.slow-wait-ms", "0", "rlock.slow-hold-ms", "0"];

/// Its entries, the newest first: kind, owner, mode and limit, outcome, holders.
#[track_caller]
fn entries(client: &mut Client, words: &str) -> Vec<String> {
    let reply = client.ask(&format!("RLOCK.SLOWLOG GET {words}"));
    let entries = items(&reply).iter().map(|entry| {
        let fields = flat_map(entry);
        let holders = items(&fields["holders"]).iter().map(|holder| match holder {
            Value::Array(pair) => format!("{}@{}", text(&pair[0]), text(&pair[1])),
            owner => text(owner),
        });
        let holders: Vec<String> = holders.collect();
        let word = |name: &str| text(&fields[name]);
        assert_eq!(word("key"), "door");
        assert_eq!(integer(&fields["db"]), 0);
        assert!(integer(&fields["ms"]) >= 0);
        let (mode, limit) = (word("mode"), integer(&fields["limit"]));
        let holders = holders.join(",");
        format!("{} {} {mode} {limit} {} [{holders}]", word("kind"), word("owner"), word("outcome"))
    });
    entries.collect()
}

#[test]
fn waits_and_holds_are_noted_with_their_ends() {
    let (server, mut client) = noting(ALL);
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
    let cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid LIMIT 3 BLOCK 0");
    let mut dan = Waiter::parked(&server, "RLOCK.ACQUIRE door dan BLOCK 0");
    let mut eve = Waiter::parked(&server, "RLOCK.ACQUIRE door eve BLOCK 0");
    client.ask(&format!("CLIENT UNBLOCK {}", dan.id()));
    dan.refused();
    client.ask(&format!("CLIENT KILL ID {}", cid.id()));
    client.ask("RLOCK.CANCEL door eve");
    eve.refused();
    client.refused("RLOCK.ACQUIRE door fay BLOCK 20");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    client.ask("RLOCK.FORCE door");
    until(5_000, || client.number("RLOCK.SLOWLOG LEN") == 7);
    let mut all = entries(&mut client, "-1");
    assert_eq!(all[0], "hold bob write 0 forced []");
    all.sort();
    assert_eq!(
        all,
        [
            "hold ann write 0 released []",
            "hold bob write 0 forced []",
            "wait bob write 0 granted [ann]",
            "wait cid read 3 disconnected [ann]",
            "wait dan write 0 unblocked [ann]",
            "wait eve write 0 cancelled [ann]",
            "wait fay write 0 timed-out [ann]",
        ]
    );
    assert_eq!(entries(&mut client, "2").len(), 2);
    client.ask("RLOCK.SLOWLOG RESET");
    assert_eq!(client.number("RLOCK.SLOWLOG LEN"), 0);
}

#[test]
fn tickets_deadlocks_and_what_takes_the_key_are_noted() {
    let (server, mut client) = noting(ALL);
    client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
    client.ask("RLOCK.RELEASE door ann");
    client.granted("RLOCK.ACQUIRE door bob QUEUE 60000 LEASE 600000");
    assert_eq!(entries(&mut client, "1"), ["wait bob write 0 granted [ann]"]);
    client.granted("RLOCK.ACQUIRE other ann LEASE 600000");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE other bob BLOCK 0");
    assert!(client.error("RLOCK.ACQUIRE door ann BLOCK 0").starts_with("DEADLOCK "));
    assert_eq!(entries(&mut client, "1"), ["deadlock ann write 0 refused [ann@door,bob@other]"]);
    client.ask("DEL door");
    until(5_000, || entries(&mut client, "1") == ["hold bob write 0 removed []"]);
    client.granted("RLOCK.ACQUIRE door cid LEASE 1");
    until(5_000, || {
        client.ask("EXISTS door");
        entries(&mut client, "1") == ["hold cid write 0 expired []"]
    });
}

#[test]
fn by_default_waits_of_a_second_are_noted_and_no_hold() {
    let (_server, mut client) = noting(&[]);
    client.refused("RLOCK.ACQUIRE door bob BLOCK 20");
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(client.number("RLOCK.SLOWLOG LEN"), 0);
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.refused("RLOCK.ACQUIRE door bob BLOCK 1000");
    assert_eq!(entries(&mut client, "-1"), ["wait bob write 0 timed-out [ann]"]);
    client.ask("CONFIG SET rlock.slow-wait-ms -1");
    client.refused("RLOCK.ACQUIRE door bob BLOCK 1000");
    assert_eq!(client.number("RLOCK.SLOWLOG LEN"), 1);
}

#[test]
fn it_has_a_bound_and_goes_on_counting() {
    let (_server, mut client) = noting(&[ALL, &["rlock.slowlog-max-len", "3"]].concat());
    for _ in 0..5 {
        client.ask("RLOCK.RELEASE door ann");
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    }
    let ids = |client: &mut Client| {
        let reply = client.ask("RLOCK.SLOWLOG GET -1");
        items(&reply).iter().map(|entry| integer(&flat_map(entry)["id"])).collect::<Vec<_>>()
    };
    assert_eq!(ids(&mut client), [5, 4, 3]);
    client.ask("RLOCK.SLOWLOG RESET");
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(ids(&mut client), [6]);
}

#[test]
fn names_are_printable_and_short() {
    let (_server, mut client) = noting(ALL);
    let (key, owner) = ([b'k'; 200], b"o\r\n+OK\xff");
    client.ask_bytes(&[b"RLOCK.ACQUIRE", &key, owner]);
    client.ask_bytes(&[b"RLOCK.RELEASE", &key, owner]);
    let reply = client.ask("RLOCK.SLOWLOG GET 1");
    let fields = flat_map(&items(&reply)[0]);
    assert_eq!(text(&fields["key"]), "k".repeat(64));
    assert_eq!(text(&fields["owner"]), "o\\x0d\\x0a+OK\\xff");
}
