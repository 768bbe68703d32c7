//! Recordings of trace-cmd and perf, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ekiden_fuzz::foreign(bytes);
});
