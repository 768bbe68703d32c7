//! What policies do wrong, and what a machine does to them. Both take long, so they go side by side.

mod faults;
#[path = "../lab/mod.rs"]
mod lab;
mod storm;
