//! `RLOCK.FORCE` and the commands that only read: `HOLDS`, `CHECK`, `INFO`, `HELP`, and the
//! server's own.

use redis::Value;

use rlock_testkit::{
    LockView, Server, Version, flat_map, integer, items, say_not_seen, text, until,
};

#[test]
fn force_ends_every_hold_however_deep_and_says_how_many() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.number("RLOCK.FORCE door"), 0);
    for _ in 0..3 {
        client.granted("RLOCK.ACQUIRE door ann");
    }
    assert_eq!(client.number("RLOCK.FORCE door"), 1);
    assert_eq!(client.number("EXISTS door"), 0);
    for reader in ["ann", "bob", "cid"] {
        client.granted(&format!("RLOCK.ACQUIRE door {reader} READ"));
    }
    assert_eq!(client.number("RLOCK.FORCE door"), 3);
    assert_eq!(client.number("EXISTS door"), 0);
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE door ann READ");
    assert_eq!(client.number("rlock.force door"), 2);
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn force_of_one_mode_leaves_the_other() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(client.number("RLOCK.FORCE door READ"), 0);
    assert_eq!(client.shows("door"), "write: ann write 1");
    client.granted("RLOCK.ACQUIRE door ann READ");
    assert_eq!(client.number("RLOCK.FORCE door READ"), 1);
    assert_eq!(client.shows("door"), "write: ann write 1");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 90000");
    assert_eq!(client.number("RLOCK.FORCE door write"), 1);
    assert_eq!(client.shows("door"), "read: ann read 1");
    assert!(client.number("PTTL door") > 80_000);
    assert_eq!(client.number("RLOCK.FORCE door WRITE"), 0);
    assert_eq!(client.shows("door"), "read: ann read 1");
}

#[test]
fn force_of_write_shortens_the_keys_life_to_what_is_left() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 90000");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 9000");
    client.ask("RLOCK.FORCE door WRITE");
    assert!((0..=9_000).contains(&client.lives_ms("door")));
}

#[test]
fn who_was_forced_out_holds_nothing_and_the_next_gets_a_greater_token() {
    let server = Server::start();
    let mut client = server.client();
    let old = client.granted("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.FORCE door");
    assert!(client.error("RLOCK.RELEASE door ann").starts_with("NOTHELD "));
    assert!(client.error("RLOCK.RENEW door ann").starts_with("NOTHELD "));
    assert_eq!(client.number(&format!("RLOCK.CHECK door {old}")), 0);
    assert!(client.granted("RLOCK.ACQUIRE door ann") > old);
}

#[test]
fn del_and_unlink_end_the_whole_lock() {
    let server = Server::start();
    let mut client = server.client();
    for command in ["DEL", "UNLINK"] {
        let old = client.granted("RLOCK.ACQUIRE door ann");
        client.granted("RLOCK.ACQUIRE door ann READ");
        assert_eq!(client.number(&format!("{command} door")), 1);
        assert_eq!(client.shows("door"), "free:");
        assert!(client.granted("RLOCK.ACQUIRE door bob") > old);
        client.ask("RLOCK.RELEASE door bob");
    }
}

#[test]
fn holds_says_the_depth_in_a_mode_or_in_both() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
    for mode in ["WRITE", "WRITE", "WRITE", "READ", "READ"] {
        client.granted(&format!("RLOCK.ACQUIRE door ann {mode}"));
    }
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 5);
    assert_eq!(client.number("RLOCK.HOLDS door ann WRITE"), 3);
    assert_eq!(client.number("rlock.holds door ann read"), 2);
    assert_eq!(client.number("RLOCK.HOLDS door bob"), 0);
    assert_eq!(client.number("RLOCK.HOLDS gate ann"), 0);
    assert_eq!(client.number("EXISTS gate"), 0);
}

#[test]
fn check_knows_the_live_token_of_a_mode() {
    let server = Server::start();
    let mut client = server.client();
    let write = client.granted("RLOCK.ACQUIRE door ann");
    let read = client.granted("RLOCK.ACQUIRE door ann READ");
    let mut check = |rest: String| client.number(&format!("RLOCK.CHECK {rest}"));
    assert_eq!(check(format!("door {write}")), 1);
    assert_eq!(check(format!("door {write} WRITE")), 1);
    assert_eq!(check(format!("door {write} READ")), 0);
    assert_eq!(check(format!("door {read}")), 0);
    assert_eq!(check(format!("door {read} read")), 1);
    assert_eq!(check(format!("door {}", write - 1)), 0);
    assert_eq!(check(format!("gate {write}")), 0);
    client.ask("RLOCK.RELEASE door ann WRITE");
    assert_eq!(client.number(&format!("RLOCK.CHECK door {write}")), 0);
}

#[test]
fn a_script_writes_only_while_the_token_is_the_live_one() {
    let server = Server::start();
    let mut client = server.client();
    let script = b"if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 1 then \
        return redis.call('SET', KEYS[2], ARGV[2]) else return false end";
    let mut write = |token: i64, value: &str| {
        let token = token.to_string();
        let words: [&[u8]; 7] =
            [b"EVAL", script, b"2", b"door", b"room", token.as_bytes(), value.as_bytes()];
        client.attempt_bytes(&words).unwrap()
    };
    let mut other = server.client();
    let ann = other.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(write(ann, "from ann"), Value::Okay);
    other.ask("RLOCK.FORCE door");
    let bob = other.granted("RLOCK.ACQUIRE door bob");
    assert_eq!(write(bob, "from bob"), Value::Okay);
    assert_eq!(write(ann, "late"), Value::Nil);
    assert_eq!(other.text("GET room"), "from bob");
}

#[test]
fn info_names_mode_holders_and_queue_in_lower_case() {
    let server = Server::start();
    let mut client = server.client();
    let free = flat_map(&client.ask("RLOCK.INFO door"));
    assert_eq!(text(&free["mode"]), "free");
    assert_eq!(items(&free["holders"]).len(), 0);
    assert_eq!(client.number("EXISTS door"), 0);

    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    let held = flat_map(&client.ask("RLOCK.INFO door"));
    assert_eq!(text(&held["mode"]), "write");
    let holder = flat_map(&items(&held["holders"])[0]);
    assert_eq!(text(&holder["owner"]), "ann");
    assert_eq!(text(&holder["mode"]), "write");
    assert_eq!(integer(&holder["depth"]), 1);
    assert_eq!(integer(&holder["token"]), token);
    assert!((50_000..=60_000).contains(&integer(&holder["ttl-ms"])));
    assert!(integer(&holder["held-ms"]) >= 0);
}

#[test]
fn info_is_a_map_where_the_protocol_has_maps() {
    let server = Server::start();
    let mut client = server.client_resp3();
    client.granted("RLOCK.ACQUIRE door ann");
    let reply = client.ask("RLOCK.INFO door");
    let Value::Map(_) = &reply else { panic!("{reply:?}") };
    let Value::Map(_) = items(&flat_map(&reply)["holders"])[0] else { panic!("{reply:?}") };
    assert_eq!(LockView::read(&reply).line(), "write: ann write 1");
}

#[test]
fn info_says_how_long_a_hold_has_lasted_through_re_entry_and_renewal() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    until(10_000, || client.lock("door").hold("ann", "write").held_ms >= 30);
    client.granted("RLOCK.ACQUIRE door ann");
    client.ask("RLOCK.RENEW door ann");
    assert!(client.lock("door").hold("ann", "write").held_ms >= 30);
}

#[test]
fn help_is_lines_of_text_that_name_every_command() {
    let server = Server::start();
    let mut client = server.client();
    let reply = client.ask("RLOCK.HELP");
    let page: Vec<String> = items(&reply).iter().map(text).collect();
    let page = page.join("\n").to_uppercase();
    for command in
        ["ACQUIRE", "RELEASE", "RENEW", "FORCE", "TAKE", "HOLDS", "CHECK", "INFO", "HELP"]
    {
        assert!(page.contains(command), "{command} is not in {page}");
    }
}

#[test]
fn what_only_looks_breaks_no_watch_and_creates_no_key() {
    let server = Server::start();
    let mut client = server.client();
    let mut other = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.ask("WATCH door gate");
    for key in ["door", "gate"] {
        other.ask(&format!("RLOCK.INFO {key}"));
        other.ask(&format!("RLOCK.HOLDS {key} ann"));
        other.ask(&format!("RLOCK.CHECK {key} 5"));
    }
    client.ask("MULTI");
    client.ask("PING");
    assert_eq!(items(&client.ask("EXEC")).len(), 1);
    assert_eq!(client.number("EXISTS gate"), 0);
}

#[test]
fn the_servers_own_queries_work_on_a_lock_as_on_any_key() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("SET other value");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 60000");
    assert_eq!(client.number("EXISTS door"), 1);
    assert_eq!(client.text("TYPE door"), "rlock-key");
    assert!((50_000..=60_000).contains(&client.lives_ms("door")));
    let page = client.ask("SCAN 0 COUNT 1000 TYPE rlock-key");
    let found: Vec<String> = items(&items(&page)[1]).iter().map(text).collect();
    assert_eq!(found, ["door"]);
    assert!(client.number("OBJECT IDLETIME door") >= 0);
    assert_eq!(client.number("OBJECT REFCOUNT door"), 1);
    for line in ["OBJECT ENCODING door", "DEBUG OBJECT door", "MEMORY STATS", "MEMORY DOCTOR"] {
        client.ask(line);
    }
    if client.text("INFO memory").contains("mem_allocator:libc")
        && server.version() == Version::Redis(8, 6)
    {
        say_not_seen("MEMORY USAGE of a lock: this server dies of any module's key with a TTL");
        return;
    }
    let one_holder_bytes = client.number("MEMORY USAGE door");
    for reader in 0..100 {
        client.granted(&format!("RLOCK.ACQUIRE door some-reader:{reader} READ"));
    }
    let bytes = client.number("MEMORY USAGE door");
    let per_reader_bytes_min = "some-reader:1".len() as i64 + 8 + 8;
    assert!(bytes >= one_holder_bytes + 100 * per_reader_bytes_min, "{bytes}");
}
