//! What needs BPF: programs of ours that the kernel runs, and the library that loads them.

mod baseline;
mod links;
mod look;
mod record;
mod rings;
mod runqlat;
mod session;
mod skel;

pub use baseline::Baseline;
pub use look::Look;
pub use record::{Recorder, ShortRecorder};
pub use runqlat::RunqLat;
pub use session::{Prepared, Program, Session, operations_of_the_kernel};
