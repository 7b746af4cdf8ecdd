//! Who waits, and who is served next.

use std::num::NonZeroU32;

use rlock_core::{Acquire, ClientId, Kind, Mode};

use super::told::{Said, Told};
use super::{Limits, Naive, Unheard, Waiting};

impl Naive {
    pub(super) fn withdraw_ticket(&mut self, owner: &[u8]) {
        self.queue.retain(|one| one.kind != Kind::Ticket || one.owner != owner);
    }

    /// The owner's waits end, whatever they are for, the first place first.
    pub(super) fn give_up(&mut self, owner: &[u8], told: &mut Told) {
        let served = |one: &Waiting| (!one.is_turn, one.owner != owner);
        while self.queue.iter().any(|one| one.owner == owner) {
            let mut places: Vec<usize> = (0..self.queue.len()).collect();
            places.sort_by_key(|place| (served(&self.queue[*place]).0, *place));
            let place = places.into_iter().find(|place| self.queue[*place].owner == owner);
            let place = place.expect("it waits");
            let one = self.queue[place].clone();
            let wait_ms = self.estimated_wait_ms(&one.asked(), false, Some(place));
            self.queue.remove(place);
            if let Kind::Blocked(waiter) | Kind::Told(waiter) = one.kind {
                told.wakes.push((waiter, Said::NotNow { wait_ms }));
            }
        }
    }

    pub(super) fn stand(
        &mut self,
        ask: &Acquire<'_>,
        kind: Kind,
        client: Option<ClientId>,
        ends_at: Option<u64>,
    ) {
        let is_upgrade = ask.upgrade && ask.mode == Mode::Write && self.has(ask.owner, Mode::Read);
        let mut new = Waiting {
            owner: ask.owner.to_vec(),
            mode: ask.mode,
            kind,
            ends_at,
            is_turn: false,
            limit: ask.limit.map(NonZeroU32::get),
            upgrade: ask.upgrade,
            is_in_front: is_upgrade,
            lease: ask.lease,
            depth: ask.depth,
            session: ask.session,
            client,
        };
        let is_own = |one: &Waiting| one.kind == Kind::Ticket && one.owner == ask.owner;
        if let Some(place) = self.queue.iter().position(is_own) {
            if self.queue[place].is_turn {
                self.give_up_turns(place);
            }
            let place = self.queue.iter().position(is_own).unwrap();
            if !is_upgrade || self.queue[place].is_in_front {
                new.is_in_front = self.queue[place].is_in_front;
                self.queue[place] = new;
                return;
            }
            self.queue.remove(place);
        }
        let place = if is_upgrade { 0 } else { self.queue.len() };
        self.queue.insert(place, new);
    }

    /// A turn that is given up postpones those behind it, too. They then stand behind upgrades,
    /// even if they are upgrades themselves, and ahead of everybody else.
    pub(super) fn give_up_turns(&mut self, place: usize) {
        let lost = self.queue.split_off(place);
        let (mut lost, rest): (Vec<_>, Vec<_>) = lost.into_iter().partition(|one| one.is_turn);
        lost.iter_mut().for_each(|one| one.is_turn = false);
        let all = std::mem::take(&mut self.queue).into_iter().chain(rest);
        let is_ahead = |one: &Waiting| one.is_turn || one.is_in_front;
        let (ahead, behind): (Vec<_>, Vec<_>) = all.partition(is_ahead);
        self.queue = [ahead, lost, behind].concat();
    }

    pub(super) fn serve(&mut self, limits: Limits, told: &mut Told) {
        let is_shut = |one: &Waiting| self.is_shut(&one.owner, one.mode, one.upgrade, None);
        if self.queue.iter().any(|one| one.is_turn && is_shut(one)) {
            self.give_up_turns(0);
        }
        while let Some(place) = self.queue.iter().position(|one| !one.is_turn) {
            let head = self.queue[place].clone();
            let keeps_out = |turn: &Waiting| {
                turn.is_turn && (head.mode == Mode::Write || turn.mode == Mode::Write)
            };
            if self.queue.iter().any(keeps_out)
                || self.is_shut(&head.owner, head.mode, head.upgrade, head.limit)
            {
                return;
            }
            match head.kind {
                Kind::Ticket => {
                    self.queue[place].is_turn = true;
                    told.turns.push(head.owner);
                }
                Kind::Blocked(_) | Kind::Told(_) => {
                    let one = self.queue.remove(place);
                    self.hand_over(&one, limits, told);
                    self.holds_now(&one.owner, limits, told);
                }
                Kind::Group(_) => {
                    panic!("groups wait in the engine's tests")
                }
            }
        }
    }

    /// The owner now holds: its other waits for this lock are re-entries, or unnecessary.
    pub(super) fn holds_now(&mut self, owner: &[u8], limits: Limits, told: &mut Told) {
        self.withdraw_ticket(owner);
        loop {
            let enters = |one: &Waiting| {
                one.owner == owner && (self.has(owner, Mode::Write) || self.has(owner, one.mode))
            };
            let Some(place) = self.queue.iter().position(enters) else { return };
            let one = self.queue.remove(place);
            self.hand_over(&one, limits, told);
        }
    }

    pub(super) fn hand_over(&mut self, one: &Waiting, limits: Limits, told: &mut Told) {
        let before = self.of(&one.owner, one.mode).map_or(0, |hold| hold.depth);
        let said = self.enter(&one.owner, one.mode, one.lease, one.depth, limits, told);
        let (Kind::Blocked(waiter) | Kind::Told(waiter)) = one.kind else { return };
        if let Said::Granted { token, .. } = said {
            let (before, depth) = (i32::from(before), one.depth.map(i32::from));
            self.unheard.push(Unheard { waiter, token, before, depth, most: i32::MAX });
            self.tie(token, Some(waiter), one.session, one.lease);
        }
        told.wakes.push((waiter, said));
    }
}
