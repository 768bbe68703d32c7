//! A CPU and its time: what has run there is accounted, its tick, and which task it switches to.

use ekiden::{Call, CpuId};
use ekiden_host::abi::{Event, EventKind, Outcome, RefusalReason, Status, enqueue_flags, pick_flags};

use super::{Cpu, Kernel, slice_ns};
use crate::alarm::Alarm;
use crate::machine::DEFAULT_SLICE_NS;
use crate::task::{State, Task, TaskIndex, WORK_PER_NS};
use crate::trace::What;

impl Kernel {
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
        // A task whose group has no time left goes to sleep at its first chance.
        let left_ns = if self.groups.used_up(group, self.now_ns) { 1 } else { work.div_ceil(capacity) };
        self.alarms.set(Alarm::Work(cpu), self.now_ns.saturating_add(left_ns));
    }

    pub(super) fn tick(&mut self, cpu: CpuId) {
        // An idle CPU has no tick until it runs something again.
        let Some(running) = self.cpu(cpu).running else { return };
        self.stats.ticks += 1;
        self.account(cpu);
        self.push_record(What::Tick, cpu, Some(running), 0);
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
                self.push_record(What::Keep, cpu, before, slice_ns);
                self.expect_work(cpu);
            }
            Some((task, slice_ns)) => {
                self.put_aside(cpu, before, 0);
                if !self.in_charge {
                    // If the policy has faulted just now, the fallback has queued the picked task with all that wait.
                    self.cpu_mut(cpu).queue.retain(|(other, _)| *other != task);
                }
                self.switch_to(cpu, task, slice_ns);
            }
            None => {
                self.put_aside(cpu, before, enqueue_flags::LAST);
                self.stats.idles += 1;
                self.idle.set(cpu);
                self.cpu_mut(cpu).idle_since_ns = self.now_ns;
                self.alarms.cancel(Alarm::Work(cpu));
                self.push_record(What::Idle, cpu, None, 0);
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

    /// The task that runs next on `cpu`, for how long, and what the policy asks for besides, which is for afterwards.
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
        self.push_record(What::Refuse, cpu, Some(task), 0);
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
        self.push_record(What::Run, cpu, Some(task), slice_ns);
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
