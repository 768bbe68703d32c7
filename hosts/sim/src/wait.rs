//! How tasks wait for each other: asleep, or spinning on their CPU.
//!
//! A task that spins has work without end, and stands before the step that it cannot do yet. What it waits for takes the
//! rest of that work away, if the task is on a CPU. A task that was preempted while it spun looks again when it has a CPU
//! again, as the real one would, so that nothing has to be done for it meanwhile.

use std::num::NonZeroU64;

use ekiden::CpuId;
use ekiden_workload::WaitMode;

use crate::behave::Flow;
use crate::kernel::Kernel;
use crate::task::{State, TaskIndex};

impl Kernel {
    pub(crate) fn lock(&mut self, task: TaskIndex, cpu: CpuId, number: u32, mode: WaitMode) -> Flow {
        let spins = self.task(task).spins_until_ns.is_some();
        let lock = &mut self.shared.locks[number as usize];
        if !lock.taken {
            lock.taken = true;
            if spins {
                lock.spinners.retain(|other| *other != task);
            }
            self.pass(task);
            return Flow::On;
        }
        let goes_on = self.spin(task, mode);
        let lock = &mut self.shared.locks[number as usize];
        match (spins, goes_on) {
            (false, true) => lock.spinners.push(task),
            (true, false) => lock.spinners.retain(|other| *other != task),
            _ => {}
        }
        if goes_on {
            return Flow::On;
        }
        // When it wakes up it tries again, and may find that another task was faster.
        lock.sleepers.push_back(task);
        self.spend(task, self.machine.model.costs.syscall_ns.max(1));
        self.block(task, cpu, State::ForLock { lock: number });
        Flow::Sleeps
    }

    pub(crate) fn unlock(&mut self, task: TaskIndex, cpu: CpuId, number: u32) {
        let lock = &mut self.shared.locks[number as usize];
        lock.taken = false;
        let on_cpu = |spinner: &TaskIndex| self.tasks[*spinner as usize].state == State::Running;
        if let Some(place) = lock.spinners.iter().position(on_cpu) {
            lock.taken = true;
            let next = lock.spinners.remove(place);
            self.stop_spinning(next);
        } else if let Some(sleeper) = lock.sleepers.pop_front() {
            self.wake_by(task, cpu, sleeper, 0);
        }
    }

    pub(crate) fn barrier(&mut self, task: TaskIndex, cpu: CpuId, number: u32, parties: u32, mode: WaitMode) -> Flow {
        let spins = self.task(task).spins_until_ns.is_some();
        let barrier = &mut self.shared.barriers[number as usize];
        let round = barrier.round;
        if spins && self.tasks[task as usize].round != round {
            self.pass(task);
            return Flow::On;
        }
        if !spins {
            barrier.arrived += 1;
            if barrier.arrived >= parties {
                self.pass(task);
                self.open(task, cpu, number);
                return Flow::On;
            }
            self.tasks[task as usize].round = round;
        }
        let goes_on = self.spin(task, mode);
        let barrier = &mut self.shared.barriers[number as usize];
        match (spins, goes_on) {
            (false, true) => barrier.spinners.push(task),
            (true, false) => barrier.spinners.retain(|other| *other != task),
            _ => {}
        }
        if goes_on {
            return Flow::On;
        }
        barrier.sleepers.push(task);
        self.pass(task);
        self.block(task, cpu, State::AtBarrier { barrier: number });
        Flow::Sleeps
    }

    /// All have come to the barrier, `task` as the last.
    fn open(&mut self, task: TaskIndex, cpu: CpuId, number: u32) {
        let barrier = &mut self.shared.barriers[number as usize];
        barrier.arrived = 0;
        barrier.round += 1;
        let (spinners, sleepers) = (std::mem::take(&mut barrier.spinners), std::mem::take(&mut barrier.sleepers));
        for spinner in spinners {
            if self.task(spinner).state == State::Running {
                self.stop_spinning(spinner);
            }
        }
        for sleeper in sleepers {
            self.wake_by(task, cpu, sleeper, 0);
        }
    }

    /// Whether the task has a byte of the pipe's or still looks for one; not, if it has looked long enough.
    pub(crate) fn pipe_poll(&mut self, task: TaskIndex, cpu: CpuId, number: u32, spin_ns: u64) -> bool {
        let spins = self.task(task).spins_until_ns.is_some();
        let is_held = self.shared.pipes[number as usize].bytes > 0;
        let goes_on = !is_held && self.spin(task, WaitMode::SpinThenBlock { spin_ns });
        let spinners = &mut self.shared.pipes[number as usize].spinners;
        match (spins, goes_on) {
            (false, true) => spinners.push(task),
            (true, false) => spinners.retain(|other| *other != task),
            _ => {}
        }
        if is_held {
            self.pass(task);
            self.take_byte(task, cpu, number);
        }
        is_held || goes_on
    }

    /// A byte that is written goes to the task that began last to look for one, if any does.
    pub(crate) fn hand_to_spinner(&mut self, number: u32) -> bool {
        let spinners = &mut self.shared.pipes[number as usize].spinners;
        let on_cpu = |spinner: &TaskIndex| self.tasks[*spinner as usize].state == State::Running;
        let next = spinners.iter().rposition(on_cpu).map(|place| spinners.remove(place));
        next.inspect(|next| self.stop_spinning(*next)).is_some()
    }

    pub(crate) fn wait_for(&mut self, task: TaskIndex, cpu: CpuId, condition: u32, lock: Option<u32>) -> Flow {
        if let Some(lock) = lock {
            self.unlock(task, cpu, lock);
        }
        self.shared.conditions[condition as usize].push_back(task);
        self.block(task, cpu, State::ForCondition { condition });
        Flow::Sleeps
    }

    pub(crate) fn signal(&mut self, task: TaskIndex, cpu: CpuId, condition: u32, most: usize) {
        let waiting = &mut self.shared.conditions[condition as usize];
        let woken: Vec<TaskIndex> = waiting.drain(..most.min(waiting.len())).collect();
        for sleeper in woken {
            self.wake_by(task, cpu, sleeper, 0);
        }
    }

    /// Uses the CPU until `ns` after the first time that the task comes here. Like one that spins, it looks at the clock
    /// again when it gets a CPU back.
    pub(crate) fn run_for(&mut self, task: TaskIndex, cpu: CpuId, ns: u64) {
        let (now_ns, capacity) = (self.now_ns, self.cpu(cpu).capacity);
        let entry = self.task_mut(task);
        if entry.spins_until_ns.is_none() {
            entry.spins_until_ns = Some(NonZeroU64::MAX);
            entry.round = now_ns.saturating_add(ns);
        }
        match entry.round.saturating_sub(now_ns) {
            0 => self.pass(task),
            left_ns => entry.work = left_ns.saturating_mul(capacity),
        }
    }

    /// Makes the task spin on, unless its patience has come to its end.
    fn spin(&mut self, task: TaskIndex, mode: WaitMode) -> bool {
        let spin_ns = match mode {
            WaitMode::Block => 0,
            WaitMode::Spin => u64::MAX,
            WaitMode::SpinThenBlock { spin_ns } => spin_ns,
        };
        let entry = self.task_mut(task);
        // It has used some time by now: that which it took to get here.
        let patient_ns = NonZeroU64::new(entry.cpu_ns.saturating_add(spin_ns)).unwrap_or(NonZeroU64::MIN);
        let until_ns = *entry.spins_until_ns.get_or_insert(patient_ns);
        let left_ns = until_ns.get().saturating_sub(entry.cpu_ns);
        if left_ns == 0 {
            entry.spins_until_ns = None;
            return false;
        }
        self.spend(task, left_ns);
        true
    }

    /// The task, which spins on a CPU, has what it waits for.
    fn stop_spinning(&mut self, task: TaskIndex) {
        let cpu = self.task(task).cpu;
        self.account(cpu);
        self.task_mut(task).work = 0;
        self.pass(task);
        self.spend(task, self.machine.model.costs.atomic_ns);
        self.expect_work(cpu);
    }

    /// The task proceeds to the step after the one that it stands before.
    fn pass(&mut self, task: TaskIndex) {
        self.task_mut(task).spins_until_ns = None;
        self.go_to(task, self.task(task).place + 1);
    }
}
