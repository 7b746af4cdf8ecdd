//! Releasing and renewing; departing before a grant was read.

use rlock_core::{End, Kind, Levels, Release, Renew, WaiterId};

use super::told::{Said, Told};
use super::{Hold, Naive, Unheard, after};

impl Naive {
    pub fn leave(&mut self, waiter: WaiterId) {
        self.queue.retain(|one| ![Kind::Blocked(waiter), Kind::Told(waiter)].contains(&one.kind));
        self.take_back_tie(waiter);
        let Some(place) = self.unheard.iter().position(|grant| grant.waiter == waiter) else {
            return;
        };
        let Unheard { token, .. } = self.unheard[place];
        // The depth that the hold has because of the other requests.
        let with = self.depth_by(token, |_| true).max(0);
        let without = self.depth_by(token, |grant| grant.waiter != waiter).max(0);
        (without..with).for_each(|_| self.revoked.push(token));
        let gone = self.unheard.remove(place);
        let is_first = !self.unheard[..place].iter().any(|grant| grant.token == token);
        let is_of_hold = |grant: &&mut Unheard| grant.token == token;
        if is_first {
            if let Some(next) = self.unheard[place..].iter_mut().find(is_of_hold) {
                next.before = gone.before.min(gone.most);
            }
        } else if let Some(last) = self.unheard[..place].iter_mut().rev().find(is_of_hold) {
            last.most = last.most.min(gone.most);
        }
    }

    /// The reply was read: all grants of that hold are final.
    pub fn answered(&mut self, waiter: WaiterId) {
        let grant = self.unheard.iter().find(|grant| grant.waiter == waiter);
        if let Some(Unheard { token, .. }) = grant.copied() {
            self.confirm(token);
        }
        self.hears_of_tie(waiter);
    }

    pub(super) fn release(&mut self, ask: &Release<'_>, told: &mut Told) -> Said {
        let fits = |hold: &&Hold| {
            hold.owner == ask.owner
                && ask.mode.is_none_or(|mode| mode == hold.mode)
                && ask.token.is_none_or(|token| token.get() == hold.token)
        };
        // WRITE if the owner holds it, else READ.
        let Some(target) = self.holds.iter().filter(fits).max_by_key(|hold| hold.mode).cloned()
        else {
            return match ask.levels {
                Levels::DownTo(_) if ask.token.is_none() => Said::Count(0),
                _ => Said::Error("NOTHELD".into()),
            };
        };
        let left = match ask.levels {
            Levels::One => target.depth - 1,
            Levels::All => 0,
            Levels::DownTo(wanted) => wanted.min(target.depth),
        };
        if left == 0 {
            self.end(|hold| hold.token == target.token, End::Released, told);
        } else if let Some(hold) = self.of(ask.owner, target.mode) {
            hold.depth = left;
            self.lower(target.token, left, ask.levels == Levels::One);
        }
        Said::Count(left.into())
    }

    pub(super) fn renew(&mut self, ask: &Renew<'_>) -> Said {
        let (deadline, mut renewed) = (after(self.now_us, ask.lease.get()), Vec::new());
        for hold in &mut self.holds {
            if hold.owner == ask.owner
                && ask.mode.is_none_or(|mode| mode == hold.mode)
                && ask.token.is_none_or(|token| token.get() == hold.token)
            {
                hold.deadline = hold.deadline.max(deadline);
                renewed.push(hold.token);
            }
        }
        renewed.iter().for_each(|token| self.confirm(*token));
        if renewed.is_empty() { Said::Error("NOTHELD".into()) } else { Said::Count(1) }
    }
}
