//! `#[policy]` says where it belongs.

use ekiden::policy;

#[policy]
struct Fifo; //~ error: `#[policy]` belongs on `impl Scheduler for MyPolicy { … }`: move it there

fn main() {}
