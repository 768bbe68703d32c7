//! Machines in a few words, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ekiden_fuzz::machine(bytes);
});
