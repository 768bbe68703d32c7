//! Turns for tasks whose fair share is a longer wait than the kernel bears: RCU complains of a task that was preempted in a read section after 21
//! seconds, and sched_ext ends all policies after 30. A scan over all tasks finds them; the CPU that they wait for runs them without asking their
//! policy, to which they have left meanwhile and are new afterwards.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ekiden::{CpuId, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::Status;

use crate::conditions::SEVERAL;
use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::pick::NO_RANK;
use crate::state::Phase;

/// How many tasks that wait for one CPU may have a turn owed at a time. A scan a second owes so many that their turns take an eighth of the CPU.
const MOST: usize = 32;

/// How long a turn is: a tick where there are 250 a second.
const TURN_NS: u64 = 4_000_000;

/// In [`Engine::unasked`], above the count of tasks for which there is no room.
const ONE: u64 = 1 << 32;

/// The tasks that a CPU owes a turn. One scan at a time adds some; the CPU itself takes them, or the event that takes it offline.
#[derive(Debug, Default)]
pub(crate) struct Due {
    tasks: [AtomicU64; MOST],
    /// The last task that the CPU has run had such a turn: the next one is a policy's.
    was_last: AtomicBool,
}

impl Due {
    /// False if it is there already, or if there is no room for it.
    fn add(&self, task: TaskId) -> bool {
        let bits = task.to_bits();
        let is_there = self.tasks.iter().any(|place| place.load(Relaxed) == bits);
        !is_there && self.tasks.iter().any(|place| place.compare_exchange(0, bits, Relaxed, Relaxed).is_ok())
    }

    fn take(&self) -> Option<TaskId> {
        let taken = self.tasks.iter().map(|place| place.swap(0, Relaxed)).find(|bits| *bits != 0);
        taken.map(TaskId::from_bits)
    }

    fn is_empty(&self) -> bool {
        self.tasks.iter().all(|place| place.load(Relaxed) == 0)
    }
}

impl<P: Policy> Engine<P> {
    /// The CPU that a task waits for owes it a turn.
    pub(crate) fn owe_turn(&self, handling: &mut Handling<'_>, task: TaskId, cpu: CpuId) {
        if self.cpu(cpu).due.add(task) {
            self.unasked.fetch_add(ONE, Relaxed);
        }
        handling.outcome.kicks.add(cpu);
    }

    /// A CPU looks for work, and runs a task that it owes a turn; but not two such tasks in a row.
    #[cold]
    #[inline(never)]
    pub(crate) fn runs_due(&self, handling: &mut Handling<'_>) -> bool {
        let due = &self.cpu(handling.event.cpu).due;
        if due.was_last.swap(false, Relaxed) {
            return false;
        }
        while let Some(task) = due.take() {
            self.unasked.fetch_sub(ONE, Relaxed);
            if self.has_turn(handling, task) {
                due.was_last.store(true, Relaxed);
                return true;
            }
        }
        false
    }

    /// The task runs, unless it does not wait here any more.
    fn has_turn(&self, handling: &mut Handling<'_>, task: TaskId) -> bool {
        let cpu = handling.event.cpu;
        let Some(entry) = self.tasks.get(task) else { return false };
        let seen = entry.state();
        if seen.phase() != Phase::Ready || seen.cpu() != cpu || !self.is_attached::<SEVERAL>(seen) {
            return false;
        }
        let mut slice_ns = TURN_NS;
        if self.groups.is_active() {
            match self.slice_in_group(handling, task, entry, seen, slice_ns) {
                Some(shorter_ns) => slice_ns = shorter_ns,
                None => return false,
            }
        }
        // As if it changed its policy: the token is worthless from here on.
        if !entry.try_state(seen, seen.issue(Phase::New, cpu)) {
            return false;
        }
        self.groups.sleep(task.slot);
        let policy_slot = self.policy_slot_of::<SEVERAL>(seen);
        Counters::count(&self.counters(cpu, policy_slot).turns);
        self.take_back(handling, policy_slot, task, entry);
        handling.outcome.status = Status::Run as i32;
        handling.outcome.task = task;
        handling.outcome.host_task = entry.host_task.load(Relaxed);
        handling.outcome.slice_ns = slice_ns;
        // No policy has the CPU, so none overtakes.
        self.cpu(cpu).rank.store(NO_RANK, Relaxed);
        if self.idle.note(cpu, false) {
            self.found_something(handling, cpu, task);
        }
        true
    }

    /// A CPU leaves, and what waits for it waits elsewhere.
    pub(crate) fn owe_none(&self, cpu: CpuId) {
        while self.cpu(cpu).due.take().is_some() {
            self.unasked.fetch_sub(ONE, Relaxed);
        }
    }

    /// A tick: the task that runs gives way if others are owed a turn.
    pub(crate) fn tick_due(&self, handling: &mut Handling<'_>) {
        if !self.cpu(handling.event.cpu).due.is_empty() {
            handling.outcome.kicks.add(handling.event.cpu);
        }
    }
}
