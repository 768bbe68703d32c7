//! Reads recordings of others as traces: those of trace-cmd (`trace.dat`, versions 6 and 7) and of perf (`perf.data`).
//!
//! Both hold events of the kernel's tracepoints as the kernel wrote them, and the descriptions of these events. So where
//! something stands in an event comes from the file, never from here. [`Foreign`] reads such a file from its beginning to
//! its end and gives what [`ekiden_trace::Reader`] takes, piece by piece: memory grows with CPUs and tasks, not with the
//! file.
//!
//! | event | what it tells |
//! | --- | --- |
//! | `sched_switch` | which task runs, waits, sleeps or is gone; names, nice values, real-time tasks |
//! | `sched_waking`, `sched_wakeup`, `sched_wakeup_new` | which task is woken up by which, and waits where |
//! | `sched_migrate_task` | which task moves |
//! | `sched_process_fork`, `task_rename` | which task is new, and its name |
//! | `cpu_idle` | that a CPU is idle before it first switched |
//! | `cpuhp_enter` | CPUs that leave and come back |
//!
//! Only the first is indispensable. Without `sched_wakeup` a task waits from `sched_waking` on, without either from when it
//! is seen running. Where events were lost, a record says so, and nothing is taken for granted any more of which task ran there
//! and of which tasks waited anywhere.
//!
//! Bytes from a file are not trusted: sizes in it are believed only as far as the file is long, and what is compressed
//! may not become larger than a limit.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod event;
mod format;
mod heading;
mod pages;
mod perf_data;
mod records;
mod trace_dat;
mod unpack;

use std::{
    collections::HashSet,
    io::{self, Read, Seek, SeekFrom},
};

pub use error::ForeignError;

use bytes::Source;
use event::{Event, Moment};
use records::Teller;

/// Most CPUs of Linux on any machine.
const CPUS_MAX: u32 = 8_192;

/// Most moments that are looked at to find out which tasks ran at the beginning.
const FIRST_LOOK: usize = 1 << 20;

/// A recording of another program that is being read as a trace: what it gives are the bytes of one.
pub struct Foreign<R> {
    moments: Moments<R>,
    teller: Teller,
    /// How much of what the teller has told was taken.
    taken: usize,
}

/// What happened, in order.
enum Moments<R> {
    TraceDat(trace_dat::TraceDat<R>),
    PerfData(perf_data::PerfData<R>),
}

/// The head of a recording, before its events.
struct About {
    nr_cpus: u32,
    /// A description of what was recorded.
    workload: String,
    /// Whether there are `sched_wakeup` and `sched_waking`.
    has_wakeup: bool,
    has_waking: bool,
}

/// Whether a file that begins so is a recording of another program. Ten bytes are enough to tell.
pub fn is_foreign(begin: &[u8]) -> bool {
    begin.starts_with(trace_dat::MAGIC) || perf_data::MAGICS.iter().any(|magic| begin.starts_with(magic))
}

impl<R: Read + Seek> Foreign<R> {
    /// Reads what stands before the events.
    ///
    /// # Errors
    /// When it is something else, is damaged, or lacks what is needed.
    pub fn open(mut source: R) -> Result<Self, ForeignError> {
        let len = source.seek(SeekFrom::End(0))?;
        let mut source = Source::new(source, len);
        let begin = source.read(0, len.min(trace_dat::MAGIC.len() as u64))?;
        let mut moments = if begin.starts_with(trace_dat::MAGIC) {
            Moments::TraceDat(trace_dat::TraceDat::open(source)?)
        } else if is_foreign(&begin) {
            Moments::PerfData(perf_data::PerfData::open(source)?)
        } else {
            return Err(ForeignError::Unknown);
        };
        let teller = Teller::new(moments.about()?, moments.running_first()?);
        moments.rewind()?;
        Ok(Self { moments, teller, taken: 0 })
    }
}

impl<R: Read + Seek> Moments<R> {
    fn about(&mut self) -> Result<About, ForeignError> {
        let about = match self {
            Self::TraceDat(file) => file.about(),
            Self::PerfData(file) => file.about(),
        };
        if !(1..=CPUS_MAX).contains(&about.nr_cpus) {
            return Err(ForeignError::Unusable(format!("it says that the machine has {} CPUs", about.nr_cpus)));
        }
        Ok(about)
    }

    fn next(&mut self) -> Result<Option<Moment>, ForeignError> {
        match self {
            Self::TraceDat(file) => file.next(),
            Self::PerfData(file) => file.next(),
        }
    }

    /// Begins anew.
    fn rewind(&mut self) -> Result<(), ForeignError> {
        match self {
            Self::TraceDat(file) => file.rewind(),
            Self::PerfData(file) => file.rewind(),
        }
    }

    /// The task that ran on each CPU before anything was recorded there: the one that its first
    /// switch takes off it, if that task was not seen to run elsewhere before.
    fn running_first(&mut self) -> Result<Vec<(u32, event::Task)>, ForeignError> {
        let nr_cpus = self.about()?.nr_cpus as usize;
        let (mut first, mut switched, mut known) = (Vec::new(), HashSet::new(), HashSet::new());
        for _ in 0..FIRST_LOOK {
            // An error is reported after the events before it.
            let Ok(Some(Moment { cpu, event, .. })) = self.next() else { break };
            match event {
                Event::Switch { prev, next, .. } => {
                    if switched.insert(cpu) && prev.pid != 0 && !known.contains(&prev.pid) {
                        first.push((cpu, prev));
                    }
                    known.extend([prev.pid, next.pid]);
                }
                Event::Fork { child, .. } => drop(known.insert(child)),
                _ => {}
            }
            if switched.len() == nr_cpus {
                break;
            }
        }
        Ok(first)
    }
}

impl<R: Read + Seek> Read for Foreign<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.teller.told.len() {
            self.teller.told.clear();
            self.taken = 0;
            match self.moments.next().map_err(io::Error::from)? {
                Some(moment) => self.teller.tell(&moment),
                None => return Ok(0),
            }
        }
        let len = buffer.len().min(self.teller.told.len() - self.taken);
        buffer[..len].copy_from_slice(&self.teller.told[self.taken..self.taken + len]);
        self.taken += len;
        Ok(len)
    }
}
