//! Holds that expire beside another hold of a lock without waiters: the server expires no key then.

use rlock_engine::{Deferred, Gate, events};

use crate::support::MapHost;

const EXPIRED: &str = "published rlock.expired k";

/// Two readers of `k`, until 100 and until 5000 ms.
fn two_readers() -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ LEASE 5000");
    assert_eq!(host.alarm(), None, "the server expires the key of a hold that stands alone");
    host.ask(2, "acquire k bob READ LEASE 100");
    assert_eq!(host.alarm(), Some(100));
    host.take_log();
    host
}

/// How often the expiry is published in a loop iteration at this time.
fn published_at(host: &MapHost, ms: u64) -> usize {
    host.at(ms);
    host.turn();
    host.take_log().iter().filter(|line| *line == EXPIRED).count()
}

#[test]
fn a_hold_that_expires_beside_another_is_published_at_its_deadline() {
    let host = two_readers();
    assert_eq!(published_at(&host, 99), 0);
    assert_eq!(published_at(&host, 100), 1);
    assert_eq!(host.holds("k"), "ann read depth=1 until=5000");
    assert_eq!(host.alarm(), None);
}

#[test]
fn a_renewed_hold_is_looked_at_again() {
    let host = two_readers();
    host.ask(2, "renew k bob LEASE 300");
    assert_eq!(published_at(&host, 100), 0);
    assert_eq!(host.alarm(), Some(300));
    assert_eq!(published_at(&host, 300), 1);
}

#[test]
fn a_hold_that_expires_earlier_than_the_others_comes_first() {
    let host = two_readers();
    host.ask(3, "acquire k cid READ LEASE 50");
    assert_eq!(published_at(&host, 50), 1);
    assert_eq!(published_at(&host, 100), 1);
    assert_eq!(host.holds("k"), "ann read depth=1 until=5000");
}

#[test]
fn a_reader_that_expires_behind_another_is_published_while_a_writer_waits() {
    let host = two_readers();
    host.ask(3, "acquire k cid BLOCK 0");
    assert_eq!(published_at(&host, 100), 1);
    host.at(5000);
    assert_eq!(host.turn(), ["3: #3"]);
}

#[test]
fn what_expires_while_the_gate_is_shut_is_published_when_it_opens() {
    let host = two_readers();
    host.world().gate = Gate::Shut;
    assert_eq!(published_at(&host, 100), 0);
    assert_eq!(published_at(&host, 200), 0);
    assert!(host.has_deferred(Deferred::Retry));
    host.world().gate = Gate::Open;
    assert_eq!(published_at(&host, 250), 1);
}

#[test]
fn a_lock_that_was_replayed_is_seen_to_once_the_replica_is_promoted() {
    let (primary, replica) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann READ LEASE 5000");
    primary.ask(2, "acquire k bob READ LEASE 100");
    let stream = primary.world().stream.clone();
    for written in &stream {
        assert_eq!(replica.replay(written), "OK");
    }
    replica.take_log();
    assert_eq!(published_at(&replica, 150), 0, "a replica ends no hold");
    events::set_role(&replica, true);
    assert_eq!(published_at(&replica, 151), 1);
}

#[test]
fn a_lock_that_was_loaded_is_seen_to() {
    let (host, other) = (MapHost::primary(), two_readers());
    host.put_lock("k", other.lock("k"));
    assert_eq!(host.alarm(), Some(100));
    assert_eq!(published_at(&host, 100), 1);
}

#[test]
fn a_lock_that_is_gone_is_forgotten() {
    for end in ["release", "remove", "flush"] {
        let host = two_readers();
        match end {
            "release" => drop(host.ask(2, "release k bob")),
            "remove" => host.remove("k"),
            _ => events::flushed(&host, None),
        }
        host.turn();
        assert_eq!(published_at(&host, 100), 0, "{end}");
        assert_eq!(host.alarm(), None, "{end}");
    }
}
