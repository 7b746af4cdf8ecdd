//! What a history must be like, whoever wrote it. Each checker takes one look at the whole of it,
//! in about linear time; none knows which fault was at work, but for what it promises.

mod counter;
mod exclusion;
mod gate;
mod holds;
mod kept;
mod order;
mod permits;
mod progress;
mod replies;
mod split;
mod tokens;
mod windows;

pub use holds::{Hold, holds};
pub use permits::most_at_once;
pub use progress::hand_offs_ns;
pub use windows::windows;

use crate::history::History;

/// Something that must not be, and the time around it.
#[derive(Debug, Clone)]
pub struct Violation {
    pub checker: &'static str,
    pub text: String,
    pub key: String,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// All that is wrong with a history whose holds are these.
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
