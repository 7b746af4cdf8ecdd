//! `rlock` beside Sentinel, and in a Cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "support/http.rs"]
mod http;
#[path = "support/sentinel.rs"]
mod sentinel;
mod support;

use std::io::{BufRead, BufReader};

use http::Serve;
use rustix::process::{Pid, Signal, kill_process};
use sentinel::Sentinel;
use support::{Rlock, Server, cluster, until};

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

#[test]
fn a_dead_server_of_a_cluster_keeps_nobody_from_the_locks_of_another() {
    let mut servers = cluster(&["0 8191", "8192 16383"]);
    servers[0].kill();
    let server = &servers[1];
    // Its slot is 12182.
    let token: u64 = server.ask("RLOCK.ACQUIRE foo ann LEASE 60000");
    let mut watch = server.rlock(&["watch", "--cluster", "foo"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(line, format!("ann holds it, token {token}\n"));

    let secret = "a-token-for-this-test";
    let mut command = server.rlock(&["serve", "--cluster", "--allow-actions"]);
    command.env("RLOCK_SERVE_TOKEN", secret);
    let serve = Serve::start(command);
    // Until then, `serve` does not know them.
    serve.look_until("/events", |told| told["servers"].as_array().unwrap().len() == 2);
    let bearer = format!("Bearer {secret}");
    let headers = [("Content-Type", "application/json"), ("Authorization", bearer.as_str())];
    let act = |key: &str| {
        let force = format!(r#"{{"do":"force","key":"{key}"}}"#);
        serve.ask("POST /actions", &headers, &force)
    };
    let (code, _, said) = act("666f6f");
    assert_eq!((code, said.as_str()), (200, "1\n"));
    // That of "bar" is 5061.
    let (code, _, said) = act("626172");
    assert!(code == 409 && said.contains(&servers[0].port.to_string()), "{code}: {said}");
}
