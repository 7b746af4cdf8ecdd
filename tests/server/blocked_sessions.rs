//! A session that is lost while its connection is blocked in one of the server's commands: that
//! command no longer has any effect, whatever comes right behind the loss.

use redis::Value;

use rlock_testkit::{Client, Server, Waiter, is_connected, now_ms, until};

/// Commands that end ann's session.
const ENDS: [&str; 7] = [
    "RLOCK.FORCE door",
    "DEL door",
    "SET door text",
    "RENAME door elsewhere",
    "SWAPDB 0 5",
    "FLUSHALL",
    "EVAL redis.call('DEL','door') 0",
];

/// Ann holds `door` by a session, and is blocked in this command.
fn blocked_in(server: &Server, command: &str) -> Waiter {
    let mut ann = Waiter::connect(server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 600000 SESSION");
    ann.park(server, command);
    ann
}

/// Tries each loss, with the command that would unblock ann right behind it, in the same read. Then
/// `is_kept` must hold, and ann's connection must close without a reply.
#[track_caller]
fn nothing_is_taken(blocks: &str, fills: &str, is_kept: impl Fn(&mut Client) -> bool) {
    let server = Server::start();
    let mut client = server.client();
    for line in ENDS {
        for is_transaction in [false, true] {
            client.ask("FLUSHALL");
            let mut ann = blocked_in(&server, blocks);
            let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
            let mut teller = Waiter::connect(&server);
            let (begin, end) = if is_transaction { ("MULTI", "EXEC") } else { ("PING", "PING") };
            teller.say_all(&[begin, line, fills, end]);
            (0..4).for_each(|_| drop(teller.answer()));
            assert!(is_kept(&mut client), "{blocks}, {line}, {is_transaction}");
            until(5_000, || !is_connected(&mut client, ann.id()));
            let said = ann.last_words();
            assert!(said.iter().all(Result::is_err), "{blocks}, {line}: {said:?}");
            assert!(is_kept(&mut client), "{blocks}, {line}, {is_transaction}, later");
            if line.starts_with("SET") {
                assert!(bob.error().starts_with("WRONGTYPE "));
            } else {
                bob.granted();
            }
        }
    }
}

#[test]
fn an_element_is_not_moved_by_a_lost_session() {
    nothing_is_taken("BLMOVE list out LEFT LEFT 0", "LPUSH list element", |client| {
        client.number("LLEN list") == 1 && client.number("EXISTS out") == 0
    });
}

#[test]
fn an_element_is_not_popped_by_a_lost_session() {
    nothing_is_taken("BZPOPMIN set 0", "ZADD set 1 element", |client| {
        client.number("ZCARD set") == 1
    });
}

#[test]
fn an_entry_is_not_read_by_a_lost_session() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("XGROUP CREATE stream group $ MKSTREAM");
    let read = "XREADGROUP GROUP group ann BLOCK 0 STREAMS stream >";
    let mut ann = blocked_in(&server, read);
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["RLOCK.FORCE door", "XADD stream * field value"]);
    teller.answer();
    teller.answer();
    ann.expect_close();
    let pending = client.ask("XPENDING stream group");
    assert_eq!(rlock_testkit::items(&pending)[0], Value::Int(0));
}

#[test]
fn many_blocked_sessions_are_closed_in_the_step_in_which_they_are_lost() {
    let server = Server::start();
    let mut client = server.client();
    let mut all: Vec<Waiter> = (0..50)
        .map(|n| {
            let mut one = Waiter::connect(&server);
            one.number(&format!("RLOCK.ACQUIRE door:{n} o{n} LEASE 600000 SESSION"));
            one.park(&server, "BLMOVE list out LEFT LEFT 0");
            one
        })
        .collect();
    let elements = " element".repeat(50);
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["FLUSHALL", &format!("LPUSH list{elements}")]);
    teller.answer();
    teller.answer();
    all.iter_mut().for_each(Waiter::expect_close);
    assert_eq!(client.number("LLEN list"), 50);
    assert_eq!(client.number("EXISTS out"), 0);
}

/// From now on until it is continued, the server reads nothing; then it reads in the order in which
/// commands were sent. Otherwise, the connections that it has polled last would come first.
fn freeze(server: &Server) {
    let mut client = server.client();
    (0..3).for_each(|_| drop(client.ask("PING")));
    server.freeze();
}

/// After it was unblocked, a connection may already run its next command before the server has
/// processed the unblocking.
#[test]
fn a_session_that_was_just_served_may_end_itself() {
    let server = Server::start();
    for (ends, reply) in [
        ("DEL door", Value::Int(1)),
        ("RLOCK.FORCE door", Value::Int(1)),
        ("EVAL redis.call('DEL','door') 0", Value::Nil),
    ] {
        let mut ann = blocked_in(&server, "BLPOP list 0");
        let mut teller = Waiter::connect(&server);
        freeze(&server);
        teller.say("LPUSH list element");
        ann.say(ends);
        server.thaw();
        teller.answer();
        ann.answer();
        assert_eq!(ann.answer(), reply, "{ends}");
        ann.expect_close();
        assert_eq!(server.client().number("EXISTS door"), 0);
    }
}

#[test]
fn a_session_that_was_just_served_and_is_over_runs_nothing_more() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 1000 SESSION");
    ann.park(&server, "BLPOP list 0");
    let (mut teller, mut slow) = (Waiter::connect(&server), Waiter::connect(&server));
    freeze(&server);
    teller.say("LPUSH list element");
    slow.say("DEBUG SLEEP 1.5");
    ann.say("SET mark 1");
    server.thaw();
    teller.answer();
    slow.answer();
    ann.answer();
    assert!(ann.last_words().iter().all(Result::is_err));
    assert_eq!(client.number("EXISTS mark"), 0);
}

/// The server serves those who are blocked at `list`, and runs `blocks`, which opens `door`, whose
/// hold has expired. The session that is lost by this is the next one at `list`.
#[track_caller]
fn nobody_is_freed_in_line(blocks: &str, is_its_own: bool) {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    let pops = "BLPOP list 0";
    let (_other, mut lost) = if is_its_own {
        let first = blocked_in(&server, blocks);
        (Waiter::parked(&server, pops), first)
    } else {
        (Waiter::parked(&server, blocks), blocked_in(&server, pops))
    };
    let mut behind: Vec<Waiter> = (0..3).map(|_| Waiter::parked(&server, pops)).collect();
    let mut teller = Waiter::connect(&server);
    client.number("PEXPIRE door 20");
    let over_ms = now_ms() + 50;
    server.freeze();
    until(5_000, || now_ms() > over_ms);
    teller.say("RPUSH list a b c d e");
    server.thaw();
    assert_eq!(teller.answer(), Value::Int(5));
    behind.iter_mut().for_each(|one| drop(one.answer()));
    // Redis 7.0 does not open the other keys of connections that it serves.
    client.ask("EXISTS door");
    lost.last_words();
    assert_eq!(client.ask("PING"), Value::SimpleString("PONG".into()), "{blocks}");
}

#[test]
fn a_session_that_is_lost_while_its_neighbor_is_served_is_closed_afterward() {
    for blocks in ["BLMOVE list door LEFT LEFT 0", "BLPOP door list 0", "BLMPOP 0 2 door list LEFT"]
    {
        nobody_is_freed_in_line(blocks, false);
    }
}

#[test]
fn a_session_that_is_lost_by_being_served_is_closed_afterward() {
    nobody_is_freed_in_line("BLMOVE list door LEFT LEFT 0", true);
}
