//! Limits of what one user can make the server keep, do and write.

use rlock_testkit::{Client, Server, Waiter, now_ms, until};

#[test]
fn holds_tied_to_connections_have_a_limit() {
    let server = Server::with_arguments("max-sessions 2");
    let mut client = server.client();
    let mut ann = Waiter::connect(&server);
    ann.number("RLOCK.ACQUIRE door ann SESSION");
    ann.number("RLOCK.ACQUIRE gate ann SESSION");
    let refused = client.error("RLOCK.ACQUIRE room ann SESSION");
    assert!(refused.starts_with("TOOMANY ") && refused.contains("rlock.max-sessions"), "{refused}");
    assert_eq!(client.number("EXISTS room"), 0);
    // Re-entry is not a new hold, and neither is a session that moves to another connection.
    ann.number("RLOCK.ACQUIRE door ann SESSION");
    client.granted("RLOCK.ACQUIRE door ann SESSION DEPTH 2");
    assert_eq!(client.gauges(), (0, 0, 2));
    // Lowering the setting ends nothing.
    client.ask("CONFIG SET rlock.max-sessions 0");
    assert_eq!(client.gauges(), (0, 0, 2));
    client.granted("RLOCK.ACQUIRE gate ann SESSION DEPTH 1");
    client.granted("RLOCK.ACQUIRE room ann");
}

#[test]
fn who_waited_for_a_session_beyond_the_limit_is_told_so_and_the_next_is_served() {
    let server = Server::with_arguments("max-sessions 1");
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob SESSION BLOCK 0");
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    client.granted("RLOCK.ACQUIRE room eve SESSION");
    client.ask("RLOCK.RELEASE door ann");
    cid.granted();
    assert!(bob.error().starts_with("TOOMANY "));
    // A session that ends makes room for the next one.
    let mut dan = Waiter::parked(&server, "RLOCK.ACQUIRE room dan SESSION BLOCK 0");
    client.ask("RLOCK.RELEASE room eve");
    dan.granted();
    assert_eq!(client.gauges(), (0, 0, 1));
}

/// By whatever command, and whenever it was decided.
#[test]
fn each_session_that_is_refused_is_counted_once() {
    let server = Server::with_arguments("max-sessions 1");
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann SESSION");
    let mut other = server.client();
    let requests = [
        "RLOCK.ACQUIRE room bob SESSION",
        "RLOCK.ACQUIRE room bob SESSION BLOCK 0",
        "RLOCK.ACQUIRE room bob SESSION QUEUE 1000",
        "RLOCK.MACQUIRE 2 room hall bob SESSION",
        "RLOCK.MACQUIRE 2 room hall bob SESSION BLOCK 0",
    ];
    for (refused, counted) in requests.into_iter().zip(1..) {
        let told = other.error(refused);
        assert!(told.starts_with("TOOMANY "), "{refused}: {told}");
        assert_eq!(client.info_number("rlock", "rlock_sessions_refused"), counted, "{refused}");
    }
}

/// Another user can use anybody's owner names, but cannot have anybody refused by that.
#[test]
fn a_wait_that_another_user_parked_closes_no_cycle() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER tenant on nopass +@all ~a:*");
    client.ask("ACL SETUSER victim on nopass +@all ~b:*");
    let mut victim = server.client_of("victim");
    victim.granted("RLOCK.ACQUIRE b:1 worker");
    victim.granted("RLOCK.ACQUIRE b:2 helper");
    let mut tenant = server.client_of("tenant");
    tenant.granted("RLOCK.ACQUIRE a:1 worker");
    // This looks as if helper waited for worker.
    let mut forged = Waiter::connect_as(&server, "tenant");
    forged.park(&server, "RLOCK.ACQUIRE a:1 helper BLOCK 0");
    let mut worker = Waiter::connect_as(&server, "victim");
    worker.park(&server, "RLOCK.ACQUIRE b:2 worker BLOCK 0");
    victim.ask("RLOCK.RELEASE b:2 helper");
    worker.granted();
    assert_eq!(client.counted("deadlocks"), 0);
}

#[test]
fn refusals_write_one_line_a_second_into_the_log() {
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    client.granted("RLOCK.ACQUIRE gate bob LEASE 600000");
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let lines = |server: &Server| server.log().matches("refused a wait that would").count();
    for _ in 0..2_000 {
        assert!(client.error("RLOCK.ACQUIRE gate ann BLOCK 0").starts_with("DEADLOCK "));
    }
    assert_eq!(client.counted("deadlocks"), 2_000);
    let said = lines(&server);
    assert!(said < 60, "{said} lines");
    until(5_000, || {
        client.error("RLOCK.ACQUIRE gate ann BLOCK 0");
        lines(&server) > said
    });
    assert!(server.log().contains(" more refused since the last such line"));
}

/// Asks this again and again, some hundred at a time.
fn ask_often(client: &mut Client, count: usize, words: impl Fn(usize) -> String) {
    for first in (0..count).step_by(500) {
        let all: Vec<String> = (first..count.min(first + 500)).map(&words).collect();
        let lines: Vec<&str> = all.iter().map(String::as_str).collect();
        client.all(&lines);
    }
}

/// The processor time, in milliseconds, that the server's longest step takes until `is_so`. A step
/// is what it does between two replies.
fn longest_step_ms(client: &mut Client, is_so: impl FnMut(&mut Client) -> bool) -> u64 {
    longest_step_us(client, is_so) / 1000
}

/// Like `longest_step_ms`, in microseconds.
pub fn longest_step_us(client: &mut Client, mut is_so: impl FnMut(&mut Client) -> bool) -> u64 {
    let path = format!("/proc/{}/schedstat", client.info_number("server", "process_id"));
    let used_ns = || -> u64 {
        let text = std::fs::read_to_string(&path).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let (mut before, mut longest) = (used_ns(), 0);
    until(60_000, || {
        let done = is_so(client);
        client.ask("PING");
        let now = used_ns();
        longest = longest.max(now - before);
        before = now;
        done
    });
    longest / 1000
}

/// How much processor time a step may take.
const STEP_MS: u64 = 50;

#[test]
fn a_key_that_is_no_lock_any_more_turns_its_tickets_away_in_short_steps() {
    const TICKETS: usize = 150_000;
    let server = Server::start();
    let mut client = server.client();
    client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    ask_often(&mut client, TICKETS, |number| format!("RLOCK.ACQUIRE door w{number} QUEUE 60000"));
    let mut cid = Waiter::parked(&server, "RLOCK.ACQUIRE door cid BLOCK 0");
    let mut is_set = false;
    let longest = longest_step_ms(&mut client, |client| {
        if !is_set {
            client.ask("SET door open");
            is_set = true;
        }
        let refused = client.error("RLOCK.ACQUIRE door eve QUEUE 1000");
        assert!(refused.starts_with("WRONGTYPE "), "{refused}");
        client.gauges() == (0, 0, 0)
    });
    assert!(bob.error().starts_with("WRONGTYPE ") && cid.error().starts_with("WRONGTYPE "));
    println!("{TICKETS} tickets: {longest} ms");
    assert!(longest <= STEP_MS, "{longest} ms");
}

#[test]
fn leases_that_end_together_are_ended_in_short_steps() {
    const READERS: usize = 200_000;
    let server = Server::start();
    let mut client = server.client();
    let lease = 16_000;
    let began_at = now_ms();
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    ask_often(&mut client, READERS, |number| {
        let left = lease - (now_ms() - began_at).min(lease - 1);
        format!("RLOCK.ACQUIRE door r{number} READ LEASE {left}")
    });
    until(60_000, || client.lock("door").holds.len() == 1);
    let mut is_asked = false;
    let longest = longest_step_ms(&mut client, |client| {
        if !is_asked {
            // However many holds are still to be removed, ann is the only reader.
            client.refused("RLOCK.ACQUIRE door bob READ LIMIT 1");
            client.granted("RLOCK.ACQUIRE door bob READ LIMIT 2");
            client.ask("RLOCK.RELEASE door bob");
            client.granted("RLOCK.ACQUIRE door ann WRITE UPGRADE");
            is_asked = true;
        }
        client.counted("expired") == READERS as i64
    });
    println!("{READERS} leases: {longest} ms");
    assert!(longest <= STEP_MS, "{longest} ms");
    assert_eq!(client.lock("door").line(), "write: ann write 1, ann read 1");
}

#[test]
fn a_buffer_that_was_needed_once_is_given_back() {
    const READERS: usize = 100_000;
    let server = Server::start();
    let mut client = server.client();
    let fill = |client: &mut Client| {
        ask_often(client, READERS, |number| format!("RLOCK.ACQUIRE door r{number} READ"));
    };
    let used = |client: &mut Client| client.info_number("memory", "used_memory");
    let before = used(&mut client);
    fill(&mut client);
    assert_eq!(client.number("RLOCK.FORCE door"), READERS as i64);
    let mut kept = 0;
    until(10_000, || {
        kept = used(&mut client) - before;
        kept < 500_000
    });
    println!("{kept} bytes are kept");
}
