//! No task waits longer for a CPU than a bound.
//!
//! Exempt: tasks of other scheduling classes. Not seen: a task that waits when the trace ends is judged by how long it had
//! waited then.

use std::collections::HashSet;

use ekiden_trace::{At, Record, What};

use crate::{Check, View, Violation};

/// No task waits longer than this.
pub struct WaitBound {
    bound_ns: u64,
    next_look_ns: u64,
    /// Tasks that wait too long and have been reported.
    known: HashSet<u32>,
}

impl WaitBound {
    /// With a bound in nanoseconds.
    pub fn new(bound_ns: u64) -> Self {
        Self { bound_ns, next_look_ns: bound_ns, known: HashSet::new() }
    }

    /// Looks at all that wait, which is dear, and therefore done only once in a while.
    fn look(&mut self, view: &View, found: &mut Vec<Violation>) {
        let mut late: Vec<(u32, u32, u64)> = view
            .tasks()
            .filter(|task| !task.departed && view.now_ns - task.since_ns > self.bound_ns)
            .filter_map(|task| match task.at {
                At::Waiting(cpu) => Some((task.pid, cpu, task.since_ns)),
                _ => None,
            })
            .filter(|(pid, ..)| !self.known.contains(pid))
            .collect();
        late.sort_unstable();
        for (pid, cpu, since_ns) in late {
            self.known.insert(pid);
            found.push(self.violation(view, pid, cpu, since_ns));
        }
    }

    fn violation(&self, view: &View, pid: u32, cpu: u32, since_ns: u64) -> Violation {
        let (task, waited_ms) = (view.name(pid), (view.now_ns - since_ns) / 1_000_000);
        Violation {
            check: self.name(),
            since_ns,
            at_ns: view.now_ns,
            cpus: vec![cpu],
            message: format!(
                "{task} has waited {waited_ms} ms for CPU {cpu}; the bound is {} ms",
                self.bound_ns / 1_000_000
            ),
            tasks: vec![task],
        }
    }
}

impl Check for WaitBound {
    fn name(&self) -> &'static str {
        "wait-bound"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        if view.now_ns >= self.next_look_ns {
            self.look(view, found);
            self.next_look_ns = view.now_ns.saturating_add(self.bound_ns / 4);
        }
        if record.what == What::Run && !self.known.remove(&record.pid) {
            let waited = view.task(record.pid).and_then(|task| match task.at {
                At::Waiting(cpu) if view.now_ns - task.since_ns > self.bound_ns => Some((cpu, task.since_ns)),
                _ => None,
            });
            if let Some((cpu, since_ns)) = waited {
                found.push(self.violation(view, record.pid, cpu, since_ns));
            }
        }
    }

    fn finish(&mut self, view: &View, found: &mut Vec<Violation>) {
        self.look(view, found);
    }
}
