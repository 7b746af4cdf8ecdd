//! How long the engine lets a key live, and what it publishes when the server removes a key.

use crate::support::MapHost;
use rlock_engine::{Deferred, Gate, events};

#[test]
fn a_key_lives_through_the_last_millisecond_of_its_latest_hold() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ LEASE 100");
    assert_eq!(host.expires_at("k"), Some(99));
    host.ask(2, "acquire k bob READ LEASE 500");
    assert_eq!(host.expires_at("k"), Some(499));
    host.ask(2, "release k bob");
    assert_eq!(host.expires_at("k"), Some(99));
    host.ask(1, "renew k ann LEASE 800");
    assert_eq!(host.expires_at("k"), Some(799));
}

#[test]
fn a_key_lives_a_second_longer_while_somebody_waits() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    host.ask(2, "acquire k bob BLOCK 100");
    assert_eq!(host.expires_at("k"), Some(5999));
    host.at(100);
    assert_eq!(host.turn(), ["2: nil"]);
    assert_eq!(host.expires_at("k"), Some(4999), "nobody waits any more");
}

#[test]
fn a_key_lives_no_longer_once_the_waiter_has_departed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    host.ask(2, "acquire k bob BLOCK 0");
    host.close(2);
    assert_eq!(host.expires_at("k"), Some(5999), "a callback writes nothing");
    host.run(Deferred::Sweep);
    assert_eq!(host.expires_at("k"), Some(4999));
}

#[test]
fn an_expiry_that_its_user_set_stays_while_nothing_is_promised() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ LEASE 5000");
    host.set_expiry("k", Some(900));
    host.ask(2, "acquire k bob BLOCK 0");
    assert_eq!(host.expires_at("k"), Some(900), "a wait promises nothing");
    host.set_expiry("k", None);
    host.close(2);
    host.turn();
    assert_eq!(host.expires_at("k"), None, "PERSIST stays in effect");
}

#[test]
fn a_promised_deadline_restores_the_keys_time_to_live() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ LEASE 5000");
    host.set_expiry("k", Some(900));
    host.ask(1, "acquire k ann READ LEASE 10");
    assert_eq!(host.expires_at("k"), Some(4999), "a re-entry promises the deadline");
    host.set_expiry("k", Some(900));
    host.ask(2, "acquire k bob READ LEASE 10");
    assert_eq!(host.expires_at("k"), Some(4999), "so does a further reader");
    host.set_expiry("k", None);
    host.ask(2, "acquire k cid READ LEASE 10");
    assert_eq!(host.expires_at("k"), None, "it lives long enough");
}

#[test]
fn a_denied_grant_leaves_the_expiry_of_the_holds_that_remain() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ LEASE 200");
    host.ask(3, "acquire k cid READ LEASE 100");
    host.world().users.insert(2, "u2".into());
    host.ask(2, "acquire k bob READ LIMIT 2 LEASE 9000 BLOCK 0");
    host.world().denied.insert("u2".into());
    host.ask(3, "release k cid");
    assert_eq!(host.turn().len(), 1);
    assert_eq!(host.holds("k"), "ann read depth=1 until=200");
    assert_eq!(host.expires_at("k"), Some(199));
}

#[test]
fn a_key_that_expires_when_it_is_opened_is_published_before_the_new_lock() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.at(100);
    host.take_log();
    assert_eq!(host.ask(2, "acquire k bob"), "#2");
    assert_eq!(
        host.take_log(),
        [
            "expired k",
            "published rlock.expired k",
            "seen: removed Expired 1",
            "set k",
            "replicated apply",
            "seen: decided k 1 changes 1 events 0 pending: #2 for 30000",
            "signalled k",
            "published rlock.acquired k",
            "seen: acquired #2 for 30000",
        ]
    );
    host.turn();
    assert_eq!(host.published(), [""; 0], "once");
}

#[test]
fn an_expiry_is_published_before_any_other_event() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(1, "acquire other ann");
    host.at(100);
    host.take_log();
    assert_eq!(host.ask(2, "holds k ann"), "0", "a query opens it, too");
    assert_eq!(host.published(), [""; 0], "and publishes nothing");
    host.ask(1, "release other ann");
    assert_eq!(host.published(), ["rlock.expired k", "rlock.released other"]);
}

#[test]
fn a_lock_that_its_owner_released_is_not_published_as_removed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(1, "release k ann");
    host.turn();
    assert_eq!(host.published(), ["rlock.acquired k", "rlock.released k"]);
    assert_eq!(host.take_deferred(), []);
}

#[test]
fn a_removed_key_is_published_once_in_the_next_iteration() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    host.remove("k");
    assert_eq!(host.take_log(), [""; 0], "not in the callback");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.take_log(), ["published rlock.removed k", "seen: removed Removed 1"]);
    host.turn();
    assert_eq!(host.take_log(), [""; 0]);
}

#[test]
fn an_evicted_key_is_published_as_evicted() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    host.evict("k");
    host.turn();
    assert_eq!(host.published(), ["rlock.evicted k"]);
}

#[test]
fn a_removed_key_is_published_in_its_own_database() {
    let host = MapHost::primary();
    host.world().db = 3;
    host.ask(1, "acquire k ann");
    host.remove("k");
    host.world().db = 0;
    host.take_log();
    host.turn();
    assert_eq!(host.published(), ["rlock.removed 3:k"]);
    assert_eq!(host.world().db, 0);
}

#[test]
fn a_lock_that_moves_with_its_slot_is_not_published_as_removed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(1, "acquire here ann");
    host.world().gates.insert(b"k".to_vec(), Gate::Elsewhere);
    host.world().is_cluster = true;
    host.remove("k");
    host.remove("here");
    host.take_log();
    host.turn();
    assert_eq!(
        host.take_log(),
        ["seen: removed Removed 1", "published rlock.removed here", "seen: removed Removed 1"]
    );
}

#[test]
fn without_a_cluster_every_removed_lock_is_published() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.world().gate = Gate::Elsewhere;
    host.remove("k");
    host.take_log();
    host.turn();
    assert_eq!((host.published(), host.world().gate_asked), (vec!["rlock.removed k".into()], 0));
}

#[test]
fn a_lock_behind_a_shut_gate_is_published_as_removed() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.world().is_cluster = true;
    host.world().gate = Gate::Shut;
    host.remove("k");
    host.take_log();
    host.turn();
    assert_eq!(host.published(), ["rlock.removed k"]);
}

#[test]
fn a_replica_publishes_what_its_primary_deleted_wherever_the_slot_is() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann LEASE 100");
    primary.ask(1, "acquire j ann");
    host.follow(&primary);
    host.world().is_cluster = true;
    host.world().gate = Gate::Elsewhere;
    host.at(200);
    host.remove("k");
    host.remove("j");
    host.take_log();
    host.turn();
    assert_eq!(
        host.take_log(),
        ["published rlock.expired k", "published rlock.removed j"],
        "its own counters count no removed lock"
    );
}

#[test]
fn while_the_server_loads_its_data_the_gate_is_not_asked() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.world().is_cluster = true;
    host.remove("k");
    events::loading_is(&host, false);
    host.turn();
    assert_eq!(host.world().gate_asked, 0);
}

#[test]
fn a_hand_off_by_expiry_happens_in_place() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    host.at(100);
    assert_eq!(host.turn(), ["2: #2"]);
    let did = host.did();
    assert_eq!(
        did[..4],
        [
            "replicated apply",
            "signalled k",
            "published rlock.expired k",
            "published rlock.acquired k",
        ]
    );
    assert_eq!(host.expires_at("k"), Some(100 + 29_999));
}
