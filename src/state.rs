//! What this server remembers outside of keys. Used from the server's main thread only.

use std::cell::RefCell;
use std::collections::HashMap;

use rlock_core::manager::Manager;
use rlock_core::{Now, WaiterId};

use crate::ffi::{self, Blocked};

/// The memory of one server process.
#[derive(Default)]
pub struct State {
    /// Who waits, whose hold is tied to a connection, what comes due: the judgement.
    pub manager: Manager,
    /// The server's handles of blocked connections that were not answered yet.
    pub blocked: HashMap<WaiterId, Blocked, foldhash::fast::RandomState>,
    /// The lock that the module itself removes from its name, by [`crate::ffi::Key::address`]; 0
    /// for none.
    pub removing: usize,
    /// Kept from one effect to the next, so that writing one allocates nothing.
    pub effect: Vec<u8>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Sees the state, or changes it. `work` may not call the server, which could call back to here.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(work)
}

/// The server's clock.
pub fn now() -> Now {
    Now::from_us(ffi::epoch_us())
}
