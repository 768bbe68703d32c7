//! A pipe of the simulated machine.

use std::collections::VecDeque;

use crate::task::TaskIndex;

/// Bytes, and who waits for them or for room. A byte goes to the reader that has waited longest, and so does room.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    pub(crate) bytes: usize,
    pub(crate) readers: VecDeque<TaskIndex>,
    pub(crate) writers: VecDeque<TaskIndex>,
}
