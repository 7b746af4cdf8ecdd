//! Random histories of one owner with several connections, whose grants wait for acknowledgments:
//! what it was told stays, and what it was not told does not stay.

use crate::support::acks::{confirmed, ticket};
use crate::support::random;
use crate::support::server::{Key, Server};
use crate::support::{lease, release};
use fastrand::Rng;
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, Input, Levels, Mode, Patience, Release, Reply, WaiterId};

const K: Key = b"k";
const STEPS: usize = 14;

/// How an owner counts its levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each request adds one.
    Plain,
    /// Each request names the depth.
    Depth,
}

struct Owner {
    server: Server,
    way: Way,
    /// The levels of which it was told, and which it has not released.
    told: u16,
    /// The connections that wait, each with the depth that it asked for; `None` is a renewal.
    blocked: Vec<(u64, Option<u16>)>,
    stream: u64,
    log: Vec<String>,
}

impl Owner {
    fn new(way: Way) -> Self {
        let (server, log) = (Server::new(), Vec::new());
        Self { server, way, told: 0, blocked: Vec::new(), stream: 0, log }
    }

    fn depth(&self) -> u16 {
        self.server.hold(K, "a", Mode::Write).map_or(0, |(depth, _)| depth)
    }

    /// A request for this depth, or for one level more.
    fn request(&self, rng: &mut Rng) -> (u16, Acquire<'static>) {
        let depth = rng.u16(1..=self.depth().saturating_add(1));
        let asked = (self.way == Way::Depth).then_some(depth);
        let ask = Acquire { depth: asked, lease: lease(600_000), ..confirmed("a", rng.u8(0..=2)) };
        (depth, ask)
    }

    fn is_told(&mut self, depth: u16) {
        self.told = if self.way == Way::Depth { self.told.max(depth) } else { self.told + 1 };
    }

    fn act(&mut self, rng: &mut Rng) {
        match rng.u8(0..12) {
            0..3 => self.blocks(rng),
            3..5 => self.asks(rng, Patience::Ticket(lease(500))),
            5 => self.asks(rng, Patience::None),
            // It renews what it knows of.
            6 if self.told > 0 => {
                let waiter = self.server.renews(K, "a", 600_000, rng.u8(0..=2));
                self.blocked.push((waiter, None));
                self.log.push(format!("{waiter}: renew"));
            }
            7 => self.releases(rng),
            8 => {
                self.log.push("cancel".into());
                self.server.ask(K, Input::Cancel(b"a"));
            }
            6 | 9 => self.closes(rng),
            10 => self.replicas(rng),
            _ => self.passes(rng.u64(1..1500)),
        }
        self.hears();
        assert!(self.depth() >= self.told, "{} of {}: {:#?}", self.depth(), self.told, self.log);
    }

    fn blocks(&mut self, rng: &mut Rng) {
        let (depth, ask) = self.request(rng);
        let client = 100 + self.log.len() as u64;
        let waiter = self.server.confirms(K, ask, client);
        self.log.push(format!("{waiter}: block {:?} acks {}", ask.depth, ask.acks));
        self.blocked.push((waiter, Some(depth)));
    }

    fn asks(&mut self, rng: &mut Rng, patience: Patience) {
        let (depth, ask) = self.request(rng);
        let ask = match patience {
            Patience::Ticket(_) => Acquire { patience: ticket("a", 0).patience, ..ask },
            _ => Acquire { patience, ..ask },
        };
        let reply = self.server.ask(K, Input::Acquire(ask));
        self.log.push(format!("{patience:?} {:?} acks {}: {reply:?}", ask.depth, ask.acks));
        if matches!(reply, Reply::Granted { .. }) {
            self.is_told(depth);
        }
    }

    /// Not while it renews, nor, with `DEPTH`, while it asks for depths.
    fn releases(&mut self, rng: &mut Rng) {
        let is_in_use = |depth: &Option<u16>| depth.is_none() || self.way == Way::Depth;
        if self.told == 0 || self.blocked.iter().any(|(_, depth)| is_in_use(depth)) {
            return;
        }
        let left = match self.way {
            Way::Plain => self.told - 1,
            Way::Depth => rng.u16(0..self.told),
        };
        let levels = match self.way {
            Way::Plain => Levels::One,
            Way::Depth => Levels::DownTo(left),
        };
        let reply = self.server.ask(K, Input::Release(Release { levels, ..release(b"a") }));
        self.log.push(format!("release to {left}: {reply:?}"));
        self.told = left;
    }

    fn hears(&mut self) {
        for (waiter, depth) in std::mem::take(&mut self.blocked) {
            let Some(told) = self.server.told_to(waiter) else {
                self.blocked.push((waiter, depth));
                continue;
            };
            self.log.push(format!("{waiter}: {told:?}"));
            if let (Some(depth), Reply::Granted { .. }) = (depth, told) {
                self.is_told(depth);
            }
        }
    }

    fn closes(&mut self, rng: &mut Rng) {
        if self.blocked.is_empty() {
            return;
        }
        let (waiter, _) = self.blocked.swap_remove(rng.usize(0..self.blocked.len()));
        self.log.push(format!("{waiter}: closes"));
        let now = self.server.now();
        self.server.manager.departed(WaiterId::from(waiter), Outcome::Disconnected, now);
        if rng.bool() {
            self.server.sweep();
        }
    }

    fn replicas(&mut self, rng: &mut Rng) {
        let before = self.stream;
        self.stream += 10;
        let mut at = || if rng.bool() { before } else { self.stream };
        let acknowledged = [at(), at()];
        self.log.push(format!("stream {}: {acknowledged:?}", self.stream));
        self.server.replicas(self.stream, &acknowledged);
    }

    fn passes(&mut self, ms: u64) {
        self.log.push(format!("{ms} ms"));
        self.server.pass_ms(ms);
        self.server.sweep();
    }

    /// Everything is told or taken back.
    fn ends(mut self, rng: &mut Rng) {
        if rng.bool() {
            self.stream += 10;
            self.server.replicas(self.stream, &[self.stream; 2]);
        }
        self.passes(5000);
        self.hears();
        assert!(self.blocked.is_empty(), "{:?} wait on: {:#?}", self.blocked, self.log);
        assert_eq!(self.depth(), self.told, "{:#?}", self.log);
    }
}

fn plays(way: Way) {
    let (mut rng, histories) = random(3_000);
    for _ in 0..histories {
        let mut owner = Owner::new(way);
        for _ in 0..STEPS {
            owner.act(&mut rng);
        }
        owner.ends(&mut rng);
    }
}

#[test]
fn an_owner_has_the_levels_that_it_was_told_of_and_no_others() {
    plays(Way::Plain);
}

#[test]
fn an_owner_that_names_depths_has_the_depth_that_it_was_told_and_no_more() {
    plays(Way::Depth);
}
