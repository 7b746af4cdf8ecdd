//! Several locks in one step, and elections, on a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Locker, One, blocking, limit, read};
use support::{Server, until};

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

fn is_free(server: &Server, key: &str) -> bool {
    !server.ask::<bool>(&format!("EXISTS {key}"))
}

fn waits(server: &Server) -> usize {
    server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_one_hold() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let ones: [One; 5] = ["b".into(), "a".into(), read("c"), limit("p", 2), "a".into()];
    let hold = locker.all(ones.clone()).unwrap().acquire().await.unwrap();
    assert!(["a", "b", "c", "p"].iter().all(|key| !is_free(&server, key)));
    let refused = locker.all(["d", "a"]).unwrap().wait(Duration::from_millis(50)).acquire().await;
    assert!(matches!(refused, Err(Error::NotAcquired)), "{refused:?}");
    let next = tokio::spawn(locker.all(ones).unwrap().acquire());
    until("it waits", || waits(&server) == 1);
    hold.release().await.unwrap();
    let dropped = tokio::spawn(locker.all(["a", "d"]).unwrap().acquire());
    let next = next.await.unwrap().unwrap();
    until("another waits", || waits(&server) == 1);
    dropped.abort();
    until("a wait that is dropped leaves nothing", || waits(&server) == 0);
    next.release().await.unwrap();
    assert!(["a", "b", "c", "d", "p"].iter().all(|key| is_free(&server, key)));
}

#[test]
fn the_loss_of_one_is_the_loss_of_all() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    assert!(locker.all(["a".into(), read("a")]).is_err());
    assert!(locker.all(Vec::<One>::new()).is_err());
    let hold = locker.all(["a", "b"]).unwrap().lease(Duration::from_secs(3)).acquire().unwrap();
    assert_eq!(server.ask::<u64>("RLOCK.FORCE b"), 1);
    assert!(hold.lost_within(Duration::from_secs(2)) && !hold.is_held());
    assert!(matches!(hold.release(), Err(Error::Lost)));
    assert!(is_free(&server, "a"));
    let hold = locker.all(["a", "b"]).unwrap().acquire().unwrap();
    assert_eq!(server.ask::<u64>("RLOCK.FORCE a"), 1);
    assert!(matches!(hold.release(), Err(Error::Lost)));
    assert!(is_free(&server, "b"));
}

#[test]
fn threads_ask_who_leads() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let election = locker.election("leader").name("here").lease(Duration::from_secs(5));
    assert_eq!(election.leader().unwrap(), None);
    let hold = election.campaign().acquire().unwrap();
    let leader = election.leader().unwrap().unwrap();
    assert_eq!((leader.token, leader.name(), hold.key()), (hold.token(), "here", &b"leader"[..]));
    let loss = hold.loss();
    assert!(!loss.is_lost());
    server.ask::<u64>("RLOCK.FORCE leader");
    until("it is lost", || loss.is_lost());
    locker.all(["a"]).unwrap().on_trouble(|_| {}).acquire().unwrap().release().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_see_who_leads() {
    let server = Server::start(&[]);
    let election = locker(&server).election("leader").name("10.0.0.1:8443");
    let mut observer = election.observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let hold = election.campaign().acquire().await.unwrap();
    let leader = observer.next().await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.owner.as_str(), leader.name()),
        (hold.token(), hold.owner(), "10.0.0.1:8443")
    );
    assert_eq!(election.leader().await.unwrap(), Some(leader));
    let twice = election.campaign().try_acquire().await;
    assert!(matches!(twice, Err(Error::NotAcquired)), "{twice:?}");
    let start = Instant::now();
    assert_eq!(server.ask::<u64>("RLOCK.FORCE leader"), 1); // closes the connection of the session
    hold.lost().await;
    assert_eq!(observer.next().await.unwrap(), None);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(matches!(hold.release().await, Err(Error::Lost)));
}

/// As with an address that stays with a primary that was demoted for a while.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_waits_while_its_server_is_a_replica() {
    let server = Server::start(&[]);
    let mut observer = locker(&server).election("leader").observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let next = tokio::spawn(async move { observer.next().await });
    let () = server.ask("REPLICAOF 127.0.0.1 1");
    let refusals = || {
        let stats: String = server.ask("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_rlock.await:"));
        let failed =
            line.and_then(|line| line.split(',').find_map(|f| f.strip_prefix("failed_calls=")));
        failed.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    // The first refusal shows that the server is no longer a primary.
    until("it asks the replica", || next.is_finished() || refusals() > 2);
    let () = server.ask("REPLICAOF NO ONE");
    let token: u64 = server.ask("RLOCK.ACQUIRE leader ann");
    let leader = next.await.unwrap().unwrap().unwrap();
    assert_eq!((leader.token, leader.owner.as_str()), (token, "ann"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_name_is_no_text_leads_all_the_same() {
    let server = Server::start(&[]);
    let election = locker(&server).election("leader");
    let mut acquire = redis::cmd("RLOCK.ACQUIRE");
    acquire.arg("leader").arg(b"\xff");
    let token: u64 = acquire.query(&mut server.connect()).unwrap();
    let leader = election.observe().next().await.unwrap().unwrap();
    assert_eq!((leader.token, leader.owner.as_str()), (token, "\u{fffd}"));
    assert_eq!(election.leader().await.unwrap(), Some(leader));
}
