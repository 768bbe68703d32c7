//! Where a waking or new task goes: what `scx_bpf_select_cpu_dfl` suggests, and what the policy makes of it.
//!
//! Unlike the kernel, this takes the lowest of several equal CPUs where the kernel goes round.

use ekiden::{Call, CpuId, CpuMask};
use ekiden_host::abi::{Event, EventKind};

use crate::kernel::{Kernel, wake_flags};
use crate::masks::{Usable, first_in_all};
use crate::task::{State, TaskIndex};

/// The CPU for a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    pub(crate) cpu: CpuId,
    /// Whether it is an idle CPU that no other task is sent to from now on.
    pub(crate) claimed: bool,
}

impl Kernel {
    /// The CPU for a task that is about to wait for one. `waker` is the CPU of the task that wakes it up.
    pub(crate) fn select_cpu(&mut self, task: TaskIndex, waker: Option<CpuId>, flags: u64) -> Selected {
        self.widen_affinity(task);
        let usable = self.masks.get(self.task(task).mask);
        // As in the kernel, the policy is not asked where there is no choice.
        if let Some(only) = usable.only {
            return Selected { cpu: only, claimed: false };
        }
        let before = self.task(task).cpu;
        let suggested = self.suggest(usable, before, waker.filter(|_| flags & wake_flags::SYNC != 0));
        if suggested.claimed {
            self.idle.clear(suggested.cpu);
        }
        if !self.calls.has(Call::SelectTaskRq) || !self.is_ours(task) {
            return suggested;
        }
        let args = [suggested.cpu.into(), 0];
        let flags = flags | waker.map_or(0, |waker| u64::from(waker) + 1) << 16;
        let event = Event { flags, args, ..self.event(EventKind::SelectCpu, before, task) };
        let chosen = self.deliver(&event, &[]).map_or(suggested.cpu, |outcome| outcome.cpu as CpuId);
        if chosen == suggested.cpu {
            return suggested;
        }
        if suggested.claimed {
            self.idle.set(suggested.cpu);
        }
        Selected { cpu: chosen, claimed: false }
    }

    fn suggest(&self, usable: &Usable, before: CpuId, waker: Option<CpuId>) -> Selected {
        let topology = &self.machine.topology;
        let claim = |cpu| Selected { cpu, claimed: true };
        let is_free = |cpu| self.idle.contains(cpu) && usable.cpus.contains(cpu);
        let stay = || Selected { cpu: usable.cpus.pick_from(before).unwrap_or(before), claimed: false };
        if self.idle.is_empty() {
            return stay();
        }
        let shares_cache = |waker: CpuId| topology.cpu(waker).llc == topology.cpu(before).llc;
        if is_free(before) && waker.map_or(!self.has_smt, shares_cache) {
            return claim(before);
        }
        // A waker that is about to sleep leaves its own CPU, where the caches know what the two have in common. One
        // that exits wakes its parent, with which it has no more business.
        let exits = |waker| self.cpu(waker).running.is_some_and(|task| self.task(task).state == State::Dead);
        if let Some(waker) = waker.filter(|waker| usable.cpus.contains(*waker) && !exits(*waker)) {
            return Selected { cpu: waker, claimed: false };
        }
        let nearest = |free_in: &dyn Fn(&CpuMask) -> Option<CpuId>| {
            let near = free_in(topology.llc(before)).or_else(|| free_in(topology.node(before)));
            near.or_else(|| free_in(&usable.cpus))
        };
        // A thread of a core that is idle as a whole is faster than any other, also than the one where the task was.
        if self.has_smt {
            if is_free(before) && self.is_idle_core(before) {
                return claim(before);
            }
            let mut idle = self.idle.both(&usable.cpus);
            let cores: CpuMask = idle.by_ref().filter(|cpu| self.is_idle_core(*cpu)).collect();
            if let Some(cpu) = nearest(&|group| first_in_all(&cores, &usable.cpus, group)) {
                return claim(cpu);
            }
        }
        if is_free(before) {
            return claim(before);
        }
        nearest(&|group| first_in_all(&self.idle, &usable.cpus, group)).map_or_else(stay, claim)
    }

    /// Whether all threads of the CPU's core are idle, as far as they are part of the machine.
    fn is_idle_core(&self, cpu: CpuId) -> bool {
        let online = self.masks.online();
        self.machine.topology.smt_siblings(cpu).both(online).all(|thread| self.idle.contains(thread))
    }
}
