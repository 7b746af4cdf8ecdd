//! Crowds of blocked connections, tickets and readers of one lock. For comparison, there are also
//! connections without locks.

use crate::crowd::{Crowd, PIPELINED, connected, exchange, exchange_all};
use crate::stage::until_all_is_read;
use rlock_testkit::{Server, Waiter};

/// One client holds the lock, and the others are blocked. The holder releases and queues again in
/// one write.
pub struct Line<const LOOKS_FOR_DEADLOCKS: bool> {
    people: Vec<Waiter>,
    /// For each connection, how many replies it has yet to read, including the coming grant.
    owed: Vec<usize>,
    holder: usize,
}

impl<const LOOKS_FOR_DEADLOCKS: bool> Crowd for Line<LOOKS_FOR_DEADLOCKS> {
    // A search for deadlocks takes up to 1000 steps of its own.
    const STEPS: usize = if LOOKS_FOR_DEADLOCKS { 2000 } else { 10_000 };
    const SIZE_MAX: usize = 10_000;
    const IS_CONNECTED_EACH: bool = true;

    fn gather(server: &Server, size: usize) -> Self {
        let (mut admin, mut watcher) = (server.client(), Waiter::connect(server));
        admin.ask("CONFIG SET rlock.deadlock-detection no");
        let mut people = connected(server, size + 1);
        for (place, person) in people.iter_mut().enumerate() {
            person.say(&blocked_acquire(place));
            until_all_is_read(&mut watcher);
        }
        let mut line = Line { people, owed: vec![1; size + 1], holder: 0 };
        line.hear_of_the_grant();
        line.go(size + 1);
        if LOOKS_FOR_DEADLOCKS {
            admin.ask("CONFIG SET rlock.deadlock-detection yes");
        }
        line
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps {
            let release = format!("RLOCK.RELEASE hot owner-{:06}", self.holder);
            self.people[self.holder].say_all(&[&release, &blocked_acquire(self.holder)]);
            self.owed[self.holder] = 2;
            self.holder = (self.holder + 1) % self.people.len();
            self.hear_of_the_grant();
        }
    }
}

impl<const LOOKS_FOR_DEADLOCKS: bool> Line<LOOKS_FOR_DEADLOCKS> {
    /// Waits for the grant of the client that is next. If another one got the lock, this would
    /// hang: so the order is checked too.
    fn hear_of_the_grant(&mut self) {
        for _ in 0..self.owed[self.holder] {
            self.people[self.holder].answer();
        }
    }
}

fn blocked_acquire(place: usize) -> String {
    format!("RLOCK.ACQUIRE hot owner-{place:06} BLOCK 0")
}

/// The same number of connections send PING in turn, which shows how much many connections cost by
/// themselves.
pub struct Pings {
    people: Vec<Waiter>,
    next: usize,
}

impl Crowd for Pings {
    const STEPS: usize = 10_000;
    const SIZE_MAX: usize = 10_000;
    const IS_CONNECTED_EACH: bool = true;

    fn gather(server: &Server, size: usize) -> Self {
        let mut pings = Pings { people: connected(server, size), next: 0 };
        pings.go(size);
        pings
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps {
            self.people[self.next].ask("PING");
            self.next = (self.next + 1) % self.people.len();
        }
    }
}

/// The lock stays held. The tickets behind the first one ask again in turn.
pub struct Tickets {
    connection: Waiter,
    size: usize,
    next: usize,
}

impl Crowd for Tickets {
    const STEPS: usize = 200_000;
    const SIZE_MAX: usize = 100_000;

    fn gather(server: &Server, size: usize) -> Self {
        let mut connection = Waiter::connect(server);
        connection.ask("RLOCK.ACQUIRE hot holder LEASE 600000");
        connection.ask("RLOCK.ACQUIRE hot first QUEUE 60000");
        let mut tickets = Tickets { connection, size, next: 0 };
        tickets.go(size);
        tickets
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps.div_ceil(PIPELINED) {
            let polls: Vec<String> = (0..PIPELINED).map(|_| self.next_poll()).collect();
            let replies = exchange(&mut self.connection, &polls);
            assert!(replies.iter().all(|reply| *reply == redis::Value::Nil), "{replies:?}");
        }
    }
}

impl Tickets {
    fn next_poll(&mut self) -> String {
        self.next = (self.next + 1) % self.size;
        format!("RLOCK.ACQUIRE hot owner-{:06} QUEUE 60000", self.next)
    }
}

/// All readers keep their holds; one more acquires and releases again and again.
pub struct Readers {
    connection: Waiter,
}

impl Crowd for Readers {
    const STEPS: usize = 100_000;
    const SIZE_MAX: usize = 10_000;

    fn gather(server: &Server, size: usize) -> Self {
        let mut connection = Waiter::connect(server);
        exchange_all(&mut connection, size, |number| {
            format!("RLOCK.ACQUIRE hot reader-{number:06} READ LEASE 600000")
        });
        Readers { connection }
    }

    fn go(&mut self, steps: usize) {
        let pair = ["RLOCK.ACQUIRE hot visitor READ", "RLOCK.RELEASE hot visitor READ"];
        let batch = vec![pair.map(str::to_owned); PIPELINED / 2].concat();
        for _ in 0..steps.div_ceil(PIPELINED / 2) {
            exchange(&mut self.connection, &batch);
        }
    }
}
