//! Nor can it be made without saying so.

use ekiden_lock::{OfHost, forget_waiters};

fn forget() {
    forget_waiters(OfHost::new()); //~ error[E0133]: call to unsafe function
}

fn main() {}
