//! One transition of one lock. Each file is built on those before it in this list; calls go no
//! other way.

pub mod admission;
pub mod apply;
pub mod beginning;
pub mod confirm;
pub mod ending;
pub mod expiry;
pub mod fast_path;
pub mod handoff;
pub mod input;
pub mod record;
pub mod refusal;
pub mod requests;
