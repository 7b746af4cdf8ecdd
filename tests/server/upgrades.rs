//! `UPGRADE`: a reader that asks for WRITE too, and those that wait beside it.

use rlock_testkit::{Server, Waiter};

fn parked<const N: usize>(server: &Server, lines: [&str; N]) -> [Waiter; N] {
    lines.map(|line| Waiter::parked(server, &format!("RLOCK.ACQUIRE door {line}")))
}

#[test]
fn an_upgrader_waits_for_the_other_readers_in_front_of_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    let [mut cid, mut ann] = parked(&server, ["cid BLOCK 0", "ann UPGRADE BLOCK 0"]);
    assert_eq!(client.queue("door"), "ann write block, cid write block");
    client.ask("RLOCK.RELEASE door bob");
    ann.granted();
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 1");
    client.ask("RLOCK.RELEASE door ann WRITE");
    cid.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door ann READ");
    cid.granted();
}

#[test]
fn the_only_reader_upgrades_at_once_past_those_who_wait() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    let [mut cid] = parked(&server, ["cid BLOCK 0"]);
    client.granted("RLOCK.ACQUIRE door ann UPGRADE BLOCK 0");
    cid.still_waits(&mut client);
}

#[test]
fn a_second_upgrader_is_told_of_the_deadlock_at_once() {
    let server = Server::start();
    let mut client = server.client();
    for owner in ["ann", "bob", "cid"] {
        client.granted(&format!("RLOCK.ACQUIRE door {owner} READ"));
    }
    let [mut ann] = parked(&server, ["ann UPGRADE BLOCK 0"]);
    for patience in ["BLOCK 0", "BLOCK 1", "QUEUE 1000"] {
        let error = client.error(&format!("RLOCK.ACQUIRE door bob UPGRADE {patience}"));
        assert!(error.starts_with("DEADLOCK ") && error.contains("door"), "{error}");
    }
    client.refused("RLOCK.ACQUIRE door bob UPGRADE");
    client.ask("CONFIG SET rlock.deadlock-detection no");
    assert!(client.error("RLOCK.ACQUIRE door bob UPGRADE BLOCK 0").starts_with("DEADLOCK "));
    assert_eq!(client.queue("door"), "ann write block");
    client.ask("RLOCK.RELEASE door bob");
    ann.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door cid");
    ann.granted();
}

#[test]
fn a_reader_that_asks_for_write_without_upgrade_is_told_that_it_would_wait_for_itself() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.ask("CONFIG SET rlock.deadlock-detection no");
    for patience in ["", "BLOCK 0", "BLOCK 100", "QUEUE 1000"] {
        let error = client.error(&format!("RLOCK.ACQUIRE door ann {patience}"));
        assert!(error.starts_with("DEADLOCK "), "{patience}: {error}");
    }
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn an_upgrader_that_loses_its_read_stays_in_front_and_enters_as_a_writer() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    let [mut cid, mut ann] = parked(&server, ["cid BLOCK 0", "ann UPGRADE BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann READ");
    assert_eq!(client.queue("door"), "ann write block, cid write block");
    client.ask("RLOCK.RELEASE door bob");
    ann.granted();
    assert_eq!(client.shows("door"), "write: ann write 1");
    cid.still_waits(&mut client);
}

#[test]
fn an_upgrader_that_gives_up_keeps_its_read() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    let [mut ann, mut cid] = parked(&server, ["ann UPGRADE BLOCK 150", "cid READ BLOCK 0"]);
    ann.refused();
    cid.granted();
    assert_eq!(client.shows("door"), "read: ann read 1, bob read 1, cid read 1");
    // Now another one may try.
    let [mut bob] = parked(&server, ["bob UPGRADE BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    client.ask("RLOCK.RELEASE door cid");
    bob.granted();
}

#[test]
fn an_upgrade_has_a_token_and_a_lease_of_its_own() {
    let server = Server::start();
    let mut client = server.client();
    let read = client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE door bob READ");
    let [mut ann] = parked(&server, ["ann UPGRADE LEASE 9000 BLOCK 0 WITHTTL"]);
    client.ask("RLOCK.RELEASE door bob");
    let (token, left_ms) = ann.granted_with_ttl();
    assert!(token > read);
    assert_eq!(left_ms, 9_000);
    assert_eq!(client.lock("door").hold("ann", "read").token, read);
    assert!(client.lock("door").hold("ann", "read").ttl_ms > 500_000);
}

#[test]
fn with_ttl_an_upgrader_whose_time_is_over_hears_when_the_other_readers_end() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 9000");
    let [_cid, mut ann] = parked(&server, ["cid BLOCK 0", "ann UPGRADE BLOCK 50 WITHTTL"]);
    let ms = ann.refused_with_ttl();
    assert!((1..=9_000).contains(&ms), "{ms}");
}

#[test]
fn an_upgrade_where_there_is_nothing_to_upgrade_waits_like_any_other() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let [mut bob, mut cid, mut dan] =
        parked(&server, ["bob BLOCK 0", "cid UPGRADE BLOCK 0", "dan READ UPGRADE BLOCK 0"]);
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    client.ask("RLOCK.RELEASE door bob");
    cid.granted();
    client.ask("RLOCK.RELEASE door cid");
    dan.granted();
    assert_eq!(client.shows("door"), "read: dan read 1");
}
