//! Only a host poisons the locks of a policy, forgets them, and asks for that.

use ekiden::{host, prelude::*};

fn poison(_: &Cx) {
    (host::locks_are_poisoned(), host::forget_locks(), host::forget_dropped(), host::poison_locks()); //~ error[E0061]: this function takes
}

fn main() {}
