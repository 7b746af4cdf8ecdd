//! One acquisition of an owner that has its seat. It lasts until the request is granted, refused or
//! out of time, and nothing is left to undo.

use super::undo::Undo;
use super::*;

/// What an attempt needs to know about the request.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// How long it waits: 0 means not at all, [`FOREVER`] without a limit.
    pub wait: Ms,
    /// How long it is repeated if it does not wait.
    pub patience: Ms,
    /// After how long without a server it gives up: [`FOREVER`] if never.
    pub outage: Ms,
    /// The lease.
    pub lease: Ms,
    /// The level to reach.
    pub depth: u32,
    /// The token of the levels below.
    pub below: Option<u64>,
    /// Whether the channel of its key is subscribed.
    pub hears: bool,
    /// Whether to tie the hold to its connection.
    pub session: bool,
    /// Whether a grant counts only when replicas have acknowledged it.
    pub has_acks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Opening,
    Listening,
    /// A request is in progress.
    Asking,
    /// The server has replied that the request waits.
    Waiting,
    Pausing,
    Granted,
    Undone,
    Done,
}

/// One acquisition, and its undoing.
#[derive(Debug)]
pub struct Attempt {
    ask: Ask,
    planted: Planted,
    at: At,
    /// From then on, errors end the attempt. If it waits, its wait ends at this time.
    patience: Ms,
    /// When a server last decided a request or let it wait; at first, when it began.
    served: Ms,
    pause: Ms,
    hops: u8,
    /// Whether the next request does not wait, so that it is answered at once.
    asks_first: bool,
    /// Whether a session has its connection.
    has_link: bool,
    /// About how long a round trip takes.
    rtt: Ms,
    /// How long the latest request waits at the server.
    block: Ms,
    /// When the latest request was sent.
    sent: Ms,
    had_doubt: bool,
    /// Whether the server's last answer was that the lock is not free, and nothing has failed
    /// since.
    is_busy: bool,
    left: Left,
    why: Tell,
    undo: Option<Undo>,
}

impl Attempt {
    /// Begins with [`Input::Call`].
    #[must_use]
    pub fn new(mut ask: Ask, planted: Planted) -> Self {
        // If this connection ended, the levels below would end too, so only the first level has a
        // session.
        ask.session &= ask.depth == 1;
        Self {
            ask,
            planted,
            at: At::Start,
            patience: FOREVER,
            served: 0,
            pause: FIRST_PAUSE,
            hops: 0,
            asks_first: !ask.has_acks && (ask.wait == 0 || !ask.hears),
            has_link: false,
            rtt: 0,
            block: 0,
            sent: 0,
            had_doubt: false,
            is_busy: false,
            left: Left::default(),
            why: Tell::Unavailable,
            undo: None,
        }
    }

    /// Whether a request may have left something behind at the server, or may still do so.
    #[must_use]
    pub fn leaves_something(&self) -> bool {
        let Left { in_doubt, lingers, .. } = self.left;
        self.at != At::Done && (in_doubt || lingers || self.undo.is_some())
    }

    fn waits(&self) -> bool {
        self.ask.wait > 0
    }

    /// How long the next request waits at the server: short enough that the message comes in time,
    /// even from a distant server. With `ACKS`, the wait ends earlier, because its message says
    /// whether replicas were the reason; the next request then waits for the remaining time.
    fn blocks(&self, now: Ms) -> Ms {
        if self.patience == FOREVER {
            return 0;
        }
        let left = self.patience.saturating_sub(now).saturating_sub(self.rtt);
        let ahead = AHEAD.min(self.ask.wait / 8);
        let early = if self.ask.has_acks && ahead < left { ahead } else { 0 };
        (left - early).max(1)
    }

    /// When an operation that may take this long is given up: at the end of the patience at the
    /// latest.
    fn by(&self, now: Ms, takes: Ms) -> Ms {
        let by = now.saturating_add(takes);
        let late = self.patience.saturating_add(LATE).max(now);
        if self.planted == Planted::PatienceIgnored { by } else { by.min(late) }
    }

    /// From then on, trouble ends it: its patience is over, or no server was there for too long.
    fn ends(&self) -> Ms {
        let forgets = self.planted == Planted::OutageForgotten;
        let outage = if forgets { FOREVER } else { self.ask.outage };
        self.patience.min(self.served.saturating_add(outage))
    }

    /// A server has decided a request, or has let it wait until now.
    fn note_server(&mut self, now: Ms) {
        if self.planted != Planted::OutageFromCall {
            self.served = now;
        }
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
                let patience = if self.waits() { self.ask.wait } else { self.ask.patience };
                (self.patience, self.served) = (now.saturating_add(patience), now);
                self.next(now, out);
            }
            (At::Opening, Input::Opened) => {
                self.has_link = true;
                self.next(now, out);
            }
            (At::Listening, Input::Listening(rtt)) => {
                self.rtt = rtt;
                let block = self.waits().then(|| self.blocks(now));
                self.send(now, block, out);
            }
            (At::Asking, Input::Ended(outcome) | Input::Own(outcome)) => {
                self.asked(now, outcome, out);
            }
            (At::Opening | At::Listening, Input::Ended(outcome)) => self.failed(now, outcome, out),
            (At::Waiting, input) => {
                self.note_server(now);
                self.waited(now, input, out);
            }
            (At::Pausing, Input::Time) if now < self.ends() => self.next(now, out),
            (At::Pausing, Input::Time) => self.end(now, self.why.clone(), out),
            _ => {} // belongs to an operation that was interrupted
        }
    }

    /// Sends the next request in the best available way.
    fn next(&mut self, now: Ms, out: &mut Vec<Output>) {
        if self.ask.session && !self.has_link {
            self.at = At::Opening;
            out.push(Output::Open(self.by(now, REPLY)));
        } else if self.asks_first {
            self.send(now, None, out);
        } else {
            self.at = At::Listening;
            out.push(Output::Listen(self.by(now, REPLY)));
        }
    }

    fn send(&mut self, now: Ms, block: Option<Ms>, out: &mut Vec<Output>) {
        (self.at, self.sent, self.block) = (At::Asking, now, block.unwrap_or(0));
        self.had_doubt = std::mem::replace(&mut self.left.in_doubt, true);
        let by = self.by(now, REPLY);
        out.push(if self.ask.session {
            Output::Own { block, session: true, depth: None, by }
        } else {
            Output::Send(Request::Acquire(block), by)
        });
    }

    fn asked(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        if matches!(outcome, Outcome::Token(_) | Outcome::Nil) {
            self.note_server(now);
        }
        match outcome {
            Outcome::Token(token) => self.granted(now, token, out),
            Outcome::Nil => {
                (self.left.in_doubt, self.is_busy) = (false, true);
                if self.waits() && std::mem::take(&mut self.asks_first) {
                    return self.next(now, out);
                }
                self.end(now, Tell::Nil, out);
            }
            // So no earlier request of this owner was granted or still waits. But with ACKS, one may
            // have been granted: a server that restarts keeps a grant, and forgets that it was pending.
            Outcome::Waiting => {
                (self.at, self.pause) = (At::Waiting, FIRST_PAUSE);
                self.had_doubt &= self.ask.has_acks;
                let takes = match self.planted {
                    Planted::WaitUnrepeated => FOREVER,
                    _ if self.ask.has_acks => ACKS,
                    _ => LOOKS,
                };
                out.push(Output::Wait(self.by(now, takes)));
            }
            other => {
                if std::mem::take(&mut self.has_link) {
                    out.push(if other.is_unknown() { Output::Drop } else { Output::Keep });
                }
                self.failed(now, other, out);
            }
        }
    }

    fn waited(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Message(Outcome::Nil) => {
                self.left.in_doubt = false;
                // The server may have ended the wait early, or may now be faster than during a
                // pause.
                let took = now.saturating_sub(self.sent).saturating_sub(self.block);
                self.rtt = self.rtt.min(took);
                if self.waits() && self.patience.saturating_sub(now) > self.rtt + LATE {
                    return self.next(now, out);
                }
                self.end(now, Tell::Nil, out);
            }
            Input::Message(outcome) => self.asked(now, outcome, out),
            Input::Lost if self.planted != Planted::WaitUnrepeated => self.next(now, out),
            Input::Time if now < self.patience => self.next(now, out),
            Input::Time => {
                self.left.in_doubt = self.planted != Planted::DoubtForgotten;
                let why = if self.waits() { Tell::Nil } else { Tell::Unavailable };
                self.end(now, why, out);
            }
            // The wait ended with the session's connection.
            Input::Own(_) => {
                self.has_link = false;
                out.push(Output::Drop);
                self.trouble(now, Tell::Unavailable, out);
            }
            _ => {}
        }
    }

    fn granted(&mut self, now: Ms, token: u64, out: &mut Vec<Output>) {
        self.left.token = Some(token);
        if self.ask.below.is_some_and(|below| below != token) {
            self.ask.depth = 1; // the levels below are gone, and this is another hold
            return self.end(now, Tell::Lost, out);
        }
        if self.planted == Planted::LeaseFromReply {
            self.sent = now;
        }
        if now.saturating_sub(self.sent) > self.ask.lease / 3 {
            // The grant may be as old as the request. If it has ended already, this is another one.
            (self.asks_first, self.left.token) = (!self.ask.has_acks, None);
            return self.next(now, out);
        }
        self.at = At::Granted;
        out.push(Output::Tell(Tell::Granted(token, self.sent, self.left.lingers)));
    }

    /// A request, a subscription or a connection failed.
    fn failed(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        let was_asked = matches!(self.at, At::Asking | At::Waiting);
        let is_busy = std::mem::take(&mut self.is_busy) && self.at == At::Listening;
        match outcome {
            Outcome::Refused(code) => {
                if was_asked {
                    // The server may have granted it before it stopped to decide.
                    let is_pending = self.at == At::Waiting && self.ask.has_acks && passes(&code);
                    self.left.in_doubt = self.had_doubt || is_pending;
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
            // There was no time left for waiting.
            Outcome::Unsent | Outcome::Broken | Outcome::Silent
                if is_busy && now >= self.patience =>
            {
                self.end(now, Tell::Nil, out);
            }
            Outcome::Unsent => {
                if was_asked {
                    self.left.in_doubt = self.had_doubt || self.planted == Planted::UnsentUndone;
                }
                self.trouble(now, Tell::Unavailable, out);
            }
            _ => {
                self.left.lingers |= was_asked;
                // This request may still tie the session to its connection, with which the session
                // would end: so the next pause is longer.
                if was_asked && self.ask.session {
                    self.pause = AGAIN;
                }
                self.trouble(now, Tell::Unavailable, out);
            }
        }
    }

    fn trouble(&mut self, now: Ms, why: Tell, out: &mut Vec<Output>) {
        let ends = self.ends();
        if now >= ends {
            return self.end(now, why, out);
        }
        (self.at, self.why) = (At::Pausing, why);
        out.push(Output::Sleep(ends.min(now.saturating_add(self.pause))));
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }

    /// The caller gives up, whatever is in progress.
    fn leave(&mut self, now: Ms, why: Tell, out: &mut Vec<Output>) {
        if self.at != At::Asking {
            return self.end(now, why, out);
        }
        out.push(Output::Tell(why));
        if self.ask.session {
            self.left.lingers = true;
            return self.undo(now, out);
        }
        let before = Left { in_doubt: self.had_doubt, ..self.left };
        self.undo_by(|undo| undo.await_reply(now, before, out));
    }

    fn end(&mut self, now: Ms, tell: Tell, out: &mut Vec<Output>) {
        if self.has_link && !self.left.in_doubt {
            self.has_link = false;
            out.push(Output::Keep);
        }
        out.push(Output::Tell(tell));
        self.undo(now, out);
    }

    /// No request is in progress, but the server may have something to undo.
    fn undo(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Left { in_doubt, lingers, .. } = self.left;
        let is_forgotten = self.at == At::Granted && self.planted == Planted::GrantForgotten;
        if is_forgotten || !(in_doubt || lingers) {
            self.at = At::Done;
            return out.push(Output::Free);
        }
        let has_link = self.has_link;
        self.undo_by(|undo| undo.begin(now, has_link, out));
    }

    fn undo_by(&mut self, begin: impl FnOnce(&mut Undo)) {
        let mut undo = Undo::new(self.ask.lease, self.ask.depth, self.left, self.planted);
        begin(&mut undo);
        (self.at, self.has_link, self.undo) = (At::Undone, false, Some(undo));
    }
}
