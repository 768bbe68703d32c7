//! The simulated kernel: it tells the engine what happens and does what the engine answers, in the order in which
//! sched_ext does it.

use std::collections::VecDeque;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use ekiden::abi::{Event, EventKind, Outcome, RefusalReason, Status, enqueue_flags, pick_flags};
use ekiden::{Call, Calls, CpuId, CpuMask, TaskId};
use ekiden_contain::{considered, contained};
use ekiden_engine::{Engine, Fault};
use ekiden_trace::{masks, names};
use ekiden_workload::TaskReport;
use ekiden_workload::random::Random;
use smallvec::SmallVec;

use crate::alarm::{Alarm, Alarms};
use crate::error::SimError;
use crate::group::Groups;
use crate::hardware::Source;
use crate::machine::{DEFAULT_SLICE_NS, Machine};
use crate::masks::{ANY, MaskId, Masks, Questions};
use crate::place::Selected;
use crate::program::{Place, Programs};
use crate::shared::Shared;
use crate::simulation::Injection;
use crate::task::{State, Task, TaskIndex, WORK_PER_NS};
use crate::trace::{Record, Sink, What};
use crate::upgrade::Successor;

/// The shortest time after which a timer goes off, as with the hardware's.
const TIMER_MIN_NS: u64 = 1_000;

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
    pub(crate) questions: Arc<Questions>,
    pub(crate) alarms: Alarms,
    pub(crate) cpus: Vec<Cpu>,
    /// CPUs that found nothing to run, and that nobody was sent to since.
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
    /// What is injected, the last first.
    pub(crate) injections: Vec<(u64, Injection)>,
    /// Who takes over, and when, the last first.
    pub(crate) successors: Vec<(u64, Successor)>,
    pub(crate) max_tasks: u32,
    pub(crate) seed: u64,
    pub(crate) sink: Sink,
    /// Whether the CPUs that decisions looked at go to the trace.
    pub(crate) notes_considered: bool,
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
    /// Tasks that run next here without anybody being asked, with their slices, as on the kernel's local queue: those
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
    pub(crate) fn new(machine: Machine, masks: Masks, questions: Arc<Questions>, programs: Programs) -> Self {
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
    pub(crate) fn note(&mut self, what: What, cpu: CpuId, task: Option<TaskIndex>, value: u64) {
        if !matches!(self.sink, Sink::Nowhere) {
            let pid = task.map_or(0, |task| self.task(task).pid);
            self.sink.put(Record { time_ns: self.now_ns, cpu, what, pid, value });
        }
    }

    /// What a new task is like, as far as it is not as most tasks are.
    fn note_attributes(&mut self, task: TaskIndex) {
        if matches!(self.sink, Sink::Nowhere) {
            return;
        }
        let Task { pid, cpu, nice, mask, root, .. } = *self.task(task);
        for (piece, value) in (0..).zip(names(&self.roots[root as usize].0.name)) {
            self.sink.put(Record { time_ns: self.now_ns, cpu: piece, what: What::Name, pid, value });
        }
        if nice != 0 {
            self.note(What::Nice, cpu, Some(task), i64::from(nice) as u64);
        }
        if mask != ANY {
            self.note_allowed(task);
        }
        let group = self.groups.of_root[root as usize];
        if group != 0 {
            self.note(What::Group, cpu, Some(task), group.into());
        }
    }

    /// The CPUs that a task may use.
    pub(crate) fn note_allowed(&mut self, task: TaskIndex) {
        if matches!(self.sink, Sink::Nowhere) {
            return;
        }
        let Task { pid, mask, .. } = *self.task(task);
        for (piece, value) in (0..).zip(masks(self.masks.named(mask), self.machine.topology.nr_cpus())) {
            self.sink.put(Record { time_ns: self.now_ns, cpu: piece, what: What::Allowed, pid, value });
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
                // As in the kernel, a task whose slice is not used up goes on without anybody being asked.
                if self.cpu(cpu).running.is_none() || self.cpu(cpu).slice_ns == 0 {
                    self.look_for_work(cpu, None);
                }
            }
            Alarm::Tick(cpu) => self.tick(cpu),
            Alarm::Timer(cpu) => {
                self.note(What::Timer, cpu, None, 0);
                self.deliver(&Event::new(EventKind::Timer, cpu), &[]);
            }
            Alarm::Inject => self.inject_due(),
            Alarm::Refill => self.refill(),
            Alarm::Late => _ = self.deliver(&Event::new(EventKind::Refill, 0), &[]),
            Alarm::Interrupt(source) => self.interrupted(source),
            Alarm::Queues => self.serve_queues(),
            Alarm::Upgrade => self.upgrade_due(),
            Alarm::Stop => {}
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

    // Between host and engine.

    /// Tells the engine, and does what it asks for besides. `None` if there is no policy (any more).
    pub(crate) fn deliver(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        let outcome = self.ask(event, payload)?;
        if self.questions.has_told.load(Relaxed) {
            self.alarms.set_if_earlier(Alarm::Queues, self.now_ns);
        }
        self.carry_out(event.cpu, &outcome);
        Some(outcome)
    }

    /// Tells the engine. Where a CPU or a task to run is decided, the CPUs that the policy looked at may be wanted.
    fn ask(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        const SELECT_CPU: u32 = EventKind::SelectCpu as u32;
        const PICK: u32 = EventKind::Pick as u32;
        if !self.notes_considered || !matches!(event.kind, SELECT_CPU | PICK) {
            return self.put_to_engine(event, payload);
        }
        let (outcome, cpus) = considered(|| self.put_to_engine(event, payload));
        if cpus.iter().any(|cpu| cpu != event.cpu) {
            let about = if event.kind == SELECT_CPU { event.task } else { TaskId::NONE };
            self.note_considered(about, &cpus);
        }
        outcome
    }

    fn note_considered(&mut self, about: TaskId, cpus: &CpuMask) {
        let task = self.engine.as_ref().and_then(|engine| engine.tasks().host_task(about));
        let pid = task.map_or(0, |task| self.task(task as TaskIndex).pid);
        for (piece, value) in (0..).zip(masks(cpus, self.machine.topology.nr_cpus())) {
            self.sink.put(Record { time_ns: self.now_ns, cpu: piece, what: What::Considered, pid, value });
        }
    }

    fn put_to_engine(&mut self, event: &Event, payload: &[u8]) -> Option<Outcome> {
        let engine = self.engine.as_ref().filter(|_| self.in_charge)?;
        let mut outcome = Outcome::default();
        if let Err(message) = contained(|| engine.deliver(event, payload, &mut outcome)) {
            engine.take_out(Fault { message, cpu: event.cpu });
            outcome.status = Status::Fault as i32;
        }
        if let Some(at_ns) = self.questions.take_late_ns() {
            self.alarms.set_if_earlier(Alarm::Late, at_ns);
        }
        assert_ne!(outcome.status, Status::Invalid as i32, "the simulator and the engine disagree about {event:?}");
        if outcome.status == Status::Fault as i32 {
            self.fall_back(event.cpu);
            return None;
        }
        Some(outcome)
    }

    /// An event about a task.
    pub(crate) fn event(&self, kind: EventKind, cpu: CpuId, task: TaskIndex) -> Event {
        let task = self.task(task);
        let mut event = Event::new(kind, cpu);
        (event.task, event.runtime_ns) = (task.id, task.cpu_ns);
        event
    }

    /// Tells the engine about a task, if that may lead to `call`.
    pub(crate) fn tell_for(&mut self, call: Call, kind: EventKind, cpu: CpuId, task: TaskIndex) {
        if self.calls.has(call) {
            self.tell(kind, cpu, task);
        }
    }

    /// Tells the engine about a task, if it is the policy's.
    pub(crate) fn tell(&mut self, kind: EventKind, cpu: CpuId, task: TaskIndex) {
        if self.task(task).is_ours {
            self.deliver(&self.event(kind, cpu, task), &[]);
        }
    }

    pub(crate) fn carry_out(&mut self, cpu: CpuId, outcome: &Outcome) {
        if outcome.timer_ns != 0 {
            let at_ns = self.now_ns.saturating_add(outcome.timer_ns.max(TIMER_MIN_NS));
            self.alarms.set(Alarm::Timer(cpu), at_ns);
        }
        if outcome.kicks.is_empty() {
            return;
        }
        if outcome.kicks.is_all() {
            (0..self.machine.topology.nr_cpus()).for_each(|kicked| self.kick(kicked, cpu));
        } else {
            outcome.kicks.iter().for_each(|kicked| self.kick(kicked, cpu));
        }
    }

    /// Makes a CPU look for work: the slice of the task that it runs ends.
    pub(crate) fn kick(&mut self, cpu: CpuId, by: CpuId) {
        if !self.masks.online().contains(cpu) {
            return;
        }
        self.stats.kicks += 1;
        self.note(What::Kick, cpu, None, by.into());
        if self.cpu(cpu).running.is_some() {
            self.account(cpu);
            self.end_slice(cpu);
        } else {
            // It is about to have something to do, so nobody else is sent there.
            self.idle.clear(cpu);
        }
        let model = &self.machine.model;
        let delay_ns = match self.cpu(cpu).running {
            // No interrupt: it looks when it is done with what it is in the midst of, which is a wake-up mostly.
            Some(_) if by == cpu => model.costs.wakeup_ns.max(1),
            Some(_) => self.machine.kick_ns(by, cpu),
            None => self.idle_exit_ns(cpu) + self.machine.kick_ns(by, cpu),
        };
        let at_ns = self.now_ns + delay_ns;
        self.alarms.set_if_earlier(Alarm::Resched(cpu), at_ns);
    }

    pub(crate) fn kick_if_idle(&mut self, cpu: CpuId, by: CpuId) {
        if self.cpu(cpu).running.is_none() {
            self.kick(cpu, by);
        }
    }

    /// The policy is gone. From here on each CPU runs its own tasks in turn.
    pub(crate) fn fall_back(&mut self, cpu: CpuId) {
        self.in_charge = false;
        self.note(What::Fault, cpu, None, 0);
        for (task, index) in self.tasks.iter().zip(0..) {
            let queue = &mut self.cpus[task.cpu as usize].queue;
            if task.state == State::Waiting && !queue.iter().any(|(other, _)| *other == index) {
                queue.push_back((index, DEFAULT_SLICE_NS));
            }
        }
        for other in 0..self.machine.topology.nr_cpus() {
            self.alarms.cancel(Alarm::Timer(other));
            if !self.cpu(other).queue.is_empty() {
                self.kick_if_idle(other, cpu);
            }
        }
    }

    // The life of a task.

    /// Creates a task that does not wait for a CPU yet.
    pub(crate) fn create(
        &mut self,
        root: u32,
        parent: Option<TaskIndex>,
        program: Place,
        nice: i32,
        mask: MaskId,
        cpu: CpuId,
    ) -> TaskIndex {
        let pid = self.next_pid;
        self.next_pid += 1;
        let task = Task {
            id: TaskId::NONE,
            is_ours: false,
            pid,
            state: State::New,
            cpu,
            ran_on: None,
            nice,
            mask,
            group: self.groups.of_root[root as usize],
            place: program,
            work: 0,
            rounds: 0,
            outer_rounds: SmallVec::new(),
            random: Random::stream(self.seed, pid.into()),
            timers: SmallVec::new(),
            spins_until_ns: None,
            round: 0,
            cpu_ns: 0,
            wait_ns: 0,
            waits_since_ns: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            migrations: 0,
            root,
            process: parent.map_or(pid, |parent| self.task(parent).process),
            parent: parent.map(|parent| (parent, self.task(parent).pid)),
            children: 0,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.tasks[index as usize] = task;
                index
            }
            None => {
                self.tasks.push(task);
                self.tasks.len() as TaskIndex - 1
            }
        };
        self.live += 1;
        self.stats.tasks += 1;
        self.load_op(index);
        let parent_pid = parent.map_or(0, |parent| self.task(parent).pid);
        self.note(What::New, cpu, Some(index), parent_pid.into());
        self.note_attributes(index);
        self.introduce(index);
        index
    }

    /// Makes the task the policy's, if there is one and it has room.
    pub(crate) fn introduce(&mut self, task: TaskIndex) {
        let Task { pid, cpu, .. } = *self.task(task);
        let event = Event { args: [0, pid.into()], ..Event::new(EventKind::TaskInit, cpu) };
        let Some(outcome) = self.deliver(&event, &u64::from(task).to_ne_bytes()) else { return };
        if outcome.status == Status::Full as i32 {
            self.stats.left_out += 1;
            return;
        }
        let entry = self.task_mut(task);
        (entry.id, entry.is_ours) = (outcome.task, true);
        self.questions.set_mask(outcome.task, self.task(task).mask);
        self.questions.set_group(outcome.task, self.task(task).group);
        self.questions.set_process(outcome.task, self.task(task).process);
        self.choose_policy(task);
        self.tell_group(task);
        let nice = i64::from(self.task(task).nice) as u64;
        let event = Event { args: [nice, 0], ..self.event(EventKind::TaskEnable, cpu, task) };
        self.deliver(&event, &[]);
    }

    fn choose_policy(&self, task: TaskIndex) {
        let name = &self.roots[self.task(task).root as usize].0.name;
        let is_its = self.second_has.iter().any(|begin| name.starts_with(begin.as_str()));
        if let Some(engine) = self.engine.as_ref().filter(|_| is_its) {
            engine.choose(self.task(task).id, Some(1), true, true).expect("both are there");
        }
    }

    /// A new task waits for a CPU for the first time.
    pub(crate) fn begin(&mut self, task: TaskIndex) {
        let before = self.task(task).cpu;
        let selected = self.select_cpu(task, None, wake_flags::FORK);
        self.enqueue_selected(task, selected, 0);
        self.kick_if_idle(selected.cpu, before);
    }

    /// The timer or the device that a task waits for interrupts the CPU where the task ran, which may have to leave its idle state
    /// before it can wake anything up.
    fn woken_by_interrupt(&mut self, task: TaskIndex) {
        match self.awake_at_ns(self.task(task).cpu) {
            Some(at_ns) => self.alarms.set(Alarm::Sleep(task), at_ns),
            None => {
                self.interrupt(self.task(task).cpu, self.machine.model.costs.interrupt_ns);
                self.wake(task, None, 0);
            }
        }
    }

    /// A task that slept waits for a CPU. `waker` is the CPU of the task that woke it up; a timer did it if absent. With
    /// [`wake_flags::SYNC`] that task is about to sleep.
    pub(crate) fn wake(&mut self, task: TaskIndex, waker: Option<CpuId>, flags: u64) {
        self.stats.wakeups += 1;
        let before = self.task(task).cpu;
        self.note(What::Wake, before, Some(task), waker.map_or(0, |waker| u64::from(waker) + 1));
        let selected = self.select_cpu(task, waker, flags | wake_flags::TTWU);
        self.enqueue_selected(task, selected, enqueue_flags::WAKEUP);
        self.kick_if_idle(selected.cpu, waker.unwrap_or(before));
    }

    /// Puts a task where it is to wait after it slept, or at its beginning. On a CPU that was idle and is claimed for
    /// it, it may be placed without that CPU having to ask.
    fn enqueue_selected(&mut self, task: TaskIndex, selected: Selected, flags: u64) {
        if selected.claimed && self.is_ours(task) {
            self.enqueue(task, selected.cpu, enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE);
            if self.cpu(selected.cpu).holds(task) {
                return;
            }
        }
        self.enqueue(task, selected.cpu, flags);
    }

    /// Puts a task on the run queue of `cpu`.
    pub(crate) fn enqueue(&mut self, task: TaskIndex, cpu: CpuId, flags: u64) {
        let now_ns = self.now_ns;
        let Task { cpu: before, state, .. } = *self.task(task);
        if before != cpu && state != State::New {
            self.note_migration(task, cpu);
        }
        if state == State::Waiting {
            self.cpu_mut(before).queue.retain(|(other, _)| *other != task);
        }
        let entry = self.task_mut(task);
        entry.cpu = cpu;
        if state != State::Waiting {
            entry.state = State::Waiting;
            entry.waits_since_ns = now_ns;
        }
        self.note(What::Enqueue, cpu, Some(task), flags);
        if !self.is_ours(task) {
            self.cpu_mut(cpu).queue.push_back((task, DEFAULT_SLICE_NS));
            if self.cpu(cpu).running.is_some_and(|running| self.is_ours(running)) {
                self.kick(cpu, cpu);
            }
            return;
        }
        let pinned = self.masks.get(self.task(task).mask).only.is_some();
        let flags = flags | if pinned { enqueue_flags::MAY_PLACE } else { 0 };
        let mut event = self.event(EventKind::Enqueue, cpu, task);
        event.flags = flags;
        // If the policy fails now, falling back queues the task.
        let Some(outcome) = self.ask(&event, &[]) else { return };
        if outcome.status == Status::Run as i32 {
            self.check_name(task, &outcome);
            self.cpu_mut(cpu).queue.push_back((task, slice_ns(&outcome)));
        }
        self.carry_out(cpu, &outcome);
    }

    /// Whether a policy is in charge of the task.
    pub(crate) fn is_ours(&self, task: TaskIndex) -> bool {
        self.in_charge && self.task(task).is_ours
    }

    /// The task that the outcome names must be the one that the engine knows by that name.
    fn check_name(&self, task: TaskIndex, outcome: &Outcome) {
        let same = u64::from(task) == outcome.host_task && self.task(task).id == outcome.task;
        assert!(same, "the engine and the simulator disagree about a task's name");
    }

    /// The task that runs on `cpu` sleeps. The CPU has nothing to run from here on.
    pub(crate) fn block(&mut self, task: TaskIndex, cpu: CpuId, state: State) {
        let entry = self.task_mut(task);
        entry.state = state;
        entry.voluntary_switches += 1;
        self.cpu_mut(cpu).running = None;
        self.note(What::Block, cpu, Some(task), 0);
        self.hints_are_due(task);
        self.tell_for(Call::TaskBlocked, EventKind::Block, cpu, task);
    }

    /// The task that runs on `cpu`, and is dead by now, leaves it for good. The last that is heard of it comes from
    /// what runs next.
    pub(crate) fn exit(&mut self, task: TaskIndex, cpu: CpuId) {
        self.note(What::Exit, cpu, Some(task), 0);
        self.cpu_mut(cpu).running = None;
        self.tell_for(Call::TaskBlocked, EventKind::Block, cpu, task);
        self.look_for_work(cpu, Some(task));
        self.tell(EventKind::TaskExit, cpu, task);
        if self.task(task).parent.is_none() && !self.shared.queues.is_empty() {
            self.close_queues(self.task(task).root);
        }
        self.free.push(task);
        self.live -= 1;
    }

    /// Takes the running task off its CPU, which has to look for work afterwards.
    pub(crate) fn stop_running(&mut self, cpu: CpuId) -> Option<TaskIndex> {
        self.account(cpu);
        let task = self.cpu_mut(cpu).running.take()?;
        self.task_mut(task).involuntary_switches += 1;
        self.note(What::Preempt, cpu, Some(task), 0);
        self.hints_are_due(task);
        Some(task)
    }

    fn note_migration(&mut self, task: TaskIndex, cpu: CpuId) {
        let before = self.task(task).cpu;
        self.task_mut(task).migrations += 1;
        self.note(What::Migrate, cpu, Some(task), before.into());
    }

    // A CPU and its time.

    /// Brings the running task's CPU time, work and slice up to the present.
    pub(crate) fn account(&mut self, cpu: CpuId) {
        let now_ns = self.now_ns;
        let entry = &mut self.cpus[cpu as usize];
        let Some(running) = entry.running else { return };
        let ran_ns = now_ns - entry.since_ns;
        if ran_ns == 0 {
            return;
        }
        entry.since_ns = now_ns;
        entry.slice_ns = entry.slice_ns.saturating_sub(ran_ns);
        let task = &mut self.tasks[running as usize];
        task.cpu_ns += ran_ns;
        task.work = task.work.saturating_sub(ran_ns.saturating_mul(entry.capacity));
        self.groups.spend(task.group, ran_ns, now_ns);
    }

    /// The slice of the running task ends now.
    pub(crate) fn end_slice(&mut self, cpu: CpuId) {
        self.cpu_mut(cpu).slice_ns = 0;
    }

    /// Sets the alarm for the moment at which the running task will have done its work.
    pub(crate) fn expect_work(&mut self, cpu: CpuId) {
        let Cpu { running: Some(task), capacity, .. } = self.cpus[cpu as usize] else { return };
        let Task { work, group, .. } = *self.task(task);
        // Whoever may not run any more goes to sleep at its first chance.
        let left_ns = if self.groups.used_up(group, self.now_ns) { 1 } else { work.div_ceil(capacity) };
        self.alarms.set(Alarm::Work(cpu), self.now_ns.saturating_add(left_ns));
    }

    fn tick(&mut self, cpu: CpuId) {
        // An idle CPU has no tick until it runs something again.
        let Some(running) = self.cpu(cpu).running else { return };
        self.stats.ticks += 1;
        self.account(cpu);
        self.note(What::Tick, cpu, Some(running), 0);
        self.hints_are_due(running);
        let tick_ns = self.machine.model.costs.tick_ns;
        self.take_time(cpu, tick_ns);
        self.alarms.set(Alarm::Tick(cpu), self.machine.next_tick_ns(cpu, self.now_ns));
        self.tell_for(Call::TaskTick, EventKind::Tick, cpu, running);
        if self.cpu(cpu).running == Some(running) && self.throttle(running, cpu) {
            self.look_for_work(cpu, Some(running));
        } else if self.cpu(cpu).slice_ns == 0 && tick_ns == 0 {
            self.look_for_work(cpu, None);
        } else if self.cpu(cpu).slice_ns == 0 {
            // After the tick's own work. What runs next will have run a little less than a whole number of periods when
            // it is ticked, which is why slices last up to a period longer than they are.
            self.alarms.set_if_earlier(Alarm::Resched(cpu), self.now_ns + tick_ns);
        }
    }

    /// A CPU decides what runs next. If it runs a task, that one could go on, and its slice is used up. `left` is the
    /// one that ran so far and sleeps now.
    pub(crate) fn look_for_work(&mut self, cpu: CpuId, left: Option<TaskIndex>) {
        self.account(cpu);
        self.alarms.cancel(Alarm::Resched(cpu));
        let before = self.cpu(cpu).running;
        let (choice, outcome) = self.pick(cpu, before, left);
        match choice {
            Some((task, slice_ns)) if Some(task) == before => {
                self.stats.keeps += 1;
                self.cpu_mut(cpu).slice_ns = slice_ns;
                self.note(What::Keep, cpu, before, slice_ns);
                self.expect_work(cpu);
            }
            Some((task, slice_ns)) => {
                self.put_aside(cpu, before, 0);
                self.switch_to(cpu, task, slice_ns);
            }
            None => {
                self.put_aside(cpu, before, enqueue_flags::LAST);
                self.stats.idles += 1;
                self.idle.set(cpu);
                self.cpu_mut(cpu).idle_since_ns = self.now_ns;
                self.alarms.cancel(Alarm::Work(cpu));
                self.note(What::Idle, cpu, None, 0);
                // The policy may have thought better of it.
                if !self.cpu(cpu).queue.is_empty() {
                    self.kick(cpu, cpu);
                }
            }
        }
        if self.cpu(cpu).is_busy != self.cpu(cpu).running.is_some() {
            self.share_core(cpu);
        }
        if let Some(outcome) = outcome {
            self.carry_out(cpu, &outcome);
        }
    }

    /// Who runs next on `cpu`, for how long, and what the policy asks for besides, which is for afterwards.
    fn pick(
        &mut self,
        cpu: CpuId,
        before: Option<TaskIndex>,
        left: Option<TaskIndex>,
    ) -> (Option<(TaskIndex, u64)>, Option<Outcome>) {
        if let Some(next) = self.cpu_mut(cpu).queue.pop_front() {
            return (Some(next), None);
        }
        if let Some(task) = before.filter(|task| !self.is_ours(*task)) {
            return (Some((task, DEFAULT_SLICE_NS)), None);
        }
        let mut event = Event::new(EventKind::Pick, cpu);
        if let Some(task) = before.or(left).filter(|task| self.is_ours(*task)) {
            (event.task, event.runtime_ns) = (self.task(task).id, self.task(task).cpu_ns);
        }
        if before.is_some() {
            event.flags = pick_flags::PREV_RUNNABLE;
        }
        let Some(outcome) = self.ask(&event, &[]) else {
            // Without a policy the tasks of a CPU take turns.
            let next = self.cpu_mut(cpu).queue.pop_front();
            return (next.or(before.map(|task| (task, DEFAULT_SLICE_NS))), None);
        };
        // The queue of tasks beyond the table was looked at above: unlike in the kernel, it is served first.
        if outcome.status == Status::Done as i32 || outcome.status == Status::Beyond as i32 {
            return (None, Some(outcome));
        }
        let task = outcome.host_task as TaskIndex;
        self.check_name(task, &outcome);
        if self.masks.get(self.task(task).mask).cpus.contains(cpu) {
            return (Some((task, slice_ns(&outcome))), Some(outcome));
        }
        self.refuse(cpu, task);
        let mut outcome = outcome;
        outcome.kicks.add(cpu);
        (None, Some(outcome))
    }

    /// The policy picked a task that may not run on this CPU (any more): it waits where it is.
    fn refuse(&mut self, cpu: CpuId, task: TaskIndex) {
        self.note(What::Refuse, cpu, Some(task), 0);
        let stays_on = self.task(task).cpu;
        let reason = RefusalReason::NotAllowed as u64;
        let event = Event { args: [reason, 0], ..self.event(EventKind::PickRefused, stays_on, task) };
        self.deliver(&event, &[]);
        self.kick_if_idle(stays_on, cpu);
    }

    /// The task that ran so far waits again.
    fn put_aside(&mut self, cpu: CpuId, before: Option<TaskIndex>, flags: u64) {
        let Some(task) = before else { return };
        self.stop_running(cpu);
        self.enqueue(task, cpu, flags);
    }

    fn switch_to(&mut self, cpu: CpuId, task: TaskIndex, slice_ns: u64) {
        let now_ns = self.now_ns;
        // The two that every other promise rests on: no task runs twice, and none runs without having waited.
        assert_eq!(self.task(task).state, State::Waiting, "PID {} is picked on CPU {cpu}", self.task(task).pid);
        assert_eq!(self.cpu(cpu).running, None, "CPU {cpu} runs a task already");
        self.stats.switches += 1;
        if self.task(task).cpu != cpu {
            self.note_migration(task, cpu);
        }
        let ran_on = self.task(task).ran_on;
        let others_ran = self.cpu(cpu).last != Some(task);
        let cold_ns = ran_on.map_or(0, |from| self.machine.cold_cache_ns(from, cpu, others_ran));
        let overhead_ns = self.machine.model.costs.switch_ns.saturating_add(cold_ns);
        if self.task(task).spins_until_ns.is_some() {
            // It looks again.
            self.task_mut(task).work = 0;
        }
        self.spend(task, overhead_ns);
        let entry = self.task_mut(task);
        entry.state = State::Running;
        entry.cpu = cpu;
        entry.ran_on = Some(cpu);
        entry.wait_ns += now_ns - entry.waits_since_ns;
        if ran_on.is_none() {
            self.note_start(task);
        }
        self.idle.clear(cpu);
        let entry = self.cpu_mut(cpu);
        (entry.running, entry.since_ns, entry.slice_ns) = (Some(task), now_ns, slice_ns);
        entry.last = Some(task);
        self.questions.set_running(cpu, self.task(task).id, now_ns);
        self.note(What::Run, cpu, Some(task), slice_ns);
        self.expect_work(cpu);
        if self.alarms.at_ns(Alarm::Tick(cpu)).is_none() {
            self.alarms.set(Alarm::Tick(cpu), self.machine.next_tick_ns(cpu, now_ns));
        }
    }

    /// One of the load's own tasks runs for the first time.
    fn note_start(&mut self, task: TaskIndex) {
        let Task { root, parent, .. } = *self.task(task);
        if parent.is_none() {
            self.roots[root as usize].0.start_ns.get_or_insert(self.now_ns);
        }
    }

    /// Adds to what a task has to do before its next step.
    pub(crate) fn spend(&mut self, task: TaskIndex, ns: u64) {
        let task = self.task_mut(task);
        task.work = task.work.saturating_add(ns.saturating_mul(WORK_PER_NS));
    }
}
