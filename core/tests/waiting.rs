//! Laws about waiters, in long random histories of blocked connections, tickets, sessions, and
//! everything that can happen to them. `support/line.rs` has the checks after every step.

use std::num::NonZeroU32;

use crate::support::laws::picture;
use crate::support::{World, acquire, lease, line, random, release, renew, take};
use fastrand::Rng;
use rlock_core::{
    Acquire, Change, ClientId, Effects, Input, Levels, Mode, Patience, Refusal, Release, Reply,
    Token, WaiterId,
};

/// Many clients at one lock, and their results.
struct Crowd {
    world: World,
    rng: Rng,
    owners: Vec<&'static [u8]>,
    handed_off: u64,
    turns: u64,
    timed_out: u64,
    revoked: u64,
    dismissed: usize,
    /// Whether, from now on, no client departs before it has read its grant.
    is_ending: bool,
    /// Grants whose replies are about to be read.
    heard: Vec<WaiterId>,
}

impl Crowd {
    fn new(rng: Rng, owners: usize) -> Self {
        let name = |number| &*format!("owner {number}").into_bytes().leak();
        let owners = (0..owners).map(name).collect();
        let (handed_off, turns, timed_out, revoked) = (0, 0, 0, 0);
        let world = World::new();
        let (is_ending, heard) = (false, Vec::new());
        Self {
            world,
            rng,
            owners,
            handed_off,
            turns,
            timed_out,
            revoked,
            dismissed: 0,
            is_ending,
            heard,
        }
    }

    fn step(&mut self, input: Input<'static>) {
        let effects = self.world.step(input);
        self.count(&effects);
    }

    fn count(&mut self, effects: &Effects<'_>) {
        // A loop iteration is short: replies do not stay unread for long.
        if self.heard.len() > 20 {
            self.heard.drain(..).for_each(|waiter| self.world.volatile.heard(waiter));
        }
        self.turns += effects.turns.len() as u64;
        for wake in &effects.wakes {
            match wake.reply {
                Reply::Granted { .. } => self.handed_off += 1,
                Reply::NotNow { .. } => self.timed_out += 1,
                _ => {}
            }
            // Some replies are read at once, some clients depart before that.
            if self.rng.u8(..8) == 0 && !self.is_ending {
                self.world.volatile.leave(wake.waiter);
                self.revoked += 1;
            } else if self.rng.bool() {
                self.world.volatile.heard(wake.waiter);
            } else {
                self.heard.push(wake.waiter);
            }
        }
    }

    fn asks(&mut self) {
        let owner = self.rng.choice(&self.owners).copied().unwrap();
        let mode = if self.rng.u8(..3) == 0 { Mode::Write } else { Mode::Read };
        let session = (self.rng.u8(..5) == 0).then(|| ClientId::from(self.rng.u64(1..6)));
        let lease_ms = if session.is_some() { 1000 } else { self.rng.u64(1..40) };
        let ask = Acquire {
            upgrade: self.rng.u8(..3) == 0,
            depth: (self.rng.u8(..5) == 0).then(|| self.rng.u16(1..3)),
            session,
            limit: NonZeroU32::new(self.rng.u32(..5)).filter(|_| mode == Mode::Read),
            max_queue: (self.rng.u8(..8) == 0).then(|| self.rng.usize(..6)),
            ..acquire(owner, mode, lease_ms)
        };
        match self.rng.u8(..4) {
            0 => self.step(Input::Acquire(ask)),
            1 => {
                let patience = Patience::Ticket(lease(self.rng.u64(1..60)));
                self.step(Input::Acquire(Acquire { patience, ..ask }));
            }
            _ => {
                let block_ms = self.rng.bool().then(|| self.rng.u64(1..80));
                let (effects, _) = self.world.block(ask, block_ms);
                self.count(&effects);
            }
        }
    }

    fn lets_go(&mut self) {
        let holds = picture(&self.world.lock);
        let Some(held) = self.rng.choice(&holds) else { return };
        let owner = *self.owners.iter().find(|owner| **owner == held.owner.as_slice()).unwrap();
        let levels = if self.rng.bool() { Levels::All } else { Levels::One };
        let mode = Some(held.mode);
        self.step(Input::Release(Release { mode, levels, ..release(owner) }));
    }

    fn any(&mut self) {
        match self.rng.u8(..100) {
            0..45 => self.asks(),
            45..70 => self.lets_go(),
            70..80 => {
                self.world.advance_ms(self.rng.u64(..12));
                self.step(Input::Tick);
            }
            80..86 => {
                let parked: Vec<WaiterId> = self.world.parked.keys().copied().collect();
                if let Some(waiter) = self.rng.choice(&parked) {
                    self.world.leave(*waiter);
                    self.step(Input::Tick);
                }
            }
            86..90 => {
                let owner = self.rng.choice(&self.owners).copied().unwrap();
                self.step(Input::Cancel(owner));
            }
            90..93 => {
                self.world.volatile.disconnect(ClientId::from(self.rng.u64(1..6)));
                self.step(Input::Tick);
            }
            93..96 => {
                let owner = self.rng.choice(&self.owners).copied().unwrap();
                let lease_ms = self.rng.u64(1..40);
                self.step(Input::Renew(renew(owner, lease_ms)));
            }
            96 => {
                let owner = self.rng.choice(&self.owners).copied().unwrap();
                let input = if self.rng.bool() { Input::Force(None) } else { take(owner, 20) };
                self.step(input);
            }
            97 => {
                let why = if self.rng.bool() { Refusal::TryAgain } else { Refusal::WrongType };
                let dismissed = self.world.dismiss(&why);
                self.dismissed += dismissed.wakes.len();
            }
            98 => {
                self.world.forget_holds();
                self.step(Input::Tick);
            }
            _ => self.world.max_depth = self.rng.u16(1..4),
        }
    }

    /// All clients depart: nothing of them remains.
    fn end(&mut self) {
        self.is_ending = true;
        let parked: Vec<WaiterId> = self.world.parked.keys().copied().collect();
        for waiter in parked {
            self.world.leave(waiter);
        }
        for owner in self.owners.clone() {
            self.step(Input::Cancel(owner));
        }
        (1..6).for_each(|client| {
            self.world.volatile.disconnect(ClientId::from(client));
        });
        self.step(Input::Force(None));
        self.heard.drain(..).for_each(|waiter| self.world.volatile.heard(waiter));
        line::nothing_is_left(&self.world.lock, &self.world.volatile);
    }
}

#[test]
fn a_crowd_of_any_kind_keeps_the_laws() {
    let (rng, steps) = random(30_000);
    let mut crowd = Crowd::new(rng, 6);
    for _ in 0..steps {
        crowd.any();
    }
    crowd.end();
    let Crowd { handed_off, turns, timed_out, revoked, .. } = crowd;
    println!("{handed_off} handed off, {turns} turns, {timed_out} timed out, {revoked} revoked");
    let least = [handed_off, turns, timed_out, revoked].into_iter().min().unwrap();
    assert!(least > steps / 1000, "too little happened");
    let waits = crowd.world.waits_seen;
    assert!(waits > steps / 1000, "only {waits} waits were seen without a decision");
}

/// Many clients, and a clock that only the test moves. `make torture` runs ten million steps of it.
#[test]
fn a_simulated_day_of_many_clients_keeps_the_laws() {
    let (rng, steps) = random(100_000);
    let mut crowd = Crowd::new(rng, 25);
    crowd.world.check_every = 97;
    for _ in 0..steps {
        crowd.any();
    }
    crowd.end();
    let Crowd { handed_off, turns, timed_out, revoked, .. } = crowd;
    println!(
        "{steps} steps: {handed_off} handed off, {turns} turns, {timed_out} timed out, \
         {revoked} taken back"
    );
    assert!(handed_off > steps / 500);
}

#[test]
fn a_large_crowd_keeps_the_laws() {
    let (rng, steps) = random(3_000);
    let mut crowd = Crowd::new(rng, 60);
    for _ in 0..steps {
        crowd.any();
    }
    crowd.end();
    assert!(crowd.handed_off > steps / 500);
}

/// All block forever and release after a while: each is served, in the order of arrival.
#[test]
fn a_hundred_are_served_in_the_order_in_which_they_came() {
    let mut world = World::new();
    let names: Vec<&'static [u8]> =
        (0..100).map(|number| &*format!("owner {number}").into_bytes().leak()).collect();
    let _ = world.step(Input::Acquire(acquire(b"first", Mode::Write, 1000)));
    for name in &names {
        let _ = world.block(acquire(name, Mode::Write, 1000), None);
    }
    let (mut holder, mut last): (&[u8], Option<Token>) = (b"first", None);
    for name in &names {
        let effects = world.step(Input::Release(release(holder)));
        let [wake] = effects.wakes.as_slice() else { panic!("one each: {effects:?}") };
        let Reply::Granted { token, .. } = wake.reply else { panic!("granted: {wake:?}") };
        assert!(last.is_none_or(|last| last < token), "in the order of tokens");
        assert_eq!(picture(&world.lock)[0].owner, *name, "in the order of arrival");
        (holder, last) = (name, Some(token));
    }
}

// --- what is due before the next one waits ------------------------------------------------------

/// Somebody holds the lock. The effect of `happens` shows only with the next input, which asks to
/// block.
fn next_after(happens: impl FnOnce(&mut World)) -> Effects<'static> {
    let mut world = World::new();
    let session = Some(ClientId::from(1));
    let _ = world.step(Input::Acquire(Acquire { session, ..acquire(b"first", Mode::Read, 1000) }));
    happens(&mut world);
    let patience = Patience::Block;
    world.step(Input::Acquire(Acquire { patience, ..acquire(b"next", Mode::Write, 1000) }))
}

#[test]
fn whoever_may_enter_by_now_enters_before_the_next_one_waits() {
    let effects = next_after(|world| {
        let (_, writer) = world.block(acquire(b"writer", Mode::Write, 1000), None);
        let _ = world.block(acquire(b"behind it", Mode::Read, 1000), None);
        world.leave(writer.unwrap());
    });
    assert!(matches!(effects.reply, Reply::MustWait { .. }), "{effects:?}");
    assert_eq!(effects.wakes.len(), 1, "{effects:?}");
}

#[test]
fn a_session_that_has_gone_is_in_nobodys_way() {
    let effects = next_after(|world| {
        world.volatile.disconnect(ClientId::from(1));
    });
    assert!(matches!(effects.reply, Reply::Granted { .. }), "{effects:?}");
}

#[test]
fn a_grant_that_nobody_heard_of_is_in_nobodys_way() {
    let effects = next_after(|world| {
        let (_, writer) = world.block(acquire(b"writer", Mode::Write, 1000), None);
        let _ = world.step(Input::Release(release(b"first")));
        world.leave(writer.unwrap());
    });
    assert!(matches!(effects.reply, Reply::Granted { .. }), "{effects:?}");
}

/// Something puts a hold in the way of a turn: the turn is given up, which requires a decision.
#[test]
fn a_void_turn_is_given_up_before_the_next_one_waits() {
    let mut world = World::new();
    let _ = world.step(Input::Acquire(acquire(b"first", Mode::Write, 1000)));
    let patience = Patience::Ticket(lease(1000));
    let ticket = Acquire { patience, ..acquire(b"ticket", Mode::Write, 1000) };
    let _ = world.step(Input::Acquire(ticket));
    let _ = world.step(Input::Release(release(b"first")));
    let (mode, deadline) = (Mode::Write, world.now.after(lease(1000)));
    let token = Token::new(7).unwrap();
    world.lock.replay(&Change::Granted { owner: b"other".into(), mode, token, deadline });
    assert!(world.lock.has_void_turns(&world.volatile, world.now));
    let next = Acquire { patience: Patience::Block, ..acquire(b"next", Mode::Write, 1000) };
    assert_eq!(world.lock.must_wait(&world.volatile, &next, world.now), None);
}

/// However many wait and depart, a place is the number of waiters ahead of it, plus one.
#[test]
fn a_place_is_the_number_of_those_before_it() {
    let (mut rng, steps) = random(6_000);
    let mut world = World::new();
    let _ = world.drive(Input::Acquire(acquire(b"holder", Mode::Write, 600_000)));
    let names: Vec<Vec<u8>> = (0..3000).map(|n| format!("w{n}").into_bytes()).collect();
    let patience = Patience::Ticket(lease(60_000));
    for step in 0..steps {
        let name = rng.choice(&names).unwrap();
        // The line grows, and then shrinks to nothing.
        let comes = rng.u64(..steps) > step;
        let ask = acquire(name, Mode::Read, 1000);
        let ask = Acquire { patience, limit: NonZeroU32::new(rng.u32(..9)), ..ask };
        let _ = world.drive(if comes { Input::Acquire(ask) } else { Input::Cancel(name) });
        if step % 500 == 250 {
            let queue = &world.volatile.queue;
            for (before, (entry, _)) in queue.iter().enumerate() {
                assert_eq!(queue.place(entry.owner.as_bytes()), Some((before + 1, false)));
            }
            assert_eq!(queue.place(b"nobody"), None);
        }
    }
}
