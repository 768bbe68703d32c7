//! The simulated kernel: it tells the engine what happens and does what the engine answers, in the order in which
//! sched_ext does it.

mod deliver;
mod life;
mod switch;

use std::collections::VecDeque;
use std::sync::Arc;

use ekiden::{Calls, CpuId, CpuMask};
use ekiden_engine::Engine;
use ekiden_host::abi::{Event, EventKind, Outcome};
use ekiden_trace::{masks, names};
use ekiden_workload::TaskReport;

use crate::alarm::{Alarm, Alarms};
use crate::error::SimError;
use crate::group::Groups;
use crate::hardware::Source;
use crate::machine::{DEFAULT_SLICE_NS, Machine};
use crate::masks::{ANY, Masks, SimHost};
use crate::program::Programs;
use crate::shared::Shared;
use crate::simulation::Injection;
use crate::task::{State, Task, TaskIndex};
use crate::trace::{Record, Sink, What};
use crate::upgrade::Successor;

/// The PID of the first task.
const FIRST_PID: u32 = 1_000;

/// How long a picked task may run.
fn slice_ns(outcome: &Outcome) -> u64 {
    if outcome.slice_ns == 0 { DEFAULT_SLICE_NS } else { outcome.slice_ns }
}

/// Flags of a wake-up, as the kernel's `WF_…`.
pub(crate) mod wake_flags {
    pub(crate) const FORK: u64 = 4;
    pub(crate) const TTWU: u64 = 8;
    pub(crate) const SYNC: u64 = 16;
}

/// The state of the machine.
pub(crate) struct Kernel {
    pub(crate) now_ns: u64,
    pub(crate) machine: Machine,
    pub(crate) masks: Masks,
    pub(crate) questions: Arc<SimHost>,
    pub(crate) alarms: Alarms,
    pub(crate) cpus: Vec<Cpu>,
    /// CPUs that found nothing to run, and that no task was sent to since.
    pub(crate) idle: CpuMask,
    /// Whether some core has more than one thread.
    pub(crate) has_smt: bool,
    pub(crate) tasks: Vec<Task>,
    free: Vec<TaskIndex>,
    next_pid: u32,
    /// Tasks that are not gone.
    pub(crate) live: u64,
    pub(crate) programs: Programs,
    pub(crate) shared: Shared,
    /// Whether any queue has hints that the policy has not heard.
    pub(crate) hints_wait: bool,
    pub(crate) groups: Groups,
    /// What interrupts.
    pub(crate) sources: Vec<Source>,
    /// The load's own tasks: what is to be reported, and where they stand while they live.
    pub(crate) roots: Vec<(TaskReport, TaskIndex)>,
    /// Injections to come, the last first.
    pub(crate) injections: Vec<(u64, Injection)>,
    /// The policies that take over, and when, the last first.
    pub(crate) successors: Vec<(u64, Successor)>,
    pub(crate) max_tasks: u32,
    pub(crate) seed: u64,
    pub(crate) sink: Sink,
    /// Whether the CPUs that decisions looked at go to the trace.
    pub(crate) notes_considered: bool,
    /// Whether what policies note goes to the trace.
    pub(crate) has_notes: bool,
    pub(crate) stats: Stats,
    pub(crate) trouble: Option<SimError>,
    pub(crate) engine: Option<Engine>,
    /// How the names of tasks begin that the second policy has, if there is one.
    pub(crate) second_has: Vec<String>,
    /// Whether there is a policy, and it has not been taken out.
    pub(crate) in_charge: bool,
    /// The calls that the policy implements: as in the kernel, some events that would lead to no call are left out.
    pub(crate) calls: Calls,
}

/// One CPU.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) running: Option<TaskIndex>,
    /// The task that ran last, and whose data the core's own caches hold.
    last: Option<TaskIndex>,
    /// Since when there is nothing to run.
    pub(crate) idle_since_ns: u64,
    /// Whether the other threads of the core count this one as busy.
    pub(crate) is_busy: bool,
    /// The time up to which the running task's CPU time has been accounted.
    since_ns: u64,
    slice_ns: u64,
    /// Work done in a nanosecond.
    pub(crate) capacity: u64,
    /// Tasks that run next here without a call of the policy, with their slices, as on the kernel's local queue: those
    /// that were placed on a CPU that was idle, and all when no policy is in charge.
    pub(crate) queue: VecDeque<(TaskIndex, u64)>,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// A CPU began to run another task than before.
    pub switches: u64,
    /// A task that slept was woken up.
    pub wakeups: u64,
    /// A tick found a task running.
    pub ticks: u64,
    /// A CPU was asked to look for work.
    pub kicks: u64,
    /// A running task was made to go on.
    pub keeps: u64,
    /// A CPU found nothing to run.
    pub idles: u64,
    /// Tasks created, the load's own ones included.
    pub tasks: u64,
    /// Tasks that the engine had no room for, so that they ran without the policy.
    pub left_out: u64,
}

impl Cpu {
    /// Whether the task is among those that run next.
    fn holds(&self, task: TaskIndex) -> bool {
        self.queue.iter().any(|(other, _)| *other == task)
    }
}

impl Stats {
    /// Scheduling events: switches and wake-ups.
    pub fn events(&self) -> u64 {
        self.switches + self.wakeups
    }
}

impl Kernel {
    pub(crate) fn new(machine: Machine, masks: Masks, questions: Arc<SimHost>, programs: Programs) -> Self {
        let cpus = machine.topology.cpus();
        let cpus = cpus.iter().map(|cpu| Cpu { capacity: cpu.capacity.into(), ..Cpu::default() }).collect();
        Self {
            now_ns: 0,
            alarms: Alarms::new(machine.topology.nr_cpus()),
            has_smt: machine.topology.cores().iter().any(|core| core.count() > 1),
            machine,
            masks,
            questions,
            cpus,
            idle: CpuMask::new(),
            tasks: Vec::new(),
            free: Vec::new(),
            next_pid: FIRST_PID,
            live: 0,
            programs,
            shared: Shared::default(),
            hints_wait: false,
            groups: Groups::default(),
            sources: Vec::new(),
            roots: Vec::new(),
            injections: Vec::new(),
            successors: Vec::new(),
            max_tasks: 0,
            seed: 0,
            sink: Sink::Nowhere,
            notes_considered: false,
            has_notes: false,
            stats: Stats::default(),
            trouble: None,
            engine: None,
            second_has: Vec::new(),
            in_charge: false,
            calls: Calls::NONE,
        }
    }

    pub(crate) fn task(&self, task: TaskIndex) -> &Task {
        &self.tasks[task as usize]
    }

    pub(crate) fn task_mut(&mut self, task: TaskIndex) -> &mut Task {
        &mut self.tasks[task as usize]
    }

    pub(crate) fn cpu(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu as usize]
    }

    pub(crate) fn cpu_mut(&mut self, cpu: CpuId) -> &mut Cpu {
        &mut self.cpus[cpu as usize]
    }

    #[inline]
    pub(crate) fn push_record(&mut self, what: What, cpu: CpuId, task: Option<TaskIndex>, value: u64) {
        if !matches!(self.sink, Sink::Nowhere) {
            let pid = task.map_or(0, |task| self.task(task).pid);
            self.sink.push(Record { time_ns: self.now_ns, cpu, what, pid, value });
        }
    }

    /// What a new task is like, as far as it is not as most tasks are.
    fn push_attributes(&mut self, task: TaskIndex) {
        if matches!(self.sink, Sink::Nowhere) {
            return;
        }
        let Task { pid, cpu, nice, mask, root, .. } = *self.task(task);
        for (piece, value) in (0..).zip(names(&self.roots[root as usize].0.name)) {
            self.sink.push(Record { time_ns: self.now_ns, cpu: piece, what: What::Name, pid, value });
        }
        if nice != 0 {
            self.push_record(What::Nice, cpu, Some(task), i64::from(nice) as u64);
        }
        if mask != ANY {
            self.push_allowed(task);
        }
        let group = self.groups.of_root[root as usize];
        if group != 0 {
            self.push_record(What::Group, cpu, Some(task), group.into());
        }
    }

    /// The CPUs that a task may use.
    pub(crate) fn push_allowed(&mut self, task: TaskIndex) {
        if matches!(self.sink, Sink::Nowhere) {
            return;
        }
        let Task { pid, mask, .. } = *self.task(task);
        for (piece, value) in (0..).zip(masks(self.masks.named(mask), self.machine.topology.nr_cpus())) {
            self.sink.push(Record { time_ns: self.now_ns, cpu: piece, what: What::Allowed, pid, value });
        }
    }

    /// Handles one alarm.
    pub(crate) fn handle(&mut self, alarm: Alarm) {
        let cpu = self.cpu_of(&alarm);
        let running = cpu.and_then(|cpu| self.cpu(cpu).running);
        self.questions.set_thread(running.map_or(0, |task| self.task(task).pid));
        self.act(alarm);
        // What runs there now has waited for the calls to return.
        let calls_ns = self.questions.take_calls_ns();
        if let Some(cpu) = cpu.filter(|_| calls_ns > 0) {
            self.take_time(cpu, calls_ns);
        }
    }

    #[inline(always)]
    fn act(&mut self, alarm: Alarm) {
        match alarm {
            Alarm::Work(cpu) => self.work_done(cpu),
            Alarm::Sleep(task) => match self.task(task).state {
                State::New => self.begin(task),
                State::InIo { device } => {
                    self.served(device);
                    self.task_mut(task).state = State::Asleep;
                    self.woken_by_interrupt(task);
                }
                _ => self.woken_by_interrupt(task),
            },
            Alarm::Resched(cpu) => {
                // As in the kernel, a task whose slice is not used up continues without a call of the policy.
                if self.cpu(cpu).running.is_none() || self.cpu(cpu).slice_ns == 0 {
                    self.look_for_work(cpu, None);
                }
            }
            _ => self.act_rare(alarm),
        }
    }

    /// Every alarm that is not one of those of a task switch: what these need on the stack, the others would pay for.
    #[inline(never)]
    fn act_rare(&mut self, alarm: Alarm) {
        match alarm {
            Alarm::Tick(cpu) => self.tick(cpu),
            Alarm::Timer(cpu) => {
                self.push_record(What::Timer, cpu, None, 0);
                self.deliver(&Event::new(EventKind::Timer, cpu), &[]);
            }
            Alarm::Inject => self.inject_due(),
            Alarm::Refill => self.refill(),
            Alarm::Late => _ = self.deliver(&Event::new(EventKind::Refill, 0), &[]),
            Alarm::Interrupt(source) => self.interrupted(source),
            Alarm::Queues => self.serve_queues(),
            Alarm::Upgrade => self.upgrade_due(),
            Alarm::Stop | Alarm::Work(_) | Alarm::Sleep(_) | Alarm::Resched(_) => {}
        }
    }

    /// Where the alarm goes off: whatever follows happens on that CPU's time.
    fn cpu_of(&self, alarm: &Alarm) -> Option<CpuId> {
        match *alarm {
            Alarm::Work(cpu) | Alarm::Resched(cpu) | Alarm::Tick(cpu) | Alarm::Timer(cpu) => Some(cpu),
            Alarm::Sleep(task) => Some(self.task(task).cpu),
            _ => None,
        }
    }

    /// Every CPU looks for work once, so that those without any are known to be idle.
    pub(crate) fn boot(&mut self) {
        let online = self.masks.online().clone();
        online.iter().for_each(|cpu| self.look_for_work(cpu, None));
    }
}
