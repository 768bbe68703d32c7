//! First come, first served, by all CPUs of a node from one queue, and a task that has run for ten microseconds gives way to one that waits. It
//! gives up throughput: long tasks are interrupted all the time, and warm caches and nice values count for nothing.
//!
//! papers/000, section 4.2.2, after Shinjuku (NSDI 2019), section 3.3. There one CPU decides for all; here each CPU's own timer does. The
//! paper's machine has one node. A move to another takes longer than a turn, so a CPU takes tasks from there only if its own has none.

use ekiden::prelude::*;

/// A queue for each node, and a turn for each task in it.
#[derive(Layout)]
pub struct Shinjuku {
    queues: PerNode<Queue>,
    turns: PerCpu<Turn>,
    took: Histogram,
    turn_ns: u64,
}

/// The turn of the task that a CPU runs.
#[derive(Default, Layout)]
struct Turn {
    /// Whether it is over, and none waited then: the next task that comes may have the CPU at once.
    is_over: Shared<bool>,
    /// When it began, and how long it was to be, in nanoseconds.
    began_ns: Shared<u64>,
    length_ns: Shared<u64>,
    /// How long it took, the last time that it took much longer. A machine that needs longer than a turn to get to the task at all, as
    /// emulated ones do, would do nothing else than change from one task to the next.
    slow_ns: Shared<u64>,
}

/// No turn is made longer for more than that.
const SLOW_NS_MAX: u64 = 1_000_000;

impl Turn {
    /// It begins. Returns its length.
    fn begin(&self, now_ns: u64, turn_ns: u64) -> u64 {
        self.is_over.set(false);
        let length_ns = turn_ns.max(2 * self.slow_ns.get());
        self.began_ns.set(now_ns);
        self.length_ns.set(length_ns);
        length_ns
    }

    /// It is over. Returns how long it took.
    fn end(&self, now_ns: u64, turn_ns: u64) -> u64 {
        self.is_over.set(true);
        let took_ns = now_ns.saturating_sub(self.began_ns.get());
        let slow_ns = self.slow_ns.get();
        let is_late = took_ns > self.length_ns.get() + turn_ns / 2;
        self.slow_ns.set(if is_late { took_ns.min(SLOW_NS_MAX) } else { slow_ns - slow_ns.div_ceil(8) });
        took_ns
    }
}

#[derive(Default, Layout)]
struct Queue {
    tokens: SpinLock<FifoQueue<Shinjuku>>,
    /// How many wait, to look at without the lock.
    len: Shared<u32>,
}

impl Queue {
    fn change<R>(&self, change: impl FnOnce(&mut FifoQueue<Shinjuku>) -> R) -> R {
        let mut tokens = self.tokens.lock();
        let result = change(&mut tokens);
        self.len.set(tokens.len() as u32);
        result
    }

    /// A task that is queued after this look has an idle CPU look again.
    fn claim_first(&self, cx: &Cx) -> Option<Schedulable<Shinjuku>> {
        if self.len.get() == 0 { None } else { self.change(|tokens| tokens.claim_first(cx)) }
    }
}

impl Shinjuku {
    fn turn_ns(env: &Env) -> u64 {
        env.param("turn_us") * 1000
    }

    /// One waits more. An idle CPU has it, or else one whose task has had its turn; not so if its own CPU is about to look for work.
    fn find_a_cpu(&self, cx: &Cx, task: TaskId, cpu: CpuId, is_free: bool) {
        let idle = cx.kick_idle_in(task, cx.topology().node(cpu)).or_else(|| cx.kick_idle(task));
        if is_free || idle.is_some() {
            return;
        }
        let over = self.turns.iter().filter(|(_, turn)| turn.is_over.get());
        let mut over = over.filter(|(cpu, turn)| cx.may_run(task, *cpu) && turn.is_over.swap(false));
        if let Some((cpu, _)) = over.next() {
            cx.resched(cpu);
        }
    }
}

#[policy]
impl Scheduler for Shinjuku {
    const PARAMS: &'static [Param] = &[Param {
        name: "turn_us",
        help: "how long a task runs, in microseconds, until it gives way to one that waits",
        default: 10,
        min: 10,
        max: 100_000,
    }];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerNode::new(env, |_| Queue::default()),
            turns: PerCpu::new(env, |_| Turn::default()),
            took: env.histogram("turn_took_ns", "how long turns were that came to their end"),
            turn_ns: Self::turn_ns(env),
        }
    }

    /// A successor may have been given another turn.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { turn_ns: Self::turn_ns(env), ..state }
    }

    /// New and woken tasks. One that was placed on an idle CPU needs no other.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let cpu = token.cpu();
        self.queues[cpu].change(|tokens| tokens.push_back(token));
        self.find_a_cpu(cx, task.id, cpu, cx.running(cpu).is_none());
    }

    /// Its CPU takes the next one itself.
    fn task_preempt(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let cpu = token.cpu();
        self.queues[cpu].change(|tokens| tokens.push_back(token));
        self.find_a_cpu(cx, task.id, cpu, false);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let own = self.queues[cpu].claim_first(cx);
        let token = own.or_else(|| self.queues.iter().find_map(|(_, queue)| queue.claim_first(cx)))?;
        cx.arm_timer(self.turns[cpu].begin(cx.now_ns(), self.turn_ns));
        Some(token)
    }

    /// It does not run after all, and keeps its place.
    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        if reason.token_is_good() {
            self.queues[token.cpu()].change(|tokens| tokens.push_front(token));
        }
    }

    /// The turn is over. It is said first and looked for after that, under the lock under which tasks come: so a task that comes meanwhile is
    /// seen here, or its call sees it there.
    fn timer(&self, cx: &Cx, cpu: CpuId) {
        self.took.record(cx, self.turns[cpu].end(cx.now_ns(), self.turn_ns));
        let one_waits = !self.queues[cpu].tokens.lock().is_empty();
        if one_waits && self.turns[cpu].is_over.swap(false) {
            cx.resched(cpu);
        }
    }
}
