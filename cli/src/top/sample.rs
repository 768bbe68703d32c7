//! Samples of the machine: the status, and what the kernel counts for each CPU.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::watch::{Seen, Watch};
use crate::status::Everything;

const STAT: &str = "/proc/stat";
/// Only kernels with CONFIG_SCHEDSTATS have it.
const SCHEDSTAT: &str = "/proc/schedstat";

/// One look.
pub(super) struct Sample {
    /// When it was, since the first.
    pub(super) at: Duration,
    pub(super) everything: Everything,
    pub(super) cpus: Vec<CpuTimes>,
    /// Looks at the run queues; otherwise, why there are none.
    pub(super) seen: Result<Seen, String>,
}

/// What a CPU has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTimes {
    pub(super) cpu: u32,
    /// How long it was busy, in ticks of `/proc/stat`.
    pub(super) busy: u64,
    /// Busy and idle time together, in ticks of `/proc/stat`.
    pub(super) total: u64,
    /// How long tasks have waited for it, all together; `None` if the kernel does not tell.
    pub(super) waited_ns: Option<u64>,
}

impl Sample {
    pub(super) fn take(first: Instant, watch: &mut Watch) -> anyhow::Result<Self> {
        let stat = fs::read_to_string(STAT).with_context(|| format!("cannot read {STAT}"))?;
        let schedstat = fs::read_to_string(SCHEDSTAT).unwrap_or_default();
        let everything = Everything::read()?;
        Ok(Self { at: first.elapsed(), everything, cpus: cpu_times(&stat, &schedstat), seen: watch.seen() })
    }
}

/// The CPU that a line is of, and the numbers there.
fn of_cpu(line: &str) -> Option<(u32, Vec<u64>)> {
    let mut words = line.split_ascii_whitespace();
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    Some((cpu, words.filter_map(|word| word.parse().ok()).collect()))
}

fn cpu_times(stat: &str, schedstat: &str) -> Vec<CpuTimes> {
    let waited = |wanted: u32| {
        let (_, numbers) = schedstat.lines().filter_map(of_cpu).find(|(cpu, _)| *cpu == wanted)?;
        numbers.get(7).copied()
    };
    let times = |(cpu, numbers): (u32, Vec<u64>)| {
        // User, nice, system, idle, iowait, irq, softirq, steal; what guests had is in the first two once more.
        let total = numbers.iter().take(8).sum();
        let idle: u64 = numbers.iter().skip(3).take(2).sum();
        CpuTimes { cpu, busy: total - idle, total, waited_ns: waited(cpu) }
    };
    stat.lines().filter_map(of_cpu).map(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_for_devices() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 100 50 4 5 6 1 2\ncpu2 1 0 0 9 0 0 0 0 0 0\nintr 5\n";
        let schedstat =
            "version 17\ntimestamp 1\ncpu0 0 0 1 2 3 4 700 800 9\ndomain0 MC 3 1 2\ncpu2 0 0 0 0 0 0 7 8 9\n";
        let zero = CpuTimes { cpu: 0, busy: 21, total: 171, waited_ns: Some(800) };
        let two = CpuTimes { cpu: 2, busy: 1, total: 10, waited_ns: Some(8) };
        assert_eq!(cpu_times(stat, schedstat), [zero, two]);
    }

    #[test]
    fn a_kernel_without_schedstat_does_not_tell_who_waits() {
        assert_eq!(cpu_times("cpu0 1 0 0 9\n", ""), [CpuTimes { cpu: 0, busy: 1, total: 10, waited_ns: None }]);
    }
}
