//! Two clients and one lock: from the release to the other one's grant. In the same rounds a PING,
//! and what is done without this module: publish the release, and the other one tries again.

use std::time::Instant;

use redis::Value;

use crate::bench::{
    CpuClock, Sample, say, say_beside_goal, say_kept_off, server, until_all_is_read, us_since,
};
use crate::support::{Server, Waiter};

const ROUNDS: usize = 5000;
/// Not counted: caches and buffers get warm.
const ROUNDS_BEFORE: usize = 200;

/// Prints the three of them, and how they compare.
pub fn measure() {
    println!("Hand-off between two clients, {ROUNDS} rounds:");
    let server = server(&[]);
    let mut watcher = Waiter::connect(&server);
    let (mut lock, mut retry) = (HandOff::between(&server), PublishAndRetry::between(&server));
    let (mut pings, mut locks, mut retries) =
        (Sample::default(), Sample::default(), Sample::default());
    for round in 0..ROUNDS_BEFORE + ROUNDS {
        lock.prepare();
        let begin = Instant::now();
        until_all_is_read(&mut watcher);
        let ping = us_since(begin);
        let taken = [ping, lock.go(), retry.go()];
        if round >= ROUNDS_BEFORE {
            let samples = [&mut pings, &mut locks, &mut retries];
            samples.into_iter().zip(taken).for_each(|(sample, us)| sample.add(us));
        }
    }
    let rows = [
        ("  RLOCK.RELEASE to the next one's grant", &locks),
        ("  PING to its reply", &pings),
        ("  DEL + PUBLISH to the next one's SET NX PX", &retries),
    ];
    for (what, sample) in rows {
        say(what, &format!("p50 {:.1} p99 {:.1} us", sample.median(), sample.percentile(99)));
    }
    let beside_retry = locks.median() / retries.median();
    let beside_ping = locks.median() / pings.median();
    let figure = format!("{beside_retry:.2}x");
    say_beside_goal("  beside publish + retry, p50", &figure, "<= 0.50x", beside_retry <= 0.5);
    let figure = format!("{beside_ping:.2}x");
    say_beside_goal("  beside PING, p50", &figure, "<= 1.25x", beside_ping <= 1.25);
    say_kept_off(&CpuClock::of(&mut server.client()));
}

/// The holder first, then the one who is blocked.
struct HandOff([(Waiter, &'static str); 2]);

impl HandOff {
    fn between(server: &Server) -> HandOff {
        let mut pair = ["ann", "bob"].map(|owner| (Waiter::connect(server), owner));
        pair[0].0.ask("RLOCK.ACQUIRE handed ann");
        HandOff(pair)
    }

    /// The other one queues.
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

/// The least that this way can cost: no script, no check whose lock it is, nobody else who tries.
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
