//! A process holds with SESSION and is killed while somebody waits: how long until that one is
//! told.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::bench::{
    CpuClock, Sample, say_beside_goal, say_kept_off, server, until_all_is_read, us_since,
};
use crate::support::{Server, Waiter};

const KILLS: usize = 200;

/// Prints the time from the signal to the grant.
pub fn measure() {
    println!("The holder's process is killed by SIGKILL while another owner is blocked:");
    let server = server(&[]);
    let mut admin = server.client();
    let (mut waiter, mut watcher) = (Waiter::connect(&server), Waiter::connect(&server));
    let mut taken_ms = Sample::default();
    for _ in 0..KILLS {
        let mut holder = holder(&server);
        waiter.say("RLOCK.ACQUIRE hot waiter BLOCK 10000");
        until_all_is_read(&mut watcher);
        let begin = Instant::now();
        holder.kill().unwrap();
        waiter.answer();
        taken_ms.add(us_since(begin) / 1e3);
        holder.wait().unwrap();
        assert_eq!(admin.shows("hot"), "write: waiter write 1");
        assert_eq!(waiter.number("RLOCK.RELEASE hot waiter"), 0);
    }
    assert_eq!(admin.shows("hot"), "free:", "a hold was left behind");
    let left = ["rlock_locks", "rlock_sessions"].map(|field| admin.info_number("rlock", field));
    assert_eq!(left, [0, 0], "locks, sessions left behind");
    let (p50, p99) = (taken_ms.median(), taken_ms.percentile(99));
    let figure = format!(
        "p50 {p50:.2} p99 {p99:.2} max {:.2} ms of {KILLS}; no hold left behind",
        taken_ms.max()
    );
    say_beside_goal("  signal to grant", &figure, "p99 <= 1 ms", p99 <= 1.0);
    say_kept_off(&CpuClock::of(&mut admin));
}

/// This program once more, as the one that holds the lock with SESSION.
#[track_caller]
fn holder(server: &Server) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("hold-until-killed").arg(server.socket()).arg("hot").stdout(Stdio::piped());
    let mut holder = command.spawn().unwrap();
    let mut reply = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut reply).unwrap();
    assert!(reply.starts_with(':'), "the holder was told {reply:?}");
    holder
}

/// What that one does: acquires, passes the reply on, and stays until its end or the server's.
pub fn hold_until_killed(socket: &str, key: &str) {
    use std::io::Write;
    let mut connection = UnixStream::connect(socket).unwrap();
    let order = format!("RLOCK.ACQUIRE {key} killed LEASE 60000 SESSION\r\n");
    connection.write_all(order.as_bytes()).unwrap();
    let mut chunk = [0; 256];
    while let Ok(count @ 1..) = connection.read(&mut chunk) {
        std::io::stdout().write_all(&chunk[..count]).unwrap();
        std::io::stdout().flush().unwrap();
    }
}
