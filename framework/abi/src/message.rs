//! One call of the `Scheduler` trait as data: what goes in and what comes out.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Kicks, RawToken, TaskId};

/// The calls of the `Scheduler` trait, by the names of papers/000, table 1, and of papers/001, table I.
///
/// ```
/// use ekiden_abi::Call;
///
/// assert_eq!((Call::TaskTick.name(), Call::from_number(9)), ("task_tick", Some(Call::TaskTick)));
/// assert!(Call::ALL.iter().all(|call| Call::from_number(*call as u32) == Some(*call)));
/// ```
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is documented once, at the trait method of the same name")]
pub enum Call {
    PickNextTask = 0,
    PntErr = 1,
    TaskNew = 2,
    TaskWakeup = 3,
    TaskPreempt = 4,
    TaskYield = 5,
    TaskBlocked = 6,
    TaskDead = 7,
    TaskDeparted = 8,
    TaskTick = 9,
    TaskAffinityChanged = 10,
    TaskPrioChanged = 11,
    SelectTaskRq = 12,
    MigrateTaskRq = 13,
    Balance = 14,
    BalanceErr = 15,
    RegisterQueue = 16,
    EnterQueue = 17,
    UnregisterQueue = 18,
    ParseHint = 19,
    ReregisterPrep = 20,
    ReregisterInit = 21,
    EnterIdle = 22,
    ExitIdle = 23,
    CpuOnline = 24,
    CpuOffline = 25,
    Timer = 26,
    TaskParams = 27,
}

impl Call {
    /// Every call, in the order of their numbers.
    pub const ALL: [Call; 28] = [
        Call::PickNextTask,
        Call::PntErr,
        Call::TaskNew,
        Call::TaskWakeup,
        Call::TaskPreempt,
        Call::TaskYield,
        Call::TaskBlocked,
        Call::TaskDead,
        Call::TaskDeparted,
        Call::TaskTick,
        Call::TaskAffinityChanged,
        Call::TaskPrioChanged,
        Call::SelectTaskRq,
        Call::MigrateTaskRq,
        Call::Balance,
        Call::BalanceErr,
        Call::RegisterQueue,
        Call::EnterQueue,
        Call::UnregisterQueue,
        Call::ParseHint,
        Call::ReregisterPrep,
        Call::ReregisterInit,
        Call::EnterIdle,
        Call::ExitIdle,
        Call::CpuOnline,
        Call::CpuOffline,
        Call::Timer,
        Call::TaskParams,
    ];

    /// The call with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The name of the trait method.
    pub const fn name(self) -> &'static str {
        match self {
            Call::PickNextTask => "pick_next_task",
            Call::PntErr => "pnt_err",
            Call::TaskNew => "task_new",
            Call::TaskWakeup => "task_wakeup",
            Call::TaskPreempt => "task_preempt",
            Call::TaskYield => "task_yield",
            Call::TaskBlocked => "task_blocked",
            Call::TaskDead => "task_dead",
            Call::TaskDeparted => "task_departed",
            Call::TaskTick => "task_tick",
            Call::TaskAffinityChanged => "task_affinity_changed",
            Call::TaskPrioChanged => "task_prio_changed",
            Call::SelectTaskRq => "select_task_rq",
            Call::MigrateTaskRq => "migrate_task_rq",
            Call::Balance => "balance",
            Call::BalanceErr => "balance_err",
            Call::RegisterQueue => "register_queue",
            Call::EnterQueue => "enter_queue",
            Call::UnregisterQueue => "unregister_queue",
            Call::ParseHint => "parse_hint",
            Call::ReregisterPrep => "reregister_prep",
            Call::ReregisterInit => "reregister_init",
            Call::EnterIdle => "enter_idle",
            Call::ExitIdle => "exit_idle",
            Call::CpuOnline => "cpu_online",
            Call::CpuOffline => "cpu_offline",
            Call::Timer => "timer",
            Call::TaskParams => "task_params",
        }
    }
}

/// A set of calls: those that a policy implements itself. The engine and the host skip the others, which is why a
/// policy that does not look at ticks does not pay for them.
///
/// ```
/// use ekiden_abi::{Call, Calls};
///
/// let calls = Calls::NONE.with(Call::Balance).with(Call::Timer);
/// assert!(calls.has(Call::Timer) && !calls.has(Call::TaskTick));
/// assert!(calls.has_number(Call::Balance as u32));
/// assert!(calls.and(Calls::NONE.with(Call::TaskTick)).has(Call::TaskTick));
/// ```
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls(pub u64);

impl Calls {
    /// Every call.
    pub const ALL: Self = Self(u64::MAX);
    /// No call.
    pub const NONE: Self = Self(0);
    /// The calls that bytes come with, be it none.
    pub const WITH_PAYLOAD: Self = Self::NONE.with(Call::ParseHint).with(Call::EnterQueue).with(Call::TaskParams);

    /// The set with `call` added.
    pub const fn with(self, call: Call) -> Self {
        Self(self.0 | 1 << call as u32)
    }

    /// The set with those of `others` added.
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether `call` is in the set.
    pub const fn has(self, call: Call) -> bool {
        self.has_number(call as u32)
    }

    /// Whether the call with this number is in the set.
    #[inline]
    pub const fn has_number(self, call: u32) -> bool {
        call < 64 && self.0 >> call & 1 != 0
    }
}

/// "No CPU" in [`Reply::cpu`].
pub const NO_CPU: u32 = u32::MAX;

/// In [`Message::flags`] of `pick_next_task`: if there is nothing to pick, `balance` is asked in the same message, and
/// its wish is in [`Reply::task`]. A CPU that goes idle would otherwise take two messages every time.
pub const BALANCE_TOO: u32 = 1;

/// In the same place: only tokens for the CPU of the call are good, none can be claimed for it.
pub const NO_CLAIMS: u32 = 2;

/// In [`Message::flags`] of a call that brings a token: the task was woken for an idle CPU, which is asked next. No other one needs to
/// be kicked for it.
pub const FOR_IDLE: u32 = 1 << 31;

/// Why a token that came back from a policy was not honoured.
///
/// ```
/// use ekiden_abi::RefusalReason;
///
/// // It still waits, and its policy has to keep the token.
/// assert!(RefusalReason::Busy.token_is_good());
/// assert!(!RefusalReason::Gone.token_is_good());
/// assert_eq!(RefusalReason::from_number(2).describe(), "a newer token was issued since");
/// ```
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The token is for another CPU.
    WrongCpu = 1,
    /// A newer token was issued for the task since.
    Stale = 2,
    /// The task does not exist any more.
    Gone = 3,
    /// The task may not run on that CPU.
    NotAllowed = 4,
    /// The task is still leaving the CPU that it ran on.
    Busy = 5,
    /// The task is not waiting for a CPU.
    NotReady = 6,
}

impl RefusalReason {
    /// The reason with this number; an unknown one reads as [`RefusalReason::Gone`].
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::WrongCpu,
            2 => Self::Stale,
            4 => Self::NotAllowed,
            5 => Self::Busy,
            6 => Self::NotReady,
            _ => Self::Gone,
        }
    }

    /// Whether the token is as good as before: its task still waits, and the policy has to keep it.
    pub const fn token_is_good(self) -> bool {
        matches!(self, Self::WrongCpu | Self::NotAllowed | Self::Busy)
    }

    /// The reason in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::WrongCpu => "the token is for another CPU; claim it for this one before it is picked",
            Self::Stale => "a newer token was issued since",
            Self::Gone => "the task is gone",
            Self::NotAllowed => "the task may not run there",
            Self::Busy => "the task is still leaving its CPU",
            Self::NotReady => "the task is not waiting for a CPU",
        }
    }
}

/// One call into a policy.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct Message {
    /// A [`Call`].
    pub call: u32,
    /// The CPU that the call is about.
    pub cpu: u32,
    /// The task that the call is about, or [`TaskId::NONE`].
    pub task: TaskId,
    /// The CPU of the token that moves into the policy, if one does.
    pub token_cpu: u32,
    /// The serial number of that token; 0 if none moves.
    pub token_serial: u32,
    /// CPU time that the task has used in its life, in nanoseconds.
    pub runtime_ns: u64,
    /// The task's weight; 1024 is nice 0.
    pub weight: u32,
    /// The task's nice value.
    pub nice: i32,
    /// The PID of the task, for people; it is not an index into anything.
    pub pid: u32,
    /// A [`RefusalReason`] for `pnt_err` and `balance_err`, wake-up flags for `select_task_rq`, [`BALANCE_TOO`] and
    /// [`NO_CLAIMS`] for `pick_next_task`, [`FOR_IDLE`].
    pub flags: u32,
    /// Depends on the call: the host's own choice for `select_task_rq`; a queue's number, and for `register_queue` in the
    /// upper half the PID of the process that has opened it.
    pub arg: u64,
}

impl Message {
    /// A call about a CPU and no task.
    #[inline]
    pub fn about_cpu(call: Call, cpu: u32) -> Self {
        Self { call: call as u32, cpu, ..Self::default() }
    }

    /// The token that moves into the policy; [`RawToken::NONE`] if none does.
    #[inline]
    pub fn token(&self) -> RawToken {
        RawToken { task: self.task, cpu: self.token_cpu, serial: self.token_serial }
    }

    /// Adds a token of the task that the call is about.
    #[inline]
    pub fn with_token(mut self, token: RawToken) -> Self {
        self.token_cpu = token.cpu;
        self.token_serial = token.serial;
        self
    }
}

/// What a policy answers.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The token that the policy hands over, if it does.
    pub token: RawToken,
    /// A token that the policy dropped during the call, if it did. Judged by the engine.
    pub dropped: RawToken,
    /// The task that `balance` wants moved.
    pub task: TaskId,
    /// How long the picked task may run, in nanoseconds; 0 leaves it to the host.
    pub slice_ns: u64,
    /// Arm a timer on this CPU that many nanoseconds from now; 0 arms none.
    pub timer_ns: u64,
    /// CPUs that are to look for work again.
    pub kicks: Kicks,
    /// The answer of `select_task_rq`; [`NO_CPU`] for a hint that was not taken; how many hints of a queue were none, if any.
    pub cpu: u32,
    /// Keeps the size a multiple of eight.
    pub reserved: u32,
}

impl Reply {
    /// Whether there is more than an answer: a wish, or a token that was dropped. The common case is that all three are 0.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.kicks.to_bits() | self.timer_ns | u64::from(self.dropped.serial) != 0
    }

    /// Instead of an answer: the policy has panicked, or could not be got to answer. Only hosts say so.
    pub fn faulted() -> Self {
        Self { dropped: RawToken { task: TaskId::NONE, cpu: NO_CPU, serial: u32::MAX }, ..Self::default() }
    }

    /// Whether this is [`faulted`](Self::faulted).
    pub fn has_faulted(&self) -> bool {
        self.dropped.cpu == NO_CPU && self.dropped.serial == u32::MAX
    }
}
