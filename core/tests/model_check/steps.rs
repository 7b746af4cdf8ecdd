//! What can happen, and what of it happens in which profile.

use std::num::NonZeroU32;

use rlock_core::{Levels, Mode};

pub const OWNERS: [&[u8]; 3] = [b"a", b"b", b"c"];

/// A step. Locks, owners and connections are numbers from 0.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Asks(Ask),
    /// A request for all locks together that does not wait.
    AsksAll {
        owner: usize,
        modes: [Mode; 2],
    },
    ReleasesAll {
        owner: usize,
    },
    Releases {
        lock: usize,
        owner: usize,
        mode: Option<Mode>,
        levels: Levels,
    },
    /// Releases by the token of the first hold, whoever owns it.
    ReleasesByToken {
        lock: usize,
        owner: usize,
    },
    Renews {
        lock: usize,
        owner: usize,
    },
    Cancels {
        lock: usize,
        owner: usize,
    },
    Forces {
        lock: usize,
        mode: Option<Mode>,
    },
    Takes {
        lock: usize,
        owner: usize,
    },
    /// The owner's first parked connection at this lock ends.
    Leaves {
        lock: usize,
        owner: usize,
    },
    /// The reply to the last grant is read, or its connection ended before that.
    Hears {
        lock: usize,
    },
    GoesUnheard {
        lock: usize,
    },
    /// A millisecond passes. Due work is done, or the alarm is late.
    Passes {
        is_late: bool,
    },
    /// A connection with sessions ends.
    Disconnects {
        client: u64,
    },
    /// Something other than RLOCK removes the key.
    Vanishes {
        lock: usize,
    },
    /// The slot moves away, or another value replaces the key: all waiters are dismissed.
    IsDismissed {
        lock: usize,
        by_type: bool,
    },
    /// `rlock.max-tickets` is reached, or no longer.
    TicketsRunOut,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub lock: usize,
    pub owner: usize,
    pub mode: Mode,
    pub upgrade: bool,
    pub wait: Wait,
    pub limit: Option<NonZeroU32>,
    pub max_queue: Option<usize>,
    pub depth: Option<u16>,
    pub client: Option<u64>,
}

/// What a request does if something is in its way. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    No,
    Block(Option<u64>),
    Ticket(u64),
}

/// A town: the number of locks, and what happens there.
pub struct Profile {
    pub name: &'static str,
    pub locks: usize,
    /// How many connections of one owner may be parked at one lock.
    pub connections: usize,
    /// Whether a parked owner does nothing else. Then no cycle of waits can ever come about.
    pub one_thing_at_a_time: bool,
    /// Whether replies to parked connections take time to be read.
    pub is_slow: bool,
    pub max_depth: u16,
    pub steps: Vec<Step>,
}

/// The lease of every hold without a session, in milliseconds.
pub const LEASE_MS: u64 = 2;
/// A third of it, 1 ms, is the smallest unit of time. In milliseconds.
pub const SESSION_LEASE_MS: u64 = 3;

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];

impl Profile {
    /// Two locks, and owners that do one thing at a time, as the deadlock search assumes.
    pub fn two_locks() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }];
        for (lock, owner) in pairs(2) {
            for mode in MODES {
                for wait in [Wait::Block(None), Wait::Ticket(2)] {
                    steps.push(plain(lock, owner, mode, wait));
                }
            }
            steps.push(upgrade(lock, owner, Wait::Block(None)));
            steps.push(one_level(lock, owner));
            steps.push(Step::Leaves { lock, owner });
        }
        Self {
            name: "two locks, one thing at a time",
            locks: 2,
            connections: 1,
            one_thing_at_a_time: true,
            is_slow: false,
            max_depth: 1,
            steps,
        }
    }

    /// Two locks, and owners that do several things at once, on several connections.
    pub fn two_locks_in_any_way() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }, Step::Passes { is_late: true }];
        for (lock, owner) in pairs(2) {
            for mode in MODES {
                for wait in [Wait::No, Wait::Block(None), Wait::Block(Some(1)), Wait::Ticket(1)] {
                    steps.push(plain(lock, owner, mode, wait));
                }
            }
            steps.push(upgrade(lock, owner, Wait::Block(None)));
            steps.push(upgrade(lock, owner, Wait::Ticket(2)));
            steps.push(one_level(lock, owner));
            steps.extend([
                Step::Renews { lock, owner },
                Step::Cancels { lock, owner },
                Step::Leaves { lock, owner },
            ]);
        }
        steps.extend((0..2).map(|lock| Step::Forces { lock, mode: None }));
        steps.extend((0..2).map(|lock| Step::Takes { lock, owner: lock }));
        Self {
            name: "two locks, several things at once",
            locks: 2,
            connections: 2,
            one_thing_at_a_time: false,
            is_slow: false,
            max_depth: 2,
            steps,
        }
    }

    /// Owners that ask again and again on other connections, and read their replies late or never.
    pub fn many_connections() -> Self {
        let mut steps = vec![Step::Hears { lock: 0 }, Step::GoesUnheard { lock: 0 }];
        for (lock, owner) in pairs(1).filter(|(_, owner)| *owner < 2) {
            for mode in MODES {
                steps.push(plain(lock, owner, mode, Wait::Block(None)));
            }
            steps.push(one_level(lock, owner));
            steps.push(Step::Leaves { lock, owner });
        }
        Self {
            name: "one lock, many connections",
            locks: 1,
            connections: 3,
            one_thing_at_a_time: false,
            is_slow: true,
            max_depth: 2,
            steps,
        }
    }

    /// Two locks that are requested together, beside requests for one of them.
    pub fn units() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }, Step::Passes { is_late: true }];
        for owner in 0..OWNERS.len() {
            for modes in [MODES, [Mode::Write; 2], [Mode::Read; 2]] {
                steps.push(Step::AsksAll { owner, modes });
            }
            steps.push(Step::ReleasesAll { owner });
        }
        for (lock, owner) in pairs(2) {
            for mode in MODES {
                steps.push(plain(lock, owner, mode, Wait::Block(None)));
            }
            steps.push(plain(lock, owner, Mode::Read, Wait::Ticket(2)));
            steps.push(one_level(lock, owner));
            steps.push(Step::Leaves { lock, owner });
        }
        Self {
            name: "two locks at once",
            locks: 2,
            connections: 1,
            one_thing_at_a_time: true,
            is_slow: false,
            max_depth: 2,
            steps,
        }
    }

    /// One lock, limited to one reader or to two, beside readers without a limit and writers.
    pub fn permits() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }];
        for (lock, owner) in pairs(1) {
            for limit in 1..=2 {
                for wait in [Wait::No, Wait::Block(None), Wait::Block(Some(1)), Wait::Ticket(2)] {
                    steps.push(Step::Asks(limited(lock, owner, limit, wait)));
                }
            }
            let short = Ask { max_queue: Some(1), ..limited(lock, owner, 1, Wait::Block(None)) };
            let few = Ask { max_queue: Some(0), ..limited(lock, owner, 2, Wait::Ticket(2)) };
            let tied = Ask {
                client: Some(1 + owner as u64),
                ..limited(lock, owner, 2, Wait::Block(None))
            };
            steps.extend([short, few, tied].map(Step::Asks));
            for mode in MODES {
                steps.push(plain(lock, owner, mode, Wait::Block(None)));
            }
            steps.push(plain(lock, owner, Mode::Write, Wait::Ticket(1)));
            steps.push(upgrade(lock, owner, Wait::Block(None)));
            steps.push(one_level(lock, owner));
            steps.extend([Step::Cancels { lock, owner }, Step::Leaves { lock, owner }]);
        }
        steps.push(Step::Disconnects { client: 1 });
        Self {
            name: "one lock, permits",
            locks: 1,
            connections: 2,
            one_thing_at_a_time: false,
            is_slow: false,
            max_depth: 2,
            steps,
        }
    }

    /// Two locks with a limit each, and owners that do one thing at a time.
    pub fn permits_of_two_locks() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }];
        for (lock, owner) in pairs(2) {
            for limit in 1..=2 {
                steps.push(Step::Asks(limited(lock, owner, limit, Wait::Block(None))));
            }
            steps.push(plain(lock, owner, Mode::Read, Wait::Block(None)));
            steps.push(plain(lock, owner, Mode::Write, Wait::Block(None)));
            steps.push(one_level(lock, owner));
            steps.push(Step::Leaves { lock, owner });
        }
        Self {
            name: "two locks, permits, one thing at a time",
            locks: 2,
            connections: 1,
            one_thing_at_a_time: true,
            is_slow: false,
            max_depth: 1,
            steps,
        }
    }

    /// One lock, and everything that can happen to it.
    pub fn one_lock() -> Self {
        let mut steps = vec![Step::Passes { is_late: false }, Step::Passes { is_late: true }];
        for (lock, owner) in pairs(1) {
            for mode in MODES {
                for wait in [
                    Wait::No,
                    Wait::Block(None),
                    Wait::Block(Some(1)),
                    Wait::Ticket(1),
                    Wait::Ticket(2),
                ] {
                    steps.push(plain(lock, owner, mode, wait));
                    steps.push(tied(lock, owner, mode, wait));
                }
                for depth in 1..=3 {
                    steps.push(deep(lock, owner, mode, depth));
                }
                let mode = Some(mode);
                for levels in [Levels::One, Levels::All, Levels::DownTo(0), Levels::DownTo(1)] {
                    steps.push(Step::Releases { lock, owner, mode, levels });
                }
            }
            for wait in [Wait::No, Wait::Block(None), Wait::Block(Some(1)), Wait::Ticket(2)] {
                steps.push(upgrade(lock, owner, wait));
            }
            steps.extend([
                one_level(lock, owner),
                Step::ReleasesByToken { lock, owner },
                Step::Takes { lock, owner },
                Step::Renews { lock, owner },
                Step::Cancels { lock, owner },
                Step::Leaves { lock, owner },
            ]);
        }
        let lock = 0;
        steps.extend(
            [None, Some(Mode::Read), Some(Mode::Write)].map(|mode| Step::Forces { lock, mode }),
        );
        steps.extend((1..=2).map(|client| Step::Disconnects { client }));
        steps.extend([
            Step::Hears { lock },
            Step::GoesUnheard { lock },
            Step::Vanishes { lock },
            Step::IsDismissed { lock, by_type: false },
            Step::IsDismissed { lock, by_type: true },
            Step::TicketsRunOut,
        ]);
        Self {
            name: "one lock, everything",
            locks: 1,
            connections: 2,
            one_thing_at_a_time: false,
            is_slow: true,
            max_depth: 2,
            steps,
        }
    }
}

fn pairs(locks: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..locks).flat_map(|lock| (0..OWNERS.len()).map(move |owner| (lock, owner)))
}

fn ask(lock: usize, owner: usize, mode: Mode, wait: Wait) -> Ask {
    let (upgrade, limit, max_queue, depth, client) = (false, None, None, None, None);
    Ask { lock, owner, mode, upgrade, limit, max_queue, wait, depth, client }
}

fn plain(lock: usize, owner: usize, mode: Mode, wait: Wait) -> Step {
    Step::Asks(ask(lock, owner, mode, wait))
}

fn upgrade(lock: usize, owner: usize, wait: Wait) -> Step {
    Step::Asks(Ask { upgrade: true, ..ask(lock, owner, Mode::Write, wait) })
}

fn limited(lock: usize, owner: usize, limit: u32, wait: Wait) -> Ask {
    Ask { limit: NonZeroU32::new(limit), ..ask(lock, owner, Mode::Read, wait) }
}

fn deep(lock: usize, owner: usize, mode: Mode, depth: u16) -> Step {
    Step::Asks(Ask { depth: Some(depth), ..ask(lock, owner, mode, Wait::No) })
}

/// Two connections for three owners: two owners share one.
fn tied(lock: usize, owner: usize, mode: Mode, wait: Wait) -> Step {
    let client = Some(1 + owner as u64 % 2);
    Step::Asks(Ask { client, ..ask(lock, owner, mode, wait) })
}

fn one_level(lock: usize, owner: usize) -> Step {
    Step::Releases { lock, owner, mode: None, levels: Levels::One }
}
