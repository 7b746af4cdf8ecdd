//! Groups: moves them from one lock to the next, and grants those that reached all of their locks.
//! Everything that follows from one command or one task is one unit: every key is changed and
//! replicated before anything is published or replied.

use rlock_core::grammar::{Access, Want};
use rlock_core::manager::{At, Decided, Group, GroupWork, LockId, Manager};
use rlock_core::slow::Outcome;
use rlock_core::{
    Effects, Input, Now, OwnPlace, Parking, Refusal, Reply, Right, Unit, WaiterId, Wake,
};

use crate::gate;
use crate::happening::Happening;
use crate::held_back;
use crate::host::{Deferred, Gate, Host, KeyName};
use crate::open_locks::OpenKeys;
use crate::planted::PlantedFault;
use crate::reports::Report;
use crate::sink::{self, Audience};
use crate::slot;
use crate::state::State;
use crate::unit::{self, RequestError};

/// How many steps at one lock are done within a command: some milliseconds of work. The rest is
/// done outside commands.
const IN_COMMAND: usize = 512;

/// How many steps at one lock are done within one task of a sweep.
const IN_SWEEP: usize = 64;

/// Does the work for groups, within a command about this key. Returns what is to be reported.
pub(crate) fn carry_on<H: Host>(host: &H, key: &[u8]) -> Vec<Report> {
    let told = moves(host, key);
    search_stood(host, None);
    told
}

/// The same, without a search for cycles.
pub(crate) fn moves<H: Host>(host: &H, key: &[u8]) -> Vec<Report> {
    let slot = host.is_cluster().then(|| slot::of(key));
    move_all(host, Manager::next_group_work, IN_COMMAND, slot).1
}

/// Does the work for groups outside of commands, where any key can be opened. False if the gate is
/// shut.
pub(crate) fn carry_on_in_sweep<H: Host>(host: &H) -> (bool, Vec<Report>) {
    let done = move_all(host, Manager::next_group_work, IN_SWEEP, None);
    search_stood(host, None);
    done
}

/// Revokes the remaining parts of each grant of several locks of which a part has ended. That end
/// and this revocation are one unit, so they do not wait for the next portion of the sweep.
pub(crate) fn finish_revocations<H: Host>(host: &H) -> Vec<Report> {
    move_all(host, |manager, _| manager.next_revocation(), usize::MAX, None).1
}

/// Does work until this much is done; in a command of a Cluster, until work in another slot is
/// next. False if the gate is shut.
fn move_all<H: Host>(
    host: &H,
    next: impl Fn(&mut Manager, Now) -> Option<GroupWork>,
    most: usize,
    only_in: Option<u16>,
) -> (bool, Vec<Report>) {
    let (mut told, mut shut) = (Vec::new(), Vec::new());
    if host.has_fault(PlantedFault::GroupsForgotten) {
        let now = host.now();
        while host.state(|state| state.manager.next_group_work(now)).is_some() {}
    }
    let mut done: usize = 0;
    while done < most {
        let now = host.now();
        let Some(work) = host.state(|state| next(&mut state.manager, now)) else { break };
        if only_in.is_some_and(|slot| !is_in(host, &work, slot)) {
            shut.push(work);
            break;
        }
        match gate_of(host, &work) {
            Gate::Open => done = done.saturating_add(step(host, &work, &mut told).max(1)),
            Gate::Shut => shut.push(work),
            Gate::Elsewhere => match work {
                GroupWork::Join(_, waiters) => {
                    waiters.into_iter().for_each(|waiter| refuse(host, waiter, Refusal::TryAgain));
                }
                GroupWork::Back(_, waiter) | GroupWork::Commit(waiter) => {
                    refuse(host, waiter, Refusal::TryAgain);
                }
                // What remains of the grant on this server is revoked lock by lock.
                GroupWork::Revoke(waiter, ids) => {
                    host.state(|state| state.manager.revoke_group(waiter, &ids, now));
                }
                GroupWork::Serve(LockId { db, key }) => {
                    let at = At { db, key: &key, now };
                    host.state(|state| state.manager.dismiss(at, &Refusal::TryAgain));
                }
                // These change no key, so their gate is always open.
                GroupWork::Leave(..) | GroupWork::Over(_) => {}
            },
        }
    }
    let is_open = shut.is_empty();
    host.state(|state| {
        shut.into_iter().for_each(|work| state.manager.group_work_later(work));
    });
    (is_open, told)
}

/// Whether this work opens only keys of this slot, as the keys of a group are all of one slot.
fn is_in<H: Host>(host: &H, work: &GroupWork, slot: u16) -> bool {
    keys_of(host, work).first().is_none_or(|id| slot::of(&id.key) == slot)
}

/// The keys that this work opens.
fn keys_of<H: Host>(host: &H, work: &GroupWork) -> Vec<LockId> {
    match work {
        GroupWork::Serve(id) | GroupWork::Join(id, _) | GroupWork::Back(id, _) => vec![id.clone()],
        GroupWork::Commit(waiter) | GroupWork::Over(waiter) => {
            host.state(|state| state.manager.locks_of(*waiter))
        }
        GroupWork::Revoke(_, ids) => ids.clone(),
        GroupWork::Leave(..) => Vec::new(),
    }
}

/// In a Cluster, each key has a gate of its own, and keys that the group has reached may have
/// moved.
fn gate_of<H: Host>(host: &H, work: &GroupWork) -> Gate {
    if !host.is_cluster() || matches!(work, GroupWork::Leave(..) | GroupWork::Over(_)) {
        return Gate::Open;
    }
    let ids = keys_of(host, work);
    let gates = ids.iter().map(|id| host.with_name(id, |name| gate::of(host, name)));
    let rank =
        |gate: &Gate| [Gate::Open, Gate::Shut, Gate::Elsewhere].iter().position(|g| g == gate);
    gates.max_by_key(rank).unwrap_or(Gate::Open)
}

/// Does this work. Returns its amount, counted in steps at one lock.
fn step<H: Host>(host: &H, work: &GroupWork, told: &mut Vec<Report>) -> usize {
    match work {
        GroupWork::Serve(id) => tick(host, id, told),
        GroupWork::Revoke(waiter, ids) => {
            let now = host.now();
            let ids = match host.has_fault(PlantedFault::PartNotRevoked) {
                true => ids.get(1..).unwrap_or_default(),
                false => ids,
            };
            host.state(|state| {
                state.manager.revoke_group(*waiter, ids, now);
                state.manager.several_change(true);
            });
            for id in ids {
                tick(host, id, told);
            }
            host.state(|state| state.manager.several_change(false));
            ids.len()
        }
        GroupWork::Leave(waiter, group) => {
            host.state(|state| state.manager.group_left(*waiter, group))
        }
        GroupWork::Join(id, waiters) => join(host, id, waiters, told),
        GroupWork::Back(id, waiter) => {
            // A change that no step has seen yet may have given the group its turn back.
            let seen = tick(host, id, told);
            host.state(|state| state.manager.goes_back(id, *waiter)).saturating_add(seen)
        }
        GroupWork::Commit(waiter) => {
            let group = host.state(|state| state.manager.group(*waiter).cloned());
            let Some(group) = group else { return 1 };
            commit(host, *waiter, &group, told);
            group.keys.len()
        }
        GroupWork::Over(waiter) => {
            let keys = host
                .state(|state| state.manager.group(*waiter).map_or(1, |group| group.keys.len()));
            time_out(host, *waiter);
            keys
        }
    }
}

/// Handles what is due at a lock. Returns the amount of work.
fn tick<H: Host>(host: &H, id: &LockId, told: &mut Vec<Report>) -> usize {
    at_one(host, id, Input::Tick).map_or(1, |done| tell(done, told))
}

/// Keeps the report of a step. Returns the amount of work.
fn tell(done: Report, told: &mut Vec<Report>) -> usize {
    let size = done.size();
    if !done.is_silent() {
        told.push(done);
    }
    size
}

/// These groups reach a lock, whose queue is then served.
fn join<H: Host>(host: &H, id: &LockId, waiters: &[WaiterId], told: &mut Vec<Report>) -> usize {
    let mut size: usize = 0;
    for (place, waiter) in waiters.iter().enumerate() {
        let entry = host.state(|state| state.manager.group(*waiter)?.next_entry());
        let Some(entry) = entry else { continue };
        let is_last = place.saturating_add(1) == waiters.len();
        host.state(|state| state.manager.several_change(!is_last));
        match at_one(host, id, Input::Join(&entry)) {
            Ok(done) => size = size.saturating_add(tell(done, told)),
            Err(_) => refuse(host, *waiter, Refusal::WrongType),
        }
    }
    host.state(|state| state.manager.several_change(false));
    size
}

/// One step at one key.
fn at_one<H: Host>(host: &H, id: &LockId, input: Input<'_>) -> Result<Report, RequestError> {
    host.with_name(id, |name| {
        let mut key = unit::open(host, || host.open(name, Access::Writes));
        // The server may have removed an expired lock, and thereby ended a session of this
        // connection.
        if let Input::Join(entry) = &input
            && let Some(waiter) = entry.kind.group()
            && host.state(|state| state.manager.group(waiter).is_none())
        {
            return Ok(Report::of_step(id.clone(), Effects::default()));
        }
        let at = At { db: id.db, key: name.bytes(), now: host.now() };
        let mut effects = None;
        let (start, decided) = unit::decide(host, at, name, &mut key, &input, &mut effects)?;
        debug_assert!(!matches!(decided, Decided::MustWait(_)), "{input:?} waits by itself");
        let effects = decided.effects(effects);
        drop(key);
        if host.state(|state| state.manager.expects_keys()) {
            host.watch_new_keys();
        }
        unit::pass_on(host, at, name, start, None, (&effects).into());
        Ok(Report::of_step(id.clone(), effects))
    })
}

/// Ends the wait of a group with an error.
fn refuse<H: Host>(host: &H, waiter: WaiterId, why: Refusal) {
    end(host, waiter, Reply::Refused(why), Outcome::Refused);
}

/// The wait of a group has timed out.
pub(crate) fn time_out<H: Host>(host: &H, waiter: WaiterId) {
    let wait_ms = time_to_wait(host, waiter);
    end(host, waiter, Reply::NotNow { wait_ms }, Outcome::TimedOut);
}

/// Ends the wait of a group with this reply. The waiters behind it are served with the next work.
fn end<H: Host>(host: &H, waiter: WaiterId, reply: Reply, by: Outcome) {
    let now = host.now();
    host.state(|state| state.manager.end_group_with(waiter, reply, by, now));
}

/// Grants a group that has reached all of its locks: first all are examined, then all are changed.
fn commit<H: Host>(host: &H, waiter: WaiterId, group: &Group, told: &mut Vec<Report>) {
    let keys: Vec<&[u8]> = group.keys.iter().map(|key| &*key.key).collect();
    let wants: Vec<Want<&[u8]>> = group.keys.iter().map(Want::borrowed).collect();
    let (ask, place) = ((&group.entry).into(), OwnPlace::Group(waiter));
    let unit = Unit { wants: &wants, ask, place };
    host.with_names(group.db, &keys, |names| {
        let Ok(mut locks) = OpenKeys::open(host, names, &wants) else {
            return refuse(host, waiter, Refusal::WrongType);
        };
        let granted = grant(host, waiter, &mut locks, &unit, names, group);
        told.extend(locks.into_reports());
        let Some(first) = group.keys.first() else { return };
        told.extend(granted.map(|wake| Report::of_answer(group.id(first), wake)));
    });
}

/// Grants the group, unless something is in the way again. Returns the reply, if it is due now.
fn grant<'a, H: Host>(
    host: &H,
    waiter: WaiterId,
    locks: &mut OpenKeys<'_, '_, '_, 'a, H>,
    unit: &Unit<'_, 'a>,
    names: &[H::Name<'_>],
    group: &Group,
) -> Option<Wake> {
    let judged = unit.judge_all(locks).ok()?;
    // Handling due items may have sent the group back.
    if !host.state(|state| state.manager.has_reached_all(waiter)) {
        return None;
    }
    let Ok(judged) = judged else { return None };
    let may = |user: &[u8]| host.may_acquire_several(user, names);
    match sink::right_of(host, waiter, &Audience::default(), may) {
        Right::May => {}
        Right::MayNot => {
            refuse(host, waiter, Refusal::NotPermittedSeveral);
            return None;
        }
        Right::Unheard => {
            host.observe(Happening::Untold(waiter));
            let now = host.now();
            host.state(|state| state.manager.group_is_unheard(waiter, now));
            return None;
        }
    }
    let ready = match unit.prepare(locks, judged, true) {
        Ok(ready) => ready,
        Err(reply) => {
            end(host, waiter, reply, Outcome::Refused);
            return None;
        }
    };
    let now = host.now();
    let waited_us = host.state(|state| state.manager.group_granted(waiter, now));
    let caller = Parking { is_of_several: true, ..Parking::of(waiter, &group.entry) };
    let reply = held_back::enter(host, locks, unit, ready, Some(caller)).ok()?;
    let wake = Wake { waited_us, holds: judged.new_holds, ..Wake::of(waiter, reply) };
    Some(wake).filter(|wake| wake.reply != Reply::Pending)
}

/// The owner of a group takes new places: its tickets for these locks end.
pub(crate) fn withdraw_tickets<H: Host>(host: &H, group: &Group) -> Vec<Report> {
    let first = group.next_key().map_or(&[][..], |want| &*want.key);
    let mut told = Vec::new();
    for key in group.keys.iter() {
        let (id, owner) = (group.id(key), group.entry.owner.as_bytes());
        if host.state(|state| state.manager.has_ticket(&id, owner)) {
            told.extend(at_one(host, &id, Input::Withdraw(owner)).ok());
        }
    }
    told.extend(moves(host, first));
    told
}

/// Searches for cycles, in a later loop iteration, where groups came to stand.
pub(crate) fn search_stood<H: Host>(host: &H, searched: Option<WaiterId>) {
    let stood = host.state(|state| state.manager.take_stood());
    if stood.is_empty() || !host.settings().detects_deadlocks {
        return;
    }
    for waiter in stood.into_iter().filter(|waiter| Some(*waiter) != searched) {
        search_soon(host, waiter);
    }
}

/// Searches in a later loop iteration, and refuses this wait if it has closed a cycle.
pub(crate) fn search_soon<H: Host>(host: &H, waiter: WaiterId) {
    let is_first = host.state(|state| {
        state.unsearched.push_back(waiter);
        state.unsearched.len() == 1
    });
    if is_first {
        host.defer(0, Deferred::Search);
    }
}

/// The time in the reply to a group that was not granted: the longest estimate for a lock that it
/// has not reached; `None` if unknown.
pub(crate) fn time_to_wait<H: Host>(host: &H, waiter: WaiterId) -> Option<u64> {
    let with_ttl = |state: &State<H::Blocked>| {
        let asks = state.manager.parked(waiter).is_some_and(|parked| parked.with_ttl);
        asks || state.manager.is_told(waiter)
    };
    // The group is reported only then.
    let group =
        host.state(|state| state.manager.group(waiter).filter(|_| with_ttl(state)).cloned())?;
    let bounds = host.settings().bounds;
    let mut longest: u64 = 0;
    for key in group.unreached() {
        let (id, claim) = (group.id(key), group.claim(key));
        let at = At { db: id.db, key: &id.key, now: host.now() };
        let wait_ms = unit::look(host, &id, |lock, state| {
            state.manager.open_lock(at, &bounds, lock).group_wait_ms(waiter, &claim)
        });
        if let Some(wait_ms) = wait_ms {
            longest = longest.max(wait_ms?);
        }
    }
    Some(longest).filter(|ms| *ms > 0)
}
