//! Grants and renewals of several locks that replicas must acknowledge before their caller gets its
//! reply: all of a grant is reported, or nothing of it remains.

use crate::support::MapHost;
use crate::support::replica::{ANN, acknowledge, counted, held, lines, pending, primary};
use rlock_core::WaiterId;
use rlock_engine::{Host, acks, blocked, events};

fn has_no_acks(told: &[String], client: u64) -> bool {
    told.len() == 1 && told[0].starts_with(&format!("{client}: -NOACKS"))
}

#[test]
fn a_grant_is_told_when_replicas_have_acknowledged_all_of_it() {
    let host = primary();
    assert_eq!(host.ask(1, "macquire 2 b a ann ACKS 1 WITHTTL"), "");
    assert_eq!(
        host.did(),
        [
            "blocked 1",
            "replicated apply",
            "set a",
            "set b",
            "signalled a",
            "published rlock.acquired a",
            "signalled b",
            "published rlock.acquired b",
            "watches",
        ]
    );
    assert_eq!(
        (held(&host, "a b"), counted(&host, "a b", "ann")),
        (vec![ANN.into(); 2], "00".into())
    );
    assert_eq!((host.turn(), pending(&host)), (vec![], 1));
    assert_eq!(acknowledge(&host), ["1: *2 #1 30000"]);
    assert_eq!((counted(&host, "a b", "ann"), pending(&host)), ("11".into(), 0));
    assert_eq!(host.handles(), 0);
    assert!(host.seen().contains(&"granted several".into()), "it is counted when it is told");
}

#[test]
fn who_waited_is_told_when_replicas_have_acknowledged_it() {
    let host = primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann ACKS 1 BLOCK 0 WITHTTL");
    assert!(!host.world().watches_sleep, "nothing to acknowledge yet");
    host.at(100);
    host.ask(1, "release b bob");
    assert_eq!(counted(&host, "a b", "ann"), "00");
    assert_eq!(acknowledge(&host), ["2: *2 #2 30000"]);
    assert_eq!(counted(&host, "a b", "ann"), "11");
}

#[test]
fn what_is_not_granted_at_once_is_refused_without_a_wait() {
    let host = primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann ACKS 1"), "nil");
    assert_eq!(pending(&host), 0);
}

#[test]
fn too_few_replicas_are_said_before_anything_else_is_decided() {
    let host = primary();
    host.put_other("b");
    for command in ["macquire 2 a b ann ACKS 2", "mrenew 2 a b ann ACKS 2"] {
        let said = host.ask(1, command);
        assert!(said.starts_with("-NOREPLICAS need 2 acknowledging replicas for 'a'"), "{said}");
        let said = host.ask(1, &command.replace("ACKS 2", "ACKS 1"));
        assert!(said.starts_with("-WRONGTYPE"), "{said}");
    }
    host.world().acks = 2;
    assert!(host.ask(1, "macquire 2 a c ann").starts_with("-NOREPLICAS"), "the floor counts");
    assert_eq!(held(&host, "a c"), ["no key"; 2]);
}

#[test]
fn who_cannot_be_blocked_is_refused_before_anything_changes() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.take_log();
    for refuses in [false, true] {
        host.world().denies_blocking = !refuses;
        host.world().refuses_to_block = refuses;
        for command in [
            "macquire 2 a c ann",
            "mrenew 1 a ann",
            "macquire 2 c d bob ACKS 1",
            "mrenew 1 a ann ACKS 1",
        ] {
            let said = host.ask(2, command);
            assert!(said.starts_with("-ERR ACKS needs a connection that can block"), "{said}");
        }
        assert_eq!(host.did(), [""; 0]);
    }
    assert_eq!(host.ask(2, "macquire 1 e bob"), "#3", "without ACKS it may");
}

// --- Nothing of it stays ------------------------------------------------------------------------

#[test]
fn what_is_not_acknowledged_in_time_is_revoked_in_one_unit() {
    let host = primary();
    host.ask(1, "acquire c ann");
    host.ask(1, "macquire 3 a b c ann ACKS 1");
    assert_eq!(host.alarm(), Some(2000));
    host.take_log();
    host.at(2000);
    let told = host.turn();
    assert!(has_no_acks(&told, 1), "{told:?}");
    let published = host.published();
    assert_eq!(published, ["rlock.unconfirmed a", "rlock.unconfirmed b"]);
    assert_eq!(held(&host, "a b c"), ["no key", "no key", ANN], "what covered a key stays");
    assert_eq!(pending(&host), 0);
}

#[test]
fn the_remaining_time_of_block_is_the_time_for_acknowledgments() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1 BLOCK 300");
    host.ask(2, "macquire 2 c d ann ACKS 1 LEASE 200");
    host.at(199);
    assert_eq!(host.turn(), [""; 0]);
    host.at(200);
    assert!(has_no_acks(&host.turn(), 2), "no longer than the lease");
    host.at(300);
    assert!(has_no_acks(&host.turn(), 1));
    assert_eq!(held(&host, "a b c d"), ["no key"; 4]);
}

#[test]
fn whatever_ends_one_of_its_holds_ends_all() {
    let ends: [fn(&MapHost); 7] = [
        |host| drop(host.ask(2, "release b ann")),
        |host| drop(host.ask(2, "force b")),
        |host| drop(host.ask(2, "mrelease 2 b d ann")),
        |host| host.remove("b"),
        |host| host.put_other("b"),
        |host| host.evict("b"),
        |host| {
            let lock = host.lock("b");
            host.remove("b");
            host.put_lock("x", lock);
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let host = primary();
        host.ask(1, "macquire 3 a b c ann ACKS 1");
        host.ask(3, "acquire c bob BLOCK 0");
        host.turn();
        host.take_log();
        end(&host);
        host.world().acknowledged.fill(1_000_000);
        let told = [host.turn(), host.turn()].concat();
        assert!(told.iter().any(|line| line.starts_with("1: -NOACKS")), "{number}: {told:?}");
        assert!(told.contains(&"3: #4".into()), "{number}: who waits is served: {told:?}");
        let published = host.published();
        for key in ["a", "c"] {
            assert!(
                published.contains(&format!("rlock.unconfirmed {key}")),
                "{number}: {published:?}"
            );
        }
        assert_eq!(held(&host, "a c"), ["no key", "bob write depth=1 until=30000"], "{number}");
        assert_eq!(pending(&host), 0);
    }
}

/// The time for a portion of the sweep may end between any two tasks.
#[test]
fn a_part_whose_time_is_over_takes_the_rest_along_however_short_the_portion() {
    let host = primary();
    host.ask(1, "macquire 3 a b c ann ACKS 1");
    host.turn();
    host.world().tick = std::time::Duration::from_millis(10);
    host.at(2000);
    let told = host.turn();
    assert!(has_no_acks(&told, 1), "{told:?}");
    assert_eq!((held(&host, "a b c"), pending(&host)), (vec!["no key".into(); 3], 0));
}

#[test]
fn a_flush_ends_it() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.turn();
    host.remove("a");
    host.remove("b");
    events::flushed(&host, None);
    host.world().acknowledged.fill(1_000_000);
    let told = [host.turn(), host.turn()].concat();
    assert!(has_no_acks(&told, 1), "{told:?}");
    assert_eq!((pending(&host), held(&host, "a b")), (0, vec!["no key".into(); 2]));
}

#[test]
fn a_closed_connection_and_client_unblock_end_it() {
    for closes in [true, false] {
        let host = primary();
        host.ask(1, "macquire 2 a b ann ACKS 1");
        host.turn();
        if closes {
            host.close(1);
        } else {
            let said = host.deliver(1);
            assert!(said.starts_with("1: -NOACKS"), "{said}");
            blocked::over(&host, WaiterId::from(1), false);
        }
        host.world().acknowledged.fill(1_000_000);
        assert_eq!(host.turn(), [""; 0]);
        assert_eq!((held(&host, "a b"), pending(&host)), (vec!["no key".into(); 2], 0));
    }
}

/// The server's own timeout came first, so the module sent no reply.
#[test]
fn it_ends_if_the_server_forgets_its_connection() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.world().waiting.remove(&1);
    blocked::over(&host, WaiterId::from(1), false);
    host.turn();
    assert_eq!((held(&host, "a b"), pending(&host)), (vec!["no key".into(); 2], 0));
}

#[test]
fn a_demotion_forgets_it() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.turn();
    events::set_role(&host, false);
    assert_eq!(acknowledge(&host), [""; 0]);
    assert_eq!((held(&host, "a b"), pending(&host)), (vec![ANN.into(); 2], 0));
    events::set_role(&host, true);
    assert_eq!(counted(&host, "a b", "ann"), "11", "they are ordinary holds of the data now");
}

/// While the gate is shut, the caller gets its error, and the holds end later.
#[test]
fn a_shut_gate_keeps_its_holds_until_it_opens() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.world().gate = rlock_engine::Gate::Shut;
    host.at(2000);
    assert!(has_no_acks(&host.turn(), 1));
    assert_eq!(held(&host, "a b"), [ANN; 2]);
    host.world().gate = rlock_engine::Gate::Open;
    host.at(2200);
    for _ in 0..3 {
        host.turn();
    }
    assert_eq!(held(&host, "a b"), ["no key"; 2]);
}

/// One of its keys changed and was not swept yet: replicas must acknowledge that change, too.
#[test]
fn a_change_that_was_not_swept_is_acknowledged_first() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.turn();
    host.remove("b");
    host.world().acknowledged.fill(1_000_000);
    rlock_engine::acks::before_sleep(&host);
    let told = [host.turn(), host.turn()].concat();
    assert!(has_no_acks(&told, 1), "{told:?}");
}

/// An effect of another node changed one of its keys, and the key was not swept yet: replicas must
/// acknowledge that change as well.
#[test]
fn a_key_that_changed_unseen_is_acknowledged_with_its_change() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.turn();
    host.state(|state| state.manager.was_replayed(0, b"b"));
    host.world().acknowledged.fill(1_000_000);
    rlock_engine::acks::before_sleep(&host);
    assert_eq!(host.deliver_all(), [""; 0]);
    rlock_engine::timers::soon(&host);
    assert_eq!([host.turn(), host.turn()].concat(), ["1: #1"]);
}

#[test]
fn the_newest_token_and_the_earliest_deadline_are_told() {
    let host = primary();
    host.ask(1, "acquire a ann LEASE 90000");
    host.ask(2, "macquire 2 a b ann LEASE 20000 ACKS 1 WITHTTL");
    assert_eq!(acknowledge(&host), ["2: *2 #2 20000"]);
    host.ask(1, "acquire d ann LEASE 90000");
    host.ask(2, "macquire 2 c d ann LEASE 20000 ACKS 1 WITHTTL");
    assert_eq!(acknowledge(&host), ["2: *2 #4 20000"]);
}

// --- What its owner has already -----------------------------------------------------------------

#[test]
fn a_pending_hold_that_covers_a_key_waits_for_the_same() {
    let host = primary();
    host.ask(1, "acquire b ann ACKS 1");
    assert_eq!(host.ask(2, "macquire 2 a b ann"), "", "it asks for no acknowledgments itself");
    assert_eq!(counted(&host, "a b", "ann"), "00");
    let told = acknowledge(&host);
    assert_eq!(told, ["1: #1", "2: #2"]);
    assert_eq!(held(&host, "a b"), [ANN; 2]);
}

#[test]
fn a_pending_hold_that_covers_a_key_stays_if_the_rest_is_revoked() {
    let host = primary();
    host.ask(1, "acquire b ann ACKS 1");
    host.ask(2, "macquire 2 a b ann");
    host.close(2);
    host.turn();
    assert_eq!(held(&host, "a b"), ["no key", ANN]);
    assert_eq!(acknowledge(&host), ["1: #1"]);
}

#[test]
fn the_same_request_twice_is_told_twice() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.ask(2, "macquire 2 b a ann ACKS 1");
    assert_eq!((held(&host, "a b"), pending(&host)), (vec![ANN.into(); 2], 2));
    assert_eq!(acknowledge(&host), ["1: #1", "2: #1"]);
    assert_eq!(held(&host, "a b"), [ANN; 2], "no level was added");
}

#[test]
fn the_second_of_two_equal_requests_keeps_what_the_first_began() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    host.ask(2, "macquire 2 a b ann ACKS 1");
    host.close(1);
    host.turn();
    assert_eq!(held(&host, "a b"), [ANN; 2]);
    assert_eq!(acknowledge(&host), ["2: #1"]);
    assert_eq!(counted(&host, "a b", "ann"), "11");
}

#[test]
fn a_single_request_for_one_of_its_locks_waits_with_it_and_keeps_it() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    assert_eq!(host.ask(2, "acquire a ann DEPTH 1"), "");
    host.close(1);
    host.turn();
    assert_eq!(held(&host, "a b"), [ANN, "no key"]);
    assert_eq!(acknowledge(&host), ["2: #1"]);
}

#[test]
fn a_session_begins_with_the_reply() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann SESSION ACKS 1 LEASE 3000");
    assert_eq!(host.state_of(|state| state.manager.totals().sessions), 2, "they count");
    assert_eq!(acknowledge(&host), ["1: #1"]);
    host.close(1);
    host.turn();
    assert_eq!(held(&host, "a b"), ["no key"; 2]);
    host.world().bounds.max_sessions = 1;
    let said = host.ask(2, "macquire 2 a b ann SESSION ACKS 1");
    assert!(said.starts_with("-TOOMANY too many sessions"), "{said}");
    assert_eq!(held(&host, "a b"), ["no key"; 2]);
}

#[test]
fn a_setting_that_changes_meanwhile_changes_nothing() {
    let host = primary();
    host.world().acks = 1;
    host.ask(1, "acquire b bob ACKS 1");
    acknowledge(&host);
    host.ask(2, "macquire 2 a b ann BLOCK 0");
    host.world().acks = 0;
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), [""; 0], "it waits for what was asked when it came");
    assert_eq!(acknowledge(&host), ["2: #2"]);
}

/// The locks change while the server blocks the caller.
#[test]
fn what_changes_while_the_caller_is_blocked_is_seen() {
    let host = primary();
    host.world().meanwhile = Some(|host| drop(host.ask(9, "acquire b bob")));
    assert_eq!(host.ask(1, "macquire 2 a b ann ACKS 1"), "");
    assert_eq!(host.turn(), ["1: nil"]);
    host.world().meanwhile = Some(|host| drop(host.ask(9, "acquire d bob")));
    assert_eq!(host.ask(1, "macquire 2 c d ann ACKS 1 BLOCK 0"), "");
    assert_eq!((host.turn(), lines(&host, "c d")), (vec![], vec!["ann!".into(), "ann".into()]));
    host.ask(9, "release d bob");
    assert_eq!(acknowledge(&host), ["1: #3"]);
    host.world().meanwhile = Some(|host| host.put_other("c"));
    assert_eq!(host.ask(2, "mrenew 2 c d ann ACKS 1"), "");
    assert!(host.turn()[0].starts_with("2: -WRONGTYPE"));
    host.world().meanwhile = Some(|host| drop(host.ask(9, "force d")));
    assert_eq!(host.ask(2, "mrenew 1 d ann ACKS 1"), "");
    assert!(host.turn()[0].starts_with("2: -NOTHELD"));
}

// --- Renewals -----------------------------------------------------------------------------------

#[test]
fn a_renewal_is_told_when_replicas_have_acknowledged_it() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann");
    assert_eq!(host.ask(1, "mrenew 2 b a ann LEASE 60000 ACKS 1"), "");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(acknowledge(&host), ["1: 1"]);
    let until = "ann write depth=1 until=60000";
    assert_eq!((held(&host, "a b"), pending(&host)), (vec![until.into(); 2], 0));
    host.ask(1, "mrenew 2 b a ann LEASE 90000 ACKS 1");
    host.at(2000);
    assert!(has_no_acks(&host.turn(), 1));
    let until = "ann write depth=1 until=90000";
    assert_eq!(held(&host, "a b"), [until; 2], "no deadline is shortened, and nothing ends");
    assert!(host.ask(1, "mrenew 3 a c b ann ACKS 1").starts_with("-NOTHELD"));
}

#[test]
fn a_renewal_of_a_pending_hold_waits_for_the_same() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann ACKS 1");
    assert_eq!(host.ask(2, "mrenew 2 a b ann"), "");
    assert_eq!(acknowledge(&host), ["1: #1", "2: 1"]);
}

#[test]
fn a_renewal_of_which_one_hold_ends_is_not_told() {
    let host = primary();
    host.ask(1, "macquire 2 a b ann");
    host.ask(1, "mrenew 2 a b ann ACKS 1");
    host.ask(2, "release b ann");
    host.world().acknowledged.fill(1_000_000);
    assert!(has_no_acks(&host.turn(), 1));
    assert_eq!(held(&host, "a b"), [ANN, "no key"], "the other one stays");
}

/// The confirmed reply to the later request is on its way when the earlier one is granted.
#[test]
fn of_two_sessions_whose_replies_are_on_their_way_the_one_that_asked_last_stands() {
    let host = primary();
    host.ask(1, "acquire a zoe");
    assert_eq!(host.ask(2, "macquire 2 a b ann BLOCK 0 SESSION"), "");
    assert_eq!(host.ask(3, "acquire b ann DEPTH 1 ACKS 1 SESSION"), "");
    host.turn();
    host.world().acknowledged.fill(1_000_000);
    acks::before_sleep(&host);
    host.ask(1, "release a zoe");
    assert_eq!(host.turn(), ["2: #3", "3: #2"]);
    host.close(2);
    host.turn();
    assert_eq!(held(&host, "a b"), ["no key", "ann write depth=1 until=30000"]);
    host.close(3);
    host.turn();
    assert_eq!(held(&host, "b"), ["no key"]);
}
