//! What this server stores outside keys.

use rlock_core::Now;

use crate::ffi::{self, Blocked, Exclusive};

/// The state of one server process.
pub type State = rlock_engine::State<Blocked>;

static STATE: Exclusive<State> = Exclusive::empty();

/// Accesses the state. `work` must not call the server, which could call back.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(work)
}

/// The server's clock.
pub fn now() -> Now {
    Now::from_us(ffi::epoch_us())
}
