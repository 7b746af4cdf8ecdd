//! S4: no step keeps the server busy for long, however many clients wait for however many locks,
//! and what others do with those locks costs no more because of that.

use rlock_testkit::{Client, Server, Waiter, until};

use crate::budgets::longest_step_us;

const KEYS: usize = 128;

/// How much processor time a step may take.
const STEP_US: u64 = 10_000;

/// What disturbs a round only adds to what is measured: other processes, a test that looks late and
/// sees several steps as one, and the kernel, which counts the time of a running process in ticks
/// of up to 4 ms. So one round of five must be within the bounds. A round returns the bounds that
/// it exceeds; anything else that is wrong fails at once.
pub fn one_of_five_rounds(round: fn(&mut Vec<String>)) {
    let mut exceeded = Vec::new();
    for _ in 0..5 {
        exceeded.clear();
        round(&mut exceeded);
        if exceeded.is_empty() {
            return;
        }
    }
    panic!("in the last of five rounds: {exceeded:#?}");
}

fn number(client: &mut Client, field: &str) -> i64 {
    client.info_number("rlock", field)
}

fn key(number: usize) -> String {
    format!("k{number:03}")
}

fn keys(from: usize) -> String {
    (from..KEYS).map(key).collect::<Vec<_>>().join(" ")
}

/// Opens this many connections, each of which waits for all keys, in the mode of these words.
fn wait(server: &Server, client: &mut Client, count: usize, words: &str) -> Vec<Waiter> {
    let mut groups: Vec<Waiter> = (0..count).map(|_| Waiter::connect(server)).collect();
    for (place, group) in groups.iter_mut().enumerate() {
        group.say(&format!("RLOCK.MACQUIRE {KEYS} {} g{place} {words} BLOCK 0", keys(0)));
    }
    until(60_000, || number(client, "rlock_groups") == count as i64);
    groups
}

/// The time that the server itself takes to close this many connections that are blocked at as many
/// keys: it closes all of them in one step.
fn closing_us(count: usize) -> u64 {
    let server = Server::without_module();
    let mut client = server.client();
    let mut all: Vec<Waiter> = (0..count).map(|_| Waiter::connect(&server)).collect();
    all.iter_mut().for_each(|one| one.say(&format!("BLPOP {} 0", keys(0))));
    let blocked = |client: &mut Client| client.info_number("clients", "blocked_clients");
    until(60_000, || blocked(&mut client) == count as i64);
    let mut is_begun = false;
    longest_step_us(&mut client, |client| {
        if !std::mem::replace(&mut is_begun, true) {
            all.clear();
        }
        blocked(client) == 0
    })
}

/// The longest step of a scene: of the command, and of what follows until `is_over`.
fn step(
    exceeded: &mut Vec<String>,
    what: &str,
    client: &mut Client,
    act: impl FnOnce(&mut Client),
    is_over: impl FnMut(&mut Client) -> bool,
) {
    step_within(exceeded, what, STEP_US, client, act, is_over);
}

fn step_within(
    exceeded: &mut Vec<String>,
    what: &str,
    most_us: u64,
    client: &mut Client,
    act: impl FnOnce(&mut Client),
    mut is_over: impl FnMut(&mut Client) -> bool,
) {
    let mut act = Some(act);
    let us = longest_step_us(client, |client| {
        if let Some(act) = act.take() {
            act(client);
        }
        is_over(client)
    });
    println!("{what}: {:.1} ms", us as f64 / 1000.0);
    if us > most_us {
        exceeded.push(format!("{what}: {us} us of the server's processor time in one step"));
    }
}

/// The cost of a pair at this key, in nanoseconds of the server's processor time.
fn pair_ns(client: &mut Client, key: &str, words: &str) -> u64 {
    const PAIRS: u64 = 400;
    let path = format!("/proc/{}/schedstat", client.info_number("server", "process_id"));
    let used_ns = || -> u64 {
        let text = std::fs::read_to_string(&path).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let measure = |client: &mut Client| {
        let before = used_ns();
        for _ in 0..PAIRS {
            client.granted(&format!("RLOCK.ACQUIRE {key} x {words}"));
            client.number(&format!("RLOCK.RELEASE {key} x"));
        }
        (used_ns() - before) / PAIRS
    };
    (0..3).map(|_| measure(client)).min().unwrap()
}

/// All of them wait for the first key; the other keys are idle.
#[test]
fn a_thousand_groups_that_wait_keep_the_server_busy_in_short_steps_only() {
    one_of_five_rounds(
        round_of_a_thousand_groups_that_wait_keep_the_server_busy_in_short_steps_only,
    );
}

fn round_of_a_thousand_groups_that_wait_keep_the_server_busy_in_short_steps_only(
    exceeded: &mut Vec<String>,
) {
    const GROUPS: usize = 1000;
    let server = Server::start();
    let mut client = server.client();
    let alone_ns = pair_ns(&mut client, &key(KEYS - 1), "WRITE");
    client.granted("RLOCK.ACQUIRE k000 h LEASE 600000");
    let mut groups = wait(&server, &mut client, GROUPS, "LEASE 600000");
    let beside_ns = pair_ns(&mut client, &key(KEYS - 1), "WRITE");
    println!("a pair on an idle key: {alone_ns} ns, and {beside_ns} ns beside them");
    if beside_ns > 3 * alone_ns {
        exceeded.push(format!("{beside_ns} ns, {alone_ns} without them"));
    }
    let idle = keys(1);
    step(
        exceeded,
        "a stranger's request for their idle keys, and its release",
        &mut client,
        |client| {
            client.granted(&format!("RLOCK.MACQUIRE {} {idle} x", KEYS - 1));
        },
        |client| client.number(&format!("RLOCK.MRELEASE {} {idle} x", KEYS - 1)) >= 0,
    );
    let granted =
        |client: &mut Client, count: i64| number(client, "rlock_groups") == GROUPS as i64 - count;
    step(
        exceeded,
        "the first hand-off",
        &mut client,
        |client| assert_eq!(client.number("RLOCK.RELEASE k000 h"), 0),
        |client| granted(client, 1),
    );
    groups[0].granted();
    for round in 1..6 {
        let line = format!("RLOCK.MRELEASE {KEYS} {} g{}", keys(0), round - 1);
        let release = |client: &mut Client| assert_eq!(client.number(&line), KEYS as i64);
        step(exceeded, "a hand-off", &mut client, release, |client| granted(client, round + 1));
        groups[round as usize].granted();
    }
    let all = keys(0);
    // Each command frees the first key, at which all of them wait, and leaves the others held.
    step(
        exceeded,
        "FORCE",
        &mut client,
        |client| assert_eq!(client.number("RLOCK.FORCE k000"), 1),
        |client| number(client, "rlock_group_turns") == 1,
    );
    step(
        exceeded,
        "DEL",
        &mut client,
        |client| drop(client.ask(&format!("DEL {all}"))),
        |client| granted(client, 7),
    );
    groups[6].granted();
    let own_us = closing_us(500);
    println!("the server closes 500 connections that it blocks at {KEYS} keys in {own_us} us");
    step_within(
        exceeded,
        "500 closed connections",
        own_us.max(STEP_US),
        &mut client,
        |_| groups.truncate(GROUPS - 500),
        |client| number(client, "rlock_groups") <= GROUPS as i64 - 507,
    );
    step(
        exceeded,
        "FLUSHALL",
        &mut client,
        |client| drop(client.ask("FLUSHALL")),
        |client| granted(client, 508),
    );
    groups[7].granted();
    assert_eq!(number(&mut client, "rlock_groups_granted"), 9, "and the stranger's request");
}

/// READ at all keys but the last, where they wait: all of them enter together.
#[test]
fn five_hundred_read_groups_are_let_in_in_short_steps() {
    one_of_five_rounds(round_of_five_hundred_read_groups_are_let_in_in_short_steps);
}

fn round_of_five_hundred_read_groups_are_let_in_in_short_steps(exceeded: &mut Vec<String>) {
    const GROUPS: usize = 500;
    for closes in [false, true] {
        let server = Server::start();
        let mut client = server.client();
        let last = key(KEYS - 1);
        for number in 0..KEYS - 1 {
            client.granted(&format!("RLOCK.ACQUIRE {} r READ LEASE 600000", key(number)));
        }
        let alone_ns = pair_ns(&mut client, &key(0), "READ");
        client.granted(&format!("RLOCK.ACQUIRE {last} h LEASE 600000"));
        client.granted(&format!("RLOCK.ACQUIRE {last} h READ LEASE 600000"));
        let mut groups = wait(&server, &mut client, GROUPS, "READ");
        until(60_000, || number(&mut client, "rlock_group_turns") == (GROUPS * (KEYS - 1)) as i64);
        let beside_ns = pair_ns(&mut client, &key(0), "READ");
        println!("a READ pair: {alone_ns} ns, and {beside_ns} ns beside them");
        if beside_ns > 3 * alone_ns {
            exceeded.push(format!("{beside_ns} ns, {alone_ns} without them"));
        }
        if closes {
            step_within(
                exceeded,
                "500 closed connections that had reached 127 keys each",
                closing_us(GROUPS).max(STEP_US),
                &mut client,
                |_| groups.clear(),
                |client| number(client, "rlock_group_turns") == 0,
            );
            assert_eq!(number(&mut client, "rlock_groups"), 0);
            continue;
        }
        step(
            exceeded,
            "a downgrade lets in 500 READ groups",
            &mut client,
            |client| assert_eq!(client.number(&format!("RLOCK.RELEASE {last} h WRITE")), 0),
            |client| number(client, "rlock_groups") == 0,
        );
        assert!(groups.iter_mut().all(|group| group.granted() > 0));
        assert_eq!(number(&mut client, "rlock_groups_granted"), GROUPS as i64);
    }
}

/// What one owner waits for elsewhere, or here in another way, does not make its requests more
/// expensive.
#[test]
fn the_waits_of_one_owner_cost_as_much_as_those_of_many() {
    one_of_five_rounds(round_of_the_waits_of_one_owner_cost_as_much_as_those_of_many);
}

fn round_of_the_waits_of_one_owner_cost_as_much_as_those_of_many(exceeded: &mut Vec<String>) {
    const WAITS: usize = 3000;
    let mut took = [0_u64; 2];
    for (round, took) in took.iter_mut().enumerate() {
        let server = Server::start();
        let mut client = server.client();
        client.ask("CONFIG SET rlock.deadlock-detection no");
        client.granted("RLOCK.ACQUIRE door h LEASE 600000");
        let path = format!("/proc/{}/schedstat", client.info_number("server", "process_id"));
        let used_ns = || -> u64 {
            let text = std::fs::read_to_string(&path).unwrap();
            text.split(' ').next().unwrap().parse().unwrap()
        };
        let mut all: Vec<Waiter> = (0..WAITS).map(|_| Waiter::connect(&server)).collect();
        let before = used_ns();
        for (place, waiter) in all.iter_mut().enumerate() {
            let owner = if round == 0 { format!("o{place}") } else { "same".into() };
            waiter.say(&format!("RLOCK.ACQUIRE door {owner} BLOCK 0"));
        }
        until(60_000, || number(&mut client, "rlock_waiters") == WAITS as i64);
        *took = used_ns() - before;
    }
    let [many, one] = took.map(|ns| ns / WAITS as u64);
    println!("a wait of {WAITS} costs {many} ns, and {one} ns if all are of one owner");
    if one > 3 * many {
        exceeded.push(format!("{one} ns, {many} ns of different owners"));
    }
}
