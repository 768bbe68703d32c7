//! What /proc and /sys say about a task and its scheduler. Each answer is optional: kernels differ in what they are
//! built to tell.

use std::fs;

use rustix::process::Pid;

use crate::real::sys::{self, Usage};

/// Counters that only the kernel keeps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelCounts {
    /// Time spent runnable but not running.
    pub(crate) wait_ns: Option<u64>,
    pub(crate) migrations: Option<u64>,
}

impl KernelCounts {
    pub(crate) fn of(pid: Pid) -> Self {
        KernelCounts {
            // "cpu time, time waiting on a run queue, number of time slices". All zero when the kernel does not count.
            wait_ns: read(pid, "schedstat").and_then(|text| {
                let mut fields = text.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
                let (cpu, wait, slices) = (fields.next()?, fields.next()?, fields.next()?);
                (cpu + wait + slices > 0).then_some(wait)
            }),
            migrations: read(pid, "sched").and_then(|text| after_colon(&text, "se.nr_migrations")),
        }
    }
}

/// What a process has used so far, as seen from outside; it may be dead but not yet waited for.
pub(crate) fn usage(pid: Pid) -> Usage {
    let status = read(pid, "status").unwrap_or_default();
    Usage {
        cpu_ns: sys::cpu_ns_of(pid).unwrap_or(0),
        voluntary_switches: after_colon(&status, "voluntary_ctxt_switches").unwrap_or(0),
        involuntary_switches: after_colon(&status, "nonvoluntary_ctxt_switches").unwrap_or(0),
    }
}

/// State letter, as `ps` shows it, and the CPU that a process last ran on.
pub(crate) fn state_and_cpu(pid: Pid) -> Option<(char, u32)> {
    let stat = read(pid, "stat")?;
    // The command name, in parentheses, may hold anything; the state (field 3) follows the last one.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The CPU is field 39; field 4 is the next to come.
    Some((state, fields.nth(39 - 4)?.parse().ok()?))
}

/// The kernel function that a process sleeps in, where the kernel tells.
pub(crate) fn waiting_in(pid: Pid) -> Option<String> {
    read(pid, "wchan").filter(|name| !name.is_empty() && name != "0")
}

/// How many threads the caller has.
pub(crate) fn own_threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count())
}

/// Name of the sched_ext scheduler in charge, if there is one.
pub(crate) fn sched_ext_scheduler() -> Option<String> {
    let name = fs::read_to_string("/sys/kernel/sched_ext/root/ops").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

fn read(pid: Pid, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero())).ok()
}

/// The number in the line `key : number`.
fn after_colon(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_whole_key() {
        let status = "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(after_colon(status, "nonvoluntary_ctxt_switches"), Some(9));
        assert_eq!(after_colon(status, "voluntary_ctxt_switches"), Some(7));
        assert_eq!(after_colon(status, "ctxt_switches"), None);
    }

    #[test]
    fn this_process_is_running_on_a_cpu_that_it_may_use() {
        let (state, cpu) = state_and_cpu(rustix::process::getpid()).unwrap();
        assert!(matches!(state, 'R' | 'S'), "{state}");
        assert!(rustix::thread::sched_getaffinity(None).unwrap().is_set(cpu as usize));
    }

    #[test]
    fn cpu_time_seen_from_outside_is_that_seen_from_inside() {
        let inside = Usage::of_self().cpu_ns;
        let outside = usage(rustix::process::getpid()).cpu_ns;
        assert!(outside >= inside && inside > 0, "{inside} then {outside}");
    }
}
