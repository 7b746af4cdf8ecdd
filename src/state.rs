//! What this server remembers outside of keys. Used from the server's main thread only.

use std::cell::RefCell;

use std::collections::HashMap;

use rlock_core::{ClientId, Now, Tokens, WaiterId};

use crate::alarm::Alarm;
use crate::memories::Memories;
use crate::parking::Parked;
use crate::publish::Gone;

/// The memory of one server process.
#[derive(Default)]
pub struct State {
    /// Where tokens come from.
    pub tokens: Tokens,
    /// Whether this server may decide about locks.
    pub is_primary: bool,
    /// Its data is being read: what commands say was decided before.
    pub is_loading: bool,
    /// Locks that left their names and were not published yet.
    pub gone: Vec<Gone>,
    /// The lock that the module itself removes from its name, by [`crate::ffi::Key::address`]; 0
    /// for none.
    pub removing: usize,
    /// Who waits, whose hold is tied to a connection.
    pub memories: Memories,
    /// Connections that the server keeps parked for us.
    pub parked: HashMap<WaiterId, Parked>,
    /// The waits of parked connections, until the server has forgotten them, by connection.
    pub waits: HashMap<ClientId, WaiterId>,
    /// Parked connections that may have closed a cycle of waits, which nobody has looked for yet.
    pub unsearched: Vec<WaiterId>,
    /// The last number given to a parked connection.
    pub last_waiter: u64,
    /// The one timer.
    pub alarm: Option<Alarm>,
    /// Connections to be closed, because their sessions ended with this server's time as primary.
    pub lost: Vec<ClientId>,
    /// What was warned of when the server's settings were looked at last.
    pub warnings: Vec<String>,
    /// A look at marked locks is on its way.
    pub is_look_due: bool,
    /// Kept from one effect to the next, so that writing one allocates nothing.
    pub effect: Vec<u8>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Looks at the state, or changes it. `work` may not call the server, which could call back to
/// here.
pub fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(work)
}

/// The server's clock.
pub fn now() -> Now {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Now::from_us(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
