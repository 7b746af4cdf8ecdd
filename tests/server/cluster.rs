//! A lock whose slot moves between two primaries: waiters are sent to the target, nobody is granted
//! twice, and the hold moves along. `hall` is in the lower half of the slots, on node 0.

use rlock_testkit::{Cluster, Listener, Waiter, aof_commands, items, now_ms, until};

const HALL: u16 = 4903;
const EVENTS: [&str; 2] = ["notify-keyspace-events", "KEd"];

/// Asserts that it got exactly one reply, which says that its lock is, or will be, elsewhere.
#[track_caller]
pub(crate) fn sent_away(waiter: &mut Waiter) {
    let error = waiter.error();
    let is_redirect =
        error.starts_with("TRYAGAIN ") || error.starts_with(&format!("MOVED {HALL} "));
    assert!(is_redirect, "{error}");
}

#[test]
fn a_lock_moves_with_its_slot_and_who_waits_is_sent_after_it() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    let mut ears = [Listener::to(cluster.node(0)), Listener::to(cluster.node(1))];
    let token = source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    let deadline_ms = source.key_ends_at("hall");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall bob BLOCK 0");
    let mut eve = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall eve READ BLOCK 600000");
    source.refused("RLOCK.ACQUIRE hall cid QUEUE 60000");
    assert_eq!(ears[0].heard(&mut source), ["rlock.acquired hall"]);
    cluster.move_slot(HALL, 0, 1);
    sent_away(&mut bob);
    sent_away(&mut eve);
    until(5_000, || source.gauges() == (0, 0, 0));
    assert_eq!(ears[0].heard_after_a_turn(&mut source), [""; 0]);
    assert_eq!(ears[1].heard(&mut target), [""; 0]);
    assert_eq!((source.counted("acquired"), source.counted("handed_off")), (1, 0));
    assert_eq!(target.shows("hall"), "write: ann write 2");
    assert_eq!(target.lock("hall").hold("ann", "write").token, token);
    // MIGRATE sends the key's remaining time; the deadline in the value is exact to the
    // millisecond.
    let left_ms = target.lock("hall").hold("ann", "write").ttl_ms;
    assert!((deadline_ms - now_ms() - left_ms).abs() < 1_000, "{left_ms} ms are left");
    let mut bob = Waiter::parked(cluster.node(1), "RLOCK.ACQUIRE hall bob BLOCK 0");
    assert_eq!(target.number("RLOCK.RELEASE hall ann ALL"), 0);
    assert!(bob.granted() > token);
    assert!(source.error("RLOCK.HOLDS hall ann").starts_with("MOVED 4903 "));
}

#[test]
fn a_lock_that_has_not_moved_yet_is_handed_over_where_it_is() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let mut source = cluster.client(0);
    let mut ears = Listener::to(cluster.node(0));
    source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall bob LEASE 300 BLOCK 0");
    let mut cid = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall cid LEASE 600000 BLOCK 0");
    cluster.begin_move(HALL, 0, 1);
    source.ask("RLOCK.RELEASE hall ann");
    bob.granted();
    // The timer does this: it asks whether the slot is served here.
    cid.granted();
    let events = ["acquired", "released", "acquired", "expired", "acquired"];
    assert_eq!(ears.heard(&mut source), events.map(|event| format!("rlock.{event} hall")));
    assert_eq!(source.shows("hall"), "write: cid write 1");
    cluster.move_keys(HALL, 0, 1);
    cluster.end_move(HALL, 0, 1);
    assert_eq!(cluster.client(1).shows("hall"), "write: cid write 1");
    assert_eq!(ears.heard_after_a_turn(&mut source), [""; 0]);
}

#[test]
fn a_key_that_left_a_slot_on_the_move_is_granted_to_nobody_there() {
    let cluster = Cluster::of_two();
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    // The key has left by MIGRATE, or has ended: whoever comes now is sent to the target, so nobody
    // may enter here.
    for ending in ["MIGRATE", "DEL hall", "PEXPIRE hall 1"] {
        source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
        let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall bob BLOCK 0");
        cluster.begin_move(HALL, 0, 1);
        match ending {
            "MIGRATE" => cluster.move_key("hall", 0, 1),
            line => drop(source.ask(line)),
        }
        sent_away(&mut bob);
        assert!(source.error("RLOCK.ACQUIRE hall bob").starts_with("ASK 4903 "), "{ending}");
        assert_eq!((source.gauges(), source.counted("handed_off")), ((0, 0, 0), 0), "{ending}");
        target.ask("ASKING");
        target.attempt("DEL hall").unwrap();
        for node in [0, 1] {
            cluster.client(node).ask(&format!("CLUSTER SETSLOT {HALL} STABLE"));
        }
    }
}

#[test]
fn on_a_node_that_imports_the_slot_who_waits_is_granted_or_told_to_try_again() {
    let cluster = Cluster::of_two();
    let mut target = cluster.client(1);
    cluster.begin_move(HALL, 0, 1);
    let mut asking = |line: &str| {
        target.ask("ASKING");
        target.ask(line)
    };
    asking("RLOCK.ACQUIRE hall ann LEASE 600000");
    let wait = |owner: &str| {
        let mut waiter = Waiter::connect(cluster.node(1));
        waiter.ask("ASKING");
        waiter.park(cluster.node(1), &format!("RLOCK.ACQUIRE hall {owner} LEASE 300 BLOCK 0"));
        waiter
    };
    let (mut bob, mut cid) = (wait("bob"), wait("cid"));
    // This happens in the command of a client that the source has sent here.
    asking("RLOCK.RELEASE hall ann");
    bob.granted();
    // The timer does this when bob's lease has expired: nobody has reported that the lock is here.
    sent_away(&mut cid);
    let mut dan = Waiter::connect(cluster.node(1));
    dan.ask("ASKING");
    dan.say("RLOCK.ACQUIRE hall dan LEASE 600000 BLOCK 0");
    dan.granted();
    let mut bob = Waiter::connect(cluster.node(1));
    bob.ask("ASKING");
    bob.park(cluster.node(1), "RLOCK.ACQUIRE hall bob BLOCK 0");
    cluster.end_move(HALL, 0, 1);
    asking("RLOCK.RELEASE hall dan");
    bob.granted();
}

#[test]
fn a_session_whose_slot_moves_is_closed_and_its_hold_lives_on_by_its_lease() {
    let cluster = Cluster::of_two();
    let mut ann = Waiter::connect(cluster.node(0));
    let token = ann.number("RLOCK.ACQUIRE hall ann LEASE 5000 SESSION");
    cluster.move_slot(HALL, 0, 1);
    ann.expect_close();
    let mut target = cluster.client(1);
    assert_eq!(target.lock("hall").hold("ann", "write").token, token);
    assert_eq!(target.session_of("hall", "ann"), 0);
    let mut bob = Waiter::connect(cluster.node(1));
    bob.say("RLOCK.ACQUIRE hall bob BLOCK 0");
    assert!(bob.granted() > token);
    assert_eq!(cluster.client(0).gauges(), (0, 0, 0));
    assert_eq!(target.counted("expired"), 1);
}

#[test]
fn tickets_of_a_slot_that_moved_get_no_turn_and_are_forgotten() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let mut source = cluster.client(0);
    let mut ears = Listener::to(cluster.node(0));
    // The lock is free: bob has its turn, and there is no key whose removal could be noticed.
    source.all(&[
        "RLOCK.ACQUIRE hall ann",
        "RLOCK.ACQUIRE hall bob QUEUE 1000",
        "RLOCK.ACQUIRE hall cid QUEUE 60000",
        "RLOCK.RELEASE hall ann",
    ]);
    let events = ["rlock.acquired hall", "rlock.released hall", "rlock.turn:bob hall"];
    assert_eq!(ears.heard(&mut source), events);
    cluster.move_slot(HALL, 0, 1);
    until(5_000, || source.gauges() == (0, 0, 0));
    assert_eq!(ears.heard_after_a_turn(&mut source), [""; 0]);
    cluster.client(1).granted("RLOCK.ACQUIRE hall cid");
}

#[test]
fn a_slot_that_comes_back_finds_a_queue_that_can_be_served() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    let mut ears = Listener::to(cluster.node(0));
    source.granted("RLOCK.ACQUIRE hall ann");
    source.refused("RLOCK.ACQUIRE hall bob QUEUE 60000");
    source.refused("RLOCK.ACQUIRE hall cid QUEUE 60000");
    source.ask("RLOCK.RELEASE hall ann");
    ears.heard(&mut source);
    cluster.move_slot(HALL, 0, 1);
    let mut eve = Waiter::connect(cluster.node(1));
    eve.say("RLOCK.ACQUIRE hall eve LEASE 600000 BLOCK 0");
    let token = eve.granted();
    target.refused("RLOCK.ACQUIRE hall bob QUEUE 60000");
    cluster.move_slot(HALL, 1, 0);
    assert_eq!(source.lock("hall").hold("eve", "write").token, token);
    // No key was removed when the slot left: the tickets still have their places, and are served.
    // Another lock that has come to the name is seen when somebody asks.
    source.refused("RLOCK.ACQUIRE hall bob QUEUE 60000");
    assert_eq!(source.queue("hall"), "bob write queue, cid write queue");
    source.ask("RLOCK.RELEASE hall eve");
    until(5_000, || source.queue("hall") == "bob write queue turn, cid write queue");
    assert!(source.granted("RLOCK.ACQUIRE hall bob") > token);
    source.ask("RLOCK.RELEASE hall bob");
    source.granted("RLOCK.ACQUIRE hall cid");
    until(5_000, || target.gauges() == (0, 0, 0));
}

#[test]
fn reshard_moves_locks_and_sends_who_waits_after_them() {
    let cluster = Cluster::of_two();
    let (mut source, mut target) = (cluster.client(0), cluster.client(1));
    // Slot 0 is the one that `reshard` takes first.
    let token = source.granted("RLOCK.ACQUIRE {afps}:1 ann LEASE 600000");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE {afps}:1 bob BLOCK 0");
    let port = cluster.node(0).tcp_port();
    let (from, to) = (cluster.id(0), cluster.id(1));
    let ends = format!("--cluster-from {from} --cluster-to {to}");
    cluster.cli(&format!("reshard 127.0.0.1:{port} {ends} --cluster-slots 1 --cluster-yes"));
    let error = bob.error();
    assert!(error.starts_with("TRYAGAIN ") || error.starts_with("MOVED 0 "), "{error}");
    assert_eq!(target.lock("{afps}:1").hold("ann", "write").token, token);
    assert_eq!((source.counted("handed_off"), source.gauges()), (0, (0, 0, 0)));
}

#[test]
fn locks_with_one_hash_tag_are_taken_together_and_each_effect_names_one() {
    let on_disk = ["appendonly", "yes", "appendfsync", "always"];
    let cluster = Cluster::of_two_with(&on_disk);
    let mut client = cluster.client(0);
    client.ask("MULTI");
    client.ask("RLOCK.ACQUIRE {hall}:x ann LEASE 600000");
    client.ask("RLOCK.ACQUIRE {hall}:y ann LEASE 600000");
    assert_eq!(items(&client.ask("EXEC")).len(), 2);
    let script = b"for _, key in ipairs(KEYS) do redis.call('RLOCK.RELEASE', key, ARGV[1]) end";
    client.ask_bytes(&[b"EVAL", script, b"2", b"{hall}:x", b"{hall}:y", b"ann"]);
    client.granted("RLOCK.ACQUIRE {hall}:x ann");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE {hall}:x bob BLOCK 0");
    client.ask("RLOCK.RELEASE {hall}:x ann");
    bob.granted();
    let commands = aof_commands(cluster.node(0).folder());
    let of_locks = commands.iter().filter(|words| words[0].starts_with(b"RLOCK"));
    let keys: Vec<&[u8]> = of_locks.map(|words| words[1].as_slice()).collect();
    let (x, y): (&[u8], &[u8]) = (b"{hall}:x", b"{hall}:y");
    assert_eq!(keys, [x, y, x, y, x, x]);
    // `yard` is in another slot of the same node.
    let both = client.error_bytes(&[b"EVAL", script, b"2", b"hall", b"yard", b"ann"]);
    assert!(both.starts_with("CROSSSLOT "), "{both}");
}

#[test]
fn a_cycle_of_waits_is_found_on_one_node_and_not_across_two() {
    let cluster = Cluster::of_two();
    let mut clients = [cluster.client(0), cluster.client(1)];
    // `hall` and `yard` are on node 0, `door` is on node 1.
    clients[0].granted("RLOCK.ACQUIRE hall ann");
    clients[0].granted("RLOCK.ACQUIRE yard bob");
    clients[1].granted("RLOCK.ACQUIRE door cid");
    let _ann = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE yard ann BLOCK 0");
    let error = clients[0].error("RLOCK.ACQUIRE hall bob BLOCK 0");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    // Each node knows only its own waits; a time limit ends the others.
    let _cid = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall cid BLOCK 0");
    let mut ann = Waiter::connect(cluster.node(1));
    ann.say("RLOCK.ACQUIRE door ann BLOCK 200");
    ann.refused();
}

#[test]
fn a_turn_is_said_by_the_primary_that_serves_the_lock() {
    let cluster = Cluster::of_two_with(&EVENTS);
    let mut ears = [Listener::to(cluster.node(0)), Listener::to(cluster.node(1))];
    for (node, key) in [(0, "hall"), (1, "door")] {
        let mut client = cluster.client(node);
        client.granted(&format!("RLOCK.ACQUIRE {key} ann"));
        client.refused(&format!("RLOCK.ACQUIRE {key} me QUEUE 60000"));
        client.ask(&format!("RLOCK.RELEASE {key} ann"));
        let heard = ears[node].heard(&mut client);
        assert_eq!(heard.last(), Some(&format!("rlock.turn:me {key}")));
        assert_eq!(ears[1 - node].heard(&mut cluster.client(1 - node)), [""; 0]);
    }
}

/// The server looks for a key in the slot of the running command. Here, a command of another slot
/// ends the session of a connection whose grant of two locks waits for a replica.
#[test]
fn what_follows_from_a_command_in_another_slot_is_done_in_that_slot() {
    let cluster = Cluster::of_six(60_000, &[]);
    let (mut client, replica) = (cluster.client(0), cluster.replica_of(0));
    until(10_000, || client.attempt("RLOCK.ACQUIRE hello p ACKS 1").is_ok());
    client.number("RLOCK.RELEASE hello p");
    cluster.node(replica).freeze();
    let mut ann = Waiter::connect(cluster.node(0));
    ann.ask("RLOCK.ACQUIRE hello ann LEASE 60000 SESSION");
    ann.say("RLOCK.MACQUIRE 2 {hall}:1 {hall}:2 ann LEASE 60000 ACKS 1");
    until(5000, || client.info_number("rlock", "rlock_acks_pending") > 0);
    assert_eq!(client.number("RLOCK.FORCE hello"), 1);
    ann.expect_close();
    for key in ["{hall}:1", "{hall}:2"] {
        until(5000, || client.shows(key) == "free:");
    }
    cluster.node(replica).thaw();
}
