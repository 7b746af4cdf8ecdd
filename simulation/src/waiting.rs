//! A wait, on the side of its server.

use rlock_core::{Mode, Token, WaiterId};

use crate::asked::{Asked, Pending};
use crate::running::Running;
use crate::words::Said;

/// A blocked connection, until the server has forgotten that it was.
#[derive(Debug)]
pub struct Waiting {
    /// The number of its wait.
    pub waiter: WaiterId,
    /// What it asked.
    pub asked: Asked,
    /// What it asked of the other locks, if it waits for more than one.
    pub others: Vec<Asked>,
    /// It asked for several locks, even if it named one only.
    pub is_for_several: bool,
    /// It only observes the lock, and knows of this token: 0 is none.
    pub observes: Option<u64>,
    /// It has its reply; the server forgets the wait in the next iteration of its loop.
    pub is_answered: bool,
    /// The reply, which leaves when the server forgets the wait.
    pub aside: Option<Said>,
    /// It asked to renew, this mode or all.
    pub renewal: Option<Option<Mode>>,
    /// Only what has this token.
    pub renews: Option<Token>,
    /// Its pending grants and renewals: for which of the locks, by its place in the request.
    pub pending: Vec<(usize, Pending)>,
    /// The grant in it: one token for each of the locks, in order.
    pub granted: Vec<Token>,
    /// An error took the place of the reply.
    pub is_lost: bool,
}

impl Waiting {
    /// The running command waits with this number.
    pub(crate) fn new(waiter: WaiterId, running: &Running, asked: Asked) -> Self {
        Self {
            waiter,
            asked,
            others: running.others.clone(),
            is_for_several: running.is_for_several,
            observes: running.observes,
            is_answered: false,
            aside: None,
            renewal: running.renewal,
            renews: running.renews,
            pending: Vec::new(),
            granted: Vec::new(),
            is_lost: false,
        }
    }

    /// Takes the place of an older wait: it counts as arrived as early, and waits for the same.
    pub(crate) fn takes_place(&mut self, old: Self) {
        self.pending.extend(old.pending);
        let earlier = std::iter::once(&old.asked).chain(&old.others);
        let asks = std::iter::once(&mut self.asked).chain(&mut self.others);
        for (asked, earlier) in asks.zip(earlier) {
            asked.arrival = earlier.arrival;
            asked.had_ticket |= earlier.had_ticket;
            asked.upgrade |= earlier.upgrade;
        }
    }

    /// It asks for the same keys in the same modes, for the same owner, in whatever order.
    pub fn is_as(&self, other: &Self) -> bool {
        let kind = |one: &Self| (one.asked.of_several, one.renewal, one.observes.is_some());
        // Each of several locks is wanted in a mode: READ with a limit is a mode of its own.
        let limits = |one: &Asked, other: &Asked| !one.of_several || one.limit == other.limit;
        let same = |one: &Asked, other: &Asked| {
            limits(one, other)
                && (one.db, &one.key, &one.owner, one.mode)
                    == (other.db, &other.key, &other.owner, other.mode)
        };
        kind(self) == kind(other)
            && self.observes.is_none()
            && self.asks().count() == other.asks().count()
            && self.asks().all(|one| other.asks().any(|other| same(one, other)))
    }

    /// What it asked of each of the locks.
    pub fn asks(&self) -> impl Iterator<Item = &Asked> {
        std::iter::once(&self.asked).chain(&self.others)
    }
}
