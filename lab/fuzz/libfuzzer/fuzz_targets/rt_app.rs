//! Files in rt-app's format, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ekiden_fuzz::rt_app(bytes);
});
