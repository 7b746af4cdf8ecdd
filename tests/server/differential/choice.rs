//! What is done to both servers: any command that the simulated server knows, and whatever else
//! happens to connections and servers.

use fastrand::Rng;
use rlock_simulation::command::{Ask, Command, Patience};
use rlock_simulation::several::{AskAll, KEYS, Keys, Want};

use super::is_on_databases;
use super::twins::Twins;

/// The number of connections.
pub const CONNECTIONS: usize = 5;
/// The number of channels, each with a subscriber.
pub const CHANNELS: usize = 2;
const OWNERS: u8 = 4;

/// What is done.
#[derive(Clone, Debug)]
pub enum Deed {
    /// A connection sends a command.
    Send(usize, String),
    /// A connection sends these commands as one transaction.
    Together(usize, Vec<String>),
    /// The subscriber of a channel leaves it, or comes back.
    Subscriber(usize),
    /// A connection is closed by its client, and another one takes its place.
    HangUp(usize),
    /// `CLIENT UNBLOCK`, with an error or without.
    Unblock(usize, bool),
    /// This many milliseconds pass.
    Pass(u64),
    /// Writes are paused for this many milliseconds, which pass.
    Pause(u64),
    /// For this many milliseconds, there are too few replicas.
    TooFewReplicas(u64),
}

/// The commands of a transaction: fewer than any reply has elements.
const TOGETHER: usize = 3;

/// Whether this may end another session. Redis 7.0 closes that connection at once, so what follows
/// in the same transaction finds its locks free; later servers close it afterward.
fn ends_sessions(line: &str) -> bool {
    let all = ["DEL", "SET", "RENAME", "MOVE", "PEXPIRE", "FLUSH", "SWAPDB", "RLOCK.FORCE"];
    all.iter().any(|verb| line.starts_with(verb))
}

/// Chooses, by a seed, and counts the ids of messages.
pub struct Choice(Rng, u64);

impl Choice {
    /// The choice of a seed.
    pub fn new(seed: u64) -> Choice {
        Choice(Rng::with_seed(seed), 0)
    }

    /// Chooses what is done next.
    pub fn next(&mut self, twins: &Twins) -> Deed {
        let at = self.0.usize(0..CONNECTIONS);
        if twins.is_blocked(at) {
            return match self.0.u8(0..10) {
                0 => Deed::HangUp(at),
                1 => Deed::Unblock(at, false),
                2 => Deed::Unblock(at, true),
                _ => self.next_free(twins),
            };
        }
        match self.0.u8(0..200) {
            0..3 => Deed::HangUp(at),
            3..6 => Deed::Pass(self.0.u64(1..400)),
            6 => Deed::Pause(self.0.u64(1..300)),
            7 => Deed::TooFewReplicas(self.0.u64(1..300)),
            8..13 => Deed::Subscriber(self.0.usize(0..CHANNELS)),
            13..20 => {
                let lines = (0..TOGETHER).map(|_| self.line_for(at, twins));
                let lines = lines.filter(|line| !line.starts_with("SELECT"));
                let (last, mut lines): (Vec<_>, Vec<_>) = lines.partition(|it| ends_sessions(it));
                let last = last.into_iter().next();
                lines.resize(TOGETHER - usize::from(last.is_some()), "EXISTS k0".into());
                lines.extend(last);
                Deed::Together(at, lines)
            }
            _ => Deed::Send(at, self.line_for(at, twins)),
        }
    }

    /// After a command on whole databases, the order in which locks are swept decides which
    /// requests for several locks meet at the next lock: see [`is_on_databases`].
    fn line_for(&mut self, at: usize, twins: &Twins) -> String {
        let line = self.line(at);
        let line = self.with_tell(line);
        if twins.depends_on_order() && is_on_databases(&line) {
            self.line_for(at, twins)
        } else {
            line
        }
    }

    /// A request that may wait gets its late reply by a message, in a third of all cases.
    fn with_tell(&mut self, line: String) -> String {
        if !line.contains(" BLOCK ") || self.0.u8(0..3) > 0 {
            return line;
        }
        self.1 += 1;
        // An observer may ask again with the same id.
        let is_again = line.starts_with("RLOCK.AWAIT") && self.0.bool();
        let id = if is_again { "again".to_owned() } else { self.1.to_string() };
        format!("{line} TELL c{} {id}", self.0.usize(0..CHANNELS))
    }

    fn next_free(&mut self, twins: &Twins) -> Deed {
        let free: Vec<usize> = (0..CONNECTIONS).filter(|at| !twins.is_blocked(*at)).collect();
        match self.0.choice(free) {
            Some(at) => Deed::Send(at, self.line_for(at, twins)),
            None => Deed::Unblock(self.0.usize(0..CONNECTIONS), self.0.bool()),
        }
    }

    /// Leases and times to live: rarely ones that end before the next commands.
    fn ms(&mut self) -> u32 {
        match self.0.u8(0..40) {
            0 => self.0.u32(1..200),
            1 => self.0.u32(200..1500),
            _ => self.0.u32(20_000..90_000),
        }
    }

    fn line(&mut self, at: usize) -> String {
        let key = *self.0.choice(&[0, 0, 0, 0, 0, 1, 2]).unwrap();
        let own = at as u8 % OWNERS;
        let owner = if self.0.u8(0..6) == 0 { self.0.u8(0..OWNERS) } else { own };
        let other = (key + 1) % KEYS;
        match self.0.u8(0..118) {
            100.. => self.several(owner, key),
            0..48 => Command::Acquire(self.ask(owner, key)).to_string(),
            48..66 => self.release(owner, key),
            66..70 => {
                let reads = *self.0.choice(&[None, Some(true), Some(false)]).unwrap();
                Command::Renew(owner, key, self.ms(), reads, 0).to_string()
            }
            70..73 => Command::Cancel(owner, key).to_string(),
            73 => Command::Force(key).to_string(),
            74 => Command::Take(owner, key, self.ms(), 0).to_string(),
            75..78 => format!("RLOCK.HOLDS k{key} o{owner}"),
            78..80 => Command::Del(key).to_string(),
            80 => Command::Set(key).to_string(),
            81..84 => Command::Rename(key, other).to_string(),
            84 => Command::Move(key, self.0.u8(0..2)).to_string(),
            85..88 => Command::Expire(key, self.ms()).to_string(),
            88 => Command::Persist(key).to_string(),
            89 => Command::FlushDb.to_string(),
            90 => Command::FlushAll.to_string(),
            91 => Command::Swap.to_string(),
            92 => Command::Select(1).to_string(),
            93..96 => Command::Select(0).to_string(),
            96 => format!("PEXPIREAT k{key} 1000"),
            97 => format!("COPY k{key} k{other}"),
            _ => format!("EXISTS k{key}"),
        }
    }

    /// Requests for several locks, and observers. `known` is a token that the server issued.
    fn several(&mut self, owner: u8, key: u8) -> String {
        let bits = *self.0.choice(&[0b011, 0b101, 0b110, 0b111, 0b001]).unwrap();
        let keys = Keys { bits, is_reversed: self.0.bool() };
        let by_token = self.0.bool();
        match self.0.u8(0..20) {
            0..10 => Command::AcquireAll(self.ask_all(owner, keys)).to_string(),
            10..14 => Command::ReleaseAll(owner, keys, by_token).to_string(),
            14..16 => Command::RenewAll(owner, keys, self.ms(), by_token, 0).to_string(),
            _ => {
                let ms = *self.0.choice(&[None, Some(0), Some(250), Some(30_000)]).unwrap();
                let line = Command::Await(key, ms).to_string();
                if self.0.u8(0..3) == 0 { line.replace("known", "0") } else { line }
            }
        }
    }

    fn ask_all(&mut self, owner: u8, keys: Keys) -> AskAll {
        let some = [Want::Write, Want::Write, Want::Read, Want::Limit(2)];
        let is_plain = self.0.bool();
        let want = |rng: &mut Rng| if is_plain { some[0] } else { *rng.choice(&some).unwrap() };
        let wants = [(); KEYS as usize].map(|()| want(&mut self.0));
        let patience = match self.0.u8(0..10) {
            0..3 => Patience::None,
            _ => Patience::Block(*self.0.choice(&[0, 250, 30_000]).unwrap()),
        };
        let session = self.0.u8(0..5) == 0;
        let lease = if session { self.ms().max(1000) } else { self.ms() };
        let with_ttl = self.0.u8(0..4) == 0;
        AskAll { owner, keys, wants, lease, patience, session, with_ttl, acks: 0 }
    }

    fn release(&mut self, owner: u8, key: u8) -> String {
        let more = *self.0.choice(&["", "", "", " ALL", " DEPTH 1", " READ", " WRITE"]).unwrap();
        format!("RLOCK.RELEASE k{key} o{owner}{more}")
    }

    fn ask(&mut self, owner: u8, key: u8) -> Ask {
        let session = self.0.u8(0..5) == 0;
        let lease = self.ms();
        let patience = match self.0.u8(0..10) {
            0..3 => Patience::None,
            3..8 => Patience::Block(*self.0.choice(&[0, 0, 250, 30_000]).unwrap()),
            _ => Patience::Queue(*self.0.choice(&[250, 30_000]).unwrap()),
        };
        let depth = match self.0.u8(0..4) {
            0 => Some(1),
            1 => Some(self.0.u16(1..5)),
            _ => None,
        };
        let (reads, upgrade) = (self.0.u8(0..5) < 2, self.0.u8(0..6) == 0);
        let with_ttl = self.0.u8(0..4) == 0;
        // The grammar: a session's lease is at least a second, and UPGRADE is for WRITE.
        let lease = if session { lease.max(1000) } else { lease };
        // A single server has no replica to acknowledge anything.
        let (limit, acks) = (None, 0);
        Ask { owner, key, reads, lease, patience, session, depth, upgrade, with_ttl, limit, acks }
    }
}
