//! What points into a program has no layout that another build could take over.

use ekiden::prelude::*;

#[derive(Layout)]
struct Names {
    first: &'static str, //~ error[E0277]: the trait bound `&'static str: ekiden::Layout` is not satisfied
}

fn main() {}
