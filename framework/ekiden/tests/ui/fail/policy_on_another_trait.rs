//! `#[policy]` says where it belongs.

use ekiden::policy;

struct Fifo;

#[policy]
impl Default for Fifo { //~ error: `#[policy]` belongs on `impl Scheduler for MyPolicy { … }`: move it there
    fn default() -> Self {
        Self
    }
}

fn main() {}
