//! Commands that the simulated server executes itself, and that change keys.

use rlock_engine::events;

use crate::commands::{Caller, number};
use crate::fault::Fault;
use crate::keyspace::{Key, Slot, Value};
use crate::notes::{Loss, Note};
use crate::server::Server;
use crate::waiting::Waiting;
use crate::words::Said;

impl Server {
    pub(crate) fn serve_own(&mut self, caller: Caller, words: &[Vec<u8>]) -> Said {
        let db = caller.db;
        let key = |at: usize| -> Key { words.get(at).map_or(&[][..], Vec::as_slice).into() };
        let pass = |server: &mut Self| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            server.propagate(db, &words);
        };
        if caller.client.is_some() {
            // The server opens a key before it changes it.
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
                self.arrive(db, &key, Slot { value: Value::Other, expires_at: None });
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
                    self.arrive_from_elsewhere(db, &key(2), slot);
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
                self.engine(|edge| events::swapped(edge, one, other));
                pass(self);
                self.note(Note::Swapped(one, other));
                Said::Ok
            }
            b"SSUBSCRIBE" | b"SUNSUBSCRIBE" => {
                let is_begun = words.first().is_some_and(|name| name == b"SSUBSCRIBE");
                let channel = words.get(1).cloned().unwrap_or_default();
                if let Some(conn) = caller.client.and_then(|client| self.conns.get_mut(&client)) {
                    if is_begun {
                        conn.channels.insert(channel);
                    } else {
                        conn.channels.remove(&channel);
                    }
                }
                Said::Ok
            }
            b"MULTI" => {
                if let Some(conn) = caller.client.and_then(|client| self.conns.get_mut(&client)) {
                    conn.queued.get_or_insert_default();
                }
                Said::Ok
            }
            b"EXEC" | b"EVAL" => match caller.client {
                Some(client) => {
                    self.exec(client, words.first().is_some_and(|name| name == b"EVAL"))
                }
                None => Said::Nil,
            },
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

    /// Puts a value at a free name, and notifies the module as the server does.
    fn arrive(&mut self, db: i32, key: &Key, slot: Slot) {
        self.keys.set(db, key, slot);
        if self.watches_keys && self.fault != Fault::ArrivalUntold {
            self.engine(|edge| events::key_came(edge, db, key));
        }
    }

    /// A value appears as by `RENAME`, `MOVE` or `COPY`.
    fn arrive_from_elsewhere(&mut self, db: i32, key: &Key, slot: Slot) {
        // A lock is reported only if a connection is blocked for it alone.
        let is_asked = |waiting: &Waiting| {
            let asked = &waiting.asked;
            !waiting.is_for_several && (asked.db, &asked.key) == (db, key)
        };
        let mut blocked = self.conns.values().filter_map(|conn| conn.waiting.as_ref());
        let is_reported = slot.lock().is_some() && blocked.any(is_asked);
        match self.conditions.misses_moved_strings && !is_reported {
            true => self.keys.set(db, key, slot),
            false => self.arrive(db, key, slot),
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
        self.arrive_from_elsewhere(to_db, to, slot);
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
                self.engine(|edge| events::key_lost(edge, db, key, false));
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
}
