//! The cargo-fuzz target of [`rlock_core_fuzz::snapshot`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rlock_core_fuzz::snapshot(data));
