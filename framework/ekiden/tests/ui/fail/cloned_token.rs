//! A token cannot be cloned.

use ekiden::prelude::*;

fn twice<P>(token: Schedulable<P>) -> (Schedulable<P>, Schedulable<P>) {
    (token.clone(), token) //~ error[E0599]: no method named `clone` found
}

fn main() {}
