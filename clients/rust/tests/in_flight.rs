//! If the work under a lock fails or panics, that outcome is kept, whatever the result of the
//! release.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::thread;
use std::time::Duration;

use redis::Client;
use rlock_client::{Locker, blocking};
use rustix::process::{Signal, kill_process};
use support::Server;

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

/// How a body that works under a lock ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Fails,
    Panics,
}

fn work(end: End) -> Result<(), String> {
    match end {
        End::Fails => Err("of the body".to_owned()),
        End::Panics => panic!("of the body"),
    }
}

/// The outcome of the body, as its caller receives it.
fn found<E: std::any::Any + Send>(outcome: Result<Result<(), String>, E>) -> (End, String) {
    match outcome {
        Ok(outcome) => (End::Fails, outcome.unwrap_err()),
        Err(panic) => {
            let text =
                (&panic as &dyn std::any::Any).downcast_ref::<Box<dyn std::any::Any + Send>>();
            let text = text.and_then(|text| text.downcast_ref::<&str>()).unwrap();
            (End::Panics, (*text).to_owned())
        }
    }
}

/// The hold that is dropped then may be lost, or its server down: neither replaces the body's
/// outcome.
#[test]
fn the_error_in_flight_stays_whatever_comes_of_the_release() {
    for server_is in ["well", "silent", "away", "asked by force"] {
        for end in [End::Fails, End::Panics] {
            let mut server = Server::start(&[]);
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let locker = locker(&server);
            let threads = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
            let lease = Duration::from_secs(2);
            let hold = runtime.block_on(locker.lock("task").lease(lease).acquire()).unwrap();
            let other = threads.lock("thread").lease(lease).acquire().unwrap();
            match server_is {
                "silent" => kill_process(server.pid(), Signal::STOP).unwrap(),
                "away" => server.kill(),
                "asked by force" => {
                    server.ask::<u64>("RLOCK.FORCE task");
                    server.ask::<u64>("RLOCK.FORCE thread");
                }
                _ => {}
            }
            let in_task = runtime.block_on(runtime.spawn(async move {
                let _hold = hold;
                work(end)
            }));
            let in_thread = thread::spawn(move || {
                let _hold = other;
                work(end)
            });
            let expected = (end, "of the body".to_owned());
            let in_task = in_task.map_err(tokio::task::JoinError::into_panic);
            assert_eq!(found(in_task), expected, "task: {server_is}");
            assert_eq!(found(in_thread.join()), expected, "thread: {server_is}");
            if server_is == "silent" {
                kill_process(server.pid(), Signal::CONT).unwrap();
            }
        }
    }
}
