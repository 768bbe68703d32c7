//! What can go wrong on the way into the kernel, and what to do then.

use std::{io, path::PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, LoadError>;

/// What changes or records schedulers is for root.
///
/// # Errors
/// [`LoadError::NotRoot`] for any other user.
pub fn needs_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(LoadError::NotRoot) }
}

/// Why a policy is not in the kernel. The machine is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Modules and BPF need root.
    #[error("this needs root; run it with sudo")]
    NotRoot,
    /// The feature `bpf` was left out, which is for machines without clang, libelf and zlib.
    #[error("this Ekiden was built without BPF, for want of clang, libelf or zlib; `make prepare` installs them")]
    WithoutBpf,
    /// The kernel has no sched_ext.
    #[error(
        "this kernel has no sched_ext; boot one with CONFIG_SCHED_CLASS_EXT (6.16 or newer), or use `ekiden vm run`"
    )]
    NoSchedExt,
    /// What loads BPF programs needs capabilities.
    #[error("this process lacks {0}, without which the kernel takes no program from it; run it with sudo")]
    NoCapability(String),
    /// The agent's memory has to stay where it is.
    #[error("the agent's memory cannot be locked: {0}; raise the limit (`ulimit -l unlimited`), or run it with sudo")]
    NoMemoryLock(io::Error),
    /// A policy writes down more of itself than it may.
    #[error(
        "there is no room for what the policy saves: 64 KiB, and 64 bytes for each task; with --start-over the new one begins anew"
    )]
    NoRoomToSave,
    /// One at a time.
    #[error(
        "an agent schedules this machine already ({0}); stop that `ekiden agent` first, or have a policy in the kernel take over: `ekiden upgrade POLICY --to kernel`"
    )]
    AgentRuns(String),
    /// The kernel does not describe its types.
    #[error("this kernel has no BTF (/sys/kernel/btf/vmlinux); boot one with CONFIG_DEBUG_INFO_BTF")]
    NoBtf,
    /// The kernel did not take a program that watches it.
    #[error("cannot {step} the BPF program that watches the kernel: {message}; `ekiden doctor` says what is missing")]
    Watch {
        /// What failed.
        step: &'static str,
        /// The kernel's answer.
        message: String,
    },
    /// Another sched_ext scheduler runs.
    #[error("the sched_ext scheduler {0:?} is loaded already; stop it first")]
    OtherScheduler(String),
    /// Another session of ours runs.
    #[error("a policy runs already ({0}); stop that `ekiden run` first")]
    Busy(String),
    /// The kernel does not take modules without a signature.
    #[error(
        "the kernel refuses unsigned modules ({reason}); sign {module} with a key that it trusts, or use `ekiden vm run`"
    )]
    Signature {
        /// What says so.
        reason: String,
        /// The module.
        module: PathBuf,
    },
    /// A module file is missing.
    #[error("{0} does not exist; `ekiden build` makes it")]
    NoModule(PathBuf),
    /// A module is for another kernel.
    #[error("{module} was built for kernel {built}, this is {running}; build it again with `ekiden build`")]
    OtherKernel {
        /// The module.
        module: PathBuf,
        /// The release in its version magic.
        built: String,
        /// What runs here.
        running: String,
    },
    /// A module is for another version of the interface.
    #[error("{module} was built for interface {built} of Ekiden, this is {ours}; build it again with `ekiden build`")]
    OtherInterface {
        /// The module.
        module: PathBuf,
        /// What it was built for.
        built: String,
        /// What this program speaks.
        ours: u32,
    },
    /// A file is no module.
    #[error("{0} is not a kernel module")]
    NotAModule(PathBuf),
    /// The kernel did not take a module.
    #[error("cannot load {module}: {source}; `dmesg | tail` says more")]
    Module {
        /// The module.
        module: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The module is there, but does not know the policy.
    #[error("no policy {0:?} is loaded; loaded are: {1}")]
    NoPolicy(String, String),
    /// The policy does not take its parameters, or panicked when it was made.
    #[error("the policy refuses to start: {0}")]
    Refused(String),
    /// All policy slots are taken.
    #[error("there are as many policies as there can be at once; remove one first (`ekiden status` lists them)")]
    NoPolicySlot,
    /// The arena does not fit.
    #[error("there is no memory for an arena of {mib} MiB; ask for a smaller one with --arena-mib")]
    NoMemory {
        /// How much was asked for.
        mib: u64,
    },
    /// No such policy runs.
    #[error("no policy {0:?} runs; running are: {1}")]
    NotRunning(String, String),
    /// The scheduler that runs is not one that others can join.
    #[error("the policies that run cannot be joined: {0}")]
    CannotJoin(String),
    /// No policy can be chosen for a thread, or nothing be asked.
    #[error(transparent)]
    User(#[from] ekiden_user::Error),
    /// A choice for no thread.
    #[error("there is no such thread; nothing was changed")]
    Nobody,
    /// New threads come all the time.
    #[error(
        "{count} threads have it now, and others came faster than they could be looked at; run the same again, or choose for the \
         process that starts them: its children inherit it"
    )]
    Restless {
        /// For how many it was chosen.
        count: usize,
    },
    /// There is nothing to take over from, or to record.
    #[error("no policy runs; start one with `ekiden run`")]
    NothingRuns,
    /// A signal came before every CPU had answered.
    #[error(
        "interrupted before every CPU had answered; nothing was changed: `ekiden status` names a CPU that was late"
    )]
    Interrupted,
    /// The successor cannot be made, or cannot take over the state.
    #[error("it cannot take over: {0}; the old policy goes on")]
    CannotTakeOver(String),
    /// The policy was taken out while it ran. The kernel's own scheduler runs everything again.
    #[error("the policy was taken out, and the kernel's own scheduler is back: {0}")]
    TakenOut(String),
    /// The policy was taken out while it ran. Others go on, and have its tasks.
    #[error("the policy was taken out, and the others have its tasks: {0}")]
    TakenOutOfSeveral(String),
    /// The kernel did not take the BPF program.
    #[error("the kernel does not take the scheduler: {message}{log}")]
    Bpf {
        /// What failed.
        message: String,
        /// The verifier's words, on lines of their own.
        log: String,
    },
    /// Something with a file.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Something that should not happen.
    #[error("{0}")]
    Other(String),
}

/// Says what was attempted.
pub(crate) trait Context<T> {
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| LoadError::Io { what: what.into(), source: source.into() })
    }
}
