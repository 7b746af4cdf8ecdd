//! Connections: who dials and who searches, how often, and what is assumed about the server that is
//! found.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "../../cli/tests/support/sentinel.rs"]
mod sentinel;
mod support;

use std::io::Read;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Locker, blocking};
use rustix::process::{Signal, kill_process};
use sentinel::Sentinel;
use support::{Ends, Server, cluster, connections, free_port, is_held, relay, until};
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

fn locker(port: u16) -> Locker {
    Locker::new(Client::open(url(port)).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_outlives_whoever_needed_it_first() {
    let server = Server::start(&[]);
    let to = Arc::new(AtomicU16::new(server.port));
    let slow = relay(&to, Duration::from_millis(600), |_, _| true);
    for is_session in [false, true] {
        let locker = locker(slow);
        let ask = || {
            let request = locker.lock("k").wait(Duration::from_millis(100));
            if is_session { request.session() } else { request }.acquire()
        };
        let mut outcome = ask().await;
        for _ in 0..30 {
            if outcome.is_ok() {
                break;
            }
            outcome = ask().await;
        }
        outcome.expect("each dialled anew").release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_is_asked_a_few_times_per_second_however_many_wait() {
    let mut server = Server::start(&[]);
    let sentinel = Sentinel::of(&server);
    let locker = Locker::sentinel([url(sentinel.port)], "mine", "redis://127.0.0.1").unwrap();
    locker.lock("k").acquire().await.unwrap().release().await.unwrap();
    server.kill();
    let asked = || {
        let mut connection = Client::open(url(sentinel.port)).unwrap().get_connection().unwrap();
        let stats: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let (before, start) = (asked(), Instant::now());
    let waits: Vec<_> = (0..50)
        .map(|each| {
            let request = locker.lock(format!("k{each}")).wait(Duration::from_secs(2));
            tokio::spawn(request.acquire())
        })
        .collect();
    for wait in waits {
        assert!(matches!(wait.await.unwrap(), Err(Error::Unavailable(_))));
    }
    let (times, most) = (asked() - before, start.elapsed().as_millis() / 100 + 5);
    assert!(u128::from(times) < most, "{times} times, not {most}");
}

/// One of the two servers of a Cluster stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_does_not_come_delays_no_wait_at_another_server() {
    let servers = cluster(&["0 8191", "8192 16383"]);
    let at = |server: usize| {
        let is_there = |key: &String| {
            let slot: u16 = servers[0].ask(&format!("CLUSTER KEYSLOT {key}"));
            usize::from(slot > 8191) == server
        };
        (0..).map(|each| format!("k{each}")).find(is_there).unwrap()
    };
    let (stopped, well) = (at(0), at(1));
    let queue = |server: usize| servers[server].ask::<Vec<redis::Value>>("RLOCK.QUEUES").len();
    let locker = Locker::cluster([servers[1].url()]).unwrap();
    for (server, key) in [&stopped, &well].into_iter().enumerate() {
        servers[server].ask::<u64>(&format!("RLOCK.ACQUIRE {key} somebody LEASE 600000"));
    }
    let wait = tokio::spawn(locker.lock(&stopped).acquire());
    until("it waits", || queue(0) == 1);
    servers[0].ask::<u64>("CLIENT KILL TYPE pubsub");
    kill_process(servers[0].pid(), Signal::STOP).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        let (begin, other) = (Instant::now(), tokio::spawn(locker.lock(&well).acquire()));
        until("the other waits", || queue(1) == 1);
        assert!(begin.elapsed() < Duration::from_secs(1), "after {:?}", begin.elapsed());
        other.abort();
        until("it does not", || queue(1) == 0);
    }
    wait.abort();
}

#[test]
fn what_a_thread_left_is_undone_even_if_it_drops_everything() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    locker.lock("first").acquire().unwrap().release().unwrap();
    kill_process(server.pid(), Signal::STOP).unwrap();
    let request = locker.lock("k").lease(MINUTE * 10).wait(Duration::from_millis(100));
    drop(locker);
    let outcome = request.acquire();
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    kill_process(server.pid(), Signal::CONT).unwrap();
    until("it is executed", || {
        let stats: String = server.ask("INFO commandstats");
        stats.to_lowercase().contains("cmdstat_rlock.acquire:calls=2,")
    });
    until("it is undone", || !is_held(&server, "k"));
    until("the crate's thread has ended", || connections(&server) == 0);
}

/// Here, one thread does everything.
#[tokio::test(flavor = "current_thread")]
async fn what_is_told_of_trouble_may_block() {
    let server = Server::start(&[]);
    let lease = Duration::from_secs(1);
    let hold = locker(server.port).lock("k").lease(lease).acquire().await.unwrap();
    for is_named in [false, true] {
        let (tell, told) = mpsc::channel();
        let request = locker(free_port()).lock("k").wait(lease * 3).on_trouble(move |_| {
            thread::sleep(lease * 2);
            tell.send(()).unwrap();
        });
        let request = if is_named { request.owner("ann") } else { request };
        assert!(matches!(request.acquire().await, Err(Error::Unavailable(_))));
        told.try_recv().expect("nobody was told");
        assert!(hold.is_held(), "it was not renewed");
    }
    hold.release().await.unwrap();
}

/// As with a host name that always resolves to the current primary.
#[test]
fn who_was_refused_by_a_replica_leaves_it() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let to = Arc::new(AtomicU16::new(old.port));
    let port = relay(&to, Duration::ZERO, |_, _| true);
    let locker = blocking::Locker::new(Client::open(url(port)).unwrap()).unwrap();
    locker.lock("k").session().acquire().unwrap().release().unwrap();
    until("threads have a connection", || {
        locker.lock("k").acquire().unwrap().release().unwrap();
        connections(&old) == 3
    });
    to.store(new.port, Ordering::SeqCst);
    let () = old.ask(&format!("REPLICAOF 127.0.0.1 {}", new.port));
    locker.lock("k").acquire().unwrap().release().unwrap();
    until("nothing is connected to the replica", || connections(&old) == 0);
}

/// After the server was restarted, requests must still be recognized as those of the same owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_started_again_is_the_same_server() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let lock = locker(server.port).lock("k").owner("ann");
    let outer = lock.lease(Duration::from_secs(9)).acquire().await.unwrap();
    server.kill();
    server.again();
    until("it is asked what it is", || {
        server.ask::<String>("CLIENT LIST").lines().any(|line| line.contains(" cmd=info "))
    });
    let other = locker(server.port).lock("k").owner("ann").wait(Duration::ZERO);
    let inner = other.acquire().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    inner.release().await.unwrap();
    assert!(is_held(&server, "k"));
    outer.release().await.unwrap();
    assert!(!is_held(&server, "k"));
}

/// The answer to the request for a second level never comes, though renewals are answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_does_not_wait_for_another_request_longer_than_a_lease() {
    let server = Server::start(&[]);
    let to = Arc::new(AtomicU16::new(server.port));
    let is_first_level =
        |_: &Ends, bytes: &[u8]| !bytes.windows(14).any(|word| word == b"DEPTH\r\n$1\r\n2\r\n");
    let locker = locker(relay(&to, Duration::ZERO, is_first_level));
    let request = locker.lock("k").owner("ann").lease(Duration::from_secs(1));
    let hold = request.clone().acquire().await.unwrap();
    let again = tokio::spawn(request.acquire());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    let outcome = timeout(MINUTE / 4, hold.release()).await.expect("it waits for the other one");
    let took = start.elapsed();
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?} after {took:?}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert!(!again.is_finished() && is_held(&server, "k"));
    again.abort();
    until("it is released in the background", || !is_held(&server, "k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_the_attempts_to_connect_that_nobody_waits_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let sentinel = Locker::sentinel([url(port)], "mine", "redis://127.0.0.1").unwrap();
    for locker in [locker(port), sentinel] {
        let outcome = locker.lock("k").wait(Duration::from_millis(100)).acquire().await;
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
        let (mut near, _) = silent.accept().unwrap();
        locker.close().await;
        near.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        near.read_to_end(&mut Vec::new()).expect("it is still open");
    }
}
