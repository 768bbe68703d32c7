//! One event in, one outcome out.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use core::any::Any;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use ekiden::abi::{
    BALANCE_TOO, Event, EventKind, Kicks, Message, NO_CPU, Outcome, RawToken, Reply, Status, enqueue_flags, pick_flags,
};
use ekiden::{Call, Calls, CpuId, Host, Policy, RefusalReason, TaskId};
use spin::mutex::SpinMutex;

use crate::counters::{Counters, Totals};
use crate::fault::{Fault, MISTAKES_ALLOWED, Mistake, MistakeKind};
use crate::idle::IdleCpus;
use crate::state::{Era, Phase, State, Transition, UPGRADABLE};
use crate::table::{Slot, TaskTable, token, wanted};

/// How many answers of a policy are tried for one search for work before the CPU is sent round again. A policy that
/// keeps the tokens of departed tasks gets that many refused at a time.
pub const PICK_ATTEMPTS: u32 = 64;

/// The engine: a policy, its tasks, and the checks between them and the host.
pub struct Engine {
    policy: Box<dyn Policy>,
    calls: Calls,
    host: Arc<dyn Host + Send>,
    tasks: TaskTable,
    /// Tasks of another era are strangers to the policy.
    era: Era,
    idle: Arc<IdleCpus>,
    cpus: Vec<Counters>,
    faulted: AtomicBool,
    fault: SpinMutex<Option<Fault>>,
    mistakes: AtomicU32,
    /// How many of them were those of policies before this one.
    mistakes_before: u32,
    last_mistake: SpinMutex<Option<Mistake>>,
}

/// One event while it is being handled.
struct Handling<'a> {
    event: &'a Event,
    outcome: &'a mut Outcome,
}

impl Engine {
    /// An engine for `policy` on a machine with `nr_cpus` CPUs and at most `max_tasks` tasks.
    ///
    /// `idle` is the set that `host` answers [`Host::idle_cpus`] from; the engine keeps it.
    pub fn new(
        policy: Box<dyn Policy>,
        host: Arc<dyn Host + Send>,
        idle: Arc<IdleCpus>,
        nr_cpus: u32,
        max_tasks: u32,
    ) -> Self {
        let mut cpus = Vec::new();
        cpus.resize_with(nr_cpus as usize, Counters::default);
        Self {
            calls: policy.calls(),
            policy,
            host,
            tasks: TaskTable::new(max_tasks),
            era: Era::default(),
            idle,
            cpus,
            faulted: AtomicBool::new(false),
            fault: SpinMutex::new(None),
            mistakes: AtomicU32::new(0),
            mistakes_before: 0,
            last_mistake: SpinMutex::new(None),
        }
    }

    /// The calls that the policy implements.
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// The policy.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The task table.
    pub fn tasks(&self) -> &TaskTable {
        &self.tasks
    }

    /// The CPUs that run none of our tasks.
    pub fn idle(&self) -> &Arc<IdleCpus> {
        &self.idle
    }

    /// Sums of what the CPUs counted.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.cpus.iter().for_each(|cpu| cpu.add_to(&mut totals));
        totals
    }

    /// How many mistakes the policy has made, and the newest.
    pub fn mistakes(&self) -> (u32, Option<Mistake>) {
        (self.mistakes.load(Relaxed), *self.last_mistake.lock())
    }

    /// Why the policy was taken out, if it was.
    pub fn fault(&self) -> Option<Fault> {
        if self.faulted.load(Acquire) { self.fault.lock().clone() } else { None }
    }

    /// Takes the policy out: every later event ends with [`Status::Fault`]. The first reason is kept.
    #[cold]
    pub fn take_out(&self, fault: Fault) {
        let mut first = self.fault.lock();
        if first.is_none() {
            *first = Some(fault);
        }
        self.faulted.store(true, Release);
    }

    /// Takes the policy out without touching memory that has to be allocated: for a host whose policy has panicked
    /// with its allocator in an unknown state. The host keeps the reason.
    #[cold]
    pub fn silence(&self) {
        self.faulted.store(true, Release);
    }

    /// Swaps the policy for its successor. No event may be under way; `&mut self` says so.
    pub fn replace_policy(&mut self, swap: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy>) {
        struct Gone;
        impl Policy for Gone {
            fn calls(&self) -> Calls {
                Calls::NONE
            }
            fn deliver(&self, _: &Message, _: &[u8]) -> Reply {
                Reply::default()
            }
            fn into_any(self: Box<Self>) -> Box<dyn Any> {
                self
            }
        }
        let old = core::mem::replace(&mut self.policy, Box::new(Gone));
        self.policy = swap(old);
        self.calls = self.policy.calls();
    }

    /// Makes all tasks strangers to a policy that has just [replaced](Self::replace_policy) another one, and took over no
    /// state from it. The policy hears of a task when the next event is about it, or when [`introduce`](Self::introduce)
    /// comes to it: one that waits is new to it then, any other when it comes to wait for a CPU. So every task has a policy
    /// all the time.
    ///
    /// All tasks have to be introduced before the next policy takes over. `outcome` comes in zeroed, and asks for what the
    /// policy wants at once. No event may be under way; `&mut self` says so.
    ///
    /// Cost: one call for each idle CPU, if the policy asks for that; none for tasks.
    pub fn start_over(&mut self, outcome: &mut Outcome) {
        self.era = self.era.next();
        self.mistakes_before = self.mistakes.load(Relaxed);
        let event = Event::default();
        let handling = &mut Handling { event: &event, outcome };
        for cpu in (0..self.nr_cpus()).filter(|cpu| self.calls.has(Call::EnterIdle) && self.idle.contains(*cpu)) {
            self.tell_cpu(handling, Call::EnterIdle, cpu);
        }
        self.end(handling);
    }

    /// Tells the policy of tasks that are strangers to it, in at most `most` slots from `first` on; events may come
    /// meanwhile. Returns where to go on, or `None` when it has heard of all: every CPU looks for work then, as what runs
    /// was chosen by somebody else.
    ///
    /// Cost: one look for each slot that was ever in use, and one call for each task that waits.
    pub fn introduce(&self, first: u32, most: u32, outcome: &mut Outcome) -> Option<u32> {
        let event = Event::default();
        let handling = &mut Handling { event: &event, outcome };
        let end = first.saturating_add(most);
        for view in self.tasks.between(first, end).filter(|view| !view.state.is_of(self.era)) {
            let Some(slot) = self.tasks.get(view.id) else { continue };
            self.meet(handling, view.id, slot);
            if self.idle.contains(view.state.cpu()) && !handling.outcome.kicks.is_all() {
                handling.outcome.kicks.add(view.state.cpu());
            }
        }
        let next = (end < self.tasks.untouched()).then_some(end);
        if next.is_none() {
            handling.outcome.kicks = Kicks::ALL;
        }
        self.end(handling);
        next
    }

    /// The policy hears of a task that is a stranger to it.
    #[cold]
    fn meet(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let seen = slot.state();
        if seen.is_of(self.era) {
            return;
        }
        // Events of one task do not overlap, but one may come while the task is being introduced: the faster one does it.
        if seen.phase().is_waiting() {
            let state = seen.issue(seen.phase(), seen.cpu()).of(self.era);
            if slot.try_state(seen, state) {
                self.hand_token(handling, Call::TaskNew, task, slot, state);
            }
        } else {
            slot.try_state(seen, seen.in_phase(Phase::New).of(self.era));
        }
    }

    /// Handles one event. `outcome` comes in zeroed. `payload` holds the bytes of hints, and is empty for every other kind.
    ///
    /// The host keeps events of one task in order, and those that make one task wait, run or block apart in time (in
    /// the kernel the run-queue lock does that). Events of different tasks and CPUs may come at the same time.
    #[inline]
    pub fn deliver(&self, event: &Event, payload: &[u8], outcome: &mut Outcome) {
        if self.faulted.load(Relaxed) {
            outcome.status = Status::Fault as i32;
            return;
        }
        let handling = &mut Handling { event, outcome };
        // The three of a task switch first: they are most of what there is.
        if event.kind == EventKind::Enqueue as u32 {
            self.with_task(handling, Self::enqueue);
        } else if event.kind == EventKind::Pick as u32 {
            self.pick(handling);
        } else if event.kind == EventKind::Block as u32 {
            self.with_task(handling, Self::block);
        } else {
            self.deliver_rare(handling, payload);
        }
        self.end(handling);
    }

    /// The last of every outcome: whether the policy is still there.
    #[inline]
    fn end(&self, handling: &mut Handling<'_>) {
        if self.faulted.load(Relaxed) {
            handling.outcome.status = Status::Fault as i32;
        }
    }

    #[inline(never)]
    fn deliver_rare(&self, handling: &mut Handling<'_>, payload: &[u8]) {
        const INIT: u32 = EventKind::TaskInit as u32;
        const ENABLE: u32 = EventKind::TaskEnable as u32;
        const DISABLE: u32 = EventKind::TaskDisable as u32;
        const EXIT: u32 = EventKind::TaskExit as u32;
        const SELECT_CPU: u32 = EventKind::SelectCpu as u32;
        const REFUSED: u32 = EventKind::PickRefused as u32;
        const TICK: u32 = EventKind::Tick as u32;
        const YIELD: u32 = EventKind::Yield as u32;
        const NICE: u32 = EventKind::Nice as u32;
        const AFFINITY: u32 = EventKind::Affinity as u32;
        const ONLINE: u32 = EventKind::CpuOnline as u32;
        const OFFLINE: u32 = EventKind::CpuOffline as u32;
        const TIMER: u32 = EventKind::Timer as u32;
        const HINT: u32 = EventKind::Hint as u32;
        const QUEUE_OPEN: u32 = EventKind::QueueOpen as u32;
        const QUEUE_READY: u32 = EventKind::QueueReady as u32;
        const QUEUE_CLOSE: u32 = EventKind::QueueClose as u32;
        match handling.event.kind {
            INIT => self.task_init(handling),
            ENABLE => self.with_task(handling, Self::task_enable),
            DISABLE => self.with_task(handling, Self::task_disable),
            EXIT => self.with_task(handling, Self::task_exit),
            SELECT_CPU => self.with_task(handling, Self::select_cpu),
            REFUSED => self.with_task(handling, Self::pick_refused),
            TICK => self.with_task(handling, |engine, handling, task, slot| {
                engine.tell_about(handling, Call::TaskTick, task, slot);
            }),
            YIELD => self.with_task(handling, |_, _, _, slot| slot.set_state(slot.state().yielding())),
            NICE => self.with_task(handling, Self::nice),
            AFFINITY => self.with_task(handling, |engine, handling, task, slot| {
                engine.tell_about(handling, Call::TaskAffinityChanged, task, slot);
            }),
            ONLINE => self.tell(handling, Call::CpuOnline, &[]),
            OFFLINE => self.cpu_offline(handling),
            TIMER => self.tell(handling, Call::Timer, &[]),
            HINT => self.tell(handling, Call::ParseHint, payload),
            QUEUE_OPEN => self.tell(handling, Call::RegisterQueue, &[]),
            QUEUE_READY => self.tell(handling, Call::EnterQueue, payload),
            QUEUE_CLOSE => self.tell(handling, Call::UnregisterQueue, &[]),
            _ => handling.outcome.status = Status::Invalid as i32,
        }
    }

    /// Runs `handle` with the event's task, or says that there is none.
    #[inline]
    fn with_task(&self, handling: &mut Handling<'_>, handle: impl FnOnce(&Self, &mut Handling<'_>, TaskId, &Slot)) {
        let task = handling.event.task;
        match self.tasks.get(task) {
            Some(slot) => {
                if !slot.state().is_of(self.era) {
                    self.meet(handling, task, slot);
                }
                handle(self, handling, task, slot);
            }
            None => handling.outcome.status = Status::Invalid as i32,
        }
    }

    fn task_init(&self, handling: &mut Handling<'_>) {
        let [host_task, pid] = handling.event.args;
        match self.tasks.insert(host_task, pid as u32) {
            Some(task) => handling.outcome.task = task,
            None => handling.outcome.status = Status::Full as i32,
        }
    }

    fn task_enable(&self, handling: &mut Handling<'_>, _task: TaskId, slot: &Slot) {
        self.read_nice(handling.event, slot);
        self.transit(handling.event.cpu, slot.state(), Transition::Enable);
        slot.set_state(slot.state().in_phase(Phase::New));
    }

    fn task_disable(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let seen = slot.state();
        self.transit(handling.event.cpu, seen, Transition::Depart);
        // Its token, wherever it is, is worthless from here on.
        slot.set_state(seen.issue(Phase::New, seen.cpu()));
        self.take_back(handling, task, slot);
        self.tasks.remove(task);
    }

    fn task_exit(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        self.transit(handling.event.cpu, slot.state(), Transition::Depart);
        if self.calls.has(Call::TaskDead) {
            let message = self.message(handling, Call::TaskDead, task, slot);
            self.call(handling, &message, &[]);
        }
        self.tasks.remove(task);
    }

    fn select_cpu(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let suggested = handling.event.args[0] as u32;
        handling.outcome.cpu = suggested as i32;
        if !self.calls.has(Call::SelectTaskRq) {
            return;
        }
        let mut message = self.message(handling, Call::SelectTaskRq, task, slot);
        message.arg = u64::from(suggested);
        message.flags = handling.event.flags as u32;
        let chosen = self.call(handling, &message, &[]).cpu;
        if chosen == suggested || (chosen < self.nr_cpus() && self.host.may_run(task, chosen)) {
            handling.outcome.cpu = chosen as i32;
        } else {
            self.mistake(MistakeKind::BadCpu, Call::SelectTaskRq, handling.event.cpu, slot);
        }
    }

    /// The kernel puts a task on the run queue of the event's CPU.
    #[inline]
    fn enqueue(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let event = handling.event;
        let seen = slot.state();
        slot.runtime_ns.store(event.runtime_ns, Relaxed);
        let call = match seen.phase() {
            Phase::Blocked => Call::TaskWakeup,
            Phase::New => Call::TaskNew,
            // It has slept in between: see `EventKind::Block`.
            Phase::Running if event.flags & enqueue_flags::WAKEUP != 0 => {
                if UPGRADABLE {
                    self.slept(handling, task, slot);
                }
                Call::TaskWakeup
            }
            Phase::Running if seen.is_yielding() => Call::TaskYield,
            Phase::Running => Call::TaskPreempt,
            Phase::Ready | Phase::ReadyByTick => return self.enqueue_again(handling, task, slot, seen),
            Phase::Free => {
                self.transit(event.cpu, seen, Transition::Enqueue);
                Call::TaskNew
            }
        };
        // The state goes first: another CPU may pick the task as soon as the policy knows of it.
        let state = seen.issue(Phase::Ready, event.cpu);
        slot.set_state(state);
        self.hand_token(handling, call, task, slot, state);
        if event.flags & enqueue_flags::MAY_PLACE != 0 && self.idle.contains(event.cpu) {
            self.pick_for_idle(handling, event.cpu, task);
        }
    }

    /// The task was woken for an idle CPU: asks the policy right away what that CPU is to run, so that the CPU does not
    /// have to.
    fn pick_for_idle(&self, handling: &mut Handling<'_>, cpu: CpuId, woken: TaskId) {
        let reply = self.call(handling, &Message::about_cpu(Call::PickNextTask, cpu), &[]);
        if reply.token.is_none() || !self.run(handling, cpu, &reply) || handling.outcome.task == woken {
            return;
        }
        // Another task of that CPU comes first. The host can only place the woken one from here, so the other waits
        // until the CPU asks for it, which it does now.
        let picked = handling.outcome.task;
        *handling.outcome = Outcome { kicks: handling.outcome.kicks, ..Outcome::default() };
        handling.outcome.kicks.add(cpu);
        if let Some(slot) = self.tasks.get(picked) {
            self.wait_again(handling, picked, slot, cpu, RefusalReason::Busy);
        }
    }

    /// The policy holds the task's token already: it was made to give way, or the kernel moved it.
    #[cold]
    fn enqueue_again(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot, seen: State) {
        let cpu = handling.event.cpu;
        if seen.cpu() != cpu {
            self.move_to(handling, task, slot, seen, cpu, Phase::Ready);
        } else if seen.phase() == Phase::ReadyByTick && !slot.try_state(seen, seen.in_phase(Phase::Ready)) {
            // Only the CPU that it ran on may change a task in this phase, and that is here.
            Counters::count(&self.counters(cpu).surprises);
        }
        if let Some(cpu) = wanted(slot) {
            handling.outcome.kicks.add(cpu);
        }
    }

    #[inline]
    fn block(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        let event = handling.event;
        let seen = slot.state();
        slot.runtime_ns.store(event.runtime_ns, Relaxed);
        match seen.phase() {
            Phase::Running => {
                slot.set_state(seen.in_phase(Phase::Blocked));
                self.slept(handling, task, slot);
            }
            Phase::Ready | Phase::ReadyByTick => {
                // It ran behind our back while the kernel bypassed us, and its token is still with the policy.
                slot.set_state(seen.issue(Phase::Blocked, seen.cpu()));
                self.take_back(handling, task, slot);
            }
            Phase::New | Phase::Blocked | Phase::Free => {
                self.transit(event.cpu, seen, Transition::Block);
            }
        }
    }

    /// The task sleeps, by what the host says or by what follows from it.
    #[inline]
    fn slept(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        if self.calls.has(Call::TaskBlocked) {
            let message = self.message(handling, Call::TaskBlocked, task, slot);
            self.call(handling, &message, &[]);
        }
    }

    /// A CPU looks for work: first the task that ran so far goes to the policy, then the policy chooses.
    #[inline]
    fn pick(&self, handling: &mut Handling<'_>) {
        let cpu = handling.event.cpu;
        if cpu >= self.nr_cpus() {
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        if handling.event.flags & pick_flags::PREV_RUNNABLE != 0 {
            self.give_way(handling);
        } else if let Some(slot) = self.tasks.get(handling.event.task) {
            let seen = slot.state();
            if !seen.is_of(self.era) {
                self.meet(handling, handling.event.task, slot);
            } else if seen.phase() == Phase::Running {
                slot.set_state(seen.in_phase(Phase::Blocked));
                if UPGRADABLE && self.calls.has(Call::TaskBlocked) {
                    slot.runtime_ns.store(handling.event.runtime_ns, Relaxed);
                    self.slept(handling, handling.event.task, slot);
                }
            }
        }
        let mut balance = self.calls.has(Call::Balance);
        for _ in 0..PICK_ATTEMPTS {
            let mut message = Message::about_cpu(Call::PickNextTask, cpu);
            message.flags = if balance { BALANCE_TOO } else { 0 };
            let reply = self.call(handling, &message, &[]);
            if reply.token.is_none() {
                // A task that was brought here is picked next, once.
                if balance && !reply.task.is_none() && self.bring(handling, reply.task, cpu) {
                    balance = false;
                    continue;
                }
                return self.found_nothing(handling, cpu);
            }
            if self.run(handling, cpu, &reply) {
                return;
            }
            if self.faulted.load(Relaxed) {
                return;
            }
        }
        // Still only worthless tokens: let the kernel do something else, and come back for the rest.
        handling.outcome.kicks.add(cpu);
    }

    /// The task that ran so far could go on. The policy gets its token before it chooses.
    #[cold]
    fn give_way(&self, handling: &mut Handling<'_>) {
        let event = handling.event;
        let Some(slot) = self.tasks.get(event.task) else { return };
        slot.runtime_ns.store(event.runtime_ns, Relaxed);
        if !slot.state().is_of(self.era) {
            self.meet(handling, event.task, slot);
        }
        let seen = slot.state();
        self.transit(event.cpu, seen, Transition::GiveWay);
        let call = match seen.phase() {
            Phase::Running if seen.is_yielding() => Call::TaskYield,
            Phase::Running => Call::TaskPreempt,
            Phase::Blocked => Call::TaskWakeup,
            Phase::New | Phase::Free => Call::TaskNew,
            Phase::Ready | Phase::ReadyByTick => {
                // The kernel bypassed us and ran it; the policy has its token already, for here or elsewhere.
                if seen.cpu() == event.cpu {
                    slot.set_state(seen.in_phase(Phase::ReadyByTick));
                } else {
                    self.move_to(handling, event.task, slot, seen, event.cpu, Phase::ReadyByTick);
                }
                return;
            }
        };
        let state = seen.issue(Phase::ReadyByTick, event.cpu);
        slot.set_state(state);
        self.hand_token(handling, call, event.task, slot, state);
    }

    /// Checks a token that was picked for `cpu`, and makes its task run if it is good.
    #[inline]
    fn run(&self, handling: &mut Handling<'_>, cpu: CpuId, reply: &Reply) -> bool {
        let raw = reply.token;
        let Some(slot) = self.tasks.get(raw.task) else {
            self.refuse(handling, cpu, raw, RefusalReason::Gone, None);
            return false;
        };
        let seen = slot.state();
        let phase = seen.phase();
        let is_good = seen.serial() == raw.serial && raw.cpu == cpu && seen.cpu() == cpu && phase.is_waiting();
        if !is_good || !slot.try_state(seen, seen.in_phase(Phase::Running)) {
            let reason = if seen.serial() != raw.serial || is_good {
                RefusalReason::Stale
            } else if !phase.is_waiting() {
                RefusalReason::NotReady
            } else {
                RefusalReason::WrongCpu
            };
            self.refuse(handling, cpu, raw, reason, Some(slot));
            return false;
        }
        let outcome = &mut *handling.outcome;
        outcome.status = if phase == Phase::ReadyByTick { Status::KeepPrevious } else { Status::Run } as i32;
        outcome.task = raw.task;
        outcome.host_task = slot.host_task.load(Relaxed);
        outcome.slice_ns = reply.slice_ns;
        let counters = self.counters(cpu);
        Counters::count(&counters.picks);
        if self.idle.note(cpu, false) && self.calls.has(Call::ExitIdle) {
            self.tell_cpu(handling, Call::ExitIdle, cpu);
        }
        true
    }

    fn found_nothing(&self, handling: &mut Handling<'_>, cpu: CpuId) {
        Counters::count(&self.counters(cpu).idles);
        if self.idle.note(cpu, true) && self.calls.has(Call::EnterIdle) {
            self.tell_cpu(handling, Call::EnterIdle, cpu);
        }
    }

    /// Moves the task that the policy wishes here, or another one if that cannot be. True if one was moved.
    fn bring(&self, handling: &mut Handling<'_>, mut wish: TaskId, cpu: CpuId) -> bool {
        for _ in 0..PICK_ATTEMPTS {
            let Err(reason) = self.pull(handling, wish, cpu) else { return true };
            Counters::count(&self.counters(cpu).refusals);
            if !self.calls.has(Call::BalanceErr) {
                return false;
            }
            let message = Message { task: wish, flags: reason as u32, ..Message::about_cpu(Call::BalanceErr, cpu) };
            self.call(handling, &message, &[]);
            wish = self.call(handling, &Message::about_cpu(Call::Balance, cpu), &[]).task;
            if wish.is_none() {
                return false;
            }
        }
        false
    }

    fn pull(&self, handling: &mut Handling<'_>, task: TaskId, cpu: CpuId) -> Result<(), RefusalReason> {
        let slot = self.tasks.get(task).ok_or(RefusalReason::Gone)?;
        let seen = slot.state();
        match seen.phase() {
            Phase::Ready => {}
            Phase::ReadyByTick => {
                // Its CPU tells us as soon as the task has left it.
                slot.wanted_by.store(cpu, Relaxed);
                return Err(RefusalReason::Busy);
            }
            _ => return Err(RefusalReason::NotReady),
        }
        if seen.cpu() == cpu {
            return Err(RefusalReason::WrongCpu);
        }
        if !self.host.may_run(task, cpu) {
            return Err(RefusalReason::NotAllowed);
        }
        if self.move_to(handling, task, slot, seen, cpu, Phase::Ready) { Ok(()) } else { Err(RefusalReason::Stale) }
    }

    /// Exchanges the token of a waiting task for one for `cpu`. False if someone else was faster.
    fn move_to(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        slot: &Slot,
        seen: State,
        cpu: CpuId,
        phase: Phase,
    ) -> bool {
        let state = seen.issue(phase, cpu);
        if !slot.try_state(seen, state) {
            return false;
        }
        Counters::count(&self.counters(cpu).migrations);
        let mut message = self.message(handling, Call::MigrateTaskRq, task, slot).with_token(token(task, state));
        message.cpu = cpu;
        let old = self.call(handling, &message, &[]).token;
        if !old.is_none() && old != token(task, seen) {
            self.mistake(MistakeKind::WrongTokenReturned, Call::MigrateTaskRq, cpu, slot);
            // What it gave back may be the only token of another task.
            self.reissue(handling, old, Call::MigrateTaskRq);
        }
        true
    }

    /// The host could not run what was picked: the task waits again, where the kernel has it.
    fn pick_refused(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        Counters::count(&self.counters(handling.event.cpu).refusals);
        let reason = RefusalReason::from_number(handling.event.args[0] as u32);
        self.wait_again(handling, task, slot, handling.event.cpu, reason);
    }

    /// A task that was picked does not run after all, and waits on `cpu` again.
    fn wait_again(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot, cpu: CpuId, reason: RefusalReason) {
        let seen = slot.state();
        self.transit(cpu, seen, Transition::Refuse);
        let state = seen.issue(Phase::Ready, cpu);
        slot.set_state(state);
        let mut message = self.message(handling, Call::PntErr, task, slot).with_token(token(task, state));
        message.cpu = cpu;
        message.flags = reason as u32;
        self.call(handling, &message, &[]);
    }

    /// A CPU leaves. The kernel moves what it has there, but a task that `balance` brought may still be elsewhere for
    /// the kernel, and nobody would ever ask for it here: such tasks go to a CPU that stays.
    fn cpu_offline(&self, handling: &mut Handling<'_>) {
        let leaving = handling.event.cpu;
        self.tell(handling, Call::CpuOffline, &[]);
        for view in self.tasks.iter() {
            if view.state.phase() != Phase::Ready || view.state.cpu() != leaving {
                continue;
            }
            let stays = (0..self.nr_cpus()).find(|cpu| *cpu != leaving && self.host.may_run(view.id, *cpu));
            let (Some(cpu), Some(slot)) = (stays, self.tasks.get(view.id)) else { continue };
            if self.move_to(handling, view.id, slot, view.state, cpu, Phase::Ready) {
                handling.outcome.kicks.add(cpu);
            }
        }
    }

    fn nice(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        self.read_nice(handling.event, slot);
        self.tell_about(handling, Call::TaskPrioChanged, task, slot);
    }

    fn read_nice(&self, event: &Event, slot: &Slot) {
        slot.set_nice(event.args[0] as i32, event.args[1] != 0);
    }

    /// Hands back a token that cannot be honoured.
    #[cold]
    fn refuse(
        &self,
        handling: &mut Handling<'_>,
        cpu: CpuId,
        raw: RawToken,
        reason: RefusalReason,
        slot: Option<&Slot>,
    ) {
        Counters::count(&self.counters(cpu).refusals);
        if let (RefusalReason::WrongCpu, Some(slot)) = (reason, slot) {
            // The other reasons arise when a task dies or moves while it waits, which is nobody's mistake.
            self.mistake(MistakeKind::Refused(reason), Call::PickNextTask, cpu, slot);
        }
        let mut message = match slot {
            Some(slot) => self.message(handling, Call::PntErr, raw.task, slot),
            None => Message { task: raw.task, ..Message::about_cpu(Call::PntErr, cpu) },
        };
        message.cpu = cpu;
        message = message.with_token(raw);
        message.flags = reason as u32;
        self.call(handling, &message, &[]);
    }

    /// Asks for the token of a task that leaves. Whatever the policy keeps is worthless already.
    fn take_back(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        if self.calls.has(Call::TaskDeparted) {
            let message = self.message(handling, Call::TaskDeparted, task, slot);
            self.call(handling, &message, &[]);
        }
    }

    /// Delivers a call that moves a token into the policy.
    #[inline]
    fn hand_token(&self, handling: &mut Handling<'_>, call: Call, task: TaskId, slot: &Slot, state: State) {
        let mut message = self.message(handling, call, task, slot).with_token(token(task, state));
        message.cpu = state.cpu();
        self.call(handling, &message, &[]);
    }

    fn tell_about(&self, handling: &mut Handling<'_>, call: Call, task: TaskId, slot: &Slot) {
        slot.runtime_ns.store(handling.event.runtime_ns, Relaxed);
        // Of a task that has not waited for a CPU yet, the policy knows nothing.
        if self.calls.has(call) && slot.state().phase() != Phase::New {
            let message = self.message(handling, call, task, slot);
            self.call(handling, &message, &[]);
        }
    }

    /// Delivers a call that is about the event as a whole.
    fn tell(&self, handling: &mut Handling<'_>, call: Call, payload: &[u8]) {
        if !self.calls.has(call) {
            handling.outcome.cpu = NO_CPU as i32;
            return;
        }
        let event = handling.event;
        let mut message = match self.tasks.get(event.task) {
            Some(slot) => self.message(handling, call, event.task, slot),
            None => Message::about_cpu(call, event.cpu),
        };
        message.arg = event.args[0];
        handling.outcome.cpu = self.call(handling, &message, payload).cpu as i32;
    }

    fn tell_cpu(&self, handling: &mut Handling<'_>, call: Call, cpu: CpuId) {
        let message = Message::about_cpu(call, cpu);
        self.call(handling, &message, &[]);
    }

    #[inline]
    fn message(&self, handling: &Handling<'_>, call: Call, task: TaskId, slot: &Slot) -> Message {
        Message {
            call: call as u32,
            cpu: handling.event.cpu,
            task,
            token_cpu: 0,
            token_serial: 0,
            runtime_ns: slot.runtime_ns.load(Relaxed),
            weight: slot.weight.load(Relaxed),
            nice: slot.nice.load(Relaxed),
            pid: slot.pid.load(Relaxed),
            flags: 0,
            arg: 0,
        }
    }

    /// Calls the policy, and takes over what it asks for besides its answer.
    #[inline]
    fn call(&self, handling: &mut Handling<'_>, message: &Message, payload: &[u8]) -> Reply {
        let reply = self.policy.deliver(message, payload);
        if !reply.kicks.is_empty() || reply.timer_ns != 0 {
            self.take_over(handling, &reply);
        }
        if !reply.dropped.is_none() {
            let call = Call::from_number(message.call).unwrap_or(Call::PickNextTask);
            self.reissue(handling, reply.dropped, call);
        }
        reply
    }

    #[cold]
    fn take_over(&self, handling: &mut Handling<'_>, reply: &Reply) {
        let outcome = &mut *handling.outcome;
        if reply.timer_ns != 0 {
            outcome.timer_ns = reply.timer_ns;
        }
        outcome.kicks.add_all(reply.kicks);
    }

    /// A token left the policy's hands outside the rules. If it was good its task would never run again, so the
    /// policy gets a new one, and a mistake on its record.
    #[cold]
    fn reissue(&self, handling: &mut Handling<'_>, mut lost: RawToken, mut call: Call) {
        // A policy that drops the new one too is told again until it has made too many mistakes.
        while let Some(slot) = self.tasks.get(lost.task) {
            let seen = slot.state();
            let state = seen.issue(seen.phase(), seen.cpu());
            if seen.serial() != lost.serial || !seen.phase().is_waiting() || !slot.try_state(seen, state) {
                return;
            }
            self.mistake(MistakeKind::TokenLost, call, seen.cpu(), slot);
            if self.faulted.load(Relaxed) {
                return;
            }
            call = Call::TaskPreempt;
            let mut message = self.message(handling, call, lost.task, slot).with_token(token(lost.task, state));
            message.cpu = state.cpu();
            let reply = self.policy.deliver(&message, &[]);
            self.take_over(handling, &reply);
            lost = reply.dropped;
        }
    }

    #[cold]
    fn mistake(&self, kind: MistakeKind, call: Call, cpu: CpuId, slot: &Slot) {
        let mistake = Mistake { kind, call, cpu, pid: slot.pid.load(Relaxed) };
        *self.last_mistake.lock() = Some(mistake);
        if self.mistakes.fetch_add(1, Relaxed) + 1 - self.mistakes_before > MISTAKES_ALLOWED {
            let message: String = alloc::format!("more than {MISTAKES_ALLOWED} mistakes, the last one: {mistake}");
            self.take_out(Fault { message, cpu });
        }
    }

    /// Checks a transition, and counts it as a surprise if it is not in the list.
    #[inline]
    fn transit(&self, cpu: CpuId, seen: State, by: Transition) {
        if by.from(seen.phase()).is_none() {
            Counters::count(&self.counters(cpu).surprises);
        }
    }

    #[inline]
    fn counters(&self, cpu: CpuId) -> &Counters {
        // A host that names a CPU beyond the machine is wrong, and not worth a panic.
        self.cpus.get(cpu as usize).unwrap_or(&self.cpus[0])
    }

    fn nr_cpus(&self) -> u32 {
        self.cpus.len() as u32
    }
}
