//! `rlock-peer package arrivals`: jobs that arrive at random times acquire one lock through this
//! project's package for Rust. ../../measure.py says what the program does and prints.

use std::env::var;
use std::error::Error;
use std::io::{Read, Write};
use std::time::Duration;

use rlock_client::Locker;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

type Failure = Box<dyn Error + Send + Sync>;

/// How late tokio's timers can be.
const TIMERS_LATE: Duration = Duration::from_micros(1500);

/// When a job got the lock, when it began to release it, and when it had arrived.
struct Job {
    acquired: i64,
    releasing: i64,
    arrived: i64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let moments = std::fs::read_to_string(var("PEER_ARRIVALS")?)?;
    let moments: Vec<i64> = moments.lines().map(str::parse).collect::<Result<_, _>>()?;
    let hold_ns: i64 = var("PEER_HOLD_NS")?.parse()?;
    let drain = Duration::from_secs_f64(var("PEER_DRAIN_SECONDS")?.parse()?);
    let key = var("PEER_KEY")?;
    let locker =
        Locker::new(redis::Client::open(format!("redis://127.0.0.1:{}", var("PEER_PORT")?))?);
    locker.lock(format!("{key}:warm")).acquire().await?.release().await?;

    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let started = now();
    let (done, mut jobs) = mpsc::unbounded_channel();
    for after in moments {
        let arrived = started + after;
        until(arrived).await;
        let (locker, key, done) = (locker.clone(), key.clone(), done.clone());
        tokio::spawn(async move { drop(done.send(serve(&locker, &key, hold_ns, arrived).await)) });
    }
    drop(done);
    let end = tokio::time::sleep(drain);
    tokio::pin!(end);
    let mut out = format!("started {started}\n");
    // Jobs that are still waiting at the end are not printed.
    while let Some(job) = tokio::select! { job = jobs.recv() => job, () = &mut end => None } {
        let Job { acquired, releasing, arrived } = job?;
        out += &format!("0 {acquired} {releasing} {arrived}\n");
    }
    std::io::stdout().write_all(out.as_bytes())?;
    std::process::exit(0)
}

async fn serve(locker: &Locker, key: &str, hold_ns: i64, arrived: i64) -> Result<Job, Failure> {
    let hold = locker.lock(key).acquire().await?;
    let acquired = now();
    until(acquired + hold_ns).await;
    let releasing = now();
    hold.release().await?;
    Ok(Job { acquired, releasing, arrived })
}

/// Sleeps exactly until that moment: the last part is spent in turns of the event loop.
async fn until(moment: i64) {
    let rest = Duration::from_nanos(u64::try_from(moment - now()).unwrap_or(0));
    if let Some(rest) = rest.checked_sub(TIMERS_LATE) {
        tokio::time::sleep(rest).await;
    }
    while now() < moment {
        tokio::task::yield_now().await;
    }
}

/// The clock that all processes of a machine share, in nanoseconds.
fn now() -> i64 {
    let at = clock_gettime(ClockId::Monotonic);
    at.tv_sec * 1_000_000_000 + at.tv_nsec
}
