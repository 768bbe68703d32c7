//! The constructor of a token is not for policies.

use ekiden::prelude::*;

fn forge<P>() {
    let _ = Schedulable::<P>::from_raw; //~ error[E0624]: associated function `from_raw` is private
}

fn main() {}
