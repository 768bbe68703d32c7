//! Code is where each build has it, so that another one cannot take it over.

use ekiden::prelude::*;

#[derive(Layout)]
struct Order {
    before: fn(u64, u64) -> bool, //~ error[E0277]: the trait bound `fn(u64, u64) -> bool: ekiden::Layout` is not satisfied
}

fn main() {}
