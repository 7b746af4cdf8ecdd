//! Values that arrive at a free name where connections are blocked: what that means for them is
//! noticed at once.

use rlock_testkit::{Client, Server, Waiter, now_ms, until};

/// A ticket has its turn at the name `k`, and a connection of owner `a` is blocked behind it.
fn behind_a_turn(server: &Server, client: &mut Client) -> Waiter {
    client.granted("RLOCK.ACQUIRE k x");
    client.refused("RLOCK.ACQUIRE k t QUEUE 60000");
    let waiter = Waiter::parked(server, "RLOCK.ACQUIRE k a LEASE 600000 BLOCK 0");
    client.number("RLOCK.RELEASE k x");
    assert_eq!(client.queue("k"), "t write queue turn, a write block");
    waiter
}

/// Brings a lock to the name `k`; returns the token of its owner's hold.
type Arrival = fn(&mut Client, &mut Client) -> i64;

const HOLDS: &str = "LEASE 600000";

fn renamed(client: &mut Client, how: &[&str]) -> i64 {
    let token = client.granted(&format!("RLOCK.ACQUIRE j a {HOLDS}"));
    client.all(how);
    token
}

const ARRIVALS: [(&str, Arrival); 7] = [
    ("RENAME", |client, _| renamed(client, &["RENAME j k"])),
    ("RENAMENX", |client, _| renamed(client, &["RENAMENX j k"])),
    ("EXEC", |client, _| renamed(client, &["MULTI", "RENAME j k", "PING", "EXEC"])),
    ("EVAL", |client, _| {
        let token = client.granted(&format!("RLOCK.ACQUIRE j a {HOLDS}"));
        let script = "return redis.call('RENAME', KEYS[1], KEYS[2])";
        client.ask_bytes(&[b"EVAL", script.as_bytes(), b"2", b"j", b"k"]);
        token
    }),
    ("MOVE", |_, other| {
        let token = other.granted(&format!("RLOCK.ACQUIRE k a {HOLDS}"));
        assert_eq!(other.number("MOVE k 0"), 1);
        token
    }),
    ("RESTORE", |client, _| {
        let token = client.granted(&format!("RLOCK.ACQUIRE j a {HOLDS}"));
        let redis::Value::BulkString(dump) = client.ask("DUMP j") else { panic!("no dump") };
        client.ask_bytes(&[b"RESTORE", b"k", b"600000", &dump]);
        token
    }),
    ("SWAPDB", |client, other| {
        let token = other.granted(&format!("RLOCK.ACQUIRE k a {HOLDS}"));
        client.ask("SWAPDB 0 1");
        token
    }),
];

#[test]
fn an_owner_does_not_wait_behind_its_own_hold_that_arrives() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    other.ask("SELECT 1");
    for (name, arrives) in ARRIVALS {
        let mut waiter = behind_a_turn(&server, &mut client);
        let token = arrives(&mut client, &mut other);
        assert_eq!(waiter.granted(), token, "{name}");
        assert_eq!(client.lock("k").hold("a", "write").depth, 2, "{name}");
        assert_eq!(client.queue("k"), "t write queue", "{name}: the turn is void");
        client.number("RLOCK.CANCEL k t");
        client.ask("FLUSHALL");
    }
}

/// Behind a ticket's turn for READ, and the lock that arrives belongs to somebody else.
#[test]
fn a_stranger_s_lock_that_arrives_makes_those_who_wait_wait_on() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiter = behind_a_turn(&server, &mut client);
    client.granted("RLOCK.ACQUIRE j b");
    client.ask("RENAME j k");
    waiter.still_waits(&mut client);
    client.refused("RLOCK.ACQUIRE k c");
    assert_eq!(client.queue("k"), "t write queue, a write block");
    client.number("RLOCK.CANCEL k t");
    client.number("RLOCK.RELEASE k b");
    waiter.granted();
}

/// Every type, and the ways in which a name gets one.
const OTHERS: [&str; 13] = [
    "SET k v",
    "APPEND k v",
    "INCR k",
    "RPUSH k v",
    "SADD k v",
    "ZADD k 1 v",
    "HSET k f v",
    "XADD k * f v",
    "PFADD k v",
    "RENAME s k",
    "COPY s k",
    "SORT l STORE k",
    "RENAME l k",
];

/// From Valkey 8.1 on, the module does not subscribe to the events of these commands.
const UNSEEN: [&str; 2] = ["RENAME s k", "COPY s k"];

fn others(server: &Server) -> impl Iterator<Item = &'static str> {
    let sees_all = !server.version().is_since([99, 0], [8, 1]);
    OTHERS.into_iter().filter(move |line| sees_all || !UNSEEN.contains(line))
}

#[test]
fn a_value_of_another_type_refuses_at_once_whoever_is_blocked() {
    let server = Server::start();
    let mut client = server.client();
    for line in others(&server) {
        client.all(&["SET s v", "RPUSH l 1"]);
        let mut waiter = behind_a_turn(&server, &mut client);
        client.ask(line);
        let error = waiter.error();
        assert!(error.starts_with("WRONGTYPE "), "{line}: {error}");
        client.ask("FLUSHALL");
        assert_eq!(client.queue("k"), "", "{line}: the ticket ended, too");
    }
}

/// In its grace period a server grants nothing, so connections are blocked at a free name.
#[test]
fn a_value_of_another_type_refuses_in_the_grace_too() {
    let server = Server::primary(&["rlock.grace-ms", "60000"]);
    let mut client = server.client();
    for line in others(&server) {
        client.all(&["SET s v", "RPUSH l 1"]);
        let mut waiter = Waiter::parked(&server, "RLOCK.ACQUIRE k a BLOCK 0");
        client.ask(line);
        let error = waiter.error();
        assert!(error.starts_with("WRONGTYPE "), "{line}: {error}");
        client.ask("FLUSHALL");
    }
}

/// The server may leave a caller in the database of the event that it reported to a module.
#[test]
fn a_caller_stays_in_its_database() {
    let server = Server::start();
    let mut client = server.client();
    let _waiter = behind_a_turn(&server, &mut client);
    client.ask("SELECT 1");
    let script = "redis.call('SELECT', 2) return redis.call('SET', KEYS[1], 'v')";
    client.ask_bytes(&[b"EVAL", script.as_bytes(), b"1", b"e"]);
    for line in
        ["SET s v", "MOVE s 0", "SET s w", "COPY s other DB 2", "RLOCK.ACQUIRE j a", "MOVE j 0"]
    {
        client.ask(line);
        let info = client.text("CLIENT INFO");
        assert!(info.contains(" db=1 "), "after {line}: {info}");
    }
}

/// Otherwise, on replicas, this command and the caller's next ones would go to the other database.
#[test]
fn a_caller_stays_in_its_database_where_a_key_has_expired_in_another_one() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let [mut client, mut other] = [primary.client(), primary.client()];
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    other.ask("SELECT 1");
    for (line, key) in [("MOVE k 1", "k"), ("COPY s k DB 1", "s")] {
        other.ask("SET k v PX 20");
        client.ask(&format!("SET {key} x"));
        let over_ms = now_ms() + 30;
        until(1000, || now_ms() > over_ms);
        client.ask(line);
        let info = client.text("CLIENT INFO");
        assert!(info.contains(" db=0 "), "after {line}: {info}");
        replica.until_in_sync_with(&primary);
        let mut there = replica.client();
        there.ask("SELECT 1");
        assert_eq!(there.text("GET k"), "x", "after {line}");
        other.ask("DEL k");
    }
}
