//! `RLOCK.RENEW`: deadlines move later, never earlier, and no hold begins.

use rlock_testkit::{LEASE_MS_MAX, Server, until};

#[test]
fn a_renewal_extends_the_deadline_and_the_life_of_the_key() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 10000");
    client.granted("RLOCK.ACQUIRE door ann LEASE 10000");
    let key_ends_at = client.key_ends_at("door");
    assert_eq!(client.number("RLOCK.RENEW door ann LEASE 90000"), 1);
    assert!(client.key_ends_at("door") >= key_ends_at + 80_000);
    let hold = client.lock("door").hold("ann", "write").clone();
    assert!((80_000..=90_000).contains(&hold.ttl_ms), "{hold:?}");
    assert_eq!((hold.token, hold.depth), (token, 2));
}

#[test]
fn a_renewal_never_shortens() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 90000");
    let before = client.dump("door");
    let key_ends_at = client.key_ends_at("door");
    assert_eq!(client.number("RLOCK.RENEW door ann LEASE 1"), 1);
    assert_eq!(client.number("RLOCK.RENEW door ann"), 1);
    assert_eq!(client.dump("door"), before);
    assert_eq!(client.key_ends_at("door"), key_ends_at);
}

#[test]
fn without_a_lease_the_configured_one_is_renewed() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 5000");
    client.ask("RLOCK.RENEW door ann");
    let ttl_ms = client.lock("door").hold("ann", "write").ttl_ms;
    assert!((20_000..=30_000).contains(&ttl_ms), "{ttl_ms}");
    client.ask("CONFIG SET rlock.default-lease-ms 90000");
    client.ask("RLOCK.RENEW door ann");
    let ttl_ms = client.lock("door").hold("ann", "write").ttl_ms;
    assert!((80_000..=90_000).contains(&ttl_ms), "{ttl_ms}");
}

#[test]
fn a_renewal_is_of_all_holds_or_of_the_mode_or_of_the_token() {
    let server = Server::start();
    let mut client = server.client();
    let mut renewed_by = |options: &dyn Fn(i64, i64) -> String| {
        client.ask("DEL door");
        let write = client.granted("RLOCK.ACQUIRE door ann LEASE 10000");
        let read = client.granted("RLOCK.ACQUIRE door ann READ LEASE 10000");
        let line = format!("RLOCK.RENEW door ann LEASE 90000 {}", options(write, read));
        assert_eq!(client.number(&line), 1);
        let lock = client.lock("door");
        let is_renewed = |mode| lock.hold("ann", mode).ttl_ms > 50_000;
        (is_renewed("write"), is_renewed("read"))
    };
    assert_eq!(renewed_by(&|_, _| String::new()), (true, true));
    assert_eq!(renewed_by(&|_, _| "READ".to_owned()), (false, true));
    assert_eq!(renewed_by(&|_, _| "WRITE".to_owned()), (true, false));
    assert_eq!(renewed_by(&|write, _| format!("TOKEN {write}")), (true, false));
    assert_eq!(renewed_by(&|_, read| format!("TOKEN {read}")), (false, true));
    let both = |_, read| format!("READ TOKEN {read}");
    assert_eq!(renewed_by(&both), (false, true));
}

#[test]
fn a_renewal_leaves_other_readers_alone() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 10000");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 10000");
    client.ask("RLOCK.RENEW door ann LEASE 90000");
    let lock = client.lock("door");
    assert!(lock.hold("ann", "read").ttl_ms > 80_000);
    assert!(lock.hold("bob", "read").ttl_ms <= 10_000);
}

#[test]
fn who_does_not_hold_cannot_renew_and_creates_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let error = client.error("RLOCK.RENEW nowhere ann LEASE 1000");
    assert!(error.starts_with("NOTHELD ") && error.contains("ann"), "{error}");
    assert_eq!(client.number("EXISTS nowhere"), 0);
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 10000");
    let before = client.dump("door");
    let strangers = [
        "bob".to_owned(),
        format!("bob TOKEN {token}"),
        "ann READ".to_owned(),
        format!("ann TOKEN {}", token + 1),
        format!("ann READ TOKEN {token}"),
    ];
    for stranger in strangers {
        let line = format!("RLOCK.RENEW door {stranger} LEASE 90000");
        assert!(client.error(&line).starts_with("NOTHELD "), "{line}");
    }
    assert_eq!(client.dump("door"), before);
}

#[test]
fn what_has_run_out_cannot_be_renewed() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 20");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 60000");
    until(5_000, || client.shows("door") == "read: bob read 1");
    assert!(client.error("RLOCK.RENEW door ann").starts_with("NOTHELD "));
    assert_eq!(client.shows("door"), "read: bob read 1");
}

#[test]
fn a_renewed_lease_has_the_bounds_of_every_lease() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 10000");
    let before = client.dump("door");
    for lease in [0, LEASE_MS_MAX + 1] {
        let error = client.error(&format!("RLOCK.RENEW door ann LEASE {lease}"));
        assert!(error.starts_with("ERR ") && error.contains("LEASE"), "{error}");
    }
    for options in ["LEASE 5 LEASE 5", "READ WRITE", "TOKEN 5 TOKEN 5", "ALL", "DEPTH 1"] {
        let error = client.error(&format!("RLOCK.RENEW door ann {options}"));
        assert!(error.starts_with("ERR "), "{error}");
    }
    assert_eq!(client.dump("door"), before);
    assert_eq!(client.number(&format!("rlock.renew door ann lease {LEASE_MS_MAX}")), 1);
}
