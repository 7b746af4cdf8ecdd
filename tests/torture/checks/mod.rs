//! The checkers of histories. Each reads the whole history once, in about linear time. None knows
//! which fault was at work, only what is promised under it.

mod counter;
mod exclusion;
mod gate;
mod holds;
mod kept;
mod linear;
mod order;
mod permits;
mod progress;
mod replies;
mod split;
mod tokens;

pub use holds::{Hold, holds};
pub use linear::{Extent, linear};
pub use permits::most_at_once;
pub use progress::hand_offs_ns;

use crate::history::History;

/// A violation, and the time around it.
#[derive(Debug, Clone)]
pub struct Violation {
    pub checker: &'static str,
    pub text: String,
    pub key: String,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// All violations in a history with these holds.
pub fn check(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let checkers = [
        exclusion::check,
        tokens::check,
        kept::check,
        order::check,
        permits::check,
        progress::check,
        replies::check,
        counter::check,
        gate::check,
        split::check,
    ];
    checkers.iter().flat_map(|check| check(history, holds)).collect()
}
