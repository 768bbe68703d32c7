//! A token cannot be copied.

use ekiden::prelude::*;

fn twice<P>(token: Schedulable<P>) -> [Schedulable<P>; 2] {
    [token; 2] //~ error[E0277]: the trait bound
}

fn main() {}
