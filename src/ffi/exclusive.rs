//! Values that only the thread uses that is currently inside the module.

use std::cell::{OnceCell, RefCell};

/// A value for the thread that is currently inside the module, created on first use.
///
/// It is not a `thread_local!`: another module's thread that calls a command, with the server's
/// lock, would get a value of its own, and a pair of requests would take 200 instructions more.
pub struct Exclusive<T>(OnceCell<RefCell<T>>);

// SAFETY: one thread at a time is inside the module. The server calls it from its main thread; or
// another module's thread calls a command while it has the server's lock, for which the main thread
// waits. Only a value's `free` may run in parallel, and it uses none of these. The module starts no
// thread.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T: Default> Exclusive<T> {
    /// Nothing is made yet.
    pub const fn empty() -> Self {
        Self(OnceCell::new())
    }

    /// Accesses the value. `work` must not call this function again.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.get_or_init(RefCell::default).borrow_mut())
    }
}
