//! One transition of one lock. The files call each other in one direction only.

pub mod admission;
pub mod apply;
pub mod beginning;
pub mod confirm;
pub mod ending;
pub mod expiry;
pub mod fast_path;
pub mod groups;
pub mod handoff;
pub mod input;
pub mod open_lock;
pub mod record;
pub mod refusal;
pub mod requests;
pub mod several;
pub mod unit;

use crate::step::input::{Effects, StepContext};
use crate::{Lock, Volatile};

/// One transition: the lock with its waiters and sessions, what the decision depends on, and the
/// results. [`Step::apply`] runs it.
#[derive(Debug)]
pub struct Step<'s, 'a> {
    /// The lock.
    pub lock: &'s mut Lock,
    /// The lock's waiters and sessions.
    pub volatile: &'s mut Volatile,
    /// What else the decision depends on.
    pub moment: StepContext<'s>,
    /// What has to be replicated, published and replied; empty when the step begins.
    pub effects: &'s mut Effects<'a>,
}
