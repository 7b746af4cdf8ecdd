//! A seat: one owner of one key in one mode, at one server. In the whole process, one request at a
//! time has it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use tokio::sync::{OwnedMutexGuard, watch};

use crate::Inner;
use crate::error::Error;
use crate::options::Options;
use crate::tenure::{State, Tenure};
use crate::util::lock;

/// The space of the server, the key, the owner and the mode.
type Identity = (String, Vec<u8>, String, &'static str);

type Registry = HashMap<Identity, Weak<Seat>>;

/// All seats of this process: two lockers that use one owner name must not both assume depth 1.
fn registry() -> MutexGuard<'static, Registry> {
    static SEATS: OnceLock<Mutex<Registry>> = OnceLock::new();
    lock(SEATS.get_or_init(Mutex::default))
}

pub(crate) struct Seat {
    identity: Identity,
    pub(crate) key: Vec<u8>,
    /// Locked by the request that has the seat.
    pub(crate) level: Arc<tokio::sync::Mutex<Level>>,
    /// Whether the request that has the seat is being undone.
    pub(crate) is_undone: AtomicBool,
    /// Set when the caller of the request that has the seat has dropped its future; the request's
    /// task then undoes it.
    pub(crate) caller_gone: Mutex<Option<watch::Receiver<bool>>>,
}

/// The seat, taken by one request, which may change the level.
pub(crate) type SeatGuard = OwnedMutexGuard<Level>;

/// The owner's hold of the lock.
#[derive(Default)]
pub(crate) struct Level {
    pub(crate) depth: u32,
    pub(crate) tenure: Option<Arc<Tenure>>,
}

impl Level {
    pub(crate) fn is_held(&self) -> bool {
        self.tenure.as_ref().is_some_and(|tenure| tenure.is_held())
    }

    pub(crate) fn is_of(&self, tenure: &Arc<Tenure>) -> bool {
        self.tenure.as_ref().is_some_and(|now| Arc::ptr_eq(now, tenure))
    }

    /// Records that a level has ended.
    pub(crate) fn end(&mut self, tenure: &Arc<Tenure>, outcome: &Result<(), Error>) {
        self.depth -= 1;
        if matches!(outcome, Err(Error::Lost)) {
            tenure.lose();
        }
        if self.depth == 0 {
            self.tenure = None;
            let line = lock(&tenure.line).take();
            tenure.state.send_if_modified(|state| {
                let is_news = *state == State::Held;
                if is_news {
                    *state = State::Released;
                    tenure.span.ended(false);
                }
                is_news
            });
            match line {
                Some(line) if outcome.is_ok() => line.put(),
                _ => {} // the connection is closed, and what may still be tied to it ends
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = registry();
        if seats.get(&self.identity).is_some_and(|seat| seat.strong_count() == 0) {
            seats.remove(&self.identity);
        }
    }
}

impl Seat {
    pub(crate) fn of(inner: &Inner, key: &[u8], options: &Options) -> Arc<Seat> {
        // An owner that the user did not name is unique, so its seat needs no space.
        let space = inner.servers.space.get().cloned().unwrap_or_default();
        let identity = (space, key.to_vec(), options.owner.clone(), options.mode());
        let mut seats = registry();
        if let Some(seat) = seats.get(&identity).and_then(Weak::upgrade) {
            return seat;
        }
        let seat = Arc::new(Seat {
            identity: identity.clone(),
            key: key.to_vec(),
            level: Arc::default(),
            is_undone: AtomicBool::new(false),
            caller_gone: Mutex::default(),
        });
        seats.insert(identity, Arc::downgrade(&seat));
        seat
    }
}
