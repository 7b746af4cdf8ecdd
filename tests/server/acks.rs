//! Grants that are confirmed once replicas have acknowledged them, and the grace period of a new
//! primary.

use rlock_testkit::{Client, Listener, Server, Waiter, aof_commands, flat_map, items, text, until};

const NOTIFY: &str = "notify-keyspace-events";

/// A primary, and a replica that has acknowledged.
pub fn pair(settings: &[&str]) -> (Server, Server) {
    let primary = Server::primary(settings);
    let replica = Server::replica_of(&primary, settings);
    acknowledges(&primary, 1);
    (primary, replica)
}

fn acknowledges(primary: &Server, replicas: usize) {
    let mut client = primary.client();
    let ask = format!("RLOCK.ACQUIRE probe p ACKS {replicas}");
    until(10_000, || client.attempt(&ask).is_ok());
    client.number("RLOCK.RELEASE probe p");
}

/// The word for the confirmation of an owner's hold in `RLOCK.INFO`.
fn confirmation(client: &mut Client, key: &str, owner: &str) -> String {
    let info = flat_map(&client.ask(&format!("RLOCK.INFO {key}")));
    let holders = items(&info["holders"]).iter().map(flat_map);
    let mut own = holders.filter(|row| text(&row["owner"]) == owner);
    own.next().map_or(String::new(), |row| text(&row["acks"]))
}

/// A caller whose grant is pending.
#[track_caller]
fn pending(server: &Server, line: &str) -> Waiter {
    let mut client = server.client();
    let before = client.info_number("rlock", "rlock_acks_pending");
    let mut waiter = Waiter::connect(server);
    waiter.say(line);
    until(5000, || client.info_number("rlock", "rlock_acks_pending") > before);
    waiter
}

#[test]
fn a_confirmed_grant_is_on_the_replica_when_it_is_told() {
    let (primary, replica) = pair(&[]);
    let (mut here, mut there) = (primary.client(), replica.client());
    for round in 0..50 {
        let key = format!("door:{round}");
        let token = here.granted(&format!("RLOCK.ACQUIRE {key} ann LEASE 60000 ACKS 1"));
        let lock = there.lock(&key);
        assert_eq!(lock.hold("ann", "write").token, token);
        assert_eq!(confirmation(&mut here, &key, "ann"), "done");
        assert_eq!(here.number(&format!("RLOCK.RENEW {key} ann LEASE 90000 ACKS 1")), 1);
        assert_eq!(here.deadline(&key), there.deadline(&key));
    }
    here.granted("RLOCK.ACQUIRE plain ann");
    assert_eq!(confirmation(&mut here, "plain", "ann"), "none");
    assert_eq!(here.info_number("rlock", "rlock_acks_pending"), 0);
    assert!(here.info_number("rlock", "rlock_acks_us_count") >= 100);
}

#[test]
fn replicas_are_known_where_an_administrator_has_renamed_role() {
    let (primary, _replica) = pair(&["rename-command", "ROLE \"\""]);
    let mut client = primary.client();
    assert!(client.error("ROLE").contains("unknown command"));
    client.granted("RLOCK.ACQUIRE door ann ACKS 1");
    assert!(client.error("RLOCK.ACQUIRE gate ann ACKS 2").contains(", have 1: "));
}

#[test]
fn too_few_replicas_are_said_at_once_and_nothing_changes() {
    let (primary, _replica) = pair(&[]);
    let mut client = primary.client();
    for line in ["RLOCK.ACQUIRE door ann ACKS 2", "RLOCK.ACQUIRE door ann BLOCK 1000 ACKS 2"] {
        let error = client.error(line);
        assert!(
            error.starts_with("NOREPLICAS need 2 acknowledging replicas for 'door'"),
            "{error}"
        );
    }
    assert_eq!((client.shows("door"), client.queue("door")), ("free:".into(), String::new()));
    let deadline = {
        client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
        client.deadline("door")
    };
    assert!(client.error("RLOCK.RENEW door ann LEASE 90000 ACKS 2").starts_with("NOREPLICAS "));
    assert_eq!(client.deadline("door"), deadline);
}

#[test]
fn whoever_cannot_be_parked_is_told_so() {
    let (primary, _replica) = pair(&[]);
    let mut client = primary.client();
    for words in ["RLOCK.ACQUIRE door ann ACKS 1", "RLOCK.ACQUIRE door ann BLOCK 9 ACKS 1"] {
        let replies = client.all(&["MULTI", words, "EXEC"]);
        let error = format!("{:?}", replies[2]);
        assert!(error.contains("ACKS needs a connection that can block"), "{error}");
    }
    let script = "return redis.pcall('RLOCK.ACQUIRE', KEYS[1], 'ann', 'ACKS', '1')";
    let error = client.attempt_bytes(&[b"EVAL", script.as_bytes(), b"1", b"door"]);
    assert!(error.unwrap_err().contains("ACKS needs a connection"));
    assert_eq!(client.shows("door"), "free:");
}

#[test]
fn a_pending_hold_is_nobodys_until_it_is_acknowledged() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann LEASE 60000 ACKS 1 WITHTTL");
    assert_eq!(confirmation(&mut client, "door", "ann"), "pending");
    let token = client.lock("door").hold("ann", "write").token;
    client.refused("RLOCK.ACQUIRE door bob");
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 0);
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 0);
    // Its owner waits for the same, with ACKS and without.
    let mut again = pending(&primary, "RLOCK.ACQUIRE door ann DEPTH 1");
    let mut renewal = pending(&primary, "RLOCK.RENEW door ann LEASE 50000");
    replica.thaw();
    let (told, left_ms) = ann.granted_with_ttl();
    assert_eq!((told, again.granted()), (token, token));
    assert!((1..60_000).contains(&left_ms), "{left_ms}");
    assert_eq!(format!("{:?}", renewal.answer()), "int(1)");
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
    assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
}

#[test]
fn what_is_not_acknowledged_in_time_is_taken_back_and_the_next_has_it() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "300", NOTIFY, "Ed"]);
    let mut client = primary.client();
    let mut listener = Listener::to(&primary);
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann ACKS 1");
    let mut bob = Waiter::parked(&primary, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert!(ann.error().starts_with("NOACKS too few replicas acknowledged 'door'"));
    bob.granted();
    let heard = listener.heard(&mut client);
    assert!(heard.iter().any(|event| event.contains("rlock.unconfirmed")), "{heard:?}");
    assert_eq!(client.info_number("rlock", "rlock_noacks"), 1);
    // A renewal that is not acknowledged takes nothing back.
    assert!(client.error("RLOCK.RENEW door bob LEASE 90000 ACKS 1").starts_with("NOACKS "));
    assert_eq!(client.number("RLOCK.HOLDS door bob"), 1);
    replica.thaw();
    replica.until_in_sync_with(&primary);
    assert_eq!(client.shows("door"), replica.client().shows("door"));
}

#[test]
fn whoever_lets_go_of_a_pending_hold_ends_it() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    for (line, reply) in [("RLOCK.RELEASE door ann", 0), ("RLOCK.FORCE door", 1), ("DEL door", 1)] {
        let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann ACKS 1");
        assert_eq!(client.number(line), reply);
        assert!(ann.error().starts_with("NOACKS "), "{line}");
        client.granted("RLOCK.ACQUIRE door bob");
        client.number("RLOCK.RELEASE door bob");
    }
}

#[test]
fn a_caller_that_leaves_while_pending_leaves_nothing() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann ACKS 1");
    client.ask(&format!("CLIENT UNBLOCK {}", ann.id()));
    assert!(ann.error().starts_with("NOACKS "));
    until(5000, || client.shows("door") == "free:");
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann ACKS 1");
    client.ask(&format!("CLIENT UNBLOCK {} ERROR", ann.id()));
    assert!(ann.error().starts_with("UNBLOCKED "));
    until(5000, || client.shows("door") == "free:");
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann SESSION LEASE 5000 ACKS 1");
    client.ask(&format!("CLIENT KILL ID {}", ann.id()));
    ann.expect_close();
    until(5000, || client.shows("door") == "free:");
    assert_eq!(client.info_number("rlock", "rlock_acks_pending"), 0);
    assert_eq!(client.gauges(), (0, 0, 0));
}

#[test]
fn a_ticket_cannot_wait_for_acknowledgments() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    let needs = "ERR QUEUE cannot wait for acknowledgments (ACKS n or rlock.acks): wait with BLOCK";
    assert!(client.error("RLOCK.ACQUIRE door ann QUEUE 30000 ACKS 1").starts_with(needs));
    client.ask("CONFIG SET rlock.acks 1");
    assert!(client.error("RLOCK.ACQUIRE door ann QUEUE 30000").starts_with(needs));
    client.ask("CONFIG SET rlock.acks 0");
    assert_eq!(client.shows("door"), "free:");
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann LEASE 60000 ACKS 1");
    let error = client.error("RLOCK.ACQUIRE door ann QUEUE 30000");
    assert!(error.starts_with("TRYAGAIN owner 'ann' holds 'door' already"), "{error}");
    replica.thaw();
    let token = ann.granted();
    assert_eq!(client.granted("RLOCK.ACQUIRE door ann DEPTH 1 QUEUE 30000"), token);
}

#[test]
fn a_session_is_kept_by_acknowledged_deadlines() {
    let (primary, replica) = pair(&[]);
    let mut client = primary.client();
    let mut ann = Waiter::connect(&primary);
    ann.number("RLOCK.ACQUIRE door ann SESSION LEASE 1000 ACKS 1");
    let began_ms = rlock_testkit::now_ms();
    // This is several leases long.
    until(5000, || rlock_testkit::now_ms() > began_ms + 2500);
    assert_eq!(client.number("RLOCK.HOLDS door ann"), 1);
    replica.freeze();
    ann.expect_close();
    until(5000, || client.shows("door") == "free:");
}

#[test]
fn the_floor_is_for_every_request() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "200"]);
    let mut client = primary.client();
    client.ask("CONFIG SET rlock.acks 1");
    let token = client.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(replica.client().lock("door").hold("ann", "write").token, token);
    assert_eq!(client.number("RLOCK.RENEW door ann"), 1);
    replica.freeze();
    assert!(client.error("RLOCK.ACQUIRE gate ann").starts_with("NOACKS "));
    assert!(client.error("RLOCK.RENEW door ann").starts_with("NOACKS "));
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0, "letting go needs nobody");
}

#[test]
fn a_promoted_replica_has_what_was_confirmed() {
    let (mut primary, replica) = pair(&[]);
    let mut client = primary.client();
    let token = client.granted("RLOCK.ACQUIRE door ann LEASE 60000 ACKS 1");
    client.granted("RLOCK.ACQUIRE gate bob READ LEASE 60000 ACKS 1");
    primary.kill_9();
    let mut there = replica.client();
    there.ask("REPLICAOF NO ONE");
    there.refused("RLOCK.ACQUIRE door cid");
    there.refused("RLOCK.ACQUIRE gate cid");
    assert_eq!(there.lock("door").hold("ann", "write").token, token);
    assert_eq!(there.granted("RLOCK.ACQUIRE door ann DEPTH 1"), token);
}

#[test]
fn a_pause_delays_what_is_pending_and_loses_nothing() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    replica.freeze();
    let mut ann = pending(&primary, "RLOCK.ACQUIRE door ann ACKS 1");
    client.ask("CLIENT PAUSE 60000 WRITE");
    replica.thaw();
    // Replicas acknowledge by themselves once a second.
    ann.granted();
    client.ask("CLIENT UNPAUSE");
    client.refused("RLOCK.ACQUIRE door bob");
}

#[test]
fn asking_replicas_leaves_nothing_in_the_append_only_file() {
    let (primary, _replica) = pair(&["appendonly", "yes"]);
    let mut client = primary.client();
    for round in 0..20 {
        client.granted(&format!("RLOCK.ACQUIRE door:{round} ann ACKS 1"));
    }
    let commands = aof_commands(primary.folder());
    assert!(commands.iter().all(|words| !words[0].eq_ignore_ascii_case(b"REPLCONF")));
    assert!(commands.len() >= 20);
}

#[test]
fn whoever_lost_the_right_while_it_waited_is_not_granted() {
    let (primary, replica) = pair(&["rlock.acks-timeout-ms", "60000"]);
    let mut client = primary.client();
    client.ask("ACL SETUSER eve on nopass ~* +@all");
    client.granted("RLOCK.ACQUIRE door ann");
    let mut eve = Waiter::connect_as(&primary, "eve");
    eve.park(&primary, "RLOCK.ACQUIRE door eve BLOCK 0 ACKS 1");
    client.ask("ACL SETUSER eve -rlock.acquire");
    replica.freeze();
    client.number("RLOCK.RELEASE door ann");
    assert!(eve.error().starts_with("NOPERM "));
    client.granted("RLOCK.ACQUIRE door bob");
}

#[test]
fn in_its_grace_a_new_primary_grants_nothing() {
    let (mut primary, replica) = pair(&[]);
    replica.client().ask("CONFIG SET rlock.grace-ms 1500");
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    replica.until_in_sync_with(&primary);
    primary.kill_9();
    let mut there = replica.client();
    there.ask("REPLICAOF NO ONE");
    let mut bob = Waiter::parked(&replica, "RLOCK.ACQUIRE gate bob BLOCK 0");
    let wait = items(&there.ask("RLOCK.ACQUIRE door ann WITHTTL"))[1].clone();
    let wait_ms = rlock_testkit::integer(&wait);
    assert!((1..=1500).contains(&wait_ms), "{wait_ms}");
    assert_eq!(there.number("RLOCK.RENEW door ann LEASE 60000"), 1);
    assert_eq!(there.number("RLOCK.HOLDS door ann"), 1);
    bob.still_waits(&mut there);
    bob.granted();
    there.granted("RLOCK.ACQUIRE door ann");
    assert_eq!(there.number("RLOCK.RELEASE door ann ALL"), 0);
}

#[test]
fn a_shorter_grace_counts_for_those_who_wait_already() {
    for shorter in [0, 1] {
        let server = Server::with(&["rlock.grace-ms", "600000", NOTIFY, "KEd"]);
        let mut client = server.client();
        let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
        let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE gate cid BLOCK 0");
        client.refused("RLOCK.ACQUIRE hall dan QUEUE 60000");
        let mut listener = Listener::to(&server);
        // Another setting changes nothing, nor does a longer grace.
        client.ask("CONFIG SET maxclients 500");
        client.ask("CONFIG SET rlock.grace-ms 700000");
        bob.still_waits(&mut client);
        client.ask(&format!("CONFIG SET rlock.grace-ms {shorter}"));
        bob.granted();
        cid.granted();
        until(5000, || listener.heard(&mut client).iter().any(|e| e == "rlock.turn:dan hall"));
    }
}

#[test]
fn renewals_and_re_entries_that_replicas_acknowledge_are_counted() {
    for floor in [0, 1] {
        let (primary, _replica) = pair(&[]);
        let mut client = primary.client();
        client.ask(&format!("CONFIG SET rlock.acks {floor}"));
        let acks = if floor == 0 { "ACKS 1" } else { "" };
        let names = ["acquired", "reentered", "renewed", "handed_off"];
        let before = names.map(|name| client.counted(name));
        let mut counted = |line: &str| {
            client.attempt(line).ok();
            let after = names.map(|name| client.counted(name));
            [0, 1, 2, 3].map(|at| after[at] - before[at])
        };
        assert_eq!(counted(&format!("RLOCK.ACQUIRE door ann {acks}")), [1, 0, 0, 0]);
        assert_eq!(counted(&format!("RLOCK.ACQUIRE door ann {acks}")), [1, 1, 0, 0]);
        assert_eq!(counted(&format!("RLOCK.ACQUIRE door ann DEPTH 1 {acks}")), [1, 2, 0, 0]);
        assert_eq!(counted(&format!("RLOCK.RENEW door ann {acks}")), [1, 2, 1, 0]);
        assert_eq!(counted(&format!("RLOCK.RENEW door bob {acks}")), [1, 2, 1, 0]);
        // Nobody renews who cannot be blocked.
        client.ask("MULTI");
        client.ask(&format!("RLOCK.RENEW door ann {acks}"));
        let replies = client.attempt("EXEC");
        assert!(format!("{replies:?}").contains("ACKS needs a connection"), "{replies:?}");
        assert_eq!(client.counted("renewed"), before[2] + 1);
    }
}

#[test]
fn refusals_for_lack_of_replicas_are_counted() {
    let (primary, replica) = pair(&[]);
    let mut client = primary.client();
    // It refused all requests until its replica was connected.
    client.ask("CONFIG RESETSTAT");
    let before = client.counted("noreplicas");
    for line in ["RLOCK.ACQUIRE door ann ACKS 2", "RLOCK.RENEW door ann ACKS 3"] {
        assert!(client.error(line).starts_with("NOREPLICAS "), "{line}");
    }
    assert_eq!(client.counted("noreplicas"), before + 2);
    client.granted("RLOCK.ACQUIRE door ann ACKS 1");
    drop(replica);
    until(10_000, || client.info_number("replication", "connected_slaves") == 0);
    client.ask("CONFIG SET rlock.acks 1");
    for line in ["RLOCK.ACQUIRE gate ann", "RLOCK.RENEW door ann"] {
        assert!(client.error(line).starts_with("NOREPLICAS "), "{line}");
    }
    assert_eq!(client.counted("noreplicas"), before + 4);
    // The module never sees what the server itself refuses: the server counts both.
    client.ask("CONFIG SET min-replicas-to-write 1");
    assert!(client.error("RLOCK.RELEASE door ann").starts_with("NOREPLICAS "));
    assert_eq!(client.counted("noreplicas"), before + 4);
    let errors = client.info("errorstats", "errorstat_NOREPLICAS");
    assert_eq!(errors.as_deref(), Some("count=5"));
}

/// What docs/cluster.md says keeps working, and how docs/runbook.md says to continue.
#[test]
fn after_a_failover_the_settings_count_the_replicas_that_are_left() {
    for (replicas, acks) in [(1, 1), (2, 1), (2, 2)] {
        let settings = ["min-replicas-to-write", "1", "rlock.acks", &acks.to_string()];
        let primary = Server::primary(&settings);
        let promoted = Server::replica_of(&primary, &settings);
        let other = (replicas == 2).then(|| Server::replica_of(&primary, &settings));
        let mut client = primary.client();
        until(10_000, || client.attempt("RLOCK.ACQUIRE door ann LEASE 600000").is_ok());
        let token = client.lock("door").hold("ann", "write").token;
        promoted.until_in_sync_with(&primary);
        drop(primary);
        let mut client = promoted.client();
        client.ask("REPLICAOF NO ONE");
        if let Some(other) = &other {
            other.follow(&promoted);
        }
        assert_eq!(client.number(&format!("RLOCK.CHECK door {token}")), 1);
        if replicas > acks {
            until(10_000, || client.attempt("RLOCK.ACQUIRE gate bob").is_ok());
            assert_eq!(client.number("RLOCK.RENEW door ann"), 1);
            assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
            continue;
        }
        for line in ["RLOCK.ACQUIRE gate bob", "RLOCK.RENEW door ann"] {
            assert!(client.error(line).starts_with("NOREPLICAS "), "{line}");
        }
        let is_released = || promoted.client().attempt("RLOCK.RELEASE gate bob DEPTH 0").is_ok();
        if replicas == 1 {
            assert!(!is_released());
            client.ask("CONFIG SET min-replicas-to-write 0");
            assert!(client.error("RLOCK.ACQUIRE gate bob").starts_with("NOREPLICAS need 1 "));
        }
        until(10_000, is_released);
        client.ask("CONFIG SET rlock.acks 0");
        client.granted("RLOCK.ACQUIRE gate bob");
        assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    }
}
