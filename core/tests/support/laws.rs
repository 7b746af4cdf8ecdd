//! Laws about every lock, and about every step from one state of a lock to the next.

use rlock_core::{
    Change, Effects, End, EpochMs, Event, FastStep, Input, Lock, Mode, Now, Reply, Token, snapshot,
};

/// One hold, as it is visible from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub owner: Vec<u8>,
    pub mode: Mode,
    pub token: Token,
    pub deadline: EpochMs,
    pub depth: u16,
}

impl Held {
    pub fn is_over(&self, now: Now) -> bool {
        self.deadline.get() <= now.us() / 1000
    }
}

/// Every hold of a lock, expired or not.
pub fn picture(lock: &Lock) -> Vec<Held> {
    lock.holds()
        .map(|(owner, mode, hold)| Held {
            owner: owner.to_vec(),
            mode,
            token: hold.token,
            deadline: hold.deadline,
            depth: hold.depth,
        })
        .collect()
}

/// A plain request has the same result as the transition.
pub fn plain_is_the_same(lock: &Lock, plain: FastStep<'_>, after: &Lock, effects: &Effects<'_>) {
    let FastStep { change, event, reply, is_request_enough } = plain;
    let ends = matches!(change, Change::Ended { .. });
    assert_eq!(lock.is_free(), ends, "a plain request ends the only hold");
    assert_eq!(lock, after, "{change:?} leads elsewhere");
    assert_eq!(effects.changes.as_slice(), [change]);
    assert_eq!(effects.events.as_slice(), event.as_slice());
    assert_eq!((&effects.reply, effects.is_request_enough), (&reply, is_request_enough));
    nobody_else_is_told(effects);
}

/// A request that must wait gets that reply, and nothing else happens.
pub fn a_wait_changes_nothing(reply: &Reply, effects: &Effects<'_>) {
    assert_eq!(reply, &effects.reply);
    assert!(effects.changes.is_empty() && effects.events.is_empty(), "{effects:?}");
    nobody_else_is_told(effects);
}

/// A step that stops for each permission has the same result as one that does not, if all are
/// permitted.
pub fn checking_changes_nothing(stopped: &Effects<'_>, effects: &Effects<'_>) {
    let told = |effects: &Effects<'_>| {
        let whole = Effects { is_request_enough: false, ..effects.clone() };
        format!("{whole:?}")
    };
    assert_eq!(told(stopped), told(effects));
}

fn nobody_else_is_told(effects: &Effects<'_>) {
    let others = (&effects.wakes, &effects.pending, &effects.turns, &effects.lost);
    assert_eq!(others, (&vec![], &vec![], &vec![], &vec![]));
    assert!(!effects.awaits_acks);
}

/// Laws about every lock, wherever it came from.
pub fn well_formed(lock: &Lock) {
    lock.check().unwrap();
    let holds = picture(lock);
    for held in holds.iter().filter(|held| held.mode == Mode::Write) {
        let stranger = holds.iter().find(|other| other.owner != held.owner);
        assert_eq!(stranger, None, "a stranger holds beside WRITE of {held:?}");
    }
    for pair in holds.windows(2) {
        assert!(pair[0].token < pair[1].token, "holds are not in the order of tokens: {holds:?}");
    }
    for (at, held) in holds.iter().enumerate() {
        let same = |other: &Held| (&other.owner, other.mode) == (&held.owner, held.mode);
        assert!(!holds[..at].iter().any(same), "two holds of one owner and mode: {holds:?}");
        assert!(held.depth >= 1, "a hold without a level: {held:?}");
        assert!(!held.owner.is_empty() && held.owner.len() <= 512, "no owner: {held:?}");
    }
    assert_eq!(lock.hold_count(), holds.len());
    assert_eq!(lock.is_free(), holds.is_empty());
    assert_eq!(lock.latest_deadline(), holds.iter().map(|held| held.deadline).max());
    survives_bytes(lock);
    begins_by_changes(lock);
}

/// A lock that is saved and loaded is the same; a free lock is not stored.
fn survives_bytes(lock: &Lock) {
    let mut bytes = Vec::new();
    snapshot::save(lock, &mut bytes);
    match snapshot::load(&bytes) {
        Ok(loaded) => assert_eq!(&loaded, lock, "a lock that was saved and loaded differs"),
        Err(malformed) => assert!(lock.is_free(), "{malformed} in what was saved of {lock:?}"),
    }
}

/// The changes in a rewritten append-only file result in the same lock.
fn begins_by_changes(lock: &Lock) {
    let mut again = Lock::default();
    for change in &snapshot::as_changes(lock) {
        let event = again.replay(change);
        let begins = matches!(change, Change::Granted { .. });
        assert_eq!(event.is_some(), begins, "{change:?} says {event:?}");
    }
    assert_eq!(&again, lock, "a lock made again out of changes differs");
}

/// Law 2: nobody who reads the lock ever sees an expired hold, swept or not.
pub fn readers_agree(lock: &Lock, holds: &[Held], now: Now) {
    let deadlines = holds.iter().map(|held| Now::from_ms(held.deadline.get()));
    let just_before = deadlines.clone().map(|at| Now::from_us(at.us().saturating_sub(1)));
    for now in deadlines.chain(just_before).chain([now]) {
        let live: Vec<&Held> = holds.iter().filter(|held| !held.is_over(now)).collect();
        let seen: Vec<Token> = lock.holds_at(now).map(|(_, _, hold)| hold.token).collect();
        assert_eq!(seen, live.iter().map(|held| held.token).collect::<Vec<_>>());
        assert_eq!(lock.mode_at(now), live.iter().map(|held| held.mode).max());
        for held in holds {
            let is_live = !held.is_over(now);
            let hold = lock.hold_at(&held.owner, held.mode, now);
            assert_eq!(hold.map(|hold| hold.token), is_live.then_some(held.token));
            for mode in [Mode::Read, Mode::Write] {
                let expected = is_live && mode == held.mode;
                assert_eq!(lock.has_token_at(held.token, mode, now), expected, "{held:?}");
            }
        }
    }
}

/// Laws about every step, from `before` to `after`. New tokens are greater than `floor`.
pub fn transition(
    before: &[Held],
    after: &[Held],
    effects: &Effects<'_>,
    now: Now,
    mut floor: u64,
) {
    assert!(!after.iter().any(|held| held.is_over(now)), "a hold outlived its deadline: {after:?}");
    let mut holds = before.to_vec();
    let mut events = effects.events.iter().copied();
    for change in &effects.changes {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                assert!(token.get() > floor, "token {} is not above {floor}", token.get());
                floor = token.get();
                let below = |held: &Held| held.owner == **owner && held.mode == Mode::Read;
                let upgrades = *mode == Mode::Write && holds.iter().any(below);
                let event = if upgrades { Event::Upgraded } else { Event::Acquired };
                assert_eq!(events.next(), Some(event), "one event per new hold");
                let (owner, mode, token) = (owner.to_vec(), *mode, *token);
                holds.push(Held { owner, mode, token, deadline: *deadline, depth: 1 });
            }
            Change::Updated { token, depth, deadline } => {
                let held = holds.iter_mut().find(|held| held.token == *token).expect("it is held");
                assert!(held.deadline <= *deadline, "{held:?} was shortened to {deadline:?}");
                (held.depth, held.deadline) = (*depth, *deadline);
            }
            Change::Ended { token, by } => {
                let place = holds.iter().position(|held| held.token == *token);
                let was = holds.remove(place.expect("what ended was held"));
                assert_eq!(*by == End::Expired, was.is_over(now), "{was:?} ended by {by:?}");
                assert_eq!(events.next(), Some(ending(&was, *by, &holds)), "one event per end");
            }
        }
    }
    assert_eq!(events.next(), None, "an event that nothing caused");
    holds.sort_by_key(|held| held.token);
    assert_eq!(holds, after, "the changes do not lead to what is held");
}

fn ending(was: &Held, by: End, after: &[Held]) -> Event {
    let keeps_read = |held: &Held| held.owner == was.owner && held.mode == Mode::Read;
    match by {
        End::Expired => Event::Expired,
        End::Forced => Event::Forced,
        End::Disconnected => Event::Disconnected,
        End::Unconfirmed => Event::Unconfirmed,
        End::Released if was.mode == Mode::Write && after.iter().any(keeps_read) => {
            Event::Downgraded
        }
        End::Released => Event::Released,
    }
}

/// A refused request changed nothing, except that it ended what had expired.
pub fn a_refusal_changes_nothing(effects: &Effects<'_>) {
    if matches!(effects.reply, Reply::Refused(_) | Reply::NotNow { .. } | Reply::MustWait { .. }) {
        let expired =
            |change: &Change<'_>| matches!(change, Change::Ended { by: End::Expired, .. });
        assert!(effects.changes.iter().all(expired), "a refusal changed something: {effects:?}");
    }
}

/// Every change is recorded, and everything recorded is a change, except a promise that was made
/// before: a caller that gets it may ask the server to wait for its effect.
pub fn every_change_changes(before: &Lock, after: &Lock, input: &Input<'_>, effects: &Effects<'_>) {
    let mut lock = before.clone();
    let asks = matches!(input, Input::Acquire(_) | Input::Park(..) | Input::Renew(_));
    let is_promise = asks
        || matches!(input, Input::Enter { .. })
        || effects.wakes.iter().any(|wake| matches!(wake.reply, Reply::Granted { .. }));
    for change in &effects.changes {
        let was = lock.clone();
        lock.replay(change);
        let promises = is_promise && matches!(change, Change::Updated { .. });
        assert!(was != lock || promises, "{change:?} changes nothing");
    }
    let is_promised = matches!(
        (input, &effects.reply),
        (Input::Acquire(_) | Input::Park(..), Reply::Granted { .. })
            | (Input::Renew(_), Reply::Renewed)
    );
    assert!(!is_promised || !effects.changes.is_empty(), "a promise without an effect: {input:?}");
    assert_eq!(&lock, after, "something changed that was not recorded");
}
