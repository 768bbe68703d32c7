//! What happened in a simulation, moment by moment.
//!
//! A trace is a header of 24 bytes and then records of 24 bytes, all numbers little-endian:
//!
//! | bytes | header | record |
//! | --- | --- | --- |
//! | 0–7 | the text `EKIDSIM` and a zero | time in nanoseconds |
//! | 8–11 | [`TRACE_VERSION`] | PID, 0 for none |
//! | 12–15 | number of CPUs | CPU, two bytes; [`What`], two bytes |
//! | 16–23 | seed | depends on [`What`] |

use std::fmt;
use std::io::{self, Write};

/// Version of the format.
pub const TRACE_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"EKIDSIM\0";
const RECORD_LEN: usize = 24;

/// What a record is about.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A task exists from now on; the value is the PID of its parent.
    New = 1,
    /// A task is woken up; the value is the CPU of the one who does it, plus one, or 0 for a timer.
    Wake = 2,
    /// A task waits for this CPU; the value holds the flags of the event.
    Enqueue = 3,
    /// A task begins to run; the value is its slice in nanoseconds.
    Run = 4,
    /// The task that ran goes on; the value is its new slice.
    Keep = 5,
    /// A task lost the CPU.
    Preempt = 6,
    /// A task sleeps.
    Block = 7,
    /// A task gives way.
    Yield = 8,
    /// A task is gone.
    Exit = 9,
    /// The CPU found nothing to run.
    Idle = 10,
    /// A task moves to this CPU; the value is the one it comes from.
    Migrate = 11,
    /// The tick found the task running.
    Tick = 12,
    /// The CPU was asked to look for work; the value is the CPU of the event that did.
    Kick = 13,
    /// The policy's timer went off.
    Timer = 14,
    /// The nice value of a task changes to the value, a signed number.
    Nice = 15,
    /// The CPUs that a task may use change; the value is how many they are.
    Affinity = 16,
    /// A task passes a mark.
    Mark = 17,
    /// A task reached the end of its program.
    Finish = 18,
    /// The CPU joins.
    Online = 19,
    /// The CPU leaves.
    Offline = 20,
    /// A hint was given; the value is 1 if the policy took it.
    Hint = 21,
    /// A queue of hints was opened (value 1), had hints (2) or was closed (3).
    Queue = 22,
    /// The host could not run what the policy picked.
    Refuse = 23,
    /// The policy is taken out.
    Fault = 24,
    /// A task leaves the policy.
    Depart = 25,
    /// A task comes to the policy.
    Return = 26,
}

impl What {
    const ALL: [What; 26] = [
        What::New,
        What::Wake,
        What::Enqueue,
        What::Run,
        What::Keep,
        What::Preempt,
        What::Block,
        What::Yield,
        What::Exit,
        What::Idle,
        What::Migrate,
        What::Tick,
        What::Kick,
        What::Timer,
        What::Nice,
        What::Affinity,
        What::Mark,
        What::Finish,
        What::Online,
        What::Offline,
        What::Hint,
        What::Queue,
        What::Refuse,
        What::Fault,
        What::Depart,
        What::Return,
    ];

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// What.
    pub what: What,
    /// The PID of the task, or 0.
    pub pid: u32,
    /// More about it.
    pub value: u64,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[0..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..14].copy_from_slice(&(self.cpu as u16).to_le_bytes());
        bytes[14..16].copy_from_slice(&(self.what as u16).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_LEN]) -> Option<Self> {
        Some(Self {
            time_ns: u64_at(bytes, 0),
            pid: u32_at(bytes, 8),
            cpu: u32::from(u16::from_le_bytes([bytes[12], bytes[13]])),
            what: What::from_number(u16::from_le_bytes([bytes[14], bytes[15]]))?,
            value: u64_at(bytes, 16),
        })
    }
}

/// One line for people: time in microseconds, CPU, what, PID.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, ns) = (self.time_ns / 1_000, self.time_ns % 1_000);
        write!(f, "{us:>10}.{ns:03} [{:>3}] {:<8}", self.cpu, format!("{:?}", self.what).to_lowercase())?;
        if self.pid != 0 {
            write!(f, " pid {}", self.pid)?;
        }
        match self.what {
            What::Nice => write!(f, " to {}", self.value as i64),
            What::Migrate | What::Kick => write!(f, " from CPU {}", self.value),
            What::Run | What::Keep => write!(f, " for {} us", self.value / 1_000),
            What::New => write!(f, " parent {}", self.value),
            _ => Ok(()),
        }
    }
}

/// Why bytes are no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// Not written by the simulator.
    #[error("this is not a trace of the simulator: it does not begin with EKIDSIM; give the file that it wrote")]
    Foreign,
    /// Of another version of this program.
    #[error("this trace has format {found}, and this program reads {TRACE_VERSION}: use the one that wrote it")]
    Version {
        /// Version of the trace.
        found: u32,
    },
    /// Cut off, or damaged.
    #[error("the trace is damaged at byte {at}: record it again")]
    Damaged {
        /// Where.
        at: usize,
    },
}

/// A trace in memory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trace {
    bytes: Vec<u8>,
}

/// Short, because a trace is not.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a trace of {} bytes, digest {:016x}", self.bytes.len(), self.digest())
    }
}

impl Trace {
    /// A trace that was written to a file.
    ///
    /// # Errors
    /// When the bytes are something else, of another version, or damaged; with the place.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, TraceError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(TraceError::Foreign);
        }
        let trace = Self { bytes };
        if trace.bytes.len() < RECORD_LEN {
            return Err(TraceError::Damaged { at: trace.bytes.len() });
        }
        match u32_at(&trace.bytes, 8) {
            TRACE_VERSION => {}
            found => return Err(TraceError::Version { found }),
        }
        let good = trace.records().count();
        let at = (1 + good) * RECORD_LEN;
        if at == trace.bytes.len() { Ok(trace) } else { Err(TraceError::Damaged { at }) }
    }

    /// The trace as it is written to a file; empty if nothing was traced.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What happened, in order.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let records = self.bytes.get(RECORD_LEN..).unwrap_or(&[]);
        records.chunks_exact(RECORD_LEN).map_while(|bytes| Record::from_bytes(bytes.try_into().ok()?))
    }

    /// A number that two traces share only if they are the same, for all practical purposes: FNV-1a of 64 bits.
    pub fn digest(&self) -> u64 {
        self.bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Where records go.
pub(crate) enum Sink {
    Nowhere,
    Memory(Vec<u8>),
    /// The first error is kept, and ends the writing.
    Writer(Box<dyn Write>, io::Result<()>),
}

impl Sink {
    pub(crate) fn begin(&mut self, nr_cpus: u32, seed: u64) {
        let mut header = [0; RECORD_LEN];
        header[0..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&TRACE_VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&nr_cpus.to_le_bytes());
        header[16..24].copy_from_slice(&seed.to_le_bytes());
        self.write(header);
    }

    #[inline]
    pub(crate) fn put(&mut self, record: Record) {
        if !matches!(self, Self::Nowhere) {
            self.write(record.to_bytes());
        }
    }

    fn write(&mut self, bytes: [u8; RECORD_LEN]) {
        match self {
            Self::Nowhere => {}
            Self::Memory(memory) => memory.extend_from_slice(&bytes),
            Self::Writer(writer, result) => {
                if result.is_ok() {
                    *result = writer.write_all(&bytes);
                }
            }
        }
    }

    /// The trace, if it was kept in memory.
    pub(crate) fn end(self) -> io::Result<Trace> {
        match self {
            Self::Nowhere => Ok(Trace::default()),
            Self::Memory(bytes) => Ok(Trace { bytes }),
            Self::Writer(mut writer, result) => {
                result?;
                writer.flush()?;
                Ok(Trace::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let mut sink = Sink::Memory(Vec::new());
        sink.begin(2, 7);
        for (time_ns, what) in (0..).zip(What::ALL) {
            sink.put(Record { time_ns, cpu: 300, what, pid: 70_000, value: u64::MAX - time_ns });
        }
        sink.end().unwrap()
    }

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let trace = Trace::from_bytes(trace().as_bytes().to_vec()).unwrap();
        for (record, (time_ns, what)) in trace.records().zip((0..).zip(What::ALL)) {
            assert_eq!(record, Record { time_ns, cpu: 300, what, pid: 70_000, value: u64::MAX - time_ns });
        }
        assert_eq!(trace.records().count(), What::ALL.len());
    }

    #[test]
    fn foreign_and_damaged_bytes_are_refused_with_their_place() {
        let good = trace().as_bytes().to_vec();
        assert_eq!(Trace::from_bytes(b"something else".to_vec()), Err(TraceError::Foreign));
        assert_eq!(Trace::from_bytes(good[..10].to_vec()), Err(TraceError::Damaged { at: 10 }));
        let cut_off = good[..good.len() - 1].to_vec();
        assert_eq!(Trace::from_bytes(cut_off), Err(TraceError::Damaged { at: good.len() - RECORD_LEN }));
        let mut unknown = good.clone();
        unknown[RECORD_LEN + 14] = 99;
        assert_eq!(Trace::from_bytes(unknown), Err(TraceError::Damaged { at: RECORD_LEN }));
        let mut newer = good;
        newer[8] = 77;
        assert_eq!(Trace::from_bytes(newer), Err(TraceError::Version { found: 77 }));
    }

    #[test]
    fn a_full_disk_is_an_error_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Sink::Writer(Box::new(Full), Ok(()));
        sink.begin(1, 0);
        assert_eq!(sink.end().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
