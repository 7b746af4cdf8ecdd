//! What this server remembers outside of keys. Used from the server's main thread only.

use std::cell::RefCell;

use rlock_core::{Now, Tokens};

use crate::publish::Gone;

/// The memory of one server process.
#[derive(Default)]
pub struct State {
    /// Where tokens come from.
    pub tokens: Tokens,
    /// Whether this server may decide about locks.
    pub is_primary: bool,
    /// Locks that left their names and were not published yet.
    pub gone: Vec<Gone>,
    /// It is the module itself that removes a lock from its name.
    pub is_removing: bool,
    /// Kept from one effect to the next, so that writing one allocates nothing.
    pub effect: Vec<u8>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Looks at the state, or changes it. `work` may not call the server, which could call back to here.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(work)
}

/// The server's clock.
pub fn now() -> Now {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Now::from_us(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
