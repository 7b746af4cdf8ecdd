//! Histories made up by hand, in milliseconds: two owners, one lock, one thing wrong.

use crate::checks::{check, holds, linear};
use crate::clock::ns;
use crate::history::{
    Ask, Asked, Event, FULL_PROMISE, History, Mark, Mode, Op, Promise, Reply, Wait,
};

const LEASE_MS: u64 = 30_000;

pub fn ask() -> Ask {
    let (mode, lease_ms, wait) = (Mode::Write, LEASE_MS, Wait::No);
    let (upgrade, session, depth, limit, acks) = (false, false, None, None, 0);
    Ask { mode, lease_ms, wait, upgrade, session, depth, limit, acks }
}

pub fn blocking() -> Asked {
    Asked::Acquire(Ask { wait: Wait::Block(60_000), ..ask() })
}

pub fn acquire() -> Asked {
    Asked::Acquire(ask())
}

pub fn read() -> Asked {
    Asked::Acquire(Ask { mode: Mode::Read, ..ask() })
}

pub fn release(token: i64) -> Asked {
    Asked::Release { mode: Mode::Write, down_to: None, token: Some(token) }
}

/// A history that is being written: everything is about the lock `lock:1`.
pub struct Tale(History);

impl Tale {
    pub fn new() -> Tale {
        Tale::under(FULL_PROMISE)
    }

    pub fn under(promise: Promise) -> Tale {
        Tale(History { ops: Vec::new(), events: Vec::new(), promise })
    }

    /// `owner` (a letter) asks at one time, and gets the reply at another.
    pub fn op(
        mut self,
        owner: &str,
        [sent, received]: [u64; 2],
        asked: Asked,
        reply: Reply,
    ) -> Tale {
        let actor = u32::from(owner.as_bytes()[0]);
        let (key, owner) = ("lock:1".to_owned(), owner.to_owned());
        let (sent_ns, received_ns) = (ns(sent), ns(received));
        let (connection, link, secured_ns) = (i64::from(actor), 1, None);
        let op = Op {
            actor,
            connection,
            link,
            key,
            owner,
            asked,
            sent_ns,
            received_ns,
            reply,
            secured_ns,
        };
        self.0.ops.push(op);
        self
    }

    /// A replica is known to have what the last operation did.
    fn secured(mut self) -> Tale {
        let last = self.0.ops.last_mut().unwrap();
        last.secured_ns = Some(last.received_ns);
        self
    }

    pub fn event(mut self, mark: Mark, [from, to]: [u64; 2]) -> Tale {
        self.0.events.push(Event { mark, from_ns: ns(from), to_ns: ns(to) });
        self
    }

    /// Which checkers report a violation, each once.
    pub fn complaints(self) -> Vec<&'static str> {
        let mut found: Vec<_> =
            check(&self.0, &holds(&self.0)).iter().map(|wrong| wrong.checker).collect();
        found.dedup();
        found
    }

    /// Whether each reply is explained.
    pub fn is_linear(&self) -> bool {
        let (extent, wrong) = linear(&self.0);
        assert_eq!(extent.locks + wrong.len(), 1, "one lock is judged");
        wrong.is_empty()
    }

    /// `a` acquires at 10 and releases at 50; `b` waits from 20, and holds the lock from then until
    /// 80.
    fn all_right() -> Tale {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 51], blocking(), Reply::Token(101))
            .op("a", [50, 52], release(100), Reply::Number(0))
            .op("b", [80, 81], release(101), Reply::Number(0))
    }
}

#[test]
fn nothing_is_said_of_what_is_right() {
    assert!(Tale::all_right().complaints().is_empty());
    assert!(Tale::all_right().is_linear());
}

#[test]
fn two_who_hold_at_once_are_seen() {
    let tale = || {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 21], acquire(), Reply::Token(101))
            .op("a", [50, 52], release(100), Reply::Number(0))
    };
    assert_eq!(tale().complaints(), ["exclusion"]);
    assert!(!tale().is_linear());
}

#[test]
fn a_reader_beside_a_writer_is_seen_and_beside_a_reader_is_not() {
    let readers = || {
        Tale::new().op("a", [10, 11], read(), Reply::Token(100)).op(
            "b",
            [20, 21],
            read(),
            Reply::Token(101),
        )
    };
    assert!(readers().complaints().is_empty());
    assert!(readers().is_linear());
    let writer = || readers().op("c", [30, 31], acquire(), Reply::Token(102));
    assert_eq!(writer().complaints(), ["exclusion"]);
    assert!(!writer().is_linear());
    let reader = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "b",
        [20, 21],
        read(),
        Reply::Token(101),
    );
    assert_eq!(reader.complaints(), ["exclusion"]);
}

#[test]
fn who_comes_after_the_lease_is_not_taken_for_a_second_holder() {
    let after = LEASE_MS + 12;
    let tale = |at| {
        Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
            "b",
            [at, at + 1],
            acquire(),
            Reply::Token(101),
        )
    };
    assert!(tale(after).complaints().is_empty());
    assert_eq!(tale(after - 10).complaints(), ["exclusion"]);
}

#[test]
fn a_renewed_lease_counts_to_its_new_end() {
    let renew = Asked::Renew { mode: Mode::Write, lease_ms: LEASE_MS, token: 100, acks: 0 };
    let tale = Tale::new()
        .op("a", [10, 11], acquire(), Reply::Token(100))
        .op("a", [20_000, 20_001], renew, Reply::Number(1))
        .op("b", [LEASE_MS + 12, LEASE_MS + 13], acquire(), Reply::Token(101));
    assert_eq!(tale.complaints(), ["exclusion"]);
}

#[test]
fn a_session_lasts_as_long_as_its_server_and_its_connection() {
    let session = || Asked::Acquire(Ask { session: true, lease_ms: 1000, ..ask() });
    let tale = || {
        Tale::new().op("a", [10, 11], session(), Reply::Token(100)).op(
            "b",
            [9000, 9001],
            acquire(),
            Reply::Token(101),
        )
    };
    assert_eq!(tale().complaints(), ["exclusion"]);
    let connection = i64::from(b'a');
    for mark in [Mark::Closed(connection), Mark::Restart, Mark::Wiped(None)] {
        assert!(tale().event(mark.clone(), [5000, 5010]).complaints().is_empty(), "{mark:?}");
    }
    assert_eq!(tale().event(Mark::Closed(0), [5000, 5010]).complaints(), ["exclusion"]);
}

#[test]
fn holds_that_were_wiped_are_not_missed_and_others_are() {
    let tale = |key: &str| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .event(Mark::Wiped(Some(key.to_owned())), [20, 21])
            .op("b", [30, 31], acquire(), Reply::Token(101))
    };
    assert!(tale("lock:1").complaints().is_empty());
    assert_eq!(tale("lock:2").complaints(), ["exclusion"]);
}

#[test]
fn with_failover_only_what_a_replica_had_counts() {
    let promise = Promise { holds_at_once: false, ..FULL_PROMISE };
    let lost = Tale::under(promise)
        .op("a", [10, 11], acquire(), Reply::Token(100))
        .event(Mark::Failover, [20, 21])
        .op("b", [30, 31], acquire(), Reply::Token(101))
        .secured();
    assert!(lost.complaints().is_empty());
    let kept = Tale::under(promise)
        .op("a", [10, 11], acquire(), Reply::Token(100))
        .secured()
        .event(Mark::Failover, [20, 21])
        .op("b", [30, 31], acquire(), Reply::Token(101))
        .secured();
    assert_eq!(kept.complaints(), ["exclusion"]);
}

fn short() -> Ask {
    Ask { lease_ms: 1000, ..ask() }
}

#[test]
fn a_second_holder_is_excused_after_a_cut_and_no_longer_than_the_old_leases_last() {
    let promise = Promise { holds_at_once: false, goes_on_ms: 3000, ..FULL_PROMISE };
    let session = || Asked::Acquire(Ask { session: true, ..short() });
    // The old primary answers `a` until then, and the new one grants `b` the lock.
    let tale = |granted, answered| {
        Tale::under(promise)
            .op("a", [10, 11], session(), Reply::Token(100))
            .event(Mark::Failover, [1000, 9000])
            .event(Mark::Cut, [1000, 1001])
            .op("b", [granted, granted + 1], Asked::Acquire(short()), Reply::Token(101))
            .op("a", [answered, answered + 1], Asked::Echo, Reply::Number(1))
    };
    assert!(tale(4000, 6000).complaints().is_empty());
    assert!(tale(4500, 5000).complaints().is_empty());
    assert_eq!(tale(4500, 6000).complaints(), ["split"]);
    // Before the cut, there is no second primary.
    assert_eq!(tale(900, 6000).complaints(), ["split"]);
}

#[test]
fn a_release_that_was_undone_with_its_primary_is_no_hold_all_the_time() {
    let promise =
        Promise { holds_at_once: false, may_close: true, goes_on_ms: 3000, ..FULL_PROMISE };
    // `a` released it just before the cut, `b` had it then, and the new primary knows neither.
    let tale = |cut| {
        Tale::under(promise)
            .op("a", [500, 501], Asked::Acquire(short()), Reply::Token(100))
            .op("a", [990, 995], release(100), Reply::Lost)
            .op("b", [991, 996], Asked::Acquire(short()), Reply::Token(101))
            .event(Mark::Failover, [cut, 9000])
            .event(Mark::Cut, [cut, cut + 1])
            .op("a", [1400, 1401], Asked::Acquire(short()), Reply::Token(100))
    };
    assert!(tale(1000).complaints().is_empty());
    // If no primary was cut off before that, nothing undid it.
    assert_eq!(tale(3000).complaints(), ["split"]);
}

#[test]
fn what_a_server_does_by_itself_while_it_lets_nobody_write_is_seen() {
    let promise = Promise { may_close: true, ..FULL_PROMISE };
    let side = u32::from(b'a') % 2;
    let shut = |asked: Asked| {
        Tale::under(promise)
            .op("a", [10, 11], asked, Reply::Token(100))
            .event(Mark::Refusal, [1000, 9000])
            .event(Mark::Shut(Some(side)), [1000, 9000])
    };
    let held = || shut(Asked::Acquire(short()));
    let tied = || shut(Asked::Acquire(Ask { session: true, ..short() }));
    let waits = |owner: &str, told| held().op(owner, [20, told], blocking(), Reply::Token(101));
    assert!(waits("c", 1400).complaints().is_empty());
    assert!(waits("b", 1600).complaints().is_empty());
    assert_eq!(waits("c", 1600).complaints(), ["gate"]);
    let renew = Asked::Renew { mode: Mode::Write, lease_ms: 1000, token: 100, acks: 0 };
    let renewed = |at| held().op("a", [at, at + 1], renew.clone(), Reply::Number(1));
    assert!(renewed(900).complaints().is_empty());
    assert_eq!(renewed(1100).complaints(), ["gate"]);
    let look = Asked::Look { mode: Mode::Write, token: 100 };
    let looked = |ttl_ms| tied().op("a", [1700, 1701], look.clone(), Reply::Number(ttl_ms));
    assert!(looked(300).complaints().is_empty());
    assert_eq!(looked(900).complaints(), ["gate"]);
    let answered = |at| tied().op("a", [at, at + 1], Asked::Echo, Reply::Number(1));
    assert!(answered(1900).complaints().is_empty());
    assert_eq!(answered(2600).complaints(), ["gate"]);
    let closed = tied().op("a", [2600, 2601], Asked::Echo, Reply::Lost);
    assert!(closed.complaints().is_empty());
}

#[test]
fn a_token_that_is_smaller_or_given_twice_is_seen() {
    let tale = |token| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [20, 21], release(100), Reply::Number(0))
            .op("b", [30, 31], acquire(), Reply::Token(token))
    };
    assert!(tale(101).complaints().is_empty());
    assert_eq!(tale(99).complaints(), ["tokens"]);
    assert_eq!(tale(100).complaints(), ["tokens"]);
    assert!(!tale(99).is_linear());
    assert!(!tale(100).is_linear());
}

#[test]
fn a_hold_that_is_gone_too_early_is_seen() {
    let not_held = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "a",
        [20, 21],
        release(100),
        Reply::NotHeld,
    );
    assert_eq!(not_held.complaints(), ["kept"]);
    let lapsed = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "a",
        [LEASE_MS, LEASE_MS + 15],
        release(100),
        Reply::NotHeld,
    );
    assert!(lapsed.complaints().is_empty());
    let deeper = |at| {
        let asked = Asked::Acquire(Ask { depth: Some(2), ..ask() });
        Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
            "a",
            [at, at + 1],
            asked,
            Reply::NotHeld,
        )
    };
    assert_eq!(deeper(20).complaints(), ["kept"]);
    assert!(deeper(LEASE_MS + 10).complaints().is_empty());
    let another_token = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "a",
        [20, 21],
        acquire(),
        Reply::Token(101),
    );
    assert_eq!(another_token.complaints(), ["kept"]);
    let refused = Tale::new().op("a", [10, 11], acquire(), Reply::Token(100)).op(
        "a",
        [20, 21],
        acquire(),
        Reply::Nil,
    );
    assert_eq!(refused.complaints(), ["kept"]);
}

#[test]
fn a_depth_that_is_wrong_is_seen() {
    let tale = |left| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("a", [20, 21], acquire(), Reply::Token(100))
            .op("a", [30, 31], release(100), Reply::Number(left))
    };
    assert!(tale(1).complaints().is_empty());
    assert_eq!(tale(0).complaints(), ["kept"]);
    assert!(tale(1).is_linear() && !tale(0).is_linear());
}

#[test]
fn one_who_passes_the_queue_is_seen() {
    // `b` waits and is seen; `c` asks after that, but is granted first.
    let tale = |order: [i64; 2]| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 61], blocking(), Reply::Token(order[0]))
            .op("d", [25, 26], Asked::Info, Reply::Waiters(vec!["b".to_owned()]))
            .op("c", [30, 71], blocking(), Reply::Token(order[1]))
            .op("a", [40, 41], release(100), Reply::Number(0))
    };
    let first = |tale: Tale, token| tale.op("b", [62, 63], release(token), Reply::Number(0));
    assert!(first(tale([101, 102]), 101).complaints().is_empty());
    let second = tale([102, 101]).op("c", [72, 73], release(101), Reply::Number(0));
    assert!(second.complaints().contains(&"order"));
}

#[test]
fn a_ticket_keeps_its_place_as_long_as_it_is_asked_for_in_time() {
    let ticket = || Asked::Acquire(Ask { wait: Wait::Queue(500), ..ask() });
    let tale = |asks_again_at| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, 21], ticket(), Reply::Nil)
            .op("d", [25, 26], Asked::Info, Reply::Waiters(vec!["b".to_owned()]))
            .op("c", [30, 45], blocking(), Reply::Token(101))
            .op("a", [40, 41], release(100), Reply::Number(0))
            .op("c", [50, 51], release(101), Reply::Number(0))
            .op("b", [asks_again_at, asks_again_at + 1], ticket(), Reply::Token(102))
    };
    assert_eq!(tale(300).complaints(), ["order"]);
    assert!(tale(700).complaints().is_empty());
}

#[test]
fn a_wake_up_that_is_lost_is_seen() {
    let tale = |told_at| {
        Tale::new()
            .op("a", [10, 11], acquire(), Reply::Token(100))
            .op("b", [20, told_at], blocking(), Reply::Token(101))
            .op("a", [50, 52], release(100), Reply::Number(0))
    };
    let bound_ms = FULL_PROMISE.granted_within_ms;
    assert!(tale(52 + bound_ms).complaints().is_empty());
    assert_eq!(tale(60 + bound_ms).complaints(), ["progress"]);
    let outage = tale(60 + bound_ms).event(Mark::Outage, [100, 200]);
    assert!(outage.complaints().is_empty());
}

#[test]
fn one_who_is_told_nil_though_the_lock_was_free_is_seen() {
    let bound_ms = FULL_PROMISE.granted_within_ms;
    let wait_ms = 2 * bound_ms;
    let wait = Asked::Acquire(Ask { wait: Wait::Block(wait_ms), ..ask() });
    let tale = Tale::new()
        .op("a", [10, 11], acquire(), Reply::Token(100))
        .op("b", [20, 20 + wait_ms], wait, Reply::Nil)
        .op("a", [50, 52], release(100), Reply::Number(0));
    assert_eq!(tale.complaints(), ["progress"]);
}

#[test]
fn replies_that_cannot_be_are_seen() {
    let error = || Reply::Error("ERR an ECHO was answered otherwise".to_owned());
    let deadlock = Tale::new().op("a", [10, 11], blocking(), Reply::Deadlock);
    let cases = [
        ("never", Tale::new().op("a", [10, 11], acquire(), Reply::Never)),
        ("one too many", Tale::new().op("a", [10, 11], Asked::Echo, error())),
        ("of another command", Tale::new().op("a", [10, 11], acquire(), Reply::Number(0))),
        ("an end", Tale::new().op("a", [10, 11], release(100), Reply::Lost)),
        ("an error", Tale::new().op("a", [10, 11], release(100), error())),
        ("early", Tale::new().op("a", [10, 11], blocking(), Reply::Nil)),
        ("deadlock of one who holds nothing", deadlock),
    ];
    for (what, tale) in cases {
        assert_eq!(tale.complaints(), ["replies"], "{what}");
    }
}

#[test]
fn causes_are_accepted_where_there_is_one() {
    let promise = Promise { may_close: true, errors: &["LOADING"], ..FULL_PROMISE };
    let error = Reply::Error("LOADING Redis is loading the dataset in memory".to_owned());
    let tale = Tale::under(promise).op("a", [10, 11], acquire(), Reply::Lost).op(
        "a",
        [20, 21],
        release(100),
        error,
    );
    assert!(tale.complaints().is_empty());
}

#[test]
fn a_count_by_an_old_token_or_counted_twice_is_seen() {
    let tale = |token, number| {
        Tale::new()
            .op("a", [10, 11], Asked::Count { token: 100 }, Reply::Number(1))
            .op("b", [20, 21], Asked::Count { token: 102 }, Reply::Number(2))
            .op("c", [30, 31], Asked::Count { token }, Reply::Number(number))
    };
    assert!(tale(103, 3).complaints().is_empty());
    assert_eq!(tale(101, 3).complaints(), ["counter"]);
    assert_eq!(tale(103, 2).complaints(), ["counter"]);
}
