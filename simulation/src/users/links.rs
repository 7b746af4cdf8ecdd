//! The connections of processes: what is in transit, what is cut, and what servers read late.

use std::collections::VecDeque;

use rlock_core::{ClientId, Mode};

use super::{INBOX, Id, Until, Users};
use crate::keyspace::Key;
use crate::machine::{AGAIN, Dial, FOREVER, Input, Ms, Outcome, is_condemned};
use crate::server::Server;
use crate::words::{Out, Said, Words, words};

/// The machine whose request a connection carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub job: Id,
    pub generation: u32,
    pub is_own: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub process: usize,
    pub node: usize,
    pub to: VecDeque<Words>,
    pub from: VecDeque<Out>,
    pub asked: VecDeque<Asked>,
    /// When it was last heard from.
    pub heard: Ms,
    /// Nothing gets through any more, and neither side is notified.
    pub is_mute: bool,
    /// How many promotions there had been when it was opened.
    pub promotions: u64,
}

/// A connection that its process closed, which the server has not noticed yet.
#[derive(Debug)]
pub(super) struct Gone {
    pub client: ClientId,
    pub link: Link,
    pub at: Ms,
}

impl Users {
    /// Finds a connection for a machine's operation; dials if there is none.
    pub(super) fn connect(&mut self, id: Id) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (process, node) = (job.process, self.processes[job.process].route);
        let peer = &mut self.processes[process].peers[node];
        if job.until == Until::Opened {
            if !peer.idle.is_empty() {
                let link = peer.idle.remove(0);
                self.jobs.get_mut(&id).into_iter().for_each(|job| job.own = Some(link));
                return self.tell(id, Input::Opened);
            }
        } else if job.until == Until::Subscribed {
            if peer.inbox.is_subscribed {
                return self.tell(id, Input::Listening(1));
            }
            if peer.inbox.link.is_some() {
                return; // it is being subscribed
            }
        } else if let Some(link) = peer.shared {
            let Some(job) = self.jobs.get_mut(&id) else { return };
            let Some((words, _)) = job.unsent.take() else { return };
            (job.shared, job.sent) = (Some(link), self.now);
            let asked = super::asked_by(id, job.generation, false);
            return self.write(link, &words, asked);
        }
        match peer.server.need(self.now) {
            Dial::Now => {
                let is_early = peer.failed_at.is_some_and(|at| self.now < at + 100);
                peer.dials_since = Some(self.now);
                if is_early {
                    self.breaks("a server that is away is left alone", format!("server {node}"));
                }
                if self.processes[process].closes_at <= self.now {
                    self.breaks("closed is closed", format!("process {process} dials"));
                }
            }
            Dial::Join => {}
            Dial::Rest => self.unsent(id),
        }
    }

    /// There was no server to send it to.
    fn unsent(&mut self, id: Id) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.unsent = None;
        self.tell(id, Input::Ended(Outcome::Unsent));
    }

    pub(super) fn write(&mut self, link: Id, line: &str, asked: Asked) {
        let Some(to) = self.links.get_mut(&link) else { return };
        let silent = self.processes[to.process].peers[to.node].silent;
        let heard = to.heard;
        to.to.push_back(words(line));
        to.asked.push_back(asked);
        self.found.sends += 1;
        self.jobs.get_mut(&asked.job).into_iter().for_each(|job| job.writes += 1);
        if heard < silent {
            self.breaks("a silence is believed", format!("{line} on a connection that is silent"));
        }
    }

    /// A dial ends.
    pub(super) fn dialled(&mut self, process: usize, node: usize) {
        let is_up = self.world.machines[node].is_up;
        let dark_until = self.processes[process].peers[node].dark_until;
        let since = self.processes[process].peers[node].dials_since;
        let Some(since) = since else { return };
        if self.now < dark_until && self.now < since + crate::machine::REPLY {
            return; // it hangs
        }
        let wants = self.wanting(process, node);
        let peer = &mut self.processes[process].peers[node];
        peer.dials_since = None;
        if !is_up || self.now < dark_until {
            peer.failed_at = Some(self.now);
            peer.server.failed(self.now, self.rng.u64(0..1000));
            self.reroute(process);
            return wants.into_iter().for_each(|id| self.unsent(id));
        }
        peer.failed_at = None;
        peer.server.dialled();
        let client = self.world.admit(node);
        let link = client.get();
        let link_of = Link {
            process,
            node,
            to: VecDeque::new(),
            from: VecDeque::new(),
            asked: VecDeque::new(),
            heard: self.now,
            is_mute: false,
            promotions: self.found.promotions,
        };
        self.links.insert(link, link_of);
        let peer = &mut self.processes[process].peers[node];
        let wants_it = |until: Until| wants.iter().any(|id| self.jobs[id].until == until);
        let sends = wants.iter().any(|id| self.jobs[id].unsent.is_some());
        if sends && peer.shared.is_none() {
            peer.shared = Some(link);
        } else if peer.inbox.link.is_none() && wants_it(Until::Subscribed) {
            self.subscribe(process, node, link);
        } else if peer.shared.is_some() || wants_it(Until::Opened) {
            peer.idle.push(link);
        } else {
            peer.shared = Some(link);
        }
        wants.into_iter().for_each(|id| self.connect(id));
    }

    /// The machines that wait for a connection there.
    fn wanting(&self, process: usize, node: usize) -> Vec<Id> {
        let is_there = self.processes[process].route == node;
        let wants = |(id, job): (&Id, &super::Job)| {
            let wants =
                job.unsent.is_some() || matches!(job.until, Until::Opened | Until::Subscribed);
            (is_there && job.process == process && wants).then_some(*id)
        };
        self.jobs.iter().filter_map(wants).collect()
    }

    /// Searches for the primary again. Machines that wait for a connection get an error.
    pub(super) fn reroute(&mut self, process: usize) {
        let (old, new) = (self.processes[process].route, self.leader);
        if old == new {
            return;
        }
        let wants = self.wanting(process, old);
        self.processes[process].route = new;
        wants.into_iter().for_each(|id| self.unsent(id));
    }

    /// A process closes a connection. The server may still read what was sent on it.
    pub(super) fn drop_link(&mut self, id: Id) {
        let Some(mut link) = self.links.remove(&id) else { return };
        let peer = &mut self.processes[link.process].peers[link.node];
        peer.shared = peer.shared.filter(|shared| *shared != id);
        peer.idle.retain(|idle| *idle != id);
        let asked = std::mem::take(&mut link.asked);
        let (process, node) = (link.process, link.node);
        let at = self.now + self.rng.u64(0..AGAIN - 20);
        let client = ClientId::from(id);
        self.gone.push(Gone { client, link, at });
        self.lost_inbox(process, node, id);
        self.lost_replies(id, asked);
    }

    /// Ends the waits for replies on a connection that ended.
    pub(super) fn lost_replies(&mut self, link: Id, asked: VecDeque<Asked>) {
        for asked in asked {
            let Some(job) = self.jobs.get_mut(&asked.job) else { continue };
            let is_current = asked.generation == job.generation;
            if asked.is_own && job.own == Some(link) {
                if job.until == Until::OwnReply {
                    self.tell(asked.job, Input::Own(Outcome::Broken));
                }
            } else if is_current && !asked.is_own && job.until == Until::Reply {
                self.tell(asked.job, Input::Ended(Outcome::Broken));
            }
        }
    }

    /// A request went unanswered: connections that have been silent since are closed.
    pub(super) fn distrust(&mut self, process: usize, node: usize, sent: Ms) {
        let peer = &mut self.processes[process].peers[node];
        peer.silent = peer.silent.max(sent);
        let all = peer.shared.iter().chain(&peer.idle).chain(&peer.inbox.link);
        let suspects: Vec<Id> = all.copied().collect();
        for link in suspects {
            let heard = self.links.get(&link).map_or(FOREVER, |link| link.heard);
            if is_condemned(heard, sent, self.planted) {
                self.drop_link(link);
            }
        }
        self.reroute(process);
    }

    /// Whether a process would now read a reply on this connection.
    pub(super) fn hears(&self, id: Id) -> bool {
        let link = &self.links[&id];
        if link.is_mute || link.from.is_empty() || self.is_frozen(link.process) {
            return false;
        }
        let asked = link.asked.front().filter(|asked| asked.is_own);
        asked
            .and_then(|asked| self.jobs.get(&asked.job))
            .is_none_or(|job| job.own != Some(id) || job.until == Until::OwnReply)
    }

    /// A process reads the next reply.
    pub(super) fn hear(&mut self, id: Id) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(out) = link.from.pop_front() else { return };
        link.heard = self.now;
        let process = link.process;
        let said = match out {
            Out::Said(said) => said,
            Out::Message(message) => return self.receive(id, &message),
            Out::Closed => return self.hung_up(id),
        };
        let Some(asked) = link.asked.pop_front() else { return };
        let is_replica = |line: &str| line.starts_with("READONLY") || line.starts_with("ERR");
        if matches!(&said, Said::Error(line) if is_replica(line)) {
            self.reroute(process);
        }
        if asked.job == INBOX {
            return self.subscribed(id);
        }
        let Some(job) = self.jobs.get(&asked.job) else { return };
        if asked.is_own {
            if job.own == Some(id) {
                self.tell(asked.job, Input::Own(outcome(&said)));
            }
        } else if asked.generation == job.generation && job.until == Until::Reply {
            self.tell(asked.job, Input::Ended(outcome(&said)));
        }
    }

    /// A server closed a connection.
    fn hung_up(&mut self, id: Id) {
        let Some(link) = self.links.remove(&id) else { return };
        let peer = &mut self.processes[link.process].peers[link.node];
        peer.shared = peer.shared.filter(|shared| *shared != id);
        peer.idle.retain(|idle| *idle != id);
        self.reroute(link.process);
        self.lost_inbox(link.process, link.node, id);
        self.lost_replies(id, link.asked);
        // A machine that waits for a message knows at once that its session cannot begin there.
        let waits = |job: &&super::Job| job.own == Some(id) && job.until == Until::Message;
        let waiting = self.jobs.iter().find(|(_, job)| waits(job)).map(|(id, _)| *id);
        waiting.into_iter().for_each(|job| self.tell(job, Input::Own(Outcome::Broken)));
        let seats = self.processes[link.process].seats.values_mut();
        let mut tenures = seats.filter_map(|seat| seat.tenure.as_mut());
        if let Some(tenure) = tenures.find(|tenure| tenure.link == Some(id)) {
            tenure.link = None;
            let hold = tenure.hold;
            self.tell(hold, Input::Untied);
        }
    }

    // --- servers --------------------------------------------------------------------------------

    /// Whether a server now reads the next request on this connection.
    pub(super) fn reads(&self, id: Id) -> bool {
        let link = &self.links[&id];
        let machine = &self.world.machines[link.node];
        !link.is_mute
            && !link.to.is_empty()
            && machine.is_up
            && machine.server.reads(ClientId::from(id))
    }

    pub(super) fn read(&mut self, id: Id) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (node, next) = (link.node, link.to.pop_front());
        next.into_iter().for_each(|words| self.serve(ClientId::from(id), node, &words));
    }

    fn serve(&mut self, client: ClientId, node: usize, words: &Words) {
        self.log(|| {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            format!("server {node} reads of {client:?}: {}", words.join(" "))
        });
        self.world.wind(node);
        let said = shown(&self.world.machines[node].server, words);
        match said {
            Some(said) => {
                let link = self.links.get_mut(&client.get());
                link.into_iter().for_each(|link| link.from.push_back(Out::Said(said.clone())));
            }
            None => self.act(node, |server| server.run(client, words)),
        }
    }

    /// A server reads what was in the socket of a closed connection, and then notices the close.
    pub(super) fn read_late(&mut self, at: usize) {
        let Gone { client, link, .. } = self.gone.swap_remove(at);
        let Link { process, node, to, promotions, .. } = link;
        self.log(|| {
            format!("server {node} reads what is left of {client:?}, and that it is closed")
        });
        for words in to {
            let machine = &self.world.machines[node];
            if machine.is_up && machine.server.reads(client) {
                self.serve(client, node, &words);
                // The undo went to another primary.
                if promotions < self.found.promotions {
                    self.excuse(process, &words);
                }
            }
        }
        if self.world.machines[node].is_up {
            self.act(node, |server| server.free(client));
        }
    }

    pub(super) fn act(&mut self, node: usize, work: impl FnOnce(&mut Server)) {
        if let Err(broken) = self.world.act(node, work) {
            self.broken.get_or_insert(broken);
        }
        self.collect();
    }

    /// Puts what servers sent onto the connections.
    pub(super) fn collect(&mut self) {
        for (client, out) in std::mem::take(&mut self.world.strays) {
            if let Some(link) = self.links.get_mut(&client.get()) {
                link.from.push_back(out);
            }
        }
    }
}

pub(super) fn outcome(said: &Said) -> Outcome {
    match said {
        Said::Nil => Outcome::Nil,
        Said::Waiting => Outcome::Waiting,
        Said::Error(line) => {
            Outcome::Refused(line.split(' ').next().unwrap_or_default().to_owned())
        }
        said => Outcome::Token(said.number().unwrap_or(1).cast_unsigned()),
    }
}

/// What a server shows, as in `src/show.rs`: `RLOCK.INFO` has the token of the owner's hold.
fn shown(server: &Server, words: &Words) -> Option<Said> {
    match words.first()?.as_slice() {
        b"PING" => Some(Said::Ok),
        b"RLOCK.INFO" => {
            let key: Key = words.get(1)?.as_slice().into();
            let owner = words.get(2)?.as_slice();
            let lock = server.visible(0, &key).and_then(crate::keyspace::Slot::lock);
            let reads = words.get(3).is_some_and(|word| word == b"READ");
            let mode = if reads { Mode::Read } else { Mode::Write };
            let hold = lock.and_then(|lock| lock.hold_at(owner, mode, server.now));
            Some(hold.map_or(Said::Nil, |hold| Said::Int(hold.token.get().cast_signed())))
        }
        _ => None,
    }
}
