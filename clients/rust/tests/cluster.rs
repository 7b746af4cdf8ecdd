//! A Cluster whose slots move, and a Cluster that does not report the addresses of its nodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::sync::mpsc;
use std::time::Duration;

use rlock_client::Locker;
use support::{Server, cluster};
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);

fn move_slot(at: &Server, key: &str, to: &str) {
    let slot: u16 = at.ask(&format!("CLUSTER KEYSLOT {key}"));
    let () = at.ask(&format!("CLUSTER SETSLOT {slot} NODE {to}"));
}

/// The first server takes over what had moved to the second one, as a replica of the second one
/// does when it is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirection_to_a_server_that_died_is_forgotten() {
    let mut servers = cluster(&["0 16383", ""]);
    let ids: Vec<String> = servers.iter().map(|server| server.ask("CLUSTER MYID")).collect();
    let locker = Locker::cluster([servers[0].url()]).unwrap();
    // From here on, the locker knows which node has which slots.
    locker.lock("k").session().acquire().await.unwrap().release().await.unwrap();
    servers[1].kill();
    move_slot(&servers[0], "k", &ids[1]);
    let (tell, told) = mpsc::channel();
    let request = locker.lock("k").session().on_trouble(move |_| tell.send(()).unwrap());
    let acquires = tokio::spawn(request.acquire());
    tokio::task::spawn_blocking(move || told.recv_timeout(MINUTE)).await.unwrap().unwrap();
    move_slot(&servers[0], "k", &ids[0]);
    let hold = timeout(MINUTE / 4, acquires).await.expect("it dials the dead server for ever");
    hold.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_servers_of_a_cluster_may_have_no_names() {
    let servers = cluster(&["0 16383"]);
    let () = servers[0].ask("CONFIG SET cluster-preferred-endpoint-type unknown-endpoint");
    let locker = Locker::cluster([servers[0].url()]).unwrap();
    let hold = locker.lock("k").wait(Duration::from_secs(5)).acquire().await.unwrap();
    hold.release().await.unwrap();
}
