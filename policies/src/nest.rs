//! Few warm CPUs: tasks are placed on CPUs that were in use a moment ago, the primary nest, which grows while tasks wait and shrinks where CPUs
//! are idle for long; a reserve nest of some more comes next, and only then any idle CPU. It gives up caches and memory that are further
//! away and that more CPUs would have, nice values, and the moment in which a CPU outside of the nest idles beside a task that waits in it.
//! Checks that find it: `wasted-time`.
//!
//! Nest (Lawall et al., EuroSys 2022), sections 3.1 to 3.3; papers/000 and papers/001 name it. A CPU that stays in use keeps its frequency, and
//! does not fall into a deep idle state. The paper's CPUs also spin for a while before they go idle. A policy cannot do that here: its
//! calls run with interrupts off and have to end, and a CPU that is given no task is the kernel's to put to sleep.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ekiden::prelude::*;

/// Which nest a CPU is in.
const OUT: u32 = 0;
const RESERVE: u32 = 1;
const PRIMARY: u32 = 2;

/// A CPU that was chosen for a task has it by then, in nanoseconds; so long it is not chosen for another.
const ARRIVAL_NS: u64 = 100_000;

/// A queue per CPU, and what is known of the CPU.
#[derive(Layout)]
pub struct Nest {
    cpus: PerCpu<Place>,
    tasks: PerTask<Habit>,
    /// How many CPUs are in the reserve nest.
    reserve: Shared<u32>,
    limits: Limits,
}

#[derive(Default, Layout)]
struct Place {
    queue: SpinLock<FifoQueue<Nest>>,
    /// How many wait, to look at without the lock.
    waiting: Shared<u32>,
    nest: Shared<u32>,
    /// When it was last in use, in nanoseconds.
    used_ns: Shared<u64>,
    /// When it was chosen for a task that is not there yet; 0 if it was not.
    chosen_ns: Shared<u64>,
}

/// Where a task runs. Changed only in calls about that task, which never overlap.
#[derive(Default, Layout)]
struct Habit {
    /// The CPU that it ran on the last two times, plus 1; 0 if those were two.
    attached: AtomicU32,
    last: AtomicU32,
    /// How often in a row it found the primary nest full.
    misses: AtomicU32,
}

/// Parameters; times in nanoseconds.
#[derive(Layout)]
struct Limits {
    remove_ns: u64,
    reserve: u32,
    impatient: u32,
    slice_ns: u64,
}

impl Limits {
    fn of(env: &Env) -> Self {
        Self {
            remove_ns: env.param("remove_us") * 1000,
            reserve: env.param("reserve") as u32,
            impatient: env.param("impatient") as u32,
            slice_ns: env.param("slice_us") * 1000,
        }
    }
}

impl Nest {
    /// The reserve nest takes in as many as it has room for.
    fn reserve(&self, place: &Place) {
        let has_room = self.reserve.get() < self.limits.reserve;
        let before = place.nest.swap(if has_room { RESERVE } else { OUT });
        if has_room && before != RESERVE {
            self.reserve.add(1);
        } else if !has_room && before == RESERVE {
            self.reserve.sub(1);
        }
    }

    fn promote(&self, place: &Place) {
        if place.nest.swap(PRIMARY) == RESERVE {
            self.reserve.sub(1);
        }
    }

    /// An idle CPU of this nest, beginning with one that it is best to have. A CPU of the primary nest that has not been in use for
    /// long is not taken but leaves it.
    fn find(&self, cx: &Cx, task: TaskId, nest: u32, from: CpuId, idle: &CpuMask) -> Option<CpuId> {
        let now_ns = cx.now_ns();
        let (before, after) = (idle.iter().take_while(|cpu| *cpu < from), idle.iter().skip_while(|cpu| *cpu < from));
        after.chain(before).find(|cpu| {
            let place = &self.cpus[*cpu];
            let chosen_ns = place.chosen_ns.get();
            let is_chosen = chosen_ns != 0 && chosen_ns + ARRIVAL_NS > now_ns;
            if place.nest.get() != nest || is_chosen || !cx.may_run(task, *cpu) {
                return false;
            }
            let is_cold = place.used_ns.get() + self.limits.remove_ns < now_ns;
            if nest == PRIMARY && is_cold {
                self.reserve(place);
            }
            nest != PRIMARY || !is_cold
        })
    }

    /// An idle CPU for a task that was on `previous`, and which nest it is in from now on.
    fn choose(&self, cx: &Cx, task: TaskId, previous: CpuId) -> Option<CpuId> {
        let idle = cx.idle_cpus();
        let habit = &self.tasks[task];
        let attached = habit.attached.load(Relaxed).checked_sub(1);
        let home = attached.unwrap_or(previous);
        if let Some(cpu) = self.find(cx, task, PRIMARY, home, &idle) {
            habit.misses.store(0, Relaxed);
            return Some(cpu);
        }
        // A task that finds the nest full again and again makes it grow at once.
        let misses = habit.misses.load(Relaxed) + 1;
        let is_impatient = misses >= self.limits.impatient;
        habit.misses.store(if is_impatient { 0 } else { misses }, Relaxed);
        if let Some(cpu) = self.find(cx, task, RESERVE, home, &idle) {
            self.promote(&self.cpus[cpu]);
            return Some(cpu);
        }
        let cpu = self.find(cx, task, OUT, home, &idle)?;
        if is_impatient {
            self.promote(&self.cpus[cpu]);
        } else {
            self.reserve(&self.cpus[cpu]);
        }
        Some(cpu)
    }

    fn put(&self, token: Schedulable<Self>) {
        let place = &self.cpus[token.cpu()];
        let mut queue = place.queue.lock();
        queue.push_back(token);
        place.waiting.set(queue.len() as u32);
    }
}

#[policy]
impl Scheduler for Nest {
    const PARAMS: &'static [Param] = &[
        Param {
            name: "remove_us",
            help: "a CPU that is idle for so long leaves the primary nest",
            default: 8_000,
            min: 100,
            max: 1_000_000,
        },
        Param { name: "reserve", help: "most CPUs in the reserve nest", default: 5, min: 0, max: 4_096 },
        Param {
            name: "impatient",
            help: "how often in a row a task finds the primary nest full before that grows at once",
            default: 2,
            min: 1,
            max: 1_000,
        },
        Param { name: "slice_us", help: "how long a turn lasts", default: 4_000, min: 100, max: 100_000 },
    ];

    fn new(env: &Env) -> Self {
        Self {
            cpus: PerCpu::new(env, |_| Place::default()),
            tasks: PerTask::new(env, Habit::default),
            reserve: Shared::default(),
            limits: Limits::of(env),
        }
    }

    /// A successor may have been given other parameters.
    fn reregister_init(env: &Env, state: Self) -> Self {
        Self { limits: Limits::of(env), ..state }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        if flags.is_fork() {
            let habit = &self.tasks[task.id];
            [&habit.attached, &habit.last, &habit.misses].into_iter().for_each(|value| value.store(0, Relaxed));
        }
        let Some(cpu) = self.choose(cx, task.id, previous) else { return suggested };
        self.cpus[cpu].chosen_ns.set(cx.now_ns());
        cpu
    }

    /// Where it has to wait, an idle CPU comes for it.
    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.put(token);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let place = &self.cpus[cpu];
        place.chosen_ns.set(0);
        // A task that is queued after this look has the CPU look again.
        if place.waiting.get() == 0 {
            return None;
        }
        let mut queue = place.queue.lock();
        let token = queue.pop_front();
        place.waiting.set(queue.len() as u32);
        drop(queue);
        if token.is_some() {
            place.used_ns.set(cx.now_ns());
            cx.set_slice_ns(self.limits.slice_ns);
        }
        token
    }

    /// Attached is a task to a CPU on which it has run twice in a row.
    fn task_blocked(&self, cx: &Cx, task: &Task) {
        let (habit, here) = (&self.tasks[task.id], cx.cpu() + 1);
        let is_again = habit.last.swap(here, Relaxed) == here;
        habit.attached.store(if is_again { here } else { 0 }, Relaxed);
        self.cpus[cx.cpu()].used_ns.set(cx.now_ns());
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.cpus.iter().find_map(|(_, place)| {
            if place.waiting.get() == 0 {
                return None;
            }
            let mut queue = place.queue.lock();
            let token = queue.remove(task.id);
            place.waiting.set(queue.len() as u32);
            token
        })
    }

    /// The CPU is in use. If tasks wait behind this one, an idle CPU looks for work, that of a nest before others.
    fn task_tick(&self, cx: &Cx, _: &Task) {
        let place = &self.cpus[cx.cpu()];
        place.used_ns.set(cx.now_ns());
        if place.waiting.get() > 0 {
            let idle = cx.idle_cpus();
            if let Some(cpu) = idle.iter().max_by_key(|cpu| self.cpus[*cpu].nest.get()) {
                cx.resched(cpu);
            }
        }
    }

    /// Takes the first of the longest queue that may come here.
    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        let others = self.cpus.iter().filter(|(other, _)| *other != cpu);
        let (len, longest) = others.map(|(other, place)| (place.waiting.get(), other)).max()?;
        if len == 0 {
            return None;
        }
        let queue = self.cpus[longest].queue.lock();
        queue.iter().map(|token| token.task()).take(8).find(|task| cx.may_run(*task, cpu))
    }
}
