//! What a reply promised to a client, and what became of it.

use rlock_core::{ClientId, Mode, Owner, Token};

use super::facts::{Bound, Fact, How};
use crate::history::{History, Point};
use crate::keyspace::{Key, KeyRef};
use crate::printer::Printer;
use crate::seen::Kind;

/// What a reply promised to a client.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The database.
    pub db: i32,
    /// The lock.
    pub key: Key,
    /// The owner.
    pub owner: Owner,
    /// The mode.
    pub mode: Mode,
    /// Its token.
    pub token: Token,
    /// The connection that it is tied to.
    pub session: Option<ClientId>,
    /// The effect that granted it.
    pub at: Point,
    /// When it was made, in microseconds of the world.
    pub us: u64,
    /// When it was made, by its server's clock.
    pub now_ms: u64,
    /// How many grants of this hold were reported, or are pending.
    pub told: u32,
    /// How many of them are pending.
    pub pending: u32,
    /// The deadlines that were confirmed after replicas had acknowledged them.
    pub acked: Vec<Acked>,
    /// Why the next primary lacks the grant although replicas acknowledged it.
    pub lost: Option<Kind>,
    /// To these connections.
    pub clients: Vec<ClientId>,
    /// What became of it.
    pub facts: Vec<(Point, Fact)>,
}

/// A confirmed deadline, which replicas had acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// The effect that made it.
    pub at: Point,
    /// The deadline, by its server's clock in milliseconds.
    pub until: u64,
    /// When it was reported, in microseconds of the world.
    pub us: u64,
}

impl Promise {
    /// How long it binds a server with these effects.
    pub fn bound(&self, history: &History) -> Option<Bound> {
        if !history.has(self.at) {
            return None;
        }
        let mut bound = Some(Bound { until: 0, cut: None });
        for (_, fact) in self.facts.iter().filter(|(at, _)| history.has(*at)) {
            let until = bound.map_or(0, |bound| bound.until);
            match fact {
                Fact::Ended(_) => bound = None,
                // After a RENAME, a hold that ended may be followed by another one with its token,
                // from the same request for several locks.
                Fact::Until(ms) => bound = Some(Bound { until: until.max(*ms), cut: None }),
                Fact::Tampered(ms) => {
                    if let Some(Bound { cut, .. }) = &mut bound {
                        *cut = Some(cut.map_or(*ms, |cut| cut.min(*ms)));
                    }
                }
            }
        }
        bound
    }

    /// How it ended for a server with these effects.
    pub fn end(&self, history: &History) -> Option<How> {
        let mut newest = self.facts.iter().rev().filter(|(at, _)| history.has(*at));
        newest.find_map(|(_, fact)| match fact {
            Fact::Ended(how) => Some(Some(*how)),
            Fact::Until(_) => Some(None),
            Fact::Tampered(_) => None,
        })?
    }

    /// Whether it ended on any server.
    pub fn has_ended(&self) -> bool {
        self.facts.iter().any(|(_, fact)| matches!(fact, Fact::Ended(_)))
    }

    /// Everything in it on which the future depends.
    pub(crate) fn print(&self, to: &mut Printer) {
        to.add((self.db, &self.key, self.owner.as_bytes(), self.mode == Mode::Write, self.at));
        to.token(self.token.get());
        to.add((self.session.map(ClientId::get), self.told, self.pending));
        self.clients.iter().for_each(|client| to.add(client.get()));
        for (at, fact) in &self.facts {
            to.add(at);
            match fact {
                Fact::Until(ms) | Fact::Tampered(ms) => to.moment(*ms),
                Fact::Ended(how) => to.add(*how as u8),
            }
        }
    }

    /// The last deadline that was confirmed.
    pub fn acked_until(&self) -> u64 {
        self.acked.iter().map(|acked| acked.until).max().unwrap_or(0)
    }

    /// Whether it is about this lock.
    pub fn is_of(&self, lock: KeyRef<'_>) -> bool {
        self.db == lock.db && self.key == *lock.key
    }

    /// Whether it excludes a hold of this owner in this mode.
    pub fn excludes(&self, owner: &Owner, mode: Mode) -> bool {
        self.owner != *owner && (self.mode == Mode::Write || mode == Mode::Write)
    }
}
