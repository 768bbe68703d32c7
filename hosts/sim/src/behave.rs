//! What tasks do: the effects of the steps of their programs.

use ekiden::CpuId;
use ekiden_host::abi::{Event, EventKind};
use ekiden_workload::spec::PIPE_CAPACITY;

use crate::alarm::Alarm;
use crate::kernel::{Kernel, wake_flags};
use crate::program::{Effect, FOR_EVER, Place};
use crate::task::{State, TaskIndex, WORK_PER_NS};
use crate::trace::What;

/// Marks kept of each task, as in a real run.
const MARKS_MAX: usize = 1_000;

/// How a task stands after a step.
pub(crate) enum Flow {
    /// It continues.
    On,
    /// It would go on, and its CPU looks whether another one should.
    GivesWay,
    /// It sleeps.
    Sleeps,
    /// It has left its CPU, and that has done what there was to do about it.
    Gone,
}

impl Kernel {
    /// The task that runs on `cpu` has done the work of its operation.
    #[inline(always)]
    pub(crate) fn work_done(&mut self, cpu: CpuId) {
        self.account(cpu);
        if let Some(task) = self.cpu(cpu).running.filter(|task| self.throttle(*task, cpu)) {
            return self.look_for_work(cpu, Some(task));
        }
        while let Some(task) = self.cpu(cpu).running.filter(|task| self.task(*task).work == 0) {
            match self.perform(task, cpu) {
                Flow::On => {}
                Flow::GivesWay => return self.look_for_work(cpu, None),
                Flow::Sleeps => return self.look_for_work(cpu, Some(task)),
                Flow::Gone => return,
            }
        }
        self.expect_work(cpu);
    }

    /// Takes on the work of the operation that the task has come to.
    pub(crate) fn load_op(&mut self, index: TaskIndex) {
        let permille = u64::from(self.machine.model.jitter.work_permille.min(1_000));
        let task = &mut self.tasks[index as usize];
        let mut work = self.programs.op(task.place).work_ns.saturating_mul(WORK_PER_NS);
        if permille > 0 && work > 0 {
            let thousandths = 1_000 - permille + task.random.up_to(2 * permille);
            work = (u128::from(work) * u128::from(thousandths) / 1_000).clamp(1, u64::MAX.into()) as u64;
        }
        task.work = task.work.saturating_add(work);
    }

    pub(crate) fn go_to(&mut self, task: TaskIndex, place: Place) {
        self.task_mut(task).place = place;
        self.load_op(task);
    }

    fn perform(&mut self, task: TaskIndex, cpu: CpuId) -> Flow {
        let place = self.task(task).place;
        let op = self.programs.op(place);
        match op.effect {
            Effect::LoopEnd { back } => {
                let entry = self.task_mut(task);
                if entry.rounds != FOR_EVER {
                    entry.rounds -= 1;
                }
                if entry.rounds > 0 {
                    self.go_to(task, place - back);
                } else {
                    entry.rounds = entry.outer_rounds.pop().expect("a loop that ends has begun");
                    self.go_to(task, place + 1);
                }
                return Flow::On;
            }
            Effect::Wait if self.task(task).children > 0 => {
                // It asks again after each child that ends, as `waitid` does.
                self.spend(task, self.machine.model.costs.syscall_ns.max(1));
                self.block(task, cpu, State::ForChild);
                return Flow::Sleeps;
            }
            Effect::RunFor { ns } => {
                self.run_for(task, cpu, ns);
                return Flow::On;
            }
            Effect::Lock { lock, mode } => return self.lock(task, cpu, lock, mode),
            Effect::PipeRead { pipe } => return self.pipe_read(task, cpu, pipe),
            Effect::PipePoll { pipe, spin_ns, idle } => {
                if !self.pipe_poll(task, cpu, pipe, spin_ns) {
                    self.go_to(task, place + idle);
                }
                return Flow::On;
            }
            Effect::UnlessHeld { pipe, at_least, forth } => {
                let is_held = self.shared.pipes[pipe as usize].bytes >= at_least as usize;
                self.go_to(task, place + if is_held { 1 } else { forth });
                return Flow::On;
            }
            Effect::Jump { by } => {
                self.go_to(task, place.wrapping_add_signed(by));
                return Flow::On;
            }
            Effect::ReadNotice { queue } => return self.read_notice(task, cpu, queue),
            Effect::Barrier { barrier, parties, mode } => return self.barrier(task, cpu, barrier, parties, mode),
            Effect::Exit => {
                self.task_mut(task).state = State::Dead;
                self.wake_parent(task, cpu);
                self.exit(task, cpu);
                return Flow::Gone;
            }
            _ => {}
        }
        // Everything else is done with when it happens, even if the task then sleeps.
        self.go_to(task, place + 1);
        match op.effect {
            Effect::Sleep { ns } => return self.sleep(task, cpu, ns),
            Effect::PipeWrite { pipe } => return self.pipe_write(task, cpu, pipe),
            Effect::Unlock { lock } => self.unlock(task, cpu, lock),
            Effect::WriteHint { queue, hint, ring } => self.write_hint(task, queue, hint, ring),
            Effect::Await { condition, lock } => return self.wait_for(task, cpu, condition, lock),
            Effect::Signal { condition, most } => self.signal(task, cpu, condition, most),
            Effect::Io { device } => return self.request(task, cpu, device),
            Effect::Timer { timer, period_ns, restart } => return self.timer(task, cpu, timer, period_ns, restart),
            Effect::SetOnline { cpu: other, online } => {
                match online {
                    true => self.cpu_online(other),
                    false => self.cpu_offline(other),
                }
                if self.cpu(cpu).running != Some(task) {
                    return Flow::Gone;
                }
            }
            Effect::Yield => {
                self.push_record(What::Yield, cpu, Some(task), 0);
                self.tell(EventKind::Yield, cpu, task);
                self.end_slice(cpu);
                return Flow::GivesWay;
            }
            Effect::SetNice { nice } => self.set_nice(task, nice),
            Effect::SetAffinity { mask } => {
                self.set_affinity(task, mask);
                if self.cpu(cpu).running != Some(task) {
                    return Flow::Gone;
                }
            }
            Effect::Fork { program } => {
                let parent = self.task_mut(task);
                parent.children += 1;
                let (root, nice, mask) = (parent.root, parent.nice, parent.mask);
                self.roots[root as usize].0.forked += 1;
                let child = self.create(root, Some(task), program, nice, mask, cpu);
                self.spend(child, self.machine.model.costs.child_ns);
                self.begin(child);
            }
            Effect::Mark => {
                self.push_record(What::Mark, cpu, Some(task), 0);
                let (now_ns, root) = (self.now_ns, self.task(task).root);
                let marks = &mut self.roots[root as usize].0.marks_ns;
                if marks.len() < MARKS_MAX {
                    marks.push(now_ns);
                }
            }
            Effect::LoopBegin { times } => {
                let entry = self.task_mut(task);
                let around = std::mem::replace(&mut entry.rounds, times);
                entry.outer_rounds.push(around);
            }
            Effect::Finish => self.finish(task, cpu),
            Effect::Nothing
            | Effect::RunFor { .. }
            | Effect::PipeRead { .. }
            | Effect::PipePoll { .. }
            | Effect::UnlessHeld { .. }
            | Effect::Jump { .. }
            | Effect::ReadNotice { .. }
            | Effect::Lock { .. }
            | Effect::Barrier { .. }
            | Effect::Wait
            | Effect::LoopEnd { .. }
            | Effect::Exit => {}
        }
        Flow::On
    }

    fn sleep(&mut self, task: TaskIndex, cpu: CpuId, ns: u64) -> Flow {
        if ns == 0 {
            return Flow::On;
        }
        self.sleep_until(task, cpu, self.now_ns.saturating_add(ns))
    }

    fn sleep_until(&mut self, task: TaskIndex, cpu: CpuId, at_ns: u64) -> Flow {
        let slack_ns = self.machine.model.timer_slack_ns.saturating_add(match self.machine.model.jitter.sleep_ns {
            0 => 0,
            most_ns => self.task_mut(task).random.up_to(most_ns),
        });
        self.alarms.set(Alarm::Sleep(task), at_ns.saturating_add(slack_ns));
        self.block(task, cpu, State::Asleep);
        Flow::Sleeps
    }

    fn timer(&mut self, task: TaskIndex, cpu: CpuId, number: u32, period_ns: u64, restart: bool) -> Flow {
        let now_ns = self.now_ns;
        let timers = &mut self.task_mut(task).timers;
        timers.resize(timers.len().max(number as usize + 1), None);
        let timer = &mut timers[number as usize];
        let next_ns = timer.unwrap_or(now_ns).saturating_add(period_ns);
        let passed = next_ns <= now_ns;
        *timer = Some(if passed && restart { now_ns } else { next_ns });
        if passed { Flow::On } else { self.sleep_until(task, cpu, next_ns) }
    }

    fn request(&mut self, task: TaskIndex, cpu: CpuId, number: u32) -> Flow {
        let queue = &mut self.shared.devices[number as usize];
        if queue.busy < queue.device.servers {
            queue.busy += 1;
            self.serve(task, number);
        } else {
            queue.waiting.push_back(task);
        }
        self.block(task, cpu, State::InIo { device: number });
        Flow::Sleeps
    }

    /// A server of the device begins with the task's request.
    fn serve(&mut self, task: TaskIndex, device: u32) {
        let device = &self.shared.devices[device as usize].device;
        let service_ns = match device.exponential {
            true => self.tasks[task as usize].random.exponential(device.service_ns),
            false => device.service_ns,
        };
        self.alarms.set(Alarm::Sleep(task), self.now_ns.saturating_add(service_ns));
    }

    /// A request has been served; the device begins the next.
    pub(crate) fn served(&mut self, device: u32) {
        let queue = &mut self.shared.devices[device as usize];
        match queue.waiting.pop_front() {
            Some(next) => self.serve(next, device),
            None => queue.busy -= 1,
        }
    }

    fn pipe_write(&mut self, task: TaskIndex, cpu: CpuId, number: u32) -> Flow {
        let pipe = &mut self.shared.pipes[number as usize];
        if pipe.bytes == PIPE_CAPACITY {
            pipe.writers.push_back(task);
            self.block(task, cpu, State::Writing { pipe: number });
            return Flow::Sleeps;
        }
        if self.hand_to_spinner(number) {
            return Flow::On;
        }
        let pipe = &mut self.shared.pipes[number as usize];
        pipe.bytes += 1;
        // As in Linux: where there were bytes already, a reader has been woken up for them.
        if pipe.bytes == 1 {
            self.wake_reader(task, cpu, number);
        }
        Flow::On
    }

    /// A reader that was woken up comes here again, and may find that another one was faster.
    fn pipe_read(&mut self, task: TaskIndex, cpu: CpuId, number: u32) -> Flow {
        let pipe = &mut self.shared.pipes[number as usize];
        if pipe.bytes == 0 {
            pipe.readers.push_back(task);
            self.block(task, cpu, State::Reading { pipe: number });
            return Flow::Sleeps;
        }
        self.go_to(task, self.task(task).place + 1);
        self.take_byte(task, cpu, number);
        Flow::On
    }

    /// The task that runs on `cpu` has a byte of those that the pipe holds.
    #[inline(always)]
    pub(crate) fn take_byte(&mut self, task: TaskIndex, cpu: CpuId, number: u32) {
        let pipe = &mut self.shared.pipes[number as usize];
        match pipe.writers.pop_front() {
            // Its byte takes the place of the one that was read.
            Some(writer) => self.wake_by(task, cpu, writer, wake_flags::SYNC),
            None => pipe.bytes -= 1,
        }
        if self.shared.pipes[number as usize].bytes > 0 {
            self.wake_reader(task, cpu, number);
        }
    }

    /// Wakes up the reader that has waited longest. It sees to the next one, if it leaves bytes.
    #[inline(always)]
    fn wake_reader(&mut self, waker: TaskIndex, cpu: CpuId, number: u32) {
        if let Some(reader) = self.shared.pipes[number as usize].readers.pop_front() {
            self.wake_by(waker, cpu, reader, wake_flags::SYNC);
        }
    }

    /// The task that runs on `cpu` wakes another one up: through a pipe, for which the kernel expects the waker to sleep
    /// soon itself, or a futex, for which it does not.
    pub(crate) fn wake_by(&mut self, waker: TaskIndex, cpu: CpuId, task: TaskIndex, flags: u64) {
        self.spend(waker, self.machine.model.costs.wakeup_ns);
        self.wake(task, Some(cpu), flags);
    }

    fn wake_parent(&mut self, task: TaskIndex, cpu: CpuId) {
        let Some((parent, pid)) = self.task(task).parent else { return };
        let entry = self.task_mut(parent);
        if entry.pid != pid || entry.state == State::Dead {
            return;
        }
        entry.children -= 1;
        if entry.state == State::ForChild {
            self.wake(parent, Some(cpu), wake_flags::SYNC);
        }
    }

    pub(crate) fn set_nice(&mut self, task: TaskIndex, nice: i32) {
        self.task_mut(task).nice = nice;
        let value = i64::from(nice) as u64;
        let cpu = self.task(task).cpu;
        self.push_record(What::Nice, cpu, Some(task), value);
        if self.is_ours(task) {
            let event = Event { args: [value, 0], ..self.event(EventKind::Nice, cpu, task) };
            self.deliver(&event, &[]);
        }
    }

    /// The task has come to the end of its program.
    fn finish(&mut self, task: TaskIndex, cpu: CpuId) {
        self.push_record(What::Finish, cpu, Some(task), 0);
        let entry = self.task(task);
        let (root, cpu_ns, is_child) = (entry.root, entry.cpu_ns, entry.parent.is_some());
        let report = &mut self.roots[root as usize].0;
        if is_child {
            report.forked_finished += 1;
            report.forked_cpu_ns += cpu_ns;
        } else {
            report.finish_ns = Some(self.now_ns);
            self.fill_in(root);
        }
    }

    /// Puts what one of the load's tasks has done so far into its report.
    pub(crate) fn fill_in(&mut self, root: u32) {
        let (report, task) = &mut self.roots[root as usize];
        let task = &self.tasks[*task as usize];
        let waits_ns = if task.state == State::Waiting { self.now_ns - task.waits_since_ns } else { 0 };
        report.cpu_ns = task.cpu_ns;
        report.voluntary_switches = task.voluntary_switches;
        report.involuntary_switches = task.involuntary_switches;
        report.wait_ns = Some(task.wait_ns + waits_ns);
        report.migrations = Some(task.migrations);
        report.last_cpu = task.ran_on;
    }
}
