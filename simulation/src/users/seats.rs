//! The seats of a process: which request has each of them, and which is next.

use super::{Id, Place, Seat, State, Users};
use crate::machine::{FOREVER, Input, PATIENCE, SeatDecision, SeatState, decide_seat};

impl Users {
    /// A user comes to its seat: to acquire, or to release that hold.
    pub(super) fn comes(&mut self, process: usize, user: usize, hold: Option<Id>) {
        let now = self.now;
        let who = &mut self.processes[process].users[user];
        who.state = State::Coming(hold);
        let (place, ask) = (who.place.clone(), who.ask);
        let seats = &mut self.processes[process].seats;
        let seat = seats.entry(place).or_insert_with(|| Seat {
            state: SeatState::Free,
            waiting: Vec::new(),
            tenure: None,
            excused_until: 0,
        });
        // A release waits for its seat without a limit.
        let (wait, outage) =
            if hold.is_some() { (FOREVER, FOREVER) } else { (ask.wait, ask.outage) };
        match decide_seat(now, seat.state, wait, PATIENCE, outage) {
            SeatDecision::Take => {
                seat.state = SeatState::Taken;
                self.seated(process, user);
            }
            SeatDecision::Wait(until, tell) => seat.waiting.push((user, until, tell)),
        }
    }

    fn seated(&mut self, process: usize, user: usize) {
        match self.processes[process].users[user].state {
            State::Coming(Some(hold)) => self.begin_release(process, user, hold),
            State::Coming(None) if self.processes[process].is_closing => {
                let who = &mut self.processes[process].users[user];
                who.state = State::Idle;
                let place = who.place.clone();
                self.frees(process, &place);
            }
            _ => self.begin_attempt(process, user),
        }
    }

    fn frees(&mut self, process: usize, place: &Place) {
        let seat = self.processes[process].seats.get_mut(place);
        seat.into_iter().for_each(|seat| seat.state = SeatState::Free);
        self.next_in(process, place);
    }

    pub(super) fn set_seat_state(&mut self, id: Id, state: SeatState) {
        let job = &self.jobs[&id];
        let seat = self.processes[job.process].seats.get_mut(&job.place);
        seat.into_iter().for_each(|seat| seat.state = state);
    }

    /// Gives a free seat to the first that waits for it.
    pub(super) fn next_in(&mut self, process: usize, place: &Place) {
        let Some(seat) = self.processes[process].seats.get_mut(place) else { return };
        if seat.state == SeatState::Free && !seat.waiting.is_empty() {
            let (user, ..) = seat.waiting.remove(0);
            seat.state = SeatState::Taken;
            self.seated(process, user);
        }
    }

    /// Takes the seat to tie a session to a new connection. Returns the depth if the seat was free.
    pub(super) fn take_to_tie(&mut self, process: usize, place: &Place) -> Option<u32> {
        let seat = self.processes[process].seats.get_mut(place)?;
        let depth = seat.tenure.as_ref()?.depth;
        if seat.state != SeatState::Free {
            return None;
        }
        seat.state = SeatState::Taken;
        Some(depth)
    }

    /// Ends waits for seats that have timed out.
    pub(super) fn seats_due(&mut self) {
        for process in 0..self.processes.len() {
            if self.is_frozen(process) {
                continue;
            }
            let mut due = Vec::new();
            for seat in self.processes[process].seats.values_mut() {
                let now = self.now;
                seat.waiting.retain(|(user, until, _)| {
                    due.extend((*until <= now).then_some(*user));
                    *until > now
                });
            }
            for user in due {
                self.returns(process, user);
                self.processes[process].users[user].state = State::Idle;
            }
        }
    }

    /// A user gives up its request.
    pub(super) fn leaves(&mut self, process: usize, user: usize, input: Input) {
        match self.processes[process].users[user].state {
            State::Asking(job) => self.tell(job, input),
            State::Coming(None) => {
                let who = &mut self.processes[process].users[user];
                who.state = State::Idle;
                let place = who.place.clone();
                let seat = self.processes[process].seats.get_mut(&place);
                seat.into_iter().for_each(|seat| seat.waiting.retain(|(who, ..)| *who != user));
            }
            _ => {}
        }
    }
}
