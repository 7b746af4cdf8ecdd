//! The simulated server as the engine's host. Faults are planted at this edge.

use std::cell::{Cell, RefCell, RefMut};
use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use rlock_core::grammar::Access;
use rlock_core::manager::LockId;
use rlock_core::{ClientId, EpochMs, Lock, Now, WaiterId};
use rlock_engine::reply::Replies;
use rlock_engine::timers::PORTION;
use rlock_engine::{
    Caller, Channels, Content, Deferred, During, Gate, Happening, Host, Keys, Replication,
    Settings, blocked,
};

use crate::fault::{Fault, grants_alone};
use crate::keyspace::{self, Slot, Value};
use crate::notes::{Asked, Deed, Note};
pub(crate) use crate::running::Running;
use crate::seen::Kind;
use crate::server::Server;
use crate::waiting::Waiting;
use crate::words::Said;

/// A number of replicas that no simulated server has.
const ALL: usize = 16;

/// A simulated server in one callback. It panics if the engine borrows the server's state across a
/// call.
pub(crate) struct Edge<'s> {
    server: RefCell<&'s mut Server>,
    running: Running,
    db: Cell<i32>,
    replies: RefCell<Vec<Said>>,
}

impl<'s> Edge<'s> {
    pub(crate) fn new(server: &'s mut Server, running: Running) -> Self {
        let db = Cell::new(running.db);
        Self { server: RefCell::new(server), running, db, replies: RefCell::default() }
    }

    /// Does `work`, and returns its reply.
    pub(crate) fn said(&self, work: impl FnOnce(&Self)) -> Option<Said> {
        let outer = self.replies.take();
        work(self);
        Said::of(self.replies.replace(outer))
    }

    fn server(&self) -> RefMut<'_, &'s mut Server> {
        self.server.borrow_mut()
    }

    fn say(&self, said: Said) {
        self.replies.borrow_mut().push(said);
    }
}

/// A key's name.
pub(crate) struct Name(keyspace::Key);

impl Name {
    pub(crate) fn new(key: keyspace::Key) -> Self {
        Self(key)
    }
}

impl rlock_engine::KeyName for Name {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An open key: its value is outside of the keyspace until it is closed.
pub(crate) struct Key<'h, 's> {
    edge: &'h Edge<'s>,
    db: i32,
    name: keyspace::Key,
    value: Option<Value>,
}

impl Drop for Key<'_, '_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

impl Key<'_, '_> {
    fn put_back(&mut self) {
        if let Some(value) = self.value.take() {
            self.with_slot(|slot| slot.value = value);
        }
    }

    fn with_slot<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.edge.server().keys.get_mut(self.db, &self.name).map(work)
    }
}

impl rlock_engine::OpenKey for Key<'_, '_> {
    fn content(&mut self) -> Content<'_> {
        match &mut self.value {
            None => Content::Missing,
            Some(Value::Lock(lock)) => Content::Lock(lock),
            Some(Value::Other) => Content::Other,
        }
    }

    fn set(&mut self, lock: Lock) {
        let slot = Slot { value: Value::Other, expires_at: None };
        self.edge.server().keys.set(self.db, &self.name, slot);
        self.value = Some(Value::Lock(lock));
    }

    fn delete(&mut self) {
        self.put_back();
        self.edge.server().unlink(self.db, &self.name);
    }

    fn expires_at(&self) -> Option<u64> {
        self.with_slot(|slot| slot.expires_at).flatten()
    }

    fn expire_at(&mut self, at_ms: u64) {
        let is_forgotten = self.edge.server().fault == Fault::TtlForgotten;
        self.with_slot(|slot| {
            if !is_forgotten || slot.expires_at.is_none() {
                slot.expires_at = Some(at_ms);
            }
        });
    }
}

impl<'s> Keys for Edge<'s> {
    type Name<'n> = Name;
    type Key<'h>
        = Key<'h, 's>
    where
        's: 'h;

    fn db(&self) -> i32 {
        self.db.get()
    }

    fn with_name<T>(&self, id: &LockId, work: impl FnOnce(&Name) -> T) -> T {
        let before = self.db.replace(id.db);
        let result = work(&Name(id.key.clone()));
        self.db.set(before);
        result
    }

    fn with_names<T>(&self, db: i32, keys: &[&[u8]], work: impl FnOnce(&[Name]) -> T) -> T {
        let before = self.db.replace(db);
        let names: Vec<Name> = keys.iter().map(|key| Name((*key).into())).collect();
        let result = work(&names);
        self.db.set(before);
        result
    }

    fn open(&self, name: &Name, access: Access) -> Key<'_, 's> {
        let (db, name) = (self.db(), name.0.clone());
        let mut server = self.server();
        server.expire_if_due(db, &name);
        let is_shown = access == Access::Writes || server.visible(db, &name).is_some();
        let slot = server.keys.get_mut(db, &name).filter(|_| is_shown);
        let value = slot.map(|slot| std::mem::replace(&mut slot.value, Value::Other));
        Key { edge: self, db, name, value }
    }

    fn replicate(&self, names: &[&Name], effects: &[u8]) {
        let (db, mut server) = (self.db(), self.server());
        server.hands(effects, names.len());
        if server.fault == Fault::UnitSplit
            && let Some(each) = grants_alone(effects, names.len())
        {
            for (name, effect) in names.iter().zip(each) {
                server.propagate(db, &[b"RLOCK.APPLY", &name.0, &effect]);
            }
            return;
        }
        let keys = names.iter().map(|name| &*name.0);
        let words: Vec<&[u8]> =
            std::iter::once(&b"RLOCK.APPLY"[..]).chain(keys).chain([effects]).collect();
        server.propagate(db, &words);
    }

    fn replicate_as_it_came(&self) {
        let words: Vec<&[u8]> = self.running.words.iter().map(Vec::as_slice).collect();
        self.server().propagate(self.db(), &words);
    }

    fn signal_modified(&self, _: &Name) {}

    fn notify(&self, event: &CStr, name: &Name) {
        let event = event.to_string_lossy().into_owned();
        if event.starts_with("rlock.")
            && !event.contains(':')
            && self.server().fault != Fault::EventsForgotten
        {
            let deed = Deed::Event(self.db(), name.0.clone());
            self.server().deeds.push(deed);
        }
        self.server().events.push((self.db(), name.0.clone(), event));
    }

    fn gate_of(&self, _: &Name) -> Gate {
        let server = self.server();
        let is_open = server.fault == Fault::GateLeftOpen || !server.refuses_writes();
        if is_open { Gate::Open } else { Gate::Shut }
    }

    fn is_paused(&self) -> bool {
        let server = self.server();
        server.fault != Fault::GateLeftOpen && server.is_paused()
    }

    fn is_cluster(&self) -> bool {
        false
    }
}

impl Caller for Edge<'_> {
    fn client(&self) -> Option<ClientId> {
        self.running.client
    }

    fn user(&self) -> Rc<[u8]> {
        let server = self.server();
        let conn = self.running.asker.and_then(|client| server.conns.get(&client));
        conn.map_or_else(Rc::default, |conn| conn.user.clone().into())
    }

    fn any_user(&self) -> Rc<[u8]> {
        if self.server().fault == Fault::UserUnknown {
            let mut server = self.server();
            server.strangers += 1;
            return format!("stranger {}", server.strangers).into_bytes().into();
        }
        self.user()
    }

    fn denies_blocking(&self) -> bool {
        self.server().in_longer
    }

    fn is_from_primary(&self) -> bool {
        self.running.is_replicated
    }

    fn is_loading(&self) -> bool {
        false
    }

    fn is_in_longer(&self) -> bool {
        let server = self.server();
        server.in_longer && server.fault != Fault::MessageInside
    }

    fn must_answer_later(&self) -> bool {
        let server = self.server();
        server.in_script && server.conditions.replies_at_once
    }
}

impl Channels for Edge<'_> {
    fn knows_listeners(&self) -> bool {
        true
    }

    fn has_listener(&self, channel: &[u8]) -> bool {
        self.server().has_subscriber(channel)
    }

    fn may_publish(&self, user: Option<&[u8]>, _: &[u8]) -> bool {
        let user = user.and_then(|user| str::from_utf8(user).ok());
        user.is_none_or(|user| !self.server().muted.contains(user))
    }

    fn publish_message(&self, channel: &[u8], message: &[u8]) -> bool {
        self.server().publish(channel, message)
    }
}

impl Host for Edge<'_> {
    type Blocked = WaiterId;

    fn state<T>(&self, work: impl FnOnce(&mut rlock_engine::State<WaiterId>) -> T) -> T {
        work(&mut self.server().state)
    }

    fn settings(&self) -> Settings {
        let server = self.server();
        let mut bounds = server.bounds;
        match server.fault {
            Fault::TellUnbound => bounds.max_tell_ms *= 2,
            Fault::TellsUncounted => bounds.max_tells += 1,
            _ => {}
        }
        Settings { bounds, detects_deadlocks: true }
    }

    fn now(&self) -> Now {
        self.server().now
    }

    /// After as many tasks as the step allows, the portion is used up.
    fn monotonic(&self) -> Duration {
        let mut server = self.server();
        let tick = PORTION / u32::try_from(server.portion.max(1)).unwrap_or(u32::MAX);
        let ticks = server.ticks.saturating_sub(1);
        server.ticks += 1;
        (tick + Duration::from_nanos(1)).saturating_mul(ticks)
    }

    fn observe(&self, happening: Happening<'_>) {
        self.server().observe(&self.running, happening);
    }

    fn warn(&self, _: &str) {}

    fn blocks_aside(&self) -> bool {
        false
    }

    fn watch_new_keys(&self) {
        self.server().watches_keys = true;
    }

    fn block(&self, _: &[Name], waiter: u64) -> Option<WaiterId> {
        let (waiter, now) = (WaiterId::from(waiter), self.now());
        let asked = self.running.asked.clone()?;
        let ends_at = self.running.block_ms.filter(|ms| *ms > 0);
        let mut server = self.server();
        let asked = Asked { ends_at: ends_at.map(|ms| now.after_ms(ms).get()), ..asked };
        let mut waiting = Waiting::new(waiter, &self.running, asked);
        if let Some(told) = server.tells.all.remove(&waiter) {
            server.note(Note::Saw(Kind::AskedAgainBlocked));
            waiting.takes_place(told.waiting);
        }
        let conn = server.conns.get_mut(&self.running.client?)?;
        conn.waiting = Some(waiting);
        Some(waiter)
    }

    /// `RM_UnblockClient`: the server asks for the reply in this very call.
    fn unblock(&self, waiter: WaiterId) {
        let mut server = self.server();
        if server.fault == Fault::AnswerForgotten && waiter.get().is_multiple_of(3) {
            return;
        }
        if let Some(client) = server.client_of(waiter) {
            server.reply_to(client);
        }
    }

    fn may_acquire(&self, user: &[u8], _: &Name) -> bool {
        !self.server().denies(user)
    }

    fn may_observe(&self, user: &[u8], _: &Name) -> bool {
        !self.server().denies(user)
    }

    fn may_acquire_several(&self, user: &[u8], _: &[Name]) -> bool {
        !self.server().denies(user)
    }

    fn can_close(&self) -> bool {
        true
    }

    /// Each command of the simulated server is reported.
    fn watch_commands(&self) {}

    fn close_lost(&self, _: During) {
        self.server().settle_closing();
    }

    fn defer(&self, ms: u64, work: Deferred) {
        let mut server = self.server();
        let at_ms = server.now_ms() + ms;
        server.timers.calls.push((at_ms, work));
    }

    fn set_alarm(&self, at: EpochMs) {
        let mut server = self.server();
        if server.fault != Fault::AlarmForgotten {
            server.timers.alarm = Some(server.timers.alarm.map_or(at, |set| set.min(at)));
        }
    }

    fn watch_sleep(&self, is_on: bool) {
        let was_on = std::mem::replace(&mut self.server().timers.is_watching, is_on);
        assert_ne!(was_on, is_on, "Redis crashes if what is not subscribed unsubscribes");
    }

    fn replication(&self) -> Replication {
        let server = self.server();
        let is_early = server.fault == Fault::OffsetNotedEarly && self.running.is_sleeping;
        let has_all = match server.fault {
            Fault::ToldAtOnce => true,
            Fault::SessionUnacknowledged => server.only_sessions_wait(),
            _ => false,
        };
        let acknowledged = match has_all && self.running.is_sleeping {
            true => vec![server.offset; ALL],
            false => server.replicas.clone(),
        };
        let offset = if is_early { server.slept_at } else { server.offset };
        Replication { offset, acknowledged }
    }

    fn ask_replicas(&self) {
        self.server().ask_replicas();
    }

    fn has_fault(&self, fault: rlock_engine::PlantedFault) -> bool {
        self.server().fault == Fault::Engine(fault)
    }
}

impl Replies for Edge<'_> {
    fn reply_integer(&self, value: i64) {
        self.say(Said::Int(value));
    }

    fn reply_bytes(&self, bytes: &[u8]) {
        self.say(Said::Bytes(bytes.to_vec()));
    }

    fn reply_null(&self) {
        self.say(Said::Nil);
    }

    fn reply_ok(&self) {
        self.say(Said::Ok);
    }

    fn reply_waiting(&self) {
        self.say(Said::Waiting);
    }

    fn reply_error(&self, line: &str) {
        self.say(Said::error(line));
    }

    /// The elements follow; a reply has at most one array.
    fn reply_array(&self, _: usize) {
        self.say(Said::Array(Vec::new()));
    }
}

impl Server {
    /// The engine's entry for work that no command asked for.
    pub(crate) fn engine<T>(&mut self, work: impl FnOnce(&Edge<'_>) -> T) -> T {
        self.in_one_unit(|server| work(&Edge::new(server, Running::default())))
    }

    /// A blocked connection's reply is due.
    pub(crate) fn reply_to(&mut self, client: ClientId) {
        let Some(waiting) = self.waiting_mut(client) else { return };
        waiting.is_answered = true;
        let waiter = waiting.waiter;
        let said = self.engine(|edge| edge.said(|edge| blocked::reply(edge, waiter)));
        self.note_shown(client, &said);
        if let Some(waiting) = self.waiting_mut(client) {
            waiting.aside = said;
        }
        if self.conditions.replies_at_once {
            self.reply_leaves(client, waiter);
        }
    }

    /// The reply is in the connection's output, so its grant is no longer revoked.
    fn reply_leaves(&mut self, client: ClientId, waiter: WaiterId) {
        let Some(waiting) = self.waiting_mut(client) else { return };
        waiting.granted.clear();
        let said = waiting.aside.take();
        said.into_iter().for_each(|said| self.say(client, said));
        if self.fault != Fault::HeardForgotten {
            self.over(waiter, false);
        }
    }

    pub(crate) fn client_of(&self, waiter: WaiterId) -> Option<ClientId> {
        let is_it = |waiting: &Waiting| waiting.waiter == waiter && !waiting.is_answered;
        let mut all = self.conns.iter();
        all.find(|(_, conn)| conn.waiting.as_ref().is_some_and(is_it)).map(|(client, _)| *client)
    }
}
