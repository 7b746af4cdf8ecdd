//! A thousand workers, each with a connection of its own, in twenty processes; ten permits; and all
//! the time `kill -9` of a process of which a worker holds one. Of the permits that went down with
//! their holders it is measured how long it takes until they are given again.

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
use crate::run::judged;
use crate::workloads::{POOL, POOL_PERMITS, Workload};
use rlock_testkit::{Client, Server, flat_map, integer, items, text, until};

/// Longer than anybody waits, mostly: what is certain is counted from the asking.
const LEASE_MS: u64 = 4000;
/// All workers wait or hold by then.
const READY_MS_MAX: u64 = 60_000;
/// From the end of one blow to the next one, at most.
const REST_MS: u64 = 250;
/// So many in vain are enough.
const KILLS_MAX: usize = 20;
/// In the loop iteration of a grant a permit may be seen free; a lost one is free for longer.
const FREE_MS_MAX: u64 = 300;
/// Right after a blow it is looked as often as it can be, then once a millisecond.
const CLOSE_MS: u64 = 30;

/// What came of it.
#[derive(Default)]
pub struct Tally {
    name: &'static str,
    seconds: f64,
    workers: u32,
    grants: usize,
    /// Those that were certain for a while, and the most of them at a time.
    certain: usize,
    most: usize,
    kills: usize,
    /// How long a worker waited, and how long a dead one's permit: in milliseconds, in order.
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

/// Lets them work and die for that long.
pub fn run(workload: &'static Workload, lasts_ms: u64, seed: u64) -> Tally {
    let server = Server::primary(&[]);
    let mut processes = Processes::start(workload, seed, tcp(&server), LEASE_MS);
    let mut watch = Watch::of(&server, POOL, POOL_PERMITS as usize);
    let few = (POOL_PERMITS + 10) as usize;
    until(READY_MS_MAX, || watch.look().waiting + few > workload.actors as usize);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut events, mut kills) = (Vec::new(), 0);
    let begun_ns = now_ns();
    // Somebody has to die with a permit, however short it is.
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

/// As clients on other machines find it.
fn tcp(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.tcp_port())
}

/// What the history says, and what was seen at the server.
fn judge(history: &History, watch: Watch) -> Tally {
    let mut violations = judged(history).violations;
    violations.extend(watch.wrong);
    Tally { violations, ..counted(history, watch.ends) }
}

/// Whatever is wrong, this is what happened.
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

/// One who looks at the lock from outside.
pub struct Watch {
    client: Client,
    key: String,
    permits: usize,
    /// When whose process was killed.
    dead: Vec<(u64, Range<u32>)>,
    /// The holds of the dead by their owners' names: since when they are dead.
    left: BTreeMap<String, u64>,
    /// How long each of those stood.
    ends: Vec<f64>,
    /// Since when a permit is free though somebody waits.
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

    /// Looks once, and draws the conclusions.
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

    /// Neither too many, nor too few for long while others wait.
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

    /// All the time, until the dead hold nothing or that time is over.
    fn look_for(&mut self, ms_max: u64) {
        let ends_ns = now_ns() + ns(ms_max);
        self.look();
        while !self.left.is_empty() && now_ns() < ends_ns {
            self.look();
        }
    }

    /// Until the dead hold nothing, which takes a lease at most.
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

    /// All have left: within that time nothing may be held any more, and nobody wait.
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

/// Of an actor's name, which is like `a17.0`; of anybody else's a number that no actor has.
fn number_of(owner: &str) -> u32 {
    let number = owner.strip_prefix('a').and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}
