//! The guard on the real server at `127.0.0.1:$PORT`.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;
use rlock_example::{Error, Guard, Mode};

const WAIT: Duration = Duration::from_secs(10);

fn client() -> redis::Client {
    let port = env::var("PORT").expect("PORT says where the server is");
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

fn connection() -> Connection {
    client().get_connection().unwrap()
}

fn guard(key: &str, owner: &str, mode: Mode) -> Result<Guard, Error> {
    Guard::acquire(&client(), key, owner, mode, WAIT)
}

/// A write that the server itself refuses once the hold is over. In a cluster both keys need one {hash tag}.
fn fenced_set(lock: &str, token: u64, key: &str, value: &str) -> bool {
    let script = "if redis.call('RLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end \
                  redis.call('SET', KEYS[2], ARGV[2]) return 1";
    let mut ask = redis::cmd("EVAL");
    ask.arg(script).arg(2).arg(lock).arg(key).arg(token).arg(value);
    ask.query(&mut connection()).unwrap()
}

/// Looks until somebody queues for `key`, for 10 seconds at most.
fn somebody_queues(key: &str) {
    let mut connection = connection();
    let end = Instant::now() + WAIT;
    loop {
        let queues: Vec<(String, u64, u64)> =
            redis::cmd("RLOCK.QUEUES").query(&mut connection).unwrap();
        if queues.iter().any(|(name, ..)| name == key) {
            return;
        }
        assert!(Instant::now() < end, "nobody queues for {key}");
        thread::yield_now();
    }
}

#[test]
fn two_workers_never_work_at_once() {
    redis::cmd("DEL").arg("rust:count").exec(&mut connection()).unwrap();
    thread::scope(|scope| {
        for owner in ["ann", "bob"] {
            scope.spawn(move || {
                let mut connection = connection();
                for _ in 0..25 {
                    let guard = guard("rust:counter", owner, Mode::Write).unwrap();
                    let count: Option<u64> =
                        redis::cmd("GET").arg("rust:count").query(&mut connection).unwrap();
                    let next = count.unwrap_or(0) + 1;
                    redis::cmd("SET").arg("rust:count").arg(next).exec(&mut connection).unwrap();
                    guard.release().unwrap();
                }
            });
        }
    });
    let count: u64 = redis::cmd("GET").arg("rust:count").query(&mut connection()).unwrap();
    assert_eq!(count, 50);
}

#[test]
fn readers_share_tokens_rise_and_a_wait_ends_in_time() {
    let ann = guard("rust:read", "ann", Mode::Read).unwrap();
    let bob = guard("rust:read", "bob", Mode::Read).unwrap();
    assert!(bob.token() > ann.token());
    let (start, wait) = (Instant::now(), Duration::from_millis(100));
    let refused = Guard::acquire(&client(), "rust:read", "cy", Mode::Write, wait);
    assert!(matches!(refused, Err(Error::NotAcquired)));
    assert!(start.elapsed() >= wait);
}

#[test]
fn a_dropped_guard_lets_the_next_one_in() {
    let ann = guard("rust:dropped", "ann", Mode::Write).unwrap();
    let bob = thread::spawn(|| guard("rust:dropped", "bob", Mode::Write));
    somebody_queues("rust:dropped");
    let first = ann.token();
    drop(ann);
    assert!(bob.join().unwrap().unwrap().token() > first);
}

#[test]
fn a_lost_hold_is_noticed_and_its_write_refused() {
    let mut ann = guard("rust:lost", "ann", Mode::Write).unwrap();
    ann.check().unwrap();
    assert!(fenced_set("rust:lost", ann.token(), "rust:value", "mine"));
    redis::cmd("RLOCK.FORCE").arg("rust:lost").exec(&mut connection()).unwrap();
    assert!(!fenced_set("rust:lost", ann.token(), "rust:value", "too late"));
    assert!(matches!(ann.check(), Err(Error::Lost)));
    assert!(matches!(ann.release(), Err(Error::Lost)));
    let value: String = redis::cmd("GET").arg("rust:value").query(&mut connection()).unwrap();
    assert_eq!(value, "mine");
}

#[test]
fn of_two_that_wait_for_each_other_one_is_told() {
    let left = guard("rust:left", "ann-2", Mode::Write).unwrap();
    let right = guard("rust:right", "bob-2", Mode::Write).unwrap();
    let bob = thread::spawn(move || {
        let both = guard("rust:left", "bob-2", Mode::Write);
        drop(right);
        both.map(drop)
    });
    somebody_queues("rust:left");
    let Err(told) = guard("rust:right", "ann-2", Mode::Write) else { panic!("both hold it") };
    assert!(matches!(told, Error::Deadlock(_)), "{told}");
    // What to do about it: let go of what is held, which lets bob go on, then begin again.
    drop(left);
    bob.join().unwrap().unwrap();
    guard("rust:right", "ann-2", Mode::Write).unwrap().release().unwrap();
}
