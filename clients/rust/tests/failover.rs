//! Sentinel: a client that knew the old primary finds the new one, and Sentinels may be silent.
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

use std::net::TcpListener;
use std::time::Duration;

use rlock_client::Locker;
use sentinel::Sentinel;
use support::{Server, replica_of, until};
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);

/// `None` while the server closes the connections of a failover.
fn role(server: &Server) -> Option<String> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().ok()?;
    let info: String = redis::cmd("INFO").arg("replication").query(&mut connection).ok()?;
    info.lines().find_map(|line| line.strip_prefix("role:")).map(|role| role.trim().to_owned())
}

/// A primary, its replica, their Sentinel, and a locker that finds the primary through it.
fn replicated() -> (Server, Server, Sentinel, Locker) {
    let old = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let new = replica_of(&old);
    let sentinel = Sentinel::of(&old);
    until("Sentinel knows the replica", || sentinel.replicas() == 1);
    let url = format!("redis://127.0.0.1:{}", sentinel.port);
    let locker = Locker::sentinel([url], "mine", "redis://127.0.0.1").unwrap();
    (old, new, sentinel, locker)
}

/// The old primary lives on as a replica: only its errors show that it is no longer a primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_leaves_a_primary_that_was_demoted() {
    let (old, new, sentinel, locker) = replicated();
    // The locker now knows the old primary, and has no connection there that the failover closes.
    locker.lock("before").session().acquire().await.unwrap().release().await.unwrap();
    until("Sentinel fails over", || sentinel.fail_over());
    let is = |server: &Server, which: &str| role(server).as_deref() == Some(which);
    until("the old primary is a replica", || is(&old, "slave") && is(&new, "master"));
    let campaign = locker.election("leader").campaign().wait(MINUTE).acquire();
    let hold = timeout(MINUTE / 2, campaign).await.expect("it asks the old primary").unwrap();
    assert!(new.ask::<bool>("EXISTS leader"));
    hold.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_primary_is_the_same_server_by_its_address_as_well() {
    let (mut old, new, sentinel, locker) = replicated();
    let lease = Duration::from_secs(9);
    let outer = locker.lock("k").owner("ann").lease(lease).acquire().await.unwrap();
    until("it is replicated", || new.ask::<bool>("EXISTS k"));
    until("Sentinel fails over", || sentinel.fail_over());
    until("there is a new primary", || role(&new).as_deref() == Some("master"));
    old.kill();
    let is_asked = |line: &str| line.contains(" cmd=info ") && line.contains(" resp=3");
    until("it is asked what it is", || new.ask::<String>("CLIENT LIST").lines().any(is_asked));
    assert!(outer.is_held());
    let other = Locker::new(redis::Client::open(new.url()).unwrap());
    let inner = other.lock("k").owner("ann").wait(Duration::ZERO).acquire().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    inner.release().await.unwrap();
    assert!(new.ask::<bool>("EXISTS k"));
    outer.release().await.unwrap();
    assert!(!new.ask::<bool>("EXISTS k"));
}

/// More silent Sentinels than a search has time to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn silent_sentinels_are_passed_over() {
    let server = Server::start(&[]);
    let sentinel = Sentinel::of(&server);
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = silent.iter().map(|silent| silent.local_addr().unwrap().port());
    let urls = ports.chain([sentinel.port]).map(|port| format!("redis://127.0.0.1:{port}"));
    let locker = Locker::sentinel(urls, "mine", "redis://127.0.0.1").unwrap();
    let hold = locker.lock("k").wait(MINUTE / 4).acquire().await.unwrap();
    hold.release().await.unwrap();
}
