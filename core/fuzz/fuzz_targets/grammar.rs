//! The cargo-fuzz target of [`rlock_core_fuzz::grammar`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rlock_core_fuzz::grammar(data));
