//! Requests for several locks in random histories, together with requests for single locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::MapHost;
use crate::support::noise::Noise;
use crate::support::small::every_history;

const KEYS: [&str; 4] = ["a", "a:1", "b", "c"];
const OWNERS: [&str; 4] = ["ann", "bob", "cy", "dan"];

/// A step and its time.
#[derive(Clone, Debug)]
struct Deed {
    at_ms: u64,
    client: u64,
    line: String,
}

/// One of several keys, and its mode.
type Wanted = (&'static str, &'static str);

fn wants(noise: &mut Noise) -> Vec<Wanted> {
    let mut keys = KEYS.to_vec();
    let count = 1 + noise.place(4);
    let mut wants = Vec::new();
    for _ in 0..count {
        let key = keys.remove(noise.place(keys.len()));
        wants.push((key, noise.one_of(&["WRITE", "WRITE", "READ", "1", "2", "3"])));
    }
    wants
}

fn several(owner: &str, wants: &[Wanted], lease_ms: u64) -> String {
    let words =
        |word: fn(&Wanted) -> &'static str| wants.iter().map(word).collect::<Vec<_>>().join(" ");
    let (keys, modes) = (words(|want| want.0), words(|want| want.1));
    format!("macquire {} {keys} {owner} MODES {modes} LEASE {lease_ms}", wants.len())
}

fn single(owner: &str, want: Wanted, lease_ms: u64) -> String {
    let (key, mode) = want;
    let mode = match mode {
        "WRITE" | "READ" => mode.to_owned(),
        limit => format!("LIMIT {limit}"),
    };
    format!("acquire {key} {owner} {mode} DEPTH 1 LEASE {lease_ms}")
}

fn any_line(noise: &mut Noise) -> String {
    let (key, owner) = (noise.one_of(&KEYS), noise.one_of(&OWNERS));
    let lease = noise.one_of(&[50, 300, 5000, 5000]);
    match noise.below(20) {
        0..5 => {
            let patience = noise.one_of(&["", "BLOCK 0", "BLOCK 0", "BLOCK 100"]);
            format!("{} {patience}", several(owner, &wants(noise), lease))
        }
        5..10 => {
            let mode = noise.one_of(&["", "READ", "LIMIT 1", "LIMIT 2", "UPGRADE"]);
            let patience = noise.one_of(&["", "", "BLOCK 0", "BLOCK 100", "QUEUE 200"]);
            format!("acquire {key} {owner} LEASE {lease} {mode} {patience}")
        }
        10..14 => format!("release {key} {owner}"),
        14..17 => {
            let keys: Vec<&str> = wants(noise).into_iter().map(|(key, _)| key).collect();
            let command = noise.one_of(&["mrelease", "mrelease", "mrenew"]);
            format!("{command} {} {} {owner}", keys.len(), keys.join(" "))
        }
        17 => format!("cancel {key} {owner}"),
        18 => format!("renew {key} {owner}"),
        _ => format!("force {key}"),
    }
}

fn history(noise: &mut Noise) -> Vec<Deed> {
    let (mut at_ms, mut deeds) = (0, Vec::new());
    for number in 0..8 + noise.below(12) {
        at_ms += noise.one_of(&[0, 0, 1, 20, 100]);
        let words: Vec<String> = any_line(noise).split_whitespace().map(str::to_owned).collect();
        // Each on a connection of its own, which may be blocked forever.
        deeds.push(Deed { at_ms, client: 100 + number, line: words.join(" ") });
    }
    deeds
}

/// A server after all these steps.
fn after(deeds: &[Deed]) -> MapHost {
    let host = MapHost::primary();
    for deed in deeds {
        host.at(deed.at_ms);
        host.turn();
        host.ask(deed.client, &deed.line);
        host.turn();
    }
    host
}

/// The holds at each key, except expired ones.
fn picture(host: &MapHost, now_ms: u64) -> Vec<Vec<String>> {
    let stands = |hold: &String| {
        let until = hold.split_once("until=").map(|(_, ms)| ms.parse::<u64>().unwrap());
        until.is_some_and(|until| until > now_ms)
    };
    let holds = |key: &&str| host.holds(key).split(", ").map(str::to_owned).collect::<Vec<_>>();
    KEYS.iter().map(|key| holds(key).into_iter().filter(stands).collect()).collect()
}

fn has_ticket(host: &MapHost, key: &str, owner: &str) -> bool {
    host.state_of(|state| {
        let volatile = state.manager.volatile(0, key.as_bytes());
        volatile.is_some_and(|volatile| volatile.queue.place(owner.as_bytes()).is_some())
    })
}

/// M7, M8, M9, M11, M12: the request is granted if and only if every key alone would be. All holds
/// then are those that single requests would have begun, but with one token.
#[test]
fn several_are_granted_exactly_where_each_alone_would_be() {
    let (mut noise, mut granted, mut refused) = (Noise(0x5eed), 0, 0);
    for round in 0..1200 {
        let deeds = history(&mut noise);
        let (owner, wants) = (noise.one_of(&OWNERS), wants(&mut noise));
        let at_ms = deeds.last().unwrap().at_ms + noise.one_of(&[0, 0, 40]);
        let ready = |host: MapHost| {
            host.at(at_ms);
            host.turn();
            host
        };
        let host = ready(after(&deeds));
        if wants.iter().any(|(key, _)| has_ticket(&host, key, owner)) {
            continue;
        }
        let before = picture(&host, at_ms);
        let said = host.ask(7, &several(owner, &wants, 700));
        let alone: Vec<String> = wants
            .iter()
            .map(|want| ready(after(&deeds)).ask(7, &single(owner, *want, 700)))
            .collect();
        let context = || format!("round {round}: {deeds:#?}\n{owner} {wants:?}\n{alone:?}: {said}");
        if let Some(error) = alone.iter().find(|said| said.starts_with('-')) {
            let code = error.split(' ').next().unwrap();
            assert!(said.starts_with(code), "{}", context());
            assert_eq!(picture(&host, at_ms), before, "{}", context());
        } else if alone.iter().any(|said| said == "nil") {
            assert_eq!(said, "nil", "{}", context());
            assert_eq!(picture(&host, at_ms), before, "{}", context());
            refused += 1;
        } else {
            assert!(said.starts_with('#'), "{}", context());
            let singles = ready(after(&deeds));
            let mut in_order = wants.clone();
            in_order.sort_unstable();
            in_order.iter().for_each(|want| {
                singles.ask(7, &single(owner, *want, 700));
            });
            assert_eq!(picture(&host, at_ms), picture(&singles, at_ms), "{}", context());
            let token: usize = said.trim_start_matches('#').parse().unwrap();
            let token = host.token(token);
            let newest = wants.iter().map(|(key, mode)| {
                let lock = host.lock(key);
                let mode = if *mode == "WRITE" { "write" } else { "read" };
                let own = lock
                    .holds()
                    .find(|(name, held, _)| *name == owner.as_bytes() && held.lower() == mode);
                own.expect("a hold").2.token.get()
            });
            assert_eq!(newest.max(), Some(token), "{}", context());
            granted += 1;
        }
    }
    assert!(granted > 100 && refused > 100, "{granted} granted, {refused} refused");
}

/// M30: a replica that follows has the same locks after every command. So has a replica that gets
/// the effects of each command one by one, as an older primary sent them.
#[test]
fn a_replica_has_the_same_locks_after_every_command() {
    let (mut noise, mut units) = (Noise(0xacce55), 0);
    for _ in 0..500 {
        let (host, replica, apart) = (MapHost::primary(), MapHost::replica(), MapHost::replica());
        for deed in history(&mut noise) {
            for server in [&host, &replica, &apart] {
                server.at(deed.at_ms);
            }
            host.turn();
            host.ask(deed.client, &deed.line);
            host.turn();
            for written in std::mem::take(&mut host.world().stream) {
                replica.replay(&written);
                let alone = written.apart();
                units += usize::from(alone.len() > 1);
                alone.iter().for_each(|one| {
                    apart.replay(one);
                });
            }
            for key in KEYS {
                assert_eq!(replica.holds(key), host.holds(key), "{deed:?}");
                assert_eq!(apart.holds(key), host.holds(key), "{deed:?}, one by one");
            }
        }
    }
    assert!(units > 100, "only {units} commands had effects at several locks");
}

// --- every history of a small world -------------------------------------------------------------

/// A naive model without time: who reads and who writes each key.
#[derive(Clone, Default)]
struct Naive {
    holds: BTreeSet<(usize, usize, bool)>,
}

/// The result of a naive request.
#[derive(Debug, PartialEq)]
enum Told {
    Token,
    Nil,
    Deadlock,
    Count(usize),
}

/// Whether an owner may acquire a key: `None` is a deadlock.
impl Naive {
    fn may(&self, owner: usize, key: usize, mode: Small) -> Option<bool> {
        let has = |write| self.holds.contains(&(key, owner, write));
        let others = |write| {
            let all = self.holds.iter();
            all.filter(|(k, o, w)| (*k, *w) == (key, write) && *o != owner).count()
        };
        match mode {
            Small::Write if has(true) => Some(true),
            Small::Write if has(false) => None,
            Small::Write => Some(others(true) + others(false) == 0),
            _ if has(true) || has(false) => Some(true),
            Small::Read => Some(others(true) == 0),
            Small::One => Some(others(true) + others(false) == 0),
        }
    }

    fn acquire(&mut self, owner: usize, wants: &[(usize, Small)]) -> Told {
        let may: Vec<_> = wants.iter().map(|(key, mode)| self.may(owner, *key, *mode)).collect();
        if may.contains(&None) {
            return Told::Deadlock;
        }
        if may.contains(&Some(false)) {
            return Told::Nil;
        }
        self.holds.extend(wants.iter().map(|(key, mode)| (*key, owner, *mode == Small::Write)));
        Told::Token
    }

    fn release(&mut self, owner: usize) -> Told {
        let before = self.holds.len();
        self.holds.retain(|(_, other, _)| *other != owner);
        Told::Count(before - self.holds.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Small {
    Write,
    Read,
    One,
}

const DEEDS: [&[(usize, Small)]; 7] = [
    &[(0, Small::Write), (1, Small::Write)],
    &[(0, Small::Read), (1, Small::Write)],
    &[(0, Small::One), (1, Small::Read)],
    &[(0, Small::Read), (1, Small::One)],
    &[(0, Small::Write)],
    &[(1, Small::Read)],
    // Releases everything.
    &[],
];

/// One history, as numbers of steps.
fn small_history(numbers: &[usize]) {
    let (host, mut naive) = (MapHost::primary(), Naive::default());
    let mut tokens: BTreeMap<(usize, usize, bool), u64> = BTreeMap::new();
    for number in numbers {
        let (owner, wants) = (number / DEEDS.len(), DEEDS[number % DEEDS.len()]);
        let name = OWNERS[owner];
        let before = naive.holds.clone();
        let (line, owed) = if wants.is_empty() {
            (format!("mrelease 2 a b {name}"), naive.release(owner))
        } else {
            let word = |mode| match mode {
                Small::Write => "WRITE",
                Small::Read => "READ",
                Small::One => "1",
            };
            let keys: Vec<&str> = wants.iter().map(|(key, _)| ["a", "b"][*key]).collect();
            let modes: Vec<&str> = wants.iter().map(|(_, mode)| word(*mode)).collect();
            let (keys, modes) = (keys.join(" "), modes.join(" "));
            let line = format!("macquire {} {keys} {name} MODES {modes}", wants.len());
            (line, naive.acquire(owner, wants))
        };
        let said = host.ask(1, &line);
        let told = match said.as_str() {
            "nil" => Told::Nil,
            said if said.starts_with("-DEADLOCK") => Told::Deadlock,
            said if said.starts_with('#') => Told::Token,
            said => Told::Count(said.parse().unwrap()),
        };
        assert_eq!(told, owed, "{line} in {numbers:?}");
        // One token for all new holds, greater than all others.
        if let Some(token) = said.strip_prefix('#').map(|place| host.token(place.parse().unwrap()))
        {
            tokens.retain(|hold, _| before.contains(hold));
            let new: Vec<_> = naive.holds.difference(&before).copied().collect();
            for hold in &new {
                tokens.insert(*hold, token);
            }
            let wanted = wants.iter().map(|(key, mode)| (*key, owner, *mode == Small::Write));
            let newest = wanted.map(|hold| tokens[&hold]).max();
            assert_eq!(newest, Some(token), "{line} in {numbers:?}");
        }
        for (key, name) in ["a", "b"].into_iter().enumerate() {
            let shown: BTreeSet<(usize, bool)> = host
                .holds(name)
                .split(", ")
                .filter(|hold| hold.contains("until"))
                .map(|hold| {
                    let words: Vec<&str> = hold.split(' ').collect();
                    assert_eq!(words[2], "depth=1", "{line} in {numbers:?}");
                    let owner = OWNERS.iter().position(|owner| *owner == words[0]).unwrap();
                    (owner, words[1] == "write")
                })
                .collect();
            let owed = naive.holds.iter().filter(|(k, ..)| *k == key);
            let owed: BTreeSet<(usize, bool)> = owed.map(|(_, o, w)| (*o, *w)).collect();
            assert_eq!(shown, owed, "{name} after {line} in {numbers:?}");
        }
    }
}

/// Two keys, three owners, every history of `RLOCK_STEPS` requests, or of three.
#[test]
fn every_short_history_is_as_in_a_naive_model() {
    every_history(DEEDS.len(), 3, small_history);
}
