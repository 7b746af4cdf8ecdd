//! Faults of the servers, which affect other commands and other modules in the same way, as
//! docs/servers.md says. Each test first shows that, and then what applies to RLOCK.

use rlock_testkit::{Client, Cluster, Compiled, Server, Waiter, module, say_not_seen, until};

/// Sends this to the server, which is not used afterward. Returns whether it has survived.
fn survives(server: Server, by: &mut Waiter, line: &str) -> Option<Server> {
    by.say_all(&[line, "QUIT"]);
    if by.last_words().is_empty() {
        server.bury();
        return None;
    }
    Some(server)
}

/// Redis 8 unloads a module whose settings it rejects after loading it; Redis 7.0 keeps it. Redis
/// 7.2 and 7.4 and Valkey crash with any module that has a data type.
#[test]
fn an_unknown_setting_on_the_load_line_leaves_a_server_that_can_load_it() {
    let Some(typed) = Compiled::of("typed") else { return };
    let other = Server::without_module();
    let version = other.version();
    let mut loader = Waiter::connect(&other);
    let line = format!("MODULE LOADEX {} CONFIG typed.bogus 1", typed.path());
    if survives(other, &mut loader, &line).is_none() {
        say_not_seen(&format!("MODULE LOADEX with an unknown setting: {version:?} dies of it"));
        return;
    }
    let server = Server::without_module();
    let mut client = server.client();
    let module = module().display().to_string();
    client.error(&format!("MODULE LOADEX {module} CONFIG rlock.bogus 1"));
    // A step of the clock would ring a timer in a module that is no longer loaded.
    assert_eq!(kernel_timers(&server), 0);
    if client.attempt("RLOCK.HELP").is_err() {
        client.ask(&format!("MODULE LOAD {module}"));
    }
    // The next connections get the numbers of files that were closed.
    let others: Vec<Waiter> = (0..10).map(|_| Waiter::connect(&server)).collect();
    drop(others);
    client.granted("RLOCK.ACQUIRE door ann LEASE 1500");
    Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0").granted();
    assert_eq!(kernel_timers(&server), 1);
}

fn kernel_timers(server: &Server) -> usize {
    let files = std::fs::read_dir(format!("/proc/{}/fd", server.process_id())).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("timerfd")).count()
}

/// Redis 8.6, built with the C library's malloc, uses the key's expiry time as the size of an
/// allocation.
#[test]
fn memory_usage_tells_the_size_of_a_lock_where_it_does_of_other_modules_keys() {
    let Some(typed) = Compiled::of("typed") else { return };
    let other = Server::without_module();
    let version = other.version();
    let mut asker = Waiter::connect(&other);
    for line in [&format!("MODULE LOAD {}", typed.path()), "TYPED.SET key", EXPIRES] {
        asker.say(line);
        assert!(asker.reply().is_ok(), "{line}");
    }
    if survives(other, &mut asker, "MEMORY USAGE key").is_none() {
        say_not_seen(&format!("MEMORY USAGE of a key with a TTL: {version:?} dies of it"));
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE key ann");
    client.ask(EXPIRES);
    assert!((50..1_000).contains(&client.number("MEMORY USAGE key")));
}

/// In the year 2100, at a moment that ends in zero bits.
const EXPIRES: &str = "PEXPIREAT key 4102444800000";

#[test]
fn one_who_asked_for_no_touch_hands_over_like_any_other() {
    for line in ["RLOCK.RELEASE door ann", "RLOCK.FORCE door", "DEL door", "FLUSHALL"] {
        let server = Server::start();
        let mut client = server.client();
        if client.attempt("CLIENT NO-TOUCH ON").is_err() {
            say_not_seen(&format!("CLIENT NO-TOUCH: {:?} does not know it", server.version()));
            return;
        }
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
        let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
        let _cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
        client.ask(line);
        bob.granted();
        assert_eq!(client.shows("door"), "write: bob write 1", "{line}");
    }
}

/// Redis 8.0 and Valkey 8.1 crash when such a client creates a key that another one waits for.
#[test]
fn one_who_asked_for_no_touch_may_bring_a_lock_to_where_somebody_waits() {
    let mut server = Server::start();
    let version = server.version();
    let mut toucher = Waiter::connect(&server);
    toucher.say("CLIENT NO-TOUCH ON");
    if toucher.reply().is_err() {
        say_not_seen(&format!("CLIENT NO-TOUCH: {version:?} does not know it"));
        return;
    }
    let _popper = Waiter::parked(&server, "BLPOP list 0");
    match survives(server, &mut toucher, "LPUSH list item") {
        Some(survivor) => server = survivor,
        None => {
            say_not_seen(&format!("CLIENT NO-TOUCH with blocked keys: {version:?} dies of it"));
            return;
        }
    }
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let token = client.granted("RLOCK.ACQUIRE gate cid LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.ask("CLIENT NO-TOUCH ON");
    client.ask("RENAME gate door");
    assert_eq!(client.number("RLOCK.HOLDS door cid"), 1);
    bob.still_waits(&mut client);
    client.ask("RLOCK.RELEASE door cid");
    assert!(bob.granted() > token);
}

/// While memory is short, Redis 7.0 and 7.2 and Valkey 7.2 queue nothing, not even a GET; the
/// others queue commands that need no memory.
#[test]
fn without_memory_a_release_is_let_in_and_queued_where_a_get_is() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["door", "gate", "wall"] {
        client.granted(&format!("RLOCK.ACQUIRE {key} ann LEASE 600000"));
    }
    client.ask("CONFIG SET maxmemory 1");
    assert!(client.error("RLOCK.ACQUIRE yard ann").starts_with("OOM "));
    let is_queued = queued(&mut client, "GET nothing");
    if !is_queued {
        say_not_seen(&format!("MULTI without memory: {:?} queues nothing then", server.version()));
    }
    assert_eq!(queued(&mut client, "RLOCK.RELEASE door ann"), is_queued);
    assert_eq!(client.number("RLOCK.HOLDS door ann"), i64::from(!is_queued));
    assert_eq!(client.number("RLOCK.RELEASE gate ann"), 0);
    // A script is no transaction.
    let script = b"return redis.call('RLOCK.RELEASE', KEYS[1], 'ann')";
    assert_eq!(client.ask_bytes(&[b"EVAL", script, b"1", b"wall"]), redis::Value::Int(0));
}

/// Whether a transaction of this command is executed; otherwise, it is refused for lack of memory.
#[track_caller]
fn queued(client: &mut Client, line: &str) -> bool {
    client.ask("MULTI");
    let queued = client.attempt(line);
    let done = client.attempt("EXEC");
    match queued {
        Ok(_) => assert!(done.is_ok(), "{line}: {done:?}"),
        Err(error) => {
            assert!(error.starts_with("OOM "), "{line}: {error}");
            assert!(done.is_err_and(|error| error.starts_with("EXECABORT ")));
            return false;
        }
    }
    true
}

/// A connection that a pause holds back waits for no lock, but an operator who ends waits one by
/// one may still hit one.
#[test]
fn one_who_is_held_back_by_a_pause_is_not_to_be_unblocked() {
    let server = Server::start();
    let version = server.version();
    let mut client = server.client();
    let mut held_back = Waiter::connect(&server);
    let id = held_back.id();
    client.ask("CLIENT PAUSE 60000 WRITE");
    held_back.say("SET key value");
    until(5_000, || client.info_number("clients", "blocked_clients") == 1);
    let mut operator = Waiter::connect(&server);
    let mut other = Waiter::connect(&server);
    other.say("SET key value");
    until(5_000, || client.info_number("clients", "blocked_clients") == 2);
    // Some patch releases of older series survive this: 8.0.6, but not 8.0.2.
    let dies = operator.number(&format!("CLIENT UNBLOCK {} ERROR", other.id())) == 1;
    assert!(!dies || !version.is_since([8, 2], [9, 1]), "{version:?}");
    let Some(server) = survives(server, &mut operator, &format!("CLIENT UNBLOCK {id}")) else {
        assert!(dies, "docs/servers.md says who dies of it");
        say_not_seen(&format!("CLIENT UNBLOCK in a pause: {version:?} dies of it"));
        return;
    };
    let mut client = server.client();
    client.ask("CLIENT UNPAUSE");
    client.granted("RLOCK.ACQUIRE door ann");
}

/// The table of docs/servers.md, "Which release to run", and the log at load say the same.
#[test]
fn the_log_warns_of_the_faults_that_the_documentation_names() {
    let server = Server::start();
    let said = server.client().text("INFO server");
    let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let (kind, version) = match field("valkey_version:") {
        Some(version) => ("Valkey", version),
        None => ("Redis", field("redis_version:").unwrap()),
    };
    let (series, patch) = version.rsplit_once('.').unwrap();
    let patch: u32 = patch.parse().unwrap();
    let documented = include_str!("../../docs/servers.md");
    let row =
        documented.lines().find_map(|line| line.strip_prefix(&format!("| {kind} {series} | ")));
    let at_least = row.and_then(|row| row.split(" | ").next());
    let fixed = match at_least.map(|version| version.rsplit_once('.')) {
        Some(Some((_, patch))) => patch.parse().unwrap(),
        Some(None) => u32::MAX, // "none"
        None => 0,
    };
    let log = server.log();
    assert_eq!(log.contains("CVE-2026-23479"), patch < fixed, "{log}");
    assert_eq!(log.contains("-memory|usage"), (kind, series) == ("Redis", "8.6"), "{log}");
}

/// Redis 8.4 and later ignore that the target refuses the keys because of too few replicas, and
/// complete the move without them; Valkey cancels the move.
#[test]
fn a_slot_that_moves_at_once_to_a_node_without_enough_replicas_keeps_its_keys_or_stays() {
    let slot = 4903;
    let cluster = Cluster::of_two();
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    source.ask("SET hall x");
    source.granted("RLOCK.ACQUIRE {hall}:lock ann LEASE 600000");
    target.ask("CONFIG SET min-replicas-to-write 1");
    if !cluster.begin_move_at_once(slot, 0, 1) {
        return say_not_seen("a move of a slot in one step");
    }
    let is_over = || cluster.owner_of(slot, 0) == Some(1) && cluster.owner_of(slot, 1) == Some(1);
    until(30_000, || is_over() || cluster.node(0).log().contains("-> failed"));
    if is_over() {
        assert_eq!(target.number("EXISTS hall {hall}:lock"), 0, "docs/servers.md: it is mended");
        say_not_seen("a slot that keeps its keys: the server completes the move without them");
    } else {
        assert_eq!(source.number("EXISTS hall {hall}:lock"), 2);
        assert_eq!(source.number("RLOCK.HOLDS {hall}:lock ann"), 1);
    }
}
