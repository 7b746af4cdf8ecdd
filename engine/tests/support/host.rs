//! The map of keys as the engine's host. Every call by the engine is recorded, in order.

use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use rlock_core::grammar::Access;
use rlock_core::manager::LockId;
use rlock_core::{Change, ClientId, EpochMs, Lock, Now, Reply};
use rlock_engine::reply::Replies;
use rlock_engine::{
    Caller, Channels, Content, Deferred, Done, During, Gate, Happening, Host, KeyName, Keys,
    OpenKey, PlantedFault, Replication, Settings, State, events,
};

use super::{MapHost, Slot, Value};

/// A key's name.
pub struct Name<'n>(pub &'n [u8]);

impl KeyName for Name<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// A blocked connection.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub client: u64,
    /// Whether its reply may be asked for.
    pub is_due: bool,
    /// The names at which it is blocked.
    pub at: Vec<Vec<u8>>,
}

/// The server's handle of a blocked connection: there is only one, and a reply uses it up.
pub struct Handle {
    waiter: u64,
    _counted: Rc<()>,
}

/// An open key: its value is outside of the map until it is closed.
pub struct Key<'h> {
    host: &'h MapHost,
    at: LockId,
    slot: Option<Slot>,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut world = self.host.world();
        assert!(world.open.remove(&self.at), "an open key is closed once");
        if let Some(slot) = self.slot.take() {
            world.keys.insert(self.at.clone(), slot);
        }
    }
}

impl OpenKey for Key<'_> {
    fn content(&mut self) -> Content<'_> {
        match &mut self.slot {
            None => Content::Missing,
            Some(Slot { value: Value::Lock(lock), .. }) => Content::Lock(lock),
            Some(_) => Content::Other,
        }
    }

    fn set(&mut self, lock: Lock) {
        let slot = self.slot.replace(Slot { value: Value::Lock(lock), expires_at: None });
        if let Some(Slot { value: Value::Lock(before), .. }) = slot {
            events::key_left(self.host, self.at.db, &self.at.key, &before);
        }
        self.host.log(format!("set {}", self.host.shown(self.at.db, &self.at.key)));
        // The server reports new keys to other modules, which may change other keys.
        let on_new = self.host.world().on_new;
        on_new.into_iter().for_each(|happens| happens(self.host, &self.at.key));
    }

    fn delete(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if let Value::Lock(lock) = slot.value {
            events::key_left(self.host, self.at.db, &self.at.key, &lock);
        }
        self.host.log(format!("deleted {}", self.host.shown(self.at.db, &self.at.key)));
    }

    fn expires_at(&self) -> Option<u64> {
        drop(self.host.world());
        self.slot.as_ref()?.expires_at
    }

    fn expire_at(&mut self, at_ms: u64) {
        drop(self.host.world());
        if let Some(slot) = &mut self.slot {
            slot.expires_at = Some(at_ms);
        }
    }
}

impl Keys for MapHost {
    type Name<'n> = Name<'n>;
    type Key<'h> = Key<'h>;

    fn db(&self) -> i32 {
        self.world().db
    }

    fn with_name<T>(&self, id: &LockId, work: impl FnOnce(&Name<'_>) -> T) -> T {
        let before = std::mem::replace(&mut self.world().db, id.db);
        let result = work(&Name(&id.key));
        self.world().db = before;
        result
    }

    fn with_names<T>(&self, db: i32, keys: &[&[u8]], work: impl FnOnce(&[Name<'_>]) -> T) -> T {
        let before = std::mem::replace(&mut self.world().db, db);
        let names: Vec<Name<'_>> = keys.iter().map(|key| Name(key)).collect();
        let result = work(&names);
        self.world().db = before;
        result
    }

    fn open(&self, name: &Name<'_>, access: Access) -> Key<'_> {
        let at = LockId { db: self.db(), key: name.0.into() };
        let is_primary = self.state(|state| state.manager.is_primary());
        let is_expired = self.is_expired(&at);
        if is_expired && is_primary && !self.is_paused() {
            self.expire(&at);
        }
        let mut world = self.world();
        assert!(world.open.insert(at.clone()), "a key is open twice");
        world.opened += 1;
        world.opened_to_write += usize::from(access == Access::Writes);
        let is_hidden = is_expired && access == Access::Reads;
        let slot = if is_hidden { None } else { world.keys.remove(&at) };
        drop(world);
        Key { host: self, at, slot }
    }

    fn replicate(&self, names: &[&Name<'_>], effects: &[u8]) {
        let keys = names.iter().map(|name| name.0);
        let words = std::iter::once(&b"RLOCK.APPLY"[..]).chain(keys).chain([effects]);
        self.write(words.map(<[u8]>::to_vec).collect());
    }

    fn replicate_as_it_came(&self) {
        let words = self.world().caller.words.clone();
        self.write(words);
    }

    fn signal_modified(&self, name: &Name<'_>) {
        self.log_closed(format!("signalled {}", self.named(name.0)));
    }

    fn notify(&self, event: &CStr, name: &Name<'_>) {
        let event = event.to_str().unwrap();
        let takes = self.world().notify_takes;
        self.world().worked += takes;
        self.log_closed(format!("published {event} {}", self.named(name.0)));
    }

    fn gate_of(&self, name: &Name<'_>) -> Gate {
        let mut world = self.world();
        world.gate_asked += 1;
        world.gates.get(name.0).copied().unwrap_or(world.gate)
    }

    fn is_paused(&self) -> bool {
        self.world().is_paused
    }

    fn is_cluster(&self) -> bool {
        self.world().is_cluster
    }
}

impl Caller for MapHost {
    fn client(&self) -> Option<ClientId> {
        self.world().caller.client.map(ClientId::from)
    }

    fn user(&self) -> Rc<[u8]> {
        let world = self.world();
        let user = world.caller.client.and_then(|client| world.users.get(&client));
        user.map_or("app", String::as_str).as_bytes().into()
    }

    fn any_user(&self) -> Rc<[u8]> {
        self.user()
    }

    fn denies_blocking(&self) -> bool {
        self.world().denies_blocking
    }

    fn is_from_primary(&self) -> bool {
        self.world().is_from_primary
    }

    fn is_loading(&self) -> bool {
        self.world().is_loading
    }

    fn is_in_longer(&self) -> bool {
        self.world().channels.is_in_longer
    }

    fn must_answer_later(&self) -> bool {
        self.world().must_answer_later
    }
}

impl Channels for MapHost {
    fn knows_listeners(&self) -> bool {
        !self.world().channels.is_hidden
    }

    fn has_listener(&self, channel: &[u8]) -> bool {
        let channels = &mut self.world().channels;
        channels.asked += 1;
        !channels.is_hidden && channels.listening.contains(channel)
    }

    fn may_publish(&self, user: Option<&[u8]>, channel: &[u8]) -> bool {
        let world = self.world();
        let mut silenced = world.channels.silenced.iter();
        !silenced.any(|(who, of)| Some(who.as_bytes()) == user && of.as_bytes() == channel)
    }

    fn publish_message(&self, channel: &[u8], message: &[u8]) -> bool {
        let world = self.world();
        let is_heard = !world.channels.is_hidden && world.channels.listening.contains(channel);
        drop(world);
        if !is_heard {
            return false;
        }
        let [channel, message] = [channel, message].map(String::from_utf8_lossy);
        let message = self.with_names(&message);
        self.note_replies();
        self.log_closed(format!("told {channel}: {message}"));
        true
    }
}

impl Host for MapHost {
    type Blocked = Handle;

    fn state<T>(&self, work: impl FnOnce(&mut State<Handle>) -> T) -> T {
        work(&mut self.state.borrow_mut())
    }

    fn settings(&self) -> Settings {
        let world = self.world();
        Settings { bounds: world.bounds, detects_deadlocks: world.detects_deadlocks }
    }

    fn now(&self) -> Now {
        self.world().now
    }

    fn monotonic(&self) -> Duration {
        let mut world = self.world();
        let tick = world.tick;
        world.worked += tick;
        world.worked
    }

    fn observe(&self, happening: Happening<'_>) {
        if let Happening::Decided { done, .. } = happening {
            for change in done.changes {
                if let Change::Granted { token, .. } = change {
                    self.world().issued.push(token.get());
                }
            }
        }
        let line = self.seen_line(happening);
        self.log(format!("seen: {line}"));
    }

    fn warn(&self, line: &str) {
        self.log(format!("warned: {line}"));
    }

    fn block(&self, names: &[Name<'_>], waiter: u64) -> Option<Handle> {
        let mut world = self.world();
        let client = world.caller.client?;
        if world.refuses_to_block {
            return None;
        }
        world.parking = Some(waiter);
        let at = names.iter().map(|name| name.0.to_vec()).collect();
        world.waiting.insert(waiter, Waiting { client, is_due: false, at });
        let handle = Handle { waiter, _counted: world.handles.clone() };
        let meanwhile = world.meanwhile.take();
        drop(world);
        self.log_closed(format!("blocked {client}"));
        meanwhile.into_iter().for_each(|happens| happens(self));
        Some(handle)
    }

    fn unblock(&self, Handle { waiter, .. }: Handle) {
        let mut world = self.world();
        assert!(
            world.parking != Some(waiter),
            "a connection is answered in the call that blocks it"
        );
        let client = world.waiting.get_mut(&waiter).map(|waiting| {
            waiting.is_due = true;
            waiting.client
        });
        let replies_at_once = world.replies_at_once;
        let takes_ms = world.told_takes_ms;
        world.now = Now::from_us(world.now.us() + takes_ms * 1000);
        drop(world);
        self.note_replies();
        self.log_closed(format!("unblocked {}", client.unwrap_or_default()));
        if replies_at_once {
            self.deliver(waiter);
        }
    }

    fn may_acquire(&self, user: &[u8], _: &Name<'_>) -> bool {
        let mut world = self.world();
        world.rights_asked += 1;
        !world.denied.iter().any(|denied| denied.as_bytes() == user)
    }

    fn may_observe(&self, user: &[u8], name: &Name<'_>) -> bool {
        self.may_acquire(user, name)
    }

    fn may_acquire_several(&self, user: &[u8], names: &[Name<'_>]) -> bool {
        names.iter().all(|name| self.may_acquire(user, name))
    }

    fn blocks_aside(&self) -> bool {
        self.world().blocks_aside
    }

    fn watch_new_keys(&self) {
        self.world().watches_keys = true;
    }

    fn can_close(&self) -> bool {
        !self.world().cannot_close
    }

    fn watch_commands(&self) {
        self.world().watches_commands = true;
    }

    fn close_lost(&self, during: During) {
        while let Some(client) = self.state(|state| state.manager.closing.next_to_close()) {
            self.log(format!("closes {} ({during:?})", client.get()));
        }
    }

    fn defer(&self, ms: u64, work: Deferred) {
        let mut world = self.world();
        let at_ms = world.now.ms().get() + ms;
        world.deferred.push((at_ms, work));
    }

    fn set_alarm(&self, at: EpochMs) {
        let mut world = self.world();
        world.alarm = Some(world.alarm.map_or(at, |set| set.min(at)));
    }

    fn watch_sleep(&self, is_on: bool) {
        let was_on = std::mem::replace(&mut self.world().watches_sleep, is_on);
        assert_ne!(was_on, is_on, "Redis crashes if what is not subscribed unsubscribes");
        self.log(if is_on { "watches" } else { "watches no more" }.into());
    }

    fn replication(&self) -> Replication {
        let mut world = self.world();
        world.replication_asked += 1;
        let offset =
            world.offset.max(if world.counts_stream { world.stream.len() as u64 } else { 0 });
        Replication { offset, acknowledged: world.acknowledged.clone() }
    }

    fn ask_replicas(&self) {
        assert!(!self.is_paused(), "something is written while the server is paused");
        self.log("asked replicas".into());
    }

    fn has_fault(&self, fault: PlantedFault) -> bool {
        self.world().fault == Some(fault)
    }
}

impl Replies for MapHost {
    fn reply_integer(&self, value: i64) {
        let said = self.number(value);
        self.say(said);
    }

    fn reply_bytes(&self, bytes: &[u8]) {
        self.say(String::from_utf8_lossy(bytes).into_owned());
    }

    fn reply_null(&self) {
        self.say("nil".into());
    }

    fn reply_ok(&self) {
        self.say("OK".into());
    }

    fn reply_waiting(&self) {
        self.say("WAITING".into());
    }

    fn reply_error(&self, line: &str) {
        let line = self.with_names(line);
        self.say(format!("-{line}"));
    }

    fn reply_array(&self, len: usize) {
        self.say(format!("*{len}"));
    }
}

impl MapHost {
    fn seen_line(&self, happening: Happening<'_>) -> String {
        match happening {
            Happening::TooFewReplicas => "too few replicas".into(),
            Happening::Decided { at, done, .. } => {
                let Done { changes, events, reply, pending, .. } = done;
                let (changes, events, pending) = (changes.len(), events.len(), pending.len());
                let (name, reply) = (self.named(at.key), self.reply_line(reply));
                format!(
                    "decided {name} {changes} changes {events} events {pending} pending: {reply}"
                )
            }
            Happening::Replayed(events) => format!("replayed {} events", events.len()),
            Happening::Acquired(reply) => format!("acquired {}", self.reply_line(reply)),
            Happening::Renewed(reply) => format!("renewed {}", self.reply_line(reply)),
            Happening::Answered(wake) if wake.holds > 1 => {
                format!("answered {} with {} holds", self.reply_line(&wake.reply), wake.holds)
            }
            Happening::Answered(wake) => format!("answered {}", self.reply_line(&wake.reply)),
            Happening::Unblocked(_, reply) => format!("unblocked {}", self.reply_line(reply)),
            Happening::Turn { key, owner, .. } => {
                format!("turn {} {}", self.named(key), String::from_utf8_lossy(owner))
            }
            Happening::Waits(_) => "waits".into(),
            Happening::Told => "told".into(),
            Happening::Untold(_) => "untold".into(),
            Happening::Deadlock => "deadlock".into(),
            Happening::GrantedSeveral => "granted several".into(),
            Happening::SearchGivenUp => "search given up".into(),
            Happening::Removed(lock) => format!("removed {:?} {}", lock.event, lock.holds),
        }
    }

    fn reply_line(&self, reply: &Reply) -> String {
        match reply {
            Reply::Granted { token, remaining_ms } => {
                format!("{} for {remaining_ms}", self.number(token.get().cast_signed()))
            }
            Reply::Refused(refusal) => refusal.line(b"k", b"o").split(' ').next().unwrap().into(),
            other => format!("{other:?}"),
        }
    }
}
