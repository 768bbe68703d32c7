//! Threads that hints put into the same set share a CPU; the rest is first come, first served, and goes where a CPU
//! is idle. A hint is ignored where its CPU is crowded. It gives up fairness, and the parallelism of threads in one
//! set. (Papers/000, section 4.2.3.)

use alloc::collections::BTreeMap;

use ekiden::{Hints, Plain, QueueId, prelude::*};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Most threads that are in sets, and most sets.
const THREADS_MAX: usize = 1024;

/// What becomes of a thread: it joins a set, and leaves the one that it was in; or it is in none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(u32)]
#[allow(missing_docs, reason = "said above")]
pub enum Change {
    Join = 1,
    Leave = 2,
}

/// A hint: which thread, by its id, shares a CPU with which others. Sets are a queue's own.
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
    /// The CPU of each thread in a set, and the queue whose hint says so: only that changes it.
    threads: SpinLock<BTreeMap<u32, (CpuId, QueueId)>>,
    sets: SpinLock<BTreeMap<(QueueId, u32), CpuId>>,
    any: Shared<bool>,
    next: Shared<u32>,
    nr_cpus: u32,
    crowd: usize,
}

/// Where a task waits, whether it is to stay there, and its thread id.
#[derive(Default, Layout)]
struct Place {
    cpu: Shared<u32>,
    stays: Shared<bool>,
    pid: Shared<u32>,
}

impl Locality {
    fn home(&self, pid: u32) -> Option<CpuId> {
        self.any.get().then(|| self.threads.lock().get(&pid).map(|(cpu, _)| *cpu)).flatten()
    }

    fn follow(&self, queue: QueueId, hint: Together) -> Option<CpuId> {
        let (mut threads, mut sets) = (self.threads.lock(), self.sets.lock());
        if threads.get(&hint.thread).is_some_and(|(_, owner)| *owner != queue) {
            return None;
        }
        threads.remove(&hint.thread);
        if hint.change == Change::Leave || threads.len().max(sets.len()) >= THREADS_MAX {
            return None;
        }
        // Each set on another CPU, in turn.
        let cpu = *sets.entry((queue, hint.set)).or_insert_with(|| self.next.fetch_add(1) % self.nr_cpus);
        threads.insert(hint.thread, (cpu, queue));
        self.any.set(true);
        Some(cpu)
    }
}

#[policy]
impl Scheduler for Locality {
    const PARAMS: &'static [Param] =
        &[Param { name: "crowd", help: "so many waiting tasks crowd a CPU", default: 4, min: 1, max: 1024 }];
    type Hint = Together;
    type Notice = Placed;

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            tasks: PerTask::new(env, Place::default),
            threads: SpinLock::default(),
            sets: SpinLock::default(),
            any: Shared::new(false),
            next: Shared::new(0),
            nr_cpus: env.topology().nr_cpus(),
            crowd: env.param("crowd") as usize,
        }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        let fits = |home: &CpuId| cx.may_run(task.id, *home) && self.queues[*home].lock().len() < self.crowd;
        self.home(task.pid).filter(fits).unwrap_or(suggested)
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let (cpu, place) = (token.cpu(), &self.tasks[task.id]);
        let stays = self.home(task.pid) == Some(cpu);
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
        if self.any.get() {
            self.threads.lock().remove(&self.tasks[task].pid.get());
        }
    }

    fn enter_queue(&self, cx: &Cx, queue: QueueId, hints: Hints<'_, Together>) {
        for hint in hints {
            let cpu = self.follow(queue, hint).unwrap_or(u32::MAX);
            // A program that does not read does without.
            let _ = cx.notify::<Self>(queue, &Placed { thread: hint.thread, cpu });
        }
    }

    fn unregister_queue(&self, _: &Cx, queue: QueueId) {
        self.threads.lock().retain(|_, (_, owner)| *owner != queue);
        self.sets.lock().retain(|(owner, _), _| *owner != queue);
    }
}
