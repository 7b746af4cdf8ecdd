//! Every state of a small scope, by stateright: a primary and two replicas, two locks, three
//! owners, promotion. Each client waits for its reply, and each server runs its loop at once. The
//! remaining choices are who asks for what, what each replica has received, who dies, and who is
//! promoted.

use std::hash::{Hash, Hasher};

use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::fault::Fault;
use rlock_simulation::laws::Broken;
use rlock_simulation::seen::Kind;
use rlock_simulation::step::Step;
use rlock_simulation::world::{Setting, World};
use stateright::{Checker, Model, Property};

const CLIENTS: u8 = 3;
const NODES: u8 = 3;
/// Steps on the way to a state.
const DEPTH: usize = 4;

/// What can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Deed {
    /// A client asks, and its server answers.
    Ask(u8, Command),
    /// A replica receives everything that its primary sent.
    CatchUp(u8),
    /// The primary dies, and with it what it has not sent; this replica is promoted, and the
    /// clients connect to it.
    FailOver(u8),
    /// A replica is promoted while the old primary continues; this client switches to the replica.
    Split(u8, u8),
    /// A second passes.
    Pass,
}

/// The steps to a state, from which the state is rebuilt.
#[derive(Clone, Debug)]
struct State {
    way: Vec<Deed>,
    fingerprint: u64,
    broken: Option<String>,
    lost_grant: bool,
    partition: bool,
    waited: bool,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, to: &mut H) {
        self.fingerprint.hash(to);
    }
}

struct Small {
    depth: usize,
    fault: Fault,
}

fn command(owner: u8, key: u8, reads: bool, waits: bool) -> Command {
    let patience = if waits { Patience::Block(0) } else { Patience::None };
    let (lease, depth, with_ttl) = (2000, Some(1), false);
    let (session, upgrade, limit, acks) = (false, false, None, 0);
    Command::Acquire(Ask {
        owner,
        key,
        reads,
        lease,
        patience,
        session,
        depth,
        upgrade,
        with_ttl,
        limit,
        acks,
    })
}

impl Small {
    fn world(&self) -> World {
        let setting = Setting {
            nodes: NODES,
            clients: CLIENTS,
            replaces_replies: false,
            replies_at_once: false,
            loads_before_flush: false,
            grace_ms: 0,
            max_tells: 1000,
            max_tell_ms: 3_600_000,
            clocks_ms: vec![0; usize::from(NODES)],
            // Otherwise, many states would differ only in the time of day.
            step_us: 0,
            fault: self.fault,
        };
        let mut world = World::new(&setting);
        for who in 0..CLIENTS {
            world.step(Step::Connect(who, 0)).unwrap();
        }
        for node in 1..NODES {
            world.step(Step::Deliver(node)).unwrap();
        }
        world
    }

    fn state(&self, way: Vec<Deed>) -> Option<State> {
        let mut world = self.world();
        let mut broken = None;
        let count = way.len();
        for (at, deed) in way.iter().enumerate() {
            match carry_out(&mut world, *deed) {
                Ok(true) => {}
                Ok(false) if at + 1 == count => return None,
                Ok(false) => panic!("{deed:?} was possible before"),
                Err(why) => broken = Some(why.to_string()),
            }
        }
        let seen = |kind| world.laws.seen.of(kind) > 0;
        let (lost_grant, partition) = (seen(Kind::LostGrant), seen(Kind::Partition));
        let waited = seen(Kind::Waited);
        let fingerprint = world.fingerprint();
        Some(State { way, fingerprint, broken, lost_grant, partition, waited })
    }
}

fn carry_out(world: &mut World, deed: Deed) -> Result<bool, Broken> {
    let is_done = match deed {
        Deed::Ask(who, command) => {
            let pipe = world.actors[usize::from(who)].pipe.as_ref();
            // A client that is blocked asks for nothing.
            if pipe.is_none_or(|pipe| pipe.unanswered() > 0) {
                return Ok(false);
            }
            world.step(Step::Send(who, command))? && world.step(Step::Read(who))?
        }
        Deed::CatchUp(node) => {
            let has_predecessor = world.step(Step::Deliver(node))?;
            while world.step(Step::Deliver(node))? {}
            has_predecessor
        }
        Deed::FailOver(node) => fail_over(world, node)?,
        Deed::Split(node, who) => {
            world.step(Step::Pass(1000))?;
            let is_promoted = world.step(Step::Promote(node))?;
            world.step(Step::HangUp(who))?;
            is_promoted && world.step(Step::Connect(who, node))?
        }
        Deed::Pass => world.step(Step::Pass(1_000_000))?,
    };
    for node in 0..NODES {
        for _ in 0..3 {
            world.step(Step::Turn(node, 255))?;
        }
    }
    for who in 0..CLIENTS {
        while world.step(Step::Hear(who))? {}
    }
    Ok(is_done)
}

fn fail_over(world: &mut World, node: u8) -> Result<bool, Broken> {
    let primary = (0..NODES).find(|at| world.machines[usize::from(*at)].server.is_primary);
    let Some(primary) = primary.filter(|primary| *primary != node) else { return Ok(false) };
    if !world.step(Step::Kill(primary, 0))? {
        return Ok(false);
    }
    world.step(Step::Pass(1000))?;
    if !world.step(Step::Promote(node))? {
        return Ok(false);
    }
    for who in 0..CLIENTS {
        while world.step(Step::Hear(who))? {}
        world.step(Step::Connect(who, node))?;
    }
    for other in (0..NODES).filter(|other| *other != node) {
        world.step(Step::Follow(other, node))?;
    }
    Ok(true)
}

impl Model for Small {
    type State = State;
    type Action = Deed;

    fn init_states(&self) -> Vec<State> {
        self.state(Vec::new()).into_iter().collect()
    }

    fn actions(&self, state: &State, to: &mut Vec<Deed>) {
        if state.broken.is_some() || state.way.len() >= self.depth {
            return;
        }
        for who in 0..CLIENTS {
            let commands = [
                command(who, 0, false, true),
                command(who, 0, true, true),
                command(who, 1, false, true),
                Command::Release(who, 0, true),
                Command::Release(who, 1, true),
            ];
            to.extend(commands.map(|command| Deed::Ask(who, command)));
        }
        for node in 0..NODES {
            to.extend([Deed::CatchUp(node), Deed::FailOver(node), Deed::Split(node, 0)]);
        }
        to.push(Deed::Pass);
    }

    fn next_state(&self, state: &State, deed: Deed) -> Option<State> {
        let mut way = state.way.clone();
        way.push(deed);
        self.state(way)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the laws hold", |_, state: &State| state.broken.is_none()),
            Property::sometimes("a grant is lost", |_, state: &State| state.lost_grant),
            Property::sometimes("two primaries grant", |_, state: &State| state.partition),
            Property::sometimes("somebody waits", |_, state: &State| state.waited),
        ]
    }
}

fn depth() -> usize {
    std::env::var("RLOCK_DEPTH").map_or(DEPTH, |text| text.parse().unwrap())
}

/// `RLOCK_DEPTH` looks farther.
#[test]
fn every_state_of_a_small_scope_keeps_the_laws() {
    let small = Small { depth: depth(), fault: Fault::None };
    let checker = small.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} transitions", checker.unique_state_count(), checker.state_count());
    checker.assert_properties();
}

#[test]
fn a_planted_fault_is_found_in_a_small_scope() {
    for fault in [Fault::RenewedOnReplica, Fault::AlarmForgotten] {
        let checker = Small { depth: DEPTH, fault }.checker().threads(2).spawn_bfs().join();
        assert!(checker.discovery("the laws hold").is_some(), "{fault:?} was not found");
    }
}
