//! Many clients at two locks, at one of them or at both, whose slot moves to and fro: no two of
//! them hold one lock, and each gets exactly one reply. `RLOCK_MOVES` says how often the slot
//! moves.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redis::Value;

use rlock_testkit::{Cluster, Waiter, integer, now_ms, until};

const HALL: u16 = 4903;
const ACTORS: u64 = 8;

/// A lock as its holders see it: who holds it, and the greatest token so far.
#[derive(Default)]
struct Room {
    inside: Vec<String>,
    token_max: i64,
}

/// What all of them saw.
#[derive(Default)]
struct Seen {
    rooms: [Mutex<Room>; 2],
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Seen {
    fn enter(&self, room: usize, who: &str, token: i64) {
        let mut room = self.rooms[room].lock().unwrap();
        let is_alone = who.ends_with("WRITE");
        if room.inside.iter().any(|other| is_alone || other.ends_with("WRITE")) {
            self.wrong.lock().unwrap().push(format!("{who} beside {:?}", room.inside));
        }
        // Readers enter together, in any order.
        if is_alone && token <= room.token_max {
            self.wrong.lock().unwrap().push(format!("{token} after {}", room.token_max));
        }
        room.token_max = room.token_max.max(token);
        room.inside.push(who.to_owned());
    }

    fn leave(&self, room: usize, who: &str) {
        self.rooms[room].lock().unwrap().inside.retain(|other| other != who);
    }
}

/// A client that goes where the cluster sends it.
struct Follower<'c> {
    cluster: &'c Cluster,
    at: usize,
    connections: [Waiter; 2],
    sent_on: u64,
}

impl Follower<'_> {
    #[track_caller]
    fn ask(&mut self, line: &str) -> Value {
        let (mut node, mut is_asking, began_ms) = (self.at, false, now_ms());
        loop {
            assert!(now_ms() < began_ms + 90_000, "{line}: sent to and fro");
            let there = &mut self.connections[node];
            if is_asking {
                there.ask("ASKING");
            }
            there.say(line);
            let error = match there.reply() {
                Ok(reply) => return reply,
                Err(error) => error,
            };
            self.sent_on += 1;
            let words: Vec<&str> = error.split(' ').collect();
            (node, is_asking) = match words[0] {
                "TRYAGAIN" => (self.at, false),
                "ASK" => (self.cluster.node_at(words[2]), true),
                "MOVED" => {
                    self.at = self.cluster.node_at(words[2]);
                    (self.at, false)
                }
                _ => panic!("{line}: {error}"),
            };
        }
    }
}

/// Waits, acquires and releases, until the test ends. Returns how often it was granted, and how
/// often it was redirected.
fn act(cluster: &Cluster, seen: &Seen, number: u64) -> (u64, u64) {
    let connections = [0, 1].map(|node| Waiter::connect(cluster.node(node)));
    let mut follower = Follower { cluster, at: 0, connections, sent_on: 0 };
    let mut granted = 0;
    while !seen.is_over.load(Ordering::Relaxed) {
        let turn = number + granted;
        if turn % 5 == 4 {
            take_both(&mut follower, seen, number);
            granted += 1;
            continue;
        }
        let (room, mode) =
            ((turn % 2) as usize, if turn.is_multiple_of(3) { "READ" } else { "WRITE" });
        let who = format!("actor-{number} {mode}");
        let key = format!("{{hall}}:{room}");
        let reply = follower.ask(&format!("RLOCK.ACQUIRE {key} {who} LEASE 600000 BLOCK 60000"));
        seen.enter(room, &who, integer(&reply));
        if turn.is_multiple_of(4) {
            let began_ms = now_ms();
            until(1_000, || now_ms() > began_ms + 1);
        }
        seen.leave(room, &who);
        let token = integer(&reply);
        let left = follower.ask(&format!("RLOCK.RELEASE {key} {who} TOKEN {token}"));
        assert_eq!(left, Value::Int(0), "{who}: its hold is lost");
        granted += 1;
    }
    follower.connections.iter_mut().for_each(Waiter::expect_silence);
    (granted, follower.sent_on)
}

/// Waits for both locks, acquires and releases them.
fn take_both(follower: &mut Follower<'_>, seen: &Seen, number: u64) {
    let who = format!("group-{number} WRITE");
    let keys = "2 {hall}:1 {hall}:0";
    let line = format!("RLOCK.MACQUIRE {keys} {who} LEASE 600000 BLOCK 60000");
    let token = integer(&follower.ask(&line));
    [0, 1].into_iter().for_each(|room| seen.enter(room, &who, token));
    [0, 1].into_iter().for_each(|room| seen.leave(room, &who));
    let owner = who.split(' ').next().unwrap();
    let left = follower.ask(&format!("RLOCK.MRELEASE {keys} {owner} TOKEN {token}"));
    assert_eq!(left, Value::Int(2), "{who}: a hold is lost");
}

fn move_to_and_fro(cluster: &Cluster, moves: usize) {
    for number in 0..moves {
        let (from, to) = (number % 2, 1 - number % 2);
        until(20_000, || cluster.client(from).gauges().0 >= 2);
        let is_at_once = number % 4 >= 2 && cluster.move_slot_at_once(HALL, from, to);
        if !is_at_once {
            cluster.move_slot(HALL, from, to);
        }
    }
}

#[test]
fn a_slot_that_moves_to_and_fro_under_load_grants_nobody_twice_and_answers_everybody() {
    let moves = std::env::var("RLOCK_MOVES").map_or(6, |text| text.parse().unwrap());
    let cluster = Cluster::of_two();
    let seen = Seen::default();
    let sums = thread::scope(|scope| {
        let actors = (0..ACTORS).map(|number| {
            let (cluster, seen) = (&cluster, &seen);
            scope.spawn(move || act(cluster, seen, number))
        });
        let actors: Vec<_> = actors.collect();
        move_to_and_fro(&cluster, moves);
        seen.is_over.store(true, Ordering::Relaxed);
        let sums = actors.into_iter().map(|actor| actor.join().unwrap());
        sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    let (granted, sent_on) = sums;
    let wrong = seen.wrong.into_inner().unwrap();
    println!(
        "{moves} moves of a slot, {ACTORS} clients at 2 locks: {granted} granted and answered \
         once, {sent_on} sent on, {} double grants or tokens out of order",
        wrong.len()
    );
    assert_eq!(wrong, [""; 0]);
    assert!(sent_on >= moves as u64, "nobody waited where the slot was");
    for node in [0, 1] {
        let mut client = cluster.client(node);
        until(5_000, || client.gauges() == (0, 0, 0) && client.counted("locks") == 0);
    }
}
