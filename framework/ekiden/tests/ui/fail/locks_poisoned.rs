//! Only a host poisons the locks of a policy, forgets them, and asks for that.

use ekiden::prelude::*;

fn poison(_: &Cx) {
    (ekiden::locks_are_poisoned(), ekiden::forget_locks(), ekiden::forget_dropped(), ekiden::poison_locks()); //~ error[E0061]: this function takes 1 argument
}

fn main() {}
