//! Multi-level feedback queue: a task that uses up the time of a level goes down to the next, where turns are twice as long, and a lower
//! level runs only while all above it are empty. It gives up fairness within a second or so: only then do all tasks begin at the top again.
//!
//! The five rules of Arpaci-Dusseau, Operating Systems: Three Easy Pieces, chapter 8, after Corbató et al. (AFIPS 1962). papers/004 has it
//! among its policies.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden::prelude::*;

const LEVELS: usize = 4;

/// What a CPU does that runs no task of a level.
const NOTHING: u32 = LEVELS as u32;

/// Queues for the machine, one for each level.
#[derive(Layout)]
pub struct Mlfq {
    levels: SpinLock<Levels>,
    /// How many wait, to look at without the lock.
    waiting: Shared<u32>,
    /// The level of the task that each CPU runs.
    runs: PerCpu<Shared<u32>>,
    /// Which interval between two boosts this is.
    boosts: Shared<u64>,
    tasks: PerTask<Account>,
    times: Times,
    down_to_level: Note,
}

#[derive(Default, Layout)]
struct Levels([FifoQueue<Mlfq>; LEVELS]);

/// Parameters, in nanoseconds.
#[derive(Layout)]
struct Times {
    quantum_ns: u64,
    boost_ns: u64,
}

/// State of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    level: AtomicU64,
    /// CPU time that it had had when it came to this level, in nanoseconds.
    since_ns: AtomicU64,
    /// The interval between boosts in which that was.
    boosts: AtomicU64,
}

impl Levels {
    fn len(&self) -> u32 {
        self.0.iter().map(|queue| queue.len() as u32).sum()
    }

    fn claim_first(&mut self, cx: &Cx) -> Option<(u32, Schedulable<Mlfq>)> {
        (0..).zip(&mut self.0).find_map(|(level, queue)| Some((level, queue.claim_first(cx)?)))
    }

    /// All that wait come to the top, the higher ones first.
    fn boost(&mut self) {
        let [top, lower @ ..] = &mut self.0;
        for queue in lower {
            while let Some(token) = queue.pop_front() {
                top.push_back(token);
            }
        }
    }
}

impl Times {
    fn of(env: &Env) -> Self {
        Self { quantum_ns: env.param("quantum_us") * 1000, boost_ns: env.param("boost_ms") * 1_000_000 }
    }

    /// How long tasks run at a level before they go down.
    fn quantum_ns(&self, level: usize) -> u64 {
        self.quantum_ns << level
    }
}

impl Mlfq {
    /// The task's level after what it has run, at which it may go on for so long.
    fn account(&self, cx: &Cx, task: &Task) -> (usize, u64) {
        let account = &self.tasks[task.id];
        let boosts = self.boosts.get();
        let mut level = account.level.load(Relaxed) as usize;
        let ran_ns = task.runtime_ns.saturating_sub(account.since_ns.load(Relaxed));
        let (is_boosted, is_used_up) = (account.boosts.load(Relaxed) != boosts, ran_ns >= self.times.quantum_ns(level));
        if is_boosted || is_used_up {
            let before = level;
            level = if is_boosted { 0 } else { (level + 1).min(LEVELS - 1) };
            if level > before {
                self.down_to_level.write(cx, level as u64);
            }
            account.level.store(level as u64, Relaxed);
            account.since_ns.store(task.runtime_ns, Relaxed);
            account.boosts.store(boosts, Relaxed);
            return (level, self.times.quantum_ns(level));
        }
        (level, self.times.quantum_ns(level) - ran_ns)
    }

    fn put(&self, level: usize, token: Schedulable<Self>) {
        let mut levels = self.levels.lock();
        levels.0[level].push_back(token);
        self.waiting.set(levels.len());
    }
}

#[policy]
impl Scheduler for Mlfq {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "quantum_us",
            help: "time at the top level, in microseconds; twice as much at each below",
            default: 5_000,
            min: 100,
            max: 100_000,
        },
        Param {
            name: "boost_ms",
            help: "time between two moments when all tasks begin at the top, in milliseconds",
            default: 1_000,
            min: 10,
            max: 4_000,
        },
    ];

    fn new(env: &Env) -> Self {
        Self {
            levels: SpinLock::default(),
            waiting: Shared::default(),
            runs: PerCpu::new(env, |_| Shared::new(NOTHING)),
            boosts: Shared::default(),
            tasks: PerTask::new(env, Account::default),
            times: Times::of(env),
            down_to_level: env.note("down_to_level"),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { times: Times::of(env), ..state }
    }

    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        account.level.store(0, Relaxed);
        account.since_ns.store(task.runtime_ns, Relaxed);
        account.boosts.store(self.boosts.get(), Relaxed);
        self.enqueue(cx, task, token);
    }

    /// New and woken tasks interrupt one of the lowest level that runs, if that is below their own and no CPU is idle.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let (level, _) = self.account(cx, task);
        let cpu = token.cpu();
        self.put(level, token);
        if cx.kick_idle(task.id).is_some() || cx.running(cpu).is_none() {
            return;
        }
        let runs = self.runs.iter().map(|(cpu, runs)| (runs.get(), cpu));
        let lower =
            runs.filter(|(other, cpu)| (level as u32 + 1..NOTHING).contains(other) && cx.may_run(task.id, *cpu));
        if let Some((_, lowest)) = lower.max() {
            cx.resched(lowest);
        }
    }

    fn task_preempt(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let (level, _) = self.account(cx, task);
        self.put(level, token);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        // A task that is queued after this look has an idle CPU look again.
        if self.waiting.get() == 0 {
            self.runs[cpu].set(NOTHING);
            return None;
        }
        let mut levels = self.levels.lock();
        let first = levels.claim_first(cx);
        self.waiting.set(levels.len());
        self.runs[cpu].set(first.as_ref().map_or(NOTHING, |(level, _)| *level));
        let (level, token) = first?;
        cx.set_slice_ns(self.times.quantum_ns(level as usize));
        Some(token)
    }

    /// The first tick of an interval is the boost. Time that is used up is so at a tick, too, if others wait.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        let boosts = cx.now_ns() / self.times.boost_ns;
        if self.boosts.swap(boosts) != boosts {
            self.levels.lock().boost();
        }
        let before = self.tasks[task.id].level.load(Relaxed);
        let (level, _) = self.account(cx, task);
        self.runs[cx.cpu()].set(level as u32);
        if level as u64 > before && self.waiting.get() > 0 {
            cx.resched(cx.cpu());
        }
    }
}
