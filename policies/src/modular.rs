//! A core that alone decides, by virtual time over all CPUs, and modules that only suggest: where a task is woken up, and which of several tasks
//! that are as good as equally due goes to a CPU. It gives up scale, as all CPUs share a queue, and the best of each module's ideas: the
//! core takes none by which a CPU would idle or a task be passed over for long.
//!
//! papers/002, section 5: "a core module and optimization modules". No suggestion, however bad, breaks work conservation or the bound on
//! fairness. A module that panics ends the policy, as any panic does.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden::{prelude::*, scaled_ns};

/// Most tasks that are due and shown to modules.
const SHOWN: usize = 8;

/// CPU time that may be held against a task. What it had where those that are due may not run is forgiven beyond that, as under WFQ.
const OWED_NS: u64 = 24_000_000;

/// What a module knows of a task besides what `Cx` tells.
pub struct Waiting {
    /// The task.
    pub task: TaskId,
    /// The CPU on which it ran last.
    pub last: CpuId,
}

/// An optimisation. Each method may return anything at all.
pub trait Suggest: Sync {
    /// Where to wake the task up. Taken if it is an idle CPU on which the task may run.
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, flags: WakeFlags) -> Option<CpuId> {
        let _ = (cx, waiting, flags);
        None
    }

    /// Whether `cpu` should have this task before others that are due. Taken if it is no further from being first than the bound.
    fn suits(&self, cx: &Cx<'_>, waiting: &Waiting, cpu: CpuId) -> bool {
        let _ = (cx, waiting, cpu);
        false
    }
}

fn first_idle(cx: &Cx<'_>, task: TaskId, among: &CpuMask) -> Option<CpuId> {
    cx.idle_cpus().both(among).find(|cpu| cx.may_run(task, *cpu))
}

/// Tasks stay where their caches are.
struct Cache;

impl Suggest for Cache {
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, _: WakeFlags) -> Option<CpuId> {
        first_idle(cx, waiting.task, cx.topology().llc(waiting.last))
    }

    fn suits(&self, cx: &Cx<'_>, waiting: &Waiting, cpu: CpuId) -> bool {
        cx.topology().llc(waiting.last).contains(cpu)
    }
}

/// Tasks go to the node with the most idle CPUs.
struct Nodes;

impl Suggest for Nodes {
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, _: WakeFlags) -> Option<CpuId> {
        let idle = cx.idle_cpus();
        let most = cx.topology().nodes().iter().max_by_key(|node| idle.both(node).count())?;
        first_idle(cx, waiting.task, most)
    }
}

/// Tasks are woken up beside the one that wakes them.
struct Waker;

impl Suggest for Waker {
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, flags: WakeFlags) -> Option<CpuId> {
        first_idle(cx, waiting.task, cx.topology().llc(flags.waker()?))
    }
}

/// Tasks gather on the first CPUs, so that the others can sleep.
struct Power;

impl Suggest for Power {
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, _: WakeFlags) -> Option<CpuId> {
        cx.idle_cpus().iter().find(|cpu| cx.may_run(waiting.task, *cpu))
    }
}

/// The worst that one could say: a CPU that does not exist, or is as far away as possible, and tasks of other CPUs before one's own.
struct Worst;

impl Suggest for Worst {
    fn place(&self, cx: &Cx<'_>, waiting: &Waiting, flags: WakeFlags) -> Option<CpuId> {
        let cpus = cx.topology().nr_cpus();
        if flags.is_fork() { Some(cpus + 7) } else { Some((waiting.last + cpus / 2) % cpus) }
    }

    fn suits(&self, _: &Cx<'_>, waiting: &Waiting, cpu: CpuId) -> bool {
        waiting.last != cpu
    }
}

/// All modules, by the bits of the parameter `modules`.
const MODULES: [&dyn Suggest; 5] = [&Cache, &Nodes, &Waker, &Power, &Worst];

/// The core.
#[derive(Layout)]
pub struct Modular {
    queue: SpinLock<TreeQueue<Self, u64>>,
    /// How many wait, to look at without the lock.
    len: Shared<u32>,
    /// No task has had less virtual time than this when it came; it only grows.
    min_vruntime: Shared<u64>,
    tasks: PerTask<Account>,
    settings: Settings,
}

#[derive(Layout)]
struct Settings {
    modules: u64,
    bound_ns: u64,
    slice_ns: u64,
}

/// State of one task. Changed only in calls about that task, but `last` is read in others.
#[derive(Default, Layout)]
struct Account {
    charged_ns: AtomicU64,
    vruntime: AtomicU64,
    last: Shared<CpuId>,
}

impl Settings {
    fn of(env: &Env) -> Self {
        let ns = |name| env.param(name) * 1000;
        Self { modules: env.param("modules"), bound_ns: ns("bound_us"), slice_ns: ns("slice_us") }
    }
}

impl Modular {
    fn modules(&self) -> impl Iterator<Item = &'static dyn Suggest> {
        let set = self.settings.modules;
        MODULES.into_iter().enumerate().filter(move |(bit, _)| set & 1 << bit != 0).map(|(_, module)| module)
    }

    fn waiting(&self, task: TaskId) -> Waiting {
        Waiting { task, last: self.tasks[task].last.get() }
    }

    /// The task that some module wants here, of those that are due within the bound, and that can be claimed.
    fn claim_wanted(&self, cx: &Cx, queue: &mut TreeQueue<Self, u64>, cpu: CpuId) -> Option<(u64, Schedulable<Self>)> {
        let most = queue.first_key()? + self.settings.bound_ns;
        let wanted = queue.iter().take(SHOWN).find(|(vruntime, token)| {
            let waiting = self.waiting(token.task());
            **vruntime <= most && self.modules().any(|module| module.suits(cx, &waiting, cpu))
        });
        let (vruntime, task) = wanted.map(|(vruntime, token)| (*vruntime, token.task()))?;
        match cx.claim(queue.remove_at(&vruntime, task)?) {
            Ok(token) => Some((vruntime, token)),
            Err(refused) => {
                if refused.reason.token_is_good() {
                    queue.insert(vruntime, refused.token);
                }
                None
            }
        }
    }
}

#[policy]
impl Scheduler for Modular {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "modules",
            help: "the sum of: 1 cache, 2 nodes, 4 waker, 8 power, 16 the worst suggestions",
            default: 1,
            min: 0,
            max: 31,
        },
        Param {
            name: "bound_us",
            help: "by how much virtual time, in microseconds, a task may be passed over",
            default: 4_000,
            min: 0,
            max: 100_000,
        },
        Param { name: "slice_us", help: "slice, in microseconds", default: 4_000, min: 100, max: 100_000 },
    ];

    fn new(env: &Env) -> Self {
        Self {
            queue: SpinLock::default(),
            len: Shared::default(),
            min_vruntime: Shared::default(),
            tasks: PerTask::new(env, Account::default),
            settings: Settings::of(env),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { settings: Settings::of(env), ..state }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        self.tasks[task.id].last.set(previous);
        let (waiting, idle) = (Waiting { task: task.id, last: previous }, cx.idle_cpus());
        let mut places = self.modules().filter_map(|module| module.place(cx, &waiting, flags));
        places.find(|cpu| idle.contains(*cpu) && cx.may_run(task.id, *cpu)).unwrap_or(suggested)
    }

    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.vruntime.store(self.min_vruntime.get() + self.settings.slice_ns, Relaxed);
        self.enqueue(cx, task, token);
    }

    /// By virtual time, of which a task that has slept has had no less than the others. Whatever was suggested, an idle CPU is told.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.swap(task.runtime_ns, Relaxed));
        let (min, owed_ns) = (self.min_vruntime.get(), OWED_NS.max(2 * self.settings.slice_ns));
        let vruntime = account.vruntime.load(Relaxed) + scaled_ns(ran_ns, task.weight);
        let vruntime = vruntime.clamp(min, min + self.settings.bound_ns + scaled_ns(owed_ns, task.weight));
        account.vruntime.store(vruntime, Relaxed);
        let mut queue = self.queue.lock();
        queue.insert(vruntime, token);
        self.len.set(queue.len() as u32);
        drop(queue);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        // A task that is queued after this look has an idle CPU look again.
        if self.len.get() == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        let first = queue.first_key().copied();
        let claimed = self.claim_wanted(cx, &mut queue, cpu).or_else(|| queue.claim_first(cx));
        self.len.set(queue.len() as u32);
        drop(queue);
        self.min_vruntime.raise(first.unwrap_or(0));
        let (_, token) = claimed?;
        self.tasks[token.task()].last.set(cpu);
        cx.set_slice_ns(self.settings.slice_ns);
        Some(token)
    }
}
