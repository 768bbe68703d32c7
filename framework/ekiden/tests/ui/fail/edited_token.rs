//! A token cannot be made good for another CPU.

use ekiden::prelude::*;

fn elsewhere<P>(token: &mut Schedulable<P>) {
    token.cpu = 0; //~ error[E0616]: field `cpu`
}

fn main() {}
