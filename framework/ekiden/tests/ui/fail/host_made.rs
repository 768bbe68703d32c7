//! To make it takes unsafe code, which a policy crate forbids and `ekiden build` forbids in any.
#![forbid(unsafe_code)]

use ekiden_lock::OfHost;

fn poison() {
    ekiden::host::poison_locks(unsafe { OfHost::new() }, || ()); //~ error: usage of an `unsafe` block
}

fn main() {}
