//! What the table of tasks needs of groups.

pub(crate) const IDLE_WEIGHT: u32 = 3;
