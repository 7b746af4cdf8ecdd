//! A process that holds a lock with SESSION is killed while a client waits: how long it takes until
//! the client gets the lock.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::Profile;
use crate::book::Book;
use crate::sample::Sample;
use crate::stage::{self, server, until_all_is_read, us_since};
use rlock_testkit::{Server, Waiter};

/// From the signal to the grant, in microseconds.
pub const SECTION: &str = "waiting: a session's process is killed, to grant, µs";
pub const KILLED: &str = "SIGKILL to the next one's grant";

/// Measures the time from the signal to the grant.
pub fn measure(book: &mut Book, profile: Profile) {
    let kills = if profile == Profile::Quick { 50 } else { 200 };
    let server = server(&[]);
    let mut admin = server.client();
    let (mut waiter, mut watcher) = (Waiter::connect(&server), Waiter::connect(&server));
    let mut taken_us = Sample::default();
    for _ in 0..kills {
        let mut holder = holder(&server);
        waiter.say("RLOCK.ACQUIRE hot waiter BLOCK 10000");
        until_all_is_read(&mut watcher);
        let begin = Instant::now();
        holder.kill().unwrap();
        waiter.answer();
        taken_us.add(us_since(begin));
        holder.wait().unwrap();
        assert_eq!(admin.shows("hot"), "write: waiter write 1");
        assert_eq!(waiter.number("RLOCK.RELEASE hot waiter"), 0);
    }
    assert_eq!(admin.shows("hot"), "free:", "a hold was left behind");
    let left = ["rlock_locks", "rlock_sessions"].map(|field| admin.info_number("rlock", field));
    assert_eq!(left, [0, 0], "locks, sessions left behind");
    book.put_percentiles(SECTION, KILLED, &taken_us);
    stage::say_kept_off(&mut admin);
}

/// Starts this program as a second process, which holds the lock with SESSION.
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

/// The work of that process: it acquires the lock, prints the reply, and stays until it is killed
/// or the server closes the connection.
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
