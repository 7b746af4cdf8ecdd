//! The same crowds with Redisson's scripts: owners in a fair queue, and readers.

use redis::Value;

use crate::crowd::{Crowd, exchange, exchange_all};
use crate::rivals;
use rlock_testkit::{Server, Waiter, now_ms};

const LEASE_MS: &str = "600000";

/// One client holds the lock, and the others are in the queue. The holder releases, the head of the
/// queue acquires the lock, and the previous holder queues again.
pub struct FairLine {
    connection: Waiter,
    acquire: String,
    release: String,
    size: usize,
    holder: usize,
}

impl Crowd for FairLine {
    const STEPS: usize = 1000;
    const SIZE_MAX: usize = 1000;

    fn gather(server: &Server, size: usize) -> Self {
        let mut admin = server.client();
        let acquire = rivals::load(&mut admin, include_str!("../redisson/fair_acquire.lua"));
        let release = rivals::load(&mut admin, include_str!("../redisson/fair_release.lua"));
        let connection = Waiter::connect(server);
        let mut line = FairLine { connection, acquire, release, size, holder: 0 };
        assert_eq!(line.ask_to_enter(0), Value::Nil);
        for waiter in 1..=size {
            assert_ne!(line.ask_to_enter(waiter), Value::Nil);
        }
        line
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps {
            let (owner, now) = (rivals::owner(self.holder), now_ms());
            let release = format!(
                "EVALSHA {} 4 hot queue ends latch {owner} {LEASE_MS} {now} channel: 20000",
                self.release
            );
            assert_eq!(self.connection.number(&release), 1);
            let next = (self.holder + 1) % (self.size + 1);
            assert_eq!(self.ask_to_enter(next), Value::Nil);
            assert_ne!(self.ask_to_enter(self.holder), Value::Nil);
            self.holder = next;
        }
    }
}

impl FairLine {
    fn ask_to_enter(&mut self, number: usize) -> Value {
        let (owner, now) = (rivals::owner(number), now_ms());
        self.connection.ask(&format!(
            "EVALSHA {} 3 hot queue ends {LEASE_MS} {owner} 300000 {now}",
            self.acquire
        ))
    }
}

/// This many clients keep their read locks; one more acquires and releases again and again.
pub struct ReadHolders {
    connection: Waiter,
    pair: [String; 2],
}

impl Crowd for ReadHolders {
    const STEPS: usize = 1000;
    const SIZE_MAX: usize = 1000;

    fn gather(server: &Server, size: usize) -> Self {
        let mut admin = server.client();
        let acquire = rivals::load(&mut admin, include_str!("../redisson/read_acquire.lua"));
        let release = rivals::load(&mut admin, include_str!("../redisson/read_release.lua"));
        let enters = |number: usize| {
            let owner = rivals::owner(number);
            format!("EVALSHA {acquire} 2 hot {{hot}}:{owner}:rwlock_timeout {LEASE_MS} {owner}")
        };
        let mut connection = Waiter::connect(server);
        exchange_all(&mut connection, size, enters);
        let visitor = rivals::owner(size);
        let leaves = format!(
            "EVALSHA {release} 5 hot channel {{hot}}:{visitor}:rwlock_timeout {{hot}} latch \
             {visitor} 20000"
        );
        ReadHolders { connection, pair: [enters(size), leaves] }
    }

    fn go(&mut self, steps: usize) {
        for _ in 0..steps {
            assert_eq!(exchange(&mut self.connection, &self.pair), [Value::Nil, Value::Int(0)]);
        }
    }
}
