//! A token cannot be put together, not even from parts of another one.

use ekiden::prelude::*;

fn forge<P>(token: Schedulable<P>, task: TaskId) -> Schedulable<P> {
    Schedulable { task, ..token } //~ error[E0451]: field
}

fn main() {}
