//! The task table: one entry per task, found without hashing.

use alloc::{sync::Arc, vec::Vec};

use ekiden::{TaskId, weight_of_nice};
use ekiden_host::abi::RawToken;

use crate::atomics::{
    AtomicI32, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::groups::IDLE_WEIGHT;
use crate::lock::Lock;
use crate::policy_slots::NotChosen;
use crate::state::{Phase, State};
use crate::wakeups::Wish;

/// One task. A cache line, so that two CPUs that handle two tasks do not meet.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct TaskEntry {
    state: AtomicU64,
    pub(crate) host_task: AtomicU64,
    pub(crate) runtime_ns: AtomicU64,
    /// The generation of the task, which is not 0; in an entry without a task [`NO_TASK`] and that of the next one, which no id can
    /// name. So one comparison finds out all that there is to know of an id.
    generation: AtomicU64,
    pub(crate) pid: AtomicU32,
    /// What the policy is told of its weight, and what it weighs among the tasks of its group.
    pub(crate) weight: AtomicU32,
    pub(crate) own_weight: AtomicU32,
    pub(crate) nice: AtomicI32,
    pub(crate) wish: Wish,
    /// The policy slot of the policy that it is to have, whether its children are to have the same, and the lower half of the generation.
    choice: AtomicU32,
    /// How much of its run time was charged to its policy. Only if policies weigh something.
    pub(crate) charged_ns: AtomicU64,
}

/// The bit of an entry without a task, in [`TaskEntry::generation`].
const NO_TASK: u64 = 1 << 32;

/// How a policy was chosen for a task: a set of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct How(u32);

impl How {
    /// It was not chosen.
    pub(crate) const NOT: Self = Self(0);
    /// It was, for this task or for an ancestor.
    pub(crate) const CHOSEN: Self = Self(1 << 8);
    /// Its children are to have the same.
    pub(crate) const INHERITED: Self = Self(1 << 9);
    /// It was, by a caller that may change the priority of any task: only such a caller may choose again.
    pub(crate) const BY_ROOT: Self = Self(1 << 10);
    const ALL: u32 = Self::CHOSEN.0 | Self::INHERITED.0 | Self::BY_ROOT.0;

    pub(crate) fn with(self, other: Self, is_so: bool) -> Self {
        if is_so { Self(self.0 | other.0) } else { self }
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl TaskEntry {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            host_task: AtomicU64::new(0),
            runtime_ns: AtomicU64::new(0),
            generation: AtomicU64::new(NO_TASK | 1),
            pid: AtomicU32::new(0),
            weight: AtomicU32::new(0),
            own_weight: AtomicU32::new(0),
            nice: AtomicI32::new(0),
            wish: Wish { cpu: AtomicU32::new(Wish::NONE) },
            choice: AtomicU32::new(0),
            charged_ns: AtomicU64::new(0),
        }
    }

    /// The generation of the task; 0 without one.
    fn generation(&self) -> u32 {
        match self.generation.load(Relaxed) {
            generation if generation & NO_TASK == 0 => generation as u32,
            _ => 0,
        }
    }

    /// The policy slot of the policy that the task is to have.
    #[inline]
    pub(crate) fn choice(&self) -> usize {
        (self.choice.load(Relaxed) & 7) as usize
    }

    /// Whether it was chosen, for this task or for an ancestor.
    pub(crate) fn is_chosen(&self) -> bool {
        self.choice.load(Relaxed) & How::CHOSEN.0 != 0
    }

    /// What children get, a policy slot and how it was chosen; nothing if they get the default policy.
    pub(crate) fn for_children(&self) -> Option<(usize, How)> {
        let choice = self.choice.load(Relaxed);
        (choice & How::INHERITED.0 != 0).then(|| (self.choice(), How(choice & How::ALL)))
    }

    /// Chooses a policy by its policy slot. Takes effect when the task next waits for a CPU.
    ///
    /// # Errors
    /// If the entry has another task than `task` by now, or if `may` says no to how it was chosen up to now.
    pub(crate) fn choose(
        &self,
        task: TaskId,
        policy_slot: usize,
        how: How,
        may: impl Fn(How) -> bool,
    ) -> Result<(), NotChosen> {
        let choice = policy_slot as u32 | how.0 | task.generation << 16;
        let is_same = |old: u32| old >> 16 == choice >> 16;
        let chosen = |old: u32| (is_same(old) && may(How(old))).then_some(choice);
        let refused = |old: u32| if is_same(old) { NotChosen::ByRoot } else { NotChosen::NoTask };
        self.choice.fetch_update(Relaxed, Relaxed, chosen).map(drop).map_err(refused)
    }

    /// Assigns the policy in this policy slot; it does not count as a choice of a user.
    pub(crate) fn choose_for_all(&self, task: TaskId, policy_slot: usize) {
        // A task that is gone needs none.
        let _ = self.choose(task, policy_slot, How::NOT, |_| true);
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State(self.state.load(Acquire))
    }

    #[inline]
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state.0, Release);
    }

    /// Changes the state if no other CPU has changed it since it was read as `seen`.
    #[inline]
    pub(crate) fn try_state(&self, seen: State, state: State) -> bool {
        self.state.compare_exchange(seen.0, state.0, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn set_nice(&self, nice: i32, idle_class: bool) {
        self.nice.store(nice, Relaxed);
        // SCHED_IDLE weighs less than nice 19: the kernel's WEIGHT_IDLEPRIO.
        let weight = if idle_class { IDLE_WEIGHT } else { weight_of_nice(nice) };
        self.own_weight.store(weight, Relaxed);
        self.weight.store(weight, Relaxed);
    }
}

/// All tasks that the host has told of.
#[derive(Debug)]
pub struct TaskTable {
    /// Shared with hosts. Not in one block with the count of those: blocks of the kernel's arena are powers of two.
    pub(crate) entries: Arc<Vec<TaskEntry>>,
    free: Lock<Vec<u32>>,
    /// What [`crate::starved`] knows of the task in each entry. Apart, as nothing else looks at it.
    watched: Vec<AtomicU64>,
    /// No entry from here on was ever used.
    untouched: AtomicU32,
}

/// A task as `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// Its name in the table.
    pub id: TaskId,
    /// Its PID.
    pub pid: u32,
    /// Where it stands.
    pub state: State,
    /// CPU time used in its life, as of its last event.
    pub runtime_ns: u64,
    /// What its policy is told of its weight.
    pub weight: u32,
}

impl TaskTable {
    /// A table for `capacity` tasks at once. Takes 76 bytes per task.
    pub fn new(capacity: u32) -> Self {
        let entries = Arc::new((0..capacity).map(|_| TaskEntry::new()).collect());
        let free = Lock::new((0..capacity).rev().collect());
        let watched = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        Self { entries, free, watched, untouched: AtomicU32::new(0) }
    }

    /// What the scans that look for tasks that wait too long know of this one.
    pub(crate) fn watched(&self, task: TaskId) -> &AtomicU64 {
        &self.watched[task.slot as usize]
    }

    /// How many tasks there is room for.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// How many tasks there are.
    pub fn len(&self) -> u32 {
        self.capacity() - self.free.lock().len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The host's own name for a task, if it still exists.
    #[inline]
    pub fn host_task(&self, task: TaskId) -> Option<u64> {
        self.get(task).map(|entry| entry.host_task.load(Relaxed))
    }

    /// The tasks, in the order of their entries.
    ///
    /// Cost: as many looks as there were ever tasks at once.
    pub fn iter(&self) -> impl Iterator<Item = TaskView> {
        self.between(0, self.capacity())
    }

    /// The first entry that was never used. Entries before it are looked at whenever all tasks are.
    pub(crate) fn untouched(&self) -> u32 {
        self.untouched.load(Relaxed)
    }

    /// The tasks in entries from `first` up to `end`.
    pub(crate) fn between(&self, first: u32, end: u32) -> impl Iterator<Item = TaskView> {
        (first..end.min(self.untouched())).zip(&self.entries[first as usize..]).filter_map(|(index, entry)| {
            let state = entry.state();
            (state.phase() != Phase::Free).then(|| TaskView {
                id: TaskId { slot: index, generation: entry.generation() },
                pid: entry.pid.load(Relaxed),
                state,
                runtime_ns: entry.runtime_ns.load(Relaxed),
                weight: entry.weight.load(Relaxed),
            })
        })
    }

    /// The entry of a task that exists.
    #[inline]
    pub(crate) fn get(&self, task: TaskId) -> Option<&TaskEntry> {
        find(&self.entries, task)
    }

    /// The task in an entry, if there is one.
    pub(crate) fn at(&self, index: u32) -> Option<(TaskId, &TaskEntry)> {
        let entry = self.entries.get(index as usize)?;
        let task = TaskId { slot: index, generation: entry.generation() };
        (!task.is_none()).then_some((task, entry))
    }

    /// Finds an entry for a new task; `None` when the table is full.
    pub(crate) fn insert(&self, host_task: u64, pid: u32) -> Option<TaskId> {
        let index = self.free.lock().pop()?;
        self.untouched.fetch_max(index + 1, Relaxed);
        let entry = &self.entries[index as usize];
        // The lower half, which is never 0.
        let generation = entry.generation.load(Relaxed) as u32;
        entry.host_task.store(host_task, Relaxed);
        entry.pid.store(pid, Relaxed);
        entry.runtime_ns.store(0, Relaxed);
        entry.charged_ns.store(0, Relaxed);
        entry.wish.cpu.store(Wish::NONE, Relaxed);
        entry.choice.store(generation << 16, Relaxed);
        // A new task has run as little as the one before had when it was new: it has not waited since then.
        self.watched[index as usize].store(0, Relaxed);
        entry.set_nice(0, false);
        // The serial continues: a token of the entry's last task can never pass for one of the new one.
        entry.set_state(entry.state().in_phase(Phase::New));
        entry.generation.store(generation.into(), Release);
        Some(TaskId { slot: index, generation })
    }

    /// Ends a task. Its entry has no task until it is [given to another one](Self::free); false if it had another one before.
    pub(crate) fn remove(&self, task: TaskId) -> bool {
        let entry = self.get(task);
        if let Some(entry) = entry {
            entry.set_state(entry.state().issue(Phase::Free, 0));
            // From here on no id finds it, so that no CPU frees the entry twice.
            entry.generation.store(NO_TASK | u64::from(task.generation.wrapping_add(1).max(1)), Relaxed);
        }
        entry.is_some()
    }

    /// A new task may have the entry of one that was removed. Once for each.
    pub(crate) fn free(&self, index: u32) {
        self.free.lock().push(index);
    }
}

/// The entry of a task that exists.
#[inline]
pub(crate) fn find(entries: &[TaskEntry], task: TaskId) -> Option<&TaskEntry> {
    let entry = entries.get(task.slot as usize)?;
    // No id that is none finds one, as no task has the generation 0.
    (entry.generation.load(Relaxed) == u64::from(task.generation)).then_some(entry)
}

/// A token that goes with `state`.
#[inline]
pub(crate) fn token(task: TaskId, state: State) -> RawToken {
    RawToken { task, cpu: state.cpu(), serial: state.serial() }
}
