//! A FIFO with stealing which in every call of the trait does what a generated body wants, too. Which body it is says a parameter.
#![no_std]
#![forbid(unsafe_code)]
// The bodies were written by a generator.
#![allow(warnings)]
#![recursion_limit = "256"]

extern crate alloc;

mod bodies;

/// How many bodies there are.
pub const BODIES_LEN: usize = bodies::BODIES.len();

use alloc::vec::Vec;
use core::fmt;

use ekiden::{Call, HintRefused, Hints, ProcessId, QueueId, prelude::*};

/// Where a body is asked: in a call, or in one of those that come before and beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Call(Call),
    New,
    Save,
}

pub type Token = Schedulable<Hostile>;

/// What a body has before it, and what it answers with.
pub struct Scene<'a> {
    pub at: At,
    /// How many calls have come before this one.
    pub n: u64,
    pub me: Option<&'a Hostile>,
    pub cx: Option<&'a Cx<'a>>,
    /// The token that the call brings, or returns.
    pub token: Option<Token>,
    pub cpu: Option<CpuId>,
    pub task: Option<TaskId>,
}

pub type Body = fn(&mut Scene<'_>);

/// Something that calls another one of its kind.
pub trait Again {
    fn again(&self, depth: u64, other: &dyn Again) -> u64;
}

#[derive(Clone, Copy)]
pub struct Pointer(pub fn(u64, Pointer) -> u64);

/// Panics where it is shown, and where it is dropped.
pub struct Bomb {
    pub in_drop: bool,
}

impl fmt::Display for Bomb {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("a bomb in a text")
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.in_drop {
            panic!("a bomb that is dropped");
        }
    }
}

/// Shows itself without end.
pub struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        loop {
            let _ = to.write_str("and so on ");
        }
    }
}

pub struct Hostile {
    pub queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    pub a: SpinLock<Vec<u64>>,
    pub b: SpinLock<Vec<u64>>,
    pub hidden: SpinLock<Vec<Token>>,
    pub body: usize,
    pub count: Shared<u64>,
}

impl Hostile {
    fn act<'a>(&'a self, cx: Option<&'a Cx<'a>>, at: At, token: Option<Token>) -> Scene<'a> {
        let n = self.count.fetch_add(1);
        let mut scene = Scene { at, n, me: Some(self), cx, token, cpu: None, task: None };
        bodies::BODIES[self.body](&mut scene);
        scene
    }

    fn tell<'a>(&'a self, cx: &'a Cx<'a>, call: Call) -> Scene<'a> {
        self.act(Some(cx), At::Call(call), None)
    }

    fn take(&self, cx: &Cx<'_>, call: Call, token: Token) {
        if let Some(token) = self.act(Some(cx), At::Call(call), Some(token)).token {
            self.queues[token.cpu()].lock().push_back(token);
        }
    }
}

#[policy(HintQueues, TaskSettings, SavedState)]
impl Scheduler for Hostile {
    const PARAMS: &'static [Param] = &[Param {
        name: "body",
        help: "which of the generated bodies",
        default: 0,
        min: 0,
        max: bodies::BODIES.len() as u64 - 1,
    }];

    type State = Self;

    fn new(env: &Env) -> Self {
        let body = env.param("body") as usize;
        let mut scene = Scene { at: At::New, n: 0, me: None, cx: None, token: None, cpu: None, task: None };
        bodies::BODIES[body](&mut scene);
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            a: SpinLock::default(),
            b: SpinLock::default(),
            hidden: SpinLock::default(),
            body,
            count: Shared::new(0),
        }
    }

    fn enqueue(&self, cx: &Cx, _: &Task, token: Token) {
        self.take(cx, Call::TaskWakeup, token);
    }

    fn pick_next_task(&self, cx: &Cx, cpu: CpuId) -> Option<Token> {
        // Short, so that no task waits for long because others run.
        cx.set_slice_ns(2_000_000);
        let first = self.queues[cpu].lock().pop_front();
        self.act(Some(cx), At::Call(Call::PickNextTask), first).token
    }

    fn pnt_err(&self, cx: &Cx, _: CpuId, _: &Task, reason: RefusalReason, token: Token) {
        match reason {
            RefusalReason::Stale | RefusalReason::Gone | RefusalReason::NotReady => drop(token),
            _ => self.take(cx, Call::PntErr, token),
        }
    }

    fn task_new(&self, cx: &Cx, _: &Task, token: Token) {
        cx.arm_timer(1_000_000);
        self.take(cx, Call::TaskNew, token);
    }

    fn task_wakeup(&self, cx: &Cx, _: &Task, token: Token) {
        self.take(cx, Call::TaskWakeup, token);
    }

    fn task_preempt(&self, cx: &Cx, _: &Task, token: Token) {
        self.take(cx, Call::TaskPreempt, token);
    }

    fn task_yield(&self, cx: &Cx, _: &Task, token: Token) {
        self.take(cx, Call::TaskYield, token);
    }

    fn task_blocked(&self, cx: &Cx, _: &Task) {
        self.tell(cx, Call::TaskBlocked);
    }

    fn task_dead(&self, cx: &Cx, _: TaskId) {
        self.tell(cx, Call::TaskDead);
    }

    fn task_departed(&self, cx: &Cx, task: &Task) -> Option<Token> {
        let held = self.queues.iter().find_map(|(_, queue)| queue.lock().remove(task.id));
        self.act(Some(cx), At::Call(Call::TaskDeparted), held).token
    }

    fn task_tick(&self, cx: &Cx, _: &Task) {
        self.tell(cx, Call::TaskTick);
    }

    fn task_affinity_changed(&self, cx: &Cx, _: &Task) {
        self.tell(cx, Call::TaskAffinityChanged);
    }

    fn task_prio_changed(&self, cx: &Cx, _: &Task) {
        self.tell(cx, Call::TaskPrioChanged);
    }

    fn select_task_rq(&self, cx: &Cx, _: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
        self.tell(cx, Call::SelectTaskRq).cpu.unwrap_or(suggested)
    }

    fn migrate_task_rq(&self, cx: &Cx, task: &Task, new: Token) -> Option<Token> {
        let old = self.queues.iter().find_map(|(_, queue)| queue.lock().remove(task.id));
        self.queues[new.cpu()].lock().push_back(new);
        self.act(Some(cx), At::Call(Call::MigrateTaskRq), old).token
    }

    fn balance(&self, cx: &Cx, cpu: CpuId) -> Option<TaskId> {
        let others = self.queues.iter().filter(|(other, _)| *other != cpu);
        let waiting = others.filter_map(|(_, queue)| Some(queue.lock().front()?.task())).next();
        self.tell(cx, Call::Balance).task.or(waiting)
    }

    fn balance_err(&self, cx: &Cx, _: CpuId, _: TaskId, _: RefusalReason) {
        self.tell(cx, Call::BalanceErr);
    }

    fn reregister_prep(self) -> Self {
        self.act(None, At::Call(Call::ReregisterPrep), None);
        self
    }

    fn reregister_init(_: &Env, state: Self) -> Self {
        state.act(None, At::Call(Call::ReregisterInit), None);
        state
    }

    fn enter_idle(&self, cx: &Cx, _: CpuId) {
        self.tell(cx, Call::EnterIdle);
    }

    fn exit_idle(&self, cx: &Cx, _: CpuId) {
        self.tell(cx, Call::ExitIdle);
    }

    fn cpu_online(&self, cx: &Cx, _: CpuId) {
        self.tell(cx, Call::CpuOnline);
    }

    fn cpu_offline(&self, cx: &Cx, _: CpuId) {
        self.tell(cx, Call::CpuOffline);
    }

    fn timer(&self, cx: &Cx, _: CpuId) {
        self.tell(cx, Call::Timer);
    }
}

#[policy]
impl HintQueues for Hostile {
    type Hint = u64;

    fn register_queue(&self, cx: &Cx, _: QueueId, _: ProcessId) {
        self.tell(cx, Call::RegisterQueue);
    }

    fn enter_queue(&self, cx: &Cx, _: QueueId, hints: Hints<'_, u64>) {
        self.tell(cx, Call::EnterQueue);
        hints.for_each(drop);
    }

    fn unregister_queue(&self, cx: &Cx, _: QueueId) {
        self.tell(cx, Call::UnregisterQueue);
    }

    fn parse_hint(&self, cx: &Cx, _: Option<&Task>, hint: u64) -> Result<(), HintRefused> {
        self.tell(cx, Call::ParseHint);
        if hint % 2 == 0 { Ok(()) } else { Err(HintRefused) }
    }
}

#[policy]
impl TaskSettings for Hostile {
    const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "any number", default: 0, min: 0, max: 9 }];

    fn task_params(&self, cx: &Cx, _: &Task, _: &TaskParams) {
        self.tell(cx, Call::TaskParams);
    }
}

impl SavedState for Hostile {
    fn save(&self, to: &mut Saved<'_>) {
        self.act(None, At::Save, None);
        to.push(&[1]);
    }
}
