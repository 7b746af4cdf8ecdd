//! The arguments of commands that name several keys.

use rlock_core::grammar::commands::{APPLY, MACQUIRE, MRELEASE, MRENEW};
use rlock_core::grammar::{Arguments, Command, Limits, SeveralKeys, Want, key_count};
use rlock_core::{LeaseMs, Mode};

type Read<'a> = Result<(Arguments<'a>, SeveralKeys<'a>), String>;

fn read<'a>(command: &Command, line: &'a str) -> Read<'a> {
    let limits = Limits {
        default_lease: LeaseMs::new(30_000).unwrap(),
        max_lease: LeaseMs::MAX,
        max_depth: u16::MAX,
        acks: 0,
    };
    let mut keys = SeveralKeys::default();
    let words = line.split(' ').map(str::as_bytes);
    match command.read_several(words, &limits, &mut keys) {
        Ok(said) => Ok((said, keys)),
        Err(bad) => Err(bad.line().into()),
    }
}

/// For each key: the key, the mode, the limit, and the index in the request.
fn wants<'a>(line: &'a str) -> Vec<(&'a str, Mode, u32, usize)> {
    let (said, keys) = read(&MACQUIRE, line).unwrap();
    let shown = |Want { key, mode, limit, number }: Want<&'a [u8]>| {
        (std::str::from_utf8(key).unwrap(), mode, limit.map_or(0, |limit| limit.get()), number)
    };
    keys.wants(&said).into_iter().map(shown).collect()
}

#[test]
fn keys_come_in_key_order_with_their_modes() {
    let (read_mode, write) = (Mode::Read, Mode::Write);
    assert_eq!(
        wants("4 b a:1 a\u{ff} a ann"),
        [("a", write, 0, 3), ("a:1", write, 0, 1), ("a\u{ff}", write, 0, 2), ("b", write, 0, 0)],
        "bytewise ascending, a prefix first"
    );
    assert_eq!(wants("2 b a ann read"), [("a", read_mode, 0, 1), ("b", read_mode, 0, 0)]);
    assert_eq!(wants("1 READ WRITE WRITE"), [("READ", write, 0, 0)], "names may be words");
    assert_eq!(
        wants("3 b a c ann LEASE 5 MODES write 20 Read WITHTTL"),
        [("a", read_mode, 20, 1), ("b", write, 0, 0), ("c", read_mode, 0, 2)]
    );
    let (said, keys) = read(&MACQUIRE, "2 b a ann MODES WRITE 1000000 LEASE 7 WITHTTL").unwrap();
    assert_eq!((said.owner, said.lease.get(), said.with_ttl), (&b"ann"[..], 7, true));
    assert_eq!((said.key, keys.keys), (&b"b"[..], vec![&b"b"[..], b"a"]));
    let (said, _) = read(&MRELEASE, "2 a b ann TOKEN 5").unwrap();
    assert_eq!(said.token.map(|token| token.get()), Some(5));
    assert_eq!(read(&MRENEW, "1 a ann LEASE 9").unwrap().0.lease.get(), 9);
}

#[test]
fn the_number_of_keys_is_read_as_strictly_as_the_server_reads_it() {
    for (given, count) in [("1", 1), ("9", 9), ("10", 10), ("128", 128)] {
        assert_eq!(key_count(given.as_bytes()), Some(count));
    }
    let bad = [
        "",
        "0",
        "00",
        "01",
        "+1",
        "-1",
        " 1",
        "1 ",
        "129",
        "1.0",
        "1e1",
        "0x1",
        "a",
        "2147483649",
        "18446744073709551617",
        "99999999999999999999",
        "1\0",
    ];
    for given in bad {
        assert_eq!(key_count(given.as_bytes()), None, "{given:?}");
    }
    for command in [&MACQUIRE, &MRELEASE, &MRENEW] {
        for given in ["0", "129", "+2", "02", "two"] {
            let line = format!("{given} a b ann");
            assert_eq!(
                read(command, &line).map(|_| ()).unwrap_err(),
                format!("ERR numkeys must be an integer from 1 to 128, not '{given}'")
            );
        }
        for line in ["2 a b", "2 a", "3 a b ann", "128 a b ann"] {
            let error = read(command, line).map(|_| ()).unwrap_err();
            let numkeys = line.split(' ').next().unwrap();
            let told = format!("ERR numkeys is {numkeys}: {numkeys} keys and an owner must follow");
            assert!(error.starts_with(&told), "{line}: {error}");
        }
    }
    let keys: Vec<String> = (0..128).map(|number| format!("k{number}")).collect();
    assert_eq!(wants(&format!("128 {} ann", keys.join(" "))).len(), 128);
}

#[test]
fn the_keys_of_an_effect_ascend() {
    let line = |count: usize| {
        let keys: Vec<String> = (100..100 + count).map(|number| format!("k{number}")).collect();
        format!("{} payload", keys.join(" "))
    };
    for (line, keys) in [("k p", vec!["k"]), ("a a:1 b p", vec!["a", "a:1", "b"])] {
        let (said, read) = read(&APPLY, line).unwrap();
        let keys: Vec<&[u8]> = keys.into_iter().map(str::as_bytes).collect();
        assert_eq!((read.keys.as_slice(), said.key), (keys.as_slice(), keys[0]), "{line}");
        assert_eq!(said.payload, b"p", "{line}");
    }
    assert_eq!(read(&APPLY, &line(128)).unwrap().1.keys.len(), 128);
    let refused = |line: &str| read(&APPLY, line).map(|_| ()).unwrap_err();
    for line in ["b a p", "a a p", "a:1 a p", "a c b p"] {
        let told = "ERR the keys of an effect must be in ascending order, each named once";
        assert_eq!(refused(line), told, "{line}");
    }
    for count in [129, 130, 5000] {
        assert_eq!(refused(&line(count)), "ERR an effect has at most 128 keys", "{count}");
    }
    assert_eq!(refused("k"), "ERR wrong number of arguments for 'rlock.apply' command");
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |command: &Command, line: &str| read(command, line).map(|_| ()).unwrap_err();
    for command in [&MACQUIRE, &MRELEASE, &MRENEW] {
        assert_eq!(refused(command, "3 a b a ann"), "ERR key 'a' is named twice");
    }
    let told = "ERR each of MODES must be WRITE, READ, or an integer from 1 to 1000000 permits";
    for mode in ["0", "1000001", "UPGRADE", "01", "-1", ""] {
        let error = refused(&MACQUIRE, &format!("2 a b ann MODES READ {mode}"));
        assert_eq!(error, format!("{told}, not '{mode}'"));
    }
    assert_eq!(
        refused(&MACQUIRE, "2 a b ann MODES READ"),
        "ERR MODES needs as many modes as there are keys: 2, not 1"
    );
    assert_eq!(
        refused(&MACQUIRE, "2 a b ann MODES READ WRITE READ"),
        "ERR syntax error: MODES and READ are mutually exclusive"
    );
    for (line, one, other) in [("MODES READ WRITE", "READ", "MODES"), ("READ", "WRITE", "READ")] {
        let error = refused(&MACQUIRE, &format!("2 a b ann {one} {line}"));
        assert_eq!(error, format!("ERR syntax error: {one} and {other} are mutually exclusive"));
    }
    let twice = refused(&MACQUIRE, "1 a ann MODES READ MODES WRITE");
    assert_eq!(twice, "ERR syntax error: MODES is given twice");
    for option in ["UPGRADE", "DEPTH 1", "LIMIT 2", "TOKEN 5"] {
        let error = refused(&MACQUIRE, &format!("2 a b ann {option}"));
        assert!(error.contains("the syntax is RLOCK.MACQUIRE numkeys key [key ...]"), "{error}");
    }
    let owner = format!("1 a {}", "x".repeat(513));
    assert_eq!(refused(&MACQUIRE, &owner), "ERR owner must be 1 to 512 bytes long, not 513");
}
