//! Ends: of `main`, of the patience, and of a hold while its user acquires another one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Locker, blocking};
use rustix::process::{Signal, kill_process};
use support::{Ends, Server, connections, is_held, relay, until};

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

#[test]
fn a_hold_that_lives_to_the_end_of_main_is_released() {
    let server = Server::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _hold = runtime.block_on(async {
        let hold = locker(&server).lock("inside").acquire().await.unwrap();
        let outer = locker(&server).lock("outside").acquire().await.unwrap();
        assert!(is_held(&server, "inside") && is_held(&server, "outside"));
        drop(hold); // as at the end of an asynchronous main
        outer
    });
    drop(runtime);
    until("the dropped one is free", || !is_held(&server, "inside"));
    drop(_hold);
    until("the one that outlived its runtime is free", || !is_held(&server, "outside"));
}

/// Polls the future once. False if that completed it.
async fn begins<F: Future>(asked: &mut Pin<Box<F>>) -> bool {
    poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx).is_pending())).await
}

/// As in a loop over `select!` in which another branch takes long.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_goes_on_while_its_caller_does_something_else() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    // The lock is held at first, so that the request cannot be granted while it is polled.
    server.ask::<u64>("RLOCK.ACQUIRE job somebody LEASE 300");
    let mut asked = Box::pin(locker.lock("job").lease(Duration::from_secs(1)).acquire());
    assert!(begins(&mut asked).await);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(is_held(&server, "job"), "it was renewed");
    let hold = asked.await.unwrap();
    let mut asked = Box::pin(hold.release());
    let goes_on = begins(&mut asked).await;
    until("it is released", || !is_held(&server, "job"));
    if goes_on {
        asked.await.unwrap();
    }
    // Nor does a forgotten request keep the locker from being closed.
    server.ask::<u64>("RLOCK.ACQUIRE job somebody");
    let mut asked = Box::pin(locker.lock("job").acquire());
    assert!(begins(&mut asked).await);
    tokio::time::timeout(Duration::from_secs(2), locker.close()).await.unwrap();
    assert!(matches!(asked.await, Err(Error::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_at_once_leaves_nothing() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    locker.lock("warm").acquire().await.unwrap().release().await.unwrap();
    let mut asked = Box::pin(locker.lock("job").lease(Duration::from_secs(60)).acquire());
    if begins(&mut asked).await {
        until("it is granted", || is_held(&server, "job"));
    }
    drop(asked);
    until("it is released", || !is_held(&server, "job"));
    let hold = locker.lock("job").lease(Duration::from_secs(60)).acquire().await.unwrap();
    let mut asked = Box::pin(hold.release());
    begins(&mut asked).await;
    drop(asked);
    until("it is released as well", || !is_held(&server, "job"));
    let other = locker.lock("job").acquire().await.unwrap();
    let mut asked = Box::pin(locker.lock("job").acquire());
    begins(&mut asked).await;
    drop(asked);
    other.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!is_held(&server, "job"));
}

/// Another thread of the runtime renews it.
#[test]
fn a_hold_is_renewed_while_its_caller_keeps_its_thread_busy() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    for lease in [600, 1000] {
        let request = locker.lock("job").lease(Duration::from_millis(lease));
        let work = async move {
            let hold = request.acquire().await.unwrap();
            thread::sleep(Duration::from_millis(1600));
            assert!(hold.is_held(), "a lease of {lease} ms");
            hold.release().await.unwrap();
        };
        runtime.block_on(runtime.spawn(work)).unwrap();
    }
}

#[test]
fn a_locker_outlives_the_runtime_in_which_it_was_first_used() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    runtime()
        .block_on(async { locker.lock("job").acquire().await.unwrap().release().await })
        .unwrap();
    runtime().block_on(async {
        let request = locker.lock("job").lease(Duration::from_secs(1));
        let hold = request.acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert!(hold.is_held(), "it was renewed");
        hold.release().await.unwrap();
    });
}

#[test]
fn what_is_called_at_a_loss_may_acquire() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let hold = locker.lock("lost").lease(Duration::from_secs(2)).acquire().unwrap();
    let (tell, told) = mpsc::channel();
    let again = locker.clone();
    hold.on_loss(move || {
        let next = again.lock("next").wait(Duration::from_secs(5)).acquire();
        tell.send(next.is_ok()).unwrap();
    });
    server.ask::<u64>("RLOCK.ACQUIRE next somebody");
    server.ask::<u64>("RLOCK.FORCE lost");
    until("it waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
    server.ask::<u64>("RLOCK.RELEASE next somebody");
    assert!(told.recv_timeout(Duration::from_secs(5)).unwrap());
}

/// Otherwise, each hold would leave a task behind.
#[test]
fn what_would_be_called_at_a_loss_is_dropped_at_the_release() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let hold = locker.lock("k").acquire().unwrap();
    let (tell, told) = mpsc::channel::<()>();
    hold.on_loss(move || tell.send(()).unwrap());
    hold.release().unwrap();
    let dropped = told.recv_timeout(Duration::from_secs(5));
    assert_eq!(dropped, Err(mpsc::RecvTimeoutError::Disconnected));
}

/// The release of a session needs the crate's thread.
#[test]
fn what_would_be_called_at_a_loss_may_own_another_hold() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let hold = locker.lock("k").acquire().unwrap();
    let other = locker.lock("other").session().acquire().unwrap();
    hold.on_loss(move || drop(other));
    hold.release().unwrap();
    until("the other one is released", || !is_held(&server, "other"));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(locker.lock("k").session().acquire().is_ok()));
    assert!(told.recv_timeout(Duration::from_secs(10)).unwrap(), "the crate's thread is blocked");
}

#[tokio::test]
async fn the_end_of_a_hold_says_whether_it_was_lost() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    for is_lost in [false, true] {
        let hold = locker.lock("k").session().acquire().await.unwrap();
        let loss = hold.loss();
        let ended = tokio::spawn(async move { loss.ended().await });
        if is_lost {
            server.ask::<u64>("RLOCK.FORCE k");
            hold.lost().await;
        } else {
            hold.release().await.unwrap();
        }
        assert_eq!(ended.await.unwrap(), is_lost);
    }
}

#[test]
fn the_longest_time_is_no_limit() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let eight_days = Duration::from_secs(8 * 86_400);
    for wait in [eight_days, Duration::MAX] {
        let held = locker.lock("k").lease(Duration::from_millis(300)).acquire().unwrap();
        let waits = locker.lock("k").wait(wait);
        let waiter = thread::spawn(move || waits.acquire());
        until("it waits", || server.ask::<String>("INFO rlock").contains("rlock_tells:1\r"));
        held.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    }
    let error = locker.lock("k").lease(Duration::MAX).acquire().unwrap_err();
    assert!(error.to_string().contains("LEASE"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_on_trouble_does_not_end_the_wait() {
    let mut server = Server::start(&[]);
    server.kill();
    let (tell, told) = mpsc::channel();
    let request = locker(&server).lock("k").on_trouble(move |_| {
        tell.send(()).unwrap();
        panic!("of the test");
    });
    let acquires = tokio::spawn(request.acquire());
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    server.again();
    acquires.await.unwrap().unwrap().release().await.unwrap();
}

/// `on_trouble` is about waiting only: a program prints "still waiting" there.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_renewal_is_no_trouble_of_the_wait() {
    let server = Server::start(&[]);
    for is_session in [false, true] {
        let locker = locker(&server);
        let (tell, told) = mpsc::channel::<String>();
        let lock = locker.lock("k").lease(Duration::from_secs(3));
        let lock = if is_session { lock.session() } else { lock };
        let lock = lock.on_trouble(move |trouble| tell.send(trouble.to_string()).unwrap());
        let hold = lock.acquire().await.unwrap();
        kill_process(server.pid(), Signal::STOP).unwrap();
        until("a renewal fails", || locker.counts().failed_renewals > 0);
        let heard = told.recv_timeout(Duration::from_millis(300));
        kill_process(server.pid(), Signal::CONT).unwrap();
        assert_eq!(heard, Err(mpsc::RecvTimeoutError::Disconnected), "session: {is_session}");
        let _ = hold.release().await;
        until("it is free", || !is_held(&server, "k"));
    }
}

/// How long it takes until an error reports that there is no server.
async fn takes(locker: &Locker, wait: u64) -> Duration {
    let start = Instant::now();
    let outcome = locker.lock("k").wait(Duration::from_millis(wait)).acquire().await;
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_returns_in_time_whatever_is_silent() {
    let slack = Duration::from_millis(250);
    let server = Server::start(&[]);
    let known = locker(&server);
    known.lock("first").acquire().await.unwrap().release().await.unwrap();
    let process = server.pid();
    kill_process(process, Signal::STOP).unwrap();
    // A server that accepts connections but stays silent; the second one is named as a Sentinel.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let one = Locker::new(Client::open(url.clone()).unwrap());
    let sentinel = Locker::sentinel([url], "m", "redis://127.0.0.1").unwrap();
    for locker in [known, one, sentinel] {
        for wait in [100, 600] {
            let took = takes(&locker, wait).await;
            assert!(took < Duration::from_millis(wait) + slack, "{wait} ms took {took:?}");
        }
    }
    kill_process(process, Signal::CONT).unwrap();
}

#[test]
fn a_thread_returns_in_time_too() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    until("threads have a connection", || {
        locker.lock("k").acquire().unwrap().release().unwrap();
        connections(&server) == 2
    });
    kill_process(server.pid(), Signal::STOP).unwrap();
    let start = Instant::now();
    let outcome = locker.lock("k").wait(Duration::from_millis(1)).acquire();
    let took = start.elapsed();
    kill_process(server.pid(), Signal::CONT).unwrap();
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    assert!(took < Duration::from_millis(250), "{took:?}");
}

/// A wait is shortened by a round trip, so that its reply comes in time; the long time to connect
/// is no round trip.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_to_connect_does_not_shorten_later_waits() {
    let server = Server::start(&[]);
    server.ask::<u64>("RLOCK.ACQUIRE busy somebody");
    let (locker, process) = (locker(&server), server.pid());
    kill_process(process, Signal::STOP).unwrap();
    let connects = tokio::spawn(locker.lock("k").acquire());
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill_process(process, Signal::CONT).unwrap();
    let _hold = connects.await.unwrap().unwrap();
    let (start, wait) = (Instant::now(), Duration::from_millis(80));
    let outcome = locker.lock("busy").wait(wait).acquire().await;
    assert!(matches!(outcome, Err(Error::NotAcquired)), "{outcome:?}");
    assert!(start.elapsed() > wait / 2, "{:?}", start.elapsed());
}

/// A port through which a server seems to be far away.
fn far(server: &Server, way: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, real) = (listener.local_addr().unwrap().port(), server.port);
    let pass = move |mut from: TcpStream, mut to: TcpStream| {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            thread::sleep(way);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", real)) else { return };
            let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pass(client, server));
            thread::spawn(move || pass(back, forth));
        }
    });
    port
}

/// The thread's own dial would have been given up each time.
#[test]
fn a_thread_far_from_its_server_loses_no_time() {
    let server = Server::start(&[]);
    let way = Duration::from_millis(200);
    let url = format!("redis://127.0.0.1:{}", far(&server, way));
    let locker = blocking::Locker::new(Client::open(url).unwrap()).unwrap();
    let fastest = (0..4).map(|_| {
        let start = Instant::now();
        let hold = locker.lock("k").acquire().unwrap();
        let took = start.elapsed();
        hold.release().unwrap();
        took
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < way * 3, "{fastest:?}");
}

#[tokio::test]
async fn two_names_of_one_server_are_one_server() {
    let server = Server::start(&[]);
    let other = Locker::new(Client::open(server.url().replace("127.0.0.1", "localhost")).unwrap());
    let outer = locker(&server).lock("k").owner("ann").acquire().await.unwrap();
    let inner = other.lock("k").owner("ann").wait(Duration::ZERO).acquire().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    inner.release().await.unwrap();
    assert!(outer.is_held() && is_held(&server, "k"));
    outer.release().await.unwrap();
    assert!(!is_held(&server, "k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_is_closed() {
    let server = Server::start(&[]);
    let (locker, clone) = (locker(&server), locker(&server));
    let held = locker.lock("held").lease(Duration::from_millis(1500)).acquire().await.unwrap();
    let session = locker.lock("session").session().acquire().await.unwrap();
    let mut observer = locker.election("leader").observe();
    assert!(observer.next().await.unwrap().is_none());
    server.ask::<u64>("RLOCK.ACQUIRE busy somebody");
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(locker.lock("busy").acquire())).collect();
    let named = tokio::spawn(clone.lock("busy").owner("named").acquire());
    let waiting = || server.ask::<Vec<(String, u64, u64)>>("RLOCK.QUEUES");
    until("they wait", || waiting().first().is_some_and(|(_, count, _)| *count == 4));
    let next = tokio::spawn(async move { observer.next().await });
    locker.close().await;
    clone.close().await;
    for wait in waits.into_iter().chain([named]) {
        let outcome = wait.await.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert!(matches!(next.await.unwrap(), Err(Error::Closed)));
    assert!(!session.is_held() && matches!(session.release().await, Err(Error::Lost)));
    until("it has no connection", || connections(&server) == 0);
    until("the lease is over", || !is_held(&server, "held"));
    assert!(!held.is_held(), "it was renewed");
    assert!(matches!(locker.lock("other").acquire().await, Err(Error::Closed)));
    assert!(matches!(clone.lock("other").owner("x").acquire().await, Err(Error::Closed)));
    assert!(matches!(locker.election("leader").observe().next().await, Err(Error::Closed)));
    server.ask::<u64>("RLOCK.RELEASE busy somebody");
    assert!(!is_held(&server, "busy") && !is_held(&server, "session"));
    assert_eq!(connections(&server), 0);
}

/// On a current-thread runtime, tasks run only while this one waits.
#[tokio::test(flavor = "current_thread")]
async fn closed_is_closed_on_one_thread() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let session = locker.lock("session").session().acquire().await.unwrap();
    let plain = locker.lock("plain").acquire().await.unwrap();
    locker.close().await;
    assert!(!session.is_held());
    until("it has no connection", || connections(&server) == 0);
    assert!(matches!(session.release().await, Err(Error::Lost)));
    assert!(matches!(plain.release().await, Err(Error::Closed)));
}

#[test]
fn closed_is_closed_for_threads() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let plain = locker.lock("plain").acquire().unwrap();
    locker.lock("other").acquire().unwrap().release().unwrap();
    server.ask::<u64>("RLOCK.ACQUIRE busy somebody");
    let waiting = locker.clone();
    let wait = thread::spawn(move || waiting.lock("busy").acquire());
    until("it waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
    locker.close();
    assert!(matches!(wait.join().unwrap(), Err(Error::Closed)));
    until("it has no connection", || connections(&server) == 0);
    assert!(matches!(locker.lock("new").acquire(), Err(Error::Closed)));
    assert!(matches!(plain.release(), Err(Error::Closed)));
    assert_eq!(connections(&server), 0);
    assert_eq!(server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len(), 0);
}

/// The reply is late, or the request is: the server may execute it after the owner's next request.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_overtakes_a_request_that_was_to_tie_a_session() {
    let server = Server::start(&[]);
    let (port, asked) = holding_back(&server);
    let locker = Locker::new(Client::open(format!("redis://127.0.0.1:{port}")).unwrap());
    let lock = locker.lock("order").owner("ann").wait(Duration::from_secs(10));
    let hold = lock.clone().session().lease(Duration::from_secs(2)).acquire().await.unwrap();
    let token = hold.token();
    let (ends, _) = asked.recv().unwrap();
    ends.near.shutdown(Shutdown::Both).unwrap();
    let (mut tying, late) = asked.recv_timeout(Duration::from_secs(10)).unwrap();
    hold.lost().await;
    let next = tokio::spawn(async move {
        assert!(matches!(hold.release().await, Err(Error::Lost)));
        lock.acquire().await.unwrap()
    });
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert!(!next.is_finished(), "it is overtaken");
    tying.far.write_all(&late).unwrap();
    let again = next.await.unwrap();
    assert!(again.token() > token);
    again.release().await.unwrap();
    assert!(!is_held(&server, "order"));
}

/// The port of a proxy that passes on the first request for a session, and holds back all later
/// ones. Each of those is returned with its connections.
fn holding_back(server: &Server) -> (u16, mpsc::Receiver<(Ends, Vec<u8>)>) {
    let (tell, asked) = mpsc::channel();
    let is_first = AtomicBool::new(true);
    let to = Arc::new(AtomicU16::new(server.port));
    let port = relay(&to, Duration::ZERO, move |ends, bytes| {
        if !bytes.windows(7).any(|word| word == b"SESSION") {
            return !bytes.is_empty(); // the end of the client's connection is not passed on
        }
        tell.send((ends.copy(), bytes.to_vec())).unwrap();
        is_first.swap(false, Ordering::SeqCst)
    });
    (port, asked)
}
