//! What this server remembers outside keys.

use std::collections::HashMap;

use rlock_core::manager::Manager;
use rlock_core::{Now, WaiterId};

use crate::ffi::{self, Blocked, Exclusive};

/// The memory of one server process.
#[derive(Default)]
pub struct State {
    /// The lock manager.
    pub manager: Manager,
    /// The server's handles of blocked connections without a reply.
    pub blocked: HashMap<WaiterId, Blocked, foldhash::fast::RandomState>,
    /// Kept from one effect to the next, so that writing one allocates nothing.
    pub effect: Vec<u8>,
}

impl State {
    /// The buffer for effects keeps so many bytes: one of a hundred thousand holds that are ended
    /// together had megabytes.
    const EFFECT_KEPT: usize = 64 << 10;

    /// Takes the buffer for effects back.
    pub fn keep_effect(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        bytes.shrink_to(Self::EFFECT_KEPT);
        self.effect = bytes;
    }
}

static STATE: Exclusive<State> = Exclusive::empty();

/// Accesses the state. `work` must not call the server, which could call back.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(work)
}

/// The server's clock.
pub fn now() -> Now {
    Now::from_us(ffi::epoch_us())
}
