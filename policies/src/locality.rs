//! Threads that hints put into the same set share a CPU; the rest is first come, first served, and goes where a CPU
//! is idle. A hint is ignored where its CPU is crowded. It gives up fairness, and the parallelism of threads in one
//! set. (Papers/000, section 4.2.3.)

use alloc::collections::BTreeMap;

use ekiden::{Hints, Plain, ProcessId, QueueId, prelude::*};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Most threads of one program that are in sets, and most of its sets; and of all programs.
const OF_PROGRAM_MAX: usize = 128;
const THREADS_MAX: usize = 4096;

/// What happens to a thread: it joins a set, and leaves the one that it was in; or it is in none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(u32)]
#[allow(missing_docs, reason = "said above")]
pub enum Change {
    Join = 1,
    Leave = 2,
}

/// A hint: which thread, by its id, shares a CPU with which others. Sets are a program's own, and so are the threads that it can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(C)]
#[allow(missing_docs, reason = "said above")]
pub struct Together {
    pub change: Change,
    pub thread: u32,
    pub set: u32,
}

/// The answer: the CPU on which the thread is to wake up from now on, or `u32::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(C)]
#[allow(missing_docs, reason = "said above")]
pub struct Placed {
    pub thread: u32,
    pub cpu: u32,
}

/// A queue per CPU, and the CPUs of threads.
#[derive(Layout)]
pub struct Locality {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    tasks: PerTask<Place>,
    told: SpinLock<Told>,
    any: Shared<bool>,
    next: Shared<u32>,
    nr_cpus: u32,
    crowd: usize,
}

/// Where a task waits, whether it is to stay there, and whose thread it is, if it is in a set.
#[derive(Default, Layout)]
struct Place {
    cpu: Shared<u32>,
    stays: Shared<bool>,
    process: Shared<u32>,
    pid: Shared<u32>,
}

type Cpus = BTreeMap<(ProcessId, u32), CpuId>;

/// What programs have said: the CPUs of their threads by id, and of their sets by number.
#[derive(Default, Layout)]
struct Told {
    owners: BTreeMap<QueueId, ProcessId>,
    threads: Cpus,
    sets: Cpus,
}

impl Locality {
    /// What a program says of threads that are not its own is never found here.
    fn home(&self, cx: &Cx, task: &Task) -> Option<CpuId> {
        let process = self.any.get().then(|| cx.process(task.id)).flatten()?;
        let home = self.told.lock().threads.get(&(process, task.pid)).copied();
        home.inspect(|_| self.tasks[task.id].process.set(process))
    }

    fn follow(&self, queue: QueueId, hint: Together) -> Option<CpuId> {
        let Told { owners, threads, sets } = &mut *self.told.lock();
        let owner = *owners.get(&queue)?;
        threads.remove(&(owner, hint.thread));
        let all = (owner, 0)..=(owner, u32::MAX);
        let is_full = |cpus: &Cpus| cpus.len() >= THREADS_MAX || cpus.range(all.clone()).count() >= OF_PROGRAM_MAX;
        if hint.change == Change::Leave || is_full(threads) || (is_full(sets) && !sets.contains_key(&(owner, hint.set)))
        {
            return None;
        }
        // Each set on another CPU, in turn.
        let cpu = *sets.entry((owner, hint.set)).or_insert_with(|| self.next.fetch_add(1) % self.nr_cpus);
        threads.insert((owner, hint.thread), cpu);
        self.any.set(true);
        Some(cpu)
    }
}

#[policy(HintQueues)]
impl Scheduler for Locality {
    const PARAMS: &'static [Param] =
        &[Param { name: "crowd", help: "so many waiting tasks crowd a CPU", default: 4, min: 1, max: 1024 }];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            tasks: PerTask::new(env, Place::default),
            told: SpinLock::default(),
            any: Shared::new(false),
            next: Shared::new(0),
            nr_cpus: env.topology().nr_cpus(),
            crowd: env.param("crowd") as usize,
        }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        let fits = |home: &CpuId| cx.may_run(task.id, *home) && self.queues[*home].lock().len() < self.crowd;
        self.home(cx, task).filter(fits).unwrap_or(suggested)
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let (cpu, place) = (token.cpu(), &self.tasks[task.id]);
        let stays = self.home(cx, task) == Some(cpu);
        place.cpu.set(cpu);
        place.stays.set(stays);
        place.pid.set(task.pid);
        self.queues[cpu].lock().push_back(token);
        if !stays {
            cx.kick_idle(task.id);
        }
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        let may = |task: TaskId, crowded: bool| (crowded || !self.tasks[task].stays.get()) && cx.may_run(task, cpu);
        self.queues.iter().filter(|(other, _)| *other != cpu).find_map(|(_, queue)| {
            let queue = queue.lock();
            let crowded = queue.len() >= self.crowd;
            queue.iter().map(Schedulable::task).find(|task| may(*task, crowded))
        })
    }

    fn migrate_task_rq(&self, cx: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.queues[self.tasks[task.id].cpu.get()].lock().remove(task.id);
        self.enqueue(cx, task, new);
        old
    }

    fn task_departed(&self, _: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.queues[self.tasks[task.id].cpu.get()].lock().remove(task.id)
    }

    fn task_dead(&self, _: &Cx, task: TaskId) {
        let place = &self.tasks[task];
        if place.process.get() != 0 {
            self.told.lock().threads.remove(&(place.process.get(), place.pid.get()));
        }
    }
}

#[policy]
impl HintQueues for Locality {
    type Hint = Together;
    type Notice = Placed;

    fn register_queue(&self, _: &Cx, queue: QueueId, owner: ProcessId) {
        self.told.lock().owners.insert(queue, owner);
    }

    fn enter_queue(&self, cx: &Cx, queue: QueueId, hints: Hints<'_, Together>) {
        for hint in hints {
            let cpu = self.follow(queue, hint).unwrap_or(u32::MAX);
            // A program that does not read does without.
            let _ = cx.notify::<Self>(queue, &Placed { thread: hint.thread, cpu });
        }
    }

    fn unregister_queue(&self, _: &Cx, queue: QueueId) {
        let Told { owners, threads, sets } = &mut *self.told.lock();
        let Some(owner) = owners.remove(&queue) else { return };
        if !owners.values().any(|other| *other == owner) {
            [threads, sets].into_iter().for_each(|cpus| cpus.retain(|(process, _), _| *process != owner));
        }
    }
}
