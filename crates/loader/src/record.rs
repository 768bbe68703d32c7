//! Records what the kernel's scheduler does, whichever scheduler that is, as a trace.
//!
//! BPF programs on tracepoints fill a ring (`kernel/bpf/record.bpf.c`), which somebody has to empty before it is full.
//! Tracepoints tell some things twice or too early; [`Recorder::stop`] puts that right, so that a trace of the kernel
//! keeps the same rules as one of the simulator.

use std::{collections::HashMap, fs, mem::MaybeUninit, path::Path, time::Duration};

use ekiden_trace::{Header, Host, RECORD_LEN, Record, Trace, What, names};
use libbpf_rs::{
    OpenObject, RingBufferBuilder,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    error::{LoadError, Result},
    session::bpf_error,
    skel::record::{RecordSkel, RecordSkelBuilder},
    sysfs,
};

/// The least memory for records that are not taken yet.
const RING_BYTES_MIN: u32 = 1 << 16;

/// The kernel's scheduler is being recorded, until this is dropped.
pub struct Recorder {
    skel: RecordSkel<'static>,
    begin: Vec<Record>,
    records: Vec<Record>,
}

/// What was recorded.
#[derive(Debug)]
pub struct Recording {
    /// What happened.
    pub trace: Trace,
    /// The time of the monotonic clock at which the trace's times begin.
    pub begin_ns: u64,
    /// Records that there was no room for: if there are any, the trace has holes.
    pub lost: u64,
}

impl Recorder {
    /// Begins to record. `ring_bytes` is the memory for what happens between two calls of [`Recorder::take`], 32 bytes a
    /// record, taken as the next power of two.
    ///
    /// # Errors
    /// Without privilege, and where the kernel does not take the programs.
    pub fn start(ring_bytes: u32) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LoadError::NotRoot);
        }
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RecordSkelBuilder::default().open(object).map_err(|error| bpf_error("open", &error))?;
        let bytes = ring_bytes.clamp(RING_BYTES_MIN, 1 << 30).next_power_of_two();
        open.maps.records.set_max_entries(bytes).map_err(|error| bpf_error("size", &error))?;
        let mut skel = open.load().map_err(|error| bpf_error("load", &error))?;
        let begin_ns = now_ns()?;
        skel.attach().map_err(|error| bpf_error("attach", &error))?;
        Ok(Self { skel, begin: present(begin_ns), records: Vec::new() })
    }

    /// Takes what has been recorded since the last time, to make room. Returns how much there is by now.
    ///
    /// # Errors
    /// When the ring cannot be read.
    pub fn take(&mut self) -> Result<usize> {
        let Self { skel, records, .. } = self;
        let mut builder = RingBufferBuilder::new();
        let keep = |bytes: &[u8]| {
            records.extend(bytes.first_chunk::<RECORD_LEN>().and_then(Record::from_bytes));
            0
        };
        builder.add(&skel.maps.records, keep).map_err(|error| bpf_error("read", &error))?;
        builder.build().and_then(|ring| ring.consume()).map_err(|error| bpf_error("read", &error))?;
        Ok(self.records.len())
    }

    /// Ends the recording. `workload` is what ran, for the trace's header.
    ///
    /// # Errors
    /// When the ring, or the machine's topology, cannot be read.
    pub fn stop(mut self, workload: &str) -> Result<Recording> {
        let policy = sysfs::scheduler();
        self.skel.links = Default::default();
        self.take()?;
        let topology = ekiden_machine::read_sysfs("/sys".as_ref())
            .map_err(|error| LoadError::Other(format!("cannot read the topology: {error}")))?;
        let header = Header { host: Host::Kernel, policy, workload: workload.to_owned(), ..Header::of(&topology) };
        let begin_ns = self.begin.first().map_or(0, |first| first.time_ns);
        let lost = self.skel.maps.bss_data.as_ref().map_or(0, |bss| bss.lost);
        let mut records = self.records;
        // Of two CPUs, one may have come later to the ring and earlier to the clock.
        records.sort_by_key(|record| record.time_ns);
        let mut trace = Trace::new(&header);
        for record in tidy(self.begin.into_iter().chain(records)) {
            trace.push(Record { time_ns: record.time_ns.saturating_sub(begin_ns), ..record });
        }
        Ok(Recording { trace, begin_ns, lost })
    }
}

/// Where a task is, as far as records tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It exists; nothing else is known.
    Somewhere,
    Away,
    Waiting,
    Running,
}

/// Leaves out what is told twice or too early, such as the wake-up of a task that has not left its CPU, and puts in what
/// was before the recording began.
fn tidy(records: impl Iterator<Item = Record>) -> Vec<Record> {
    let mut places: HashMap<u32, Place> = HashMap::new();
    let mut tidied = Vec::new();
    for record in records {
        let place = places.entry(record.pid).or_insert(Place::Somewhere);
        let waits = Record { what: What::Enqueue, value: 0, ..record };
        let is_wanted = match record.what {
            // Those that are present at the beginning may be anywhere.
            What::New => true,
            What::Wake => matches!(place, Place::Away | Place::Somewhere),
            What::Enqueue => {
                let comes = !matches!(place, Place::Running | Place::Waiting);
                if comes {
                    *place = Place::Waiting;
                }
                comes
            }
            What::Run => {
                if *place != Place::Waiting {
                    tidied.push(waits);
                }
                *place = Place::Running;
                true
            }
            What::Preempt | What::Block | What::Exit => {
                if *place != Place::Running {
                    tidied.extend([waits, Record { what: What::Run, ..waits }]);
                }
                *place = Place::Away;
                true
            }
            What::Migrate => u64::from(record.cpu) != record.value,
            _ => true,
        };
        if is_wanted {
            tidied.push(record);
        }
    }
    tidied
}

/// The threads that there are.
fn present(time_ns: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let numbered = |path: &Path| -> Vec<u32> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    for process in numbered("/proc".as_ref()) {
        let tasks = format!("/proc/{process}/task");
        for pid in numbered(tasks.as_ref()) {
            // It may have ended just now.
            let Ok(stat) = fs::read_to_string(format!("{tasks}/{pid}/stat")) else { continue };
            let (Some(from), Some(to)) = (stat.find('('), stat.rfind(')')) else { continue };
            let mut fields = stat[to + 1..].split_ascii_whitespace();
            let parent = fields.nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
            // Nice is field 19, and the next to come is 5.
            let nice: i64 = fields.nth(19 - 5).and_then(|field| field.parse().ok()).unwrap_or(0);
            let record = Record { time_ns, cpu: 0, what: What::New, pid, value: parent };
            records.push(record);
            let pieces = (0..).zip(names(&stat[from + 1..to]));
            records.extend(pieces.map(|(cpu, value)| Record { what: What::Name, cpu, value, ..record }));
            if nice != 0 {
                records.push(Record { what: What::Nice, value: nice as u64, ..record });
            }
        }
    }
    records
}

/// The clock that BPF's times are of.
fn now_ns() -> Result<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_err(|error| LoadError::Other(format!("cannot read the monotonic clock: {error}")))?;
    Ok(Duration::from(now).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, what: What) -> Record {
        Record { time_ns, cpu: 0, what, pid: 7, value: 0 }
    }

    fn tidied(whats: &[What]) -> Vec<What> {
        let records = whats.iter().zip(0..).map(|(what, time_ns)| record(time_ns, *what));
        tidy(records).iter().map(|record| record.what).collect()
    }

    #[test]
    fn a_wake_up_of_a_task_that_has_not_left_its_cpu_is_left_out() {
        use What::{Block, Enqueue, New, Run, Wake};
        assert_eq!(tidied(&[New, Enqueue, Run, Wake, Enqueue, Block]), [New, Enqueue, Run, Block]);
        // It comes while the task is on its way out; the task waits from when it is out.
        assert_eq!(tidied(&[New, Enqueue, Run, Wake, Block, Enqueue, Run]), [New, Enqueue, Run, Block, Enqueue, Run]);
    }

    #[test]
    fn what_a_task_did_before_the_recording_is_put_in() {
        use What::{Block, Enqueue, Preempt, Run};
        assert_eq!(tidied(&[Run, Block]), [Enqueue, Run, Block]);
        assert_eq!(tidied(&[Preempt, Enqueue, Run]), [Enqueue, Run, Preempt, Enqueue, Run]);
    }

    #[test]
    fn a_move_to_where_a_task_is_already_is_none() {
        let moves = [record(0, What::Migrate), Record { cpu: 1, ..record(1, What::Migrate) }];
        assert_eq!(tidy(moves.into_iter()), [Record { cpu: 1, ..record(1, What::Migrate) }]);
    }

    #[test]
    fn this_process_is_among_those_that_are_present() {
        let pid = std::process::id();
        let records = present(5);
        assert!(records.iter().any(|record| record.pid == pid && record.what == What::New && record.time_ns == 5));
        assert!(records.iter().any(|record| record.pid == pid && record.what == What::Name));
    }
}
