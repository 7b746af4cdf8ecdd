//! Many who wait for several locks, beside single requests, tickets, readers and upgrades; and
//! processes that are killed. `RLOCK_GROUPS` says how many requests for several locks there are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use fastrand::Rng;
use redis::Value;

use rlock_testkit::{
    Client, Server, Waiter, cli_program, flat_map, integer, is_connected, items, now_ms, text,
    until,
};

/// Requests for several locks in a short run; in a long one, a hundred for each lock.
const GROUPS: usize = 3000;
/// Connections that ask at the same time.
const PEOPLE: usize = 300;
/// How many requests, or milliseconds without one, pass between two looks at what everybody waits
/// for.
const LOOK_AFTER: usize = 500;
const LOOK_AFTER_MS: i64 = 100;

fn number(client: &mut Client, field: &str) -> i64 {
    client.info_number("rlock", field)
}

// --- a crowd ------------------------------------------------------------------------------------

/// What somebody asked for.
struct Asked {
    keys: Vec<usize>,
    owner: String,
    is_group: bool,
}

/// A client that asks, holds for a moment, releases, and asks again.
struct Person {
    connection: Waiter,
    asked: Option<Asked>,
    /// How many replies come before that of the request.
    ignored: usize,
}

struct Crowd {
    rng: Rng,
    people: Vec<Person>,
    keys: usize,
    /// How many requests for several locks are still to be sent.
    left: usize,
    sent: u64,
    /// How many requests got a token, nil, and `-DEADLOCK`.
    granted: [u64; 2],
    refused: [u64; 2],
    deadlocks: [u64; 2],
}

impl Crowd {
    /// The next request: the words, and what is asked for.
    fn ask(&mut self) -> (String, Asked) {
        self.sent += 1;
        let owner = format!("o{}", self.sent);
        let key = self.rng.usize(0..self.keys);
        let ms = *self.rng.choice(&[1, 20, 500, 60_000, 60_000, 60_000]).unwrap();
        let kind = self.rng.u8(0..10);
        if kind < 6 && self.left > 0 {
            self.left -= 1;
            let count = self.rng.usize(2..6);
            let mut keys = BTreeSet::from([key]);
            while keys.len() < count {
                // Some locks are wanted by more clients than others.
                let next = self.rng.usize(0..self.keys);
                keys.insert(if self.rng.u8(0..4) > 0 { next } else { next % 50 });
            }
            let mut keys: Vec<usize> = keys.into_iter().collect();
            self.rng.shuffle(&mut keys);
            let names: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
            let modes = ["", " READ", " MODES"][self.rng.usize(0..3)];
            let each = |rng: &mut Rng| *rng.choice(&[" WRITE", " READ", " 3"]).unwrap();
            let modes = match modes {
                " MODES" => {
                    let all = keys.iter().map(|_| each(&mut self.rng)).collect::<String>();
                    format!(" MODES{all}")
                }
                other => other.to_owned(),
            };
            let session = if self.rng.u8(0..8) == 0 { " SESSION" } else { "" };
            let line = format!(
                "RLOCK.MACQUIRE {count} {} {owner}{modes} LEASE 600000 BLOCK {ms}{session}",
                names.join(" ")
            );
            return (line, Asked { keys, owner, is_group: true });
        }
        let rest = match kind % 5 {
            0 => "READ LEASE 600000 BLOCK 60000".to_owned(),
            1 => "READ LIMIT 2 LEASE 600000 BLOCK 60000".to_owned(),
            2 => format!("LEASE 600000 QUEUE {}", ms.min(500)),
            _ => format!("LEASE 600000 BLOCK {ms}"),
        };
        let line = format!("RLOCK.ACQUIRE k{key} {owner} {rest}");
        (line, Asked { keys: vec![key], owner, is_group: false })
    }

    /// Lets everybody who has a reply continue; returns whether anybody had one.
    fn go_on(&mut self) -> bool {
        let mut is_anything = false;
        for at in 0..self.people.len() {
            if self.people[at].connection.has_reply() {
                self.hear(at);
                is_anything = true;
            }
            if self.people[at].asked.is_none() && self.left > 0 {
                let (line, asked) = self.ask();
                self.people[at].connection.say(&line);
                self.people[at].asked = Some(asked);
                is_anything = true;
            }
        }
        is_anything
    }

    fn hear(&mut self, at: usize) {
        let reply = self.people[at].connection.reply();
        if self.people[at].ignored > 0 {
            self.people[at].ignored -= 1;
            return;
        }
        let asked = self.people[at].asked.take().unwrap();
        let kind = usize::from(asked.is_group);
        match reply {
            Ok(Value::Int(_)) => self.granted[kind] += 1,
            Ok(Value::Nil) => return self.refused[kind] += 1,
            Err(error) if error.starts_with("DEADLOCK ") => return self.deadlocks[kind] += 1,
            other => panic!("{:?}: {other:?}", asked.owner),
        }
        let names: Vec<String> = asked.keys.iter().map(|key| format!("k{key}")).collect();
        let release = format!("RLOCK.MRELEASE {} {} {}", names.len(), names.join(" "), asked.owner);
        let mut lines = vec![release];
        // Now and then a reader wants to write, and others wait meanwhile.
        if !asked.is_group && self.rng.u8(0..4) == 0 {
            let upgrade = format!("RLOCK.ACQUIRE {} {} UPGRADE BLOCK 50", names[0], asked.owner);
            lines.insert(0, upgrade);
        }
        self.people[at].ignored = lines.len();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        self.people[at].connection.say_all(&lines);
    }
}

/// Looks at all locks at one moment: nobody waits without a cause that is shown.
fn look(client: &mut Client, keys: usize) -> i64 {
    client.ask("MULTI");
    for key in 0..keys {
        client.ask(&format!("RLOCK.INFO k{key} WAITERS 10000"));
    }
    let all = client.ask("EXEC");
    let shown: Vec<BTreeMap<String, Value>> = items(&all).iter().map(flat_map).collect();
    let rows_of = |shown: &BTreeMap<String, Value>| -> Vec<BTreeMap<String, Value>> {
        items(&shown["waiters"]).iter().map(flat_map).collect()
    };
    let mut waiting = 0;
    for (key, shown_there) in shown.iter().enumerate() {
        let rows = rows_of(shown_there);
        let has_turn = rows.iter().any(|row| integer(&row["turn"]) == 1);
        let is_held = integer(&shown_there["holder-count"]) > 0;
        let stands = rows.iter().filter(|row| integer(&row["turn"]) == 0).count();
        waiting += integer(&shown_there["queue-length"]);
        assert!(stands == 0 || has_turn || is_held, "k{key} is free, and somebody waits: {rows:?}");
        // If a lock is reserved for a client that waits for several, that client waits at another
        // lock.
        let reserved =
            rows.iter().filter(|row| integer(&row["turn"]) == 1 && text(&row["kind"]) == "block");
        for row in reserved {
            let at = text(&row["at"]);
            let there = at.strip_prefix('k').and_then(|at| at.parse::<usize>().ok());
            let there = there.unwrap_or_else(|| panic!("k{key}: {row:?} stands nowhere"));
            let is_it = |other: &BTreeMap<String, Value>| {
                integer(&other["turn"]) == 0 && integer(&other["client"]) == integer(&row["client"])
            };
            assert!(rows_of(&shown[there]).iter().any(is_it), "k{key}: {row:?} is not at {at}");
        }
    }
    waiting
}

/// Each of many requests for several locks is granted or refused in time, for a cause that
/// `RLOCK.INFO` shows, and nothing is left behind.
#[test]
fn a_crowd_of_groups_waits_for_causes_that_are_shown_and_leaves_nothing_behind() {
    let groups = std::env::var("RLOCK_GROUPS").map_or(GROUPS, |text| text.parse().unwrap());
    let keys = (groups / 100).min(1000);
    let server = Server::start();
    let mut client = server.client();
    let seed = std::env::var("RLOCK_SEED").map_or(29, |text| text.parse().unwrap());
    let person = |_| Person { connection: Waiter::connect(&server), asked: None, ignored: 0 };
    let mut crowd = Crowd {
        rng: Rng::with_seed(seed),
        people: (0..PEOPLE).map(person).collect(),
        keys,
        left: groups,
        sent: 0,
        granted: [0; 2],
        refused: [0; 2],
        deadlocks: [0; 2],
    };
    let (mut looks, mut most, mut next_look, mut looked_ms) = (0, 0, 0, 0);
    while crowd.left > 0 || crowd.people.iter().any(|one| one.asked.is_some()) {
        let is_anything = crowd.go_on();
        let is_idle = !is_anything && now_ms() > looked_ms + LOOK_AFTER_MS;
        if is_idle || crowd.sent >= next_look {
            next_look = crowd.sent + LOOK_AFTER as u64;
            most = most.max(look(&mut client, keys));
            (looks, looked_ms) = (looks + 1, now_ms());
        }
    }
    for person in &mut crowd.people {
        (0..person.ignored).for_each(|_| drop(person.connection.reply()));
    }
    let Crowd { granted, refused, deadlocks, .. } = crowd;
    println!(
        "{groups} requests for 2 to 5 of {keys} locks, and {} single ones, of {PEOPLE} \
         connections: {} and {} granted, {} and {} \
         not in their time, {} and {} refused as a deadlock; {looks} \
         looks at all locks, up to {most} places taken",
        granted[0] + refused[0] + deadlocks[0],
        granted[1],
        granted[0],
        refused[1],
        refused[0],
        deadlocks[1],
        deadlocks[0]
    );
    assert_eq!(granted[1] + refused[1] + deadlocks[1], groups as u64, "all are answered");
    assert_eq!(deadlocks, [0; 2], "who holds nothing while it waits closes no cycle");
    assert!(granted[1] > groups as u64 / 4, "many are granted");
    // The last tickets end by themselves.
    until(10_000, || number(&mut client, "rlock_tickets") == 0);
    for field in ["rlock_groups", "rlock_group_turns", "rlock_waiters", "rlock_sessions"] {
        assert_eq!(number(&mut client, field), 0, "{field}");
    }
    assert_eq!(client.number("DBSIZE"), 0);
}

// --- processes that are killed ------------------------------------------------------------------

/// A process of its own with one connection.
struct Process {
    child: Child,
    id: i64,
}

impl Process {
    /// Starts one that sends these lines; the last one may block.
    fn saying(server: &Server, lines: &[&str]) -> Process {
        let mut child = Command::new(cli_program())
            .args(["-s", &server.socket().display().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        writeln!(stdin, "CLIENT ID").unwrap();
        lines.iter().for_each(|line| writeln!(stdin, "{line}").unwrap());
        stdin.flush().unwrap();
        let mut id = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut id).unwrap();
        let digits: String = id.chars().filter(char::is_ascii_digit).collect();
        Process { child, id: digits.parse().unwrap() }
    }

    /// Kills it with `kill -9`, and waits until the server has noticed.
    fn kill(mut self, client: &mut Client) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        until(5_000, || !is_connected(client, self.id));
    }
}

/// Once the server has noticed that a connection is gone, nothing is reserved for it.
#[test]
fn killed_processes_leave_no_lock_reserved_and_no_part_of_a_grant() {
    let server = Server::start();
    let mut client = server.client();
    let line = "RLOCK.MACQUIRE 3 a b c ann BLOCK 0 SESSION";
    for round in 0..20 {
        client.granted("RLOCK.ACQUIRE c bob LEASE 600000");
        let waits = Process::saying(&server, &[line]);
        until(5_000, || number(&mut client, "rlock_group_turns") == 2);
        client.refused("RLOCK.ACQUIRE a cy");
        if round % 2 == 0 {
            waits.kill(&mut client);
            // This is the next iteration of the loop.
            assert_eq!(number(&mut client, "rlock_group_turns"), 0);
            client.granted("RLOCK.MACQUIRE 2 a b cy");
            assert_eq!(client.number("RLOCK.MRELEASE 2 a b cy"), 2);
            assert_eq!(client.number("RLOCK.RELEASE c bob"), 0);
        } else {
            // It waits, then it holds, and another one waits for it.
            let mut next = Waiter::parked(&server, "RLOCK.MACQUIRE 3 c a b dan BLOCK 0");
            assert_eq!(client.number("RLOCK.RELEASE c bob"), 0);
            until(5_000, || client.number("RLOCK.HOLDS c ann") == 1);
            waits.kill(&mut client);
            let token = next.granted();
            for key in ["a", "b", "c"] {
                assert_eq!(client.number(&format!("RLOCK.CHECK {key} {token}")), 1, "{key}");
            }
            assert_eq!(client.number("RLOCK.MRELEASE 3 a b c dan"), 3);
        }
        assert_eq!(client.number("DBSIZE"), 0);
        assert_eq!(number(&mut client, "rlock_groups"), 0);
    }
}
