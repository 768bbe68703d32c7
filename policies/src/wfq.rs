//! Weighted fair queueing: the waiting task that has had the least CPU time for its weight runs next, at once if it wakes up and
//! has had clearly less than the one that runs. A CPU that would go idle takes a task from the longest queue, and so does one
//! that has two tasks less than another. It gives up everything else that balances load: three equal tasks on two CPUs
//! have 100, 50 and 50 per cent of one.
//!
//! papers/000, section 4.2.1; there, only a CPU that would go idle takes tasks, and nothing preempts on wake-up.

use core::{
    mem,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use ekiden::{NICE_0_WEIGHT, prelude::*, scaled_ns};

/// For about so long a task may have to wait for what it has had, if no others come meanwhile: the kernel takes out a scheduler under which
/// one waits for thirty seconds. Only a task that weighs less than a ten-thousandth of the others would have to for its share, as a turn
/// is short where its weight is small.
const LONGEST_WAIT_NS: u64 = 6_000_000_000;

/// No turn of a task with little weight is shorter.
const SHORTEST_TURN_NS: u64 = 50_000;

/// Where a second has a hundred ticks. So long a task runs that has used up its slice.
const LONGEST_TICK_NS: u64 = 10_000_000;

/// How often a CPU compares its queue with another's: the kernel's interval of a busy CPU. Queues are long for a moment when tasks
/// wake up, and each move costs a task its cache.
const COMPARED_EVERY_NS: u64 = 32_000_000;

/// So little may be owed, unless the others weigh more than all but a few machines have tasks for.
const SMALL_DEBT_NS: u64 = 1_000_000;
const LARGE_LOAD: u64 = LONGEST_WAIT_NS / SMALL_DEBT_NS * NICE_0_WEIGHT as u64;

/// For so long those that wait may be set back by the head start of all that have slept: in a crowd of sleepers each has the less of one.
const LONGEST_CREDIT_NS: u64 = 100_000_000;

/// Weighted fair queueing.
#[derive(Layout)]
pub struct Wfq {
    queues: PerCpu<RunQueue>,
    tasks: PerTask<Account>,
    times: Times,
}

/// What can be set.
#[derive(Layout)]
struct Times {
    period_ns: u64,
    slice_min_ns: u64,
    sleeper_credit_ns: u64,
    wakeup_ns: u64,
}

/// What waits on one CPU.
#[derive(Default, Layout)]
struct RunQueue {
    waiting: SpinLock<Waiting>,
    /// How many wait, for other CPUs to look at without the lock.
    len: Shared<u32>,
    /// No task of this CPU has had less virtual time than this; it only grows.
    min_vruntime: Shared<u64>,
    /// The virtual time of the task that runs as it was picked or at the last tick; 0 if none of ours runs.
    running: Shared<u64>,
    /// What it weighs, or the one before if none of ours runs.
    running_weight: Shared<u32>,
    /// In which period this CPU has compared its length with another's; only this CPU looks at it.
    compared_in: AtomicU64,
}

#[derive(Default, Layout)]
struct Waiting {
    tasks: TreeQueue<Wfq, u64>,
    /// What they weigh together.
    load: u64,
    /// The CPU from which this one takes a task when it picks the next time.
    takes_from: Option<CpuId>,
}

/// What is known of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    /// CPU time that is already in `vruntime`, in nanoseconds.
    charged_ns: AtomicU64,
    /// CPU time divided by weight, in nanoseconds at nice 0, on the scale of `cpu`'s `min_vruntime`.
    vruntime: AtomicU64,
    /// The CPU whose scale `vruntime` is on.
    cpu: AtomicU32,
    /// What it weighed when it was queued.
    weight: AtomicU32,
}

impl Times {
    fn of(env: &Env) -> Self {
        let ns = |name| env.param(name) * 1000;
        Self {
            period_ns: ns("period_us"),
            slice_min_ns: ns("slice_min_us"),
            sleeper_credit_ns: ns("sleeper_credit_us"),
            wakeup_ns: ns("wakeup_us"),
        }
    }
}

impl Wfq {
    /// Adds what the task has run since the last time to its virtual time.
    fn charge(&self, task: &Task) -> u64 {
        let account = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.load(Relaxed));
        account.charged_ns.store(task.runtime_ns, Relaxed);
        let vruntime = account.vruntime.load(Relaxed) + scaled_ns(ran_ns, task.weight);
        account.vruntime.store(vruntime, Relaxed);
        vruntime
    }

    /// Moves the task's virtual time to the scale of `cpu`, keeping its distance from the others.
    fn rescale(&self, task: TaskId, cpu: CpuId) -> u64 {
        let account = &self.tasks[task];
        let mut vruntime = account.vruntime.load(Relaxed);
        let old = account.cpu.load(Relaxed);
        if old != cpu {
            let lead = vruntime.saturating_sub(self.queues[old].min_vruntime.get());
            vruntime = self.queues[cpu].min_vruntime.get() + lead;
            account.cpu.store(cpu, Relaxed);
        }
        vruntime
    }

    /// Queues the task with at least `floor` of virtual time, given the least there, how many others are there and what those weigh, and with no more debt than is
    /// bearable. Returns its virtual time.
    fn queue(&self, task: &Task, token: Schedulable<Self>, floor: impl Fn(u64, u64, u64) -> u64) -> u64 {
        let queue = &self.queues[token.cpu()];
        let min = queue.min_vruntime.get();
        let mut vruntime = self.rescale(task.id, token.cpu());
        let waiting = &mut *queue.waiting.lock();
        let (mut others, mut load) = (waiting.tasks.len() as u64, waiting.load);
        if queue.running.get() > 0 {
            others += 1;
            load += u64::from(queue.running_weight.get());
        }
        vruntime = vruntime.max(floor(min, others, load));
        if vruntime > min + SMALL_DEBT_NS || load > LARGE_LOAD {
            vruntime = vruntime.min(min + self.bearable_debt_ns(task.weight, load));
        }
        let account = &self.tasks[task.id];
        account.vruntime.store(vruntime, Relaxed);
        account.weight.store(task.weight, Relaxed);
        waiting.load += u64::from(task.weight);
        waiting.tasks.insert(vruntime, token);
        queue.len.set(waiting.tasks.len() as u32);
        vruntime
    }

    /// A task is queued no more. Returns its weight.
    fn left(&self, queue: &RunQueue, waiting: &mut Waiting, task: TaskId) -> u32 {
        let weight = self.tasks[task].weight.load(Relaxed);
        // A token that was worth nothing by then was dropped, with its weight.
        waiting.load = if waiting.tasks.is_empty() { 0 } else { waiting.load.saturating_sub(weight.into()) };
        queue.len.set(waiting.tasks.len() as u32);
        weight
    }

    /// How much virtual time a task may owe where others weigh `load`. No policy can end a long stretch in the kernel that is not preempted:
    /// what it takes beyond two slices, or a tick, is forgiven, as under EEVDF, for each task that comes later would have as much first.
    fn bearable_debt_ns(&self, weight: u32, load: u64) -> u64 {
        let two_slices_ns = self.times.period_ns.max(2 * self.times.slice_min_ns);
        scaled_ns(two_slices_ns.max(LONGEST_TICK_NS), weight)
            .min(LONGEST_WAIT_NS * u64::from(NICE_0_WEIGHT) / load.max(1))
    }

    fn unqueue(&self, task: TaskId) -> Option<Schedulable<Self>> {
        let account = &self.tasks[task];
        let queue = &self.queues[account.cpu.load(Relaxed)];
        let waiting = &mut *queue.waiting.lock();
        let token = waiting.tasks.remove_at(&account.vruntime.load(Relaxed), task)?;
        self.left(queue, waiting, task);
        Some(token)
    }

    /// Compares the queue of a CPU with that of another, each time the next one's. With two tasks less than there, it takes one when it
    /// picks again.
    fn compare(&self, cx: &Cx, cpu: CpuId) {
        let (queue, cpus) = (&self.queues[cpu], cx.topology().nr_cpus());
        let period = cx.now_ns() / COMPARED_EVERY_NS;
        if queue.compared_in.swap(period, Relaxed) == period || cpus == 1 {
            return;
        }
        let other = (cpu + 1 + (period % u64::from(cpus - 1)) as u32) % cpus;
        if self.queues[other].len.get() >= queue.len.get() + 2 {
            queue.waiting.lock().takes_from = Some(other);
            cx.resched(cpu);
        }
    }

    /// Takes a task from a CPU where more wait than the `own` of this one, of which one ran until now.
    fn take(&self, cx: &Cx, cpu: CpuId, from: CpuId, own: u32) -> Option<Schedulable<Self>> {
        let longer = &self.queues[from];
        let mut waiting = longer.waiting.lock();
        let claimed = (waiting.tasks.len() as u32 > own).then(|| waiting.tasks.claim_first(cx));
        longer.len.set(waiting.tasks.len() as u32);
        let (_, token) = claimed??;
        let weight = self.left(longer, &mut waiting, token.task());
        let vruntime = self.rescale(token.task(), cpu);
        self.tasks[token.task()].vruntime.store(vruntime, Relaxed);
        self.queues[cpu].running.set(vruntime);
        self.queues[cpu].running_weight.set(weight);
        cx.set_slice_ns(self.slice_ns(own));
        Some(token)
    }

    /// A task of this `weight` runs while `others` of the weight `load` wait.
    fn begin_turn(&self, cx: &Cx, weight: u64, others: u64, load: u64) {
        let slice_ns = self.slice_ns(others as u32);
        cx.set_slice_ns(slice_ns);
        let turn_ns = turn_ns(slice_ns, weight, others, load);
        if turn_ns < slice_ns {
            cx.arm_timer(turn_ns);
        }
    }

    /// How long a task runs while so many others wait.
    fn slice_ns(&self, others: u32) -> u64 {
        (self.times.period_ns / u64::from(others + 1)).max(self.times.slice_min_ns)
    }
}

/// A task of much less weight than the `others` has a turn that is shorter than a slice by as much: in a tick it would have what is due to it
/// in minutes, and would then wait for so long.
fn turn_ns(slice_ns: u64, weight: u64, others: u64, load: u64) -> u64 {
    if 4 * weight * others < load { (slice_ns * weight * others / load).max(SHORTEST_TURN_NS) } else { slice_ns }
}

#[policy]
impl Scheduler for Wfq {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "period_us",
            help: "time in which each waiting task runs once",
            default: 24_000,
            min: 100,
            max: 1_000_000,
        },
        Param { name: "slice_min_us", help: "shortest slice", default: 3_000, min: 10, max: 100_000 },
        Param {
            name: "sleeper_credit_us",
            help: "head start of a task that has slept",
            default: 3_000,
            min: 0,
            max: 100_000,
        },
        Param {
            name: "wakeup_us",
            help: "lead with which a woken task preempts",
            default: 2_000,
            min: 0,
            max: 1_000_000,
        },
    ];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| RunQueue::default()),
            tasks: PerTask::new(env, Account::default),
            times: Times::of(env),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { times: Times::of(env), ..state }
    }

    /// A new task starts a turn behind where the others stand, as in the kernel before EEVDF: a task that goes on in new ones
    /// all the time, each of which has had nothing yet, would leave them nothing.
    fn task_new(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.cpu.store(token.cpu(), Relaxed);
        account.vruntime.store(0, Relaxed);
        let turn_ns = |others, load| turn_ns(self.times.slice_min_ns, task.weight.into(), others, load);
        self.queue(task, token, |min, others, load| min + scaled_ns(turn_ns(others, load), task.weight));
    }

    /// Sleeping earns a small head start, not all the time that was slept. Who has had clearly less than the task that runs does not
    /// wait for its slice to end.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        let cpu = token.cpu();
        let credit_ns = |others: u64| self.times.sleeper_credit_ns.min(LONGEST_CREDIT_NS / others.max(1));
        let vruntime = self.queue(task, token, |min, others, _| min.saturating_sub(credit_ns(others)));
        if self.queues[cpu].running.get() > vruntime + scaled_ns(self.times.wakeup_ns, task.weight) {
            cx.resched(cpu);
        }
    }

    /// Preempted, yielding and handed back tasks stand where their virtual time puts them.
    fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        self.charge(task);
        self.queue(task, token, |_, _, _| 0);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let queue = &self.queues[cpu];
        // A task that is queued after this look has the CPU look again.
        if queue.len.get() == 0 {
            queue.running.set(0);
            return None;
        }
        let mut waiting = queue.waiting.lock();
        if let Some(from) = mem::take(&mut waiting.takes_from) {
            let own = waiting.tasks.len() as u32;
            drop(waiting);
            if let Some(token) = self.take(cx, cpu, from, own) {
                return Some(token);
            }
            waiting = queue.waiting.lock();
        }
        let (vruntime, token) = waiting.tasks.pop_first()?;
        let weight = self.left(queue, &mut waiting, token.task());
        queue.running.set(vruntime);
        queue.running_weight.set(weight);
        queue.min_vruntime.raise(vruntime);
        if !waiting.tasks.is_empty() {
            self.begin_turn(cx, weight.into(), waiting.tasks.len() as u64, waiting.load);
        }
        Some(token)
    }

    /// A waiting task that is owed time gets it at the tick, or another CPU's if that one has nothing to do. The CPU's virtual time
    /// goes on with the task that runs, up to the first that waits. So what it has while nobody waits is not held against it when
    /// somebody comes, and who wakes up is not placed where the others have long been.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let vruntime = self.charge(task);
        let queue = &self.queues[cx.cpu()];
        queue.running.set(vruntime);
        self.compare(cx, cx.cpu());
        if queue.len.get() == 0 {
            queue.min_vruntime.raise(vruntime);
            return;
        }
        if let Some(idle) = cx.idle_cpus().first() {
            cx.resched(idle);
        }
        let Some(first) = queue.waiting.lock().tasks.first_key().copied() else { return };
        queue.min_vruntime.raise(vruntime.min(first));
        if first + self.times.slice_min_ns < vruntime {
            cx.resched(cx.cpu());
        }
    }

    /// The turn of a task of little weight is over. If it has slept before, the one that runs is looked at a little early.
    fn timer(&self, cx: &Cx, cpu: CpuId) {
        if self.queues[cpu].len.get() > 0 {
            cx.resched(cpu);
        }
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.unqueue(task.id)
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.unqueue(task.id);
        self.queue(task, new, |_, _, _| 0);
        old
    }

    /// Takes the task that would wait longest on the longest queue, among those that may come here.
    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        let (longest, len) = self
            .queues
            .iter()
            .map(|(cpu, queue)| (cpu, queue.len.get()))
            .fold((cpu, 0), |longest, next| if next.1 > longest.1 { next } else { longest });
        if len == 0 || longest == cpu {
            return None;
        }
        let waiting = self.queues[longest].waiting.lock();
        waiting.tasks.iter().rev().map(|(_, token)| token.task()).take(8).find(|task| cx.may_run(*task, cpu))
    }
}
