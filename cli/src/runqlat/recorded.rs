//! Waits in a trace: in one of the kernel or of the simulator, or in a recording of another program.

use std::path::Path;

use anyhow::{Context, Result};
use ekiden_loader::Whom;
use ekiden_page::{Compared, Histogram};
use ekiden_trace::{Host, Machine, Record};

use crate::{output::open_trace, progress::Progress, trace::is_wanted};

/// How long tasks waited there. Memory grows with the tasks that live.
pub(super) fn count(path: &Path, whom: &Whom, is_one_of_many: bool) -> Result<Compared> {
    let _busy = Progress::brief(format!("reading {}", path.display()));
    let trace = open_trace(path)?;
    let policy = trace.header().policy.clone().unwrap_or_else(|| "the host's own scheduler".into());
    let name = if is_one_of_many { format!("{} ({policy})", path.display()) } else { policy };
    let is_real = trace.header().host == Host::Kernel;
    let machine = Machine::new(trace.header());
    let mut counter = Counter { whom, is_real, machine, waits: Histogram::default(), lost: 0 };
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
    machine: Machine,
    waits: Histogram,
    lost: u64,
}

impl Counter<'_> {
    fn record(&mut self, record: &Record) {
        self.lost = self.lost.saturating_add(record.lost());
        let Some(moved) = self.machine.apply(record) else { return };
        let is_told = |waited_ns: &u64| !self.is_real || *waited_ns > 0;
        let waited_ns = moved.waited_ns().filter(is_told);
        if let Some(waited_ns) = waited_ns.filter(|_| is_wanted(self.whom, &self.machine, moved.pid)) {
            self.waits.add(waited_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use ekiden::Topology;
    use ekiden_trace::{Header, What};

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
            let machine = Machine::new(&Header::of(&Topology::flat(1)));
            let mut counter = Counter { whom, is_real: true, machine, waits: Histogram::default(), lost: 0 };
            records.iter().for_each(|record| counter.record(record));
            (counter.waits.count, counter.waits.sum_ns, counter.lost)
        };
        assert_eq!(counted(&Whom::default()), (2, 45, 1));
        assert_eq!(counted(&Whom { name: Some("server".into()), pid: None }), (1, 20, 1));
        assert_eq!(counted(&Whom { name: None, pid: Some(8) }), (1, 25, 1));
        assert_eq!(counted(&Whom { name: Some("serve".into()), pid: None }), (0, 0, 1));
    }
}
