//! The faults that a policy has in it, and how each has to end.

use ekiden::Call;
use ekiden_test_policies::Fault;

/// How it has to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The policy is gone; the report has one of these words.
    TakenOut(&'static [&'static str]),
    /// A contract violation is counted, its report has these words, and the policy keeps running.
    ContractViolation(&'static str),
    /// A token is handed back, and the policy keeps running.
    Refused,
    /// It is slowed down, and stays.
    Slowed,
    /// Nothing comes of it.
    Stays,
}

/// Something that a policy can do wrong by itself.
pub(crate) struct Planted {
    pub(crate) name: &'static str,
    pub(crate) fault: Fault,
    /// Where: another one each time.
    pub(crate) calls: &'static [Call],
    pub(crate) end: End,
    pub(crate) cpus_min: usize,
}

const fn planted(name: &'static str, fault: Fault, calls: &'static [Call], end: End) -> Planted {
    Planted { name, fault, calls, end, cpus_min: 1 }
}

const PICK: &[Call] = &[Call::PickNextTask];
const WAKEUP: &[Call] = &[Call::TaskWakeup];
const MIGRATE: &[Call] = &[Call::MigrateTaskRq];
const MANY: &[Call] = &[Call::PickNextTask, Call::TaskWakeup, Call::Timer, Call::TaskTick];

/// The list. The run queue is locked in each of these calls but `timer`; other CPUs want it to wake up a task there.
pub(crate) const PLANTED: &[Planted] = &[
    planted("panic", Fault::Panic, MANY, End::TakenOut(&["planted in "])),
    planted("arena exhausted", Fault::Exhaust, MANY, End::TakenOut(&["memory"])),
    planted("lock order violation", Fault::Disorder, MANY, End::TakenOut(&["order"])),
    Planted {
        cpus_min: 2,
        ..planted(
            "lock held too long",
            Fault::Hold,
            WAKEUP,
            End::TakenOut(&["a lock was not released", "an endless loop"]),
        )
    },
    planted("self-deadlock", Fault::Deadlock, MANY, End::TakenOut(&["deadlock"])),
    Planted { cpus_min: 2, ..planted("deadlock of two CPUs", Fault::Embrace, WAKEUP, End::TakenOut(&["deadlock"])) },
    planted("lock kept past the call", Fault::KeepLock, MANY, End::TakenOut(&["a call ended with a lock"])),
    planted("endless loop", Fault::Loop, MANY, End::TakenOut(&["an endless loop"])),
    planted("endless loop with a lock held", Fault::LoopLocked, MANY, End::TakenOut(&["an endless loop"])),
    planted("endless loop, run queue locked", Fault::Loop, PICK, End::TakenOut(&["an endless loop"])),
    planted("endless loop in a panic's text", Fault::LoopInText, MANY, End::TakenOut(&["an endless loop"])),
    planted("panic's text without end", Fault::EndlessText, MANY, End::TakenOut(&["an endless loop"])),
    planted("endless copying", Fault::Copy, MANY, End::TakenOut(&["far too much is copied"])),
    planted("stack overflow", Fault::Recurse, MANY, End::TakenOut(&["the stack is used up"])),
    planted("recursion without end", Fault::Branch, MANY, End::TakenOut(&["a recursion without end"])),
    planted("token lost", Fault::LoseToken, WAKEUP, End::ContractViolation("lost a token")),
    planted("token of a new task lost", Fault::LoseToken, &[Call::TaskNew], End::ContractViolation("lost a token")),
    planted(
        "token of a preempted task lost",
        Fault::LoseToken,
        &[Call::TaskPreempt],
        End::ContractViolation("lost a token"),
    ),
    Planted {
        cpus_min: 2,
        ..planted("token doubled, one stale", Fault::KeepOld, &[Call::MigrateTaskRq], End::Refused)
    },
    Planted {
        cpus_min: 2,
        ..planted("token for another CPU", Fault::WrongCpu, PICK, End::ContractViolation("for another CPU"))
    },
    planted("task starved", Fault::Starve, WAKEUP, End::TakenOut(&["has waited"])),
    planted("CPU that the task may not use", Fault::BadCpu, WAKEUP, End::ContractViolation("CPU")),
    planted("absurd slices", Fault::Slices, PICK, End::ContractViolation("slice")),
    planted("slices of 1 ns", Fault::ShortSlices, MANY, End::Stays),
    planted("timers of 1 ns", Fault::Timers, MANY, End::Slowed),
    planted("kicks of all CPUs in every call", Fault::KickAll, MANY, End::TakenOut(&["too many kicks: "])),
    planted("search for work without end", Fault::Livelock, MANY, End::TakenOut(&["too many kicks: "])),
    Planted {
        cpus_min: 2,
        ..planted("the same worthless token each time", Fault::Vain, MIGRATE, End::TakenOut(&["too many refusals: "]))
    },
    Planted {
        cpus_min: 2,
        ..planted("attempts that nearly take too long", Fault::Slow, MIGRATE, End::TakenOut(&["an endless loop"]))
    },
];
