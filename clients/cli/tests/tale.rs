//! `rlock run -v` reports each step.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::io::{BufRead, BufReader, Read};

use support::{Rlock, Server, until};

#[test]
fn each_step_of_a_run_is_a_line() {
    let server = Server::start(&[]);
    server.ask::<u64>("RLOCK.ACQUIRE job ann LEASE 600000");
    let _bob = server.send("RLOCK.ACQUIRE job bob BLOCK 0");
    until("bob waits", || server.ask::<Option<u64>>("RLOCK.PLACE job bob") == Some(1));

    let mut child = server.rlock(&["run", "-v", "job", "echo", "ran"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.strip_prefix("rlock: ").unwrap_or(&line).trim_end().to_owned()
    };
    assert_eq!(line(), format!("connected to 127.0.0.1:{}", server.port));
    let asking = line();
    assert!(asking.starts_with("asking for job as ") && asking.contains('/'), "{asking}");
    let waits = line();
    assert!(
        waits.starts_with("waiting for job, place 2 in line: ann has held write for "),
        "{waits}"
    );
    server.ask::<u64>("RLOCK.RELEASE job ann");
    let waits = line();
    assert!(
        waits.starts_with("waiting for job, place 1 in line: bob has held write for "),
        "{waits}"
    );
    server.ask::<u64>("RLOCK.RELEASE job bob");
    let acquired = line();
    assert!(acquired.starts_with("acquired job with token 1"), "{acquired}");
    assert_eq!(line(), "released job");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("", Some(0)));
}

#[test]
fn renewals_and_refusals_are_said() {
    let server = Server::start(&[]);
    let (code, _, said) =
        server.run(&["run", "-v", "--lease", "2", "a", "--and", "b", "sleep", "3"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("rlock: renewed a, b: certain for "), "{said}");
    assert!(said.ends_with("rlock: released a, b\n"), "{said}");

    server.ask::<u64>("RLOCK.ACQUIRE b ann LEASE 600000");
    let (code, _, said) = server.run(&["run", "-v", "-n", "a", "--and", "b", "true"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("rlock: not acquired a, b: ann has held write for "), "{said}");

    let once = ["run", "--verbose", "--once-per", "1h", "hourly", "true"];
    let (code, _, said) = server.run(&once);
    assert!(code == 0 && said.ends_with("rlock: done with hourly\n"), "{said}");
    let (code, _, said) = server.run(&once);
    assert!(code == 1 && said.contains(" ago, and the interval ends in 59m"), "{said}");
}
