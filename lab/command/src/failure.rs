//! Exit codes: one for each thing that can be wrong, so that a script can tell.

use std::{io, process::ExitCode};

use anyhow::Error;
use ekiden_build::Error as BuildError;
use ekiden_loader::{LoadError, UserError};
use ekiden_vm::Error as VmError;
use serde::{Deserialize, Serialize};

/// What `--help` says at its end.
pub const AFTER_HELP: &str = "\
Examples:
  ekiden vm run wfq -- make -j2    a command under a policy, in a guest
  ekiden run wfq                   the same in the kernel of this machine
  ekiden upgrade fifo              another one takes over from it, live
  ekiden bench pipe --vm --check   figures, limits, verdicts
  ekiden new my-policy             a policy of your own
  ekiden doctor                    what this machine lacks, and how to get it

Exit codes: that of the command that was run, or
    1 something else                  2 the command line is wrong
  101 the policy was taken out      102 not root
  103 no sched_ext in this kernel   104 sched_ext is broken here
  105 modules need a signature      106 another sched_ext scheduler is loaded
  107 a policy runs already         108 module for another kernel
  109 module for another Ekiden     110 no such policy
  111 bad parameters                112 the mirror cannot be reached
  113 the disk is full              114 the virtual machine is down
  115 something must be installed   116 a limit was missed
  117 the policy does not compile   118 a promise was not kept, a replay differs
  119 no policy runs                120 the old policy keeps running
  126, 127 the command cannot be run
  128 + n ended by signal n";

/// What went wrong, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// Something else.
    Other = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The policy was taken out.
    TakenOut = 101,
    /// It takes root.
    NotRoot = 102,
    /// This kernel has no sched_ext.
    NoSchedExt = 103,
    /// This kernel has one that is broken.
    BrokenKernel = 104,
    /// Modules need a signature here.
    Signature = 105,
    /// Another sched_ext scheduler is loaded.
    OtherScheduler = 106,
    /// A policy runs already.
    Busy = 107,
    /// The module is for another kernel.
    OtherKernel = 108,
    /// The module is for another Ekiden.
    OtherInterface = 109,
    /// There is no such policy.
    NoPolicy = 110,
    /// The policy does not take these parameters.
    BadParameters = 111,
    /// The mirror cannot be reached.
    Network = 112,
    /// The disk is full.
    DiskFull = 113,
    /// The virtual machine is down.
    NoMachine = 114,
    /// Something must be installed.
    Missing = 115,
    /// A limit was missed.
    LimitMissed = 116,
    /// The policy does not compile.
    NoCompile = 117,
    /// A promise was not kept, or a replay differs.
    BrokenPromise = 118,
    /// No policy runs.
    NothingRuns = 119,
    /// The old policy keeps running.
    OldGoesOn = 120,
    /// The command cannot be run.
    CannotRun = 126,
    /// There is no such command.
    NotFound = 127,
}

/// An error of the command line's own.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// An error with its exit code; `message` ends with what to do next.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// The number for an error, found in whatever caused it.
    pub fn of(error: &Error) -> Self {
        if explain(error).contains("No space left on device") {
            return Self::DiskFull;
        }
        error
            .chain()
            .find_map(|cause| {
                let of_failure = cause.downcast_ref::<Failure>().map(|failure| failure.exit);
                let of_load = || cause.downcast_ref::<LoadError>().and_then(Self::of_load);
                let of_vm = || cause.downcast_ref::<VmError>().and_then(Self::of_vm);
                let of_build = || cause.downcast_ref::<BuildError>().and_then(Self::of_build);
                of_failure.or_else(of_load).or_else(of_vm).or_else(of_build)
            })
            .unwrap_or(Self::Other)
    }

    fn of_load(error: &LoadError) -> Option<Self> {
        Some(match error {
            LoadError::NotRoot | LoadError::NoCapability(_) | LoadError::NoMemoryLock(_) => Self::NotRoot,
            LoadError::NoSchedExt => Self::NoSchedExt,
            LoadError::WithoutBpf => Self::Missing,
            LoadError::OtherScheduler(_) => Self::OtherScheduler,
            LoadError::Busy(_) | LoadError::AgentRuns(_) => Self::Busy,
            LoadError::Signature { .. } => Self::Signature,
            LoadError::OtherKernel { .. } => Self::OtherKernel,
            LoadError::OtherInterface { .. } => Self::OtherInterface,
            LoadError::NoPolicy(..) | LoadError::NoModule(_) => Self::NoPolicy,
            LoadError::Refused(_) => Self::BadParameters,
            LoadError::TakenOut(_) | LoadError::TakenOutOfSeveral(_) => Self::TakenOut,
            LoadError::NothingRuns | LoadError::User(UserError::NothingRuns | UserError::NotLoaded) => {
                Self::NothingRuns
            }
            LoadError::CannotTakeOver(_) | LoadError::Interrupted => Self::OldGoesOn,
            LoadError::Io { source, .. } => return Self::of_io(source),
            _ => return None,
        })
    }

    fn of_vm(error: &VmError) -> Option<Self> {
        Some(match error {
            VmError::MissingProgram { .. } | VmError::NoGuest { .. } | VmError::Qemu { .. } | VmError::WithoutVm => {
                Self::Missing
            }
            VmError::Fetch { .. } | VmError::NoMirror => Self::Network,
            VmError::NoKernel { .. } => Self::BrokenKernel,
            VmError::Boot { .. } | VmError::Gone { .. } => Self::NoMachine,
            VmError::NeedRoot(_) => Self::NotRoot,
            VmError::Busy { .. } | VmError::Runs(_) => Self::Busy,
            VmError::File { source, .. } => return Self::of_io(source),
            _ => return None,
        })
    }

    fn of_build(error: &BuildError) -> Option<Self> {
        Some(match error {
            BuildError::MissingProgram(_)
            | BuildError::NoLibrarySources { .. }
            | BuildError::NoLinker(_)
            | BuildError::NoHeaders { .. }
            | BuildError::NoCheckout(_)
            | BuildError::Install(_) => Self::Missing,
            BuildError::NoPolicy { .. } | BuildError::NoProject { .. } => Self::NoPolicy,
            BuildError::Compile { .. }
            | BuildError::CompileProject { .. }
            | BuildError::Unfit { .. }
            | BuildError::Unsafe { .. }
            | BuildError::RunsAsRoot { .. }
            | BuildError::Fuel { .. }
            | BuildError::Warnings { .. }
            | BuildError::Kbuild { .. } => Self::NoCompile,
            BuildError::Vm(error) => return Self::of_vm(error),
            BuildError::File { source, .. } => return Self::of_io(source),
            _ => return None,
        })
    }

    fn of_io(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::StorageFull => Some(Self::DiskFull),
            io::ErrorKind::PermissionDenied => Some(Self::NotRoot),
            _ => None,
        }
    }
}

/// All that an error says, without what it says twice: many of our messages contain their cause already.
pub fn explain(error: &Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// Ends the program without a word when its output is not read any more, as in `ekiden … | head`: the standard
/// library panics then.
pub fn end_quietly_without_a_reader() {
    /// What a shell says of a program that SIGPIPE ended.
    const BROKEN_PIPE: i32 = 128 + 13;
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if message.starts_with("failed printing to") && message.contains("Broken pipe") {
            std::process::exit(BROKEN_PIPE);
        }
        others(info);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_said_once() {
        let inner = io::Error::other("no such thing");
        let error = LoadError::Io { what: "cannot read it".into(), source: inner };
        let error = Err::<(), _>(error).context("while looking").unwrap_err();
        assert_eq!(explain(&error), "while looking: cannot read it: no such thing");
    }

    #[test]
    fn each_error_of_the_loader_has_a_code_of_its_own() {
        let code = |error: LoadError| Exit::of(&error.into());
        assert_eq!(code(LoadError::NotRoot), Exit::NotRoot);
        assert_eq!(code(LoadError::NoSchedExt), Exit::NoSchedExt);
        assert_eq!(code(LoadError::OtherScheduler("scx".into())), Exit::OtherScheduler);
        assert_eq!(code(LoadError::Busy("fifo".into())), Exit::Busy);
        assert_eq!(code(LoadError::Refused("x".into())), Exit::BadParameters);
        assert_eq!(code(LoadError::Other("x".into())), Exit::Other);
    }

    #[test]
    fn a_full_disk_is_found_in_whatever_was_attempted() {
        let full = io::Error::from_raw_os_error(28);
        let error = VmError::File { what: "write", path: "/x".into(), source: full };
        assert_eq!(Exit::of(&error.into()), Exit::DiskFull);
        let apt = VmError::Fetch { mirror: "m".into(), output: "write: No space left on device".into() };
        assert_eq!(Exit::of(&apt.into()), Exit::DiskFull);
    }

    #[test]
    fn the_codes_in_the_help_are_those_that_are_used() {
        for exit in [Exit::TakenOut, Exit::NotRoot, Exit::DiskFull, Exit::LimitMissed, Exit::NoCompile] {
            assert!(AFTER_HELP.contains(&format!("{} ", exit as u8)), "{exit:?}");
        }
    }
}
