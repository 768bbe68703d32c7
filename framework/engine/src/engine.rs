//! One event in, one outcome out.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use ekiden::{Call, Calls, CpuId, Group, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, EventKind, FOR_IDLE, Outcome, Status, enqueue_flags};

use crate::conditions::{Conditions, PLAIN, SEVERAL, SINGLE};
use crate::counters::{Counters, Cpu, Totals};
use crate::fault::ContractViolation;
use crate::groups::{Groups, MAX_GROUPS};
use crate::host::EngineHost;
use crate::idle::IdleCpus;
use crate::idle_notifications::IdleMissed;
use crate::late::Late;
use crate::order::Published;
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};
use crate::shares::Shares;
use crate::starved::Scans;
use crate::state::{Phase, State, Transition, UPGRADABLE};
use crate::table::{TaskEntry, TaskTable};
use crate::task_params::Kept;

/// The engine: policies, their tasks, and the checks between them and the host. A host whose policies are all of one type says
/// which, and calls them by their address.
pub struct Engine<P = Box<dyn Policy>> {
    pub(crate) policy_slots: [PolicySlot<P>; POLICY_SLOTS],
    /// The policy slots that are taken, in the order in which their policies are asked; never empty.
    pub(crate) order: Published,
    /// Whether there may be several policies, or groups, or no policy is left.
    pub(crate) conditions: Conditions,
    /// The policies that are told of idle CPUs, a bit each.
    pub(crate) listeners: AtomicU8,
    /// Policy slots whose policies go while events that know them are under way, a bit each.
    pub(crate) leaving: AtomicU8,
    pub(crate) missed: IdleMissed,
    pub(crate) shares: Shares,
    pub(crate) default_policy_slot: AtomicU32,
    pub(crate) host: Arc<dyn EngineHost + Send>,
    pub(crate) tasks: TaskTable,
    pub(crate) groups: Groups,
    /// Parameters of tasks, by the index of their entry.
    pub(crate) params: Vec<Kept>,
    pub(crate) idle: Arc<IdleCpus>,
    pub(crate) late: Late,
    pub(crate) cpus: Vec<Cpu>,
    /// Tasks that run without their policy being asked: in the lower half how many there is no room for, in the upper how many are owed a turn.
    pub(crate) unasked: AtomicU64,
    pub(crate) scans: Scans,
}

/// One event while it is being handled. `CASE` says whether there is but one policy, in policy slot 0, which spares what is frequent all
/// that is there for several.
pub(crate) struct Handling<'a, const CASE: u8 = SEVERAL> {
    pub(crate) event: &'a Event,
    pub(crate) outcome: &'a mut Outcome,
}

impl<const CASE: u8> Handling<'_, CASE> {
    /// This event for code that is rarely run: it handles several policies, at their cost.
    #[inline]
    pub(crate) fn rare(&mut self) -> Handling<'_> {
        Handling { event: self.event, outcome: self.outcome }
    }
}

impl<P: Policy> Engine<P> {
    /// An engine for `policy` on a machine with `nr_cpus` CPUs and at most `max_tasks` tasks. The policy gets all tasks, and
    /// policy slot 0.
    ///
    /// `idle` is the set that `host` answers [`Host::idle_cpus`](ekiden_host::Host::idle_cpus) from; the engine keeps it.
    pub fn new(policy: P, host: Arc<dyn EngineHost + Send>, idle: Arc<IdleCpus>, nr_cpus: u32, max_tasks: u32) -> Self {
        let mut cpus = Vec::new();
        cpus.resize_with(nr_cpus as usize, Cpu::default);
        let mut engine = Self {
            policy_slots: core::array::from_fn(PolicySlot::free),
            order: Published::default(),
            conditions: Conditions::default(),
            listeners: AtomicU8::new(0),
            leaving: AtomicU8::new(0),
            missed: IdleMissed::default(),
            shares: Shares::default(),
            default_policy_slot: AtomicU32::new(0),
            host,
            tasks: TaskTable::new(max_tasks),
            groups: Groups::new(MAX_GROUPS - 1, max_tasks),
            params: Kept::for_tasks(max_tasks),
            idle,
            late: Late::default(),
            cpus,
            unasked: AtomicU64::new(0),
            scans: Scans::default(),
        };
        // An engine without policies has room for one, and no CPU is idle yet.
        let _ = engine.add(policy, true, &mut Outcome::default());
        engine
    }

    /// The calls that any of the policies implements.
    pub fn calls(&self) -> Calls {
        // A task that may not use all CPUs is kept from the others where one is chosen for it.
        let own = if self.is_shared() { Calls::NONE.with(Call::SelectTaskRq).0 } else { 0 };
        Calls(self.in_order().fold(own, |calls, policy_slot| calls | policy_slot.calls().0))
    }

    /// Whether [`EventKind::SelectCpu`] has to be delivered for a task: its policy chooses CPUs, or has not all of them.
    #[inline]
    pub fn chooses_cpu(&self, task: TaskId) -> bool {
        let asks = |entry: &TaskEntry| self.policy_slot_of::<SEVERAL>(entry.state()).calls().has(Call::SelectTaskRq);
        self.is_shared() || self.tasks.get(task).is_some_and(asks)
    }

    /// The policy in a policy slot, if there is one.
    pub fn policy(&self, policy_slot: usize) -> Option<&P> {
        // One that has left may still be in its place.
        self.policy_slots[policy_slot].policy().filter(|_| self.order.get().contains(policy_slot))
    }

    /// The task table.
    pub fn tasks(&self) -> &TaskTable {
        &self.tasks
    }

    /// The group of a task, as far as there was room for it. When it has no tasks any more, its number may be another's.
    pub fn group_of(&self, task: TaskId) -> Group {
        self.tasks.get(task).map_or(Group::ROOT, |_| self.groups.group_of_task(task.slot))
    }

    /// The groups of tasks.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The CPUs that run none of our tasks.
    pub fn idle(&self) -> &Arc<IdleCpus> {
        &self.idle
    }

    /// Sums of what the CPUs counted, for all policies.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.cpus.iter().flat_map(|cpu| &cpu.counters).for_each(|counters| counters.add_to(&mut totals));
        totals
    }

    /// What a CPU has counted for the policy in a policy slot, if there are both.
    pub fn counted(&self, policy_slot: usize, cpu: CpuId) -> Option<Totals> {
        let counters = self.cpus.get(cpu as usize).filter(|_| self.order.get().contains(policy_slot))?;
        let mut totals = Totals::default();
        counters.counters[policy_slot].add_to(&mut totals);
        Some(totals)
    }

    /// How many contract violations policies have made, and the newest of the first that has made one.
    pub fn contract_violations(&self) -> (u32, Option<ContractViolation>) {
        let policy_slots = || self.in_order();
        let last = policy_slots().find_map(|policy_slot| *policy_slot.last_contract_violation.lock());
        (policy_slots().map(|policy_slot| policy_slot.contract_violations.load(Relaxed)).sum(), last)
    }

    /// Handles one event. `outcome` comes in zeroed. `payload` holds hints and parameters, and is empty for every other kind.
    ///
    /// The host keeps events of one task in order, and those that make one task wait, run or block apart in time (in
    /// the kernel the run-queue lock does that). Events of different tasks and CPUs may come at the same time.
    // The kernel has one call of it, on the hottest path, which the compiler takes for too long to be made part of its caller.
    #[inline(always)]
    pub fn deliver(&self, event: &Event, payload: &[u8], outcome: &mut Outcome) {
        debug_assert_eq!(*outcome, Outcome::default(), "an outcome comes in zeroed");
        if self.conditions.are_plain() {
            self.handle(&mut Handling::<PLAIN> { event, outcome }, payload);
        } else if self.conditions.are_over() {
            outcome.status = Status::Fault as i32;
        } else if self.is_single() {
            self.handle(&mut Handling::<SINGLE> { event, outcome }, payload);
        } else {
            self.handle(&mut Handling::<SEVERAL> { event, outcome }, payload);
        }
    }

    #[inline(always)]
    fn handle<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>, payload: &[u8]) {
        let event = handling.event;
        // The three of a task switch first: they are most of what there is.
        if event.kind == EventKind::Enqueue as u32 {
            self.enqueue(handling);
        } else if event.kind == EventKind::Pick as u32 {
            self.pick(handling);
        } else if event.kind == EventKind::Block as u32 {
            self.with_task(handling, Self::block);
        } else {
            self.deliver_rare(&mut handling.rare(), payload);
        }
        self.end(handling);
    }

    /// The last of every outcome: whether the policy is still there.
    #[inline]
    pub(crate) fn end<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>) {
        if self.conditions.are_over() {
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
        const MOVE: u32 = EventKind::TaskMove as u32;
        const REFILL: u32 = EventKind::Refill as u32;
        const PARAMS: u32 = EventKind::TaskParams as u32;
        match handling.event.kind {
            INIT => self.task_init(handling, payload),
            DISABLE | EXIT | TICK if handling.event.task.is_none() => {
                if handling.event.kind == TICK {
                    Counters::count(&self.cpu(handling.event.cpu).ticks_beyond);
                }
                self.about_one_beyond(handling);
            }
            ENABLE => self.with_task(handling, Self::task_enable),
            DISABLE => self.with_task(handling, Self::task_disable),
            EXIT => self.with_task(handling, Self::task_exit),
            SELECT_CPU => self.with_task(handling, |engine, handling, task, entry| {
                engine.select_cpu(handling, task, entry);
                if engine.is_shared() {
                    engine.keep_in(handling, task, entry);
                }
            }),
            REFUSED => self.with_task(handling, Self::pick_refused),
            TICK => self.with_task(handling, |engine, handling, task, entry| {
                let policy_slot = engine.policy_slot_of::<SEVERAL>(entry.state());
                Counters::count(&engine.counters(handling.event.cpu, policy_slot).ticks);
                engine.tick_beyond(handling);
                engine.tick_due(handling);
                if engine.groups.is_active() && engine.ticks_in_group(handling, task, entry) {
                    handling.outcome.kicks.add(handling.event.cpu);
                }
                engine.tell_about(handling, Call::TaskTick, task, entry);
                if !engine.is_single() {
                    engine.rotate(handling, handling.event.cpu, entry);
                }
            }),
            YIELD => self.with_task(handling, |_, _, _, entry| entry.set_state(entry.state().yielding())),
            NICE => self.with_task(handling, Self::nice),
            AFFINITY => self.with_task(handling, |engine, handling, task, entry| {
                engine.tell_about(handling, Call::TaskAffinityChanged, task, entry);
            }),
            ONLINE => {
                self.policy_slots.iter().for_each(PolicySlot::has_heard);
                self.tell_all(handling, Call::CpuOnline, handling.event.cpu);
            }
            OFFLINE => self.cpu_offline(handling),
            TIMER => self.timer(handling),
            HINT => self.tell(handling, Call::ParseHint, payload),
            QUEUE_OPEN => self.tell(handling, Call::RegisterQueue, &[]),
            QUEUE_READY => self.tell(handling, Call::EnterQueue, payload),
            QUEUE_CLOSE => self.tell(handling, Call::UnregisterQueue, &[]),
            MOVE => self.with_task(handling, Self::task_moves),
            REFILL => self.refill(handling),
            PARAMS => self.with_task(handling, |engine, handling, task, entry| {
                engine.set_params(handling, task, entry, payload);
            }),
            _ => self.group_event(handling),
        }
    }

    /// Runs `handle` with the event's task, or says that there is none.
    #[inline]
    fn with_task<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        handle: impl FnOnce(&Self, &mut Handling<'_, CASE>, TaskId, &TaskEntry),
    ) {
        let task = handling.event.task;
        match self.tasks.get(task) {
            Some(entry) => {
                if UPGRADABLE && !self.is_attached::<CASE>(entry.state()) {
                    self.attach(&mut handling.rare(), task, entry);
                }
                handle(self, handling, task, entry);
            }
            None => handling.outcome.status = Status::Invalid as i32,
        }
    }

    fn select_cpu(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        let policy_slot = self.policy_slot_of::<SEVERAL>(entry.state());
        if !policy_slot.calls().has(Call::SelectTaskRq) {
            handling.outcome.cpu = handling.event.args[0] as i32;
            return;
        }
        // Where no CPU is idle the host suggests where the task ran last, which may be offline by now.
        let suggested = self.host_cpu(task, handling.event.args[0] as u32);
        handling.outcome.cpu = suggested as i32;
        let mut message = self.message(handling, Call::SelectTaskRq, task, entry);
        message.arg = u64::from(suggested);
        message.flags = handling.event.flags as u32;
        let chosen = self.call(handling, policy_slot, &message, &[]).cpu;
        if chosen == suggested
            || !policy_slot.is_taken()
            || (chosen < self.nr_cpus() && self.host.may_run(task, chosen))
        {
            handling.outcome.cpu = if policy_slot.is_taken() { chosen } else { suggested } as i32;
        } else {
            self.chose_badly(handling, policy_slot, task, entry, chosen);
        }
    }

    /// The kernel puts a task on the run queue of the event's CPU.
    #[inline]
    fn enqueue<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>) {
        let (event, task) = (handling.event, handling.event.task);
        let Some(entry) = self.tasks.get(task) else {
            handling.outcome.status = Status::Invalid as i32;
            return;
        };
        if self.any_group::<CASE>() && self.waits_in_group(&mut handling.rare(), task, entry, Phase::Throttled) {
            return;
        }
        entry.runtime_ns.store(event.runtime_ns, Relaxed);
        // Looked at once: this is the busiest of all.
        let mut seen = entry.state();
        if UPGRADABLE && !self.is_attached::<CASE>(seen) {
            self.attach(&mut handling.rare(), task, entry);
            seen = entry.state();
        }
        if CASE == SEVERAL && entry.choice() != seen.policy_slot() {
            self.change_policy(&mut handling.rare(), task, entry);
            seen = entry.state();
        }
        let policy_slot = self.policy_slot_of::<CASE>(seen);
        // What is woken up first.
        let call = match seen.phase() {
            Phase::Blocked => Call::TaskWakeup,
            _ => match self.call_of_enqueue(handling, task, entry, seen) {
                Some(call) => call,
                None => return,
            },
        };
        if self.any_group::<CASE>() && !self.admit(&mut handling.rare(), task, entry, call, Phase::Throttled) {
            return;
        }
        // The state goes first: another CPU may pick the task as soon as the policy knows of it.
        let state = seen.issue(Phase::Ready, event.cpu);
        if !entry.try_state(seen, state) {
            return self.enqueue_overtaken(&mut handling.rare());
        }
        let for_idle = event.flags & enqueue_flags::MAY_PLACE != 0 && self.idle.contains(event.cpu);
        self.hand_token(handling, call, task, entry, state, if for_idle { FOR_IDLE } else { 0 });
        if CASE == SEVERAL {
            // It has faulted, here or elsewhere.
            if state.attachment() != policy_slot.attachment() {
                return self.attach(&mut handling.rare(), task, entry);
            }
            if self.is_shared() && self.send_away(&mut handling.rare(), task, entry) {
                return;
            }
        }
        if for_idle {
            if !self.idle.contains(event.cpu) || !self.pick_for_idle(handling, policy_slot, event.cpu, task) {
                self.kick_another(&mut handling.rare(), task);
            }
        } else if CASE == SEVERAL {
            self.overtake(handling, policy_slot, event.cpu);
        }
    }

    /// A host that looks for an idle CPU first says so before the task is on a queue. Another CPU had picked it by then, could not run it, and has
    /// given it back to the policy this very moment.
    #[cold]
    #[inline(never)]
    fn enqueue_overtaken(&self, handling: &mut Handling<'_>) {
        self.enqueue(handling);
    }

    /// The policy holds the task's token already: it was made to give way, or the kernel moved it.
    #[cold]
    pub(crate) fn enqueue_again(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry, seen: State) {
        let cpu = handling.event.cpu;
        // It may be allowed elsewhere by now, or has left the CPU that ran it: CPUs that could not have it are to look again.
        self.policy_slot_of::<SEVERAL>(seen).has_heard();
        if seen.cpu() != cpu {
            self.move_to(handling, task, entry, seen, cpu, Phase::Ready);
        } else if seen.phase() == Phase::ReadyByTick && !entry.try_state(seen, seen.in_phase(Phase::Ready)) {
            // Only the CPU that it ran on may change a task in this phase, and that is here.
            Counters::count(&self.counters(cpu, self.policy_slot_of::<SEVERAL>(seen)).unexpected_transitions);
        }
        if let Some(cpu) = entry.wish.take() {
            // A CPU that has found something else looks again by itself; but what it runs may be of a policy that is asked later.
            if self.idle.handed.hand(|| self.idle.contains(cpu)) || !self.is_single() {
                handling.outcome.kicks.add(cpu);
            }
        }
        if self.is_shared() {
            self.send_away(handling, task, entry);
        }
    }

    #[inline]
    fn block<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>, task: TaskId, entry: &TaskEntry) {
        let event = handling.event;
        if self.any_group::<CASE>() && self.sleeps_in_group(&mut handling.rare(), task, entry) {
            return;
        }
        let mut seen = entry.state();
        entry.runtime_ns.store(event.runtime_ns, Relaxed);
        // It ran behind our back while the kernel bypassed us, and its token is still with the policy: another CPU may be taking it.
        while seen.phase().is_waiting() && !entry.try_state(seen, seen.issue(Phase::Blocked, seen.cpu())) {
            seen = entry.state();
        }
        match seen.phase() {
            Phase::Running => {
                entry.set_state(seen.in_phase(Phase::Blocked));
                self.slept(handling, self.policy_slot_of::<CASE>(seen), task, entry);
            }
            Phase::Ready | Phase::ReadyByTick => {
                self.take_back(&mut handling.rare(), self.policy_slot_of::<CASE>(seen), task, entry);
                self.groups.sleep(task.slot);
            }
            Phase::New | Phase::Blocked | Phase::Free | Phase::Throttled | Phase::ThrottledByTick => {
                self.transit(event.cpu, entry, seen, Transition::Block);
            }
        }
    }

    /// The task sleeps, by what the host says or by what follows from it.
    #[inline]
    pub(crate) fn slept<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        task: TaskId,
        entry: &TaskEntry,
    ) {
        if policy_slot.calls().has(Call::TaskBlocked) {
            let message = self.message(handling, Call::TaskBlocked, task, entry);
            self.call(handling, policy_slot, &message, &[]);
        }
    }

    /// Whether there is but one policy, in policy slot 0.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        !UPGRADABLE || self.conditions.are_single()
    }

    /// Whether there is a group besides the root.
    #[inline]
    pub(crate) fn any_group<const CASE: u8>(&self) -> bool {
        CASE != PLAIN && self.groups.is_active()
    }

    /// The policy slot of the policy that has heard of a task in this state.
    #[inline]
    pub(crate) fn policy_slot_of<const CASE: u8>(&self, state: State) -> &PolicySlot<P> {
        &self.policy_slots[if CASE != SEVERAL { 0 } else { state.policy_slot() }]
    }

    /// How many CPUs the machine has.
    #[inline]
    pub fn nr_cpus(&self) -> u32 {
        self.cpus.len() as u32
    }
}
