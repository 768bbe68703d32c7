//! Groups in the life of a task: it is charged for what it runs, throttled when its group has no time left, and released when it
//! has; see [`Groups`](crate::groups::Groups).
//!
//! To a policy, a task that is throttled sleeps: it hears of a sleep when the task is throttled, and of a wake-up when it is released.
//!
//! A task is throttled where it has nothing that others wait for: on its way to user mode, found there by an interrupt. One that wakes
//! up, or gives way in the kernel, runs on although there is no time, until that happens; the time is missing later.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{EventKind, Status, refill_flags};

use crate::conditions::SEVERAL;
use crate::engine::{Engine, Handling};
use crate::groups::{GO_ON_AFTER_NS, Limit};
use crate::host::Interrupted;
use crate::state::{Phase, State, Transition};
use crate::table::TaskEntry;

/// No slice is longer than that unless the policy says so.
const SLICE_NS_MAX: u64 = 20_000_000;

/// Hosts end slices at their ticks. One that is so short is ended by a timer instead.
const SLICE_NS_EXACT: u64 = 4_000_000;

/// So soon after a task without time left begins to run it is looked whether it has come to user mode, and so often again.
const LOOK_NS: u64 = 10_000;
const LOOK_AGAIN_NS: u64 = 50_000;

const PICK: u32 = EventKind::Pick as u32;
const TICK: u32 = EventKind::Tick as u32;
const REFILL: u32 = EventKind::Refill as u32;

/// How many tasks are released at a time.
const RELEASE_MOST: u32 = 32;

impl<P: Policy> Engine<P> {
    /// Notes the CPU time that the event's task has used up to now. True if it has to give way.
    #[inline]
    pub(crate) fn charge_groups(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) -> bool {
        let runtime_ns = handling.event.runtime_ns;
        let ran_ns = runtime_ns.saturating_sub(entry.runtime_ns.load(Relaxed));
        entry.runtime_ns.store(runtime_ns, Relaxed);
        let charge = self.groups.charge(task.slot, ran_ns, || self.host.now_ns());
        if let Some(at_ns) = charge.refill_at_ns {
            self.host.refill_at(at_ns);
        }
        charge.is_used_up
    }

    /// How long a task may run at a time; `None` if it has to be throttled.
    #[inline]
    fn allowance_ns(&self, task: TaskId) -> Option<u64> {
        self.groups.allowance_ns(task.slot, || self.host.now_ns())
    }

    /// Works out anew what the policy is told of the weight of a task.
    fn reweigh(&self, task: TaskId, entry: &TaskEntry) {
        entry.weight.store(self.groups.weight(task.slot, entry.own_weight.load(Relaxed)), Relaxed);
    }

    // ---- what the busiest events have to do if there are groups; the engine looks at `Groups::is_active` and does no more if
    // there are none ----

    /// The task comes to wait for a CPU. True if it is throttled, and stays so as `phase`.
    #[inline(never)]
    pub(crate) fn waits_in_group(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        phase: Phase,
    ) -> bool {
        let has_run = handling.event.runtime_ns > entry.runtime_ns.load(Relaxed);
        self.charge_groups(handling, task, entry);
        // While the kernel bypassed us: somewhere in it, perhaps.
        let is_elsewhere = has_run && !entry.state().phase().is_running() && !self.host.is_at_user(task);
        if is_elsewhere {
            self.groups.note_at_user(task.slot, false);
        }
        if !entry.state().phase().is_throttled() || !self.stays_throttled(entry, handling.event.cpu, phase) {
            return false;
        }
        if is_elsewhere {
            self.groups.unthrottle(task.slot);
            self.release(handling, task.slot);
        }
        true
    }

    /// The task comes to wait for a CPU, which the policy is to hear of by `call`. False if it is throttled instead, as `phase`.
    #[inline(never)]
    pub(crate) fn admit(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        call: Call,
        phase: Phase,
    ) -> bool {
        if self.groups.is_limited(task.slot) {
            // A task that wakes up does so in the kernel.
            let gives_way = matches!(call, Call::TaskPreempt | Call::TaskYield);
            let is_at_user = gives_way && self.host.is_at_user(task);
            self.groups.note_at_user(task.slot, is_at_user);
            if is_at_user && self.allowance_ns(task).is_none() {
                self.throttle(handling, task, entry, phase);
                return false;
            }
        }
        self.wants_to_run(task, entry);
        true
    }

    /// The task counts for its group from now on.
    pub(crate) fn wants_to_run(&self, task: TaskId, entry: &TaskEntry) {
        self.groups.wake(task.slot, entry.own_weight.load(Relaxed));
        self.reweigh(task, entry);
    }

    /// The task goes to sleep, if it has not done so. True if it was throttled until now.
    #[inline(never)]
    pub(crate) fn sleeps_in_group(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) -> bool {
        self.charge_groups(handling, task, entry);
        let phase = entry.state().phase();
        if phase == Phase::Running {
            self.groups.sleep(task.slot);
        }
        phase.is_throttled() && self.throttled_sleeps(task, entry)
    }

    /// The task runs. True if it has to give way.
    #[inline(never)]
    pub(crate) fn ticks_in_group(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) -> bool {
        self.reweigh(task, entry);
        if !self.charge_groups(handling, task, entry) {
            return false;
        }
        let is_in_user = self.host.interrupted(task) == Interrupted::InUser;
        if !is_in_user {
            self.cut_in_user(handling, task, LOOK_AGAIN_NS);
        }
        is_in_user
    }

    /// How long a task that was picked with a good token is to run, where the policy says `slice_ns`; `None` if it is throttled
    /// instead.
    #[inline(never)]
    pub(crate) fn slice_in_group(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        seen: State,
        slice_ns: u64,
    ) -> Option<u64> {
        match self.allowance_ns(task) {
            Some(allowance_ns) if allowance_ns >= SLICE_NS_MAX => Some(slice_ns),
            Some(allowance_ns) => Some(self.shorten(handling, task, slice_ns, allowance_ns)),
            // It has to come to user mode first.
            None if !self.groups.is_at_user(task.slot) => {
                self.cut_in_user(handling, task, LOOK_NS);
                Some(slice_ns)
            }
            None if self.throttle_picked(handling, task, entry, seen) => None,
            // Its token has become worthless, as the engine finds out.
            None => Some(slice_ns),
        }
    }

    /// The task's weight in its group has changed.
    pub(crate) fn reweigh_in_group(&self, task: TaskId, entry: &TaskEntry) {
        self.groups.set_task_weight(task.slot, entry.own_weight.load(Relaxed));
        self.reweigh(task, entry);
    }

    /// The task gives way on its way to user mode, and has no time to run. The caller has found out that it is not throttled yet.
    #[cold]
    fn throttle(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry, phase: Phase) {
        let seen = entry.state();
        self.transit(handling.event.cpu, entry, seen, Transition::Throttle);
        entry.set_state(seen.throttled(phase, handling.event.cpu, false));
        self.slept(handling, self.policy_slot_of::<SEVERAL>(seen), task, entry);
        self.groups.sleep(task.slot);
        if !self.groups.throttle(task.slot, true, self.host.now_ns()) {
            self.release(handling, task.slot);
        }
    }

    /// The policy picked a task that has no time to run. False if its token is not good any more.
    #[cold]
    fn throttle_picked(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry, seen: State) -> bool {
        let phase = if seen.phase() == Phase::ReadyByTick { Phase::ThrottledByTick } else { Phase::Throttled };
        if !entry.try_state(seen, seen.throttled(phase, seen.cpu(), false)) {
            return false;
        }
        self.slept(handling, self.policy_slot_of::<SEVERAL>(seen), task, entry);
        self.groups.sleep(task.slot);
        if !self.groups.throttle(task.slot, false, self.host.now_ns()) {
            self.release(handling, task.slot);
        }
        true
    }

    /// The kernel has put a throttled task on a run queue, or is about to. False if it is not throttled any more.
    #[cold]
    fn stays_throttled(&self, entry: &TaskEntry, cpu: CpuId, phase: Phase) -> bool {
        loop {
            let seen = entry.state();
            if !seen.phase().is_throttled() {
                return false;
            }
            if entry.try_state(seen, seen.throttled(phase, cpu, seen.is_unheard())) {
                return true;
            }
        }
    }

    /// A throttled task ran behind our back while the kernel bypassed us, and sleeps. False if it is not throttled any more.
    #[cold]
    fn throttled_sleeps(&self, task: TaskId, entry: &TaskEntry) -> bool {
        self.groups.unthrottle(task.slot);
        loop {
            let seen = entry.state();
            if !seen.phase().is_throttled() {
                return false;
            }
            let phase = if seen.is_unheard() { Phase::New } else { Phase::Blocked };
            if entry.try_state(seen, seen.in_phase(phase)) {
                return true;
            }
        }
    }

    /// A task that is throttled, and in no queue of the groups, goes to its policy, if there is time for it.
    fn release(&self, handling: &mut Handling<'_>, index: u32) {
        let Some((task, entry)) = self.tasks.at(index) else { return };
        let (seen, state) = loop {
            if !entry.state().phase().is_throttled() {
                return;
            }
            if !self.is_attached::<SEVERAL>(entry.state()) {
                self.attach(handling, task, entry);
            }
            if entry.choice() != entry.state().policy_slot() {
                self.change_policy(handling, task, entry);
            }
            let seen = entry.state();
            // There may be another limit.
            let may_throttle = self.groups.is_at_user(index) && self.allowance_ns(task).is_none();
            if may_throttle && self.groups.throttle(index, false, self.host.now_ns()) {
                return;
            }
            let phase = match seen.phase() {
                Phase::Throttled => Phase::Ready,
                Phase::ThrottledByTick => Phase::ReadyByTick,
                _ => return,
            };
            let cpu = self.host_cpu(task, seen.cpu());
            let state = seen.issue(phase, cpu);
            if entry.try_state(seen, state) {
                break (seen, state);
            }
        };
        let call = if seen.is_unheard() { Call::TaskNew } else { Call::TaskWakeup };
        self.wants_to_run(task, entry);
        self.hand_token(handling, call, task, entry, state, 0);
        if self.is_shared() && self.send_away(handling, task, entry) {
            return;
        }
        if self.idle.handed.hand(|| self.idle.contains(state.cpu())) {
            handling.outcome.kicks.add(state.cpu());
        } else if !self.is_single() {
            self.overtake(handling, self.policy_slot_of::<SEVERAL>(state), state.cpu());
        }
    }

    /// `cpu`, or another one if the task may not run there any more.
    pub(crate) fn host_cpu(&self, task: TaskId, cpu: CpuId) -> CpuId {
        if self.host.may_run(task, cpu) {
            return cpu;
        }
        (0..self.nr_cpus()).find(|other| self.host.may_run(task, *other)).unwrap_or(cpu)
    }

    /// Tasks whose groups have time go to their policies: some now, perhaps in an interrupt, and the others soon.
    fn release_some(&self, handling: &mut Handling<'_>) {
        for _ in 0..RELEASE_MOST {
            if self.host.is_spent() {
                break;
            }
            let Some(index) = self.groups.next_released() else { return };
            self.release(handling, index);
        }
        if self.groups.releases() {
            self.host.refill_at(self.host.now_ns() + GO_ON_AFTER_NS);
        }
    }

    /// Has a task that is about to run give way after `allowance_ns` at the latest. Returns its slice.
    #[cold]
    fn shorten(&self, handling: &Handling<'_>, task: TaskId, slice_ns: u64, allowance_ns: u64) -> u64 {
        if allowance_ns < SLICE_NS_EXACT && handling.event.kind == PICK {
            self.cut(handling, task, allowance_ns);
        }
        if slice_ns == 0 { allowance_ns } else { allowance_ns.min(slice_ns) }
    }

    /// Has the task that the event's CPU runs, or is about to, looked at in `after_ns`.
    #[cold]
    fn cut(&self, handling: &Handling<'_>, task: TaskId, after_ns: u64) {
        let at_ns = self.host.now_ns() + after_ns;
        let here = self.cpu(handling.event.cpu);
        here.cut_index.store(task.slot, Relaxed);
        here.cut_ns.store(at_ns, Relaxed);
        self.host.refill_at(at_ns);
    }

    /// Has the task that the event's CPU runs, or is about to, looked at when it returns to user mode, or, if the host cannot tell, in
    /// `after_ns`.
    #[cold]
    fn cut_in_user(&self, handling: &Handling<'_>, task: TaskId, after_ns: u64) {
        // A task that is put on another CPU is looked at by the tick there.
        let is_here = matches!(handling.event.kind, PICK | TICK | REFILL);
        if !is_here {
            return;
        }
        if !self.host.look_at_return() {
            return self.cut(handling, task, after_ns);
        }
        let here = self.cpu(handling.event.cpu);
        here.cut_index.store(task.slot, Relaxed);
        here.cut_ns.store(u64::MAX, Relaxed);
    }

    /// Has the task whose time is used up give way if it is in user mode, and looks again soon if it is in the kernel.
    fn look_at_cut(&self, handling: &mut Handling<'_>, now_ns: u64) {
        let here = self.cpu(handling.event.cpu);
        let has_returned = handling.event.flags & refill_flags::RETURNED != 0;
        match here.cut_ns.load(Relaxed) {
            0 => return,
            u64::MAX if !has_returned => return,
            at_ns if at_ns > now_ns && !has_returned => return self.host.refill_at(at_ns),
            _ => here.cut_ns.store(0, Relaxed),
        }
        let Some((task, _)) = self.tasks.at(here.cut_index.load(Relaxed)) else { return };
        match self.host.interrupted(task) {
            Interrupted::Another => {}
            Interrupted::InKernel => self.cut_in_user(handling, task, LOOK_AGAIN_NS),
            Interrupted::InUser => handling.outcome.kicks.add(handling.event.cpu),
        }
    }

    /// The time has come that [`EngineHost::refill_at`](crate::EngineHost::refill_at) was called for.
    #[cold]
    pub(crate) fn refill(&self, handling: &mut Handling<'_>) {
        let now_ns = self.host.now_ns();
        self.carry_out_late(handling, now_ns);
        let again_at_ns = self.groups.refill(now_ns);
        self.look_at_cut(handling, now_ns);
        if let Some(at_ns) = again_at_ns {
            self.host.refill_at(at_ns);
        }
        self.release_some(handling);
    }

    /// The task is in another group from now on.
    pub(crate) fn task_moves(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        self.charge_groups(handling, task, entry);
        let phase = entry.state().phase();
        let wants = phase.is_waiting() || phase == Phase::Running;
        let counted = if wants { entry.own_weight.load(Relaxed) } else { 0 };
        if !self.groups.enter(task.slot, handling.event.args[0], counted) {
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        self.reweigh(task, entry);
        if phase.is_throttled() {
            self.release(handling, task.slot);
        }
    }

    /// The task leaves. What it has run since its last event is its group's.
    pub(crate) fn leave_groups(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        if self.groups.is_active() {
            self.charge_groups(handling, task, entry);
        }
        self.groups.unthrottle(task.slot);
        self.groups.leave(task.slot);
    }

    /// Something about groups, or nothing that makes sense.
    pub(crate) fn group_event(&self, handling: &mut Handling<'_>) {
        const CREATE: u32 = EventKind::GroupCreate as u32;
        const DESTROY: u32 = EventKind::GroupDestroy as u32;
        const WEIGHT: u32 = EventKind::GroupWeight as u32;
        const IDLE: u32 = EventKind::GroupIdle as u32;
        const LIMIT: u32 = EventKind::GroupLimit as u32;
        let event = handling.event;
        let [name, value] = event.args;
        match event.kind {
            CREATE => {
                if value != 0 {
                    self.conditions.set_groups();
                }
                if !self.groups.create(name, (value != 0).then_some(value), event.flags != 0) {
                    handling.outcome.status = Status::Invalid as i32;
                }
            }
            DESTROY => self.groups.destroy(name),
            WEIGHT => self.groups.set_weight(name, value.min(u64::from(u32::MAX)) as u32),
            IDLE => self.groups.set_idle(name, value != 0),
            LIMIT => {
                let limit = Limit { quota_ns: value, period_ns: event.flags, burst_ns: event.runtime_ns };
                self.groups.set_limit(name, (event.flags != 0).then_some(limit), self.host.now_ns());
                self.release_some(handling);
            }
            _ => handling.outcome.status = Status::Invalid as i32,
        }
    }
}
