//! What a call may do besides returning.

use alloc::sync::Arc;
use core::cell::Cell;

use ekiden_abi::{Call, FOR_IDLE, Kicks, Message, NO_CLAIMS, RawToken, RefusalReason};

use zerocopy::IntoBytes;

use crate::call_log::{call_log_runs, learn};
use crate::{CpuId, CpuMask, NotTold, ProcessId, QueueId, Refused, Schedulable, Scheduler, TaskId, Topology};

/// The shortest slice, in nanoseconds. A task that gets less hardly does more than come and go.
///
/// ```
/// use ekiden::{SLICE_NS_MIN, prelude::*};
///
/// struct Hasty;
///
/// #[policy]
/// impl Scheduler for Hasty {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         cx.set_slice_ns(1);
///         None
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Hasty>::flat(1);
/// assert_eq!(machine.call(ekiden::Call::PickNextTask, 0, 0).slice_ns, SLICE_NS_MIN);
/// ```
pub const SLICE_NS_MIN: u64 = 10_000;

/// Questions that a policy may ask its host in the middle of a call. The answers are inputs like the message itself:
/// a recorder writes them down, a replayer gives the same ones again.
pub trait Host: Sync {
    /// The host's monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Whether `task` may run on `cpu` right now.
    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool;
    /// Puts the CPUs that `task` may run on into `cpus`.
    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask);
    /// Puts the CPUs that run none of our tasks into `cpus`.
    fn idle_cpus(&self, cpus: &mut CpuMask);
    /// Moves the task of `token`, which waits for another CPU, to `cpu`; see [`Cx::claim`]. The token's serial stays good.
    ///
    /// # Errors
    /// Why it does not go there.
    fn claim(&self, _token: RawToken, _cpu: CpuId) -> Result<(), RefusalReason> {
        Err(RefusalReason::NotAllowed)
    }
    /// Finds an idle CPU of `among`, or of all, on which `task` may run and that no other call was given to kick; see
    /// [`Cx::kick_idle`]. From here on this one has it.
    fn take_idle(&self, _task: TaskId, _among: Option<&CpuMask>) -> Option<CpuId> {
        None
    }
    /// Which of our tasks runs on `cpu`, if any does and the host can tell.
    fn running(&self, _cpu: CpuId) -> Option<Running> {
        None
    }
    /// Writes a notice into the ring of a queue, and wakes up the threads that wait for one; see [`Cx::notify`].
    ///
    /// # Errors
    /// Why the program does not get it.
    fn notify(&self, _queue: QueueId, _notice: &[u8]) -> Result<(), NotTold> {
        Err(NotTold::Closed)
    }
    /// The process that `task` is a thread of, if the host can tell.
    fn process(&self, _task: TaskId) -> Option<ProcessId> {
        None
    }
    /// The group that `task` belongs to; [`Group::ROOT`] where the host knows of none.
    fn group(&self, _task: TaskId) -> Group {
        Group::ROOT
    }
}

/// A task that runs.
///
/// ```
/// use ekiden::{Call, prelude::*};
///
/// /// Preempts what has run for a microsecond, when a task of more weight wakes up.
/// struct Preempting(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for Preempting {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
///     fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
///         let cpu = token.cpu();
///         self.0.lock().push_back(token);
///         if let Some(running) = cx.running(cpu) {
///             if task.weight > running.weight || cx.now_ns() - running.since_ns >= 1_000 {
///                 assert_ne!(running.task, task.id);
///                 cx.resched(cpu);
///             }
///         }
///     }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { self.0.lock().pop_front() }
/// }
///
/// // Something has run on CPU 0 for a microsecond, and nothing runs on CPU 1.
/// let mut machine = ekiden_example_host::Machine::<Preempting>::flat(2);
/// assert_eq!((machine.wake(3, 0), machine.wake(4, 1)), (vec![0], vec![]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The task that runs.
    pub task: TaskId,
    /// Its weight, as its policy was told it; 1024 is nice 0.
    pub weight: u32,
    /// Since when it has the CPU, by [`Cx::now_ns`]; 0 where the host cannot tell.
    pub since_ns: u64,
}

/// Tasks whose CPU time is to be shared out together: a control group, or one of the kernel's autogroups.
///
/// ```
/// use ekiden::{Call, Group, prelude::*};
///
/// /// Counts the tasks that are in no group.
/// struct Counting(Shared<u32>);
///
/// #[policy]
/// impl Scheduler for Counting {
/// #     fn new(_: &Env) -> Self { Self(Shared::new(0)) }
/// #     fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) { cx.resched(self.0.get()); drop(token) }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn task_new(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
///         if cx.group(task.id) == Group::ROOT {
///             self.0.add(1);
///         }
///         self.enqueue(cx, task, token);
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Counting>::flat(4);
/// machine.wait(Call::TaskNew, 3, 0);
/// assert!(machine.wait(Call::TaskNew, 4, 0).kicks.contains(2));
/// assert_eq!((Group::ROOT.id, Group::ROOT.weight), (0, 1024));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Names the group while it has tasks; 0 is that of the tasks that are in no other.
    pub id: u32,
    /// Its weight among groups, as a task's: 1024 is the default of both.
    pub weight: u32,
}

impl Group {
    /// The group of tasks that are in no other.
    pub const ROOT: Self = Self { id: 0, weight: 1024 };
}

/// The surroundings of one call. Effects are collected here and carried out by the host after the call returns.
///
/// ```
/// use ekiden::{Call, prelude::*};
///
/// /// One queue for all CPUs, and a tick of its own.
/// struct Central(SpinLock<FifoQueue<Self>>);
///
/// #[policy]
/// impl Scheduler for Central {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::default()) }
///     fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
///         assert!(cx.idle_cpus().is_subset(&cx.allowed_cpus(task.id)) && cx.may_run(task.id, cx.cpu()));
///         self.0.lock().push_back(token);
///         // First a CPU that shares the cache with this one, and otherwise any.
///         let near = cx.topology().llc(cx.cpu());
///         cx.kick_idle_in(task.id, near).or_else(|| cx.kick_idle(task.id));
///     }
///
///     fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
///         cx.set_slice_ns(2_000_000);
///         cx.arm_timer(500_000);
///         // The token is for the CPU where the task waited; exchange it.
///         cx.claim(self.0.lock().pop_front()?).ok()
///     }
///
///     /// Half a millisecond later.
///     fn timer(&self, cx: &Cx, cpu: CpuId) {
///         if cx.now_ns() > 0 && !self.0.lock().is_empty() {
///             cx.resched(cpu);
///         }
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Central>::flat(2);
/// assert_eq!(machine.wake(3, 0), [1]);
/// let reply = machine.call(Call::PickNextTask, 0, 1);
/// assert_eq!((reply.token.task.slot, reply.token.cpu), (3, 1));
/// assert_eq!((reply.slice_ns, reply.timer_ns), (2_000_000, 500_000));
/// assert!(machine.call(Call::Timer, 0, 1).kicks.is_empty());
/// machine.wake(4, 0);
/// assert!(machine.call(Call::Timer, 0, 1).kicks.contains(1));
/// ```
pub struct Cx<'a> {
    message: &'a Message,
    topology: &'a Arc<Topology>,
    // The host's answers are asked for only when they are wanted.
    host: &'a Arc<dyn Host + Send>,
    now_ns: Cell<Option<u64>>,
    // What the reply will hold.
    slice_ns: &'a Cell<u64>,
    timer_ns: &'a Cell<u64>,
    kicks: &'a Cell<Kicks>,
}

impl<'a> Cx<'a> {
    #[inline]
    pub(crate) fn new(
        message: &'a Message,
        topology: &'a Arc<Topology>,
        host: &'a Arc<dyn Host + Send>,
        slice_ns: &'a mut u64,
        timer_ns: &'a mut u64,
        kicks: &'a mut Kicks,
    ) -> Self {
        let [slice_ns, timer_ns] = [slice_ns, timer_ns].map(Cell::from_mut);
        Self { message, topology, host, now_ns: Cell::new(None), slice_ns, timer_ns, kicks: Cell::from_mut(kicks) }
    }

    /// The CPU that the call is about. Not always the one that executes it: a wake-up is handled where the waker is.
    #[inline]
    pub fn cpu(&self) -> CpuId {
        self.message.cpu
    }

    #[inline]
    pub(crate) fn message(&self) -> &Message {
        self.message
    }

    /// Whether the text of [`debug!`](crate::debug!) is shown; the macro asks here.
    #[doc(hidden)]
    #[inline]
    pub fn shows_text(&self) -> bool {
        #[cfg(feature = "observe")]
        return crate::observe::shows_text();
        #[cfg(not(feature = "observe"))]
        false
    }

    /// Shows it.
    #[doc(hidden)]
    #[cold]
    pub fn show_text(&self, text: core::fmt::Arguments<'_>) {
        #[cfg(feature = "observe")]
        crate::observe::show_text(self.message, text);
        #[cfg(not(feature = "observe"))]
        let _ = text;
    }

    /// Exchanges a token for one for the CPU of the call, to be returned from
    /// [`pick_next_task`](crate::Scheduler::pick_next_task): so CPUs share a queue. The task moves at once, no
    /// [`migrate_task_rq`](crate::Scheduler::migrate_task_rq) follows, and the policy may hold a lock. A token that is for
    /// this CPU already comes back as it is, at no cost; whether it is still good, the engine sees when it is picked.
    ///
    /// Queues do this for all their tokens: [`FifoQueue::claim_first`](crate::FifoQueue::claim_first) and its like.
    ///
    /// # Errors
    /// The token comes back with the reason. `NotAllowed`: the task may not run here, or the call is not `pick_next_task`.
    /// `Busy`: it is still leaving the CPU that it ran on; if this CPU finds nothing else, it is told to look again when the
    /// task has left. Otherwise the token is worthless and can be dropped.
    #[inline]
    pub fn claim<P>(&self, token: Schedulable<P>) -> Result<Schedulable<P>, Refused<P>> {
        let cpu = self.cpu();
        if token.cpu() == cpu {
            return Ok(token);
        }
        match self.ask_for(token.raw()) {
            0 => Ok(token.on(cpu)),
            reason => Err(Refused { token, reason: RefusalReason::from_number(reason) }),
        }
    }

    /// 0, or the number of a reason.
    #[inline(never)]
    fn ask_for(&self, token: RawToken) -> u32 {
        let Message { call, flags, cpu, .. } = *self.message;
        if call != Call::PickNextTask as u32 || flags & NO_CLAIMS != 0 {
            return RefusalReason::NotAllowed as u32;
        }
        let refused = self.host.claim(token, cpu).err();
        learn(refused.map_or(0, |reason| reason as u64)) as u32
    }

    /// Has an idle CPU look for work, if there is one on which `task` may run. For a call that puts a token into a queue that
    /// CPUs share, after that: sched_ext wakes up the CPU for which a task was woken, and knows of no other that could
    /// have it. No wake-up is lost: a CPU that found the queue empty before, and is idle only after this, looks once more. No CPU is
    /// named twice before it has looked. If it takes another task then, a further idle CPU is told of this one. None is kicked while the task is just being placed on an idle CPU anyway.
    pub fn kick_idle(&self, task: TaskId) -> Option<CpuId> {
        self.kick_one_idle(task, None)
    }

    /// Kicks an idle CPU for a task, if one of these is idle: [`kick_idle`](Self::kick_idle) among a part of the CPUs.
    pub fn kick_idle_in(&self, task: TaskId, among: &CpuMask) -> Option<CpuId> {
        self.kick_one_idle(task, Some(among))
    }

    #[inline(never)]
    fn kick_one_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        if self.message.flags & FOR_IDLE != 0 {
            return None;
        }
        let found = self.host.take_idle(task, among).map_or(0, |cpu| u64::from(cpu) + 1);
        let cpu = (learn(found) as u32).checked_sub(1)?;
        self.resched(cpu);
        Some(cpu)
    }

    /// Which of our tasks `cpu` runs at this moment, its weight, and since when; `None` if it runs none. Recorded as one word if it
    /// runs none, and as three if it does.
    pub fn running(&self, cpu: CpuId) -> Option<Running> {
        let running = self.host.running(cpu);
        let task = TaskId::from_bits(learn(running.map_or(0, |running| running.task.to_bits())));
        if task.is_none() {
            return None;
        }
        let Running { weight, since_ns, .. } = running.unwrap_or(Running { task, weight: 0, since_ns: 0 });
        Some(Running { task, weight: learn(weight.into()) as u32, since_ns: learn(since_ns) })
    }

    /// Tells the application at the other end of a queue something: `cx.notify::<Self>(queue, &notice)`. It finds it in the queue's second
    /// ring, and is woken up if it waits for that. Never waits; costs a copy, and an interrupt on this CPU if a thread waits. (Papers/000,
    /// section 3.3.)
    ///
    /// # Errors
    /// `Full` if the application does not read, which a policy cannot change; `Closed` if it is gone.
    pub fn notify<S: Scheduler>(&self, queue: QueueId, notice: &S::Notice) -> Result<(), NotTold> {
        let bytes = notice.as_bytes();
        let told = self.host.notify(queue, bytes).map_or_else(|reason| reason as u64, |()| 0);
        if call_log_runs() {
            // The text, for readers of the recording.
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                learn(u64::from_le_bytes(word));
            }
        }
        match learn(told) as u32 {
            0 => Ok(()),
            reason => Err(NotTold::from_number(reason)),
        }
    }

    /// Time since some fixed moment, in nanoseconds. It does not change during a call, and is read only when asked for, because
    /// a clock costs more than most calls.
    pub fn now_ns(&self) -> u64 {
        if let Some(now_ns) = self.now_ns.get() {
            return now_ns;
        }
        let now_ns = learn(self.host.now_ns());
        self.now_ns.set(Some(now_ns));
        now_ns
    }

    /// Makes `cpu` look for work again at once: it wakes up if it is idle, and the task that it runs gives way.
    ///
    /// It may do so once for each wake-up, tick and timer, for one CPU each time. Kicks of more CPUs at once, and those in a search for
    /// work, which is what a kick leads to, are bounded in number: beyond some in a millisecond they come at its end, and a policy that asks for
    /// more all the time is taken out.
    pub fn resched(&self, cpu: CpuId) {
        let mut kicks = self.kicks.get();
        kicks.add(cpu);
        self.kicks.set(kicks);
    }

    /// How long the task that this call picks may run, in nanoseconds. Without it the host's default counts (20 ms).
    /// Rounded up to the kernel's tick unless a timer is armed too, and to [`SLICE_NS_MIN`] in any case; 0 is as without it.
    #[inline]
    pub fn set_slice_ns(&self, slice_ns: u64) {
        self.slice_ns.set(if slice_ns == 0 { 0 } else { slice_ns.max(SLICE_NS_MIN) });
    }

    /// Calls [`timer`](crate::Scheduler::timer) on this CPU after `delay_ns`, or after 10 µs if that is less. One timer per CPU;
    /// arming it again replaces the first.
    pub fn arm_timer(&self, delay_ns: u64) {
        self.timer_ns.set(delay_ns.max(1));
    }

    /// The machine's caches, cores and nodes.
    pub fn topology(&self) -> &Topology {
        self.topology
    }

    /// The CPUs that run none of our tasks at this moment. Linear in the number of CPUs ÷ 64.
    pub fn idle_cpus(&self) -> CpuMask {
        let mut cpus = CpuMask::new();
        self.host.idle_cpus(&mut cpus);
        self.learn_mask(cpus)
    }

    /// Whether `task` may run on `cpu`: its affinity, cpuset and whether it can be moved at all.
    pub fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        learn(u64::from(self.host.may_run(task, cpu))) != 0
    }

    /// The group that `task` belongs to: on a kernel and in an agent the control group that has its CPU time, in the simulator that of the load.
    /// Its children begin there. On a kernel it may be moved to another one at any time, which no call tells, autogroups are unknown, and a group
    /// for which there was no room (`ekiden status` counts them) is the one above it. How many tasks a group has is for the policy to count.
    pub fn group(&self, task: TaskId) -> Group {
        let group = self.host.group(task);
        let word = learn(u64::from(group.id) << 32 | u64::from(group.weight));
        Group { id: (word >> 32) as u32, weight: word as u32 }
    }

    /// The process that `task` is a thread of, as [`register_queue`](crate::HintQueues::register_queue) names the one that owns a queue;
    /// `None` where the host cannot tell.
    pub fn process(&self, task: TaskId) -> Option<ProcessId> {
        let process = learn(self.host.process(task).map_or(0, u64::from)) as u32;
        (process != 0).then_some(process)
    }

    /// The CPUs that `task` may run on.
    pub fn allowed_cpus(&self, task: TaskId) -> CpuMask {
        let mut cpus = CpuMask::new();
        self.host.allowed_cpus(task, &mut cpus);
        self.learn_mask(cpus)
    }

    /// Learns the words that the machine's CPUs need, so that a replay knows how many there are.
    #[inline]
    fn learn_mask(&self, cpus: CpuMask) -> CpuMask {
        if call_log_runs() { self.learn_words(&cpus) } else { cpus }
    }

    #[inline(never)]
    fn learn_words(&self, cpus: &CpuMask) -> CpuMask {
        let len = self.topology.nr_cpus().div_ceil(64) as usize;
        CpuMask::filled(len, |words| {
            for (index, word) in words.iter_mut().enumerate() {
                *word = learn(cpus.as_words().get(index).copied().unwrap_or_default());
            }
        })
    }
}
