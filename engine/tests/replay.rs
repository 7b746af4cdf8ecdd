//! Replayed effects: on a replica, from the append-only file, from a node that migrates a slot, and
//! from a client.

use crate::support::{MapHost, START_MS, replica};
use rlock_core::snapshot::{self, Start};
use rlock_core::{Change, End, EpochMs, Mode, Token};
use rlock_engine::{Deferred, PlantedFault, events};

fn token(us: u64) -> Token {
    Token::new(START_MS * 1000 + us).unwrap()
}

fn granted(owner: &'static [u8], us: u64, until: u64) -> Change<'static> {
    let deadline = EpochMs::new(START_MS + until).unwrap();
    Change::Granted { owner: owner.into(), mode: Mode::Write, token: token(us), deadline }
}

fn held(us: u64, depth: u16, until: u64) -> Change<'static> {
    Change::Updated { token: token(us), depth, deadline: EpochMs::new(START_MS + until).unwrap() }
}

fn ended(us: u64) -> Change<'static> {
    Change::Ended { token: token(us), by: End::Released }
}

fn effect(start: Start, changes: &[Change<'_>]) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    snapshot::save_effect(start, changes, &mut bytes);
    vec![b"RLOCK.APPLY".to_vec(), b"k".to_vec(), bytes]
}

/// From a client.
fn by_hand(host: &MapHost, start: Start, changes: &[Change<'_>]) -> String {
    host.call(Some(9), effect(start, changes))
}

/// From the primary, the append-only file, or a node that migrates a slot.
fn from_primary(host: &MapHost, start: Start, changes: &[Change<'_>]) -> String {
    host.world().is_from_primary = true;
    let said = host.call(None, effect(start, changes));
    host.world().is_from_primary = false;
    said
}

#[test]
fn a_replica_replays_publishes_and_passes_on_what_its_primary_did() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann");
    let written = primary.world().stream[0].clone();
    assert_eq!(host.replay(&written), "OK");
    assert_eq!(
        host.take_log(),
        [
            "replicated apply",
            "set k",
            "signalled k",
            "published rlock.acquired k",
            "seen: replayed 1 events",
        ]
    );
    assert_eq!(host.world().stream, [written], "unchanged");
    assert_eq!(host.lock("k"), primary.lock("k"));
    assert_eq!(host.expires_at("k"), primary.expires_at("k"));
}

#[test]
fn a_replica_replays_a_release() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann READ");
    primary.ask(2, "acquire k bob READ LEASE 60000");
    primary.ask(2, "release k bob");
    host.follow(&primary);
    assert_eq!(host.holds("k"), "ann read depth=1 until=30000");
    assert_eq!(host.expires_at("k"), Some(29_999));
    host.take_log();
    primary.ask(1, "release k ann");
    let written = primary.world().stream.pop().unwrap();
    assert_eq!(host.replay(&written), "OK");
    assert_eq!(
        host.take_log(),
        [
            "deleted k",
            "replicated release",
            "signalled k",
            "published rlock.released k",
            "seen: replayed 1 events",
        ]
    );
    assert_eq!(host.replay(&written), "OK", "a second time it changes nothing");
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_release_at_a_key_of_another_type_changes_nothing() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "acquire k ann");
    primary.ask(1, "release k ann");
    host.put_other("k");
    let written = primary.world().stream.pop().unwrap();
    assert_eq!(host.replay(&written), "OK");
    assert_eq!(host.holds("k"), "another value");
}

#[test]
fn a_client_of_a_replica_is_refused() {
    let host = MapHost::replica();
    let said = by_hand(&host, Start::Begins, &[granted(b"ann", 1, 100)]);
    assert!(said.starts_with("-READONLY"), "{said}");
    assert!(host.ask(1, "release k ann").starts_with("-READONLY"));
    assert_eq!((host.take_log(), host.holds("k")), (vec![], "no key".into()));
}

#[test]
fn bytes_that_are_no_effect_are_refused() {
    let host = MapHost::primary();
    let words = vec![b"RLOCK.APPLY".to_vec(), b"k".to_vec(), b"what".to_vec()];
    let said = host.call(Some(1), words);
    assert!(said.starts_with("-ERR malformed payload: unknown format version 119"), "{said}");
    assert_eq!(host.take_log(), [""; 0]);
}

/// Effects at several keys, in one command.
fn all(effects: &[(&str, Start, &[Change<'_>])]) -> Vec<Vec<u8>> {
    let (mut words, mut payload) = (vec![b"RLOCK.APPLY".to_vec()], Vec::new());
    for (key, start, changes) in effects {
        words.push(key.as_bytes().to_vec());
        snapshot::save_effect(*start, changes, &mut payload);
    }
    words.push(payload);
    words
}

#[test]
fn a_replica_makes_all_changes_of_a_step_before_it_publishes_the_first() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    primary.ask(1, "macquire 2 b a ann");
    let written = primary.world().stream[0].clone();
    assert_eq!(host.replay(&written), "OK");
    assert_eq!(
        host.take_log(),
        [
            "replicated apply",
            "set a",
            "set b",
            "signalled a",
            "published rlock.acquired a",
            "seen: replayed 1 events",
            "signalled b",
            "published rlock.acquired b",
            "seen: replayed 1 events",
        ]
    );
    assert_eq!(host.world().stream, [written], "unchanged");
    for key in ["a", "b"] {
        assert_eq!(host.lock(key), primary.lock(key));
        assert_eq!(host.expires_at(key), primary.expires_at(key));
    }
}

/// Law: of the effects in one command, all are applied, or none.
#[test]
fn if_one_of_several_effects_is_refused_nothing_changes() {
    let host = MapHost::primary();
    let (begins, goes_on) = (Start::Begins, Start::Existing);
    let (ann, far) = ([granted(b"ann", 1, 5000)], [granted(b"ann", 60_000_001, 5000)]);
    host.put_other("b");
    let both = |start| all(&[("a", begins, &ann), ("b", start, &ann)]);
    let mut short = both(begins);
    short.last_mut().unwrap().pop();
    let mut longer = both(begins);
    longer.last_mut().unwrap().push(0);
    let mut fewer = all(&[("a", begins, &ann)]);
    fewer.insert(2, b"b".to_vec());
    let mut empty = both(begins);
    *empty.last_mut().unwrap() = Vec::new();
    let mut turned = both(begins);
    turned.swap(1, 2);
    let mut twice = both(begins);
    twice[2] = b"a".to_vec();
    for (words, error, why) in [
        (both(goes_on), "-WRONGTYPE", "a key of another type"),
        (all(&[("a", begins, &ann), ("c", begins, &far)]), "-ERR", "a token far ahead"),
        (short, "-ERR malformed payload", "the second effect is cut off"),
        (longer, "-ERR malformed payload", "a byte more"),
        (fewer, "-ERR malformed payload", "fewer effects than keys"),
        (empty, "-ERR malformed payload", "the probe names one key"),
        (turned, "-ERR the keys of an effect", "keys in another order"),
        (twice, "-ERR the keys of an effect", "a key twice"),
    ] {
        let said = host.call(Some(9), words);
        assert!(said.starts_with(error), "{why}: {said}");
        assert_eq!((host.take_log(), host.holds("a")), (vec![], "no key".into()), "{why}");
        assert_eq!(host.holds("b"), "another value", "{why}");
    }
    assert_eq!(host.call(Some(9), both(begins)), "OK", "a lock that begins replaces it");
    for key in ["a", "b"] {
        assert_eq!(host.holds(key), "ann write depth=1 until=5000");
    }
}

#[test]
fn several_effects_by_hand_serve_those_who_wait_at_each_key() {
    let host = MapHost::primary();
    host.ask(1, "macquire 2 a b ann");
    host.ask(2, "acquire a bob BLOCK 0");
    host.ask(3, "acquire b cy BLOCK 0");
    let end = |host: &MapHost| {
        let token = Token::new(host.token(1)).unwrap();
        Change::Ended { token, by: End::Released }
    };
    let words =
        all(&[("a", Start::Existing, &[end(&host)]), ("b", Start::Existing, &[end(&host)])]);
    assert_eq!(host.call(Some(9), words), "OK");
    host.turn();
    assert_eq!(host.holds("a"), "bob write depth=1 until=30000");
    assert_eq!(host.holds("b"), "cy write depth=1 until=30000");
}

#[test]
fn a_client_cannot_bring_a_token_that_is_far_ahead_of_the_clock() {
    let host = MapHost::primary();
    let minute = 60_000_000;
    let far = [granted(b"ann", 1, 9000), ended(1), granted(b"ann", minute + 1, 9000)];
    let said = by_hand(&host, Start::Begins, &far);
    assert!(said.starts_with("-ERR malformed payload: its token is more than a minute"), "{said}");
    assert_eq!((host.take_log(), host.holds("k")), (vec![], "no key".into()));
    assert_eq!(by_hand(&host, Start::Begins, &[granted(b"ann", minute, 9000)]), "OK");
}

#[test]
fn a_primary_may_send_any_token() {
    let host = MapHost::replica();
    assert_eq!(from_primary(&host, Start::Begins, &[granted(b"ann", 1 << 40, 9000)]), "OK");
    assert_eq!(host.holds("k"), "ann write depth=1 until=9000");
}

#[test]
fn an_effect_goes_on_with_the_lock_or_replaces_what_is_there() {
    let host = MapHost::primary();
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    by_hand(&host, Start::Existing, &[held(1, 2, 6000)]);
    assert_eq!(host.holds("k"), "ann write depth=2 until=6000");
    by_hand(&host, Start::Begins, &[granted(b"bob", 2, 7000)]);
    assert_eq!(host.holds("k"), "bob write depth=1 until=7000");
    assert_eq!(host.expires_at("k"), Some(6999));
    host.put_other("k");
    let said = by_hand(&host, Start::Existing, &[granted(b"cid", 3, 8000)]);
    assert!(said.starts_with("-WRONGTYPE"), "{said}");
    assert_eq!(host.holds("k"), "another value");
    assert_eq!(by_hand(&host, Start::Begins, &[granted(b"cid", 3, 8000)]), "OK");
    assert_eq!(host.holds("k"), "cid write depth=1 until=8000");
}

#[test]
fn a_lock_that_begins_replaces_what_a_replica_has() {
    let (primary, host) = (MapHost::primary(), MapHost::replica());
    host.put_other("k");
    primary.ask(1, "acquire k ann");
    host.follow(&primary);
    assert_eq!(host.holds("k"), "ann write depth=1 until=30000");
}

#[test]
fn an_effect_that_begins_leaves_nothing_of_the_lock_before() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ");
    let deadline = EpochMs::new(START_MS + 5000).unwrap();
    let owner = b"bob".as_slice().into();
    let read = Change::Granted { owner, mode: Mode::Read, token: token(1), deadline };
    by_hand(&host, Start::Begins, &[read]);
    assert_eq!(host.holds("k"), "bob read depth=1 until=5000");
}

#[test]
fn an_effect_that_goes_on_at_an_empty_key_begins_a_lock() {
    let host = MapHost::replica();
    from_primary(&host, Start::Existing, &[granted(b"ann", 1, 5000)]);
    assert_eq!(
        (host.holds("k"), host.expires_at("k")),
        ("ann write depth=1 until=5000".into(), Some(4999))
    );
}

#[test]
fn a_lock_that_an_effect_replaces_is_not_published_as_removed() {
    let host = MapHost::primary();
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    by_hand(&host, Start::Begins, &[granted(b"bob", 2, 7000)]);
    by_hand(&host, Start::Existing, &[ended(2)]);
    host.turn();
    assert_eq!(host.published(), ["rlock.acquired k", "rlock.acquired k", "rlock.released k"]);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_lock_that_ends_within_its_effect_leaves_no_key() {
    for start in [Start::Begins, Start::Rewritten] {
        let host = MapHost::replica();
        from_primary(&host, start, &[granted(b"ann", 1, 5000), ended(1)]);
        assert_eq!(host.holds("k"), "no key");
        assert_eq!(host.did()[..1], ["replicated apply"]);
    }
}

#[test]
fn a_rewritten_file_sets_the_time_to_live_itself() {
    let host = MapHost::replica();
    from_primary(&host, Start::Rewritten, &[granted(b"ann", 1, 5000)]);
    assert_eq!((host.holds("k").len(), host.expires_at("k")), (28, None));
}

#[test]
fn an_effect_by_hand_whose_holds_have_ended_is_kept_for_a_minute() {
    let host = MapHost::primary();
    host.at(1000);
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 900)]);
    assert_eq!(host.expires_at("k"), Some(61_000));
    by_hand(&host, Start::Existing, &[held(1, 1, 1000)]);
    assert_eq!(host.expires_at("k"), Some(61_000));
    by_hand(&host, Start::Existing, &[held(1, 1, 1001)]);
    assert_eq!(host.expires_at("k"), Some(1000), "the renewal has followed");
}

#[test]
fn a_replica_leaves_a_hold_that_has_ended_to_its_primary() {
    let host = MapHost::replica();
    host.at(1000);
    from_primary(&host, Start::Begins, &[granted(b"ann", 1, 900)]);
    assert_eq!(host.expires_at("k"), Some(899));
}

#[test]
fn an_effect_that_promises_a_deadline_restores_the_time_to_live() {
    let host = MapHost::replica();
    from_primary(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    host.set_expiry("k", Some(900));
    from_primary(&host, Start::Existing, &[held(1, 2, 5000)]);
    assert_eq!(host.expires_at("k"), Some(4999));
}

#[test]
fn a_server_that_reads_its_own_file_publishes_nothing() {
    let host = MapHost::primary();
    host.world().is_loading = true;
    events::loading_is(&host, false);
    from_primary(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    assert_eq!(host.did(), ["replicated apply", "set k", "signalled k"]);
    let release = vec![b"RLOCK.RELEASE".to_vec(), b"k".to_vec(), b"ann".to_vec()];
    host.world().is_from_primary = true;
    assert_eq!(host.call(None, release), "OK");
    assert_eq!(host.did(), ["deleted k", "replicated release", "signalled k"]);
}

#[test]
fn a_replica_that_reads_its_own_file_publishes_nothing() {
    let host = MapHost::replica();
    host.world().is_loading = true;
    from_primary(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    assert_eq!(host.published(), [""; 0]);
}

#[test]
fn a_primary_that_loads_in_the_background_publishes_nothing() {
    let host = MapHost::primary();
    events::loading_is(&host, false);
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    assert_eq!(host.published(), [""; 0]);
}

#[test]
fn a_primary_publishes_nothing_of_a_slot_that_is_being_handed_over() {
    let host = MapHost::primary();
    host.world().is_cluster = true;
    host.at(1000);
    from_primary(&host, Start::Begins, &[granted(b"ann", 1, 900)]);
    assert_eq!(host.published(), [""; 0]);
    assert_eq!(host.expires_at("k"), Some(899), "its expiry is decided by the other node");
    host.world().is_from_primary = true;
    let release = vec![b"RLOCK.RELEASE".to_vec(), b"k".to_vec(), b"ann".to_vec()];
    assert_eq!(host.call(None, release), "OK", "it is replayed, not decided");
}

#[test]
fn a_primary_publishes_what_is_applied_by_hand() {
    let host = MapHost::primary();
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    assert_eq!(
        host.take_log(),
        [
            "replicated apply",
            "set k",
            "signalled k",
            "published rlock.acquired k",
            "seen: replayed 1 events",
        ]
    );
}

#[test]
fn an_effect_by_hand_serves_those_who_wait() {
    let host = MapHost::primary();
    by_hand(&host, Start::Begins, &[granted(b"ann", 1, 5000)]);
    host.ask(2, "acquire k bob BLOCK 0");
    by_hand(&host, Start::Existing, &[ended(1)]);
    assert!(host.has_deferred(Deferred::Sweep));
    assert_eq!(host.turn().len(), 1);
    assert_eq!(host.holds("k"), "bob write depth=1 until=30000");
}

#[test]
fn a_key_that_has_expired_is_published_before_an_effect() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 100");
    host.at(100);
    host.take_log();
    by_hand(&host, Start::Begins, &[granted(b"bob", 1, 5000)]);
    assert_eq!(host.published(), ["rlock.expired k", "rlock.acquired k"]);
}

#[test]
fn a_promoted_replica_issues_no_token_that_it_heard_of() {
    let host = MapHost::replica();
    let hour = 3_600_000_000;
    from_primary(&host, Start::Begins, &[granted(b"ann", hour, 5000), ended(hour)]);
    events::set_role(&host, true);
    host.ask(1, "acquire k ann");
    assert_eq!(host.token(1), token(hour).get() + 1);
}

#[test]
fn a_server_issues_no_token_that_it_loaded() {
    let (host, other) = (MapHost::primary(), MapHost::replica());
    let hour = 3_600_000_000;
    from_primary(&other, Start::Begins, &[granted(b"ann", hour, 5000)]);
    events::lock_loaded(&host, None, &other.lock("k"));
    host.ask(1, "acquire k ann");
    assert_eq!(host.token(1), token(hour).get() + 1);
}

#[test]
fn planted_a_replica_that_notes_no_token_issues_it_again() {
    let host = MapHost::replica();
    host.world().fault = Some(PlantedFault::TokensUnseen);
    let hour = 3_600_000_000;
    from_primary(&host, Start::Begins, &[granted(b"ann", hour, 5000), ended(hour)]);
    events::set_role(&host, true);
    host.ask(1, "acquire k ann");
    assert!(host.token(1) < token(hour).get());
}

#[test]
fn planted_a_forgotten_revocation_leaves_the_hold() {
    let host = MapHost::primary();
    host.world().fault = Some(PlantedFault::RevocationForgotten);
    host.world().acknowledged = vec![0];
    host.ask(1, "acquire k ann ACKS 1");
    host.at(2000);
    assert!(host.turn()[0].starts_with("1: -NOACKS"));
    assert_eq!(host.holds("k"), "ann write depth=1 until=30000");
}

/// `rlock.max-depth` bounds the depth that a command may name, and the server that reads the
/// command may have a smaller value.
#[test]
fn a_release_to_a_depth_is_replicated_as_what_it_did() {
    let host = replica::primary();
    assert_eq!(host.ask(1, "acquire k ann ACKS 1"), "");
    assert_eq!(host.ask(2, "release k ann DEPTH 3"), "0");
    assert_eq!(host.holds("k"), "no key");
    let written: Vec<Vec<u8>> = host.world().stream.iter().map(|it| it.words[0].clone()).collect();
    assert_eq!(written, [b"RLOCK.APPLY", b"RLOCK.APPLY"]);
}
