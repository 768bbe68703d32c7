//! Groups of tasks: whose CPU time is shared out together, and limited together; control groups, on a kernel.
//!
//! sched_ext tells of control groups and enforces nothing: neither `cpu.weight` nor `cpu.max` nor `cpu.idle` has any effect on
//! tasks of its class, unless the scheduler enforces it (only a cpuset works by itself, as it narrows a task's affinity). Here it is
//! done between the host and the policy, so that no policy has to know:
//!
//! - **Weights** are flattened, as scx_flatcg does it: the weight that a policy is told of a task is that of the task, times
//!   the share that its group has of the group above, and so on up to the root. Shares are those among groups that have tasks
//!   that want to run. A task directly in the root keeps its weight, bit for bit.
//! - **Limits** hold a task back once its group, or one above, has used up the CPU time of the period: the task is *throttled*,
//!   which to the policy looks as if it slept, until there is new time. As under the kernel's own scheduler, that is done on its way
//!   to user mode, where it has no lock that others wait for. What was used in excess is missing in the next
//!   period; what was not used is lost, but for the burst that is allowed.
//!
//! All memory is taken at the start. A group for which there is no room counts as part of the group above it.
//!
//! What groups cost a machine that has never had one: nothing (`conditions.rs`); one that has none any more: a look at [`Groups::is_active`] in each event of a task. What a task in a group costs: a few loads, one division, and an atomic addition when it begins or ceases to want to run;
//! with a limit also an atomic subtraction for each limit, and a timer per period in which it is used.

mod budget;
mod limits;
mod members;
mod throttled;
mod tree;
mod weights;

use alloc::vec::Vec;

use budget::Budget;
pub use budget::Limit;
pub use limits::Charge;
use members::Member;
use throttled::ThrottledQueues;
use tree::{Entry, Tree};

use crate::atomics::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::lock::Lock;

/// How many groups an engine has room for, with that of the root.
pub const MAX_GROUPS: u32 = 2048;

/// The weight of a group for which none was set: the default of `cpu.weight`.
pub const DEFAULT_WEIGHT: u32 = 100;

/// What a group with [`DEFAULT_WEIGHT`] weighs among tasks: as much as one with nice 0.
const USUAL: u64 = ekiden::NICE_0_WEIGHT as u64;

/// The weight of a group, or of a task, that is to run when nothing else does: the kernel's `WEIGHT_IDLEPRIO`.
pub(crate) const IDLE_WEIGHT: u32 = 3;

/// The group of all that are in no other.
const ROOT: u32 = 0;

/// Fraction bits of a share, which is a fixed-point number.
const PLACES: u32 = 16;

/// How long after a refill that left something to do the next one comes, in nanoseconds.
pub(crate) const GO_ON_AFTER_NS: u64 = 100_000;

/// All groups of a machine, and which task is in which.
#[derive(Debug)]
pub struct Groups {
    /// There is one besides the root.
    active: AtomicBool,
    nodes: Vec<Node>,
    members: Vec<Member>,
    tree: Lock<Tree>,
    throttled: Lock<ThrottledQueues>,
    /// Counts what changes the shares of groups inside of others.
    version: AtomicU64,
    overflows: AtomicU64,
}

/// One group, as scheduling calls see it.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Node {
    parent: AtomicU32,
    /// How many groups are directly in it.
    children: AtomicU32,
    /// The nearest group with a limit, from this one up; the root has none.
    limiter: AtomicU32,
    /// Its weight among its siblings, on the scale of tasks.
    weight: AtomicU32,
    /// The weights of all directly in it that want to run, tasks and groups.
    load: AtomicU64,
    /// What it weighs in the whole, times 2^[`PLACES`], and the version for which that was worked out.
    share: AtomicU64,
    /// What it has added to the load of its parent.
    counted: Lock<u32>,
    budget: Budget,
}

impl Groups {
    /// Room for `max_groups` groups besides the root, and the tasks in `max_tasks` entries.
    pub fn new(max_groups: u32, max_tasks: u32) -> Self {
        let count = max_groups as usize + 1;
        let mut nodes = Vec::with_capacity(count);
        nodes.resize_with(count, Node::default);
        let mut members = Vec::with_capacity(max_tasks as usize);
        members.resize_with(max_tasks as usize, Member::default);
        let tree = Tree {
            names: Vec::with_capacity(count),
            free: (1..=max_groups).rev().collect(),
            entries: alloc::vec![Entry::default(); count],
            untouched: 1,
            pass: 0,
        };
        Self {
            active: AtomicBool::new(false),
            nodes,
            members,
            tree: Lock::new(tree),
            throttled: Lock::new(ThrottledQueues::new(max_groups + 1, max_tasks)),
            version: AtomicU64::new(1),
            overflows: AtomicU64::new(0),
        }
    }

    /// How many groups there was no room for since the start. They count as part of the one above them.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Relaxed)
    }

    /// How many groups there are besides the root.
    pub fn len(&self) -> u32 {
        self.nodes.len() as u32 - 1 - self.tree.lock().free.len() as u32
    }

    /// Whether there is one besides the root: all that groups cost a machine without any is to look at this.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// Whether there is none besides the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
