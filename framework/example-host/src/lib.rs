//! A host for the examples in the documentation of the crate `ekiden`: it makes one call of a policy at a time, and shows what the policy
//! answers. It checks nothing and runs nothing. To run loads on a policy of your own, use the simulator, `ekiden-sim`.
#![forbid(unsafe_code)]

use std::{cell::RefCell, sync::Arc};

use ekiden::{
    Call, CpuId, CpuMask, Env, NotTold, ProcessId, QueueId, RefusalReason, Running, Scheduler, TaskId, Topology,
};
use ekiden_host::{
    Adapter, Host, Policy, Value,
    abi::{Message, Noted, RawToken, Reply},
    hear_notes, keep_notes,
};

thread_local! {
    static NOTES: RefCell<Vec<Noted>> = const { RefCell::new(Vec::new()) };
}

/// One policy, and a machine on which nothing runs but task 9, on CPU 0, since a microsecond.
pub struct Machine<P: Scheduler> {
    policy: Adapter<P>,
    tokens_issued: u32,
}

/// The index of a task that is still leaving the CPU that it ran on.
pub const BUSY: u32 = 8;

/// The name of the task with this index.
pub fn task(slot: u32) -> TaskId {
    TaskId { slot, generation: 1 }
}

impl<P: Scheduler> Machine<P> {
    /// A machine of equal CPUs, with the default parameters.
    ///
    /// # Panics
    ///
    /// If that is no CPU, or more than there can be.
    pub fn flat(nr_cpus: u32) -> Self {
        Self::new(Topology::flat(nr_cpus), "")
    }

    /// Any machine, with these parameters.
    ///
    /// # Panics
    ///
    /// If the policy does not have such parameters.
    pub fn new(topology: Topology, params: &str) -> Self {
        hear_notes(|_, noted| NOTES.with_borrow_mut(|notes| notes.push(noted)));
        keep_notes(true);
        let nr_cpus = topology.nr_cpus();
        let env = Env::new(topology, 16, P::PARAMS, params).unwrap_or_else(|error| panic!("{error}"));
        Self { policy: Adapter::new(&env, Arc::new(Idle { nr_cpus })), tokens_issued: 0 }
    }

    /// Task `slot` wakes up and waits for `cpu`. Returns the CPUs that are kicked.
    pub fn wake(&mut self, slot: u32, cpu: CpuId) -> Vec<CpuId> {
        self.wait(Call::TaskWakeup, slot, cpu).kicks.iter().collect()
    }

    /// Task `slot` waits for `cpu`, for the reason that the call says.
    pub fn wait(&mut self, call: Call, slot: u32, cpu: CpuId) -> Reply {
        self.tokens_issued += 1;
        let token = RawToken { task: task(slot), cpu, serial: self.tokens_issued };
        self.policy.deliver(&about(call, slot, cpu).with_token(token), &[])
    }

    /// `cpu` looks for work. Returns the index of the task that it gets.
    pub fn pick(&mut self, cpu: CpuId) -> Option<u32> {
        let token = self.call(Call::PickNextTask, 0, cpu).token;
        (!token.is_none()).then_some(token.task.slot)
    }

    /// Any other call, about task `slot` and `cpu`.
    pub fn call(&mut self, call: Call, slot: u32, cpu: CpuId) -> Reply {
        self.policy.deliver(&about(call, slot, cpu), &[])
    }

    /// Makes a call with a payload: the bytes of hints or parameters.
    pub fn call_with(&mut self, call: Call, slot: u32, bytes: &[u8]) -> Reply {
        self.policy.deliver(&about(call, slot, 0), bytes)
    }

    /// How much a figure of the policy's own is.
    ///
    /// # Panics
    ///
    /// If it has no such figure.
    pub fn figure(&self, name: &str) -> Value {
        let figure = self.policy.figures().totals().into_iter().find(|figure| figure.name == name);
        figure.unwrap_or_else(|| panic!("the policy has no figure {name}")).value
    }

    /// What policies have noted on this thread since this was asked last: `name value` each.
    pub fn take_notes(&self) -> Vec<String> {
        NOTES.take().iter().map(Noted::to_string).collect()
    }
}

fn about(call: Call, slot: u32, cpu: CpuId) -> Message {
    Message { task: task(slot), weight: 1024, pid: 100 + slot, ..Message::about_cpu(call, cpu) }
}

/// All CPUs are idle but the first.
struct Idle {
    nr_cpus: u32,
}

impl Host for Idle {
    fn now_ns(&self) -> u64 {
        5_000_000
    }

    fn may_run(&self, _: TaskId, cpu: CpuId) -> bool {
        cpu < self.nr_cpus
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        cpus.extend(0..self.nr_cpus);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        cpus.extend(1..self.nr_cpus);
    }

    fn claim(&self, token: RawToken, _: CpuId) -> Result<(), RefusalReason> {
        if token.task.slot == BUSY { Err(RefusalReason::Busy) } else { Ok(()) }
    }

    fn take_idle(&self, _: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        (1..self.nr_cpus).find(|cpu| among.is_none_or(|among| among.contains(*cpu)))
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        (cpu == 0).then_some(Running { task: task(9), weight: 1024, since_ns: 4_999_000 })
    }

    /// The process that has opened queue 5 reads it.
    fn notify(&self, queue: QueueId, _: &[u8]) -> Result<(), NotTold> {
        if queue == 5 { Ok(()) } else { Err(NotTold::Closed) }
    }

    fn process(&self, task: TaskId) -> Option<ProcessId> {
        Some(100 + task.slot)
    }
}
