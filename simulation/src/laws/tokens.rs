//! Law: tokens increase. A new token is greater than all tokens that its server issued, loaded or
//! received; and, if all clocks agree, greater than those of earlier primaries, whatever was lost.

use std::collections::BTreeMap;

use rlock_core::Change;

use super::{Broken, must};
use crate::history::Item;
use crate::keyspace::LockName;
use crate::seen::{Kind, Seen};

/// The greatest tokens.
pub struct TokensSeen {
    /// The greatest token that each server knows of.
    known: Vec<u64>,
    /// The tokens issued in the present step, by lock. The token for several locks is issued before
    /// they are entered, so it may be smaller than that of another lock.
    step: BTreeMap<LockName, u64>,
    /// The greatest token that any server issued.
    issued: u64,
    /// The greatest token that had been issued when each reign began; the first entry belongs to no
    /// reign.
    at_begin: Vec<u64>,
}

impl TokensSeen {
    /// Before the first one.
    pub fn new(nodes: usize) -> Self {
        Self { known: vec![0; nodes], step: BTreeMap::new(), issued: 0, at_begin: vec![0] }
    }

    /// A server becomes a primary.
    pub fn reign_begins(&mut self) {
        self.at_begin.push(self.issued);
    }

    /// A process starts with data that contains this token.
    pub fn started(&mut self, node: usize, greatest: u64) {
        self.known[node] = greatest;
    }

    /// A server learns of a token.
    pub fn saw(&mut self, node: usize, token: u64) {
        self.known[node] = self.known[node].max(token);
    }

    /// A command of the stream arrives.
    pub fn delivered(&mut self, node: usize, item: &Item) {
        for change in item.effects().iter().flat_map(|effect| &effect.changes) {
            if let Change::Granted { token, .. } = change {
                self.saw(node, token.get());
            }
        }
    }

    /// A primary issued a token.
    pub fn issued(
        &mut self,
        node: usize,
        reign: u32,
        lock: LockName,
        token: u64,
        clocks_differ: bool,
        seen: &mut Seen,
    ) -> Result<(), Broken> {
        let here = self.step.insert(lock, token).unwrap_or(0);
        let known = self.known[node].max(here);
        must(token > known, "tokens rise", || {
            format!("server {node} issued {token}, and knew of {known}")
        })?;
        let before = self.at_begin[usize::try_from(reign).unwrap()];
        if token <= before && clocks_differ {
            seen.count(Kind::TokenNotRising);
        } else {
            must(token > before, "tokens rise from primary to primary", || {
                format!("server {node} issued {token}, a primary before it {before}")
            })?;
        }
        self.issued = self.issued.max(token);
        Ok(())
    }

    /// A server did something.
    pub fn stepped(&mut self, node: usize) {
        let most = std::mem::take(&mut self.step).into_values().max();
        most.into_iter().for_each(|token| self.saw(node, token));
    }
}
