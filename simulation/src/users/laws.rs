//! What users are promised, whatever happens.

use rlock_core::Mode;

use super::{Id, LEASE_MAX, Place, User, Users, Work};
use crate::keyspace::{Key, Slot};
use crate::machine::{FOREVER, Input, LATE, Ms, Outcome, PATIENCE, Planted, REPLY, SeatState};
use crate::words::{Out, Words};

impl Users {
    /// Law: no two users are sure at the same time, each by its own clock, that they hold the key.
    pub(super) fn exclude(&mut self, key: u8) {
        let mut all: Vec<(usize, &Place)> = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            let here = process.seats.iter().filter(|((k, ..), _)| *k == key);
            for (place, seat) in here {
                let Some(tenure) = seat.tenure.as_ref().filter(|tenure| tenure.is_held) else {
                    continue;
                };
                // The server notices first that a session's connection was cut; then its client
                // doubts it.
                let link = tenure.link.and_then(|link| self.links.get(&link));
                let is_cut = link.is_some_and(|link| link.from.contains(&Out::Closed));
                if is_cut || tenure.is_doubted {
                    continue;
                }
                if let Some(Work::Hold(hold)) = self.jobs.get(&tenure.hold).map(|job| &job.work)
                    && self.now < hold.deadline()
                {
                    all.push((number, place));
                }
            }
        }
        if all.len() > 1 && all.iter().any(|(_, (_, _, reads))| !reads) {
            let what = format!("{all:?} at {} ms", self.now);
            self.breaks("no two owners before a lost signal", what);
        }
    }

    /// A call returned.
    pub(super) fn returns(&mut self, process: usize, user: usize) {
        let user = &self.processes[process].users[user];
        let (start, limit) =
            (user.start, user.start.saturating_add(patience(user)).saturating_add(2 * LATE));
        self.in_time(process, start, limit);
    }

    pub(super) fn in_time(&mut self, process: usize, start: Ms, limit: Ms) {
        if self.now > limit && self.processes[process].was_frozen < start {
            let what = format!("begun at {start} ms, to return by {limit} ms, at {} ms", self.now);
            self.breaks("a call returns by its patience", what);
        }
    }

    /// Law: a limit for outages ends an attempt, at the latest with the operation in progress.
    pub(super) fn limit_outage(&mut self, id: Id, input: &Input) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !matches!(job.work, Work::Attempt(_)) || job.undone_since != FOREVER {
            return;
        }
        let has_waited = std::mem::take(&mut job.is_waiting);
        let limit = job.served.saturating_add(job.ask.outage).max(job.reached);
        let is_late = !has_waited && self.now > limit.saturating_add(REPLY);
        let is_stopped = self.processes[job.process].was_frozen >= job.served;
        match input {
            _ if has_waited => job.served = self.now,
            Input::Ended(outcome) | Input::Own(outcome) if is_decided(outcome) => {
                job.served = self.now;
            }
            Input::Opened | Input::Listening(_) => job.reached = self.now,
            _ => {}
        }
        if is_late && !is_stopped {
            let what = format!("job {id} goes on at {} ms, after {limit} ms", self.now);
            self.breaks("a limit for outages ends a wait", what);
        }
    }

    /// Law: for lack of a server, nothing ends before the patience does, unless it allows no longer
    /// outage.
    pub(super) fn gives_up(&mut self, id: Id) {
        let job = &self.jobs[&id];
        let user = &self.processes[job.process].users[job.user];
        let patience = user.start.saturating_add(patience(user));
        let outage = job.served.saturating_add(job.ask.outage);
        self.found.outages += u64::from(self.now >= outage);
        if self.now < patience.min(outage) {
            let what = format!("job {id} ends at {} ms, not at {outage} ms", self.now);
            self.breaks("a wait ends no sooner than it is limited", what);
        }
    }

    /// Law: what an attempt or a release left behind when it ended.
    pub(super) fn clean(&mut self, id: Id) {
        let job = &self.jobs[&id];
        let (process, place, since) = (job.process, job.place.clone(), job.undone_since);
        let lease = job.ask.lease;
        let is_planted = self.planted == Planted::SeatLeft && job.frees == 0;
        let Some(seat) = self.processes[process].seats.get_mut(&place) else { return };
        if since != FOREVER && self.now >= since + lease + REPLY {
            // No server could be reached for a whole lease. A request that is executed late may
            // have a lease that has not ended yet.
            seat.excused_until = seat.excused_until.max(self.now + lease + REPLY);
        }
        if seat.tenure.is_none() && seat.excused_until < self.now && !is_planted {
            self.leaves_nothing(process, &place);
        }
    }

    /// What this request left behind may remain for its lease: it was sent before a failover, and
    /// its server has become the primary again. Nobody can undo it any more.
    pub(super) fn excuse(&mut self, process: usize, request: &Words) {
        let until = self.now + LEASE_MAX + REPLY;
        let names = |(key, owner, _): &Place| {
            let name = format!("k{key}");
            let words = [b"RLOCK.ACQUIRE", name.as_bytes(), owner.as_bytes()];
            request.iter().map(Vec::as_slice).take(3).eq(words)
        };
        let seats = self.processes[process].seats.iter_mut();
        seats.filter(|(place, _)| names(place)).for_each(|(_, seat)| {
            seat.excused_until = seat.excused_until.max(until);
        });
    }

    /// Law: the server has no hold and no place that does not belong to a user.
    pub(super) fn audit(&mut self) {
        for process in 0..self.processes.len() {
            let seats = self.processes[process].seats.iter();
            let idle = seats.filter(|(_, seat)| {
                seat.state == SeatState::Free
                    && seat.tenure.is_none()
                    && seat.excused_until < self.now
            });
            let places: Vec<Place> = idle.map(|(place, _)| place.clone()).collect();
            places.iter().for_each(|place| self.leaves_nothing(process, place));
        }
    }

    fn leaves_nothing(&mut self, process: usize, place: &Place) {
        let (key, owner, reads) = place;
        let leader = &self.world.machines[self.leader];
        if self.processes[process].is_closing || !leader.is_up {
            return;
        }
        let name: Key = format!("k{key}").into_bytes().into();
        let lock = leader.server.visible(0, &name).and_then(Slot::lock);
        let mode = if *reads { Mode::Read } else { Mode::Write };
        let hold = lock.and_then(|lock| lock.hold_at(owner.as_bytes(), mode, leader.server.now));
        let volatile = leader.server.state.manager.volatile(0, &name);
        let waits = volatile.and_then(|volatile| volatile.queue.place(owner.as_bytes()));
        if hold.is_some() || waits.is_some() {
            let what = format!("{owner} at k{key}: {hold:?} {waits:?}, at {} ms", self.now);
            self.breaks("what was abandoned leaves nothing", what);
        }
    }
}

/// How long a request is repeated.
fn patience(user: &User) -> Ms {
    if user.ask.wait > 0 { user.ask.wait } else { PATIENCE }
}

/// Whether a server has decided a request, or lets it wait.
fn is_decided(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Token(_) | Outcome::Nil | Outcome::Waiting)
}
