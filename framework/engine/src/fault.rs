//! What went wrong with a policy: contract violations, which are handed back, and the fault that ends it.

use alloc::string::String;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId, CpuMask, RefusalReason, TaskId};
use ekiden_host::Policy;

use crate::conditions::SEVERAL;
use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::policy_slots::PolicySlot;
use crate::state::{Phase, State, Transition};
use crate::table::TaskEntry;

/// How many contract violations a policy may make before it is taken out. Each is counted and named; this many are no accident.
pub const CONTRACT_VIOLATIONS_ALLOWED: u32 = 64;

/// A contract violation of a policy that the engine put right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContractViolationKind {
    /// A token came back that cannot be honoured.
    Refused(RefusalReason),
    /// A good token was dropped: the task would never have run again.
    TokenLost,
    /// `migrate_task_rq` gave back another token than the one for the old CPU.
    WrongTokenReturned,
    /// A CPU was named that does not exist, or that the task may not use.
    BadCpu,
    /// A task was to run for longer than any may; it gets the host's default.
    AbsurdSlice,
}

/// One contract violation, with where it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContractViolation {
    /// The kind of mistake.
    pub kind: ContractViolationKind,
    /// The call that made it.
    pub call: Call,
    /// The CPU that the call was about.
    pub cpu: CpuId,
    /// The PID of the task that it was about; 0 if there is none.
    pub pid: u32,
}

impl fmt::Display for ContractViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call.name();
        match self.kind {
            ContractViolationKind::Refused(reason) => {
                write!(f, "{call} gave back a token that is refused: {}", reason.describe())
            }
            ContractViolationKind::TokenLost => write!(f, "{call} lost a token; a new one was issued"),
            ContractViolationKind::WrongTokenReturned => write!(f, "{call} gave back the token of another task or CPU"),
            ContractViolationKind::BadCpu => {
                write!(f, "{call} named a CPU that does not exist, or that the task may not use")
            }
            ContractViolationKind::AbsurdSlice => {
                write!(f, "{call} gave a task a slice that is too long; it gets the usual one")
            }
        }?;
        write!(f, " (PID {}, CPU {})", self.pid, self.cpu)
    }
}

/// How the engine treats a policy when one of its tasks goes from one state to another in an unexpected way.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checks {
    /// It is not checked.
    Off = 0,
    /// It is counted, and the newest is kept.
    #[default]
    Report = 1,
    /// The policy is taken out.
    Remove = 2,
    /// The machine stops, for a debugger.
    Stop = 3,
}

impl Checks {
    /// The reason with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Off, Self::Report, Self::Remove, Self::Stop].into_iter().find(|checks| *checks as u32 == number)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Report => "report",
            Self::Remove => "remove",
            Self::Stop => "stop",
        }
    }
}

/// A transition that is not in [`TRANSITIONS`](crate::TRANSITIONS) (papers/001, section III).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnexpectedTransition {
    /// What happened.
    pub by: Transition,
    /// The state that the task was in.
    pub phase: Phase,
    /// Which task it was.
    pub pid: u32,
    /// The CPU of the event.
    pub cpu: CpuId,
}

impl fmt::Display for UnexpectedTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, phase, pid, cpu } = self;
        write!(f, "{} of a task that is {} (PID {pid}, CPU {cpu})", by.name(), phase.name())
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

impl<P: Policy> Engine<P> {
    #[cold]
    pub(crate) fn contract_violation(
        &self,
        policy_slot: &PolicySlot<P>,
        kind: ContractViolationKind,
        call: Call,
        cpu: CpuId,
        entry: &TaskEntry,
    ) {
        self.contract_violation_about(policy_slot, kind, call, cpu, entry.pid.load(Relaxed));
    }

    /// A policy named a CPU on which the task cannot run. The host's choice stands.
    #[cold]
    #[inline(never)]
    pub(crate) fn chose_badly(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        task: TaskId,
        entry: &TaskEntry,
        chosen: CpuId,
    ) {
        let mut allowed = CpuMask::new();
        self.host.allowed_cpus(task, &mut allowed);
        if allowed.contains(chosen) {
            // That CPU has gone offline since the policy looked, or the task has pinned itself for a moment: no contract violation.
            Counters::count(&self.counters(handling.event.cpu, policy_slot).refusals);
        } else {
            self.contract_violation(
                policy_slot,
                ContractViolationKind::BadCpu,
                Call::SelectTaskRq,
                handling.event.cpu,
                entry,
            );
        }
    }

    pub(crate) fn contract_violation_about(
        &self,
        policy_slot: &PolicySlot<P>,
        kind: ContractViolationKind,
        call: Call,
        cpu: CpuId,
        pid: u32,
    ) {
        let contract_violation = ContractViolation { kind, call, cpu, pid };
        *policy_slot.last_contract_violation.lock() = Some(contract_violation);
        if policy_slot.contract_violations.fetch_add(1, Relaxed) + 1
            - policy_slot.contract_violations_before.load(Relaxed)
            > CONTRACT_VIOLATIONS_ALLOWED
        {
            let message: String = alloc::format!(
                "more than {CONTRACT_VIOLATIONS_ALLOWED} contract violations, the last one: {contract_violation}"
            );
            self.take_out_of(policy_slot, Some(Fault { message, cpu }));
        }
    }

    /// Checks a transition. One that is not in the list is counted and kept, and has the consequence that was chosen.
    #[inline]
    pub(crate) fn transit(&self, cpu: CpuId, entry: &TaskEntry, seen: State, by: Transition) {
        let policy_slot = self.policy_slot_of::<SEVERAL>(seen);
        if policy_slot.checks() != Checks::Off && by.from(seen.phase()).is_none() {
            self.unexpected_transition(
                policy_slot,
                UnexpectedTransition { by, phase: seen.phase(), pid: entry.pid.load(Relaxed), cpu },
            );
        }
    }

    #[cold]
    fn unexpected_transition(&self, policy_slot: &PolicySlot<P>, unexpected_transition: UnexpectedTransition) {
        Counters::count(&self.counters(unexpected_transition.cpu, policy_slot).unexpected_transitions);
        *policy_slot.last_unexpected_transition.lock() = Some(unexpected_transition);
        match policy_slot.checks() {
            Checks::Off | Checks::Report => {}
            Checks::Remove => {
                let message = alloc::format!("a wrong transition: {unexpected_transition}");
                self.take_out_of(policy_slot, Some(Fault { message, cpu: unexpected_transition.cpu }));
            }
            Checks::Stop => self.host.stop(&unexpected_transition),
        }
    }
}
