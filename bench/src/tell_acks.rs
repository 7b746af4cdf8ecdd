//! A grant that a replica confirms: by a message, by the late reply to a blocked connection, and by
//! a `WAIT` in the same write. The three alternate on the same servers, with the same RESP3 client.

use std::time::{Duration, Instant};

use crate::Profile;
use crate::book::{Book, column};
use crate::play::{Game, Room, Table};
use crate::sample::Sample;
use crate::stage::{may_open, server, us_since};
use crate::wire;
use rlock_testkit::{Client, Server, until};

/// A column for each number of connections; each has its own lock.
pub const GRANTS: &str = "TELL: grants and releases per second that one replica confirms";
const P50: &str = "TELL: from the request for a grant to its confirmation, p50 µs";
const ASKED: &str = "TELL: GETACKs per confirmed grant";
pub const WAIT: &str = "followed by WAIT 1";
pub const TELL: &str = "ACKS 1 TELL";

/// How a grant is confirmed.
struct Way {
    row: &'static str,
    /// The words that are added to the command.
    word: &'static str,
    /// The command that follows it in the same write.
    behind: &'static str,
    /// The number of replies to all of these, including the reply to the release.
    replies: usize,
}

const WAYS: [Way; 3] = [
    Way { row: WAIT, word: "", behind: "WAIT 1 20000", replies: 3 },
    Way { row: "ACKS 1, blocked", word: "ACKS 1", behind: "", replies: 2 },
    Way { row: TELL, word: "ACKS 1 TELL $C 7", behind: "", replies: 3 },
];

const CONNECTIONS: [usize; 3] = [1, 50, 500];
const READY_MS_MAX: u64 = 20_000;

/// Measures all ways for every number of connections.
pub fn measure(book: &mut Book, profile: Profile) {
    let (rounds, ms) = if profile == Profile::Quick { (3, 500) } else { (7, 1000) };
    for connections in CONNECTIONS {
        if !may_open(connections * WAYS.len()) {
            book.miss(format!("TELL, {connections} acknowledged: `ulimit -n` is too low"));
            continue;
        }
        let primary = server(&["repl-diskless-sync", "no", "rlock.acks-timeout-ms", "20000"]);
        let replica = Server::replica_of(&primary, &[]);
        // The server counts a replica only after that replica's first acknowledgment.
        let mut first = primary.client();
        until(READY_MS_MAX, || first.attempt("RLOCK.ACQUIRE first owner ACKS 1").is_ok());
        let mut replica = replica.client();
        let mut all = WAYS.map(|way| Playing::begin(&primary, connections, way));
        // The first round is only a warm-up.
        for round in 0..=rounds {
            for playing in &mut all {
                playing.play(Duration::from_millis(ms), &mut replica, round > 0);
            }
        }
        let column = column(connections);
        for playing in &all {
            book.put(GRANTS, playing.row, &column, &playing.grants);
            book.put(P50, playing.row, &column, &playing.p50_us);
            book.put(ASKED, playing.row, &column, &playing.asked);
        }
    }
}

/// One way, and its measured values.
struct Playing {
    row: &'static str,
    room: Room,
    game: Grants,
    grants: Sample,
    p50_us: Sample,
    asked: Sample,
}

impl Playing {
    fn begin(primary: &Server, connections: usize, way: Way) -> Playing {
        let Way { row, word, behind, replies } = way;
        let mut room = Room::open(primary.tcp_port(), connections);
        // Valkey 9 does not block a connection that has subscribed to a channel.
        room.greet_in_resp3(|seat| word.contains("TELL").then(|| channel(row, seat)));
        let mut game = Grants::new(row, connections, [word, behind], replies);
        for seat in 0..connections {
            game.ask(seat, false, &mut room.table);
        }
        let (grants, p50_us, asked) = Default::default();
        Playing { row, room, game, grants, p50_us, asked }
    }

    fn play(&mut self, time: Duration, replica: &mut Client, is_counted: bool) {
        let asked_before = asked(replica);
        (self.game.grants, self.game.taken_us) = (0, Sample::default());
        // Do not count what was confirmed while other ways played.
        self.game.said.fill(Instant::now());
        let begin = Instant::now();
        self.room.play(&mut self.game, time);
        let (seconds, grants) = (begin.elapsed().as_secs_f64(), self.game.grants as f64);
        if is_counted {
            self.grants.add(grants / seconds);
            self.p50_us.add(self.game.taken_us.median());
            self.asked.add((asked(replica) - asked_before) / grants);
        }
    }
}

/// How often the primary asked the replica for acknowledgments: the replica receives no other
/// REPLCONF.
fn asked(replica: &mut Client) -> f64 {
    let calls = replica.info("commandstats", "cmdstat_replconf").unwrap_or_default();
    let calls = calls.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.map_or(0.0, |calls| calls.parse().unwrap())
}

fn channel(row: &str, seat: usize) -> String {
    format!("{}:{seat}", row.replace(' ', "-"))
}

/// Each connection acquires its own lock, and releases it in the same write as the next request.
struct Grants {
    /// Each connection's commands to acquire and to release, as bytes.
    words: Vec<[Vec<u8>; 2]>,
    replies: usize,
    heard: Vec<usize>,
    said: Vec<Instant>,
    grants: u64,
    taken_us: Sample,
}

impl Grants {
    fn new(row: &str, seats: usize, [word, behind]: [&str; 2], replies: usize) -> Grants {
        let words = (0..seats).map(|seat| {
            let key = format!("{}:{seat}", row.replace(' ', "-"));
            let line = format!("RLOCK.ACQUIRE {key} owner DEPTH 1 {word}");
            let mut ask = wire::line(line.replace("$C", &channel(row, seat)).trim_end());
            if !behind.is_empty() {
                ask.extend(wire::line(behind));
            }
            [ask, wire::line(&format!("RLOCK.RELEASE {key} owner"))]
        });
        let (heard, said) = (vec![0; seats], vec![Instant::now(); seats]);
        let words = words.collect();
        Grants { words, replies, heard, said, grants: 0, taken_us: Sample::default() }
    }

    fn ask(&mut self, seat: usize, has_lock: bool, table: &mut Table) {
        let [ask, release] = &self.words[seat];
        if has_lock {
            table.say(seat, release);
        }
        table.say(seat, ask);
        self.heard[seat] = usize::from(!has_lock);
        self.said[seat] = Instant::now();
    }
}

impl Game for Grants {
    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table) {
        self.heard[seat] += 1;
        let is_right = match reply[0] {
            b':' => self.heard[seat] == 1 || reply != b":0\r\n",
            b'+' => reply == b"+WAITING\r\n",
            b'>' => wire::message(reply).starts_with(b"7 token "),
            _ => false,
        };
        let said = self.words[seat][0].escape_ascii();
        assert!(is_right, "reply {}: {} to {said}", self.heard[seat], reply.escape_ascii());
        if self.heard[seat] == self.replies {
            self.grants += 1;
            self.taken_us.add(us_since(self.said[seat]));
            self.ask(seat, true, table);
        }
    }
}
