//! Requests that wait for a message: when it is sent, and who is left out.

use crate::support::{MapHost, replica};
use rlock_core::manager::LockId;
use rlock_engine::{Deferred, PlantedFault, events};

/// `ann` holds `k`, and the channels `one` and `two` have subscribers.
fn held() -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    host.world().channels.listening.extend([b"one".to_vec(), b"two".to_vec()]);
    host.take_log();
    host
}

fn told(host: &MapHost) -> Vec<String> {
    host.take_log().into_iter().filter(|line| line.starts_with("told ")).collect()
}

#[test]
fn no_connection_is_blocked_and_the_message_follows_the_effects_and_the_events() {
    let host = held();
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0 TELL one 7"), "WAITING");
    assert!(host.world().waiting.is_empty());
    host.take_log();
    host.ask(1, "release k ann");
    let log = host.take_log();
    let place = |what: &str| log.iter().position(|line| line.contains(what));
    let (event, message) = (place("published rlock.acquired"), place("told one: 7 token"));
    assert!(event.is_some() && event < message, "{log:#?}");
}

/// Without a Cluster, publishing reports whether anybody listens: so there is no question about a
/// result that is decided without it.
#[test]
fn a_grant_asks_once_who_listens_and_an_outcome_that_comes_later_only_in_a_cluster() {
    for is_cluster in [false, true] {
        asks_who_listens(is_cluster);
    }
}

fn asks_who_listens(is_cluster: bool) {
    let host = held();
    host.world().is_cluster = is_cluster;
    host.world().channels.listening.extend([b"{k}1".to_vec(), b"{k}2".to_vec()]);
    host.ask(2, "acquire k bob BLOCK 0 TELL {k}1 7");
    assert_eq!(host.world().channels.asked, 0, "nothing is due yet");
    host.ask(1, "release k ann");
    assert_eq!((told(&host).len(), host.world().channels.asked), (1, 1));
    // The end of a wait is decided without that question.
    host.ask(3, "acquire k cid BLOCK 100 TELL {k}2 8");
    host.ask(4, "acquire k dan BLOCK 100 TELL {k}3 9");
    host.at(2000);
    host.turn();
    let asked = 1 + 2 * usize::from(is_cluster);
    assert_eq!((told(&host).len(), host.world().channels.asked), (1, asked));
}

/// Three owners wait with `TELL`: the second does not listen, and the third lost the permission for
/// the channel. Fails unless the first gets exactly one message, and neither of the others gets a
/// message or a grant.
fn is_told_once(fault: Option<PlantedFault>) -> Result<(), String> {
    let host = held();
    host.world().fault = fault;
    host.world().users.insert(4, "mute".into());
    host.ask(2, "acquire k dead BLOCK 0 TELL gone 1");
    host.ask(4, "acquire k mute BLOCK 0 TELL two 2");
    host.ask(3, "acquire k bob BLOCK 0 TELL one 3");
    host.world().channels.silenced.insert(("mute".into(), "two".into()));
    host.take_log();
    host.ask(1, "release k ann");
    let all = told(&host);
    match all.as_slice() {
        [only] if only.starts_with("told one: 3 token ") => Ok(()),
        _ => Err(format!("{all:?}")),
    }
}

#[test]
fn who_does_not_listen_or_may_not_publish_is_passed_in_the_same_step() {
    assert_eq!(is_told_once(None), Ok(()));
    for fault in [
        PlantedFault::ListenersNotAsked,
        PlantedFault::ChannelRightsForgotten,
        PlantedFault::ToldTwice,
    ] {
        assert!(is_told_once(Some(fault)).is_err(), "{fault:?} is not seen");
    }
}

#[test]
fn in_a_script_the_message_leaves_later_and_a_lost_subscriber_is_not_granted() {
    for listens in [true, false] {
        let host = held();
        host.ask(2, "acquire k bob BLOCK 0 TELL one 1");
        host.ask(3, "acquire k cid BLOCK 0 TELL two 2");
        host.world().channels.is_in_longer = true;
        host.take_log();
        host.ask(1, "release k ann");
        assert_eq!(told(&host), [""; 0]);
        host.world().channels.is_in_longer = false;
        if !listens {
            host.world().channels.listening.remove(&b"one"[..]);
        }
        host.run(Deferred::Answer);
        host.turn();
        let all = told(&host);
        let first = if listens { "told one: 1 token " } else { "told two: 2 token " };
        assert!(all.len() == 1 && all[0].starts_with(first), "{all:?}");
    }
}

#[test]
fn asking_again_takes_the_place_and_cancel_says_nothing() {
    let host = held();
    host.ask(2, "acquire k bob DEPTH 1 BLOCK 0 TELL one 1");
    host.ask(3, "acquire k cid DEPTH 1 BLOCK 0 TELL one 2");
    assert_eq!(host.ask(4, "acquire k bob DEPTH 1 BLOCK 0 TELL two 3"), "WAITING");
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 2);
    assert_eq!(host.ask(5, "cancel k cid"), "1");
    host.take_log();
    host.ask(1, "release k ann");
    let all = told(&host);
    assert!(all.len() == 1 && all[0].starts_with("told two: 3 token "), "{all:?}");
}

#[test]
fn a_subscriber_that_is_gone_before_the_acknowledgment_gets_no_grant() {
    let host = replica::primary();
    host.world().channels.listening.insert(b"one".to_vec());
    assert_eq!(host.ask(1, "acquire k ann ACKS 1 TELL one 1"), "WAITING");
    host.world().channels.listening.clear();
    host.take_log();
    replica::acknowledge(&host);
    host.turn();
    assert_eq!(told(&host), [""; 0]);
    assert!(
        !host.world().keys.contains_key(&LockId { db: 0, key: b"k".as_slice().into() }),
        "it is revoked"
    );
}

#[test]
fn a_session_ends_with_the_connection_that_asked_and_a_plain_wait_does_not() {
    let host = held();
    host.ask(2, "acquire k bob SESSION BLOCK 0 TELL one 1");
    host.ask(2, "acquire k cid BLOCK 0 TELL one 2");
    events::connection_ended(&host, rlock_core::ClientId::from(2));
    host.turn();
    host.take_log();
    host.ask(1, "release k ann");
    let all = told(&host);
    assert!(all.len() == 1 && all[0].starts_with("told one: 2 token "), "{all:?}");
}

/// A lock that was removed, or reserved for groups, leaves a free name.
#[test]
fn a_value_of_another_type_ends_a_wait_by_message_where_nobody_is_blocked() {
    for ask in ["macquire 2 k z bob BLOCK 0 TELL one 7", "macquire 1 z bob BLOCK 0 TELL one 7"] {
        let host = held();
        host.ask(1, "acquire z ann");
        host.ask(1, "release k ann");
        assert_eq!(host.ask(2, ask), "WAITING");
        let key = if ask.contains(" k ") { "k" } else { "z" };
        host.remove(key);
        host.put_other(key);
        events::key_came(&host, 0, key.as_bytes());
        host.turn();
        host.turn();
        let all = told(&host);
        assert!(all[0].starts_with("told one: 7 error WRONGTYPE "), "{ask}: {all:?}");
    }
}

/// A lock and groups of locks have many requests. The server refuses all of them and forgets them,
/// with a portion of this work in each loop iteration; meanwhile it becomes a primary again.
#[test]
fn a_demotion_refuses_requests_in_portions_and_in_their_order() {
    const EACH: usize = 500; // as many as the bounds of the tests allow, in all
    let host = held();
    host.ask(1, "acquire l ann LEASE 600000");
    for number in 0..EACH {
        for line in [
            format!("acquire k owner{number} BLOCK 0 TELL one {number}"),
            format!("macquire 2 k l group{number} BLOCK 0 TELL two {number}"),
        ] {
            assert_eq!(host.ask(2, &line), "WAITING");
        }
    }
    host.take_log();
    events::set_role(&host, false);
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 0);
    assert_eq!(told(&host), [""; 0], "nothing in the callback");
    events::set_role(&host, true);
    assert_eq!(host.ask(2, "acquire k owner0 BLOCK 0 TELL one next"), "WAITING");
    let mut all = Vec::new();
    for _ in 0..2 * EACH.div_ceil(256) {
        host.turn();
        let some = told(&host);
        assert!(some.len() <= 256, "{} at once", some.len());
        all.extend(some);
    }
    assert_eq!(all.len(), 2 * EACH);
    for (number, both) in all.chunks(2).enumerate() {
        let is_refused = |line: &str, to: &str| {
            line.starts_with(&format!("told {to}: {number} error UNBLOCKED "))
        };
        assert!(is_refused(&both[0], "one") && is_refused(&both[1], "two"), "{number}: {both:?}");
    }
    assert_eq!(host.state_of(|state| state.manager.tell_count()), 1, "the new one waits");
    host.ask(1, "release k ann");
    assert!(told(&host)[0].starts_with("told one: next token "));
}
