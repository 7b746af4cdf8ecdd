//! What the stories share.

use rlock_simulation::command::{Ask, Patience};
use rlock_simulation::fault::Fault;
use rlock_simulation::seen::Seen;
use rlock_simulation::several::{AskAll, Keys, Want};
use rlock_simulation::step::Step;
use rlock_simulation::world::{STEP_US, Setting, World};

/// The first server runs its loop, with everything that is due.
pub const TURN: Step = Step::Turn(0, 255);

/// A request for WRITE of `k0` that does not wait, with a lease of six seconds.
pub fn plain(owner: u8) -> Ask {
    Ask {
        owner,
        key: 0,
        reads: false,
        lease: 6000,
        patience: Patience::None,
        session: false,
        depth: None,
        upgrade: false,
        with_ttl: false,
        limit: None,
        acks: 0,
    }
}

/// A request for WRITE of these locks, blocked forever.
pub fn all(owner: u8, bits: u8) -> AskAll {
    AskAll {
        owner,
        keys: Keys { bits, is_reversed: false },
        wants: [Want::Write; 3],
        lease: 6000,
        patience: Patience::Block(0),
        session: false,
        with_ttl: false,
        acks: 0,
    }
}

/// This many servers, of which the first is a primary, and three clients: checks that all steps are
/// possible, and that no law breaks.
#[track_caller]
pub fn plays(nodes: u8, steps: &[Step]) {
    plays_among(nodes, 3, steps);
}

/// The same with this many clients. Returns the counted events.
#[track_caller]
pub fn plays_among(nodes: u8, clients: u8, steps: &[Step]) -> Seen {
    let mut world = World::new(&setting(nodes, clients, Fault::None));
    for step in steps {
        match world.step(*step) {
            Ok(happened) => assert!(happened, "{step}: it did not happen"),
            Err(broken) => panic!("{step}\n=> {broken}"),
        }
    }
    world.laws.seen.clone()
}

/// The law that breaks with this planted fault.
pub fn breaks(fault: Fault, nodes: u8, steps: &[Step]) -> Option<&'static str> {
    let mut world = World::new(&setting(nodes, 3, fault));
    steps.iter().find_map(|step| world.step(*step).err()).map(|broken| broken.law)
}

fn setting(nodes: u8, clients: u8, fault: Fault) -> Setting {
    Setting {
        nodes,
        clients,
        replaces_replies: false,
        replies_at_once: false,
        loads_before_flush: false,
        grace_ms: 0,
        max_tells: 1000,
        max_tell_ms: 3_600_000,
        clocks_ms: vec![0; nodes.into()],
        step_us: STEP_US,
        fault,
    }
}
