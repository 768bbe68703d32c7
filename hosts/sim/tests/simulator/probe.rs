//! A policy that implements every call, notes each, and panics in the one that it is told to.

use std::cell::RefCell;

use ekiden::prelude::*;
use ekiden::{Call, HintRefused, Hints, ProcessId, QueueId};
use ekiden_sim::{Injection, Machine, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// Value of the parameter `panic_in` for no call at all.
const NEVER: u64 = 99;

/// What the probe was made for, and what it has seen.
pub(crate) struct Probe {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    panic_in: u64,
    /// Until it has named a task that cannot be moved.
    tease: SpinLock<bool>,
}

thread_local! {
    static SEEN: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// The calls since the last time.
pub(crate) fn take_seen() -> Vec<Call> {
    SEEN.take()
}

impl Probe {
    fn note(&self, call: Call) {
        SEEN.with_borrow_mut(|seen| seen.push(call));
        if call as u64 == self.panic_in {
            panic!("planted in {}", call.name());
        }
    }

    fn queue(&self, token: Schedulable<Self>) {
        self.queues[token.cpu()].lock().push_back(token);
    }
}

#[policy(HintQueues, TaskSettings)]
impl Scheduler for Probe {
    const PARAMS: &'static [Param] =
        &[Param { name: "panic_in", help: "number of the call to panic in", default: NEVER, min: 0, max: NEVER }];

    fn new(env: &Env) -> Self {
        let queues = PerCpu::new(env, |_| SpinLock::default());
        Self { queues, panic_in: env.param("panic_in"), tease: SpinLock::new(true) }
    }

    fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.queue(token);
    }

    fn task_new(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.note(Call::TaskNew);
        self.queue(token);
    }

    fn task_wakeup(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
        self.note(Call::TaskWakeup);
        cx.arm_timer(50 * US);
        self.queue(token);
    }

    fn task_preempt(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.note(Call::TaskPreempt);
        self.queue(token);
    }

    fn task_yield(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
        self.note(Call::TaskYield);
        self.queue(token);
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.note(Call::PickNextTask);
        self.queues[cpu].lock().pop_front()
    }

    fn pnt_err(&self, _: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        self.note(Call::PntErr);
        match reason {
            RefusalReason::NotAllowed | RefusalReason::Busy => self.queue(token),
            _ => drop(token),
        }
    }

    fn task_blocked(&self, _: &Cx, _: &Task) {
        self.note(Call::TaskBlocked);
    }

    fn task_dead(&self, _: &Cx, _: TaskId) {
        self.note(Call::TaskDead);
    }

    fn task_departed(&self, _: &Cx, _: &Task) -> Option<Schedulable<Self>> {
        self.note(Call::TaskDeparted);
        None
    }

    fn task_tick(&self, _: &Cx, _: &Task) {
        self.note(Call::TaskTick);
    }

    fn task_affinity_changed(&self, _: &Cx, _: &Task) {
        self.note(Call::TaskAffinityChanged);
    }

    fn task_prio_changed(&self, _: &Cx, _: &Task) {
        self.note(Call::TaskPrioChanged);
    }

    fn select_task_rq(&self, _: &Cx, _: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        self.note(Call::SelectTaskRq);
        suggested
    }

    /// Leaves the old token in its queue, so that it comes back later.
    fn migrate_task_rq(&self, _: &Cx, _: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        self.note(Call::MigrateTaskRq);
        self.queue(new);
        None
    }

    /// Asks for what waits elsewhere, allowed or not.
    fn balance(&self, _: &Cx, cpu: CpuId) -> Option<TaskId> {
        self.note(Call::Balance);
        if !std::mem::take(&mut *self.tease.lock()) {
            return None;
        }
        let waiting = |other| self.queues[other].lock().front().map(|token| token.task());
        let found = self.queues.iter().filter(|(other, _)| *other != cpu).find_map(|(other, _)| waiting(other));
        *self.tease.lock() = found.is_none();
        found
    }

    fn balance_err(&self, _: &Cx, _: CpuId, _: TaskId, _: RefusalReason) {
        self.note(Call::BalanceErr);
    }

    fn enter_idle(&self, _: &Cx, _: CpuId) {
        self.note(Call::EnterIdle);
    }

    fn exit_idle(&self, _: &Cx, _: CpuId) {
        self.note(Call::ExitIdle);
    }

    fn cpu_online(&self, _: &Cx, _: CpuId) {
        self.note(Call::CpuOnline);
    }

    fn cpu_offline(&self, _: &Cx, _: CpuId) {
        self.note(Call::CpuOffline);
    }

    fn timer(&self, _: &Cx, _: CpuId) {
        self.note(Call::Timer);
    }
}

#[policy]
impl HintQueues for Probe {
    type Hint = u32;

    fn register_queue(&self, _: &Cx, queue: QueueId, _: ProcessId) {
        self.note(Call::RegisterQueue);
        assert!([1, 2, 5].contains(&queue));
    }

    fn enter_queue(&self, _: &Cx, queue: QueueId, hints: Hints<'_, u32>) {
        self.note(Call::EnterQueue);
        // Others are those of loads.
        let hints: Vec<u32> = hints.collect();
        assert!(queue != 5 || hints == [1, 2], "{hints:?}");
    }

    fn unregister_queue(&self, _: &Cx, queue: QueueId) {
        self.note(Call::UnregisterQueue);
        assert!([1, 2, 5].contains(&queue));
    }

    fn parse_hint(&self, _: &Cx, task: Option<&Task>, hint: u32) -> Result<(), HintRefused> {
        self.note(Call::ParseHint);
        if task.is_some() && hint == 7 { Ok(()) } else { Err(HintRefused) }
    }
}

#[policy]
impl TaskSettings for Probe {
    const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "any number", default: 0, min: 0, max: 9 }];

    fn task_params(&self, _: &Cx, _: &Task, params: &TaskParams) {
        self.note(Call::TaskParams);
        assert_eq!(params.get("rank"), 4);
    }
}

/// A load in which everything happens that a policy can be told.
pub(crate) fn everything() -> Workload {
    let napper = Step::repeat(20, [Step::Sleep { ns: MS }, Step::Run { ns: 100 * US }, Step::Yield]);
    let changing = vec![
        Step::Run { ns: 5 * MS },
        Step::SetNice { nice: 5 },
        Step::SetAffinity { cpus: Some(vec![1]) },
        Step::Run { ns: 30 * MS },
        Step::fork([Step::Run { ns: MS }]),
        Step::Wait,
    ];
    let hog = vec![Step::Run { ns: 60 * MS }];
    Workload::new(
        "everything",
        4,
        [
            TaskSpec::new("changing", changing),
            TaskSpec::new("napper", vec![napper]).copies(2),
            TaskSpec::new("pinned", hog.clone()).on([0]).copies(3),
            TaskSpec::new("hog", hog).copies(2),
        ],
    )
}

/// That load under the probe, with everything injected that the load cannot do itself.
pub(crate) fn probed(params: &str) -> Simulation {
    let affinity = |cpus: &[CpuId]| Injection::Affinity { task: "pinned.2".into(), cpus: Some(cpus.to_vec()) };
    let hint =
        |task: Option<&str>| Injection::Hint { task: task.map(str::to_owned), bytes: 7_u32.to_le_bytes().into() };
    Simulation::of::<Probe>(Machine::flat(4), params)
        .inject(MS, Injection::QueueOpen { queue: 5 })
        .inject(2 * MS, Injection::QueueReady { queue: 5, hints: [1_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat() })
        .inject(3 * MS, Injection::QueueClose { queue: 5 })
        .inject(4 * MS, hint(Some("hog.0")))
        .inject(4 * MS, hint(None))
        // `pinned.2` is the last in the queue of CPU 0, so it waits.
        .inject(5 * MS, affinity(&[2]))
        .inject(30 * MS, Injection::CpuOffline { cpu: 3 })
        .inject(50 * MS, Injection::CpuOnline { cpu: 3 })
        .inject(40 * MS, Injection::Depart { task: "hog.1".into() })
        .inject(45 * MS, Injection::Return { task: "hog.1".into() })
        .inject(6 * MS, Injection::Params { task: "hog.0".into(), settings: "rank=4".into() })
        .inject(7 * MS, Injection::Params { task: "hog.0".into(), settings: "rank=10".into() })
        .inject(60 * MS, Injection::Nice { task: "pinned.1".into(), nice: 3 })
}
