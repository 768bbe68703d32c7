//! No task runs on two CPUs, no CPU runs two tasks, and none runs without having waited.
//!
//! Exempt: nothing. Not seen: what happens between two records, such as a switch that the host did not note.

use ekiden_trace::{At, Record, What};

use crate::{Check, View, Violation};

/// No task runs on two CPUs, no CPU runs two tasks.
pub struct DoubleRun;

impl Check for DoubleRun {
    fn name(&self) -> &'static str {
        "double-run"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        if record.what != What::Run {
            return;
        }
        let Record { cpu, pid, .. } = *record;
        let before = view.task(pid).map(|task| task.at);
        let mut tasks = vec![view.name(pid)];
        let (cpus, message) = match (before, view.cpus[cpu as usize].running) {
            (Some(At::Running(other)), _) => {
                (vec![other, cpu], format!("{} runs on CPU {other} and begins on CPU {cpu} as well", tasks[0]))
            }
            (_, Some(other)) => {
                tasks.push(view.name(other));
                (vec![cpu], format!("{} begins on CPU {cpu}, which runs {}", tasks[0], tasks[1]))
            }
            (Some(At::Waiting(_)), None) => return,
            (Some(At::Away), None) => {
                (vec![cpu], format!("{} begins on CPU {cpu} without having waited for one", tasks[0]))
            }
            (None, None) => (vec![cpu], format!("{} begins on CPU {cpu}, but there is no such task", tasks[0])),
        };
        found.push(Violation { check: self.name(), since_ns: view.now_ns, at_ns: view.now_ns, cpus, tasks, message });
    }
}
