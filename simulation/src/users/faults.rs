//! What happens to servers, connections and processes.

use super::{Id, State, Users};
use crate::machine::{FOREVER, Input, REPLY};
use crate::step::Step;
use crate::words::{Message, Out};

impl Users {
    /// Something goes wrong.
    pub(super) fn befalls(&mut self) {
        let process = self.rng.usize(0..self.processes.len());
        match self.rng.u8(0..100) {
            0..25 => self.mute_one(),
            25..30 => self.lose_message(),
            30..35 => self.end_subscription(),
            35..50 => self.darken(process),
            50..65 => self.cut_one(),
            65..75 => self.restart(),
            75..82 => self.fail_over(true),
            82..88 => self.fail_over(false),
            88..94 => {
                let until = self.now + self.rng.u64(10..1500);
                let process = &mut self.processes[process];
                process.frozen_until = process.frozen_until.max(until);
                process.was_frozen = until;
            }
            94..97 if self.processes.len() < 5 => self.fork(process),
            97.. if self.rng.u8(0..4) == 0 => self.close(process),
            _ => {}
        }
    }

    fn some_link(&mut self) -> Option<Id> {
        let all: Vec<Id> = self.links.keys().copied().collect();
        self.rng.choice(all)
    }

    /// A connection is silent from here on.
    fn mute_one(&mut self) {
        if let Some(link) = self.some_link().and_then(|link| self.links.get_mut(&link)) {
            link.is_mute = true;
        }
    }

    fn some_inbox(&mut self) -> Option<Id> {
        let peers = self.processes.iter().flat_map(|process| &process.peers);
        let all: Vec<Id> = peers.filter_map(|peer| peer.inbox.link).collect();
        self.rng.choice(all)
    }

    /// A message is lost on its way.
    fn lose_message(&mut self) {
        let Some(link) = self.some_inbox().and_then(|link| self.links.get_mut(&link)) else {
            return;
        };
        let at = link.from.iter().position(|out| matches!(out, Out::Message(_)));
        at.into_iter().for_each(|at| drop(link.from.remove(at)));
    }

    /// A server ends a subscription, as it does when a slot moves.
    fn end_subscription(&mut self) {
        let Some(id) = self.some_inbox() else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let server = &mut self.world.machines[link.node].server;
        let conn = server.conns.get_mut(&rlock_core::ClientId::from(id));
        let Some(channel) = conn.and_then(|conn| conn.channels.pop_first()) else { return };
        link.from.push_back(Out::Message(Message { channel, text: Vec::new() }));
    }

    /// For a while, nothing gets through between a process and a server.
    fn darken(&mut self, process: usize) {
        let node = self.rng.usize(0..self.world.machines.len());
        let all = self.links.values_mut();
        all.filter(|link| link.process == process && link.node == node)
            .for_each(|link| link.is_mute = true);
        let until = self.now + self.rng.u64(1..3 * REPLY);
        self.processes[process].peers[node].dark_until = until;
    }

    /// A connection is cut: both ends notice.
    fn cut_one(&mut self) {
        let Some(id) = self.some_link() else { return };
        let Some(link) = self.links.get_mut(&id).filter(|link| !link.is_mute) else { return };
        link.to.clear();
        let node = link.node;
        if self.world.machines[node].is_up {
            self.act(node, |server| server.free(rlock_core::ClientId::from(id)));
        }
        if let Some(link) =
            self.links.get_mut(&id).filter(|link| link.from.back() != Some(&Out::Closed))
        {
            link.from.push_back(Out::Closed);
        }
    }

    fn step(&mut self, step: Step) -> bool {
        let done = self.world.step(step);
        let is_done = done.unwrap_or_else(|broken| {
            self.broken.get_or_insert(broken);
            false
        });
        self.collect();
        is_done
    }

    /// A server's process ends: what was in transit is lost, and its connections close.
    fn dies(&mut self, node: usize) {
        self.gone.retain(|gone| gone.link.node != node);
        self.step(Step::Kill(node as u8, 255));
        self.links.values_mut().filter(|link| link.node == node).for_each(|link| link.to.clear());
    }

    /// The primary is restarted with all of its data.
    fn restart(&mut self) {
        let node = self.leader;
        self.log(|| format!("server {node} is started again"));
        self.step(Step::Save(node as u8));
        self.dies(node);
        self.step(Step::Start(node as u8));
        let replicas = (0..self.world.machines.len()).filter(|replica| *replica != node);
        let replicas: Vec<usize> = replicas.collect();
        replicas.into_iter().for_each(|replica| {
            self.step(Step::Follow(replica as u8, node as u8));
            self.catch_up(replica);
        });
        self.found.restarts += 1;
    }

    /// A replica receives the next command, or sends an acknowledgment; or the primary reads that.
    /// When there are no more faults, replicas keep up.
    pub(super) fn some_replica(&mut self) -> bool {
        let nodes = 0..self.world.machines.len();
        let Some(replica) = nodes.into_iter().find(|node| *node != self.leader) else {
            return false;
        };
        let number = replica as u8;
        if self.is_calm {
            self.catch_up(replica);
            self.step(Step::Ack(number));
            while self.step(Step::HearAck(number)) {}
            return true;
        }
        let steps = [Step::Deliver(number), Step::Ack(number), Step::HearAck(number)];
        let Some(step) = self.rng.choice(steps) else { return false };
        self.step(step)
    }

    fn catch_up(&mut self, replica: usize) {
        while matches!(self.world.step(Step::Deliver(replica as u8)), Ok(true)) {}
        self.collect();
    }

    /// A replica that has everything becomes the primary; the old one is dead, or follows it.
    fn fail_over(&mut self, is_dead: bool) {
        let old = self.leader;
        let Some(new) = (0..self.world.machines.len()).find(|node| *node != old) else { return };
        self.log(|| format!("server {new} takes over from {old}, which is dead: {is_dead}"));
        self.catch_up(new);
        if is_dead {
            self.dies(old);
            self.catch_up(new);
        }
        self.step(Step::Promote(new as u8));
        self.leader = new;
        if is_dead {
            self.step(Step::Start(old as u8));
        }
        self.step(Step::Follow(old as u8, new as u8));
        self.catch_up(old);
        self.found.promotions += 1;
    }

    /// A process forks: the child holds nothing, and has other owner names and its own connections.
    fn fork(&mut self, process: usize) {
        let mut names = self.processes[process].names.clone();
        names.forked(self.rng.u64(..), self.planted);
        self.add_process(names);
        self.found.forks += 1;
    }

    /// The package is closed in a process.
    fn close(&mut self, process: usize) {
        if self.processes[process].is_closing {
            return;
        }
        let users = self.processes[process].users.len();
        for user in 0..users {
            if matches!(self.processes[process].users[user].state, State::Coming(_)) {
                self.leaves(process, user, Input::Close);
            }
        }
        self.processes[process].is_closing = true;
        self.processes[process].closes_at = self.now + 1000;
        let here = self.jobs.iter().filter(|(_, job)| job.process == process);
        let jobs: Vec<Id> = here.map(|(id, _)| *id).collect();
        // A session ends with its connection.
        let seats = self.processes[process].seats.values();
        let tenures = seats.filter_map(|seat| seat.tenure.as_ref());
        let sessions: Vec<Id> =
            tenures.filter(|tenure| tenure.link.is_some()).map(|tenure| tenure.hold).collect();
        for job in jobs {
            let ends = if sessions.contains(&job) { Input::Gone } else { Input::Close };
            self.tell(job, ends);
        }
        for seat in self.processes[process].seats.values_mut() {
            (seat.excused_until, seat.waiting) = (FOREVER, Vec::new());
        }
        for user in &mut self.processes[process].users {
            if !matches!(user.state, State::Asking(_) | State::Releasing) {
                user.state = State::Idle;
            }
        }
        self.found.closes += 1;
    }

    /// Removes what a closed process still had.
    pub(super) fn closes(&mut self, process: usize) {
        self.processes[process].peers.iter_mut().for_each(|peer| peer.server.close());
        let here = self.links.iter().filter(|(_, link)| link.process == process);
        let links: Vec<Id> = here.map(|(id, _)| *id).collect();
        links.into_iter().for_each(|link| self.drop_link(link));
    }
}
