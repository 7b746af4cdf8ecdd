//! Laws about a server that has nothing left to do in its loop: every waiter waits for somebody, a
//! hold with a session exists while the connection is open and no longer, and unheard grants are
//! revoked. And the order in which waiters are served.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::manager::Parked;
use rlock_core::{ClientId, Kind as Standing, Lock, Mode, Owner, Token, WaiterId};

use super::groups::{self, Lines};
use super::promises::Promises;
use super::{Broken, must, tells};
use crate::keyspace::{Key, KeyRef, LockName, Slot};
use crate::notes::Asked;
use crate::seen::{Kind, Seen};
use crate::server::Server;
use crate::waiting::Waiting;

/// A hold with SESSION that was reported to a connection.
struct Tie {
    /// When it was reported, in microseconds of the world.
    us: u64,
    /// When it was requested, by the server's count of requests.
    arrival: u64,
    client: ClientId,
    token: Token,
    /// How many replicas must acknowledge its deadlines.
    acks: u8,
    /// Whether it came from a request for several locks.
    of_several: bool,
}

/// The tie that was reported last; of those reported in one step, the one whose request came last.
/// `None` if that is unsure: a request for several locks may have been granted before or after the
/// others of its step, and the reply to a later request may not have been read.
fn last(ties: &[Tie]) -> Option<&Tie> {
    let last = ties.iter().max_by_key(|tie| (tie.us, tie.arrival))?;
    let is_unsure = |tie: &Tie| {
        let is_of_several = tie.us == last.us && (tie.of_several || last.of_several);
        tie.arrival > last.arrival || tie.arrival < last.arrival && is_of_several
    };
    (!ties.iter().any(is_unsure)).then_some(last)
}

/// A grant whose reply was not read.
struct Unheard {
    name: LockName,
    token: Token,
    /// The wait of a blocked connection that got another reply.
    waiter: Option<WaiterId>,
    /// Whether the hold began on another server: the levels that it had there may remain.
    is_from_elsewhere: bool,
}

/// What is known of one server's connections.
#[derive(Default)]
pub struct Rest {
    /// The connections that got a hold with SESSION. The hold is tied to the [`last`] one.
    ties: BTreeMap<(LockName, Owner, Mode), Vec<Tie>>,
    /// The connections that asked for a session.
    askers: BTreeSet<(LockName, Vec<u8>, ClientId)>,
    /// Unheard grants.
    unheard: Vec<Unheard>,
    /// Tokens that were issued here, and for which lock.
    issued: BTreeMap<Token, LockName>,
    /// The tokens of these that a renewal has reported to their owner.
    renewed: BTreeSet<Token>,
    /// Issued tokens that were in no reply before this step.
    untold: BTreeSet<Token>,
    /// Holds whose key a stranger took, or that had expired when the clock was set: if they come
    /// back, they last as long as their lease.
    taken: BTreeSet<Token>,
    /// Holds that existed when the clock was set: to observers, they may have ended.
    revived: BTreeSet<u64>,
    /// The places of requests for several locks.
    pub lines: Lines,
    /// Whether the clock was set: a wait that had timed out may continue then.
    was_stepped: bool,
}

impl Rest {
    /// A token was issued.
    pub fn granted(&mut self, lock: KeyRef<'_>, token: Token) {
        self.untold.insert(token);
        self.issued.insert(token, lock.name());
    }

    /// A renewal reported to this owner that it holds the lock.
    pub fn renewed(
        &mut self,
        server: &Server,
        lock: KeyRef<'_>,
        owner: &Owner,
        only: Option<Token>,
    ) {
        let lock = server.keys.get(lock.db, lock.key).and_then(Slot::lock);
        let holds = lock.into_iter().flat_map(|lock| lock.holds());
        let own = holds.filter(|(who, ..)| *who == owner.as_bytes()).map(|(_, _, hold)| hold.token);
        let meant = own.filter(|token| only.is_none_or(|only| only == *token));
        self.renewed.extend(meant.filter(|token| self.issued.contains_key(token)));
    }

    /// For each session with acknowledgments: how many it needs.
    pub fn sessions_by_acks(&self) -> impl Iterator<Item = (ClientId, Token, u8)> {
        let last = self.ties.values().filter_map(|ties| last(ties));
        last.filter(|tie| tie.acks > 0).map(|tie| (tie.client, tie.token, tie.acks))
    }

    /// Whether this connection got the session, even if another one has replaced it since: an
    /// unheard grant is revoked.
    pub fn is_tied(&self, client: ClientId, token: Token) -> bool {
        self.ties.values().flatten().any(|tie| (tie.client, tie.token) == (client, token))
    }

    /// These tokens are in replies, or will be. From now on, another grant with one of them is a
    /// re-entry.
    pub fn begun(&mut self, tokens: &[Token]) {
        self.untold.retain(|token| !tokens.contains(token));
    }

    /// Whether a hold with this token was reported before.
    pub fn is_re_entry(&self, token: Token) -> bool {
        !self.untold.contains(&token)
    }

    /// A grant was reported.
    pub fn told(&mut self, client: ClientId, asked: &Asked, token: Token, acks: u8, us: u64) {
        if asked.session {
            let name = asked.key_ref().name();
            let ties = self.ties.entry((name, asked.owner.clone(), asked.mode)).or_default();
            ties.retain(|tie| tie.token == token);
            let Asked { arrival, of_several, .. } = *asked;
            ties.push(Tie { us, arrival, client, token, acks, of_several });
        }
    }

    /// A connection asked for a session, granted or not.
    pub fn asked_session(&mut self, client: ClientId, lock: KeyRef<'_>, owner: &Owner) {
        self.askers.insert((lock.name(), owner.as_bytes().to_vec(), client));
    }

    /// Whether a hold of this owner may have been tied to a connection that ended.
    pub fn has_lost_session(&self, server: &Server, lock: KeyRef<'_>, owner: &Owner) -> bool {
        let is_gone = |client: &ClientId| {
            !server.conns.contains_key(client) || server.state.manager.closing.contains(*client)
        };
        let name = lock.name();
        let mut all = self.askers.iter();
        all.any(|(at, who, client)| {
            *at == name && who.as_slice() == owner.as_bytes() && is_gone(client)
        })
    }

    /// A stranger removed the key of a lock; `None` means all keys of a database, or of all.
    pub fn taken(&mut self, db: Option<i32>, key: Option<&Key>) {
        let is_meant = |name: &LockName| {
            db.is_none_or(|db| db == name.0) && key.is_none_or(|key| *key == name.1)
        };
        let ties = self.ties.iter().filter(|((name, _, _), _)| is_meant(name));
        self.taken.extend(ties.flat_map(|(_, ties)| ties).map(|tie| tie.token));
        self.unheard.retain(|unheard| !is_meant(&unheard.name));
        self.issued.retain(|_, name| !is_meant(name));
        // At the name to which RENAME moves it, it is a hold of its owner, reported or not.
        self.untold.retain(|token| self.issued.contains_key(token));
    }

    /// The clock is set. A session that was lost because its lease had ended may be in force again
    /// by the new time.
    pub fn clock_steps(&mut self, server: &Server) {
        self.was_stepped = true;
        let holds = server.keys.iter().filter_map(|(_, _, slot)| slot.lock()).flat_map(Lock::holds);
        self.revived.extend(holds.map(|(.., hold)| hold.token.get()));
        let all =
            self.ties.iter().flat_map(|((name, _, _), ties)| ties.iter().map(move |t| (name, t)));
        let over = all.filter(|(name, tie)| !is_held(server, name, tie.token));
        self.taken.extend(over.map(|(_, tie)| tie.token));
    }

    /// A hold was released.
    pub fn released(&mut self, lock: KeyRef<'_>, token: Token) {
        let is_here = |name: &LockName| lock.is(name);
        self.ties.retain(|(name, _, _), ties| {
            !is_here(name) || last(ties).is_some_and(|tie| tie.token != token)
        });
    }

    /// The reply of a grant was not read.
    pub fn unheard(&mut self, asked: &Asked, token: Token, waiter: Option<WaiterId>) {
        let name = asked.key_ref().name();
        let lock = (name.clone(), asked.owner.clone(), asked.mode);
        if let Some(ties) = self.ties.get_mut(&lock) {
            ties.retain(|tie| tie.arrival != asked.arrival);
        }
        let is_from_elsewhere = self.issued.get(&token) != Some(&name);
        self.unheard.push(Unheard { name, token, waiter, is_from_elsewhere });
    }

    /// Whether a grant with this token was unheard, so that its level is revoked.
    pub fn is_unheard(&self, lock: KeyRef<'_>, token: Token) -> bool {
        let is_it = |unheard: &Unheard| unheard.token == token && lock.is(&unheard.name);
        self.unheard.iter().any(is_it)
    }

    /// A connection ended.
    pub fn closed(&mut self, client: ClientId, seen: &mut Seen) {
        if self.ties.values().filter_map(|ties| last(ties)).any(|tie| tie.client == client) {
            seen.count(Kind::SessionClosed);
        }
    }

    /// Law: a hold that was reported to nobody, and no longer can be, is revoked.
    fn somebody_hears(&mut self, server: &Server, promises: &Promises) -> Result<(), Broken> {
        for unheard in std::mem::take(&mut self.unheard) {
            let Unheard { token, is_from_elsewhere, .. } = &unheard;
            // A hold that another server granted lasts until its lease ends.
            if *is_from_elsewhere {
                continue;
            }
            unheard.is_undone(server, self.may_hear(server, promises, *token))?;
        }
        self.issued.retain(|token, name| is_held(server, name, *token));
        self.renewed.retain(|token| self.issued.contains_key(token));
        for (token, name) in &self.issued {
            let may_hear = self.may_hear(server, promises, *token);
            must(may_hear, "who did not hear holds nothing", || {
                format!("{name:?} is held with {token:?}, and nobody hears of it")
            })?;
        }
        Ok(())
    }

    /// Whether this hold, or a renewal of it, was reported, or may still be.
    fn may_hear(&self, server: &Server, promises: &Promises, token: Token) -> bool {
        promises.was_told(token, &server.history) || self.renewed.contains(&token)
    }

    /// The server has nothing left to do.
    pub fn holds(&mut self, server: &Server, promises: &Promises) -> Result<(), Broken> {
        let is_open = !server.refuses_writes() && !server.state.is_retrying();
        for ((name, owner, mode), ties) in &self.ties {
            let Some(Tie { client, token, .. }) = last(ties) else { continue };
            let is_connected = server.conns.contains_key(client);
            let holds = is_held(server, name, *token);
            must(holds || !is_connected, "a session that is connected holds", || {
                format!("{client:?} does not hold {name:?} as {owner:?}, {mode:?}, {token:?}")
            })?;
            let ends = holds && !is_connected && is_open && !self.taken.contains(token);
            must(!ends, "a session ends with its connection", || {
                format!("{name:?} is still held by {owner:?} of {client:?}, {token:?}")
            })?;
        }
        self.ties.retain(|(name, _, _), ties| {
            last(ties).is_some_and(|Tie { client, token, .. }| {
                server.conns.contains_key(client) || is_held(server, name, *token)
            })
        });
        if is_open {
            self.somebody_hears(server, promises)?;
        }
        self.untold.clear();
        groups::places(server)?;
        waits(server, is_open, self.was_stepped, &self.revived)
    }
}

impl Unheard {
    /// The revoked grant left no hold, no session and no place behind.
    fn is_undone(&self, server: &Server, may_hear: bool) -> Result<(), Broken> {
        let Self { name, token, waiter, .. } = self;
        let volatile = server.state.manager.volatile(name.0, &name.1);
        let is_tied = volatile.is_some_and(|volatile| volatile.sessions.get(*token).is_some());
        let stands = is_tied || is_held(server, name, *token);
        must(may_hear || !stands, "who did not hear holds nothing", || {
            format!("{name:?} is held with {token:?}, of which nobody heard; tied: {is_tied}")
        })?;
        let waits =
            |waiter| volatile.is_some_and(|volatile| volatile.queue.blocked(waiter).is_some());
        must(!waiter.is_some_and(waits), "who did not hear has no place", || {
            format!("{waiter:?} waits for {name:?}, and was told that it does not hold")
        })
    }
}

/// Law: no hold is tied to a closed connection, not even until the next sweep: the reply to a
/// request before the sweep would name a hold that is about to end.
pub fn ties(server: &Server) -> Result<(), Broken> {
    for (db, key, slot) in server.keys.iter() {
        let Some(volatile) = server.state.manager.volatile(db, key) else { continue };
        for (owner, _, hold) in slot.lock().into_iter().flat_map(Lock::holds) {
            let tied = volatile.sessions.get(hold.token);
            let lasts = tied.is_none_or(|tied| server.conns.contains_key(&tied.client));
            must(lasts, "a session ends with its connection", || {
                format!("{key:?} is held by {owner:?}, {tied:?}")
            })?;
        }
    }
    Ok(())
}

/// Whether the lock has a hold with this token that has not expired.
fn is_held(server: &Server, name: &LockName, token: Token) -> bool {
    let lock = server.keys.get(name.0, &name.1).and_then(Slot::lock);
    lock.is_some_and(|lock| lock.holds_at(server.now).any(|(_, _, hold)| hold.token == token))
}

fn is_in_time(server: &Server, asked: &Asked) -> Result<(), Broken> {
    let is_over = asked.ends_at.is_some_and(|at| at <= server.now_ms());
    must(!is_over, "a wait ends in time", || format!("it is over: {asked:?}"))
}

/// Law: every observer has the current state, even on a server that may not write.
fn observes(
    server: &Server,
    waiting: &Waiting,
    known: u64,
    revived: &BTreeSet<u64>,
) -> Result<(), Broken> {
    let Asked { db, key, .. } = &waiting.asked;
    let manager = &server.state.manager;
    let parked = manager.parked(waiting.waiter);
    let is_told = manager.is_told(waiting.waiter) && manager.due_message(waiting.waiter).is_none();
    must(is_told || parked.is_some_and(Parked::waits), "who is blocked is answered", || {
        format!("nobody knows of {waiting:?}")
    })?;
    is_in_time(server, &waiting.asked)?;
    let is_other = server.visible(*db, key).is_some_and(|slot| slot.lock().is_none());
    must(!is_other, "nobody waits where another type stands", || {
        format!("{waiting:?} observes another type")
    })?;
    let visible = server.visible_token(*db, key);
    // A lock whose time to live a user shortened remains until the server notices its end.
    let lock = server.keys.get(*db, key).and_then(Slot::lock);
    let held = lock.and_then(|lock| lock.writer_at(server.now));
    let is_cut = visible == 0 && held.is_some_and(|(_, hold)| hold.token.get() == known);
    let is_excused = is_cut || revived.contains(&visible);
    must(visible == known || is_excused, "an observer misses nothing that lasts", || {
        format!("{waiting:?} is not told of {visible}")
    })
}

/// Law: every blocked connection waits for something.
fn waits(
    server: &Server,
    is_open: bool,
    was_stepped: bool,
    revived: &BTreeSet<u64>,
) -> Result<(), Broken> {
    let now = server.now;
    server.tells.all.values().try_for_each(|tell| tells::lasts(server, tell))?;
    for waiting in server.all_waiting().filter(|waiting| !waiting.is_answered) {
        let asked = &waiting.asked;
        if let Some(known) = waiting.observes {
            observes(server, waiting, known, revived)?;
            continue;
        }
        if waiting.is_for_several {
            is_in_time(server, asked)?;
            groups::waits(server, waiting, is_open, was_stepped)?;
            continue;
        }
        let volatile = server.state.manager.volatile(asked.db, &asked.key);
        let stands = volatile.is_some_and(|volatile| volatile.knows(waiting.waiter));
        let is_pending = !waiting.pending.is_empty()
            && volatile.is_some_and(|volatile| volatile.is_pending(waiting.waiter));
        must(
            stands && (is_pending || waiting.pending.is_empty()),
            "who is blocked is answered",
            || format!("nobody knows of {waiting:?}"),
        )?;
        is_in_time(server, asked)?;
        // A lock whose time to live a user shortened remains until the server notices its end.
        let lock = server.keys.get(asked.db, &asked.key).and_then(Slot::lock);
        let is_held = lock.is_some_and(|lock| lock.mode_at(now).is_some());
        let is_free = !is_held && !server.is_in_grace();
        let first = volatile.and_then(|volatile| volatile.queue.iter().next());
        let is_first = first.is_some_and(|(entry, is_turn)| {
            let kinds = [Standing::Blocked(waiting.waiter), Standing::Told(waiting.waiter)];
            !is_turn && kinds.contains(&entry.kind)
        });
        let is_other =
            server.visible(asked.db, &asked.key).is_some_and(|slot| slot.lock().is_none());
        must(!(is_open && is_other), "nobody waits where another type stands", || {
            format!("{waiting:?} waits for another type")
        })?;
        let entry = volatile.and_then(|volatile| volatile.queue.blocked(waiting.waiter));
        let is_re_entry = lock.zip(entry).is_some_and(|(lock, entry)| {
            let holds = |mode| lock.hold_at(entry.owner.as_bytes(), mode, now).is_some();
            holds(Mode::Write) || entry.mode == Mode::Read && holds(Mode::Read)
        });
        let waits_for_itself = is_open && is_re_entry && !server.is_in_grace();
        must(!waits_for_itself, "nobody waits for what it holds", || {
            format!("{waiting:?} holds it at {now:?}: {lock:?}")
        })?;
        must(!(is_open && is_free && is_first), "nobody waits for a free lock", || {
            format!("{waiting:?} is first in line at {now:?}, and the lock is {lock:?}")
        })?;
    }
    Ok(())
}

impl Rest {
    /// Law: a new grant overtook nobody who came earlier.
    pub fn order(
        &self,
        server: &Server,
        asked: &Asked,
        token: Token,
        waited: bool,
        is_re_entry: bool,
    ) -> Result<(), Broken> {
        // The owner of WRITE acquires READ without waiting.
        let lock = server.keys.get(asked.db, &asked.key).and_then(Slot::lock);
        let holds_both = lock.is_some_and(|lock| {
            let mut holds = lock.holds();
            holds.any(|(owner, _, hold)| owner == asked.owner.as_bytes() && hold.token != token)
        });
        let has_turn = self.lines.had_turn(asked);
        let may_pass = asked.upgrade || asked.takes || asked.held || asked.had_ticket;
        if may_pass || is_re_entry || holds_both || has_turn {
            return Ok(());
        }
        let now_ms = server.now_ms();
        let is_there = |other: &Waiting| match other.is_for_several {
            true => other.asked.db == asked.db && self.lines.is_before(server, other, asked),
            false => (other.asked.db, &other.asked.key) == (asked.db, &asked.key),
        };
        let is_passed = |client: Option<ClientId>, other: &Waiting| {
            let asked_there = &other.asked;
            !other.is_answered
                && other.pending.is_empty()
                && !server.state.is_late(other.waiter)
                && is_there(other)
                && asked_there.arrival < asked.arrival
                && asked_there.ends_at.is_none_or(|at| at > now_ms)
                && !client.is_some_and(|client| server.state.manager.closing.contains(client))
        };
        let all = server.conns.iter();
        let all = all.filter_map(|(client, conn)| Some((Some(*client), conn.waiting.as_ref()?)));
        let told = server.tells.all.values().map(|tell| (None, &tell.waiting));
        let passed = all.chain(told).find(|(client, other)| is_passed(*client, other));
        must(passed.is_none(), "nobody who waits is passed", || {
            format!("{asked:?}, which waited: {waited}, passed {passed:?}")
        })
    }
}
