//! Where tasks note what they did: memory that they share with the runner, one slot of words each.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::thread::sched_getcpu;

use crate::real::process_group::now_ns;
use crate::real::sys::{Shared, Usage};
use crate::report::TaskReport;
use crate::spec::{Step, Workload, numbers::visit};

/// Memory in which each task notes what it did: one slot of words each, and time 0 before the first.
pub(crate) struct Slots {
    words: Shared<AtomicU64>,
    slot_len: usize,
}

/// The words of a slot. Times are of the monotonic clock, 0 when not reached.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    Start,
    Finish,
    Cpu,
    Voluntary,
    Involuntary,
    /// Machine's number of the CPU, plus one.
    LastCpu,
    /// What failed, in the upper half, and the error number.
    Failure,
    Forked,
    ForkedFinished,
    ForkedCpu,
    Marks,
    /// The first of the marks.
    FirstMark,
}

/// Marks kept of each task.
const MARKS_MAX: usize = 1_000;

impl Slots {
    pub(crate) fn new(load: &Workload) -> io::Result<Self> {
        let mut marked = false;
        load.tasks.iter().for_each(|task| visit(&task.program, &mut |step| marked |= *step == Step::Mark));
        let slot_len = Word::FirstMark as usize + if marked { MARKS_MAX } else { 0 };
        Ok(Slots { words: Shared::new(1 + slot_len * load.instances().count())?, slot_len })
    }

    pub(crate) fn zero_ns(&self) -> &AtomicU64 {
        &self.words[0]
    }

    pub(crate) fn of(&self, index: usize) -> Slot<'_> {
        Slot { zero_ns: &self.words[0], words: &self.words[1 + index * self.slot_len..][..self.slot_len] }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) zero_ns: &'a AtomicU64,
    words: &'a [AtomicU64],
}

impl Slot<'_> {
    pub(crate) fn get(&self, word: Word) -> u64 {
        self.words[word as usize].load(Relaxed)
    }

    fn set(&self, word: Word, value: u64) {
        self.words[word as usize].store(value, Relaxed);
    }

    fn add(&self, word: Word, value: u64) -> u64 {
        self.words[word as usize].fetch_add(value, Relaxed)
    }

    /// Takes the page faults of this memory before time 0.
    pub(crate) fn touch(&self) {
        self.words.iter().for_each(|word| word.store(0, Relaxed));
    }

    fn set_usage(&self, usage: Usage) {
        self.set(Word::Cpu, usage.cpu_ns);
        self.set(Word::Voluntary, usage.voluntary_switches);
        self.set(Word::Involuntary, usage.involuntary_switches);
    }

    fn usage(&self) -> Usage {
        Usage {
            cpu_ns: self.get(Word::Cpu),
            voluntary_switches: self.get(Word::Voluntary),
            involuntary_switches: self.get(Word::Involuntary),
        }
    }

    pub(crate) fn begin(&self) {
        self.set_usage(Usage::of_self());
        self.set(Word::Start, now_ns());
    }

    pub(crate) fn finish(&self) {
        let (now_ns, end, begin) = (now_ns(), Usage::of_self(), self.usage());
        self.set_usage(Usage {
            cpu_ns: end.cpu_ns.saturating_sub(begin.cpu_ns),
            voluntary_switches: end.voluntary_switches.saturating_sub(begin.voluntary_switches),
            involuntary_switches: end.involuntary_switches.saturating_sub(begin.involuntary_switches),
        });
        self.set(Word::LastCpu, sched_getcpu() as u64 + 1);
        // Last, because it says that the others now hold what was used between begin and end.
        self.set(Word::Finish, now_ns);
    }

    /// Notes that the task forked. Counted by the parent: a child that never runs must be missed.
    pub(crate) fn count_child(&self) {
        self.add(Word::Forked, 1);
    }

    /// Notes that a child of the task ends.
    pub(crate) fn finish_child(&self) {
        self.add(Word::ForkedCpu, Usage::of_self().cpu_ns);
        self.add(Word::ForkedFinished, 1);
    }

    pub(crate) fn mark(&self) {
        let number = self.add(Word::Marks, 1) as usize;
        if let Some(word) = self.words.get(Word::FirstMark as usize + number) {
            word.store(now_ns(), Relaxed);
        }
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.set(Word::Failure, ((failure.doing as u64) << 32) | failure.errno.raw_os_error() as u64);
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        let word = self.get(Word::Failure);
        let doing = *Doing::ALL.get((word >> 32).checked_sub(1)? as usize)?;
        Some(Failure { doing, errno: Errno::from_raw_os_error(word as u32 as i32) })
    }

    pub(crate) fn report(&self, zero_ns: u64) -> TaskReport {
        let time = |word| Some(self.get(word)).filter(|ns| *ns > 0).map(|ns| ns.saturating_sub(zero_ns));
        let usage = self.usage();
        let marks = (self.get(Word::Marks) as usize).min(self.words.len() - Word::FirstMark as usize);
        let marks = &self.words[Word::FirstMark as usize..][..marks];
        TaskReport {
            cpu_ns: usage.cpu_ns,
            start_ns: time(Word::Start),
            finish_ns: time(Word::Finish),
            voluntary_switches: usage.voluntary_switches,
            involuntary_switches: usage.involuntary_switches,
            last_cpu: self.get(Word::LastCpu).checked_sub(1).map(|cpu| cpu as u32),
            marks_ns: marks.iter().map(|word| word.load(Relaxed).saturating_sub(zero_ns)).collect(),
            forked: self.get(Word::Forked),
            forked_finished: self.get(Word::ForkedFinished),
            forked_cpu_ns: self.get(Word::ForkedCpu),
            ..TaskReport::default()
        }
    }
}

/// What a task was doing when the kernel refused.
#[derive(Clone, Copy)]
pub(crate) enum Doing {
    EnterExtClass = 1,
    SetNice,
    SetAffinity,
    Sleep,
    Write,
    Read,
    Fork,
    Wait,
    Exec,
    WaitForOthers,
    Talk,
}

impl Doing {
    const ALL: [Doing; 11] = [
        Doing::EnterExtClass,
        Doing::SetNice,
        Doing::SetAffinity,
        Doing::Sleep,
        Doing::Write,
        Doing::Read,
        Doing::Fork,
        Doing::Wait,
        Doing::Exec,
        Doing::WaitForOthers,
        Doing::Talk,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Doing::EnterExtClass => "enter class SCHED_EXT",
            Doing::SetNice => "set its nice value",
            Doing::SetAffinity => "set its CPUs",
            Doing::Sleep => "sleep",
            Doing::Write => "write to a pipe",
            Doing::Read => "read from a pipe",
            Doing::Fork => "fork",
            Doing::Wait => "wait for its children",
            Doing::Exec => "start a new program",
            Doing::WaitForOthers => "wait for other tasks, or wake them up",
            Doing::Talk => "talk to its policy",
        }
    }
}

pub(crate) struct Failure {
    pub(crate) doing: Doing,
    pub(crate) errno: Errno,
}

pub(crate) trait OrFailure<T> {
    fn or_fail(self, doing: Doing) -> Result<T, Failure>;
}

impl<T> OrFailure<T> for Result<T, Errno> {
    fn or_fail(self, doing: Doing) -> Result<T, Failure> {
        self.map_err(|errno| Failure { doing, errno })
    }
}

impl<T> OrFailure<T> for io::Result<T> {
    fn or_fail(self, doing: Doing) -> Result<T, Failure> {
        self.map_err(|error| Failure { doing, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) })
    }
}
