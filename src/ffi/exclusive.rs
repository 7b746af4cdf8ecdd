//! What only the thread that the server lets into the module uses.

use std::cell::{OnceCell, RefCell};

/// A value for whoever is in the module, made when it is first used.
///
/// Not a `thread_local!`: a thread of another module that calls a command, with the server's lock,
/// would get a value of its own, and a pair of requests takes 200 instructions more.
pub struct Exclusive<T>(OnceCell<RefCell<T>>);

// SAFETY: one thread at a time is in here. The server calls the module from its main thread, or
// lets another module's thread call a command while that one has the server's lock, for which the
// main thread waits. Only a value's `free` runs beside that, and uses nothing of this. The module
// starts no thread.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T: Default> Exclusive<T> {
    /// Nothing is made yet.
    pub const fn empty() -> Self {
        Self(OnceCell::new())
    }

    /// Accesses the value. `work` must not come back here.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.get_or_init(RefCell::default).borrow_mut())
    }
}
