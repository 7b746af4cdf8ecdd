//! RLOCK once more, as naively as it can be written down: a list of holds, searched from end to
//! end. Written from the contract, not from the core; where the two differ, one of them is wrong.

use rlock_core::{
    Acquire, Effects, EpochMs, Event, Input, LeaseMs, Levels, Mode, Now, Patience, Release, Renew,
    Reply, Token,
};

use super::laws::Held;

#[derive(Clone, Debug, Default)]
pub struct Model {
    holds: Vec<Held>,
    last_token: u64,
}

/// What the contract says about one step.
#[derive(Debug)]
pub struct Expected {
    said: Said,
    /// In any order: the contract says which, not in which order several leases end.
    events: Vec<Event>,
    holds: Vec<Held>,
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Granted { token: u64, left_ms: u64 },
    NotNow { wait_ms: Option<u64> },
    Count(u64),
    Error(String),
}

impl Expected {
    pub fn assert_is(mut self, effects: &Effects<'_>, holds: &[Held]) {
        let said = match &effects.reply {
            Reply::Granted { token, left_ms } => {
                Said::Granted { token: token.get(), left_ms: *left_ms }
            }
            Reply::NotNow { wait_ms } | Reply::MustWait { wait_ms } => {
                Said::NotNow { wait_ms: *wait_ms }
            }
            Reply::MustConfirm | Reply::Pending => panic!("nobody asked for acknowledgements"),
            Reply::Count(count) => Said::Count(*count),
            Reply::Refused(refusal) => {
                let line = refusal.line(b"k", b"o");
                Said::Error(line.split(' ').next().unwrap_or_default().into())
            }
        };
        assert_eq!(said, self.said, "the reply, and what the contract says");
        let mut events = effects.events.to_vec();
        events.sort_by_key(|event| event.name());
        self.events.sort_by_key(|event| event.name());
        assert_eq!(events, self.events, "the events, and what the contract says");
        self.holds.sort_by_key(|held| held.token);
        assert_eq!(holds, self.holds, "the holds, and what the contract says");
    }
}

impl Model {
    pub fn begin_tokens(&mut self, now: Now) {
        self.last_token = self.last_token.max(now.us() + 1_000_000);
    }

    pub fn see(&mut self, token: Token) {
        self.last_token = self.last_token.max(token.get());
    }

    /// Another process goes on, which knows of tokens up to this one.
    pub fn know_tokens_to(&mut self, token: u64) {
        self.last_token = token;
    }

    /// It knows nothing of waiting, nor of sessions.
    pub fn knows(input: &Input<'_>) -> bool {
        match input {
            Input::Acquire(ask) => {
                ask.session.is_none() && !matches!(ask.patience, Patience::Ticket(_))
            }
            Input::Release(_) | Input::Renew(_) | Input::Force(_) | Input::Tick => true,
            _ => false,
        }
    }

    /// What it could not follow.
    pub fn learn(&mut self, holds: &[Held], last_token: u64) {
        self.holds = holds.to_vec();
        self.last_token = self.last_token.max(last_token);
    }

    pub fn ask(&mut self, now: Now, max_depth: u16, input: &Input<'_>) -> Expected {
        let expired = self.end(|held| held.is_over(now));
        let mut events = vec![Event::Expired; expired];
        let said = match input {
            Input::Acquire(ask) => self.acquire(ask, now, max_depth, &mut events),
            Input::Release(ask) => self.release(ask, &mut events),
            Input::Renew(ask) => self.renew(ask, now),
            Input::Force(mode) => {
                let forced = self.end(|held| mode.is_none_or(|mode| mode == held.mode));
                events.extend(vec![Event::Forced; forced]);
                Said::Count(forced as u64)
            }
            _ => Said::Count(0),
        };
        Expected { said, events, holds: self.holds.clone() }
    }

    fn end(&mut self, is_over: impl Fn(&Held) -> bool) -> usize {
        let before = self.holds.len();
        self.holds.retain(|held| !is_over(held));
        before - self.holds.len()
    }

    fn of(&mut self, owner: &[u8], mode: Mode) -> Option<&mut Held> {
        self.holds.iter_mut().find(|held| held.owner == owner && held.mode == mode)
    }

    fn has(&self, owner: &[u8], mode: Mode) -> bool {
        self.holds.iter().any(|held| held.owner == owner && held.mode == mode)
    }

    fn acquire(
        &mut self,
        ask: &Acquire<'_>,
        now: Now,
        max_depth: u16,
        events: &mut Vec<Event>,
    ) -> Said {
        let deadline = deadline(now, ask.lease);
        let own = self.of(ask.owner, ask.mode);
        let present = own.as_ref().map_or(0, |held| held.depth);
        if ask.depth.is_some_and(|wanted| u32::from(wanted) > u32::from(present) + 1) {
            let code = if present == 0 { "NOTHELD" } else { "ERR" };
            return Said::Error(code.into());
        }
        if let Some(held) = own {
            if ask.depth.is_none_or(|wanted| wanted > present) {
                if held.depth >= max_depth {
                    return Said::Error("TOOMANY".into());
                }
                held.depth += 1;
            }
            held.deadline = held.deadline.max(deadline);
            return Said::Granted { token: held.token.get(), left_ms: left(held.deadline, now) };
        }
        let upgrades = ask.mode == Mode::Write && self.of(ask.owner, Mode::Read).is_some();
        if upgrades && !ask.upgrade {
            return Said::Error("DEADLOCK".into());
        }
        let excludes = |held: &&Held| {
            held.owner != ask.owner && (held.mode == Mode::Write || ask.mode == Mode::Write)
        };
        let latest = self.holds.iter().filter(excludes).map(|held| held.deadline).max();
        let reads = |held: &&Held| held.owner != ask.owner && held.mode == Mode::Read;
        let others = self.holds.iter().filter(reads).map(|held| held.deadline);
        let limit = ask.limit.map_or(usize::MAX, |limit| limit.get() as usize);
        let too_many = (others.clone().count() + 1).saturating_sub(limit);
        let until = match (latest, too_many) {
            _ if self.has(ask.owner, Mode::Write) => None,
            (None, 0) => None,
            (Some(latest), 0) => Some(Some(latest)),
            (None, 1) => Some(others.min()),
            _ => Some(None),
        };
        if let Some(until) = until {
            return Said::NotNow { wait_ms: until.map(|until| wait(until, now)) };
        }
        let Some(token) = Token::new(now.us().max(self.last_token + 1)) else {
            return Said::Error("ERR".into());
        };
        self.last_token = token.get();
        let (owner, mode, depth) = (ask.owner.to_vec(), ask.mode, 1);
        self.holds.push(Held { owner, mode, token, deadline, depth });
        events.push(if upgrades { Event::Upgraded } else { Event::Acquired });
        Said::Granted { token: token.get(), left_ms: left(deadline, now) }
    }

    fn release(&mut self, ask: &Release<'_>, events: &mut Vec<Event>) -> Said {
        let fits = |held: &&Held| {
            held.owner == ask.owner
                && ask.mode.is_none_or(|mode| mode == held.mode)
                && ask.token.is_none_or(|token| token == held.token)
        };
        // WRITE if held, else READ.
        let Some(target) = self.holds.iter().filter(fits).max_by_key(|held| held.mode).cloned()
        else {
            return match ask.levels {
                Levels::DownTo(_) if ask.token.is_none() => Said::Count(0),
                _ => Said::Error("NOTHELD".into()),
            };
        };
        let left = match ask.levels {
            Levels::One => target.depth - 1,
            Levels::All => 0,
            Levels::DownTo(wanted) => wanted.min(target.depth),
        };
        if left == 0 {
            self.end(|held| held.token == target.token);
            let keeps_read = self.of(ask.owner, Mode::Read).is_some();
            let is_downgrade = target.mode == Mode::Write && keeps_read;
            events.push(if is_downgrade { Event::Downgraded } else { Event::Released });
        } else if let Some(held) = self.of(ask.owner, target.mode) {
            held.depth = left;
        }
        Said::Count(left.into())
    }

    fn renew(&mut self, ask: &Renew<'_>, now: Now) -> Said {
        let mut renewed = 0;
        for held in &mut self.holds {
            if held.owner == ask.owner
                && ask.mode.is_none_or(|mode| mode == held.mode)
                && ask.token.is_none_or(|token| token == held.token)
            {
                held.deadline = held.deadline.max(deadline(now, ask.lease));
                renewed += 1;
            }
        }
        if renewed > 0 { Said::Count(1) } else { Said::Error("NOTHELD".into()) }
    }
}

fn deadline(now: Now, lease: LeaseMs) -> EpochMs {
    let us = now.us() + lease.get() * 1000;
    EpochMs::new(us.div_ceil(1000)).expect("a deadline of this millennium")
}

fn left(deadline: EpochMs, now: Now) -> u64 {
    ((deadline.get() * 1000 - now.us()) / 1000).max(1)
}

fn wait(until: EpochMs, now: Now) -> u64 {
    (until.get() * 1000 - now.us()).div_ceil(1000)
}
