//! The end of `main`: whatever a program does at that moment, its lock is free afterward.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Hold, Locker};
use rustix::process::{Signal, kill_process};
use support::{Server, is_held};
use tokio::runtime::{Builder, Runtime};

/// An acquisition that has not begun yet.
type Asked = Pin<Box<dyn Future<Output = Result<Hold, Error>> + Send>>;

/// What the last lines of `main` do with the acquisition.
type End = fn(Asked) -> Pin<Box<dyn Future<Output = Option<Hold>> + Send>>;

const ENDS: [(&str, End); 7] = [
    ("drops it", |asked| {
        Box::pin(async move {
            drop(asked.await.unwrap());
            None
        })
    }),
    ("drops it, and goes on for a moment", |asked| {
        Box::pin(async move {
            drop(asked.await.unwrap());
            tokio::task::yield_now().await;
            None
        })
    }),
    ("has it, outside of its runtime", |asked| Box::pin(async move { Some(asked.await.unwrap()) })),
    ("has a task that works under it", |asked| {
        Box::pin(async move {
            let hold = asked.await.unwrap();
            tokio::spawn(async move {
                hold.lost().await;
                drop(hold);
            });
            None
        })
    }),
    ("began to release it", |asked| {
        Box::pin(async move {
            let hold = asked.await.unwrap();
            tokio::spawn(hold.release());
            tokio::task::yield_now().await;
            None
        })
    }),
    ("gave up the release", |asked| {
        Box::pin(async move {
            let hold = asked.await.unwrap();
            let mut release = Box::pin(hold.release());
            poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await;
            None
        })
    }),
    ("began to acquire it", |asked| {
        Box::pin(async move {
            tokio::spawn(asked);
            tokio::task::yield_now().await;
            None
        })
    }),
];

fn runtimes() -> [(&'static str, Runtime); 3] {
    [
        ("one thread", Builder::new_current_thread().enable_all().build().unwrap()),
        ("one worker", Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()),
        ("workers", Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()),
    ]
}

/// The kinds of requests.
const HOWS: [&str; 4] = ["plain", "session", "several", "owner"];

/// The round trip to the server may end before or after the runtime does, so each case is tried
/// several times.
const ROUNDS: u32 = 6;

async fn ends(server: &Server, key: &str, how: &str, end: End) -> Option<Hold> {
    let locker = Locker::new(Client::open(server.url()).unwrap());
    locker.lock("warm").acquire().await.unwrap().release().await.unwrap();
    let one = locker.lock(key);
    let asked: Asked = match how {
        "plain" => Box::pin(one.acquire()),
        "session" => Box::pin(one.session().acquire()),
        "owner" => Box::pin(one.owner("ann").acquire()),
        _ => {
            let both = [key.to_owned(), format!("{key}:other")];
            Box::pin(locker.all(both).unwrap().acquire())
        }
    };
    end(asked).await
}

#[test]
fn whatever_main_does_at_its_end_its_lock_is_free() {
    let server = Server::start(&[]);
    let mut still_held = BTreeMap::<String, u32>::new();
    for (what, end) in ENDS {
        for how in HOWS {
            for round in 0..ROUNDS {
                for (place, runtime) in runtimes() {
                    let cell = format!("{what}, {how}, {place}");
                    let key = format!("{round}:{cell}").replace(' ', "_");
                    let hold = runtime.block_on(ends(&server, &key, how, end));
                    drop(runtime);
                    drop(hold);
                    if !is_free_soon(&server, &key) {
                        *still_held.entry(cell).or_default() += 1;
                    }
                }
            }
        }
    }
    assert!(still_held.is_empty(), "of {ROUNDS} rounds, still held: {still_held:#?}");
}

/// A tenth of a lease is enough time for requests that the server still has to read.
fn is_free_soon(server: &Server, key: &str) -> bool {
    let end = Instant::now() + Duration::from_secs(3);
    while is_held(server, key) {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn main_ends_although_its_server_is_silent() {
    let server = Server::start(&[]);
    let runtime = Runtime::new().unwrap();
    let holds = runtime.block_on(async {
        let locker = Locker::new(Client::open(server.url()).unwrap());
        let mut holds = Vec::new();
        for each in 0..40 {
            holds.push(locker.lock(format!("k{each}")).acquire().await.unwrap());
        }
        holds
    });
    kill_process(server.pid(), Signal::STOP).unwrap();
    let begun = Instant::now();
    drop(runtime);
    drop(holds);
    let took = begun.elapsed();
    kill_process(server.pid(), Signal::CONT).unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
}
