//! Owners that wait for each other: the last of them, which would close the cycle, gets
//! `-DEADLOCK`, and nobody else is affected. Only cycles are reported.

use rlock_testkit::{Client, Server, Waiter, until};

/// Each owner holds a lock of its own name.
fn each_holds(owners: &[&str]) -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    for owner in owners {
        client.granted(&format!("RLOCK.ACQUIRE lock:{owner} {owner} LEASE 600000"));
    }
    (server, client)
}

/// `owner` waits for the lock of `other`.
fn waits_for(server: &Server, owner: &str, other: &str) -> Waiter {
    Waiter::parked(server, &format!("RLOCK.ACQUIRE lock:{other} {owner} LEASE 600000 BLOCK 0"))
}

/// The text of the error for closing a cycle, which names the key and the cycle's length.
#[track_caller]
fn told_of_a_cycle(client: &mut Client, line: &str, key: &str, length: usize) {
    let error = client.error(line);
    let names = error.starts_with("DEADLOCK ") && error.contains(&format!("'{key}'"));
    assert!(names && error.contains(&format!(" {length} owners")), "{line}: {error}");
}

#[test]
fn the_last_of_three_in_a_cycle_is_told_so_and_the_others_go_on() {
    let (server, mut client) = each_holds(&["ann", "bob", "cid"]);
    let mut ann = waits_for(&server, "ann", "bob");
    let mut bob = waits_for(&server, "bob", "cid");
    let line = "RLOCK.ACQUIRE lock:ann cid BLOCK 0";
    told_of_a_cycle(&mut client, line, "lock:ann", 3);
    ann.still_waits(&mut client);
    bob.still_waits(&mut client);
    assert_eq!(client.queue("lock:ann"), "");
    assert_eq!(client.counted("deadlocks"), 1);
    // A request that does not wait closes no cycle; neither does a ticket, whose owner is free to
    // act.
    client.refused("RLOCK.ACQUIRE lock:ann cid");
    client.refused("RLOCK.ACQUIRE lock:ann cid QUEUE 60000");
    client.ask("RLOCK.RELEASE lock:cid cid");
    bob.granted();
    client.ask("RLOCK.RELEASE lock:cid bob");
    client.ask("RLOCK.RELEASE lock:bob bob");
    ann.granted();
}

#[test]
fn the_log_has_the_whole_cycle() {
    let (server, mut client) = each_holds(&["ann", "bob", "cid"]);
    let _waiters = [waits_for(&server, "ann", "bob"), waits_for(&server, "bob", "cid")];
    client.error("RLOCK.ACQUIRE lock:ann cid BLOCK 0");
    let log = server.log();
    // S7: an operator searches the log for this word.
    let line = log.lines().find(|line| line.contains("deadlock")).unwrap();
    let cycle = "a cycle of 3 owners: 'cid' waits at 'lock:ann' for 'ann', 'ann' waits at \
                 'lock:bob' for 'bob', 'bob' waits at 'lock:cid' for 'cid'";
    assert!(line.contains(cycle), "{line}");
}

#[test]
fn a_cycle_of_two_is_found_and_a_time_limit_changes_nothing() {
    let (server, mut client) = each_holds(&["ann", "bob"]);
    let _ann = waits_for(&server, "ann", "bob");
    told_of_a_cycle(&mut client, "RLOCK.ACQUIRE lock:ann bob BLOCK 60000", "lock:ann", 2);
}

#[test]
fn a_long_cycle_is_found() {
    let owners: Vec<String> = (0..50).map(|number| format!("o{number}")).collect();
    let names: Vec<&str> = owners.iter().map(String::as_str).collect();
    let (server, mut client) = each_holds(&names);
    let _waiters: Vec<Waiter> =
        names.windows(2).map(|two| waits_for(&server, two[0], two[1])).collect();
    told_of_a_cycle(&mut client, "RLOCK.ACQUIRE lock:o0 o49 BLOCK 0", "lock:o0", 50);
}

#[test]
fn readers_and_writers_wait_for_each_other_too() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    client.granted("RLOCK.ACQUIRE gate cid");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE gate bob READ BLOCK 0");
    // It waits for both readers, one of which waits for it.
    told_of_a_cycle(&mut client, "RLOCK.ACQUIRE door cid BLOCK 0", "door", 2);
    client.granted("RLOCK.ACQUIRE door cid READ BLOCK 0");
}

#[test]
fn those_who_are_ahead_in_line_are_waited_for_too() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE gate cid");
    // The writer waits in front of the reader that would wait for it.
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    client.granted("RLOCK.ACQUIRE wall bob");
    let _cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid READ BLOCK 0");
    told_of_a_cycle(&mut client, "RLOCK.ACQUIRE gate ann BLOCK 0", "gate", 3);
}

#[test]
fn an_upgrader_waits_for_the_other_readers() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door bob READ");
    client.granted("RLOCK.ACQUIRE gate ann");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE gate bob BLOCK 0");
    told_of_a_cycle(&mut client, "RLOCK.ACQUIRE door ann UPGRADE BLOCK 0", "door", 2);
}

#[test]
fn a_reader_does_not_wait_for_a_reader_ahead() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    client.granted("RLOCK.ACQUIRE gate cid");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob READ BLOCK 0");
    // bob, ahead of cid, waits for cid at another lock: nevertheless, they enter the door together.
    let mut bob_too = Waiter::parked(&server, "RLOCK.ACQUIRE gate bob BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid READ BLOCK 0");
    client.ask("RLOCK.RELEASE door ann");
    bob.granted();
    cid.granted();
    client.ask("RLOCK.RELEASE gate cid");
    bob_too.granted();
}

#[test]
fn a_ticket_waits_for_nobody_and_nobody_waits_for_a_ticket() {
    let (server, mut client) = each_holds(&["ann", "bob", "zoe"]);
    client.refused("RLOCK.ACQUIRE lock:bob ann QUEUE 60000");
    let mut bob = waits_for(&server, "bob", "ann");
    bob.still_waits(&mut client);
    // A ticket is ahead in line of one that waits for its owner.
    client.refused("RLOCK.ACQUIRE lock:zoe ann QUEUE 60000");
    let mut other = waits_for(&server, "bob", "zoe");
    other.still_waits(&mut client);
    assert_eq!(client.counted("deadlocks"), 0);
}

#[test]
fn an_owner_that_asks_again_on_another_connection_is_in_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let lines = ["bob", "cid", "bob", "cid", "bob"]
        .map(|owner| format!("RLOCK.ACQUIRE door {owner} LEASE 600000 BLOCK 0 DEPTH 1"));
    let mut waiters = lines.each_ref().map(|line| Waiter::parked(&server, line));
    client.ask("RLOCK.RELEASE door ann");
    for number in [0, 2, 4] {
        waiters[number].granted();
    }
    client.ask("RLOCK.RELEASE door bob");
    for number in [1, 3] {
        waiters[number].granted();
    }
    assert_eq!(client.counted("deadlocks"), 0);
}

#[test]
fn locks_of_different_databases_make_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let mut elsewhere = Waiter::connect(&server);
    elsewhere.ask("SELECT 5");
    elsewhere.number("RLOCK.ACQUIRE door bob");
    elsewhere.park(&server, "RLOCK.ACQUIRE door ann BLOCK 0");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    bob.still_waits(&mut client);
}

#[test]
fn switched_off_nothing_is_looked_for() {
    let (server, mut client) = each_holds(&["ann", "bob"]);
    client.ask("CONFIG SET rlock.deadlock-detection no");
    let mut ann = waits_for(&server, "ann", "bob");
    let mut bob = waits_for(&server, "bob", "ann");
    bob.still_waits(&mut client);
    client.ask("RLOCK.FORCE lock:ann");
    bob.granted();
    client.ask("RLOCK.FORCE lock:bob");
    ann.granted();
    client.ask("CONFIG SET rlock.deadlock-detection yes");
    let _ann = waits_for(&server, "zoe", "ann");
}

#[test]
fn a_wait_that_is_over_is_no_part_of_a_cycle() {
    let (server, mut client) = each_holds(&["ann", "bob"]);
    let mut ann = Waiter::connect(&server);
    ann.say("RLOCK.ACQUIRE lock:bob ann BLOCK 100");
    ann.refused();
    let mut killed = waits_for(&server, "ann", "bob");
    client.ask(&format!("CLIENT KILL ID {}", killed.id()));
    killed.expect_close();
    let mut unblocked = waits_for(&server, "ann", "bob");
    client.ask(&format!("CLIENT UNBLOCK {} ERROR", unblocked.id()));
    unblocked.error();
    let mut bob = waits_for(&server, "bob", "ann");
    client.ask("RLOCK.RELEASE lock:ann ann");
    bob.granted();
    assert_eq!(client.counted("deadlocks"), 0);
}

#[test]
fn a_hold_whose_lease_is_over_is_no_part_of_a_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 40");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE gate cid LEASE 600000");
    let _ann = Waiter::parked(&server, "RLOCK.ACQUIRE gate ann BLOCK 0");
    until(5_000, || client.shows("door") == "read: bob read 1");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    client.ask("RLOCK.RELEASE door bob");
    cid.granted();
}

#[test]
fn a_search_that_would_look_at_too_many_gives_up_and_is_counted() {
    let server = Server::start();
    let mut client = server.client();
    for number in 0..1_100 {
        client.granted(&format!("RLOCK.ACQUIRE door r{number} READ LEASE 600000"));
    }
    // While nobody waits, there is no search.
    client.granted("RLOCK.ACQUIRE gate bob");
    let _other = Waiter::parked(&server, "RLOCK.ACQUIRE gate cy BLOCK 0");
    let mut writer = Waiter::parked(&server, "RLOCK.ACQUIRE door w BLOCK 0");
    assert_eq!(client.counted("deadlock_searches_given_up"), 1);
    assert_eq!(client.counted("deadlocks"), 0);
    client.ask("RLOCK.FORCE door");
    writer.granted();
}

#[test]
fn names_of_any_bytes_make_one_printable_line_of_error_and_log() {
    let server = Server::start();
    let mut client = server.client();
    let odd: &[u8] = b"a\r\n+OK%s\x00\xff";
    client.ask_bytes(&[b"RLOCK.ACQUIRE", b"door", odd]);
    client.granted("RLOCK.ACQUIRE gate bob");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let error = client.error_bytes(&[b"RLOCK.ACQUIRE", b"gate", odd, b"BLOCK", b"0"]);
    let name = r"'a\x0d\x0a+OK%s\x00\xff'";
    assert!(error.starts_with("DEADLOCK ") && error.contains(name), "{error}");
    let cycle = format!("{name} waits at 'gate' for 'bob', 'bob' waits at 'door' for {name}");
    assert!(server.log().contains(&cycle));
}

/// Random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

#[test]
fn eight_owners_who_take_eight_locks_in_random_order_never_stand_still() {
    const SEED: u64 = 0x5eed_0001;
    let server = Server::with(&["rlock.default-lease-ms", "600000"]);
    // A reply that does not come within the client's time limit means a standstill.
    std::thread::scope(|scope| {
        for owner in 0..8 {
            let mut client = server.client();
            scope.spawn(move || {
                let mut dice = Dice(SEED + owner);
                for _ in 0..25 {
                    take_four(&mut client, owner, &mut dice);
                }
            });
        }
    });
    let mut client = server.client();
    assert_eq!(client.number("DBSIZE"), 0, "seed {SEED}");
    assert_eq!(client.gauges(), (0, 0, 0), "seed {SEED}");
    assert!(client.counted("deadlocks") > 0, "seed {SEED}: nothing was tried");
}

/// Takes four of eight locks, one by one; a client that would close a cycle releases all and begins
/// again.
fn take_four(client: &mut Client, owner: u64, dice: &mut Dice) {
    'again: loop {
        let mut held = Vec::new();
        while held.len() < 4 {
            let lock = dice.roll(8);
            let mode = ["READ", "WRITE"][dice.roll(2)];
            if held.contains(&lock) {
                continue;
            }
            match client.attempt(&format!("RLOCK.ACQUIRE lock{lock} o{owner} {mode} BLOCK 0")) {
                Ok(reply) => assert!(matches!(reply, redis::Value::Int(_)), "{reply:?}"),
                Err(error) => {
                    assert!(error.starts_with("DEADLOCK "), "{error}");
                    let_go(client, owner, &held);
                    continue 'again;
                }
            }
            held.push(lock);
        }
        return let_go(client, owner, &held);
    }
}

fn let_go(client: &mut Client, owner: u64, held: &[usize]) {
    for lock in held {
        assert_eq!(client.number(&format!("RLOCK.RELEASE lock{lock} o{owner}")), 0);
    }
}
