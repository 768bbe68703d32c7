//! What the engine says to a policy, and what becomes of its answer.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, Calls, CpuId, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Kicks, Message, NO_CPU, RawToken, Reply};

use crate::engine::{Engine, Handling};
use crate::fault::MistakeKind;
use crate::notices::bit;
use crate::seats::{SEATS, Seat};
use crate::state::{Phase, State};
use crate::table::{Slot, token};

/// Calls after which a policy that asks for nothing answers the next search for work as it would have before.
const NO_NEWS: Calls =
    Calls::NONE.with(Call::PickNextTask).with(Call::Balance).with(Call::EnterIdle).with(Call::ExitIdle);

impl<P: Policy> Engine<P> {
    #[inline]
    pub(crate) fn message<const LONE: bool>(
        &self,
        handling: &Handling<'_, LONE>,
        call: Call,
        task: TaskId,
        slot: &Slot,
    ) -> Message {
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

    /// Calls a policy, and takes over what it asks for besides its answer. One that cannot answer is taken out.
    #[inline]
    pub(crate) fn call<const LONE: bool>(
        &self,
        handling: &mut Handling<'_, LONE>,
        seat: &Seat<P>,
        message: &Message,
        payload: &[u8],
    ) -> Reply {
        *self.call_into(handling, seat, message, payload, &mut MaybeUninit::uninit())
    }

    /// The same with room for the reply, which is not copied then.
    #[inline]
    pub(crate) fn call_into<'a, const LONE: bool>(
        &self,
        handling: &mut Handling<'_, LONE>,
        seat: &Seat<P>,
        message: &Message,
        payload: &[u8],
        room: &'a mut MaybeUninit<Reply>,
    ) -> &'a Reply {
        let is_news = !LONE && !NO_NEWS.has_number(message.call);
        if is_news && self.missed.any(bit(seat.index)) {
            self.tell_missed(&mut handling.rare(), seat);
        }
        let reply = seat.deliver::<LONE>(message, payload, room);
        if reply.has_more() {
            self.more(&mut handling.rare(), seat, message, reply);
        } else if is_news {
            // After it has heard of it: whoever looks for work meanwhile will look again.
            seat.has_heard();
        }
        reply
    }

    /// The policy wishes something, something left its hands besides its answer, or it has not answered at all.
    #[cold]
    fn more(&self, handling: &mut Handling<'_>, seat: &Seat<P>, message: &Message, reply: &mut Reply) {
        seat.has_heard();
        if reply.has_fallen() {
            self.take_out_of(seat, None);
            *reply = Reply::default();
            return;
        }
        self.take_over(handling, seat, message.call, reply);
        if !reply.dropped.is_none() {
            let call = Call::from_number(message.call).unwrap_or(Call::PickNextTask);
            // A refusal alone may be overtaken: the kernel has put the task on its queue anew, the policy had the newer token first, and the
            // older one has taken its place.
            let is_overtaken = call == Call::PntErr
                && reply.dropped.task == message.task
                && reply.dropped.serial != message.token_serial;
            self.reissue(handling, seat, reply.dropped, (!is_overtaken).then_some(call));
        }
    }

    fn take_over(&self, handling: &mut Handling<'_>, seat: &Seat<P>, call: u32, reply: &Reply) {
        if reply.timer_ns != 0 && self.is_lone() {
            handling.outcome.timer_ns = self.wants_timer(handling, seat, reply);
        } else if reply.timer_ns != 0 {
            let timer_ns = self.wants_timer(handling, seat, reply);
            let now_ns = self.host.now_ns();
            self.cpu(handling.event.cpu).due_ns[seat.index].store(now_ns.saturating_add(timer_ns), Relaxed);
            self.arm_timer(handling, now_ns);
        }
        if reply.kicks.is_empty() {
            return;
        }
        let call = Call::from_number(call).unwrap_or(Call::PickNextTask);
        if reply.kicks.are_below(self.nr_cpus()) {
            return self.wants_kicks(handling, seat, call, reply.kicks);
        }
        let mut kicks = Kicks::NONE;
        reply.kicks.iter().filter(|cpu| *cpu < self.nr_cpus()).for_each(|cpu| kicks.add(cpu));
        self.wants_kicks(handling, seat, call, kicks);
        self.mistake_about(seat, MistakeKind::BadCpu, call, handling.event.cpu, 0);
    }

    /// A token left the policy's hands outside the rules. If it was good its task would never run again, so the
    /// policy gets a new one, and a mistake on its record: in this call, if it is one.
    #[cold]
    pub(crate) fn reissue(
        &self,
        handling: &mut Handling<'_>,
        seat: &Seat<P>,
        mut lost: RawToken,
        mut mistake_in: Option<Call>,
    ) {
        // A policy that drops the new one too is told again until it has made too many mistakes.
        while let Some(slot) = self.tasks.get(lost.task) {
            let seen = slot.state();
            let state = seen.issue(seen.phase(), seen.cpu());
            if seen.serial() != lost.serial || !seen.phase().is_waiting() || !slot.try_state(seen, state) {
                return;
            }
            if let Some(call) = mistake_in {
                self.mistake(seat, MistakeKind::TokenLost, call, seen.cpu(), slot);
            }
            if !seat.is_taken() {
                return;
            }
            let call = Call::TaskPreempt;
            mistake_in = Some(call);
            let mut message = self.message(handling, call, lost.task, slot).with_token(token(lost.task, state));
            message.cpu = state.cpu();
            let reply = *seat.deliver::<false>(&message, &[], &mut MaybeUninit::uninit());
            seat.has_heard();
            if reply.has_fallen() {
                return self.take_out_of(seat, None);
            }
            self.take_over(handling, seat, message.call, &reply);
            lost = reply.dropped;
        }
    }

    /// Delivers a call that moves a token into the policy.
    #[inline(always)]
    pub(crate) fn hand_token<const LONE: bool>(
        &self,
        handling: &mut Handling<'_, LONE>,
        call: Call,
        task: TaskId,
        slot: &Slot,
        state: State,
        flags: u32,
    ) {
        let seat = self.seat_of::<LONE>(state);
        let mut message = self.message(handling, call, task, slot).with_token(token(task, state));
        message.cpu = state.cpu();
        message.flags = flags;
        self.call(handling, seat, &message, &[]);
        if call == Call::TaskNew {
            self.params_of_new(&mut handling.rare(), task, slot);
        }
    }

    /// Asks for the token of a task that leaves. Whatever the policy keeps is worthless already.
    pub(crate) fn take_back(&self, handling: &mut Handling<'_>, seat: &Seat<P>, task: TaskId, slot: &Slot) {
        if seat.calls().has(Call::TaskDeparted) {
            let message = self.message(handling, Call::TaskDeparted, task, slot);
            self.call(handling, seat, &message, &[]);
        }
    }

    pub(crate) fn tell_about(&self, handling: &mut Handling<'_>, call: Call, task: TaskId, slot: &Slot) {
        if self.groups.is_active() {
            self.charge_groups(handling, task, slot);
        }
        slot.runtime_ns.store(handling.event.runtime_ns, Relaxed);
        // Of a task that has not waited for a CPU yet, the policy knows nothing.
        let state = slot.state();
        let seat = self.seat_of::<false>(state);
        if seat.calls().has(call) && state.phase() != Phase::New && !state.is_unheard() {
            let message = self.message(handling, call, task, slot);
            self.call(handling, seat, &message, &[]);
        }
    }

    /// Something for one policy: the one that the event names by its seat plus one, or that of the task that says it, or the
    /// default one.
    pub(crate) fn tell(&self, handling: &mut Handling<'_>, call: Call, payload: &[u8]) {
        let event = handling.event;
        let of_task = self.tasks.get(event.task).map(|slot| slot.state().seat());
        let seat = match event.flags {
            0 => of_task.unwrap_or_else(|| self.default_seat()),
            named => (named as usize - 1) % SEATS,
        };
        let seat = &self.seats[seat];
        if !seat.calls().has(call) || !seat.is_taken() {
            handling.outcome.cpu = NO_CPU as i32;
            return;
        }
        let mut message = match self.tasks.get(event.task) {
            Some(slot) => self.message(handling, call, event.task, slot),
            None => Message::about_cpu(call, event.cpu),
        };
        message.arg = event.args[0];
        handling.outcome.cpu = self.call(handling, seat, &message, payload).cpu as i32;
    }

    pub(crate) fn tell_cpu<const LONE: bool>(
        &self,
        handling: &mut Handling<'_, LONE>,
        seat: &Seat<P>,
        call: Call,
        cpu: CpuId,
    ) {
        let message = Message::about_cpu(call, cpu);
        self.call(handling, seat, &message, &[]);
    }

    /// Something about a CPU that every policy may want to know.
    #[inline]
    pub(crate) fn tell_all<const LONE: bool>(&self, handling: &mut Handling<'_, LONE>, call: Call, cpu: CpuId) {
        for seat in self.in_order() {
            if seat.calls().has(call) && seat.is_taken() {
                self.tell_cpu(handling, seat, call, cpu);
            }
        }
    }
}
