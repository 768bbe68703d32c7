//! What the hardware does to the tasks on a CPU: interrupts, and threads that share a core.

use ekiden::CpuId;
use ekiden_workload::random::Random;

use crate::alarm::Alarm;
use crate::kernel::{Cpu, Kernel};
use crate::model::Interrupt;

/// Where the random sequences of interrupts begin: beyond those of the tasks, which go by PID.
const FIRST_STREAM: u64 = 1 << 32;

/// A source of interrupts.
#[derive(Debug)]
pub(crate) struct Source {
    interrupt: Interrupt,
    random: Random,
    /// How many there were.
    count: u64,
}

impl Source {
    /// The sources of a machine, with the random sequences of this seed.
    pub(crate) fn all(interrupts: &[Interrupt], seed: u64) -> Vec<Self> {
        let sources = interrupts.iter().zip(FIRST_STREAM..);
        let source = |(interrupt, stream): (&Interrupt, u64)| Self {
            interrupt: interrupt.clone(),
            random: Random::stream(seed, stream),
            count: 0,
        };
        sources.map(source).collect()
    }

    fn wait_ns(&mut self) -> u64 {
        let period_ns = self.interrupt.period_ns;
        if self.interrupt.random { self.random.exponential(period_ns).max(1) } else { period_ns }
    }

    /// The CPU whose turn it is.
    fn cpu(&self, nr_cpus: u32) -> CpuId {
        let cpus = &self.interrupt.cpus;
        match cpus.len() as u64 {
            0 => (self.count % u64::from(nr_cpus)) as CpuId,
            len => cpus[(self.count % len) as usize],
        }
    }
}

impl Kernel {
    /// The running task loses time to something else, before its next step.
    pub(crate) fn take_time(&mut self, cpu: CpuId, ns: u64) {
        if let Some(task) = self.cpu(cpu).running.filter(|_| ns > 0) {
            self.account(cpu);
            self.spend(task, ns);
            self.expect_work(cpu);
        }
    }

    /// An interrupt that takes so long. A CPU that is idle begins anew to fall asleep.
    pub(crate) fn interrupt(&mut self, cpu: CpuId, handler_ns: u64) {
        if self.cpu(cpu).running.is_some() {
            self.take_time(cpu, handler_ns);
        } else {
            self.cpu_mut(cpu).idle_since_ns = self.cpu(cpu).idle_since_ns.max(self.now_ns);
        }
    }

    /// How long `cpu` takes from now on until it has left its idle state: nothing if it runs a task, has just begun to be idle, or
    /// has just been woken up.
    pub(crate) fn idle_exit_ns(&self, cpu: CpuId) -> u64 {
        let Cpu { running, idle_since_ns, .. } = *self.cpu(cpu);
        match self.now_ns.checked_sub(idle_since_ns) {
            _ if running.is_some() => 0,
            // It is on its way.
            None => idle_since_ns - self.now_ns,
            Some(0) => 0,
            Some(idle_ns) => self.machine.model.idle_exit_ns(idle_ns),
        }
    }

    /// An interrupt comes for `cpu`, of a timer or a device. If that one has to leave an idle state first, returns when it will
    /// have done so, and the handler runs only then.
    pub(crate) fn awake_at_ns(&mut self, cpu: CpuId) -> Option<u64> {
        let exit_ns = self.idle_exit_ns(cpu);
        if exit_ns == 0 || !self.masks.online().contains(cpu) {
            return None;
        }
        let awake_at_ns = self.now_ns + exit_ns;
        self.cpu_mut(cpu).idle_since_ns = awake_at_ns;
        Some(awake_at_ns)
    }

    /// Sets the alarm of a source of interrupts.
    pub(crate) fn expect_interrupt(&mut self, source: u32) {
        let wait_ns = self.sources[source as usize].wait_ns();
        self.alarms.set(Alarm::Interrupt(source), self.now_ns.saturating_add(wait_ns));
    }

    pub(crate) fn interrupted(&mut self, number: u32) {
        let source = &mut self.sources[number as usize];
        let cpu = source.cpu(self.machine.topology.nr_cpus());
        let handler_ns = source.interrupt.handler_ns;
        source.count += 1;
        if self.masks.online().contains(cpu) {
            self.interrupt(cpu, handler_ns);
        }
        self.expect_interrupt(number);
    }

    /// A thread of a core has become busy or idle: all of them go slower or faster.
    pub(crate) fn share_core(&mut self, cpu: CpuId) {
        self.cpu_mut(cpu).is_busy = self.cpu(cpu).running.is_some();
        if !self.has_smt {
            return;
        }
        let topology = self.machine.topology.clone();
        let threads = topology.smt_siblings(cpu);
        if threads.count() == 1 {
            return;
        }
        let busy_threads = threads.iter().filter(|thread| self.cpu(*thread).is_busy).count() as u32;
        for thread in threads.iter() {
            let capacity = topology.cpu(thread).capacity.into();
            let capacity = self.machine.model.shared_capacity(capacity, busy_threads);
            self.account(thread);
            self.cpu_mut(thread).capacity = capacity;
            self.expect_work(thread);
        }
    }
}
