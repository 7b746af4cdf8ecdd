//! Waits by message: subscriptions that are killed, messages that are lost, slots that move, and
//! the cost of waits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Hold, Locker, blocking};
use support::{Server, cluster, connections, is_held, until};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);

/// A wait asks again each second; the remaining time is for a busy machine.
const ONE_LOOK: Duration = Duration::from_millis(2500);

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

fn count(server: &Server, what: &str) -> u64 {
    let info: String = server.ask("INFO rlock");
    let count = info.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    count.unwrap().trim().parse().unwrap()
}

fn waits(server: &Server) -> u64 {
    count(server, "rlock_tells")
}

type Wait = JoinHandle<Result<Hold, Error>>;

/// How long the wait takes to acquire the lock, which is then released.
async fn granted(wait: Wait) -> Duration {
    let begun = Instant::now();
    let hold = timeout(MINUTE / 2, wait).await.expect("it waits for ever").unwrap().unwrap();
    let took = begun.elapsed();
    hold.release().await.unwrap();
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_is_killed_delays_a_grant_by_one_look_at_most() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    for session in [false, true] {
        let () = server.ask("RLOCK.ACQUIRE k somebody LEASE 600000");
        let request = locker.lock("k");
        let wait: Wait = tokio::spawn(if session { request.session() } else { request }.acquire());
        until("it waits", || waits(&server) == 1);
        // Nobody is subscribed when the lock is released.
        let (killed, left): (u64, u64) = redis::pipe()
            .cmd("CLIENT")
            .arg(&["KILL", "TYPE", "pubsub"])
            .cmd("RLOCK.RELEASE")
            .arg(&["k", "somebody"])
            .query(&mut server.connect())
            .unwrap();
        assert_eq!((killed, left), (1, 0));
        let took = granted(wait).await;
        assert!(took < ONE_LOOK, "session {session}: {took:?}");
    }
    until("nothing is left", || !is_held(&server, "k") && waits(&server) == 0);
}

/// Passes everything on except the first message, which is lost.
fn loses_a_message(to: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, lost) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = lost.clone();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let (mut from, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut there, mut here, count) = (far, near, count.clone());
            thread::spawn(move || drop(std::io::copy(&mut from, &mut there)));
            thread::spawn(move || {
                let mut bytes = [0; 65536];
                while let Ok(size @ 1..) = back.read(&mut bytes) {
                    let is_message = bytes[..size].windows(8).any(|part| part == b"smessage");
                    if is_message && count.fetch_add(1, Ordering::SeqCst) == 0 {
                        continue;
                    }
                    if here.write_all(&bytes[..size]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (port, lost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_lost_costs_one_look_at_most() {
    let server = Server::start(&[]);
    let (port, lost) = loses_a_message(server.port);
    let locker = Locker::new(Client::open(format!("redis://127.0.0.1:{port}")).unwrap());
    let () = server.ask("RLOCK.ACQUIRE k somebody LEASE 600000");
    let wait = tokio::spawn(locker.lock("k").acquire());
    until("it waits", || waits(&server) == 1);
    assert_eq!(server.ask::<u64>("RLOCK.RELEASE k somebody"), 0);
    let took = granted(wait).await;
    assert!(took < ONE_LOOK, "{took:?}");
    assert!(lost.load(Ordering::SeqCst) > 0);
    until("nothing is left", || !is_held(&server, "k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_follows_the_slot_of_its_key() {
    let servers = cluster(&["0 16383", ""]);
    let locker = Locker::cluster([servers[0].url()]).unwrap();
    let () = servers[0].ask("RLOCK.ACQUIRE k somebody LEASE 600000");
    let (alone, several) = (locker.lock("k"), locker.all(["k", "{k}b"]).unwrap());
    // The other server decides anew which of them is first.
    let granted = Arc::new(AtomicUsize::new(0));
    let (count, other) = (granted.clone(), granted.clone());
    tokio::spawn(async move {
        alone.acquire().await.unwrap().release().await.unwrap();
        count.fetch_add(1, Ordering::SeqCst);
    });
    until("it waits", || waits(&servers[0]) == 1);
    tokio::spawn(async move {
        several.acquire().await.unwrap().release().await.unwrap();
        other.fetch_add(1, Ordering::SeqCst);
    });
    until("both wait", || waits(&servers[0]) == 2);
    let slot: u16 = servers[0].ask("CLUSTER KEYSLOT k");
    let ids: Vec<String> = servers.iter().map(|server| server.ask("CLUSTER MYID")).collect();
    let () = servers[1].ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    let () = servers[0].ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    let () = servers[0].ask(&format!("MIGRATE 127.0.0.1 {} k 0 5000", servers[1].port));
    for server in servers.iter().rev() {
        let () = server.ask(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    }
    until("they wait there", || waits(&servers[1]) == 2);
    let begun = Instant::now();
    assert_eq!(servers[1].ask::<u64>("RLOCK.RELEASE k somebody"), 0);
    until("both had it", || granted.load(Ordering::SeqCst) == 2);
    assert!(begun.elapsed() < ONE_LOOK, "{:?}", begun.elapsed());
    assert_eq!(waits(&servers[0]), 0);
}

/// The README states this figure.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_waits_use_two_connections() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let () = server.ask("RLOCK.ACQUIRE k somebody LEASE 600000");
    let user = |request: rlock_client::Request| async move {
        request.wait(MINUTE).acquire().await.unwrap().release().await.unwrap();
    };
    let all: Vec<_> = (0..2000).map(|_| tokio::spawn(user(locker.lock("k")))).collect();
    until("they wait", || waits(&server) == 2000);
    assert_eq!(connections(&server), 2);
    assert_eq!(server.ask::<u64>("RLOCK.RELEASE k somebody"), 0);
    for wait in all {
        wait.await.unwrap();
    }
    assert_eq!(connections(&server), 2);
    until("nothing is left", || !is_held(&server, "k") && waits(&server) == 0);
}

/// The hold is not renewed before ten seconds have passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_known_as_soon_as_the_server_knows_it() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let threads = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let (plain, session) = (locker.lock("plain"), locker.lock("session").session());
    for (key, request) in [("plain", plain), ("session", session)] {
        let hold = request.acquire().await.unwrap();
        let loss = hold.loss();
        let lost = tokio::spawn(async move {
            loss.lost().await;
            Instant::now()
        });
        until("it is observed", || count(&server, "rlock_observers") == 1);
        let begun = Instant::now();
        assert_eq!(server.ask::<u64>(&format!("RLOCK.FORCE {key}")), 1);
        let took = timeout(MINUTE, lost).await.unwrap().unwrap() - begun;
        println!("{key}: {took:?}");
        assert!(took < Duration::from_millis(500), "{key}: {took:?}");
        assert!(matches!(hold.release().await, Err(Error::Lost)));
    }
    let hold = threads.lock("thread").acquire().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    hold.on_loss(move || tell.send(Instant::now()).unwrap());
    until("it is observed", || count(&server, "rlock_observers") == 1);
    let begun = Instant::now();
    assert_eq!(server.ask::<u64>("RLOCK.FORCE thread"), 1);
    assert!(told.recv_timeout(MINUTE).unwrap() - begun < Duration::from_millis(500));
    assert!(matches!(hold.release(), Err(Error::Lost)));
    // A release is no loss.
    let hold = locker.lock("released").acquire().await.unwrap();
    let loss = hold.loss();
    let ended = tokio::spawn(async move { loss.ended().await });
    until("it is observed", || count(&server, "rlock_observers") == 1);
    hold.release().await.unwrap();
    assert!(!ended.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_listen_is_told_what_is_missing() {
    let server = Server::start(&[]);
    let () = server.ask("RLOCK.ACQUIRE k somebody LEASE 600000");
    for rules in ["resetchannels +@all", "resetchannels &rlock:tell:* +@all -ssubscribe"] {
        let () = server.ask(&format!("ACL SETUSER app reset on >secret ~* {rules}"));
        let url = format!("redis://app:secret@127.0.0.1:{}", server.port);
        let locker = Locker::new(Client::open(url).unwrap());
        let refused = timeout(MINUTE / 6, locker.lock("k").acquire()).await.expect(rules);
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NoPerm(_)), "{rules}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("+ssubscribe") && text.contains("&rlock:tell:*"), "{rules}: {text}");
        // A request that does not wait needs neither.
        locker.lock("free").try_acquire().await.unwrap().release().await.unwrap();
        assert_eq!(waits(&server), 0);
    }
}

/// What a server answered before a pause says nothing about the time after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_the_server_ends_early_goes_on() {
    let server = Server::start(&[]);
    let () = server.ask("CONFIG SET rlock.max-tell-ms 1000");
    let locker = locker(&server);
    let () = server.ask("RLOCK.ACQUIRE k somebody LEASE 600000");
    let begun = Instant::now();
    let refused = locker.lock("k").wait(Duration::from_millis(2500)).acquire().await;
    assert!(matches!(refused, Err(Error::NotAcquired)), "{refused:?}");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(2400), "{took:?}");
}
