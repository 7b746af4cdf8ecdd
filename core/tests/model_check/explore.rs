//! Breadth first through the states of a town. Of each state, only a fingerprint and the step that
//! led to it are stored; the town itself is rebuilt from its steps.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::kinds::Kinds;
use super::state::fingerprint;
use super::steps::{Profile, Step};
use super::town::Town;

pub struct Found {
    /// Distinct ones.
    pub states: usize,
    /// There are no others.
    pub is_closed: bool,
}

/// A state: the state from which it was first reached, and the step that led here.
#[derive(Clone, Copy)]
struct Node {
    from: u32,
    step: u16,
}

/// Results that all threads add to.
struct Gathered {
    seen: HashSet<u64>,
    new: Vec<Node>,
    steps: u64,
    kinds: Kinds,
}

/// Nodes that a thread takes at a time.
const CHUNK: usize = 64;

/// Visits state after state, those nearest to the beginning first, until `states_min` are known or
/// none remains.
pub fn explore(profile: &Profile, states_min: usize, kinds: &mut Kinds) -> Found {
    let mut nodes = vec![Node { from: 0, step: u16::MAX }];
    let seen = HashSet::from([fingerprint(&Town::new(profile))]);
    let gathered =
        Mutex::new(Gathered { seen, new: Vec::new(), steps: 0, kinds: Kinds::default() });
    let (mut level, mut distance) = (0..nodes.len(), 0);
    let mut is_enough = false;
    while !level.is_empty() && !is_enough {
        let next = AtomicUsize::new(level.start);
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| work(profile, &nodes, &next, level.end, states_min, &gathered));
            }
        });
        let new = std::mem::take(&mut gathered.lock().unwrap().new);
        is_enough = next.load(Ordering::Relaxed) < level.end;
        distance += 1;
        level = nodes.len()..nodes.len() + new.len();
        nodes.extend(new);
        is_enough |= nodes.len() >= states_min;
    }
    let found = Found { states: nodes.len(), is_closed: level.is_empty() };
    let gathered = gathered.into_inner().unwrap();
    let rest = if found.is_closed {
        "there are no others".to_owned()
    } else {
        format!("all of those nearer than {distance} steps, {} of those farther", level.len())
    };
    println!("{}: {} states, {} steps; {rest}", profile.name, found.states, gathered.steps);
    kinds.add(&gathered.kinds);
    found
}

/// The steps to a state, printed if a law breaks on the way or in the next step.
struct Way(Vec<Step>);

impl Drop for Way {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("# the shortest way to what breaks a law");
            self.0.iter().for_each(|step| eprintln!("{step:?}"));
        }
    }
}

impl Way {
    fn to(profile: &Profile, nodes: &[Node], mut at: usize) -> Self {
        let mut way = Vec::new();
        while at != 0 {
            way.push(profile.steps[usize::from(nodes[at].step)]);
            at = nodes[at].from as usize;
        }
        way.reverse();
        Self(way)
    }
}

/// Continues from the states of the level, one after another.
fn work(
    profile: &Profile,
    nodes: &[Node],
    next: &AtomicUsize,
    end: usize,
    states_min: usize,
    gathered: &Mutex<Gathered>,
) {
    loop {
        let first = next.fetch_add(CHUNK, Ordering::Relaxed);
        let chunk = first.min(end)..(first + CHUNK).min(end);
        if chunk.is_empty() {
            return;
        }
        let (mut reached, mut kinds) = (Vec::new(), Kinds::default());
        for at in chunk {
            let mut way = Way::to(profile, nodes, at);
            let mut here = Town::new(profile);
            here.check(false);
            for step in &way.0 {
                assert!(here.step(*step, &mut Kinds::default()), "it was possible before");
            }
            here.check(true);
            for (number, step) in profile.steps.iter().enumerate() {
                way.0.push(*step);
                let mut there = here.fork();
                if there.step(*step, &mut kinds) {
                    let from = u32::try_from(at).expect("fewer than 2^32 states");
                    let step = u16::try_from(number).expect("few steps");
                    reached.push((fingerprint(&there), Node { from, step }));
                }
                way.0.pop();
            }
        }
        let mut all = gathered.lock().unwrap();
        all.kinds.add(&kinds);
        all.steps += reached.len() as u64;
        for (fingerprint, node) in reached {
            if all.seen.insert(fingerprint) {
                all.new.push(node);
            }
        }
        if nodes.len() + all.new.len() >= states_min {
            return;
        }
    }
}
