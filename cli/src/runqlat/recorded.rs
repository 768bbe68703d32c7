//! Waits in a trace: in one of the kernel or of the simulator, or in a recording of another program.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, Result};
use ekiden_loader::Whom;
use ekiden_page::{Compared, Histogram};
use ekiden_trace::{Host, Record, What};

use crate::{output::open_trace, progress::Progress, trace::Name};

/// How long tasks waited there. Memory grows with the tasks that live.
pub(super) fn count(path: &Path, whom: &Whom, is_one_of_many: bool) -> Result<Compared> {
    let _busy = Progress::brief(format!("reading {}", path.display()));
    let trace = open_trace(path)?;
    let policy = trace.header().policy.clone().unwrap_or_else(|| "the host's own scheduler".into());
    let name = if is_one_of_many { format!("{} ({policy})", path.display()) } else { policy };
    let is_real = trace.header().host == Host::Kernel;
    let mut counter = Counter { whom, is_real, tasks: HashMap::new(), waits: Histogram::default(), lost: 0 };
    for record in trace {
        counter.record(&record.with_context(|| path.display().to_string())?);
    }
    let note = (counter.lost > 0).then(|| format!("at least {} records were lost", counter.lost));
    if let Some(note) = &note {
        eprintln!("ekiden: {}: {note}, so that some waits are missing", path.display());
    }
    Ok(Compared { name, note, waits: counter.waits })
}

struct Counter<'a> {
    whom: &'a Whom,
    /// Whether it is of a kernel. There, a wait that took no time was put in, as it was not seen how the task got its CPU.
    is_real: bool,
    tasks: HashMap<u32, Task>,
    waits: Histogram,
    lost: u64,
}

#[derive(Default)]
struct Task {
    name: Name,
    since_ns: Option<u64>,
}

impl Counter<'_> {
    fn record(&mut self, record: &Record) {
        let Record { time_ns, what, pid, .. } = *record;
        match what {
            What::New => drop(self.tasks.insert(pid, Task::default())),
            What::Exit => drop(self.tasks.remove(&pid)),
            What::Name => self.task(pid).name.add(record),
            What::Enqueue => drop(self.task(pid).since_ns.get_or_insert(time_ns)),
            What::Run => {
                let waited_ns = self.task(pid).since_ns.take().map(|since_ns| time_ns.saturating_sub(since_ns));
                let is_told = |waited_ns: &u64| !self.is_real || *waited_ns > 0;
                if let Some(waited_ns) = waited_ns.filter(is_told).filter(|_| self.is_wanted(pid)) {
                    self.waits.add(waited_ns);
                }
            }
            What::Block | What::Preempt | What::Throttle => self.task(pid).since_ns = None,
            _ => {}
        }
        self.lost = self.lost.saturating_add(record.lost());
    }

    fn task(&mut self, pid: u32) -> &mut Task {
        self.tasks.entry(pid).or_default()
    }

    fn is_wanted(&self, pid: u32) -> bool {
        self.tasks.get(&pid).unwrap_or(&Task::default()).name.is_of(self.whom, pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_of_the_tasks_that_are_asked_for() {
        let record = |time_ns, what, pid, value| Record { time_ns, cpu: 0, what, pid, value };
        let name = |text: &str| ekiden_trace::names(text).next().unwrap_or_default();
        let records = [
            record(0, What::Name, 7, name("server")),
            record(0, What::Name, 8, name("client")),
            record(10, What::Enqueue, 7, 0),
            record(15, What::Enqueue, 8, 0),
            // A task that is moved waits on.
            record(20, What::Enqueue, 7, 0),
            record(30, What::Run, 7, 0),
            record(40, What::Preempt, 7, 0),
            record(40, What::Run, 8, 0),
            record(41, What::Enqueue, 9, 0),
            record(41, What::Run, 9, 0),
            record(41, What::Lost, 0, 0),
        ];
        let counted = |whom: &Whom| {
            let mut counter =
                Counter { whom, is_real: true, tasks: HashMap::new(), waits: Histogram::default(), lost: 0 };
            records.iter().for_each(|record| counter.record(record));
            (counter.waits.count, counter.waits.sum_ns, counter.lost)
        };
        assert_eq!(counted(&Whom::default()), (2, 45, 1));
        assert_eq!(counted(&Whom { name: Some("server".into()), pid: None }), (1, 20, 1));
        assert_eq!(counted(&Whom { name: None, pid: Some(8) }), (1, 25, 1));
        assert_eq!(counted(&Whom { name: Some("serve".into()), pid: None }), (0, 0, 1));
    }
}
