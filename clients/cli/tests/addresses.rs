//! Each way to give `rlock` the address of a server, with each command. Permanent errors end each
//! command, which prints their cause.
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
#[path = "../../rust/tests/support/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use http::{Serve, sample};
use sentinel::Sentinel;
use support::{Server, cluster, free_port, replica_of, said};
use tls::Tls;

/// A way to name a server: arguments, and environment variables.
struct Way {
    what: &'static str,
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Way {
    fn new(what: &'static str, words: &[&str]) -> Way {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Way { what, words, variables: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: &str) -> Way {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn rlock(&self, job: &[&str], rest: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rlock"));
        command.env_remove("RLOCK_URL").env_remove("REDISCLI_AUTH").args(job).args(&self.words);
        command.args(rest).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The commands that end by themselves.
const JOBS: [(&[&str], &[&str], &str); 5] = [
    (&["run", "-w", "20", "--lease", "5"], &["job", "printenv", "RLOCK_KEY"], "job\n"),
    (&["run", "-n", "--and", "{job}", "--read"], &["{job}2", "echo", "ran"], "ran\n"),
    (&["who"], &["job"], "job is free\n"),
    (&["queues"], &[], "nobody waits\n"),
    (&["top", "--once"], &[], "locks held"),
];

fn works(way: &Way) -> Vec<String> {
    let mut wrong = Vec::new();
    for (job, rest, text) in JOBS {
        let (code, out, complaint) = said(way.rlock(job, rest).output().unwrap());
        if code != 0 || !out.contains(text) || !complaint.is_empty() {
            wrong.push(format!("{}: {job:?}: {code}, {out}{complaint}", way.what));
        }
    }
    let mut watch = way.rlock(&["watch"], &["job"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    if line != "free\n" {
        wrong.push(format!("{}: watch: {line}", way.what));
    }
    let metrics = Serve::start(way.rlock(&["serve"], &[])).metrics();
    if sample(&metrics, "rlock_up", &[]) != Some(1.0) {
        wrong.push(format!("{}: serve: {metrics}", way.what));
    }
    wrong
}

#[test]
fn each_command_finds_its_server() {
    let path = std::env::temp_dir().join(format!("rlock-socket-{}", free_port()));
    let path = path.display().to_string();
    let plain = Server::start(&["--unixsocket", &path]);
    let secured = Server::start(&["--requirepass", "p@ss/word"]);
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all"])
        .query(
            &mut redis::Client::open(format!("redis://:p%40ss%2Fword@127.0.0.1:{}", secured.port))
                .unwrap()
                .get_connection()
                .unwrap(),
        )
        .unwrap();
    let tls = Tls::start(&[]);
    let sentinel = Sentinel::of(&plain);
    let nodes = cluster(&["0 8191", "8192 16383"]);
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let of = |port: u16, rest: &str| format!("redis://{rest}127.0.0.1:{port}");
    let (watcher, node) = (of(sentinel.port, ""), nodes[1].url());
    let mut ways = vec![
        Way::new("--url", &["--url", &plain.url()]),
        Way::new("-u", &["-u", &plain.url()]),
        Way::new("RLOCK_URL", &[]).with("RLOCK_URL", &plain.url()),
        Way::new("a name", &["--url", &format!("redis://localhost:{}", plain.port)]),
        Way::new("a database", &["--url", &(plain.url() + "/3")]),
        Way::new("RESP2", &["--url", &(plain.url() + "/?protocol=resp2")]),
        Way::new("RESP3", &["--url", &(plain.url() + "/?protocol=resp3")]),
        Way::new("a socket", &["--url", &format!("unix://{path}")]),
        Way::new("a socket, and a database", &["--url", &format!("redis+unix://{path}?db=2")]),
        Way::new("a password", &["--url", &of(secured.port, ":p%40ss%2Fword@")]),
        Way::new("a user", &["--url", &of(secured.port, "ann:secret@")]),
        Way::new("REDISCLI_AUTH", &["--url", &secured.url()]).with("REDISCLI_AUTH", "p@ss/word"),
        Way::new("a user, and REDISCLI_AUTH", &["--url", &of(secured.port, "ann@")])
            .with("REDISCLI_AUTH", "secret"),
        Way::new("--sentinel", &["--sentinel", "mine", "--url", &watcher]),
        Way::new("the second Sentinel", &["--sentinel=mine", "-u", &nobody, "-u", &watcher]),
        Way::new("a Sentinel's database", &["--sentinel=mine", "-u", &(watcher.clone() + "/4")]),
        Way::new("--cluster", &["--cluster", "--url", &node]),
        Way::new("--cluster, a dead one", &["--cluster", "--url", &nobody, "--url", &node]),
        Way::new("--cluster, RLOCK_URL", &["--cluster"])
            .with("RLOCK_URL", &format!("{nobody} {node}")),
    ];
    if let Some(tls) = &tls {
        let (url, certificate, key) = (tls.url(), tls.certificate(), tls.key());
        let trust = ["--url", &url, "--cacert", &certificate];
        ways.push(Way::new("TLS", &trust));
        let own = ["--cert", &certificate, "--key", &key];
        ways.push(Way::new("TLS, and a certificate", &[&trust[..], &own].concat()));
    }
    let wrong: Vec<String> = ways.iter().flat_map(works).collect(); // they share the keys
    let cells = ways.len() * 7;
    println!("{cells} cells");
    assert!(wrong.is_empty(), "of {cells} cells:\n{}", wrong.join("\n"));
}

/// Answers each connection as a web server does.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    url
}

/// A permanent error: what ends each command, what it prints, and its name in the metrics.
struct Cause {
    way: Way,
    says: &'static str,
    reason: &'static str,
    /// Whether only `rlock run` fails: a replica answers the requests of the other commands.
    is_of_run: bool,
}

fn ends(cause: &Cause) -> Vec<String> {
    let jobs: [(&[&str], &[&str]); 6] = [
        (&["run"], &["job", "true"]),
        (&["run", "-n", "--and", "{job}2"], &["{job}", "true"]),
        (&["who"], &["job"]),
        (&["watch"], &["job"]),
        (&["queues"], &[]),
        (&["top", "--once"], &[]),
    ];
    let mut wrong = Vec::new();
    for (job, rest) in jobs.iter().take(if cause.is_of_run { 2 } else { 6 }) {
        let begun = Instant::now();
        let own = cause.way.rlock(job, rest);
        let mut command = Command::new("timeout");
        command.arg("15").arg(own.get_program()).args(own.get_args());
        let (code, _, complaint) = said(command.env_remove("RLOCK_URL").output().unwrap());
        if code != 125 || !complaint.contains(cause.says) || begun.elapsed().as_secs() > 8 {
            wrong.push(format!("{}: {job:?}: {code}, {complaint}", cause.way.what));
        }
    }
    if !cause.reason.is_empty() {
        let metrics = Serve::start(cause.way.rlock(&["serve"], &[])).metrics();
        let label = format!("reason=\"{}\"", cause.reason);
        if sample(&metrics, "rlock_down", &[&label]) != Some(1.0) {
            wrong.push(format!("{}: serve: not {}: {metrics}", cause.way.what, cause.reason));
        }
    }
    wrong
}

#[test]
fn what_no_later_try_can_change_ends_each_command_with_its_cause() {
    let plain = Server::start(&[]);
    let secured = Server::start(&["--requirepass", "open-sesame"]);
    let () = plain.ask("ACL SETUSER nothing on >secret ~* &* -@all +hello");
    let (bare, replica, tls) = (Server::bare(&[]), replica_of(&plain), Tls::start(&[]));
    let known = Sentinel::of(&plain);
    let of = |port: u16, rest: &str| format!("redis://{rest}127.0.0.1:{port}");
    let cause = |what, words: &[&str], says, reason| Cause {
        way: Way::new(what, words),
        says,
        reason,
        is_of_run: false,
    };
    let watcher = of(known.port, "");
    let mut causes = vec![
        cause("wrong password", &["-u", &of(secured.port, ":guess@")], "assword", "password"),
        cause("no password", &["-u", &secured.url()], "NOAUTH", "password"),
        cause(
            "no permission",
            &["-u", &of(plain.port, "nothing:secret@")],
            "permission",
            "permission",
        ),
        cause("no module", &["-u", &bare.url()], "RLOCK module", "no_module"),
        cause("a web server", &["-u", &web_server()], "the protocol of Redis", "error"),
        cause("no such database", &["-u", &(plain.url() + "/99")], "database", "error"),
        cause("a name unknown to Sentinel", &["--sentinel=other", "-u", &watcher], "other", ""),
        cause("no Cluster", &["--cluster", "-u", &plain.url()], "cluster support disabled", ""),
        cause("no URL", &["-u", "localhost"], "a URL is redis://", ""),
        cause("no file", &["-u", &plain.url(), "--cacert", "/no/file"], "/no/file", ""),
        cause("no key", &["-u", &plain.url(), "--cert", "/dev/null"], "--cert and --key", ""),
    ];
    // The other commands show the locks of a replica.
    let of_run = cause("a replica", &["-u", &replica.url()], "replica", "");
    causes.push(Cause { is_of_run: true, ..of_run });
    if let Some(tls) = &tls {
        causes.push(cause("not trusted", &["-u", &tls.url()], "certificate", "tls"));
    }
    let cells: usize = causes.iter().map(|cause| if cause.is_of_run { 2 } else { 6 }).sum();
    let wrong: Vec<String> = thread::scope(|scope| {
        let each: Vec<_> = causes.iter().map(|cause| scope.spawn(|| ends(cause))).collect();
        each.into_iter().flat_map(|each| each.join().unwrap()).collect()
    });
    println!("{cells} cells");
    assert!(wrong.is_empty(), "of {cells} cells:\n{}", wrong.join("\n"));
}
