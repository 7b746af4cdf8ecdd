//! Laws about waiters, after every step.

use rlock_core::{
    Change, Effects, Entry, Input, Kind, Lock, Mode, Now, Owner, Patience, Reply, Volatile,
    WaiterId, Wake,
};

use super::World;
use super::laws::{Held, picture};

/// The queue as it is visible from outside: turns first, then the line.
pub struct Line(Vec<(Entry, bool)>);

/// The identity of a waiter, which stays the same from step to step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Waiter(WaiterId),
    Ticket(Vec<u8>),
}

fn who(entry: &Entry) -> Who {
    match entry.kind {
        Kind::Blocked(waiter) | Kind::Told(waiter) => Who::Waiter(waiter),
        Kind::Ticket => Who::Ticket(entry.owner.as_bytes().to_vec()),
        Kind::Group(_) => panic!("groups wait in the engine's tests"),
    }
}

impl Line {
    pub fn of(volatile: &Volatile) -> Self {
        Self(volatile.queue.iter().map(|(entry, turn)| (entry.clone(), turn)).collect())
    }

    /// The waiters without a turn, in order.
    fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|(_, turn)| !turn).map(|(entry, _)| entry)
    }

    fn turns(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|(_, turn)| *turn).map(|(entry, _)| entry)
    }

    fn has(&self, one: &Who) -> bool {
        self.0.iter().any(|(entry, _)| who(entry) == *one)
    }
}

/// Each parked connection gets exactly one reply, and none after it departed.
pub fn answers(world: &mut World, before: &Line, input: &Input<'_>, effects: &Effects<'_>) {
    for wake in &effects.wakes {
        let owner = world.parked.remove(&wake.waiter);
        let owner = owner.unwrap_or_else(|| panic!("{wake:?} was not due"));
        match &wake.reply {
            Reply::Granted { token, remaining_ms } => {
                let holds = picture(&world.lock);
                // The request itself may have ended the hold again: a release, or `FORCE`.
                let is_over = |change: &Change<'_>| match change {
                    Change::Ended { token: over, .. } => over == token,
                    _ => false,
                };
                match holds.iter().find(|held| held.token == *token) {
                    Some(held) => assert_eq!(held.owner, owner, "another was granted: {wake:?}"),
                    None => assert!(effects.changes.iter().any(is_over), "nobody holds: {wake:?}"),
                }
                assert!(*remaining_ms > 0, "granted for no time: {wake:?}");
            }
            Reply::NotNow { .. } => {
                let is_it = |entry: &&Entry| who(entry) == Who::Waiter(wake.waiter);
                let entry = before.waiting().find(is_it).expect("it waited");
                let is_over = entry.ends_at.is_some_and(|at| at.is_over_at(world.now))
                    || matches!(input, Input::Cancel(owner) if *owner == entry.owner.as_bytes());
                assert!(is_over, "told that its time is over before it is: {wake:?}");
            }
            Reply::Refused(_) => {}
            other => panic!("{other:?} is no answer to a parked connection"),
        }
    }
    let after = Line::of(&world.volatile);
    // A connection that is to be closed needs no reply, and gets no grant.
    for entry in before.waiting() {
        if let Kind::Blocked(waiter) | Kind::Told(waiter) = entry.kind
            && entry.client.is_some_and(|client| effects.lost.contains(&client))
            && world.parked.remove(&waiter).is_some()
        {
            assert!(!after.has(&Who::Waiter(waiter)), "{entry:?} waits on in a lost connection");
        }
    }
    for waiter in world.parked.keys() {
        assert!(after.has(&Who::Waiter(*waiter)), "{waiter:?} waits for ever: nobody knows it");
    }
    let parked = after.0.iter().filter(|(entry, _)| entry.kind != Kind::Ticket).count();
    assert_eq!(parked, world.parked.len(), "somebody waits who was answered");
    assert_eq!(parked, world.volatile.queue.blocked_count());
    assert_eq!(after.0.len(), world.volatile.queue.len());
}

/// First come, first served: nobody is overtaken by a later arrival, unless that one already holds
/// the lock.
pub fn order(
    world: &World,
    before: &Line,
    held: &[Held],
    input: &Input<'_>,
    effects: &Effects<'_>,
) {
    let after = Line::of(&world.volatile);
    let is_granted = |owner: &Owner| {
        effects.wakes.iter().any(|wake| {
            let is_it = |entry: &&Entry| who(entry) == Who::Waiter(wake.waiter);
            let owns = before.waiting().find(is_it).is_some_and(|entry| entry.owner == *owner);
            owns && matches!(wake.reply, Reply::Granted { .. })
        })
    };
    // The caller has its turn, and asks with a smaller limit than before.
    let narrows = matches!(input, Input::Acquire(ask) if before.turns().any(|turn| {
        let given = turn.limit;
        turn.owner.as_bytes() == ask.owner
            && ask.limit.is_some_and(|limit| given.is_none_or(|given| limit < given))
    }));
    let stays = |entry: &Entry| {
        // A ticket that ended, or was withdrawn by a grant, differs from one that its owner got in
        // the same step.
        let is_over = entry.ends_at.is_some_and(|at| at.is_over_at(world.now));
        let is_withdrawn = entry.kind == Kind::Ticket && is_granted(&entry.owner);
        // Its turn came in this very step, but the step's caller, which owned it, could not use it,
        // or left no room for it.
        let asks = matches!(input, Input::Acquire(ask) if ask.owner == entry.owner.as_bytes());
        let turned = entry.kind == Kind::Ticket && effects.turns.contains(&entry.owner);
        let gave_up = turned && (asks || narrows);
        let same = |other: &&Entry| who(other) == who(entry) && other.mode == entry.mode;
        let remains = after.waiting().any(|other| same(&other));
        !is_over && !is_withdrawn && !gave_up && remains
    };
    let served = |entry: &Entry| {
        let woken = effects.wakes.iter().find(|wake| Who::Waiter(wake.waiter) == who(entry));
        let granted = woken.is_some_and(|wake| matches!(wake.reply, Reply::Granted { .. }));
        // A ticket and a blocked connection of the same owner may stand in one line.
        granted || entry.kind == Kind::Ticket && effects.turns.contains(&entry.owner)
    };
    let holds = |owner: &[u8]| held.iter().any(|held| held.owner == owner);
    // A re-entry may overtake: into a hold from before, into one that began in this step, or READ
    // below WRITE.
    let writes = |owner: &[u8]| {
        let holds = picture(&world.lock);
        let begins = |change: &Change<'_>| match change {
            Change::Granted { owner: new, mode, .. } => **new == *owner && *mode == Mode::Write,
            _ => false,
        };
        holds.iter().any(|held| held.owner == owner && held.mode == Mode::Write)
            || effects.changes.iter().any(begins)
    };
    let begun = |owner: &[u8]| {
        let grants = effects.changes.iter().filter(
            |change| matches!(change, Change::Granted { owner: new, .. } if **new == *owner),
        );
        let told = effects.wakes.iter().filter(|wake| {
            let waiter = before.waiting().find(|entry| who(entry) == Who::Waiter(wake.waiter));
            waiter.is_some_and(|entry| entry.owner.as_bytes() == owner)
        });
        // The step's caller may be that owner, with a ticket that had its turn.
        let asked = matches!(input, Input::Acquire(ask) if ask.owner == owner);
        let is_told = asked && matches!(effects.reply, Reply::Granted { .. });
        told.count() + usize::from(is_told) > grants.count()
    };
    let waiting: Vec<&Entry> = before.waiting().collect();
    for (place, entry) in waiting.iter().enumerate().filter(|(_, entry)| served(entry)) {
        let passed = waiting[..place].iter().find(|earlier| stays(earlier));
        let owner = entry.owner.as_bytes();
        let may_pass = holds(owner) || begun(owner) || writes(owner);
        assert!(
            passed.is_none() || may_pass,
            "{entry:?} passed {passed:?} by {input:?}: {effects:?}"
        );
    }
    if let Input::Acquire(ask) = input
        && ask.patience != Patience::Take
        && let Reply::Granted { .. } = effects.reply
        && !holds(ask.owner)
        && !began_before(before, effects, ask.owner)
    {
        let own = before.0.iter().position(|(entry, _)| {
            entry.kind == Kind::Ticket && entry.owner.as_bytes() == ask.owner
        });
        let ahead = &before.0[..own.unwrap_or(before.0.len())];
        let passed = ahead.iter().find(|(entry, turn)| !turn && stays(entry));
        assert!(passed.is_none(), "{ask:?} passed {passed:?}");
    }
}

/// The owner acquired the hold in this step through another, parked connection: this request was a
/// re-entry.
fn began_before(before: &Line, effects: &Effects<'_>, owner: &[u8]) -> bool {
    effects.wakes.iter().any(|wake| {
        let is_it = |entry: &&Entry| who(entry) == Who::Waiter(wake.waiter);
        let is_granted = matches!(wake.reply, Reply::Granted { .. });
        is_granted && before.waiting().find(is_it).is_some_and(|e| e.owner.as_bytes() == owner)
    })
}

/// The first in line could not enter, the turns agree with the lock, and the alarm is neither early
/// nor missing.
pub fn rest(world: &World) {
    let (line, holds) = (Line::of(&world.volatile), picture(&world.lock));
    let turns: Vec<&Entry> = line.turns().collect();
    let is_alone = turns.len() == 1 || turns.iter().all(|entry| entry.mode == Mode::Read);
    assert!(is_alone, "turns that exclude each other: {turns:?}");
    for entry in &turns {
        assert!(entry.kind == Kind::Ticket, "a parked connection has a turn: {entry:?}");
        assert!(is_open(&holds, entry), "a turn that cannot be taken up: {entry:?} {holds:?}");
    }
    if let Some(head) = line.waiting().next() {
        let reads = head.mode == Mode::Read;
        let is_full = head.limit.is_some_and(|limit| {
            let others = readers_beside(&holds, head.owner.as_bytes()) + turns.len();
            others >= limit.get() as usize
        });
        let waits = is_full || turns.iter().any(|turn| !reads || turn.mode == Mode::Write);
        assert!(waits || !is_open(&holds, head), "{head:?} could enter {holds:?}");
        assert!(world.lock.next_alarm(&world.volatile).is_some(), "{head:?} may wait for ever");
    }
    let Some(alarm) = world.lock.next_alarm(&world.volatile) else { return };
    assert!(!alarm.is_over_at(world.now), "an alarm that is due stays: {alarm:?}");
    if alarm.get() > world.now.ms().get() + 1 {
        let mut early = world.fork();
        early.now = Now::from_ms(alarm.get() - 1);
        let effects = early.drive(Input::Tick);
        let is_quiet =
            effects.wakes.is_empty() && effects.turns.is_empty() && effects.lost.is_empty();
        assert!(is_quiet, "the alarm at {alarm:?} comes too late: {effects:?}");
    }
}

/// Nobody was let in with a limit beside as many others as the limit allows, or more: READ holders,
/// and tickets that have their turn to READ.
pub fn permits(before: &Line, held: &[Held], input: &Input<'_>, effects: &Effects<'_>) {
    let mut holds = held.to_vec();
    let mut wakes = effects.wakes.iter();
    for change in &effects.changes {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                let (owner, mode, token) = (owner.to_vec(), *mode, *token);
                let is_it = |wake: &&Wake| match wake.reply {
                    Reply::Granted { token: told, .. } => told == token,
                    _ => false,
                };
                let limit = match (wakes.clone().find(is_it), input) {
                    (Some(wake), _) => {
                        wakes.by_ref().find(is_it);
                        let is_woken = |entry: &&Entry| who(entry) == Who::Waiter(wake.waiter);
                        before.waiting().find(is_woken).and_then(|entry| entry.limit)
                    }
                    (None, Input::Acquire(ask)) => ask.limit.filter(|limit| {
                        // A turn was checked when it was given, perhaps in this very step.
                        let is_given = |turn: &Entry| {
                            turn.owner.as_bytes() == ask.owner
                                && turn.limit.is_some_and(|given| given <= *limit)
                        };
                        let is_new = |entry: &&Entry| effects.turns.contains(&entry.owner);
                        !before.turns().chain(before.waiting().filter(is_new)).any(is_given)
                    }),
                    _ => None,
                };
                let writes =
                    holds.iter().any(|held| held.owner == owner && held.mode == Mode::Write);
                if let Some(limit) = limit.filter(|_| !writes) {
                    let others = readers_beside(&holds, &owner);
                    assert!(
                        others < limit.get() as usize,
                        "one of {limit} beside {others}: {effects:?}"
                    );
                }
                holds.push(Held { owner, mode, token, deadline: *deadline, depth: 1 });
            }
            Change::Ended { token, .. } => holds.retain(|held| held.token != *token),
            Change::Updated { .. } => {}
        }
    }
}

/// The number of other owners that hold READ.
fn readers_beside(holds: &[Held], owner: &[u8]) -> usize {
    let reads = |held: &&Held| held.owner != owner && held.mode == Mode::Read;
    holds.iter().filter(reads).count()
}

/// Whether a waiter could enter beside these holds, if nobody else waited.
fn is_open(holds: &[Held], entry: &Entry) -> bool {
    let owner = entry.owner.as_bytes();
    let mut strangers = holds.iter().filter(|held| held.owner != owner);
    let reads = holds.iter().any(|held| held.owner == owner && held.mode == Mode::Read);
    match entry.mode {
        Mode::Read => !strangers.any(|held| held.mode == Mode::Write),
        Mode::Write => strangers.next().is_none() && (!reads || entry.upgrade),
    }
}

/// Nothing remains of anybody.
pub fn nothing_is_left(lock: &Lock, volatile: &Volatile) {
    assert!(lock.is_free(), "somebody holds: {lock:?}");
    assert!(volatile.is_empty(), "something is remembered: {volatile:?}");
}
