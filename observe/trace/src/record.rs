//! One thing that happened.

use std::{fmt, sync::LazyLock};

/// Bytes of a record.
pub const RECORD_LEN: usize = 24;

/// Kinds with this number or a larger one add to what the others say: a [`Reader`](crate::Reader) that does not know one passes its records over. Any
/// other kind has to be known, and a new one raises [`TRACE_VERSION`](crate::TRACE_VERSION).
pub const MAY_BE_PASSED_OVER: u16 = 0x8000;

/// The number of a record's kind.
#[inline]
pub(crate) fn kind_of(bytes: &[u8; RECORD_LEN]) -> u16 {
    u16::from_le_bytes([bytes[14], bytes[15]])
}

/// Declares [`What`] and the table of its values at once, so that none is forgotten.
macro_rules! what {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a record is about.
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum What {
            $($(#[$doc])* $name = $number,)*
        }

        impl What {
            /// All of them.
            pub const ALL: &'static [What] = &[$(What::$name),*];

            /// The printed name: in small letters.
            pub fn name(self) -> &'static str {
                static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
                    What::ALL.iter().map(|what| format!("{what:?}").to_lowercase()).collect()
                });
                // They are numbered from 1 without a gap, which a test checks.
                &NAMES[self as usize - 1]
            }

            /// What a number in a record stands for.
            #[inline]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

what! {
    /// A task exists from now on; the value is the PID of its parent.
    New = 1,
    /// A task is woken up; the value is the CPU of the waker, plus one, or 0 for a timer.
    Wake = 2,
    /// A task waits for this CPU; the value holds the flags of the event.
    Enqueue = 3,
    /// A task begins to run; the value is its slice in nanoseconds.
    Run = 4,
    /// The task that ran continues; the value is its new slice.
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
    /// The nice value of a task changes to the value, a signed number. A task that has none of these has 0.
    Nice = 15,
    /// The CPUs that a task may use change; the value is how many they are. [`What::Allowed`] follows.
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
    /// Something happened in a queue of hints: the value is a [`QueueNote`]. The PID is that of the program's first task, or 0, and
    /// the CPU the one where that is or was last.
    Queue = 22,
    /// The host could not run what the policy picked.
    Refuse = 23,
    /// The policy is taken out.
    Fault = 24,
    /// A task leaves the policy.
    Depart = 25,
    /// A task comes to the policy.
    Return = 26,
    /// A piece of a task's name: the field of the CPU numbers the pieces, the value is eight bytes of UTF-8. See
    /// [`names`].
    Name = 27,
    /// A piece of the set of CPUs that a task may use: the field of the CPU numbers the pieces, the value is 64 bits.
    /// A task that has none of these may use all. See [`masks`].
    Allowed = 28,
    /// A piece of the set of CPUs that were looked at in the decision that the next record is about, likewise; the PID
    /// is that of the task, or 0 for a CPU that looked for work.
    Considered = 29,
    /// A task that may not run now because its group has used up its CPU time waits for more.
    Throttle = 30,
    /// A task is in the group that the value numbers. A task that has none of these is in group 0, that of no group.
    Group = 31,
    /// A piece of a group's limit, where the field of the PID numbers the group: piece 0 is the CPU time in nanoseconds that
    /// its tasks have in a period, all CPUs together, and piece 1, which follows, the period. The field of the CPU numbers
    /// the pieces.
    Limit = 32,
    /// A call into the policy is over, on the CPU that was busy with it; the value is how long it took, in nanoseconds.
    /// The PID is that of the task that it was about, or 0.
    Call = 33,
    /// A lock is taken by this CPU; the value is its class: locks of one class guard the same thing in several places, and
    /// count as one. One that was only tried, and was free, is not noted.
    Lock = 34,
    /// A lock of the class in the value is released by this CPU.
    Unlock = 35,
    /// A policy is replaced by another version of itself: value 1 when the old one is asked no more, 0 when the new one is
    /// asked.
    Upgrade = 36,
    /// Records of this CPU, of about this time, were lost; the value is how many, or 0 if they were not counted.
    Lost = 37,
    /// The recording ends: what happened until here is recorded, even if nothing did since the record before. It is about no CPU
    /// and no task.
    End = 38,
    /// The policy has noted the value, in a call about this CPU and, if the PID is not 0, this task. [`What::NoteName`] has said what
    /// it is.
    Note = 39,
    /// A piece of the name of the note that follows: the field of the CPU numbers the pieces, the value is eight bytes of
    /// UTF-8. See [`noted`](crate::noted).
    NoteName = 40,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds since the trace began.
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
    /// The bytes of the record in a file.
    #[inline]
    pub fn to_bytes(self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[0..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..14].copy_from_slice(&(self.cpu as u16).to_le_bytes());
        bytes[14..16].copy_from_slice(&(self.what as u16).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Reads one; `None` if it is of no known kind.
    #[inline]
    pub fn from_bytes(bytes: &[u8; RECORD_LEN]) -> Option<Self> {
        let (time, rest) = bytes.split_first_chunk::<8>()?;
        let (pid, rest) = rest.split_first_chunk::<4>()?;
        let (cpu, rest) = rest.split_first_chunk::<2>()?;
        let (what, rest) = rest.split_first_chunk::<2>()?;
        Some(Self {
            time_ns: u64::from_le_bytes(*time),
            pid: u32::from_le_bytes(*pid),
            cpu: u16::from_le_bytes(*cpu).into(),
            what: What::from_number(u16::from_le_bytes(*what))?,
            value: u64::from_le_bytes(*rest.first_chunk()?),
        })
    }
}

/// One line for people: time in microseconds, CPU, what, PID.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, ns) = (self.time_ns / 1_000, self.time_ns % 1_000);
        write!(f, "{us:>10}.{ns:03} [{:>3}] {:<8}", self.cpu, self.what.name())?;
        if self.pid != 0 {
            write!(f, " pid {}", self.pid)?;
        }
        match self.what {
            What::Nice => write!(f, " to {}", self.value as i64),
            What::Migrate | What::Kick => write!(f, " from CPU {}", self.value),
            What::Run | What::Keep => write!(f, " for {} us", self.value / 1_000),
            What::New => write!(f, " parent {}", self.value),
            What::Call => write!(f, " took {} ns", self.value),
            What::Lost => write!(f, " {} records", self.value),
            What::Group | What::Limit | What::Lock | What::Unlock | What::Upgrade => write!(f, " {}", self.value),
            What::Allowed | What::Considered => write!(f, " {:016x}", self.value),
            What::Queue => QueueNote::from_value(self.value).map_or(Ok(()), |note| write!(f, " {note}")),
            What::Name | What::NoteName => {
                let bytes = self.value.to_le_bytes();
                write!(f, " {}", String::from_utf8_lossy(&bytes).trim_end_matches('\0'))
            }
            // Without its name the value of a note says nothing; see `NoteNames`.
            _ => Ok(()),
        }
    }
}

/// What [`What::Queue`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNote {
    /// The queue, as the policy knows it; 0 in traces of versions that did not say.
    pub queue: u32,
    /// What happened there.
    pub what: InQueue,
    /// How often, as far as it is counted.
    pub times: u32,
}

/// What happens in a queue of hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InQueue {
    /// A program has opened it.
    Opened = 1,
    /// The policy has heard hints.
    Heard = 2,
    /// It is closed.
    Closed = 3,
    /// Hints were no values of their type.
    Refused = 4,
    /// There was no room for hints.
    Full = 5,
    /// The policy has said something.
    Told = 6,
    /// There was no room for what it said.
    NotTold = 7,
}

impl QueueNote {
    /// The most that one note counts.
    const TIMES_MAX: u32 = (1 << 24) - 1;

    /// The value of a record.
    pub fn to_value(self) -> u64 {
        u64::from(self.queue) << 32 | u64::from(self.times.min(Self::TIMES_MAX)) << 8 | self.what as u64
    }

    /// Reads the value of a record; `None` if it is none.
    pub fn from_value(value: u64) -> Option<Self> {
        let what = match value as u8 {
            1 => InQueue::Opened,
            2 => InQueue::Heard,
            3 => InQueue::Closed,
            4 => InQueue::Refused,
            5 => InQueue::Full,
            6 => InQueue::Told,
            7 => InQueue::NotTold,
            _ => return None,
        };
        Some(Self { queue: (value >> 32) as u32, what, times: (value >> 8) as u32 & Self::TIMES_MAX })
    }
}

impl fmt::Display for QueueNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, what, times } = self;
        match what {
            InQueue::Opened => write!(f, "{queue} opened"),
            InQueue::Heard => write!(f, "{queue}: {times} hints"),
            InQueue::Closed => write!(f, "{queue} closed"),
            InQueue::Refused => write!(f, "{queue}: {times} hints refused"),
            InQueue::Full => write!(f, "{queue}: no room for {times} hints"),
            InQueue::Told => write!(f, "{queue}: {times} notices"),
            InQueue::NotTold => write!(f, "{queue}: no room for {times} notices"),
        }
    }
}

/// The values of [`What::Name`] for a name, in order.
pub fn names(name: &str) -> impl Iterator<Item = u64> {
    name.as_bytes().chunks(8).map(|chunk| {
        let mut piece = [0; 8];
        piece[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(piece)
    })
}

/// The values of [`What::Allowed`] and [`What::Considered`] for a set of CPUs on a machine of `nr_cpus`, in order.
pub fn masks(cpus: &ekiden::CpuMask, nr_cpus: u32) -> impl Iterator<Item = u64> {
    let words = cpus.as_words();
    (0..nr_cpus.div_ceil(64) as usize).map(move |word| words.get(word).copied().unwrap_or_default())
}

impl Record {
    /// Whether the field of the CPU numbers pieces.
    pub fn is_piece(&self) -> bool {
        matches!(self.what, What::Name | What::NoteName | What::Allowed | What::Considered | What::Limit)
    }

    /// The PID of the task that it is about, if it is about one: that of a limit is a group.
    pub fn task(&self) -> Option<u32> {
        Some(self.pid).filter(|pid| *pid != 0 && self.what != What::Limit)
    }

    /// How many records are missing where it says so: at least one, as not all are counted.
    pub fn lost(&self) -> u64 {
        if self.what == What::Lost { self.value.max(1) } else { 0 }
    }
}
