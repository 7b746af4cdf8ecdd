//! Who may enter.

use rlock_core::Mode;

use super::{Hold, Naive, Waiting};

impl Waiting {
    pub(super) fn asked(&self) -> Asked<'_> {
        let Self { mode, upgrade, limit, .. } = *self;
        Asked { owner: &self.owner, mode, upgrade, limit }
    }
}

/// What somebody wants.
pub(super) struct Asked<'a> {
    pub owner: &'a [u8],
    pub mode: Mode,
    pub upgrade: bool,
    pub limit: Option<u32>,
}

impl Naive {
    /// The latest deadline of the holds that exclude this request.
    pub(super) fn blocked_until(&self, owner: &[u8], mode: Mode, upgrade: bool) -> Option<u64> {
        let excludes = |hold: &&Hold| Self::excludes(hold, owner, mode, upgrade);
        self.holds.iter().filter(excludes).map(|hold| hold.deadline).max()
    }

    fn excludes(hold: &Hold, owner: &[u8], mode: Mode, upgrade: bool) -> bool {
        match mode {
            Mode::Read => hold.owner != owner && hold.mode == Mode::Write,
            Mode::Write => hold.owner != owner || !upgrade,
        }
    }

    /// How many other owners hold READ, or have a turn to READ among this many first places.
    pub(super) fn others(&self, owner: &[u8], places: usize) -> usize {
        let reads = |hold: &&Hold| hold.owner != owner && hold.mode == Mode::Read;
        let turns = |one: &&Waiting| one.is_turn && one.owner != owner && one.mode == Mode::Read;
        let first = self.queue.iter().take(places);
        self.holds.iter().filter(reads).count() + first.filter(turns).count()
    }

    /// Whether holds keep this request out, or as many other owners as its limit allows.
    pub(super) fn is_shut(
        &self,
        owner: &[u8],
        mode: Mode,
        upgrade: bool,
        limit: Option<u32>,
    ) -> bool {
        let is_full = limit.is_some_and(|limit| self.others(owner, usize::MAX) >= limit as usize);
        is_full || self.blocked_until(owner, mode, upgrade).is_some()
    }

    /// Who is served before this place, or before a newcomer: the turns, and the line.
    pub(super) fn ahead(&self, place: Option<usize>) -> (Vec<&Waiting>, Vec<&Waiting>) {
        let own = place.map(|place| &self.queue[place]);
        let before = &self.queue[..place.unwrap_or(self.queue.len())];
        let line = before.iter().filter(|one| !one.is_turn).collect();
        match own {
            Some(own) if own.is_turn => {
                (before.iter().filter(|one| one.is_turn).collect(), Vec::new())
            }
            _ => (self.queue.iter().filter(|one| one.is_turn).collect(), line),
        }
    }

    pub(super) fn estimated_wait_ms(
        &self,
        asked: &Asked<'_>,
        passes_line: bool,
        place: Option<usize>,
    ) -> Option<u64> {
        let (turns, line) = self.ahead(place);
        if !turns.is_empty() || !line.is_empty() && !passes_line {
            return None;
        }
        let is_tied = self.holds.iter().any(|hold| {
            hold.session.is_some() && Self::excludes(hold, asked.owner, asked.mode, asked.upgrade)
        });
        // Turns behind the request's own give way to it.
        let places = place.filter(|place| self.queue[*place].is_turn).unwrap_or(usize::MAX);
        let too_many = asked.limit.map_or(0, |limit| {
            (self.others(asked.owner, places) + 1).saturating_sub(limit as usize)
        });
        let until = match (self.blocked_until(asked.owner, asked.mode, asked.upgrade), too_many) {
            (until, 0) => until.filter(|_| !is_tied),
            (None, 1) => {
                let unkept = self.holds.iter().filter(|hold| hold.session.is_none());
                unkept.map(|hold| hold.deadline).min()
            }
            _ => None,
        };
        until.map(|until| (until * 1000 - self.now_us).div_ceil(1000))
    }
}
