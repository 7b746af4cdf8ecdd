//! Laws about groups: each waits for somebody, none keeps places that it no longer needs, and none
//! is overtaken where it stands.

use std::collections::BTreeMap;

use rlock_core::{Kind as Standing, Mode, Token, WaiterId};

use super::{Broken, must};
use crate::keyspace::{Key, Slot};
use crate::notes::Asked;
use crate::seen::{Kind, Seen};
use crate::server::Server;
use crate::several::KEYS;
use crate::waiting::Waiting;

/// Databases that clients use.
const DBS: i32 = 2;

/// At which locks groups had a place after the last step, and whether it was their turn; by the
/// number of their arrival.
#[derive(Default)]
pub struct Lines {
    all: BTreeMap<(u64, Key), bool>,
    /// Where they had none, the owner's holds, which may have covered what they want.
    covers: BTreeMap<(u64, Key), Vec<Token>>,
}

/// Its place in this line: `Some(true)` if it has its turn.
fn place(server: &Server, db: i32, key: &Key, waiter: WaiterId) -> Option<bool> {
    let volatile = server.state.manager.volatile(db, key)?;
    let is_it = |kind: Standing| kind == Standing::Group(waiter);
    let mut all = volatile.queue.iter();
    all.find(|(entry, _)| is_it(entry.kind)).map(|(_, is_turn)| is_turn)
}

/// The holds that its owner has at this lock; `None` if there is no such lock.
fn own_holds(server: &Server, asked: &Asked) -> Option<Vec<Token>> {
    let lock = server.keys.get(asked.db, &asked.key)?.lock()?;
    let own = lock.holds().filter(|(owner, ..)| *owner == asked.owner.as_bytes());
    Some(own.map(|(.., hold)| hold.token).collect())
}

impl Lines {
    /// The end of a step.
    pub fn stepped(&mut self, server: &Server, seen: &mut Seen) {
        let before = std::mem::take(&mut self.all);
        self.covers.clear();
        for waiting in server.all_waiting() {
            for asked in waiting.asks().filter(|_| waiting.is_for_several) {
                let name = (asked.arrival, asked.key.clone());
                if let Some(is_turn) = place(server, asked.db, &asked.key, waiting.waiter) {
                    if is_turn && before.get(&name) != Some(&true) {
                        seen.count(Kind::Reserved);
                    }
                    self.all.insert(name, is_turn);
                } else if let Some(own) = own_holds(server, asked) {
                    self.covers.insert(name, own);
                }
            }
        }
    }

    /// Whether this group had its turn there before the present step.
    pub fn had_turn(&self, asked: &Asked) -> bool {
        self.all.get(&(asked.arrival, asked.key.clone())) == Some(&true)
    }

    /// Whether this group has gone back meanwhile: it has a place now at an earlier lock where it
    /// had none after the last step; or the hold that covered what it wants there has ended; or it
    /// stood in line there already, and was about to give up its later places.
    fn was_back(&self, server: &Server, other: &Waiting, there: &Asked) -> bool {
        let mut before = other.asks().take_while(|asked| asked.key != there.key);
        before.any(|asked| {
            let name = (asked.arrival, asked.key.clone());
            if let Some(had_turn) = self.all.get(&name) {
                return !had_turn;
            }
            let is_held = |token: &Token| server.holds(*token);
            let was_covered = self.covers.get(&name).is_some_and(|own| own.iter().all(is_held));
            !was_covered || place(server, asked.db, &asked.key, other.waiter).is_some()
        })
    }

    /// Whether this group stood there all the time, and keeps this newcomer out.
    pub fn is_before(&self, server: &Server, other: &Waiting, asked: &Asked) -> bool {
        let Some(there) = other.asks().find(|there| there.key == asked.key) else { return false };
        let stood = self.all.contains_key(&(there.arrival, asked.key.clone()))
            && !self.was_back(server, other, there);
        let Some(is_turn) = place(server, asked.db, &asked.key, other.waiter) else { return false };
        let is_beside = is_turn && there.mode == Mode::Read && asked.mode == Mode::Read;
        stood && !is_beside
    }
}

/// Law: every place belongs to a wait. A wait that has ended reserves nothing.
pub fn places(server: &Server) -> Result<(), Broken> {
    let waits = |waiter: WaiterId| {
        let mut all = server.all_waiting();
        all.any(|waiting| waiting.waiter == waiter && !waiting.is_answered)
    };
    for db in 0..DBS {
        for key in (0..KEYS).map(|key| Key::from(format!("k{key}").into_bytes())) {
            let volatile = server.state.manager.volatile(db, &key);
            for (entry, is_turn) in volatile.into_iter().flat_map(|v| v.queue.iter()) {
                let waiter = match entry.kind {
                    Standing::Blocked(waiter)
                    | Standing::Told(waiter)
                    | Standing::Group(waiter) => Some(waiter),
                    Standing::Ticket => None,
                };
                if let Some(waiter) = waiter {
                    must(waits(waiter), "who has a place waits", || {
                        format!("{key:?} has a place of {waiter:?}, its turn: {is_turn}: {entry:?}")
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// Law: every group waits for somebody.
pub fn waits(
    server: &Server,
    waiting: &Waiting,
    is_open: bool,
    was_stepped: bool,
) -> Result<(), Broken> {
    let Waiting { waiter, asked, .. } = waiting;
    // It is granted and pending: the reply comes when all of it is confirmed.
    if !waiting.pending.is_empty() {
        let is_pending = |there: &Asked| {
            let volatile = server.state.manager.volatile(there.db, &there.key);
            volatile.is_some_and(|volatile| volatile.is_pending(*waiter))
        };
        return must(waiting.asks().all(is_pending), "who is blocked is answered", || {
            format!("a part of it ended: {waiting:?}")
        });
    }
    let group = server.state.manager.group(*waiter);
    must(group.is_some(), "who is blocked is answered", || format!("nobody knows of {waiting:?}"))?;
    let Some(group) = group.filter(|_| is_open && !server.is_in_grace()) else { return Ok(()) };
    let first_left = group.keys.len() - group.unreached().len();
    for (number, there) in waiting.asks().enumerate() {
        let slot = server.visible(there.db, &there.key);
        let is_other = slot.is_some_and(|slot| slot.lock().is_none()) && number <= first_left;
        must(!is_other, "nobody waits where another type stands", || {
            format!("{waiting:?} waits for another type")
        })?;
    }
    let Some(there) = waiting.asks().nth(first_left) else {
        return must(was_stepped, "who has reached all of the locks is granted", || {
            format!("{waiting:?} at {:?}", server.now)
        });
    };
    let now = server.now;
    let lock = server.keys.get(there.db, &there.key).and_then(Slot::lock);
    let holds =
        |mode| lock.is_some_and(|lock| lock.hold_at(asked.owner.as_bytes(), mode, now).is_some());
    let waits_for_itself = holds(Mode::Write) || there.mode == Mode::Read && holds(Mode::Read);
    must(!waits_for_itself, "nobody waits for what it holds", || {
        format!("{waiting:?} holds {:?} at {now:?}: {lock:?}", there.key)
    })?;
    let is_free = lock.is_none_or(|lock| lock.mode_at(now).is_none());
    let volatile = server.state.manager.volatile(there.db, &there.key);
    let first = volatile.and_then(|volatile| volatile.queue.iter().next());
    let is_first =
        first.is_some_and(|(entry, is_turn)| !is_turn && entry.kind == Standing::Group(*waiter));
    must(!(is_free && is_first), "nobody waits for a free lock", || {
        format!("{waiting:?} is first in line at {:?}, which is free at {now:?}", there.key)
    })?;
    let stands = place(server, there.db, &there.key, *waiter) == Some(false);
    must(stands, "who waits for several locks stands at one", || {
        format!("{waiting:?} does not stand at {:?}", there.key)
    })
}
