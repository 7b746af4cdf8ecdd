//! Many connections in one thread. A connection that gets a reply sends its next command at once;
//! the game decides which command that is.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::wire;

/// A server that sends nothing for this long is considered hung.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Decides what the connections send.
pub trait Game {
    /// If a game acts by itself, its `tick` is called at least this often. Zero: in each round.
    const TICK: Option<Duration> = None;

    /// Called at the latest when [`Game::TICK`] has passed since the last call.
    fn tick(&mut self, _: &mut Table) {}

    /// Called when the connection `seat` has received `reply`.
    fn hear(&mut self, seat: usize, reply: &[u8], table: &mut Table);
}

/// Bytes to send once all replies have been read.
#[derive(Default)]
pub struct Table {
    outboxes: Vec<Vec<u8>>,
    speakers: Vec<usize>,
}

impl Table {
    /// Queues `bytes` for the connection `seat`.
    pub fn say(&mut self, seat: usize, bytes: &[u8]) {
        if self.outboxes[seat].is_empty() {
            self.speakers.push(seat);
        }
        self.outboxes[seat].extend_from_slice(bytes);
    }
}

struct Seat {
    stream: TcpStream,
    inbox: Vec<u8>,
}

/// The connections of one game.
pub struct Room {
    poll: Poll,
    seats: Vec<Seat>,
    /// The first commands of the game are queued here.
    pub table: Table,
}

impl Room {
    /// Opens this many connections to the server at this port.
    pub fn open(port: u16, seats: usize) -> Room {
        let poll = Poll::new().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let seats = (0..seats).map(|number| {
            let stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(number), Interest::READABLE).unwrap();
            Seat { stream, inbox: Vec::new() }
        });
        let seats: Vec<Seat> = seats.collect();
        let outboxes = vec![Vec::new(); seats.len()];
        Room { poll, seats, table: Table { outboxes, speakers: Vec::new() } }
    }

    /// Switches each connection to RESP3, and subscribes it to its own shard channel, if it has
    /// one.
    pub fn greet_in_resp3(&mut self, channel: impl Fn(usize) -> Option<String>) {
        let mut greeting = Greeting { owed: self.seats.len() };
        for seat in 0..self.seats.len() {
            self.table.say(seat, &wire::line("HELLO 3"));
            if let Some(channel) = channel(seat) {
                self.table.say(seat, &wire::line(&format!("SSUBSCRIBE {channel}")));
                greeting.owed += 1;
            }
        }
        self.play_until(&mut greeting, |greeting| greeting.owed == 0);
    }

    /// Closes this connection.
    pub fn leave(&mut self, seat: usize) {
        let stream = &mut self.seats[seat].stream;
        self.poll.registry().deregister(stream).unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Plays for this long.
    pub fn play(&mut self, game: &mut impl Game, time: Duration) {
        let end = Instant::now() + time;
        self.play_until(game, |_| Instant::now() >= end);
    }

    /// Plays until `is_over`, which is checked after each round of replies.
    pub fn play_until<G: Game>(&mut self, game: &mut G, is_over: impl Fn(&G) -> bool) {
        let mut events = Events::with_capacity(self.seats.len().max(16));
        self.send();
        while !is_over(game) {
            self.poll.poll(&mut events, Some(G::TICK.unwrap_or(SILENCE_MAX))).unwrap();
            assert!(G::TICK.is_some() || !events.is_empty(), "no reply within {SILENCE_MAX:?}");
            game.tick(&mut self.table);
            for event in &events {
                let seat = event.token().0;
                self.seats[seat].receive();
                let inbox = std::mem::take(&mut self.seats[seat].inbox);
                let mut at = 0;
                while let Some(len) = wire::reply_len(&inbox[at..]) {
                    game.hear(seat, &inbox[at..at + len], &mut self.table);
                    at += len;
                }
                self.seats[seat].inbox = inbox;
                self.seats[seat].inbox.drain(..at);
            }
            self.send();
        }
    }

    fn send(&mut self) {
        for seat in std::mem::take(&mut self.table.speakers) {
            let outbox = &mut self.table.outboxes[seat];
            self.seats[seat].send(outbox);
            outbox.clear();
        }
    }
}

/// Reads the replies to the first commands of each connection.
struct Greeting {
    owed: usize,
}

impl Game for Greeting {
    fn hear(&mut self, _: usize, reply: &[u8], _: &mut Table) {
        assert!(matches!(reply[0], b'%' | b'>'), "{}", reply.escape_ascii());
        self.owed -= 1;
    }
}

impl Seat {
    fn receive(&mut self) {
        let mut chunk = [0; 1 << 14];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the server closed a connection"),
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The bytes fit into the socket's buffer, except when the server is slow to read.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
