//! A session that has lost its hold: its connection is closed, and no command of it runs after the
//! step in which the hold was lost, neither as its own user nor as another one.

use std::io::{Read, Write};
use std::thread::JoinHandle;

use redis::Value;

use rlock_testkit::{Client, Link, Server, Waiter, integer, is_connected, now_ms, text, until};

const HOLD: &str = "RLOCK.ACQUIRE door ann LEASE 600000 SESSION";
const ROUNDS: usize = 12;

/// A session at `door` that says `SET n 1`, `SET n 2` and so on, and does not wait for replies.
struct Flood {
    id: i64,
    ends: [JoinHandle<()>; 2],
}

impl Flood {
    fn start(server: &Server) -> Flood {
        let mut socket = Link::to(&server.socket()).unwrap();
        let mut number = |line: &str| {
            socket.write_all(format!("{line}\r\n").as_bytes()).unwrap();
            let mut reply = Vec::new();
            while !reply.ends_with(b"\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                reply.extend(byte);
            }
            let digits = reply.strip_prefix(b":").expect("an integer").trim_ascii();
            str::from_utf8(digits).unwrap().parse::<i64>().unwrap()
        };
        let id = number("CLIENT ID");
        number(HOLD);
        let mut writer = socket.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            let chunk = |first: u64| -> String {
                (first..first + 100).map(|n| format!("SET n {n}\r\n")).collect()
            };
            let mut firsts = (1..).step_by(100).map(chunk);
            while writer.write_all(firsts.next().unwrap().as_bytes()).is_ok() {}
        });
        let reading = std::thread::spawn(move || {
            let mut chunk = [0; 65_536];
            while socket.read(&mut chunk).is_ok_and(|count| count > 0) {}
        });
        Flood { id, ends: [writing, reading] }
    }

    /// Waits until its connection is closed: everything that it has sent was executed, or never
    /// will be.
    #[track_caller]
    fn until_closed(self, watcher: &mut Client) {
        until(5_000, || !is_connected(watcher, self.id));
        self.ends.into_iter().for_each(|end| end.join().unwrap());
    }
}

#[test]
fn nothing_that_a_session_sent_runs_after_it_lost_its_hold() {
    for line in ["DEL door", "RLOCK.FORCE door", "RENAME door elsewhere", "SET door text"] {
        let server = Server::start();
        let mut client = server.client();
        let mut teller = Waiter::connect(&server);
        for round in 0..ROUNDS {
            let flood = Flood::start(&server);
            let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
            until(5_000, || client.ask("GET n") != Value::Nil);
            // The server reads both in one piece: nobody's command runs in between.
            teller.say_all(&[line, "GET n"]);
            teller.answer();
            let last = text(&teller.answer());
            if line.starts_with("SET") {
                assert!(bob.error().starts_with("WRONGTYPE "));
            } else {
                bob.granted();
            }
            flood.until_closed(&mut client);
            assert_eq!(client.text("GET n"), last, "{line}, round {round}");
            client.ask("DEL n elsewhere door");
        }
    }
}

#[test]
fn nothing_that_a_session_sent_runs_after_everything_was_flushed() {
    let server = Server::start();
    let mut client = server.client();
    let mut teller = Waiter::connect(&server);
    for line in ["FLUSHALL", "FLUSHDB ASYNC", "SWAPDB 0 5"].repeat(ROUNDS / 2) {
        let flood = Flood::start(&server);
        until(5_000, || client.ask("GET n") != Value::Nil);
        teller.say(line);
        teller.answer();
        flood.until_closed(&mut client);
        assert_eq!(client.ask("GET n"), Value::Nil, "{line}");
        client.ask("FLUSHALL");
    }
}

/// Asserts that these replies were sent and no others, except errors: what was sent behind them was
/// not executed.
#[track_caller]
fn expect_only(words: &[Result<Value, String>], replies: &[Value], what: &str) {
    let is_no_more = words.iter().skip(replies.len()).all(Result::is_err);
    let is_begun = words.len() >= replies.len();
    let is_same = words.iter().zip(replies).all(|(word, reply)| word.as_ref() == Ok(reply));
    assert!(is_begun && is_same && is_no_more, "{what}: {words:?}, not {replies:?}");
}

fn queued() -> Value {
    Value::SimpleString("QUEUED".to_owned())
}

/// The reply to a session that sends all of these commands at once, and whether the key `after`
/// exists, which the last of them sets.
#[track_caller]
fn told(lines: &[&str]) -> (Vec<Result<Value, String>>, bool, Server) {
    let server = Server::start();
    let mut ann = Waiter::connect(&server);
    ann.number(HOLD);
    ann.say_all(&[lines, &["SET after 1"]].concat());
    let words = ann.last_words();
    let mut client = server.client();
    assert_eq!(client.gauges(), (0, 0, 0), "{lines:?}");
    let is_there = client.number("EXISTS after") == 1;
    (words, is_there, server)
}

#[test]
fn who_ends_its_own_session_hears_so_and_what_it_sent_behind_it_is_not_run() {
    for (line, reply) in [
        ("RLOCK.FORCE door", Value::Int(1)),
        ("DEL door", Value::Int(1)),
        ("RENAME door elsewhere", Value::Okay),
        ("SET door text", Value::Okay),
        ("FLUSHALL", Value::Okay),
    ] {
        let (words, is_there, _server) = told(&[line]);
        expect_only(&words, &[reply], line);
        assert!(!is_there, "{line}: the next command was run");
    }
}

#[test]
fn who_flushes_its_own_session_is_told_so_each_time() {
    let server = Server::start();
    let mut client = server.client();
    let keys = (0..3000).map(|n| format!("{n} {n}")).collect::<Vec<_>>().join(" ");
    for round in 0..10 * ROUNDS {
        // A flush in another thread takes some time.
        client.ask(&format!("MSET {keys}"));
        let mut ann = Waiter::connect(&server);
        ann.number(HOLD);
        ann.say_all(&["FLUSHALL", "SET after 1"]);
        expect_only(&ann.last_words(), &[Value::Okay], &format!("round {round}"));
        assert_eq!(client.number("EXISTS after"), 0, "round {round}");
    }
}

#[test]
fn a_transaction_that_ends_its_callers_session_is_run_to_its_end_and_nothing_behind_it() {
    let (words, is_there, server) = told(&["MULTI", "DEL door", "SET inside 1", "EXEC"]);
    let done = Value::Array(vec![Value::Int(1), Value::Okay]);
    expect_only(&words, &[Value::Okay, queued(), queued(), done], "EXEC");
    assert_eq!(server.client().number("EXISTS inside"), 1);
    assert!(!is_there, "the command behind EXEC was run");
}

/// `guest` may use `door` and `mark:…`, but not `treasure`.
fn with_guest() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.ask("SET treasure gold");
    client.ask(
        "ACL SETUSER guest on >secret ~door ~gate ~mark:* +eval +multi +exec +client|id \
         +acl|whoami \
         +echo +del +get +set +rlock.acquire +rlock.force",
    );
    (server, client)
}

#[test]
fn a_script_that_ends_its_callers_session_goes_on_as_its_user_and_is_answered() {
    for deed in ["DEL", "RLOCK.FORCE"] {
        let (server, mut client) = with_guest();
        let mut guest = Waiter::connect_as(&server, "guest");
        guest.number(HOLD);
        let script = format!(
            "redis.call('{deed}',KEYS[1]);redis.call('SET',KEYS[2],'1');\
             return{{redis.pcall('SET','treasure','stolen'),redis.call('GET',KEYS[2])}}"
        );
        guest.say_all(&[&format!("EVAL {script} 2 door mark:inside"), "SET mark:after 1"]);
        let words = guest.last_words();
        let Some(Ok(reply)) = words.first() else { panic!("{deed}: {words:?}") };
        expect_only(&words, std::slice::from_ref(reply), deed);
        assert_eq!(client.text("GET mark:inside"), "1", "{deed}");
        assert_eq!(client.number("EXISTS mark:after"), 0, "{deed}");
        assert_eq!(client.text("GET treasure"), "gold", "{deed}");
    }
}

#[test]
fn a_transaction_that_ends_its_callers_session_goes_on_as_its_user() {
    let (server, mut client) = with_guest();
    let mut guest = Waiter::connect_as(&server, "guest");
    guest.number(HOLD);
    let lines = ["MULTI", "DEL door", "ACL WHOAMI", "EXEC", "SET mark:after 1", "ACL WHOAMI"];
    guest.say_all(&lines);
    let words = guest.last_words();
    let done = Value::Array(vec![Value::Int(1), Value::BulkString(b"guest".to_vec())]);
    expect_only(&words, &[Value::Okay, queued(), queued(), done], "EXEC");
    assert_eq!(client.number("EXISTS mark:after"), 0);
}

/// `ann` holds `door` by a session, three more sessions wait for it in this order, and all of them
/// are guests. `behind` is what they have sent behind their waits.
fn guests(server: &Server, client: &mut Client, behind: &[&str]) -> Vec<(&'static str, Waiter)> {
    let mut ann = Waiter::connect_as(server, "guest");
    ann.number(HOLD);
    let mut guests = vec![("ann", ann)];
    for owner in ["bob", "cid", "dan"] {
        let mut guest = Waiter::connect_as(server, "guest");
        let ask = format!("RLOCK.ACQUIRE door {owner} LEASE 600000 SESSION BLOCK 0");
        guest.say_all(&[&[ask.as_str()], behind].concat());
        until(5_000, || client.queue("door").contains(owner));
        guests.push((owner, guest));
    }
    guests
}

/// Asserts that the connection received at most a token: after its session was lost, it executed
/// nothing.
#[track_caller]
fn expect_token_at_most(words: &[Result<Value, String>], what: &str) {
    let told = words.iter().filter_map(|word| word.clone().ok()).take(1);
    expect_only(words, &told.collect::<Vec<_>>(), what);
}

#[test]
fn sessions_that_are_granted_and_lost_in_one_go_run_nothing_more() {
    for round in 0..ROUNDS {
        let (server, mut client) = with_guest();
        let behind = ["SET mark:one 1", "SET treasure stolen"];
        let guests = guests(&server, &mut client, &behind);
        let mut teller = Waiter::connect(&server);
        teller.say_all(&["DEL door", "DEL door", "DEL door", "DEL door", "DEL mark:one"]);
        let lost: i64 = (0..4).map(|_| integer(&teller.answer())).sum();
        teller.answer();
        for (place, (owner, mut guest)) in guests.into_iter().enumerate() {
            if place < lost as usize {
                expect_token_at_most(&guest.last_words(), owner);
                continue;
            }
            integer(&guest.answer());
            assert_eq!(guest.answer(), Value::Okay, "{owner}");
            assert!(guest.error().starts_with("NOPERM "), "{owner}");
        }
        assert_eq!(client.text("GET treasure"), "gold", "round {round}");
        until(5_000, || client.gauges() == (0, 0, 0));
    }
}

#[test]
fn sessions_that_are_granted_and_lost_one_after_the_other_are_closed_as_who_they_are() {
    for round in 0..ROUNDS {
        let (server, mut client) = with_guest();
        let mut guests = guests(&server, &mut client, &[]);
        for (owner, _) in &guests {
            until(5_000, || client.shows("door") == format!("write: {owner} write 1"));
            client.ask("DEL door");
        }
        let words = guests.iter_mut().map(|(_, guest)| {
            guest.may_say_all(&["SET treasure stolen", "SET mark:late 1"]);
            guest.last_words()
        });
        let words: Vec<_> = words.collect();
        assert_eq!(client.text("GET treasure"), "gold", "round {round}: {words:?}");
        assert_eq!(client.number("EXISTS mark:late"), 0, "round {round}: {words:?}");
        for (words, (owner, _)) in words.iter().zip(&guests) {
            expect_token_at_most(words, owner);
        }
        until(5_000, || client.gauges() == (0, 0, 0));
    }
}

#[test]
fn a_session_that_is_lost_while_it_waits_elsewhere_is_closed_and_leaves_that_queue() {
    for line in ["DEL door", "RLOCK.FORCE door", "FLUSHALL"] {
        let server = Server::start();
        let mut client = server.client();
        client.granted("RLOCK.ACQUIRE gate zoe LEASE 600000");
        let mut ann = Waiter::connect(&server);
        ann.number(HOLD);
        ann.park(&server, "RLOCK.ACQUIRE gate ann LEASE 600000 SESSION BLOCK 0");
        ann.say("SET after 1");
        let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE gate bob LEASE 600000 BLOCK 0");
        client.ask(line);
        expect_token_at_most(&ann.last_words(), line);
        client.attempt("RLOCK.RELEASE gate zoe").ok();
        bob.granted();
        assert_eq!(client.shows("gate"), "write: bob write 1", "{line}");
        assert_eq!(client.number("EXISTS after"), 0, "{line}");
        until(5_000, || client.gauges() == (0, 0, 0));
    }
}

#[test]
fn a_flush_leaves_nobody_unanswered() {
    let lines = ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "SWAPDB 0 5"];
    for line in lines.repeat(ROUNDS / 4) {
        let server = Server::start();
        let mut client = server.client();
        client.granted("RLOCK.ACQUIRE gate zoe LEASE 600000");
        // Each holds one lock by a session and waits for the next one's; the last one waits for
        // `gate`.
        let owners = ["ann", "bob", "cid", "dan"];
        let mut sessions = owners.map(|owner| {
            let mut session = Waiter::connect(&server);
            let key = format!("of:{owner}");
            session.number(&format!("RLOCK.ACQUIRE {key} {owner} LEASE 600000 SESSION"));
            session
        });
        for (place, owner) in owners.iter().enumerate() {
            let next = owners.get(place + 1).map_or("gate".to_owned(), |next| format!("of:{next}"));
            let ask = format!("RLOCK.ACQUIRE {next} {owner} LEASE 600000 SESSION BLOCK 0");
            sessions[place].park(&server, &ask);
        }
        let mut eve = Waiter::parked(&server, "RLOCK.ACQUIRE gate eve LEASE 600000 BLOCK 0");
        client.ask(line);
        for session in &mut sessions {
            expect_token_at_most(&session.last_words(), line);
        }
        eve.granted();
        until(5_000, || client.gauges() == (0, 0, 0));
    }
}

#[test]
fn a_primary_that_is_demoted_closes_sessions_that_are_busy() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE gate zoe LEASE 600000");
    let flood = Flood::start(&server);
    let mut bob = Waiter::connect(&server);
    bob.number("RLOCK.ACQUIRE of:bob bob LEASE 600000 SESSION");
    bob.park(&server, "RLOCK.ACQUIRE gate bob LEASE 600000 SESSION BLOCK 0");
    bob.say("SET after 1");
    let mut cid = Waiter::connect(&server);
    cid.number("RLOCK.ACQUIRE of:cid cid LEASE 600000 SESSION");
    until(5_000, || client.ask("GET n") != Value::Nil);
    client.ask("REPLICAOF 127.0.0.1 1");
    flood.until_closed(&mut client);
    expect_only(&bob.last_words(), &[], "REPLICAOF");
    cid.expect_close();
    assert_eq!(client.gauges(), (0, 0, 0));
    assert_eq!(client.number("EXISTS after"), 0);
}

#[test]
fn a_session_that_demotes_its_own_server_is_answered_and_closed() {
    for lines in [&["REPLICAOF 127.0.0.1 1"][..], &["MULTI", "REPLICAOF 127.0.0.1 1", "EXEC"]] {
        let server = Server::start();
        let mut ann = Waiter::connect(&server);
        ann.number(HOLD);
        ann.say_all(&[lines, &["PING"]].concat());
        let words = ann.last_words();
        let replies: Vec<Value> = words.iter().filter_map(|word| word.clone().ok()).collect();
        assert_eq!(replies.len(), lines.len(), "{words:?}");
        expect_only(&words, &replies, lines[0]);
        assert_eq!(server.client().gauges(), (0, 0, 0));
    }
}

/// Otherwise, two could be sure of one lock: whoever reads its token before its connection is
/// closed holds the lock.
#[test]
fn a_grant_that_was_told_stands_though_a_session_elsewhere_is_lost_at_once() {
    for wait in ["RLOCK.ACQUIRE gate ann", "RLOCK.MACQUIRE 1 gate ann"] {
        let server = Server::start();
        let mut client = server.client();
        client.granted("RLOCK.ACQUIRE gate zoe LEASE 600000");
        let mut ann = Waiter::connect(&server);
        ann.number("RLOCK.ACQUIRE of:ann ann LEASE 600000 SESSION");
        ann.park(&server, &format!("{wait} LEASE 600000 BLOCK 0"));
        client.all(&["MULTI", "RLOCK.RELEASE gate zoe", "DEL of:ann", "EXEC"]);
        let is_told = !ann.last_words().is_empty();
        until(5_000, || client.gauges() == (0, 0, 0));
        // If the reply is sent in the step that grants, nobody knows whether it was read.
        let stands = is_told || !server.version().is_since([7, 4], [8, 0]);
        assert_eq!(client.number("RLOCK.HOLDS gate ann"), i64::from(stands), "{wait}");
        assert!(is_told || !stands, "{wait}: nobody was told of a grant that stands");
    }
}

#[test]
fn a_session_that_is_lost_in_the_very_reply_to_its_wait_gets_the_reply_and_is_closed() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.granted("RLOCK.ACQUIRE door bob LEASE 600000");
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE gate ann LEASE 600000 SESSION");
    ann.park(&server, "RLOCK.MACQUIRE 2 door gate ann BLOCK 0 WITHTTL");
    // Nobody opens the expired key before the reply does.
    client.ask("PEXPIRE gate 1");
    let expired_at = now_ms() + 1;
    until(5_000, || now_ms() > expired_at);
    assert_eq!(client.number(&format!("CLIENT UNBLOCK {}", ann.id())), 1);
    let words = ann.last_words();
    let [Ok(Value::Array(told))] = &words[..] else { panic!("{words:?}") };
    assert!(matches!(told[..], [Value::Nil, Value::Int(_)]), "{told:?}");
    until(5_000, || client.gauges() == (0, 0, 0));
    assert_eq!(client.number("RLOCK.HOLDS gate ann"), 0);
}
