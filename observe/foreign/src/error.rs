//! Why a recording cannot be read.

use std::io;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// Neither of trace-cmd nor of perf.
    #[error("this is neither a trace.dat of trace-cmd nor a perf.data of perf: give the file that one of them wrote")]
    Unknown,
    /// Its version is not read.
    #[error("this trace.dat has version {found}, and 6 and 7 can be read: convert it with `trace-cmd convert`")]
    Version {
        /// The version.
        found: String,
    },
    /// Cut off, or damaged.
    #[error("the recording is damaged or cut off at byte {at}: record it again")]
    Damaged {
        /// Where.
        at: u64,
    },
    /// What it holds is not what is needed.
    #[error("the recording cannot be used: {0}")]
    Unusable(String),
    /// It cannot be read.
    #[error("cannot read the recording: {0}")]
    Io(#[from] io::Error),
}

impl From<ForeignError> for io::Error {
    fn from(error: ForeignError) -> Self {
        match error {
            ForeignError::Io(error) => error,
            error => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}
