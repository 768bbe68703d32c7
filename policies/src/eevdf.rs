//! Earliest eligible virtual deadline first, as the kernel's own fair scheduler does it: of the tasks that have had no more
//! than their share, the one runs whose next slice is due first. It gives up what the kernel's knows of energy, of
//! core scheduling and of clusters within an LLC.
//!
//! Between CPUs it balances as `balance` does, without the bugs.
//!
//! Lines without tests: 265 at most.

mod run_queue;

use core::ops::RangeInclusive;

use ekiden::{HintRefused, prelude::*};

use crate::balance::{Balancer, Bugs};
use run_queue::{Entity, RunQueue, Running};

/// Slices that tasks may ask for, as in the kernel.
const SLICES_NS: RangeInclusive<u64> = 100_000..=100_000_000;

/// How many of the tasks that wait on a CPU are looked at for one to move.
const LOOKED_AT: usize = 32;

/// Earliest eligible virtual deadline first.
#[derive(Layout)]
pub struct Eevdf {
    queues: PerCpu<SpinLock<RunQueue>>,
    /// Locked before queues.
    tasks: PerTask<SpinLock<Account>>,
    balancer: Balancer,
    slice_ns: u64,
    protected_ns: u64,
}

/// State of one task. It is locked in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    /// The entity as of the last charge on `cpu`; if it waits, its place in the queue.
    entity: Entity,
    cpu: CpuId,
    charged_ns: u64,
    /// What it was owed when it left the queue, and what the average was then.
    lag: i64,
    left_at: i64,
    /// The slice that it asked for, in nanoseconds.
    slice_ns: u64,
}

impl Account {
    fn charge(&mut self, task: &Task) -> bool {
        let ran_ns = task.runtime_ns.saturating_sub(self.charged_ns);
        self.charged_ns = task.runtime_ns;
        self.entity.run(ran_ns)
    }

    /// Another weight, and the same distances in CPU time.
    fn reweight(&mut self, weight: u32, average: i64) {
        let entity = self.entity;
        let scaled = |distance: i64| distance * i64::from(entity.weight) / i64::from(weight.max(1));
        self.lag = scaled(self.lag);
        let vruntime = average - scaled(entity.lag(average));
        self.entity = Entity { vruntime, deadline: vruntime + scaled(entity.ahead()), weight, ..entity };
    }
}

impl Eevdf {
    /// Puts a task on the queue of its token's CPU, so that it is owed there what it was owed when it left. Its slice is due
    /// after `request` of virtual time.
    fn place(&self, cx: &Cx, task: &Task, account: &mut Account, request: i64, token: Schedulable<Self>) {
        let cpu = token.cpu();
        let mut queue = self.queues[cpu].lock();
        let running = queue.running(cx);
        let average = queue.average(running);
        // A task that joins moves the average towards itself, and would be owed less than before.
        let weight = i64::from(account.entity.weight);
        let others = queue.weight + running.map_or(0, |running| i64::from(running.weight));
        let lag = if others == 0 { 0 } else { account.lag * (others + weight) / others };
        account.cpu = cpu;
        account.entity.vruntime = average - lag;
        account.entity.deadline = average - lag + request;
        queue.insert(account.entity, token);
        self.balancer.waits(cx, task, cpu);
        if running.is_some_and(|running| queue.preempts(task.id, &account.entity, &running)) {
            cx.resched(cpu);
        }
    }

    /// Groups may have given it another weight since it began to wait last.
    fn weigh(&self, cx: &Cx, task: &Task, account: &mut Account) {
        if account.entity.weight != task.weight {
            let average = {
                let mut queue = self.queues[account.cpu].lock();
                let running = queue.running(cx);
                queue.average(running)
            };
            account.reweight(task.weight, average);
        }
    }

    /// Puts a task that ran back where it stands.
    fn put_back(&self, cx: &Cx, task: &Task, account: &mut Account, token: Schedulable<Self>) {
        if account.cpu != token.cpu() {
            self.take_off(cx, task.id, account);
            return self.place(cx, task, account, account.entity.ahead(), token);
        }
        let mut queue = self.queues[account.cpu].lock();
        queue.stop(task.id);
        queue.insert(account.entity, token);
        self.balancer.waits(cx, task, account.cpu);
    }

    /// Takes a task off its queue, whether it runs or waits there, and notes what it is owed.
    fn take_off(&self, cx: &Cx, task: TaskId, account: &mut Account) -> Option<Schedulable<Self>> {
        let mut queue = self.queues[account.cpu].lock();
        let running = if queue.is_running(task) { Some(account.entity) } else { queue.running(cx) };
        account.left_at = queue.average(running);
        account.lag = account.entity.lag(account.left_at);
        queue.stop(task);
        let token = queue.remove(&account.entity, task)?;
        self.balancer.leaves(task, account.cpu);
        Some(token)
    }

    /// The task that moves is the one on the busiest CPU with the latest deadline.
    fn find(&self, busiest: CpuId, wanted: &dyn Fn(TaskId) -> bool) -> Option<TaskId> {
        let queue = self.queues[busiest].lock();
        let mut tasks = queue.waiting.iter().rev().map(|(_, token)| token.task()).take(LOOKED_AT);
        tasks.find(|task| wanted(*task))
    }
}

/// The kernel's slice of a task that asks for none, `sysctl_sched_base_slice`, grows with the logarithm of the number of CPUs, up to eight.
fn kernels_slice_ns(cpus: u32) -> u64 {
    700_000 * u64::from(1 + cpus.clamp(1, 8).ilog2())
}

#[policy(HintQueues, TaskSettings)]
impl Scheduler for Eevdf {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "slice_us",
            help: "slice of a task that asks for none; 0 for the kernel's: 700 on one CPU, 2,800 on eight or more",
            default: 0,
            min: 0,
            max: 100_000,
        },
        Param {
            name: "protected_us",
            help: "how much of its slice a task runs before one that wakes up may preempt it",
            default: 100_000,
            min: 0,
            max: 100_000,
        },
    ];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            tasks: PerTask::new(env, SpinLock::default),
            balancer: Balancer::new(env, Bugs::default(), false),
            slice_ns: match env.param("slice_us") {
                0 => kernels_slice_ns(env.topology().nr_cpus()),
                us => (us * 1000).max(*SLICES_NS.start()),
            },
            protected_ns: env.param("protected_us") * 1000,
        }
    }

    /// A new task is owed nothing. Its first slice is half as long, to let it in among those that are there.
    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.balancer.begins(cx, task);
        let mut account = self.tasks[task.id].lock();
        let entity = Entity { slice_ns: self.slice_ns, weight: task.weight, ..Entity::default() };
        *account = Account { entity, charged_ns: task.runtime_ns, slice_ns: self.slice_ns, ..Account::default() };
        self.place(cx, task, &mut account, entity.scaled(self.slice_ns) / 2, token);
    }

    /// What a task is owed it is still owed after it has slept. What it owes is forgotten as the others catch up, which the
    /// kernel does by leaving such sleepers on the queue until then.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.balancer.wakes(cx, task);
        let mut account = self.tasks[task.id].lock();
        if account.lag < 0 {
            let mut queue = self.queues[account.cpu].lock();
            let running = queue.running(cx);
            let caught_up = queue.average(running) - account.left_at;
            account.lag = (account.lag + caught_up.max(0)).min(0);
        }
        account.charged_ns = task.runtime_ns;
        account.entity.slice_ns = account.slice_ns;
        self.weigh(cx, task, &mut account);
        let request = account.entity.scaled(account.slice_ns);
        self.place(cx, task, &mut account, request, token);
    }

    /// Preempted and handed back tasks stand where they stood.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let mut account = self.tasks[task.id].lock();
        account.charge(task);
        self.weigh(cx, task, &mut account);
        self.put_back(cx, task, &mut account, token);
    }

    /// A task that yields gives up the rest of its slice, and is due a slice later than it would be.
    fn task_yield(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let mut account = self.tasks[task.id].lock();
        account.charge(task);
        self.weigh(cx, task, &mut account);
        let entity = &mut account.entity;
        entity.vruntime = entity.deadline;
        entity.deadline += entity.scaled(entity.slice_ns);
        self.put_back(cx, task, &mut account, token);
    }

    fn task_blocked(&self, cx: &Cx, task: &Task) {
        let mut account = self.tasks[task.id].lock();
        account.charge(task);
        self.take_off(cx, task.id, &mut account);
    }

    fn task_departed(&self, cx: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.take_off(cx, task.id, &mut self.tasks[task.id].lock())
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        if self.balancer.len(cpu) == 0 || self.balancer.is_due(cpu) {
            self.balancer.runs(None, cpu);
            return None;
        }
        let mut queue = self.queues[cpu].lock();
        queue.running = None;
        let average = queue.average(None);
        let best = queue.best(average);
        self.balancer.runs(best.map(|(_, task)| task), cpu);
        let (entity, task) = best?;
        let token = queue.remove(&entity, task);
        let protected_until = entity.deadline.min(entity.vruntime + entity.scaled(self.protected_ns));
        queue.running = Some(Running { task, entity, since_ns: cx.now_ns(), protected_until });
        if !queue.waiting.is_empty() {
            cx.set_slice_ns(entity.left_ns().max(*SLICES_NS.start()));
        }
        token
    }

    /// At the end of its slice a task gives way.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let cpu = cx.cpu();
        let used_up = {
            let mut account = self.tasks[task.id].lock();
            let used_up = account.charge(task);
            self.queues[cpu].lock().go_on(task.id, account.entity, cx.now_ns());
            used_up
        };
        if used_up && self.balancer.len(cpu) > 0 {
            cx.resched(cpu);
        }
        self.balancer.tick(cx, |busiest, wanted| self.find(busiest, wanted));
    }

    /// What it is owed in CPU time, and what is left of its slice, stay as they are.
    fn task_prio_changed(&self, cx: &Cx, task: &Task) {
        let mut account = self.tasks[task.id].lock();
        let mut queue = self.queues[account.cpu].lock();
        let running = queue.running(cx);
        let average = queue.average(running);
        let token = queue.remove(&account.entity, task.id);
        account.charge(task);
        account.reweight(task.weight, average);
        match token {
            Some(token) => queue.insert(account.entity, token),
            None => queue.go_on(task.id, account.entity, cx.now_ns()),
        }
    }

    /// It is owed on the new CPU what it was owed on the old one.
    fn migrate_task_rq(&self, cx: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let account = &mut *self.tasks[task.id].lock();
        let old = self.take_off(cx, task.id, account);
        self.place(cx, task, account, account.entity.ahead(), new);
        old
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        self.balancer.place(cx, task.id, previous, flags).unwrap_or(suggested)
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.balancer.pull(cx, cpu, |busiest, wanted| self.find(busiest, wanted))
    }

    fn balance_err(&self, cx: &Cx, cpu: CpuId, _: TaskId, _: RefusalReason) {
        self.balancer.pulled_nothing(cx, cpu);
    }

    fn enter_idle(&self, _: &Cx, cpu: CpuId) {
        self.balancer.enter_idle(cpu);
    }

    fn cpu_online(&self, _: &Cx, cpu: CpuId) {
        self.balancer.cpu_online(cpu);
    }

    fn cpu_offline(&self, _: &Cx, cpu: CpuId) {
        self.balancer.cpu_offline(cpu);
    }
}

#[policy]
impl HintQueues for Eevdf {
    /// The slice that the task asks for, in nanoseconds: shorter ones come sooner, and not more often. What is
    /// `sched_runtime` of the system call `sched_setattr` in the kernel.
    type Hint = u64;

    /// It counts from the next time that the task wakes up.
    fn parse_hint(&self, _: &Cx, task: Option<&Task>, slice_ns: u64) -> Result<(), HintRefused> {
        let task = task.ok_or(HintRefused)?;
        self.tasks[task.id].lock().slice_ns = slice_ns.clamp(*SLICES_NS.start(), *SLICES_NS.end());
        Ok(())
    }
}

#[policy]
impl TaskSettings for Eevdf {
    const TASK_PARAMS: &'static [Param] =
        &[Param { name: "slice_us", help: "shorter slices come sooner; 0: as all", default: 0, min: 0, max: 100_000 }];

    fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
        match params.get("slice_us") {
            1..100 => Err("a slice has at least 100 us; or 0, for that of everybody"),
            _ => Ok(()),
        }
    }

    /// It counts from the next time that the task wakes up, like a hint.
    fn task_params(&self, _: &Cx, task: &Task, params: &TaskParams) {
        let slice_ns = params.get("slice_us") * 1000;
        self.tasks[task.id].lock().slice_ns = if slice_ns == 0 { self.slice_ns } else { slice_ns };
    }
}
