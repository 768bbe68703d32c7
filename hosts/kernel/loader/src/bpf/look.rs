//! Looks at run queues and tasks of the running kernel, whichever scheduler it has (`hosts/kernel/bpf/look.bpf.c`). Needs BTF
//! and root, and no sched_ext.

use std::{io::Read, mem::MaybeUninit, path::Path};

use ekiden::CpuMask;
use ekiden_check::{CpuLimit, CpuSeen, Snapshot, TaskSeen};
use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, OpenObject, ProgramInput,
    btf::{Btf, types},
    skel::{OpenSkel, SkelBuilder},
};
use zerocopy::{FromBytes, Immutable, KnownLayout, native_endian::U64};

use super::skel::look::{LookSkel, LookSkelBuilder};
use crate::error::{Context, LoadError, Result, needs_root};

/// `struct cpu_seen` of the program.
#[derive(FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawCpu {
    nr_switches: u64,
    root_domain: u64,
    core_cookie: u64,
    nr_running: u32,
    flags: u32,
}

/// `struct task_seen` of the program.
#[derive(FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawTask {
    time_ns: u64,
    core_cookie: u64,
    group: u64,
    quota_ns: u64,
    period_ns: u64,
    waited_ns: u64,
    waits_ns: u64,
    pid: u32,
    tgid: u32,
    cpu: u32,
    flags: u32,
    prio: i32,
    static_prio: i32,
    comm: [u8; 16],
    /// How many words of the set of CPUs that it may use follow.
    words: u32,
    parent: u32,
}

/// Flags of `enum cpu_flags` and `enum task_flags`.
const IS_ONLINE: u32 = 1;
const IS_IDLE: u32 = 2;
const IS_ISOLATED: u32 = 4;
const IS_FORCED_IDLE: u32 = 8;
const IS_RUNNING: u32 = 1;
const IS_WAITING: u32 = 2;
const IS_BOUND: u32 = 4;

/// The programs that look; nothing of them runs between two looks.
pub struct Look {
    skel: LookSkel<'static>,
    tasks: Link,
    nr_cpus: u32,
}

/// What must be there for anything that watches the kernel.
pub(crate) fn preflight() -> Result<()> {
    needs_root()?;
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(LoadError::NoBtf);
    }
    Ok(())
}

impl Look {
    /// Loads the programs. Takes a tenth of a second.
    ///
    /// # Errors
    /// Without privilege, without BTF, and where the kernel does not take the programs.
    pub fn load() -> Result<Self> {
        preflight()?;
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LookSkelBuilder::default().open(object).map_err(|error| watch_error("open", &error))?;
        let nr_cpus = libbpf_rs::num_possible_cpus().map_err(|error| watch_error("size", &error))? as u32;
        open.maps.cpus.set_max_entries(nr_cpus).map_err(|error| watch_error("size", &error))?;
        open.maps.rodata_data.as_deref_mut().ok_or_else(no_section)?.nr_cpus = nr_cpus;
        let skel = open.load().map_err(|error| watch_error("load", &error))?;
        let tasks = skel.progs.tasks.attach().map_err(|error| watch_error("attach", &error))?;
        Ok(Self { skel, tasks, nr_cpus })
    }

    /// Whether some CPU is idle now while a task waits for one: a few instructions per CPU. If not, there is nothing to
    /// find in [`Look::snapshot`].
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn is_suspicious(&self) -> Result<bool> {
        let output =
            self.skel.progs.look.test_run(ProgramInput::default()).map_err(|error| watch_error("run", &error))?;
        Ok(output.return_value != 0)
    }

    /// How many CPUs there can be.
    pub fn nr_cpus(&self) -> u32 {
        self.nr_cpus
    }

    /// How many CPUs were idle, and on how many a task waited, in the last [`Look::is_suspicious`].
    pub fn idle_and_crowded(&self) -> (u32, u32) {
        self.skel.maps.bss_data.as_deref().map_or((0, 0), |bss| (bss.idle, bss.crowded))
    }

    /// The CPUs as they are now.
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn cpus(&self) -> Result<Vec<CpuSeen>> {
        self.is_suspicious()?;
        let cpu = |cpu: u32| {
            let value = self.skel.maps.cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(|error| watch_error("read", &error))?;
            value.as_deref().and_then(|bytes| parse_cpu(cpu, bytes)).ok_or_else(no_section)
        };
        (0..self.nr_cpus).map(cpu).collect()
    }

    /// CPUs and tasks as they are now; without `all`, only those tasks that run or wait.
    ///
    /// # Errors
    /// When the kernel does not run the programs.
    pub fn snapshot(&mut self, all: bool) -> Result<Snapshot> {
        let cpus = self.cpus()?;
        self.skel.maps.bss_data.as_deref_mut().ok_or_else(no_section)?.of_all_tasks = all;
        let mut bytes = Vec::new();
        let mut iterator = Iter::new(&self.tasks).map_err(|error| watch_error("run", &error))?;
        iterator.read_to_end(&mut bytes).context("cannot read the tasks")?;
        Ok(Snapshot { cpus, tasks: parse_tasks(&bytes) })
    }
}

/// What the kernel answers to programs that watch it.
pub(crate) fn watch_error(step: &'static str, error: &libbpf_rs::Error) -> LoadError {
    LoadError::Watch { step, message: format!("{error:#}") }
}

/// Whether this kernel has a function that programs can hang on, by its BTF.
pub(crate) fn kernel_has_function(name: &str) -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<types::Func<'_>>(name).is_some())
}

pub(crate) fn no_section() -> LoadError {
    LoadError::Other("the BPF object lacks a section; build Ekiden again".into())
}

fn parse_cpu(cpu: u32, bytes: &[u8]) -> Option<CpuSeen> {
    let raw = RawCpu::read_from_bytes(bytes).ok()?;
    Some(CpuSeen {
        cpu,
        nr_switches: raw.nr_switches,
        root_domain: raw.root_domain,
        core_cookie: raw.core_cookie,
        nr_running: raw.nr_running,
        is_online: raw.flags & IS_ONLINE != 0,
        is_idle: raw.flags & IS_IDLE != 0,
        is_isolated: raw.flags & IS_ISOLATED != 0,
        is_forced_idle: raw.flags & IS_FORCED_IDLE != 0,
    })
}

/// All whole ones; a piece of one at the end would be the kernel's mistake.
fn parse_tasks(mut bytes: &[u8]) -> Vec<TaskSeen> {
    let mut tasks = Vec::new();
    while let Some((task, rest)) = parse_task(bytes) {
        tasks.push(task);
        bytes = rest;
    }
    tasks
}

fn parse_task(bytes: &[u8]) -> Option<(TaskSeen, &[u8])> {
    let (raw, rest) = RawTask::read_from_prefix(bytes).ok()?;
    let (words, rest) = <[U64]>::ref_from_prefix_with_elems(rest, raw.words as usize).ok()?;
    let words: Vec<u64> = words.iter().map(|word| word.get()).collect();
    let task = TaskSeen {
        time_ns: raw.time_ns,
        core_cookie: raw.core_cookie,
        pid: raw.pid,
        tgid: raw.tgid,
        cpu: raw.cpu,
        is_running: raw.flags & IS_RUNNING != 0,
        is_waiting: raw.flags & IS_WAITING != 0,
        is_bound: raw.flags & IS_BOUND != 0,
        parent: raw.parent,
        prio: raw.prio,
        nice: raw.static_prio - 120,
        name: String::from_utf8_lossy(&raw.comm).trim_end_matches('\0').to_owned(),
        allowed: CpuMask::from_words(&words),
        limit: (raw.period_ns > 0).then_some(CpuLimit {
            group: raw.group,
            quota_ns: raw.quota_ns,
            period_ns: raw.period_ns,
        }),
        waited_ns: raw.waited_ns,
        waits_ns: raw.waits_ns,
    };
    Some((task, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u32, flags: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7_u64.to_ne_bytes());
        [0_u64, 11, 50, 100, 30, 20].iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        for number in [pid, pid, 3, flags, 120, 115] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(*b"name\0\0\0\0\0\0\0\0\0\0\0\0");
        bytes.extend((words.len() as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn tasks_are_read_as_bpf_writes_them() {
        let mut bytes = task(5, IS_WAITING, &[0b1001, 1]);
        bytes.extend(task(6, IS_RUNNING, &[1]));
        let tasks = parse_tasks(&bytes);
        assert_eq!(tasks.len(), 2);
        let first = &tasks[0];
        assert_eq!((first.waited_ns, first.waits_ns), (30, 20));
        assert_eq!(first.limit, Some(CpuLimit { group: 11, quota_ns: 50, period_ns: 100 }));
        assert_eq!((first.pid, first.cpu, first.name.as_str(), first.nice), (5, 3, "name", -5));
        assert_eq!(first.allowed.iter().collect::<Vec<_>>(), [0, 3, 64]);
        assert!(first.is_waiting && !first.is_running && tasks[1].is_running);
    }

    #[test]
    fn a_piece_of_a_task_is_left_out() {
        let bytes = task(5, 0, &[1]);
        for length in 0..bytes.len() {
            assert_eq!(parse_tasks(&bytes[..length]), [], "{length}");
        }
    }
}
