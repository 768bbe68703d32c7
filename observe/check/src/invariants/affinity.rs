//! A task runs only where it may: on CPUs of its affinity that are online.
//!
//! Exempt: nothing. Not seen: cpusets and CPUs that a task is pinned to for a moment, unless the host notes them as affinity.

use ekiden_trace::{Record, What};

use crate::{Check, View, Violation};

/// A task runs only where it may.
pub struct Affinity;

impl Check for Affinity {
    fn name(&self) -> &'static str {
        "affinity"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, pid, .. } = *record;
        if record.what != What::Run {
            return;
        }
        let task = view.name(pid);
        let message = if !view.cpus[cpu as usize].online {
            format!("{task} runs on CPU {cpu}, which is offline")
        } else if view.task(pid).is_some_and(|task| !task.may_run(cpu)) {
            format!("{task} runs on CPU {cpu}, which its affinity forbids")
        } else {
            return;
        };
        let at_ns = view.now_ns;
        found.push(Violation {
            check: self.name(),
            since_ns: at_ns,
            at_ns,
            cpus: vec![cpu],
            tasks: vec![task],
            message,
        });
    }
}
