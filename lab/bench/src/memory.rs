//! How much memory the kernel uses, and how much more of it tasks cost under a policy.

use serde::{Deserialize, Serialize};

use crate::{Judged, Limit, number, table};

/// Memory in the hands of the kernel, as `/proc/meminfo` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMemory {
    /// Slab caches.
    pub slab_bytes: i64,
    /// Page tables.
    pub page_table_bytes: i64,
    /// Virtually mapped areas: the arenas of policies and the stacks of tasks among them.
    pub vmalloc_bytes: i64,
    /// Per-CPU areas.
    pub per_cpu_bytes: i64,
}

impl KernelMemory {
    /// Reads the text of `/proc/meminfo`; `None` if a line is missing.
    pub fn parse(meminfo: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<i64>().ok()? * 1024)
        };
        Some(Self {
            slab_bytes: bytes("Slab")?,
            page_table_bytes: bytes("PageTables")?,
            vmalloc_bytes: bytes("VmallocUsed")?,
            per_cpu_bytes: bytes("Percpu")?,
        })
    }

    /// All of it.
    pub fn total_bytes(&self) -> i64 {
        self.slab_bytes + self.page_table_bytes + self.vmalloc_bytes + self.per_cpu_bytes
    }

    /// The memory that this has more than the other.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            slab_bytes: self.slab_bytes - other.slab_bytes,
            page_table_bytes: self.page_table_bytes - other.page_table_bytes,
            vmalloc_bytes: self.vmalloc_bytes - other.vmalloc_bytes,
            per_cpu_bytes: self.per_cpu_bytes - other.per_cpu_bytes,
        }
    }
}

/// What tasks cost under a policy beyond what they cost anyway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Always `memory`.
    pub bench: String,
    /// The kernel's release.
    pub kernel: String,
    /// The policy.
    pub policy: String,
    /// How many tasks were made.
    pub tasks: u32,
    /// What that many tasks took under the kernel's own scheduler.
    pub under_default: KernelMemory,
    /// What they took under the policy.
    pub under_policy: KernelMemory,
    /// What the policy takes before there is any task: its fixed arena.
    pub fixed: KernelMemory,
    /// The difference that the tasks make, for 10,000 of them, in MiB.
    pub mib_per_10_000_tasks: f64,
    /// Whether the policy was still the scheduler at the end.
    pub still_scheduler: bool,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether it is, and the policy stayed.
    pub passed: bool,
}

impl MemoryReport {
    /// What may be used for 10,000 tasks beyond the fixed arena.
    pub const LIMIT: Limit = Limit { name: "MiB per 10,000 tasks beyond the fixed arena", at_most: 8.0 };

    /// Compares what `tasks` tasks took under the kernel's own scheduler with what they took under a policy.
    pub fn new(
        kernel: &str,
        policy: &str,
        tasks: u32,
        [under_default, under_policy, fixed]: [KernelMemory; 3],
        still_scheduler: bool,
    ) -> Self {
        let difference = (under_policy.total_bytes() - under_default.total_bytes()) as f64;
        let mib_per_10_000_tasks = difference / f64::from(tasks) * 10_000.0 / f64::from(1 << 20);
        let judged = Self::LIMIT.judge(Some(mib_per_10_000_tasks));
        Self {
            bench: "memory".into(),
            kernel: kernel.into(),
            policy: policy.into(),
            tasks,
            under_default,
            under_policy,
            fixed,
            mib_per_10_000_tasks,
            still_scheduler,
            passed: judged.met && still_scheduler,
            limits: vec![judged],
        }
    }

    /// As tables: where the memory went, then the limit.
    pub fn to_text(&self) -> String {
        let kib = |bytes: i64| number(bytes as f64 / 1024.0);
        let row = |name: &str, part: fn(&KernelMemory) -> i64| {
            let [default, policy] = [part(&self.under_default), part(&self.under_policy)];
            [name.to_owned(), kib(default), kib(policy), kib(policy - default), kib(part(&self.fixed))]
        };
        let rows = [
            row("slab", |memory| memory.slab_bytes),
            row("virtually mapped", |memory| memory.vmalloc_bytes),
            row("per CPU", |memory| memory.per_cpu_bytes),
            row("page tables", |memory| memory.page_table_bytes),
            row("all", KernelMemory::total_bytes),
        ];
        let policy = &self.policy;
        format!(
            "memory, KiB for {} tasks, Linux {}\n{}\n\n{}",
            number(f64::from(self.tasks)),
            self.kernel,
            table(&["KiB", "default", policy, "difference", "fixed"], rows),
            table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:  999 kB\nSlab:      100 kB\nKernelStack:  16 kB\nPageTables:   8 kB\n\
                           SecPageTables: 9 kB\nVmallocUsed: 20 kB\nPercpu:  4 kB\n";

    #[test]
    fn the_kernels_memory_is_read_from_meminfo() {
        let memory = KernelMemory::parse(MEMINFO).unwrap();
        assert_eq!((memory.slab_bytes, memory.page_table_bytes), (100 << 10, 8 << 10));
        assert_eq!(memory.total_bytes(), 132 << 10);
        assert_eq!(KernelMemory::parse("Slab: 1 kB\n"), None);
    }

    #[test]
    fn what_tasks_cost_anyway_is_not_counted() {
        let base = KernelMemory::parse(MEMINFO).unwrap();
        let nothing = base.minus(&base);
        let dear = KernelMemory { slab_bytes: base.slab_bytes + (9 << 20), ..base };
        let cheap = KernelMemory { slab_bytes: base.slab_bytes + (1 << 20), ..base };
        let report = |under| MemoryReport::new("7.3", "fifo", 10_000, [base, under, nothing], true);
        assert_eq!(report(dear).mib_per_10_000_tasks, 9.0);
        assert!(!report(dear).passed && report(cheap).passed);
        assert!(!MemoryReport::new("7.3", "fifo", 10_000, [base, cheap, nothing], false).passed);
    }
}
