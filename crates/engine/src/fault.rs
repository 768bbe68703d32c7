//! What went wrong with a policy: mistakes, which are handed back, and the fault that ends it.

use alloc::string::String;
use core::fmt;

use ekiden::{Call, CpuId, RefusalReason};

/// How many mistakes a policy may make before it is taken out. Each is counted and named; so many are no accident.
pub const MISTAKES_ALLOWED: u32 = 64;

/// A mistake of a policy that the engine put right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MistakeKind {
    /// A token came back that cannot be honoured.
    Refused(RefusalReason),
    /// A good token was dropped: the task would never have run again.
    TokenLost,
    /// `migrate_task_rq` gave back another token than the one for the old CPU.
    WrongTokenReturned,
    /// `select_task_rq` named a CPU that does not exist or that the task may not use.
    BadCpu,
}

/// One mistake, with where it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// What was wrong.
    pub kind: MistakeKind,
    /// The call that made it.
    pub call: Call,
    /// The CPU that the call was about.
    pub cpu: CpuId,
    /// The PID of the task that it was about; 0 if there is none.
    pub pid: u32,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call.name();
        match self.kind {
            MistakeKind::Refused(reason) => {
                write!(f, "{call} gave back a token that is refused: {}", reason.describe())
            }
            MistakeKind::TokenLost => write!(f, "{call} lost a token; a new one was issued"),
            MistakeKind::WrongTokenReturned => write!(f, "{call} gave back the token of another task or CPU"),
            MistakeKind::BadCpu => write!(f, "{call} named a CPU that the task may not use"),
        }?;
        write!(f, " (PID {}, CPU {})", self.pid, self.cpu)
    }
}

/// Why a policy was taken out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What happened, for people; for a panic with file and line.
    pub message: String,
    /// The CPU on which it happened.
    pub cpu: CpuId,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (on CPU {})", self.message, self.cpu)
    }
}
