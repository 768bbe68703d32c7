//! What looks at the run queues say between two pages, under whichever scheduler: how much was wasted, and which tasks wait.

use std::collections::BTreeMap;

use ekiden_check::{Snapshot, TaskSeen};
use ekiden_loader::{Budgets, Look};

/// Looks again and again, if that is allowed.
pub(super) struct Watch {
    look: Option<Look>,
    budgets: Budgets,
    seen: Seen,
    trouble: Option<String>,
}

/// Sums of all looks since the beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// How often it was looked.
    pub(super) looks: u64,
    /// CPUs that were idle while a task waited that could use them, one task each, summed over the looks.
    pub(super) wasted: u64,
    pub(super) cpus: Vec<CpuLooks>,
    /// Tasks as they are now, by PID.
    pub(super) tasks: BTreeMap<u32, TaskSeen>,
}

/// Sums of a CPU over the looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuLooks {
    pub(super) cpu: u32,
    /// Tasks that waited for it.
    pub(super) waiting: u64,
    /// Looks in which it was idle while a task waited elsewhere that could use it.
    pub(super) wasted: u64,
}

impl Watch {
    pub(super) fn open() -> Self {
        let (look, trouble) = match Look::load() {
            Ok(look) => (Some(look), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { look, budgets: Budgets::default(), seen: Seen::default(), trouble }
    }

    /// Looks once: some instructions per CPU, and more only if one is idle while a task waits.
    pub(super) fn look(&mut self) {
        let Some(look) = &mut self.look else { return };
        let looked = look.cpus().and_then(|cpus| {
            let is_suspicious = look.idle_and_crowded().0 > 0 && look.idle_and_crowded().1 > 0;
            if is_suspicious { look.snapshot(false) } else { Ok(Snapshot { cpus, tasks: Vec::new() }) }
        });
        match looked {
            Ok(snapshot) => {
                let used_up = self.budgets.used_up(&snapshot);
                self.seen.add(&snapshot.without(&used_up));
            }
            Err(error) => self.end(&error),
        }
    }

    /// Sums so far, and the tasks as they are now; otherwise, why there are none.
    pub(super) fn seen(&mut self) -> Result<Seen, String> {
        match self.look.as_mut().map(|look| look.snapshot(true)) {
            Some(Ok(snapshot)) => {
                let this = std::process::id();
                let others = snapshot.tasks.into_iter().filter(|task| task.tgid != this);
                self.seen.tasks = others.map(|task| (task.pid, task)).collect();
            }
            Some(Err(error)) => self.end(&error),
            None => {}
        }
        self.trouble.clone().map_or_else(|| Ok(self.seen.clone()), Err)
    }

    fn end(&mut self, error: &ekiden_loader::LoadError) {
        self.look = None;
        self.trouble = Some(error.to_string());
    }
}

impl Seen {
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        let waste = snapshot.waste().unwrap_or_default();
        self.looks += 1;
        self.wasted += u64::from(snapshot.wasted_cpus(0));
        self.cpus.resize(snapshot.cpus.len(), CpuLooks::default());
        for (looks, cpu) in self.cpus.iter_mut().zip(&snapshot.cpus) {
            looks.cpu = cpu.cpu;
            looks.waiting += u64::from(cpu.nr_running).saturating_sub(1);
            looks.wasted += u64::from(waste.idle.contains(cpu.cpu));
        }
    }
}
