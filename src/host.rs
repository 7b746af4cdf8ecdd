//! The server as the engine's host.

use std::ffi::CStr;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rlock_core::grammar::Access;
use rlock_core::manager::LockId;
use rlock_core::{ClientId, EpochMs, Now, WaiterId};
use rlock_engine::reply::Replies;
use rlock_engine::{
    Deferred, During, Gate, Happening, Host, Replication, Settings, acks, blocked, events,
};

use crate::ffi::{self, Blocked, Ctx, Key, Name, Waiting};
use crate::state::{self, State};
use crate::{closing, metrics, settings, timers};

impl Host for Ctx {
    type Name<'n> = Name<'n>;
    type Key<'h> = Key<'h>;
    type Blocked = Blocked;

    fn state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        state::with(work)
    }

    fn settings(&self) -> Settings {
        Settings { bounds: settings::bounds(), detects_deadlocks: settings::detects_deadlocks() }
    }

    fn now(&self) -> Now {
        state::now()
    }

    fn monotonic(&self) -> Duration {
        static BEGAN_AT: OnceLock<Instant> = OnceLock::new();
        BEGAN_AT.get_or_init(Instant::now).elapsed()
    }

    #[inline(always)]
    fn observe(&self, happening: Happening<'_>) {
        if matches!(happening, Happening::Turn { .. }) {
            settings::turn_was_published();
        }
        metrics::observe(happening);
    }

    fn warn(&self, line: &str) {
        self.warn(line);
    }

    fn db(&self) -> i32 {
        self.selected_db()
    }

    fn with_name<T>(&self, id: &LockId, work: impl FnOnce(&Name<'_>) -> T) -> T {
        self.with_name(id.db, &id.key, work)
    }

    fn with_names<T>(&self, db: i32, keys: &[&[u8]], work: impl FnOnce(&[Name<'_>]) -> T) -> T {
        self.with_names(db, keys, work)
    }

    fn open(&self, name: &Name<'_>, access: Access) -> Key<'_> {
        self.open(name, access)
    }

    fn replicate(&self, names: &[&Name<'_>], effects: &[u8]) {
        self.replicate(names, effects);
    }

    fn replicate_as_it_came(&self) {
        self.replicate_as_it_came();
    }

    fn signal_modified(&self, name: &Name<'_>) {
        self.signal_modified(name);
    }

    fn notify(&self, event: &CStr, name: &Name<'_>) {
        self.notify(event, name);
    }

    fn watch_new_keys(&self) {
        self.watch_new_keys(|db, key| events::key_came(&Self::detached(), db, key));
    }

    fn gate_of(&self, name: &Name<'_>) -> Gate {
        self.gate_of(name)
    }

    fn is_paused(&self) -> bool {
        self.is_paused()
    }

    fn is_cluster(&self) -> bool {
        ffi::is_cluster()
    }

    fn client(&self) -> Option<ClientId> {
        self.client().map(ClientId::from)
    }

    fn user(&self) -> Rc<[u8]> {
        self.user_name()
    }

    fn denies_blocking(&self) -> bool {
        self.denies_blocking()
    }

    fn is_from_primary(&self) -> bool {
        self.is_from_primary()
    }

    fn is_loading(&self) -> bool {
        self.is_loading()
    }

    fn must_answer_later(&self) -> bool {
        ffi::tells_at_once() && self.is_nested()
    }

    fn any_user(&self) -> Rc<[u8]> {
        self.any_user_name()
    }

    fn is_in_longer(&self) -> bool {
        self.is_in_longer()
    }

    fn knows_listeners(&self) -> bool {
        self.knows_listeners()
    }

    fn has_listener(&self, channel: &[u8]) -> bool {
        self.has_listener(channel)
    }

    fn have_listeners(&self, channels: &[&[u8]]) -> Vec<bool> {
        self.have_listeners(channels)
    }

    fn may_publish(&self, user: Option<&[u8]>, channel: &[u8]) -> bool {
        user.is_none_or(|user| self.may_publish(user, channel))
    }

    fn publish_message(&self, channel: &[u8], message: &[u8]) -> bool {
        self.publish(channel, message)
    }

    fn block(&self, names: &[Name<'_>], waiter: u64) -> Option<Blocked> {
        self.block::<Waits>(names, waiter)
    }

    fn unblock(&self, blocked: Blocked) {
        blocked.answer();
    }

    fn may_acquire(&self, user: &[u8], name: &Name<'_>) -> bool {
        self.may(user, c"rlock.acquire", self.selected_db(), name)
    }

    fn may_observe(&self, user: &[u8], name: &Name<'_>) -> bool {
        self.may(user, c"rlock.await", self.selected_db(), name)
    }

    fn may_acquire_several(&self, user: &[u8], names: &[Name<'_>]) -> bool {
        self.may_several(user, c"rlock.macquire", self.selected_db(), names)
    }

    fn can_close(&self) -> bool {
        self.can_close()
    }

    fn watch_commands(&self) {
        closing::watch();
    }

    fn close_lost(&self, during: During) {
        closing::settle(self, during);
    }

    fn defer(&self, ms: u64, work: Deferred) {
        ffi::after(
            ms,
            match work {
                Deferred::Sweep => |ctx| rlock_engine::run_deferred(ctx, Deferred::Sweep),
                Deferred::Observers => |ctx| rlock_engine::run_deferred(ctx, Deferred::Observers),
                Deferred::Retry => |ctx| rlock_engine::run_deferred(ctx, Deferred::Retry),
                Deferred::Answer => |ctx| rlock_engine::run_deferred(ctx, Deferred::Answer),
                Deferred::Search => |ctx| rlock_engine::run_deferred(ctx, Deferred::Search),
                Deferred::Unsubscribe => {
                    |ctx| rlock_engine::run_deferred(ctx, Deferred::Unsubscribe)
                }
                Deferred::Greet => |ctx| rlock_engine::run_deferred(ctx, Deferred::Greet),
            },
        );
    }

    fn set_alarm(&self, at: EpochMs) {
        timers::set(at);
    }

    fn watch_sleep(&self, is_on: bool) {
        ffi::before_sleep(is_on.then_some(acks::before_sleep));
    }

    fn replication(&self) -> Replication {
        self.replication()
    }

    fn ask_replicas(&self) {
        self.ask_replicas();
    }
}

impl Replies for Ctx {
    fn reply_integer(&self, value: i64) {
        self.reply_integer(value);
    }

    fn reply_null(&self) {
        self.reply_null();
    }

    fn reply_bytes(&self, bytes: &[u8]) {
        self.reply_bytes(bytes);
    }

    fn reply_ok(&self) {
        self.reply_ok();
    }

    fn reply_waiting(&self) {
        self.reply_waiting();
    }

    fn reply_error(&self, line: &str) {
        self.reply_error(line);
    }

    fn reply_array(&self, len: usize) {
        self.reply_array(len);
    }
}

/// The server's callbacks for blocked connections.
struct Waits;

impl Waiting for Waits {
    fn on_key_ready(waiter: u64) {
        blocked::key_came(&Ctx::detached(), WaiterId::from(waiter));
    }

    fn reply(ctx: &Ctx, waiter: u64) {
        blocked::reply(ctx, WaiterId::from(waiter));
    }

    fn on_disconnect(waiter: u64) {
        blocked::gone(&Ctx::detached(), WaiterId::from(waiter));
    }

    fn on_reply_flushed(waiter: u64, is_lost: bool) {
        blocked::over(&Ctx::detached(), WaiterId::from(waiter), is_lost);
    }
}
