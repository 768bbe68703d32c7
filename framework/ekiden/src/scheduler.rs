//! The trait that a policy implements.

use ekiden_abi::{Calls, RefusalReason, TaskId};

use crate::{CpuId, Cx, Env, Fingerprint, HintQueues, Param, SavedState, Schedulable, TaskSettings};

/// A task as a call sees it. A snapshot: it is true for the duration of the call.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// The task that has used least CPU time for its weight goes first.
/// struct Fair(SpinLock<TreeQueue<Self, u64>>);
///
/// #[policy]
/// impl Scheduler for Fair {
/// #     fn new(_: &Env) -> Self { Self(SpinLock::new(TreeQueue::new())) }
///     fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
///         assert_eq!((task.pid, task.nice, task.id), (103, 0, token.task()));
///         self.0.lock().insert(ekiden::scaled_ns(task.runtime_ns, task.weight), token);
///     }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { Some(self.0.lock().pop_first()?.1) }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Fair>::flat(1);
/// machine.wake(3, 0);
/// assert_eq!(machine.pick(0), Some(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Names the task for its whole life; an index into [`PerTask`](crate::PerTask).
    pub id: TaskId,
    /// The PID, for messages to people.
    pub pid: u32,
    /// CPU time used in its life, in nanoseconds, accounted by the framework.
    pub runtime_ns: u64,
    /// Its weight; 1024 is nice 0.
    pub weight: u32,
    /// Its nice value, −20…19.
    pub nice: i32,
}

/// Why a CPU is wanted for a task, in [`Scheduler::select_task_rq`].
///
/// ```
/// use ekiden::WakeFlags;
///
/// // By fork, from CPU 2, whose task continues.
/// let flags = WakeFlags(4 | 3 << 16);
/// assert_eq!((flags.is_fork(), flags.is_sync(), flags.waker()), (true, false, Some(2)));
/// assert_eq!(WakeFlags::default().waker(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WakeFlags(pub u32);

impl WakeFlags {
    /// Whether the task is new, by fork.
    pub fn is_fork(self) -> bool {
        self.0 & 4 != 0
    }

    /// The CPU of the task that woke it up, or that a timer or device interrupted to do so; `None` where the host cannot tell.
    pub fn waker(self) -> Option<CpuId> {
        (self.0 >> 16).checked_sub(1)
    }

    /// Whether the waker is about to sleep, so that its own CPU will be free.
    pub fn is_sync(self) -> bool {
        self.0 & 16 != 0
    }
}

/// A scheduling policy.
///
/// The calls and their names are those of papers/000, table 1; the table in ARCHITECTURE.md maps each row of
/// papers/001, table I to them. Several CPUs call at once, so everything takes `&self`. Every call runs with
/// interrupts off and must end soon.
///
/// Three are required: [`new`](Self::new), [`enqueue`](Self::enqueue) and [`pick_next_task`](Self::pick_next_task).
/// Put [`#[policy]`](crate::policy) on the implementation: calls that it leaves out then cost nothing.
///
/// What only some policies need has traits of its own: [`HintQueues`] for what applications and the policy tell each other,
/// [`TaskSettings`] for what can be set for a task, [`SavedState`] for an upgrade to a version whose state has another layout. `#[policy]`
/// implements them by nothing, except those that it names, as in `#[policy(TaskSettings)]`.
///
/// ```
/// use ekiden::{Call, prelude::*};
///
/// /// Last in, first out, on each CPU by itself.
/// struct Lifo {
///     queues: PerCpu<SpinLock<FifoQueue<Self>>>,
/// }
///
/// #[policy]
/// impl Scheduler for Lifo {
///     fn new(env: &Env) -> Self {
///         Self { queues: PerCpu::new(env, |_| SpinLock::default()) }
///     }
///
///     fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
///         self.queues[token.cpu()].lock().push_back(token);
///     }
///
///     fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
///         self.queues[cpu].lock().pop_back()
///     }
///
///     /// A CPU without work asks for what has waited longest on another one.
///     fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
///         let waits = |queue: &SpinLock<FifoQueue<Self>>| queue.lock().front().map(Schedulable::task);
///         self.queues.iter().filter_map(|(_, queue)| waits(queue)).find(|task| cx.may_run(*task, cpu))
///     }
/// }
///
/// assert_eq!(Lifo::NAME, "lifo");
/// assert!(Lifo::CALLS.has(Call::Balance) && !Lifo::CALLS.has(Call::TaskTick));
/// let mut machine = ekiden_example_host::Machine::<Lifo>::flat(2);
/// machine.wake(3, 0);
/// machine.wake(4, 0);
/// assert_eq!(machine.call(Call::Balance, 0, 1).task.slot, 3);
/// assert_eq!([machine.pick(0), machine.pick(0), machine.pick(0)], [Some(4), Some(3), None]);
/// ```
pub trait Scheduler: HintQueues + TaskSettings + SavedState + Sized + Send + Sync + 'static {
    /// The name that people choose it by. Lower case, digits and dashes.
    const NAME: &'static str;
    /// The parameters that it takes.
    const PARAMS: &'static [Param] = &[];
    /// The calls that it implements itself, those of the other traits among them; filled in by `#[policy]`.
    const CALLS: Calls = Calls::ALL;

    /// The fingerprint of [`State`](Self::State); filled in by `#[policy]` if that derives [`Layout`](crate::Layout). Another
    /// build of the policy takes over the state as it is in memory if it has the same.
    const LAYOUT: Option<Fingerprint> = None;

    /// What it hands to its successor in a live upgrade; by default, through `#[policy]`, itself.
    type State: Send + 'static;

    /// Makes the policy for a machine. No task exists yet.
    fn new(env: &Env) -> Self;

    /// A task waits for the CPU of `token`. The right to run it moves into the policy. Called for new, woken,
    /// preempted, yielding and moved tasks, unless the policy implements the call for that reason. That CPU looks for work by
    /// itself; where others may have the task too, one that is idle has to be told, by [`Cx::kick_idle`].
    fn enqueue(&self, cx: &Cx<'_>, task: &Task, token: Schedulable<Self>);

    /// `cpu` looks for work. Returns the right to run a task there, or `None` to try [`balance`](Self::balance) at once and
    /// then run what another policy has, or go idle. The task that ran before has been handed over already if it can go on.
    ///
    /// The token has to be for `cpu`. One for another CPU is exchanged by [`Cx::claim`] in this call, or by the `claim_first` of a
    /// queue; [`balance`](Self::balance) is for a policy that wants to hear of the move in [`migrate_task_rq`](Self::migrate_task_rq).
    fn pick_next_task(&self, cx: &Cx<'_>, cpu: CpuId) -> Option<Schedulable<Self>>;

    /// The token that was picked for `cpu` is not honoured, and comes back. By default it is queued again if it is
    /// still good ([`RefusalReason::token_is_good`]), and dropped if it is not.
    fn pnt_err(&self, cx: &Cx<'_>, cpu: CpuId, task: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        let _ = cpu;
        if reason.token_is_good() {
            self.enqueue(cx, task, token);
        }
    }

    /// A task that the policy has never seen waits for a CPU (fork, or a change of class).
    fn task_new(&self, cx: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.enqueue(cx, task, token);
    }

    /// A task has slept and waits for a CPU.
    #[inline]
    fn task_wakeup(&self, cx: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.enqueue(cx, task, token);
    }

    /// A running task used up its slice or was made to give way.
    #[inline]
    fn task_preempt(&self, cx: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.enqueue(cx, task, token);
    }

    /// A running task gives way by itself.
    fn task_yield(&self, cx: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.enqueue(cx, task, token);
    }

    /// A running task sleeps. The policy holds no token of it.
    fn task_blocked(&self, cx: &Cx<'_>, task: &Task) {
        let _ = (cx, task);
    }

    /// A task is gone for good. A token of it that is still held is worthless.
    fn task_dead(&self, cx: &Cx<'_>, task: TaskId) {
        let _ = (cx, task);
    }

    /// A task leaves for another scheduling class or policy. Returns its token if the policy holds one.
    fn task_departed(&self, cx: &Cx<'_>, task: &Task) -> Option<Schedulable<Self>> {
        let _ = (cx, task);
        None
    }

    /// The kernel's tick found `task` running on the CPU of the call.
    fn task_tick(&self, cx: &Cx<'_>, task: &Task) {
        let _ = (cx, task);
    }

    /// The CPUs that a task may use have changed; ask [`Cx::allowed_cpus`]. If the task waits on a CPU that it lost,
    /// a [`migrate_task_rq`](Self::migrate_task_rq) follows.
    fn task_affinity_changed(&self, cx: &Cx<'_>, task: &Task) {
        let _ = (cx, task);
    }

    /// The nice value of a task has changed; `task` carries the new weight.
    fn task_prio_changed(&self, cx: &Cx<'_>, task: &Task) {
        let _ = (cx, task);
    }

    /// Chooses the CPU for a waking or new task. `previous` is where it ran last, `suggested` what the host would take
    /// (an idle CPU near `previous`, if there is one). The task may run on `suggested`, which is online; it may have lost `previous`
    /// while it slept. A CPU that it may not use is a contract violation, and `suggested` is taken.
    fn select_task_rq(&self, cx: &Cx<'_>, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        let _ = (cx, task, previous, flags);
        suggested
    }

    /// A waiting task moves to another run queue: the kernel did it, or [`balance`](Self::balance) asked for it. Takes
    /// the token for the new CPU and gives back the one for the old CPU. By default the new one is queued, and the
    /// old one is left to come back through [`pnt_err`](Self::pnt_err).
    fn migrate_task_rq(&self, cx: &Cx<'_>, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        self.enqueue(cx, task, new);
        None
    }

    /// `cpu` is about to go idle. Names a waiting task of another CPU that should move here, if there is one.
    fn balance(&self, cx: &Cx<'_>, cpu: CpuId) -> Option<TaskId> {
        let _ = (cx, cpu);
        None
    }

    /// The task that `balance` named cannot move to `cpu`.
    fn balance_err(&self, cx: &Cx<'_>, cpu: CpuId, task: TaskId, reason: RefusalReason) {
        let _ = (cx, cpu, task, reason);
    }

    /// Hands over everything that a successor needs, tokens included. No other call is under way. `#[policy]` hands
    /// over the whole policy unless it says otherwise.
    fn reregister_prep(self) -> Self::State;

    /// Makes the policy from what its predecessor handed over. `env` has the same parameters unless others were asked for; by
    /// default they are not looked at.
    fn reregister_init(env: &Env, state: Self::State) -> Self;

    /// `cpu` found nothing to run.
    fn enter_idle(&self, cx: &Cx<'_>, cpu: CpuId) {
        let _ = (cx, cpu);
    }

    /// `cpu` runs a task of ours again after it found none.
    fn exit_idle(&self, cx: &Cx<'_>, cpu: CpuId) {
        let _ = (cx, cpu);
    }

    /// `cpu` joins the machine.
    fn cpu_online(&self, cx: &Cx<'_>, cpu: CpuId) {
        let _ = (cx, cpu);
    }

    /// `cpu` leaves the machine. Tasks that wait there are moved one by one.
    fn cpu_offline(&self, cx: &Cx<'_>, cpu: CpuId) {
        let _ = (cx, cpu);
    }

    /// The timer that was armed with [`Cx::arm_timer`] on `cpu` went off.
    fn timer(&self, cx: &Cx<'_>, cpu: CpuId) {
        let _ = (cx, cpu);
    }
}
