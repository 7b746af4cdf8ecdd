//! The server as the engine's host. `ffi` implements the traits that [`Host`] extends.

use std::slice;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rlock_core::{EpochMs, Now, WaiterId};
use rlock_engine::{
    Deferred, During, Happening, Host, Replication, Settings, acks, blocked, events,
};

use crate::ffi::{self, Blocked, Ctx, Name, Waiting};
use crate::state::{self, State};
use crate::{closing, metrics, settings, timers};

impl Host for Ctx {
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

    fn watch_new_keys(&self) {
        self.watch_new_keys(|db, key| events::key_came(&Self::detached(), db, key));
    }

    fn block(&self, names: &[Name<'_>], waiter: u64) -> Option<Blocked> {
        self.block::<Waits>(names, waiter)
    }

    fn blocks_aside(&self) -> bool {
        Self::blocks_aside()
    }

    fn unblock(&self, blocked: Blocked) {
        blocked.answer();
    }

    fn may_acquire(&self, user: &[u8], name: &Name<'_>) -> bool {
        self.may(user, c"rlock.acquire", None, slice::from_ref(name))
    }

    fn may_observe(&self, user: &[u8], name: &Name<'_>) -> bool {
        self.may(user, c"rlock.await", None, slice::from_ref(name))
    }

    fn may_acquire_several(&self, user: &[u8], names: &[Name<'_>]) -> bool {
        self.may(user, c"rlock.macquire", Some(names.len()), names)
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
