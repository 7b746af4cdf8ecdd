//! Histories of waits with TELL, made up by hand: what is seen, and what a lost subscription
//! excuses.

use super::histories::{Tale, acquire, ask, release};
use crate::history::{Ask, Asked, FULL_PROMISE, Reply, Wait};

fn told(again: bool) -> Asked {
    Asked::Acquire(Ask { wait: Wait::Tell { ms: 60_000, again }, ..ask() })
}

#[test]
fn one_who_waits_for_a_message_is_not_passed_unless_it_did_not_listen() {
    let tale = |again| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 71], told(again), Reply::Token(102))
            .op("d", [25, 26], Asked::Info, Reply::Waiters(vec!["b".to_owned()]))
            .op("c", [30, 61], told(false), Reply::Token(101))
            .op("a", [40, 41], release(100), Reply::Number(0))
            .op("c", [65, 66], release(101), Reply::Number(0))
    };
    assert_eq!(tale(false).complaints(), ["order"]);
    assert!(tale(true).complaints().is_empty());
}

/// However often it asked again.
#[test]
fn a_message_that_never_comes_is_seen() {
    for again in [false, true] {
        let late = 60 + FULL_PROMISE.granted_within_ms;
        let tale = Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, late], told(again), Reply::Token(101))
            .op("a", [50, 52], release(100), Reply::Number(0));
        assert_eq!(tale.complaints(), ["progress"], "{again}");
    }
}

#[test]
fn nil_comes_early_to_nobody_but_who_cut_its_subscription() {
    let tale = |again| Tale::new().op("a", [10, 11], told(again), Reply::Nil);
    assert_eq!(tale(false).complaints(), ["replies"]);
    assert!(tale(true).complaints().is_empty());
}
