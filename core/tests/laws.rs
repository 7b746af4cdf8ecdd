//! Laws that are true of every history: first all short histories, then all states that a small
//! world can reach, then long random histories, on one server and across failovers of several.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;

use crate::support::laws::{self, Held, picture};
use crate::support::{
    START_US, World, acquire, lease, number, random, release, renew, story, take,
};
use fastrand::Rng;
use rlock_core::{
    Acquire, Change, End, EpochMs, Input, Levels, Lock, Mode, Now, Patience, Release, Renew, Token,
    Tokens, snapshot,
};

const OWNERS: [&[u8]; 3] = [b"a", b"b", b"c"];
const MODES: [Mode; 2] = [Mode::Write, Mode::Read];

/// The steps so far, printed as a story when a law breaks.
#[derive(Default)]
struct Trail(Vec<(u64, Input<'static>)>);

impl Drop for Trail {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("# the end of a history that breaks it");
            for (us, input) in &self.0[self.0.len().saturating_sub(40)..] {
                eprintln!("{}", story::line(*us, input));
            }
        }
    }
}

impl Trail {
    fn step(&mut self, world: &mut World, input: Input<'static>) {
        self.0.push((world.now.us() - START_US, input));
        let _ = world.step(input);
    }
}

// --- all short histories ------------------------------------------------------------------------

/// `RLOCK_DEPTH` makes them longer.
#[test]
fn every_short_history_keeps_the_laws() {
    let steps = number("RLOCK_DEPTH").unwrap_or(5);
    let mut histories = 0;
    grow(&World::new(), &mut Trail::default(), steps, 0, &mut histories);
    println!("{histories} histories of up to {steps} steps");
    assert!(histories > 400_000, "only {histories} histories");
}

/// Continues from `world` in every possible way, for `steps` steps. An owner appears only after
/// those before it in the alphabet, so that histories which differ only in names are tried once. A
/// step may also let time pass.
fn grow(world: &World, trail: &mut Trail, steps: u64, known: usize, histories: &mut u64) {
    *histories += 1;
    if steps == 0 {
        return;
    }
    for (rank, owner) in OWNERS.iter().enumerate().take(known + 1) {
        for input in simple_inputs(owner) {
            let mut next = world.fork();
            trail.step(&mut next, input);
            grow(&next, trail, steps - 1, known.max(rank + 1), histories);
            trail.0.pop();
        }
    }
    let mut forced = world.fork();
    trail.step(&mut forced, Input::Force(None));
    grow(&forced, trail, steps - 1, known, histories);
    trail.0.pop();
    for ms in [1, 2] {
        let mut later = world.fork();
        later.advance_ms(ms);
        grow(&later, trail, steps - 1, known, histories);
    }
}

/// Frequent requests of an owner, with a lease that ends after one or two steps of time.
fn simple_inputs(owner: &'static [u8]) -> Vec<Input<'static>> {
    let write = acquire(owner, Mode::Write, 2);
    vec![
        Input::Acquire(acquire(owner, Mode::Read, 2)),
        Input::Acquire(write),
        Input::Acquire(Acquire { upgrade: true, ..write }),
        Input::Release(release(owner)),
        Input::Release(Release { mode: Some(Mode::Read), ..release(owner) }),
        Input::Renew(renew(owner, 2)),
    ]
}

// --- every situation of a small world -----------------------------------------------------------

/// With three owners, two levels and leases up to 3 ms, the number of states is finite. In each of
/// them, every possible request is tried: so the laws hold for histories of any length.
#[test]
fn every_situation_of_a_small_world_keeps_the_laws() {
    let mut first = World::new();
    first.max_depth = 2;
    let (mut known, mut steps) = (BTreeSet::from([first.state()]), 0);
    let mut open = VecDeque::from([(first, Vec::new())]);
    while let Some((world, way)) = open.pop_front() {
        let mut later = world.fork();
        later.advance_ms(1);
        let mut nexts = vec![(later, way.clone())];
        for input in every_input(&world) {
            let (mut next, mut trail) = (world.fork(), Trail(way.clone()));
            trail.step(&mut next, input);
            nexts.push((next, std::mem::take(&mut trail.0)));
        }
        steps += nexts.len();
        open.extend(nexts.into_iter().filter(|(next, _)| known.insert(next.state())));
    }
    println!("{} situations, {steps} steps", known.len());
    assert!(known.len() > 700, "only {} situations", known.len());
}

fn every_input(world: &World) -> Vec<Input<'static>> {
    let modes = [None, Some(Mode::Write), Some(Mode::Read)];
    let mut inputs: Vec<_> = modes.into_iter().map(Input::Force).collect();
    let first = picture(&world.lock).first().map(|held| held.token);
    for owner in OWNERS {
        for mode in MODES {
            for limit in [1, 2].map(NonZeroU32::new).into_iter().filter(|_| mode == Mode::Read) {
                inputs.push(Input::Acquire(Acquire { limit, ..acquire(owner, mode, 2) }));
            }
            for (upgrade, depth, ms) in [
                (false, None, 1),
                (false, None, 3),
                (true, None, 2),
                (false, Some(1), 2),
                (true, Some(2), 3),
            ] {
                let ask = Acquire { upgrade, depth, ..acquire(owner, mode, ms) };
                inputs.push(Input::Acquire(ask));
            }
        }
        inputs.push(take(owner, 2));
        inputs.extend([None, first].map(|token| Input::ReleaseAll(owner, token)));
        for mode in modes {
            for levels in [Levels::One, Levels::All, Levels::DownTo(0), Levels::DownTo(1)] {
                inputs.push(Input::Release(Release { mode, levels, ..release(owner) }));
            }
            inputs.push(Input::Renew(Renew { mode, ..renew(owner, 2) }));
            inputs.push(Input::Release(Release { mode, token: first, ..release(owner) }));
            inputs.push(Input::Renew(Renew { mode, token: first, ..renew(owner, 3) }));
        }
    }
    inputs
}

// --- long random histories ----------------------------------------------------------------------

const NAMES: [&[u8]; 6] =
    [b"a", b"b", b"\0", b"a\r\n+OK", b"%s%n", b"\xff\xfe a name that is longer than the others \\"];

fn random_input(rng: &mut Rng, world: &World, names: &[&'static [u8]]) -> Input<'static> {
    let owner = rng.choice(names).copied().unwrap();
    let mode = rng.choice(MODES).unwrap();
    let maybe_mode = rng.bool().then_some(mode);
    let token = match rng.u8(..8) {
        0 => rng.choice(&world.issued).copied(),
        1 => rng.choice(picture(&world.lock)).map(|held| held.token),
        2 => Token::new(rng.u64(1..100)),
        _ => None,
    };
    match rng.u8(..20) {
        0..=9 => Input::Acquire(Acquire {
            owner,
            mode,
            lease: lease(rng.u64(1..60)),
            upgrade: rng.bool(),
            depth: (rng.u8(..4) == 0).then(|| rng.u16(1..4)),
            limit: NonZeroU32::new(rng.u32(..4)).filter(|_| mode == Mode::Read),
            session: None,
            patience: Patience::None,
            max_queue: None,
            acks: 0,
        }),
        15 => Input::ReleaseAll(owner, token),
        10..=14 => {
            let levels = match rng.u8(..4) {
                0 => Levels::All,
                1 => Levels::DownTo(rng.u16(..4)),
                _ => Levels::One,
            };
            Input::Release(Release { owner, mode: maybe_mode, token, levels })
        }
        16..=18 => {
            let lease = lease(rng.u64(1..60));
            Input::Renew(Renew { owner, mode: maybe_mode, token, lease, acks: 0 })
        }
        _ if rng.bool() => take(owner, rng.u64(1..60)),
        _ => Input::Force(maybe_mode),
    }
}

#[test]
fn a_long_random_history_keeps_the_laws() {
    let (mut rng, steps) = random(20_000);
    let (mut world, mut trail, mut us) = (World::new(), Trail::default(), 0);
    for step in 0..steps {
        if step % 1000 == 0 {
            world.max_depth = rng.u16(1..6);
        }
        us += match rng.u8(..4) {
            0 => rng.u64(..20_000),
            1 => rng.u64(..3) * 500,
            _ => 0,
        };
        world.set_clock(us);
        let input = random_input(&mut rng, &world, &NAMES);
        trail.step(&mut world, input);
    }
    assert!(world.plain_steps > steps / 20, "only {} plain steps", world.plain_steps);
}

/// The clock jumps back and forth by minutes, processes restart from their data, replicas take
/// over.
#[test]
fn a_history_over_failures_and_wrong_clocks_keeps_the_laws() {
    let (mut rng, steps) = random(20_000);
    let (mut world, mut trail) = (World::new(), Trail::default());
    let mut us = 100_000_000;
    for _ in 0..steps {
        us = match rng.u8(..40) {
            0 => rng.u64(..200_000_000),
            1..=20 => us + rng.u64(..10_000),
            _ => us,
        };
        world.set_clock(us);
        match rng.u8(..100) {
            0 => world.fail_over(),
            1 => world.restart(),
            2 => world.see(Token::new(world.now.us() + rng.u64(..1_000_000)).unwrap()),
            _ => {
                let input = random_input(&mut rng, &world, &NAMES[..3]);
                trail.step(&mut world, input);
            }
        }
    }
}

/// Hundreds of readers, whose leases end in any order.
#[test]
fn many_readers_keep_the_laws() {
    let (mut rng, steps) = random(1_500);
    let names: Vec<&'static [u8]> =
        (0..200).map(|number| &*format!("reader {number}").into_bytes().leak()).collect();
    let (mut world, mut trail) = (World::new(), Trail::default());
    for step in 0..steps {
        world.advance_ms(rng.u64(..3));
        let owner = rng.choice(&names).copied().unwrap();
        let input = match step % 100 {
            97 => Input::Force(None),
            98 => Input::Acquire(acquire(owner, Mode::Write, 5)),
            99 => random_input(&mut rng, &world, &names),
            _ if rng.u8(..3) == 0 => Input::Release(release(owner)),
            _ => Input::Acquire(acquire(owner, Mode::Read, rng.u64(1..400))),
        };
        trail.step(&mut world, input);
    }
}

// --- tokens -------------------------------------------------------------------------------------

#[test]
fn tokens_rise_whatever_the_clock_does() {
    let (mut rng, steps) = random(100_000);
    let (mut tokens, mut last) = (Tokens::default(), 0);
    for _ in 0..steps {
        let now = Now::from_us(rng.u64(..2_000_000_000));
        match rng.u8(..10) {
            0 => {
                tokens.begin(now);
                last = last.max(now.us() + 1_000_000);
            }
            1 => {
                let token = Token::new(rng.u64(1..2_000_000_000)).unwrap();
                tokens.saw(token);
                last = last.max(token.get());
            }
            _ => {
                let token = tokens.issue(now).unwrap().get();
                assert_eq!(token, now.us().max(last + 1));
                last = token;
            }
        }
    }
}

// --- what a replica may be sent -----------------------------------------------------------------

/// A lock stores names of more than 40 bytes separately.
const SHORT_AND_LONG: [&[u8]; 3] = [b"a", &[b'b'; 40], &[b'c'; 41]];

/// Changes that no primary makes: of holds that do not exist, next to holds that they exclude, back
/// in time.
fn hostile_changes() -> Vec<Change<'static>> {
    let moment = |ms| EpochMs::new(ms).unwrap();
    let mut changes = Vec::new();
    for token in (1..4).filter_map(Token::new) {
        for owner in SHORT_AND_LONG {
            for mode in MODES {
                let (owner, deadline) = (Cow::Borrowed(owner), moment(10 + token.get() % 2));
                changes.push(Change::Granted { owner, mode, token, deadline });
            }
        }
        changes.push(Change::Updated { token, depth: 7, deadline: moment(0) });
        changes.push(Change::Ended { token, by: End::Expired });
    }
    changes
}

fn replay_hostile(lock: &Lock, change: &Change<'_>) -> Lock {
    let mut next = lock.clone();
    next.replay(change);
    laws::well_formed(&next);
    laws::readers_agree(&next, &picture(&next), Now::from_ms(10));
    assert_eq!(picture(&next), hostile_model(picture(lock), change), "{change:?} of {lock:?}");
    next
}

/// The latest change wins: it leaves only its owner's other mode and, unless it is a writer's,
/// other readers.
fn hostile_model(mut holds: Vec<Held>, change: &Change<'_>) -> Vec<Held> {
    match change {
        Change::Granted { owner, mode, token, deadline } => {
            holds.retain(|held| held.token != *token);
            // The only writer loses its WRITE, and its READ as well.
            let has_write =
                *mode == Mode::Write || holds.iter().any(|held| held.mode == Mode::Write);
            holds.retain(
                |held| {
                    if held.owner == **owner { held.mode != *mode } else { !has_write }
                },
            );
            let (owner, mode, token, deadline) = (owner.to_vec(), *mode, *token, *deadline);
            holds.push(Held { owner, mode, token, deadline, depth: 1 });
            holds.sort_by_key(|held| held.token);
        }
        Change::Updated { token, depth, deadline } => {
            for held in holds.iter_mut().filter(|held| held.token == *token) {
                (held.depth, held.deadline) = (*depth, *deadline);
            }
        }
        Change::Ended { token, .. } => holds.retain(|held| held.token != *token),
    }
    holds
}

#[test]
fn every_short_sequence_of_hostile_changes_leaves_a_lock() {
    let changes = hostile_changes();
    let mut locks: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut open = vec![Lock::default()];
    while let Some(lock) = open.pop() {
        for change in &changes {
            let next = replay_hostile(&lock, change);
            let mut bytes = Vec::new();
            snapshot::save(&next, &mut bytes);
            if locks.insert(bytes) {
                open.push(next);
            }
        }
    }
    println!("{} locks", locks.len());
    assert!(locks.len() > 200, "only {} locks", locks.len());
}

#[test]
fn random_hostile_changes_leave_a_lock() {
    let (mut rng, steps) = random(20_000);
    let mut lock = Lock::default();
    let names: Vec<Vec<u8>> =
        (0..8).map(|number| vec![number; 1 + 11 * usize::from(number)]).collect();
    for _ in 0..steps {
        let token = Token::new(rng.u64(1..20)).unwrap();
        let deadline = EpochMs::new(rng.u64(1..20)).unwrap();
        let owner = Cow::Borrowed(rng.choice(&names).unwrap().as_slice());
        // WRITE is rare, because it removes all other holds: many holds shall meet.
        let mode = if rng.u8(..20) == 0 { Mode::Write } else { Mode::Read };
        let change = match rng.u8(..6) {
            0 => Change::Ended { token, by: End::Released },
            1 | 2 => Change::Updated { token, depth: rng.u16(1..), deadline },
            _ => Change::Granted { owner, mode, token, deadline },
        };
        lock = replay_hostile(&lock, &change);
    }
}
