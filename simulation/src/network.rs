//! The network between a primary and its replicas: the stream, and the returning acknowledgments.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::fault::Fault;
use crate::history::Item;
use crate::laws::Broken;
pub use crate::link::{Ack, Link, LinkState};
use crate::machines::Machine;
use crate::step::Step;
use crate::world::World;

/// A replica whose last acknowledgment is older than this many microseconds is not a good replica.
const LAG_US_MAX: u64 = 1_000_000;
/// How many effects are kept for a replica that is cut off, before it needs a full resync.
const BACKLOG_MAX: usize = 64;

impl World {
    /// Updates what a server knows of its replicas.
    pub(crate) fn count_replicas(&mut self, node: usize) {
        let up = self.machines.iter().filter(|machine| machine.is_up);
        let links: Vec<&Link> = up.filter_map(|machine| machine.link.as_ref()).collect();
        let is_good = |link: &&&Link| {
            let is_fresh = link.heard.is_some() && link.heard_us + LAG_US_MAX > self.us;
            link.is_online(node) && link.state == LinkState::Up && is_fresh
        };
        let good = links.iter().filter(is_good).count();
        let mut replicas: Vec<u64> =
            links.iter().filter_map(|link| link.counts(node)).map(|ack| ack.offset).collect();
        if self.machines[node].server.fault == Fault::OfflineCounted {
            let syncs = links.iter().filter(|link| link.primary == node);
            replicas.extend(syncs.filter_map(|link| link.sync.as_ref()).map(|sync| sync.offset()));
        }
        let server = &mut self.machines[node].server;
        server.conditions.good_replicas = good;
        let has_lost = replicas.len() < server.replicas.len();
        server.replicas = replicas;
        if has_lost {
            server.replica_left();
        }
    }

    /// Sends what was written to the replicas.
    pub(crate) fn send_stream(&mut self, node: usize) {
        let items = std::mem::take(&mut self.machines[node].server.stream);
        if items.is_empty() {
            return;
        }
        for link in self.machines.iter_mut().filter_map(|machine| machine.link.as_mut()) {
            if link.primary == node && link.state != LinkState::Ending {
                link.queue.extend(items.iter().cloned());
                if link.state != LinkState::Up && link.queue.len() > BACKLOG_MAX {
                    link.queue.clear();
                    link.state = LinkState::Ending;
                }
            }
        }
    }

    pub(crate) fn link(&mut self, step: Step) -> Option<()> {
        let (Step::Ack(node)
        | Step::HearAck(node)
        | Step::Cut(node)
        | Step::Offline(node)
        | Step::Heal(node)) = step
        else {
            return None;
        };
        let us = self.us;
        let machine = self.machines.get_mut(usize::from(node)).filter(|machine| machine.is_up)?;
        let ack = acknowledgment(machine);
        let link = machine.link.as_mut()?;
        let mut greets = None;
        match (step, link.state) {
            (Step::Ack(_), LinkState::Up) if link.sync.is_none() => link.acks.push_back(ack),
            (Step::HearAck(_), LinkState::Up) => {
                link.heard = Some(link.acks.pop_front()?);
                link.heard_us = us;
            }
            (Step::Cut(_), LinkState::Up) => link.state = LinkState::Cut,
            (Step::Offline(_), LinkState::Up | LinkState::Cut) => {
                link.state = LinkState::Offline;
                link.acks.clear();
                link.heard = None;
            }
            (Step::Heal(_), LinkState::Cut) => link.state = LinkState::Up,
            (Step::Heal(_), LinkState::Offline) => {
                link.state = LinkState::Up;
                greets = Some(link.primary).filter(|_| link.sync.is_none());
            }
            _ => return None,
        }
        greets.into_iter().for_each(|primary| self.machines[primary].server.replica_came());
        Some(())
    }

    pub(crate) fn deliver(&mut self, node: usize) -> Result<bool, Broken> {
        let Some(machine) = self.machines.get_mut(node).filter(|machine| machine.is_up) else {
            return Ok(false);
        };
        let arrives = |link: &&mut Link| matches!(link.state, LinkState::Up | LinkState::Ending);
        let Some(link) = machine.link.as_mut().filter(arrives) else { return Ok(false) };
        let (primary, state) = (link.primary, link.state);
        if let Some(snapshot) = link.sync.take() {
            self.act(node, |server| server.load(&snapshot, None))?;
            self.laws.synced(node, &snapshot);
            if state == LinkState::Up {
                self.machines[primary].server.replica_came();
            }
        } else if !link.queue.is_empty() {
            let items = next_unit(&mut link.queue);
            items.iter().for_each(|item| self.laws.delivered(node, item));
            self.act(node, |server| items.iter().for_each(|item| server.apply(item)))?;
            if items.iter().any(Item::asks_for_ack) && state == LinkState::Up {
                let ack = acknowledgment(&self.machines[node]);
                let link = self.machines[node].link.as_mut();
                link.into_iter().for_each(|link| link.acks.push_back(ack));
            }
        } else {
            return Ok(false);
        }
        self.laws.in_sync(node, &self.machines)?;
        Ok(true)
    }

    pub(crate) fn follow(&mut self, node: usize, primary: usize) {
        self.wind(primary);
        let sync = Some(Rc::new(self.machines[primary].server.snapshot()));
        self.machines[node].link = Some(Link {
            primary,
            state: LinkState::Up,
            sync,
            queue: VecDeque::new(),
            acks: VecDeque::new(),
            heard: None,
            heard_us: 0,
        });
    }

    /// No replica follows this server any longer: only `kept` commands of what it sent still
    /// arrive.
    pub(crate) fn part(&mut self, node: usize, kept: usize) {
        for link in self.machines.iter_mut().filter_map(|machine| machine.link.as_mut()) {
            if link.primary == node {
                let arrives = matches!(link.state, LinkState::Up | LinkState::Ending);
                let mut queue = std::mem::take(&mut link.queue);
                let kept = (0..kept).filter(|_| arrives).map(|_| next_unit(&mut queue));
                link.queue = kept.flatten().collect();
                link.state = LinkState::Ending;
            }
        }
    }
}

/// A replica executes a unit as a whole, or not at all.
fn next_unit(queue: &mut VecDeque<Item>) -> Vec<Item> {
    let unit = queue.front().map(|item| item.unit);
    let others = queue.iter().position(|item| Some(item.unit) != unit);
    queue.drain(..others.unwrap_or(queue.len())).collect()
}

fn acknowledgment(machine: &Machine) -> Ack {
    Ack { offset: machine.server.offset, has: machine.server.history.point() }
}
