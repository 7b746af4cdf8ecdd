//! What observers see.

use std::rc::Rc;

use crate::{EpochMs, Owner, Refusal, Token};

/// The hold that observers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHold {
    /// Its fencing token.
    pub token: Token,
    /// Its owner.
    pub owner: Owner,
    /// When it expires.
    pub deadline: EpochMs,
}

/// What observers see at a key: who holds WRITE, if anybody does, or why they cannot see it.
pub type Sight = Result<Option<Rc<SeenHold>>, Refusal>;
