//! What shows that the caller is a host cannot be put together.

use ekiden_lock::OfHost;

fn poison() {
    ekiden::host::poison_locks(OfHost(()), || ()); //~ error[E0423]: cannot initialize a tuple struct
}

fn main() {}
