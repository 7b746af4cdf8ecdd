//! Where an owner stands in a queue, and who is in its way.

use crate::servers::{Trouble, Where, ask_server_of_key};
use crate::snapshot::{Holder, Lock, Name, info_of, lock_of};
use crate::view::short;

/// How many holders and waiters of a key are looked at.
const NAMED: usize = 3;

/// The state of one of the keys that an owner wants.
pub(crate) struct Place {
    pub(crate) key: Name,
    /// Counted from 1; `None` if the owner does not wait there.
    pub(crate) place: Option<u64>,
    /// Whether it wants WRITE.
    is_write: bool,
    pub(crate) lock: Lock,
}

/// A key that an owner wants, and whether it wants WRITE.
pub(crate) type Wanted = (Name, bool);

impl Place {
    /// The place where the owner waits; if it does not wait, the first key that somebody else holds
    /// or waits for. With the name of the server that has the key.
    ///
    /// # Errors
    /// The servers' error.
    pub(crate) fn find(
        at: &Where,
        keys: &[Wanted],
        owner: &str,
    ) -> Result<(String, Place), Trouble> {
        let servers = at.primaries()?;
        let (server, _, found) = ask_server_of_key(&servers, |connection| {
            let mut first: Option<Place> = None;
            for (key, is_write) in keys {
                let mut ask = redis::cmd("RLOCK.PLACE");
                let place: Option<u64> = ask.arg(&key.0).arg(owner).query(connection)?;
                // At a key that is reserved for the owner, its place is 0: it does not wait there.
                let place = place.filter(|place| *place > 0);
                let lock = lock_of(&info_of(key, NAMED, NAMED).query(connection)?)?;
                let found = Place { key: key.clone(), place, is_write: *is_write, lock };
                if place.is_some() {
                    return Ok(Some(found));
                }
                if first.as_ref().is_none_or(|first| !first.is_busy(owner) && found.is_busy(owner))
                {
                    first = Some(found);
                }
            }
            Ok(first)
        })?;
        Ok((server.name.clone(), found.ok_or("no key is named")?))
    }

    /// Whether somebody else keeps the owner out, or waits.
    fn is_busy(&self, owner: &str) -> bool {
        let is_other = |hold: &Holder| hold.owner.0 != owner.as_bytes();
        self.lock.length > 0 || self.is_held_against() && self.lock.holders.iter().any(is_other)
    }

    /// Whether the holders exclude what the owner wants.
    fn is_held_against(&self) -> bool {
        self.is_write || self.lock.mode == "write"
    }

    /// Who is ahead of the owner.
    pub(crate) fn in_the_way(&self) -> String {
        if !self.is_held_against()
            && let Some(first) = self.lock.waiters.iter().find(|wait| !wait.has_turn)
        {
            return format!(
                "{} has waited for {} for {}",
                first.owner,
                first.mode,
                short(first.waited)
            );
        }
        match self.lock.holders.as_slice() {
            [] => "nobody holds it".to_owned(),
            [one] if self.lock.holder_count < 2 => {
                format!("{} has held {} for {}", one.owner, one.mode, short(one.held))
            }
            [first, ..] => {
                let more = self.lock.holder_count.saturating_sub(1);
                format!("{} and {more} more hold {}", first.owner, first.mode)
            }
        }
    }
}
