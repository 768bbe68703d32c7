//! Recordings in files.
//!
//! A file is written from the front to the back and nothing in it is changed afterwards, so that whatever ends the writing
//! leaves a file that is good up to there. Numbers are little-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0–7 | the text `EKIRECRD` |
//! | 8–11 | [`RECORDING_VERSION`] |
//! | 12–15 | length of the header, in bytes |
//! | 16–19 | checksum of bytes 8–15 and of the header |
//! | from 20 | the [`Header`] as JSON |
//! | after it | blocks |
//!
//! | bytes of a block | content |
//! | --- | --- |
//! | 0–3 | its kind |
//! | 4–7 | the CPU, of records |
//! | 8–15 | of records, the number of the first among all of its CPU; of a pass, a time; of an instance, its number |
//! | 16–19 | how many records |
//! | 20–23 | length of what follows, in bytes |
//! | 24–27 | checksum of what follows |
//! | 28–31 | checksum of bytes 0–27 |
//! | from 32 | records, compressed by zstd; of an instance, what it is, as JSON; of others, nothing |
//!
//! An instance whose name is empty is one that is not known. Number 0 stands for the one to which the calls before the first mark belong; where
//! that is told, all instances are, and calls of others are of no known policy. Without it, instances that are not told of are that of the header.
//!
//! Records of a CPU whose number is beyond the end of those before mark a gap: what lies between was lost. Blocks come in
//! passes: what one round through the CPUs found, and then the time up to which all of them were read. So a reader puts the
//! calls of all CPUs into the order of time while it holds no more than a pass.
//!
//! Bytes from a file are not trusted: [`RecordingReader`] is the only place that looks at its bytes, and answers with
//! entries or with the place where it went wrong.

mod read;
mod write;

use std::io;
use std::string::String;
use std::vec::Vec;

use ekiden::{Topology, TopologyError};
use serde::{Deserialize, Serialize};

pub use read::{Item, Recorded, RecordingReader};
pub use write::RecordingWriter;

use crate::RECORDING_VERSION;

/// Begins every recording.
const MAGIC: [u8; 8] = *b"EKIRECRD";
/// The version before this one, which is read, too.
const OLDEST_READ: u32 = RECORDING_VERSION - 1;
/// Bytes before the header.
const PREAMBLE_LEN: usize = 20;
/// Bytes before what is in a block.
const BLOCK_LEN: usize = 32;
/// Longest header that is believed: 8,192 CPUs take less than 1 MiB.
const HEADER_MAX: u32 = 16 << 20;
/// Most records of a block.
const BLOCK_RECORDS_MAX: usize = 1 << 14;
/// Most bytes of all blocks of a pass.
const PASS_MAX: u64 = 1 << 30;

const RECORDS: u32 = 1;
const PASS: u32 = 2;
const INSTANCE: u32 = 3;
const END: u32 = 4;

/// The number of the instance to which the calls before the first mark belong.
pub const BEFORE_MARKS: u64 = 0;

/// Where calls were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The simulator: there is one stream, and the times are its own.
    #[default]
    Simulator,
    /// A Linux kernel: there is a stream for each CPU, and the times are those of its monotonic clock.
    Kernel,
    /// A process that schedules a machine: there is one stream, and the times are those of the machine's monotonic clock.
    Agent,
}

/// A policy with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its name.
    pub policy: String,
    /// Its parameters, as they were given.
    #[serde(default)]
    pub params: String,
}

/// What a recording is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Where it was recorded.
    pub host: Host,
    /// The policy that was in charge when it began; of the newest calls, which are written down afterwards, the newest one.
    #[serde(flatten)]
    pub instance: Instance,
    /// How many tasks the policy had room for.
    pub max_tasks: u32,
    /// The machine, in the words of [`Topology::to_words`].
    pub topology: Vec<u32>,
    /// What ran: a load, or a command.
    #[serde(default)]
    pub workload: String,
    /// The release of the kernel; empty for the simulator.
    #[serde(default)]
    pub kernel: String,
    /// The host's clock when the recording began.
    #[serde(default)]
    pub start_ns: u64,
    /// The program that wrote it, with its version.
    #[serde(default)]
    pub writer: String,
}

impl Header {
    /// The machine.
    ///
    /// # Errors
    /// When the numbers make no machine: they came from a file.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        Topology::from_words(&self.topology)
    }
}

/// Why a recording cannot be written, or why bytes are none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// Not written by Ekiden.
    #[error(
        "this is no recording: it does not begin with EKIRECRD; give a file that `ekiden record` or `ekiden sim --record` wrote"
    )]
    Foreign,
    /// Another version of this program wrote it.
    #[error(
        "this recording has format {found}, and this program reads {OLDEST_READ} to {RECORDING_VERSION}: use the one that wrote it"
    )]
    Version {
        /// Version of the recording.
        found: u32,
    },
    /// The header cannot be read.
    #[error("the header of the recording is damaged: {why}; record it again")]
    Header {
        /// The mistake in it.
        why: String,
    },
    /// It ends before its end.
    #[error(
        "the recording is cut off at byte {at}: whoever wrote it was stopped, or the disk was full; what comes before can be used"
    )]
    CutOff {
        /// Where.
        at: u64,
    },
    /// Bytes have changed since it was written.
    #[error(
        "the recording is damaged at byte {at} ({what}): what comes before can be used, what comes after it is lost"
    )]
    Damaged {
        /// Where the block begins that is damaged.
        at: u64,
        /// The mistake in it.
        what: &'static str,
    },
    /// It cannot be read.
    #[error("cannot read the recording: {0}")]
    Read(#[source] io::Error),
    /// It cannot be written.
    #[error("cannot write the recording after byte {at}: {source}; what comes before can be used")]
    Write {
        /// How much of it is good.
        at: u64,
        /// Why.
        source: io::Error,
    },
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockHeader {
    kind: u32,
    cpu: u32,
    /// See the table above.
    number: u64,
    count: u32,
    len: u32,
    checksum: u32,
}

impl BlockHeader {
    fn to_bytes(self) -> [u8; BLOCK_LEN] {
        let mut bytes = [0; BLOCK_LEN];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.cpu.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The inverse, if the checksum is right.
    fn from_bytes(bytes: &[u8; BLOCK_LEN]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (crc32fast::hash(&bytes[..28]) == word(28)).then(|| Self {
            kind: word(0),
            cpu: word(4),
            number: u64::from(word(8)) | u64::from(word(12)) << 32,
            count: word(16),
            len: word(20),
            checksum: word(24),
        })
    }
}
