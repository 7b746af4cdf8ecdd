//! Readers and writers, step by step, with the state after each step.

use rlock_testkit::{Client, Server, flat_map, integer, items, until};

/// One step: the request, the reply (`t` = a token, `-` = nil, `!X` = error X, otherwise the
/// number), and what `RLOCK.INFO` shows then.
type Step = (&'static str, &'static str, &'static str);

#[track_caller]
fn play(client: &mut Client, steps: &[Step]) {
    for (line, reply, left) in steps {
        let said = match client.attempt(line) {
            Ok(redis::Value::Nil) => "-".to_owned(),
            Ok(redis::Value::Int(number)) if number > 1_000_000 => "t".to_owned(),
            Ok(redis::Value::Int(number)) => number.to_string(),
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("!{}", error.split(' ').next().unwrap()),
        };
        assert_eq!(said, *reply, "{line}");
        assert_eq!(client.shows("door"), *left, "after {line}");
    }
}

#[test]
fn readers_share_and_a_writer_is_refused_until_the_last_has_left() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door cid WRITE", "-", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door ann", "0", "read: bob read 1"),
            ("RLOCK.ACQUIRE door cid WRITE", "-", "read: bob read 1"),
            ("RLOCK.RELEASE door bob", "0", "free:"),
            ("RLOCK.ACQUIRE door cid WRITE", "t", "write: cid write 1"),
        ],
    );
}

#[test]
fn a_writer_excludes_readers_and_writers() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann", "t", "write: ann write 1"),
            ("RLOCK.ACQUIRE door bob READ", "-", "write: ann write 1"),
            ("RLOCK.ACQUIRE door bob WRITE", "-", "write: ann write 1"),
            ("RLOCK.ACQUIRE door bob UPGRADE", "-", "write: ann write 1"),
            ("RLOCK.RELEASE door bob", "!NOTHELD", "write: ann write 1"),
            ("RLOCK.RELEASE door ann", "0", "free:"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: bob read 1"),
        ],
    );
}

#[test]
fn each_reader_counts_its_own_levels() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 2, bob read 1"),
            ("RLOCK.RELEASE door ann READ", "1", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door cid READ", "!NOTHELD", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door bob WRITE", "!NOTHELD", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door bob READ", "0", "read: ann read 1"),
            ("RLOCK.RELEASE door bob READ", "!NOTHELD", "read: ann read 1"),
            ("RLOCK.RELEASE door ann READ", "0", "free:"),
        ],
    );
}

#[test]
fn a_writer_reads_its_own_and_keeps_reading_when_it_stops_writing() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann", "t", "write: ann write 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "write: ann write 1, ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "-", "write: ann write 1, ann read 1"),
            // The downgrade.
            ("RLOCK.RELEASE door ann WRITE", "0", "read: ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door cid WRITE", "-", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door ann", "0", "read: bob read 1"),
            ("RLOCK.RELEASE door bob", "0", "free:"),
        ],
    );
}

#[test]
fn a_writer_may_stop_reading_first_and_writes_on() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann", "t", "write: ann write 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "write: ann write 1, ann read 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "write: ann write 1, ann read 2"),
            ("RLOCK.ACQUIRE door ann WRITE", "t", "write: ann write 2, ann read 2"),
            ("RLOCK.RELEASE door ann READ", "1", "write: ann write 2, ann read 1"),
            ("RLOCK.RELEASE door ann READ", "0", "write: ann write 2"),
            ("RLOCK.ACQUIRE door bob READ", "-", "write: ann write 2"),
            ("RLOCK.RELEASE door ann WRITE", "1", "write: ann write 1"),
            ("RLOCK.RELEASE door ann WRITE", "0", "free:"),
        ],
    );
}

#[test]
fn a_reader_that_asks_for_write_would_wait_for_itself() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann WRITE", "!DEADLOCK", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann", "!DEADLOCK", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann DEPTH 1 WITHTTL", "!DEADLOCK", "read: ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door bob WRITE", "!DEADLOCK", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 2, bob read 1"),
        ],
    );
}

#[test]
fn the_only_reader_upgrades_and_reads_on_below() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 2"),
            ("RLOCK.ACQUIRE door ann WRITE UPGRADE", "t", "write: ann write 1, ann read 2"),
            ("RLOCK.ACQUIRE door bob READ", "-", "write: ann write 1, ann read 2"),
            ("RLOCK.ACQUIRE door ann WRITE", "t", "write: ann write 2, ann read 2"),
            ("RLOCK.RELEASE door ann ALL", "0", "read: ann read 2"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 2, bob read 1"),
        ],
    );
}

#[test]
fn an_upgrade_beside_another_reader_is_refused_when_it_does_not_wait() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door bob READ", "t", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door ann UPGRADE", "-", "read: ann read 1, bob read 1"),
            ("RLOCK.ACQUIRE door bob UPGRADE", "-", "read: ann read 1, bob read 1"),
            ("RLOCK.RELEASE door bob", "0", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann UPGRADE", "t", "write: ann write 1, ann read 1"),
        ],
    );
}

#[test]
fn upgrade_with_nothing_to_upgrade_changes_nothing() {
    let server = Server::start();
    play(
        &mut server.client(),
        &[
            ("RLOCK.ACQUIRE door ann READ UPGRADE", "t", "read: ann read 1"),
            ("RLOCK.ACQUIRE door ann READ UPGRADE", "t", "read: ann read 2"),
            ("RLOCK.RELEASE door ann ALL", "0", "free:"),
            ("RLOCK.ACQUIRE door ann UPGRADE", "t", "write: ann write 1"),
            ("RLOCK.ACQUIRE door ann UPGRADE", "t", "write: ann write 2"),
            ("RLOCK.ACQUIRE door bob UPGRADE", "-", "write: ann write 2"),
        ],
    );
}

#[test]
fn an_upgrade_has_its_own_token_and_lease() {
    let server = Server::start();
    let mut client = server.client();
    let read = client.granted("RLOCK.ACQUIRE door ann READ LEASE 90000");
    let write = client.granted("RLOCK.ACQUIRE door ann UPGRADE LEASE 9000");
    assert!(write > read);
    let lock = client.lock("door");
    assert_eq!(lock.hold("ann", "read").token, read);
    assert_eq!(lock.hold("ann", "write").token, write);
    assert!(lock.hold("ann", "read").ttl_ms > 80_000);
    assert!(lock.hold("ann", "write").ttl_ms <= 9_000);
}

#[test]
fn an_upgrade_to_a_depth_may_be_sent_again() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ DEPTH 1");
    let write = client.granted("RLOCK.ACQUIRE door ann UPGRADE DEPTH 1");
    assert_eq!(client.granted("RLOCK.ACQUIRE door ann UPGRADE DEPTH 1"), write);
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 1");
}

#[test]
fn every_hold_has_a_token_of_its_own_and_checks_in_its_mode() {
    let server = Server::start();
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann READ");
    let bob = client.granted("RLOCK.ACQUIRE door bob READ");
    assert!(bob > ann);
    for token in [ann, bob] {
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token} READ")), 1);
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
    }
}

#[test]
fn one_readers_end_neither_shortens_nor_lengthens_anothers() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 40");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 60000");
    client.granted("RLOCK.ACQUIRE door cid READ LEASE 90000");
    until(5_000, || client.shows("door") == "read: bob read 1, cid read 1");
    client.ask("RLOCK.RELEASE door cid");
    let ttl_ms = client.lock("door").hold("bob", "read").ttl_ms;
    assert!((50_000..=60_000).contains(&ttl_ms), "{ttl_ms}");
    let key_ttl_ms = client.lives_ms("door");
    assert!((50_000..=60_000).contains(&key_ttl_ms), "{key_ttl_ms}");
}

#[test]
fn a_writer_whose_lease_ends_first_reads_on() {
    let server = Server::start();
    let mut client = server.client();
    let write = client.granted("RLOCK.ACQUIRE door ann LEASE 40");
    let read = client.granted("RLOCK.ACQUIRE door ann READ LEASE 60000");
    until(5_000, || client.shows("door") == "read: ann read 1");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {write}")), 0);
    assert_eq!(client.number(&format!("RLOCK.CHECK door {read} READ")), 1);
    client.granted("RLOCK.ACQUIRE door bob READ");
    assert_eq!(client.shows("door"), "read: ann read 1, bob read 1");
}

#[test]
fn a_reader_whose_lease_ends_first_writes_on() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 40");
    until(5_000, || client.shows("door") == "write: ann write 1");
    client.refused("RLOCK.ACQUIRE door bob READ");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_thousand_readers_hold_together() {
    let server = Server::start();
    let mut client = server.client();
    for reader in 0..1_000 {
        client.granted(&format!("RLOCK.ACQUIRE door reader:{reader} READ LEASE 90000"));
    }
    assert_eq!(client.lock("door").holds.len(), 1_000);
    // 100 of them, unless more are asked for.
    let listed = flat_map(&client.ask("RLOCK.INFO door"));
    assert_eq!(integer(&listed["holder-count"]), 1_000);
    assert_eq!(items(&listed["holders"]).len(), 100);
    client.refused("RLOCK.ACQUIRE door ann");
    for reader in (0..1_000).rev() {
        assert_eq!(client.number(&format!("RLOCK.RELEASE door reader:{reader}")), 0);
    }
    client.granted("RLOCK.ACQUIRE door ann");
}
