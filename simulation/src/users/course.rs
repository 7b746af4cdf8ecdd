//! Chooses the next step, by a seed, and the time.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::{Id, LEASE_MAX, State, Users, no_ask};
use crate::laws::Broken;
use crate::machine::{FOREVER, Input, Ms, Planted};

/// The steps of a world. After them, it continues until everything that began has ended.
const WORLD_STEPS: u64 = 3000;
/// How long that takes at most, in milliseconds, when there are no more faults.
const CALM: Ms = 40_000;

/// At most this many traces may differ only in numbers.
const ALIKE: u32 = 10;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Steps that did something.
    pub steps: u64,
    /// Inputs that machines got.
    pub inputs: u64,
    /// Requests that were sent.
    pub sends: u64,
    /// Grants that users got.
    pub grants: u64,
    /// Attempts that had no server for longer than they allow.
    pub outages: u64,
    /// Holds that were lost.
    pub losses: u64,
    /// Servers that were started again.
    pub restarts: u64,
    /// Replicas that became primaries.
    pub promotions: u64,
    /// Processes that forked.
    pub forks: u64,
    /// Processes that closed the package.
    pub closes: u64,
    /// What happened.
    pub story: Vec<String>,
    /// The trace of each machine, line by line; the number in the first line is still missing.
    pub traces: Vec<Vec<String>>,
}

impl Found {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.inputs += other.inputs;
        self.sends += other.sends;
        self.grants += other.grants;
        self.outages += other.outages;
        self.losses += other.losses;
        self.restarts += other.restarts;
        self.promotions += other.promotions;
        self.forks += other.forks;
        self.closes += other.closes;
        self.traces.extend(other.traces);
    }
}

impl fmt::Display for Found {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "{} steps: {} inputs, {} requests, {} grants, {} outages, {} holds lost, \
             {} restarts, {} promotions, {} forks, {} closes",
            self.steps,
            self.inputs,
            self.sends,
            self.grants,
            self.outages,
            self.losses,
            self.restarts,
            self.promotions,
            self.forks,
            self.closes
        )
    }
}

/// Runs one world. # Errors The law that broke in it.
///
/// # Errors
/// The law that broke in it.
pub fn one(seed: u64, planted: Planted, records: bool) -> Result<Found, Broken> {
    let mut users = Users::new(seed, planted, records);
    users.run();
    match users.broken.take() {
        Some(Broken { law, what }) => Err(Broken { law, what: format!("{what} (seed {seed})") }),
        None => Ok(users.found),
    }
}

/// The inputs and outputs of one world's machines, up to the broken law.
pub fn told(seed: u64, planted: Planted) -> Found {
    let mut users = Users::new(seed, planted, true);
    users.run();
    users.found
}

/// Writes `count` traces. At most [`ALIKE`] of them differ only in numbers.
pub fn traces(first_seed: u64, planted: Planted, count: u64) -> String {
    let (mut seen, mut text, mut number, mut seed) =
        (BTreeMap::new(), String::new(), 0, first_seed);
    while number < count {
        for lines in told(seed, planted).traces {
            let mut shape = lines.join("\n");
            shape.retain(|letter| !letter.is_ascii_digit());
            let alike = seen.entry(shape).or_insert(0);
            *alike += 1;
            if *alike <= ALIKE && number < count && lines.len() > 1 {
                number += 1;
                let _ = writeln!(text, "trace {number} {}\nend", lines.join("\n"));
            }
        }
        seed = seed.wrapping_add(1);
    }
    text
}

/// Runs world after world, for this many effective steps.
///
/// # Errors
/// The first law that broke.
pub fn many(first_seed: u64, planted: Planted, steps: u64) -> Result<Found, Broken> {
    let (mut found, mut seed) = (Found::default(), first_seed);
    while found.steps < steps {
        found.add(one(seed, planted, false)?);
        seed = seed.wrapping_add(1);
    }
    Ok(found)
}

impl Users {
    fn run(&mut self) {
        let mut steps = 0;
        while steps < WORLD_STEPS && self.broken.is_none() {
            self.one_step();
            steps += 1;
        }
        self.is_calm = true;
        let end = self.now + CALM;
        while self.now < end && self.broken.is_none() {
            self.one_step();
            if self.is_over() {
                break;
            }
        }
        self.audit();
        let jobs = std::mem::take(&mut self.jobs).into_values();
        self.found.traces.extend(jobs.filter(|_| self.records).map(|job| job.lines));
        self.found.steps += steps;
        let all = self.processes.iter().flat_map(|process| &process.users);
        let stuck: Vec<_> =
            all.filter(|user| !matches!(user.state, State::Idle)).cloned().collect();
        if !stuck.is_empty() {
            self.breaks("a wait for a free lock ends", format!("{stuck:?}"));
        }
    }

    fn is_over(&self) -> bool {
        let mut all = self.processes.iter().flat_map(|process| &process.users);
        all.all(|user| matches!(user.state, State::Idle)) && self.jobs.is_empty()
    }

    fn one_step(&mut self) {
        let is_done = match self.rng.u16(0..1000) {
            0..330 => self.some_read(),
            330..660 => self.some_hear(),
            660..740 => self.some_dial(),
            740..880 => self.some_user(),
            880..900 => self.some_ping(),
            900..910 => self.some_late_read(),
            910..916 if !self.is_calm => {
                self.befalls();
                true
            }
            916..930 => {
                self.audit();
                false
            }
            930..970 => self.some_replica(),
            _ => false,
        };
        if !is_done {
            let most = *self.rng.choice(&[1, 3, 10, 10, 30, 100]).unwrap_or(&1);
            self.pass(most);
        }
    }

    fn some_read(&mut self) -> bool {
        let all: Vec<Id> = self.links.keys().copied().filter(|link| self.reads(*link)).collect();
        let link = self.rng.choice(all);
        link.into_iter().for_each(|link| self.read(link));
        link.is_some()
    }

    fn some_hear(&mut self) -> bool {
        let all: Vec<Id> = self.links.keys().copied().filter(|link| self.hears(*link)).collect();
        let link = self.rng.choice(all);
        link.into_iter().for_each(|link| self.hear(link));
        link.is_some()
    }

    fn some_dial(&mut self) -> bool {
        let mut all = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            let dials = process.peers.iter().enumerate();
            all.extend(
                dials.filter(|(_, p)| p.dials_since.is_some()).map(|(node, _)| (number, node)),
            );
        }
        let dial = self.rng.choice(all);
        dial.into_iter().for_each(|(process, node)| self.dialled(process, node));
        dial.is_some()
    }

    fn some_late_read(&mut self) -> bool {
        let is_any = !self.gone.is_empty();
        if is_any {
            let at = self.rng.usize(0..self.gone.len());
            self.read_late(at);
        }
        is_any
    }

    fn some_user(&mut self) -> bool {
        let process = self.rng.usize(0..self.processes.len());
        let user = self.rng.usize(0..self.processes[process].users.len());
        if self.is_frozen(process) {
            return false;
        }
        match self.processes[process].users[user].state {
            State::Idle if !self.is_calm && !self.processes[process].is_closing => {
                self.asks(process, user);
                true
            }
            State::Holding(hold) if self.is_calm || self.rng.u8(0..3) == 0 => {
                self.comes(process, user, Some(hold));
                true
            }
            State::Asking(_) | State::Coming(None) if !self.is_calm && self.rng.u8(0..12) == 0 => {
                self.leaves(process, user, Input::Cancel);
                true
            }
            _ => false,
        }
    }

    fn asks(&mut self, number: usize, user: usize) {
        let key = self.rng.u8(0..3) / 2;
        let reads = self.rng.u8(0..10) < 3;
        let is_named = self.rng.bool();
        let wait = *self.rng.choice(&[0, 0, 5, 50, 500, 2000, 2000, FOREVER]).unwrap_or(&0);
        let outage =
            *self.rng.choice(&[FOREVER, FOREVER, FOREVER, 100, 700, 2500]).unwrap_or(&FOREVER);
        let session = self.rng.u8(0..6) == 0;
        let has_acks = self.world.machines.len() > 1 && self.rng.u8(0..5) == 0;
        let least = if session || has_acks { 1000 } else { 300 };
        let lease = (*self.rng.choice(&[300, 1000, LEASE_MAX]).unwrap_or(&300)).max(least);
        let has_max_queue = self.rng.u8(0..6) == 0;
        let process = &mut self.processes[number];
        let (image, count) =
            if is_named { (process.names.image(), 0) } else { process.names.draw() };
        let owner = format!("{image:x}-{count}{}", if reads { "r" } else { "w" });
        let who = &mut process.users[user];
        who.ask = crate::machine::Ask { wait, outage, lease, session, has_acks, ..no_ask() };
        who.has_max_queue = has_max_queue;
        who.place = (key, owner.into(), reads);
        who.start = self.now;
        self.comes(number, user, None);
    }

    // --- time -----------------------------------------------------------------------------------

    pub(super) fn is_frozen(&self, process: usize) -> bool {
        self.now < self.processes[process].frozen_until
    }

    /// Time passes, but not beyond the next due event.
    fn pass(&mut self, most: Ms) {
        let until = self.now + self.rng.u64(1..=most);
        self.now = self.next_due().clamp(self.now, until);
        self.world.us = self.now * 1000;
        for node in 0..self.world.machines.len() {
            if self.world.machines[node].is_up {
                self.act(node, |server| server.turn(255));
            }
        }
        while let Some(at) = self.gone.iter().position(|gone| gone.at <= self.now) {
            self.read_late(at);
        }
        for process in 0..self.processes.len() {
            if self.processes[process].frozen_until == self.now {
                self.thaws(process);
            }
            if self.processes[process].closes_at == self.now {
                self.closes(process);
            }
        }
        self.seats_due();
        self.pings_due();
        let due =
            self.jobs.iter().filter(|(_, job)| job.by <= self.now && !self.is_frozen(job.process));
        let due: Vec<Id> = due.map(|(id, _)| *id).collect();
        for id in due {
            if self.jobs.get(&id).is_some_and(|job| job.by <= self.now) {
                self.is_due(id);
            }
        }
    }

    /// A process that was stopped reads what is in its sockets before it acts on a timeout.
    fn thaws(&mut self, process: usize) {
        let here = self.links.iter().filter(|(_, link)| link.process == process);
        let links: Vec<Id> = here.map(|(id, _)| *id).collect();
        for link in links {
            while self.links.contains_key(&link) && self.hears(link) {
                self.hear(link);
            }
        }
    }

    fn next_due(&self) -> Ms {
        let frozen = |process: usize| self.processes[process].frozen_until;
        let jobs = self.jobs.values().map(|job| job.by.max(frozen(job.process)));
        let gone = self.gone.iter().map(|gone| gone.at);
        let mut next = jobs.chain(gone).min().unwrap_or(FOREVER);
        for process in &self.processes {
            for at in [process.frozen_until, process.closes_at] {
                next = next.min(if at > self.now { at } else { FOREVER });
            }
            let waits = process.seats.values().flat_map(|seat| &seat.waiting);
            let first = waits.map(|(_, until, _)| *until).min().unwrap_or(FOREVER);
            next = next.min(first.max(process.frozen_until));
        }
        next
    }
}
