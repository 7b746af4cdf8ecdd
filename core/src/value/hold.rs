//! One hold.

use crate::{EpochMs, Token};

/// One owner's hold in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its fencing token: the same from the first level to the last.
    pub token: Token,
    /// When it expires, at any depth.
    pub deadline: EpochMs,
    /// Levels acquired and not released, from 1.
    pub depth: u16,
}
