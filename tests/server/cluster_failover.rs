//! A primary of a cluster is replaced by its replica: the holds stay, the queue does not.

use crate::support::{Cluster, Waiter, now_ms, until};

const HALL: u16 = 4903;

/// It was told that it must go elsewhere: with its connection closed, or, on Valkey 9, without.
#[track_caller]
fn not_granted(waiter: &mut Waiter) {
    let error = waiter.reply().unwrap_err();
    assert!(error.starts_with("UNBLOCKED ") || error.starts_with("MOVED "), "{error}");
}

#[test]
fn a_replica_that_takes_over_has_every_hold_and_issues_greater_tokens() {
    let mut cluster = Cluster::of_six(2_000, &[]);
    let mut primary = cluster.client(0);
    assert_eq!(cluster.owner_of(HALL, 0), Some(0));
    let replica = cluster.replica_of(0);
    let hold = |cluster: &Cluster, node: usize| {
        let mut client = cluster.client(node);
        client.ask("READONLY");
        let lock = client.lock("hall");
        let deadlines = lock.holds.iter().map(|hold| now_ms() + hold.ttl_ms).max().unwrap();
        (lock.lasting(), deadlines)
    };

    // In order, by hand.
    let token = primary.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
    primary.granted("RLOCK.ACQUIRE hall ann READ LEASE 600000");
    let mut ann = Waiter::connect(cluster.node(0));
    ann.ask("RLOCK.ACQUIRE {hall}:2 ann LEASE 600000 SESSION");
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall bob BLOCK 0");
    let (holds, deadline_ms) = hold(&cluster, 0);
    cluster.client(replica).ask("CLUSTER FAILOVER");
    until(30_000, || cluster.owner_of(HALL, replica) == Some(replica));
    not_granted(&mut bob);
    ann.expect_close();
    let (after, deadline_after_ms) = hold(&cluster, replica);
    assert_eq!(after, holds);
    assert!((deadline_after_ms - deadline_ms).abs() < 50);
    assert_eq!(primary.gauges(), (0, 0, 0));
    let mut promoted = cluster.client(replica);
    let mut bob = Waiter::parked(cluster.node(replica), "RLOCK.ACQUIRE hall bob BLOCK 0");
    promoted.ask("RLOCK.RELEASE hall ann WRITE");
    promoted.ask("RLOCK.RELEASE hall ann READ");
    let next = bob.granted();
    assert!(next > token);
    assert_eq!(promoted.shows("{hall}:2"), "write: ann write 1");

    // By its death, when every grant has reached the other one.
    until(30_000, || cluster.client(0).info("replication", "master_link_status").is_some());
    promoted.ask("RLOCK.RENEW hall bob LEASE 600000");
    until(30_000, || promoted.number("WAIT 1 1000") == 1);
    let (holds, deadline_ms) = hold(&cluster, replica);
    cluster.node_mut(replica).kill_9();
    until(30_000, || cluster.owner_of(HALL, 0) == Some(0));
    cluster.until_all_agree();
    let (after, deadline_after_ms) = hold(&cluster, 0);
    assert_eq!(after, holds);
    assert!((deadline_after_ms - deadline_ms).abs() < 50);
    let mut cid = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall cid BLOCK 0");
    primary.ask("RLOCK.RELEASE hall bob");
    assert!(cid.granted() > next);
}
