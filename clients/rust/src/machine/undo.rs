//! Undoes whatever was sent, until the server has confirmed that, or the lease has expired.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Waits for the reply to the interrupted request.
    Awaiting,
    Cancelling,
    Looking,
    Releasing,
    Resting,
    Done,
}

#[derive(Debug)]
pub(super) struct Undo {
    lease: Ms,
    depth: u32,
    left: Left,
    planted: Planted,
    at: At,
    until: Ms,
    pause: Ms,
    /// What was left behind before the interrupted request.
    before: Left,
}

impl Undo {
    pub(super) fn new(lease: Ms, depth: u32, left: Left, planted: Planted) -> Self {
        let (at, until, pause) = (At::Resting, FOREVER, LATE);
        Self { lease, depth, left, planted, at, until, pause, before: left }
    }

    fn starts(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.until = now.saturating_add(self.lease).saturating_add(REPLY);
        out.push(Output::Undo);
        if self.planted == Planted::SeatLeft {
            out.push(Output::Free);
        }
    }

    /// No operation is in progress. A session that nobody uses ends with its connection.
    pub(super) fn begin(&mut self, now: Ms, has_link: bool, out: &mut Vec<Output>) {
        self.starts(now, out);
        if has_link {
            out.push(Output::Drop);
        }
        self.round(now, out);
    }

    /// A request on a shared connection is in progress: waits for its reply for a moment.
    pub(super) fn await_reply(&mut self, now: Ms, before: Left, out: &mut Vec<Output>) {
        self.starts(now, out);
        (self.at, self.before) = (At::Awaiting, before);
        out.push(Output::Await(now.saturating_add(REPLY / 4)));
    }

    pub(super) fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match (self.at, input) {
            (At::Done, _) => {}
            (_, Input::Close) => self.until = self.until.min(now.saturating_add(CLOSES)),
            (At::Awaiting, Input::Ended(outcome)) => {
                self.replied(&outcome);
                self.round(now, out);
            }
            (At::Cancelling | At::Looking | At::Releasing, Input::Ended(outcome)) => {
                self.did(now, outcome, out)
            }
            (At::Resting, Input::Time) => self.round(now, out),
            _ => {}
        }
    }

    /// The reply to an acquisition that nobody waits for any more.
    fn replied(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Token(token) => self.left.token = Some(*token),
            Outcome::Nil => self.left.in_doubt = false,
            Outcome::Waiting => {}
            Outcome::Refused(_) | Outcome::Unsent => self.left = self.before,
            Outcome::Broken | Outcome::Silent => self.left.lingers = true,
        }
    }

    fn round(&mut self, now: Ms, out: &mut Vec<Output>) {
        if now >= self.until {
            self.free(out);
        } else if self.has_to_look() {
            // A replica would answer a query as well, but it refuses this command.
            self.send(now, At::Cancelling, Request::Cancel, out);
        } else {
            self.let_go(now, out);
        }
    }

    fn has_to_look(&self) -> bool {
        let Left { in_doubt, lingers, token } = self.left;
        (in_doubt || lingers) && token.is_none() && self.planted != Planted::UndoneUnnamed
    }

    /// Releases what may have been granted, by its token: if this request arrives late, it ends no
    /// later hold.
    fn let_go(&mut self, now: Ms, out: &mut Vec<Output>) {
        match self.left.token {
            _ if !self.left.in_doubt && !self.left.lingers => self.done(now, out),
            Some(token) => {
                let token = if self.planted == Planted::UndoneUnnamed { 0 } else { token };
                self.send(now, At::Releasing, Request::Release(token, self.depth - 1), out);
            }
            None if self.planted == Planted::UndoneUnnamed => {
                self.send(now, At::Releasing, Request::Release(0, self.depth - 1), out);
            }
            None => self.send(now, At::Looking, Request::Info, out),
        }
    }

    fn send(&mut self, now: Ms, at: At, request: Request, out: &mut Vec<Output>) {
        self.at = at;
        out.push(Output::Send(request, now.saturating_add(REPLY)));
    }

    fn did(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match (self.at, outcome) {
            (At::Cancelling, Outcome::Token(_) | Outcome::Nil) => self.let_go(now, out),
            (At::Looking, Outcome::Token(token)) => {
                self.left.token = Some(token);
                self.let_go(now, out);
            }
            (_, Outcome::Token(_) | Outcome::Nil) => self.done(now, out),
            (At::Releasing, Outcome::Refused(code)) if code == "NOTHELD" => self.done(now, out),
            (_, Outcome::Refused(code)) if !passes(&code) => self.free(out),
            (at, outcome) => {
                // A cancellation that arrives late would end a later wait.
                self.left.lingers |= at == At::Cancelling && outcome.is_unknown();
                self.rest(now, self.pause, out);
                self.pause = (self.pause * 2).min(1000);
            }
        }
    }

    /// Checks once more if a request was never answered: the server may execute only now what it
    /// had not read yet.
    fn done(&mut self, now: Ms, out: &mut Vec<Output>) {
        if !self.left.lingers || self.planted == Planted::UndoneOnce {
            return self.free(out);
        }
        self.left = Left { in_doubt: true, lingers: false, token: None };
        self.rest(now, AGAIN, out);
    }

    fn rest(&mut self, now: Ms, pause: Ms, out: &mut Vec<Output>) {
        self.at = At::Resting;
        out.push(Output::Sleep(now.saturating_add(pause)));
    }

    fn free(&mut self, out: &mut Vec<Output>) {
        self.at = At::Done;
        out.push(Output::Free);
    }
}
