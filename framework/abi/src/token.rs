//! Names of tasks and the plain form of a scheduling token.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A task, by the index of its entry in the engine's table and the generation of that entry.
///
/// An entry is used again after its task is gone; the generation tells the two apart. Generations start at 1, so the
/// all-zero value names no task.
///
/// ```
/// use ekiden_abi::TaskId;
///
/// let (first, next) = (TaskId { slot: 7, generation: 1 }, TaskId { slot: 7, generation: 2 });
/// assert!(first != next && !first.is_none() && TaskId::NONE.is_none());
/// assert_eq!(TaskId::from_bits(next.to_bits()), next);
/// assert_eq!(next.to_string(), "task 7.2");
/// ```
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable)]
pub struct TaskId {
    /// Index into the task table, below the table's capacity.
    pub slot: u32,
    /// How many tasks have used the entry so far, this one included.
    pub generation: u32,
}

impl TaskId {
    /// Names no task.
    pub const NONE: Self = Self { slot: 0, generation: 0 };

    /// The id as one number, for places that store a single word.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The inverse of [`TaskId::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// Whether this is [`TaskId::NONE`].
    pub const fn is_none(self) -> bool {
        self.generation == 0
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A scheduling token as it crosses the boundary of a policy: the right to run `task` on `cpu`, once.
///
/// `serial` is the engine's count of tokens issued for the entry; only the newest one is honoured.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable)]
pub struct RawToken {
    /// The task that may run.
    pub task: TaskId,
    /// The CPU that it may run on.
    pub cpu: u32,
    /// Which of the entry's tokens this is; 0 means that there is no token.
    pub serial: u32,
}

impl RawToken {
    /// No token at all.
    pub const NONE: Self = Self { task: TaskId::NONE, cpu: 0, serial: 0 };

    /// Whether this stands for "no token".
    pub const fn is_none(&self) -> bool {
        self.serial == 0
    }
}
