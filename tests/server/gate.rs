//! The module does by itself only what the server would allow a command to do: not with too few
//! replicas, nor with a disk that cannot be written.

use rlock_testkit::{Client, Server, Waiter, is_connected, now_ms, until};

/// Two locks that ann holds for two seconds, which is enough for a busy machine to shut the gate;
/// bob waits for one of them, and cid has a ticket for the other.
fn waited_for(server: &Server) -> (Client, Waiter) {
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 2000");
    client.granted("RLOCK.ACQUIRE gate ann LEASE 2000");
    let bob = Waiter::parked(server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.refused("RLOCK.ACQUIRE gate cid QUEUE 60000");
    (client, bob)
}

/// Asserts that nobody is granted while the gate is shut, and that everything due is done when it
/// opens.
fn is_respected(server: &Server, shut: impl Fn(&mut Client), open: impl Fn(&mut Client)) {
    let (mut client, mut bob) = waited_for(server);
    let mut eve = Waiter::connect(server);
    eve.number("RLOCK.ACQUIRE room eve SESSION LEASE 1000");
    let mut dan = Waiter::parked(server, "RLOCK.ACQUIRE door dan BLOCK 2000");
    shut(&mut client);
    until(10_000, || client.shows("door") == "free:" && client.shows("gate") == "free:");
    // A wait ends at its time, and a session with its lease: whoever is connected holds the lock.
    dan.refused();
    eve.expect_close();
    bob.still_waits(&mut client);
    assert_eq!(client.queue("gate"), "cid write queue");
    assert_eq!(client.info_number("rlock", "rlock_handed_off"), 0);
    open(&mut client);
    bob.granted();
    until(5_000, || client.queue("gate") == "cid write queue turn");
    client.granted("RLOCK.ACQUIRE gate cid");
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn nothing_is_granted_where_too_few_replicas_would_hear_of_it() {
    let server = Server::start();
    is_respected(
        &server,
        |client| {
            client.ask("CONFIG SET min-replicas-to-write 1");
        },
        |client| {
            client.ask("CONFIG SET min-replicas-to-write 0");
        },
    );
}

/// A snapshot that fails, because its file cannot replace a folder.
#[test]
fn nothing_is_granted_while_the_server_refuses_writes_because_a_snapshot_failed() {
    let server = Server::with(&["save", "3600 1", "enable-protected-configs", "yes"]);
    std::fs::create_dir(server.folder().join("taken.rdb")).unwrap();
    std::fs::write(server.folder().join("taken.rdb/file"), "x").unwrap();
    is_respected(
        &server,
        |client| {
            client.ask("CONFIG SET dbfilename taken.rdb");
            client.ask("BGSAVE");
            until(10_000, || client.attempt("SET k v").is_err_and(|e| e.starts_with("MISCONF ")));
        },
        |client| {
            client.ask("CONFIG SET stop-writes-on-bgsave-error no");
        },
    );
}

/// A session is renewed only while the server would let a client renew it.
#[test]
fn a_session_is_not_renewed_where_too_few_replicas_would_hear_of_it() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann SESSION LEASE 1000");
    let bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.ask("CONFIG SET min-replicas-to-write 1");
    let asked_ms = now_ms();
    let ends_ms = asked_ms + client.lock("door").hold("ann", "write").ttl_ms;
    until(5_000, || !is_connected(&mut client, ann.id()));
    // Ten milliseconds early: then another server may grant the lock.
    assert!(now_ms() >= ends_ms - 10, "closed before its lease was over");
    assert!(now_ms() < ends_ms + 500, "closed {} ms after it", now_ms() - ends_ms);
    until(5_000, || client.shows("door") == "free:");
    drop(bob);
}

/// Otherwise, the gate would always be open, or always shut, where the command is renamed.
#[test]
fn the_gate_needs_no_command_that_may_be_renamed() {
    let server = without(&["RENAMENX", "EXISTS", "TOUCH", "ROLE", "DEL", "EXPIRE"]);
    let mut client = server.client();
    let mut bob = Waiter::connect(&server);
    client.granted("RLOCK.ACQUIRE door ann LEASE 100");
    bob.say("RLOCK.ACQUIRE door bob BLOCK 0");
    bob.granted();
}

/// If the server does not report a setting, there is no warning about it.
#[test]
fn nobody_is_warned_of_settings_that_are_not_known() {
    let server = without(&["CONFIG"]);
    server.client().granted("RLOCK.ACQUIRE door ann");
    let log = server.log();
    // A fault of this version is known without asking.
    let is_of_version = |line: &str| line.contains("CVE-") || line.contains("MEMORY USAGE");
    let warns =
        |line: &&str| line.contains(" # ") && line.contains("<rlock> ") && !is_of_version(line);
    assert_eq!(log.lines().find(warns), None);
}

fn without(commands: &[&str]) -> Server {
    let lines = commands.iter().map(|command| format!("rename-command {command} \"\"\n"));
    Server::of(&lines.collect::<String>())
}
