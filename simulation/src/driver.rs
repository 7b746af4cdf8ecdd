//! Chooses the next step, by a seed: any step is possible at any time, but steps that lead
//! somewhere are more likely.

use fastrand::Rng;

use crate::command::{Ask, Command, Patience};
use crate::fault::Fault;
use crate::network::LinkState;
use crate::several::{AskAll, KEYS, Keys, Want};
use crate::step::{Node, Step, Who};
pub use crate::world::Setting;
use crate::world::{STEP_US, World};

/// If a grace period is set, it is longer than any lease.
const GRACE_MS: u32 = 3000;
/// Owners' names.
const OWNERS: u8 = 4;

/// The properties of one world, and what happens to it.
#[derive(Clone, Debug)]
pub struct Course {
    rng: Rng,
    /// The world.
    pub setting: Setting,
    /// Whether strangers change keys.
    has_strangers: bool,
    /// Whether servers die and replicas are promoted.
    has_failover: bool,
    /// Clocks are stepped.
    has_clock_steps: bool,
    /// Whether servers refuse writes now and then.
    has_gates: bool,
    /// Users lose their rights.
    has_denials: bool,
    /// How many requests in ten have ACKS.
    acks: u8,
    /// Whether clients request several locks.
    has_several: bool,
    /// How many requests in ten that may have a late reply ask for a message.
    tells: u8,
    /// Whether clients use transactions and scripts.
    has_longer: bool,
}

impl Course {
    /// The course of a seed.
    pub fn of(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes = *rng.choice(&[1, 2, 2, 3, 3, 3, 4, 4]).unwrap();
        let clients = rng.u8(2..6);
        let clocks_differ = rng.u8(0..10) < 4;
        let clocks_ms = (0..nodes).map(|_| if clocks_differ { rng.i32(-2500..2500) } else { 0 });
        let clocks_ms = clocks_ms.collect();
        let replies = [(true, false), (false, true), (false, false)];
        let (replaces_replies, replies_at_once) = *rng.choice(&replies).unwrap();
        let setting = Setting {
            nodes,
            clients,
            clocks_ms,
            replaces_replies,
            replies_at_once,
            loads_before_flush: rng.bool(),
            grace_ms: 0,
            max_tells: 1000,
            max_tell_ms: 3_600_000,
            step_us: STEP_US,
            fault,
        };
        let acks = *rng.choice(&[0, 1, 4, 7, 10]).unwrap();
        let grace_ms = if rng.u8(0..6) == 0 { GRACE_MS } else { 0 };
        let max_tells = if rng.u8(0..8) == 0 { 2 } else { 1000 };
        let max_tell_ms = if rng.u8(0..4) == 0 { 1000 } else { 3_600_000 };
        let setting = Setting { grace_ms, max_tells, max_tell_ms, ..setting };
        let has_clock_steps = clocks_differ && rng.bool();
        let [has_strangers, has_failover, has_gates, has_denials] =
            [5, 7, 5, 2].map(|of| rng.u8(0..10) < of);
        let has_several = rng.u8(0..10) < 4;
        let tells = *rng.choice(&[0, 4, 6, 9]).unwrap();
        let has_longer = rng.u8(0..10) < 3;
        Self {
            rng,
            setting,
            has_strangers,
            has_failover,
            has_clock_steps,
            has_gates,
            has_denials,
            acks,
            has_several,
            tells,
            has_longer,
        }
    }

    /// What happens next.
    pub fn next(&mut self, world: &World) -> Step {
        let nodes = world.machines.len() as u8;
        let node = self.rng.u8(0..nodes);
        let who = self.somebody(world);
        // A round trip to a replica takes many steps.
        if self.acks > 0 && self.rng.u8(0..5) < 2 {
            let next = match self.rng.u8(0..96) {
                0..2 => self.mends(world, node),
                2 if self.has_failover => Some(Step::Cut(node)),
                3..30 => Some(Step::Turn(self.leader(world), 255)),
                _ => self.network(world),
            };
            return next.unwrap_or_else(|| self.by_client(world, who));
        }
        match self.rng.u16(0..1000) {
            0..420 => self.by_client(world, who),
            420..600 => {
                Step::Turn(self.leader(world), *self.rng.choice(&[1, 2, 255, 255]).unwrap())
            }
            600..620 => Step::Turn(node, 255),
            620..780 => self.network(world).unwrap_or(Step::Deliver(node)),
            780..790 => Step::Ack(node),
            790..850 => self.network(world).unwrap_or(Step::HearAck(node)),
            850..870 => Step::Pass(self.time()),
            870..900 if self.acks < 4 => Step::Pass(self.time()),
            900..915 => Step::HangUp(who),
            915..940 => Step::Notice(who),
            940..946 => Step::ReadLate(who),
            946..950 => Step::CutOff(who),
            950..956 => Step::Unblock(who, self.rng.bool()),
            956..959 if self.has_denials => Step::Allow(who, self.rng.u8(0..3) > 0),
            959 if self.has_denials => Step::Channels(who, self.rng.u8(0..3) > 0),
            960..966 => Step::Expire(node),
            966..967 if self.has_strangers => Step::Evict(node, self.rng.u8(0..KEYS)),
            967..970 => Step::Save(node),
            970..980 if self.has_gates => self.gate(node),
            980..983 if self.has_clock_steps => Step::Clock(node, self.rng.i32(-1500..1500)),
            983.. if self.has_failover => self.failover(world, node),
            _ => Step::Turn(self.leader(world), 255),
        }
    }

    fn time(&mut self) -> u32 {
        match self.rng.u8(0..20) {
            0..8 => self.rng.u32(1..2000),
            8..15 => self.rng.u32(1000..60_000),
            15..19 => self.rng.u32(50_000..700_000),
            _ => self.rng.u32(500_000..4_000_000),
        }
    }

    /// A client; one that waits for a reply is chosen less often.
    fn somebody(&mut self, world: &World) -> Who {
        let all = world.actors.len() as u8;
        let is_stuck = |who: Who| {
            let pipe = world.actors[usize::from(who)].pipe.as_ref();
            pipe.is_some_and(|pipe| {
                let server = &world.machines[pipe.node].server;
                pipe.from.is_empty() && pipe.unanswered() > 1 && !server.reads(pipe.client)
            })
        };
        let mut some = (0..3).map(|_| self.rng.u8(0..all)).collect::<Vec<_>>().into_iter();
        some.find(|who| !is_stuck(*who)).unwrap_or_else(|| self.rng.u8(0..all))
    }

    /// The primary that began last.
    fn leader(&mut self, world: &World) -> Node {
        let all = world.machines.iter().enumerate();
        let leads = all.filter(|(_, machine)| machine.is_up && machine.server.is_primary);
        let last = leads.max_by_key(|(_, machine)| machine.server.history.point().reign);
        let any = self.rng.u8(0..world.machines.len() as u8);
        let is_other = self.rng.u8(0..12) == 0;
        last.map(|(at, _)| at as Node).filter(|_| !is_other).unwrap_or(any)
    }

    /// A server with broken replication replicates again.
    fn mends(&mut self, world: &World, node: Node) -> Option<Step> {
        let machine = &world.machines[usize::from(node)];
        let leader = self.leader(world);
        match &machine.link {
            _ if !self.has_failover => None,
            _ if !machine.is_up => Some(Step::Start(node)),
            _ if machine.server.is_primary => None,
            Some(link) => match link.state {
                LinkState::Up => None,
                LinkState::Cut | LinkState::Offline => Some(Step::Heal(node)),
                LinkState::Ending => Some(Step::Follow(node, leader)),
            },
            None => Some(Step::Follow(node, leader)),
        }
    }

    /// Something arrives: a part of the stream, or an acknowledgment.
    fn network(&mut self, world: &World) -> Option<Step> {
        let mut all: Vec<Step> = Vec::new();
        for (at, machine) in world.machines.iter().enumerate() {
            let Some(link) = &machine.link else { continue };
            let arrives = matches!(link.state, LinkState::Up | LinkState::Ending);
            if arrives && (link.sync.is_some() || !link.queue.is_empty()) {
                all.push(Step::Deliver(at as Node));
            }
            if link.state == LinkState::Up && !link.acks.is_empty() {
                all.push(Step::HearAck(at as Node));
            }
        }
        self.rng.choice(all)
    }

    fn gate(&mut self, node: Node) -> Step {
        match self.rng.u8(0..10) {
            0..3 => Step::Pause(node, self.rng.u32(1..1500)),
            3 => Step::Disk(node, true),
            4..6 => Step::Disk(node, false),
            6 => Step::MinReplicas(node, 1),
            _ => Step::MinReplicas(node, 0),
        }
    }

    fn failover(&mut self, world: &World, node: Node) -> Step {
        let leader = self.leader(world);
        let is_led = world.machines[usize::from(leader)].server.is_primary;
        match self.rng.u8(0..34) {
            0..2 => Step::Kill(leader, self.rng.u8(0..4)),
            2 => Step::Kill(node, self.rng.u8(0..4)),
            3..8 => Step::Start(node),
            8..10 => Step::Promote(node),
            10..16 if !is_led => Step::Promote(node),
            16..19 => Step::Cut(node),
            19..21 => Step::Offline(node),
            21..26 => Step::Heal(node),
            26..30 => Step::Follow(node, leader),
            _ => Step::Pass(self.time()),
        }
    }

    fn by_client(&mut self, world: &World, who: Who) -> Step {
        let actor = &world.actors[usize::from(who)];
        let Some(pipe) = &actor.pipe else { return Step::Connect(who, self.leader(world)) };
        let machine = &world.machines[pipe.node];
        let has_words = !pipe.to.is_empty() && machine.is_up && machine.server.reads(pipe.client);
        match self.rng.u8(0..10) {
            0..4 if !pipe.from.is_empty() => Step::Hear(who),
            0..8 if has_words => Step::Read(who),
            _ if !pipe.from.is_empty() => Step::Hear(who),
            _ if pipe.unanswered() < 2 => self.sends(world, who),
            8 => self.sends(world, who),
            _ => Step::Pass(self.rng.u32(1..3000)),
        }
    }

    /// Something that a client sends: a command, or a subscription for the message to a later
    /// command.
    fn sends(&mut self, world: &World, who: Who) -> Step {
        let actor = &world.actors[usize::from(who)];
        let pipe = actor.pipe.as_ref().filter(|_| self.tells > 0);
        let Some(pipe) = pipe else { return self.sends_plain(world, who) };
        if pipe.is_in_multi() {
            return match self.rng.u8(0..3) {
                0 => Step::Send(who, Command::Exec(self.rng.bool())),
                _ => self.sends_plain(world, who),
            };
        }
        let is_often = self.rng.u8(0..3) > 0;
        match self.rng.u8(0..100) {
            0..4 if self.has_longer => Step::Send(who, Command::Multi),
            4..7 => Step::Send(who, Command::Unsubscribe(who)),
            7 => Step::Send(who, Command::Subscribe(self.channel(world, who))),
            _ if is_often && !pipe.listens(who) => Step::Send(who, Command::Subscribe(who)),
            8..25 => self.asks_again(world, who),
            _ => self.sends_plain(world, who),
        }
    }

    /// A client sends the same request again, or nearly the same.
    fn asks_again(&mut self, world: &World, who: Who) -> Step {
        let open: Vec<Command> =
            world.actors[usize::from(who)].open().map(|sent| sent.command).collect();
        let Some(mut command) = self.rng.choice(open) else { return self.sends_plain(world, who) };
        if self.rng.u8(0..4) == 0 {
            let (lease, acks) = (1000 + self.lease(), self.acks(world, who));
            match &mut command {
                Command::Acquire(ask) if matches!(ask.patience, Patience::Queue(_)) => {}
                Command::Acquire(ask) => (ask.lease, ask.acks) = (lease, acks),
                Command::AcquireAll(ask) => (ask.lease, ask.acks) = (lease, acks),
                Command::Renew(_, _, ms, ..) | Command::RenewAll(_, _, ms, ..) => *ms = lease,
                _ => {}
            }
        }
        match self.rng.u8(0..12) {
            0 => Step::Send(who, command),
            _ if !command.may_be_told() => Step::Send(who, command),
            _ => Step::Tell(who, command, self.channel(world, who)),
        }
    }

    /// A client's own channel, or rarely that of another client.
    fn channel(&mut self, world: &World, who: Who) -> u8 {
        let all = world.actors.len() as u8;
        if self.rng.u8(0..10) == 0 { self.rng.u8(0..all) } else { who }
    }

    fn sends_plain(&mut self, world: &World, who: Who) -> Step {
        let command = self.command(world, who);
        match command.may_be_told() && self.rng.u8(0..10) < self.tells {
            true => Step::Tell(who, command, self.channel(world, who)),
            false => Step::Send(who, command),
        }
    }

    fn command(&mut self, world: &World, who: Who) -> Command {
        let key = if self.has_several { self.rng.u8(0..6) / 2 } else { self.rng.u8(0..5) / 3 };
        let acks = self.acks(world, who);
        let owner = if self.rng.u8(0..10) == 0 { self.rng.u8(0..OWNERS) } else { who % OWNERS };
        if self.has_several && self.rng.u8(0..10) < 4 {
            return self.several(owner, acks);
        }
        match self.rng.u16(0..1000) {
            0..520 => Command::Acquire(self.ask(owner, key, acks)),
            520..560 => Command::Await(
                key,
                *self.rng.choice(&[None, Some(0), Some(40), Some(2000)]).unwrap(),
            ),
            560..760 => Command::Release(owner, key, self.rng.u8(0..4) == 0),
            760..860 => self.renew(owner, key, acks),
            860..890 => Command::Cancel(owner, key),
            890..896 => Command::Force(key),
            896..900 => Command::Take(owner, key, self.lease(), acks),
            _ if !self.has_strangers => Command::Acquire(self.ask(owner, key, acks)),
            900..915 => Command::Del(key),
            915..920 => Command::Set(key),
            920..935 => Command::Rename(key, (key + 1) % KEYS),
            935..940 => Command::Move(key, self.rng.u8(0..2)),
            940..960 => Command::Expire(key, self.lease()),
            960..965 => Command::Persist(key),
            965..970 => Command::FlushDb,
            970..973 => Command::FlushAll,
            973..976 => Command::Swap,
            976..980 => Command::Select(1),
            _ => Command::Select(0),
        }
    }

    fn several(&mut self, owner: u8, acks: u8) -> Command {
        let bits = *self.rng.choice(&[0b011, 0b101, 0b110, 0b111, 0b111, 0b001, 0b100]).unwrap();
        let keys = Keys { bits, is_reversed: self.rng.bool() };
        match self.rng.u8(0..10) {
            0..6 => Command::AcquireAll(self.ask_all(owner, keys, acks)),
            6..9 => Command::ReleaseAll(owner, keys, self.rng.bool()),
            _ => Command::RenewAll(owner, keys, self.lease(), self.rng.bool(), acks),
        }
    }

    fn ask_all(&mut self, owner: u8, keys: Keys, acks: u8) -> AskAll {
        let all = match self.rng.u8(0..6) {
            0..3 => Some(Want::Write),
            3 => Some(Want::Read),
            _ => None,
        };
        let limit = Want::Limit(self.rng.u8(1..3));
        let some = [Want::Write, Want::Read, limit];
        let wants = [(); 3].map(|()| all.unwrap_or_else(|| *self.rng.choice(&some).unwrap()));
        let patience = match self.rng.u8(0..10) {
            0..3 => Patience::None,
            _ => Patience::Block(*self.rng.choice(&[0, 2, 40, 500, 2000]).unwrap()),
        };
        let session = self.rng.u8(0..5) == 0;
        let is_long = session || acks > 0;
        let lease = if is_long { 1000 + self.lease() } else { self.lease() };
        AskAll { owner, keys, wants, lease, patience, session, with_ttl: self.rng.bool(), acks }
    }

    fn renew(&mut self, owner: u8, key: u8, acks: u8) -> Command {
        let reads = match self.rng.u8(0..5) {
            0 => None,
            1 => Some(true),
            _ => Some(false),
        };
        Command::Renew(owner, key, self.lease(), reads, acks)
    }

    /// How many replicas must acknowledge: rarely more than there are.
    fn acks(&mut self, world: &World, who: Who) -> u8 {
        let pipe = world.actors[usize::from(who)].pipe.as_ref();
        let replicas = pipe.map_or(0, |pipe| world.machines[pipe.node].server.replicas.len());
        let may = match self.rng.u8(0..10) {
            0 => 2,
            _ => replicas.min(2) as u8,
        };
        if self.rng.u8(0..10) < self.acks { self.rng.u8(may.min(1)..=may) } else { 0 }
    }

    fn lease(&mut self) -> u32 {
        if self.setting.grace_ms > 0 {
            return *self.rng.choice(&[50, 300, 700, 1000]).unwrap();
        }
        *self.rng.choice(&[1, 5, 50, 300, 1000, 3000, 5000, 5000]).unwrap()
    }

    fn ask(&mut self, owner: u8, key: u8, acks: u8) -> Ask {
        let session = self.rng.u8(0..5) == 0;
        let patience = match self.rng.u8(0..10) {
            0..3 => Patience::None,
            3..8 if acks > 0 => Patience::Block(*self.rng.choice(&[0, 40, 500, 2000]).unwrap()),
            3..8 => Patience::Block(*self.rng.choice(&[0, 2, 40, 500, 2000]).unwrap()),
            _ if self.setting.grace_ms > 0 => Patience::Queue(300),
            _ => Patience::Queue(*self.rng.choice(&[5, 300, 2000]).unwrap()),
        };
        let reads = self.rng.u8(0..5) < 2;
        let upgrade = self.rng.u8(0..8) == 0;
        let may_limit = reads && !upgrade && self.rng.u8(0..4) == 0;
        let depth = match self.rng.u8(0..4) {
            0 => Some(1),
            1 => Some(self.rng.u16(1..4)),
            _ => None,
        };
        Ask {
            owner,
            key,
            reads,
            lease: if session || acks > 0 { 1000 + self.lease() } else { self.lease() },
            patience,
            session,
            depth,
            upgrade,
            with_ttl: self.rng.u8(0..4) == 0,
            limit: may_limit.then(|| self.rng.u8(1..4)),
            // A ticket cannot wait for acknowledgments.
            acks: if matches!(patience, Patience::Queue(_)) { 0 } else { acks },
        }
    }
}
