//! The meaning of the arguments of commands, and the errors for all other arguments.

use std::num::NonZeroU32;

use rlock_core::grammar::commands::{
    ACQUIRE, APPLY, AWAIT, CHECK, FORCE, HELP, HOLDS, INFO, QUEUES, RELEASE, RENEW, SLOWLOG,
};
use rlock_core::grammar::{Arguments, Command, Limits};
use rlock_core::text::quoted;
use rlock_core::{LeaseMs, Mode, Token};

fn limits() -> Limits {
    Limits {
        default_lease: LeaseMs::new(30_000).unwrap(),
        max_lease: LeaseMs::MAX,
        max_depth: u16::MAX,
        acks: 0,
    }
}

fn read_words<'a>(command: &Command, words: &[&'a [u8]]) -> Result<Arguments<'a>, String> {
    command.read(words.iter().copied(), &limits()).map_err(|bad| bad.line().into())
}

fn read<'a>(command: &Command, line: &'a str) -> Result<Arguments<'a>, String> {
    let words: Vec<&[u8]> =
        line.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes).collect();
    read_words(command, &words)
}

fn refusal(command: &Command, line: &str) -> String {
    read(command, line).map(|read| panic!("{line} was read as {read:?}")).unwrap_err()
}

// --- what is understood -------------------------------------------------------------------------

#[test]
fn a_plain_request_has_the_defaults() {
    let asked = read(&ACQUIRE, "k a").unwrap();
    assert_eq!((asked.key, asked.owner, asked.payload), (&b"k"[..], &b"a"[..], &b""[..]));
    assert_eq!(
        (asked.mode, asked.lease.get(), asked.token, asked.depth),
        (None, 30_000, None, None)
    );
    assert!(!asked.upgrade && !asked.with_ttl && !asked.all);
}

#[test]
fn every_option_is_understood_in_any_order_and_case() {
    let options = ["read", "LEASE 5", "UpGrade", "depth 3", "WITHTTL"];
    for first in 0..options.len() {
        let mut turned = options;
        turned.rotate_left(first);
        for line in [turned.join(" "), turned.iter().rev().copied().collect::<Vec<_>>().join(" ")] {
            for line in [line.to_lowercase(), line.to_uppercase(), line] {
                let line = format!("k a {line}");
                let asked = read(&ACQUIRE, &line).unwrap();
                assert_eq!(asked.mode, Some(Mode::Read), "{line}");
                assert_eq!((asked.lease.get(), asked.depth), (5, Some(3)), "{line}");
                assert!(asked.upgrade && asked.with_ttl, "{line}");
            }
        }
    }
    assert_eq!(read(&ACQUIRE, "k a wRiTe").unwrap().mode, Some(Mode::Write));
    let asked = read(&RELEASE, "k a token 7 all write").unwrap();
    assert!(asked.all && asked.mode == Some(Mode::Write));
    assert_eq!(asked.token.map(|token| token.get()), Some(7));
    let asked = read(&RENEW, "k a TOKEN 9007199254740991 LEASE 1 READ").unwrap();
    assert_eq!(asked.token.map(|token| token.get()), Some(9_007_199_254_740_991));
    assert_eq!((asked.lease.get(), asked.mode), (1, Some(Mode::Read)));
    assert_eq!(read(&FORCE, "k read").unwrap().mode, Some(Mode::Read));
    assert_eq!(read(&HOLDS, "k a write").unwrap().mode, Some(Mode::Write));
    let asked = read(&AWAIT, "k 0 block 7").unwrap();
    assert_eq!((asked.token, asked.block_ms), (None, Some(7)));
    assert_eq!(read(&AWAIT, "k 12").unwrap().token.map(Token::get), Some(12));
    let asked = read(&CHECK, "k 12 read").unwrap();
    assert_eq!((asked.token.map(|token| token.get()), asked.mode), (Some(12), Some(Mode::Read)));
    assert_eq!(read(&INFO, "k").unwrap().key, b"k");
    assert_eq!(read(&APPLY, "k payload").unwrap().payload, b"payload");
    assert!(read(&HELP, "").is_ok());
}

#[test]
fn names_and_payloads_are_bytes() {
    let (odd, long) = (b"\0\r\n\xff %s".as_slice(), [b'x'; 512]);
    let asked = read_words(&ACQUIRE, &[odd, &long, b"READ"]).unwrap();
    assert_eq!((asked.key, asked.owner), (odd, long.as_slice()));
    assert_eq!(read_words(&ACQUIRE, &[b"", odd]).unwrap().key, b"");
    let words: [&[u8]; 2] = [b"READ", b"WRITE"];
    let asked = read_words(&ACQUIRE, &words).unwrap();
    assert_eq!((asked.key, asked.owner, asked.mode), (words[0], words[1], None));
    let payload = vec![0; 100_000];
    assert_eq!(read_words(&APPLY, &[odd, &payload]).unwrap().payload, payload);
}

#[test]
fn numbers_are_taken_from_the_first_to_the_last_of_their_range() {
    for (ms, lease) in [("1", 1), ("604800000", 604_800_000)] {
        assert_eq!(read(&ACQUIRE, &format!("k a LEASE {ms}")).unwrap().lease.get(), lease);
        assert_eq!(read(&RENEW, &format!("k a LEASE {ms}")).unwrap().lease.get(), lease);
    }
    for depth in [1, 65_535] {
        assert_eq!(read(&ACQUIRE, &format!("k a DEPTH {depth}")).unwrap().depth, Some(depth));
    }
    for depth in [0, 65_535] {
        assert_eq!(read(&RELEASE, &format!("k a DEPTH {depth}")).unwrap().depth, Some(depth));
    }
    for token in [1, 9_007_199_254_740_991] {
        for (command, line) in [(&RELEASE, "k a TOKEN"), (&RENEW, "k a TOKEN"), (&CHECK, "k")] {
            let line = format!("{line} {token}");
            let asked = read(command, &line).unwrap();
            assert_eq!(asked.token.map(|token| token.get()), Some(token), "{line}");
        }
    }
}

#[test]
fn ranges_and_defaults_are_the_configured_ones() {
    let lease = |ms| LeaseMs::new(ms).unwrap();
    let limits =
        Limits { default_lease: lease(500), max_lease: lease(1000), max_depth: 3, acks: 0 };
    let ask = |line: &'static str| {
        ACQUIRE
            .read(line.split(' ').map(str::as_bytes), &limits)
            .map_err(|bad| bad.line().to_string())
    };
    assert_eq!(ask("k a").unwrap().lease.get(), 500);
    assert_eq!(ask("k a LEASE 1000 DEPTH 3").unwrap().lease.get(), 1000);
    assert_eq!(
        ask("k a LEASE 1001").unwrap_err(),
        "ERR LEASE must be an integer from 1 to 1000 milliseconds, not '1001'"
    );
    assert_eq!(
        ask("k a DEPTH 4").unwrap_err(),
        "ERR DEPTH must be an integer from 1 to 3 levels, not '4'"
    );
    let limits = Limits { max_lease: lease(100), ..limits };
    let shorter = ACQUIRE.read([b"k".as_slice(), b"a"].into_iter(), &limits).unwrap();
    assert_eq!(shorter.lease.get(), 100, "the maximum where it is the smaller one");
}

// --- what is refused, in full -------------------------------------------------------------------

const LEASE: &str = "LEASE must be an integer from 1 to 604800000 milliseconds";
const DEPTH: &str = "DEPTH must be an integer from 1 to 65535 levels";
const DOWN_TO: &str = "DEPTH must be an integer from 0 to 65535 levels";
const TOKEN_OR_0: &str = "TOKEN must be an integer from 0 to 9007199254740991";
const TOKEN: &str = "TOKEN must be an integer from 1 to 9007199254740991";

#[test]
fn a_number_out_of_its_range_is_told_with_option_range_and_unit() {
    for (command, line, told) in [
        (&ACQUIRE, "k a LEASE 0", format!("{LEASE}, not '0'")),
        (&ACQUIRE, "k a LEASE 604800001", format!("{LEASE}, not '604800001'")),
        (&RENEW, "k a lease 0", format!("{LEASE}, not '0'")),
        (&ACQUIRE, "k a DEPTH 0", format!("{DEPTH}, not '0'")),
        (&ACQUIRE, "k a DEPTH 65536", format!("{DEPTH}, not '65536'")),
        (&RELEASE, "k a DEPTH 65536", format!("{DOWN_TO}, not '65536'")),
        (&RELEASE, "k a TOKEN 0", format!("{TOKEN}, not '0'")),
        (&RENEW, "k a TOKEN 9007199254740992", format!("{TOKEN}, not '9007199254740992'")),
        (&CHECK, "k 0", format!("{TOKEN}, not '0'")),
        (&AWAIT, "k 9007199254740992", format!("{TOKEN_OR_0}, not '9007199254740992'")),
        (&AWAIT, "k 00", format!("{TOKEN_OR_0}, not '00'")),
        (&AWAIT, "k -1 BLOCK 0", format!("{TOKEN_OR_0}, not '-1'")),
        (&CHECK, "k 9007199254740992 READ", format!("{TOKEN}, not '9007199254740992'")),
    ] {
        assert_eq!(refusal(command, line), format!("ERR {told}"), "{line}");
    }
}

#[test]
fn what_is_no_plain_decimal_integer_is_refused() {
    let odd: &[&[u8]] = &[
        b"",
        b" ",
        b" 1",
        b"1 ",
        b"+1",
        b"-1",
        b"-0",
        b"00",
        b"01",
        b"1.0",
        b"1e3",
        b"0x10",
        b"1_000",
        b"1,000",
        b"one",
        b"READ",
        b"\xd9\xa1",
        b"1\0",
        b"\x001",
        b"1\n",
        b"18446744073709551616",
        b"18446744073709551617",
        b"99999999999999999999999999999999",
        b"9223372036854775808",
        b"inf",
        b"NaN",
    ];
    for given in odd {
        let not = format!("not {}", quoted(given));
        for (command, words, told) in [
            (&ACQUIRE, &[b"k".as_slice(), b"a", b"LEASE", given][..], LEASE),
            (&ACQUIRE, &[b"k", b"a", b"DEPTH", given], DEPTH),
            (&RELEASE, &[b"k", b"a", b"DEPTH", given], DOWN_TO),
            (&RELEASE, &[b"k", b"a", b"TOKEN", given], TOKEN),
            (&CHECK, &[b"k", given], TOKEN),
        ] {
            let line = read_words(command, words).map(|_| ()).unwrap_err();
            assert_eq!(line, format!("ERR {told}, {not}"));
        }
    }
}

#[test]
fn an_option_without_its_value_is_told_what_it_needs() {
    for (command, line, told) in [
        (&ACQUIRE, "k a LEASE", "LEASE ms needs an integer from 1 to 604800000 milliseconds"),
        (&ACQUIRE, "k a READ depth", "DEPTH n needs an integer from 1 to 65535 levels"),
        (&RELEASE, "k a DEPTH", "DEPTH n needs an integer from 0 to 65535 levels"),
        (&RELEASE, "k a ALL token", "TOKEN t needs an integer from 1 to 9007199254740991"),
    ] {
        assert_eq!(refusal(command, line), format!("ERR syntax error: {told}"), "{line}");
    }
}

#[test]
fn an_option_is_given_once_and_not_beside_its_opposite() {
    for (command, line, told) in [
        (&ACQUIRE, "k a READ read", "READ is given twice"),
        (&ACQUIRE, "k a WRITE LEASE 5 WRITE", "WRITE is given twice"),
        (&ACQUIRE, "k a LEASE 5 LEASE 5", "LEASE is given twice"),
        (&ACQUIRE, "k a LEASE 5 lease", "LEASE is given twice"),
        (&ACQUIRE, "k a UPGRADE WITHTTL UPGRADE", "UPGRADE is given twice"),
        (&ACQUIRE, "k a withttl WITHTTL", "WITHTTL is given twice"),
        (&ACQUIRE, "k a DEPTH 1 DEPTH 2", "DEPTH is given twice"),
        (&ACQUIRE, "k a WRITE LIMIT 5", "WRITE and LIMIT are mutually exclusive"),
        (&ACQUIRE, "k a LIMIT 5 WRITE", "LIMIT and WRITE are mutually exclusive"),
        (&ACQUIRE, "k a LIMIT 5 UPGRADE", "LIMIT and UPGRADE are mutually exclusive"),
        (&ACQUIRE, "k a UPGRADE READ LIMIT 5", "UPGRADE and LIMIT are mutually exclusive"),
        (&ACQUIRE, "k a LIMIT 5 LIMIT 6", "LIMIT is given twice"),
        (&ACQUIRE, "k a READ WRITE", "READ and WRITE are mutually exclusive"),
        (&ACQUIRE, "k a WRITE UPGRADE READ", "WRITE and READ are mutually exclusive"),
        (&ACQUIRE, "k a BLOCK 5 QUEUE 5", "BLOCK and QUEUE are mutually exclusive"),
        (&ACQUIRE, "k a queue 5 block 5", "QUEUE and BLOCK are mutually exclusive"),
        (&ACQUIRE, "k a SESSION SESSION", "SESSION is given twice"),
        (&RELEASE, "k a ALL DEPTH 0", "ALL and DEPTH are mutually exclusive"),
        (&RELEASE, "k a DEPTH 0 ALL", "DEPTH and ALL are mutually exclusive"),
        (&RELEASE, "k a TOKEN 5 TOKEN 5", "TOKEN is given twice"),
        (&FORCE, "k read write", "READ and WRITE are mutually exclusive"),
        (&CHECK, "k 5 write read", "WRITE and READ are mutually exclusive"),
    ] {
        assert_eq!(refusal(command, line), format!("ERR syntax error: {told}"), "{line}");
    }
}

#[test]
fn a_word_that_is_not_known_is_told_with_the_whole_command() {
    for (command, line, word) in [
        (&ACQUIRE, "k a SHARED", "SHARED"),
        (&ACQUIRE, "k a READ LEASE 5 6", "6"),
        (&ACQUIRE, "k a ALL", "ALL"),
        (&ACQUIRE, "k a TOKEN 5", "TOKEN"),
        (&ACQUIRE, "k a LEASE=5", "LEASE=5"),
        (&RELEASE, "k a LEASE 5", "LEASE"),
        (&RENEW, "k a DEPTH 1", "DEPTH"),
        (&FORCE, "k a", "a"),
        (&HOLDS, "k a ALL", "ALL"),
        (&CHECK, "k 5 6", "6"),
        (&HELP, "me", "me"),
    ] {
        let told = format!("ERR syntax error at '{word}': the syntax is {}", command.usage());
        assert_eq!(refusal(command, line), told, "{line}");
    }
    let empty = read_words(&FORCE, &[b"k", b""]).map(|_| ()).unwrap_err();
    assert_eq!(empty, format!("ERR syntax error at '': the syntax is {}", FORCE.usage()));
}

#[test]
fn too_few_words_are_told_as_the_server_tells_them() {
    for (command, line) in [
        (&ACQUIRE, ""),
        (&ACQUIRE, "k"),
        (&RELEASE, "k"),
        (&RENEW, "k"),
        (&FORCE, ""),
        (&HOLDS, "k"),
        (&CHECK, "k"),
        (&INFO, ""),
        (&APPLY, "k"),
    ] {
        let name = command.name.to_lowercase();
        let told = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(refusal(command, line), told, "{name} {line}");
    }
}

#[test]
fn an_owner_has_1_to_512_bytes() {
    for command in [&ACQUIRE, &RELEASE, &RENEW, &HOLDS] {
        for length in [0, 513, 1_000_000] {
            let line = read_words(command, &[b"k", &vec![b'a'; length]]).map(|_| ()).unwrap_err();
            assert_eq!(line, format!("ERR owner must be 1 to 512 bytes long, not {length}"));
        }
        for length in [1, 512] {
            assert!(read_words(command, &[b"k", &vec![0xff; length]]).is_ok());
        }
    }
}

#[test]
fn waits_windows_and_counts_have_their_ranges() {
    let ms = "milliseconds, not";
    for (command, line, told) in [
        (
            &ACQUIRE,
            "k a BLOCK -1",
            format!("BLOCK must be an integer from 0 to 604800000 {ms} '-1'"),
        ),
        (
            &ACQUIRE,
            "k a BLOCK 604800001",
            format!("BLOCK must be an integer from 0 to 604800000 {ms} '604800001'"),
        ),
        (&ACQUIRE, "k a QUEUE 0", format!("QUEUE must be an integer from 1 to 60000 {ms} '0'")),
        (
            &ACQUIRE,
            "k a QUEUE 60001",
            format!("QUEUE must be an integer from 1 to 60000 {ms} '60001'"),
        ),
        (
            &INFO,
            "k WAITERS 1000001",
            "WAITERS must be an integer from 0 to 10000 waiters, not '1000001'".into(),
        ),
        (
            &ACQUIRE,
            "k a LIMIT 0",
            "LIMIT must be an integer from 1 to 1000000 permits, not '0'".into(),
        ),
        (
            &ACQUIRE,
            "k a LIMIT 1000001",
            "LIMIT must be an integer from 1 to 1000000 permits, not '1000001'".into(),
        ),
        (
            &ACQUIRE,
            "k a BLOCK 0 MAXQUEUE 1000001",
            "MAXQUEUE must be an integer from 0 to 1000000 waiters, not '1000001'".into(),
        ),
        (&QUEUES, "COUNT 0", "COUNT must be an integer from 1 to 1000, not '0'".into()),
        (&QUEUES, "COUNT 1001", "COUNT must be an integer from 1 to 1000, not '1001'".into()),
    ] {
        assert_eq!(refusal(command, line), format!("ERR {told}"), "{line}");
    }
    let most = read(&ACQUIRE, "k a READ limit 1000000 maxqueue 0").unwrap();
    assert_eq!((most.limit, most.max_queue), (NonZeroU32::new(1_000_000), Some(0)));
    assert_eq!(read(&ACQUIRE, "k a MAXQUEUE 1000000").unwrap().max_queue, Some(1_000_000));
    assert_eq!(read(&ACQUIRE, "k a BLOCK 0").unwrap().block_ms, Some(0));
    assert_eq!(read(&ACQUIRE, "k a block 604800000").unwrap().block_ms, Some(604_800_000));
    assert_eq!(read(&ACQUIRE, "k a QUEUE 60000").unwrap().queue.map(LeaseMs::get), Some(60_000));
    assert_eq!(read(&INFO, "k WAITERS 0").unwrap().count, 0);
    assert_eq!((read(&INFO, "k").unwrap().count, read(&QUEUES, "").unwrap().count), (10, 10));
    assert_eq!(read(&QUEUES, "COUNT 1000").unwrap().count, 1000);
}

#[test]
fn the_slow_log_is_asked_for_one_thing() {
    use rlock_core::grammar::SlowLogRequest::{Get, Len, Reset};
    for (line, asked) in [
        ("GET", Get(10)),
        ("get 0", Get(0)),
        ("GET 10000", Get(10_000)),
        ("GET -1", Get(usize::MAX)),
        ("len", Len),
        ("Reset", Reset),
    ] {
        assert_eq!(read(&SLOWLOG, line).unwrap().slowlog, asked, "{line}");
    }
    let range = "GET must be an integer from 0 to 10000 entries, or -1 for all, not";
    for (line, told) in [
        ("", "wrong number of arguments for 'rlock.slowlog' command".into()),
        ("GET -2", format!("{range} '-2'")),
        ("GET 10001", format!("{range} '10001'")),
        ("GET LEN", format!("{range} 'LEN'")),
        ("LEN RESET", "syntax error: LEN and RESET are mutually exclusive".into()),
        ("RESET GET", "syntax error: RESET and GET are mutually exclusive".into()),
    ] {
        assert_eq!(refusal(&SLOWLOG, line), format!("ERR {told}"), "{line}");
    }
}

#[test]
fn a_session_has_a_lease_of_a_second_or_more() {
    let told =
        "ERR LEASE must be an integer from 1000 to 604800000 milliseconds with SESSION, not '999'";
    assert_eq!(refusal(&ACQUIRE, "k a SESSION LEASE 999"), told);
    assert_eq!(refusal(&ACQUIRE, "k a LEASE 999 SESSION"), told);
    assert_eq!(read(&ACQUIRE, "k a SESSION LEASE 1000").unwrap().lease.get(), 1000);
    assert!(read(&ACQUIRE, "k a SESSION").unwrap().session);
    let short = Limits { default_lease: LeaseMs::new(5).unwrap(), ..limits() };
    let words = ["k", "a", "SESSION"].map(str::as_bytes);
    assert_eq!(ACQUIRE.read(words.into_iter(), &short).unwrap().lease.get(), 1000);
}

/// Whatever the arguments are, the error is one printable line of limited length.
#[test]
fn no_word_breaks_the_line_of_its_error() {
    let long = vec![b'\n'; 100_000];
    let words: [&[u8]; 7] = [b"a\r\n+OK\r\n", b"\0", b"%s%n", b"a\\b", b"\xff\xfe", b"'", &long];
    for word in words {
        for words in [&[b"k".as_slice(), b"a", word][..], &[b"k", b"a", b"LEASE", word]] {
            let line = read_words(&ACQUIRE, words).map(|_| ()).unwrap_err();
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
            assert!(line.starts_with("ERR ") && line.len() < 512, "{line:?}");
            assert!(line.contains(&quoted(word)), "{line:?}");
        }
    }
}
