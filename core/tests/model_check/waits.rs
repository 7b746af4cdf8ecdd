//! Who waits for whom, written as naively as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use rlock_core::waits_for::Search;
use rlock_core::{Acquire, Entry, Kind, Mode, Owner, WaiterId};

use super::town::Town;
use crate::support::World;

type Graph = BTreeMap<Owner, BTreeSet<Owner>>;

/// An entry of a queue, in the order in which they are served.
struct Standing {
    owner: Owner,
    mode: Mode,
    limit: u32,
    is_ticket: bool,
}

fn line(world: &World) -> Vec<Standing> {
    let standing = |(entry, _): (&Entry, bool)| Standing {
        owner: entry.owner.clone(),
        mode: entry.mode,
        limit: entry.limit.map_or(0, NonZeroU32::get),
        is_ticket: entry.kind == Kind::Ticket,
    };
    world.volatile.queue.iter().map(standing).collect()
}

/// A blocked owner waits for the holders in its way and for the blocked owners ahead of it, except
/// that a reader does not wait for readers, unless those ahead have a limit. With a limit of one,
/// it waits for everybody, as a writer does. Behind a wait of its own that will make it a re-entry,
/// it waits for what that one waits for. Nobody waits for a ticket.
fn blockers(world: &World, line: &[Standing], place: usize) -> BTreeSet<Owner> {
    let Standing { owner, mode, .. } = &line[place];
    let is_own = |one: &Standing| {
        let makes_re_entry = one.mode == Mode::Write || *mode == Mode::Read;
        !one.is_ticket && one.owner == *owner && makes_re_entry
    };
    let place = line[..place].iter().position(is_own).unwrap_or(place);
    let is_alone = line[place].mode == Mode::Write || line[place].limit == 1;
    let holders =
        world.lock.holds_at(world.now).filter(|(_, mode, _)| is_alone || *mode == Mode::Write);
    let stops = |one: &&Standing| is_alone || one.mode == Mode::Write || one.limit > 0;
    let ahead = line[..place].iter().filter(|one| !one.is_ticket).filter(stops);
    let all = holders.map(|(holder, _, _)| holder).chain(ahead.map(|one| one.owner.as_bytes()));
    all.filter(|other| *other != owner.as_bytes()).map(Owner::from).collect()
}

/// For each parked owner, the owners for whom it waits.
fn graph(town: &Town<'_>) -> Graph {
    let mut graph = Graph::new();
    for world in &town.locks {
        let line = line(world);
        for place in (0..line.len()).filter(|place| !line[*place].is_ticket) {
            let owner = line[place].owner.clone();
            graph.entry(owner).or_default().extend(blockers(world, &line, place));
        }
    }
    graph
}

/// Whether the owner waits for itself, directly or through others.
fn is_in_a_cycle(graph: &Graph, owner: &Owner) -> bool {
    let mut open: Vec<&Owner> = graph.get(owner).into_iter().flatten().collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = open.pop() {
        if seen.insert(next) {
            open.extend(graph.get(next).into_iter().flatten());
        }
    }
    seen.contains(owner)
}

/// The search reports a cycle if the wait, once it has begun, is part of one; and it never reports
/// another one.
pub fn is_true(town: &Town<'_>, lock: usize, ask: &Acquire<'_>, found: &Search<(usize, WaiterId)>) {
    let (mut then, owner) = (town.fork(), Owner::from(ask.owner));
    then.check(false);
    let (_, waiter) = then.locks[lock].park(*ask, None);
    let is_it = |(entry, _): (&Entry, bool)| entry.kind == Kind::Blocked(waiter);
    let world = &then.locks[lock];
    let place = world.volatile.queue.iter().position(is_it).expect("it is parked");
    let mut graph = graph(&then);
    // The question is about this wait, not about those of the owner's other connections.
    graph.insert(owner.clone(), blockers(world, &line(world), place));
    // If nobody waits for the owner, the search is left out.
    let is_crowded = |world: &&World| world.volatile.queue.blocked_count() > 0;
    let is_left_out = town
        .locks
        .iter()
        .filter(is_crowded)
        .all(|world| world.lock.nobody_waits_for(&world.volatile, ask.owner, world.now));
    assert!(!is_left_out || !is_in_a_cycle(&graph, &owner), "{owner:?} closes a cycle by {ask:?}");
    match found {
        Search::Cycle(cycle) => {
            let owners: Vec<Owner> = cycle.iter().map(|(owner, _)| owner.clone()).collect();
            let nexts = owners.iter().skip(1).chain(&owners[..1]);
            for (one, next) in owners.iter().zip(nexts) {
                let waits = graph.get(one).is_some_and(|blockers| blockers.contains(next));
                assert!(waits, "{one:?} does not wait for {next:?}: {owners:?} is no cycle");
            }
        }
        Search::NoCycle => {
            let closes = is_in_a_cycle(&graph, &owner);
            assert!(!closes, "{owner:?} closes a cycle by {ask:?}: {graph:?}");
        }
        Search::GaveUp => panic!("a small town is looked through"),
    }
}

/// If a parked owner does nothing else, no cycle comes about that the search did not see.
pub fn no_cycle_came_to_be(town: &Town<'_>) {
    if !town.profile.one_thing_at_a_time {
        return;
    }
    let graph = graph(town);
    for owner in graph.keys() {
        assert!(!is_in_a_cycle(&graph, owner), "{owner:?} waits for itself: {graph:?}");
    }
}
