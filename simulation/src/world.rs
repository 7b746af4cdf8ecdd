//! A world of servers, clients and the network between them, in one process and one thread.

use std::rc::Rc;

use rlock_core::{ClientId, Now};

use crate::client::{Actor, Heard, Pipe, Sent};
use crate::command::Command;
use crate::fault::Fault;
use crate::laws::{Broken, Hearing, Laws, must};
pub use crate::machines::{Machine, START_US, STEP_US, Setting};
use crate::seen::Kind;
use crate::server::Server;
use crate::step::Step;
use crate::words::{Out, Said, Words};

/// Everything.
pub struct World {
    /// Microseconds since the beginning.
    pub us: u64,
    /// The servers.
    pub machines: Vec<Machine>,
    /// The clients.
    pub actors: Vec<Actor>,
    /// What is watched.
    pub laws: Laws,
    /// Replies to connections that belong to no client here.
    pub(crate) strays: Vec<(ClientId, Out)>,
    setting: Setting,
    last_client: u64,
}

impl World {
    /// A new world.
    pub fn new(setting: &Setting) -> Self {
        let clock = |node: u8| setting.clocks_ms.get(usize::from(node)).copied().unwrap_or(0);
        let machine = |node: u8| Machine {
            server: Server::new(setting.fault),
            is_up: true,
            was_primary: false,
            clock_ms: clock(node).into(),
            link: None,
            disk: None,
        };
        let user = |who: u8| format!("user {who}").into();
        let actors = (0..setting.clients).map(|who| Actor::new(who, user(who)));
        let mut world = Self {
            us: 0,
            machines: (0..setting.nodes).map(machine).collect(),
            actors: actors.collect(),
            laws: Laws::new(setting),
            strays: Vec::new(),
            setting: setting.clone(),
            last_client: 0,
        };
        for node in 0..world.machines.len() {
            world.set_up(node);
        }
        let reign = world.laws.reign_begins(0, &world.machines[0].server, 0, true);
        world.machines[0].server.set_role(true, reign);
        for node in 1..world.machines.len() {
            world.follow(node, 0);
        }
        world
    }

    fn set_up(&mut self, node: usize) {
        let Setting { replaces_replies, replies_at_once, loads_before_flush, .. } = self.setting;
        let Setting { grace_ms, fault, max_tells, max_tell_ms, .. } = self.setting;
        let server = &mut self.machines[node].server;
        server.bounds.grace_ms = if fault == Fault::GraceIgnored { 0 } else { grace_ms.into() };
        (server.bounds.max_tells, server.bounds.max_tell_ms) =
            (max_tells.into(), max_tell_ms.into());
        let conditions = &mut server.conditions;
        conditions.replaces_replies = replaces_replies;
        conditions.replies_at_once = replies_at_once;
        conditions.loads_before_flush = loads_before_flush;
        self.wind(node);
    }

    /// Sets a server's clock, and updates what it knows of its replicas.
    pub(crate) fn wind(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        let ms = machine.clock_ms * 1000;
        machine.server.now = Now::from_us((START_US + self.us).saturating_add_signed(ms));
        self.count_replicas(node);
    }

    /// Executes one step. False if it was not possible.
    ///
    /// # Errors
    /// The law that it broke.
    pub fn step(&mut self, step: Step) -> Result<bool, Broken> {
        let step_us = self.setting.step_us;
        self.us += step_us;
        let is_done = self.carry_out(step)?;
        // A step that was impossible takes no time, so leaving it out changes nothing.
        self.us -= if is_done { 0 } else { step_us };
        Ok(is_done)
    }

    fn carry_out(&mut self, step: Step) -> Result<bool, Broken> {
        match step {
            Step::Pass(us) => {
                self.us += u64::from(us);
                Ok(true)
            }
            Step::Connect(who, node) => Ok(self.connect(who.into(), node.into())),
            Step::Send(who, command) => Ok(self.send(who.into(), command, None)),
            Step::Tell(who, command, channel) => Ok(self.send(who.into(), command, Some(channel))),
            Step::Hear(who) => self.hear(who.into()),
            Step::HangUp(who) => Ok(self.hang_up(who.into())),
            Step::Read(who) => self.read(who.into()),
            Step::ReadLate(who) => self.read_late(who.into()),
            Step::Notice(who) => self.notice(who.into()),
            Step::CutOff(who) => self.at_its_server(who.into(), Server::free),
            Step::Unblock(who, error) => {
                self.at_its_server(who.into(), |server, client| server.unblock(client, error))
            }
            Step::Allow(who, may) => {
                let Some(at) = self.actor(who) else { return Ok(false) };
                let user = self.actors[at].user.clone();
                self.machines.iter_mut().for_each(|machine| machine.server.may(&user, may));
                Ok(true)
            }
            Step::Channels(who, may) => {
                let Some(at) = self.actor(who) else { return Ok(false) };
                let user = self.actors[at].user.clone();
                let all = self.machines.iter_mut();
                all.for_each(|machine| machine.server.may_publish_to(&user, may));
                Ok(true)
            }
            Step::Deliver(node) => self.deliver(node.into()),
            Step::Ack(_) | Step::HearAck(_) | Step::Cut(_) | Step::Offline(_) | Step::Heal(_) => {
                Ok(self.link(step).is_some())
            }
            Step::Follow(node, primary) => self.change_sides(node.into(), primary.into()),
            Step::Promote(node) => self.promote(node.into()),
            Step::Kill(node, kept) => self.kill(node.into(), kept.into()),
            Step::Start(node) => self.start(node.into()),
            Step::Turn(node, _)
            | Step::Expire(node)
            | Step::Evict(node, _)
            | Step::Pause(node, _)
            | Step::Disk(node, _)
            | Step::MinReplicas(node, _)
            | Step::Clock(node, _)
            | Step::Save(node) => self.at_server(node.into(), step),
        }
    }

    fn actor(&self, who: u8) -> Option<usize> {
        Some(usize::from(who)).filter(|at| *at < self.actors.len())
    }

    fn is_up(&self, node: usize) -> bool {
        self.machines.get(node).is_some_and(|machine| machine.is_up)
    }

    // --- clients --------------------------------------------------------------------------------

    fn connect(&mut self, who: usize, node: usize) -> bool {
        if who >= self.actors.len() || self.actors[who].pipe.is_some() || !self.is_up(node) {
            return false;
        }
        self.last_client += 1;
        let client = ClientId::from(self.last_client);
        self.machines[node].server.connect(client, &self.actors[who].user);
        self.actors[who].pipe = Some(Pipe::new(client, node));
        true
    }

    /// Opens a connection that belongs to no client here.
    pub(crate) fn admit(&mut self, node: usize) -> ClientId {
        self.last_client += 1;
        let client = ClientId::from(self.last_client);
        self.machines[node].server.connect(client, &"user".into());
        client
    }

    fn send(&mut self, who: usize, command: Command, channel: Option<u8>) -> bool {
        let actor = self.actors.get_mut(who);
        let sent = actor.and_then(|actor| actor.send(command, self.us, channel));
        if let Some(db) = sent {
            self.laws.beliefs.gives_up(who, db, &command);
        }
        sent.is_some()
    }

    fn hang_up(&mut self, who: usize) -> bool {
        let client = self.actors.get_mut(who).and_then(Actor::hang_up);
        client.into_iter().for_each(|client| self.laws.beliefs.disconnected(client));
        client.is_some()
    }

    fn hear(&mut self, who: usize) -> Result<bool, Broken> {
        let Some(actor) = self.actors.get_mut(who) else { return Ok(false) };
        match actor.hear() {
            None => return Ok(false),
            Some(Heard::Closed(client)) => self.laws.beliefs.disconnected(client),
            Some(Heard::Replies(client, all)) => {
                all.iter().try_for_each(|(sent, said)| self.judge(who, client, *sent, said))?;
            }
            Some(Heard::Told(client, sent, said)) => self.judge(who, client, sent, &said)?,
            Some(Heard::TooMuch(message)) => {
                must(false, "exactly one message", || format!("client {who} read {message:?}"))?;
            }
            Some(Heard::Nothing) => {}
        }
        Ok(true)
    }

    /// A client gets the reply to a command on this connection.
    fn judge(
        &mut self,
        who: usize,
        client: ClientId,
        sent: Sent,
        said: &Said,
    ) -> Result<(), Broken> {
        if sent.is_again && said.number().is_some_and(|token| token > 0) {
            self.laws.seen.count(Kind::ToldAgain);
        }
        let heard = Hearing { who, client, sent, said, us: self.us };
        self.laws.heard(&heard, &self.actors[who], &self.machines)
    }

    fn read(&mut self, who: usize) -> Result<bool, Broken> {
        self.read_of(who, |actor| actor.pipe.as_mut())
    }

    fn read_late(&mut self, who: usize) -> Result<bool, Broken> {
        self.read_of(who, |actor| actor.hung.front_mut())
    }

    fn read_of(
        &mut self,
        who: usize,
        pipe: impl Fn(&mut Actor) -> Option<&mut Pipe>,
    ) -> Result<bool, Broken> {
        let Some(read) = self.actors.get_mut(who).and_then(&pipe) else { return Ok(false) };
        let (client, node) = (read.client, read.node);
        if !self.may_read(client, node) {
            return Ok(false);
        }
        let server = &self.machines[node].server;
        let next = pipe(&mut self.actors[who]).and_then(|pipe| pipe.pop_for(server));
        self.serve(client, node, next)
    }

    fn may_read(&mut self, client: ClientId, node: usize) -> bool {
        self.wind(node);
        self.is_up(node) && self.machines[node].server.reads(client)
    }

    fn serve(
        &mut self,
        client: ClientId,
        node: usize,
        next: Option<Words>,
    ) -> Result<bool, Broken> {
        let Some(words) = next else { return Ok(false) };
        let before = self.machines[node].server.keys.clone();
        let refused = self.laws.seen.of(Kind::TooFewToAcknowledge);
        self.act(node, |server| server.run(client, &words))?;
        // A transaction goes on.
        let is_one = !words.first().is_some_and(|name| name == b"EXEC" || name == b"EVAL");
        let is_refused = is_one && self.laws.seen.of(Kind::TooFewToAcknowledge) > refused;
        let is_same = !is_refused || self.machines[node].server.keys == before;
        must(is_same, "what is refused changes nothing", || format!("{before:?}"))?;
        Ok(true)
    }

    fn notice(&mut self, who: usize) -> Result<bool, Broken> {
        let Some(pipe) = self.actors.get_mut(who).and_then(|actor| actor.hung.pop_front()) else {
            return Ok(false);
        };
        if self.machines[pipe.node].is_up {
            self.act(pipe.node, |server| server.free(pipe.client))?;
        }
        Ok(true)
    }

    fn at_its_server(
        &mut self,
        who: usize,
        work: impl FnOnce(&mut Server, ClientId),
    ) -> Result<bool, Broken> {
        let pipe = self.actors.get(who).and_then(|actor| actor.pipe.as_ref());
        let Some(&Pipe { client, node, .. }) = pipe else { return Ok(false) };
        let is_there = self.machines[node].server.conns.contains_key(&client);
        if is_there && self.machines[node].is_up {
            self.act(node, |server| work(server, client))?;
        }
        Ok(is_there)
    }

    // --- servers --------------------------------------------------------------------------------

    /// Does something on a server; its effects are sent to replicas and clients, and the laws are
    /// checked.
    pub(crate) fn act(
        &mut self,
        node: usize,
        work: impl FnOnce(&mut Server),
    ) -> Result<(), Broken> {
        self.wind(node);
        let server = &mut self.machines[node].server;
        let was_shut = server.refuses_writes();
        work(server);
        // Before what it wrote may exceed the backlog of a replica.
        self.laws.after(node, was_shut, self.us, &mut self.machines)?;
        self.spread(node);
        Ok(())
    }

    fn spread(&mut self, node: usize) {
        let server = &mut self.machines[node].server;
        server.events.clear();
        let is_for_others = self.actors.is_empty();
        for (client, out) in std::mem::take(&mut server.out) {
            let pipes = self.actors.iter_mut().filter_map(|actor| actor.pipe.as_mut());
            let pipe = pipes.into_iter().find(|pipe| pipe.client == client);
            match pipe {
                Some(pipe) => pipe.from.push_back(out),
                None if is_for_others => self.strays.push((client, out)),
                None => {}
            }
        }
        self.send_stream(node);
    }

    fn at_server(&mut self, node: usize, step: Step) -> Result<bool, Broken> {
        if !self.is_up(node) {
            return Ok(false);
        }
        match step {
            Step::Clock(_, ms) => {
                self.machines[node].clock_ms += i64::from(ms);
                self.laws.clock_steps(node, &self.machines[node].server);
                self.act(node, Server::clock_was_set)?;
            }
            Step::Save(_) => {
                self.wind(node);
                self.machines[node].disk = Some(Rc::new(self.machines[node].server.snapshot()));
            }
            _ => self.act(node, |server| match step {
                Step::Turn(_, portion) => server.turn(portion.into()),
                Step::Expire(_) => server.expire_some(),
                Step::Evict(_, key) => server.evict(0, &format!("k{key}").into_bytes().into()),
                Step::Pause(_, ms) => {
                    server.conditions.paused_until = server.now_ms() + u64::from(ms);
                }
                Step::Disk(_, fails) => server.conditions.disk_fails = fails,
                Step::MinReplicas(_, n) => server.conditions.min_replicas = n.into(),
                _ => {}
            })?,
        }
        Ok(true)
    }

    // --- replication ----------------------------------------------------------------------------

    fn change_sides(&mut self, node: usize, primary: usize) -> Result<bool, Broken> {
        let leads = |at: usize| self.is_up(at) && self.machines[at].server.is_primary;
        if node == primary || !self.is_up(node) || !leads(primary) {
            return Ok(false);
        }
        if self.machines[node].server.is_primary {
            self.laws.seen.count(Kind::Demotion);
            self.act(node, |server| server.set_role(false, 0))?;
        }
        self.part(node, 0);
        self.follow(node, primary);
        Ok(true)
    }

    /// Whether no other server accepts writes.
    fn is_alone(&self, node: usize) -> bool {
        let leads = |machine: &Machine| machine.is_up && machine.server.is_primary;
        !self.machines.iter().enumerate().any(|(at, machine)| at != node && leads(machine))
    }

    fn promote(&mut self, node: usize) -> Result<bool, Broken> {
        if !self.is_up(node) || self.machines[node].server.is_primary {
            return Ok(false);
        }
        self.wind(node);
        self.laws.seen.count(Kind::Promotion);
        self.laws.promoted(node, &self.machines)?;
        self.machines[node].link = None;
        let is_alone = self.is_alone(node);
        let reign = self.laws.reign_begins(node, &self.machines[node].server, self.us, is_alone);
        self.act(node, |server| server.set_role(true, reign))?;
        Ok(true)
    }

    fn kill(&mut self, node: usize, kept: usize) -> Result<bool, Broken> {
        if !self.is_up(node) {
            return Ok(false);
        }
        self.part(node, kept);
        let clients: Vec<ClientId> = self.machines[node].server.conns.keys().copied().collect();
        let machine = &mut self.machines[node];
        machine.is_up = false;
        machine.was_primary = machine.server.is_primary;
        machine.link = None;
        machine.server = Server::new(self.setting.fault);
        machine.server.out = clients.into_iter().map(|c| (c, Out::Closed)).collect();
        self.spread(node);
        self.laws.died(node);
        Ok(true)
    }

    fn start(&mut self, node: usize) -> Result<bool, Broken> {
        if self.machines.get(node).is_none_or(|machine| machine.is_up) {
            return Ok(false);
        }
        self.machines[node].is_up = true;
        self.set_up(node);
        if !self.machines[node].was_primary {
            return Ok(true);
        }
        let disk = self.machines[node].disk.clone();
        let history = disk.as_ref().map(|disk| disk.history().clone()).unwrap_or_default();
        let is_alone = self.is_alone(node);
        let reign = self.laws.restart(node, disk.as_deref(), history, self.us, is_alone);
        self.act(node, |server| {
            server.set_role(true, reign);
            if let Some(snapshot) = &disk {
                server.load(snapshot, Some(reign));
            }
        })?;
        Ok(true)
    }
}
