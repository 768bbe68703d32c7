//! Queues of hints whose memory a program fills with anything, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ekiden_fuzz::queues(bytes);
});
