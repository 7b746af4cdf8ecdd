//! Simulated clients: what they sent and received, and their connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rlock_core::ClientId;

use crate::command::Command;
use crate::server::Server;
use crate::words::{Message, Out, Said, Words};

/// A connection with what is in transit on it.
#[derive(Debug)]
pub struct Pipe {
    /// Its ID at the server.
    pub client: ClientId,
    /// The server.
    pub node: usize,
    /// To the server.
    pub to: VecDeque<Words>,
    /// To the client.
    pub from: VecDeque<Out>,
    /// Commands without a reply so far.
    asked: VecDeque<Sent>,
    db: i32,
    /// What waits for `EXEC`.
    queued: Vec<Sent>,
    /// Whether it sent `MULTI`, and no `EXEC` yet.
    in_multi: bool,
    /// The channels to which it subscribed.
    channels: BTreeSet<u8>,
}

impl Pipe {
    /// The next command that this server takes, unless it postpones it.
    pub fn pop_for(&mut self, server: &Server) -> Option<Words> {
        let is_next = self.to.front().is_some_and(|words| !server.postpones(self.client, words));
        if is_next { self.to.pop_front() } else { None }
    }

    /// A new connection.
    pub fn new(client: ClientId, node: usize) -> Self {
        let (to, from, asked) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (queued, in_multi, channels) = (Vec::new(), false, BTreeSet::new());
        Self { client, node, to, from, asked, db: 0, queued, in_multi, channels }
    }

    /// Whether it sent `MULTI`, and no `EXEC` yet.
    pub fn is_in_multi(&self) -> bool {
        self.in_multi
    }

    /// Whether it subscribed to this channel.
    pub fn listens(&self, channel: u8) -> bool {
        self.channels.contains(&channel)
    }

    /// The number of commands without a reply.
    pub fn unanswered(&self) -> usize {
        self.asked.len()
    }
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The command.
    pub command: Command,
    /// When it was sent, in microseconds of the world.
    pub us: u64,
    /// In which database.
    pub db: i32,
    /// The token that its client knew of.
    pub known: i64,
    /// The channel and the id of the message that it waits for.
    pub tell: Option<Id>,
    /// Whether it was asked before.
    pub is_again: bool,
}

/// The id with which a message begins, and its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Different for each request.
    pub number: u64,
    /// The number of the channel.
    pub channel: u8,
}

impl Id {
    /// Most ids are numbers.
    fn word(self) -> String {
        let is_text = self.number.is_multiple_of(3);
        if is_text { format!("x{}", self.number) } else { self.number.to_string() }
    }
}

/// What a client heard.
#[derive(Debug)]
pub enum Heard {
    /// The replies to these.
    Replies(ClientId, Vec<(Sent, Said)>),
    /// A message about this request, which was sent on that connection.
    Told(ClientId, Sent, Said),
    /// A message that should not have come.
    TooMuch(Message),
    /// Nothing that concerns the client.
    Nothing,
    /// The end of its connection.
    Closed(ClientId),
}

/// For how many requests a client remembers that a message may come.
const OPEN_MAX: usize = 6;
/// How many ended requests a client remembers, to detect messages that come too late.
const DONE_MAX: usize = 64;

/// A client.
#[derive(Debug)]
pub struct Actor {
    /// The user as which it authenticates.
    pub user: Rc<str>,
    /// Its connection.
    pub pipe: Option<Pipe>,
    /// Connections that it closed, and of which the server does not know yet.
    pub hung: VecDeque<Pipe>,
    /// For each lock, the latest token of WRITE that it knows of.
    known: BTreeMap<(i32, u8), i64>,
    /// For each owner, the token of its latest grant of several locks.
    granted: BTreeMap<(i32, u8), i64>,
    /// Requests for which a message may come, and the connection on which each was sent.
    open: BTreeMap<Id, (ClientId, Sent)>,
    /// Requests that got their reply or their message.
    done: VecDeque<Id>,
    next_id: u64,
}

impl Actor {
    /// A client without a connection.
    pub fn new(number: u8, user: Rc<str>) -> Self {
        let (known, granted) = (BTreeMap::new(), BTreeMap::new());
        let (open, done, next_id) = (BTreeMap::new(), VecDeque::new(), 1);
        let next_id = u64::from(number) * 1_000_000 + next_id;
        Self { user, pipe: None, hung: VecDeque::new(), known, granted, open, done, next_id }
    }

    /// Sends a command to a database; with `TELL`, if there is a channel. `None` if there is no
    /// connection, or if the command may not be sent.
    pub fn send(&mut self, command: Command, us: u64, channel: Option<u8>) -> Option<i32> {
        let pipe = self.pipe.as_ref()?;
        let stays_out = matches!(
            command,
            Command::Select(_) | Command::Subscribe(_) | Command::Unsubscribe(_) | Command::Multi
        );
        let is_exec = matches!(command, Command::Exec(_));
        if pipe.in_multi && stays_out
            || is_exec && !pipe.in_multi
            || channel.is_some() && !command.may_be_told()
        {
            return None;
        }
        let (client, db) = (pipe.client, pipe.db);
        let (tell, is_again) = match channel {
            Some(channel) => self.id_of(command, db, channel),
            None => (None, false),
        };
        let pipe = self.pipe.as_mut()?;
        match command {
            Command::Select(db) => pipe.db = db.into(),
            Command::Subscribe(channel) => drop(pipe.channels.insert(channel)),
            Command::Unsubscribe(channel) => drop(pipe.channels.remove(&channel)),
            Command::Multi => pipe.in_multi = true,
            Command::Exec(_) => pipe.in_multi = false,
            _ => {}
        }
        let known = match command {
            Command::Await(key, _) => self.known.get(&(pipe.db, key)),
            Command::ReleaseAll(owner, ..) | Command::RenewAll(owner, ..) => {
                self.granted.get(&(pipe.db, owner))
            }
            _ => None,
        };
        let known = known.copied().unwrap_or(0);
        let mut words = command.words(known);
        if let Some(id) = tell {
            let to = [b"TELL".to_vec(), format!("c{}", id.channel).into(), id.word().into()];
            words.extend(to);
        }
        let sent = Sent { command, us, db: pipe.db, known, tell, is_again };
        pipe.to.push_back(words);
        pipe.asked.push_back(sent);
        if let Some(id) = tell {
            self.open.insert(id, (client, sent));
            while self.open.len() > OPEN_MAX {
                self.open.pop_first();
            }
        }
        Some(sent.db)
    }

    /// The id for a request, and whether the request was sent before. An observer keeps its id.
    fn id_of(&mut self, command: Command, db: i32, channel: u8) -> (Option<Id>, bool) {
        let is_it = |sent: &Sent| match (sent.command, command) {
            (Command::Await(one, _), Command::Await(other, _)) => {
                one == other && sent.tell.is_some_and(|id| id.channel == channel)
            }
            (one, other) => one == other,
        };
        let mut all = self.open.iter();
        let same = all.find(|(_, (_, sent))| sent.db == db && is_it(sent)).map(|(id, _)| *id);
        if let Some(id) = same {
            self.open.remove(&id);
        }
        if let (Some(id), Command::Await(..)) = (same, command) {
            return (Some(id), true);
        }
        self.next_id += 1;
        (Some(Id { number: self.next_id, channel }), same.is_some())
    }

    /// Its requests whose reply may still come.
    pub fn open(&self) -> impl Iterator<Item = &Sent> {
        self.open.values().map(|(_, sent)| sent)
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
            Out::Message(message) => Some(self.reads(message, client)),
            // A line in between, before the connection ends, is no reply.
            Out::Said(said) => {
                let sent = pipe.asked.pop_front()?;
                let replies = match (sent.command, said) {
                    (_, Said::Queued) => {
                        pipe.queued.push(sent);
                        Vec::new()
                    }
                    (Command::Exec(_), said) => {
                        let queued = std::mem::take(&mut pipe.queued);
                        let all = if let Said::Array(all) = said { all } else { Vec::new() };
                        queued.into_iter().zip(all).collect()
                    }
                    (_, said) => vec![(sent, said)],
                };
                replies.iter().for_each(|(sent, said)| self.replied(sent, said));
                Some(Heard::Replies(client, replies))
            }
        }
    }

    /// It has this reply.
    fn replied(&mut self, sent: &Sent, said: &Said) {
        self.learns(sent, said);
        if let Some(id) = sent.tell.filter(|_| *said != Said::Waiting) {
            self.is_done(id, sent);
        }
    }

    fn is_done(&mut self, id: Id, sent: &Sent) {
        self.open.remove(&id);
        // An observer may ask again with its id while a message is on its way.
        if !matches!(sent.command, Command::Await(..)) {
            self.done.push_back(id);
        }
        if self.done.len() > DONE_MAX {
            self.done.pop_front();
        }
    }

    fn learns(&mut self, sent: &Sent, said: &Said) {
        match (sent.command, said.number()) {
            (Command::Await(key, _), number) if matches!(said, Said::Array(_)) => {
                self.known.insert((sent.db, key), number.unwrap_or(0));
            }
            (Command::AcquireAll(ask), Some(token)) => {
                self.granted.insert((sent.db, ask.owner), token);
            }
            _ => {}
        }
    }

    /// A message on a channel: the client's own, or another client's.
    fn reads(&mut self, message: Message, now: ClientId) -> Heard {
        let Some((word, outcome)) = message.parts() else { return Heard::TooMuch(message) };
        let is_it = |id: &Id| {
            let channel = format!("c{}", id.channel).into_bytes();
            id.word().into_bytes() == word && channel == message.channel
        };
        if let Some(id) = self.open.keys().copied().find(is_it) {
            let Some((client, sent)) = self.open.get(&id).copied() else { return Heard::Nothing };
            let said = outcome.said();
            self.is_done(id, &sent);
            // The hold ended with the connection to which it was tied.
            if sent.command.is_session() && client != now {
                return Heard::Nothing;
            }
            self.learns(&sent, &said);
            return Heard::Told(client, sent, said);
        }
        if self.done.iter().any(is_it) { Heard::TooMuch(message) } else { Heard::Nothing }
    }

    /// Closes the connection. Returns which one it was.
    pub fn hang_up(&mut self) -> Option<ClientId> {
        let mut pipe = self.pipe.take()?;
        pipe.from.clear();
        let client = pipe.client;
        self.hung.push_back(pipe);
        Some(client)
    }

    /// Whether a release of this owner's hold is on its way.
    pub fn is_releasing(&self, db: i32, owner: u8, key: u8) -> bool {
        let all = self.pipe.iter().flat_map(|pipe| pipe.asked.iter().chain(&pipe.queued));
        let mut releases = all.filter(|sent| sent.db == db);
        releases.any(|sent| sent.command.releases(owner, key))
    }
}
