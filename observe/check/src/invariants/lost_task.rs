//! A task that waits is not forgotten: it does not wait for a CPU that has nothing else to do.
//!
//! A lost task is one that will never run because the policy knows nothing of it any more. A trace cannot show "never"; it can
//! show a CPU that stays idle although a task waits for it, much longer than it takes to notice, or until the end.
//!
//! Exempt: tasks of other scheduling classes, CPUs that are offline. Not seen: a lost task on a CPU that is always busy with
//! others; the [wait bound](super::WaitBound) finds that one.

use std::collections::HashSet;

use ekiden_trace::{Record, What};

use crate::{Check, View, Violation};

/// A task that waits is not forgotten.
pub struct LostTask {
    /// A CPU that ends its idle time within this is only slow.
    slow_ns: u64,
    /// One that is idle for longer with a task waiting there has lost it.
    lost_ns: u64,
    next_look_ns: u64,
    known: HashSet<u32>,
}

impl LostTask {
    /// `slow_ns` is how long an idle CPU may take to notice a task, `wait_ns` how long a task may wait anyway.
    pub fn new(slow_ns: u64, wait_ns: u64) -> Self {
        let lost_ns = (slow_ns * 100).min(wait_ns);
        Self { slow_ns, lost_ns, next_look_ns: lost_ns, known: HashSet::new() }
    }

    fn look(&mut self, view: &View, patience_ns: u64, found: &mut Vec<Violation>) {
        for ((number, cpu), queue) in (0..).zip(&view.cpus).zip(&view.queues) {
            let Some(idle_since_ns) = cpu.idle_since_ns.filter(|_| cpu.online && !queue.waiting.is_empty()) else {
                continue;
            };
            let since_ns = idle_since_ns.max(queue.waiting_since_ns);
            if view.now_ns - since_ns <= patience_ns {
                continue;
            }
            for pid in queue.waiting.iter().copied() {
                let is_ours = view.task(pid).is_some_and(|task| !task.departed);
                if is_ours && self.known.insert(pid) {
                    let task = view.name(pid);
                    let lost_ms = (view.now_ns - since_ns) / 1_000_000;
                    found.push(Violation {
                        check: self.name(),
                        since_ns,
                        at_ns: view.now_ns,
                        cpus: vec![number],
                        message: format!("{task} waits for CPU {number}, which has been idle for {lost_ms} ms"),
                        tasks: vec![task],
                    });
                }
            }
        }
    }
}

impl Check for LostTask {
    fn name(&self) -> &'static str {
        "lost-task"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        if view.now_ns >= self.next_look_ns {
            self.look(view, self.lost_ns, found);
            self.next_look_ns = view.now_ns.saturating_add(self.lost_ns);
        }
        if record.what == What::Run {
            self.known.remove(&record.pid);
        }
    }

    fn finish(&mut self, view: &View, found: &mut Vec<Violation>) {
        self.look(view, self.slow_ns, found);
    }
}
