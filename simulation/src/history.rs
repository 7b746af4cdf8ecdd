//! The effects that a server's data contains. Only the laws read this; no server knows it.

use std::rc::Rc;

use rlock_core::Change;
use rlock_core::snapshot::{self, Effect};

/// A position in the effects of one primary's reign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The number of the reign, in the order in which reigns began.
    pub reign: u32,
    /// How many effects the reign had then.
    pub number: u64,
}

/// One command on its way to a replica.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its place.
    pub at: Point,
    /// The unit of its server in which it was written: everything that one command or one timer
    /// writes arrives in one `MULTI … EXEC`.
    pub unit: u64,
    /// The database.
    pub db: i32,
    /// The command.
    pub words: Rc<[Vec<u8>]>,
}

impl Item {
    /// `REPLCONF GETACK *` after this effect.
    pub fn getack(at: Point, unit: u64) -> Self {
        let words = [&b"REPLCONF"[..], b"GETACK", b"*"].map(<[u8]>::to_vec);
        Self { at, unit, db: 0, words: words.into() }
    }

    /// The effects of the command, one for each key; none if it is another command.
    pub fn effects(&self) -> Vec<Effect<Vec<Change<'_>>>> {
        match &*self.words {
            [name, keys @ .., payload] if name == b"RLOCK.APPLY" => {
                snapshot::load_effects(payload, keys.len()).unwrap()
            }
            _ => Vec::new(),
        }
    }

    /// Whether a replica that gets this sends an acknowledgment.
    pub fn asks_for_ack(&self) -> bool {
        self.words.first().is_some_and(|name| name == b"REPLCONF")
    }
}

/// The effects that a server's data contains: for each reign, how many of its first effects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    reigns: Vec<Point>,
}

impl History {
    /// The last effect.
    pub fn point(&self) -> Point {
        self.reigns.last().copied().unwrap_or_default()
    }

    /// A reign begins.
    pub fn begin(&mut self, reign: u32) {
        self.reigns.push(Point { reign, number: 0 });
    }

    /// One more effect of this server's own reign.
    pub fn advance(&mut self) -> Point {
        if let Some(last) = self.reigns.last_mut() {
            last.number += 1;
        }
        self.point()
    }

    /// An effect of the primary arrived.
    pub fn arrived(&mut self, at: Point) {
        match self.reigns.last_mut() {
            Some(last) if last.reign == at.reign => last.number = last.number.max(at.number),
            _ => self.reigns.push(at),
        }
    }

    /// Whether the data contains this effect.
    pub fn has(&self, at: Point) -> bool {
        self.reigns.iter().any(|known| known.reign == at.reign && at.number <= known.number)
    }

    /// Whether the data contains effects of this reign.
    pub fn knows(&self, reign: u32) -> bool {
        self.reigns.iter().any(|known| known.reign == reign)
    }
}

/// The unit that a server is writing: nested work belongs to the same unit.
#[derive(Debug, Default)]
pub(crate) struct Units {
    number: u64,
    depth: u32,
}

impl Units {
    /// A piece of work begins.
    pub fn begin(&mut self) {
        self.depth += 1;
    }

    /// Whether this piece of work is not nested.
    pub fn is_outermost(&self) -> bool {
        self.depth == 1
    }

    /// Notes that this piece of work ends.
    pub fn end(&mut self) {
        self.depth -= 1;
        if self.depth == 0 {
            self.next();
        }
    }

    /// From now on, writes belong to another unit.
    pub fn next(&mut self) {
        self.number += 1;
    }

    /// The unit of the current writes.
    pub fn current(&mut self) -> u64 {
        if self.depth == 0 {
            self.next();
        }
        self.number
    }
}
