//! The commands that acquire and release a lock, with RLOCK and with its alternatives.

use rlock_testkit::{Client, Version, text};

/// An owner's name as clients build it: a UUID and the number of a thread.
pub const OWNER: &str = "0f9a7c3e-5d0b-4c57-9c51-2f6c4c1f7a10:17";
/// The name of an owner with this number, in the same form.
pub fn owner(number: usize) -> String {
    format!("0f9a7c3e-5d0b-4c57-9c51-{number:012x}:17")
}

pub const LEASE_MS: &str = "30000";
/// How long today's Redisson keeps the result of an unlock by default, in milliseconds.
const LATCH_MS: &str = "20000";
/// How long Redisson's fair lock lets a waiter take by default, in milliseconds.
const FAIR_WAIT_MS: &str = "300000";

/// A way to acquire and release a free lock.
pub struct Rival {
    pub name: &'static str,
    /// The commands in order, and how each reply must begin. `$K` stands for the lock.
    commands: Vec<(String, &'static str)>,
}

impl Rival {
    fn of(name: &'static str, commands: &[(&str, &'static str)]) -> Rival {
        let commands = commands.iter().map(|(line, reply)| ((*line).to_owned(), *reply));
        Rival { name, commands: commands.collect() }
    }

    /// The commands for this lock, and how each reply must begin.
    pub fn lines_on(&self, key: &str) -> Vec<(String, &'static str)> {
        let commands = self.commands.iter();
        commands.map(|(line, reply)| (line.replace("$K", key), *reply)).collect()
    }
}

pub const PING: &str = "PING + PING";
pub const RLOCK: &str = "RLOCK.ACQUIRE + RLOCK.RELEASE";
pub const RLOCK_READ: &str = "the same, READ";
pub const RLOCK_LIMIT: &str = "the same, READ LIMIT 10";
/// The least work that a server needs for any module that does this: `bench/floor/floor.c`.
pub const FLOOR: &str = "the floor: a C module that does only this";
pub const SET_DEL: &str = "SET NX PX + DEL";
pub const SET_SCRIPT: &str = "SET NX PX + compare-and-delete script";
pub const SET_DELIFEQ: &str = "SET NX PX + DELIFEQ";
pub const REDISSON: &str = "Redisson's scripts, classic";
pub const REDISSON_NOW: &str = "Redisson's scripts, today's";

/// Stands for the token that an earlier command of the pair returned.
pub const TOKEN: &str = "$T";

/// RLOCK as the client packages send it.
pub fn clients_pair() -> Rival {
    Rival::of(
        "RLOCK, as the client packages send it",
        &[
            (&format!("RLOCK.ACQUIRE $K {OWNER} WRITE LEASE {LEASE_MS} DEPTH 1"), ":"),
            (&format!("RLOCK.RELEASE $K {OWNER} WRITE TOKEN {TOKEN} DEPTH 0"), ":0"),
        ],
    )
}

const DELETE_IF_EQUAL: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                               return redis.call('del', KEYS[1]) else return 0 end";

/// The floor. Its module is loaded into the server of `client` if necessary.
fn floor(client: &mut Client) -> Option<Rival> {
    let module = std::env::var("RLOCK_FLOOR").ok()?;
    let loaded = format!("{:?}", client.ask("MODULE LIST"));
    if !loaded.contains("floor") {
        client.ask(&format!("MODULE LOAD {module}"));
    }
    Some(Rival::of(
        FLOOR,
        &[
            (&format!("FLOOR.ACQUIRE $K {OWNER} LEASE {LEASE_MS}"), ":"),
            (&format!("FLOOR.RELEASE $K {OWNER}"), ":0"),
        ],
    ))
}

/// All rivals. Their scripts are loaded into the server of `client`.
pub fn all(client: &mut Client, version: Version) -> Vec<Rival> {
    let mut rivals = vec![
        Rival::of(PING, &[("PING", "+PONG"), ("PING", "+PONG")]),
        Rival::of(SET_DEL, &[(&set(), "+OK"), ("DEL $K", ":1")]),
        Rival::of(
            RLOCK,
            &[
                (&format!("RLOCK.ACQUIRE $K {OWNER} LEASE {LEASE_MS}"), ":"),
                (&format!("RLOCK.RELEASE $K {OWNER}"), ":0"),
            ],
        ),
        Rival::of(
            RLOCK_READ,
            &[
                (&format!("RLOCK.ACQUIRE $K {OWNER} READ LEASE {LEASE_MS}"), ":"),
                (&format!("RLOCK.RELEASE $K {OWNER} READ"), ":0"),
            ],
        ),
        Rival::of(
            RLOCK_LIMIT,
            &[
                (&format!("RLOCK.ACQUIRE $K {OWNER} LIMIT 10 LEASE {LEASE_MS}"), ":"),
                (&format!("RLOCK.RELEASE $K {OWNER} READ"), ":0"),
            ],
        ),
    ];
    rivals.extend(floor(client));
    let sha = load(client, DELETE_IF_EQUAL);
    let compare = format!("EVALSHA {sha} 1 $K {OWNER}");
    rivals.push(Rival::of(SET_SCRIPT, &[(&set(), "+OK"), (&compare, ":1")]));
    if version >= Version::Valkey(9, 0) {
        let compare = format!("DELIFEQ $K {OWNER}");
        rivals.push(Rival::of(SET_DELIFEQ, &[(&set(), "+OK"), (&compare, ":1")]));
    }
    rivals.extend(redisson(client));
    rivals
}

fn set() -> String {
    format!("SET $K {OWNER} NX PX {LEASE_MS}")
}

/// Redisson's kinds of locks, each with the scripts of older releases and with today's scripts.
fn redisson(client: &mut Client) -> Vec<Rival> {
    let mut rivals = Vec::new();
    for is_todays in [false, true] {
        let mut script = |text: &str| load(client, &todays_or_classic(text, is_todays));
        let latch = "redisson_unlock_latch:{$K}:6f1c0de05a7e4b7c8d9eaf0b1c2d3e4f";
        let tidy_up = format!("DEL {latch}");
        let mut pair = |[classic, todays]: [&'static str; 2], acquire: &str, release: &str| {
            let mut commands = vec![(acquire, "$-1"), (release, ":1")];
            if is_todays {
                commands.push((&tidy_up, ":1"));
            }
            rivals.push(Rival::of(if is_todays { todays } else { classic }, &commands));
        };
        let (acquire, release) = (
            script(include_str!("../redisson/reentrant_acquire.lua")),
            script(include_str!("../redisson/reentrant_release.lua")),
        );
        pair(
            [REDISSON, REDISSON_NOW],
            &format!("EVALSHA {acquire} 1 $K {LEASE_MS} {OWNER}"),
            &format!(
                "EVALSHA {release} 3 $K redisson_lock__channel:{{$K}} {latch} \
                 {OWNER} {LEASE_MS} {LATCH_MS}"
            ),
        );
        let (acquire, release) = (
            script(include_str!("../redisson/fair_acquire.lua")),
            script(include_str!("../redisson/fair_release.lua")),
        );
        let (queue, ends) = ("redisson_lock_queue:{$K}", "redisson_lock_timeout:{$K}");
        // The time comes from the client. It is constant, because nobody waits here.
        let clock = rlock_testkit::now_ms();
        pair(
            ["Redisson's fair lock, classic", "Redisson's fair lock, today's"],
            &format!(
                "EVALSHA {acquire} 3 $K {queue} {ends} {LEASE_MS} {OWNER} {FAIR_WAIT_MS} {clock}"
            ),
            &format!(
                "EVALSHA {release} 4 $K {queue} {ends} {latch} \
                 {OWNER} {LEASE_MS} {clock} redisson_lock__channel:{{$K}}: {LATCH_MS}"
            ),
        );
        let (acquire, release) = (
            script(include_str!("../redisson/read_acquire.lua")),
            script(include_str!("../redisson/read_release.lua")),
        );
        let channel = "redisson_rwlock:{$K}";
        let own = format!("{{$K}}:{OWNER}:rwlock_timeout");
        pair(
            ["Redisson's read lock, classic", "Redisson's read lock, today's"],
            &format!("EVALSHA {acquire} 2 $K {own} {LEASE_MS} {OWNER}"),
            &format!("EVALSHA {release} 5 $K {channel} {own} {{$K}} {latch} {OWNER} {LATCH_MS}"),
        );
        let (acquire, release) = (
            script(include_str!("../redisson/write_acquire.lua")),
            script(include_str!("../redisson/write_release.lua")),
        );
        pair(
            ["Redisson's write lock, classic", "Redisson's write lock, today's"],
            &format!("EVALSHA {acquire} 1 $K {LEASE_MS} {OWNER}:write"),
            &format!(
                "EVALSHA {release} 3 $K {channel} {latch} {OWNER}:write {LEASE_MS} {LATCH_MS}"
            ),
        );
    }
    rivals
}

/// The text of a script as it is loaded: see `redisson/README.md`.
pub fn todays_or_classic(text: &str, is_todays: bool) -> String {
    if is_todays { text.replace("--[latch] ", "") } else { text.to_owned() }
}

/// Loads a script; returns the name by which `EVALSHA` calls it.
pub fn load(client: &mut Client, script: &str) -> String {
    text(&client.ask_bytes(&[b"SCRIPT", b"LOAD", script.as_bytes()]))
}
