//! Blocked connections: how their waits begin and end, and who gets which reply.

use crate::support::MapHost;
use rlock_core::WaiterId;
use rlock_engine::{Deferred, blocked};

fn held() -> MapHost {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann LEASE 5000");
    host.take_log();
    host
}

fn over(host: &MapHost, waiter: u64, is_lost: bool) {
    blocked::over(host, WaiterId::from(waiter), is_lost);
}

fn gone(host: &MapHost, waiter: u64) {
    host.world().waiting.remove(&waiter);
    blocked::gone(host, WaiterId::from(waiter));
}

#[test]
fn a_wait_ends_at_its_time() {
    let host = held();
    assert_eq!(host.ask(2, "acquire k bob BLOCK 500"), "");
    assert_eq!(host.alarm(), Some(500));
    host.at(499);
    assert_eq!(host.turn(), [""; 0]);
    host.at(500);
    assert_eq!(host.turn(), ["2: nil"]);
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_wait_without_an_end_has_no_timeout() {
    let host = held();
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    host.at(4999);
    assert_eq!(host.turn(), [""; 0]);
    host.at(5000);
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn no_more_connections_are_blocked_than_configured() {
    let host = held();
    host.world().bounds.max_waiters = 1;
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    let said = host.ask(3, "acquire k cid BLOCK 0");
    assert!(
        said.starts_with("-TOOMANY too many blocked connections (rlock.max-waiters is 1)"),
        "{said}"
    );
    assert_eq!(host.world().waiting.len(), 1);
}

#[test]
fn nobody_is_blocked_at_a_key_that_may_come_if_the_server_errs_then() {
    let at = |blocks_aside, is_cluster, key: &str| {
        let host = MapHost::primary();
        host.world().is_cluster = is_cluster;
        host.world().blocks_aside = blocks_aside;
        host.ask(1, &format!("acquire {key} ann"));
        assert_eq!(host.ask(2, &format!("acquire {key} bob BLOCK 0")), "");
        let at = host.world().waiting.values().flat_map(|it| it.at.concat()).collect();
        String::from_utf8(at).unwrap()
    };
    assert_eq!(at(false, false, "k"), "k");
    assert_eq!(at(true, false, "k"), "\0rlock");
    // In the key's slot.
    assert_eq!(at(true, true, "k"), "{k}\0rlock");
    assert_eq!(at(true, true, "a{k}b"), "{k}\0rlock");
    for key in ["{}k", "k}", "{k"] {
        assert_eq!(at(true, true, key), key);
    }
}

#[test]
fn a_caller_that_cannot_be_blocked_gets_the_reply_of_one_that_does_not_wait() {
    let host = held();
    host.world().denies_blocking = true;
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0 WITHTTL"), "*2 nil 5000");
    assert_eq!(host.seen().last().unwrap(), "acquired NotNow { wait_ms: Some(5000) }");
    assert_eq!(host.take_deferred(), []);
    assert!(host.world().waiting.is_empty());
}

#[test]
fn a_second_upgrade_that_cannot_be_blocked_gets_nil() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ");
    host.ask(2, "acquire k bob READ");
    assert_eq!(host.ask(1, "acquire k ann UPGRADE BLOCK 0"), "");
    let refused = host.ask(2, "acquire k bob UPGRADE BLOCK 0");
    assert!(refused.starts_with("-DEADLOCK another reader"), "{refused}");
    host.world().denies_blocking = true;
    assert_eq!(host.ask(2, "acquire k bob UPGRADE BLOCK 0"), "nil");
    let refused = host.ask(2, "acquire k bob UPGRADE QUEUE 100");
    assert!(refused.starts_with("-DEADLOCK another reader"), "a ticket does not block: {refused}");
}

#[test]
fn a_caller_that_the_server_refuses_to_block_gets_nil() {
    let host = held();
    host.world().refuses_to_block = true;
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0 WITHTTL"), "*2 nil 5000");
    assert_eq!(host.ask(1, "release k ann"), "0");
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "no key", "nobody waits");
}

#[test]
fn client_unblock_ends_the_wait_with_the_remaining_time() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0 WITHTTL");
    host.ask(3, "acquire k cid BLOCK 0");
    host.take_log();
    host.at(1000);
    assert_eq!(host.deliver(1), "2: *2 nil 4000");
    assert_eq!(host.seen(), ["unblocked NotNow { wait_ms: Some(4000) }"]);
    over(&host, 1, false);
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["3: #2"]);
    assert_eq!(host.handles(), 0);
}

#[test]
fn client_unblock_lets_those_behind_enter() {
    let host = MapHost::primary();
    host.ask(1, "acquire k ann READ");
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(3, "acquire k cid READ BLOCK 0");
    assert_eq!(host.deliver(1), "2: nil");
    over(&host, 1, false);
    assert_eq!(host.turn(), ["3: #2"]);
}

#[test]
fn client_unblock_with_an_error_ends_the_wait() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    gone(&host, 1);
    over(&host, 1, false);
    host.ask(1, "release k ann");
    assert_eq!((host.turn(), host.holds("k")), (vec![], "no key".into()));
    assert_eq!(host.handles(), 0);
}

#[test]
fn an_unknown_connection_is_told_nil() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    over(&host, 1, false);
    assert_eq!(host.deliver(1), "2: nil");
    assert_eq!(host.did(), ["blocked 2", "told 2: nil"]);
}

#[test]
fn a_departed_connection_is_not_granted() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(3, "acquire k cid BLOCK 0");
    gone(&host, 1);
    assert!(host.has_deferred(Deferred::Sweep), "those behind it may enter now");
    assert_eq!(host.handles(), 1, "its handle is of no use any more");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["3: #2"]);
}

#[test]
fn the_server_may_forget_a_connection_twice() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.deliver(1), "2: #2");
    over(&host, 1, false);
    over(&host, 1, false);
    host.close(2);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "bob write depth=1 until=30000");
}

#[test]
fn a_reply_that_is_lost_after_it_may_have_been_read_revokes_nothing() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(1, "release k ann");
    host.deliver(1);
    over(&host, 1, false);
    over(&host, 1, true);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(host.holds("k"), "bob write depth=1 until=30000");
}

#[test]
fn a_connection_that_is_forgotten_while_it_waits_leaves_no_handle() {
    let host = held();
    host.ask(2, "acquire k bob BLOCK 0");
    over(&host, 1, false);
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_grant_in_the_call_that_blocks_is_answered_after_it() {
    let host = held();
    host.world().meanwhile = Some(|host| host.remove("k"));
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    assert!(host.has_deferred(Deferred::Answer));
    assert_eq!(host.holds("k"), "bob write depth=1 until=30000");
    assert_eq!(host.turn(), ["2: #2"]);
    assert_eq!(host.handles(), 0);
}

#[test]
fn a_grant_in_the_call_that_blocks_is_revoked_if_the_connection_closes() {
    let host = held();
    host.world().meanwhile = Some(|host| host.remove("k"));
    host.ask(2, "acquire k bob BLOCK 0");
    host.close(2);
    host.turn();
    assert_eq!(host.holds("k"), "no key");
}

#[test]
fn a_key_of_another_type_in_the_call_that_blocks_refuses_the_wait() {
    let host = held();
    host.world().meanwhile = Some(|host| host.put_other("k"));
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    let told = host.turn();
    assert!(told[0].starts_with("2: -WRONGTYPE"), "{told:?}");
}

#[test]
fn a_server_that_became_a_replica_in_the_call_that_blocks_refuses_the_wait() {
    let host = held();
    host.world().meanwhile = Some(|host| rlock_engine::events::set_role(host, false));
    assert_eq!(host.ask(2, "acquire k bob BLOCK 0"), "");
    assert_eq!(host.turn().len(), 1);
    assert_eq!(host.holds("k"), "ann write depth=1 until=5000");
}

#[test]
fn a_ticket_becomes_the_wait_of_its_connection() {
    let host = held();
    host.ask(2, "acquire k bob QUEUE 1000");
    host.ask(3, "acquire k cid BLOCK 0");
    host.ask(2, "acquire k bob BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"]);
}

#[test]
fn a_wait_for_a_session_ties_the_hold_to_the_connection() {
    let host = held();
    host.ask(2, "acquire k bob SESSION BLOCK 0");
    host.ask(3, "acquire k cid BLOCK 0");
    host.ask(1, "release k ann");
    assert_eq!(host.turn(), ["2: #2"]);
    host.close(2);
    assert_eq!(host.turn(), ["3: #3"]);
}

/// The request was going to wait for acknowledgments, but another one got the lock first.
#[test]
fn who_waits_for_the_lock_after_all_waits_as_long_as_it_said() {
    for command in ["acquire b ann ACKS 1", "macquire 2 a b ann ACKS 1"] {
        for (patience, ends_at) in [("BLOCK 500", 500), ("BLOCK 3000", 3000), ("BLOCK 0", 5000)] {
            let host = MapHost::primary();
            host.world().acknowledged = vec![0];
            host.world().meanwhile = Some(|host| drop(host.ask(9, "acquire b bob")));
            assert_eq!(host.ask(1, &format!("{command} {patience}")), "");
            assert_eq!((host.turn(), host.line("b")), (vec![], "ann".into()), "{command}");
            host.at(ends_at - 1);
            assert_eq!(host.turn(), [""; 0], "{command} {patience}");
            host.at(ends_at);
            let reply = if ends_at < 5000 { "1: nil" } else { "" };
            assert_eq!(host.turn().join(","), reply, "{command} {patience}");
        }
    }
}
