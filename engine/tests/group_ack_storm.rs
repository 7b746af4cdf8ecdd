//! Random histories of everything that can happen to grants of several locks with acknowledgments:
//! reported holds remain, and in the end nothing is left.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::MapHost;
use crate::support::noise::Noise;
use crate::support::replica::primary;
use rlock_core::WaiterId;
use rlock_engine::{Gate, Host, acks, blocked, events};

const KEYS: [&str; 3] = ["a", "b", "c"];
const OWNERS: [&str; 3] = ["ann", "bob", "cy"];

/// What a connection asked for.
#[derive(Clone, Debug)]
struct Asked {
    owner: &'static str,
    keys: Vec<&'static str>,
    lease: u64,
    session: bool,
    modes: Vec<&'static str>,
}

struct Storm {
    host: MapHost,
    noise: Noise,
    clients: u64,
    now: u64,
    asked: BTreeMap<u64, Asked>,
    /// Reported holds, by key and token: the owner, the deadline, and the connection of the
    /// session.
    told: BTreeMap<(&'static str, u64), (&'static str, u64, Option<u64>)>,
    /// Holds whose session's connection has closed.
    gone: BTreeSet<(&'static str, u64)>,
    acknowledged: usize,
    log: Vec<String>,
    tells: usize,
    no_acks: usize,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let host = primary();
        host.world().counts_stream = true;
        Self {
            host,
            noise: Noise(seed),
            clients: 0,
            now: 0,
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            gone: BTreeSet::new(),
            acknowledged: 0,
            log: vec![],
            tells: 0,
            no_acks: 0,
        }
    }

    fn holds(&self, key: &str) -> Vec<(String, u64, String)> {
        if ["no key", "another value"].contains(&self.host.holds(key).as_str()) {
            return Vec::new();
        }
        self.host
            .lock(key)
            .holds()
            .map(|(o, m, h)| {
                (
                    String::from_utf8_lossy(o).into_owned(),
                    h.token.get(),
                    format!("{m:?}").to_uppercase(),
                )
            })
            .collect()
    }

    fn hears(&mut self, client: u64, said: &str) {
        self.log.push(format!("{} {client} <- {said}", self.now));
        let Some(asked) = self.asked.remove(&client) else { return };
        self.no_acks += usize::from(said.starts_with("-NOACKS"));
        if let Some(place) = said.strip_prefix('#') {
            let token = self.host.token(place.parse().unwrap());
            self.tells += 1;
            let mut greatest = 0;
            for (key, mode) in asked.keys.iter().zip(&asked.modes) {
                let own: Vec<u64> = self
                    .holds(key)
                    .into_iter()
                    .filter(|(o, _, m)| o == asked.owner && m == mode)
                    .map(|(_, t, _)| t)
                    .filter(|t| *t <= token && !self.gone.contains(&(*key, *t)))
                    .collect();
                if own.is_empty() {
                    greatest = u64::MAX;
                    continue;
                }
                greatest = greatest.max(own.iter().copied().max().unwrap());
                for t in own {
                    let until = self.now + asked.lease;
                    let entry = self.told.entry((key, t)).or_insert((asked.owner, until, None));
                    entry.1 = entry.1.max(until);
                    if asked.session {
                        entry.2 = Some(client)
                    }
                }
                let counted = self.host.ask(1, &format!("holds {key} {} {mode}", asked.owner));
                assert_ne!(
                    counted, "0",
                    "{key} is told to {} and pending {:#?}",
                    asked.owner, self.log
                );
            }
            assert!(token <= greatest, "{:#?}", self.log);
        }
    }

    fn ends(&mut self, what: impl Fn(&str, &str) -> bool) {
        self.told.retain(|(key, _), (owner, _, _)| !what(key, owner));
    }

    /// Reported holds exist, unless something ended them.
    fn look(&mut self) {
        let now = self.now;
        self.told.retain(|_, (_, until, _)| *until > now);
        for ((key, token), (owner, _, _)) in &self.told {
            let holds = self.holds(key);
            assert!(
                holds.iter().any(|(o, t, _)| t == token && o == owner),
                "{owner} lost {key} {token}: {holds:?} {:#?}",
                self.log
            );
        }
    }

    fn deliver(&mut self, told: Vec<String>) {
        for line in told {
            let (client, said) = line.split_once(": ").unwrap();
            let (client, said) = (client.parse().unwrap(), said.to_owned());
            self.hears(client, &said);
        }
    }

    fn turn(&mut self) {
        let told = self.host.turn();
        self.deliver(told);
        self.look();
    }

    fn close(&mut self, client: u64) {
        self.log.push(format!("{} {client} closes", self.now));
        self.host.close(client);
        self.asked.remove(&client);
        let gone = self.told.iter().filter(|(_, (_, _, by))| *by == Some(client));
        self.gone.extend(gone.map(|(it, _)| *it));
        self.told.retain(|_, (_, _, session)| *session != Some(client));
    }

    /// A request, or something that happens to a key or a connection.
    fn deed(&mut self) {
        let (owner, mut keys) = (self.noise.one_of(&OWNERS), self.noise.some_of(&KEYS));
        let key = self.noise.one_of(&KEYS);
        let acks = self.noise.one_of(&["", "ACKS 1", "ACKS 1", "ACKS 1", "ACKS 2"]);
        let lease = self.noise.one_of(&[400, 3000, 9000]);
        let session = if self.noise.below(6) == 0 { "SESSION" } else { "" };
        let lease = if session.is_empty() { lease } else { 9000 };
        let list = format!("{} {} {owner}", keys.len(), keys.join(" "));
        let patience = self.noise.one_of(&[
            "",
            "",
            "BLOCK 0",
            "BLOCK 500",
            "BLOCK 900",
            "BLOCK 200",
            "BLOCK 900 MAXQUEUE 1",
        ]);
        let modes = self.noise.one_of(&["", "", "", "READ", "MODES"]);
        let modes = match modes {
            "MODES" => format!(
                "MODES {}",
                keys.iter()
                    .map(|_| self.noise.one_of(&["WRITE", "READ", "2"]))
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
            other => other.into(),
        };
        let mut wanted: Vec<&'static str> = match modes.strip_prefix("MODES ") {
            Some(all) => {
                all.split(' ').map(|it| if it == "WRITE" { "WRITE" } else { "READ" }).collect()
            }
            None => keys.iter().map(|_| if modes == "READ" { "READ" } else { "WRITE" }).collect(),
        };
        let (line, asked, by) = match self.noise.below(30) {
            0..12 => (
                format!("macquire {list} {modes} LEASE {lease} {patience} {session} {acks}"),
                true,
                None,
            ),
            12..15 => {
                keys = vec![key];
                let mode = if modes == "READ" { "READ" } else { "" };
                wanted = vec![if modes == "READ" { "READ" } else { "WRITE" }];
                (
                    format!(
                        "acquire {key} {owner} {mode} DEPTH 1 LEASE {lease} {patience} {session} \
                         {acks}"
                    ),
                    true,
                    None,
                )
            }
            15..17 => (format!("mrenew {list} LEASE {lease} {acks}"), false, None),
            17 => (format!("release {key} {owner}"), false, Some(vec![key])),
            18..20 => (format!("mrelease {list}"), false, Some(keys.clone())),
            20 => (format!("cancel {key} {owner}"), false, None),
            21 => (format!("force {key}"), false, None),
            22 => {
                self.log.push(format!("{} removes {key}", self.now));
                match self.noise.below(4) {
                    0 => self.host.put_other(key),
                    1 => self.host.evict(key),
                    _ => self.host.remove(key),
                }
                return self.ends(|k, _| k == key);
            }
            23 | 24 => {
                let mine: Vec<u64> = self.host.world().waiting.values().map(|w| w.client).collect();
                if !mine.is_empty() {
                    let client = self.noise.one_of(&mine);
                    self.close(client);
                }
                return;
            }
            25 => {
                // CLIENT UNBLOCK
                let mine: Vec<u64> = self.host.world().waiting.keys().copied().collect();
                if !mine.is_empty() {
                    let waiter = self.noise.one_of(&mine);
                    let line = self.host.deliver(waiter);
                    blocked::over(&self.host, WaiterId::from(waiter), false);
                    self.deliver(vec![line]);
                }
                return;
            }
            26 => {
                let gate = self.noise.one_of(&[Gate::Open, Gate::Open, Gate::Shut]);
                self.log.push(format!("{} gate {gate:?}", self.now));
                self.host.world().gate = gate;
                return;
            }
            27 => {
                let ms = self.noise.one_of(&[100, 2000, 5000]);
                self.host.world().bounds.confirm_ms = ms;
                self.host.world().acks = self.noise.one_of(&[0, 0, 1]);
                return;
            }
            28 if self.noise.below(4) == 0 => {
                self.log.push(format!("{} flushes", self.now));
                for key in KEYS {
                    self.host.remove(key)
                }
                events::flushed(&self.host, None);
                return self.ends(|_, _| true);
            }
            _ => {
                let others: Vec<u64> = self.told.values().filter_map(|it| it.2).collect();
                if !others.is_empty() {
                    let client = self.noise.one_of(&others);
                    self.close(client);
                }
                return;
            }
        };
        // The server refuses writes.
        if self.host.world().gate == Gate::Shut {
            return;
        }
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        self.clients += 1;
        let client = 100 + self.clients;
        if line.starts_with("force") {
            self.ends(|k, _| k == key)
        }
        if let Some(keys) = &by {
            self.ends(|k, o| keys.contains(&k) && o == owner)
        }
        self.log.push(format!("{} {client}: {line}", self.now));
        let said = self.host.ask(client, &line);
        if asked {
            self.asked.insert(
                client,
                Asked { owner, keys, lease, session: !session.is_empty(), modes: wanted },
            );
        }
        if said.is_empty() {
            return;
        }
        self.hears(client, &said);
    }

    fn run(&mut self) {
        let is_cluster = self.noise.below(4) == 0;
        self.host.world().is_cluster = is_cluster;
        let ticks = self.noise.one_of(&[1, 1, 300]);
        self.host.world().tick = std::time::Duration::from_micros(ticks);
        for _ in 0..50 {
            let passes = self.noise.one_of(&[0, 0, 0, 1, 50, 400]);
            if passes > 0 {
                self.turn();
            }
            self.now += passes;
            self.host.at(self.now);
            self.deed();
            if self.noise.below(3) > 0 {
                self.acknowledged = self.host.world().stream.len();
            }
            let at = u64::try_from(self.acknowledged).unwrap();
            let less = at.saturating_sub(self.noise.below(5));
            self.host.world().acknowledged =
                if self.noise.below(8) == 0 { vec![] } else { vec![at, less] };
            match self.noise.below(4) {
                0 => {}
                1 => {
                    if self.host.world().watches_sleep {
                        acks::before_sleep(&self.host)
                    }
                }
                _ => self.turn(),
            }
        }
        // All waits and holds end.
        self.host.world().gate = Gate::Open;
        for _ in 0..40 {
            self.turn();
            self.turn();
            self.now += 2000;
            self.host.at(self.now);
            self.told.clear();
            self.turn();
            self.turn();
            let mine: Vec<u64> = self.host.world().waiting.values().map(|w| w.client).collect();
            mine.into_iter().for_each(|client| self.close(client));
            for client in 100..=100 + self.clients {
                self.host.close(client)
            }
            self.told.clear();
        }
        for key in KEYS {
            self.host.remove(key)
        }
        for _ in 0..10 {
            self.turn()
        }
        let left: BTreeSet<String> = KEYS
            .into_iter()
            .filter_map(|key| {
                self.host.state_of(|state| {
                    state.manager.volatile(0, key.as_bytes()).map(|v| format!("{key}: {v:?}"))
                })
            })
            .collect();
        assert!(left.is_empty(), "{left:#?} {:#?}", self.log);
        let totals =
            self.host.state_of(|state| (state.manager.totals(), state.manager.group_totals()));
        assert_eq!(totals, Default::default(), "{:#?}", self.log);
        assert_eq!(self.host.handles(), 0);
        assert!(!self.host.state(|state| state.manager.awaits_acks()), "{:#?}", self.log);
        assert!(!self.host.state(|state| state.manager.has_group_work()), "{:#?}", self.log);
    }
}

#[test]
fn a_storm_leaves_nothing_and_loses_nothing() {
    let (mut tells, mut no_acks) = (0, 0);
    for seed in 1..300_u64 {
        let mut storm = Storm::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        storm.run();
        tells += storm.tells;
        no_acks += storm.no_acks;
    }
    assert!(tells > 300 && no_acks > 500, "{tells} told, {no_acks} refusals");
}
