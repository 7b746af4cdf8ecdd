//! Random histories of grants of several locks that replicas acknowledge late, or never: a reported
//! grant is held and acknowledged as a whole, and nothing remains of an unreported one.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::MapHost;
use crate::support::noise::Noise;
use crate::support::replica::primary;

const KEYS: [&str; 3] = ["a", "b", "c"];
const OWNERS: [&str; 3] = ["ann", "bob", "cy"];

/// What a connection asked for.
struct Asked {
    owner: &'static str,
    keys: Vec<&'static str>,
    renews: bool,
    acks: bool,
}

struct Course {
    host: MapHost,
    noise: Noise,
    clients: u64,
    asked: BTreeMap<u64, Asked>,
    /// Holds by token and key, with the length of the stream when they had begun.
    begun: BTreeMap<(u64, &'static str), usize>,
    /// Tokens of reported holds, with each key.
    told: BTreeSet<(u64, &'static str)>,
    /// How much of the stream the replica has acknowledged at most.
    acknowledged: usize,
    grants: usize,
    no_acks: usize,
    /// Requests and replies.
    log: Vec<String>,
}

impl Course {
    fn new(seed: u64) -> Self {
        let host = primary();
        host.world().counts_stream = true;
        Self {
            host,
            noise: Noise(seed),
            clients: 0,
            asked: BTreeMap::new(),
            begun: BTreeMap::new(),
            told: BTreeSet::new(),
            acknowledged: 0,
            grants: 0,
            no_acks: 0,
            log: Vec::new(),
        }
    }

    fn holds(&self) -> Vec<(&'static str, String, u64)> {
        let mut all = Vec::new();
        for key in KEYS.into_iter().filter(|key| self.host.holds(key) != "no key") {
            let lock = self.host.lock(key);
            let holds = lock.holds().map(|(owner, _, hold)| {
                (key, String::from_utf8_lossy(owner).into_owned(), hold.token.get())
            });
            all.extend(holds);
        }
        all
    }

    /// Records new holds, and runs one loop iteration.
    fn turn(&mut self) {
        let told = self.host.turn();
        self.turn_begun();
        for line in told {
            let (client, said) = line.split_once(": ").unwrap();
            self.log.push(format!("{client} is told {said}, {} acknowledged", self.acknowledged));
            self.hears(client.parse().unwrap(), said);
        }
    }

    /// A connection hears this.
    fn hears(&mut self, client: u64, said: &str) {
        let Some(asked) = self.asked.remove(&client) else { return };
        self.no_acks += usize::from(said.starts_with("-NOACKS"));
        let Some(place) = said.strip_prefix('#') else {
            if said == "1" && asked.renews {
                self.is_told(&asked, None);
            }
            return;
        };
        let token = self.host.token(place.parse().unwrap());
        self.grants += 1;
        self.is_told(&asked, Some(token));
    }

    /// A reported grant: its owner holds all of it, and the replica has it if it had to acknowledge
    /// it.
    fn is_told(&mut self, asked: &Asked, newest: Option<u64>) {
        let holds = self.holds();
        let mut tokens = Vec::new();
        for key in &asked.keys {
            let own = holds.iter().filter(|(at, owner, _)| at == key && owner == asked.owner);
            let own: Vec<u64> = own.map(|(_, _, token)| *token).collect();
            assert!(!own.is_empty(), "{} is told of {key} and does not hold it", asked.owner);
            for token in own {
                let at = self.begun.get(&(token, *key)).copied().unwrap_or(0);
                let has_it = at <= self.acknowledged;
                let of = &asked.owner;
                assert!(
                    has_it || !asked.acks,
                    "{key} of {of} is not acknowledged: {:#?}",
                    self.log
                );
                self.told.insert((token, *key));
                tokens.push(token);
            }
            let counted = self.host.ask(1, &format!("holds {key} {}", asked.owner));
            assert_ne!(counted, "0", "{} is told of {key}, which is pending", asked.owner);
        }
        assert_eq!(newest, newest.and(tokens.iter().max().copied()), "the newest token is told");
    }

    fn any_deed(&mut self) {
        let (owner, keys) = (self.noise.one_of(&OWNERS), self.noise.some_of(&KEYS));
        let (acks, key) = (self.noise.below(4) > 0, self.noise.one_of(&KEYS));
        let words = if acks { "ACKS 1" } else { "" };
        let lease = self.noise.one_of(&[300, 3000, 9000]);
        let list = format!("{} {} {owner}", keys.len(), keys.join(" "));
        let patience = self.noise.one_of(&["", "", "BLOCK 0", "BLOCK 500"]);
        let (line, asked) = match self.noise.below(20) {
            0..9 => {
                let asked = Asked { owner, keys, renews: false, acks };
                (format!("macquire {list} {words} LEASE {lease} {patience}"), Some(asked))
            }
            9..11 => {
                let asked = Asked { owner, keys, renews: true, acks };
                (format!("mrenew {list} {words} LEASE {lease}"), Some(asked))
            }
            11..13 => {
                let asked = Asked { owner, keys: vec![key], renews: false, acks };
                let line =
                    format!("acquire {key} {owner} DEPTH 1 {words} LEASE {lease} {patience}");
                (line, Some(asked))
            }
            13..15 => (format!("release {key} {owner}"), None),
            15..17 => (format!("mrelease {list}"), None),
            17 => (format!("cancel {key} {owner}"), None),
            18 => (format!("force {key}"), None),
            _ => return self.host.remove(key),
        };
        self.clients += 1;
        let client = 100 + self.clients;
        let line: Vec<&str> = line.split_whitespace().collect();
        let said = self.host.ask(client, &line.join(" "));
        self.log.push(format!("{client}: {} -> {said}", line.join(" ")));
        asked.map(|asked| self.asked.insert(client, asked));
        self.turn_begun();
        if !said.is_empty() {
            self.hears(client, &said);
        }
    }

    fn turn_begun(&mut self) {
        let end = self.host.world().stream.len();
        for (key, _, token) in self.holds() {
            self.begun.entry((token, key)).or_insert(end);
        }
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.host.world().stream.len();
        self.host.world().acknowledged = vec![u64::try_from(self.acknowledged).unwrap()];
    }

    /// Nobody waits for acknowledgments any more, so every hold has been reported to a caller.
    fn rests(&mut self) {
        let is_busy = |host: &MapHost| {
            let keys = KEYS.map(str::as_bytes).into_iter();
            host.state_of(|state| {
                let volatile = keys.filter_map(|key| state.manager.volatile(0, key));
                let waits = volatile.map(|volatile| volatile.pending_count()).sum::<usize>();
                waits > 0
            })
        };
        if is_busy(&self.host) {
            return;
        }
        for (key, owner, token) in self.holds() {
            let is_told = self.told.contains(&(token, key));
            assert!(is_told, "nobody was told of {key}, held by {owner}");
        }
    }
}

#[test]
fn what_is_told_is_held_and_acknowledged_as_a_whole() {
    let (mut grants, mut no_acks) = (0, 0);
    for seed in 1..600 {
        let mut course = Course::new(seed * 0x9e37_79b9);
        let mut at_ms = 0;
        for _ in 0..60 {
            at_ms += course.noise.one_of(&[0, 0, 1, 50, 700]);
            course.host.at(at_ms);
            course.any_deed();
            course.turn();
            if course.noise.below(3) > 0 {
                course.acknowledge();
            }
            course.turn();
            course.turn();
            course.rests();
        }
        grants += course.grants;
        no_acks += course.no_acks;
    }
    assert!(grants > 1500 && no_acks > 1000, "{grants} grants, {no_acks} refusals");
}
