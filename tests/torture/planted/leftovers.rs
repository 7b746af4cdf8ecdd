//! The check of what is left at the end: it must find everything that it checks for.

use crate::aftermath;
use crate::faults::Shard;
use rlock_testkit::{Server, Waiter};

fn primary() -> Server {
    Server::primary(&["appendonly", "yes", "enable-debug-command", "yes"])
}

fn look(primary: &mut Server, replicas: Vec<&Server>) -> Vec<String> {
    aftermath::look(&mut Shard { primary, replicas }, false)
}

fn only(wrong: &[String], what: &str) {
    assert!(wrong.len() == 1 && wrong[0].contains(what), "{what}: {wrong:?}");
}

#[test]
fn what_was_left_on_purpose_is_in_order_and_nothing_at_all_is_not() {
    let mut server = primary();
    only(&look(&mut server, Vec::new()), "nothing is left to compare");
    server.client().granted("RLOCK.ACQUIRE left:1 ann LEASE 600000");
    let replica = Server::replica_of(&server, &[]);
    assert_eq!(look(&mut server, vec![&replica]), [""; 0]);
}

#[test]
fn a_hold_that_nobody_gave_back_is_seen() {
    let mut server = primary();
    server.client().granted("RLOCK.ACQUIRE left:1 ann LEASE 600000");
    server.client().granted("RLOCK.ACQUIRE door ann LEASE 600000");
    only(&look(&mut server, Vec::new()), "door is held");
}

#[test]
fn one_who_waits_for_ever_is_seen() {
    let mut server = primary();
    server.client().granted("RLOCK.ACQUIRE left:1 ann LEASE 600000");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE left:1 bob BLOCK 0");
    let wrong = look(&mut server, Vec::new());
    assert!(wrong[0].contains("rlock_waiters is 1"), "{wrong:?}");
}

#[test]
fn a_replica_that_lost_a_hold_or_has_one_more_is_seen() {
    for line in ["DEL left:1", "RENAME left:2 left:3"] {
        let mut server = primary();
        for key in ["left:1", "left:2"] {
            server.client().granted(&format!("RLOCK.ACQUIRE {key} ann LEASE 600000"));
        }
        let replica = Server::replica_of(&server, &["replica-read-only", "no"]);
        replica.client().ask(line);
        only(&look(&mut server, vec![&replica]), "on the replica");
    }
}
