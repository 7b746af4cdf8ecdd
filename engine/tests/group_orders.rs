//! M25: if every waiting owner holds and reserves only earlier keys, in key order, no request is
//! ever refused as a deadlock, and each is granted once the others release.

use std::collections::BTreeMap;

use crate::support::MapHost;
use crate::support::noise::Noise;

const KEYS: [&str; 5] = ["a", "a:1", "b", "c", "d"];
const OWNERS: u64 = 6;

/// The holds of each owner, and its waits by connection.
struct Town {
    host: MapHost,
    held: BTreeMap<u64, Vec<usize>>,
    waits: BTreeMap<u64, Vec<usize>>,
    granted: usize,
}

impl Town {
    fn told(&mut self, client: u64, said: &str, wanted: Vec<usize>) {
        assert!(!said.contains("DEADLOCK"), "{client}: {said}");
        if said.starts_with('#') {
            self.held.entry(client).or_default().extend(wanted);
            self.granted += 1;
        } else {
            assert_eq!(said, "", "{client}");
            self.waits.insert(client, wanted);
        }
        self.hear();
    }

    fn hear(&mut self) {
        for _ in 0..3 {
            for told in self.host.turn() {
                let (client, said) = told.split_once(": ").unwrap();
                let wanted = self.waits.remove(&client.parse().unwrap()).unwrap();
                assert!(said.starts_with('#'), "{told}");
                self.held.entry(client.parse().unwrap()).or_default().extend(wanted);
                self.granted += 1;
            }
        }
    }

    /// The owner requests a key after all that it holds, or releases everything.
    fn acts(&mut self, client: u64, noise: &mut Noise) {
        if self.waits.contains_key(&client) {
            return;
        }
        let from = self.held.get(&client).and_then(|held| held.iter().max()).map_or(0, |k| k + 1);
        let behind: Vec<usize> = (from..KEYS.len()).filter(|_| noise.below(2) == 0).collect();
        if behind.is_empty() || noise.below(3) == 0 {
            return self.releases(client);
        }
        if noise.below(3) == 0 {
            let (key, mode) = (behind[0], ["WRITE", "READ", "LIMIT 2"][noise.place(3)]);
            let line = format!("acquire {} o{client} {mode} BLOCK 0", KEYS[key]);
            let said = self.host.ask(client, &line);
            return self.told(client, &said, vec![key]);
        }
        let keys: Vec<&str> = behind.iter().rev().map(|key| KEYS[*key]).collect();
        let modes: Vec<&str> =
            keys.iter().map(|_| ["WRITE", "READ", "1", "2"][noise.place(4)]).collect();
        let (count, keys, modes) = (keys.len(), keys.join(" "), modes.join(" "));
        let line = format!("macquire {count} {keys} o{client} MODES {modes} BLOCK 0");
        let said = self.host.ask(client, &line);
        self.told(client, &said, behind);
    }

    fn releases(&mut self, client: u64) {
        if self.held.remove(&client).is_some() {
            let line = format!("mrelease {} {} o{client}", KEYS.len(), KEYS.join(" "));
            self.host.ask(client, &line);
        }
        self.hear();
    }
}

#[test]
fn whoever_keeps_the_order_is_in_no_cycle_and_is_granted() {
    let (mut noise, mut granted) = (Noise(0x0c7e7), 0);
    for round in 0..1500 {
        let (held, waits) = (BTreeMap::new(), BTreeMap::new());
        let mut town = Town { host: MapHost::primary(), held, waits, granted: 0 };
        town.host.world().is_cluster = round % 2 == 0;
        for _ in 0..30 {
            let client = 1 + noise.below(OWNERS);
            town.acts(client, &mut noise);
        }
        for _ in 0..OWNERS * 4 {
            let free: Vec<u64> =
                town.held.keys().filter(|it| !town.waits.contains_key(it)).copied().collect();
            free.into_iter().for_each(|client| town.releases(client));
        }
        assert_eq!(town.waits, BTreeMap::new(), "stuck");
        granted += town.granted;
    }
    assert!(granted > 10_000, "{granted} were granted");
}
