//! First come, first served, by all CPUs from one queue, while the timer of one CPU looks at all and ends the turns that are over. It gives up
//! some of that CPU's time, and short waits: a turn ends up to a millisecond late, and nice values count for nothing.
//!
//! The centralised model of ghOSt's SOL (SOSP 2021, section 4.1; papers/000, section 4.2.2) and of papers/004. There one CPU also hands out
//! the tasks, and runs none. Here a CPU takes its next task by itself, as a call into a policy costs less than asking another CPU, and the
//! central one works, too; what is left for it is the view of all. The others need neither timers nor ticks.

use ekiden::prelude::*;

/// Time between two looks, in nanoseconds.
const ROUND_NS: u64 = 1_000_000;

/// How many turns a task may run by itself. On some CPUs of a machine, the policy may be without the central one.
const BY_ITSELF: u64 = 5;

/// One queue for the machine.
#[derive(Layout)]
pub struct CentralFifo {
    queue: SpinLock<FifoQueue<Self>>,
    /// How many wait, to look at without the lock.
    waiting: Shared<u32>,
    /// The CPU that looks at the others.
    central: Shared<CpuId>,
    /// Whether it does so at this time: only while tasks wait.
    looks: Shared<bool>,
    turn_ns: u64,
}

impl CentralFifo {
    fn turn_ns(env: &Env) -> u64 {
        env.param("turn_us") * 1000
    }

    fn change<R>(&self, change: impl FnOnce(&mut FifoQueue<Self>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        self.waiting.set(queue.len() as u32);
        result
    }

    /// Another one, as this one leaves.
    fn replace_central(&self, cx: &Cx, gone: CpuId) {
        if self.central.get() == gone {
            let others = cx.topology().online();
            self.central.set(others.iter().find(|cpu| *cpu != gone).unwrap_or(gone));
            self.looks.set(false);
        }
    }
}

#[policy]
impl Scheduler for CentralFifo {
    const PARAMS: &'static [Param] = &[Param {
        name: "turn_us",
        help: "how long a task runs, in microseconds, until it gives way to one that waits",
        default: 5_000,
        min: 1_000,
        max: 100_000,
    }];

    fn new(env: &Env) -> Self {
        Self {
            queue: SpinLock::default(),
            waiting: Shared::default(),
            central: Shared::new(env.topology().online().first().unwrap_or(0)),
            looks: Shared::default(),
            turn_ns: Self::turn_ns(env),
        }
    }

    /// A successor may have been given another turn, and its predecessor's timer may be gone.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { looks: Shared::default(), turn_ns: Self::turn_ns(env), ..state }
    }

    /// The first that has to wait wakes the central CPU up; it begins to look in its pick.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let cpu = token.cpu();
        self.change(|queue| queue.push_back(token));
        if cx.kick_idle(task.id).is_none() && cx.running(cpu).is_some() && !self.looks.get() {
            cx.resched(self.central.get());
        }
    }

    /// Its CPU takes the next one itself.
    fn task_preempt(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.change(|queue| queue.push_back(token));
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        // A task that is queued after this look has an idle CPU look again.
        if self.waiting.get() == 0 {
            return None;
        }
        let token = self.change(|queue| queue.claim_first(cx));
        cx.set_slice_ns(BY_ITSELF * self.turn_ns);
        if cpu == self.central.get() && !self.looks.swap(true) {
            cx.arm_timer(ROUND_NS);
        }
        token
    }

    /// It does not run after all, and keeps its place.
    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        if reason.token_is_good() {
            self.change(|queue| queue.push_front(token));
        }
    }

    /// A look at all CPUs. It does not look for the tasks that have run longest: all whose turn is over give way, as many as wait.
    fn timer(&self, cx: &Cx, cpu: CpuId) {
        let waiting = self.waiting.get();
        if cpu != self.central.get() || waiting == 0 {
            self.looks.set(false);
            return;
        }
        let now_ns = cx.now_ns();
        let is_over = |cpu: &CpuId| {
            let running = cx.running(*cpu);
            running.is_some_and(|running| running.since_ns + self.turn_ns <= now_ns)
        };
        (0..cx.topology().nr_cpus()).filter(is_over).take(waiting as usize).for_each(|cpu| cx.resched(cpu));
        cx.arm_timer(ROUND_NS);
    }

    fn cpu_offline(&self, cx: &Cx, cpu: CpuId) {
        self.replace_central(cx, cpu);
    }
}
