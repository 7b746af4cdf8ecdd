//! A process that shuts down, on a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Locker, blocking};
use support::{Server, is_held, until};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn waits(server: &Server) -> usize {
    server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len()
}

fn is_closed<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Closed))
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_end_at_once_and_bodies_keep_their_locks() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    let hold = locker.lock("k").lease(Duration::from_millis(600)).acquire().await.unwrap();
    let named = locker.lock("named").owner("ann").acquire().await.unwrap();
    let any = locker.any("pool", ["k"]).unwrap();
    let waiting = [
        tokio::spawn(locker.lock("k").acquire()),
        tokio::spawn(locker.lock("k").session().acquire()),
        tokio::spawn(locker.lock("k").owner("bob").acquire()),
        tokio::spawn(locker.all(["k", "other"]).unwrap().acquire()),
        tokio::spawn(any.clone().acquire()),
    ];
    until("they wait", || is_held(&server, "pool") && waits(&server) > 0);
    let drains = tokio::spawn({
        let locker = locker.clone();
        async move { locker.drain(LONG).await }
    });
    for each in waiting {
        let ended = each.await.unwrap();
        assert!(is_closed(&ended), "{ended:?}");
    }
    assert!(is_closed(&locker.lock("free").try_acquire().await));
    assert!(is_closed(&locker.lock("free").owner("ann").try_acquire().await));
    assert!(is_closed(&locker.all(["free"]).unwrap().acquire().await));
    assert!(is_closed(&any.acquire().await));
    until("nothing waits", || waits(&server) == 0 && !is_held(&server, "pool"));
    locker.lock("named").owner("ann").try_acquire().await.unwrap().release().await.unwrap();
    named.release().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await; // three leases
    assert!(hold.is_held() && is_held(&server, "k") && !drains.is_finished());
    hold.release().await.unwrap();
    assert!(drains.await.unwrap().is_empty());
    assert!(!is_held(&server, "k") && !is_held(&server, "named"));
    assert!(locker.drain(LONG).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_end_hears_of_it_and_others_stay_out() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    let lease = Duration::from_millis(1500);
    let plain = locker.lock("plain").lease(lease).acquire().await.unwrap();
    let session = locker.lock("session").session().acquire().await.unwrap();
    let several = locker.all(["a", "b"]).unwrap().lease(lease).acquire().await.unwrap();
    let begin = Instant::now();
    let left = locker.drain(SHORT).await;
    assert_eq!(left, ["a", "b", "plain", "session"].map(|key| key.as_bytes().to_vec()));
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    assert!(["plain", "a", "b"].iter().all(|key| is_held(&server, key)));
    for hold in [plain, session, several] {
        assert!(hold.loss().is_lost() && hold.loss().ended().await);
        let released = hold.release().await;
        assert!(matches!(released, Err(Error::Lost)), "{released:?}");
    }
    until("all have ended", || {
        !["plain", "session", "a", "b"].iter().any(|key| is_held(&server, key))
    });
}

#[test]
fn threads_end_as_well() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let hold = locker.lock("k").acquire().unwrap();
    let waiting = thread::spawn({
        let request = locker.lock("k");
        move || request.acquire().map(drop)
    });
    until("it waits", || waits(&server) == 1);
    let drains = thread::spawn({
        let locker = locker.clone();
        move || locker.drain(LONG)
    });
    assert!(is_closed(&waiting.join().unwrap()));
    assert!(is_closed(&locker.lock("free").acquire()));
    assert!(!drains.is_finished() && hold.is_held());
    hold.release().unwrap();
    assert!(drains.join().unwrap().is_empty());
}
