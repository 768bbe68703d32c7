//! The tasks whose waits for a CPU are counted, and what is counted.

/// The tasks whose waits count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whom {
    /// A thread, or all of a process.
    pub pid: Option<u32>,
    /// Threads of this name; the kernel keeps 15 bytes of it.
    pub name: Option<String>,
}

/// Counts of the waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many there were in each bucket: four a doubling of nanoseconds, one each for 0 to 3.
    pub buckets: Vec<u64>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// All together, in nanoseconds.
    pub sum_ns: u64,
}
