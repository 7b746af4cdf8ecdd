//! Blocked connections of a simulated server: as `src/parking.rs` and `src/answers.rs` do it.

use rlock_core::manager::{LockId, Manager, Parked, Wait, World, search};
use rlock_core::slow::Outcome;
use rlock_core::waits_for::Search;
use rlock_core::{
    Acquire, ClientId, Input, Lock, Memory, Mode, Owner, Parking, Refusal, Renew, Reply, WaiterId,
    Wake,
};

use crate::fault::Fault;
use crate::keyspace::Key;
use crate::notes::{Asked, Note};
use crate::seen::Kind;
use crate::server::{Server, Waiting};
use crate::words::Said;

/// A request whose reply waits for acknowledgements.
#[derive(Clone, Copy)]
pub(crate) enum Asks<'a> {
    /// `RLOCK.ACQUIRE`
    Acquire(Acquire<'a>),
    /// `RLOCK.RENEW`
    Renew(Renew<'a>),
}

/// The server's own time-out comes so much later than the module's, in milliseconds.
const NET_MS: u64 = 100;

impl Server {
    /// Parks the caller. What it is told at once instead, if it cannot wait.
    pub(crate) fn park(
        &mut self,
        client: ClientId,
        asked: Asked,
        ask: Acquire<'_>,
        block_ms: u64,
        words: &[Vec<u8>],
    ) -> Option<Reply> {
        if let Err(refusal) = self.manager.may_park(&self.bounds) {
            return Some(Reply::Refused(refusal));
        }
        let (db, key) = (asked.db, asked.key.clone());
        let lock = LockId { db, key: key.clone() };
        let (owner, user): (Owner, _) = (ask.owner.into(), self.conns.get(&client)?.user.clone());
        let wait = Wait { lock: &lock, owner: &owner, user: &user, stand: (&ask).into() };
        let now = self.now;
        match search(&mut Hands(self), wait, now) {
            Search::Cycle(cycle) => {
                self.note(Note::Saw(Kind::Deadlock));
                self.manager.deadlock(&wait, &cycle, now);
                return Some(Reply::Refused(Refusal::Cycle(cycle.len())));
            }
            Search::GaveUp | Search::NoCycle => {}
        }
        let ends_in = Some(block_ms).filter(|ms| *ms > 0);
        let net_ms = ends_in.map(|ms| ms + NET_MS);
        let parking = self.block(client, asked, None, ends_in, net_ms)?;
        self.decide_parked(Input::Park(ask, parking), words);
        None
    }

    /// Parks the caller until replicas have acknowledged what it asks for.
    pub(crate) fn park_to_confirm(
        &mut self,
        client: ClientId,
        asked: Asked,
        asks: Asks<'_>,
        block_ms: Option<u64>,
        words: &[Vec<u8>],
    ) -> Option<Reply> {
        let net_ms = Some(self.bounds.confirm_ms + NET_MS);
        let ends_in = block_ms.filter(|ms| *ms > 0);
        let renewal = match asks {
            Asks::Acquire(_) => None,
            Asks::Renew(ask) => Some(ask.mode),
        };
        let parking = self.block(client, asked, renewal, ends_in, net_ms)?;
        let input = match asks {
            Asks::Acquire(ask) => Input::Park(ask, parking),
            Asks::Renew(ask) => Input::ParkRenew(ask, parking),
        };
        self.decide_parked(input, words);
        None
    }

    /// `RM_BlockClient`
    fn block(
        &mut self,
        client: ClientId,
        asked: Asked,
        renewal: Option<Option<Mode>>,
        ends_in_ms: Option<u64>,
        net_ms: Option<u64>,
    ) -> Option<Parking> {
        let waiter = self.manager.next_waiter();
        let conn = self.conns.get_mut(&client)?;
        let lock = LockId { db: asked.db, key: asked.key.clone() };
        let user = conn.user.clone();
        let parked = Parked::new(Some(client), lock, asked.owner.clone(), user, asked.with_ttl);
        self.manager.park_begins(waiter, parked);
        let ends_at = ends_in_ms.map(|ms| self.now.after_ms(ms));
        let net_ms = net_ms.map(|ms| self.now.after_ms(ms).get());
        conn.waiting = Some(Waiting {
            waiter,
            asked: Asked { ends_at: ends_at.map(|at| at.get()), ..asked },
            net_ms,
            is_answered: false,
            aside: None,
            renewal,
            pending: None,
            granted: None,
            is_lost: false,
            is_noted: false,
        });
        Some(Parking { waiter, client: Some(client), ends_at })
    }

    /// Lets the manager decide for a caller that is parked.
    fn decide_parked(&mut self, input: Input<'_>, words: &[Vec<u8>]) {
        let (Input::Park(_, parking) | Input::ParkRenew(_, parking)) = input else { return };
        let Parking { waiter, client: Some(client), .. } = parking else { return };
        let Some(waiting) = self.waiting_mut(client) else { return };
        let asked = waiting.asked.clone();
        let reply = match self.decide(asked.db, &asked.key, input, words) {
            Ok(Reply::MustWait { .. }) => return,
            Ok(Reply::Pending) => return self.pend(waiter),
            Ok(reply) => reply,
            Err(_) => Reply::Refused(Refusal::WrongType),
        };
        // In between the lock became another one.
        if let Reply::Granted { token, left_ms } = reply {
            let (asked, granted_at) = (Box::new(asked), self.now);
            let (waited, pending) = (false, None);
            self.note(Note::Told { client, asked, token, granted_at, left_ms, waited, pending });
            let Some(waiting) = self.waiting_mut(client) else { return };
            (waiting.is_noted, waiting.granted) = (true, Some(token));
        }
        if self.manager.answer(&Wake { waiter, reply, waited_us: 0, acks_us: None }) {
            self.timers.late.push(waiter);
        }
    }

    /// Tells blocked connections what came of their waits.
    pub(crate) fn tell_waiters(&mut self, wakes: Vec<Wake>) {
        for wake in wakes {
            if self.fault == Fault::AnswerForgotten && wake.waiter.get().is_multiple_of(3) {
                continue;
            }
            if self.manager.answer(&wake) {
                self.unpark(wake.waiter);
            }
        }
    }

    pub(crate) fn client_of(&self, waiter: WaiterId) -> Option<ClientId> {
        let is_it = |waiting: &Waiting| waiting.waiter == waiter && !waiting.is_answered;
        let mut all = self.conns.iter();
        all.find(|(_, conn)| conn.waiting.as_ref().is_some_and(is_it)).map(|(client, _)| *client)
    }

    /// `RM_UnblockClient`: the reply is asked for in this very call.
    pub(crate) fn unpark(&mut self, waiter: WaiterId) {
        if let Some(client) = self.client_of(waiter) {
            self.reply_to(client);
        }
    }

    /// A blocked connection's reply is due: for its grant, or because its time is over.
    pub(crate) fn reply_to(&mut self, client: ClientId) {
        let Some(waiting) = self.waiting_mut(client) else { return };
        waiting.is_answered = true;
        let (waiter, asked, is_noted) = (waiting.waiter, waiting.asked.clone(), waiting.is_noted);
        let told = self.manager.parked(waiter).and_then(|parked| parked.reply.clone());
        let now = self.now;
        let told = told.unwrap_or_else(|| {
            let refusal = self.manager.parked(waiter).and_then(|parked| parked.refusal.clone());
            if let Some(refusal) = refusal {
                self.left(waiter);
                return Reply::Refused(refusal);
            }
            let lock = LockId { db: asked.db, key: asked.key.clone() };
            let see = |lock: &Lock, memory: &Memory| lock.known_wait_of(memory, waiter, now);
            let wait_ms = Hands(self).lock(&lock, see);
            self.left(waiter);
            Reply::NotNow { wait_ms }
        });
        let said = to_acquire(&told, &asked);
        let Some(waiting) = self.waiting_mut(client) else { return };
        let (pending, mut granted) = (waiting.pending.take(), None);
        waiting.aside = Some(said);
        let asked = Box::new(asked);
        match (told, pending) {
            (Reply::Granted { token, .. }, _) if is_noted => granted = Some(token),
            (Reply::Granted { token, left_ms }, pending) => {
                granted = Some(token);
                let granted_at = pending.map_or(now, |pending| pending.granted_at);
                let waited = true;
                self.note(Note::Told {
                    client,
                    asked,
                    token,
                    granted_at,
                    left_ms,
                    waited,
                    pending,
                });
            }
            (Reply::Count(_), Some(pending)) => {
                granted = Some(pending.token);
                self.note(Note::RenewalTold { asked, pending });
            }
            (Reply::NotNow { .. }, Some(_)) => self.note(Note::NilWhilePending { asked }),
            (_, Some(pending)) => self.note(Note::Unconfirmed { asked, pending, waiter }),
            _ => {}
        }
        if let Some(waiting) = self.waiting_mut(client) {
            waiting.granted = granted;
        }
        if self.conditions.replies_at_once {
            self.sent(client, waiter);
        }
    }

    /// The reply has left: what it tells stands.
    fn sent(&mut self, client: ClientId, waiter: WaiterId) {
        let Some(waiting) = self.waiting_mut(client) else { return };
        waiting.granted = None;
        let said = waiting.aside.take();
        said.into_iter().for_each(|said| self.say(client, said));
        if self.fault != Fault::HeardForgotten {
            self.over(waiter, false);
        }
    }

    /// The server forgets the waits that were answered.
    pub(crate) fn forget_answered(&mut self) {
        let answered = |waiting: &mut Waiting| waiting.is_answered;
        let mut done = Vec::new();
        for (client, conn) in &mut self.conns {
            done.extend(conn.waiting.take_if(answered).map(|waiting| (*client, waiting)));
        }
        for (client, mut waiting) in done {
            waiting.aside.take().into_iter().for_each(|said| self.say(client, said));
            if waiting.is_lost {
                self.forget_wait(waiting);
            } else {
                self.over(waiting.waiter, false);
            }
        }
    }

    /// The server's own time-outs.
    pub(crate) fn time_out_net(&mut self) {
        let now_ms = self.now_ms();
        let is_due = |waiting: &Waiting| {
            !waiting.is_answered && waiting.net_ms.is_some_and(|at| at <= now_ms)
        };
        let due = |conn: &crate::server::Conn| conn.waiting.as_ref().is_some_and(is_due);
        let all = self.conns.iter().filter(|(_, conn)| due(conn));
        let late: Vec<ClientId> = all.map(|(client, _)| *client).collect();
        for client in late {
            self.reply_to(client);
        }
    }

    /// A blocked connection is not there to be granted, or to hear of its grant.
    pub(crate) fn left(&mut self, waiter: WaiterId) {
        self.manager.left(waiter, Outcome::Disconnected, self.now);
        self.settle();
    }

    pub(crate) fn over(&mut self, waiter: WaiterId, is_lost: bool) {
        if is_lost && self.fault != Fault::UndoForgotten {
            self.manager.left(waiter, Outcome::Disconnected, self.now);
        }
        self.manager.unparked(waiter);
        self.settle();
    }
}

/// The reply to `RLOCK.ACQUIRE`.
pub(crate) fn to_acquire(reply: &Reply, asked: &Asked) -> Said {
    let (first, ms) = match reply {
        Reply::Refused(refusal) => {
            return Said::Error(refusal.line(&asked.key, asked.owner.as_bytes()));
        }
        Reply::Granted { token, left_ms } => (Said::Int(token.get().cast_signed()), Some(*left_ms)),
        Reply::NotNow { wait_ms } | Reply::MustWait { wait_ms } => (Said::Nil, *wait_ms),
        Reply::Count(count) => return Said::Int(count.cast_signed()),
        Reply::MustConfirm | Reply::Pending => (Said::Nil, None),
    };
    let ms = Said::Int(ms.map_or(-1, u64::cast_signed));
    if asked.with_ttl { Said::Array(vec![first, ms]) } else { first }
}

/// The server's locks, for the search.
struct Hands<'s>(&'s mut Server);

impl World for Hands<'_> {
    fn manager<T>(&mut self, see: impl FnOnce(&Manager) -> T) -> T {
        see(&self.0.manager)
    }

    fn lock<T>(&mut self, id: &LockId, see: impl FnOnce(&Lock, &Memory) -> T) -> T {
        let (free, unknown) = (Lock::default(), Memory::default());
        let key: &Key = &id.key;
        // Opened for reading, as the server does it: what expired is deleted by it.
        self.0.expire_if_due(id.db, key);
        let slot = self.0.visible(id.db, key);
        let lock = slot.and_then(|slot| slot.lock()).unwrap_or(&free);
        see(lock, self.0.manager.memory(id.db, key).unwrap_or(&unknown))
    }
}
