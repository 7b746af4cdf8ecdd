//! The fuzz targets of the core: plain functions of arbitrary bytes, which fail by panicking.
//! cargo-fuzz runs them on nightly Rust, `core/tests/fuzz.rs` on stable.
#![allow(clippy::expect_used, clippy::panic, reason = "a target fails by panic")]
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "numbers are small")]

mod grammar;
mod histories;
#[allow(dead_code, reason = "these are about steps, too")]
#[path = "../../tests/support/laws.rs"]
mod laws;
#[allow(dead_code, reason = "the other tests use more of it")]
#[path = "../../tests/support/naive/mod.rs"]
mod naive;
mod snapshot;

pub use grammar::grammar;
pub use histories::histories;
pub use snapshot::snapshot;
