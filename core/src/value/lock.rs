//! One lock: who holds it, and the only function that changes it.

use crate::value::count::less;
use crate::value::holders::Holders;
use crate::value::readers::Readers;
use crate::{Change, End, EpochMs, Event, Hold, Levels, Mode, Now, Release, Token};

/// Who holds a lock: the value at a key, which is saved, replicated and compared.
///
/// A [`Change`] says everything, so a replica that replays the changes has the same lock:
///
/// ```
/// use rlock_core::{Change, EpochMs, Event, Lock, Mode, Now, Token};
///
/// let granted = Change::Granted {
///     owner: b"ann".into(),
///     mode: Mode::Write,
///     token: Token::new(7).unwrap(),
///     deadline: EpochMs::new(5_000).unwrap(),
/// };
/// let (mut lock, mut replica) = (Lock::default(), Lock::default());
/// assert_eq!(lock.replay(&granted), Some(Event::Acquired));
/// replica.replay(&granted);
/// assert_eq!(lock, replica);
///
/// assert_eq!(lock.mode_at(Now::from_ms(4_999)), Some(Mode::Write));
/// assert_eq!(lock.mode_at(Now::from_ms(5_000)), None, "expired, though nobody removed it yet");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pub(crate) holders: Holders,
}

impl From<Holders> for Lock {
    fn from(holders: Holders) -> Self {
        Self { holders }
    }
}

impl Lock {
    /// Makes one change, and returns the event to publish. A lock changes in no other way, neither
    /// here nor on a replica. A change to a hold that does not exist changes nothing.
    pub fn replay(&mut self, change: &Change<'_>) -> Option<Event> {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                let reads = || self.holders.any_hold(owner, Mode::Read).is_some();
                let is_upgrade = *mode == Mode::Write && reads();
                let hold = Hold { token: *token, deadline: *deadline, depth: 1 };
                self.holders.insert(owner, *mode, hold);
                Some(if is_upgrade { Event::Upgraded } else { Event::Acquired })
            }
            Change::Updated { token, depth, deadline } => {
                self.holders.set(*token, *depth, *deadline);
                None
            }
            Change::Ended { token, by } => {
                let keeps_read = self.holders.remove(*token)?;
                Some(match by {
                    End::Released if keeps_read => Event::Downgraded,
                    End::Released => Event::Released,
                    End::Expired => Event::Expired,
                    End::Disconnected => Event::Disconnected,
                    End::Unconfirmed => Event::Unconfirmed,
                    End::Forced => Event::Forced,
                })
            }
        }
    }

    /// Ends the hold that a replicated `RLOCK.RELEASE` names
    /// ([`crate::Effects::is_request_enough`]). Does not read the clock: the hold existed on the
    /// primary. Calling it again changes nothing.
    pub fn replay_release(&mut self, ask: &Release<'_>) -> Option<Event> {
        let (Hold { token, .. }, _) = self.release_target(ask)?;
        self.replay(&Change::Ended { token, by: End::Released })
    }

    /// Nobody holds it, so there is nothing to keep.
    pub fn is_free(&self) -> bool {
        self.holders.is_free()
    }

    /// Number of holds, expired or not; an owner that holds both modes counts twice.
    pub fn hold_count(&self) -> usize {
        self.holders.len()
    }

    /// Number of holds that have not expired.
    pub fn hold_count_at(&self, now: Now) -> usize {
        less(self.holders.len(), self.holders.count_over(now))
    }

    /// Approximate number of bytes on the heap, without the `Lock` itself.
    pub fn heap_bytes(&self) -> usize {
        self.holders.heap_bytes()
    }

    /// When the last hold expires.
    pub fn latest_deadline(&self) -> Option<EpochMs> {
        self.holders.latest_deadline()
    }

    /// Every hold, expired or not, in the order of their tokens.
    pub fn holds(&self) -> impl Iterator<Item = (&[u8], Mode, Hold)> {
        self.holders.iter()
    }

    /// The holds that have not expired, in the order of their tokens.
    pub fn holds_at(&self, now: Now) -> impl Iterator<Item = (&[u8], Mode, Hold)> {
        self.holders.iter().filter(move |(_, _, hold)| !hold.deadline.is_over_at(now))
    }

    /// One owner's hold, unless it has expired.
    pub fn hold_at(&self, owner: &[u8], mode: Mode, now: Now) -> Option<Hold> {
        self.holders.hold(owner, mode).filter(|hold| !hold.deadline.is_over_at(now))
    }

    /// Whether a hold of this mode has this token and has not expired.
    pub fn has_token_at(&self, token: Token, mode: Mode, now: Now) -> bool {
        self.holders
            .by_token(token)
            .is_some_and(|(_, held, hold)| held == mode && !hold.deadline.is_over_at(now))
    }

    /// The hold that excludes everybody but its owner, unless it has expired.
    pub fn writer_at(&self, now: Now) -> Option<(&[u8], Hold)> {
        self.holders.writer().filter(|(_, hold)| !hold.deadline.is_over_at(now))
    }

    /// The mode in which the lock is held now; `None` if it is free.
    pub fn mode_at(&self, now: Now) -> Option<Mode> {
        if self.writer_at(now).is_some() {
            return Some(Mode::Write);
        }
        self.holders.latest_deadline().filter(|at| !at.is_over_at(now)).map(|_| Mode::Read)
    }

    /// Checks that every index agrees with the holds.
    ///
    /// # Errors
    /// Says which index does not; for tests.
    pub fn check(&self) -> Result<(), String> {
        self.holders.shared().map_or(Ok(()), Readers::check)
    }

    /// The holds of this owner, WRITE first; only the one of this mode, or with this token, if they
    /// are given.
    #[inline]
    pub fn holds_of(
        &self,
        owner: &[u8],
        mode: Option<Mode>,
        token: Option<Token>,
    ) -> impl Iterator<Item = Hold> {
        let modes = [Mode::Write, Mode::Read].into_iter();
        modes
            .filter(move |held| mode.is_none_or(|only| only == *held))
            .filter_map(|held| self.holders.hold(owner, held))
            .filter(move |hold| token.is_none_or(|only| only == hold.token))
    }

    /// The hold that a request to release names, and its remaining depth.
    #[inline]
    pub(crate) fn release_target(&self, ask: &Release<'_>) -> Option<(Hold, u16)> {
        let hold = self.holds_of(ask.owner, ask.mode, ask.token).next()?;
        let left = match ask.levels {
            Levels::One => hold.depth.saturating_sub(1),
            Levels::All => 0,
            Levels::DownTo(depth) => depth.min(hold.depth),
        };
        Some((hold, left))
    }
}
