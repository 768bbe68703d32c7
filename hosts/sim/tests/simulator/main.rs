//! Everything that the simulator is asked for, in one program, which takes a third of the time of one for each file to build:
//! `cargo test -p ekiden-sim upgrade::` runs the tests of a file.

mod balance;
mod beside;
mod calls;
mod determinism;
mod eevdf;
mod ends;
mod hardware;
mod loads;
mod locality;
mod notes;
mod pace;
mod probe;
mod queues;
mod random_loads;
mod refusals;
mod rules;
mod starvation;
mod upgrade;
mod waits;
mod wfq;
