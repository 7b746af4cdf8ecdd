//! The same with Redisson's `RPermitExpirableSemaphore` by its own client: ten JVMs with a hundred
//! workers each. It promises no order, so only the number of permits is checked: never too many in
//! certain hands, and none missing in the end.

use std::path::PathBuf;

use redis::Value;

use super::{FREE_MS_MAX, LEASE_MS, READY_MS_MAX, Tally, counted, tcp};
use crate::checks;
use crate::clock::{Stop, ms, now_ns, ns};
use crate::crowd::{Crowd, Processes};
use crate::faults;
use crate::history::History;
use crate::workloads::{POOL, POOL_PERMITS, REDISSON};
use rlock_testkit::{Client, Server, items, text, until};

/// A JVM takes some time to start, and has to leave time for others.
const REST_MS: u64 = 2000;
/// In addition to the lease, for a client that polls or gets its message late.
const PATIENCE_MS: u64 = 10_000;

/// Lets them work and die for this long.
pub fn run(program: PathBuf, lasts_ms: u64, seed: u64) -> Tally {
    let server = Server::primary(&[]);
    let mut client = server.client();
    let mut processes = Processes::of(program, &REDISSON, seed, tcp(&server), LEASE_MS);
    until(READY_MS_MAX, || permits(&mut client).len() == POOL_PERMITS as usize);
    // By then, all JVMs have started.
    Stop::default().within(2 * PATIENCE_MS);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut events, mut ends, mut wrong, mut kills) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let begun_ns = now_ns();
    while kills == 0 || now_ns() < begun_ns + ns(lasts_ms) {
        Stop::default().within(rng.u64(REST_MS / 2..=REST_MS));
        let place = rng.usize(..processes.len());
        let killed_ns = now_ns();
        let mut left = Vec::new();
        events.extend(processes.kill_9_and(place, || left = permits(&mut client)));
        kills += 1;
        ends.extend(until_given_again(&mut client, &mut left, killed_ns));
        wrong.extend(left.iter().map(|permit| format!("{permit} is not given again")));
    }
    let seconds = ms(now_ns() - begun_ns) / 1000.0;
    let ops = Crowd::Processes(processes).end();
    let free = client.text(&format!("GET {POOL}")).parse::<usize>().unwrap();
    let held = permits(&mut client).len();
    if free + held != POOL_PERMITS as usize {
        wrong.push(format!("{free} permits are free and {held} held of {POOL_PERMITS}"));
    }
    let history = History { ops, events, promise: faults::CLIENT_KILL.promise };
    let all = checks::check(&history, &checks::holds(&history)).into_iter();
    wrong.extend(all.filter(|it| it.checker == "permits").map(|violation| violation.text));
    let (name, workers, violations) = (REDISSON.name, REDISSON.actors, wrong);
    Tally { name, seconds, workers, kills, violations, ..counted(&history, ends) }
}

/// Waits until none of these is held. Returns how long those of the dead were; the living release
/// theirs sooner.
fn until_given_again(client: &mut Client, left: &mut Vec<String>, killed_ns: u64) -> Vec<f64> {
    let mut ends = Vec::new();
    while !left.is_empty() && now_ns() < killed_ns + ns(LEASE_MS + PATIENCE_MS) {
        Stop::default().within(1);
        let there = permits(client);
        let took_ms = ms(now_ns() - killed_ns);
        let ended = left.iter().filter(|permit| !there.contains(permit)).count();
        if took_ms > FREE_MS_MAX as f64 {
            ends.extend(std::iter::repeat_n(took_ms, ended));
        }
        left.retain(|permit| there.contains(permit));
    }
    ends
}

/// The permits that are held, or were held when somebody last looked for free ones.
fn permits(client: &mut Client) -> Vec<String> {
    match client.ask(&format!("ZRANGE {{{POOL}}}:timeout 0 -1")) {
        Value::Nil => Vec::new(),
        found => items(&found).iter().map(text).collect(),
    }
}
