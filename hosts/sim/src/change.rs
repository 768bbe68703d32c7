//! Changes from outside: affinity, CPUs that come and go, and what is injected.

use ekiden::{Call, CpuId};
use ekiden_host::abi::{Event, EventKind};
use zerocopy::IntoBytes;

use crate::alarm::Alarm;
use crate::error::SimError;
use crate::kernel::Kernel;
use crate::masks::{ANY, MaskId};
use crate::simulation::Injection;
use crate::task::{State, Task, TaskIndex};
use crate::trace::What;
use ekiden_contain::contained;

impl Kernel {
    /// The task may use these CPUs from now on. If it runs where it may not, it is taken off. As in the kernel, nothing
    /// changes if all these CPUs are offline.
    pub(crate) fn set_affinity(&mut self, task: TaskIndex, mask: MaskId) {
        if self.masks.get(mask).cpus.is_empty() {
            return;
        }
        self.change_affinity(task, mask);
        let cpu = self.task(task).cpu;
        if self.leave_forbidden_cpu(task) {
            self.look_for_work(cpu, None);
        }
    }

    /// As in the kernel, a task all of whose CPUs have gone may use any from then on.
    pub(crate) fn widen_affinity(&mut self, task: TaskIndex) {
        if self.masks.get(self.task(task).mask).cpus.is_empty() {
            self.change_affinity(task, ANY);
        }
    }

    fn change_affinity(&mut self, task: TaskIndex, mask: MaskId) {
        let cpu = self.task(task).cpu;
        self.task_mut(task).mask = mask;
        let count = self.masks.get(mask).cpus.count();
        self.push_record(What::Affinity, cpu, Some(task), count.into());
        self.push_allowed(task);
        if self.is_ours(task) {
            self.questions.set_mask(self.task(task).id, mask);
            self.tell_for(Call::TaskAffinityChanged, EventKind::Affinity, cpu, task);
        }
    }

    /// Moves a task that runs or waits where it may not. True if it ran, so that its CPU has lost its work.
    fn leave_forbidden_cpu(&mut self, task: TaskIndex) -> bool {
        let Task { cpu, state, .. } = *self.task(task);
        // A task that sleeps moves when it wakes up.
        if !matches!(state, State::Running | State::Waiting) {
            return false;
        }
        self.widen_affinity(task);
        let usable = &self.masks.get(self.task(task).mask).cpus;
        if usable.contains(cpu) {
            return false;
        }
        let to = usable.pick_from(cpu).expect("some CPU is online");
        if state == State::Running {
            self.stop_running(cpu);
        }
        self.enqueue(task, to, 0);
        self.kick_if_idle(to, cpu);
        state == State::Running
    }

    pub(crate) fn cpu_offline(&mut self, cpu: CpuId) {
        if !self.masks.online().contains(cpu) {
            return;
        }
        if self.masks.online().count() == 1 {
            self.trouble.get_or_insert(SimError::LastCpu { cpu, at_ns: self.now_ns });
            return;
        }
        self.push_record(What::Offline, cpu, None, 0);
        self.masks.set_online(cpu, false);
        self.questions.set_masks(self.masks.clone());
        self.idle.clear(cpu);
        self.deliver(&Event::new(EventKind::CpuOffline, cpu), &[]);
        // All tasks are looked at here, and nowhere else: CPUs go seldom.
        for task in 0..self.tasks.len() as TaskIndex {
            if self.task(task).cpu == cpu {
                self.leave_forbidden_cpu(task);
            }
        }
        for alarm in [Alarm::Work(cpu), Alarm::Tick(cpu), Alarm::Timer(cpu), Alarm::Resched(cpu)] {
            self.alarms.cancel(alarm);
        }
        self.share_core(cpu);
    }

    pub(crate) fn cpu_online(&mut self, cpu: CpuId) {
        if self.masks.online().contains(cpu) {
            return;
        }
        self.push_record(What::Online, cpu, None, 0);
        self.masks.set_online(cpu, true);
        self.questions.set_masks(self.masks.clone());
        self.deliver(&Event::new(EventKind::CpuOnline, cpu), &[]);
        self.kick(cpu, cpu);
    }

    /// Does everything that is to be injected now.
    pub(crate) fn inject_due(&mut self) {
        while let Some((at_ns, _)) = self.injections.last() {
            if *at_ns > self.now_ns {
                self.alarms.set(Alarm::Inject, *at_ns);
                return;
            }
            if let Some((_, injection)) = self.injections.pop() {
                self.inject(injection);
            }
        }
    }

    fn inject(&mut self, injection: Injection) {
        match injection {
            Injection::CpuOffline { cpu } => self.cpu_offline(cpu),
            Injection::CpuOnline { cpu } => self.cpu_online(cpu),
            Injection::Nice { task, nice } => {
                if let Some(task) = self.living(&task) {
                    self.set_nice(task, nice);
                }
            }
            Injection::Affinity { task, cpus } => {
                let Some(task) = self.living(&task) else { return };
                // Known already: every set was given its number before the start.
                let mask = self.masks.intern(cpus.as_deref());
                self.set_affinity(task, mask);
            }
            Injection::Depart { task } => {
                if let Some(task) = self.living(&task).filter(|task| self.is_ours(*task)) {
                    self.depart(task);
                }
            }
            Injection::Return { task } => {
                let task = self.living(&task).filter(|task| !self.is_ours(*task) && self.in_charge);
                if let Some(task) = task {
                    self.come_back(task);
                }
            }
            Injection::Hint { task, bytes } => {
                let teller = task.and_then(|task| self.living(&task));
                let event = match teller.filter(|task| self.is_ours(*task)) {
                    Some(task) => self.event(EventKind::Hint, self.task(task).cpu, task),
                    None => Event::new(EventKind::Hint, 0),
                };
                let event = Event { args: [0, bytes.len() as u64], ..event };
                let outcome = self.deliver(&event, &bytes);
                let taken = outcome.is_some_and(|outcome| outcome.cpu >= 0);
                self.push_record(What::Hint, event.cpu, teller, taken.into());
            }
            Injection::Params { task, settings } => {
                if let Some(task) = self.living(&task).filter(|task| self.is_ours(*task)) {
                    self.set_params(task, &settings);
                }
            }
            Injection::QueueOpen { queue } => self.open_queue(queue, None),
            Injection::QueueReady { queue, hints } => self.hear_hints(queue, None, &hints, 0),
            Injection::QueueClose { queue } => self.close_queue(queue, None),
        }
    }

    fn set_params(&mut self, task: TaskIndex, settings: &str) {
        let cpu = self.task(task).cpu;
        let policy = self.engine.as_ref().and_then(|engine| engine.policy(engine.default_policy_slot()));
        let params = policy.and_then(|policy| contained(|| policy.task_params(settings)).ok()?.ok());
        self.push_record(What::Hint, cpu, Some(task), params.is_some().into());
        if let Some(params) = params {
            let event = self.event(EventKind::TaskParams, cpu, task);
            self.deliver(&event, params.as_bytes());
        }
    }

    /// The task leaves the policy for the kernel's own scheduler.
    fn depart(&mut self, task: TaskIndex) {
        let Task { cpu, state, .. } = *self.task(task);
        self.push_record(What::Depart, cpu, Some(task), 0);
        self.tell(EventKind::TaskDisable, cpu, task);
        self.task_mut(task).is_ours = false;
        // A task that runs continues.
        if state == State::Waiting && self.in_charge {
            self.enqueue(task, cpu, 0);
            self.kick_if_idle(cpu, cpu);
        }
    }

    /// The task comes to the policy, again or for the first time.
    fn come_back(&mut self, task: TaskIndex) {
        let Task { cpu, state, .. } = *self.task(task);
        self.push_record(What::Return, cpu, Some(task), 0);
        if state == State::Running {
            self.stop_running(cpu);
        }
        self.introduce(task);
        if matches!(state, State::Running | State::Waiting) {
            self.enqueue(task, cpu, 0);
            match state {
                State::Running => self.look_for_work(cpu, None),
                _ => self.kick_if_idle(cpu, cpu),
            }
        }
    }

    /// The load's task of this name, if it is not gone.
    fn living(&self, name: &str) -> Option<TaskIndex> {
        let root = self.roots.iter().position(|(report, _)| report.name == name)?;
        let index = self.roots[root].1;
        let task = self.task(index);
        // Its place may be another task's by now.
        let is_it = task.root as usize == root && task.parent.is_none() && task.state != State::Dead;
        is_it.then_some(index)
    }
}
