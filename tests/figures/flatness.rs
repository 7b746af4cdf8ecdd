//! What one step costs the server when few wait and when many do: it is to be the same.

use crate::bench::{CpuClock, Sample, may_open, say, say_beside_goal, server_for};
use crate::queues::{Line, Pings, Readers, Tickets};
use crate::support::{Server, say_not_seen};

/// How many stand there.
const SIZES: [usize; 4] = [1, 100, 1000, 10_000];
/// Each size is measured that often, in turn, so that a busy moment of the machine hits all alike.
const PASSES: usize = 3;

/// People who stand in the way of each other, always the same number of them.
pub trait Crowd: Sized {
    /// Steps in one measurement: all passes together take a second or more of the server's time.
    const STEPS: usize;
    /// Whether each of them has a connection of its own.
    const IS_CONNECTED_EACH: bool;

    /// They arrive, and each of them has its turn once: the server's caches have met them all.
    fn gather(server: &Server, size: usize) -> Self;
    /// So many steps, after which they stand as before.
    fn go(&mut self, steps: usize);
}

/// Prints all of it.
pub fn measure() {
    println!("Server CPU in us with 1, 100, 1000, 10 000 who wait or hold:");
    flat::<Line<false>>("  hand-off to a blocked connection", true);
    flat::<Line<true>>("  the same, looking for deadlocks", false);
    flat::<Pings>("  beside it PING by each in turn", false);
    flat::<Tickets>("  poll of a ticket that is not first", true);
    flat::<Readers>("  READ acquire + release beside readers", true);
}

fn flat<C: Crowd>(what: &str, has_goal: bool) {
    let sizes = SIZES.into_iter().filter(|size| !C::IS_CONNECTED_EACH || may_open(size + 1));
    let sizes: Vec<usize> = sizes.collect();
    if sizes.len() < SIZES.len() {
        say_not_seen("10 000 connections: `ulimit -n` is too low");
    }
    let mut costs: Vec<Sample> = sizes.iter().map(|_| Sample::default()).collect();
    for _ in 0..PASSES {
        for (size, cost) in sizes.iter().zip(&mut costs) {
            cost.add(step_us::<C>(*size));
        }
    }
    let medians: Vec<f64> = costs.iter().map(Sample::median).collect();
    let shown: Vec<String> = medians.iter().map(|us| format!("{us:.2}")).collect();
    let mut spread = Sample::default();
    medians.iter().for_each(|us| spread.add(*us));
    let ratio = spread.max() / spread.min();
    let figure = format!("{}; max/min {ratio:.2}", shown.join(" "));
    if has_goal {
        say_beside_goal(what, &figure, "<= 1.20", ratio <= 1.2);
    } else {
        say(what, &figure);
    }
}

/// What a step costs a new server, in microseconds.
fn step_us<C: Crowd>(size: usize) -> f64 {
    let server = server_for(if C::IS_CONNECTED_EACH { size + 1 } else { 10 });
    let mut crowd = C::gather(&server, size);
    crowd.go(C::STEPS / 10);
    let cpu = CpuClock::of(&mut server.client());
    let begin_ns = cpu.now_ns();
    crowd.go(C::STEPS);
    (cpu.now_ns() - begin_ns) as f64 / 1e3 / C::STEPS as f64
}
