//! Applications ask for CPUs and are given them, by priority, to run one thread each there, an activation; all other tasks are first come, first
//! served, on the CPUs that are left. An activation runs on its CPU whenever it can; while it sleeps, the CPU is lent to tasks that wait. It gives
//! up nice values, warm caches of the other tasks, and fairness between applications of different priorities.
//!
//! The core arbiter of Arachne (OSDI 2018), section 4; papers/000, section 4.2.4. The policy does not hold a task that could run: an application
//! that is asked for a CPU back has the activation there wait for a notice, and by that the CPU is free. If it does not, the policy moves the
//! activation off after a grace time, to the tasks that share the rest. A task that may run on given CPUs only has turns there.
//!
//! Lines without tests: 350 at most.

use alloc::{collections::BTreeMap, vec::Vec};
use core::cmp::Reverse;

use ekiden::{Hints, Plain, ProcessId, QueueId, prelude::*};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Most activations of an application.
const ACTIVATIONS_MAX: usize = 1024;

/// How long a task runs until it gives way to one that waits.
const TURN_NS: u64 = 4_000_000;

/// Stands in the place of a CPU's activation when that has left.
const LEFT: u64 = 0;
const OFFLINE: u64 = u64::MAX;

/// What an application asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(u32)]
pub enum Ask {
    /// A number of CPUs, with a priority.
    Cpus = 1,
    /// That a thread is an activation from now on, until it ends.
    Enroll = 2,
}

/// A hint. The application is the queue that it comes by, and only threads of the queue's process become activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(C)]
pub struct Request {
    /// Which of them.
    pub ask: Ask,
    /// The id of the activation's thread.
    pub thread: u32,
    /// How many CPUs. No more are given than there are activations.
    pub cpus: u32,
    /// The higher, the sooner. Applications of the same priority are given one more each in turn, those that have come first first.
    pub priority: u32,
}

/// What happens to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(u32)]
pub enum Becomes {
    /// It is given, or the application may keep it after all.
    Given = 1,
    /// It is asked back: the activation there is to wait for a notice soon.
    AskedBack = 2,
    /// It is the application's no more.
    Taken = 3,
}

/// A notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(C)]
pub struct Assignment {
    /// What happens to the CPU.
    pub becomes: Becomes,
    /// Which CPU.
    pub cpu: u32,
    /// The thread that has it, or had it.
    pub thread: u32,
}

/// The tasks that wait, and what applications have.
#[derive(Layout)]
pub struct Arbiter {
    /// The tasks that share the CPUs that are left.
    rest: Queue,
    cpus: PerCpu<Place>,
    tasks: PerTask<Activation>,
    book: SpinLock<Book>,
    /// How often a thread was named that no call was about before. A task that has not been looked up since may be the one.
    named: Shared<u32>,
    left: u32,
    grace_ns: u64,
}

/// A CPU. Its own queue has its activation, if that waits, and tasks that may run on given CPUs only.
#[derive(Default, Layout)]
struct Place {
    queue: Queue,
    /// The task that it is given to, as one word, or one of the two above.
    activation: Shared<u64>,
}

/// State of a task; for one that is no activation, only its thread id, where it ran and whether it sleeps.
#[derive(Default, Layout)]
struct Activation {
    pid: Shared<u32>,
    ran_on: Shared<CpuId>,
    sleeps: Shared<bool>,
    /// The count of named threads when it was looked up.
    looked_up: Shared<u32>,
    application: Shared<u32>,
    /// Its CPU and one more, or 0.
    home: Shared<u32>,
    /// When that was asked back, or 0.
    asked_ns: Shared<u64>,
}

impl Activation {
    fn home(&self) -> Option<CpuId> {
        self.home.get().checked_sub(1)
    }
}

/// What applications have said.
#[derive(Default, Layout)]
struct Book {
    applications: BTreeMap<QueueId, Application>,
    /// Threads that are to be activations as soon as a call is about them.
    named: BTreeMap<(ProcessId, u32), QueueId>,
}

#[derive(Default, Layout)]
struct Application {
    process: ProcessId,
    wanted: u32,
    priority: u32,
    /// How many CPUs it is to have now.
    due: u32,
    /// How many of its threads are named but not seen yet.
    named: usize,
    /// The task of each activation, by its thread's id.
    activations: BTreeMap<u32, TaskId>,
}

type Queue = SpinLock<FifoQueue<Arbiter>>;

/// Takes those out that are to go elsewhere.
fn split(queue: &Queue, goes: impl Fn(&Schedulable<Arbiter>) -> bool) -> Vec<Schedulable<Arbiter>> {
    let mut tokens = queue.lock();
    let all = (0..tokens.len()).map_while(|_| tokens.pop_front()).collect::<Vec<_>>();
    let (go, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(goes);
    stay.into_iter().for_each(|token| tokens.push_back(token));
    go
}

impl Book {
    /// Says what each application is to have of this many CPUs, and which one is asked first.
    fn share_out(&mut self, mut cpus: u32) -> Vec<QueueId> {
        let mut order: Vec<_> = self.applications.iter().map(|(queue, it)| (Reverse(it.priority), *queue)).collect();
        order.sort_unstable();
        self.applications.values_mut().for_each(|it| it.due = 0);
        for equals in order.chunk_by(|one, other| one.0 == other.0) {
            let mut before = u32::MAX;
            while cpus > 0 && cpus != before {
                before = cpus;
                for (_, queue) in equals {
                    let Some(it) = self.applications.get_mut(queue) else { continue };
                    let more = u32::from(cpus > 0 && it.due < it.wanted.min(it.activations.len() as u32));
                    (it.due, cpus) = (it.due + more, cpus - more);
                }
            }
        }
        order.into_iter().map(|(_, queue)| queue).collect()
    }
}

impl Arbiter {
    fn is_left(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].activation.get() == LEFT
    }

    /// Whether the task of a token could run on no CPU that is left.
    fn is_bound(&self, cx: &Cx, token: &Schedulable<Self>) -> bool {
        let may_run = |cpu| self.is_left(cpu) && cx.may_run(token.task(), cpu);
        !self.is_left(token.cpu()) && !self.cpus.iter().any(|(cpu, _)| may_run(cpu))
    }

    /// Puts a token where it belongs. A caller that changes what that depends on looks into the queue afterwards.
    fn put(&self, cx: &Cx, token: Schedulable<Self>) {
        let (task, cpu) = (token.task(), token.cpu());
        let home = self.tasks[task].home().filter(|home| cx.may_run(task, *home));
        let mut tokens = home.map_or(&self.rest, |home| &self.cpus[home].queue).lock();
        if home.is_some() && self.tasks[task].home() != home {
            drop(tokens);
            return self.put(cx, token);
        }
        if home.is_none() && self.is_bound(cx, &token) {
            self.cpus[cpu].queue.lock().push_back(token);
        } else {
            tokens.push_back(token);
        }
        drop(tokens);
        if home.is_none() {
            cx.kick_idle(task);
        } else if let Some(home) = home.filter(|home| cpu != *home || cx.running(*home).is_some()) {
            // Another task has borrowed the CPU, or it does not look by itself.
            cx.resched(home);
        }
    }

    /// Tells the application which CPU the activation has now. An application that does not read does without.
    fn tell(&self, cx: &Cx, becomes: Becomes, task: TaskId) {
        let activation = &self.tasks[task];
        let (cpu, thread) = (activation.home.get().wrapping_sub(1), activation.pid.get());
        let _ = cx.notify::<Self>(activation.application.get(), &Assignment { becomes, cpu, thread });
    }

    /// An activation gets a CPU: the one where it runs if that is left, or else the last one that is.
    fn give(&self, cx: &Cx, task: TaskId) -> bool {
        let activation = &self.tasks[task];
        let here = activation.ran_on.get();
        let runs = cx.running(here).is_some_and(|running| running.task == task);
        let fits = |cpu: &CpuId| self.is_left(*cpu) && cx.may_run(task, *cpu);
        let last = || self.cpus.iter().map(|(cpu, _)| cpu).filter(fits).last();
        let Some(cpu) = Some(here).filter(|here| runs && fits(here)).or_else(last) else { return false };
        self.cpus[cpu].activation.set(task.to_bits());
        activation.home.set(cpu + 1);
        self.tell(cx, Becomes::Given, task);
        // It comes here from where it waits or runs, and others that wait cannot go elsewhere now.
        let moving = split(&self.rest, |token| token.task() == task || self.is_bound(cx, token));
        moving.into_iter().for_each(|token| self.put(cx, token));
        [Some(cpu), runs.then_some(here)].into_iter().flatten().for_each(|cpu| cx.resched(cpu));
        true
    }

    /// An activation has its CPU no more. What waits there goes where it belongs now.
    fn take(&self, cx: &Cx, task: TaskId) {
        let activation = &self.tasks[task];
        let Some(cpu) = activation.home() else { return };
        self.tell(cx, Becomes::Taken, task);
        activation.home.set(0);
        activation.asked_ns.set(0);
        self.cpus[cpu].activation.set(LEFT);
        split(&self.cpus[cpu].queue, |_| true).into_iter().for_each(|token| self.put(cx, token));
        cx.resched(cpu);
    }

    /// Asks CPUs back from applications that have too many, and gives those that are left to those that have too few.
    fn arbitrate(&self, cx: &Cx, book: &mut Book) {
        let count = |is_it: fn(u64) -> bool| {
            let those = self.cpus.iter().filter(|(_, place)| is_it(place.activation.get()));
            (those.count() as u32).saturating_sub(self.left)
        };
        let order = book.share_out(count(|activation| activation != OFFLINE));
        // Activations that have a CPU and are to keep it, or the others: first those with a CPU, last those that sleep.
        let those = |queue: &QueueId, keep: bool| {
            let it = book.applications.get(queue);
            let keeps = |it: &Activation| it.home.get() != 0 && it.asked_ns.get() == 0;
            let all = it.into_iter().flat_map(|it| it.activations.values().copied());
            let mut those: Vec<TaskId> = all.filter(|task| keeps(&self.tasks[*task]) == keep).collect();
            those.sort_by_key(|task| (self.tasks[*task].home.get() == 0, self.tasks[*task].sleeps.get()));
            (those, it.map_or(0, |it| it.due as usize))
        };
        for queue in &order {
            let (those, due) = those(queue, true);
            for task in those.into_iter().skip(due) {
                if self.tasks[task].sleeps.get() {
                    self.take(cx, task);
                } else {
                    self.tasks[task].asked_ns.set(cx.now_ns().max(1));
                    self.tell(cx, Becomes::AskedBack, task);
                }
            }
        }
        let mut spare = count(|activation| activation == LEFT);
        for queue in &order {
            let (have, due) = those(queue, true);
            let mut lacks = due.saturating_sub(have.len());
            for task in those(queue, false).0 {
                if lacks > 0 && self.tasks[task].home.get() != 0 {
                    self.tasks[task].asked_ns.set(0);
                    self.tell(cx, Becomes::Given, task);
                    lacks -= 1;
                } else if lacks > 0 && spare > 0 && self.give(cx, task) {
                    (lacks, spare) = (lacks - 1, spare - 1);
                }
            }
        }
    }

    /// A call is about a task: it may be a thread that was named.
    fn look_up(&self, cx: &Cx, task: &Task) {
        let activation = &self.tasks[task.id];
        activation.pid.set(task.pid);
        let named = self.named.get();
        let is_new = activation.looked_up.swap(named) != named;
        let Some(process) = is_new.then(|| cx.process(task.id)).flatten() else { return };
        let book = &mut *self.book.lock();
        let Some(queue) = book.named.remove(&(process, task.pid)) else { return };
        self.forget(cx, book, task.id);
        if let Some(it) = book.applications.get_mut(&queue) {
            it.named = it.named.saturating_sub(1);
            it.activations.insert(task.pid, task.id);
            activation.application.set(queue);
            self.arbitrate(cx, book);
        }
    }

    /// A task is no activation any more.
    fn forget(&self, cx: &Cx, book: &mut Book, task: TaskId) {
        let activation = &self.tasks[task];
        self.take(cx, task);
        if let Some(it) = book.applications.get_mut(&activation.application.swap(0)) {
            it.activations.remove(&activation.pid.get());
        }
    }

    /// A CPU that was asked back so long ago is free.
    fn give_back(&self, cx: &Cx, task: TaskId, after_ns: u64) {
        let asked_ns = self.tasks[task].asked_ns.get();
        if asked_ns != 0 && cx.now_ns() >= asked_ns + after_ns {
            let book = &mut *self.book.lock();
            self.take(cx, task);
            self.arbitrate(cx, book);
        }
    }

    fn hear(&self, book: &mut Book, queue: QueueId, request: Request) {
        let Some(it) = book.applications.get_mut(&queue) else { return };
        if request.ask == Ask::Cpus {
            (it.wanted, it.priority) = (request.cpus, request.priority);
        } else if it.named + it.activations.len() < ACTIVATIONS_MAX && !it.activations.contains_key(&request.thread) {
            let is_new = book.named.insert((it.process, request.thread), queue) != Some(queue);
            it.named += usize::from(is_new);
            self.named.add(u32::from(is_new));
        }
    }
}

#[policy(HintQueues)]
impl Scheduler for Arbiter {
    const PARAMS: &'static [Param] = &[
        Param { name: "left", help: "so many CPUs are left to other tasks", default: 1, min: 1, max: 4_096 },
        Param { name: "grace_us", help: "time to give a CPU back", default: 10_000, min: 100, max: 1_000_000 },
    ];

    fn new(env: &Env) -> Self {
        let online = env.topology().online();
        let activation = |cpu| Shared::new(if online.contains(cpu) { LEFT } else { OFFLINE });
        Self {
            rest: SpinLock::default(),
            cpus: PerCpu::new(env, |cpu| Place { activation: activation(cpu), ..Place::default() }),
            tasks: PerTask::new(env, Activation::default),
            book: SpinLock::default(),
            named: Shared::default(),
            left: env.param("left") as u32,
            grace_ns: env.param("grace_us") * 1000,
        }
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        self.look_up(cx, task);
        self.tasks[task.id].home().filter(|home| cx.may_run(task.id, *home)).unwrap_or(suggested)
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.tasks[task.id].sleeps.set(false);
        self.look_up(cx, task);
        self.put(cx, token);
    }

    /// First what can run nowhere else; then what shares the CPUs that are left, so that a given CPU is lent while its activation sleeps.
    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        let token = self.cpus[cpu].queue.lock().claim_first(cx);
        let token = token.or_else(|| self.rest.lock().claim_first(cx))?;
        self.tasks[token.task()].ran_on.set(cpu);
        cx.set_slice_ns(TURN_NS);
        Some(token)
    }

    fn task_blocked(&self, cx: &Cx, task: &Task) {
        self.tasks[task.id].sleeps.set(true);
        self.give_back(cx, task.id, 0);
    }

    fn task_dead(&self, cx: &Cx, task: TaskId) {
        let activation = &self.tasks[task];
        activation.looked_up.set(0);
        if activation.application.get() != 0 {
            let book = &mut *self.book.lock();
            self.forget(cx, book, task);
            self.arbitrate(cx, book);
        }
    }

    fn task_departed(&self, cx: &Cx, task: &Task) -> Option<Schedulable<Self>> {
        self.task_dead(cx, task.id);
        let mut queues = self.cpus.iter().map(|(_, place)| &place.queue).chain([&self.rest]);
        queues.find_map(|queue| queue.lock().remove(task.id))
    }

    /// The time to give its CPU back may be over.
    fn task_tick(&self, cx: &Cx, task: &Task) {
        self.look_up(cx, task);
        self.give_back(cx, task.id, self.grace_ns);
    }

    /// An activation that may not run on its CPU any more gets another. What may run on given CPUs only now waits there.
    fn task_affinity_changed(&self, cx: &Cx, task: &Task) {
        let activation = &self.tasks[task.id];
        if activation.application.get() != 0 {
            let book = &mut *self.book.lock();
            if activation.home().is_some_and(|home| !cx.may_run(task.id, home)) {
                self.take(cx, task.id);
            }
            self.arbitrate(cx, book);
        }
        let waiting = split(&self.rest, |token| token.task() == task.id && self.is_bound(cx, token));
        waiting.into_iter().for_each(|token| self.put(cx, token));
    }

    fn cpu_online(&self, cx: &Cx, cpu: CpuId) {
        self.cpus[cpu].activation.set(LEFT);
        self.arbitrate(cx, &mut self.book.lock());
    }

    fn cpu_offline(&self, cx: &Cx, cpu: CpuId) {
        let book = &mut *self.book.lock();
        let activation = self.cpus[cpu].activation.swap(OFFLINE);
        if ![LEFT, OFFLINE].contains(&activation) {
            self.take(cx, TaskId::from_bits(activation));
            self.cpus[cpu].activation.set(OFFLINE);
        }
        self.arbitrate(cx, book);
    }
}

#[policy]
impl HintQueues for Arbiter {
    type Hint = Request;
    type Notice = Assignment;

    fn register_queue(&self, _: &Cx, queue: QueueId, process: ProcessId) {
        self.book.lock().applications.insert(queue, Application { process, ..Application::default() });
    }

    fn enter_queue(&self, cx: &Cx, queue: QueueId, hints: Hints<'_, Request>) {
        let book = &mut *self.book.lock();
        hints.for_each(|request| self.hear(book, queue, request));
        self.arbitrate(cx, book);
    }

    fn unregister_queue(&self, cx: &Cx, queue: QueueId) {
        let book = &mut *self.book.lock();
        book.named.retain(|_, other| *other != queue);
        let Some(it) = book.applications.remove(&queue) else { return };
        it.activations.values().for_each(|task| self.forget(cx, book, *task));
        self.arbitrate(cx, book);
    }
}
