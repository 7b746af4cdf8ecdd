//! Groups in random histories, and in every short history, compared with a naive model.

mod model;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::support::MapHost;
use crate::support::noise::Noise;
use crate::support::small::every_history;
use model::{KEYS, Mode, Naive, OWNERS, Said, Wants};
use rlock_core::Lock;

/// Something that happens.
#[derive(Clone, Debug)]
enum Deed {
    /// An owner requests several locks, and waits for them or does not.
    Several(usize, Wants, bool),
    One(usize, (usize, Mode)),
    Release(usize, Vec<usize>),
    Force(usize),
    Cancel(usize, usize),
    Close(usize),
}

struct World {
    host: MapHost,
    naive: Naive,
    asked: usize,
    granted: usize,
}

impl World {
    fn new() -> Self {
        let host = MapHost::primary();
        // Cycles are not detected: they end by themselves.
        host.world().detects_deadlocks = false;
        Self { host, naive: Naive::default(), asked: 0, granted: 0 }
    }

    fn does(&mut self, deed: &Deed) {
        let Self { host, naive, .. } = self;
        let before = naive.clone();
        naive.told.clear();
        self.asked += 1;
        let id = self.asked;
        let client = id as u64;
        let names = |keys: &[usize]| keys.iter().map(|k| KEYS[*k]).collect::<Vec<_>>().join(" ");
        let (line, owed) = match deed {
            Deed::Several(owner, wants, blocks) => {
                let keys: Vec<usize> = wants.iter().map(|want| want.0).collect();
                let modes: Vec<String> = wants.iter().map(|want| want.1.word()).collect();
                let (count, name) = (keys.len(), OWNERS[*owner]);
                let (keys, modes) = (names(&keys), modes.join(" "));
                let patience = if *blocks { " BLOCK 0" } else { "" };
                let line = format!("macquire {count} {keys} {name} MODES {modes}{patience}");
                let mut wants = wants.clone();
                wants.sort_by_key(|want| want.0);
                (line, Some(naive.acquire(id, *owner, &wants, *blocks)))
            }
            Deed::One(owner, (key, mode)) => {
                let mode_word = match mode {
                    Mode::Read(Some(limit)) => format!("LIMIT {limit}"),
                    mode => mode.word(),
                };
                let (key_name, name) = (KEYS[*key], OWNERS[*owner]);
                let line = format!("acquire {key_name} {name} {mode_word} DEPTH 1 BLOCK 0");
                (line, Some(naive.acquire_one(id, *owner, *key, *mode)))
            }
            Deed::Release(owner, keys) => {
                let mut sorted = keys.clone();
                sorted.sort_unstable();
                for key in sorted {
                    naive.end(key, Some(*owner));
                }
                naive.carry_on();
                (format!("mrelease {} {} {}", keys.len(), names(keys), OWNERS[*owner]), None)
            }
            Deed::Force(key) => {
                naive.end(*key, None);
                naive.carry_on();
                (format!("force {}", KEYS[*key]), None)
            }
            Deed::Cancel(key, owner) => {
                naive.cancel(*key, *owner);
                (format!("cancel {} {}", KEYS[*key], OWNERS[*owner]), None)
            }
            Deed::Close(id) => {
                naive.close(*id);
                host.close(*id as u64);
                (String::new(), None)
            }
        };
        let said = if line.is_empty() { String::new() } else { host.ask(client, &line) };
        let told = [host.turn(), host.turn()].concat();
        match owed {
            Some(Said::Token) => assert!(said.starts_with('#'), "{line}: {said}"),
            Some(Said::Deadlock) => assert!(said.starts_with("-DEADLOCK"), "{line}: {said}"),
            Some(Said::Waits) => assert_eq!(said, "", "{line}"),
            Some(Said::Nil) => assert_eq!(said, "nil", "{line}"),
            None => {}
        }
        let told: BTreeMap<usize, bool> = told
            .iter()
            .map(|told| told.split_once(": ").unwrap())
            .map(|(client, said)| (client.parse().unwrap(), said.starts_with('#')))
            .collect();
        assert_eq!(told, self.naive.told, "{line} after {before:?}");
        self.granted += told.values().filter(|is_granted| **is_granted).count();
        self.compare(&line);
        self.host.state_of(|state| state.manager.check()).unwrap();
    }

    fn compare(&self, line: &str) {
        for (key, name) in KEYS.iter().enumerate() {
            let lock = match self.host.holds(name).as_str() {
                "no key" => Lock::default(),
                _ => self.host.lock(name),
            };
            let shown: BTreeSet<(usize, bool)> = lock
                .holds()
                .map(|(owner, mode, _)| (number_of(owner), mode.lower() == "write"))
                .collect();
            let holds = self.naive.holds.iter().filter(|hold| hold.0 == key);
            let owed: BTreeSet<(usize, bool)> = holds.map(|hold| (hold.1, hold.2)).collect();
            assert_eq!(shown, owed, "the holds of {name} after {line}");
            let shown: Vec<(usize, bool)> = self.host.state_of(|state| {
                let volatile = state.manager.volatile(0, name.as_bytes());
                let line = volatile.into_iter().flat_map(|volatile| volatile.queue.iter());
                line.map(|(wait, turn)| (number_of(wait.owner.as_bytes()), turn)).collect()
            });
            let line_of = self.naive.lines.get(&key).into_iter().flatten();
            let owed: Vec<(usize, bool)> =
                line_of.map(|wait| (wait.owner, wait.has_turn)).collect();
            assert_eq!(shown, owed, "the line of {name} after {line}");
        }
    }

    /// Every waiter is granted once the others release.
    fn ends(&mut self) {
        for _ in 0..200 {
            let waits = self.naive.lines.values().any(|line| !line.is_empty());
            if !waits {
                return;
            }
            for key in 0..KEYS.len() {
                self.does(&Deed::Force(key));
            }
        }
        panic!("somebody is stuck: {:?}", self.naive);
    }
}

fn number_of(owner: &[u8]) -> usize {
    OWNERS.iter().position(|name| name.as_bytes() == owner).unwrap()
}

/// What happens next.
struct Chance(Noise);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0.place(end)
    }

    fn mode(&mut self) -> Mode {
        let modes = [
            Mode::Write,
            Mode::Write,
            Mode::Read(None),
            Mode::Read(Some(1)),
            Mode::Read(Some(2)),
            Mode::Read(Some(3)),
        ];
        modes[self.below(modes.len())]
    }

    fn keys(&mut self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..KEYS.len()).collect();
        let count = 1 + self.below(KEYS.len());
        (0..count).map(|_| all.remove(self.below(all.len()))).collect()
    }

    fn deed(&mut self, asked: usize) -> Deed {
        let (owner, key) = (self.below(OWNERS.len()), self.below(KEYS.len()));
        match self.below(20) {
            0..7 => {
                let wants = self.keys().iter().map(|k| (*k, self.mode())).collect();
                Deed::Several(owner, wants, self.below(5) > 0)
            }
            7..10 => Deed::One(owner, (key, self.mode())),
            10..15 => Deed::Release(owner, self.keys()),
            15 => Deed::Force(key),
            16..18 => Deed::Cancel(key, owner),
            _ => Deed::Close(1 + self.below(asked.max(1))),
        }
    }
}

/// M7, M8, M13-M16, M18, M19, and that no waiter is stuck.
#[test]
fn groups_wait_and_are_granted_as_in_a_naive_model() {
    let (mut chance, mut granted) = (Chance(Noise(0x6709)), 0);
    for _ in 0..2600 {
        let mut world = World::new();
        for _ in 0..12 + chance.below(20) {
            let deed = chance.deed(world.asked);
            world.does(&deed);
        }
        world.ends();
        granted += world.granted;
    }
    assert!(granted > 5000, "{granted} waits were granted");
}

const SMALL: usize = 7;

fn small(number: usize) -> Deed {
    let (owner, both) = (number / SMALL, vec![0, 1]);
    let writes = vec![(0, Mode::Write), (1, Mode::Write)];
    match number % SMALL {
        0 => Deed::Several(owner, writes, true),
        1 => Deed::Several(owner, vec![(0, Mode::Read(None)), (1, Mode::Write)], true),
        2 => {
            let wants = vec![(1, Mode::Read(Some(1))), (0, Mode::Read(Some(2)))];
            Deed::Several(owner, wants, true)
        }
        3 => Deed::One(owner, (0, Mode::Write)),
        4 => Deed::One(owner, (1, Mode::Read(None))),
        5 => Deed::Release(owner, both),
        _ => Deed::Cancel(1, owner),
    }
}

/// Two keys, three owners, every history of `RLOCK_STEPS` steps, or of three.
#[test]
fn every_short_history_of_groups_is_as_in_a_naive_model() {
    every_history(SMALL, 3, |history| {
        let mut world = World::new();
        for number in history {
            world.does(&small(*number));
        }
        world.ends();
    });
}

/// A step of [`small`], or the end of the owner's connection, or an operator's; `None` if the owner
/// already waits, and so asks for nothing else.
fn possible(naive: &Naive, owner: usize, number: usize) -> Option<Deed> {
    let wait = naive.wait_of(owner);
    match number.checked_sub(SMALL) {
        None => Some(small(owner * SMALL + number))
            .filter(|deed| wait.is_none() || !matches!(deed, Deed::Several(..) | Deed::One(..))),
        Some(0) => wait.map(Deed::Close),
        Some(_) => (owner < 2).then_some(Deed::Force(owner)),
    }
}

/// Two keys, and three owners of which each waits for one thing at a time: every step in every
/// situation (`make model`), or in the first `RLOCK_STATES` of them.
#[test]
fn every_situation_of_groups_is_as_in_a_naive_model() {
    let most = std::env::var("RLOCK_STATES").map_or(300, |most| most.parse().unwrap());
    let play = |history: &[(usize, usize)]| {
        let mut world = World::new();
        for (owner, number) in history {
            world.does(&possible(&world.naive, *owner, *number).unwrap());
        }
        world
    };
    let mut known = BTreeSet::from([Naive::default().picture()]);
    let (mut open, mut steps) = (VecDeque::from([Vec::new()]), 0);
    while let Some(history) = open.pop_front() {
        let before = play(&history).naive;
        for (owner, number) in (0..3).flat_map(|owner| (0..SMALL + 2).map(move |n| (owner, n))) {
            let Some(deed) = possible(&before, owner, number) else { continue };
            let mut world = play(&history);
            world.does(&deed);
            steps += 1;
            if known.len() < most && known.insert(world.naive.picture()) {
                open.push_back(history.iter().copied().chain([(owner, number)]).collect());
            }
        }
    }
    println!("{} situations, {steps} steps", known.len());
    assert!(known.len() >= most.min(10_000), "only {} situations", known.len());
}
