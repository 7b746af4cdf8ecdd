//! The commands of a simulated server: RLOCK's, as `src/commands.rs` has them, and those of the
//! server's own that do something to a key.

use std::rc::Rc;

use rlock_core::grammar::{self, Access, Command, commands};
use rlock_core::{
    Acquire, ClientId, Input, Kind as Standing, Mode, Now, Refusal, Renew, Reply, snapshot,
};

use crate::hands::Stop;
use crate::history::Item;
use crate::keyspace::{Key, Slot, Value};
use crate::notes::{Asked, Loss, Note};
use crate::parking::to_acquire;
use crate::seen::Kind;
use crate::server::Server;
use crate::words::{Said, Words};

/// Whose command it is.
#[derive(Clone, Copy)]
struct Caller {
    client: Option<ClientId>,
    db: i32,
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

/// Whether a server refuses it where it refuses writes.
pub fn is_write(words: &[Vec<u8>]) -> bool {
    ours(words).map_or_else(
        || words.first().is_some_and(|name| WRITES.contains(&name.as_slice())),
        |command| command.access == Access::Writes,
    )
}

fn number(words: &[Vec<u8>], at: usize) -> i64 {
    let text = words.get(at).and_then(|word| std::str::from_utf8(word).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn line(stop: Stop) -> Said {
    Said::error(match stop {
        Stop::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
        Stop::Implausible => {
            "ERR malformed payload: its token is more than a minute ahead of the clock"
        }
    })
}

impl Server {
    /// Carries out what a connection says.
    pub fn run(&mut self, client: ClientId, words: &[Vec<u8>]) {
        let Some(conn) = self.conns.get(&client) else { return };
        let caller = Caller { client: Some(client), db: conn.db };
        let refusal = if self.manager.is_closing(client) {
            Some(Refusal::Closing.line(&[], &[]))
        } else if is_write(words) {
            self.refusal().map(str::to_owned)
        } else {
            None
        };
        let said = match refusal {
            Some(line) => Some(Said::Error(line)),
            None => self.serve(caller, words),
        };
        said.into_iter().for_each(|said| self.say(client, said));
    }

    /// Why the server itself refuses a client's write. A paused one does not read it at all.
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

    /// Carries out what came along the replication stream.
    pub fn apply(&mut self, item: &Item) {
        self.history.arrived(item.at);
        self.serve(Caller { client: None, db: item.db }, &item.words);
    }

    fn serve(&mut self, caller: Caller, words: &[Vec<u8>]) -> Option<Said> {
        let Some(command) = ours(words) else { return Some(self.serve_own(caller, words)) };
        let all = words.iter().skip(1).map(Vec::as_slice);
        let said = match command.read(all, &self.limits) {
            Ok(said) => said,
            Err(bad) => return Some(Said::error(bad.line())),
        };
        let key: Key = said.key.into();
        let (db, now) = (caller.db, self.now);
        Some(match command.name {
            "RLOCK.ACQUIRE" => return self.acquire(caller, &key, &said, words),
            "RLOCK.RELEASE" => self.release(caller, &key, &said, words),
            "RLOCK.RENEW" => self.renew(caller, &key, &said, words),
            "RLOCK.CANCEL" => self.count(db, &key, Input::Cancel(said.owner), words, said.owner),
            "RLOCK.FORCE" => self.count(db, &key, Input::Force(said.mode), words, &[]),
            "RLOCK.APPLY" => self.apply_effect(caller, &key, said.payload),
            "RLOCK.HOLDS" => self.holds(db, &key, &said, now),
            "RLOCK.CHECK" => self.check_token(db, &key, &said, now),
            _ => Said::Nil,
        })
    }

    fn count(
        &mut self,
        db: i32,
        key: &Key,
        input: Input<'_>,
        words: &[Vec<u8>],
        owner: &[u8],
    ) -> Said {
        match self.decide(db, key, input, words) {
            Ok(Reply::Refused(refusal)) => Said::Error(refusal.line(key, owner)),
            Ok(Reply::Count(count)) => Said::Int(count.cast_signed()),
            Ok(_) => Said::Nil,
            Err(stop) => line(stop),
        }
    }

    fn acquire(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Option<Said> {
        let (client, db) = (caller.client?, caller.db);
        let ask = said.acquire(said.session.then_some(client));
        self.expire_if_due(db, key);
        self.arrivals += 1;
        let asked = self.asked(db, key, &ask, said);
        if said.session {
            let (key, owner) = (key.clone(), asked.owner.clone());
            self.note(Note::AskedSession { client, db, key, owner });
        }
        let mut reply = match self.decide(db, key, Input::Acquire(ask), words) {
            Ok(reply) => reply,
            Err(stop) => return Some(line(stop)),
        };
        if let (Reply::MustWait { .. }, Some(block_ms)) = (&reply, said.block_ms) {
            reply = self.park(client, asked.clone(), ask, block_ms, words)?;
        }
        if let Reply::Granted { token, .. } = reply {
            let (asked, granted_at) = (Box::new(asked.clone()), self.now);
            self.note(Note::Told { client, asked, token, granted_at, waited: false });
        }
        Some(to_acquire(&reply, &asked))
    }

    fn asked(&self, db: i32, key: &Key, ask: &Acquire<'_>, said: &grammar::Arguments<'_>) -> Asked {
        let memory = self.manager.memory(db, key);
        let is_own = |standing: &rlock_core::Entry| {
            standing.kind == Standing::Ticket && standing.owner.as_bytes() == ask.owner
        };
        let had_ticket = memory.is_some_and(|memory| memory.queue.iter().any(|(e, _)| is_own(e)));
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
            upgrade: ask.upgrade,
            with_ttl: said.with_ttl,
            had_ticket,
            held: holds(Mode::Write) || holds(Mode::Read),
            arrival: self.arrivals,
            ends_at: None,
        }
    }

    fn release(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Said {
        let ask = said.release();
        if self.manager.decides() {
            return self.count(caller.db, key, Input::Release(ask), words, said.owner);
        }
        self.replay_release(caller.db, key, &ask);
        Said::Ok
    }

    fn renew(
        &mut self,
        caller: Caller,
        key: &Key,
        said: &grammar::Arguments<'_>,
        words: &[Vec<u8>],
    ) -> Said {
        let ask = said.renew();
        let Renew { owner, mode, lease, .. } = ask;
        let told = self.count(caller.db, key, Input::Renew(ask), words, owner);
        if told == Said::Int(1) {
            let (db, key, owner) = (caller.db, key.clone(), owner.into());
            self.note(Note::Renewed { db, key, owner, mode, lease });
        }
        told
    }

    fn apply_effect(&mut self, caller: Caller, key: &Key, payload: &[u8]) -> Said {
        if payload.is_empty() {
            return Said::Ok;
        }
        let effect = match snapshot::load_effect(payload) {
            Ok(effect) => effect,
            Err(why) => return Said::error(format!("ERR malformed payload: {why}")),
        };
        let done = self.replay(caller.db, key, &effect, caller.client.is_none());
        done.map_or_else(line, |()| Said::Ok)
    }

    fn holds(&self, db: i32, key: &Key, said: &grammar::Arguments<'_>, now: Now) -> Said {
        let lock = match self.visible(db, key).map(|slot| &slot.value) {
            None => return Said::Int(0),
            Some(Value::Other) => return line(Stop::WrongType),
            Some(Value::Lock(lock)) => lock,
        };
        let modes = [Mode::Write, Mode::Read].into_iter();
        let asked = modes.filter(|mode| said.mode.is_none_or(|only| only == *mode));
        let held = asked.filter_map(|mode| lock.hold_at(said.owner, mode, now));
        Said::Int(held.map(|hold| i64::from(hold.depth)).sum())
    }

    fn check_token(&self, db: i32, key: &Key, said: &grammar::Arguments<'_>, now: Now) -> Said {
        let lock = match self.visible(db, key).map(|slot| &slot.value) {
            None => return Said::Int(0),
            Some(Value::Other) => return line(Stop::WrongType),
            Some(Value::Lock(lock)) => lock,
        };
        let mode = said.mode.unwrap_or(Mode::Write);
        let is_held = said.token.is_some_and(|token| lock.has_token_at(token, mode, now));
        Said::Int(i64::from(is_held))
    }

    // --- the server's own -----------------------------------------------------------------------

    fn serve_own(&mut self, caller: Caller, words: &[Vec<u8>]) -> Said {
        let db = caller.db;
        let key = |at: usize| -> Key { words.get(at).map_or(&[][..], Vec::as_slice).into() };
        let pass = |server: &mut Self| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            server.propagate(db, &words);
        };
        if caller.client.is_some() {
            // Whatever it does to a key, it opens it first.
            words.iter().skip(1).for_each(|word| {
                let key: Key = word.as_slice().into();
                self.expire_if_due(db, &key);
            });
        }
        match words.first().map_or(&[][..], Vec::as_slice) {
            b"DEL" => {
                let key = key(1);
                if self.unlink(db, &key).is_none() {
                    return Said::Int(0);
                }
                pass(self);
                self.note(Note::KeyLost { db, key, by: Loss::Stranger });
                Said::Int(1)
            }
            b"SET" => {
                let key = key(1);
                self.unlink(db, &key);
                self.keys.set(db, &key, Slot { value: Value::Other, expires_at: None });
                pass(self);
                self.note(Note::KeyLost { db, key, by: Loss::Stranger });
                Said::Ok
            }
            b"RENAME" => self.rename(db, &key(1), db, &key(2), true, pass),
            b"MOVE" => {
                let to = i32::try_from(number(words, 2)).unwrap_or(0);
                self.rename(db, &key(1), to, &key(1), false, pass)
            }
            b"COPY" => match self.keys.get(db, &key(1)).cloned() {
                None => Said::Int(0),
                Some(_) if self.keys.get(db, &key(2)).is_some() => Said::Int(0),
                Some(slot) if slot.lock().is_some() => {
                    Said::error("ERR not supported for this module key")
                }
                Some(slot) => {
                    self.keys.set(db, &key(2), slot);
                    pass(self);
                    Said::Int(1)
                }
            },
            b"PEXPIRE" => {
                let at = self.now_ms().cast_signed().saturating_add(number(words, 2));
                self.expire_at(db, &key(1), at)
            }
            b"PEXPIREAT" => self.expire_at(db, &key(1), number(words, 2)),
            b"PERSIST" => match self.keys.get_mut(db, &key(1)) {
                Some(slot) if slot.expires_at.is_some() => {
                    slot.expires_at = None;
                    pass(self);
                    Said::Int(1)
                }
                _ => Said::Int(0),
            },
            b"PEXPIRETIME" => match self.visible(db, &key(1)) {
                None => Said::Int(-2),
                Some(slot) => Said::Int(slot.expires_at.map_or(-1, u64::cast_signed)),
            },
            b"EXISTS" => Said::Int(i64::from(self.visible(db, &key(1)).is_some())),
            b"FLUSHDB" => {
                self.flush(Some(db));
                pass(self);
                self.note(Note::Flushed(Some(db)));
                Said::Ok
            }
            b"FLUSHALL" => {
                self.flush(None);
                pass(self);
                self.note(Note::Flushed(None));
                Said::Ok
            }
            b"SWAPDB" => {
                let place = |at| i32::try_from(number(words, at)).unwrap_or(0);
                let (one, other) = (place(1), place(2));
                self.keys.swap(one, other);
                self.manager.swapped(one, other, self.now);
                self.settle();
                self.settle_closing();
                pass(self);
                self.note(Note::Swapped(one, other));
                Said::Ok
            }
            b"SELECT" => {
                let db = i32::try_from(number(words, 1)).unwrap_or(0);
                if let Some(conn) = caller.client.and_then(|client| self.conns.get_mut(&client)) {
                    conn.db = db;
                }
                Said::Ok
            }
            _ => Said::error("ERR unknown command"),
        }
    }

    fn rename(
        &mut self,
        from_db: i32,
        from: &Key,
        to_db: i32,
        to: &Key,
        overwrites: bool,
        pass: impl FnOnce(&mut Self),
    ) -> Said {
        let is_same = (from_db, from) == (to_db, to);
        if is_same && !overwrites {
            return Said::error("ERR source and destination objects are the same");
        }
        let Some(slot) = self.keys.get(from_db, from).cloned() else {
            return if overwrites { Said::error("ERR no such key") } else { Said::Int(0) };
        };
        if is_same {
            return Said::Ok;
        }
        self.expire_if_due(to_db, to);
        if overwrites {
            self.unlink(to_db, to);
        } else if self.keys.get(to_db, to).is_some() {
            return Said::Int(0);
        }
        self.keys.set(to_db, to, slot);
        self.unlink(from_db, from);
        pass(self);
        let by = Loss::Stranger;
        self.note(Note::KeyLost { db: to_db, key: to.clone(), by });
        self.note(Note::KeyLost { db: from_db, key: from.clone(), by });
        if overwrites { Said::Ok } else { Said::Int(1) }
    }

    fn expire_at(&mut self, db: i32, key: &Key, at_ms: i64) -> Said {
        if self.keys.get(db, key).is_none() {
            return Said::Int(0);
        }
        let (at_ms, now_ms) = (at_ms.max(0).cast_unsigned(), self.now_ms());
        if at_ms <= now_ms && self.is_primary {
            self.unlink(db, key);
            if self.conditions.expires_at_once {
                self.manager.key_lost(db, key, false);
            }
            self.propagate(db, &[b"DEL", key]);
            self.note(Note::KeyLost { db, key: key.clone(), by: Loss::Stranger });
            return Said::Int(1);
        }
        if let Some(slot) = self.keys.get_mut(db, key) {
            slot.expires_at = Some(at_ms);
        }
        let at = at_ms.to_string().into_bytes();
        self.propagate(db, &[b"PEXPIREAT", key, &at]);
        self.note(Note::Tampered { db, key: key.clone(), at_ms });
        Said::Int(1)
    }

    /// Whether the server reads this command now: while it is paused it reads no write.
    pub fn postpones(&self, words: &Words) -> bool {
        self.is_paused() && is_write(words)
    }

    /// A user may not do what it may any more, or may again.
    pub fn may(&mut self, user: &Rc<str>, may: bool) {
        if may {
            self.denied.remove(user);
        } else {
            self.denied.insert(user.clone());
            self.has_denied = true;
        }
    }
}
