//! Simulated clients: what they sent and heard, and the pipes to their servers.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rlock_core::ClientId;

use crate::command::Command;
use crate::server::Server;
use crate::words::{Out, Said, Words};

/// A connection and what is on its way.
#[derive(Debug)]
pub struct Pipe {
    /// Its number at the server.
    pub client: ClientId,
    /// The server.
    pub node: usize,
    /// To the server.
    pub to: VecDeque<Words>,
    /// To the client.
    pub from: VecDeque<Out>,
    /// What the client has no answer to.
    asked: VecDeque<Sent>,
    db: i32,
}

impl Pipe {
    /// The next words that this server takes, unless it postpones them.
    pub fn pop_for(&mut self, server: &Server) -> Option<Words> {
        let is_next = self.to.front().is_some_and(|words| !server.postpones(words));
        if is_next { self.to.pop_front() } else { None }
    }

    /// A connection in its first moment.
    pub fn new(client: ClientId, node: usize) -> Self {
        let (to, from, asked) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { client, node, to, from, asked, db: 0 }
    }

    /// Commands that have no answer yet.
    pub fn unanswered(&self) -> usize {
        self.asked.len()
    }
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// What.
    pub command: Command,
    /// When, in microseconds of the world.
    pub us: u64,
    /// In which database.
    pub db: i32,
    /// The token that its client knew of.
    pub known: i64,
}

/// What a client heard.
#[derive(Debug)]
pub enum Heard {
    /// The reply to this.
    Reply(ClientId, Sent, Said),
    /// The end of its connection.
    Closed(ClientId),
}

/// A client.
#[derive(Debug)]
pub struct Actor {
    /// As whom it logs in.
    pub user: Rc<str>,
    /// Its connection.
    pub pipe: Option<Pipe>,
    /// Connections that it left, and of which the server does not know yet.
    pub hung: VecDeque<Pipe>,
    /// The token of WRITE that it was told of last, for each lock.
    known: BTreeMap<(i32, u8), i64>,
    /// The token with which it was granted several locks last, for each owner.
    granted: BTreeMap<(i32, u8), i64>,
}

impl Actor {
    /// A client without a connection.
    pub fn new(user: Rc<str>) -> Self {
        let (known, granted) = (BTreeMap::new(), BTreeMap::new());
        Self { user, pipe: None, hung: VecDeque::new(), known, granted }
    }

    /// Sends a command, in which database. `None` without a connection.
    pub fn send(&mut self, command: Command, us: u64) -> Option<i32> {
        let pipe = self.pipe.as_mut()?;
        if let Command::Select(db) = command {
            pipe.db = db.into();
        }
        let known = match command {
            Command::Await(key, _) => self.known.get(&(pipe.db, key)),
            Command::ReleaseAll(owner, ..) | Command::RenewAll(owner, ..) => {
                self.granted.get(&(pipe.db, owner))
            }
            _ => None,
        };
        let known = known.copied().unwrap_or(0);
        pipe.to.push_back(command.words(known));
        pipe.asked.push_back(Sent { command, us, db: pipe.db, known });
        Some(pipe.db)
    }

    /// Reads what came next.
    pub fn hear(&mut self) -> Option<Heard> {
        let pipe = self.pipe.as_mut()?;
        let client = pipe.client;
        match pipe.from.pop_front()? {
            Out::Closed => {
                self.pipe = None;
                Some(Heard::Closed(client))
            }
            // A word in between, before the connection ends, answers nothing.
            Out::Said(said) => {
                let sent = pipe.asked.pop_front()?;
                match (sent.command, said.number()) {
                    (Command::Await(key, _), number) if matches!(said, Said::Array(_)) => {
                        self.known.insert((sent.db, key), number.unwrap_or(0));
                    }
                    (Command::AcquireAll(ask), Some(token)) => {
                        self.granted.insert((sent.db, ask.owner), token);
                    }
                    _ => {}
                }
                Some(Heard::Reply(client, sent, said))
            }
        }
    }

    /// Hangs up. Which connection it was.
    pub fn hang_up(&mut self) -> Option<ClientId> {
        let mut pipe = self.pipe.take()?;
        pipe.from.clear();
        let client = pipe.client;
        self.hung.push_back(pipe);
        Some(client)
    }

    /// A release of this owner's hold is on its way.
    pub fn is_releasing(&self, db: i32, owner: u8, key: u8) -> bool {
        let all = self.pipe.iter().flat_map(|pipe| &pipe.asked);
        let mut releases = all.filter(|sent| sent.db == db);
        releases.any(|sent| sent.command.releases(owner, key))
    }
}
