//! RLOCK's commands on a simulated server, as `src/commands.rs` has them.

use std::rc::Rc;

use rlock_core::grammar::{self, Access, Command, SeveralKeys, commands};
use rlock_core::snapshot;
use rlock_core::{
    Acquire, Change, ClientId, EpochMs, Kind as Standing, Mode, Patience, Refusal, Token,
};
use rlock_engine::commands as engine;
use rlock_engine::events;
use rlock_engine::reply::Replies;

use crate::fault::Fault;
use crate::history::Item;
use crate::host::{Edge, Name, Running};
use crate::keyspace::{Key, Slot};
use crate::notes::{Asked, By, Note};
use crate::seen::Kind;
use crate::server::Server;
use crate::tell::To;
use crate::words::{Said, Words};

/// Whose command it is.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) client: Option<ClientId>,
    pub(crate) db: i32,
}

const WRITES: [&[u8]; 11] = [
    b"DEL",
    b"RENAME",
    b"MOVE",
    b"PEXPIRE",
    b"PEXPIREAT",
    b"PERSIST",
    b"SET",
    b"FLUSHDB",
    b"FLUSHALL",
    b"SWAPDB",
    b"COPY",
];

fn ours(words: &[Vec<u8>]) -> Option<&'static Command> {
    let name = words.first()?;
    commands::COMMANDS.iter().find(|command| command.name.as_bytes() == name.as_slice())
}

/// Whether a server refuses the command while it refuses writes.
pub fn is_write(words: &[Vec<u8>]) -> bool {
    ours(words).map_or_else(
        || words.first().is_some_and(|name| WRITES.contains(&name.as_slice())),
        |command| command.access == Access::Writes,
    )
}

fn is_exec(words: &[Vec<u8>]) -> bool {
    words.first().is_some_and(|name| name == b"EXEC" || name == b"EVAL")
}

pub(crate) fn number(words: &[Vec<u8>], at: usize) -> i64 {
    let text = words.get(at).and_then(|word| std::str::from_utf8(word).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

type Work = fn(&Edge<'_>, &Name, &grammar::Arguments<'_>) -> Result<(), String>;
type SeveralWork =
    fn(&Edge<'_>, &[Name], &grammar::Arguments<'_>, &SeveralKeys<'_>) -> Result<(), String>;

/// How the engine serves a command that names several keys.
fn engine_of_several(command: &Command) -> Option<SeveralWork> {
    Some(match command.name {
        "RLOCK.MACQUIRE" => |edge, names, said, keys| engine::macquire(edge, names, said, keys),
        "RLOCK.MRELEASE" => |edge, names, said, keys| engine::mrelease(edge, names, said, keys),
        "RLOCK.MRENEW" => |edge, names, said, keys| engine::mrenew(edge, names, said, keys),
        "RLOCK.APPLY" => |edge, names, said, keys| engine::apply(edge, names, said, keys),
        _ => return None,
    })
}

/// How the engine serves this command.
fn engine_of(command: &Command) -> Option<Work> {
    Some(match command.name {
        "RLOCK.ACQUIRE" => |edge, name, said| engine::acquire(edge, name, said),
        "RLOCK.RELEASE" => |edge, name, said| engine::release(edge, name, said),
        "RLOCK.RENEW" => |edge, name, said| engine::renew(edge, name, said),
        "RLOCK.CANCEL" => |edge, name, said| engine::cancel(edge, name, said),
        "RLOCK.FORCE" => |edge, name, said| engine::force(edge, name, said),
        "RLOCK.TAKE" => |edge, name, said| engine::take(edge, name, said),
        "RLOCK.HOLDS" => |edge, name, said| engine::holds(edge, name, said),
        "RLOCK.CHECK" => |edge, name, said| engine::check(edge, name, said),
        "RLOCK.AWAIT" => |edge, name, said| engine::await_holder(edge, name, said),
        _ => return None,
    })
}

/// An effect with deadlines that are a second later: [`Fault::RenewedOnReplica`].
fn renewed(words: &Rc<[Vec<u8>]>) -> Rc<[Vec<u8>]> {
    let [head @ .., payload] = &words[..] else { return words.clone() };
    let count = head.len().saturating_sub(1);
    let Ok(effects) = snapshot::load_effects(payload, count) else { return words.clone() };
    let mut payload = Vec::new();
    for mut effect in effects {
        for change in &mut effect.changes {
            if let Change::Granted { deadline, .. } | Change::Updated { deadline, .. } = change {
                *deadline = EpochMs::new(deadline.get() + 1000).unwrap_or(*deadline);
            }
        }
        snapshot::save_effect(effect.start, &effect.changes, &mut payload);
    }
    [head, &[payload]].concat().into()
}

impl Server {
    /// Executes a command of a connection.
    pub fn run(&mut self, client: ClientId, words: &[Vec<u8>]) {
        self.in_one_unit(|server| server.run_alone(client, words));
    }

    fn run_alone(&mut self, client: ClientId, words: &[Vec<u8>]) {
        let Some(conn) = self.conns.get(&client) else { return };
        let caller = Caller { client: Some(client), db: conn.db };
        if let Some(said) = self.queue(client, words) {
            return self.say(client, said);
        }
        if self.fault != Fault::OverdueRuns {
            self.engine(|edge| events::command_is_read(edge));
        }
        let refusal = if self.state.manager.closing.contains(client) {
            Some(Refusal::Closing.line(&[], &[]))
        } else if self.writes(client, words) {
            self.refusal().map(str::to_owned)
        } else {
            None
        };
        let said = match refusal {
            Some(line) => Some(Said::Error(line)),
            None => {
                self.note(Note::Ran(client));
                self.serve(caller, words)
            }
        };
        if let Some(conn) = self.conns.get_mut(&client).filter(|_| is_exec(words)) {
            conn.queued = None;
        }
        said.into_iter().for_each(|said| self.say(client, said));
    }

    /// Queues a command between `MULTI` and `EXEC`. True if it was queued.
    fn queue(&mut self, client: ClientId, words: &[Vec<u8>]) -> Option<Said> {
        let queued = self.conns.get_mut(&client)?.queued.as_mut()?;
        let is_word = |word: &[u8]| words.first().is_some_and(|first| first == word);
        if is_exec(words) || is_word(b"MULTI") {
            return None;
        }
        queued.push(words.to_vec());
        Some(Said::Queued)
    }

    /// Whether a server that refuses writes refuses this command.
    fn writes(&self, client: ClientId, words: &[Vec<u8>]) -> bool {
        let conn = self.conns.get(&client).filter(|_| is_exec(words));
        let mut queued = conn.and_then(|conn| conn.queued.as_ref()).into_iter().flatten();
        is_write(words) || queued.any(|words| is_write(words))
    }

    /// Executes the queued commands, as a transaction or a script. Nothing is blocked in it, and no
    /// message leaves before its end.
    pub(crate) fn exec(&mut self, client: ClientId, is_script: bool) -> Said {
        let conn = self.conns.get_mut(&client);
        let queued = conn.and_then(|conn| conn.queued.take()).unwrap_or_default();
        (self.in_longer, self.in_script, self.had_longer) = (true, is_script, true);
        let said = queued.iter().map(|words| {
            let db = self.conns.get(&client).map_or(0, |conn| conn.db);
            let said = self.serve(Caller { client: Some(client), db }, words);
            // The next command may end it.
            self.pend_gated();
            self.note_pending();
            said.unwrap_or(Said::Nil)
        });
        let said = said.collect();
        (self.in_longer, self.in_script) = (false, false);
        Said::Array(said)
    }

    /// Why the server itself refuses a client's write. A paused server does not even read it.
    fn refusal(&mut self) -> Option<&'static str> {
        let conditions = self.conditions;
        if !self.is_primary {
            return Some("READONLY You can't write against a read only replica.");
        }
        if conditions.disk_fails {
            return Some("MISCONF the disk failed");
        }
        if conditions.good_replicas < conditions.min_replicas {
            self.note(Note::Saw(Kind::TooFewReplicas));
            return Some("NOREPLICAS Not enough good replicas to write.");
        }
        None
    }

    /// Executes a command from the replication stream.
    pub fn apply(&mut self, item: &Item) {
        self.history.arrived(item.at);
        self.offset += 1;
        let words = match self.fault {
            Fault::RenewedOnReplica => renewed(&item.words),
            _ => item.words.clone(),
        };
        self.serve(Caller { client: None, db: item.db }, &words);
    }

    fn serve(&mut self, caller: Caller, words: &[Vec<u8>]) -> Option<Said> {
        let Some(command) = ours(words) else { return Some(self.serve_own(caller, words)) };
        let all = words.iter().skip(1).map(Vec::as_slice);
        let mut keys = SeveralKeys::default();
        let said = match command.read_several(all, &self.limits, &mut keys) {
            Ok(said) => said,
            Err(bad) => return Some(Said::error(bad.line())),
        };
        let asks = self.asks(caller, command, &said, &keys);
        let running = self.running(caller, command, &said, words, asks.clone());
        let from = self.notes.len();
        let key: Key = said.key.into();
        let reply = if let Some(work) = engine_of_several(command) {
            let names: Vec<Name> = keys.keys.iter().map(|key| Name::new((*key).into())).collect();
            Edge::new(self, running).said(|edge| {
                if let Err(line) = work(edge, &names, &said, &keys) {
                    edge.reply_error(&line);
                }
            })
        } else {
            let work = engine_of(command)?;
            Edge::new(self, running).said(|edge| {
                if let Err(line) = work(edge, &Name::new(key), &said) {
                    edge.reply_error(&line);
                }
            })
        };
        self.tell_opened(caller.client, reply == Some(Said::Waiting));
        self.note_question(caller, asks, command, &said, &reply, from);
        reply
    }

    /// What the command asks of each lock that it names, in key order.
    fn asks(
        &mut self,
        caller: Caller,
        command: &Command,
        said: &grammar::Arguments<'_>,
        keys: &SeveralKeys<'_>,
    ) -> Vec<Asked> {
        let (key, db): (Key, i32) = (said.key.into(), caller.db);
        self.arrivals += 1;
        let ask = said.acquire(caller.client.filter(|_| said.session));
        match command.name {
            "RLOCK.ACQUIRE" => vec![self.asked(db, &key, &ask, said)],
            "RLOCK.TAKE" => vec![self.asked(db, &key, &said.take(), said)],
            "RLOCK.MACQUIRE" => {
                let asked = keys.wants(said).into_iter().map(|want| {
                    let ask = Acquire { mode: want.mode, limit: want.limit, ..ask };
                    let asked = self.asked(db, &want.key.into(), &ask, said);
                    Asked { of_several: true, ..asked }
                });
                asked.collect()
            }
            "RLOCK.RENEW" => vec![Asked::to_renew(db, &key, &said.renew())],
            "RLOCK.MRENEW" => {
                let keys = keys.keys.iter().copied();
                let asked = |key: &[u8]| Asked::to_renew(db, &key.into(), &said.renew());
                keys.map(|key| Asked { of_several: true, ..asked(key) }).collect()
            }
            "RLOCK.AWAIT" => vec![Asked::to_observe(db, &key)],
            _ => Vec::new(),
        }
    }

    fn running(
        &mut self,
        caller: Caller,
        command: &Command,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
        asks: Vec<Asked>,
    ) -> Running {
        let db = caller.db;
        let renew = matches!(command.name, "RLOCK.RENEW" | "RLOCK.MRENEW").then(|| said.renew());
        let mut others = asks;
        let asked = (!others.is_empty()).then(|| others.remove(0));
        let observes = match command.name {
            "RLOCK.AWAIT" => Some(said.token.map_or(0, Token::get)),
            _ => None,
        };
        let by = match command.name {
            "RLOCK.RELEASE" | "RLOCK.MRELEASE" => By::Release(said.owner.into()),
            "RLOCK.FORCE" | "RLOCK.TAKE" => By::Force,
            _ => By::Command,
        };
        Running {
            client: caller.client.filter(|_| !self.in_script),
            asker: caller.client,
            tell: said.tell.map(|to| To { channel: to.channel.into(), id: to.id.into() }),
            db,
            words: words.into(),
            is_replicated: caller.client.is_none(),
            asked,
            others,
            is_for_several: command.name == "RLOCK.MACQUIRE",
            renewal: renew.map(|renew| renew.mode),
            renews: renew.and_then(|renew| renew.token),
            observes,
            block_ms: said.block_ms,
            by,
            is_sleeping: false,
        }
    }

    /// Notes a client's request, before its result.
    fn note_question(
        &mut self,
        caller: Caller,
        asks: Vec<Asked>,
        command: &Command,
        said: &grammar::Arguments<'_>,
        reply: &Option<Said>,
        from: usize,
    ) {
        let Some(client) = caller.client else { return };
        let answers = self.notes.split_off(from);
        let is_refused = matches!(reply, Some(Said::Error(line)) if line.starts_with("NOREPLICAS"));
        let is_other = matches!(reply, Some(Said::Error(_))) && !is_refused;
        if said.acks > 0 && !is_other {
            self.note(Note::AskedAcks { acks: said.acks, is_let_in: !is_refused });
        }
        let is_full = matches!(reply, Some(Said::Error(line)) if line.starts_with("TOOMANY"));
        if said.tell.is_some() && is_full {
            self.note(Note::Saw(Kind::TooManyTells));
        }
        if command.name == "RLOCK.AWAIT" {
            let known = said.token.map_or(0, Token::get);
            self.note_sight(caller.db, &said.key.into(), known, reply.as_ref());
        }
        let acquires = matches!(command.name, "RLOCK.ACQUIRE" | "RLOCK.MACQUIRE") && !is_refused;
        for asked in asks.into_iter().filter(|_| acquires) {
            let Asked { db, key, owner, .. } = asked.clone();
            if said.session {
                self.note(Note::AskedSession { client, db, key, owner });
            }
        }
        self.notes.extend(answers);
    }

    fn asked(&self, db: i32, key: &Key, ask: &Acquire<'_>, said: &grammar::Arguments<'_>) -> Asked {
        let volatile = self.state.manager.volatile(db, key);
        let is_own = |standing: &rlock_core::Entry| {
            standing.kind == Standing::Ticket && standing.owner.as_bytes() == ask.owner
        };
        let had_ticket =
            volatile.is_some_and(|volatile| volatile.queue.iter().any(|(e, _)| is_own(e)));
        let holds = |mode| {
            let lock = self.visible(db, key).and_then(Slot::lock);
            lock.is_some_and(|lock| lock.hold_at(ask.owner, mode, self.now).is_some())
        };
        Asked {
            db,
            key: key.clone(),
            owner: ask.owner.into(),
            mode: ask.mode,
            lease: ask.lease,
            session: ask.session.is_some(),
            acks: ask.acks,
            limit: ask.limit.map(std::num::NonZeroU32::get),
            ticket_until: match ask.patience {
                Patience::Ticket(window) => Some(self.now.after(window).get()),
                _ => None,
            },
            upgrade: ask.upgrade,
            takes: ask.patience == Patience::Take,
            with_ttl: said.with_ttl,
            of_several: false,
            had_ticket,
            held: holds(Mode::Write) || holds(Mode::Read),
            arrival: self.arrivals,
            ends_at: None,
        }
    }

    /// Whether the server reads this command later: a paused server reads no write.
    pub fn postpones(&self, client: ClientId, words: &Words) -> bool {
        self.is_paused() && self.writes(client, words)
    }

    /// A user loses the permission to publish, or regains it.
    pub fn may_publish_to(&mut self, user: &Rc<str>, may: bool) {
        if may {
            self.muted.remove(user);
        } else {
            self.muted.insert(user.clone());
        }
    }

    /// Whether a user has lost its permissions.
    pub fn denies(&self, user: &[u8]) -> bool {
        str::from_utf8(user).is_ok_and(|user| self.denied.contains(user))
    }

    /// A user loses its permissions, or regains them.
    pub fn may(&mut self, user: &Rc<str>, may: bool) {
        if may {
            self.denied.remove(user);
        } else {
            self.denied.insert(user.clone());
        }
    }
}
