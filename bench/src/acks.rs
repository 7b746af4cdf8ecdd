//! A grant that a replica confirms, compared with the same work without confirmation and with a
//! `WAIT` after it in the same write. The figures are grants per second, the time each grant takes,
//! and how often the primary asks the replica for acknowledgments.

use std::time::{Duration, Instant};

use crate::book::{Book, column};
use crate::play::{Game, Room, Table};
use crate::sample::Sample;
use crate::stage::{may_open, server, us_since};
use crate::{Profile, wire};
use rlock_testkit::{Client, Server, until};

/// A column for each number of connections; each has its own lock.
pub const GRANTS: &str = "acknowledged: grants and releases per second, one replica";
pub const P50: &str = "acknowledged: ACQUIRE to its reply, p50 µs";
pub const P99: &str = "acknowledged: ACQUIRE to its reply, p99 µs";
pub const ASKED: &str = "acknowledged: GETACKs per grant";

const READY_MS_MAX: u64 = 20_000;

const CONNECTIONS: [usize; 3] = [1, 50, 500];

/// How a grant is confirmed: the row, the words added to the command, and the command that follows
/// it in the same write.
const WAYS: [(&str, &str, &str); 3] =
    [("not at all", "", ""), ("followed by WAIT 1", "", "WAIT 1 1000"), ("ACKS 1", "ACKS 1", "")];

/// Measures all rows for every number of connections.
pub fn measure(book: &mut Book, profile: Profile) {
    let ms = if profile == Profile::Quick { 1000 } else { 4000 };
    for connections in CONNECTIONS {
        if !may_open(connections) {
            book.miss(format!("acknowledged, {connections}: `ulimit -n` is too low"));
            continue;
        }
        for (row, word, behind) in WAYS {
            let primary = server(&["repl-diskless-sync", "no"]);
            let replica = Server::replica_of(&primary, &[]);
            // The server counts a replica only after that replica's first acknowledgment.
            let mut first = primary.client();
            until(READY_MS_MAX, || first.attempt("RLOCK.ACQUIRE first owner ACKS 1").is_ok());
            let mut room = Room::open(primary.tcp_port(), connections);
            let mut game = Grants::new(connections, word, behind);
            for number in 0..connections {
                game.ask(number, false, &mut room.table);
            }
            room.play(&mut game, Duration::from_millis(ms / 4));
            let mut told = replica.client();
            let asked_before = asked(&mut told);
            (game.grants, game.taken_us) = (0, Sample::default());
            let begin = Instant::now();
            room.play(&mut game, Duration::from_millis(ms));
            let seconds = begin.elapsed().as_secs_f64();
            let (grants, asked) = (game.grants as f64, asked(&mut told) - asked_before);
            let column = column(connections);
            println!("  grants a second, p50 and p99 in µs, GETACKs per grant:");
            book.put_value(GRANTS, row, &column, grants / seconds);
            book.put_value(P50, row, &column, game.taken_us.median());
            book.put_value(P99, row, &column, game.taken_us.percentile(99));
            book.put_value(ASKED, row, &column, asked / grants);
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

/// Each connection acquires its own lock, and releases it in the same write as the next request.
struct Grants {
    /// Each connection's commands to acquire and to release, as bytes.
    words: Vec<[Vec<u8>; 2]>,
    /// The number of replies to one write: to the release, to the request, and to the command after
    /// it.
    replies: usize,
    heard: Vec<usize>,
    said: Vec<Instant>,
    grants: u64,
    taken_us: Sample,
}

impl Grants {
    fn new(connections: usize, word: &str, behind: &str) -> Grants {
        let words = (0..connections).map(|number| {
            let key = format!("lock:{number}");
            let mut ask = wire::line(format!("RLOCK.ACQUIRE {key} owner {word}").trim_end());
            if !behind.is_empty() {
                ask.extend(wire::line(behind));
            }
            [ask, wire::line(&format!("RLOCK.RELEASE {key} owner"))]
        });
        let replies = if behind.is_empty() { 2 } else { 3 };
        let (heard, said) = (vec![0; connections], vec![Instant::now(); connections]);
        let (grants, taken_us) = (0, Sample::default());
        Grants { words: words.collect(), replies, heard, said, grants, taken_us }
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
        let is_release = self.heard[seat] == 1;
        assert!(reply[0] == b':' && (is_release || reply != b":0\r\n"), "{}", reply.escape_ascii());
        if self.heard[seat] == self.replies {
            self.grants += 1;
            self.taken_us.add(us_since(self.said[seat]));
            self.ask(seat, true, table);
        }
    }
}
