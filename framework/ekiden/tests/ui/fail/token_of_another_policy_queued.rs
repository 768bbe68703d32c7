//! A token of another policy does not fit into this policy's queue.

use ekiden::prelude::*;

struct Mine;
struct Theirs;

fn take(queue: &mut FifoQueue<Mine>, token: Schedulable<Theirs>) {
    queue.push_back(token); //~ error[E0308]: mismatched types
}

fn main() {}
