//! Groups in the life of a task: it is charged for what it runs, parked when its group has no time left, and released when it
//! has; see [`Groups`](crate::groups::Groups).
//!
//! To a policy, a task that is parked sleeps: it hears of a sleep if the task ran or was picked, of nothing if it was about to
//! wake up, and of a wake-up when the task is released.

use core::sync::atomic::Ordering::Relaxed;

use ekiden::abi::{EventKind, Status};
use ekiden::{Call, CpuId, TaskId};

use crate::engine::{Engine, Handling};
use crate::groups::Limit;
use crate::state::{Phase, State, Transition};
use crate::table::Slot;

/// No slice is longer than that unless the policy says so.
pub(crate) const SLICE_NS_MAX: u64 = 20_000_000;

/// Hosts end slices at their ticks. One that is so short is ended by a timer instead.
const SLICE_NS_EXACT: u64 = 4_000_000;

impl Engine {
    /// Notes the CPU time that the event's task has used up to now. True if it has to give way.
    #[inline]
    pub(crate) fn charge(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) -> bool {
        let runtime_ns = handling.event.runtime_ns;
        let ran_ns = runtime_ns.saturating_sub(slot.runtime_ns.load(Relaxed));
        slot.runtime_ns.store(runtime_ns, Relaxed);
        let charge = self.groups.charge(task.slot, ran_ns, || self.host.now_ns());
        if let Some(at_ns) = charge.refill_at_ns {
            self.host.refill_at(at_ns);
        }
        charge.is_used_up
    }

    /// How long a task may run at a time; `None` if it has to be parked.
    #[inline]
    pub(crate) fn allowance_ns(&self, task: TaskId) -> Option<u64> {
        self.groups.allowance_ns(task.slot, || self.host.now_ns())
    }

    /// The task comes to wait for a CPU, which the policy would hear of by `call`, and has no time to run. The caller has found
    /// out that it is not parked yet.
    #[cold]
    pub(crate) fn park(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot, call: Call, phase: Phase) {
        let seen = slot.state();
        self.transit(handling.event.cpu, slot, seen, Transition::Park);
        slot.set_state(seen.parked(phase, handling.event.cpu, call == Call::TaskNew));
        let has_run = seen.phase() == Phase::Running && call != Call::TaskWakeup;
        if has_run {
            self.slept(handling, self.seat_of(seen), task, slot);
        }
        if !self.groups.park(task.slot, has_run, self.host.now_ns()) {
            self.release(handling, task.slot);
        }
    }

    /// The policy picked a task that has no time to run. False if its token is not good any more.
    #[cold]
    pub(crate) fn park_picked(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot, seen: State) -> bool {
        let phase = if seen.phase() == Phase::ReadyByTick { Phase::ParkedByTick } else { Phase::Parked };
        if !slot.try_state(seen, seen.parked(phase, seen.cpu(), false)) {
            return false;
        }
        self.slept(handling, self.seat_of(seen), task, slot);
        if !self.groups.park(task.slot, false, self.host.now_ns()) {
            self.release(handling, task.slot);
        }
        true
    }

    /// The kernel has put a parked task on a run queue, or is about to. False if it is not parked any more.
    #[cold]
    pub(crate) fn stays_parked(&self, slot: &Slot, cpu: CpuId, phase: Phase) -> bool {
        loop {
            let seen = slot.state();
            if !seen.phase().is_parked() {
                return false;
            }
            if slot.try_state(seen, seen.parked(phase, cpu, seen.is_unheard())) {
                return true;
            }
        }
    }

    /// A parked task ran behind our back while the kernel bypassed us, and sleeps. False if it is not parked any more.
    #[cold]
    pub(crate) fn parked_sleeps(&self, task: TaskId, slot: &Slot) -> bool {
        self.groups.unpark(task.slot);
        loop {
            let seen = slot.state();
            if !seen.phase().is_parked() {
                return false;
            }
            let phase = if seen.is_unheard() { Phase::New } else { Phase::Blocked };
            if slot.try_state(seen, seen.in_phase(phase)) {
                return true;
            }
        }
    }

    /// A task that is parked, and in no queue of the groups, goes to its policy, if there is time for it.
    fn release(&self, handling: &mut Handling<'_>, index: u32) {
        let Some((task, slot)) = self.tasks.in_slot(index) else { return };
        let (seen, state) = loop {
            if !slot.state().phase().is_parked() {
                return;
            }
            if !self.is_home(slot.state()) {
                self.settle(handling, task, slot);
            }
            if slot.choice() != slot.state().seat() {
                self.change_policy(handling, task, slot);
            }
            let seen = slot.state();
            // There may be another limit.
            if self.allowance_ns(task).is_none() && self.groups.park(index, false, self.host.now_ns()) {
                return;
            }
            let phase = match seen.phase() {
                Phase::Parked => Phase::Ready,
                Phase::ParkedByTick => Phase::ReadyByTick,
                _ => return,
            };
            let cpu = self.host_cpu(task, seen.cpu());
            let state = seen.issue(phase, cpu);
            if slot.try_state(seen, state) {
                break (seen, state);
            }
        };
        let call = if seen.is_unheard() { Call::TaskNew } else { Call::TaskWakeup };
        self.hand_token(handling, call, task, slot, state);
        if self.idle.contains(state.cpu()) {
            handling.outcome.kicks.add(state.cpu());
        } else if self.order.len() > 1 {
            self.overtake(handling, self.seat_of(state), state.cpu());
        }
    }

    /// `cpu`, or another one if the task may not run there any more.
    fn host_cpu(&self, task: TaskId, cpu: CpuId) -> CpuId {
        if self.host.may_run(task, cpu) {
            return cpu;
        }
        (0..self.nr_cpus()).find(|other| self.host.may_run(task, *other)).unwrap_or(cpu)
    }

    fn release_all(&self, handling: &mut Handling<'_>) {
        while let Some(index) = self.groups.next_released() {
            self.release(handling, index);
        }
    }

    /// Has a task that is about to run on `cpu` give way after so long.
    #[cold]
    pub(crate) fn shorten(&self, handling: &mut Handling<'_>, cpu: CpuId, allowance_ns: u64) {
        let slice_ns = &mut handling.outcome.slice_ns;
        *slice_ns = if *slice_ns == 0 { allowance_ns } else { allowance_ns.min(*slice_ns) };
        if allowance_ns < SLICE_NS_EXACT && handling.event.kind == EventKind::Pick as u32 {
            let at_ns = self.host.now_ns() + allowance_ns;
            self.cpu(cpu).cut_ns.store(at_ns, Relaxed);
            self.host.refill_at(at_ns);
        }
    }

    /// The time has come that [`Host::refill_at`](ekiden::Host::refill_at) was called for.
    #[cold]
    pub(crate) fn refill(&self, handling: &mut Handling<'_>) {
        let now_ns = self.host.now_ns();
        let again_at_ns = self.groups.refill(now_ns);
        let cut = &self.cpu(handling.event.cpu).cut_ns;
        match cut.load(Relaxed) {
            0 => {}
            at_ns if at_ns <= now_ns => {
                cut.store(0, Relaxed);
                handling.outcome.kicks.add(handling.event.cpu);
            }
            at_ns => self.host.refill_at(at_ns),
        }
        if let Some(at_ns) = again_at_ns {
            self.host.refill_at(at_ns);
        }
        self.release_all(handling);
    }

    /// The task is in another group from now on.
    pub(crate) fn task_moves(&self, handling: &mut Handling<'_>, task: TaskId, slot: &Slot) {
        self.charge(handling, task, slot);
        let phase = slot.state().phase();
        let wants = phase.is_waiting() || phase == Phase::Running;
        self.groups.unpark(task.slot);
        self.groups.enter(task.slot, handling.event.args[0], if wants { slot.weight.load(Relaxed) } else { 0 });
        if phase.is_parked() {
            self.release(handling, task.slot);
        }
    }

    pub(crate) fn leave_groups(&self, task: TaskId) {
        self.groups.unpark(task.slot);
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
            CREATE => self.groups.create(name, (value != 0).then_some(value)),
            DESTROY => self.groups.destroy(name),
            WEIGHT => self.groups.set_weight(name, value.min(u64::from(u32::MAX)) as u32),
            IDLE => self.groups.set_idle(name, value != 0),
            LIMIT => {
                let limit = Limit { quota_ns: value, period_ns: event.flags, burst_ns: event.runtime_ns };
                self.groups.set_limit(name, (event.flags != 0).then_some(limit), self.host.now_ns());
                self.release_all(handling);
            }
            _ => handling.outcome.status = Status::Invalid as i32,
        }
    }
}
