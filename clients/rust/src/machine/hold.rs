//! A hold from its grant to its end: renewed, lost or released.

use super::*;

/// What is held.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The token.
    pub token: u64,
    /// The lease.
    pub lease: Ms,
    /// When the request was sent from which the lease counts.
    pub sent: Ms,
    /// How long before its deadline the loss is reported, because reporting takes time.
    pub margin: Ms,
    /// Whether it is tied to a connection.
    pub session: bool,
    /// Whether a renewal counts only when replicas have acknowledged it.
    pub has_acks: bool,
    /// Whether it is renewed.
    pub renews: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Idle,
    Listening,
    Renewing,
    /// Replicas have yet to acknowledge it.
    Waiting,
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
    /// Whether the machine has the seat, to tie the hold to a new connection.
    is_tying: bool,
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
            is_tying: false,
            is_releasing: false,
            is_untied: false,
            is_unsure: false,
        };
        hold.renewed(kept.sent);
        hold
    }

    /// The time until which it is certain.
    #[must_use]
    pub fn deadline(&self) -> Ms {
        self.deadline
    }

    /// Renews with this lease from now on, if it is longer than the present one: another level
    /// asked for it. Must not be called while a renewal with a shorter lease is in progress.
    pub fn lengthen(&mut self, lease: Ms) {
        self.kept.lease = self.kept.lease.max(lease);
    }

    /// The server counts from when it read the request, which was later than `sent`.
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
            (_, Input::Gone) => {
                self.leave(out);
                self.lose(out);
            }
            (_, Input::Releasing) => self.is_releasing = true,
            (_, Input::Extend(sent)) => {
                self.deadline = self.deadline.max(sent.saturating_add(self.kept.lease))
            }
            (_, Input::Close) => {
                (self.kept.renews, self.renews_at, self.is_untied) = (false, FOREVER, false);
                self.leave(out);
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
            (At::Listening, Input::Listening(_)) => self.ask(now, out),
            (At::Listening, Input::Ended(_)) if self.is_tying => self.fails_to_tie(now, out),
            (At::Listening, Input::Ended(_)) => self.later(now, out),
            (
                At::Renewing | At::Tying,
                Input::Ended(Outcome::Waiting) | Input::Own(Outcome::Waiting),
            ) => {
                self.at = At::Waiting;
                out.push(Output::Wait(self.by(self.sent, ACKS)));
            }
            (At::Renewing, Input::Ended(outcome)) => self.asked(now, outcome, out),
            (At::Seat, Input::Seat(Some(depth))) => {
                (self.at, self.depth, self.is_tying) = (At::Opening, depth, true);
                out.push(Output::Open(now.saturating_add(REPLY).min(self.limit())));
            }
            (At::Seat, Input::Seat(None)) => self.later(now, out),
            (At::Opening, Input::Opened) => self.begin(now, out),
            (At::Opening, Input::Ended(_)) => self.fails_to_tie(now, out),
            (At::Tying, Input::Own(outcome)) => self.tied(now, outcome, out),
            (At::Waiting, Input::Message(outcome)) if self.is_tying => self.tied(now, outcome, out),
            (At::Waiting, Input::Message(outcome)) => self.asked(now, outcome, out),
            (At::Waiting, Input::Lost | Input::Time | Input::Own(_)) if self.is_tying => {
                self.tied(now, Outcome::Silent, out);
            }
            (At::Waiting, Input::Lost) => self.begin(now, out),
            (At::Waiting, Input::Time) => self.later(now, out),
            _ => {}
        }
    }

    /// At [`Output::Leave`]: whether a request to tie the hold may still be executed, or has tied
    /// another hold. If so, that is undone before the seat is free.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Gives up the seat that it has while the hold is being tied to a new connection.
    fn leave(&mut self, out: &mut Vec<Output>) {
        if std::mem::take(&mut self.is_tying) {
            self.is_unsure = matches!(self.at, At::Tying | At::Waiting);
            out.extend([Output::Drop, Output::Leave]);
        }
    }

    fn fails_to_tie(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.is_tying = false;
        out.extend([Output::Drop, Output::Leave]);
        self.later(now, out);
    }

    /// The time at which the loss is reported.
    fn limit(&self) -> Ms {
        self.deadline.saturating_sub(self.kept.margin)
    }

    fn idle(&mut self, now: Ms, out: &mut Vec<Output>) {
        if now >= self.limit() {
            return self.lose(out);
        }
        if now >= self.renews_at {
            return self.begin(now, out);
        }
        self.at = At::Idle;
        out.push(Output::Sleep(self.renews_at.min(self.limit())));
    }

    /// Sends the renewal, after it has subscribed to the channel for replies that wait for
    /// acknowledgments.
    fn begin(&mut self, now: Ms, out: &mut Vec<Output>) {
        if !self.kept.has_acks {
            return self.ask(now, out);
        }
        self.at = At::Listening;
        out.push(Output::Listen(self.by(now, REPLY)));
    }

    fn ask(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.sent = now;
        let by = self.by(now, REPLY);
        if self.is_tying {
            self.at = At::Tying;
            let by = now.saturating_add(REPLY).min(self.limit());
            out.push(Output::Own { block: None, session: true, depth: Some(self.depth), by });
        } else {
            self.at = At::Renewing;
            out.push(Output::Send(Request::Renew(self.kept.token), by));
        }
    }

    /// A slow renewal is repeated while there is time.
    fn by(&self, since: Ms, takes: Ms) -> Ms {
        since.saturating_add(takes.min((self.kept.lease / 6).max(50))).min(self.limit())
    }

    /// How a renewal ended.
    fn asked(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        match outcome {
            Outcome::Token(_) => {
                self.renewed(self.sent);
                if self.is_untied && !self.is_releasing {
                    self.at = At::Seat;
                    return out.push(Output::Seat);
                }
                self.idle(now, out);
            }
            Outcome::Refused(code) if code == "NOTHELD" => {
                if self.is_releasing {
                    self.renews_at = FOREVER;
                    return self.idle(now, out);
                }
                self.lose(out);
            }
            _ => self.later(now, out),
        }
    }

    /// Schedules another renewal after a moment.
    fn later(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.renews_at = now.saturating_add(self.pause.min((self.kept.lease / 12).max(1)));
        self.pause = self.pause.saturating_mul(2);
        self.idle(now, out);
    }

    fn tied(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        self.is_tying = false;
        match outcome {
            Outcome::Token(token) if token == self.kept.token => {
                self.is_untied = false;
                self.renewed(self.sent);
                out.extend([Output::Leave, Output::Tied]);
                self.idle(now, out);
            }
            Outcome::Unsent => self.fails_to_tie(now, out),
            Outcome::Refused(code) if passes(&code) => self.fails_to_tie(now, out),
            // The session is lost: the server has not tied the hold, or has tied it to the
            // connection that is closed now. The request may also have tied another hold, which is
            // then undone.
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
