//! Every refusal: its prefix, what its text names, and that it is one printable line.

use rlock_testkit::{Client, DEPTH_MAX, LEASE_MS_MAX, Server, TOKEN_END, Wire, until};

/// A name with which somebody might try to forge a reply, cut one short, or have it formatted.
const HOSTILE: &[u8] = b"a\r\n+OK\r\n$5\0%s%n%x\\\x7f\xff\x1b[2J";
/// The same name as an error may show it.
const HOSTILE_SHOWN: &str = "a\\x0d\\x0a+OK\\x0d\\x0a$5\\x00%s%n%x\\x5c\\x7f\\xff\\x1b[2J";

/// Asserts that the error has this prefix and contains these words, in upper or lower case.
#[track_caller]
fn assert_names(error: &str, prefix: &str, words: &[&str]) {
    assert!(error.starts_with(&format!("{prefix} ")), "{error}");
    let said = error.to_lowercase();
    for word in words {
        let is_said = said.contains(&word.to_lowercase());
        assert!(is_said, "{word:?} is not in {error:?}");
    }
}

/// Asserts that the error has this prefix and shows exactly this name.
#[track_caller]
fn assert_shows(error: &str, prefix: &str, name: &str) {
    assert!(error.starts_with(&format!("{prefix} ")), "{error}");
    assert!(error.contains(name), "{name:?} is not in {error:?}");
}

#[test]
fn what_is_missing_after_numkeys_is_counted() {
    let server = Server::start();
    let mut client = server.client();
    for (words, told) in [
        ("1 a b", None),
        ("2 a b", Some("numkeys is 2: 2 keys and an owner must follow it, not 2 words")),
        ("3 a b", Some("numkeys is 3: 3 keys and an owner must follow it, not 2 words")),
        ("3 a b ann", Some("numkeys is 3: 3 keys and an owner must follow it, not 3 words")),
        ("128 a b", Some("numkeys is 128: 128 keys and an owner must follow it, not 2 words")),
    ] {
        for command in ["RLOCK.MACQUIRE", "RLOCK.MRENEW", "RLOCK.MRELEASE"] {
            let reply = client.attempt(&format!("{command} {words}"));
            match told {
                Some(told) => assert_eq!(reply.unwrap_err(), format!("ERR {told}"), "{command}"),
                None => drop(reply.unwrap()),
            }
        }
    }
    assert_eq!(client.number("DBSIZE"), 0);
}

#[test]
fn too_few_and_too_many_arguments_are_refused_as_the_server_does() {
    let server = Server::start();
    let mut client = server.client();
    for line in [
        "RLOCK.ACQUIRE",
        "RLOCK.ACQUIRE door",
        "RLOCK.RELEASE door",
        "RLOCK.RENEW door",
        "RLOCK.FORCE",
        "RLOCK.TAKE door",
        "RLOCK.HOLDS door",
        "RLOCK.CHECK door",
        "RLOCK.INFO",
        "RLOCK.APPLY",
        "RLOCK.APPLY door",
    ] {
        let command = line.split(' ').next().unwrap().to_lowercase();
        let error = client.error(line);
        assert_names(&error, "ERR", &["wrong number of arguments", &command]);
    }
    for line in [
        "RLOCK.FORCE door READ WRITE",
        "RLOCK.HOLDS door ann READ WRITE",
        "RLOCK.CHECK door 5 READ WRITE",
        "RLOCK.INFO door VERBOSE",
        "RLOCK.HELP me",
    ] {
        assert_names(&client.error(line), "ERR", &[]);
    }
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_syntax_error_names_the_word() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let before = client.dump("door");
    for (line, word) in [
        ("RLOCK.ACQUIRE door ann SHARED", "SHARED"),
        ("RLOCK.ACQUIRE door ann LEASE 1000 PLEASE", "PLEASE"),
        ("RLOCK.ACQUIRE door ann LEASE", "LEASE"),
        ("RLOCK.ACQUIRE door ann READ DEPTH", "DEPTH"),
        ("RLOCK.ACQUIRE door ann TOKEN 5", "TOKEN"),
        ("RLOCK.ACQUIRE door ann 1000", "1000"),
        ("RLOCK.RELEASE door ann NOW", "NOW"),
        ("RLOCK.RELEASE door ann TOKEN", "TOKEN"),
        ("RLOCK.RELEASE door ann UPGRADE", "UPGRADE"),
        ("RLOCK.RENEW door ann FOREVER", "FOREVER"),
        ("RLOCK.RENEW door ann LEASE", "LEASE"),
        ("RLOCK.FORCE door ann", "ann"),
        ("RLOCK.HOLDS door ann BOTH", "BOTH"),
        ("RLOCK.CHECK door 5 BOTH", "BOTH"),
    ] {
        assert_names(&client.error(line), "ERR", &[word]);
    }
    assert_eq!(client.dump("door"), before);
}

#[test]
fn a_number_out_of_range_names_the_option_the_range_and_the_unit() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let before = client.dump("door");
    let lease = ["LEASE", "1", &LEASE_MS_MAX.to_string(), "millisecond"];
    let depth = ["DEPTH", "1", &DEPTH_MAX.to_string(), "level"];
    let depth_from_0 = ["DEPTH", "0", &DEPTH_MAX.to_string(), "level"];
    let token = ["TOKEN", "1", &(TOKEN_END - 1).to_string()];
    let checked_token = ["token", "1", &(TOKEN_END - 1).to_string()];
    for (line, words) in [
        ("RLOCK.ACQUIRE door ann LEASE 0", &lease[..]),
        ("RLOCK.ACQUIRE door ann LEASE 604800001", &lease),
        ("RLOCK.ACQUIRE door ann LEASE -1", &lease),
        ("RLOCK.ACQUIRE door ann LEASE soon", &lease),
        ("RLOCK.RENEW door ann LEASE 0", &lease),
        ("RLOCK.ACQUIRE door ann DEPTH 0", &depth),
        ("RLOCK.ACQUIRE door ann DEPTH 65536", &depth),
        ("RLOCK.ACQUIRE door ann DEPTH deep", &depth),
        ("RLOCK.RELEASE door ann DEPTH -1", &depth_from_0),
        ("RLOCK.RELEASE door ann DEPTH 65536", &depth_from_0),
        ("RLOCK.RELEASE door ann TOKEN 0", &token),
        ("RLOCK.RELEASE door ann TOKEN 9007199254740992", &token),
        ("RLOCK.RENEW door ann TOKEN mine", &token),
        ("RLOCK.CHECK door 0", &checked_token),
        ("RLOCK.CHECK door 9007199254740992", &checked_token),
    ] {
        assert_names(&client.error(line), "ERR", words);
    }
    let owner = "o".repeat(513);
    for command in ["ACQUIRE", "RELEASE", "RENEW", "HOLDS"] {
        for owner in [owner.as_bytes(), b""] {
            let command = format!("RLOCK.{command}");
            let error = client.error_bytes(&[command.as_bytes(), b"door", owner]);
            assert_names(&error, "ERR", &["owner", "1", "512", "byte"]);
        }
    }
    assert_eq!(client.dump("door"), before);
}

#[test]
fn not_held_says_who_was_meant_and_what_is_held_instead() {
    let server = Server::start();
    let mut client = server.client();
    for command in ["RELEASE", "RENEW"] {
        client.ask("DEL door");
        let error = client.error(&format!("RLOCK.{command} door bob"));
        assert_names(&error, "NOTHELD", &["bob"]);
        let token = client.granted("RLOCK.ACQUIRE door ann");
        let error = client.error(&format!("RLOCK.{command} door bob"));
        assert_names(&error, "NOTHELD", &["bob", "WRITE"]);
        let error = client.error(&format!("RLOCK.{command} door ann READ"));
        assert_names(&error, "NOTHELD", &["ann", "READ", "WRITE"]);
        let wrong = (token + 1).to_string();
        let error = client.error(&format!("RLOCK.{command} door ann TOKEN {wrong}"));
        assert_names(&error, "NOTHELD", &["ann", &wrong, &token.to_string()]);
    }
}

#[test]
fn a_deadlock_names_a_way_out() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    let error = client.error("RLOCK.ACQUIRE door ann");
    assert_names(&error, "DEADLOCK", &["ann", "door", "READ", "UPGRADE"]);
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let server = Server::start();
    let mut client = server.client();
    for make in ["SET door value", "RPUSH door one two", "HSET door field value"] {
        client.ask("DEL door");
        client.ask(make);
        let before = client.dump("door");
        for line in [
            "RLOCK.ACQUIRE door ann",
            "RLOCK.RELEASE door ann",
            "RLOCK.RELEASE door ann DEPTH 0",
            "RLOCK.RENEW door ann",
            "RLOCK.FORCE door",
            "RLOCK.TAKE door ann",
            "RLOCK.HOLDS door ann",
            "RLOCK.CHECK door 5",
            "RLOCK.INFO door",
        ] {
            let error = client.error(line);
            assert!(error.starts_with("WRONGTYPE "), "{line}: {error}");
        }
        assert_eq!(client.dump("door"), before);
        assert_eq!(client.key_ends_at("door"), -1);
    }
    client.ask("DEL door");
    client.granted("RLOCK.ACQUIRE door ann");
    for line in ["GET door", "LPUSH door x", "INCR door", "HGETALL door"] {
        assert!(client.error(line).starts_with("WRONGTYPE "), "{line}");
    }
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn an_error_is_one_printable_line_whatever_the_names_contain() {
    let server = Server::start();
    let mut wire = Wire::to(&server);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE held ann");
    for key in [b"held".as_slice(), HOSTILE] {
        for command in ["RLOCK.RELEASE", "RLOCK.RENEW"] {
            let line = wire.error_line(&[command.as_bytes(), key, HOSTILE]);
            assert_shows(&line, "NOTHELD", HOSTILE_SHOWN);
        }
    }
    for words in [
        &[b"RLOCK.ACQUIRE".as_slice(), b"door", b"ann", HOSTILE][..],
        &[b"RLOCK.RELEASE", b"door", b"ann", HOSTILE],
        &[b"RLOCK.RENEW", b"door", b"ann", HOSTILE],
        &[b"RLOCK.FORCE", b"door", HOSTILE],
        &[b"RLOCK.TAKE", b"door", b"ann", HOSTILE],
        &[b"RLOCK.HOLDS", b"door", b"ann", HOSTILE],
        &[b"RLOCK.CHECK", b"door", b"5", HOSTILE],
    ] {
        let line = wire.error_line(words);
        assert_shows(&line, "ERR", HOSTILE_SHOWN);
    }
    for words in [
        &[b"RLOCK.ACQUIRE".as_slice(), HOSTILE, HOSTILE, b"LEASE", HOSTILE][..],
        &[b"RLOCK.ACQUIRE", HOSTILE, HOSTILE, b"DEPTH", HOSTILE],
        &[b"RLOCK.RELEASE", HOSTILE, HOSTILE, b"TOKEN", HOSTILE],
        &[b"RLOCK.CHECK", HOSTILE, HOSTILE],
        &[b"RLOCK.APPLY", HOSTILE, HOSTILE],
        &[b"RLOCK.INFO", HOSTILE, HOSTILE],
    ] {
        assert_names(&wire.error_line(words), "ERR", &[]);
    }
}

#[test]
fn an_error_about_a_hostile_holder_is_one_printable_line() {
    let server = Server::start();
    let mut wire = Wire::to(&server);
    let mut client = server.client();
    client.ask_bytes(&[b"RLOCK.ACQUIRE", HOSTILE, HOSTILE, b"READ"]);
    let line = wire.error_line(&[b"RLOCK.ACQUIRE", HOSTILE, HOSTILE]);
    assert_names(&line, "DEADLOCK", &[]);
    let line = wire.error_line(&[b"RLOCK.RELEASE", HOSTILE, b"bob"]);
    assert_names(&line, "NOTHELD", &["bob"]);
    let line = wire.error_line(&[b"RLOCK.RELEASE", HOSTILE, HOSTILE, b"WRITE"]);
    assert_shows(&line, "NOTHELD", HOSTILE_SHOWN);
    // All bytes, one after the other.
    for byte in 0..=u8::MAX {
        let owner = [b'<', byte, b'>'];
        let shown = match byte {
            b'\\' => "<\\x5c>".to_owned(),
            b' '..=b'~' => format!("<{}>", byte as char),
            _ => format!("<\\x{byte:02x}>"),
        };
        let line = wire.error_line(&[b"RLOCK.RELEASE", b"door", &owner]);
        assert_shows(&line, "NOTHELD", &shown);
    }
}

#[test]
fn a_name_in_an_error_is_cut_to_64_bytes_before_it_is_written_out() {
    let server = Server::start();
    let mut wire = Wire::to(&server);
    let whole = "x".repeat(64);
    let long = "x".repeat(512);
    let line = wire.error_line(&[b"RLOCK.RELEASE", b"door", long.as_bytes()]);
    assert!(line.contains(&whole) && !line.contains(&format!("{whole}x")), "{line}");
    let line = wire.error_line(&[b"RLOCK.RELEASE", b"door", &[0; 512]]);
    let zeros = "\\x00".repeat(64);
    assert!(line.contains(&zeros) && !line.contains(&format!("{zeros}\\")), "{line}");
    let huge = "y".repeat(100_000);
    let line = wire.error_line(&[b"RLOCK.ACQUIRE", b"door", b"ann", huge.as_bytes()]);
    assert!(line.len() < 1_000, "{} bytes", line.len());
    let line = wire.error_line(&[b"RLOCK.ACQUIRE", b"door", b"ann", b"LEASE", huge.as_bytes()]);
    assert!(line.len() < 1_000, "{} bytes", line.len());
    let line = wire.error_line(&[b"RLOCK.RELEASE", huge.as_bytes(), b"ann"]);
    assert!(line.len() < 1_000, "{} bytes", line.len());
}

#[test]
fn replies_on_the_wire_are_what_every_client_takes_for_granted() {
    let server = Server::start();
    let mut wire = Wire::to(&server);
    let granted = wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"ann"]);
    let digits = granted.strip_prefix(b":").and_then(|r| r.strip_suffix(b"\r\n"));
    assert!(digits.unwrap().iter().all(u8::is_ascii_digit), "{granted:?}");
    let refused = wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"bob"]);
    assert_eq!(refused, b"$-1\r\n");
    let refused = wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"bob", b"WITHTTL"]);
    assert!(refused.starts_with(b"*2\r\n$-1\r\n:"), "{refused:?}");
    assert_eq!(wire.exchange(&[b"RLOCK.RENEW", b"door", b"ann"]), b":1\r\n");
    assert_eq!(wire.exchange(&[b"RLOCK.RELEASE", b"door", b"ann"]), b":0\r\n");
}

#[test]
fn no_is_null_where_the_protocol_has_null() {
    let server = Server::start();
    let mut wire = Wire::to(&server);
    wire.exchange(&[b"HELLO", b"3"]);
    wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"ann"]);
    assert_eq!(wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"bob"]), b"_\r\n");
    let refused = wire.exchange(&[b"RLOCK.ACQUIRE", b"door", b"bob", b"WITHTTL"]);
    assert!(refused.starts_with(b"*2\r\n_\r\n:"), "{refused:?}");
}

#[test]
fn a_server_that_cannot_save_refuses_changes_and_answers_questions() {
    let server = Server::with(&["save", "3600 1000", "stop-writes-on-bgsave-error", "yes"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    // The file cannot replace a folder of that name.
    std::fs::create_dir_all(server.folder().join("dump.rdb/in-the-way")).unwrap();
    client.ask("BGSAVE");
    until(20_000, || {
        let status = client.info("persistence", "rdb_last_bgsave_status");
        status.as_deref() == Some("err")
    });
    for line in ["RLOCK.ACQUIRE gate ann", "RLOCK.RENEW door ann", "RLOCK.RELEASE door ann"] {
        assert!(client.error(line).starts_with("MISCONF "), "{line}");
    }
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn without_memory_nothing_is_granted_and_everything_can_be_given_back() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["a", "b", "c"] {
        client.granted(&format!("RLOCK.ACQUIRE {key} ann LEASE 60000"));
    }
    client.granted("RLOCK.ACQUIRE b ann LEASE 60000");
    client.ask("CONFIG SET maxmemory 1");
    for line in ["RLOCK.ACQUIRE free bob", "RLOCK.ACQUIRE a ann", "RLOCK.ACQUIRE a bob"] {
        assert!(client.error(line).starts_with("OOM "), "{line}");
    }
    assert_eq!(client.number("RLOCK.RENEW a ann LEASE 90000"), 1);
    assert!(client.lock("a").hold("ann", "write").ttl_ms > 60_000);
    assert_eq!(client.number("RLOCK.RELEASE a ann"), 0);
    assert_eq!(client.number("RLOCK.RELEASE b ann"), 1);
    assert_eq!(client.number("RLOCK.FORCE b"), 1);
    assert_eq!(client.number("RLOCK.HOLDS c ann"), 1);
    assert_eq!(client.shows("c"), "write: ann write 1");
    assert!(script_error(&mut client).contains("OOM"));
    client.ask("CONFIG SET maxmemory 0");
    client.granted("RLOCK.ACQUIRE free bob");
}

#[track_caller]
fn script_error(client: &mut Client) -> String {
    let script = b"return redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob')";
    client.error_bytes(&[b"EVAL", script, b"1", b"free"])
}
