//! What can happen to a lock that is waited for, outside of RLOCK: its key is removed, moved,
//! loaded again or replaced. The queue stays at the name, and the first in line enters.

use redis::Value;

use rlock_testkit::{Client, Cluster, Listener, Server, Waiter, aof_commands, integer, until};

/// `ann` holds `door`; `bob` waits parked, `cid` with a ticket, `dan` parked.
struct Scene {
    server: Server,
    client: Client,
    bob: Waiter,
    dan: Waiter,
}

const QUEUE: &str = "bob write block, cid write queue, dan write block";

fn scene() -> Scene {
    let server = Server::with(&["notify-keyspace-events", "KEd"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    let dan = Waiter::parked(&server, "RLOCK.ACQUIRE door dan LEASE 600000 BLOCK 0");
    assert_eq!(client.queue("door"), QUEUE);
    Scene { server, client, bob, dan }
}

impl Scene {
    /// Asserts that `bob` has entered, and that those behind him still wait.
    #[track_caller]
    fn bob_enters(&mut self) {
        self.bob.granted();
        assert_eq!(self.client.shows("door"), "write: bob write 1");
        assert_eq!(self.client.queue("door"), "cid write queue, dan write block");
        self.dan.still_waits(&mut self.client);
    }
}

#[test]
fn when_the_lock_goes_the_first_in_line_enters_at_once() {
    for line in [
        "DEL door",
        "UNLINK door",
        "RENAME door elsewhere",
        "RENAMENX door elsewhere",
        "MOVE door 5",
        "SWAPDB 0 5",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL SYNC",
        "RLOCK.FORCE door",
    ] {
        let mut scene = scene();
        scene.client.ask(line);
        scene.bob_enters();
    }
}

#[test]
fn when_the_lock_goes_nobody_gets_in_before_those_who_wait() {
    for line in ["DEL door", "RENAME door elsewhere", "MOVE door 5", "FLUSHALL", "SWAPDB 0 5"] {
        for is_transaction in [false, true] {
            let mut scene = scene();
            let mut thief = Waiter::connect(&scene.server);
            let grab = ["RLOCK.ACQUIRE door eve", "RLOCK.ACQUIRE door eve READ"];
            if is_transaction {
                thief.say_all(&["MULTI", line, grab[0], grab[1], "EXEC"]);
                (0..4).for_each(|_| assert!(thief.reply().is_ok()));
                let Value::Array(replies) = thief.answer() else { panic!("EXEC") };
                assert_eq!(replies[1..], [Value::Nil, Value::Nil], "{line}");
            } else {
                thief.say_all(&[line, grab[0], grab[1]]);
                thief.answer();
                assert_eq!(thief.answer(), Value::Nil, "{line}");
                assert_eq!(thief.answer(), Value::Nil, "{line}");
            }
            scene.bob_enters();
        }
    }
}

#[test]
fn a_lock_that_is_moved_away_goes_on_under_its_new_name_without_the_queue() {
    for (line, db) in [("RENAME door elsewhere", 0), ("MOVE door 5", 5), ("SWAPDB 0 5", 5)] {
        let mut scene = scene();
        scene.client.ask(line);
        scene.bob_enters();
        let name = if db == 0 { "elsewhere" } else { "door" };
        scene.client.ask(&format!("SELECT {db}"));
        assert_eq!(scene.client.shows(name), "write: ann write 1", "{line}");
        assert_eq!(scene.client.queue(name), "", "{line}");
    }
}

#[test]
fn a_lock_that_is_put_in_the_place_of_a_lock_is_waited_for_in_turn() {
    for is_renamed in [true, false] {
        let mut scene = scene();
        scene.client.granted("RLOCK.ACQUIRE gate eve LEASE 600000");
        if is_renamed {
            scene.client.ask("RENAME gate door");
        } else {
            let dump = scene.client.dump("gate");
            scene.client.ask_bytes(&[b"RESTORE", b"door", b"600000", &dump, b"REPLACE"]);
        }
        assert_eq!(scene.client.shows("door"), "write: eve write 1");
        assert_eq!(scene.client.queue("door"), QUEUE);
        scene.bob.still_waits(&mut scene.client);
        scene.client.ask("RLOCK.RELEASE door eve");
        scene.bob_enters();
    }
}

#[test]
fn another_value_over_the_lock_sends_everybody_away() {
    for line in ["SET door text", "RENAME text door", "RESTORE"] {
        let mut scene = scene();
        scene.client.ask("SET text text");
        if line == "RESTORE" {
            let dump = scene.client.dump("text");
            scene.client.ask_bytes(&[b"RESTORE", b"door", b"0", &dump, b"REPLACE"]);
        } else {
            scene.client.ask(line);
        }
        for waiter in [&mut scene.bob, &mut scene.dan] {
            assert!(waiter.error().starts_with("WRONGTYPE "), "{line}");
        }
        assert_eq!(scene.client.gauges(), (0, 0, 0), "{line}");
        assert_eq!(scene.client.text("GET door"), "text");
        scene.client.ask("DEL door");
        scene.client.granted("RLOCK.ACQUIRE door eve");
    }
}

#[test]
fn a_value_that_is_put_over_the_lock_and_goes_again_in_one_turn_is_no_reason_to_leave() {
    let mut scene = scene();
    let mut teller = Waiter::connect(&scene.server);
    teller.say_all(&["SET door text", "DEL door"]);
    teller.answer();
    teller.answer();
    scene.bob_enters();
}

#[test]
fn the_queue_outlives_a_reload() {
    let mut scene = scene();
    scene.client.ask("DEBUG RELOAD");
    assert_eq!(scene.client.shows("door"), "write: ann write 1");
    assert_eq!(scene.client.queue("door"), QUEUE);
    scene.bob.still_waits(&mut scene.client);
    scene.client.ask("RLOCK.RELEASE door ann");
    scene.bob_enters();
}

#[test]
fn a_reload_that_loses_the_lock_lets_the_first_in_line_enter() {
    let mut scene = scene();
    // The saved file is from before the lock.
    let rdb = scene.server.folder().join("dump.rdb");
    scene.client.ask("SELECT 5");
    scene.client.ask("SELECT 0");
    std::fs::remove_file(&rdb).ok();
    let other = Server::start();
    other.client().ask("SET something else");
    other.client().ask("SAVE");
    std::fs::copy(other.folder().join("dump.rdb"), &rdb).unwrap();
    scene.client.ask("DEBUG RELOAD NOSAVE");
    scene.bob_enters();
}

#[test]
fn a_shorter_expiry_ends_the_lock_when_the_server_removes_the_key() {
    let mut scene = scene();
    let mut listener = Listener::to(&scene.server);
    scene.client.ask("PEXPIRE door 30");
    scene.bob_enters();
    let said = ["rlock.expired door", "rlock.acquired door"];
    assert_eq!(listener.heard_after_a_turn(&mut scene.client), said);
}

#[test]
fn neither_a_longer_expiry_nor_none_keeps_a_lock_beyond_its_lease() {
    for line in ["PERSIST door", "PEXPIRE door 900000"] {
        let server = Server::start();
        let mut client = server.client();
        let mut bob = Waiter::connect(&server);
        let replies = client.all(&["RLOCK.ACQUIRE door ann LEASE 300", "PEXPIRETIME door"]);
        bob.say("RLOCK.ACQUIRE door bob LEASE 50 BLOCK 0");
        until(5_000, || bob.has_reply() || !client.queue("door").is_empty());
        client.ask(line);
        bob.granted();
        assert!(rlock_testkit::now_ms() >= client.deadline_of(integer(&replies[1])));
        // The next hold has its own deadline again.
        until(10_000, || client.number("EXISTS door") == 0);
    }
}

#[test]
fn a_lock_that_is_evicted_is_handed_over() {
    let mut scene = scene();
    let mut listener = Listener::to(&scene.server);
    scene.client.ask("CONFIG SET maxmemory-policy allkeys-lru");
    let mut teller = Waiter::connect(&scene.server);
    // This is the only key, and memory is already exceeded.
    teller.say_all(&["CONFIG SET maxmemory 1", "SET some text", "CONFIG SET maxmemory 0"]);
    (0..3).for_each(|_| drop(teller.reply()));
    scene.bob_enters();
    let said = ["rlock.evicted door", "rlock.acquired door"];
    assert_eq!(listener.heard_after_a_turn(&mut scene.client), said);
    assert_eq!(scene.client.counted("evicted"), 1);
}

#[test]
fn a_lock_that_is_evicted_again_and_again_leaves_a_server_that_serves() {
    let mut scene = scene();
    scene.client.ask("CONFIG SET maxmemory-policy allkeys-random");
    scene.client.ask("CONFIG SET maxmemory 1");
    scene.bob.granted();
    // Every key is evicted as soon as it exists; a ticket's turn needs no memory.
    for _ in 0..20 {
        scene.client.attempt("SET some text").ok();
    }
    scene.client.ask("CONFIG SET maxmemory 0");
    scene.client.ask("RLOCK.CANCEL door cid");
    scene.client.attempt("RLOCK.RELEASE door bob").ok();
    scene.dan.granted();
}

#[test]
fn a_lock_that_migrates_to_another_server_leaves_its_queue_behind() {
    let target = Server::primary(&[]);
    let mut scene = scene();
    let line = format!("MIGRATE 127.0.0.1 {} door 0 5000", target.tcp_port());
    scene.client.ask(&line);
    scene.bob_enters();
    assert_eq!(target.client().shows("door"), "write: ann write 1");
}

#[test]
fn an_effect_that_is_applied_by_hand_is_followed_by_those_who_can_enter() {
    let server = Server::with(&["appendonly", "yes"]);
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.ask("RLOCK.FORCE door");
    let commands = aof_commands(server.folder());
    let effects: Vec<_> = commands.iter().filter(|words| words[0] == b"RLOCK.APPLY").collect();
    let apply = |client: &mut Client, number: usize| {
        let words: Vec<&[u8]> = effects[number].iter().map(Vec::as_slice).collect();
        client.ask_bytes(&words);
    };
    apply(&mut client, 0);
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    apply(&mut client, 0);
    bob.still_waits(&mut client);
    apply(&mut client, 1);
    bob.granted();
    assert_eq!(client.shows("door"), "write: bob write 1");
}

#[test]
fn where_the_slot_is_not_this_servers_any_more_nobody_is_granted() {
    let server = Cluster::node_alone();
    let mut client = server.client();
    client.ask("CLUSTER ADDSLOTSRANGE 0 16383");
    until(20_000, || client.text("CLUSTER INFO").contains("cluster_state:ok"));
    let slot = client.number("CLUSTER KEYSLOT door");
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.refused("RLOCK.ACQUIRE door cid QUEUE 60000");
    let mut teller = Waiter::connect(&server);
    // As at the end of a migration: the key is gone, and then the slot.
    teller.say_all(&["DEL door", &format!("CLUSTER DELSLOTS {slot}")]);
    assert_eq!((teller.answer(), teller.answer()), (Value::Int(1), Value::Okay));
    let error = bob.reply().unwrap_err();
    let is_redirection = ["TRYAGAIN ", "MOVED ", "CLUSTERDOWN "];
    assert!(is_redirection.iter().any(|code| error.starts_with(code)), "{error}");
    until(5_000, || client.gauges() == (0, 0, 0));
    assert_eq!(client.counted("acquired"), 1);
}
