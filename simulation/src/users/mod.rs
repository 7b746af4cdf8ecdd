//! Users of locks: processes that run the state machines of `clients/rust`, the very code that
//! ships, against simulated servers, with silence, loss, delay, restarts, cuts, cancellations,
//! forks, frozen processes and promoted replicas. `docs/testing.md` describes it.

mod course;
mod faults;
mod hands;
mod inbox;
mod laws;
mod links;
mod seats;

use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;

use crate::laws::Broken;
use crate::machine::{Ask, Attempt, FOREVER, Hold, Input, Ms, Names, Output, Planted, Release};
use crate::machine::{SeatState, Server, Tell};
use crate::trace;
use crate::world::{Setting, World};
use inbox::{Inbox, Letter};
use links::{Asked, Gone, Link};

/// Requests of inboxes belong to no machine: they have this number.
const INBOX: Id = 0;

pub use course::{Found, many, one, told, traces};

/// The longest lease that users ask for, in milliseconds.
const LEASE_MAX: Ms = 3000;

/// A unique number.
pub(crate) type Id = u64;

/// One owner at one key in one mode.
pub(crate) type Place = (u8, Rc<str>, bool);

/// What a machine's operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Reply,
    OwnReply,
    Opened,
    Subscribed,
    Message,
    Time,
    Nothing,
}

/// A machine of a client package.
#[derive(Debug)]
enum Work {
    Attempt(Attempt),
    Release(Release),
    /// Undoing a request to tie a session; no user waits for it.
    Untie(Release),
    Hold(Hold),
}

impl Work {
    fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match self {
            Self::Attempt(machine) => machine.step(now, input, out),
            Self::Release(machine) | Self::Untie(machine) => machine.step(now, input, out),
            Self::Hold(machine) => machine.step(now, input, out),
        }
    }
}

/// A machine, and the operation that it waits for.
#[derive(Debug)]
struct Job {
    work: Work,
    process: usize,
    /// The user for which it works, unless it is a hold.
    user: usize,
    place: Place,
    ask: Ask,
    until: Until,
    by: Ms,
    /// The generation of the last request on a shared connection, which identifies its reply.
    generation: u32,
    /// What waits for a connection.
    unsent: Option<(String, bool)>,
    shared: Option<Id>,
    own: Option<Id>,
    sent: Ms,
    /// When a server last decided a request or let it wait, and when an operation last succeeded.
    served: Ms,
    reached: Ms,
    /// Whether it waits for the message.
    is_waiting: bool,
    writes: u32,
    has_max_queue: bool,
    letter: Letter,
    undone_since: Ms,
    frees: u8,
    lines: Vec<String>,
}

/// A hold, as its process sees it.
#[derive(Debug)]
struct Tenure {
    /// The ID of its machine.
    hold: Id,
    token: u64,
    depth: u32,
    /// Whether its users may rely on it until its deadline.
    is_held: bool,
    /// Whether its session's connection has ended.
    is_doubted: bool,
    link: Option<Id>,
    lingers: bool,
    ask: Ask,
}

#[derive(Debug)]
struct Seat {
    state: SeatState,
    /// The users that wait for it, until when, and the result with which each wait then ends.
    waiting: Vec<(usize, Ms, Tell)>,
    tenure: Option<Tenure>,
    /// Until this time, a server may have a hold or a wait that no user knows of.
    excused_until: Ms,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    /// Waits for its seat: to acquire, or to release this hold.
    Coming(Option<Id>),
    Asking(Id),
    Holding(Id),
    Releasing,
}

#[derive(Clone, Debug)]
struct User {
    state: State,
    place: Place,
    ask: Ask,
    has_max_queue: bool,
    start: Ms,
}

/// One server as a process sees it.
#[derive(Debug)]
struct Peer {
    server: Server,
    shared: Option<Id>,
    idle: Vec<Id>,
    inbox: Inbox,
    dials_since: Option<Ms>,
    failed_at: Option<Ms>,
    /// Nothing gets through until then.
    dark_until: Ms,
    /// When the last unanswered request was sent.
    silent: Ms,
}

#[derive(Debug)]
struct Process {
    names: Names,
    is_closing: bool,
    closes_at: Ms,
    frozen_until: Ms,
    /// The server that it regards as the primary.
    route: usize,
    peers: Vec<Peer>,
    seats: BTreeMap<Place, Seat>,
    users: Vec<User>,
    /// When it was last stopped.
    was_frozen: Ms,
}

/// A world, and the processes that use it.
pub struct Users {
    world: World,
    rng: Rng,
    planted: Planted,
    now: Ms,
    leader: usize,
    processes: Vec<Process>,
    jobs: BTreeMap<Id, Job>,
    links: BTreeMap<Id, Link>,
    gone: Vec<Gone>,
    last_id: Id,
    is_calm: bool,
    broken: Option<Broken>,
    /// What was seen.
    pub found: Found,
    records: bool,
}

impl Users {
    /// The world of a seed; `records` keeps the traces.
    pub fn new(seed: u64, planted: Planted, records: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes = *rng.choice(&[1, 2, 2]).unwrap_or(&1);
        let setting = Setting {
            nodes,
            clients: 0,
            replaces_replies: false,
            replies_at_once: rng.bool(),
            loads_before_flush: rng.bool(),
            clocks_ms: Vec::new(),
            grace_ms: 0,
            max_tells: 1000,
            max_tell_ms: *rng.choice(&[3_600_000, 3_600_000, 1000]).unwrap_or(&1000),
            step_us: 0,
            fault: crate::fault::Fault::None,
        };
        let mut users = Self {
            world: World::new(&setting),
            rng,
            planted,
            now: 1,
            leader: 0,
            processes: Vec::new(),
            jobs: BTreeMap::new(),
            links: BTreeMap::new(),
            gone: Vec::new(),
            last_id: 0,
            is_calm: false,
            broken: None,
            found: Found::default(),
            records,
        };
        for _ in 0..users.rng.usize(1..4) {
            let names = Names::new(users.rng.u64(..));
            users.add_process(names);
        }
        users
    }

    fn id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    fn add_process(&mut self, names: Names) {
        let nothing = (0, "".into(), false);
        let user = || User {
            state: State::Idle,
            place: nothing.clone(),
            ask: no_ask(),
            has_max_queue: false,
            start: 0,
        };
        let peer = || Peer {
            server: Server::new(self.planted),
            shared: None,
            idle: Vec::new(),
            inbox: Inbox::default(),
            dials_since: None,
            failed_at: None,
            dark_until: 0,
            silent: 0,
        };
        self.processes.push(Process {
            names,
            is_closing: false,
            closes_at: FOREVER,
            frozen_until: 0,
            route: self.leader,
            peers: self.world.machines.iter().map(|_| peer()).collect(),
            seats: BTreeMap::new(),
            users: (0..self.rng.usize(1..4)).map(|_| user()).collect(),
            was_frozen: 0,
        });
    }

    /// Writes a line of the story, if there is one.
    fn log(&mut self, line: impl FnOnce() -> String) {
        if self.records {
            let line = format!("{} ms: {}", self.now, line());
            self.found.story.push(line);
        }
    }

    fn breaks(&mut self, law: &'static str, what: String) {
        self.broken.get_or_insert(Broken { law, what });
    }

    /// Gives a machine an input, and carries out its outputs.
    fn tell(&mut self, id: Id, input: Input) {
        self.limit_outage(id, &input);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let mut out = Vec::new();
        let line = self.records.then(|| input.clone());
        job.work.step(self.now, input, &mut out);
        if let Some(input) = line {
            let said =
                format!("{} {}: {}", job.place.1, job.place.0, trace::line(self.now, &input, &out));
            self.found.story.push(said);
            job.lines.push(trace::line(self.now, &input, &out));
        }
        self.found.inputs += 1;
        for output in out {
            self.carry_out(id, output);
        }
    }

    fn begin(&mut self, work: Work, process: usize, user: usize, place: Place, ask: Ask) -> Id {
        let id = self.id();
        let job = Job {
            work,
            process,
            user,
            place,
            ask,
            until: Until::Nothing,
            by: FOREVER,
            generation: 0,
            unsent: None,
            shared: None,
            own: None,
            sent: 0,
            served: self.now,
            reached: self.now,
            is_waiting: false,
            writes: 0,
            has_max_queue: false,
            letter: Letter::default(),
            undone_since: FOREVER,
            frees: 0,
            lines: Vec::new(),
        };
        self.jobs.insert(id, job);
        id
    }

    fn title(&mut self, id: Id, title: impl FnOnce() -> String) {
        if self.records
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.lines.push(title());
        }
    }

    fn over(&mut self, id: Id) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(link) = job.own {
            self.drop_link(link);
        }
        if self.records {
            self.found.traces.push(job.lines);
        }
    }
}

fn no_ask() -> Ask {
    Ask {
        wait: 0,
        patience: crate::machine::PATIENCE,
        outage: FOREVER,
        lease: 1000,
        depth: 1,
        below: None,
        hears: false,
        session: false,
        has_acks: false,
    }
}

fn asked_by(job: Id, generation: u32, is_own: bool) -> Asked {
    Asked { job, generation, is_own }
}
