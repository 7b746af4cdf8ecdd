//! Names of any bytes, numbers of any form, and the limits.

use redis::Value;

use rlock_testkit::{DEPTH_MAX, LockView, Server, integer, until};

#[test]
fn every_byte_may_stand_in_an_owner_and_in_a_key() {
    let server = Server::start();
    let mut client = server.client();
    let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
    let granted = client.ask_bytes(&[b"RLOCK.ACQUIRE", &all_bytes, &all_bytes]);
    let Value::Int(token) = granted else { panic!("{granted:?}") };
    let lock = LockView::read(&client.ask_bytes(&[b"RLOCK.INFO", &all_bytes]));
    assert_eq!(lock.lasting(), [(all_bytes.clone(), "write".to_owned(), 1, token)]);
    client.ask("DEBUG RELOAD");
    let held = client.ask_bytes(&[b"RLOCK.HOLDS", &all_bytes, &all_bytes]);
    assert_eq!(held, Value::Int(1));
    let released = client.ask_bytes(&[b"RLOCK.RELEASE", &all_bytes, &all_bytes]);
    assert_eq!(released, Value::Int(0));
}

#[test]
fn owners_that_differ_in_one_byte_or_in_length_are_different_owners() {
    let server = Server::start();
    let mut client = server.client();
    client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", b"ann\0"]);
    let strangers: [&[u8]; 7] =
        [b"ann", b"ann\0\0", b"ann\x01", b"Ann\0", b"\0ann", b"ann\0 ", b"\xff"];
    for stranger in strangers {
        let held = client.ask_bytes(&[b"RLOCK.HOLDS", b"door", stranger]);
        assert_eq!(held, Value::Int(0), "{}", stranger.escape_ascii());
        let refused = client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", stranger]);
        assert_eq!(refused, Value::Nil, "{}", stranger.escape_ascii());
    }
}

#[test]
fn words_of_the_grammar_are_fine_names() {
    let server = Server::start();
    let mut client = server.client();
    for name in ["READ", "LEASE", "ALL", "TOKEN", "-1", "0", "NIL"] {
        client.granted(&format!("RLOCK.ACQUIRE {name} {name} LEASE 60000"));
        assert_eq!(client.number(&format!("RLOCK.HOLDS {name} {name}")), 1);
        assert_eq!(client.number(&format!("RLOCK.RELEASE {name} {name} ALL")), 0);
    }
}

#[test]
fn an_owner_has_1_to_512_bytes() {
    let server = Server::start();
    let mut client = server.client();
    for length in [1, 63, 64, 127, 128, 255, 256, 511, 512] {
        let owner = vec![b'o'; length];
        client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", &owner, b"READ"]);
        let held = client.ask_bytes(&[b"RLOCK.HOLDS", b"door", &owner]);
        assert_eq!(held, Value::Int(1), "{length} bytes");
    }
    client.ask("DEBUG RELOAD");
    assert_eq!(client.lock("door").holds.len(), 9);
    for length in [0, 513, 100_000] {
        let owner = vec![b'o'; length];
        for command in ["ACQUIRE", "RELEASE", "RENEW", "HOLDS"] {
            let command = format!("RLOCK.{command}");
            let error = client.error_bytes(&[command.as_bytes(), b"door", &owner]);
            assert!(error.starts_with("ERR "), "{length} bytes: {error}");
        }
    }
    assert_eq!(client.lock("door").holds.len(), 9);
}

#[test]
fn a_key_may_be_empty_or_long() {
    let server = Server::start();
    let mut client = server.client();
    for key in [Vec::new(), vec![b'k'; 100_000]] {
        client.ask_bytes(&[b"RLOCK.ACQUIRE", &key, b"ann"]);
        let refused = client.ask_bytes(&[b"RLOCK.ACQUIRE", &key, b"bob"]);
        assert_eq!(refused, Value::Nil);
        let released = client.ask_bytes(&[b"RLOCK.RELEASE", &key, b"ann"]);
        assert_eq!(released, Value::Int(0));
    }
}

#[test]
fn a_number_is_plain_decimal_digits_and_nothing_else() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let before = client.dump("door");
    let odd: [&[u8]; 21] = [
        b"",
        b" ",
        b"+1",
        b"01",
        b" 1",
        b"1 ",
        b"1\0",
        b"1\n",
        b"-1",
        b"-0",
        b"1.5",
        b"1e3",
        b"0x10",
        b"1_000",
        b"\xd9\xa1",
        b"nan",
        b"9223372036854775807",
        b"9223372036854775808",
        b"18446744073709551615",
        b"18446744073709551616",
        b"99999999999999999999999999999999",
    ];
    for number in odd {
        let requests: [&[&[u8]]; 7] = [
            &[b"RLOCK.ACQUIRE", b"door", b"ann", b"LEASE", number],
            &[b"RLOCK.ACQUIRE", b"door", b"ann", b"DEPTH", number],
            &[b"RLOCK.RELEASE", b"door", b"ann", b"DEPTH", number],
            &[b"RLOCK.RELEASE", b"door", b"ann", b"TOKEN", number],
            &[b"RLOCK.RENEW", b"door", b"ann", b"LEASE", number],
            &[b"RLOCK.RENEW", b"door", b"ann", b"TOKEN", number],
            &[b"RLOCK.CHECK", b"door", number],
        ];
        for request in requests {
            let shown: Vec<String> = request.iter().map(|w| w.escape_ascii().to_string()).collect();
            let error = client.attempt_bytes(request).expect_err(&shown.join(" "));
            assert!(error.starts_with("ERR "), "{shown:?}: {error}");
        }
    }
    assert_eq!(client.dump("door"), before);
}

#[test]
fn the_greatest_token_is_a_token_that_nobody_holds() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    for token in [1, (1_i64 << 53) - 1] {
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
        let line = format!("RLOCK.RELEASE door ann TOKEN {token}");
        assert!(client.error(&line).starts_with("NOTHELD "));
    }
}

#[test]
fn a_hold_is_at_most_as_deep_as_configured() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("CONFIG SET rlock.max-depth 3");
    for mode in ["WRITE", "READ"] {
        for _ in 0..3 {
            client.granted(&format!("RLOCK.ACQUIRE door ann {mode} LEASE 60000"));
        }
        let before = client.dump("door");
        let error = client.error(&format!("RLOCK.ACQUIRE door ann {mode} LEASE 90000"));
        assert!(error.starts_with("TOOMANY "), "{error}");
        assert_eq!(client.dump("door"), before);
    }
    assert!(client.error("RLOCK.ACQUIRE door ann DEPTH 4").starts_with("ERR "));
    assert!(client.error("RLOCK.RELEASE door ann DEPTH 4").starts_with("ERR "));
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 2);
    client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(client.number("RLOCK.RELEASE door ann DEPTH 3"), 3);
}

#[test]
fn a_hold_deeper_than_a_later_limit_is_still_given_back() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..5 {
        client.granted("RLOCK.ACQUIRE door ann");
    }
    client.ask("CONFIG SET rlock.max-depth 2");
    assert!(client.error("RLOCK.ACQUIRE door ann").starts_with("TOOMANY "));
    assert_eq!(client.number("RLOCK.RENEW door ann"), 1);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 4);
    assert_eq!(client.number("RLOCK.RELEASE door ann DEPTH 1"), 1);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
}

#[test]
fn a_hold_of_the_greatest_depth_outlives_a_reload() {
    let server = Server::start();
    let mut client = server.client();
    let script = format!(
        "for i = 1, {DEPTH_MAX} do redis.call('RLOCK.ACQUIRE', KEYS[1], 'ann', 'LEASE', '600000') \
         end"
    );
    client.ask_bytes(&[b"EVAL", script.as_bytes(), b"1", b"door"]);
    assert!(client.error("RLOCK.ACQUIRE door ann").starts_with("TOOMANY "));
    client.ask("DEBUG RELOAD");
    assert_eq!(client.number("RLOCK.HOLDS door ann"), DEPTH_MAX);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), DEPTH_MAX - 1);
    assert_eq!(client.number("RLOCK.RELEASE door ann ALL"), 0);
}

#[test]
fn a_request_of_many_words_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    let mut words: Vec<&[u8]> = vec![b"RLOCK.ACQUIRE", b"door", b"ann"];
    words.extend(std::iter::repeat_n(b"WITHTTL".as_slice(), 100_000));
    assert!(client.error_bytes(&words).starts_with("ERR "));
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_user_whose_name_is_not_text_waits_and_loses_its_session_like_any_other() {
    let server = Server::start();
    let mut client = server.client();
    let name = b"ann\xff\xe9";
    client.ask_bytes(&[b"ACL", b"SETUSER", name, b"on", b">secret", b"~*", b"+@all"]);
    client.granted("RLOCK.ACQUIRE door bob LEASE 600000");
    let mut user = server.client();
    user.ask_bytes(&[b"AUTH", name, b"secret"]);
    user.send(&["RLOCK.ACQUIRE", "door", "ann", "LEASE", "600000", "SESSION", "BLOCK", "0"]);
    until(5_000, || client.queue("door") == "ann write block");
    client.ask("RLOCK.RELEASE door bob");
    assert!(integer(&user.receive()) > 0);
    // The session is lost while it is blocked: what would unblock it comes right behind the loss.
    user.send(&["BLMOVE", "list", "out", "LEFT", "LEFT", "0"]);
    until(5_000, || client.info_number("clients", "blocked_clients") == 1);
    client.all(&["RLOCK.FORCE door", "LPUSH list element"]);
    until(5_000, || client.info_number("clients", "blocked_clients") == 0);
    assert_eq!((client.number("LLEN list"), client.number("EXISTS out")), (1, 0));
}
