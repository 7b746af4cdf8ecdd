//! A grant whose caller may have read its token stands, however soon that caller closes: only its
//! lease or a release ends it.

use std::process::{Command, Stdio};

use rlock_testkit::{Client, Server, Waiter, cli_program, is_connected, until};

/// How often each kind of grant is tried: the caller must read and close within one iteration of
/// the server's loop.
const ROUNDS: usize = 20;
/// A waiter that asks for a lease so long that only a release or a revocation can end it here.
const BOB: &str = "RLOCK.ACQUIRE door bob LEASE 600000 BLOCK 0";

/// Clients with a large reply each, which the server writes after that of a grant in the same
/// iteration of its loop: so milliseconds pass until it sees a connection close.
struct Crowd {
    sleeper: Waiter,
    clients: Vec<Client>,
}

impl Crowd {
    fn of(server: &Server) -> Crowd {
        let value = "x".repeat(60_000);
        server.client().ask(&format!("SET large {value}"));
        let clients = (0..150).map(|_| server.client()).collect();
        Crowd { sleeper: Waiter::connect(server), clients }
    }

    /// Sends the requests of all clients, and calls `act`, while the server sleeps: it then reads
    /// everything in one loop iteration.
    fn meet(&mut self, act: impl FnOnce()) {
        self.sleeper.say("DEBUG SLEEP 0.03");
        act();
        self.clients.iter_mut().for_each(|client| client.send(&["GET", "large"]));
        for client in &mut self.clients {
            client.receive();
        }
        self.sleeper.answer();
    }
}

/// A caller that closes as soon as it has read its token. Returns its connection's number and the
/// token.
fn closes_at_once(mut waiter: Waiter) -> impl FnOnce() -> (i64, i64) {
    let heard = std::thread::spawn(move || {
        let (id, reply) = (waiter.id(), waiter.reply());
        drop(waiter);
        match reply {
            Ok(redis::Value::Int(token)) => (id, token),
            other => panic!("{other:?}, not a token"),
        }
    });
    move || heard.join().unwrap()
}

/// Asserts that bob holds the lock with this token, although his connection has closed.
#[track_caller]
fn stands(client: &mut Client, id: i64, token: i64, round: usize) {
    until(5_000, || !is_connected(client, id));
    // The consequences of the closed connection are processed with the next request.
    client.ask("RLOCK.ACQUIRE door eve");
    let shown = client.shows("door");
    assert_eq!(shown, "write: bob write 1", "round {round}: the grant {token} was revoked");
    assert_eq!(client.lock("door").hold("bob", "write").token, token);
}

/// Ann's release runs after `before` on her connection, in the iteration in which `ends` ends that
/// command.
fn releases_behind(server: &Server, before: &str, ends: &str) {
    let mut client = server.client();
    let mut crowd = Crowd::of(server);
    let mut other = Waiter::connect(server);
    for round in 0..ROUNDS {
        client.granted("RLOCK.ACQUIRE gate cid LEASE 600000");
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
        let bob = closes_at_once(Waiter::parked(server, BOB));
        let mut ann = Waiter::connect(server);
        ann.park(server, before);
        ann.say("RLOCK.RELEASE door ann");
        crowd.meet(|| other.say(ends));
        let (id, token) = bob();
        stands(&mut client, id, token, round);
        ann.reply().unwrap();
        assert_eq!(ann.answer(), redis::Value::Int(0));
        other.reply().unwrap();
        client.ask("RLOCK.FORCE door");
        client.ask("RLOCK.FORCE gate");
    }
}

#[test]
fn a_grant_by_a_release_behind_blpop_stands_though_its_reader_closes_at_once() {
    releases_behind(&Server::start(), "BLPOP list 0", "LPUSH list element");
}

#[test]
fn a_grant_by_a_release_behind_a_blocked_acquire_stands_though_its_reader_closes_at_once() {
    let before = "RLOCK.ACQUIRE gate dan BLOCK 0";
    releases_behind(&Server::start(), before, "RLOCK.RELEASE gate cid");
}

#[test]
fn a_grant_by_a_release_behind_wait_stands_though_its_reader_closes_at_once() {
    let server = Server::start();
    // Nobody acknowledges, so WAIT times out, here while the server sleeps.
    releases_behind(&server, "WAIT 1 200", "PING");
}

#[test]
fn a_grant_by_a_release_that_was_postponed_stands_though_its_reader_closes_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let mut crowd = Crowd::of(&server);
    let mut other = Waiter::connect(&server);
    for round in 0..ROUNDS {
        client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
        let bob = closes_at_once(Waiter::parked(&server, BOB));
        client.ask("CLIENT PAUSE 600000 WRITE");
        let mut ann = Waiter::connect(&server);
        ann.park(&server, "RLOCK.RELEASE door ann");
        crowd.meet(|| other.say("CLIENT UNPAUSE"));
        let (id, token) = bob();
        stands(&mut client, id, token, round);
        ann.answer();
        other.answer();
        client.ask("RLOCK.FORCE door");
    }
}

/// A primary, and a replica that has acknowledged.
fn pair() -> (Server, Server) {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    until(10_000, || client.attempt("RLOCK.ACQUIRE probe p ACKS 1").is_ok());
    (primary, replica)
}

/// A caller asks for acknowledgments, which arrive together with many others.
fn acknowledged_later(lines: [&str; 2], left: &str) {
    let (primary, replica) = pair();
    let mut client = primary.client();
    let mut crowd = Crowd::of(&primary);
    let mut other = Waiter::connect(&primary);
    for round in 0..ROUNDS {
        let mut bob = Waiter::connect(&primary);
        if !lines[0].is_empty() {
            bob.number(lines[0]);
        }
        replica.freeze();
        bob.say(lines[1]);
        until(5_000, || client.info_number("rlock", "rlock_acks_pending") == 1);
        let bob = closes_at_once(bob);
        crowd.meet(|| {
            replica.thaw();
            other.say("PING");
        });
        let (id, _) = bob();
        until(5_000, || !is_connected(&mut client, id));
        client.ask("RLOCK.ACQUIRE door eve");
        assert_eq!(client.shows("door"), left, "round {round}: the grant was revoked");
        other.answer();
        client.ask("RLOCK.FORCE door");
    }
}

#[test]
fn an_acknowledged_grant_stands_though_its_reader_closes_at_once() {
    let asks = "RLOCK.ACQUIRE door bob LEASE 600000 ACKS 1";
    acknowledged_later(["", asks], "write: bob write 1");
}

#[test]
fn an_acknowledged_level_stands_though_its_reader_closes_at_once() {
    let first = "RLOCK.ACQUIRE door bob LEASE 600000";
    let second = "RLOCK.ACQUIRE door bob LEASE 600000 ACKS 1";
    acknowledged_later([first, second], "write: bob write 2");
}

#[test]
fn an_acknowledged_renewal_stands_though_its_reader_closes_at_once() {
    let first = "RLOCK.ACQUIRE door bob LEASE 500000";
    acknowledged_later([first, "RLOCK.RENEW door bob LEASE 600000 ACKS 1"], "write: bob write 1");
}

#[test]
fn five_hundred_one_line_programs_hold_what_they_were_told() {
    let (primary, _replica) = pair();
    let mut client = primary.client();
    for round in 0..500 {
        let key = format!("door:{round}");
        let mut command = Command::new(cli_program());
        command.arg("-s").arg(primary.socket()).args(["RLOCK.ACQUIRE", &key, "bob"]);
        command.args(["LEASE", "600000", "ACKS", "1"]).stdin(Stdio::null());
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let token: i64 = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
        client.refused(&format!("RLOCK.ACQUIRE {key} eve"));
        assert_eq!(client.lock(&key).hold("bob", "write").token, token, "round {round}");
    }
}
