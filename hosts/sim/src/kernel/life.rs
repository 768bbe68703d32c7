//! The life of a task: it is created, introduced, woken up, put on a run queue, blocks and exits.

use ekiden::{Call, CpuId, TaskId};
use ekiden_host::abi::{Event, EventKind, Outcome, Status, enqueue_flags};
use ekiden_workload::random::Random;
use smallvec::SmallVec;

use super::{Kernel, slice_ns, wake_flags};
use crate::alarm::Alarm;
use crate::machine::DEFAULT_SLICE_NS;
use crate::masks::MaskId;
use crate::place::Selected;
use crate::program::Place;
use crate::task::{State, Task, TaskIndex};
use crate::trace::What;

impl Kernel {
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
        self.push_record(What::New, cpu, Some(index), parent_pid.into());
        self.push_attributes(index);
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
    pub(super) fn woken_by_interrupt(&mut self, task: TaskIndex) {
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
        self.push_record(What::Wake, before, Some(task), waker.map_or(0, |waker| u64::from(waker) + 1));
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
        self.push_record(What::Enqueue, cpu, Some(task), flags);
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
    pub(super) fn check_name(&self, task: TaskIndex, outcome: &Outcome) {
        let same = u64::from(task) == outcome.host_task && self.task(task).id == outcome.task;
        assert!(same, "the engine and the simulator disagree about a task's name");
    }

    /// The task that runs on `cpu` sleeps. The CPU has nothing to run from here on.
    pub(crate) fn block(&mut self, task: TaskIndex, cpu: CpuId, state: State) {
        let entry = self.task_mut(task);
        entry.state = state;
        entry.voluntary_switches += 1;
        self.cpu_mut(cpu).running = None;
        self.push_record(What::Block, cpu, Some(task), 0);
        self.hints_are_due(task);
        self.tell_for(Call::TaskBlocked, EventKind::Block, cpu, task);
    }

    /// The task that runs on `cpu`, and is dead by now, leaves it for good. The last that is heard of it comes from
    /// what runs next.
    pub(crate) fn exit(&mut self, task: TaskIndex, cpu: CpuId) {
        self.push_record(What::Exit, cpu, Some(task), 0);
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
        self.push_record(What::Preempt, cpu, Some(task), 0);
        self.hints_are_due(task);
        Some(task)
    }

    pub(super) fn note_migration(&mut self, task: TaskIndex, cpu: CpuId) {
        let before = self.task(task).cpu;
        self.task_mut(task).migrations += 1;
        self.push_record(What::Migrate, cpu, Some(task), before.into());
    }
}
