//! Many objects without contention: levels of one hold, and held locks whose leases are extended.

use redis::Value;

use crate::crowd::{Crowd, PIPELINED, exchange, exchange_all};
use rlock_testkit::{Server, Waiter};

/// One owner holds a lock with many levels, and acquires and releases one more.
pub struct Reentries {
    connection: Waiter,
}

impl Crowd for Reentries {
    const STEPS: usize = 100_000;
    const SIZE_MAX: usize = 10_000;

    fn gather(server: &Server, size: usize) -> Self {
        let mut connection = Waiter::connect(server);
        exchange_all(&mut connection, size, |_| "RLOCK.ACQUIRE hot owner LEASE 600000".to_owned());
        Reentries { connection }
    }

    fn go(&mut self, steps: usize) {
        let pair = ["RLOCK.ACQUIRE hot owner", "RLOCK.RELEASE hot owner"].map(str::to_owned);
        let batch = vec![pair; PIPELINED / 2].concat();
        for _ in 0..steps.div_ceil(PIPELINED / 2) {
            exchange(&mut self.connection, &batch);
        }
    }
}

/// This many locks are held, and one client extends their leases in turn.
pub struct Renewals(Keys);
/// The same work with plain keys that have a time to live.
pub struct PExpires(Keys);

struct Keys {
    connection: Waiter,
    size: usize,
    next: usize,
    /// How many touches were sent. Each touch sets a deadline that is a millisecond later, so that
    /// each changes something.
    said: usize,
}

impl Keys {
    fn made(server: &Server, size: usize, make: impl Fn(usize) -> String) -> Keys {
        let mut connection = Waiter::connect(server);
        exchange_all(&mut connection, size, make);
        Keys { connection, size, next: 0, said: 0 }
    }

    fn touch(&mut self, steps: usize, touch: impl Fn(usize, usize) -> String) {
        for _ in 0..steps.div_ceil(PIPELINED) {
            let batch = (0..PIPELINED).map(|_| {
                self.next = (self.next + 1) % self.size;
                self.said += 1;
                touch(self.next, self.said)
            });
            let batch: Vec<_> = batch.collect();
            let replies = exchange(&mut self.connection, &batch);
            assert!(replies.iter().all(|reply| *reply == Value::Int(1)), "{replies:?}");
        }
    }
}

impl Crowd for Renewals {
    const STEPS: usize = 200_000;
    const SIZE_MAX: usize = 100_000;

    fn gather(server: &Server, size: usize) -> Self {
        Renewals(Keys::made(server, size, |n| format!("RLOCK.ACQUIRE lock:{n} owner LEASE 600000")))
    }

    fn go(&mut self, steps: usize) {
        let lease = |said: usize| 600_000 + said;
        self.0.touch(steps, |n, said| format!("RLOCK.RENEW lock:{n} owner LEASE {}", lease(said)));
    }
}

impl Crowd for PExpires {
    const STEPS: usize = 200_000;
    const SIZE_MAX: usize = 100_000;

    fn gather(server: &Server, size: usize) -> Self {
        PExpires(Keys::made(server, size, |n| format!("SET lock:{n} owner NX PX 600000")))
    }

    fn go(&mut self, steps: usize) {
        self.0.touch(steps, |n, said| format!("PEXPIRE lock:{n} {}", 600_000 + said));
    }
}
