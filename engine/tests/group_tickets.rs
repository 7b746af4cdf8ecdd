//! Tickets for several locks: places and turns that are kept without a connection.

use crate::support::MapHost;

/// The turn messages since this was last asked.
fn turns(host: &MapHost) -> Vec<String> {
    let log = host.take_log();
    let turns = log.iter().filter_map(|line| line.strip_prefix("published rlock.turn:"));
    turns.map(str::to_owned).collect()
}

fn lines(host: &MapHost, keys: &str) -> Vec<String> {
    keys.split(' ').map(|key| host.line(key)).collect()
}

fn totals(host: &MapHost) -> (usize, usize, [usize; 2]) {
    host.state_of(|state| {
        let totals = state.manager.totals();
        (totals.waiters, totals.tickets, state.manager.group_totals())
    })
}

// --- M22: the same request ----------------------------------------------------------------------

#[test]
fn a_ticket_keeps_its_places_and_is_granted_when_it_asks_again_in_any_order() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 b a ann QUEUE 1000"), "nil");
    assert_eq!(lines(&host, "a b"), ["ann!", "ann"]);
    assert_eq!(host.ask(3, "acquire a cy"), "nil", "it is reserved");
    assert_eq!(host.ask(3, "acquire b cy QUEUE 5000"), "nil");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 1000"), "nil");
    assert_eq!(lines(&host, "a b"), ["ann!", "ann cy"], "it keeps its arrival");
    host.take_log();
    host.ask(1, "release b bob");
    assert_eq!(turns(&host), ["ann a"], "once, for the first key in key order");
    assert_eq!(lines(&host, "a b"), ["ann!", "ann! cy"]);
    assert_eq!(host.ask(3, "acquire a cy"), "nil");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 1000 LEASE 500"), "#2");
    assert_eq!(host.holds("a"), "ann write depth=1 until=500");
    assert_eq!(host.holds("b"), "ann write depth=1 until=500");
    assert_eq!(lines(&host, "a b"), ["", "cy"]);
    assert_eq!(totals(&host), (0, 1, [0, 0]));
    assert_eq!(host.turn(), [""; 0]);
}

/// Another number is another mode; the same request has its keys in any order.
#[test]
fn modes_belong_to_the_keys_and_not_to_their_order() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 b a ann MODES WRITE 3 QUEUE 1000");
    assert_eq!(host.ask(3, "acquire b cy QUEUE 5000"), "nil");
    assert_eq!(host.ask(2, "macquire 2 a b ann MODES 3 WRITE QUEUE 1000"), "nil");
    assert_eq!(host.line("b"), "ann cy", "the same request");
    assert_eq!(host.ask(2, "macquire 2 a b ann MODES 4 WRITE QUEUE 1000"), "nil");
    assert_eq!(host.line("b"), "cy ann", "another request has a new place");
    assert_eq!(totals(&host), (0, 3, [1, 1]));
}

#[test]
fn the_same_request_without_queue_and_block_leaves_the_ticket_where_it_is() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 1000");
    assert_eq!(host.ask(2, "macquire 2 a b ann"), "nil");
    assert_eq!(lines(&host, "a b"), ["ann!", "ann"]);
    host.ask(1, "release b bob");
    assert_eq!(host.ask(2, "macquire 2 b a ann"), "#2");
    assert_eq!(totals(&host), (0, 0, [0, 0]));
}

#[test]
fn a_blocked_wait_takes_the_places_of_the_ticket_over() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 1000");
    host.ask(3, "acquire b cy BLOCK 0");
    assert_eq!(totals(&host), (1, 2, [1, 1]));
    assert_eq!(host.ask(4, "macquire 2 b a ann BLOCK 5000"), "");
    assert_eq!(lines(&host, "a b"), ["ann!", "ann cy"]);
    assert_eq!(totals(&host), (2, 0, [1, 1]));
    host.at(2000);
    assert_eq!(host.turn(), [""; 0], "the window of the ticket counts no more");
    host.take_log();
    host.ask(1, "release b bob");
    assert_eq!(host.turn(), ["4: #2"]);
    assert_eq!(turns(&host), [""; 0], "a blocked wait has no turn message");
    assert_eq!(host.line("b"), "cy");
}

#[test]
fn a_ticket_that_could_enter_at_once_is_granted_at_once() {
    let host = MapHost::primary();
    assert_eq!(host.ask(1, "macquire 2 b a ann QUEUE 1000"), "#1");
    assert_eq!(totals(&host), (0, 0, [0, 0]));
    assert_eq!(turns(&host), [""; 0]);
}

// --- M23: the turn message and the window -------------------------------------------------------

#[test]
fn the_window_ends_all_places_and_those_behind_are_served() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    host.ask(2, "macquire 3 a b c ann QUEUE 1000");
    host.ask(3, "acquire a cy BLOCK 0");
    host.ask(4, "acquire b dan QUEUE 5000");
    host.take_log();
    host.at(999);
    assert_eq!(host.turn(), [""; 0]);
    host.at(1000);
    assert_eq!(host.turn(), ["3: #2"]);
    assert_eq!(turns(&host), ["dan b"]);
    assert_eq!(lines(&host, "a b c"), ["", "dan!", ""]);
    assert_eq!(totals(&host), (0, 1, [0, 0]));
    assert_eq!(host.ask(2, "macquire 3 a b c ann"), "nil");
}

#[test]
fn the_newest_window_counts() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 1000");
    host.at(900);
    host.ask(2, "macquire 2 a b ann QUEUE 1000");
    host.at(1500);
    assert_eq!(host.turn(), [""; 0]);
    assert_eq!(lines(&host, "a b"), ["ann!", "ann"]);
    host.ask(2, "macquire 2 a b ann QUEUE 100");
    host.at(1600);
    host.turn();
    assert_eq!(lines(&host, "a b"), ["", ""], "a shorter window, too");
}

/// The window of a ticket has passed, and no sweep came yet.
#[test]
fn a_ticket_whose_window_has_passed_is_no_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 1000");
    host.ask(3, "acquire b cy QUEUE 60000");
    host.at(1000);
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 1000"), "nil");
    assert_eq!(host.line("b"), "cy ann", "it takes new places");
}

#[test]
fn a_turn_that_was_lost_is_told_again() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann LEASE 60000");
    host.ask(2, "acquire b bob");
    assert_eq!(host.ask(3, "macquire 2 a b ann QUEUE 50000"), "nil");
    host.take_log();
    host.ask(2, "release b bob");
    assert_eq!(turns(&host), ["ann a"]);
    // The hold that covered a ends; another one comes in its place from outside.
    host.ask(8, "acquire other z");
    host.put_lock("a", host.lock("other"));
    host.turn();
    host.turn();
    assert_eq!(lines(&host, "a b"), ["ann", ""], "it stands at a again");
    assert_eq!(host.ask(3, "macquire 2 a b ann"), "nil");
    host.take_log();
    host.ask(9, "force a");
    assert_eq!(turns(&host), ["ann a"], "the message comes again");
    assert_eq!(host.ask(3, "macquire 2 a b ann QUEUE 1000"), "#4");
}

#[test]
fn a_turn_that_comes_back_in_the_same_step_is_not_told_again() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann LEASE 60000");
    host.ask(2, "acquire b bob");
    host.ask(3, "macquire 2 a b ann QUEUE 50000");
    host.ask(2, "release b bob");
    host.take_log();
    host.ask(1, "release a ann");
    assert_eq!((host.line("a"), turns(&host)), ("ann!".into(), Vec::new()));
}

/// A value came to a free lock that it had reserved: it keeps nothing behind that one.
#[test]
fn a_ticket_that_loses_a_free_lock_gives_up_its_turns_behind_it() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    assert_eq!(host.ask(2, "macquire 3 a b c ann QUEUE 60000"), "nil");
    assert_eq!(host.ask(3, "acquire b cy QUEUE 60000"), "nil");
    assert_eq!(lines(&host, "a b c"), ["ann!", "ann! cy", "ann"]);
    host.ask(8, "acquire other z");
    host.put_lock("a", host.lock("other"));
    rlock_engine::events::key_came(&host, 0, b"a");
    host.turn();
    host.turn();
    assert_eq!(lines(&host, "a b c"), ["ann", "cy!", ""]);
    assert_eq!(totals(&host), (0, 4, [1, 0]));
}

// --- M20: the time to wait ----------------------------------------------------------------------

#[test]
fn a_ticket_is_told_the_time_from_its_own_place() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob LEASE 5000");
    for ms in [5000, 4000] {
        let said = host.ask(2, "macquire 2 a b ann QUEUE 60000 WITHTTL");
        assert_eq!(said, format!("*2 nil {ms}"));
        assert_eq!(host.ask(2, "macquire 2 a b ann WITHTTL"), said);
        host.at(6000 - ms);
    }
    assert_eq!(host.ask(3, "macquire 2 a b cy QUEUE 60000 WITHTTL"), "*2 nil -1");
    assert_eq!(host.ask(3, "macquire 2 a b cy QUEUE 60000 WITHTTL"), "*2 nil -1", "behind ann");
}

// --- M24: another request -----------------------------------------------------------------------

#[test]
fn another_request_withdraws_the_ticket_and_those_behind_come_first() {
    let host = MapHost::primary();
    host.ask(1, "acquire c bob");
    host.ask(2, "macquire 3 a b c ann QUEUE 60000");
    host.ask(3, "acquire a cy BLOCK 0");
    assert_eq!(host.ask(2, "macquire 2 a c ann QUEUE 60000"), "nil");
    assert_eq!(host.turn(), ["3: #2"]);
    assert_eq!(lines(&host, "a b c"), ["ann", "", ""]);
    assert_eq!(totals(&host), (0, 2, [1, 0]));
}

#[test]
fn a_single_request_that_waits_withdraws_the_ticket() {
    for patience in ["QUEUE 60000", "BLOCK 0"] {
        let host = MapHost::primary();
        host.ask(1, "acquire c bob");
        host.ask(2, "macquire 3 a b c ann QUEUE 60000");
        host.ask(3, "acquire a cy BLOCK 0");
        assert_eq!(host.ask(2, "acquire a ann"), "nil");
        assert_eq!(host.line("a"), "ann! cy", "one that does not wait leaves it");
        let said = host.ask(4, &format!("acquire a ann {patience}"));
        assert!(said == "nil" || said.is_empty(), "{said}");
        assert_eq!(host.turn(), ["3: #2"], "{patience}");
        assert_eq!(lines(&host, "a b c"), ["ann", "", ""], "{patience}");
    }
}

#[test]
fn a_request_that_is_refused_leaves_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(9, "acquire r ann READ");
    host.ask(2, "macquire 2 a b ann QUEUE 60000");
    host.ask(3, "acquire b cy QUEUE 60000");
    assert_eq!(host.ask(2, "macquire 2 b c ann QUEUE 60000 MAXQUEUE 1"), "nil");
    assert_eq!(host.ask(2, "acquire b ann QUEUE 60000 MAXQUEUE 1"), "nil");
    assert!(host.ask(2, "macquire 3 a b r ann QUEUE 60000").starts_with("-DEADLOCK"));
    host.put_other("o");
    assert!(host.ask(2, "macquire 3 a b o ann QUEUE 60000").starts_with("-WRONGTYPE"));
    assert!(host.ask(2, "acquire a ann DEPTH 3 QUEUE 60000").starts_with('-'));
    host.world().bounds.max_tickets = 4;
    assert!(host.ask(2, "macquire 4 a b c d ann QUEUE 60000").starts_with("-TOOMANY"));
    assert_eq!(lines(&host, "a b"), ["ann!", "ann cy"]);
    assert_eq!(host.ask(2, "macquire 3 a b d ann QUEUE 60000"), "nil", "three instead of two");
    assert_eq!(lines(&host, "a b"), ["ann!", "cy ann"]);
}

/// It could be granted as soon as its owner's ticket is withdrawn, but for the sessions.
#[test]
fn a_request_that_is_refused_for_want_of_sessions_leaves_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    host.world().bounds.max_sessions = 0;
    let before = host.world().stream.len();
    for patience in ["QUEUE 60000", "BLOCK 0"] {
        for request in ["macquire 2 a c ann", "acquire a ann"] {
            let said = host.ask(2, &format!("{request} {patience} SESSION"));
            assert!(said.starts_with("-TOOMANY"), "{request} {patience}: {said}");
            assert_eq!(lines(&host, "a b c"), ["ann!", "ann", ""], "{request} {patience}");
        }
    }
    assert_eq!((totals(&host), host.world().stream.len()), ((0, 2, [1, 1]), before));
    assert_eq!(host.turn(), [""; 0]);
    // Who would have to wait is not refused.
    host.ask(3, "acquire a cy BLOCK 0");
    assert_eq!(host.ask(2, "acquire a ann QUEUE 60000 SESSION"), "nil");
    assert_eq!(
        (host.turn(), lines(&host, "a b")),
        (vec!["3: #2".into()], vec!["ann".into(), String::new()])
    );
}

#[test]
fn a_second_upgrade_leaves_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann READ QUEUE 60000"), "nil");
    host.ask(3, "acquire a cy READ");
    host.ask(2, "acquire a ann READ");
    assert_eq!(host.ask(3, "acquire a cy UPGRADE BLOCK 0"), "");
    for patience in ["QUEUE 60000", "BLOCK 0"] {
        let said = host.ask(2, &format!("acquire a ann UPGRADE {patience}"));
        assert!(
            said.starts_with("-DEADLOCK another reader of 'a' is waiting to upgrade"),
            "{said}"
        );
        assert_eq!((lines(&host, "b"), totals(&host).1), (vec!["ann".into()], 2), "{patience}");
    }
}

#[test]
fn a_request_that_goes_too_deep_or_finds_no_replica_leaves_the_ticket() {
    let host = MapHost::primary();
    host.world().bounds.max_depth = 1;
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire a ann");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    assert!(host.ask(2, "acquire a ann BLOCK 0").starts_with("-TOOMANY"), "max-depth");
    assert!(host.ask(2, "acquire a ann BLOCK 0 DEPTH 1 ACKS 1").starts_with("-NOREPLICAS"));
    assert!(host.ask(2, "macquire 2 a c ann BLOCK 0 ACKS 1").starts_with("-NOREPLICAS"));
    assert_eq!((lines(&host, "b"), totals(&host).1), (vec!["ann".into()], 2));
}

#[test]
fn a_request_for_several_withdraws_the_single_tickets_at_its_keys() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "acquire b ann QUEUE 60000");
    host.ask(3, "acquire b cy QUEUE 60000");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    assert_eq!(lines(&host, "a b"), ["ann!", "cy ann"]);
    assert_eq!(totals(&host), (0, 3, [1, 1]));
}

/// What was withdrawn was in the way of somebody who lets the new request in.
#[test]
fn a_request_is_judged_when_those_behind_its_old_ticket_are_served() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    host.ask(3, "acquire a cy READ BLOCK 0");
    host.take_log();
    assert_eq!(host.ask(2, "macquire 2 a c ann MODES READ WRITE QUEUE 60000"), "#3");
    assert_eq!(host.turn(), ["3: #2"]);
    assert_eq!(lines(&host, "a b c"), ["", "", ""]);
    assert_eq!(turns(&host), [""; 0]);
    assert_eq!(totals(&host), (0, 0, [0, 0]));
}

/// A single grant to the owner covers the key; the ticket waits on.
#[test]
fn a_grant_to_another_wait_of_the_owner_leaves_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire a bob");
    host.ask(1, "acquire b bob");
    host.ask(3, "acquire a ann BLOCK 0");
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "nil");
    assert_eq!(host.line("a"), "ann ann");
    host.ask(1, "release a bob");
    assert_eq!(host.turn(), ["3: #3"]);
    assert_eq!(lines(&host, "a b"), ["", "ann"]);
    host.take_log();
    host.ask(1, "release b bob");
    assert_eq!(turns(&host), ["ann a"]);
    assert_eq!(host.ask(2, "macquire 2 a b ann QUEUE 60000"), "#4");
}

// --- How it ends --------------------------------------------------------------------------------

#[test]
fn a_cancelled_ticket_counts_as_one() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    for key in ["a", "b", "c"] {
        assert_eq!(host.ask(2, "macquire 3 a b c ann QUEUE 60000"), "nil");
        assert_eq!(host.ask(3, &format!("cancel {key} ann")), "1", "{key}");
        assert_eq!(lines(&host, "a b c"), ["", "", ""]);
        assert_eq!(totals(&host), (0, 0, [0, 0]));
    }
}

#[test]
fn a_closed_connection_leaves_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 60000");
    host.close(2);
    host.turn();
    assert_eq!(lines(&host, "a b"), ["ann!", "ann"]);
}

#[test]
fn another_value_at_a_key_ends_the_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.ask(2, "macquire 2 a b ann QUEUE 60000");
    host.put_other("b");
    host.turn();
    host.turn();
    assert_eq!(lines(&host, "a b"), ["", ""]);
    assert_eq!(totals(&host), (0, 0, [0, 0]));
}

#[test]
fn the_grace_gives_no_turn() {
    let host = MapHost::primary();
    host.ask(1, "acquire b bob");
    host.world().bounds.grace_ms = 5000;
    assert_eq!(host.ask(2, "macquire 2 a c ann QUEUE 60000"), "nil");
    assert_eq!(lines(&host, "a c"), ["ann", ""]);
    host.take_log();
    host.at(5000);
    host.turn();
    host.turn();
    assert_eq!(turns(&host), ["ann a"]);
    assert_eq!(host.ask(2, "macquire 2 a c ann QUEUE 60000"), "#2");
}

/// M28: as for every ticket, nobody waits for a ticket of a group.
#[test]
fn nobody_waits_for_a_ticket_as_far_as_deadlocks_go() {
    let host = MapHost::primary();
    host.ask(1, "acquire a ann");
    host.ask(2, "acquire c bob");
    // ann, who holds a, has reserved b and stands at c.
    assert_eq!(host.ask(1, "macquire 2 b c ann QUEUE 60000"), "nil");
    assert_eq!(host.ask(2, "acquire b bob BLOCK 0"), "", "a ticket is no cycle");
    // The same places, blocked: ann waits for bob at c, who waits for ann at b.
    let said = host.ask(1, "macquire 2 b c ann BLOCK 0");
    assert!(said.starts_with("-DEADLOCK owner 'ann' would close a cycle of 2 owners"), "{said}");
    assert_eq!(lines(&host, "b c"), ["ann! bob", "ann"], "the ticket stays");
    assert_eq!(totals(&host), (1, 2, [1, 1]));
    // Nor does a reader or writer behind the turn at b wait for the ticket's owner.
    host.ask(2, "acquire d bob");
    assert_eq!(host.ask(3, "acquire b cy BLOCK 0"), "");
    assert_eq!(host.ask(4, "acquire e cy"), "#4");
    assert_eq!(host.ask(1, "acquire e ann BLOCK 0"), "", "ann waits for cy, and cy for a ticket");
}
