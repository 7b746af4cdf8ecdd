//! Several locks, open at one moment: all are examined, then all are changed and replicated, before
//! anything is reported.

mod decisions;

use rlock_core::grammar::{Access, Want};
use rlock_core::manager::{At, Bounds, Decided, LockId};
use rlock_core::{Input, Lock, Now, OpenLock, OpenLocks, Refusal, Reply, Token};

use crate::happening::Done;
use crate::host::{Content, Host, KeyName, OpenKey};
use crate::planted::PlantedFault;
use crate::reports::{self, Report};
use crate::state::State;
use crate::timers;
use crate::unit::{self, RequestError};
use crate::unsaved::{self, Unsaved};

use decisions::{Decision, Decisions, ToPublish};

/// Several locks of one database, open, in key order.
pub(crate) struct OpenKeys<'h, 'n, 'm, 'a, H: Host> {
    host: &'h H,
    names: &'n [H::Name<'m>],
    wants: &'n [Want<&'a [u8]>],
    keys: Vec<Unsaved<H::Key<'h>>>,
    db: i32,
    bounds: Bounds,
    /// One time for all locks, so that the judgment is still true when the locks are acquired.
    now: Now,
    /// The decisions whose events must still be published.
    decisions: Decisions<'a>,
    /// What this command did earlier, at other locks.
    before: Vec<Report>,
}

impl<H: Host> Drop for OpenKeys<'_, '_, '_, '_, H> {
    /// Whatever was decided is replicated, even if the rest of the step is refused.
    fn drop(&mut self) {
        self.host.state(|state| state.manager.several_change(false));
        self.send();
        unsaved::save(std::mem::take(&mut self.keys));
    }
}

impl<'h, 'n, 'm, 'a, H: Host> OpenKeys<'h, 'n, 'm, 'a, H> {
    /// Opens them for writing.
    pub(crate) fn open(
        host: &'h H,
        names: &'n [H::Name<'m>],
        wants: &'n [Want<&'a [u8]>],
    ) -> Result<Self, RequestError> {
        if !host.state(|state| state.manager.is_primary()) {
            return Err(RequestError::ReadOnly);
        }
        let named = || wants.iter().filter_map(|want| names.get(want.number));
        let open = |name| Unsaved::from(host.open(name, Access::Writes));
        let mut keys: Vec<Unsaved<H::Key<'h>>> = unit::open(host, || named().map(open).collect());
        if keys.iter_mut().any(|key| matches!(key.content(), Content::Other)) {
            return Err(RequestError::WrongType);
        }
        let (db, now, bounds) = (host.db(), host.now(), host.settings().bounds);
        host.state(|state| state.manager.several_change(true));
        Ok(Self {
            host,
            names,
            wants,
            keys,
            db,
            bounds,
            now,
            decisions: Decisions::new(wants.len(), host.state(State::take_effect)),
            before: Vec::new(),
        })
    }

    /// Adds what this command did earlier, to be reported with the rest.
    pub(crate) fn tell_also(&mut self, before: Vec<Report>) {
        self.before = before;
    }

    pub(crate) fn at(&self, place: usize) -> At<'n> {
        At { db: self.db, key: self.name_of(place).map_or(&[], KeyName::bytes), now: self.now }
    }

    /// Replicates the decisions.
    pub(crate) fn send(&mut self) {
        let (names, wants) = (self.names, self.wants);
        self.decisions.send(self.host, self.db, self.now, |place| name_of(names, wants, place));
    }

    fn name_of(&self, place: usize) -> Option<&'n H::Name<'m>> {
        name_of(self.names, self.wants, place)
    }

    /// Closes the keys, then publishes what was done, then replies to the caller (`say`), then to
    /// the waiters. `others` returns what followed, given one of the keys, at other locks.
    pub(crate) fn finish(
        mut self,
        others: impl FnOnce(&H, &[u8]) -> Vec<Report>,
        say: impl FnOnce(&H),
    ) {
        let (host, decisions) = (self.host, self.close());
        let is_fast = |one: &Decision<'_>| matches!(one.done, ToPublish::Fast(_));
        let is_plain = self.before.is_empty() && decisions.iter().all(is_fast);
        let others = if is_plain { Vec::new() } else { others(host, self.at(0).key) };
        let before = std::mem::take(&mut self.before);
        for Decision { place, done, .. } in &decisions {
            let Some(name) = self.name_of(*place) else { continue };
            let Done { changes, events, .. } = done.parts();
            unit::publish_events(host, name, !changes.is_empty(), events);
        }
        // A plain request leaves no work for later, so the timers stay as they are.
        if is_plain {
            return say(host);
        }
        let others: Vec<Report> = before.into_iter().chain(others).collect();
        reports::publish(host, &others);
        say(host);
        for Decision { place, done, .. } in decisions {
            if let (Some(name), ToPublish::Step(mut effects)) = (self.name_of(place), done) {
                unit::answer(host, name, &mut effects, None);
            }
        }
        reports::answer(host, others, None);
        if host.state(|state| state.manager.expects_keys()) {
            host.watch_new_keys();
        }
        timers::settle_command(host);
    }

    /// Closes the keys. Returns what was done, to be reported together with its cause.
    pub(crate) fn into_reports(mut self) -> Vec<Report> {
        let (db, wants) = (self.db, self.wants);
        let told = self.close().into_iter().filter_map(|Decision { place, done, .. }| {
            let id = LockId { db, key: wants.get(place)?.key.into() };
            Some(match done {
                ToPublish::Fast(step) => Report::of_event(id, step.event),
                ToPublish::Step(effects) => Report::of_step(id, *effects),
            })
        });
        told.collect()
    }

    /// Replicates the decisions, and closes the keys. Returns the decisions.
    fn close(&mut self) -> Vec<Decision<'a>> {
        self.host.state(|state| state.manager.several_change(false));
        self.send();
        unsaved::save(std::mem::take(&mut self.keys));
        let (decisions, buffer) = self.decisions.take();
        self.host.state(|state| state.keep_effect(buffer));
        decisions
    }
}

impl<'a, H: Host> OpenLocks<'a> for OpenKeys<'_, '_, '_, 'a, H> {
    type Error = RequestError;

    fn look<T>(
        &mut self,
        place: usize,
        look: impl FnOnce(OpenLock<'_>) -> T,
    ) -> Result<T, RequestError> {
        let (at, host, free) = (self.at(place), self.host, Lock::default());
        let lock = self.keys.get_mut(place).and_then(|key| key.lock(&free));
        let lock = lock.ok_or(RequestError::WrongType)?;
        Ok(host.state(|state| look(state.manager.open_lock(at, &self.bounds, lock))))
    }

    fn decide(&mut self, place: usize, input: Input<'a>) -> Result<Reply, RequestError> {
        if self.is_left_out(place, &input) {
            return Ok(Reply::Count(0));
        }
        if !self.decisions.continues(place) {
            self.send();
        }
        let (at, host) = (self.at(place), self.host);
        let (Some(name), Some(key)) = (self.name_of(place), self.keys.get_mut(place)) else {
            return Err(RequestError::WrongType);
        };
        let asks = match &input {
            // A request that waited is counted when it gets its reply.
            Input::Enter { ask, caller: None, .. } => Some(ask.owner),
            _ => None,
        };
        let mut effects = None;
        let (start, decided) = unit::decide(host, at, name, key, &input, &mut effects)?;
        let done = match decided {
            Decided::Fast(step, _) => ToPublish::Fast(step),
            decided => ToPublish::Step(Box::new(decided.effects(effects))),
        };
        Ok(self.decisions.add(place, start, asks, done))
    }

    fn issue(&mut self) -> Result<Token, Refusal> {
        let at = self.at(0);
        self.host.state(|state| state.manager.issue(at))
    }

    fn may_tie(&self, more: usize) -> Result<(), Refusal> {
        self.host.state(|state| state.manager.may_tie(&self.bounds, more))
    }
}

impl<H: Host> OpenKeys<'_, '_, '_, '_, H> {
    /// A planted fault omits the last of several locks.
    fn is_left_out(&self, place: usize, input: &Input<'_>) -> bool {
        let fault = match input {
            Input::Enter { .. } => PlantedFault::LockLeftOut,
            Input::Renew(_) | Input::ParkRenew(..) => PlantedFault::RenewalLeftOut,
            _ => return false,
        };
        place > 0 && place.saturating_add(1) == self.wants.len() && self.host.has_fault(fault)
    }
}

/// The name of the lock at this index in key order.
fn name_of<'n, N>(names: &'n [N], wants: &[Want<&[u8]>], place: usize) -> Option<&'n N> {
    wants.get(place).and_then(|want| names.get(want.number))
}
