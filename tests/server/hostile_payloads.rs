//! `RESTORE` with payloads that no server ever dumped: refused, or a lock that can exist.
//!
//! The server allocates what a payload claims to follow, up to four gigabytes, and frees it when
//! nothing does: to fill that would take seconds.

use redis::Value;

use rlock_testkit::{Client, LockView, Payload, Server};

/// The first byte says which of the server's own types follows. The module never reads another one.
const TYPE_LEN: usize = 1;

/// A client, and the payloads of locks of every shape, uncompressed so that every byte counts.
fn samples(server: &Server) -> (Client, Vec<Payload>) {
    let mut client = server.client();
    client.ask("CONFIG SET rdbcompression no");
    for line in [
        "RLOCK.ACQUIRE writer ann LEASE 600000",
        "RLOCK.ACQUIRE readers ann READ LEASE 600000",
        "RLOCK.ACQUIRE readers bob READ LEASE 600000",
        "RLOCK.ACQUIRE readers bob READ LEASE 600000",
        "RLOCK.ACQUIRE both cid LEASE 600000",
        "RLOCK.ACQUIRE both cid READ LEASE 700000",
    ] {
        client.granted(line);
    }
    let keys = ["writer", "readers", "both"];
    let payloads = keys.iter().map(|key| Payload::open(&client.dump(key)));
    let payloads = payloads.collect();
    (client, payloads)
}

/// Restores the payload. If the server accepts it, it must be a lock that works.
#[track_caller]
fn try_to_restore(client: &mut Client, payload: &Payload, what: &str) -> bool {
    let sealed = payload.sealed();
    let reply = client.attempt_bytes(&[b"RESTORE", b"victim", b"0", &sealed, b"REPLACE"]);
    if reply.is_err() {
        return false;
    }
    assert_eq!(client.text("TYPE victim"), "rlock-key", "{what}");
    // Reading it checks the laws that every lock keeps.
    let lock = LockView::read(&client.ask("RLOCK.INFO victim"));
    client.digest("victim");
    let dumped = client.dump("victim");
    client.ask_bytes(&[b"RESTORE", b"victim", b"0", &dumped, b"REPLACE"]);
    for hold in &lock.holds {
        let words: [&[u8]; 5] =
            [b"RLOCK.RELEASE", b"victim", &hold.owner, hold.mode.as_bytes(), b"ALL"];
        match client.attempt_bytes(&words) {
            Ok(reply) => assert_eq!(reply, Value::Int(0), "{what}: {lock:?}"),
            // Its deadline may have come meanwhile.
            Err(error) => assert!(error.starts_with("NOTHELD "), "{what}: {error}"),
        }
    }
    client.granted("RLOCK.ACQUIRE victim next LEASE 1000");
    true
}

#[test]
fn a_payload_with_any_one_byte_changed_is_refused_or_makes_a_sound_lock() {
    let server = Server::that_fills_nothing();
    let (mut client, payloads) = samples(&server);
    let mut refused_count = 0;
    for payload in &payloads {
        for at in TYPE_LEN..payload.value_len() {
            let old = payload.body[at];
            let bits = (0..8).map(|bit| old ^ (1 << bit));
            let extremes = [0, 0xff, 0x7f, 0x80, old.wrapping_add(1), old.wrapping_sub(1)];
            for new in bits.chain(extremes).filter(|new| *new != old) {
                let mut changed = payload.clone();
                changed.body[at] = new;
                let what = format!("byte {at}: {old:#04x} -> {new:#04x}");
                let is_taken = try_to_restore(&mut client, &changed, &what);
                refused_count += usize::from(!is_taken);
            }
        }
    }
    assert!(refused_count > 100, "only {refused_count} were refused");
    assert_eq!(client.shows("writer"), "write: ann write 1");
}

#[test]
fn a_payload_cut_short_or_with_bytes_added_or_left_out_is_refused_or_sound() {
    let server = Server::that_fills_nothing();
    let (mut client, payloads) = samples(&server);
    for payload in &payloads {
        let (value, version) = payload.body.split_at(payload.value_len());
        for at in TYPE_LEN..value.len() {
            let cut = Payload { body: [&value[..at], version].concat() };
            let is_taken = try_to_restore(&mut client, &cut, &format!("cut at {at}"));
            // If two bytes are missing, the server reads those of the version instead.
            assert!(!is_taken || at == value.len() - 2, "cut at {at}");
            let without_one = Payload { body: [&value[..at], &value[at + 1..], version].concat() };
            try_to_restore(&mut client, &without_one, &format!("without byte {at}"));
            for more in [&[0][..], &[0xff], &[0x80; 12], &[0xff; 12]] {
                let longer = Payload { body: [&value[..at], more, &value[at..], version].concat() };
                try_to_restore(&mut client, &longer, &format!("{more:?} added at {at}"));
            }
        }
    }
}

#[test]
fn payloads_spliced_from_two_locks_are_refused_or_sound() {
    let server = Server::that_fills_nothing();
    let (mut client, payloads) = samples(&server);
    for (head, tail) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)] {
        let (head, tail) = (&payloads[head], &payloads[tail]);
        for at in TYPE_LEN..head.value_len().min(tail.value_len()) {
            let spliced = Payload { body: [&head.body[..at], &tail.body[at..]].concat() };
            try_to_restore(&mut client, &spliced, &format!("spliced at {at}"));
        }
    }
}

#[test]
fn a_payload_with_the_wrong_checksum_is_refused() {
    let server = Server::start();
    let (mut client, payloads) = samples(&server);
    let mut sealed = payloads[0].sealed();
    *sealed.last_mut().unwrap() ^= 1;
    client.error_bytes(&[b"RESTORE", b"victim", b"0", &sealed]);
    assert_eq!(client.number("EXISTS victim"), 0);
}

#[test]
fn a_refused_payload_leaves_what_stands_at_the_key() {
    let server = Server::start();
    let (mut client, payloads) = samples(&server);
    let before = client.dump("writer");
    let ends_at = client.key_ends_at("writer");
    let mut cut = payloads[1].clone();
    cut.body.drain(20..cut.value_len());
    client.error_bytes(&[b"RESTORE", b"writer", b"0", &cut.sealed(), b"REPLACE"]);
    assert_eq!(client.dump("writer"), before);
    assert_eq!(client.key_ends_at("writer"), ends_at);
    let error = client.error_bytes(&[b"RESTORE", b"writer", b"0", &payloads[1].sealed()]);
    assert!(error.starts_with("BUSYKEY "), "{error}");
    assert_eq!(client.dump("writer"), before);
}
