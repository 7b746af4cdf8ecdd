//! Carries out what the machines ask for, with as little code as `clients/rust` has around the same
//! machines.

use super::links::Link;
use super::{Id, Job, State, Tenure, Until, Users, Work};
use crate::machine::{Attempt, FOREVER, Hold, Input, Kept, Level, Ms, Outcome, Output};
use crate::machine::{LATE, PATIENCE, Planted, Release, Request, SeatState, Tell, is_condemned};
use crate::trace;

impl Users {
    pub(super) fn carry_out(&mut self, id: Id, output: Output) {
        self.addresses(id, &output);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let process = job.process;
        let words = Self::words(job, &output);
        match output {
            Output::Open(by) => self.wait(id, Until::Opened, by, None),
            Output::Own { by, .. } => {
                (job.until, job.by) = (Until::OwnReply, by);
                let asked = super::asked_by(id, 0, true);
                match job.own.filter(|link| self.is_usable(*link)) {
                    Some(link) => self.write(link, &words.unwrap_or_default(), asked),
                    None => self.tell(id, Input::Own(Outcome::Unsent)),
                }
            }
            Output::Send(_, by) => self.wait(id, Until::Reply, by, words),
            Output::Await(by) => {
                (job.until, job.by) = (Until::Reply, by);
                let is_lost = job.shared.is_none_or(|link| !self.links.contains_key(&link));
                if job.unsent.take().is_some() {
                    self.tell(id, Input::Ended(Outcome::Unsent));
                } else if is_lost {
                    self.tell(id, Input::Ended(Outcome::Broken));
                }
            }
            Output::Listen(by) => self.wait(id, Until::Subscribed, by, None),
            Output::Wait(by) => {
                (job.until, job.by, job.is_waiting) = (Until::Message, by, true);
                self.reads_letter(id);
            }
            Output::Sleep(by) => (job.until, job.by) = (Until::Time, by),
            Output::Seat => {
                let place = job.place.clone();
                let depth = self.take_to_tie(process, &place);
                self.tell(id, Input::Seat(depth));
            }
            Output::Keep => {
                let link = job.own.take().filter(|link| self.links.contains_key(link));
                link.into_iter().for_each(|link| self.keep(process, link));
            }
            Output::Drop => {
                let link = job.own.take();
                link.into_iter().for_each(|link| self.drop_link(link));
            }
            Output::Tell(tell) => match job.work {
                Work::Attempt(_) => self.asked(id, tell),
                Work::Release(_) => self.released(id, &tell),
                Work::Untie(_) => {}
                Work::Hold(_) => self.lost(id),
            },
            Output::Undo => {
                job.undone_since = self.now;
                self.set_seat_state(id, SeatState::Undone);
            }
            Output::Free => {
                self.clean(id);
                let Some(job) = self.jobs.get_mut(&id) else { return };
                job.frees += 1;
                let (place, frees, undone) = (job.place.clone(), job.frees, job.undone_since);
                if frees == 1 {
                    self.set_seat_state(id, SeatState::Free);
                }
                // With this fault, undoing continues after its seat was freed.
                let goes_on = self.planted == Planted::SeatLeft && undone != FOREVER;
                if !goes_on || frees == 2 {
                    self.over(id);
                }
                self.next_in(process, &place);
            }
            Output::Leave => {
                if matches!(&job.work, Work::Hold(hold) if hold.is_unsure()) {
                    return self.begin_untie(id);
                }
                let place = job.place.clone();
                self.set_seat_state(id, SeatState::Free);
                self.next_in(process, &place);
            }
            Output::Tied => {
                let (place, link) = (job.place.clone(), job.own.take());
                let seat = self.processes[process].seats.get_mut(&place);
                let tenure = seat.and_then(|seat| seat.tenure.as_mut());
                if let Some(tenure) = tenure {
                    (tenure.link, tenure.is_doubted) = (link, false);
                }
            }
            Output::Doubt => {
                let seat = self.processes[process].seats.get_mut(&job.place);
                let tenure = seat.and_then(|seat| seat.tenure.as_mut());
                tenure.into_iter().for_each(|tenure| tenure.is_doubted = true);
            }
            Output::Done => self.over(id),
        }
    }

    fn wait(&mut self, id: Id, until: Until, by: Ms, words: Option<String>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        (job.until, job.by, job.shared) = (until, by, None);
        job.generation += 1;
        job.unsent = words.map(|words| (words, true));
        let is_attempt = matches!(job.work, Work::Attempt(_));
        if is_attempt && job.undone_since != FOREVER && job.writes == 0 {
            self.breaks("what was never sent is not undone", format!("job {id}"));
        }
        self.connect(id);
    }

    fn words(job: &Job, output: &Output) -> Option<String> {
        let ((key, owner, reads), ask) = (&job.place, &job.ask);
        let (lease, mode) = (ask.lease, if *reads { "READ" } else { "WRITE" });
        let acks = if ask.has_acks { " ACKS 1" } else { "" };
        let acquire = |depth: u32, block: Option<Ms>, is_session: bool| {
            let mode = if *reads { " READ" } else { "" };
            let mut line =
                format!("RLOCK.ACQUIRE k{key} {owner}{mode} LEASE {lease} DEPTH {depth}");
            if is_session {
                line.push_str(" SESSION");
            }
            line.push_str(acks);
            if let Some(ms) = block {
                line.push_str(&format!(" BLOCK {ms}"));
                line.push_str(if job.has_max_queue { " MAXQUEUE 1" } else { "" });
            }
            line + &job.letter.words(job.process)
        };
        Some(match output {
            Output::Own { block, session, depth, .. } => {
                acquire(depth.unwrap_or(ask.depth), *block, *session)
            }
            Output::Send(request, _) => match request {
                Request::Acquire(block) => acquire(ask.depth, *block, false),
                Request::Renew(token) => {
                    let tell = job.letter.words(job.process);
                    format!(
                        "RLOCK.RENEW k{key} {owner} {mode} LEASE {lease} TOKEN {token}{acks}{tell}"
                    )
                }
                Request::Cancel => format!("RLOCK.CANCEL k{key} {owner}"),
                Request::Info => format!("RLOCK.INFO k{key} {owner} {mode}"),
                // A planted fault: no hold has the token 0.
                Request::Release(0, depth) => {
                    format!("RLOCK.RELEASE k{key} {owner} {mode} DEPTH {depth}")
                }
                Request::Release(token, depth) => {
                    format!("RLOCK.RELEASE k{key} {owner} {mode} TOKEN {token} DEPTH {depth}")
                }
            },
            _ => return None,
        })
    }

    /// Whether a connection is open, and was not silent since a request went unanswered.
    fn is_usable(&self, link: Id) -> bool {
        let Some(link) = self.links.get(&link) else { return false };
        let silent = self.processes[link.process].peers[link.node].silent;
        !is_condemned(link.heard, silent, self.planted)
    }

    pub(super) fn keep(&mut self, process: usize, link: Id) {
        let Some(Link { node, asked, heard, .. }) = self.links.get(&link) else { return };
        let (node, is_busy, heard) = (*node, !asked.is_empty(), *heard);
        let here = &mut self.processes[process];
        let is_condemned = is_condemned(heard, here.peers[node].silent, self.planted);
        if here.closes_at <= self.now || is_busy || is_condemned {
            return self.drop_link(link);
        }
        here.peers[node].idle.push(link);
    }

    /// The time of an operation has passed.
    pub(super) fn is_due(&mut self, id: Id) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (process, sent, is_unsent) = (job.process, job.sent, job.unsent.take().is_some());
        let input = match job.until {
            Until::Reply if is_unsent => Input::Ended(Outcome::Unsent),
            Until::Opened => Input::Ended(Outcome::Unsent),
            Until::Reply => Input::Ended(Outcome::Silent),
            Until::Subscribed => Input::Ended(Outcome::Silent),
            Until::OwnReply => Input::Own(Outcome::Silent),
            Until::Time | Until::Message => Input::Time,
            Until::Nothing => return,
        };
        let is_silent = job.until == Until::Reply && !is_unsent;
        let shared = job.shared.take().filter(|_| is_silent);
        (job.until, job.by) = (Until::Nothing, FOREVER);
        if let Some(link) = shared.and_then(|link| self.links.get(&link)) {
            let node = link.node;
            self.distrust(process, node, sent);
        }
        self.tell(id, input);
    }

    // --- results for users ----------------------------------------------------------------------

    pub(super) fn begin_attempt(&mut self, process: usize, user: usize) {
        let planted = self.planted;
        let (place, mut ask, start, has_max_queue) = {
            let user = &self.processes[process].users[user];
            (user.place.clone(), user.ask, user.start, user.has_max_queue)
        };
        let here = &self.processes[process];
        ask.hears = here.peers[here.route].inbox.is_subscribed;
        let waited = self.now - start;
        if ask.wait > 0 && ask.wait != FOREVER {
            ask.wait = ask.wait.saturating_sub(waited).max(1);
        }
        ask.patience = PATIENCE.saturating_sub(waited).max(1);
        let Some(seat) = self.processes[process].seats.get_mut(&place) else { return };
        if let Some(tenure) = &seat.tenure {
            let hold = match self.jobs.get(&tenure.hold).map(|job| &job.work) {
                Some(Work::Hold(hold)) => self.now < hold.deadline(),
                _ => false,
            };
            if hold && tenure.is_held {
                (ask.depth, ask.below) = (tenure.depth + 1, Some(tenure.token));
                ask.session &= tenure.link.is_none();
                ask.lease = tenure.ask.lease;
            } else {
                seat.tenure = None;
            }
        }
        let work = Work::Attempt(Attempt::new(ask, planted));
        let id = self.begin(work, process, user, place, ask);
        self.jobs.get_mut(&id).into_iter().for_each(|job| job.has_max_queue = has_max_queue);
        self.title(id, || trace::attempt_line(&ask));
        self.processes[process].users[user].state = State::Asking(id);
        self.tell(id, Input::Call);
    }

    fn asked(&mut self, id: Id, tell: Tell) {
        let planted = self.planted;
        let job = &self.jobs[&id];
        let (process, user) = (job.process, job.user);
        let Tell::Granted(token, sent, lingers) = tell else {
            if matches!(tell, Tell::Unavailable | Tell::NoReplicas) {
                self.gives_up(id);
            }
            self.returns(process, user);
            self.processes[process].users[user].state = State::Idle;
            if tell == Tell::Lost {
                self.lost_below(id);
            }
            return;
        };
        if self.rng.u8(0..40) == 0 {
            // The caller gave up while its grant was on the way.
            self.processes[process].users[user].state = State::Idle;
            return self.tell(id, Input::Cancel);
        }
        self.returns(process, user);
        if self.processes[process].is_closing {
            self.breaks("closed is closed", format!("process {process} is granted a lock"));
        }
        let job = self.jobs.get_mut(&id).unwrap();
        let (place, ask) = (job.place.clone(), job.ask);
        let link = if ask.session { job.own.take() } else { None };
        let seat = self.processes[process].seats.get_mut(&place).unwrap();
        let hold = if let Some(tenure) = seat.tenure.as_mut() {
            tenure.depth += 1;
            tenure.lingers |= lingers;
            tenure.link = tenure.link.or(link);
            let hold = tenure.hold;
            self.tell(hold, Input::Extend(sent));
            hold
        } else {
            let kept = Kept {
                token,
                lease: ask.lease,
                sent,
                margin: 0,
                session: ask.session,
                has_acks: ask.has_acks,
                renews: true,
            };
            let hold =
                self.begin(Work::Hold(Hold::new(kept, planted)), process, user, place.clone(), ask);
            self.title(hold, || trace::hold_line(&kept));
            let (depth, is_held, is_doubted) = (1, true, false);
            let tenure = Tenure { hold, token, depth, is_held, is_doubted, link, lingers, ask };
            let seat = self.processes[process].seats.get_mut(&place).unwrap();
            seat.tenure = Some(tenure);
            self.tell(hold, Input::Call);
            // Its connection may have ended while the grant was confirmed.
            if ask.session && link.is_none_or(|link| !self.links.contains_key(&link)) {
                self.tell(hold, Input::Untied);
            }
            hold
        };
        self.processes[process].users[user].state = State::Holding(hold);
        self.found.grants += 1;
        self.exclude(place.0);
        self.tell(id, Input::Taken);
    }

    /// The level below an attempt has ended.
    fn lost_below(&mut self, id: Id) {
        let job = &self.jobs[&id];
        let seat = self.processes[job.process].seats.get(&job.place);
        if let Some(hold) = seat.and_then(|seat| seat.tenure.as_ref()).map(|tenure| tenure.hold) {
            self.tell(hold, Input::Gone);
        }
    }

    /// A hold is lost: its users know, and release it without effect.
    fn lost(&mut self, id: Id) {
        let job = &self.jobs[&id];
        let (process, place, lease) = (job.process, job.place.clone(), job.ask.lease);
        let is_session = job.ask.session;
        let Some(seat) = self.processes[process].seats.get_mut(&place) else { return };
        seat.excused_until = seat.excused_until.max(self.now + lease + 2 * PATIENCE);
        if let Some(tenure) = seat.tenure.as_mut().filter(|tenure| tenure.hold == id) {
            tenure.is_held = false;
            let link = tenure.link.take();
            link.into_iter().for_each(|link| self.drop_link(link));
        }
        self.found.losses += 1;
        // The server may still have the hold, until it notices that its connection is closed.
        let seat = self.processes[process].seats.get(&place);
        if is_session && seat.is_some_and(|seat| seat.state == SeatState::Free) {
            self.begin_untie(id);
        }
    }

    /// A user that has the seat releases a level.
    pub(super) fn begin_release(&mut self, process: usize, user: usize, hold: Id) {
        let (planted, now) = (self.planted, self.now);
        let place = self.processes[process].users[user].place.clone();
        let seat = self.processes[process].seats.get_mut(&place).unwrap();
        let deadline = match self.jobs.get(&hold).map(|job| &job.work) {
            Some(Work::Hold(hold)) => hold.deadline(),
            _ => 0,
        };
        let own = seat.tenure.as_mut().filter(|tenure| tenure.hold == hold && tenure.is_held);
        let Some(tenure) = own.filter(|_| now < deadline) else {
            seat.state = SeatState::Free;
            self.processes[process].users[user].state = State::Idle;
            return self.next_in(process, &place);
        };
        let Tenure { token, depth, lingers, ask, .. } = *tenure;
        tenure.is_held = depth > 1;
        let patience = PATIENCE;
        let level = Level { patience, lease: ask.lease, depth, token, deadline, lingers };
        let work = Work::Release(Release::new(level, planted));
        let id = self.begin(work, process, user, place, ask);
        self.title(id, || trace::release_line(&level));
        let user = &mut self.processes[process].users[user];
        (user.state, user.start) = (State::Releasing, now);
        if depth == 1 {
            self.tell(hold, Input::Releasing);
        }
        self.tell(id, Input::Call);
    }

    /// Keeps the seat until that session, or the unanswered request to tie it, is undone.
    fn begin_untie(&mut self, hold: Id) {
        let Some(Job { process, user, place, ask, .. }) = self.jobs.get(&hold) else { return };
        let (process, user, place, ask) = (*process, *user, place.clone(), *ask);
        let seat = self.processes[process].seats.get(&place);
        let token = seat.and_then(|seat| seat.tenure.as_ref()).map_or(0, |tenure| tenure.token);
        let (lease, lingers) = (ask.lease, true);
        let level = Level { patience: 0, lease, depth: 1, token, deadline: 0, lingers };
        let work = Work::Untie(Release::new(level, self.planted));
        let id = self.begin(work, process, user, place, ask);
        self.title(id, || trace::release_line(&level));
        self.tell(id, Input::Cancel);
    }

    fn released(&mut self, id: Id, tell: &Tell) {
        let job = &self.jobs[&id];
        let (process, user, place) = (job.process, job.user, job.place.clone());
        let start = self.processes[process].users[user].start;
        self.in_time(process, start, start + PATIENCE + 2 * LATE);
        self.processes[process].users[user].state = State::Idle;
        let Some(seat) = self.processes[process].seats.get_mut(&place) else { return };
        let Some(tenure) = seat.tenure.as_mut() else { return };
        tenure.depth -= 1;
        let (hold, is_last) = (tenure.hold, tenure.depth == 0);
        if *tell == Tell::Lost {
            seat.excused_until = self.now + self.jobs[&id].ask.lease + 2 * PATIENCE;
            self.tell(hold, Input::Gone);
        }
        if is_last {
            let seat = self.processes[process].seats.get_mut(&place).unwrap();
            let link = seat.tenure.take().and_then(|tenure| tenure.link);
            match link {
                Some(link) if *tell == Tell::Released => self.keep(process, link),
                Some(link) => self.drop_link(link),
                None => {}
            }
            self.tell(hold, Input::Released);
        }
    }
}
