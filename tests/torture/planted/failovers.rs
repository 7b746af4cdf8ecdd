//! Shows errors to the checks of `make failovers`.

use redis::Value;

use crate::failovers::claims::{
    Claim, Kind, Sort, Stay, conflicts, loss, loss_of_string, overlaps,
};
use crate::failovers::record::{Failover, Record};
use crate::failovers::rivals::Rivals;
use crate::failovers::skew::Clock;
use crate::failovers::{Promise, run, variants};
use crate::history::Mode;
use rlock_testkit::{LockView, now_ms};

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// A lock as a server shows it: one writer, whose lease ends 5000 ms later.
fn shown(owner: &str, token: i64, depth: i64) -> LockView {
    let numbers = [("depth", depth), ("token", token), ("ttl-ms", 5000), ("held-ms", 1)];
    let mut hold = vec![text("owner"), text(owner), text("mode"), text("write")];
    hold.extend(numbers.iter().flat_map(|(name, number)| [text(name), Value::Int(*number)]));
    let holders = Value::Array(vec![Value::Array(hold)]);
    LockView::read(&Value::Array(vec![text("mode"), text("write"), text("holders"), holders]))
}

fn free() -> LockView {
    let holders = Value::Array(Vec::new());
    LockView::read(&Value::Array(vec![text("mode"), text("free"), text("holders"), holders]))
}

fn claim() -> Claim {
    let (key, owner) = ("door".to_owned(), "ann".to_owned());
    let (sort, kind, mode) = (Sort::Acked, Kind::Grant, Mode::Write);
    let (token, depth, until_ms, sent_ms, told_ms) = (7, 2, 15_001, 1, 2);
    let owner_until_ms = until_ms;
    Claim { sort, kind, key, owner, mode, token, depth, until_ms, owner_until_ms, sent_ms, told_ms }
}

#[test]
fn whatever_is_missing_of_a_hold_is_a_loss() {
    let kept = shown("ann", 7, 2);
    assert_eq!(loss(&claim(), &kept, 10_000), None);
    assert_eq!(loss(&claim(), &free(), 15_001), None, "its time is over");
    let cases = [
        (free(), 15_000, "is gone"),
        (shown("bob", 7, 2), 10_000, "is gone; there is write: bob write 2"),
        (shown("ann", 8, 2), 10_000, "the token is 8"),
        (shown("ann", 7, 1), 10_000, "the depth is 1"),
        (kept, 9_999, "1 ms too early"),
    ];
    for (lock, seen_ms, why) in cases {
        let said = loss(&claim(), &lock, seen_ms).unwrap_or_default();
        assert!(said.contains(why), "{why}: {said:?}");
    }
    let reads = Claim { mode: Mode::Read, ..claim() };
    assert!(loss(&reads, &shown("ann", 7, 2), 10_000).is_some(), "another mode");
}

#[test]
fn whatever_is_missing_of_a_string_is_a_loss() {
    let string = Claim { sort: Sort::SetNx, ..claim() };
    assert_eq!(loss_of_string(&string, "ann", 5000, 10_000), None);
    assert_eq!(loss_of_string(&string, "", -2, 15_001), None, "its time is over");
    let cases = [("", -2, "is gone"), ("bob", 5000, "there is 'bob'"), ("ann", 4999, "1 ms too")];
    for (owner, ttl_ms, why) in cases {
        let said = loss_of_string(&string, owner, ttl_ms, 10_000).unwrap_or_default();
        assert!(said.contains(why), "{why}: {said:?}");
    }
}

#[test]
fn two_who_were_both_told_that_they_hold_are_seen() {
    let bob = Claim { owner: "bob".to_owned(), mode: Mode::Read, ..claim() };
    assert_eq!(conflicts(&[claim(), bob.clone()]).len(), 1);
    let elsewhere = Claim { key: "gate".to_owned(), ..bob.clone() };
    assert_eq!(conflicts(&[claim(), elsewhere]), [""; 0]);
    let cid = Claim { owner: "cid".to_owned(), ..bob.clone() };
    assert_eq!(conflicts(&[bob, cid]), [""; 0], "two readers");
}

#[test]
fn a_clock_that_is_set_may_show_either_time_meanwhile() {
    let clock = Clock::ahead_by(60_000);
    let begun_ms = now_ms();
    clock.change(-100, || assert_eq!(clock.ahead_ms(now_ms(), now_ms()), [-100, 60_000]));
    let ended_ms = now_ms() + 1;
    assert_eq!(clock.ahead_ms(7, 8), [60_000; 2]);
    assert_eq!(clock.ahead_ms(ended_ms, ended_ms), [-100; 2]);
    assert_eq!(clock.latest_ms(7, 8), 60_008);
    assert_eq!(clock.latest_ms(ended_ms, ended_ms + 5), ended_ms - 95);
    assert!(clock.latest_ms(7, ended_ms) >= begun_ms + 60_000, "it was set back only then");
}

#[test]
fn a_claim_that_only_the_servers_own_clock_has_ended_is_cut_short() {
    let (variant, round, fall) = ("skewed", 1, String::new());
    let (fallen_ms, judged_from_ms, asked_ms) = (10_000, 15_001, 10_000);
    let failover = Failover { variant, round, fall, fallen_ms, judged_from_ms, asked_ms };
    assert!(failover.cuts_short(&claim()));
    assert!(!failover.cuts_short(&Claim { until_ms: 15_002, ..claim() }), "it must be there");
    assert!(!failover.cuts_short(&Claim { owner_until_ms: 10_000, ..claim() }), "it is over");
    assert!(claim().lasts(&Clock::ahead_by(5000), 10_000));
    assert!(!claim().lasts(&Clock::ahead_by(5001), 10_000), "the primary has ended it");
}

#[test]
fn stays_that_overlap_are_seen() {
    let stay = |key: &str, owner: &str, from_ms: f64, to_ms: f64| {
        let (key, owner) = (key.to_owned(), owner.to_owned());
        Stay { key, owner, from_ms, to_ms }
    };
    let ann = stay("door", "ann", 1.0, 9.0);
    let fine = [ann.clone(), stay("door", "bob", 9.0, 10.0), stay("gate", "bob", 2.0, 3.0)];
    assert_eq!(overlaps(&fine), [""; 0]);
    assert_eq!(overlaps(&[ann.clone(), stay("door", "ann", 2.0, 12.0)]), [""; 0], "its own");
    // This also holds if another stay ended in between.
    let within = [ann, stay("door", "ann", 2.0, 3.0), stay("door", "bob", 8.5, 10.0)];
    assert_eq!(overlaps(&within).len(), 1);
}

/// On real servers: if the grants of clients without confirmation counted, losses would be
/// reported.
#[test]
fn grants_that_nobody_has_acknowledged_are_found_lost() {
    let one = variants::ALL.iter().find(|variant| variant.name == "one").unwrap();
    let (mut rng, mut record) = (fastrand::Rng::with_seed(1), Record::default());
    let tally = run(one, 3, Promise::ToAll, &mut rng, &mut record, &mut Rivals::default());
    let is_seen = tally.wrong.iter().any(|wrong| wrong.contains("is gone"));
    assert!(is_seen, "{tally}");
}
