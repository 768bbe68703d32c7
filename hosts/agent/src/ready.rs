//! What has to be true of this machine and of this process before an agent takes charge; nothing is changed unless
//! all of it is.

use std::{fs, hint::black_box, io};

use ekiden_contain::contained;
use ekiden_loader::{LoadError, Result, sysfs};

/// How far the heap is taken before there are tasks to wait for it.
const HEAP: usize = 16 << 20;

/// Numbers of capabilities, as in `capability.h`.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Whether this process may load BPF programs, and the kernel can be given one.
pub(crate) fn look() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    may_use_bpf(&status)?;
    if !sysfs::supported() {
        return Err(LoadError::NoSchedExt);
    }
    if fs::metadata("/sys/kernel/btf/vmlinux").is_err() {
        return Err(LoadError::NoBtf);
    }
    Ok(())
}

/// Whether the kernel's own scheduler has the tasks.
pub(crate) fn nothing_else_schedules() -> Result<()> {
    match sysfs::scheduler() {
        Some(name) if name.starts_with("ekiden_agent") => Err(LoadError::AgentRuns(name)),
        Some(name) if name.starts_with("ekiden") => Err(LoadError::Busy(name)),
        Some(name) => Err(LoadError::OtherScheduler(name)),
        None => Ok(()),
    }
}

/// `status` is that of the process in `/proc`.
fn may_use_bpf(status: &str) -> Result<()> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(u64::MAX);
    let has = |capability: u32| effective >> capability & 1 != 0;
    let missing: Vec<&str> = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|(capability, _)| !has(*capability) && !has(CAP_SYS_ADMIN))
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(LoadError::NoCapability(missing.join(" and ")))
}

/// Locks the memory of this process, now and from here on.
pub(crate) fn lock_memory() -> Result<()> {
    // Memory that was once taken is not given back: each time it would be faulted in anew.
    // SAFETY: plain calls of the C library.
    let locked = unsafe {
        // What makes huge pages is a task like any other, and takes the memory away meanwhile: the agent would wait
        // for it.
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE)
    };
    if locked == 0 { Ok(()) } else { Err(LoadError::NoMemoryLock(io::Error::last_os_error())) }
}

/// Undoes [`lock_memory`].
pub(crate) fn unlock_memory() {
    // SAFETY: neither takes memory of ours: they change how the kernel keeps pages, and not what is in them.
    unsafe {
        libc::munlockall();
        libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0);
    }
}

/// Makes room on the heap of this thread, so that it need not grow while tasks wait.
pub(crate) fn grow_heap() {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for _ in 0..HEAP / (64 << 10) {
        pieces.push(black_box(vec![1; 64 << 10]));
    }
    drop(black_box(pieces));
}

/// Has this thread unwind once. The first panic takes many times as long as those after it, and tasks would wait for it.
pub(crate) fn rehearse_panic() {
    let _: std::result::Result<(), String> = contained(|| panic!("{}", black_box("a rehearsal")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_a_capability_is_told_which() {
        let refused = |effective: u64| {
            may_use_bpf(&format!("Name:\tx\nCapEff:\t{effective:016x}\n")).err().map(|error| error.to_string())
        };
        assert_eq!(refused(1 << CAP_SYS_ADMIN), None);
        assert_eq!(refused(1 << CAP_BPF | 1 << CAP_PERFMON), None);
        assert!(refused(0).unwrap().contains("CAP_BPF and CAP_PERFMON"));
        assert!(refused(1 << CAP_BPF).unwrap().contains("lacks CAP_PERFMON"));
    }
}
