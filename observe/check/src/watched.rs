//! The checks as a wrapper around a policy: it passes every call on, and tells the checks what follows from the call and its
//! answer. Any host that can keep memory for it runs a wrapped policy as it runs the policy alone.
//!
//! A policy knows less than a trace: no names, nothing of tasks that another scheduling class runs, and of a token that the
//! host refuses only that it came back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ekiden::{Call, Calls, CpuMask, TaskId, Topology};
use ekiden_host::abi::{Message, Reply};
use ekiden_host::{Around, Host, Policy, Surrounded};
use ekiden_trace::{Header, Record, What, masks};

use crate::{Checker, Limits, Violation};

/// The calls from which it follows where tasks are.
const NEEDED: [Call; 9] = [
    Call::TaskBlocked,
    Call::TaskDead,
    Call::TaskDeparted,
    Call::TaskAffinityChanged,
    Call::TaskPrioChanged,
    Call::CpuOnline,
    Call::CpuOffline,
    Call::PntErr,
    Call::MigrateTaskRq,
];

/// Watches a policy, [around](Around) its calls.
pub struct Watched {
    host: Arc<dyn Host + Send>,
    watch: Arc<Mutex<Watch>>,
}

/// Findings about a [`Watched`] policy, to be asked for when it has run.
pub struct Findings(Arc<Mutex<Watch>>);

struct Watch {
    checker: Option<Checker>,
    nr_cpus: u32,
    pids: HashMap<TaskId, u32>,
    begin_ns: Option<u64>,
    now_ns: u64,
}

impl Watched {
    /// Puts that around `policy`, which runs on this machine and asks `host`.
    pub fn around(
        policy: Box<dyn Policy>,
        host: Arc<dyn Host + Send>,
        topology: &Topology,
        limits: &Limits,
    ) -> (Surrounded<Self>, Findings) {
        let header = Header { policy: Some(String::new()), ..Header::of(topology) };
        let watch = Arc::new(Mutex::new(Watch {
            checker: Some(Checker::new(&header, limits)),
            nr_cpus: topology.nr_cpus(),
            pids: HashMap::new(),
            begin_ns: None,
            now_ns: 0,
        }));
        (Surrounded::new(policy, Self { host, watch: watch.clone() }), Findings(watch))
    }
}

impl Findings {
    /// The findings, in the order of time; times count from the policy's first call. Nothing is watched afterwards.
    pub fn finish(self) -> Vec<Violation> {
        lock(&self.0).checker.take().map_or_else(Vec::new, Checker::finish)
    }
}

/// A panic in a check must not hide what was found before.
fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Around for Watched {
    fn calls(&self, of_policy: Calls) -> Calls {
        NEEDED.into_iter().fold(of_policy, Calls::with)
    }

    fn deliver(&self, policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
        // Before and after, and not during: a policy that loops must not stop the others from being watched.
        let now_ns = self.host.now_ns();
        lock(&self.watch).called(now_ns, message, &*self.host);
        let reply = policy.deliver(message, payload);
        lock(&self.watch).answered(message, &reply);
        reply
    }
}

impl Watch {
    fn called(&mut self, now_ns: u64, message: &Message, host: &dyn Host) {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        self.now_ns = now_ns - begin_ns.min(now_ns);
        let Message { cpu, pid, task, .. } = *message;
        match Call::from_number(message.call) {
            Some(Call::TaskNew) => {
                self.pids.insert(task, pid);
                self.record(What::New, cpu, pid, 0);
                self.record(What::Nice, cpu, pid, i64::from(message.nice) as u64);
                self.record_allowed(message, host);
                self.record(What::Enqueue, message.token_cpu, pid, 0);
            }
            Some(Call::TaskWakeup) => {
                self.pids.insert(task, pid);
                self.record(What::Wake, cpu, pid, 0);
                self.record(What::Enqueue, message.token_cpu, pid, 0);
            }
            Some(Call::TaskPreempt | Call::TaskYield | Call::PntErr) => {
                self.record(What::Preempt, cpu, pid, 0);
                self.record(What::Enqueue, message.token_cpu, pid, 0);
            }
            Some(Call::MigrateTaskRq) => {
                self.record(What::Migrate, message.token_cpu, pid, cpu.into());
                self.record(What::Enqueue, message.token_cpu, pid, 0);
            }
            Some(Call::TaskBlocked) => self.record(What::Block, cpu, pid, 0),
            Some(Call::TaskDead) => {
                self.pids.remove(&task);
                self.record(What::Exit, cpu, pid, 0);
            }
            Some(Call::TaskDeparted) => {
                self.pids.remove(&task);
                self.record(What::Depart, cpu, pid, 0);
            }
            Some(Call::TaskAffinityChanged) => {
                self.record(What::Affinity, cpu, pid, 0);
                self.record_allowed(message, host);
            }
            Some(Call::TaskPrioChanged) => self.record(What::Nice, cpu, pid, i64::from(message.nice) as u64),
            Some(Call::CpuOnline) => self.record(What::Online, cpu, 0, 0),
            Some(Call::CpuOffline) => self.record(What::Offline, cpu, 0, 0),
            _ => {}
        }
    }

    fn answered(&mut self, message: &Message, reply: &Reply) {
        if message.call != Call::PickNextTask as u32 {
            return;
        }
        match self.pids.get(&reply.token.task) {
            Some(pid) => self.record(What::Run, message.cpu, *pid, reply.slice_ns),
            None => self.record(What::Idle, message.cpu, 0, 0),
        }
    }

    fn record_allowed(&mut self, message: &Message, host: &dyn Host) {
        let mut cpus = CpuMask::new();
        host.allowed_cpus(message.task, &mut cpus);
        for (piece, value) in (0..).zip(masks(&cpus, self.nr_cpus)) {
            self.record(What::Allowed, piece, message.pid, value);
        }
    }

    fn record(&mut self, what: What, cpu: u32, pid: u32, value: u64) {
        if let Some(checker) = &mut self.checker {
            checker.record(&Record { time_ns: self.now_ns, cpu, what, pid, value });
        }
    }
}
