//! The commands: what each replies, replicates and publishes, and what refuses it.

use crate::support::MapHost;
use rlock_engine::events;

#[test]
fn a_grant_is_replicated_then_published_then_reported_to_the_caller() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "acquire k ann"), "#1");
    let log = host.take_log();
    assert_eq!(
        log,
        [
            "set k",
            "replicated apply",
            "seen: decided k 1 changes 1 events 0 pending: #1 for 30000",
            "signalled k",
            "published rlock.acquired k",
            "seen: acquired #1 for 30000",
        ]
    );
    assert_eq!(host.holds("k"), "ann write depth=1 until=30000");
}

#[test]
fn a_refused_request_replicates_and_publishes_nothing() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    assert_eq!(host.ask(2, "acquire k bob"), "nil");
    assert_eq!(host.ask(2, "acquire k bob WITHTTL"), "*2 nil 30000");
    assert!(host.ask(2, "release k bob").starts_with("-NOTHELD owner 'bob' does not hold"));
    assert_eq!(host.did(), [""; 0]);
}

#[test]
fn a_reply_with_ttl_has_the_remaining_time() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "acquire k ann LEASE 500 WITHTTL"), "*2 #1 500");
    host.at(100);
    assert_eq!(host.ask(1, "acquire k ann LEASE 100 WITHTTL"), "*2 #1 400");
    assert_eq!(host.ask(2, "acquire k bob WITHTTL"), "*2 nil 400");
}

#[test]
fn an_unknown_remaining_time_is_minus_one() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    assert_eq!(host.ask(2, "acquire k bob WITHTTL"), "*2 nil -1", "a session keeps the hold");
}

#[test]
fn a_release_of_the_only_hold_is_replicated_as_it_came() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    assert_eq!(host.ask(1, "release k ann TOKEN #1"), "0");
    assert_eq!(
        host.did(),
        ["deleted k", "replicated release", "signalled k", "published rlock.released k"]
    );
    let words = host.world().stream.pop().unwrap().words;
    let token = host.token(1).to_string().into_bytes();
    assert_eq!(words[1..], [b"k".to_vec(), b"ann".to_vec(), b"TOKEN".to_vec(), token]);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_release_that_also_hands_over_is_replicated_as_an_effect() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    host.ask(1, "release k ann");
    assert_eq!(host.did()[0], "replicated apply");
}

#[test]
fn a_release_replies_the_remaining_depth() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(1, "acquire k ann");
    assert_eq!(host.ask(1, "release k ann"), "1");
    assert_eq!(host.ask(1, "release k ann"), "0");
}

#[test]
fn a_renewal_replies_one_and_is_reported() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.take_log();
    assert_eq!(host.ask(1, "renew k ann LEASE 60000"), "1");
    assert_eq!(host.seen()[1..], ["renewed Renewed"]);
    assert_eq!(host.holds("k"), "ann write depth=1 until=60000");
    assert!(host.ask(2, "renew k bob").starts_with("-NOTHELD"));
}

#[test]
fn cancel_and_force_reply_how_many_they_ended() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ");
    host.ask(2, "acquire k bob READ");
    host.ask(3, "acquire k cid QUEUE 1000");
    assert_eq!(host.ask(3, "cancel k cid"), "1");
    assert_eq!(host.ask(3, "cancel k cid"), "0");
    host.take_log();
    assert_eq!(host.ask(9, "force k WRITE"), "0");
    assert_eq!(host.ask(9, "force k READ"), "2");
    assert_eq!(host.published(), ["rlock.forced k", "rlock.forced k"]);
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn take_replies_the_token_of_its_owner() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob BLOCK 0");
    host.take_log();
    assert_eq!(host.ask(9, "take k operator LEASE 5000"), "#2");
    assert_eq!(host.published(), ["rlock.forced k", "rlock.acquired k"]);
    assert_eq!(host.holds("k"), "operator write depth=1 until=5000");
}

#[test]
fn holds_counts_the_levels_of_the_modes_asked_for() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "holds k ann"), "0");
    host.ask(1, "acquire k ann");
    host.ask(1, "acquire k ann");
    host.ask(1, "acquire k ann READ");
    assert_eq!(host.ask(1, "holds k ann"), "3");
    assert_eq!(host.ask(1, "holds k ann WRITE"), "2");
    assert_eq!(host.ask(1, "holds k ann READ"), "1");
    host.at(30_000);
    assert_eq!(host.ask(1, "holds k ann"), "0", "the leases have expired");
}

#[test]
fn check_asks_for_a_token_in_a_mode() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    assert_eq!(host.ask(2, "check k #1"), "1");
    assert_eq!(host.ask(2, "check k #1 READ"), "0");
    assert_eq!(host.ask(2, "check k 7"), "0");
    host.ask(1, "acquire r ann READ");
    assert_eq!(host.ask(2, "check r #2"), "0", "WRITE, unless told otherwise");
    assert_eq!(host.ask(2, "check r #2 READ"), "1");
}

#[test]
fn a_query_opens_its_key_for_reading() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.world().opened_to_write = 0;
    host.ask(1, "holds k ann");
    host.ask(1, "check k #1");
    assert_eq!(host.world().opened_to_write, 0);
}

#[test]
fn a_query_at_a_replica_deletes_nothing() {
    let host = MapHost::replica();
    let primary = MapHost::primary();
    primary.ask(1, "acquire k ann LEASE 100");
    host.follow(&primary);
    host.at(200);
    host.take_log();
    assert_eq!(host.ask(1, "holds k ann"), "0");
    assert_eq!(host.did(), [""; 0]);
    assert_eq!(host.holds("k"), "ann write depth=1 until=100");
}

#[test]
fn another_type_is_refused_by_every_command() {
    let host = MapHost::primary();
    host.put_other("k");
    let commands = [
        "acquire k ann",
        "acquire k ann BLOCK 0",
        "release k ann",
        "renew k ann",
        "cancel k ann",
        "force k",
        "holds k ann",
        "check k 7",
    ];
    for command in commands {
        assert!(host.ask(1, command).starts_with("-WRONGTYPE "), "{command}");
    }
    assert_eq!(host.holds("k"), "another value");
}

#[test]
fn a_replica_refuses_requests_and_changes_nothing() {
    let host = MapHost::replica();
    let commands = [
        "acquire k ann",
        "release k ann",
        "renew k ann",
        "cancel k ann",
        "force k",
        "acquire k ann BLOCK 0",
    ];
    for command in commands {
        assert!(host.ask(1, command).starts_with("-READONLY "), "{command}");
    }
    assert_eq!((host.did(), host.holds("k")), (vec![], "no key".into()));
}

#[test]
fn the_probe_of_the_gate_changes_nothing() {
    let host = MapHost::primary();
    let probe = vec![b"RLOCK.APPLY".to_vec(), b"k".to_vec(), Vec::new()];
    assert_eq!(host.call(Some(1), probe), "OK");
    assert_eq!((host.did(), host.holds("k")), (vec![], "no key".into()));
}

#[test]
fn a_session_needs_a_connection_of_its_own() {
    let host = MapHost::primary();
    let said = host.ask_in_script("acquire k ann SESSION");
    assert!(said.starts_with("-ERR SESSION needs a connection: it is not"), "{said}");
    assert_eq!(host.ask_in_script("acquire k ann"), "#1");
}

#[test]
fn a_connection_that_lost_its_session_acquires_nothing() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann SESSION");
    host.take_log();
    host.ask(2, "force k");
    assert!(host.did().contains(&"closes 1 (Command)".into()));
    let refused = "-ERR this connection lost a session and is being closed";
    assert_eq!(host.ask(1, "acquire other ann"), refused);
    assert_eq!(host.ask(2, "acquire other bob"), "#2", "another connection may");
    host.close(1);
    assert_eq!(host.ask(1, "acquire more ann"), "#3", "the server has closed it");
}

#[test]
fn a_plain_request_leaves_the_timers_as_they_are() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob");
    host.ask(1, "release k ann");
    assert_eq!((host.alarm(), host.take_deferred()), (None, vec![]));
    host.ask(1, "acquire k ann");
    host.ask(2, "acquire k bob QUEUE 500");
    assert_eq!(host.alarm(), Some(500));
}

#[test]
fn a_server_that_is_loading_its_data_replays_commands() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann");
    events::loading_is(&host, false);
    let said = host.ask(1, "release k ann");
    assert!(said.starts_with("-READONLY "), "it is not from the server's own file: {said}");
    events::loading_is(&host, true);
    assert_eq!(host.ask(1, "release k ann"), "0");
}

#[test]
fn a_request_about_a_free_lock_leaves_no_key() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "cancel k ann"), "0");
    assert!(host.ask(1, "renew k ann").starts_with("-NOTHELD"));
    assert_eq!((host.did(), host.holds("k")), (vec![], "no key".into()));
}
