//! The engine between hosts made of nothing and policies, in one program. `cargo test -p ekiden-engine limits::` runs the tests of a file.

mod claims;
mod groups;
mod limits;
mod pace;
mod params;
mod policies;
mod scan;
