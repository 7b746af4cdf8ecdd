//! One acquisition of an owner that has its seat, until it is granted, refused or out of time, and nothing is left.

use super::undo::Undo;
use super::*;

/// What is asked for, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// How long it waits: 0 is not at all, [`FOREVER`] is for ever.
    pub wait: Ms,
    /// How long it is repeated if it does not wait.
    pub patience: Ms,
    /// The lease.
    pub lease: Ms,
    /// The level to reach.
    pub depth: u32,
    /// The token of the levels below.
    pub below: Option<u64>,
    /// Asks on a shared connection before it waits.
    pub asks_first: bool,
    /// Ties the hold to its connection.
    pub session: bool,
    /// Does not wait beside so many others.
    pub has_max_queue: bool,
    /// A grant counts when replicas have acknowledged it.
    pub has_acks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Asking,
    Slot,
    Opening,
    Waiting,
    Looking,
    Listening,
    Queueing,
    Placing,
    Turn,
    Confirming,
    Pausing,
    Granted,
    Undone,
    Done,
}

/// One acquisition, and what undoes it.
#[derive(Debug)]
pub struct Attempt {
    ask: Ask,
    planted: Planted,
    at: At,
    /// When the wait ends.
    end: Ms,
    /// When trouble is believed.
    patience: Ms,
    pause: Ms,
    hops: u8,
    asks_first: bool,
    has_slot: Option<bool>,
    has_link: bool,
    /// When the request under way was sent.
    sent: Ms,
    /// Until when the reply on the own connection may come.
    reply_by: Ms,
    misses: u8,
    had_doubt: bool,
    had_ticket: bool,
    left: Left,
    why: Tell,
    undo: Option<Undo>,
}

impl Attempt {
    /// Begins with [`Input::Call`].
    #[must_use]
    pub fn new(mut ask: Ask, planted: Planted) -> Self {
        // A connection that ends would take the levels below along.
        ask.session &= ask.depth == 1;
        Self {
            ask,
            planted,
            at: At::Start,
            end: FOREVER,
            patience: FOREVER,
            pause: FIRST_PAUSE,
            hops: 0,
            asks_first: ask.asks_first && !ask.session,
            has_slot: None,
            has_link: false,
            sent: 0,
            reply_by: 0,
            misses: 0,
            had_doubt: false,
            had_ticket: false,
            left: Left::default(),
            why: Tell::Unavailable,
            undo: None,
        }
    }

    /// Whether a request may have left something at the server, or may still do so.
    #[must_use]
    pub fn leaves_something(&self) -> bool {
        let Left { in_doubt, lingers, has_ticket, .. } = self.left;
        self.at != At::Done && (in_doubt || lingers || has_ticket || self.undo.is_some())
    }

    fn waits(&self) -> bool {
        self.ask.wait > 0
    }

    /// When a request that may take so long is given up: at the end of the patience at the latest.
    fn by(&self, now: Ms, takes: Ms) -> Ms {
        let by = now.saturating_add(takes);
        let late = self.patience.saturating_add(LATE).max(now);
        if self.planted == Planted::PatienceIgnored { by } else { by.min(late) }
    }

    /// What follows from that.
    pub fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match (self.at, input) {
            (At::Undone, input) => {
                if let Some(undo) = &mut self.undo {
                    undo.step(now, input, out);
                }
            }
            (At::Done, _) => {}
            (At::Granted, Input::Taken) => {
                self.at = At::Done;
                out.push(Output::Free);
            }
            (At::Granted, Input::Cancel | Input::Close) => self.undo(now, out),
            (_, Input::Cancel) => self.leave(now, Tell::Cancelled, out),
            (_, Input::Close) if self.planted == Planted::CloseIgnored => {}
            (_, Input::Close) => {
                self.leave(now, Tell::Closed, out);
                self.undo.iter_mut().for_each(|undo| undo.step(now, Input::Close, out));
            }
            (At::Start, Input::Call) => {
                if self.waits() {
                    self.end = now.saturating_add(self.ask.wait);
                    self.patience = self.end;
                } else {
                    self.patience = now.saturating_add(self.ask.patience);
                }
                self.next(now, out);
            }
            (At::Slot, Input::Slot(has_slot)) => {
                self.has_slot = Some(has_slot);
                self.next(now, out);
            }
            (At::Opening, Input::Opened(rtt)) => self.ask_alone(now, rtt, out),
            (At::Opening, Input::Ended(outcome)) => self.failed(now, outcome, out),
            (At::Asking, Input::Ended(outcome)) => self.asked(now, outcome, out),
            (At::Waiting | At::Looking, Input::Own(outcome)) => self.waited(now, outcome, out),
            (At::Looking, Input::Place(has_place)) => self.looked(now, has_place, out),
            (At::Listening, Input::Listening | Input::Ended(_)) => {
                self.had_ticket = std::mem::replace(&mut self.left.has_ticket, true);
                self.send(now, Request::Queue, At::Queueing, out);
            }
            (At::Queueing, Input::Ended(outcome)) => self.queued(now, outcome, out),
            (At::Placing, Input::Ended(outcome)) => match outcome {
                Outcome::Nil => {
                    self.left.has_ticket = false;
                    self.end(now, Tell::Nil, out);
                }
                Outcome::Token(_) => self.await_turn(now, out),
                other => self.failed(now, other, out),
            },
            (At::Turn, Input::Turn | Input::Time) => self.next(now, out),
            (At::Confirming, Input::Ended(outcome)) => self.confirmed(now, outcome, out),
            (At::Pausing, Input::Time) => {
                if now < self.patience {
                    self.next(now, out);
                } else {
                    self.end(now, self.why.clone(), out);
                }
            }
            _ => {} // belongs to an operation that was interrupted
        }
    }

    /// Asks in the best way there is.
    fn next(&mut self, now: Ms, out: &mut Vec<Output>) {
        if !self.waits() && !self.ask.session || self.asks_first {
            return self.send(now, Request::Acquire, At::Asking, out);
        }
        if self.left.has_ticket && now >= self.end {
            return self.end(now, Tell::Nil, out);
        }
        match self.has_slot {
            None if self.waits() => {
                self.at = At::Slot;
                out.push(Output::Slot);
            }
            Some(false) => {
                self.at = At::Listening;
                out.push(Output::Listen(self.by(now, REPLY)));
            }
            _ => self.open(now, out),
        }
    }

    fn send(&mut self, now: Ms, request: Request, at: At, out: &mut Vec<Output>) {
        self.at = at;
        if matches!(request, Request::Acquire | Request::Queue) {
            self.had_doubt = std::mem::replace(&mut self.left.in_doubt, true);
            self.sent = now;
        }
        let takes = if request == Request::Place { REPLY } else { reply_time(self.ask.has_acks) };
        out.push(Output::Send(request, self.by(now, takes)));
    }

    fn open(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.at = At::Opening;
        out.push(Output::Open(self.by(now, REPLY)));
    }

    /// On a shared connection, without waiting.
    fn asked(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Token(token) => self.granted(now, token, out),
            Outcome::Nil if self.waits() => {
                (self.asks_first, self.left.in_doubt) = (false, false);
                self.next(now, out);
            }
            Outcome::Nil => {
                self.left.in_doubt = false;
                self.end(now, Tell::Nil, out);
            }
            other => self.failed(now, other, out),
        }
    }

    /// On its own connection: a blocked wait, or a session.
    fn ask_alone(&mut self, now: Ms, rtt: Ms, out: &mut Vec<Output>) {
        (self.at, self.has_link, self.sent, self.misses) = (At::Waiting, true, now, 0);
        self.had_doubt = std::mem::replace(&mut self.left.in_doubt, true);
        let session = self.ask.session;
        // A ticket that was granted is moved to its own connection.
        let block = (self.waits() && self.has_slot == Some(true)).then(|| match self.end {
            FOREVER => 0,
            // The reply comes in time, however far the server is.
            end => end.saturating_sub(now).saturating_sub(rtt).max(1),
        });
        self.reply_by = match block {
            Some(_) => self.end.saturating_add(LATE),
            None => self.by(now, reply_time(self.ask.has_acks)),
        };
        let by = self.look_at(now);
        out.push(Output::Own { block, session, depth: None, by });
    }

    fn look_at(&self, now: Ms) -> Ms {
        if self.planted == Planted::PlaceUnchecked {
            self.reply_by
        } else {
            self.reply_by.min(now.saturating_add(LOOKS))
        }
    }

    fn waited(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Token(token) => return self.granted(now, token, out),
            Outcome::Nil => {
                self.left.in_doubt = false;
                return self.end(now, Tell::Nil, out);
            }
            Outcome::Silent if now < self.reply_by => {
                self.at = At::Looking;
                return out.push(Output::Look(self.by(now, REPLY)));
            }
            Outcome::Refused(_) => out.push(Output::Keep),
            _ => out.push(Output::Drop),
        }
        self.has_link = false;
        self.failed(now, outcome, out);
    }

    /// A reply may be on its way, so the place is missed twice before it is believed.
    fn looked(&mut self, now: Ms, has_place: Option<bool>, out: &mut Vec<Output>) {
        self.misses = match has_place {
            Some(false) => self.misses + 1,
            Some(true) => 0,
            None => self.misses, // no server decides at the moment
        };
        if self.misses == 2 {
            self.has_link = false;
            out.push(Output::Drop);
            return self.failed(now, Outcome::Silent, out);
        }
        self.at = At::Waiting;
        out.push(Output::Read(self.look_at(now)));
    }

    fn queued(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Token(token) => {
                self.left.has_ticket = false;
                if self.ask.session {
                    self.left.token = Some(token);
                    return self.open(now, out);
                }
                self.granted(now, token, out);
            }
            Outcome::Nil => {
                self.left.in_doubt = false;
                // The queue may have been full.
                if self.ask.has_max_queue && !self.had_ticket {
                    return self.send(now, Request::Place, At::Placing, out);
                }
                self.await_turn(now, out);
            }
            other => {
                if !other.is_unknown() {
                    self.left.has_ticket = self.had_ticket;
                }
                self.failed(now, other, out);
            }
        }
    }

    fn await_turn(&mut self, now: Ms, out: &mut Vec<Output>) {
        (self.at, self.pause) = (At::Turn, FIRST_PAUSE);
        out.push(Output::Turn(self.end.min(now.saturating_add(ASKS)).max(now)));
    }

    fn granted(&mut self, now: Ms, token: u64, out: &mut Vec<Output>) {
        self.left.token = Some(token);
        if self.ask.below.is_some_and(|below| below != token) {
            self.ask.depth = 1; // the levels below are gone, and this is another hold
            return self.end(now, Tell::Lost, out);
        }
        if now.saturating_sub(self.sent) > self.ask.lease / 3
            && self.planted != Planted::LeaseFromReply
        {
            // The grant may be as old as the request.
            self.had_doubt = true;
            self.send(now, Request::Renew(token), At::Confirming, out);
            self.sent = now;
            return;
        }
        if self.planted == Planted::LeaseFromReply {
            self.sent = now;
        }
        if self.has_link && !self.ask.session {
            self.has_link = false;
            out.push(Output::Keep);
        }
        self.at = At::Granted;
        out.push(Output::Tell(Tell::Granted(token, self.sent, self.left.lingers)));
    }

    fn confirmed(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match (outcome, self.left.token) {
            (Outcome::Token(_), Some(token)) => self.granted(now, token, out),
            (outcome, _) => {
                if self.has_link {
                    self.has_link = false;
                    out.push(Output::Drop);
                }
                self.left.token = None;
                match outcome {
                    Outcome::Refused(code) if code == "NOTHELD" && self.ask.depth == 1 => {
                        self.trouble(now, Tell::Unavailable, out) // it has ended already: once more
                    }
                    other => self.failed(now, other, out),
                }
            }
        }
    }

    /// A request, or a connection, failed.
    fn failed(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Refused(code) => {
                if self.at != At::Opening && self.at != At::Placing {
                    self.left.in_doubt = self.had_doubt;
                }
                match code.as_str() {
                    "NOTHELD" => self.end(now, Tell::Lost, out),
                    "MOVED" | "ASK" if self.hops < HOPS && now < self.patience => {
                        self.hops += 1;
                        self.next(now, out);
                    }
                    "NOREPLICAS" => self.trouble(now, Tell::NoReplicas, out),
                    code if passes(code) => self.trouble(now, Tell::Unavailable, out),
                    _ => self.end(now, Tell::Refused(code), out),
                }
            }
            Outcome::Unsent => {
                if self.at == At::Asking || self.at == At::Queueing {
                    self.left.in_doubt = self.had_doubt || self.planted == Planted::UnsentUndone;
                }
                self.trouble(now, Tell::Unavailable, out);
            }
            _ => {
                self.left.lingers |= self.at != At::Placing;
                // A session that is tied late would end with its connection: not before that.
                if self.ask.session {
                    self.pause = AGAIN;
                }
                self.trouble(now, Tell::Unavailable, out);
            }
        }
    }

    fn trouble(&mut self, now: Ms, why: Tell, out: &mut Vec<Output>) {
        if now >= self.patience {
            return self.end(now, why, out);
        }
        (self.at, self.why) = (At::Pausing, why);
        out.push(Output::Sleep(self.patience.min(now.saturating_add(self.pause))));
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }

    /// The caller goes away, whatever is under way.
    fn leave(&mut self, now: Ms, why: Tell, out: &mut Vec<Output>) {
        match self.at {
            At::Waiting | At::Looking | At::Asking | At::Queueing => {
                out.push(Output::Tell(why));
                self.undo_from(now, out);
            }
            _ => self.end(now, why, out),
        }
    }

    fn end(&mut self, now: Ms, tell: Tell, out: &mut Vec<Output>) {
        if self.has_link {
            // A session that nobody takes ends with its connection.
            let is_session = self.ask.session && self.left.token.is_some();
            out.push(if is_session { Output::Drop } else { Output::Keep });
            self.has_link = false;
        }
        out.push(Output::Tell(tell));
        self.undo(now, out);
    }

    /// Nothing of it is under way; something may be left.
    fn undo(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Left { in_doubt, lingers, has_ticket, .. } = self.left;
        let is_forgotten = self.at == At::Granted && self.planted == Planted::GrantForgotten;
        if is_forgotten || !(in_doubt || lingers || has_ticket) {
            self.at = At::Done;
            return out.push(Output::Free);
        }
        self.undo_from(now, out);
    }

    fn undo_from(&mut self, now: Ms, out: &mut Vec<Output>) {
        let mut undo = Undo::new(self.ask.lease, self.ask.depth, self.left, self.planted);
        let has_ticket = match self.at {
            At::Queueing => self.had_ticket,
            _ => self.left.has_ticket,
        };
        let before = Left { in_doubt: self.had_doubt, has_ticket, ..self.left };
        match self.at {
            At::Waiting | At::Looking => undo.end_wait(now, self.ask.session, before, out),
            At::Asking | At::Queueing => undo.await_reply(now, before, out),
            _ => {
                if self.has_link {
                    out.push(Output::Drop); // a session that nobody takes
                }
                undo.begin(now, out);
            }
        }
        (self.at, self.has_link, self.undo) = (At::Undone, false, Some(undo));
    }
}
