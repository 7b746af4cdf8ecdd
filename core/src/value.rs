//! The value at a key: what is saved and replicated.

pub mod change;
pub mod count;
pub mod hold;
pub mod holders;
pub mod lock;
pub mod readers;
pub mod small_map;
pub mod snapshot;
pub mod units;
