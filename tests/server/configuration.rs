//! The settings: how they are given, their bounds, and the warnings in the log.

use rlock_testkit::{Client, DEPTH_MAX, LEASE_MS_MAX, Server, flat_map, text, until};

const SETTINGS: [(&str, i64, i64); 3] = [
    ("rlock.default-lease-ms", 30_000, LEASE_MS_MAX),
    ("rlock.max-lease-ms", LEASE_MS_MAX, LEASE_MS_MAX),
    ("rlock.max-depth", DEPTH_MAX, DEPTH_MAX),
];

#[track_caller]
fn setting(client: &mut Client, name: &str) -> i64 {
    let reply = flat_map(&client.ask(&format!("CONFIG GET {name}")));
    text(&reply[name]).parse().unwrap()
}

#[test]
fn settings_have_their_defaults_and_can_be_changed_within_their_bounds() {
    let server = Server::start();
    let mut client = server.client();
    for (name, default, max) in SETTINGS {
        assert_eq!(setting(&mut client, name), default, "{name}");
        for value in [1, max - 1, max] {
            client.ask(&format!("CONFIG SET {name} {value}"));
            assert_eq!(setting(&mut client, name), value, "{name}");
        }
        for bad in ["0", "-1", &(max + 1).to_string(), "many", "9223372036854775808", "1.5"] {
            let error = client.error(&format!("CONFIG SET {name} {bad}"));
            assert!(error.starts_with("ERR ") && error.contains(name), "{error}");
            assert_eq!(setting(&mut client, name), max, "{name} {bad}");
        }
    }
}

#[test]
fn the_default_lease_may_be_above_the_maximum_and_is_cut() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("CONFIG SET rlock.max-lease-ms 5000");
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 30_000);
    client.granted("RLOCK.ACQUIRE door ann");
    assert!(client.lives_ms("door") <= 5_000);
    assert_eq!(client.number("RLOCK.RENEW door ann"), 1);
    assert!(client.lives_ms("door") <= 5_000);
}

#[test]
fn a_hold_keeps_the_lease_it_was_granted_when_the_maximum_shrinks() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.ask("CONFIG SET rlock.max-lease-ms 1000");
    client.granted("RLOCK.ACQUIRE door ann");
    assert!(client.number("PTTL door") > 500_000);
    client.ask("DEBUG RELOAD");
    assert!(client.number("PTTL door") > 500_000);
}

#[test]
fn arguments_on_the_loadmodule_line_are_settings() {
    let server = Server::with_arguments("default-lease-ms 5000 max-lease-ms 70000 max-depth 2");
    let mut client = server.client();
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 5_000);
    assert_eq!(setting(&mut client, "rlock.max-lease-ms"), 70_000);
    assert_eq!(setting(&mut client, "rlock.max-depth"), 2);
    client.granted("RLOCK.ACQUIRE door ann");
    assert!(client.lives_ms("door") <= 5_000);
    let one_only = Server::with_arguments("MAX-depth 9");
    let mut client = one_only.client();
    assert_eq!(setting(&mut client, "rlock.max-depth"), 9);
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 30_000);
}

#[test]
fn a_bad_argument_refuses_to_load_and_the_log_names_it() {
    for (arguments, named) in [
        ("default-lease-ms 0", "default-lease-ms"),
        ("default-lease-ms 604800001", "default-lease-ms"),
        ("max-lease-ms soon", "max-lease-ms"),
        ("max-depth 65536", "max-depth"),
        ("max-depth -1", "max-depth"),
        ("max-depth", "max-depth"),
        ("max-depth 3 default-lease-ms", "default-lease-ms"),
        ("shoe-size 43", "shoe-size"),
        ("max-depth 3 %s%n%s 5", "%s%n%s"),
    ] {
        let log = Server::refused_log(arguments);
        // The line with which the server repeats its whole configuration does not count.
        let mut lines = log.lines().filter(|line| line.to_lowercase().contains("rlock"));
        let is_named = lines.any(|line| line.contains(named));
        assert!(is_named, "{named} is not named for {arguments:?} in\n{log}");
    }
}

#[test]
fn settings_in_redis_conf_and_of_config_rewrite_last() {
    let mut server = Server::with(&["rlock.default-lease-ms", "7000", "rlock.max-depth", "5"]);
    let mut client = server.client();
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 7_000);
    assert_eq!(setting(&mut client, "rlock.max-depth"), 5);
    client.ask("CONFIG SET rlock.default-lease-ms 8000 rlock.max-lease-ms 90000");
    client.ask("CONFIG REWRITE");
    server.restart();
    let mut client = server.client();
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 8_000);
    assert_eq!(setting(&mut client, "rlock.max-lease-ms"), 90_000);
    assert_eq!(setting(&mut client, "rlock.max-depth"), 5);
}

#[test]
fn a_policy_that_evicts_locks_is_warned_of_at_load_and_when_set() {
    let server = Server::with(&["maxmemory-policy", "allkeys-lru"]);
    assert_eq!(warnings(&server, "maxmemory-policy"), 1, "{}", server.log());
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(warnings(&server, "maxmemory-policy"), 0);
    client.ask("CONFIG SET maxmemory-policy volatile-ttl");
    until(5_000, || warnings(&server, "maxmemory-policy") == 1);
    client.ask("CONFIG SET maxmemory-policy noeviction");
    client.ask("CONFIG SET maxmemory-policy allkeys-lfu");
    until(5_000, || warnings(&server, "maxmemory-policy") == 2);
}

#[test]
fn a_timeout_that_closes_idle_connections_is_warned_of_at_load_and_when_set() {
    let server = Server::with(&["timeout", "300"]);
    assert_eq!(warnings(&server, "timeout"), 1, "{}", server.log());
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(warnings(&server, "timeout"), 0);
    client.ask("CONFIG SET timeout 60");
    until(5_000, || warnings(&server, "timeout") == 1);
}

#[test]
fn a_server_that_saves_nothing_is_warned_of() {
    let server = Server::with(&["save", "", "appendonly", "no"]);
    assert_eq!(warnings(&server, "appendonly"), 1, "{}", server.log());
    let mut client = server.client();
    client.ask("CONFIG SET appendonly yes");
    client.ask("CONFIG SET appendonly no");
    until(5_000, || warnings(&server, "appendonly") == 2);
    for settings in [["save", "3600 1"], ["appendonly", "yes"]] {
        let server = Server::with(&settings);
        assert_eq!(warnings(&server, "appendonly"), 0, "{}", server.log());
    }
}

#[test]
fn turns_that_nobody_hears_of_are_warned_of_once() {
    let server = Server::with(&["notify-keyspace-events", "Kx"]);
    let mut client = server.client();
    assert_eq!(warnings(&server, "QUEUE"), 0);
    for _ in 0..3 {
        client.granted("RLOCK.ACQUIRE door ann");
        client.refused("RLOCK.ACQUIRE door bob QUEUE 60000");
        client.ask("RLOCK.RELEASE door ann");
        client.granted("RLOCK.ACQUIRE door bob");
        client.ask("RLOCK.RELEASE door bob");
    }
    until(5_000, || warnings(&server, "QUEUE") == 1);
    client.ask("CONFIG SET notify-keyspace-events Ed");
    client.ask("CONFIG SET notify-keyspace-events K");
    until(5_000, || warnings(&server, "QUEUE") == 2);
}

#[test]
fn other_settings_are_nobodys_business() {
    let server = Server::start();
    let mut client = server.client();
    let before = server.log().matches("rlock").count();
    client.ask("CONFIG SET hz 50 maxmemory-policy noeviction timeout 0");
    client.ask("CONFIG SET maxmemory 100mb");
    client.ask("PING");
    assert_eq!(server.log().matches("rlock").count(), before);
}

#[test]
fn a_module_loaded_while_the_server_runs_takes_settings_and_arguments() {
    let server = Server::without_module();
    let mut client = server.client();
    let module = rlock_testkit::module();
    let module = module.to_str().unwrap();
    // A failed load leaves nothing behind that could harm the server.
    for bad in ["CONFIG rlock.max-depth 0", "ARGS max-depth 0", "ARGS max-depth"] {
        client.error(&format!("MODULE LOADEX {module} {bad}"));
        client.ask("CONFIG SET timeout 5");
        client.ask("CONFIG SET timeout 0");
        client.ask("SET key value PX 1");
        until(5_000, || client.number("EXISTS key") == 0);
    }
    let good = "CONFIG rlock.default-lease-ms 5000 ARGS max-depth 3";
    client.ask(&format!("MODULE LOADEX {module} {good}"));
    assert_eq!(setting(&mut client, "rlock.default-lease-ms"), 5_000);
    assert_eq!(setting(&mut client, "rlock.max-depth"), 3);
    client.granted("RLOCK.ACQUIRE door ann");
    client.error("MODULE UNLOAD rlock");
    assert_eq!(client.shows("door"), "write: ann write 1");
}

/// How many lines of the log are warnings of the module (`<rlock>`) that name this setting.
fn warnings(server: &Server, setting: &str) -> usize {
    let log = server.log();
    let warned = log.lines().filter(|line| line.contains(" # "));
    warned.filter(|line| line.to_lowercase().contains("<rlock>") && line.contains(setting)).count()
}
