//! A CPU that is idle when a task comes to wait there begins to run something soon: the CPU that queued the task has kicked it.
//!
//! Exempt: tasks of other scheduling classes, CPUs that go offline meanwhile, tasks that are taken elsewhere within the
//! time. Not seen: kicks that are not needed.

use ekiden_trace::{Record, What};

use crate::{Check, View, Violation};

/// An idle CPU notices soon that a task waits there.
pub struct KickCompleteness {
    within_ns: u64,
    /// For each CPU whether its present idle time has been judged.
    judged: Vec<bool>,
}

impl KickCompleteness {
    /// With the time that it may take, in nanoseconds.
    pub fn new(within_ns: u64, nr_cpus: usize) -> Self {
        Self { within_ns, judged: vec![false; nr_cpus] }
    }
}

impl Check for KickCompleteness {
    fn name(&self) -> &'static str {
        "kick"
    }

    /// The idle time of a CPU is judged where it ends: by a task that begins to run there, or leaves without having run.
    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, what, pid, .. } = *record;
        let judged = match what {
            What::Run => cpu,
            What::Migrate => record.value as u32,
            _ => return,
        };
        let Some(entry) = view.cpus.get(judged as usize).filter(|entry| entry.online) else { return };
        let queue = &view.queues[judged as usize];
        let Some(idle_since_ns) = entry.idle_since_ns.filter(|_| !queue.waiting.is_empty()) else {
            self.judged[judged as usize] = false;
            return;
        };
        if view.task(pid).is_none_or(|task| task.departed || !queue.waiting.contains(&pid)) {
            return;
        }
        let since_ns = idle_since_ns.max(queue.waiting_since_ns);
        let took_ns = view.now_ns - since_ns;
        if took_ns > self.within_ns && !std::mem::replace(&mut self.judged[judged as usize], true) {
            let task = view.name(pid);
            found.push(Violation {
                check: self.name(),
                since_ns,
                at_ns: view.now_ns,
                cpus: vec![judged],
                message: format!(
                    "CPU {judged} was idle and took {} us to notice that {task} waits there; {} us are allowed",
                    took_ns / 1_000,
                    self.within_ns / 1_000
                ),
                tasks: vec![task],
            });
        }
    }
}
