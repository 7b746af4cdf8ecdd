//! `rlock` beside Sentinel, and in a Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/sentinel.rs"]
mod sentinel;
mod support;

use rustix::process::{Pid, Signal, kill_process};
use sentinel::Sentinel;
use support::{Rlock, Server, until};

#[test]
fn the_database_of_a_sentinel_s_url_is_that_of_the_primary() {
    let server = Server::start(&[]);
    let sentinel = Sentinel::of(&server);
    let url = format!("redis://127.0.0.1:{}/2", sentinel.port);
    let words = ["run", "-w", "5", "--sentinel", "mine", "--url", &url, "job"];
    let mut child = server.rlock(&[&words[..], &["sleep", "60"]].concat()).spawn().unwrap();
    let second = redis::Client::open(format!("{}/2", server.url())).unwrap();
    until("it is held there", || {
        let mut connection = second.get_connection().unwrap();
        redis::cmd("EXISTS").arg("job").query::<bool>(&mut connection).unwrap()
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
}
