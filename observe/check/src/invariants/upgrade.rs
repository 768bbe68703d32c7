//! When a policy is replaced by another version of itself, the tasks that waited are still there: each of them runs soon, or
//! leaves by itself; and nothing runs that the old version picked after it was asked no more.
//!
//! Exempt: tasks of other classes, and everything after the policy was taken out. Not seen: that a task waits long for
//! another reason, such as a low weight, which the limit has to leave room for; and what the new version does with
//! everything else that it took over.

use std::collections::BTreeMap;

use ekiden_trace::{At, Record, Task, What};

use crate::{Check, View, Violation};

/// A replacement keeps the tasks that wait.
pub struct UpgradeKeepsTasks {
    within_ns: u64,
    under_way: bool,
    /// Tasks that waited when it began, and have not been seen elsewhere since, with their CPUs.
    left: BTreeMap<u32, u32>,
    ended_ns: u64,
}

impl UpgradeKeepsTasks {
    /// With the time after a replacement in which each task has to run, in nanoseconds.
    pub fn new(within_ns: u64) -> Self {
        Self { within_ns, under_way: false, left: BTreeMap::new(), ended_ns: 0 }
    }

    fn judge(&mut self, view: &View, found: &mut Vec<Violation>) {
        for (pid, cpu) in std::mem::take(&mut self.left) {
            let task = view.name(pid);
            found.push(Violation {
                check: self.name(),
                since_ns: self.ended_ns,
                at_ns: view.now_ns,
                cpus: vec![cpu],
                message: format!(
                    "{task} waited when the policy was replaced, and has not run {} ms later",
                    (view.now_ns - self.ended_ns) / 1_000_000
                ),
                tasks: vec![task],
            });
        }
    }
}

impl Check for UpgradeKeepsTasks {
    fn name(&self) -> &'static str {
        "upgrade"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, what, pid, value, .. } = *record;
        match what {
            What::Upgrade if value == 1 => {
                let waits = |task: &Task| match task.at {
                    At::Waiting(cpu) if !task.departed => Some((task.pid, cpu)),
                    _ => None,
                };
                self.left = view.tasks().filter_map(waits).collect();
                self.under_way = true;
            }
            What::Upgrade => (self.under_way, self.ended_ns) = (false, view.now_ns),
            What::Fault => self.left.clear(),
            What::Run if self.under_way => {
                let task = view.name(pid);
                found.push(Violation {
                    check: self.name(),
                    since_ns: view.now_ns,
                    at_ns: view.now_ns,
                    cpus: vec![cpu],
                    message: format!("{task} begins to run on CPU {cpu} while the policy is being replaced"),
                    tasks: vec![task],
                });
            }
            _ => {}
        }
        match what {
            What::Run | What::Block | What::Exit | What::Depart => {
                self.left.remove(&pid);
            }
            What::Migrate | What::Enqueue => {
                self.left.entry(pid).and_modify(|waits_on| *waits_on = cpu);
            }
            _ => {}
        }
        if !self.under_way && !self.left.is_empty() && view.now_ns - self.ended_ns > self.within_ns {
            self.judge(view, found);
        }
    }

    fn finish(&mut self, view: &View, found: &mut Vec<Violation>) {
        if self.under_way || view.now_ns - self.ended_ns > self.within_ns {
            self.ended_ns = self.ended_ns.min(view.now_ns);
            self.judge(view, found);
        }
    }
}
