//! Numbers at the ends of their ranges, names, and options.

use rlock_core::grammar::{Limits, commands::ACQUIRE};
use rlock_core::text::{escaped, quoted};
use rlock_core::{EpochMs, LeaseMs, Now, Owner, Token, Tokens};

const LAST: u64 = (1 << 53) - 1;

fn moment(ms: u64) -> EpochMs {
    EpochMs::new(ms).unwrap()
}

#[test]
fn moments_and_tokens_end_at_2_to_the_53() {
    assert_eq!(EpochMs::new(0).map(EpochMs::get), Some(0));
    assert_eq!(EpochMs::new(LAST), Some(EpochMs::MAX));
    assert_eq!(EpochMs::new(LAST + 1), None);
    assert_eq!(Token::new(0), None);
    assert_eq!(Token::new(1).map(Token::get), Some(1));
    assert_eq!(Token::new(LAST).map(Token::get), Some(LAST));
    assert_eq!(Token::new(LAST + 1), None);
    assert_eq!(Token::new(u64::MAX), None);
}

#[test]
fn a_lease_lasts_from_1_ms_to_seven_days() {
    assert_eq!(LeaseMs::new(0), None);
    assert_eq!(LeaseMs::new(1).map(LeaseMs::get), Some(1));
    assert_eq!(LeaseMs::new(604_800_000), Some(LeaseMs::MAX));
    assert_eq!(LeaseMs::new(604_800_001), None);
}

#[test]
fn a_deadline_is_never_beyond_the_last_moment() {
    let lease = LeaseMs::new(5).unwrap();
    assert_eq!(Now::from_ms(100).after(lease), moment(105));
    assert_eq!(Now::from_ms(LAST - 5).after(lease), EpochMs::MAX);
    assert_eq!(Now::from_ms(LAST - 4).after(lease), EpochMs::MAX);
    let end_of_time = Now::from_us(u64::MAX);
    assert_eq!(end_of_time.after(LeaseMs::MAX), EpochMs::MAX);
    assert_eq!(end_of_time.after_ms(u64::MAX), EpochMs::MAX);
    assert_eq!(Now::from_ms(u64::MAX), end_of_time);
}

#[test]
fn a_lease_is_never_shorter_than_it_says_and_says_no_more_than_is_left() {
    let lease = LeaseMs::new(5).unwrap();
    for us in [0, 1, 500, 999] {
        let (now, deadline) = (Now::from_us(100_000 + us), Now::from_us(100_000 + us).after(lease));
        assert_eq!(deadline, moment(if us == 0 { 105 } else { 106 }));
        assert!(!deadline.is_over_at(Now::from_us(100_000 + us + 4_999)), "at {us} us");
        assert!(deadline.is_over_at(Now::from_us(100_000 + us + 5_999)), "at {us} us");
        assert_eq!(deadline.left_at(now), 5);
        assert!(deadline.is_over_at(Now::from_us(now.us() + deadline.wait_from(now) * 1000)));
    }
}

#[test]
fn time_left_is_in_whole_milliseconds_and_never_below_0() {
    let now = Now::from_us(5_999);
    assert_eq!((now.us(), now.ms().get()), (5_999, 5));
    assert_eq!((moment(7).left_at(now), moment(7).wait_from(now)), (1, 2));
    assert_eq!((moment(6).left_at(now), moment(6).wait_from(now)), (1, 1));
    assert_eq!((moment(5).left_at(now), moment(5).wait_from(now)), (0, 0));
    assert_eq!(moment(0).left_at(now), 0);
    assert!(moment(5).is_over_at(now) && !moment(6).is_over_at(now));
    assert!(moment(0).is_over_at(Now::from_us(0)));
}

#[test]
fn the_age_of_a_token_is_in_whole_milliseconds_and_never_below_0() {
    let token = Token::new(2_000_000).unwrap();
    for (now_us, age_ms) in [(0, 0), (2_000_999, 0), (2_001_000, 1), (5_999_999, 3_999)] {
        assert_eq!(token.age_ms(Now::from_us(now_us)), age_ms, "at {now_us} us");
    }
}

#[test]
fn an_owner_is_1_to_512_bytes() {
    assert!(!Owner::is_valid(b""));
    assert!(Owner::is_valid(b"\0"));
    assert!(Owner::is_valid(&[0xff; 512]));
    assert!(!Owner::is_valid(&[0xff; 513]));
    assert_eq!(Owner::from(b"a\0b".as_slice()).as_bytes(), b"a\0b");
}

#[test]
fn nothing_but_the_letters_of_an_option_is_taken_for_it() {
    let (default_lease, max_lease) = (LeaseMs::MAX, LeaseMs::MAX);
    let limits = Limits { default_lease, max_lease, max_depth: 9, acks: 0 };
    let is_it = |said: &[u8]| {
        let words = [b"k", b"a", said, b"5"];
        ACQUIRE.read(words.into_iter(), &limits).is_ok()
    };
    for word in [b"LEASE".as_slice(), b"MAXQUEUE"] {
        for (byte, place) in (0..=u8::MAX).flat_map(|byte| (0..=8).map(move |at| (byte, at))) {
            let Some((before, after)) = word.split_at_checked(place) else { continue };
            assert!(!is_it(&[before, &[byte], after].concat()), "{byte} at {place} in {word:?}");
            let said = [before, &[byte], after.get(1..).unwrap_or_default()].concat();
            assert_eq!(is_it(&said), said.eq_ignore_ascii_case(word), "{said:?}");
        }
    }
    for length in 0..20 {
        let said = [&b"a".repeat(length), &b"ACKS"[..]].concat();
        assert_eq!(is_it(&said), length == 0, "{said:?}");
    }
}

#[test]
fn names_are_cut_to_64_bytes_and_then_escaped() {
    for (name, told) in [
        (&b"plain name ~!"[..], "'plain name ~!'"),
        (b"", "''"),
        (b"a\r\n+OK", r"'a\x0d\x0a+OK'"),
        (b"\0\x1f\x7f\x80\xff", r"'\x00\x1f\x7f\x80\xff'"),
        (br"back\slash", r"'back\x5cslash'"),
        (b"%s%n{}", "'%s%n{}'"),
        ("\u{e9}".as_bytes(), r"'\xc3\xa9'"),
    ] {
        assert_eq!(quoted(name), told);
    }
    for length in [63, 64] {
        assert_eq!(quoted(&vec![b'a'; length]), format!("'{}'", "a".repeat(length)));
    }
    assert_eq!(quoted(&[b'a'; 65]), format!("'{}'", "a".repeat(64)));
    assert_eq!(quoted(&[0; 65]), format!("'{}'", r"\x00".repeat(64)));
    assert_eq!(escaped(&[b'a'; 600]), "a".repeat(600), "only what is quoted is cut");
}

/// docs/cluster.md: a promoted server that lacks the last token issues a greater one if the old
/// primary's clock is less than a second ahead; if the old primary has run for less than a second,
/// its clock must be ahead by less than that time.
#[test]
fn the_next_token_is_greater_within_a_second_of_clock_difference() {
    let issued = |began_us: u64, now_us: u64| {
        let mut tokens = Tokens::default();
        tokens.begin(Now::from_us(began_us));
        tokens.issue(Now::from_us(now_us)).unwrap()
    };
    let start_us = 1_700_000_000_000_000;
    for (for_us, ahead_us, is_greater) in [
        (60_000_000, 0, true),
        (60_000_000, 999_999, true),
        (60_000_000, 1_000_002, false),
        (60_000_000, 2_000_000, false),
        (300_000, 299_999, true),
        (300_000, 300_001, false),
    ] {
        let old = issued(start_us + ahead_us, start_us + ahead_us + for_us);
        let next = issued(start_us + for_us, start_us + for_us);
        assert_eq!(next > old, is_greater, "after {for_us} us, {ahead_us} us ahead");
    }
}

/// The grace period after a failover must be as long as the longest lease: no session may have a
/// longer one.
#[test]
fn a_session_is_refused_where_no_lease_may_be_long_enough() {
    let max_lease = LeaseMs::new(999).unwrap();
    let short = Limits { max_lease, default_lease: max_lease, max_depth: u16::MAX, acks: 0 };
    let needs = "ERR SESSION needs a lease of at least 1000 milliseconds, but rlock.max-lease-ms";
    for line in ["k a SESSION", "k a SESSION LEASE 500"] {
        let words = line.split(' ').map(str::as_bytes);
        let told = ACQUIRE.read(words, &short).map(|_| ()).unwrap_err();
        assert_eq!(told.line(), format!("{needs} is 999"), "{line}");
    }
}
