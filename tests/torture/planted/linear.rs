//! Histories made up by hand, of which the first of each pair has an order that explains all
//! replies, and the second has none. Most second ones look right in any short part.

use super::histories::{Tale, acquire, ask, blocking, read, release};
use super::limits;
use crate::history::{Ask, Asked, FULL_PROMISE, Mark, Mode, Promise, Reply, Wait};

fn leased(lease_ms: u64) -> Asked {
    Asked::Acquire(Ask { lease_ms, ..ask() })
}

fn ticket(ms: u64) -> Asked {
    Asked::Acquire(Ask { wait: Wait::Queue(ms), ..ask() })
}

fn lossy() -> Tale {
    Tale::under(Promise { may_close: true, ..FULL_PROMISE })
}

#[test]
fn a_double_grant_is_seen_however_far_apart_the_two_are() {
    // For twenty of the thirty seconds of the lease of `a`, nothing happens; then `b` comes.
    let tale = |is_released| {
        let mut tale = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100));
        if is_released {
            tale = tale.op("a", [20, 21], release(100), Reply::Number(0));
        }
        for turn in 0..1000 {
            let (at, token) = (20_000 + 5 * turn, 101 + turn as i64);
            tale = tale.op("b", [at, at + 1], acquire(), Reply::Token(token));
            tale = tale.op("b", [at + 2, at + 3], release(token), Reply::Number(0));
        }
        tale
    };
    assert!(tale(true).is_linear());
    assert!(!tale(false).is_linear());
}

#[test]
fn a_stale_release_that_succeeded_is_seen() {
    let tale = |at| {
        Tale::new().op("a", [10, 11], leased(1000), Reply::Token(100)).op(
            "a",
            [at, at + 1],
            release(100),
            Reply::Number(0),
        )
    };
    assert!(tale(900).is_linear());
    assert!(!tale(1100).is_linear());
    // Another one holds it meanwhile.
    let taken = |reply| {
        Tale::new()
            .op("a", [10, 11], leased(1000), Reply::Token(100))
            .op("b", [20, 1016], blocking(), Reply::Token(101))
            .op("a", [1012, 1018], release(100), reply)
            .op("b", [1100, 1101], release(101), Reply::Number(0))
    };
    assert!(taken(Reply::NotHeld).is_linear());
    // At the very end of its lease.
    assert!(taken(Reply::Number(0)).is_linear());
    let late = Tale::new()
        .op("a", [10, 11], leased(1000), Reply::Token(100))
        .op("b", [20, 1010], blocking(), Reply::Token(101))
        .op("a", [1011, 1018], release(100), Reply::Number(0));
    assert!(!late.is_linear());
}

#[test]
fn a_nil_is_right_only_if_somebody_else_held_or_waited_at_some_moment_of_the_request() {
    let tale = |at| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [50, 60], release(100), Reply::Number(0))
            .op("b", [at, at + 5], acquire(), Reply::Nil)
            .op("a", [90, 91], acquire(), Reply::Token(101))
    };
    assert!(tale(55).is_linear());
    assert!(!tale(61).is_linear());
    assert!(tale(87).is_linear());
    // Its own hold is no reason.
    let own = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "a",
        [20, 21],
        acquire(),
        Reply::Nil,
    );
    assert!(!own.is_linear());
}

#[test]
fn a_reader_gives_way_to_a_writer_that_waits_and_not_to_nobody() {
    let tale = |asks| {
        Tale::new()
            .op("a", [10, 11], read(), Reply::Token(100))
            .op("b", [20, 61], blocking(), Reply::Token(101))
            .op("c", [asks, asks + 1], read(), Reply::Nil)
            .op("a", [60, 62], limits::release(100), Reply::Number(0))
    };
    assert!(tale(30).is_linear());
    assert!(!tale(15).is_linear());
}

#[test]
fn a_ticket_keeps_a_free_lock_for_its_owner_until_it_ends() {
    let tale = |asks| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 21], ticket(400), Reply::Nil)
            .op("a", [30, 31], release(100), Reply::Number(0))
            .op("c", [asks, asks + 1], acquire(), Reply::Nil)
    };
    assert!(tale(200).is_linear());
    assert!(!tale(500).is_linear());
    let cancelled = tale(200).op("b", [100, 101], Asked::Cancel, Reply::Number(1));
    assert!(!cancelled.is_linear());
}

#[test]
fn a_token_that_comes_again_is_seen_even_if_all_holds_are_over() {
    let tale = |token| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [20, 21], release(100), Reply::Number(0))
            .op("b", [30, 31], acquire(), Reply::Token(101))
            .op("b", [40, 41], release(101), Reply::Number(0))
            .op("a", [90_000, 90_001], acquire(), Reply::Token(token))
    };
    assert!(tale(102).is_linear());
    assert!(!tale(100).is_linear());
    assert!(!tale(101).is_linear());
    assert!(!tale(99).is_linear());
}

#[test]
fn tokens_say_in_which_order_grants_at_one_time_happened() {
    // Each of the two may be first, and the depth says that `a` entered again in between.
    let tale = |first, second| {
        Tale::new()
            .op("a", [10, 50], acquire(), Reply::Token(first))
            .op("b", [10, 60], acquire(), Reply::Token(second))
            .op("a", [51, 52], acquire(), Reply::Token(first))
            .op("a", [53, 54], release(first), Reply::Number(1))
            .op("a", [55, 56], release(first), Reply::Number(0))
    };
    assert!(tale(100, 101).is_linear());
    // `b` does not release it.
    assert!(!tale(101, 100).is_linear());
}

#[test]
fn a_reentry_that_keeps_a_token_of_before_a_grant_to_another_is_seen() {
    let tale = |at| {
        Tale::new()
            .op("a", [10, 11], leased(1000), Reply::Token(100))
            .op("b", [20, 1025], blocking(), Reply::Token(101))
            .op("a", [at, at + 1], leased(1000), Reply::Token(100))
    };
    // Then the lease lasts longer, but `b` has the lock.
    assert!(!tale(900).is_linear());
    assert!(!tale(1030).is_linear());
    let before = Tale::new()
        .op("a", [10, 11], leased(1000), Reply::Token(100))
        .op("b", [20, 1925], blocking(), Reply::Token(101))
        .op("a", [900, 901], leased(1000), Reply::Token(100));
    assert!(before.is_linear());
}

#[test]
fn a_write_between_two_reads_that_overlap_is_seen() {
    let tale = |leaves| {
        Tale::new()
            .op("a", [10, 11], read(), Reply::Token(100))
            .op("b", [20, 21], acquire(), Reply::Token(101))
            .op("b", [30, 31], release(101), Reply::Number(0))
            .op("c", [40, 41], read(), Reply::Token(102))
            .op("a", [leaves, leaves + 10], limits::release(100), Reply::Number(0))
    };
    assert!(tale(15).is_linear());
    assert!(!tale(50).is_linear());
}

#[test]
fn a_lease_ends_a_hold_at_its_end_and_neither_before_nor_long_after() {
    let tale = |asks, reply| {
        Tale::new().op("a", [10, 20], leased(1000), Reply::Token(100)).op(
            "b",
            [asks, asks + 1],
            acquire(),
            reply,
        )
    };
    assert!(!tale(900, Reply::Token(101)).is_linear());
    assert!(tale(900, Reply::Nil).is_linear());
    // In these milliseconds, both can be.
    assert!(tale(1015, Reply::Token(101)).is_linear());
    assert!(tale(1015, Reply::Nil).is_linear());
    assert!(tale(1030, Reply::Token(101)).is_linear());
    assert!(!tale(1030, Reply::Nil).is_linear());
    let look = Asked::Look { mode: Mode::Write, token: 100 };
    let looks = |ttl_ms| {
        Tale::new().op("a", [10, 20], leased(1000), Reply::Token(100)).op(
            "a",
            [500, 510],
            look.clone(),
            Reply::Number(ttl_ms),
        )
    };
    assert!(looks(505).is_linear());
    assert!(!looks(700).is_linear());
}

#[test]
fn a_lease_that_begins_late_ends_late() {
    // `b` waits for the first half of its lease.
    let waits = Asked::Acquire(Ask { lease_ms: 2000, wait: Wait::Block(60_000), ..ask() });
    let tale = |asks| {
        Tale::new()
            .op("a", [10, 11], leased(1000), Reply::Token(100))
            .op("b", [20, 1020], waits.clone(), Reply::Token(101))
            .op("c", [asks, asks + 1], acquire(), Reply::Token(102))
    };
    assert!(tale(3030).is_linear());
    assert!(!tale(2500).is_linear());
}

#[test]
fn what_has_no_reply_took_effect_or_not_but_not_both() {
    let lost = |replies: [Reply; 2]| {
        let [first, second] = replies;
        lossy()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [20, 30], release(100), Reply::Lost)
            .op("b", [40, 41], acquire(), first)
            .op("b", [50, 51], acquire(), second)
    };
    assert!(lost([Reply::Nil, Reply::Nil]).is_linear());
    assert!(lost([Reply::Token(101), Reply::Token(101)]).is_linear());
    assert!(lost([Reply::Nil, Reply::Token(101)]).is_linear());
    assert!(!lost([Reply::Token(101), Reply::Nil]).is_linear());
    // A grant without a reply keeps others out, until it is released without a reply.
    let granted = |asks| {
        lossy().op("a", [10, 11], leased(500), Reply::Lost).op(
            "b",
            [asks, asks + 1],
            acquire(),
            Reply::Nil,
        )
    };
    assert!(granted(400).is_linear());
    assert!(!granted(9000).is_linear());
    // Without that request, there is no reason.
    assert!(!lossy().op("b", [400, 401], acquire(), Reply::Nil).is_linear());
    // It could not take effect: its owner had the lock already, and one level more.
    let deeper = |left| {
        lossy()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [20, 30], acquire(), Reply::Lost)
            .op("a", [40, 41], release(100), Reply::Number(left))
    };
    assert!(deeper(0).is_linear() && deeper(1).is_linear());
    assert!(!deeper(2).is_linear());
}

#[test]
fn a_session_ends_with_its_connection_and_a_wiped_hold_with_its_key() {
    let session = || Asked::Acquire(Ask { session: true, lease_ms: 1000, ..ask() });
    let tale = |echo| {
        Tale::new()
            .op("a", [10, 11], session(), Reply::Token(100))
            .op("a", [echo, echo + 1], Asked::Echo, Reply::Number(1))
            .op("b", [5000, 5001], acquire(), Reply::Token(101))
    };
    assert!(tale(4900).is_linear());
    assert!(!tale(5100).is_linear());
    let wiped = |mark: Mark, reply| {
        Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).event(mark, [20, 30]).op(
            "b",
            [40, 41],
            acquire(),
            reply,
        )
    };
    let here = || Mark::Wiped(Some("lock:1".to_owned()));
    assert!(wiped(here(), Reply::Token(101)).is_linear());
    assert!(!wiped(here(), Reply::Nil).is_linear());
    assert!(!wiped(Mark::Wiped(Some("lock:2".to_owned())), Reply::Token(101)).is_linear());
}

#[test]
fn an_order_must_be_true_to_real_time() {
    // At the same time, each may be the first one; one after the other, not.
    let tale = |sent| {
        Tale::new().op("a", [10, 20], acquire(), Reply::Nil).op(
            "b",
            [sent, 30],
            acquire(),
            Reply::Token(100),
        )
    };
    assert!(tale(15).is_linear());
    assert!(!tale(25).is_linear());
}

#[test]
fn nobody_enters_beyond_the_limit_and_the_owners_of_permits_always_do() {
    let permit = limits::permit;
    let tale = |limit| {
        Tale::new()
            .op("a", [10, 11], permit(2), Reply::Token(100))
            .op("b", [12, 13], permit(limit), Reply::Token(101))
            // A further level is not a further permit, whatever number its owner sends.
            .op("a", [14, 15], permit(1), Reply::Token(100))
            .op("c", [16, 17], permit(2), Reply::Nil)
    };
    assert!(tale(2).is_linear());
    assert!(!tale(1).is_linear(), "one beside another");
    // At the same time as a release, and before it.
    let tale = |reply| {
        Tale::new()
            .op("a", [10, 11], permit(1), Reply::Token(100))
            .op("b", [20, reply], permit(1), Reply::Token(101))
            .op("a", [30, 35], limits::release(100), Reply::Number(0))
            .op("b", [90, 91], limits::release(101), Reply::Number(0))
    };
    assert!(tale(40).is_linear());
    assert!(!tale(25).is_linear());
}

/// The order in which a permit is taken and another one is given back matters only to a third
/// request, which comes later.
#[test]
fn of_two_orders_the_one_that_only_a_later_reply_needs_is_not_lost() {
    let permit = limits::permit;
    let tale = |asks| {
        Tale::new()
            .op("a", [10, 11], permit(2), Reply::Token(100))
            .op("b", [20, 80], permit(2), Reply::Token(101))
            .op("c", [asks, 60], permit(2), Reply::Nil)
            .op("a", [30, 50], limits::release(100), Reply::Number(0))
    };
    assert!(tale(40).is_linear());
    assert!(!tale(55).is_linear());
}

/// The lease may begin anew before `c` asks for what it does not hold.
#[test]
fn a_request_that_changes_nothing_delays_no_other() {
    let renew = Asked::Renew { mode: Mode::Write, lease_ms: 100, token: 100, acks: 0 };
    let tale = |sent| {
        Tale::new()
            .op("a", [10, 11], leased(100), Reply::Token(100))
            .op("a", [sent, 80], renew.clone(), Reply::Number(1))
            .op("c", [70, 75], release(99), Reply::NotHeld)
            .op("b", [85, 150], blocking(), Reply::Token(101))
    };
    assert!(tale(50).is_linear());
    assert!(!tale(60).is_linear());
}

/// The lease may have ended when `b` gets the lock. It began anew, as the release shows later.
#[test]
fn a_renewal_without_a_reply_may_have_kept_a_hold_whose_lease_seemed_to_end() {
    let renew = Asked::Renew { mode: Mode::Write, lease_ms: 500, token: 100, acks: 0 };
    let tale = |sent| {
        lossy()
            .op("a", [10, 11], leased(100), Reply::Token(100))
            .op("a", [50, 60], renew.clone(), Reply::Lost)
            .op("b", [20, 210], blocking(), Reply::Token(101))
            .op("a", [sent, 220], release(100), Reply::Number(0))
    };
    assert!(tale(200).is_linear());
    assert!(!tale(215).is_linear());
}

/// The hold of `a` ended before `a` asked to release it, and `b` had its turn in between.
#[test]
fn a_request_that_notices_the_end_of_a_hold_delays_nobody() {
    let waits = Asked::Acquire(Ask { lease_ms: 50, wait: Wait::Block(60_000), ..ask() });
    let tale = |received| {
        Tale::new()
            .op("a", [10, 11], leased(100), Reply::Token(100))
            .op("b", [20, 190], waits.clone(), Reply::Token(101))
            .op("a", [received - 10, received - 5], release(100), Reply::NotHeld)
            .op("c", [30, received], waits.clone(), Reply::Token(102))
    };
    assert!(tale(160).is_linear());
    assert!(!tale(150).is_linear());
}
