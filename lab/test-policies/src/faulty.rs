//! A FIFO with stealing that goes wrong in one chosen call, in one chosen way. It gives up being useful.

use alloc::vec::Vec;
use core::{fmt, hint::black_box};

use ekiden::{Call, prelude::*};

use crate::Fault;

mod besides;

/// Its `Display` does not end: it loops, or writes without end.
struct Endless {
    says: bool,
}

impl fmt::Display for Endless {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        loop {
            if black_box(self.says) {
                // It ignores that the text is refused.
                let _ = to.write_str("and so on ");
            }
        }
    }
}

/// A hint from here on says when it goes wrong: this many occurrences of the call later.
pub const ARM: u64 = 1 << 32;

/// How often a call looks whether another one has come that far, before it gives up for this time. Few: each look may let an emulator
/// run another CPU for a while, and the run queue is locked meanwhile.
const PATIENCE: u32 = 100;

/// No machine has so many.
const NO_SUCH_CPU: CpuId = 5_000;

/// Uses stack for as long as there is some.
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    if black_box(true) { recurse(depth + 1) ^ frame[3] } else { frame[0] }
}

/// Takes the age of the universe, and little stack.
fn branch(depth: u64) -> u64 {
    let next = black_box(depth).saturating_sub(1);
    if depth == 0 { 1 } else { branch(next) ^ branch(black_box(next)) }
}

/// No task has it.
const NO_SUCH_TASK: TaskId = TaskId { slot: u32::MAX, generation: 1 };

/// Half of the turns that an event may take, and more.
const TURNS: u32 = 300_000;

/// Goes wrong the `after`-th time that `call` comes.
#[derive(Layout)]
pub struct Faulty {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    lock: SpinLock<Vec<u64>>,
    call: u64,
    fault: u64,
    left: Shared<u32>,
    other: SpinLock<()>,
    hidden: SpinLock<FifoQueue<Self>>,
    /// 1 while a call holds a lock and hopes that another one comes into its way, 2 when it has.
    meeting: Shared<u32>,
    /// 1 as soon as it goes wrong in every call.
    always: Shared<u32>,
    weights: Histogram,
}

impl Faulty {
    /// Whether it is time to go wrong in `call`; in the ways that need nothing of the call, does it.
    fn trips(&self, call: Call) -> bool {
        if self.meeting.get() == 1 {
            self.meet();
        }
        if self.call != call as u64 || self.left.get() == 0 || self.left.fetch_sub(1) != 1 {
            return false;
        }
        let is = |fault: Fault| self.fault == fault as u64;
        if is(Fault::Panic) {
            panic!("planted in {}", call.name());
        } else if is(Fault::Exhaust) {
            let mut hoard = self.lock.lock();
            loop {
                hoard.push(0);
            }
        } else if is(Fault::Deadlock) {
            let held = self.lock.lock();
            drop(self.lock.lock());
            drop(held);
        } else if is(Fault::Loop) {
            loop {
                black_box(());
            }
        } else if is(Fault::LoopLocked) {
            let held: Vec<_> = self.queues.iter().map(|(_, queue)| queue.lock()).collect();
            loop {
                black_box(&held);
            }
        } else if is(Fault::Recurse) {
            black_box(recurse(0));
        } else if is(Fault::Branch) {
            black_box(branch(60));
        } else if is(Fault::Disorder) {
            // As a policy would which does it all the time: the order is not checked each time.
            for _ in 0..64 {
                let (first, second) = (self.lock.lock(), self.other.lock());
                drop((first, second));
                let (second, first) = (self.other.lock(), self.lock.lock());
                drop((first, second));
            }
        } else if is(Fault::LoopInText) || is(Fault::EndlessText) {
            panic!("{}", Endless { says: is(Fault::EndlessText) });
        } else if is(Fault::Copy) {
            let mut bytes = alloc::vec![0_u8; 512 << 10];
            loop {
                bytes.copy_within(1.., 0);
                black_box(&mut bytes);
            }
        } else if is(Fault::Hold) {
            self.hold();
        } else if is(Fault::Embrace) {
            self.embrace();
            // Nothing went wrong this time, and nothing is to.
            return false;
        } else if (Fault::KickAll as u64..=Fault::Slow as u64).contains(&self.fault) {
            self.always.set(1);
            // The call itself does as it should.
            return matches!(call, Call::MigrateTaskRq);
        } else if is(Fault::KeepLock) {
            let held = self.lock.lock();
            // One that was let go of later is not the one.
            drop(self.other.lock());
            core::mem::forget(held);
        }
        true
    }

    /// Memory that takes long to fill, with a lock held.
    fn hold(&self) {
        let mut held = self.lock.lock();
        held.resize(8 << 10, 0);
        self.meeting.set(1);
        for turn in 0..1 << 20 {
            held.fill(black_box(turn));
        }
    }

    /// Waits with a lock until another call holds the other one, and for that. If none comes, the next call tries again.
    fn embrace(&self) {
        let held = self.lock.lock();
        self.meeting.set(1);
        for _ in 0..PATIENCE {
            if self.meeting.get() == 2 {
                drop(self.other.lock());
            }
            core::hint::spin_loop();
        }
        self.meeting.set(0);
        self.left.set(1);
        drop(held);
    }

    /// Comes into the way of a call that hopes for it.
    #[cold]
    fn meet(&self) {
        if self.fault == Fault::Hold as u64 {
            drop(self.lock.lock());
            return;
        }
        let held = self.other.lock();
        self.meeting.set(2);
        drop(self.lock.lock());
        drop(held);
    }

    /// There is no worthless token any more, or there was none to begin with: the next call tries again.
    fn try_again(&self) {
        self.left.set(1);
    }

    fn is_always(&self, fault: Fault) -> bool {
        self.always.get() == 1 && self.fault == fault as u64
    }

    /// What it does in every call once it has begun to go wrong.
    fn pester(&self, cx: &Cx) {
        if self.is_always(Fault::KickAll) {
            // More than four are all.
            (0..5).for_each(|number| cx.resched(number % cx.topology().nr_cpus()));
        } else if self.is_always(Fault::Timers) {
            cx.arm_timer(1);
        }
    }

    /// The token that is worth nothing, on the CPU that it was for.
    fn worthless(&self, cpu: CpuId) -> Option<Schedulable<Self>> {
        let mut hidden = self.hidden.lock();
        let token = if hidden.front()?.cpu() == cpu { hidden.pop_front() } else { None };
        if token.is_some() && self.is_always(Fault::Slow) {
            (0..TURNS).for_each(|turn| _ = black_box(turn));
        }
        token
    }

    fn queue(&self, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }
}

#[policy(HintQueues, TaskSettings, SavedState)]
impl Scheduler for Faulty {
    const PARAMS: &'static [Param] = &[
        Param { name: "call", help: "number of the call that goes wrong; 99 for none", default: 99, min: 0, max: 99 },
        Param { name: "fault", help: "how it goes wrong: see `Fault`", default: 0, min: 0, max: 30 },
        Param {
            name: "after",
            help: "which occurrence of the call goes wrong; 0 for none before a hint says so",
            default: 1,
            min: 0,
            max: 1_000_000,
        },
    ];

    type State = Self;

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            lock: SpinLock::default(),
            call: env.param("call"),
            fault: env.param("fault"),
            left: Shared::new(env.param("after") as u32),
            other: SpinLock::default(),
            hidden: SpinLock::default(),
            meeting: Shared::new(0),
            always: Shared::new(0),
            weights: env.histogram("group_weight", "weights of the \"groups\" of tasks that are preempted"),
        }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queue(token);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        // Short, so that no task waits for long because others run.
        cx.set_slice_ns(if self.is_always(Fault::ShortSlices) { 1 } else { 2_000_000 });
        self.pester(cx);
        if self.is_always(Fault::Livelock) {
            return None;
        }
        if self.is_always(Fault::Vain) || self.is_always(Fault::Slow) {
            if let Some(token) = self.worthless(cpu) {
                return Some(token);
            }
        }
        if self.fault == Fault::WrongCpu as u64 {
            let wrong =
                self.queues.iter().filter(|(other, _)| *other != cpu).find_map(|(_, queue)| queue.lock().pop_front());
            match wrong {
                Some(token) if self.trips(Call::PickNextTask) => return Some(token),
                Some(token) => self.queues[token.cpu()].lock().push_front(token),
                None => {}
            }
        } else if self.fault != Fault::Slices as u64 {
            self.trips(Call::PickNextTask);
        }
        let token = self.queues[cpu].lock().pop_front();
        if self.fault == Fault::Slices as u64 && token.is_some() && self.trips(Call::PickNextTask) {
            cx.set_slice_ns(u64::MAX);
        }
        token
    }

    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        self.trips(Call::PntErr);
        match reason {
            RefusalReason::Stale if self.always.get() == 1 => self.hidden.lock().push_back(token),
            RefusalReason::Gone if self.always.get() == 1 => self.try_again(),
            RefusalReason::Stale | RefusalReason::Gone | RefusalReason::NotReady => drop(token),
            _ => self.queue(token),
        }
    }

    fn task_new(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
        cx.arm_timer(1_000_000);
        if !self.trips(Call::TaskNew) {
            self.queue(token);
        }
    }

    fn task_wakeup(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
        self.pester(cx);
        if self.fault == Fault::Pester as u64 {
            cx.resched(token.cpu());
        }
        match self.trips(Call::TaskWakeup) {
            true if self.fault == Fault::Starve as u64 => self.hidden.lock().push_back(token),
            true if self.fault == Fault::BadCpu as u64 => {
                cx.resched(NO_SUCH_CPU);
                self.queue(token);
            }
            true => drop(token),
            false => self.queue(token),
        }
    }

    fn task_preempt(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.weights.record(cx, cx.group(task.id).weight.into());
        self.pester(cx);
        if !self.trips(Call::TaskPreempt) {
            self.queue(token);
        }
    }

    fn task_yield(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        if !self.trips(Call::TaskYield) {
            self.queue(token);
        }
    }

    fn task_blocked(&self, _: &Cx, _: &Task) {
        self.trips(Call::TaskBlocked);
    }

    fn task_dead(&self, _: &Cx, _: TaskId) {
        self.trips(Call::TaskDead);
    }

    fn task_departed(&self, _: &Cx, _: &Task) -> Option<Schedulable<Self>> {
        self.trips(Call::TaskDeparted);
        None
    }

    fn task_tick(&self, cx: &Cx, _: &Task) {
        self.pester(cx);
        self.trips(Call::TaskTick);
    }

    fn task_affinity_changed(&self, _: &Cx, _: &Task) {
        self.trips(Call::TaskAffinityChanged);
    }

    fn task_prio_changed(&self, _: &Cx, _: &Task) {
        self.trips(Call::TaskPrioChanged);
    }

    fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        self.trips(Call::SelectTaskRq);
        if self.left.get() == 1 && self.fault == Fault::BadCpu as u64 {
            let may_not = (0..cx.topology().nr_cpus()).find(|cpu| !cx.may_run(task.id, *cpu));
            return may_not.unwrap_or(NO_SUCH_CPU);
        }
        if self.fault == Fault::Huddle as u64 {
            return 0;
        }
        suggested
    }

    fn migrate_task_rq(&self, _: &Cx, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let trips = self.trips(Call::MigrateTaskRq);
        if trips && self.fault == Fault::KeepOld as u64 {
            self.queue(new);
            return None;
        }
        let old = self.queues.iter().find_map(|(_, queue)| queue.lock().remove(task.id));
        if trips {
            match old {
                Some(old) => self.hidden.lock().push_back(old),
                None => self.try_again(),
            }
            self.queue(new);
            return None;
        }
        self.queue(new);
        old
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.trips(Call::Balance);
        self.pester(cx);
        if self.is_always(Fault::Livelock) {
            return Some(NO_SUCH_TASK);
        }
        let others = self.queues.iter().filter(|(other, _)| *other != cpu);
        others.filter_map(|(_, queue)| Some(queue.lock().front()?.task())).next()
    }

    fn balance_err(&self, cx: &Cx, cpu: CpuId, _: TaskId, _: RefusalReason) {
        self.trips(Call::BalanceErr);
        if self.is_always(Fault::Livelock) {
            cx.resched(cpu);
        }
    }

    fn reregister_prep(self) -> Self {
        self.trips(Call::ReregisterPrep);
        self
    }

    fn reregister_init(_: &Env, state: Self) -> Self {
        state.trips(Call::ReregisterInit);
        state
    }

    fn enter_idle(&self, _: &Cx, _: CpuId) {
        self.trips(Call::EnterIdle);
    }

    fn exit_idle(&self, _: &Cx, _: CpuId) {
        self.trips(Call::ExitIdle);
    }

    fn cpu_online(&self, _: &Cx, _: CpuId) {
        self.trips(Call::CpuOnline);
    }

    fn cpu_offline(&self, _: &Cx, _: CpuId) {
        self.trips(Call::CpuOffline);
    }

    fn timer(&self, cx: &Cx, _: CpuId) {
        self.pester(cx);
        self.trips(Call::Timer);
    }
}
