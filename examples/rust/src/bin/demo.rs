//! Shows ten seconds of locks on the server at `127.0.0.1:$PORT`, as they happen: `make demo`. A
//! line has the milliseconds since the start, who acts, and what happens.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult};
use rlock_client::blocking::{Hold, Locker};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
const WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Read,
    Write,
}

fn main() -> Outcome {
    if env::args().nth(1).as_deref() == Some("hold") {
        return hold_until_killed();
    }
    LazyLock::force(&START);
    title("two workers want the same lock");
    together(vec![Box::new(|| work("ann")), Box::new(|| work("bob"))])?;
    title("readers share; a writer waits for them; nobody who comes later passes the writer");
    together(vec![
        Box::new(|| visit("rita", Mode::Read, 0, 900)),
        Box::new(|| visit("ron", Mode::Read, 100, 1100)),
        Box::new(|| visit("will", Mode::Write, 300, 500)),
        Box::new(|| visit("rosa", Mode::Read, 500, 300)),
    ])?;
    title("a worker is killed; its session ends with it, and the next one enters");
    kill_a_worker()?;
    title("a lease expires; a write by the holder that overslept is refused");
    oversleep()
}

/// Enters three times, in turn with the others.
fn work(me: &str) -> Outcome {
    for _ in 0..3 {
        let guard = enter("report", me, Mode::Write)?;
        pause(250);
        say(me, "releases it");
        guard.release()?;
    }
    Ok(())
}

fn visit(me: &str, mode: Mode, comes_after_ms: u64, stays_ms: u64) -> Outcome {
    pause(comes_after_ms);
    let guard = enter("page", me, mode)?;
    pause(stays_ms);
    say(me, "releases it");
    Ok(guard.release()?)
}

fn enter(key: &str, me: &str, mode: Mode) -> Result<Hold, rlock_client::Error> {
    let asked = Instant::now();
    say(me, if mode == Mode::Read { "asks to read" } else { "asks to write" });
    let guard = acquire(key, me, mode)?;
    let waited = asked.elapsed().as_millis();
    say(me, &format!("holds it, token {}, after {waited} ms", guard.token()));
    Ok(guard)
}

/// Acquires the lock in a session: the hold ends with the process.
fn acquire(key: &str, me: &str, mode: Mode) -> Result<Hold, rlock_client::Error> {
    let request = Locker::new(client()?)?.lock(key).owner(me).session().wait(WAIT);
    if mode == Mode::Read { request.read().acquire() } else { request.acquire() }
}

fn kill_a_worker() -> Outcome {
    let mut worker =
        Command::new(env::current_exe()?).arg("hold").stdout(Stdio::piped()).spawn()?;
    let stdout = worker.stdout.take().ok_or("no output")?;
    let token = BufReader::new(stdout).lines().next().ok_or("the worker did not start")??;
    say("kim", &format!("is process {}, holds it in a session, token {token}", worker.id()));
    let next = thread::spawn(|| enter("job", "lee", Mode::Write));
    pause(1000);
    say("kim", "is killed with kill -9");
    worker.kill()?;
    next.join().map_err(|_| "lee panicked")??.release()?;
    worker.wait()?;
    Ok(())
}

/// The work of the process that `kill_a_worker` starts.
fn hold_until_killed() -> Outcome {
    let guard = acquire("job", "kim", Mode::Write)?;
    println!("{}", guard.token());
    loop {
        thread::park();
    }
}

fn oversleep() -> Outcome {
    let mut connection = client()?.get_connection()?;
    let mut acquire = redis::cmd("RLOCK.ACQUIRE");
    let old: u64 = acquire.arg("stock").arg("dan").arg("LEASE").arg(1500).query(&mut connection)?;
    say("dan", &format!("holds it for 1500 ms, token {old}, and falls asleep"));
    let guard = enter("stock", "eve", Mode::Write)?;
    let write = |me: &str, token: u64, connection: &mut Connection| -> RedisResult<()> {
        let script = "return redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 1 \
                      and redis.call('SET', KEYS[2], ARGV[2])";
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(2).arg("stock").arg("stock:count").arg(token).arg(me);
        let done: Option<String> = eval.query(connection)?;
        let outcome = if done.is_some() { "is done" } else { "is refused" };
        say(me, &format!("writes with token {token}: {outcome}"));
        Ok(())
    };
    write("eve", guard.token(), &mut connection)?;
    pause(300);
    say("dan", "wakes up and believes that it still holds it");
    write("dan", old, &mut connection)?;
    Ok(guard.release()?)
}

fn together(all: Vec<Box<dyn FnOnce() -> Outcome + Send>>) -> Outcome {
    let threads: Vec<_> = all.into_iter().map(thread::spawn).collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a worker panicked")?)
}

fn client() -> RedisResult<Client> {
    Client::open(format!("redis://127.0.0.1:{}", env::var("PORT").as_deref().unwrap_or("6380")))
}

fn title(text: &str) {
    println!("\n{text}");
}

fn say(who: &str, what: &str) {
    println!("{:>6} ms  {who:<5} {what}", START.elapsed().as_millis());
}

fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}
