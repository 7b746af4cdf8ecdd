//! A primary of a cluster is replaced by its replica: the holds stay, the queue does not.

use rlock_testkit::{Cluster, LockView, Server, Waiter, now_ms, time_ms, until};

const HALL: u16 = 4903;

/// Asserts that it was redirected to another node: with its connection closed, or, on Valkey 9,
/// without.
#[track_caller]
fn not_granted(waiter: &mut Waiter) {
    let error = waiter.reply().unwrap_err();
    assert!(error.starts_with("UNBLOCKED ") || error.starts_with("MOVED "), "{error}");
}

/// Whether a time between the first two may equal one between the other two, to the millisecond.
fn may_be_one(first: [i64; 2], second: [i64; 2]) -> bool {
    first[0] <= second[1] + 1 && second[0] <= first[1] + 1
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
        let replies = client.all(&["TIME", "RLOCK.INFO hall", "TIME"]);
        let lock = LockView::read(&replies[1]);
        let ttl_ms = lock.holds.iter().map(|hold| hold.ttl_ms).max().unwrap();
        // Between two looks at its clock, however long it took the server.
        (lock.lasting(), [time_ms(&replies[0]) + ttl_ms, time_ms(&replies[2]) + ttl_ms])
    };

    // A planned failover, by hand.
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
    assert!(may_be_one(deadline_ms, deadline_after_ms), "{deadline_ms:?} {deadline_after_ms:?}");
    assert_eq!(primary.gauges(), (0, 0, 0));
    let mut promoted = cluster.client(replica);
    let mut bob = Waiter::parked(cluster.node(replica), "RLOCK.ACQUIRE hall bob BLOCK 0");
    promoted.ask("RLOCK.RELEASE hall ann WRITE");
    promoted.ask("RLOCK.RELEASE hall ann READ");
    let next = bob.granted();
    assert!(next > token);
    assert_eq!(promoted.shows("{hall}:2"), "write: ann write 1");

    // A failover by the primary's death, when every grant has reached the replica.
    until(30_000, || cluster.client(0).info("replication", "master_link_status").is_some());
    promoted.ask("RLOCK.RENEW hall bob LEASE 600000");
    until(30_000, || promoted.number("WAIT 1 1000") == 1);
    let (holds, deadline_ms) = hold(&cluster, replica);
    cluster.node_mut(replica).kill_9();
    until(30_000, || cluster.owner_of(HALL, 0) == Some(0));
    cluster.until_all_agree();
    let (after, deadline_after_ms) = hold(&cluster, 0);
    assert_eq!(after, holds);
    assert!(may_be_one(deadline_ms, deadline_after_ms), "{deadline_ms:?} {deadline_after_ms:?}");
    let mut cid = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE hall cid BLOCK 0");
    primary.ask("RLOCK.RELEASE hall bob");
    assert!(cid.granted() > next);
}

#[test]
fn while_the_cluster_is_down_a_session_lasts_as_long_as_its_lease() {
    let mut cluster = Cluster::of_two_with(&["cluster-node-timeout", "1000"]);
    let mut client = cluster.client(0);
    let session = |key: &str, lease_ms: u32| {
        let mut waiter = Waiter::connect(cluster.node(0));
        waiter.ask(&format!("RLOCK.ACQUIRE {key} ann LEASE {lease_ms} SESSION"));
        waiter
    };
    let began_ms = now_ms();
    let (mut short, mut long) = (session("{hall}:short", 5_000), session("{hall}:long", 20_000));
    let mut bob = Waiter::parked(cluster.node(0), "RLOCK.ACQUIRE {hall}:long bob BLOCK 0");
    client.refused("RLOCK.ACQUIRE {hall}:long cid QUEUE 60000");
    cluster.node_mut(1).kill_9();
    until(20_000, || client.text("CLUSTER INFO").contains("cluster_state:fail"));
    let down_ms = now_ms();
    // Renewals fall due and cannot be written: the holds exist until their leases expire.
    until(5_000, || now_ms() > down_ms + 1_800);
    short.expect_silence();
    assert_eq!(short.last_words(), []);
    // Ten milliseconds early: then another node may grant the lock.
    assert!(now_ms() >= began_ms + 4_990, "closed after {} ms", now_ms() - began_ms);
    assert!(client.error("RLOCK.HOLDS {hall}:long ann").starts_with("CLUSTERDOWN "));
    until(10_000, || now_ms() > began_ms + 7_000);
    long.expect_silence();
    assert!(bob.error().starts_with("CLUSTERDOWN "));
    cluster.node_mut(1).start_again();
    cluster.until_all_agree();
    until(5_000, || client.lock("{hall}:long").hold("ann", "write").ttl_ms > 15_000);
    assert_eq!(client.queue("{hall}:long"), "cid write queue");
    drop(long);
    until(5_000, || client.queue("{hall}:long") == "cid write queue turn");
}

/// Reads are answered then, and show that nothing is written.
#[test]
fn while_the_cluster_is_down_and_may_be_read_no_session_is_renewed() {
    let settings = ["cluster-node-timeout", "1000", "cluster-allow-reads-when-down", "yes"];
    let mut cluster = Cluster::of_two_with(&settings);
    let mut client = cluster.client(0);
    let mut ann = Waiter::connect(cluster.node(0));
    ann.ask("RLOCK.ACQUIRE {hall} ann LEASE 9000 SESSION");
    cluster.node_mut(1).kill_9();
    until(20_000, || client.text("CLUSTER INFO").contains("cluster_state:fail"));
    let (ends_at_ms, down_ms) = (client.key_ends_at("{hall}"), now_ms());
    until(10_000, || now_ms() > down_ms + 3_500);
    assert_eq!(client.key_ends_at("{hall}"), ends_at_ms);
    cluster.node_mut(1).start_again();
    cluster.until_all_agree();
    until(5_000, || client.key_ends_at("{hall}") > ends_at_ms);
}

#[test]
fn a_grant_that_was_waited_for_is_one_that_wait_knows_of() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.granted("RLOCK.ACQUIRE hall ann");
    let mut bob = Waiter::parked(&primary, "RLOCK.ACQUIRE hall bob BLOCK 0");
    assert_eq!(client.number("WAIT 1 20000"), 1);
    replica.freeze();
    client.ask("RLOCK.RELEASE hall ann");
    let token = bob.granted();
    assert_eq!(bob.number("WAIT 1 100"), 0);
    replica.thaw();
    assert_eq!(bob.number("WAIT 1 20000"), 1);
    assert_eq!(replica.client().lock("hall").hold("bob", "write").token, token);
}
