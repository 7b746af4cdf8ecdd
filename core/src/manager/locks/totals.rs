//! The numbers of waiters, and of holds that are tied to connections.

use crate::Volatile;
use crate::value::count::less;

/// The numbers of waiters and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocked connections.
    pub waiters: usize,
    /// Waits whose reply will be a message.
    pub told: usize,
    /// Tickets.
    pub tickets: usize,
    /// Sessions, including those that begin once their grants are confirmed.
    pub sessions: usize,
    /// Callers whose grants wait for acknowledgments; a caller that asked for several locks counts
    /// once for each.
    pub pending: usize,
    /// Places of groups.
    pub groups: usize,
}

impl Totals {
    pub(super) fn of(volatile: &Volatile) -> Self {
        Self {
            waiters: volatile.queue.blocked_count(),
            told: volatile.queue.told_count(),
            tickets: volatile.queue.ticket_count(),
            sessions: volatile.session_count(),
            pending: volatile.unsent.pending_alone(),
            groups: volatile.queue.group_count(),
        }
    }

    /// The totals with `before` subtracted and `after` added.
    pub(super) fn moved(self, before: Self, after: Self) -> Self {
        let moved =
            |total: usize, before: usize, after: usize| less(total, before).saturating_add(after);
        Self {
            waiters: moved(self.waiters, before.waiters, after.waiters),
            told: moved(self.told, before.told, after.told),
            tickets: moved(self.tickets, before.tickets, after.tickets),
            sessions: moved(self.sessions, before.sessions, after.sessions),
            pending: moved(self.pending, before.pending, after.pending),
            groups: moved(self.groups, before.groups, after.groups),
        }
    }

    /// The number of waits, without those of groups.
    pub(in crate::manager) fn waiting(self) -> usize {
        self.waiters.saturating_add(self.told).saturating_add(self.tickets)
    }

    /// Whether somebody waits here for a reply.
    pub(super) fn has_blocked(self) -> bool {
        self.waiters > 0 || self.told > 0 || self.groups > 0
    }

    /// Whether somebody waits here, in any way.
    pub(super) fn has_queue(self) -> bool {
        self.has_blocked() || self.tickets > 0
    }
}
