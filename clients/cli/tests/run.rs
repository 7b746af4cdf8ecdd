//! `rlock run` on a real server: what the command gets, when it ends, and the exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{Rlock, Server, is_held, said, until};

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// The first line that the command prints.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line
}

#[test]
fn the_command_runs_while_the_lock_is_held_and_its_exit_code_is_passed_on() {
    let server = Server::start(&[]);
    let tell = "echo $RLOCK_KEY $RLOCK_OWNER $RLOCK_TOKEN; exit 7";
    let (code, out, _) = server.run(&["run", "job", "sh", "-c", tell]);
    let words: Vec<_> = out.split_whitespace().collect();
    assert_eq!((code, words[0]), (7, "job"), "{out}");
    assert!(words[1].contains('/') && words[2].parse::<u64>().unwrap() > 1_000_000, "{out}");
    assert!(!is_held(&server, "job"));
    let (code, ..) = server.run(&["run", "job", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, 137);
    let (code, _, complaint) = server.run(&["run", "job", "/no/such/command"]);
    assert_eq!(code, 127, "{complaint}");
    assert_eq!(server.run(&["run", "job", "/tmp"]).0, 126);
}

#[test]
fn several_locks_are_held_together() {
    let server = Server::start(&[]);
    let words =
        ["run", "job", "--and", "b", "--and-read", "c", "--and-limit", "2:p", "sleep", "60"];
    let mut first = server.rlock(&words).spawn().unwrap();
    until("they are held", || ["job", "b", "c", "p"].iter().all(|key| is_held(&server, key)));
    assert_eq!(server.run(&["run", "-n", "free", "--and", "b", "true"]).0, 1);
    assert!(!is_held(&server, "free"));
    assert_eq!(server.run(&["run", "-n", "-s", "c", "--and-limit", "2:p", "true"]).0, 0);
    kill_process(pid(&first), Signal::KILL).unwrap();
    first.wait().unwrap();
    until("all end with it", || ["job", "b", "c", "p"].iter().all(|key| !is_held(&server, key)));
    let (code, _, complaint) = server.run(&["run", "-s", "b", "--and", "b", "true"]);
    assert!(code == 125 && complaint.contains("two modes"), "{code}: {complaint}");
}

#[test]
fn writers_run_one_at_a_time_and_readers_run_together() {
    let server = Server::start(&[]);
    let mut first = server.rlock(&["run", "job", "sleep", "60"]).spawn().unwrap();
    until("it is held", || is_held(&server, "job"));
    assert_eq!(server.run(&["run", "-n", "job", "true"]).0, 1);
    let start = Instant::now();
    assert_eq!(server.run(&["run", "-w", "300ms", "-E", "9", "job", "true"]).0, 9);
    assert!(start.elapsed() >= Duration::from_millis(300));
    // TERM ends the command, and the lock is free for the next one.
    let next = server.rlock(&["run", "job", "true"]).spawn().unwrap();
    until("the next one waits", || {
        server.ask::<Vec<(String, u64, u64)>>("RLOCK.QUEUES").len() == 1
    });
    kill_process(pid(&first), Signal::TERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(143));
    assert_eq!(said(next.wait_with_output().unwrap()).0, 0);

    let mut reader = server.rlock(&["run", "--read", "page", "sleep", "60"]).spawn().unwrap();
    until("it is read", || is_held(&server, "page"));
    assert_eq!(server.run(&["run", "--read", "-n", "page", "true"]).0, 0);
    assert_eq!(server.run(&["run", "-n", "page", "true"]).0, 1);
    kill_process(pid(&reader), Signal::TERM).unwrap();
    reader.wait().unwrap();
}

#[test]
fn losing_the_lock_ends_the_command_and_its_child_processes() {
    let server = Server::start(&[]);
    // Killed only after the command has reported how it handles TERM.
    let ready = std::env::temp_dir().join(format!("rlock-ready-{}", server.port));
    let said_so = format!("touch {}", ready.display());
    let lose = |words: &[&str], trap: &str, rest: &str| {
        let script = format!("trap '{trap}' TERM; {rest}");
        let child = server.rlock(&[words, &["sh", "-c", &script]].concat()).spawn().unwrap();
        until("the command runs", || ready.exists());
        std::fs::remove_file(&ready).unwrap();
        server.ask::<u64>("RLOCK.FORCE job");
        said(child.wait_with_output().unwrap())
    };
    // The child reports it: before the child has become another program, the signal could meet the
    // shell's own trap.
    let child = format!("sh -c '{said_so}; exec sleep 60' & wait");
    let (code, out, complaint) = lose(&["run", "job"], "echo told; exit 0", &child);
    assert_eq!((code, out.trim()), (124, "told"), "{complaint}");
    assert!(complaint.contains("the lock of job is lost"), "{complaint}");
    let stubborn = format!("{said_so}; while true; do sleep 1; done");
    let (code, _, complaint) = lose(&["run", "-k", "300ms", "job"], "", &stubborn);
    assert_eq!(code, 137, "{complaint}");
}

#[test]
fn losing_the_lock_ends_the_command_even_if_nobody_listens_to_rlock() {
    let server = Server::start(&[]);
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 1; done";
    let mut child = server.rlock(&["run", "job", "sh", "-c", script]).spawn().unwrap();
    drop(child.stderr.take());
    let line = first_line(&mut child);
    server.ask::<u64>("RLOCK.FORCE job");
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("ready\n", Some(124)));
    // Nor does it change the exit code of a wait in vain.
    let words = ["run", "-u", "redis://127.0.0.1:1", "-w", "300ms", "job", "true"];
    let mut child = server.rlock(&words).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(125));
}

#[test]
fn losing_the_lock_ends_the_command_even_if_nobody_reads_what_rlock_says() {
    let server = Server::start(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut fill = std::process::Command::new("timeout");
    fill.args(["0.5", "cat", "/dev/zero"]).stdout(writer.try_clone().unwrap());
    assert_eq!(fill.status().unwrap().code(), Some(124), "the pipe is full");
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = server.rlock(&["run", "-k", "300ms", "job", "sh", "-c", script]);
    let mut child = command.stderr(writer).spawn().unwrap();
    let line = first_line(&mut child);
    server.ask::<u64>("RLOCK.FORCE job");
    let child = RefCell::new(child);
    let ended = || child.borrow_mut().try_wait().unwrap();
    until("it has ended", || ended().is_some());
    assert_eq!((line.as_str(), ended().unwrap().code()), ("ready\n", Some(137)));
    drop(reader);
}

#[test]
fn what_the_command_started_does_not_outlive_it_when_the_lock_is_lost() {
    let server = Server::start(&[]);
    let stubborn =
        "sh -c 'trap \"\" TERM; while :; do sleep 1; done' >/dev/null 2>&1 & echo $! >&2; wait";
    let mut child =
        server.rlock(&["run", "-k", "500ms", "job", "sh", "-c", stubborn]).spawn().unwrap();
    let mut line = String::new();
    let mut complaints = std::io::BufReader::new(child.stderr.take().unwrap());
    complaints.read_line(&mut line).unwrap();
    let member = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let ignores = |line: &str| {
        let bits = line.strip_prefix("SigIgn:").map(|bits| u64::from_str_radix(bits.trim(), 16));
        bits.is_some_and(|bits| bits.unwrap() & (1 << 14) != 0)
    };
    let status = format!("/proc/{}/status", member.as_raw_nonzero());
    until("it ignores TERM", || std::fs::read_to_string(&status).unwrap().lines().any(ignores));
    server.ask::<u64>("RLOCK.FORCE job");
    assert_eq!(child.wait().unwrap().code(), Some(137));
    until("it was killed", || test_kill_process(member).is_err());
}

#[test]
fn a_signal_ends_a_release_that_no_server_answers() {
    let server = Server::start(&[]);
    let go = std::env::temp_dir().join(format!("rlock-go-{}", server.port));
    let script = format!("echo $$; until [ -e {} ]; do sleep 0.05; done; exit 3", go.display());
    let mut child =
        server.rlock(&["run", "--lease", "60", "job", "sh", "-c", &script]).spawn().unwrap();
    let line = first_line(&mut child);
    let command = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    kill_process(server.pid(), Signal::STOP).unwrap();
    std::fs::write(&go, "").unwrap();
    until("the command ended", || test_kill_process(command).is_err());
    std::fs::remove_file(&go).unwrap();
    kill_process(pid(&child), Signal::TERM).unwrap();
    let start = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    kill_process(server.pid(), Signal::CONT).unwrap();
    until("the lock is free", || !is_held(&server, "job"));
}

#[test]
fn the_command_ends_before_the_lease_does_if_the_server_falls_silent() {
    let server = Server::start(&[]);
    let child = server.rlock(&["run", "--lease", "2", "job", "sleep", "60"]).spawn().unwrap();
    until("it is held", || is_held(&server, "job"));
    let process = server.pid();
    kill_process(process, Signal::STOP).unwrap();
    let start = Instant::now();
    let (code, ..) = said(child.wait_with_output().unwrap());
    let took = start.elapsed();
    kill_process(process, Signal::CONT).unwrap();
    // The last renewal was sent at most a third of the lease before; releasing the lost hold takes another half second.
    assert!(code == 124 && took < Duration::from_secs(4), "{code} after {took:?}");
}

#[test]
fn with_acks_the_command_runs_only_if_a_replica_has_the_lock() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let acked = ["run", "--acks", "1", "-w", "300ms", "job", "echo", "ran"];
    let (code, out, complaint) = server.run(&acked);
    assert!(code == 125 && out.is_empty() && complaint.contains("NOREPLICAS"), "{complaint}");
    let replica = Server::start(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let (code, out, complaint) = server.run(&["run", "--acks", "1", "job", "echo", "ran"]);
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{complaint}");
    let both = ["run", "--acks", "1", "-w", "300ms", "--and", "b", "a", "echo", "ran"];
    let (code, out, complaint) = server.run(&both);
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{complaint}");
    let long = ["run", "--acks", "1", "--lease", "2", "long", "sleep", "60"];
    let child = server.rlock(&long).spawn().unwrap();
    until("it is held", || is_held(&replica, "long"));
    kill_process(replica.pid(), Signal::STOP).unwrap();
    for words in [&acked[..], &both] {
        let (code, out, complaint) = server.run(words);
        assert!(code == 125 && out.is_empty() && complaint.contains("NOACKS"), "{complaint}");
    }
    assert_eq!(said(child.wait_with_output().unwrap()).0, 124, "no renewal is acknowledged");
}

#[test]
fn the_command_does_not_outlive_rlock_itself() {
    let server = Server::start(&[]);
    let mut child =
        server.rlock(&["run", "job", "sh", "-c", "echo $$ >&2; exec sleep 61"]).spawn().unwrap();
    let mut line = String::new();
    let mut complaints = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut complaints, &mut line).unwrap();
    let command = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    until("the command ended", || test_kill_process(command).is_err());
    until("the lock is free", || !is_held(&server, "job"));
}

#[test]
fn rlock_has_the_same_version_as_the_module() {
    let server = Server::start(&[]);
    let (code, said, _) = server.run(&["--version"]);
    assert_eq!((code, said.trim()), (0, concat!("rlock ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn run_explains_why_it_cannot_run_the_command() {
    let server = Server::start(&[]);
    let (code, _, complaint) = server.run(&["run", "job"]);
    assert_eq!((code, complaint.lines().next()), (125, Some("rlock: no command to run is given")));
    let (code, _, complaint) =
        server.run(&["run", "-u", "redis://127.0.0.1:1", "-w", "200ms", "job", "true"]);
    assert!(code == 125 && complaint.contains("the server is unavailable"), "{complaint}");
    let first = "rlock: still waiting for job: 127.0.0.1:1: Connection refused";
    assert!(complaint.starts_with(first) && complaint.matches(first).count() == 1, "{complaint}");
    let (code, _, complaint) = server.run(&["run", "-u", "http://:secret@here", "job", "true"]);
    assert!(
        code == 125 && complaint.contains("a URL is redis://") && !complaint.contains("secret"),
        "{complaint}"
    );
}

#[test]
fn an_ignored_hangup_signal_stays_ignored() {
    let server = Server::start(&[]);
    let mut command = std::process::Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" run job sh -c 'echo held; read x; echo $x'";
    command.env("RLOCK_URL", server.url()).args(["-c", script, env!("CARGO_BIN_EXE_rlock")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    kill_process(pid(&child), Signal::HUP).unwrap();
    child.stdin.take().unwrap().write_all(b"on\n").unwrap();
    out.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("held\non\n", Some(0)));
}

#[test]
fn rlock_runs_the_command_even_if_its_own_file_is_replaced_during_the_wait() {
    let server = Server::start(&[]);
    server.ask::<u64>("RLOCK.ACQUIRE job somebody");
    let copy = std::env::temp_dir().join(format!("rlock-copy-{}", server.port));
    // This process does not copy the file itself: a program that another test starts meanwhile
    // would inherit the open file.
    let mut copies = std::process::Command::new("cp");
    assert!(copies.arg(env!("CARGO_BIN_EXE_rlock")).arg(&copy).status().unwrap().success());
    let mut command = std::process::Command::new(&copy);
    command.env("RLOCK_URL", server.url()).args(["run", "job", "echo", "ran"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("it waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, "another program").unwrap();
    server.ask::<u64>("RLOCK.RELEASE job somebody");
    let (code, out, complaint) = said(child.wait_with_output().unwrap());
    std::fs::remove_file(&copy).unwrap();
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{complaint}");
}

/// The command runs already, so `rlock` waits for nothing.
#[test]
fn a_silent_server_is_no_wait_while_the_command_runs() {
    let server = Server::start(&[]);
    let folder = std::env::temp_dir().join(format!("rlock-silent-{}", server.port));
    std::fs::create_dir_all(&folder).unwrap();
    let (runs, ends) = (folder.join("runs"), folder.join("ends"));
    let script =
        format!("touch {}; until test -e {}; do sleep 0.05; done", runs.display(), ends.display());
    let command =
        server.rlock(&["run", "--lease", "6", "job", "sh", "-c", &script]).spawn().unwrap();
    until("the command runs", || runs.exists());
    kill_process(server.pid(), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(4400)); // a renewal is not answered in two seconds
    kill_process(server.pid(), Signal::CONT).unwrap();
    until("it was renewed", || server.ask::<i64>("PTTL job") > 4000);
    std::fs::write(&ends, "").unwrap();
    let (code, _, complaint) = said(command.wait_with_output().unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((code, complaint.as_str()), (0, ""));
}

#[test]
fn the_server_may_be_named_before_the_command() {
    let server = Server::start(&[]);
    let run = |words: &[&str]| {
        let mut command = server.rlock(words);
        said(command.env("RLOCK_URL", "redis://127.0.0.1:1").output().unwrap())
    };
    let (url, equals) = (server.url(), format!("--url={}", server.url()));
    for words in [["--url", &url].as_slice(), &["-u", &url], &[&equals]] {
        for rest in [["run", "-n", "job", "true"].as_slice(), &["queues"], &["who", "job"]] {
            let (code, out, complaint) = run(&[words, rest].concat());
            assert_eq!(code, 0, "{words:?} {rest:?}: {out}{complaint}");
        }
    }
    let (code, _, complaint) = run(&["--wait", "5", "run", "job", "true"]);
    assert!(code == 125 && complaint.contains("after the command"), "{complaint}");
    let (code, _, complaint) = run(&["--url"]);
    assert!(code == 125 && complaint.contains("--url needs a value"), "{complaint}");
}

/// The help of one command is about that one.
#[test]
fn each_command_has_help_of_its_own() {
    let server = Server::start(&[]);
    let (code, all, _) = server.run(&["--help"]);
    assert_eq!(code, 0);
    let own = [
        ("run", "--kill-after"),
        ("top", "print one snapshot"),
        ("who", "rlock who KEY"),
        ("watch", "rlock watch KEY"),
        ("queues", "how many locks to show (20)"),
        ("ls", "--json"),
        ("release", "--yes"),
        ("serve", "--elections"),
        ("mcp", "--prefix TEXT"),
    ];
    for (job, text) in own {
        let helps = [[job, "--help"], [job, "-h"], ["help", job], ["--help", job]];
        for words in helps {
            let (code, help, complaint) = server.run(&words);
            assert!(code == 0 && help.contains(text), "{words:?}: {help}{complaint}");
            assert!(help.contains("--url") && all.contains(text), "{words:?}: {help}");
            for (other, text) in own.iter().filter(|(other, _)| *other != job) {
                assert!(!help.contains(text), "{words:?} speaks of {other}: {help}");
            }
        }
    }
    assert_eq!(server.run(&["help", "fly"]).0, 125);
}

#[test]
fn an_argument_may_contain_any_bytes() {
    let server = Server::start(&[]);
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let output = server.rlock(&["run", "job", "printf", "%s"]).arg(odd).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"\xff".as_slice()));
    let output = server.rlock(&["run"]).arg(odd).arg("true").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let server = Server::start(&[]);
    // `script` provides a terminal, and passes on its own input.
    let line = format!("{} run job sh -c 'read x; echo got $x'", env!("CARGO_BIN_EXE_rlock"));
    let mut command = std::process::Command::new("timeout");
    command.args(["20", "script", "-qec", &line, "/dev/null"]).env("RLOCK_URL", server.url());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    until("it is held", || is_held(&server, "job"));
    input.write_all(b"it\n").unwrap();
    let mut out = String::new();
    for line in std::io::BufReader::new(child.stdout.take().unwrap()).lines() {
        out = line.unwrap();
        if out.contains("got") {
            break;
        }
    }
    drop(input);
    child.wait().unwrap();
    assert!(out.contains("got it"), "{out}");
    until("it is free", || !is_held(&server, "job"));
}

#[test]
fn ctrl_z_suspends_the_command_too_and_fg_resumes_it() {
    let server = Server::start(&[]);
    let folder = std::env::temp_dir().join(format!("rlock-terminal-{}", server.port));
    std::fs::create_dir_all(&folder).unwrap();
    let (pid, go) = (folder.join("pid"), folder.join("go"));
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "script", "-qec", "bash --norc --noprofile -i", "/dev/null"]);
    command.env("RLOCK_URL", server.url()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut shell = command.spawn().unwrap();
    let mut keyboard = shell.stdin.take().unwrap();
    // The shell starts no other program meanwhile: a shell whose child is stopped between fork and
    // exec is not shown as stopped.
    let script = format!(
        "echo $$ >{0}.new; mv {0}.new {0}; until test -e {1}; do :; done",
        pid.display(),
        go.display()
    );
    let line = format!("{} run job sh -c '{script}'\n", env!("CARGO_BIN_EXE_rlock"));
    keyboard.write_all(line.as_bytes()).unwrap();
    until("the command runs", || pid.exists());
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(&pid).unwrap().trim());
    let is_stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
    assert!(!is_stopped());
    keyboard.write_all(b"\x1a").unwrap();
    until("the command is stopped", is_stopped);
    assert!(is_held(&server, "job"));
    keyboard.write_all(format!("touch {}; fg\n", go.display()).as_bytes()).unwrap();
    until("it is free", || !is_held(&server, "job"));
    keyboard.write_all(b"exit\n").unwrap();
    drop(keyboard);
    shell.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
