//! The reports of steps at several keys, which are published and sent when all steps are done.

use rlock_core::manager::LockId;
use rlock_core::{Effects, Event, Owner, WaiterId, Wake};
use smallvec::SmallVec;

use crate::host::Host;
use crate::{acks, answers, publish, unit};

/// What a step did at one key and has not published yet, and the connections that get a reply.
#[derive(Debug)]
pub(crate) struct Report {
    id: LockId,
    has_changed: bool,
    events: SmallVec<[Event; 4]>,
    turns: Vec<Owner>,
    awaits_acks: bool,
    wakes: Vec<Wake>,
}

impl Report {
    /// The report of a step.
    pub(crate) fn of_step(id: LockId, effects: Effects<'_>) -> Self {
        let Effects { changes, events, turns, awaits_acks, wakes, .. } = effects;
        Self { id, has_changed: !changes.is_empty(), events, turns, awaits_acks, wakes }
    }

    /// The report of a plain request.
    pub(crate) fn of_event(id: LockId, event: Option<Event>) -> Self {
        let (events, turns) = (event.into_iter().collect(), Vec::new());
        Self { id, has_changed: true, events, turns, awaits_acks: false, wakes: Vec::new() }
    }

    /// A reply to a connection, and nothing else.
    pub(crate) fn of_answer(id: LockId, wake: Wake) -> Self {
        Self { wakes: vec![wake], ..Self::of_step(id, Effects::default()) }
    }

    /// Nobody hears of it.
    pub(crate) fn is_silent(&self) -> bool {
        let Self { has_changed, events, turns, awaits_acks, wakes, .. } = self;
        !has_changed && !awaits_acks && events.is_empty() && turns.is_empty() && wakes.is_empty()
    }

    /// The amount of work of the step: at least 1.
    pub(crate) fn size(&self) -> usize {
        let all = [self.events.len(), self.turns.len(), self.wakes.len()];
        all.into_iter().fold(1, usize::saturating_add)
    }
}

/// Publishes the events.
pub(crate) fn publish<H: Host>(host: &H, all: &[Report]) {
    for one in all.iter().filter(|one| one.has_changed || !one.events.is_empty()) {
        host.with_name(&one.id, |name| {
            unit::publish_events(host, name, one.has_changed, &one.events);
        });
    }
}

/// Publishes turns, and replies to blocked connections; to the one that this command blocked, when
/// the command has ended.
pub(crate) fn answer<H: Host>(host: &H, all: Vec<Report>, parked: Option<WaiterId>) {
    let mut wakes = Vec::new();
    for one in all {
        for owner in &one.turns {
            host.with_name(&one.id, |name| publish::turn(host, name, owner.as_bytes()));
        }
        if one.awaits_acks {
            acks::watch(host);
        }
        wakes.extend(one.wakes);
    }
    let due = host.state(|state| state.manager.take_answers());
    answers::send_of_step(host, wakes, parked);
    answers::send(host, due, parked);
}

/// Publishes what changed, then continues as [`answer`].
pub(crate) fn deliver<H: Host>(host: &H, all: Vec<Report>, parked: Option<WaiterId>) {
    publish(host, &all);
    answer(host, all, parked);
}
