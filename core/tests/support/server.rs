//! The lock manager of one server, with a map as its keys; effects are carried out as a server
//! would.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use rlock_core::manager::{At, Bounds, LockId, Manager, Mark, Parked, SlowEntry, Task, Wait};
use rlock_core::slow::Slow;
use rlock_core::waits_for::Stand;
use rlock_core::{
    Acquire, ClientId, Effects, Input, Lock, Mode, Now, Owner, Parking, Patience, Reply, Rights,
    Wake,
};

use super::{START_US, acquire};

pub type Key = &'static [u8];

/// A server that carries out effects, with a map as its keys.
pub struct Server {
    pub manager: Manager,
    pub keys: BTreeMap<Key, Lock>,
    pub bounds: Bounds,
    pub us: u64,
    pub is_open: bool,
    /// Replies to blocked connections, in order.
    pub told: Vec<(u64, Reply)>,
    /// The locks that were swept, in order.
    pub swept: Vec<Key>,
    /// Whether the server still has the connections blocked that got a reply.
    pub keeps_waits: bool,
    /// The depth to ask for.
    pub asked_depth: Option<u16>,
}

impl Server {
    pub fn new() -> Self {
        let most = usize::MAX;
        let bounds = Bounds {
            max_tells: 1000,
            max_tell_ms: 3_600_000,
            max_depth: 99,
            max_waiters: most,
            max_tickets: most,
            max_sessions: most,
            confirm_ms: 2000,
            grace_ms: 0,
            slow: Slow::default(),
            slowlog_max: 9,
        };
        let mut manager = Manager::default();
        manager.set_role(true, Now::from_us(START_US));
        let (keys, told, swept) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            manager,
            keys,
            bounds,
            us: 2_000_000,
            is_open: true,
            told,
            swept,
            keeps_waits: false,
            asked_depth: None,
        }
    }

    pub fn now(&self) -> Now {
        Now::from_us(START_US + self.us)
    }

    pub fn pass_ms(&mut self, ms: u64) {
        self.us += ms * 1000;
    }

    /// Decides one input for the lock at a key.
    pub fn decide<'a>(&mut self, lock: &mut Lock, key: &[u8], input: Input<'a>) -> Effects<'a> {
        let (at, mut effects) = (At { db: 0, key, now: self.now() }, None);
        let (manager, bounds) = (&mut self.manager, &self.bounds);
        manager.decide(at, bounds, lock, &input, Rights::All, &mut effects).effects(effects)
    }

    pub fn ask(&mut self, key: Key, input: Input<'_>) -> Reply {
        let mut lock = self.keys.remove(key).unwrap_or_default();
        let effects = self.decide(&mut lock, key, input);
        if !lock.is_free() {
            self.keys.insert(key, lock);
        }
        self.tell(effects.wakes);
        self.manager.check().unwrap();
        effects.reply
    }

    pub fn tell(&mut self, wakes: Vec<Wake>) {
        for wake in wakes {
            assert!(self.manager.answer(&wake), "{wake:?} was not due");
            self.told.push((wake.waiter.get(), wake.reply));
            if !self.keeps_waits {
                self.manager.heard_or_forgotten(wake.waiter);
            }
        }
    }

    pub fn holds(&mut self, key: Key, owner: &'static str, session: Option<u64>) -> Reply {
        let ask = acquire(owner.as_bytes(), Mode::Write, 1000);
        self.ask(key, Input::Acquire(Acquire { session: session.map(ClientId::from), ..ask }))
    }

    /// Blocks a connection; returns the number of its wait.
    pub fn waits(&mut self, key: Key, owner: &str, mode: Mode, client: u64) -> u64 {
        let depth = self.asked_depth;
        self.waits_for(key, Acquire { depth, ..acquire(owner.as_bytes(), mode, 1000) }, client)
    }

    /// Like `waits`, for the request `ask`.
    pub fn waits_for(&mut self, key: Key, ask: Acquire<'_>, client: u64) -> u64 {
        let ask = Acquire { patience: Patience::Block, ..ask };
        let parking = self.begin_wait(key, ask.owner, Some(client));
        self.park(key, parking, Input::Park(ask, parking))
    }

    /// The wait of a connection that is not decided yet.
    pub fn begin_wait(&mut self, key: Key, owner: &[u8], client: Option<u64>) -> Parking {
        let (waiter, client) = (self.manager.next_waiter(), client.map(ClientId::from));
        let lock = LockId { db: 0, key: key.into() };
        let parked = Parked::new(client, lock, owner.into(), (*b"default").into(), false);
        self.manager.park_begins(waiter, parked);
        Parking { waiter, client, since: self.now(), ends_at: None, is_of_several: false }
    }

    /// Decides the input of that wait; returns the wait's number.
    pub fn park(&mut self, key: Key, parking: Parking, input: Input<'_>) -> u64 {
        let reply = self.ask(key, input);
        if !matches!(reply, Reply::Pending | Reply::MustWait { .. }) {
            self.tell(vec![Wake::of(parking.waiter, reply)]);
        }
        parking.waiter.get()
    }

    /// Refuses a wait of the first owner of this cycle.
    pub fn deadlock(&mut self, cycle: &[(Owner, LockId)]) -> Option<String> {
        let (owner, lock) = &cycle[0];
        let ask = acquire(owner.as_bytes(), Mode::Read, 1000);
        let ask = Acquire { limit: NonZeroU32::new(1), ..ask };
        let wait = Wait { lock, owner, user: b"default", stand: Stand::Asking(ask) };
        let now = self.now();
        self.manager.deadlock(&wait, cycle, now)
    }

    /// The entries of the slow log, one line each, newest first.
    pub fn slowlog(&self) -> Vec<String> {
        let line = |entry: &SlowEntry| {
            let holders: Vec<String> = (entry.holders().into_iter())
                .map(|(owner, at)| at.map_or(owner.clone(), |at| format!("{owner}@{at}")))
                .collect();
            let (key, owner) = (entry.key(), entry.owner());
            let SlowEntry { id, kind, mode, limit, ms, outcome, .. } = entry;
            let holders = holders.join(",");
            format!("{id} {kind} {key} {owner} {mode}={limit} {ms} {outcome} [{holders}]")
        };
        self.manager.slowlog.newest().map(line).collect()
    }

    /// Does one task of the sweep. False if there is none.
    pub fn sweep_one(&mut self) -> bool {
        let now = self.now();
        self.manager.presume_open();
        let Some(task) = self.manager.next_task(now) else { return false };
        match task {
            Task::Sweep(id, at, why) => {
                self.manager.gate_is(self.is_open, now);
                let key = self.key(&id);
                if self.is_open {
                    self.swept.push(key);
                    let changed = why == Mark::Changed;
                    self.ask(key, if changed { Input::Changed } else { Input::Tick });
                } else {
                    self.manager.postpone(id, at, why);
                    // Due tasks are listed as for a shut gate.
                    let mut seen = 0;
                    while let Some(task) = self.manager.next_task(now) {
                        let Task::See(id, why) = task else { panic!("{task:?} behind a gate") };
                        seen += 1;
                        assert!(seen < 10_000, "the sweep spins behind a gate");
                        let free = Lock::default();
                        let key = self.key(&id);
                        let lock = self.keys.get(key).unwrap_or(&free);
                        self.manager.see(&id, why, lock, now);
                        self.manager.check().unwrap();
                    }
                }
            }
            Task::See(..) => panic!("the gate was presumed open"),
            Task::Groups(_) | Task::GroupOver(_) => {
                panic!("groups wait in the engine's tests")
            }
        }
        let answers = self.manager.take_answers();
        self.tell(answers);
        self.manager.check().unwrap();
        self.is_open
    }

    pub fn sweep(&mut self) {
        self.manager.sweep_begins(self.now());
        while self.sweep_one() {}
    }

    pub fn key(&self, id: &LockId) -> Key {
        let known = self.keys.keys().copied().find(|key| **key == *id.key);
        known.unwrap_or_else(|| id.key.to_vec().leak())
    }

    pub fn closed(&mut self) -> Vec<u64> {
        let mut closed = Vec::new();
        while let Some(client) = self.manager.closing.next_to_close() {
            assert!(self.manager.closing.contains(client));
            closed.push(client.get());
            self.manager.closing.closed(client);
        }
        closed.sort_unstable();
        closed
    }
}
