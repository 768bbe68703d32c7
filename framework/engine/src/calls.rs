//! What the engine says to a policy, and how its answer is handled.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, Calls, CpuId, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Kicks, Message, NO_CPU, RawToken, Reply, enqueue_flags};

use crate::conditions::SEVERAL;
use crate::engine::{Engine, Handling};
use crate::fault::ContractViolationKind;
use crate::notices::bit;
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};
use crate::state::{Phase, State, Transition, UPGRADABLE};
use crate::table::{TaskEntry, token};

/// Calls after which a policy that asks for nothing answers the next search for work as it would have before.
const NO_NEWS: Calls =
    Calls::NONE.with(Call::PickNextTask).with(Call::Balance).with(Call::EnterIdle).with(Call::ExitIdle);

impl<P: Policy> Engine<P> {
    #[inline]
    pub(crate) fn message<const CASE: u8>(
        &self,
        handling: &Handling<'_, CASE>,
        call: Call,
        task: TaskId,
        entry: &TaskEntry,
    ) -> Message {
        Message {
            call: call as u32,
            cpu: handling.event.cpu,
            task,
            token_cpu: 0,
            token_serial: 0,
            runtime_ns: entry.runtime_ns.load(Relaxed),
            weight: entry.weight.load(Relaxed),
            nice: entry.nice.load(Relaxed),
            pid: entry.pid.load(Relaxed),
            flags: 0,
            arg: 0,
        }
    }

    /// Calls a policy, and applies what it asks for besides its answer. One that cannot answer is taken out.
    #[inline]
    pub(crate) fn call<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        message: &Message,
        payload: &[u8],
    ) -> Reply {
        *self.call_into(handling, policy_slot, message, payload, &mut MaybeUninit::uninit())
    }

    /// Calls a policy and leaves the reply in the caller's memory, which saves a copy.
    #[inline]
    pub(crate) fn call_into<'a, const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        message: &Message,
        payload: &[u8],
        room: &'a mut MaybeUninit<Reply>,
    ) -> &'a Reply {
        let is_news = CASE == SEVERAL && !NO_NEWS.has_number(message.call);
        if is_news && self.missed.any(bit(policy_slot.index)) {
            self.tell_missed(&mut handling.rare(), policy_slot);
        }
        let reply = policy_slot.deliver::<CASE>(message, payload, room);
        if reply.has_more() {
            self.more(&mut handling.rare(), policy_slot, message, reply);
        } else if is_news {
            // After it has heard of it: a CPU that looks for work meanwhile will look again.
            policy_slot.has_heard();
        }
        reply
    }

    /// The policy wishes something, something left its hands besides its answer, or it has not answered at all.
    #[cold]
    fn more(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>, message: &Message, reply: &mut Reply) {
        policy_slot.has_heard();
        if reply.has_faulted() {
            self.take_out_of(policy_slot, None);
            *reply = Reply::default();
            return;
        }
        self.apply_reply(handling, policy_slot, message.call, reply);
        if !reply.dropped.is_none() {
            let call = Call::from_number(message.call).unwrap_or(Call::PickNextTask);
            // A refusal alone may be overtaken: the kernel has put the task on its queue anew, the policy had the newer token first, and the
            // older one has taken its place.
            let is_overtaken = call == Call::PntErr
                && reply.dropped.task == message.task
                && reply.dropped.serial != message.token_serial;
            self.reissue(handling, policy_slot, reply.dropped, (!is_overtaken).then_some(call));
        }
    }

    fn apply_reply(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>, call: u32, reply: &Reply) {
        if reply.timer_ns != 0 && self.is_single() {
            handling.outcome.timer_ns = self.wants_timer(handling, policy_slot, reply);
        } else if reply.timer_ns != 0 {
            let timer_ns = self.wants_timer(handling, policy_slot, reply);
            let now_ns = self.host.now_ns();
            self.cpu(handling.event.cpu).due_ns[policy_slot.index].store(now_ns.saturating_add(timer_ns), Relaxed);
            self.arm_timer(handling, now_ns);
        }
        if reply.kicks.is_empty() {
            return;
        }
        let call = Call::from_number(call).unwrap_or(Call::PickNextTask);
        if reply.kicks.are_below(self.nr_cpus()) {
            return self.wants_kicks(handling, policy_slot, call, reply.kicks);
        }
        let mut kicks = Kicks::NONE;
        reply.kicks.iter().filter(|cpu| *cpu < self.nr_cpus()).for_each(|cpu| kicks.add(cpu));
        self.wants_kicks(handling, policy_slot, call, kicks);
        self.contract_violation_about(policy_slot, ContractViolationKind::BadCpu, call, handling.event.cpu, 0);
    }

    /// A token left the policy's hands outside the rules. If it was good its task would never run again, so the
    /// policy gets a new one, and a contract violation on its record: in this call, if it is one.
    #[cold]
    pub(crate) fn reissue(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        mut lost: RawToken,
        mut contract_violation_in: Option<Call>,
    ) {
        // A policy that drops the new one too is told again until it has made too many contract violations.
        while let Some(entry) = self.tasks.get(lost.task) {
            let seen = entry.state();
            let state = seen.issue(seen.phase(), seen.cpu());
            if seen.serial() != lost.serial || !seen.phase().is_waiting() || !entry.try_state(seen, state) {
                return;
            }
            if let Some(call) = contract_violation_in {
                self.contract_violation(policy_slot, ContractViolationKind::TokenLost, call, seen.cpu(), entry);
            }
            if !policy_slot.is_taken() {
                return;
            }
            let call = Call::TaskPreempt;
            contract_violation_in = Some(call);
            let mut message = self.message(handling, call, lost.task, entry).with_token(token(lost.task, state));
            message.cpu = state.cpu();
            let reply = *policy_slot.deliver::<SEVERAL>(&message, &[], &mut MaybeUninit::uninit());
            policy_slot.has_heard();
            if reply.has_faulted() {
                return self.take_out_of(policy_slot, None);
            }
            self.apply_reply(handling, policy_slot, message.call, &reply);
            lost = reply.dropped;
        }
    }

    /// The call for a task that comes to wait for a CPU and was not known to sleep; none if there is nothing more to do. Out of line, so that
    /// a wake-up takes one comparison.
    #[inline(never)]
    pub(crate) fn call_of_enqueue<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        task: TaskId,
        entry: &TaskEntry,
        seen: State,
    ) -> Option<Call> {
        match seen.phase() {
            Phase::Blocked => Some(Call::TaskWakeup),
            Phase::New => Some(Call::TaskNew),
            // It has slept in between: see `EventKind::Block`.
            Phase::Running if handling.event.flags & enqueue_flags::WAKEUP != 0 => {
                if UPGRADABLE {
                    self.slept(handling, self.policy_slot_of::<CASE>(seen), task, entry);
                }
                Some(Call::TaskWakeup)
            }
            Phase::Running if seen.is_yielding() => Some(Call::TaskYield),
            Phase::Running => Some(Call::TaskPreempt),
            Phase::Ready | Phase::ReadyByTick => {
                self.enqueue_again(&mut handling.rare(), task, entry, seen);
                None
            }
            Phase::Free => {
                self.transit(handling.event.cpu, entry, seen, Transition::Enqueue);
                Some(Call::TaskNew)
            }
            // Just released.
            Phase::Throttled | Phase::ThrottledByTick => None,
        }
    }

    /// Delivers a call that moves a token into the policy.
    #[inline(always)]
    pub(crate) fn hand_token<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        call: Call,
        task: TaskId,
        entry: &TaskEntry,
        state: State,
        flags: u32,
    ) {
        let policy_slot = self.policy_slot_of::<CASE>(state);
        let mut message = self.message(handling, call, task, entry).with_token(token(task, state));
        message.cpu = state.cpu();
        message.flags = flags;
        self.call(handling, policy_slot, &message, &[]);
        if call == Call::TaskNew {
            self.params_of_new(&mut handling.rare(), task, entry);
        }
    }

    /// Asks for the token of a task that leaves. Whatever the policy keeps is worthless already.
    pub(crate) fn take_back(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        task: TaskId,
        entry: &TaskEntry,
    ) {
        if policy_slot.calls().has(Call::TaskDeparted) {
            let message = self.message(handling, Call::TaskDeparted, task, entry);
            self.call(handling, policy_slot, &message, &[]);
        }
    }

    pub(crate) fn tell_about(&self, handling: &mut Handling<'_>, call: Call, task: TaskId, entry: &TaskEntry) {
        if self.groups.is_active() {
            self.charge_groups(handling, task, entry);
        }
        entry.runtime_ns.store(handling.event.runtime_ns, Relaxed);
        // The policy knows nothing of a task that has not waited for a CPU yet.
        let state = entry.state();
        let policy_slot = self.policy_slot_of::<SEVERAL>(state);
        if policy_slot.calls().has(call) && state.phase() != Phase::New && !state.is_unheard() {
            let message = self.message(handling, call, task, entry);
            self.call(handling, policy_slot, &message, &[]);
        }
    }

    /// Something for one policy: the one that the event names by its policy slot plus one, or that of the task that says it, or the
    /// default one.
    pub(crate) fn tell(&self, handling: &mut Handling<'_>, call: Call, payload: &[u8]) {
        let event = handling.event;
        let of_task = self.tasks.get(event.task).map(|entry| entry.state().policy_slot());
        let policy_slot = match event.flags {
            0 => of_task.unwrap_or_else(|| self.default_policy_slot()),
            named => (named as usize - 1) % POLICY_SLOTS,
        };
        let policy_slot = &self.policy_slots[policy_slot];
        if !policy_slot.calls().has(call) || !policy_slot.is_taken() {
            handling.outcome.cpu = NO_CPU as i32;
            return;
        }
        let mut message = match self.tasks.get(event.task) {
            Some(entry) => self.message(handling, call, event.task, entry),
            None => Message::about_cpu(call, event.cpu),
        };
        message.arg = event.args[0];
        handling.outcome.cpu = self.call(handling, policy_slot, &message, payload).cpu as i32;
    }

    pub(crate) fn tell_cpu<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        call: Call,
        cpu: CpuId,
    ) {
        let message = Message::about_cpu(call, cpu);
        self.call(handling, policy_slot, &message, &[]);
    }

    /// Something about a CPU that every policy may want to know.
    #[inline]
    pub(crate) fn tell_all<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>, call: Call, cpu: CpuId) {
        for policy_slot in self.in_order() {
            if policy_slot.calls().has(call) && policy_slot.is_taken() {
                self.tell_cpu(handling, policy_slot, call, cpu);
            }
        }
    }
}
