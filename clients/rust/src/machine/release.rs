//! The release of one level by an owner that has its seat.

use super::undo::Undo;
use super::*;

/// What is released.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// How long it is repeated.
    pub patience: Ms,
    /// The lease.
    pub lease: Ms,
    /// The level.
    pub depth: u32,
    /// The hold's token.
    pub token: u64,
    /// The time until which it is certain.
    pub deadline: Ms,
    /// Whether a request of its attempts was never answered.
    pub lingers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Asking,
    Pausing,
    Undone,
}

/// The release of one level. It also undoes a level whose release has an unknown outcome.
#[derive(Debug)]
pub struct Release {
    level: Level,
    planted: Planted,
    at: At,
    patience: Ms,
    pause: Ms,
    /// One was never answered.
    is_unsure: bool,
    why: Tell,
    undo: Option<Undo>,
}

impl Release {
    /// Begins with [`Input::Call`], or with [`Input::Cancel`].
    #[must_use]
    pub fn new(level: Level, planted: Planted) -> Self {
        let (at, patience, pause, is_unsure) = (At::Start, 0, FIRST_PAUSE, false);
        Self { level, planted, at, patience, pause, is_unsure, why: Tell::Unavailable, undo: None }
    }

    /// What follows from that.
    pub fn step(&mut self, now: Ms, input: Input, out: &mut Vec<Output>) {
        match (self.at, input) {
            (At::Undone, input) => {
                if let Some(undo) = &mut self.undo {
                    undo.step(now, input, out);
                }
            }
            (At::Start, Input::Call) if now >= self.level.deadline => {
                out.push(Output::Tell(Tell::Lost));
                self.undo(now, None, false, out);
            }
            (At::Start, Input::Call) => {
                self.patience = now.saturating_add(self.level.patience);
                self.ask(now, out);
            }
            // Nobody waits for it.
            (At::Start, Input::Cancel) => self.fails(now, Tell::Cancelled, out),
            (At::Asking | At::Pausing, Input::Close) => {
                self.is_unsure |= self.at == At::Asking;
                self.fails(now, Tell::Closed, out);
                self.undo.iter_mut().for_each(|undo| undo.step(now, Input::Close, out));
            }
            (At::Asking, Input::Ended(outcome)) => self.asked(now, outcome, out),
            (At::Pausing, Input::Time) if now < self.patience => self.ask(now, out),
            (At::Pausing, Input::Time) => self.fails(now, self.why.clone(), out),
            _ => {}
        }
    }

    fn ask(&mut self, now: Ms, out: &mut Vec<Output>) {
        self.at = At::Asking;
        let Level { token, depth, .. } = self.level;
        let by = now.saturating_add(REPLY).min(self.patience.saturating_add(LATE));
        out.push(Output::Send(Request::Release(token, depth - 1), by));
    }

    fn asked(&mut self, now: Ms, outcome: Outcome, out: &mut Vec<Output>) {
        let Level { depth, deadline, .. } = self.level;
        match outcome {
            Outcome::Token(_) | Outcome::Nil => self.is_released(now, out),
            // The first request released it, and its reply was lost.
            Outcome::Refused(code)
                if code == "NOTHELD" && self.is_unsure && depth == 1 && now < deadline =>
            {
                self.is_released(now, out);
            }
            Outcome::Refused(code) if code == "NOTHELD" => {
                out.push(Output::Tell(Tell::Lost));
                self.undo(now, None, false, out);
            }
            Outcome::Refused(code) if !passes(&code) => self.fails(now, Tell::Refused(code), out),
            outcome => {
                self.is_unsure |= outcome.is_unknown();
                self.why = match outcome {
                    Outcome::Refused(code) if code == "NOREPLICAS" => Tell::NoReplicas,
                    _ => Tell::Unavailable,
                };
                if now >= self.patience {
                    return self.fails(now, self.why.clone(), out);
                }
                self.at = At::Pausing;
                out.push(Output::Sleep(self.patience.min(now.saturating_add(self.pause))));
                self.pause = LONGEST_PAUSE.min(self.pause * 2);
            }
        }
    }

    fn is_released(&mut self, now: Ms, out: &mut Vec<Output>) {
        out.push(Output::Tell(Tell::Released));
        // A level below has the same token: a late release by token would end it.
        let lingers = self.level.lingers && self.level.depth == 1 || self.is_unsure;
        self.undo(now, None, lingers, out);
    }

    /// Until the release is known to be executed, no other request of this owner may come.
    fn fails(&mut self, now: Ms, why: Tell, out: &mut Vec<Output>) {
        out.push(Output::Tell(why));
        self.undo(now, Some(self.level.token), self.is_unsure || self.level.lingers, out);
    }

    fn undo(&mut self, now: Ms, token: Option<u64>, lingers: bool, out: &mut Vec<Output>) {
        self.at = At::Undone;
        if token.is_none() && !lingers {
            return out.push(Output::Free);
        }
        let left = Left { in_doubt: true, lingers, token };
        let mut undo = Undo::new(self.level.lease, self.level.depth, left, self.planted);
        undo.begin(now, false, out);
        self.undo = Some(undo);
    }
}
