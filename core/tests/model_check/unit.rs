//! Requests for two locks together that do not wait: `MACQUIRE` and `MRELEASE`.

use std::convert::Infallible;

use rlock_core::grammar::Want;
use rlock_core::unit::release_all;
use rlock_core::{
    Acquire, Effects, Input, Kind, Mode, OpenLock, OpenLocks, OwnPlace, Refusal, Reply, Token, Unit,
};

use super::kinds::Kinds;
use super::steps::{LEASE_MS, OWNERS};
use super::town::Town;
use crate::support::{World, acquire};

const KEYS: [&[u8]; 2] = [b"k0", b"k1"];

/// All locks of a town, open.
struct OpenTown<'t, 'p> {
    town: &'t mut Town<'p>,
    kinds: &'t mut Kinds,
    /// The locks that were entered: the other locks learn of the token when all of them are.
    entered: Vec<(usize, Effects<'static>)>,
}

impl OpenLocks<'static> for OpenTown<'_, '_> {
    type Error = Infallible;

    fn look<T>(
        &mut self,
        place: usize,
        look: impl FnOnce(OpenLock<'_>) -> T,
    ) -> Result<T, Infallible> {
        Ok(look(self.town.locks[place].open()))
    }

    fn decide(&mut self, place: usize, input: Input<'static>) -> Result<Reply, Infallible> {
        let effects = self.town.locks[place].step(input);
        let reply = effects.reply.clone();
        if let Input::Enter { .. } = input {
            self.entered.push((place, effects));
        } else {
            self.town.carry_out(place, &effects, self.kinds);
        }
        Ok(reply)
    }

    fn issue(&mut self) -> Result<Token, Refusal> {
        let locks = &mut self.town.locks;
        let token = locks.iter_mut().map(World::issue).max().expect("there is a lock");
        locks.iter_mut().for_each(|world| world.reserve(token));
        Ok(token)
    }

    fn may_tie(&self, _: usize) -> Result<(), Refusal> {
        Ok(())
    }
}

impl Town<'_> {
    /// All of the locks or none, and with the same outcome as single requests for each of them.
    pub fn asks_all(&mut self, owner: usize, modes: [Mode; 2], kinds: &mut Kinds) {
        let expected = self.of_singles(owner, modes);
        let wants: Vec<Want<&[u8]>> = modes
            .iter()
            .enumerate()
            .map(|(number, mode)| Want { key: KEYS[number], mode: *mode, limit: None, number })
            .collect();
        let ask = acquire(OWNERS[owner], Mode::Write, LEASE_MS);
        let unit = Unit { wants: &wants, ask, place: OwnPlace::None };
        let mut open = OpenTown { town: self, kinds, entered: Vec::new() };
        let Ok(judged) = unit.judge_all(&mut open);
        let reply = match judged {
            Ok(judged) => {
                let ready = unit.prepare(&mut open, judged, false).expect("nothing keeps it out");
                let Ok(reply) = unit.enter(&mut open, ready, None);
                reply
            }
            Err(about) => about.reply,
        };
        let OpenTown { entered, .. } = open;
        assert!(entered.is_empty() || entered.len() == modes.len(), "a part of it: {entered:?}");
        assert_eq!(!entered.is_empty(), matches!(reply, Reply::Granted { .. }), "{reply:?}");
        entered.iter().for_each(|(place, effects)| self.carry_out(*place, effects, kinds));
        if let Some(expected) = expected {
            assert_eq!(as_one(&reply), expected, "{owner} asks for {modes:?}");
        }
    }

    pub fn releases_all(&mut self, owner: usize, kinds: &mut Kinds) {
        let count = self.locks.len();
        let mut open = OpenTown { town: self, kinds, entered: Vec::new() };
        let Ok(_) = release_all(&mut open, count, OWNERS[owner], None);
        for world in &self.locks {
            let own = world.lock.holds_of(OWNERS[owner], None, None).next();
            assert_eq!(own, None, "{owner} holds after MRELEASE");
        }
    }

    /// The reply if each lock were requested alone: the worst of those replies; `None` if a ticket
    /// of the owner helps such a request.
    fn of_singles(&self, owner: usize, modes: [Mode; 2]) -> Option<Reply> {
        let mut worst = Reply::Count(0);
        for (world, mode) in self.locks.iter().zip(modes) {
            let is_own = |kind, of: &[u8]| kind == Kind::Ticket && of == OWNERS[owner];
            let mut line = world.volatile.queue.iter();
            if line.any(|(entry, _)| is_own(entry.kind, entry.owner.as_bytes())) {
                return None;
            }
            let ask = Acquire { depth: Some(1), ..acquire(OWNERS[owner], mode, LEASE_MS) };
            let reply = world.fork().step(Input::Acquire(ask)).reply;
            worst = match (worst, as_one(&reply)) {
                (refused @ Reply::Refused(_), _) | (_, refused @ Reply::Refused(_)) => refused,
                (Reply::NotNow { wait_ms: one }, Reply::NotNow { wait_ms: other }) => {
                    Reply::NotNow { wait_ms: one.zip(other).map(|(one, other)| one.max(other)) }
                }
                (not_now @ Reply::NotNow { .. }, _) | (_, not_now) => not_now,
            };
        }
        Some(worst)
    }
}

/// Replaces any grant by one and the same reply.
fn as_one(reply: &Reply) -> Reply {
    if let Reply::Granted { .. } = reply { Reply::Count(0) } else { reply.clone() }
}
