//! What a host needs of the engine to answer a policy in the middle of a call.

use alloc::{sync::Arc, vec::Vec};

use ekiden::{CpuId, RefusalReason, TaskId};
use ekiden_host::{Policy, abi::RawToken};

use crate::atomics::Ordering::Relaxed;
use crate::engine::Engine;
use crate::state::Phase;
use crate::table::{TaskEntry, find};

impl<P: Policy> Engine<P> {
    /// The answer to [`Host::claim`](ekiden_host::Host::claim): see [`Answers::claim`].
    ///
    /// # Errors
    /// Why the task stays where it is.
    pub fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        claim(&self.tasks.entries, token, cpu, |task, cpu| self.host.may_run(task, cpu))
    }

    /// The weight of a task, as its policy was told it, if it runs on `cpu`.
    pub fn weight_of_running(&self, task: TaskId, cpu: CpuId) -> Option<u32> {
        weight_of_running(&self.tasks.entries, task, cpu)
    }

    /// Answers both questions for a host that does not have the engine at hand. Good from the beginning to the end of the engine.
    pub fn answers(&self) -> Answers {
        Answers(self.tasks.entries.clone())
    }
}

/// The tasks, for [`Host::claim`](ekiden_host::Host::claim) and [`Host::running`](ekiden_host::Host::running); see [`Engine::answers`].
#[derive(Clone, Debug)]
pub struct Answers(pub(crate) Arc<Vec<TaskEntry>>);

impl Answers {
    /// Moves the task of `token`, which waits for another CPU, to `cpu`, if it `may_run` there. Its token has the same serial number for
    /// the new CPU, which is good because there is no other with that number: the policy has given it for this.
    ///
    /// # Errors
    /// Why it stays where it is.
    pub fn claim(
        &self,
        token: RawToken,
        cpu: CpuId,
        may_run: impl Fn(TaskId, CpuId) -> bool,
    ) -> Result<(), RefusalReason> {
        claim(&self.0, token, cpu, may_run)
    }

    /// The weight of a task, as its policy was told it, if it runs on `cpu`.
    pub fn weight_of_running(&self, task: TaskId, cpu: CpuId) -> Option<u32> {
        weight_of_running(&self.0, task, cpu)
    }
}

fn claim(
    entries: &[TaskEntry],
    token: RawToken,
    cpu: CpuId,
    may_run: impl Fn(TaskId, CpuId) -> bool,
) -> Result<(), RefusalReason> {
    let entry = find(entries, token.task).ok_or(RefusalReason::Gone)?;
    // Each further round is one in which the kernel has done something with the task.
    loop {
        let mut seen = entry.state();
        if seen.phase() == Phase::ReadyByTick && seen.serial() == token.serial {
            // The CPU that it leaves kicks this one when that is done, unless it has just done so.
            if entry.wish.wish(cpu, || entry.state().phase() == Phase::ReadyByTick) {
                return Err(RefusalReason::Busy);
            }
            seen = entry.state();
        }
        if seen.serial() != token.serial {
            return Err(RefusalReason::Stale);
        }
        if seen.phase() != Phase::Ready {
            return Err(RefusalReason::NotReady);
        }
        if !may_run(token.task, cpu) {
            return Err(RefusalReason::NotAllowed);
        }
        if entry.try_state(seen, seen.claimed(cpu)) {
            return Ok(());
        }
    }
}

fn weight_of_running(entries: &[TaskEntry], task: TaskId, cpu: CpuId) -> Option<u32> {
    let entry = find(entries, task)?;
    let seen = entry.state();
    let runs = seen.phase() == Phase::Running && seen.cpu() == cpu;
    runs.then(|| entry.weight.load(Relaxed))
}
