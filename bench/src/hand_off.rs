//! Two clients and one lock: the time from the release by one client to the grant of the other. The
//! same rounds measure a PING, and the way without this module, in which the holder publishes the
//! release and the other client retries.

use std::time::Instant;

use redis::Value;

use crate::Profile;
use crate::book::Book;
use crate::sample::Sample;
use crate::stage::{self, server, until_all_is_read, us_since};
use rlock_testkit::{Server, Waiter};

pub const SECTION: &str = "waiting: hand-off between two clients, µs";
pub const HAND_OFF: &str = "RLOCK.RELEASE to the next one's grant";
pub const PING: &str = "PING to its reply";
pub const RETRY: &str = "DEL + PUBLISH to the next one's SET NX PX";

/// The first rounds are not counted: they warm caches and buffers.
const ROUNDS_BEFORE: usize = 200;

/// Measures all three in the same rounds.
pub fn measure(book: &mut Book, profile: Profile) {
    let rounds = if profile == Profile::Quick { 1000 } else { 5000 };
    let server = server(&[]);
    let mut watcher = Waiter::connect(&server);
    let (mut lock, mut retry) = (HandOff::between(&server), PublishAndRetry::between(&server));
    let mut samples: [Sample; 3] = Default::default();
    for round in 0..ROUNDS_BEFORE + rounds {
        lock.prepare();
        let begin = Instant::now();
        until_all_is_read(&mut watcher);
        let ping = us_since(begin);
        let taken = [lock.go(), ping, retry.go()];
        if round >= ROUNDS_BEFORE {
            samples.iter_mut().zip(taken).for_each(|(sample, us)| sample.add(us));
        }
    }
    for (row, sample) in [HAND_OFF, PING, RETRY].into_iter().zip(&samples) {
        book.put_percentiles(SECTION, row, sample);
    }
    stage::say_kept_off(&mut server.client());
}

/// The holder comes first, then the blocked client.
struct HandOff([(Waiter, &'static str); 2]);

impl HandOff {
    fn between(server: &Server) -> HandOff {
        let mut pair = ["ann", "bob"].map(|owner| (Waiter::connect(server), owner));
        pair[0].0.ask("RLOCK.ACQUIRE handed ann");
        HandOff(pair)
    }

    /// Blocks the second client.
    fn prepare(&mut self) {
        let [_, (waiter, owner)] = &mut self.0;
        waiter.say(&format!("RLOCK.ACQUIRE handed {owner} BLOCK 10000"));
    }

    fn go(&mut self) -> f64 {
        let [(holder, owner), (waiter, _)] = &mut self.0;
        let release = format!("RLOCK.RELEASE handed {owner}");
        let begin = Instant::now();
        holder.say(&release);
        waiter.answer();
        let taken = us_since(begin);
        assert_eq!(holder.answer(), Value::Int(0));
        self.0.swap(0, 1);
        taken
    }
}

/// The cheapest form of this way: no script, no check of the owner, no third client.
struct PublishAndRetry {
    holder: Waiter,
    waiter: Waiter,
    ears: Waiter,
}

impl PublishAndRetry {
    fn between(server: &Server) -> PublishAndRetry {
        let [mut holder, waiter, mut ears] = [(); 3].map(|()| Waiter::connect(server));
        holder.ask("SET retried owner NX PX 30000");
        ears.ask("SUBSCRIBE released");
        PublishAndRetry { holder, waiter, ears }
    }

    fn go(&mut self) -> f64 {
        assert_eq!(self.waiter.ask("SET retried owner NX PX 30000"), Value::Nil);
        let begin = Instant::now();
        self.holder.say_all(&["DEL retried", "PUBLISH released now"]);
        self.ears.answer();
        let reply = self.waiter.ask("SET retried owner NX PX 30000");
        let taken = us_since(begin);
        assert_eq!(reply, Value::Okay);
        assert_eq!([self.holder.answer(), self.holder.answer()], [Value::Int(1), Value::Int(1)]);
        std::mem::swap(&mut self.holder, &mut self.waiter);
        taken
    }
}
