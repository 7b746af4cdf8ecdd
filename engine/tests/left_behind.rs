//! S2: a request for several locks that gives up tickets is decided as if these were withdrawn
//! already; and a refused request leaves its owner everything that it had.

use crate::support::MapHost;

/// All replies in the next loop iterations.
fn told(host: &MapHost) -> Vec<String> {
    [host.turn(), host.turn(), host.turn()].concat()
}

fn code(line: &str) -> &str {
    line.split([' ', ':']).find(|word| word.starts_with('-')).unwrap_or(line)
}

/// A wait that would close a cycle is refused, even if it closes the cycle only by giving up a
/// ticket.
#[test]
fn the_request_is_refused_that_would_close_a_cycle_and_its_ticket_stays() {
    let host = MapHost::primary();
    host.ask(1, "acquire a o1");
    host.ask(1, "acquire c o0 READ");
    host.ask(1, "acquire b x");
    assert_eq!(host.ask(2, "acquire b o0 QUEUE 60000"), "nil");
    assert_eq!(host.ask(4, "macquire 3 a b c o1 BLOCK 0"), "");
    host.ask(1, "release b x");
    assert_eq!(host.line("b"), "o0! o1");
    assert_eq!(code(&host.ask(5, "macquire 2 a b o0 READ BLOCK 0")), "-DEADLOCK");
    assert_eq!(told(&host), [""; 0], "the other waits on");
    assert_eq!(host.line("b"), "o0! o1", "the ticket stays, with its turn");
    assert_eq!(host.ask(2, "acquire b o0"), "#4");
}

/// The same with a group that would move on over more than one lock.
#[test]
fn a_group_that_would_move_on_over_free_locks_is_followed() {
    let host = MapHost::primary();
    host.ask(1, "acquire z o1");
    host.ask(1, "acquire e o0");
    host.ask(1, "acquire b x");
    host.ask(2, "acquire b o0 QUEUE 60000");
    assert_eq!(host.ask(4, "macquire 4 b c d e o1 BLOCK 0"), "");
    host.ask(1, "release b x");
    assert_eq!(code(&host.ask(5, "macquire 2 b z o0 BLOCK 0")), "-DEADLOCK");
    assert_eq!((host.line("b"), told(&host)), ("o0! o1".into(), vec![]));
}

/// A cycle that exists only because of a ticket is no deadlock: that ticket is withdrawn first.
#[test]
fn nobody_is_refused_who_closes_no_cycle_once_its_ticket_is_gone() {
    let host = MapHost::primary();
    host.ask(1, "acquire d o3 READ");
    assert_eq!(host.ask(2, "macquire 2 c d o1 MODES READ WRITE BLOCK 0"), "");
    assert_eq!(host.ask(3, "acquire c o0 QUEUE 60000"), "nil");
    assert_eq!(host.ask(4, "acquire c o3 READ BLOCK 0"), "");
    assert_eq!(host.ask(5, "macquire 1 c o0 BLOCK 0"), "", "it waits");
    assert_eq!(told(&host), ["4: #2"]);
    assert_eq!(host.line("c"), "o1! o0");
}

/// A request that need not wait without its own ticket does not wait, whatever its limits.
#[test]
fn what_is_free_without_its_own_ticket_is_granted() {
    for (words, most) in [("MAXQUEUE 1", 9), ("MAXQUEUE 0", 9), ("", 1)] {
        let host = MapHost::primary();
        host.ask(1, "acquire a x");
        host.ask(2, "acquire a r READ QUEUE 60000");
        host.ask(3, "acquire a o LIMIT 1 QUEUE 60000");
        host.ask(1, "release a x");
        assert_eq!(host.line("a"), "r! o");
        host.world().bounds.max_waiters = most - 1;
        let said = host.ask(3, format!("macquire 1 a o MODES 3 BLOCK 1000 {words}").trim());
        let told = told(&host);
        assert!(said.is_empty() && told == ["3: #2"] || said == "#2", "{words}: {said} {told:?}");
        assert_eq!(host.line("a"), "r!");
    }
}

/// A request that a limit refuses leaves its owner everything that it had.
#[test]
fn a_refused_request_loses_no_ticket() {
    type Limits = fn(&MapHost);
    let ways: [(&str, &str, Limits); 3] = [
        ("BLOCK 1000", "-TOOMANY", |host| host.world().bounds.max_waiters = 0),
        ("BLOCK 1000 MAXQUEUE 0", "nil", |_| {}),
        ("BLOCK 1000 SESSION", "-TOOMANY", |host| {
            host.world().bounds.max_sessions = 0;
            host.world().bounds.max_waiters = 0;
        }),
    ];
    for (words, owed, limits) in ways {
        let host = MapHost::primary();
        host.ask(1, "acquire a x");
        host.ask(1, "acquire b x");
        host.ask(2, "acquire a o QUEUE 60000");
        host.ask(3, "acquire a p QUEUE 60000");
        limits(&host);
        assert_eq!(code(&host.ask(2, &format!("macquire 2 a b o {words}"))), owed, "{words}");
        assert_eq!((host.line("a"), told(&host)), ("o p".into(), vec![]), "{words}");
    }
}

/// Like the test above, for a request that need not wait, if the limit of sessions is reached.
#[test]
fn too_many_sessions_leave_the_ticket() {
    for (others, modes) in [(0, "WRITE"), (1, "MODES 3")] {
        let host = MapHost::primary();
        host.ask(1, "acquire a x");
        (0..others).for_each(|_| drop(host.ask(2, "acquire a r READ QUEUE 60000")));
        host.ask(3, "acquire a o LIMIT 1 QUEUE 60000");
        host.ask(1, "release a x");
        let line = host.line("a");
        host.world().bounds.max_sessions = 0;
        let request = format!("macquire 1 a o {modes} SESSION BLOCK 1000");
        assert_eq!(code(&host.ask(3, &request)), "-TOOMANY", "{request}");
        assert_eq!((host.line("a"), told(&host)), (line, vec![]), "{request}");
    }
}

/// Locks that are all free without the owner's own tickets are granted although the limits are
/// reached.
#[test]
fn too_many_do_not_keep_anybody_from_what_is_free() {
    let host = MapHost::primary();
    host.ask(1, "acquire a h");
    host.ask(2, "acquire a o QUEUE 60000");
    host.ask(1, "release a h");
    assert_eq!(host.line("a"), "o!");
    host.world().bounds.max_waiters = 0;
    let said = host.ask(3, "macquire 2 a b o BLOCK 1000");
    assert_eq!((said.as_str(), told(&host)), ("#2", vec![]));
}

/// A reader waits behind the owner's own ticket, and enters with the owner's request.
#[test]
fn too_many_do_not_keep_anybody_from_what_is_free_without_its_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire a h READ");
    host.ask(2, "acquire a o QUEUE 60000");
    host.ask(4, "acquire a z READ BLOCK 0");
    host.world().bounds.max_waiters = 0;
    assert_eq!(host.ask(3, "macquire 2 a b o READ BLOCK 1000"), "");
    assert_eq!(told(&host), ["4: #2", "3: #3"]);
}

/// The estimated wait is that without the ticket that the request withdraws.
#[test]
fn the_time_to_wait_does_not_count_the_own_ticket() {
    let host = MapHost::primary();
    host.ask(1, "acquire a x LEASE 100000");
    host.ask(2, "acquire a o QUEUE 60000");
    assert_eq!(host.ask(2, "macquire 2 a b o BLOCK 10 WITHTTL"), "");
    host.at(10);
    assert_eq!(told(&host), ["2: *2 nil 99990"]);
}
