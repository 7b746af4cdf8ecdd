//! The bytes of locks and of their changes: golden bytes of each version, and bytes that
//! were truncated, flipped, made contradictory or crafted by an attacker.

use std::borrow::Cow;

use crate::support::laws::well_formed;
use crate::support::load_effect;
use rlock_core::snapshot::{
    Effect, Malformed, Start, as_token, load, load_effects, save, save_effect,
};
use rlock_core::{Change, End, EpochMs, Lock, Mode, Token};

const NOW_US: u64 = 1_700_000_000_000_000;
const SOON_MS: u64 = 1_700_000_030_000;
const LAST: u64 = (1 << 53) - 1;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(char::is_ascii_hexdigit).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn moment(ms: u64) -> EpochMs {
    EpochMs::new(ms).unwrap()
}

fn granted(owner: &[u8], mode: Mode, number: u64, ms: u64) -> Change<'_> {
    let owner = Cow::Borrowed(owner);
    Change::Granted { owner, mode, token: token(number), deadline: moment(ms) }
}

fn held(number: u64, depth: u16, ms: u64) -> Change<'static> {
    Change::Updated { token: token(number), depth, deadline: moment(ms) }
}

fn ended(number: u64, by: End) -> Change<'static> {
    Change::Ended { token: token(number), by }
}

fn lock(changes: &[Change<'_>]) -> Lock {
    let mut lock = Lock::default();
    for change in changes {
        lock.replay(change);
    }
    lock
}

fn saved(lock: &Lock) -> Vec<u8> {
    let mut to = Vec::new();
    save(lock, &mut to);
    to
}

/// Version 1: `01`, the number of holds, and per hold, in the order of tokens: owner (length,
/// bytes), mode (0 READ, 1 WRITE), token, deadline, depth. Numbers have seven bits per byte, the
/// lowest first. A released line is never changed: it describes data that is stored on disks.
fn golden_locks() -> Vec<(&'static str, Lock, Vec<u8>)> {
    let (read, write) = (Mode::Read, Mode::Write);
    let longest = [0xff; 512];
    let mut greatest = bytes("01 02 8004");
    greatest.extend(longest);
    greatest.extend(bytes("00 feffffffffffff0f ffffffffffffff0f ffff03 8004"));
    greatest.extend(longest);
    greatest.extend(bytes("01 ffffffffffffff0f ffffffffffffff0f ffff03"));
    vec![
        (
            "a writer",
            lock(&[granted(b"ann", write, NOW_US, SOON_MS)]),
            bytes("01 01  03 616e6e 01 8080f9c0c1c48203 b0ba97ffbc31 01"),
        ),
        (
            "a reader at depth 300",
            lock(&[granted(b"\x00\r\n", read, 1, 0), held(1, 300, 0)]),
            bytes("01 01  03 000d0a 00 01 00 ac02"),
        ),
        (
            "an upgrade, READ below WRITE",
            lock(&[granted(b"ann", read, 5, 100), granted(b"ann", write, 6, 50), held(6, 2, 50)]),
            bytes("01 02  03 616e6e 00 05 64 01  03 616e6e 01 06 32 02"),
        ),
        (
            "a writer that reads, too",
            lock(&[granted(b"ann", write, 5, 100), granted(b"ann", read, 6, 50)]),
            bytes("01 02  03 616e6e 01 05 64 01  03 616e6e 00 06 32 01"),
        ),
        (
            "three readers",
            lock(&[
                granted(b"c", read, 7, 9),
                granted(b"a", read, 300, 8),
                granted(b"b", read, 8, 7),
            ]),
            bytes("01 03  01 63 00 07 09 01  01 62 00 08 07 01  01 61 00 ac02 08 01"),
        ),
        (
            "the greatest of everything",
            lock(&[
                granted(&longest, read, LAST - 1, LAST),
                held(LAST - 1, u16::MAX, LAST),
                granted(&longest, write, LAST, LAST),
                held(LAST, u16::MAX, LAST),
            ]),
            greatest,
        ),
    ]
}

/// Version 1: `01`, the start (0 existing, 1 new, 2 rewritten), the number of changes, and per
/// change its kind. 0: owner, mode, token, deadline. 1: token, depth, deadline. 2: token, by what
/// (0 release, 1 lease, 2 force, 3 disconnect).
fn golden_effects() -> Vec<(Start, Vec<Change<'static>>, Vec<u8>)> {
    let (read, write) = (Mode::Read, Mode::Write);
    let mut greatest = bytes("01 00 02 00 8004");
    greatest.extend([0xff; 512]);
    greatest.extend(bytes("00 ffffffffffffff0f ffffffffffffff0f"));
    greatest.extend(bytes("01 ffffffffffffff0f ffff03 ffffffffffffff0f"));
    vec![
        (
            Start::Begins,
            vec![granted(b"ann", write, NOW_US, SOON_MS)],
            bytes("01 01 01  00 03 616e6e 01 8080f9c0c1c48203 b0ba97ffbc31"),
        ),
        (
            Start::Existing,
            vec![held(NOW_US, 2, SOON_MS)],
            bytes("01 00 01  01 8080f9c0c1c48203 02 b0ba97ffbc31"),
        ),
        (
            Start::Rewritten,
            vec![granted(b"b", read, 7, 100), held(7, 3, 100)],
            bytes("01 02 02  00 01 62 00 07 64  01 07 03 64"),
        ),
        (Start::Existing, vec![ended(5, End::Disconnected)], bytes("01 00 01  02 05 03")),
        (Start::Existing, vec![ended(5, End::Unconfirmed)], bytes("01 00 01  02 05 04")),
        (Start::Existing, vec![ended(5, End::Released)], bytes("01 00 01  02 05 00")),
        (
            Start::Existing,
            vec![ended(5, End::Expired), granted(b"b", read, 7, 100)],
            bytes("01 00 02  02 05 01  00 01 62 00 07 64"),
        ),
        (
            Start::Existing,
            vec![ended(300, End::Forced), ended(301, End::Forced)],
            bytes("01 00 02  02 ac02 02  02 ad02 02"),
        ),
        (
            Start::Existing,
            vec![granted(&[0xff; 512], read, LAST, LAST), held(LAST, u16::MAX, LAST)],
            greatest,
        ),
    ]
}

#[test]
fn every_released_version_of_a_lock_is_read_and_the_newest_is_written() {
    for (name, lock, golden) in golden_locks() {
        assert_eq!(load(&golden).as_ref(), Ok(&lock), "{name}");
        assert_eq!(saved(&lock), golden, "{name}");
        well_formed(&lock);
    }
}

#[test]
fn every_released_version_of_an_effect_is_read_and_the_newest_is_written() {
    for (start, changes, golden) in golden_effects() {
        let mut written = Vec::new();
        save_effect(start, &changes, &mut written);
        assert_eq!(written, golden, "{changes:?}");
        assert_eq!(load_effect(&golden), Ok(Effect { start, changes }));
    }
}

#[test]
fn what_is_saved_is_appended() {
    let (_, lock, golden) = golden_locks().remove(0);
    let mut to = b"before".to_vec();
    save(&lock, &mut to);
    assert_eq!(to, [b"before".as_slice(), &golden].concat());
    let (start, changes, golden) = golden_effects().remove(0);
    let mut to = b"before".to_vec();
    save_effect(start, &changes, &mut to);
    assert_eq!(to, [b"before".as_slice(), &golden].concat());
}

#[test]
fn equal_locks_have_equal_bytes_whatever_their_history() {
    let read = Mode::Read;
    let plain = lock(&[granted(b"a", read, 1, 10), granted(b"b", read, 2, 10)]);
    let detour = lock(&[
        granted(b"b", read, 2, 99),
        granted(b"c", read, 3, 10),
        held(2, 4, 10),
        granted(b"a", read, 1, 10),
        held(2, 1, 10),
        ended(3, End::Expired),
    ]);
    assert_eq!(saved(&plain), saved(&detour));
    let (mut alone, mut left) = (plain, detour);
    for lock in [&mut alone, &mut left] {
        lock.replay(&ended(1, End::Released));
    }
    assert_eq!(saved(&alone), saved(&lock(&[granted(b"b", read, 2, 10)])));
    assert_eq!(saved(&alone), saved(&left));
}

#[test]
fn what_is_cut_off_or_followed_by_more_is_refused() {
    for (name, _, golden) in golden_locks() {
        for length in 0..golden.len() {
            assert_eq!(load(&golden[..length]), Err(Malformed::Format), "{name}, {length} bytes");
        }
        for more in [0, 1, 0xff] {
            let long = [golden.as_slice(), &[more]].concat();
            assert_eq!(load(&long), Err(Malformed::Format), "{name} and {more}");
        }
    }
    for (_, changes, golden) in golden_effects() {
        for length in 0..golden.len() {
            let cut = load_effect(&golden[..length]);
            assert_eq!(cut, Err(Malformed::Format), "{changes:?}, {length} bytes");
        }
        let long = [golden.as_slice(), &[0]].concat();
        assert_eq!(load_effect(&long), Err(Malformed::Format), "{changes:?} and 0");
    }
}

#[test]
fn effects_of_several_locks_are_those_of_each_in_a_row() {
    let golden = golden_effects();
    for (start, changes, one) in &golden {
        let alone = Effect { start: *start, changes: changes.clone() };
        assert_eq!(load_effects(one, 1).as_deref(), Ok(&[alone.clone()][..]), "{changes:?}");
        for (start, changes, other) in &golden {
            let both = [one.as_slice(), other].concat();
            let next = Effect { start: *start, changes: changes.clone() };
            assert_eq!(load_effects(&both, 2), Ok(vec![alone.clone(), next]));
            for count in [0, 1, 3] {
                assert_eq!(load_effects(&both, count), Err(Malformed::Format), "{count} keys");
            }
            let newer = [one.as_slice(), &[2], &other[1..]].concat();
            assert_eq!(load_effects(&newer, 2), Err(Malformed::Version(2)));
        }
        let both = [one.as_slice(), one].concat();
        for length in 0..both.len() {
            assert_eq!(load_effects(&both[..length], 2), Err(Malformed::Format), "{length} bytes");
        }
    }
}

#[test]
fn a_flipped_bit_gives_a_lock_or_an_error() {
    for (_, lock, golden) in golden_locks() {
        for flipped in every_flip(&golden) {
            if let Ok(other) = load(&flipped) {
                assert_ne!(lock, other, "a flip that changes nothing: {flipped:02x?}");
                well_formed(&other);
            }
        }
    }
    for (_, changes, golden) in golden_effects() {
        for flipped in every_flip(&golden) {
            if let Ok(effect) = load_effect(&flipped) {
                let mut lock = golden_locks().remove(2).1;
                for change in changes.iter().chain(&effect.changes) {
                    lock.replay(change);
                    well_formed(&lock);
                }
            }
        }
    }
}

fn every_flip(golden: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..golden.len() * 8).map(|bit| {
        let mut flipped = golden.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    })
}

#[test]
fn another_version_is_refused_by_its_number() {
    let golden = golden_locks().remove(0).2;
    let effect = golden_effects().remove(0).2;
    for version in (0..=255).filter(|version| *version != 1) {
        let other = |golden: &[u8]| [&[version], &golden[1..]].concat();
        assert_eq!(load(&other(&golden)), Err(Malformed::Version(version)));
        assert_eq!(load_effect(&other(&effect)), Err(Malformed::Version(version)));
        assert_eq!(load(&[version]), Err(Malformed::Version(version)));
    }
}

#[test]
fn bytes_that_are_no_lock_are_refused() {
    let owner_of = |length: &str, count| {
        [bytes(&format!("01 01 {length}")), vec![b'a'; count], bytes("00 01 64 01")].concat()
    };
    assert!(load(&owner_of("01", 1)).is_ok() && load(&owner_of("8004", 512)).is_ok());
    for (why, wrong) in [
        ("no hold", bytes("01 00")),
        ("owner of 0 bytes", owner_of("00", 0)),
        ("owner of 513 bytes", owner_of("8104", 513)),
        ("mode 2", bytes("01 01  01 61 02 01 64 01")),
        ("token 0", bytes("01 01  01 61 00 00 64 01")),
        ("token 2^53", bytes("01 01  01 61 00 8080808080808010 64 01")),
        ("token 2^64 - 1", bytes("01 01  01 61 00 ffffffffffffffffff01 64 01")),
        ("token beyond 64 bits", bytes("01 01  01 61 00 ffffffffffffffffff02 64 01")),
        ("token without an end", bytes("01 01  01 61 00 ffffffffffffffffffffffff 64 01")),
        ("deadline 2^53", bytes("01 01  01 61 00 01 8080808080808010 01")),
        ("depth 0", bytes("01 01  01 61 00 01 64 00")),
        ("depth 65536", bytes("01 01  01 61 00 01 64 808004")),
        ("a token twice", bytes("01 02  01 61 00 07 64 01  01 62 00 07 64 01")),
        ("tokens that fall", bytes("01 02  01 61 00 08 64 01  01 62 00 07 64 01")),
        ("one hold, two announced", bytes("01 02  01 61 00 07 64 01")),
        ("two holds, one announced", bytes("01 01  01 61 00 07 64 01  01 62 00 08 64 01")),
    ] {
        assert_eq!(load(&wrong), Err(Malformed::Format), "{why}");
    }
}

#[test]
fn holds_that_exclude_each_other_are_refused() {
    for (why, wrong) in [
        ("an owner that reads twice", "01 02  01 61 00 07 64 01  01 61 00 08 64 01"),
        ("an owner that writes twice", "01 02  01 61 01 07 64 01  01 61 01 08 64 01"),
        ("two writers", "01 02  01 61 01 07 64 01  01 62 01 08 64 01"),
        ("a reader beside a writer", "01 02  01 61 01 07 64 01  01 62 00 08 64 01"),
        ("a writer beside a reader", "01 02  01 61 00 07 64 01  01 62 01 08 64 01"),
        (
            "a writer beside readers",
            "01 03  01 61 00 07 64 01  01 62 00 08 64 01  01 63 01 09 64 01",
        ),
        (
            "a writer among readers",
            "01 03  01 61 00 07 64 01  01 62 00 08 64 01  01 62 01 09 64 01",
        ),
        (
            "a reader beside both modes",
            "01 03  01 61 00 07 64 01  01 61 01 08 64 01  01 62 00 09 64 01",
        ),
        (
            "a reader of three twice",
            "01 03  01 61 00 07 64 01  01 62 00 08 64 01  01 61 00 09 64 01",
        ),
        ("a hold that is over beside a writer", "01 02  01 61 01 07 00 01  01 62 01 08 64 01"),
    ] {
        assert_eq!(load(&bytes(wrong)), Err(Malformed::Contradiction), "{why}");
    }
}

#[test]
fn a_token_without_a_lock_leaves_nothing_else() {
    let changes = as_token(token(300));
    let mut written = Vec::new();
    save_effect(Start::Existing, &changes, &mut written);
    assert_eq!(written, bytes("01 00 02  00 05 726c6f636b 01 ac02 00  02 ac02 00"));
    assert_eq!(load_effect(&written).unwrap().changes, changes);
    assert!(lock(&changes).is_free());
}

#[test]
fn bytes_that_are_no_effect_are_refused() {
    let owner_of = |length: &str, count| {
        [bytes(&format!("01 00 01 00 {length}")), vec![b'a'; count], bytes("00 01 64")].concat()
    };
    assert!(load_effect(&owner_of("01", 1)).is_ok() && load_effect(&owner_of("8004", 512)).is_ok());
    for (why, wrong) in [
        ("a start that is not known", bytes("01 03 01  02 05 00")),
        ("a rewritten lock that grants nothing", bytes("01 02 01  02 05 00")),
        ("no change", bytes("01 00 00")),
        ("a beginning with no change", bytes("01 01 00")),
        ("a beginning that grants nothing", bytes("01 01 01  02 05 00")),
        ("a kind of change that is not known", bytes("01 00 01  03 05 00")),
        ("an end that is not known", bytes("01 00 01  02 05 05")),
        ("owner of 0 bytes", owner_of("00", 0)),
        ("owner of 513 bytes", owner_of("8104", 513)),
        ("mode 2", bytes("01 00 01  00 01 61 02 01 64")),
        ("token 0", bytes("01 00 01  02 00 00")),
        ("token 2^53", bytes("01 00 01  02 8080808080808010 00")),
        ("deadline 2^53", bytes("01 00 01  01 05 01 8080808080808010")),
        ("depth 0", bytes("01 00 01  01 05 00 64")),
        ("depth 65536", bytes("01 00 01  01 05 808004 64")),
        ("one sound change, one not", bytes("01 00 02  02 05 00  01 05 00 64")),
    ] {
        assert_eq!(load_effect(&wrong), Err(Malformed::Format), "{why}");
    }
}

/// A length is trusted only as far as there are bytes: otherwise, a few bytes could take all
/// memory.
#[test]
fn a_length_that_is_a_lie_is_refused_at_once() {
    for length in
        ["ffffffff0f", "ffffffffffffff7f", "ffffffffffffffffff01", "ffffffffffffffffffff01"]
    {
        for lie in [format!("01 {length}"), format!("01 {length} 01 61 00 07 64 01")] {
            assert_eq!(load(&bytes(&lie)), Err(Malformed::Format), "holds: {lie}");
        }
        let owner = format!("01 01 {length} 61 00 07 64 01");
        assert_eq!(load(&bytes(&owner)), Err(Malformed::Format), "owner: {owner}");
        let changes = format!("01 00 {length} 02 05 00");
        assert_eq!(load_effect(&bytes(&changes)), Err(Malformed::Format), "changes: {changes}");
        let owner = format!("01 00 01 00 {length} 61 00 07 64");
        assert_eq!(load_effect(&bytes(&owner)), Err(Malformed::Format), "owner: {owner}");
    }
}

#[test]
fn random_bytes_give_a_lock_or_an_error() {
    let seed =
        std::env::var("RLOCK_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("RLOCK_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut locks, mut effects) = (0, 0);
    for _ in 0..50_000 {
        // Small bytes are more often valid lengths, modes and numbers.
        let mut random = vec![1];
        random.extend((0..rng.usize(..24)).map(|_| rng.u8(..=255) >> rng.u8(3..8)));
        if let Ok(lock) = load(&random) {
            well_formed(&lock);
            locks += 1;
        }
        if let Ok(effect) = load_effect(&random) {
            well_formed(&lock(&effect.changes));
            effects += 1;
        }
    }
    println!("{locks} locks, {effects} effects");
    assert!(locks > 10 && effects > 10, "only {locks} locks and {effects} effects");
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    for (malformed, line) in [
        (Malformed::Version(9), "unknown format version 9 (supported: 1)"),
        (Malformed::Format, "it is cut off, out of range, or too long"),
        (Malformed::Contradiction, "its holds are mutually exclusive"),
    ] {
        assert_eq!(malformed.to_string(), line);
    }
}
