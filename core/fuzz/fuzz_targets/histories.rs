//! The cargo-fuzz target of [`rlock_core_fuzz::histories`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rlock_core_fuzz::histories(data));
