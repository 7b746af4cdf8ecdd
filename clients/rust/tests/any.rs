//! One of many, on a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::time::Duration;

use redis::Client;
use rlock_client::{Error, Locker, blocking};
use support::{Server, until};

const BRIEF: Duration = Duration::from_millis(100);

fn holders(server: &Server, key: &str) -> usize {
    let info: redis::Value = server.ask(&format!("RLOCK.INFO {key}"));
    let fields: std::collections::HashMap<String, redis::Value> =
        redis::from_redis_value(info).unwrap();
    redis::from_redis_value(fields["holder-count"].clone()).unwrap()
}

fn held(server: &Server) -> [usize; 3] {
    ["pool", "a", "b"].map(|key| holders(server, key))
}

fn waits(server: &Server) -> usize {
    server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_first_and_then_the_first_free_key() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    let any = locker.any("pool", ["a", "b", "a"]).unwrap();
    let (first, second) =
        (any.clone().acquire().await.unwrap(), any.clone().acquire().await.unwrap());
    assert_eq!((first.key(), second.key(), held(&server)), (&b"a"[..], &b"b"[..], [2, 1, 1]));
    let none = any.clone().wait(BRIEF).acquire().await;
    assert!(matches!(none, Err(Error::NotAcquired)), "{none:?}");
    let waiting = tokio::spawn(any.clone().acquire());
    until("it waits in line", || waits(&server) == 1);
    second.release().await.unwrap();
    let third = waiting.await.unwrap().unwrap();
    assert_eq!(third.key(), b"b");
    drop(first);
    third.release().await.unwrap();
    until("all are released", || held(&server) == [0, 0, 0]);
    assert!(locker.any("pool", ["pool"]).is_err() && locker.any::<&str>("pool", []).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_gives_its_permit_back() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    server.acquire_all(&["RLOCK.ACQUIRE a somebody"]);
    let any = locker.any("pool", ["a"]).unwrap();
    assert!(matches!(any.clone().wait(BRIEF).acquire().await, Err(Error::NotAcquired)));
    assert_eq!(held(&server), [0, 1, 0]);
    assert!(tokio::time::timeout(BRIEF, any.clone().acquire()).await.is_err());
    until("what was dropped is released", || held(&server) == [0, 1, 0]);
    let waiting = tokio::spawn(any.acquire());
    until("it has a permit", || held(&server) == [1, 1, 0]);
    assert_eq!(server.ask::<u64>("RLOCK.FORCE a"), 1);
    let hold = waiting.await.unwrap().unwrap();
    assert_eq!(server.ask::<u64>("RLOCK.FORCE a"), 1);
    assert!(matches!(hold.release().await, Err(Error::Lost)));
    assert_eq!(held(&server), [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_shows_what_it_is() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    let hold = locker.lock("a").owner("me").acquire().await.unwrap();
    let left = hold.left();
    assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30), "{left:?}");
    let begins = format!("a held by me, token {}, 2", hold.token());
    let shown = hold.to_string();
    assert!(shown.starts_with(&begins) || shown.ends_with(", 30.0 s left"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_what_is_wrong() {
    let (server, bare) = (Server::start(&[]), Server::bare(&[]));
    let locker = Locker::new(Client::open(server.url()).unwrap());
    locker.check("k").await.unwrap();
    let hold = locker.lock("k").acquire().await.unwrap();
    locker.check("k").await.unwrap();
    hold.release().await.unwrap();
    assert_eq!(holders(&server, "k"), 0);
    let said = Locker::new(Client::open(bare.url()).unwrap()).check("k").await.unwrap_err();
    assert!(said.to_string().contains("has not loaded the RLOCK module"), "{said}");
    let () = server.ask("ACL SETUSER deaf on >secret ~* +@all -ssubscribe");
    let url = server.url().replace("//", "//deaf:secret@");
    let said = Locker::new(Client::open(url).unwrap()).check("k").await.unwrap_err();
    assert!(matches!(said, Error::NoPerm(_)), "{said}");
    until("it is released", || holders(&server, "k") == 0);
}

#[test]
fn threads_get_one_each() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let any = locker.any("pool", ["a", "b"]).unwrap().wait(Duration::from_secs(10));
    let (first, second) = (any.clone().acquire().unwrap(), any.clone().acquire().unwrap());
    assert_eq!((first.key(), second.key(), held(&server)), (&b"a"[..], &b"b"[..], [2, 1, 1]));
    first.release().unwrap();
    assert_eq!(held(&server), [1, 0, 1]);
    assert_eq!(any.acquire().unwrap().release().ok(), Some(()));
    second.release().unwrap();
    assert_eq!(held(&server), [0, 0, 0]);
}
