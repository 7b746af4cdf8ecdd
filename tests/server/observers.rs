//! `RLOCK.AWAIT`: observers get the holder of WRITE, whatever changes it, and delay nobody.

use std::time::{Duration, Instant};

use redis::Value;

use rlock_testkit::{
    Client, Cluster, Lateness, Server, Waiter, flat_map, integer, items, now_ms, text, until,
};

/// The slot of `hall`.
const HALL: u16 = 4903;

/// The token and the owner of the hold that a reply shows; 0 and nothing if there is none.
#[track_caller]
fn seen(reply: &Value) -> (i64, String) {
    let [token, owner] = items(reply) else { panic!("{reply:?}") };
    (integer(token), if *owner == Value::Nil { String::new() } else { text(owner) })
}

fn nobody() -> (i64, String) {
    (0, String::new())
}

fn observer(server: &Server, key: &str, token: i64) -> Waiter {
    Waiter::parked(server, &format!("RLOCK.AWAIT {key} {token} BLOCK 0"))
}

/// The one reply of this observer.
#[track_caller]
fn told(observer: &mut Waiter) -> (i64, String) {
    let reply = observer.answer();
    observer.expect_silence();
    seen(&reply)
}

#[test]
fn a_follower_learns_of_each_leader() {
    let server = Server::start();
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    assert_eq!(seen(&client.ask("RLOCK.AWAIT door 0")), (ann, "ann".into()));
    client.refused(&format!("RLOCK.AWAIT door {ann}"));
    let mut follower = observer(&server, "door", ann);
    client.ask("RLOCK.RELEASE door ann");
    let token = bob.granted();
    assert_eq!(told(&mut follower), (token, "bob".into()), "and not that it was free meanwhile");
    follower.park(&server, &format!("RLOCK.AWAIT door {token} BLOCK 0"));
    bob.ask("RLOCK.RELEASE door bob");
    assert_eq!(told(&mut follower), nobody());
    follower.park(&server, "RLOCK.AWAIT door 0 BLOCK 0");
    let token = client.granted("RLOCK.ACQUIRE door cid");
    assert_eq!(told(&mut follower), (token, "cid".into()));
    assert_eq!((client.gauges(), client.counted("observers")), ((0, 0, 0), 0));
}

#[test]
fn an_owner_of_512_bytes_and_resp3() {
    let server = Server::start();
    let mut client = server.client_resp3();
    let owner = "n".repeat(512);
    let token = client.granted(&format!("RLOCK.ACQUIRE door {owner}"));
    assert_eq!(seen(&client.ask("RLOCK.AWAIT door 0 BLOCK 5")), (token, owner));
    client.refused(&format!("RLOCK.AWAIT door {token} BLOCK 5"));
    assert_eq!(seen(&client.ask("RLOCK.AWAIT free 5")), nobody());
}

#[test]
fn it_is_told_within_two_milliseconds_after_a_deadline_and_after_its_own_time() {
    let server = Server::start();
    let mut client = server.client();
    let mut watched = Waiter::connect(&server);
    let mut lateness = Lateness::default();
    for _ in 0..20 {
        let token = client.granted("RLOCK.ACQUIRE door ann LEASE 40");
        let deadline = client.deadline("door");
        watched.say(&format!("RLOCK.AWAIT door {token} BLOCK 0"));
        assert_eq!(seen(&watched.answer()), nobody());
        let now = now_ms();
        assert!(now >= deadline, "{} ms early", deadline - now);
        lateness.add(u128::try_from(now - deadline).unwrap() * 1000);
        lateness.compare(&mut client);
    }
    lateness.assert_prompt();
    let mut lateness = Lateness::default();
    for _ in 0..20 {
        let began = Instant::now();
        client.refused("RLOCK.AWAIT door 0 BLOCK 20");
        assert!(began.elapsed() >= Duration::from_millis(19));
        lateness.add(began.elapsed().as_micros().saturating_sub(20_000));
        lateness.compare(&mut client);
    }
    lateness.assert_prompt();
}

#[test]
fn it_stands_in_no_queue_and_counts_for_max_waiters() {
    let server = Server::with(&["rlock.max-waiters", "2"]);
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let _one = observer(&server, "door", ann);
    let fields = flat_map(&client.ask("RLOCK.INFO door"));
    assert_eq!((integer(&fields["queue-length"]), integer(&fields["observers"])), (0, 1));
    assert_eq!(client.ask("RLOCK.QUEUES"), Value::Array(Vec::new()));
    assert_eq!((client.gauges(), client.counted("observers")), ((0, 0, 0), 1));
    let _bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0 MAXQUEUE 1");
    for line in [format!("RLOCK.AWAIT door {ann} BLOCK 0"), "RLOCK.ACQUIRE door cid BLOCK 0".into()]
    {
        assert!(client.error(&line).starts_with("TOOMANY "), "{line}");
    }
    client.refused(&format!("RLOCK.AWAIT door {ann}"));
}

#[test]
fn client_unblock_kill_and_reset_end_the_wait() {
    let server = Server::start();
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let [mut one, mut two, mut three, four] = [(); 4].map(|()| observer(&server, "door", ann));
    client.number(&format!("CLIENT UNBLOCK {}", one.id()));
    one.refused();
    client.number(&format!("CLIENT UNBLOCK {} ERROR", two.id()));
    assert!(two.error().starts_with("UNBLOCKED "));
    client.ask(&format!("CLIENT KILL ID {}", three.id()));
    three.expect_close();
    drop(four);
    until(5_000, || client.counted("observers") == 0);
    assert_eq!(client.counted("timed_out"), 0, "nobody waited for the lock");
    client.ask("RLOCK.RELEASE door ann");
}

#[test]
fn whatever_changes_the_key_is_seen() {
    let server = Server::start();
    let mut client = server.client();
    let changes: [(&[&str], bool); 10] = [
        (&["DEL door"], false),
        (&["UNLINK door"], false),
        (&["FLUSHALL"], false),
        (&["FLUSHDB ASYNC"], false),
        (&["SWAPDB 0 1"], false),
        (&["RENAME door elsewhere"], false),
        (&["MOVE door 1"], false),
        (&["PEXPIRE door 1"], false),
        (&["RLOCK.FORCE door"], false),
        (&["RENAME other door"], true),
    ];
    for (lines, is_other) in changes {
        client.ask("FLUSHALL");
        let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 600000");
        let other = client.granted("RLOCK.ACQUIRE other cid LEASE 600000");
        let mut observer = observer(&server, "door", ann);
        lines.iter().for_each(|line| drop(client.ask(line)));
        let expected = if is_other { (other, "cid".into()) } else { nobody() };
        assert_eq!(told(&mut observer), expected, "{lines:?}");
    }
    // These bring a value to a free name.
    for line in ["RENAME other door", "RESTORE door 0", "SWAPDB 0 1"] {
        client.ask("FLUSHALL");
        let token = client.granted("RLOCK.ACQUIRE other cid LEASE 600000");
        let mut observer = observer(&server, "door", 0);
        if line.starts_with("RESTORE") {
            let bytes = client.dump("other");
            client.ask_bytes(&[b"RESTORE", b"door", b"0", &bytes]);
        } else if line.starts_with("SWAPDB") {
            client.all(&["SELECT 1", "RLOCK.ACQUIRE door dan LEASE 600000", "SELECT 0", line]);
            assert_eq!(told(&mut observer).1, "dan");
            continue;
        } else {
            client.ask(line);
        }
        assert_eq!(told(&mut observer), (token, "cid".into()), "{line}");
    }
}

#[test]
fn another_type_is_wrongtype_at_once_and_later() {
    let server = Server::start();
    let mut client = server.client();
    let puts = ["SET door x", "HSET door a b", "SADD door a", "RPUSH door a", "ZADD door 1 a"];
    for put in puts {
        let mut free = observer(&server, "door", 0);
        client.ask(put);
        assert!(free.error().starts_with("WRONGTYPE "), "{put}");
        assert!(client.error("RLOCK.AWAIT door 5 BLOCK 0").starts_with("WRONGTYPE "), "{put}");
        client.ask("DEL door");
    }
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let mut held = observer(&server, "door", ann);
    client.ask("SET door x");
    assert!(held.error().starts_with("WRONGTYPE "));
    // When a reader leaves the name free, observers get no reply.
    client.ask("DEL door");
    client.granted("RLOCK.ACQUIRE door ann READ");
    let mut read = observer(&server, "door", 0);
    client.ask("RLOCK.RELEASE door ann");
    client.ask("SET door x");
    assert!(read.error().starts_with("WRONGTYPE "));
}

#[test]
fn transactions_and_scripts_are_one_step_and_do_not_block() {
    let server = Server::start();
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let mut one = observer(&server, "door", ann);
    let steps = "redis.call('RLOCK.RELEASE', KEYS[1], 'ann') \
                 redis.call('RLOCK.ACQUIRE', KEYS[1], 'bob') \
                 redis.call('RLOCK.RELEASE', KEYS[1], 'bob') \
                 return redis.call('RLOCK.ACQUIRE', KEYS[1], 'cid')";
    let cid = integer(&client.ask_bytes(&[b"EVAL", steps.as_bytes(), b"1", b"door"]));
    assert_eq!(told(&mut one), (cid, "cid".into()));
    one.park(&server, &format!("RLOCK.AWAIT door {cid} BLOCK 0"));
    let transaction =
        ["MULTI", "RLOCK.RELEASE door cid", "RLOCK.AWAIT door 0 BLOCK 0", "RLOCK.ACQUIRE door dan"];
    client.all(&transaction);
    let replies = client.ask("EXEC");
    assert_eq!(items(&replies)[1], Value::Nil);
    assert_eq!(told(&mut one), (integer(&items(&replies)[2]), "dan".into()));
    let asks = b"return redis.call('RLOCK.AWAIT', KEYS[1], '0', 'BLOCK', '0')[2]";
    assert_eq!(text(&client.ask_bytes(&[b"EVAL", asks, b"1", b"door"])), "dan");
}

#[test]
fn it_is_told_in_a_pause_and_where_replicas_are_missing() {
    let server = Server::start();
    let mut client = server.client();
    let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 1000");
    let mut one = observer(&server, "door", ann);
    client.ask("CLIENT PAUSE 600000 WRITE");
    assert_eq!(told(&mut one), nobody());
    client.ask("CLIENT UNPAUSE");
    let ann = client.granted("RLOCK.ACQUIRE door ann LEASE 1000");
    let mut bob = Waiter::parked(&server, "RLOCK.ACQUIRE door bob BLOCK 0");
    let mut one = observer(&server, "door", ann);
    client.ask("CONFIG SET min-replicas-to-write 1");
    assert_eq!(told(&mut one), nobody());
    one.park(&server, "RLOCK.AWAIT door 0 BLOCK 0");
    client.ask("CONFIG SET min-replicas-to-write 0");
    let token = bob.granted();
    assert_eq!(told(&mut one), (token, "bob".into()));
}

#[test]
fn who_may_only_read_may_observe_and_who_lost_that_right_gets_noperm() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("ACL SETUSER watcher on >secret %R~door -@all +@connection +client|id +rlock.await");
    let ann = client.granted("RLOCK.ACQUIRE door ann");
    let mut watcher = Waiter::connect_as(&server, "watcher");
    watcher.park(&server, &format!("RLOCK.AWAIT door {ann} BLOCK 0"));
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(told(&mut watcher), nobody());
    watcher.say("RLOCK.AWAIT hall 0");
    assert!(watcher.error().starts_with("NOPERM "));
    for rules in ["-rlock.await", "+rlock.await resetkeys", "%R~door on -@all"] {
        client.ask(&format!("ACL SETUSER watcher {rules}"));
        if rules.starts_with('%') {
            client.ask("ACL SETUSER watcher +@connection +rlock.await");
        }
    }
    watcher.park(&server, "RLOCK.AWAIT door 0 BLOCK 0");
    client.ask("ACL SETUSER watcher resetkeys");
    client.granted("RLOCK.ACQUIRE door ann");
    assert!(watcher.error().starts_with("NOPERM the user lost permission for RLOCK.AWAIT or"));
}

#[test]
fn a_replica_replies_at_once_and_a_demoted_primary_ends_the_wait() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let (mut there, mut here) = (primary.client(), replica.client());
    let ann = there.granted("RLOCK.ACQUIRE door ann LEASE 600000");
    replica.until_in_sync_with(&primary);
    assert_eq!(seen(&here.ask("RLOCK.AWAIT door 0")), (ann, "ann".into()));
    here.refused(&format!("RLOCK.AWAIT door {ann}"));
    assert!(here.error("RLOCK.AWAIT door 0 BLOCK 5").starts_with("ERR RLOCK.AWAIT cannot block"));
    let mut one = observer(&primary, "door", ann);
    there.ask(&format!("REPLICAOF 127.0.0.1 {}", replica.tcp_port()));
    let words = one.last_words();
    assert!(matches!(&words[..], [Err(error)] if error.starts_with("UNBLOCKED ")), "{words:?}");
    until(5_000, || there.counted("observers") == 0);
}

#[test]
fn a_hold_is_seen_when_replicas_have_acknowledged_it() {
    let primary = Server::primary(&[]);
    let replica = Server::replica_of(&primary, &[]);
    replica.until_in_sync_with(&primary);
    let mut client = primary.client();
    until(5_000, || client.attempt("RLOCK.ACQUIRE warm-up ann ACKS 1").is_ok());
    let mut one = observer(&primary, "door", 0);
    replica.freeze();
    let mut ann = Waiter::parked(&primary, "RLOCK.ACQUIRE door ann ACKS 1 BLOCK 60000");
    client.refused("RLOCK.AWAIT door 0 BLOCK 50");
    one.still_waits(&mut client);
    replica.thaw();
    let token = ann.granted();
    assert_eq!(told(&mut one), (token, "ann".into()));
}

#[test]
fn where_the_slot_moves_it_is_sent_away() {
    let cluster = Cluster::of_two();
    let mut source = cluster.client(0);
    for ending in ["MIGRATE", "DEL hall"] {
        let ann = source.granted("RLOCK.ACQUIRE hall ann LEASE 600000");
        let mut one = observer(cluster.node(0), "hall", ann);
        cluster.begin_move(HALL, 0, 1);
        match ending {
            "MIGRATE" => cluster.move_key("hall", 0, 1),
            line => drop(source.ask(line)),
        }
        let error = one.error();
        let is_sent = ["TRYAGAIN ", "MOVED "].iter().any(|code| error.starts_with(code));
        assert!(is_sent, "{ending}: {error}");
        let mut target = cluster.client(1);
        target.ask("ASKING");
        target.attempt("DEL hall").unwrap();
        for node in [0, 1] {
            cluster.client(node).ask(&format!("CLUSTER SETSLOT {HALL} STABLE"));
        }
    }
}

#[test]
fn none_of_a_thousand_misses_a_state_that_lasts_and_they_are_told_in_order() {
    let server = Server::with(&["rlock.max-waiters", "2000"]);
    let mut client = server.client();
    let mut token = client.granted("RLOCK.ACQUIRE door o0");
    let mut observers: Vec<Waiter> = (0..1000).map(|_| Waiter::connect(&server)).collect();
    for number in 1..4 {
        observers.iter_mut().for_each(|one| one.say(&format!("RLOCK.AWAIT door {token} BLOCK 0")));
        until(20_000, || client.counted("observers") == 1000);
        let last = format!("o{}", number - 1);
        let replies = client.all(&[
            &format!("RLOCK.RELEASE door {last}"),
            &format!("RLOCK.ACQUIRE door o{number}"),
        ]);
        let next = integer(&replies[1]);
        for one in &mut observers {
            let (known, owner) = seen(&one.answer());
            assert!((known, &*owner) == (next, &*format!("o{number}")) || known == 0, "{owner}");
            if known == 0 {
                one.say("RLOCK.AWAIT door 0 BLOCK 0");
                assert_eq!(seen(&one.answer()), (next, format!("o{number}")));
            }
        }
        token = next;
    }
    assert_eq!(client.counted("observers"), 0);
}

/// A server, these observers, and the client that hands `door` on.
struct Stage {
    _server: Server,
    client: Client,
    waiter: Waiter,
    observers: Vec<Waiter>,
    /// The number of hand-offs so far, and the tokens that hold `door` and `side` now.
    number: usize,
    door: i64,
    side: i64,
}

impl Stage {
    fn with(count: usize) -> Self {
        let server = Server::with(&["rlock.max-waiters", "20000", "maxclients", "19000"]);
        let observers = (0..count).map(|_| Waiter::connect(&server)).collect();
        let (mut client, waiter) = (server.client(), Waiter::connect(&server));
        let [door, side] =
            ["door", "side"].map(|key| client.granted(&format!("RLOCK.ACQUIRE {key} w0")));
        Self { _server: server, client, waiter, observers, number: 0, door, side }
    }

    /// How long the next hand-off of `door` takes, in microseconds, while all observe the lock
    /// `observed`.
    fn hand_off(&mut self, observed: &str) -> u128 {
        let line = format!("RLOCK.AWAIT {observed} {} BLOCK 0", self.token(observed));
        let client = &mut self.client;
        let (last, next) = (self.number, self.number + 1);
        self.number = next;
        self.observers.iter_mut().for_each(|one| one.say(&line));
        self.waiter.say(&format!("RLOCK.ACQUIRE door w{next} BLOCK 0"));
        let count = i64::try_from(self.observers.len()).unwrap();
        until(60_000, || client.counted("observers") == count && client.gauges().0 == 1);
        let began = Instant::now();
        client.send(&["RLOCK.RELEASE", "door", &format!("w{last}")]);
        self.door = integer(&self.waiter.answer());
        let taken = began.elapsed().as_micros();
        client.receive();
        client.ask(&format!("RLOCK.RELEASE side w{last}"));
        self.side = client.granted(&format!("RLOCK.ACQUIRE side w{next}"));
        let token = self.token(observed);
        for one in &mut self.observers {
            let (shown, _) = seen(&one.answer());
            assert!(shown == token || shown == 0);
        }
        taken
    }

    fn token(&self, key: &str) -> i64 {
        if key == "door" { self.door } else { self.side }
    }

    /// The same for the server's own lists: what as many blocked connections cost without the
    /// module.
    fn push(&mut self) -> u128 {
        self.observers.iter_mut().for_each(|one| one.say("BLPOP crowd 0"));
        self.waiter.say("BLPOP list 0");
        let count = i64::try_from(self.observers.len()).unwrap();
        until(60_000, || self.client.info_number("clients", "blocked_clients") == count + 1);
        let began = Instant::now();
        self.client.send(&["RPUSH", "list", "x"]);
        self.waiter.answer();
        let taken = began.elapsed().as_micros();
        self.client.receive();
        if count > 0 {
            let mut words: Vec<&[u8]> = vec![b"RPUSH", b"crowd"];
            words.resize(2 + self.observers.len(), b"x");
            self.client.ask_bytes(&words);
        }
        self.observers.iter_mut().for_each(|one| drop(one.answer()));
        taken
    }
}

/// A measurement, on a quiet machine: observers of the very lock, the same connections at another
/// lock, and nobody, in turn; and the same for a list of the server.
#[test]
#[ignore = "takes minutes and a quiet machine: make observers"]
fn hand_offs_are_not_slower_beside_ten_thousand_observers() {
    let [mut nobody, mut crowd] = [0, 10_000].map(Stage::with);
    let mut taken = [const { Vec::new() }; 5];
    for _ in 0..400 {
        let round = [
            nobody.hand_off("door"),
            crowd.hand_off("side"),
            crowd.hand_off("door"),
            nobody.push(),
            crowd.push(),
        ];
        taken.iter_mut().zip(round).for_each(|(all, one)| all.push(one));
    }
    taken.iter_mut().for_each(|all| all.sort_unstable());
    let at = |all: &[u128], hundredths: usize| all[(all.len() - 1) * hundredths / 100];
    for hundredths in [50, 90, 99] {
        let [none, beside, here, list, list_beside] =
            taken.each_ref().map(|all| at(all, hundredths));
        println!(
            "p{hundredths}: {none} us, beside {beside} us, here {here} us; \
             a list {list} us, beside {list_beside} us"
        );
    }
    let [_, beside, here, ..] = &taken;
    assert!(at(here, 50) * 10 <= at(beside, 50) * 12);
}
