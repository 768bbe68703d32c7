//! Records what the kernel's scheduler does, whichever scheduler that is, as a trace.
//!
//! BPF programs on tracepoints fill a ring for each CPU (`hosts/kernel/bpf/record.bpf.c`), which has to be emptied before it is
//! full. Records taken out are a piece of the trace at once, so memory does not grow with its length. Tracepoints tell some
//! things twice or too early; [`Tidy`] puts that right, so that a trace of the kernel keeps the same rules as one of the
//! simulator. Needs BTF and root, and no sched_ext.

use std::{
    collections::{HashMap, HashSet},
    mem::MaybeUninit,
    thread,
    time::Duration,
};

use ekiden_check::TaskSeen;
use ekiden_trace::{Header, Host, Record, Tidy, Trace, What, masks, names};
use libbpf_rs::{
    Link, OpenObject, ProgramMut,
    skel::{OpenSkel, SkelBuilder},
};

use super::{
    look::{Look, kernel_has_function, no_section, watch_error},
    rings::{self, Rings},
    skel::record::{RecordSkel, RecordSkelBuilder},
};
use crate::{
    call_log::now_ns,
    error::{LoadError, Result},
    recorded::{Raw, Recording},
    sysfs,
};

/// The most memory for the rings of all CPUs together.
const ALL_BYTES_MAX: usize = 1 << 29;

/// How old a record is at least when those of all CPUs before it can be read: to take the time and to write it down are a few
/// instructions apart, but whatever the processor belongs to may come between.
const SETTLED_NS: u64 = 1_000_000;

/// What records of the BPF program can be besides a [`What`]: `enum what` there.
const WAKE_ENQUEUE: u16 = 256;
const SWITCH_PREEMPTED: u16 = 257;
const SWITCH_BLOCKED: u16 = 258;
const SWITCH_EXITED: u16 = 259;

/// What balances in the kernel's own scheduler, by its name since 6.10 and before.
const BALANCES: [&str; 2] = ["sched_balance_rq", "load_balance"];

/// The flag of an event that says that a task was woken up.
const WAKEUP: u64 = 1;

/// Can record what the kernel's scheduler does. Nothing hangs on the kernel before [`Recorder::begin`] and after
/// [`Recorder::end`], or once this is dropped.
pub struct Recorder {
    skel: RecordSkel<'static>,
    rings: Rings,
    links: Vec<Link>,
    look: Look,
    tidy: Tidy,
    /// How many CPUs there can be, if changes of tasks' sets of them can be seen.
    nr_cpus: Option<u32>,
    begin_ns: u64,
    lost_before: u64,
}

impl Recorder {
    /// Loads the programs. `ring_bytes` is the memory that each CPU has for what happens between two calls of
    /// [`Recorder::take`]; a switch takes 24 of them, a wake-up 24 or 48.
    ///
    /// # Errors
    /// Without privilege, without BTF, and where the kernel does not take the programs.
    pub fn load(ring_bytes: u32) -> Result<Self> {
        let look = Look::load()?;
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RecordSkelBuilder::default().open(object).map_err(|error| watch_error("open", &error))?;
        let nr_cpus = look.nr_cpus();
        let (records, stride) = rings::size((ring_bytes as usize).min(ALL_BYTES_MAX / nr_cpus as usize));
        let size = |error| watch_error("size", &error);
        open.maps.rings.set_max_entries(nr_cpus).map_err(size)?;
        open.maps.rings.set_value_size(stride as u32).map_err(size)?;
        let has_affinity = kernel_has_function("set_cpus_allowed_common");
        open.progs.on_affinity.set_autoload(has_affinity);
        match BALANCES.into_iter().find(|name| kernel_has_function(name)) {
            Some(name) => open
                .progs
                .on_balance
                .set_attach_target(0, Some(name.to_owned()))
                .map_err(|error| watch_error("aim", &error))?,
            None => open.progs.on_balance.set_autoload(false),
        }
        let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(no_section)?;
        (constants.nr_cpus, constants.has_affinity, constants.ring_mask) = (nr_cpus, has_affinity, records - 1);
        let skel = open.load().map_err(|error| watch_error("load", &error))?;
        let rings = Rings::map(&skel.maps.rings, nr_cpus, records, stride)?;
        let nr_cpus = has_affinity.then_some(nr_cpus);
        Ok(Self { skel, rings, links: Vec::new(), look, tidy: Tidy::default(), nr_cpus, begin_ns: 0, lost_before: 0 })
    }

    /// What looks at run queues, to find out whether it is worth while to record.
    pub fn look(&mut self) -> &mut Look {
        &mut self.look
    }

    /// The header of a trace of this machine as it is now; `workload` is what runs.
    ///
    /// # Errors
    /// When the machine's topology cannot be read.
    pub fn header(&self, workload: &str) -> Result<Header> {
        let topology = ekiden_machine::read_sysfs("/sys".as_ref())
            .map_err(|error| LoadError::Other(format!("cannot read the topology: {error}")))?;
        let policy = sysfs::scheduler();
        let workload = workload.to_owned();
        Ok(Header { host: Host::Kernel, policy, workload, clock_ns: self.begin_ns, ..Header::of(&topology) })
    }

    /// Begins to record. The first records say which tasks there are and where they are.
    ///
    /// # Errors
    /// When the programs cannot be attached.
    pub fn begin(&mut self, sink: &mut impl FnMut(Record)) -> Result<()> {
        self.begin_with(true, sink)
    }

    /// Begins at a lower cost: tasks that sleep are not told of, which among thousands are nearly all, and functions of the
    /// kernel are left alone, for which it would go through all that it has. So changes of nice values and affinities,
    /// and what balancing looks at, are not recorded before [`Recorder::attach_functions`].
    pub(crate) fn begin_small(&mut self, sink: &mut impl FnMut(Record)) -> Result<()> {
        self.begin_with(false, sink)
    }

    /// The sleeping tasks that [`Recorder::begin_small`] left out, in front of what was recorded since, by another
    /// clock.
    pub(crate) fn with_sleepers(
        &mut self,
        header: &Header,
        recorded: &Trace,
        clock: impl Fn(u64) -> u64,
    ) -> Result<Trace> {
        let told: HashSet<u32> =
            recorded.records().filter(|record| record.what == What::New).map(|record| record.pid).collect();
        let mut sleepers = self.look.snapshot(true)?.tasks;
        sleepers.retain(|task| !told.contains(&task.pid));
        // Where they are now is of no interest.
        sleepers.iter_mut().for_each(|task| (task.is_running, task.is_waiting) = (false, false));
        let mut trace = Trace::new(header);
        let present = present(&sleepers, &[], self.nr_cpus, 0);
        let recorded = recorded.records().map(|record| Record { time_ns: clock(record.time_ns), ..record });
        present.into_iter().chain(recorded).for_each(|record| trace.push(record));
        Ok(trace)
    }

    fn begin_with(&mut self, all: bool, sink: &mut impl FnMut(Record)) -> Result<()> {
        // What a program wrote that was still running when the last recording ended.
        self.rings.take(u64::MAX, &mut |_| {});
        self.lost_before = self.rings.lost();
        self.attach_tracepoints()?;
        if all {
            self.attach_functions()?;
        }
        self.tidy = Tidy::default();
        self.begin_ns = now_ns();
        let tasks = self.look.snapshot(all)?.tasks;
        let mut early = Vec::new();
        self.rings.take(now_ns(), &mut |raw| expand(raw, &mut |record| early.push(record)));
        for record in present(&tasks, &early, self.nr_cpus, self.begin_ns).into_iter().chain(early) {
            self.tidy.pass(since(record, self.begin_ns), sink);
        }
        Ok(())
    }

    /// Takes what has been recorded since the last time, to make room.
    pub fn take(&mut self, sink: &mut impl FnMut(Record)) {
        self.take_until(now_ns().saturating_sub(SETTLED_NS), sink);
    }

    /// Takes all records up to now, and waits for a moment until they are complete.
    pub(crate) fn take_all(&mut self, sink: &mut impl FnMut(Record)) {
        let until_ns = now_ns();
        thread::sleep(Duration::from_nanos(SETTLED_NS));
        self.take_until(until_ns, sink);
    }

    /// As [`Recorder::take`], to be told later: see [`Recorder::tell`].
    pub fn take_raw(&mut self, sink: &mut impl FnMut(Raw)) {
        self.rings.take(now_ns().saturating_sub(SETTLED_NS), sink);
    }

    /// Ends the recording, and takes the rest; the last record is [`What::End`]. Returns how many records there was no room for
    /// since its beginning.
    pub fn end(&mut self, sink: &mut impl FnMut(Record)) -> u64 {
        let mut rest = Vec::new();
        let lost = self.end_raw(&mut |raw| rest.push(raw));
        rest.into_iter().for_each(|raw| self.tell(raw, sink));
        lost
    }

    /// Ends the recording, and hands over what is left as it is, to be told later.
    pub fn end_raw(&mut self, sink: &mut impl FnMut(Raw)) -> u64 {
        let end_ns = self.detach();
        self.rings.take(end_ns, sink);
        sink(Raw { time_ns: end_ns, value: 0, pid: 0, what: What::End as u32 });
        self.rings.lost() - self.lost_before
    }

    /// Tells raw records as the records that they stand for; in the order in which they were taken.
    #[inline]
    pub fn tell(&mut self, raw: Raw, sink: &mut impl FnMut(Record)) {
        let Self { tidy, begin_ns, .. } = self;
        expand(raw, &mut |record| tidy.pass(since(record, *begin_ns), sink));
    }

    fn take_until(&mut self, until_ns: u64, sink: &mut impl FnMut(Record)) {
        let Self { rings, tidy, begin_ns, .. } = self;
        let mut pass = |record| tidy.pass(since(record, *begin_ns), sink);
        rings.take(until_ns, &mut |raw| expand(raw, &mut pass));
    }

    /// Returns until when all is recorded: programs go one by one, and what happens meanwhile is recorded by those that are left
    /// only, as wake-ups without a switch.
    fn detach(&mut self) -> u64 {
        let end_ns = now_ns();
        self.links.clear();
        end_ns
    }

    /// The time now, as the trace counts it.
    pub fn elapsed_ns(&self) -> u64 {
        now_ns().saturating_sub(self.begin_ns)
    }

    /// The time of the monotonic clock at which the trace's times begin.
    pub fn begin_ns(&self) -> u64 {
        self.begin_ns
    }

    fn attach_tracepoints(&mut self) -> Result<()> {
        let progs = &self.skel.progs;
        self.links = attach(&[
            &progs.on_switch,
            &progs.on_waking,
            &progs.on_wakeup,
            &progs.on_wakeup_new,
            &progs.on_migrate,
            &progs.on_fork,
            &progs.on_rename,
        ])?;
        Ok(())
    }

    /// Has functions of the kernel tell, too.
    pub(crate) fn attach_functions(&mut self) -> Result<()> {
        let progs = &self.skel.progs;
        self.links.extend(attach(&[&progs.on_nice, &progs.on_affinity, &progs.on_balance])?);
        Ok(())
    }
}

/// One by one: a skeleton attaches its programs only once.
fn attach(programs: &[&ProgramMut<'_>]) -> Result<Vec<Link>> {
    let loaded = programs.iter().filter(|program| program.autoload());
    loaded.map(|program| program.attach().map_err(|error| watch_error("attach", &error))).collect()
}

/// What the kernel wrote down, as the records that it stands for.
#[inline]
fn expand(raw: Raw, sink: &mut impl FnMut(Record)) {
    let Raw { time_ns, value, pid, what } = raw;
    let (number, cpu) = (what as u16, what >> 16);
    match number {
        SWITCH_PREEMPTED | SWITCH_BLOCKED | SWITCH_EXITED => {
            let record = Record { time_ns, cpu, what: What::Run, pid, value: value >> 32 };
            let prev = Record { pid: value as u32, value: 0, ..record };
            match number {
                _ if prev.pid == 0 => {}
                SWITCH_PREEMPTED => {
                    sink(Record { what: What::Preempt, ..prev });
                    sink(Record { what: What::Enqueue, ..prev });
                }
                SWITCH_BLOCKED => sink(Record { what: What::Block, ..prev }),
                _ => sink(Record { what: What::Exit, ..prev }),
            }
            sink(if pid == 0 { Record { what: What::Idle, value: 0, ..record } } else { record });
        }
        WAKE_ENQUEUE => {
            let wake = Record { time_ns, cpu, what: What::Wake, pid, value };
            sink(wake);
            sink(Record { what: What::Enqueue, value: WAKEUP, ..wake });
        }
        _ => {
            if let Some(what) = What::from_number(number) {
                sink(Record { time_ns, cpu, what, pid, value });
            }
        }
    }
}

/// A recording into memory, for what is short.
pub struct ShortRecorder {
    recorder: Recorder,
    trace: Trace,
}

impl ShortRecorder {
    /// Begins to record; all of it has to find room in `ring_bytes` for each CPU. `workload` is what will run, for the trace's header.
    ///
    /// # Errors
    /// As [`Recorder::load`] and [`Recorder::begin`].
    pub fn start(ring_bytes: u32, workload: &str) -> Result<Self> {
        let mut recorder = Recorder::load(ring_bytes)?;
        let mut trace = Trace::new(&recorder.header(workload)?);
        recorder.begin(&mut |record| trace.push(record))?;
        Ok(Self { recorder, trace })
    }

    /// Ends the recording.
    pub fn stop(mut self) -> Recording {
        let lost = self.recorder.end(&mut |record| self.trace.push(record));
        Recording { trace: self.trace, begin_ns: self.recorder.begin_ns, lost }
    }
}

fn since(record: Record, begin_ns: u64) -> Record {
    Record { time_ns: record.time_ns.saturating_sub(begin_ns), ..record }
}

/// Which tasks there are, and where they were when the recording began. If one did something before it was looked
/// at, records tell where it is. Without `nr_cpus`, their sets of CPUs are not told.
fn present(tasks: &[TaskSeen], early: &[Record], nr_cpus: Option<u32>, time_ns: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let born: HashSet<u32> = early.iter().filter(|record| record.what == What::New).map(|record| record.pid).collect();
    let mut first: HashMap<u32, u64> = HashMap::new();
    for record in early {
        first.entry(record.pid).or_insert(record.time_ns);
    }
    for task in tasks.iter().filter(|task| !born.contains(&task.pid)) {
        let new = Record { time_ns, cpu: 0, what: What::New, pid: task.pid, value: task.parent.into() };
        records.push(new);
        records.extend((0..).zip(names(&task.name)).map(|(cpu, value)| Record { cpu, what: What::Name, value, ..new }));
        if task.nice != 0 {
            records.push(Record { what: What::Nice, value: i64::from(task.nice) as u64, ..new });
        }
        records.extend(nr_cpus.into_iter().flat_map(|nr_cpus| affinity(task, nr_cpus, new)));
    }
    for task in tasks.iter().filter(|task| first.get(&task.pid).is_none_or(|first_ns| *first_ns > task.time_ns)) {
        let waits = Record { time_ns, cpu: task.cpu, what: What::Enqueue, pid: task.pid, value: 0 };
        if task.is_waiting || task.is_running {
            records.push(waits);
        }
        if task.is_running {
            records.push(Record { what: What::Run, ..waits });
        }
    }
    records
}

/// Which CPUs a task may use, if not all.
fn affinity(task: &TaskSeen, nr_cpus: u32, new: Record) -> Vec<Record> {
    if task.is_bound || task.allowed.count() >= nr_cpus {
        return Vec::new();
    }
    let count = Record { what: What::Affinity, value: task.allowed.count().into(), ..new };
    let pieces = (0..).zip(masks(&task.allowed, nr_cpus));
    let pieces = pieces.map(|(cpu, value)| Record { cpu, what: What::Allowed, value, ..new });
    [count].into_iter().chain(pieces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, what: What) -> Record {
        Record { time_ns, cpu: 0, what, pid: 7, value: 0 }
    }

    #[test]
    fn a_task_that_did_something_before_it_was_looked_at_is_where_records_say() {
        let task = |pid, is_running, is_waiting| TaskSeen {
            time_ns: 10,
            pid,
            is_running,
            is_waiting,
            allowed: ekiden::CpuMask::single(1),
            ..TaskSeen::default()
        };
        let tasks = [task(7, true, false), task(8, false, true), task(9, true, false)];
        let early = [record(9, What::Block), Record { pid: 9, ..record(11, What::Block) }];
        let records = present(&tasks, &early, Some(2), 1);
        let of = |pid| records.iter().filter(|record| record.pid == pid).map(|record| record.what).collect::<Vec<_>>();
        use What::{Affinity, Allowed, Enqueue, New, Run};
        assert_eq!(of(7), [New, Affinity, Allowed]);
        assert_eq!(of(8), [New, Affinity, Allowed, Enqueue]);
        assert_eq!(of(9), [New, Affinity, Allowed, Enqueue, Run]);
    }
}
