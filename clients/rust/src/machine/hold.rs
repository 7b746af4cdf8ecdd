//! A hold from its grant to its end: renewed, lost or released.

use super::*;

/// What is held.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The token.
    pub token: u64,
    /// The lease.
    pub lease: Ms,
    /// When the request was sent that the lease counts from.
    pub sent: Ms,
    /// How long before its deadline the loss is told, because that takes time.
    pub margin: Ms,
    /// It is tied to a connection.
    pub session: bool,
    /// A renewal counts when replicas have acknowledged it.
    pub has_acks: bool,
    /// It is renewed.
    pub renews: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Idle,
    Renewing,
    Seat,
    Opening,
    Tying,
    Done,
}

/// A hold, shared by all levels.
#[derive(Debug)]
pub struct Hold {
    kept: Kept,
    planted: Planted,
    at: At,
    deadline: Ms,
    renews_at: Ms,
    pause: Ms,
    sent: Ms,
    depth: u32,
    is_releasing: bool,
    is_untied: bool,
    is_unsure: bool,
}

const FIRST_RETRY: Ms = 20;

impl Hold {
    /// Begins with [`Input::Call`].
    #[must_use]
    pub fn new(kept: Kept, planted: Planted) -> Self {
        let mut hold = Self {
            kept,
            planted,
            at: At::Start,
            deadline: 0,
            renews_at: FOREVER,
            pause: FIRST_RETRY,
            sent: 0,
            depth: 1,
            is_releasing: false,
            is_untied: false,
            is_unsure: false,
        };
        hold.renewed(kept.sent);
        hold
    }

    /// Until when it is certain.
    #[must_use]
    pub fn deadline(&self) -> Ms {
        self.deadline
    }

    /// From now on it is renewed for that long, if that is longer: another level asked for it. Not while a renewal is
    /// under way that asked for less.
    pub fn lengthen(&mut self, lease: Ms) {
        self.kept.lease = self.kept.lease.max(lease);
    }

    /// The server counts from when it read the request, which was after that was sent.
    fn renewed(&mut self, sent: Ms) {
        self.deadline = self.deadline.max(sent.saturating_add(self.kept.lease));
        self.pause = FIRST_RETRY;
        if self.kept.renews {
            self.renews_at = sent.saturating_add(self.kept.lease / 3);
        }
    }

    /// What follows from that.
    pub fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match (self.at, input) {
            (At::Done, _) => {}
            (_, Input::Released) => {
                self.at = At::Done;
                out.push(Output::Done);
            }
            (at, Input::Gone) => {
                self.leave(at, out);
                self.lose(out);
            }
            (_, Input::Releasing) => self.is_releasing = true,
            (_, Input::Extend(sent)) => {
                self.deadline = self.deadline.max(sent.saturating_add(self.kept.lease))
            }
            (at, Input::Close) => {
                (self.kept.renews, self.renews_at, self.is_untied) = (false, FOREVER, false);
                self.leave(at, out);
                self.idle(now, out);
            }
            (at, Input::Untied) => {
                self.is_untied = true;
                if self.planted != Planted::BreakBelieved {
                    out.push(Output::Doubt);
                }
                if at == At::Idle {
                    self.renews_at = now;
                    self.idle(now, out);
                }
            }
            (At::Start, Input::Call) | (At::Idle, Input::Time) => self.idle(now, out),
            (At::Renewing, Input::Ended(Outcome::Token(_))) => {
                self.renewed(self.sent);
                if self.is_untied && !self.is_releasing {
                    self.at = At::Seat;
                    return out.push(Output::Seat);
                }
                self.idle(now, out);
            }
            (At::Renewing, Input::Ended(Outcome::Refused(code))) if code == "NOTHELD" => {
                if self.is_releasing {
                    self.renews_at = FOREVER;
                    return self.idle(now, out);
                }
                self.lose(out);
            }
            (At::Renewing, Input::Ended(_)) => self.later(now, out),
            (At::Seat, Input::Seat(Some(depth))) => {
                (self.at, self.depth) = (At::Opening, depth);
                out.push(Output::Open(now.saturating_add(REPLY).min(self.limit())));
            }
            (At::Seat, Input::Seat(None)) => self.later(now, out),
            (At::Opening, Input::Opened(_)) => {
                (self.at, self.sent) = (At::Tying, now);
                let by = now.saturating_add(reply_time(self.kept.has_acks)).min(self.limit());
                out.push(Output::Own { block: None, session: true, depth: Some(self.depth), by });
            }
            (At::Opening, Input::Ended(_)) => {
                out.push(Output::Leave);
                self.later(now, out);
            }
            (At::Tying, Input::Own(outcome)) => self.tied(now, outcome, out),
            _ => {}
        }
    }

    /// At [`Output::Leave`]: whether a request to tie it may still be executed, or has tied another hold. That is undone
    /// before the seat is free.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Gives back the seat that it has while it is being tied to a new connection.
    fn leave(&mut self, at: At, out: &mut Vec<Output>) {
        if matches!(at, At::Opening | At::Tying) {
            self.is_unsure = at == At::Tying;
            out.extend([Output::Drop, Output::Leave]);
        }
    }

    /// When the loss is told.
    fn limit(&self) -> Ms {
        self.deadline.saturating_sub(self.kept.margin)
    }

    fn idle(&mut self, now: Ms, out: &mut Vec<Output>) {
        let Kept { token, lease, has_acks, .. } = self.kept;
        if now >= self.limit() {
            return self.lose(out);
        }
        if now >= self.renews_at {
            (self.at, self.sent) = (At::Renewing, now);
            let takes = reply_time(has_acks).min((lease / 6).max(50));
            return out.push(Output::Send(
                Request::Renew(token),
                now.saturating_add(takes).min(self.limit()),
            ));
        }
        self.at = At::Idle;
        out.push(Output::Sleep(self.renews_at.min(self.limit())));
    }

    /// Renews again in a moment.
    fn later(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.renews_at = now.saturating_add(self.pause.min((self.kept.lease / 12).max(1)));
        self.pause = self.pause.saturating_mul(2);
        self.idle(now, out);
    }

    fn tied(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Token(token) if token == self.kept.token => {
                self.is_untied = false;
                self.renewed(self.sent);
                out.extend([Output::Leave, Output::Tied]);
                self.idle(now, out);
            }
            Outcome::Refused(code) if passes(&code) => {
                out.extend([Output::Drop, Output::Leave]);
                self.later(now, out);
            }
            // Another hold ends with its connection. So does this one, if it was tied to a connection that is closed; and
            // one that the server does not tie is no session.
            outcome => {
                self.is_unsure = outcome.is_unknown() || matches!(outcome, Outcome::Token(_));
                out.extend([Output::Drop, Output::Leave]);
                self.lose(out);
            }
        }
    }

    fn lose(&mut self, out: &mut Vec<Output>) {
        self.at = At::Done;
        out.extend([Output::Tell(Tell::Lost), Output::Done]);
    }
}
