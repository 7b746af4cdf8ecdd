//! A thousand workers, each with a connection of its own, in twenty processes; ten permits; and all
//! the time `kill -9` of a process in which a worker holds one. Measures how long it takes until
//! the permits of dead holders are granted again.

pub mod redisson;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use redis::Value;

use crate::checks;
use crate::clock::{Stop, ms, now_ns, ns};
use crate::crowd::{Crowd, Processes};
use crate::faults;
use crate::history::{Asked, History, Op, Promise, Reply};
use crate::run::lines;
use crate::workloads::{POOL, POOL_PERMITS, Workload};
use rlock_testkit::{Client, Server, flat_map, integer, items, text, until};

/// Longer than most waits: a lease is certain from the time of the request.
const LEASE_MS: u64 = 4000;
/// By then, all workers wait or hold a permit.
const READY_MS_MAX: u64 = 60_000;
/// The longest time between two blows.
const REST_MS: u64 = 250;
/// After this many blows that killed no holder, the run stops.
const KILLS_MAX: usize = 20;
/// In the loop iteration of a grant, a permit may be seen free; a lost one is free for longer.
const FREE_MS_MAX: u64 = 300;
/// Right after a blow, the lock is read as often as possible, then once per millisecond.
const CLOSE_MS: u64 = 30;

/// Counts the results.
#[derive(Default)]
pub struct Tally {
    name: &'static str,
    seconds: f64,
    workers: u32,
    grants: usize,
    /// The holds that were certain for a while, and the greatest number of them at a time.
    certain: usize,
    most: usize,
    kills: usize,
    /// How long workers waited, and how long the permits of dead ones were held: in milliseconds,
    /// sorted.
    waits: Vec<f64>,
    ends: Vec<f64>,
    violations: Vec<String>,
}

impl Tally {
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && !self.ends.is_empty()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { name, seconds, workers, grants, certain, most, kills, .. } = self;
        write!(
            f,
            "{name} {grants} grants to {workers} workers in {seconds:.0} s, {certain} of them \
             certain for a while, never more than {most} at once; waits p50 {} max {} ms; {kills} \
             processes killed, {} holds of the dead, given again after p50 {} max {} ms; {} \
             violations",
            at(&self.waits, 50),
            at(&self.waits, 100),
            self.ends.len(),
            at(&self.ends, 50),
            at(&self.ends, 100),
            self.violations.len()
        )?;
        self.violations.iter().take(5).try_for_each(|text| write!(f, "\n  {text}"))
    }
}

fn at(sorted: &[f64], percent: usize) -> String {
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).map_or("-".to_owned(), |ms| format!("{ms:.1}"))
}

/// Lets them work and die for this long.
pub fn run(workload: &'static Workload, lasts_ms: u64, seed: u64) -> Tally {
    let server = Server::primary(&[]);
    let mut processes = Processes::start(workload, seed, tcp(&server), LEASE_MS);
    let mut watch = Watch::of(&server, POOL, POOL_PERMITS as usize);
    let few = (POOL_PERMITS + 10) as usize;
    until(READY_MS_MAX, || watch.look().waiting + few > workload.actors as usize);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut events, mut kills) = (Vec::new(), 0);
    let begun_ns = now_ns();
    // A holder of a permit has to die, however short the run is.
    let is_shown = |watch: &Watch, kills| kills >= KILLS_MAX || !watch.ends.is_empty();
    while !is_shown(&watch, kills) || now_ns() < begun_ns + ns(lasts_ms) {
        Stop::default().within(rng.u64(1..=REST_MS));
        let holders = watch.look().holders;
        let Some(place) = rng.choice(holders).and_then(|holder| processes.place_of(holder)) else {
            continue;
        };
        watch.dead.push((now_ns(), processes.actors_of(place)));
        events.extend(processes.kill_9_and(place, || watch.look_for(CLOSE_MS)));
        watch.until_buried(LEASE_MS);
        kills += 1;
    }
    let seconds = ms(now_ns() - begun_ns) / 1000.0;
    let ops = Crowd::Processes(processes).end();
    watch.until_all_is_free(LEASE_MS + 1000);
    let promise = Promise { granted_within_ms: LEASE_MS + 1000, ..faults::CLIENT_KILL.promise };
    let mut tally = judge(&History { ops, events, promise }, watch);
    (tally.name, tally.seconds, tally.kills) = (workload.name, seconds, kills);
    tally.workers = workload.actors;
    tally
}

/// The address that clients on other machines would use.
fn tcp(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.tcp_port())
}

/// The results from the history, and from what was seen at the server.
fn judge(history: &History, watch: Watch) -> Tally {
    // Not by `linear`: each of ten releases may have let in any of a thousand workers.
    let mut violations = lines(history, &checks::check(history, &checks::holds(history)));
    violations.extend(watch.wrong);
    Tally { violations, ..counted(history, watch.ends) }
}

/// Whatever is wrong, these are the counts.
fn counted(history: &History, mut ends: Vec<f64>) -> Tally {
    let (most, certain) = checks::most_at_once(&checks::holds(history));
    let is_grant =
        |op: &&Op| matches!((&op.asked, &op.reply), (Asked::Acquire(_), Reply::Token(_)));
    let granted = history.ops.iter().filter(is_grant);
    let mut waits: Vec<f64> = granted.map(|op| ms(op.received_ns - op.sent_ns)).collect();
    waits.sort_by(f64::total_cmp);
    ends.sort_by(f64::total_cmp);
    Tally { grants: waits.len(), certain, most, waits, ends, ..Tally::default() }
}

/// An observer of the lock.
pub struct Watch {
    client: Client,
    key: String,
    permits: usize,
    /// When which actors were killed with their process.
    dead: Vec<(u64, Range<u32>)>,
    /// The holds of dead owners, by owner: since when the owner is dead.
    left: BTreeMap<String, u64>,
    /// How long each of these holds remained.
    ends: Vec<f64>,
    /// Since when a permit has been free although somebody waits.
    free_since_ns: Option<u64>,
    pub wrong: Vec<String>,
}

/// What was seen at one moment.
pub struct View {
    /// Workers that hold a permit.
    holders: Vec<u32>,
    waiting: usize,
}

impl Watch {
    pub fn of(server: &Server, key: &str, permits: usize) -> Watch {
        let (client, key, dead) = (server.client(), key.to_owned(), Vec::new());
        let (left, ends, wrong) = (BTreeMap::new(), Vec::new(), Vec::new());
        Watch { client, key, permits, dead, left, ends, free_since_ns: None, wrong }
    }

    /// Reads the lock once, and checks what it sees.
    pub fn look(&mut self) -> View {
        let reply = self.client.ask(&format!("RLOCK.INFO {} WAITERS 0", self.key));
        let seen_ns = now_ns();
        let fields = flat_map(&reply);
        let owners: Vec<String> = items(&fields["holders"]).iter().map(owner).collect();
        let waiting = integer(&fields["queue-length"]) as usize;
        self.count(owners.len(), waiting, seen_ns);
        for owner in &owners {
            let died = self.dead.iter().find(|(_, dead)| dead.contains(&number_of(owner)));
            if let Some((died_ns, _)) = died {
                self.left.entry(owner.clone()).or_insert(*died_ns);
            }
        }
        let ended = self.left.iter().filter(|(owner, _)| !owners.contains(owner));
        self.ends.extend(ended.map(|(_, died_ns)| ms(seen_ns - died_ns)));
        self.left.retain(|owner, _| owners.contains(owner));
        let holders = owners.iter().map(|owner| number_of(owner)).collect();
        View { holders, waiting }
    }

    /// Checks that there are not too many holders, nor too few for long while others wait.
    fn count(&mut self, held: usize, waiting: usize, seen_ns: u64) {
        if held > self.permits {
            self.wrong.push(format!("{held} hold one of {} permits", self.permits));
        }
        if held >= self.permits || waiting == 0 {
            self.free_since_ns = None;
            return;
        }
        let since_ns = *self.free_since_ns.get_or_insert(seen_ns);
        if seen_ns - since_ns > ns(FREE_MS_MAX) {
            let lost = self.permits - held;
            self.wrong.push(format!("{lost} permits are lost while {waiting} wait"));
            self.free_since_ns = Some(seen_ns);
        }
    }

    /// Reads it again and again, until the dead hold nothing, or until the time is up.
    fn look_for(&mut self, ms_max: u64) {
        let ends_ns = now_ns() + ns(ms_max);
        self.look();
        while !self.left.is_empty() && now_ns() < ends_ns {
            self.look();
        }
    }

    /// Waits until the dead hold nothing, which takes at most a lease.
    fn until_buried(&mut self, lease_ms: u64) {
        let ends_ns = now_ns() + ns(lease_ms + FREE_MS_MAX);
        self.look();
        while !self.left.is_empty() && now_ns() < ends_ns {
            Stop::default().within(1);
            self.look();
        }
        let left = std::mem::take(&mut self.left);
        self.wrong.extend(left.into_keys().map(|owner| format!("{owner} is dead and holds")));
    }

    /// All have stopped: within this time, nothing may be held, and nobody may wait, anymore.
    pub fn until_all_is_free(&mut self, ms_max: u64) {
        let ends_ns = now_ns() + ns(ms_max);
        let mut view = self.look();
        while !view.is_free() && now_ns() < ends_ns {
            Stop::default().within(1);
            view = self.look();
        }
        if !view.is_free() {
            let View { holders, waiting } = view;
            let text = format!("{} permits are held by nobody who lives", holders.len());
            self.wrong.push(format!("{text}, {waiting} wait"));
        }
        let sessions = self.client.counted("sessions");
        if sessions > 0 {
            self.wrong.push(format!("{sessions} sessions are left"));
        }
    }
}

impl View {
    fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiting == 0
    }
}

fn owner(hold: &Value) -> String {
    text(&flat_map(hold)["owner"])
}

/// The number in an actor's name, such as `a17.0`; for any other name, a number that no actor has.
fn number_of(owner: &str) -> u32 {
    let number = owner.strip_prefix('a').and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}
