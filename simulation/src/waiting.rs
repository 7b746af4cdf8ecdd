//! A wait, on the side of its server.

use rlock_core::{Mode, Token, WaiterId};

use crate::asked::{Asked, Pending};
use crate::running::Running;
use crate::words::Said;

/// A blocked connection, until the server has unblocked it.
#[derive(Debug)]
pub struct Waiting {
    /// The number of its wait.
    pub waiter: WaiterId,
    /// Its request.
    pub asked: Asked,
    /// Its requests for the other locks, if it waits for more than one.
    pub others: Vec<Asked>,
    /// Whether it asked for several locks, even if it named only one.
    pub is_for_several: bool,
    /// The token that it knows of, if it is an observer: 0 is none.
    pub observes: Option<u64>,
    /// Whether it has its reply; the server unblocks it in the next loop iteration.
    pub is_answered: bool,
    /// The reply, which leaves when the server unblocks it.
    pub aside: Option<Said>,
    /// Set if it asked to renew: the mode, or `Some(None)` for all modes.
    pub renewal: Option<Option<Mode>>,
    /// If set, only the hold with this token.
    pub renews: Option<Token>,
    /// Its pending grants and renewals, each with the index of the lock in the request.
    pub pending: Vec<(usize, Pending)>,
    /// The grant in its reply: one token for each of the locks, in order.
    pub granted: Vec<Token>,
    /// Whether an error replaced the reply.
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

    /// Replaces an older wait: it counts as having arrived as early, and waits for the same.
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

    /// Whether both ask for the same keys in the same modes, for the same owner, in any order.
    pub fn is_as(&self, other: &Self) -> bool {
        let kind = |one: &Self| (one.asked.of_several, one.renewal, one.observes.is_some());
        // Each of several locks has a mode: READ with a limit counts as a mode of its own.
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

    /// Its request for each of the locks.
    pub fn asks(&self) -> impl Iterator<Item = &Asked> {
        std::iter::once(&self.asked).chain(&self.others)
    }
}
