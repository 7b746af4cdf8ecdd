//! Random histories of one owner with several connections. Its grants wait for acknowledgments, and
//! its replies take time to be read. The law: what a reply has reported remains, and what no reply
//! has reported does not.

use crate::support::acks::confirmed;
use crate::support::random;
use crate::support::server::{Key, Server};
use crate::support::{lease, release};
use fastrand::Rng;
use rlock_core::slow::Outcome;
use rlock_core::{Acquire, Confirmation, Input, Levels, Mode, Patience, Release, Reply, WaiterId};

const K: Key = b"k";
const STEPS: usize = 14;

/// How an owner counts its levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each request adds one.
    Plain,
    /// Each request names the depth.
    Depth,
    /// Some name the depth, others do not.
    Mixed,
}

/// What an owner knows of a request's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Known {
    Nothing,
    /// The reply was sent, but not read yet.
    Told,
    /// It has read the reply, or the reply to a later request.
    Heard,
}

/// A request that was granted.
#[derive(Clone, Debug)]
struct Request {
    /// The number of the connection's wait; 0 if the reply came at once.
    waiter: u64,
    depth: Option<u16>,
    known: Known,
}

/// Events of a hold, in order.
#[derive(Clone, Debug)]
enum Happening {
    Asked(Request),
    ReleasedOne,
    ReleasedTo(u16),
}

struct Owner {
    server: Server,
    way: Way,
    all: Vec<Happening>,
    stream: u64,
    log: Vec<String>,
}

impl Owner {
    fn new(way: Way) -> Self {
        let server = Server { keeps_waits: true, ..Server::new() };
        Self { server, way, all: Vec::new(), stream: 0, log: Vec::new() }
    }

    fn hold(&self) -> Option<(u16, Confirmation)> {
        self.server.hold(K, "a", Mode::Write)
    }

    fn depth(&self) -> u16 {
        self.hold().map_or(0, |(depth, _)| depth)
    }

    fn requests(&mut self) -> impl Iterator<Item = &mut Request> {
        self.all.iter_mut().filter_map(|it| match it {
            Happening::Asked(request) => Some(request),
            _ => None,
        })
    }

    /// The depth of the hold, counting only requests of which the owner knows at least this.
    fn depth_by(&self, known: Known) -> u16 {
        let mut depth = 0_u16;
        for happening in &self.all {
            match happening {
                Happening::Asked(request) if request.known >= known => {
                    depth = request.depth.map_or(depth + 1, |asked| depth.max(asked));
                }
                Happening::ReleasedOne => depth = depth.saturating_sub(1),
                Happening::ReleasedTo(left) => depth = depth.min(*left),
                Happening::Asked(_) => {}
            }
        }
        depth
    }

    /// A request for this depth, or for one level more.
    fn request(&self, rng: &mut Rng) -> Acquire<'static> {
        let depth = rng.u16(1..=self.depth().saturating_add(1));
        let is_plain = match self.way {
            Way::Plain => true,
            Way::Depth => false,
            Way::Mixed => rng.bool(),
        };
        let depth = (!is_plain).then_some(depth);
        Acquire { depth, lease: lease(600_000), ..confirmed("a", rng.u8(0..=2)) }
    }

    /// A request was granted, and the owner knows this much of it.
    fn was_granted(&mut self, waiter: u64, depth: Option<u16>, known: Known) {
        self.all.push(Happening::Asked(Request { waiter, depth, known }));
        if known == Known::Heard {
            self.knows();
        }
    }

    /// The owner has read a reply, so it relies on every other reply that was sent to it as well.
    fn knows(&mut self) {
        for request in self.requests().filter(|it| it.known == Known::Told) {
            request.known = Known::Heard;
        }
    }

    fn act(&mut self, rng: &mut Rng) {
        match rng.u8(0..15) {
            0..5 => self.blocks(rng),
            5 | 6 => self.asks(rng),
            // The owner renews what it knows of.
            7 if self.depth_by(Known::Heard) > 0 => self.renews(rng),
            8 | 9 => self.releases(rng),
            10 => {
                self.log.push("cancel".into());
                self.server.ask(K, Input::Cancel(b"a"));
            }
            7 | 11 => self.closes(rng),
            12 => self.replicas(rng),
            13 => self.hears(rng),
            _ => self.passes(rng.u64(1..1500)),
        }
        self.is_told();
        let told = self.depth_by(Known::Told);
        assert!(self.depth() >= told, "{} of {told}: {:#?}", self.depth(), self.log);
        let is_pending = self.hold().is_some_and(|(_, it)| it == Confirmation::Pending);
        assert!(!is_pending || told == 0, "it was told that it holds: {:#?}", self.log);
    }

    fn blocks(&mut self, rng: &mut Rng) {
        let ask = self.request(rng);
        let client = 100 + self.log.len() as u64;
        let waiter = self.server.confirms(K, ask, client);
        self.log.push(format!("{waiter}: block {:?} acks {}", ask.depth, ask.acks));
        self.was_granted(waiter, ask.depth, Known::Nothing);
    }

    fn renews(&mut self, rng: &mut Rng) {
        let waiter = self.server.renews(K, "a", 600_000, rng.u8(0..=2));
        self.log.push(format!("{waiter}: renew"));
        // If the request waits for nothing, the reply is sent at once.
        if self.server.told_to(waiter).is_some() {
            self.server.manager.heard_or_forgotten(waiter.into());
            return self.knows();
        }
        let request = Request { waiter, depth: Some(1), known: Known::Nothing };
        self.all.push(Happening::Asked(request));
    }

    fn asks(&mut self, rng: &mut Rng) {
        let ask = Acquire { patience: Patience::None, ..self.request(rng) };
        let reply = self.server.ask(K, Input::Acquire(ask));
        self.log.push(format!("ask {:?} acks {}: {reply:?}", ask.depth, ask.acks));
        if matches!(reply, Reply::Granted { .. }) {
            self.was_granted(0, ask.depth, Known::Heard);
        }
    }

    fn releases(&mut self, rng: &mut Rng) {
        let knows = self.depth_by(Known::Heard);
        if knows == 0 {
            return;
        }
        // While a request for a depth is undecided, the hold may have any number of levels.
        let is_open =
            |it: &Request| it.depth.is_some() && it.known != Known::Heard && it.waiter > 0;
        let is_unclear = self.requests().any(|it| is_open(it));
        let (levels, happening) = match rng.bool() {
            true if self.way != Way::Depth && !is_unclear => (Levels::One, Happening::ReleasedOne),
            _ => {
                let left = rng.u16(0..=knows);
                (Levels::DownTo(left), Happening::ReleasedTo(left))
            }
        };
        let reply = self.server.ask(K, Input::Release(Release { levels, ..release(b"a") }));
        self.log.push(format!("release {levels:?}: {reply:?}"));
        self.all.push(happening);
        if reply == Reply::Count(0) {
            // Callers that wait for acknowledgments are refused, and nothing else of the hold
            // remains.
            self.is_told();
            self.all.clear();
        }
    }

    /// Replies leave.
    fn is_told(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        for happening in &mut all {
            let Happening::Asked(request) = happening else { continue };
            let told = self.server.told_to(request.waiter).filter(|_| request.waiter > 0);
            let Some(told) = told.filter(|_| request.known == Known::Nothing) else { continue };
            self.log.push(format!("{}: {told:?}", request.waiter));
            if matches!(told, Reply::Granted { .. } | Reply::Renewed) {
                request.known = Known::Told;
            } else {
                self.server.manager.heard_or_forgotten(request.waiter.into());
                *happening = Happening::ReleasedTo(u16::MAX);
            }
        }
        self.all = all;
    }

    /// A reply is read.
    fn hears(&mut self, rng: &mut Rng) {
        let told = self.requests().filter(|it| it.known == Known::Told);
        let told: Vec<u64> = told.map(|it| it.waiter).collect();
        if let Some(waiter) = rng.choice(told) {
            self.log.push(format!("{waiter}: heard"));
            self.server.manager.heard_or_forgotten(waiter.into());
            self.knows();
        }
    }

    fn closes(&mut self, rng: &mut Rng) {
        let open = |it: &Happening| match it {
            Happening::Asked(it) if it.known != Known::Heard && it.waiter > 0 => Some(it.waiter),
            _ => None,
        };
        let open: Vec<(usize, u64)> =
            self.all.iter().enumerate().filter_map(|(at, it)| Some((at, open(it)?))).collect();
        let Some((at, waiter)) = rng.choice(open) else { return };
        self.log.push(format!("{waiter}: closes"));
        self.all[at] = Happening::ReleasedTo(u16::MAX);
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

    /// At the end, each reply was read, or its grant revoked.
    fn ends(mut self, rng: &mut Rng) {
        if rng.bool() {
            self.stream += 10;
            self.server.replicas(self.stream, &[self.stream; 2]);
        }
        self.passes(5000);
        self.is_told();
        while self.requests().any(|it| it.known != Known::Heard) {
            if rng.bool() {
                self.hears(rng);
            } else {
                self.closes(rng);
            }
        }
        self.passes(1);
        let owed = self.depth_by(Known::Heard);
        assert_eq!(self.depth(), owed, "{:#?}", self.log);
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

#[test]
fn an_owner_that_names_some_depths_has_what_it_was_told_and_no_more() {
    plays(Way::Mixed);
}
