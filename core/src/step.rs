//! One transition of one lock. Calls between the files go one way.

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

/// One transition: the lock and what is remembered of it, on what the decision depends, and what
/// comes of it. [`Step::apply`] runs it.
#[derive(Debug)]
pub struct Step<'s, 'a> {
    /// The lock.
    pub lock: &'s mut Lock,
    /// What only this primary knows of it.
    pub volatile: &'s mut Volatile,
    /// What the decision depends on besides.
    pub moment: StepContext<'s>,
    /// What others must be told; empty when the step begins.
    pub effects: &'s mut Effects<'a>,
}
