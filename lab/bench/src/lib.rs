//! What Ekiden measures: statistics over repeats, ratios between schedulers, limits and verdicts, and their tables.
//!
//! Nothing here touches a kernel: the command line takes the measurements, this crate says what they mean.
#![forbid(unsafe_code)]

mod applications;
mod comparison;
mod fairness;
mod limit;
mod memory;
mod stats;
mod table;
mod unsafe_table;
mod upgrade;

pub use applications::{Applications, Boot, Cell, Incident, Kind, Line, Measure, Sample, Total};
pub use comparison::{Comparison, Figure, Measurements, Row};
pub use fairness::{Fairness, FairnessRow, Sharing, SharingRow, off_by};
pub use limit::{Judged, Limit};
pub use memory::{KernelMemory, MemoryReport};
pub use stats::Summary;
pub use table::{number, table};
pub use unsafe_table::{Component, UnsafeTable};
pub use upgrade::{Machinery, UpgradeReport, UpgradeValues, Wait};

/// The name of the kernel's own scheduler in every report.
pub const DEFAULT: &str = "default";

/// The name of the plain BPF FIFO in every report.
pub const BPF: &str = "bpf-fifo";

/// The name of the plain BPF FIFO with one queue for all CPUs.
pub const BPF_SHARED: &str = "bpf-shared";

/// The name of the plain BPF scheduler that puts tasks into the kernel's own queue of each CPU: the least that sched_ext allows.
pub const BPF_LOCAL: &str = "bpf-local";
