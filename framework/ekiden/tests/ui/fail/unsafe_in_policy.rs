//! A policy crate forbids unsafe code, which could do all of this.
#![forbid(unsafe_code)]

use ekiden::prelude::*;

fn forge<P>(token: &Schedulable<P>) -> Schedulable<P> {
    unsafe { core::ptr::read(token) } //~ error: usage of an `unsafe` block
}

fn main() {}
