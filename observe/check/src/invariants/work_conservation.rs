//! No CPU stays idle while tasks wait for another: algorithm 2 of papers/002, section 4.1.
//!
//! Every S it looks for a CPU that is idle, and for another where a task waits that may run on the first. That alone is
//! no fault, because balancing takes its time. It is one if both are still so after M, without a moment in between in which
//! the one was not idle or the other had none waiting.
//!
//! Exempt: tasks whose affinity forbids the idle CPU, tasks of other scheduling classes, CPUs that are offline, and the
//! time after the policy was taken out. Not seen: waste that is over within M or does not last from a multiple of S on; and
//! idle CPUs that take turns in being idle.

use ekiden::CpuMask;
use ekiden_trace::{Cpu, Record};

use crate::{Check, TaskName, View, Violation};

/// Most tasks that one violation names.
const NAMED: usize = 8;

/// No CPU stays idle while tasks wait for another.
pub struct WorkConservation {
    every_ns: u64,
    persists_ns: u64,
    /// The next moment to look at.
    next_ns: u64,
    /// The time of the record before.
    before_ns: u64,
}

impl WorkConservation {
    /// S and M, in nanoseconds.
    pub fn new(every_ns: u64, persists_ns: u64) -> Self {
        Self { every_ns, persists_ns, next_ns: every_ns, before_ns: 0 }
    }

    /// Judges what has been so since `since_ns`.
    fn judge(&self, view: &View, since_ns: u64, found: &mut Vec<Violation>) {
        let cpus = (0..).zip(&view.cpus);
        let is_idle = |cpu: &Cpu| cpu.online && cpu.idle_since_ns.is_some_and(|idle_ns| idle_ns <= since_ns);
        let idle: CpuMask = cpus.clone().filter(|(_, cpu)| is_idle(cpu)).map(|(number, _)| number).collect();
        if idle.is_empty() {
            return;
        }
        let mut busy = CpuMask::new();
        let mut wasted = CpuMask::new();
        let mut tasks = Vec::new();
        for ((number, cpu), queue) in cpus.zip(&view.queues) {
            // One that is idle itself has its own check.
            if cpu.running.is_none() || queue.waiting.is_empty() || queue.waiting_since_ns > since_ns {
                continue;
            }
            for pid in queue.waiting.iter().copied() {
                let Some(task) = view.task(pid).filter(|task| !task.departed) else { continue };
                let may_use: CpuMask = idle.iter().filter(|idle| task.may_run(*idle)).collect();
                if !may_use.is_empty() {
                    busy.set(number);
                    may_use.iter().for_each(|cpu| wasted.set(cpu));
                    tasks.push(view.name(pid));
                }
            }
        }
        if !tasks.is_empty() {
            tasks.sort();
            found.push(self.violation(since_ns, view.now_ns, &wasted, &busy, tasks));
        }
    }

    fn violation(
        &self,
        since_ns: u64,
        at_ns: u64,
        idle: &CpuMask,
        busy: &CpuMask,
        mut tasks: Vec<TaskName>,
    ) -> Violation {
        let count = tasks.len();
        tasks.truncate(NAMED);
        let names: Vec<String> = tasks.iter().map(ToString::to_string).collect();
        let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
        Violation {
            check: self.name(),
            since_ns,
            at_ns,
            message: format!(
                "CPUs {idle} are idle while on CPUs {busy} tasks wait that may run there: {}{more}",
                names.join(", ")
            ),
            cpus: idle.iter().chain(busy.iter()).collect(),
            tasks,
        }
    }
}

impl Check for WorkConservation {
    fn name(&self) -> &'static str {
        "work-conservation"
    }

    fn record(&mut self, view: &View, _: &Record, found: &mut Vec<Violation>) {
        while view.now_ns.saturating_sub(self.persists_ns) >= self.next_ns {
            if view.in_charge {
                self.judge(view, self.next_ns, found);
            }
            let same = self.next_ns >= self.before_ns;
            self.next_ns = self.next_ns.saturating_add(self.every_ns);
            let left_ns = view.now_ns.saturating_sub(self.persists_ns).checked_sub(self.next_ns);
            if let Some(left_ns) = left_ns.filter(|_| same) {
                // Nothing happened since that moment, so the others up to now are like it.
                self.next_ns = self.next_ns.saturating_add((left_ns / self.every_ns + 1).saturating_mul(self.every_ns));
            }
        }
        self.before_ns = view.now_ns;
    }
}
