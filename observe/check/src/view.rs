//! What the checks know at one moment: the machine, what waits where, and which CPUs could do something about it.

use std::{collections::BTreeSet, ops::Deref};

use ekiden::CpuMask;
use ekiden_trace::{At, Header, Host, Machine, Moved, Record, Task, What};

use crate::{TaskName, wasted_cpus};

/// What waits for a CPU.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// The tasks, in the order of PIDs.
    pub waiting: BTreeSet<u32>,
    /// Since when something has always waited there; meaningless while nothing does.
    pub waiting_since_ns: u64,
    /// What it adds to [`View::spare`] and [`View::left_waiting`].
    counted: (bool, usize),
}

/// State of the [machine](Machine), and what follows from it.
#[derive(Clone, Debug)]
pub struct View {
    machine: Machine,
    /// What waits, by CPU, from 0.
    pub queues: Vec<Queue>,
    /// Whether a scheduler is in charge that is to be judged: a policy that has not been taken out, or a kernel's own.
    pub in_charge: bool,
    /// CPUs that could run a task: they are online, run nothing, and nothing waits for them.
    pub spare: CpuMask,
    /// How many tasks wait, without the one that each idle CPU is about to run.
    nr_left: usize,
}

impl Deref for View {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl View {
    /// Before the first record of a trace with this header.
    pub fn new(header: &Header) -> Self {
        let mut view = Self {
            machine: Machine::new(header),
            queues: vec![Queue::default(); header.cpus.len()],
            in_charge: header.policy.is_some() || header.host == Host::Kernel,
            spare: CpuMask::new(),
            nr_left: 0,
        };
        (0..header.nr_cpus()).for_each(|cpu| view.count(cpu));
        view
    }

    /// A task as people call it.
    pub fn name(&self, pid: u32) -> TaskName {
        TaskName { pid, name: self.machine.name(pid).into_owned() }
    }

    /// Lets time pass without anything happening.
    pub(crate) fn pass(&mut self, now_ns: u64) {
        self.machine.pass(now_ns);
    }

    /// Takes in what happened, and returns the task that it moved, as [`Machine::apply`] does.
    pub fn apply(&mut self, record: &Record) -> Option<Moved> {
        let moved = self.machine.apply(record);
        if let Some(moved) = moved {
            self.queue(moved);
        }
        match record.what {
            What::Online | What::Offline => self.count(record.cpu),
            What::Fault => self.in_charge = false,
            _ => {}
        }
        moved
    }

    fn queue(&mut self, Moved { pid, from, to, .. }: Moved) {
        if let At::Waiting(cpu) = from {
            self.queues[cpu as usize].waiting.remove(&pid);
        }
        if let At::Waiting(cpu) = to {
            let queue = &mut self.queues[cpu as usize];
            if queue.waiting.is_empty() {
                queue.waiting_since_ns = self.machine.now_ns;
            }
            queue.waiting.insert(pid);
        }
        [from, to].into_iter().filter_map(At::cpu).for_each(|cpu| self.count(cpu));
    }

    /// Counts a CPU anew that may have changed.
    fn count(&mut self, number: u32) {
        let (cpu, queue) = (&self.machine.cpus[number as usize], &mut self.queues[number as usize]);
        let is_idle = cpu.online && cpu.running.is_none();
        let is_spare = is_idle && queue.waiting.is_empty();
        let left = queue.waiting.len().saturating_sub(usize::from(is_idle));
        let (was_spare, was_left) = std::mem::replace(&mut queue.counted, (is_spare, left));
        self.nr_left = self.nr_left + left - was_left;
        match (was_spare, is_spare) {
            (false, true) => self.spare.set(number),
            (true, false) => self.spare.clear(number),
            _ => {}
        }
    }

    /// How many spare CPUs could each run a task of its own that has waited for another CPU since `since_ns` or longer.
    pub fn wasted_cpus(&self, since_ns: u64) -> u32 {
        if !self.may_waste() {
            return 0;
        }
        let (mut anywhere, mut choosy) = (0, Vec::new());
        for task in self.left_waiting(since_ns) {
            match task.allowed.as_slice() {
                [] => anywhere += 1,
                words => choosy.push(CpuMask::from_words(words)),
            }
        }
        wasted_cpus(&self.spare, anywhere, &choosy)
    }

    /// Whether any CPU could run a task that waits for another, as far as affinities allow it.
    pub(crate) fn may_waste(&self) -> bool {
        !self.spare.is_empty() && self.nr_left > 0
    }

    /// When the first of those tasks began to wait that did so after `since_ns`; the first of all without that.
    pub(crate) fn next_since_ns(&self, since_ns: Option<u64>) -> Option<u64> {
        let waiting = self.queues.iter().filter(|queue| queue.counted.1 > 0).flat_map(|queue| &queue.waiting);
        waiting
            .filter_map(|pid| self.task(*pid))
            .map(|task| task.since_ns)
            .filter(|at_ns| Some(*at_ns) > since_ns)
            .min()
    }

    /// The tasks that have waited since `since_ns` or longer, without the one that each idle CPU is about to run.
    pub fn left_waiting(&self, since_ns: u64) -> impl Iterator<Item = &Task> {
        let waits = move |task: &&Task| !task.departed && task.since_ns <= since_ns;
        let in_queue = move |queue: &Queue| {
            let (_, left) = queue.counted;
            queue.waiting.iter().filter_map(|pid| self.task(*pid)).filter(waits).take(left).collect::<Vec<_>>()
        };
        self.queues.iter().filter(|queue| queue.counted.1 > 0).flat_map(in_queue)
    }
}
