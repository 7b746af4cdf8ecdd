//! The inbox of a process at a server: its subscription, and the messages that it brings.

use super::links::{Asked, outcome};
use super::{INBOX, Id, Until, Users};
use crate::machine::{Input, LOOKS, Ms, Output, Planted, REPLY, Request};
use crate::words::Message;

/// The subscription of a process at a server.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub link: Option<Id>,
    pub is_subscribed: bool,
    /// When it was pinged last.
    pinged: Ms,
}

/// The late reply that a machine may get.
#[derive(Debug, Default)]
pub(super) struct Letter {
    /// The id of the latest request. Messages with earlier ids are ignored.
    id: Option<Id>,
    earlier: Vec<Id>,
    /// The connection on which it is to arrive.
    link: Option<Id>,
    /// The message, if it arrived before the reply that announces it.
    news: Option<Input>,
}

impl Letter {
    pub fn words(&self, process: usize) -> String {
        self.id.map_or_else(String::new, |id| format!(" TELL c{process} {id:x}"))
    }
}

impl Users {
    /// Draws the id for a request that may get a late reply.
    pub(super) fn addresses(&mut self, job: Id, output: &Output) {
        let has_acks = self.jobs.get(&job).is_some_and(|job| job.ask.has_acks);
        let is_late = match output {
            Output::Own { block, .. } | Output::Send(Request::Acquire(block), _) => {
                block.is_some() || has_acks
            }
            Output::Send(Request::Renew(_), _) => has_acks,
            _ => return,
        };
        let id = is_late.then(|| self.id());
        let Some(job) = self.jobs.get_mut(&job) else { return };
        let here = &self.processes[job.process];
        let link = here.peers[here.route].inbox.link;
        let letter = &mut job.letter;
        letter.earlier.extend(letter.id);
        (letter.id, letter.link, letter.news) = (id, link, None);
    }

    /// Gives a waiting machine the message that has arrived, or the news that none will.
    pub(super) fn reads_letter(&mut self, id: Id) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let is_heard = job.letter.link.is_some_and(|link| {
            let link = self.links.get(&link);
            link.is_some_and(|link| {
                self.processes[link.process].peers[link.node].inbox.is_subscribed
            })
        });
        let own = job.own.filter(|link| !self.links.contains_key(link));
        if let Some(news) = job.letter.news.take() {
            self.tell(id, news);
        } else if own.is_some() {
            self.tell(id, Input::Own(crate::machine::Outcome::Broken));
        } else if !is_heard {
            self.tell(id, Input::Lost);
        }
    }

    /// A connection has opened, and becomes the inbox.
    pub(super) fn subscribe(&mut self, process: usize, node: usize, link: Id) {
        let inbox = &mut self.processes[process].peers[node].inbox;
        (inbox.link, inbox.is_subscribed, inbox.pinged) = (Some(link), false, self.now);
        let asked = Asked { job: INBOX, generation: 0, is_own: false };
        self.write(link, &format!("SSUBSCRIBE c{process}"), asked);
    }

    /// A reply on the inbox: it is subscribed, unless the server has ended that since.
    pub(super) fn subscribed(&mut self, id: Id) {
        let Some(link) = self.links.get(&id) else { return };
        let (process, node) = (link.process, link.node);
        let inbox = &mut self.processes[process].peers[node].inbox;
        if inbox.link != Some(id) || inbox.is_subscribed {
            return;
        }
        inbox.is_subscribed = true;
        for job in self.listening(process, node) {
            self.tell(job, Input::Listening(1));
        }
    }

    fn listening(&self, process: usize, node: usize) -> Vec<Id> {
        let is_there = self.processes[process].route == node;
        let all = self.jobs.iter().filter(|(_, job)| {
            is_there && job.process == process && job.until == Until::Subscribed
        });
        all.map(|(id, _)| *id).collect()
    }

    /// A message. A message without text reports that the subscription has ended.
    pub(super) fn receive(&mut self, id: Id, message: &Message) {
        let Some(link) = self.links.get(&id) else { return };
        let (process, node) = (link.process, link.node);
        let Some((letter, said)) = message.parts() else {
            let inbox = &mut self.processes[process].peers[node].inbox;
            if inbox.link == Some(id) {
                // Requests in progress on it may get replies in any order.
                self.drop_link(id);
            }
            return;
        };
        let letter =
            std::str::from_utf8(letter).ok().and_then(|id| Id::from_str_radix(id, 16).ok());
        let Some(letter) = letter else { return };
        let believes_all = self.planted == Planted::OldMessageBelieved;
        let job = self.jobs.iter_mut().find(|(_, job)| {
            let is_old = job.letter.earlier.contains(&letter);
            job.letter.id == Some(letter) || believes_all && is_old
        });
        let Some((job, of)) = job else { return };
        let (job, news) = (*job, Input::Message(outcome(&said.said())));
        if of.until == Until::Message {
            self.tell(job, news);
        } else {
            of.letter.news = Some(news);
        }
    }

    /// A connection has ended: if it was the inbox, its messages will not arrive.
    pub(super) fn lost_inbox(&mut self, process: usize, node: usize, link: Id) {
        let inbox = &mut self.processes[process].peers[node].inbox;
        if inbox.link != Some(link) {
            return;
        }
        *inbox = Inbox::default();
        let waits = self
            .jobs
            .iter()
            .filter(|(_, job)| job.letter.link == Some(link) && job.until == Until::Message);
        let waits: Vec<Id> = waits.map(|(id, _)| *id).collect();
        for job in self.listening(process, node) {
            self.tell(job, Input::Ended(crate::machine::Outcome::Broken));
        }
        waits.into_iter().for_each(|job| self.tell(job, Input::Lost));
    }

    /// Pings an inbox that somebody waits for, if it was not pinged for a while.
    pub(super) fn some_ping(&mut self) -> bool {
        let link = self.some_waiting(|inbox, now| inbox.pinged + LOOKS <= now);
        if let Some((process, node, link)) = link {
            self.processes[process].peers[node].inbox.pinged = self.now;
            self.write(link, "PING", Asked { job: INBOX, generation: 0, is_own: false });
        }
        link.is_some()
    }

    /// Closes an inbox that has been silent since it was pinged.
    pub(super) fn pings_due(&mut self) {
        let mut silent = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            let peers = process.peers.iter().filter(|_| !self.is_frozen(number));
            silent.extend(peers.filter_map(|peer| {
                let Inbox { link, pinged, .. } = peer.inbox;
                let heard = self.links.get(&link?)?.heard;
                let is_asked = !self.links[&link?].asked.is_empty();
                (is_asked && heard <= pinged && pinged + REPLY <= self.now).then_some(link?)
            }));
        }
        silent.into_iter().for_each(|link| self.drop_link(link));
    }

    fn some_waiting(&self, is_due: impl Fn(&Inbox, Ms) -> bool) -> Option<(usize, usize, Id)> {
        let waits = self.jobs.values().filter(|job| job.until == Until::Message);
        let mut links = waits.filter_map(|job| self.links.get(&job.letter.link?));
        let link = links.find(|link| {
            let inbox = &self.processes[link.process].peers[link.node].inbox;
            !self.is_frozen(link.process) && is_due(inbox, self.now)
        })?;
        let inbox = &self.processes[link.process].peers[link.node].inbox;
        Some((link.process, link.node, inbox.link?))
    }
}
