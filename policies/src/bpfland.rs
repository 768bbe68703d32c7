//! Interactive tasks first: those that sleep often, by their voluntary switches per second, and each that has just been woken up. Whichever CPU
//! is idle has a task at once, best a core that is idle as a whole, near where the task was. It gives up throughput of tasks that compute:
//! while interactive ones wait, the others get one turn in some milliseconds.
//!
//! papers/003 (scx_bpfland), section "Implementation". Parameters, with their units and values, are those of its first version.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ekiden::{prelude::*, scaled_ns};

/// Switches are counted for so long, in nanoseconds.
const SECOND_NS: u64 = 1_000_000_000;

/// Rates are kept in hundredths of a switch per second, so that their averages move.
const PER_SWITCH: u64 = 100;

/// A queue that all CPUs share, by virtual time.
#[derive(Default, Layout)]
struct Common {
    tokens: SpinLock<TreeQueue<Bpfland, u64>>,
    len: Shared<u32>,
}

/// Queues by how urgent it is.
#[derive(Layout)]
pub struct Bpfland {
    /// Tasks for a CPU that was idle when they came.
    direct: PerCpu<SpinLock<FifoQueue<Self>>>,
    direct_len: PerCpu<Shared<u32>>,
    interactive: Common,
    regular: Common,
    /// When a regular task was last taken, in nanoseconds.
    regular_ns: Shared<u64>,
    /// Whether an interactive one was taken since: turns may take longer than a regular task may wait.
    was_interactive: Shared<bool>,
    /// Rate of switches from which on a task is interactive: the average of all tasks, bounded.
    threshold: Shared<u64>,
    /// Virtual time of the task that was taken last.
    vtime: Shared<u64>,
    tasks: PerTask<Account>,
    times: Times,
}

/// Parameters; times in nanoseconds.
#[derive(Layout)]
struct Times {
    slice_ns: u64,
    slice_min_ns: u64,
    lag_ns: u64,
    starvation_ns: u64,
    threshold_max: u64,
}

/// State of one task. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Account {
    is_interactive: AtomicBool,
    /// Whether an idle CPU was found for it.
    is_placed: AtomicBool,
    /// Voluntary switches since `since_ns`, and their rate on average.
    switches: AtomicU64,
    since_ns: AtomicU64,
    rate: AtomicU64,
    /// CPU time that is already in `vtime`, in nanoseconds.
    charged_ns: AtomicU64,
    vtime: AtomicU64,
}

impl Times {
    fn of(env: &Env) -> Self {
        let ns = |name| env.param(name) * 1000;
        Self {
            slice_ns: ns("slice_us"),
            slice_min_ns: ns("slice_us_min"),
            lag_ns: ns("slice_us_lag"),
            starvation_ns: ns("starvation_thresh_us"),
            threshold_max: env.param("nvcsw_max_thresh") * PER_SWITCH,
        }
    }
}

/// Three quarters of what it was, and one of what it is.
fn average(old: u64, new: u64) -> u64 {
    old - old / 4 + new / 4
}

impl Common {
    fn insert(&self, vtime: u64, token: Schedulable<Bpfland>) {
        let mut tokens = self.tokens.lock();
        tokens.insert(vtime, token);
        self.len.set(tokens.len() as u32);
    }

    fn claim_first(&self, cx: &Cx) -> Option<(u64, Schedulable<Bpfland>)> {
        // A task that is queued after this look has an idle CPU look again.
        if self.len.get() == 0 {
            return None;
        }
        let mut tokens = self.tokens.lock();
        let first = tokens.claim_first(cx);
        self.len.set(tokens.len() as u32);
        first
    }
}

impl Bpfland {
    /// The task's rate of switches, once a second, and what follows from it.
    fn classify(&self, account: &Account, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(account.since_ns.load(Relaxed));
        if passed_ns < SECOND_NS {
            return;
        }
        let rate = account.switches.swap(0, Relaxed) * PER_SWITCH * SECOND_NS / passed_ns;
        account.since_ns.store(now_ns, Relaxed);
        let threshold = average(self.threshold.get(), rate).clamp(PER_SWITCH, self.times.threshold_max.max(PER_SWITCH));
        self.threshold.set(threshold);
        // One that has switched very often for a while, and no longer does, is not interactive for minutes.
        let rate = average(account.rate.load(Relaxed), rate).min(100 * self.times.threshold_max);
        account.rate.store(rate, Relaxed);
        account.is_interactive.store(self.is_interactive(account), Relaxed);
    }

    fn is_interactive(&self, account: &Account) -> bool {
        self.times.threshold_max > 0 && account.rate.load(Relaxed) >= self.threshold.get()
    }

    /// Adds what the task has run to its virtual time. One that slept is at most the lag behind the others.
    fn charge(&self, task: &Task, account: &Account) -> u64 {
        let ran_ns = task.runtime_ns.saturating_sub(account.charged_ns.swap(task.runtime_ns, Relaxed));
        let vtime = account.vtime.load(Relaxed) + scaled_ns(ran_ns, task.weight);
        let vtime = vtime.max(self.vtime.get().saturating_sub(self.times.lag_ns));
        account.vtime.store(vtime, Relaxed);
        vtime
    }

    /// An idle CPU: one whose core is idle as a whole before others, and of each kind that where the task was, then one of its cache.
    fn idle_cpu(cx: &Cx, task: TaskId, previous: CpuId) -> Option<CpuId> {
        let idle = cx.idle_cpus();
        if idle.is_empty() {
            return None;
        }
        let topology = cx.topology();
        let is_whole = |cpu: &CpuId| topology.smt_siblings(*cpu).is_subset(&idle);
        let may_run = |cpu: &CpuId| cx.may_run(task, *cpu);
        let near = || idle.both(topology.llc(previous));
        let there = || idle.contains(previous).then_some(previous);
        let whole = there().filter(is_whole).filter(may_run);
        whole
            .or_else(|| near().find(|cpu| is_whole(cpu) && may_run(cpu)))
            .or_else(|| idle.iter().find(|cpu| is_whole(cpu) && may_run(cpu)))
            .or_else(|| there().filter(may_run))
            .or_else(|| near().find(may_run))
            .or_else(|| idle.iter().find(may_run))
    }

    /// How many wait that this CPU could run.
    fn waiting(&self, cpu: CpuId) -> u32 {
        self.interactive.len.get() + self.regular.len.get() + self.direct_len[cpu].get()
    }

    fn claim_direct(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        if self.direct_len[cpu].get() == 0 {
            return None;
        }
        let mut direct = self.direct[cpu].lock();
        let token = direct.claim_first(cx);
        self.direct_len[cpu].set(direct.len() as u32);
        token
    }

    fn claim_common(&self, cx: &Cx) -> Option<Schedulable<Self>> {
        let regular = || {
            let first = self.regular.claim_first(cx)?;
            self.regular_ns.set(cx.now_ns());
            self.was_interactive.set(false);
            Some(first)
        };
        let interactive = || self.interactive.claim_first(cx).inspect(|_| self.was_interactive.set(true));
        let starves = || self.was_interactive.get() && self.regular_ns.get() + self.times.starvation_ns < cx.now_ns();
        let both_wait = self.regular.len.get() > 0 && self.interactive.len.get() > 0;
        let due = if both_wait && self.times.starvation_ns > 0 && starves() { regular() } else { None };
        let (vtime, token) = due.or_else(interactive).or_else(regular)?;
        self.vtime.raise(vtime);
        Some(token)
    }
}

#[policy]
impl Scheduler for Bpfland {
    const PARAMS: &'static [Param] = &[
        Param { name: "slice_us", help: "longest slice", default: 5_000, min: 100, max: 100_000 },
        Param { name: "slice_us_min", help: "shortest slice", default: 500, min: 10, max: 100_000 },
        Param { name: "slice_us_lag", help: "head start of a task that has slept", default: 0, min: 0, max: 100_000 },
        Param {
            name: "starvation_thresh_us",
            help: "a regular task is taken so often while interactive ones wait; 0 for never",
            default: 5_000,
            min: 0,
            max: 1_000_000,
        },
        Param {
            name: "nvcsw_max_thresh",
            help: "most voluntary switches per second that it takes to be interactive; 0 for no task is",
            default: 10,
            min: 0,
            max: 10_000,
        },
    ];

    fn new(env: &Env) -> Self {
        Self {
            direct: PerCpu::new(env, |_| SpinLock::default()),
            direct_len: PerCpu::new(env, |_| Shared::default()),
            interactive: Common::default(),
            regular: Common::default(),
            regular_ns: Shared::default(),
            was_interactive: Shared::default(),
            threshold: Shared::default(),
            vtime: Shared::default(),
            tasks: PerTask::new(env, Account::default),
            times: Times::of(env),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { times: Times::of(env), ..state }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        let idle = Self::idle_cpu(cx, task.id, previous);
        self.tasks[task.id].is_placed.store(idle.is_some(), Relaxed);
        idle.unwrap_or(suggested)
    }

    fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        let is_placed = account.is_placed.load(Relaxed);
        account.is_interactive.store(false, Relaxed);
        account.charged_ns.store(task.runtime_ns, Relaxed);
        account.since_ns.store(cx.now_ns(), Relaxed);
        [&account.switches, &account.vtime].into_iter().for_each(|value| value.store(0, Relaxed));
        // Until more is known of it, it is interactive as soon as it is woken up.
        account.rate.store(self.times.threshold_max, Relaxed);
        account.is_placed.store(is_placed, Relaxed);
        self.enqueue(cx, task, token);
    }

    /// It is interactive from now on, unless its rate says otherwise.
    fn task_wakeup(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        self.classify(account, cx.now_ns());
        account.is_interactive.store(self.is_interactive(account), Relaxed);
        self.enqueue(cx, task, token);
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let account = &self.tasks[task.id];
        let vtime = self.charge(task, account);
        let cpu = token.cpu();
        // Meanwhile the CPU may have another task.
        if account.is_placed.swap(false, Relaxed) && cx.running(cpu).is_none() {
            let mut direct = self.direct[cpu].lock();
            direct.push_back(token);
            self.direct_len[cpu].set(direct.len() as u32);
            return;
        }
        let common = if account.is_interactive.load(Relaxed) { &self.interactive } else { &self.regular };
        common.insert(vtime, token);
        cx.kick_idle_in(task.id, cx.topology().llc(cpu)).or_else(|| cx.kick_idle(task.id));
    }

    /// One that computes is judged here; those that sleep are when they wake up.
    fn task_preempt(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.classify(&self.tasks[task.id], cx.now_ns());
        self.enqueue(cx, task, token);
    }

    fn task_blocked(&self, _: &Cx, task: &Task) {
        self.tasks[task.id].switches.fetch_add(1, Relaxed);
    }

    /// The more tasks wait, the shorter the slice. Others' tasks come last: their CPU was idle, and another policy has it now.
    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let others = || self.direct.iter().find_map(|(other, _)| self.claim_direct(cx, other));
        let token = self.claim_direct(cx, cpu).or_else(|| self.claim_common(cx)).or_else(others)?;
        let waiting = self.waiting(cpu);
        let slice_ns = (self.times.slice_ns / u64::from(waiting + 1)).max(self.times.slice_min_ns);
        cx.set_slice_ns(slice_ns);
        if waiting > 0 {
            // Or else a slice ends at a tick.
            cx.arm_timer(slice_ns);
        }
        Some(token)
    }

    fn timer(&self, cx: &Cx, cpu: CpuId) {
        if self.waiting(cpu) > 0 {
            cx.resched(cpu);
        }
    }
}
