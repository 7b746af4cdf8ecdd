//! A session that is lost while its connection is blocked in a command of the server's: that
//! command takes no effect any more, whatever comes right behind the loss.

use redis::Value;

use rlock_testkit::{Client, Server, Waiter, is_connected, until};

/// What ends ann's session.
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

/// Each loss, and the command that would unblock ann right behind it, in the same read. Then
/// `is_kept` must hold, and ann's connection close without a reply.
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

/// A command that the server holds back in a pause runs past the filter when the pause is over.
#[test]
fn a_command_that_a_pause_held_back_does_not_run_after_its_session_was_lost() {
    let server = Server::start();
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann LEASE 600000 SESSION");
    client.ask("CLIENT PAUSE 600000 WRITE");
    ann.park(&server, "SET mark 1");
    // Its lock is taken away by the command that ends the pause, or right behind it.
    let mut teller = Waiter::connect(&server);
    teller.say_all(&["CLIENT UNPAUSE", "RLOCK.FORCE door"]);
    teller.answer();
    assert_eq!(teller.answer(), Value::Int(1));
    until(5_000, || !is_connected(&mut client, ann.id()));
    assert_eq!(client.number("EXISTS mark"), 0);
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
