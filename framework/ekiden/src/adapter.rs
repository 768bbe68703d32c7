//! Turns messages into calls of the trait.

use alloc::{boxed::Box, string::String, sync::Arc};
use core::{
    any::Any,
    cell::Cell,
    mem::{ManuallyDrop, MaybeUninit},
};

use ekiden_abi::{BALANCE_TOO, Call, Calls, Message, NO_CPU, RawParams, RawToken, RefusalReason, Reply, TaskId};
use zerocopy::{FromBytes, TryFromBytes};

use crate::cx::Host;
use crate::{
    Cx, Env, Saved, Schedulable, Scheduler, Task, TaskParams, Topology, WakeFlags,
    figures::Figures,
    hint::Hints,
    token::{Instance, Tenant, any_dropped},
};

/// Whether a policy knows of the tasks that its predecessor had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// It has the state of its predecessor.
    All,
    /// All tasks are new to it.
    Nothing,
}

/// A policy as the engine knows it: something that answers messages.
pub trait Policy: Send + Sync {
    /// The calls that are worth delivering; the others would do nothing.
    fn calls(&self) -> Calls;
    /// Delivers one call. `payload` carries the bytes of hints and parameters, and is empty otherwise.
    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply;
    /// Delivers one call and writes the reply to the caller's memory. `_alone` says that no other policy could go on if this one panics: a host
    /// that contains panics in each call does not do it in this one.
    #[inline]
    fn deliver_to<'a>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
        _alone: bool,
    ) -> &'a mut Reply {
        reply.write(self.deliver(message, payload))
    }
    /// What settings of a task mean, after all checks; or, for people, what is wrong with them.
    fn task_params(&self, settings: &str) -> Result<RawParams, String> {
        if settings.is_empty() {
            Ok(RawParams::default())
        } else {
            Err("this policy has nothing to set for a task".into())
        }
    }
    /// The fingerprint of what it declares for tasks; 0 for nothing.
    fn params_declared(&self) -> u64 {
        0
    }
    /// Figures that it counts for people.
    fn figures(&self) -> Figures {
        Figures::default()
    }
    /// Writes down what an instance that does not have its memory is to go on with: one of another layout, or in another place.
    fn save(&self, to: &mut Saved<'_>) {
        let _ = to;
    }
    /// Continues with what another instance saved; no call has come yet.
    ///
    /// # Errors
    /// Why it cannot.
    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        let _ = saved;
        Err("it does not continue from what another instance saved")
    }
    /// It goes, while calls of it may be under way. One that can be [followed](Self::follow) answers every call that begins from here on with
    /// nothing.
    fn leave(&self) {}
    /// Another one comes to its place. It has [left](Self::leave), and no call that began before is under way any more.
    ///
    /// # Errors
    /// If its place can be had only when it has no other reference: the other one comes back.
    fn follow(&self, next: Self) -> Result<(), Self>
    where
        Self: Sized,
    {
        Err(next)
    }
    /// The policy as what it is, for a host that knows what it may be.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn calls(&self) -> Calls {
        (**self).calls()
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        (**self).deliver(message, payload)
    }

    #[inline]
    fn deliver_to<'a>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
        alone: bool,
    ) -> &'a mut Reply {
        (**self).deliver_to(message, payload, reply, alone)
    }

    fn task_params(&self, settings: &str) -> Result<RawParams, String> {
        (**self).task_params(settings)
    }

    fn params_declared(&self) -> u64 {
        (**self).params_declared()
    }

    fn figures(&self) -> Figures {
        (**self).figures()
    }

    fn save(&self, to: &mut Saved<'_>) {
        (**self).save(to);
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        (**self).restore(saved)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        (*self).into_any()
    }
}

/// A policy with its surroundings.
pub struct Adapter<S> {
    scheduler: S,
    topology: Arc<Topology>,
    host: Arc<dyn Host + Send>,
    figures: Figures,
    // Last, so that it goes after the queues of the policy.
    tenant: Tenant,
}

/// What a call returns, in the reply. What it wishes besides, [`Cx`] puts there.
struct Answer<'a> {
    token: &'a mut RawToken,
    task: &'a mut TaskId,
    cpu: &'a mut u32,
}

/// What an instance leaves to its successor.
pub struct Handover<T> {
    /// What the policy handed over.
    pub state: T,
    /// The machine, as it was told.
    pub topology: Arc<Topology>,
    /// The instance's number, which is in all of its tokens.
    pub instance: u16,
    /// Figures that it counts for people. Its state adds to them, too.
    pub figures: Figures,
}

impl<T> Handover<T> {
    /// A token that the instance has dropped and that was not taken from here yet.
    pub fn take_dropped(&self) -> Option<RawToken> {
        let raw = Instance::with_number(self.instance).take_dropped();
        (!raw.is_none()).then_some(raw)
    }
}

impl<S: Scheduler> Adapter<S> {
    /// Makes the policy.
    pub fn new(env: &Env, host: Arc<dyn Host + Send>) -> Self {
        let scheduler = S::new(env);
        let (topology, figures) = (env.topology().clone(), env.take_figures());
        Self { scheduler, topology, host, figures, tenant: Tenant(Instance::next()) }
    }

    /// Ends this instance and makes its successor from what it hands over. Tokens stay good: they now belong to the
    /// successor.
    pub fn hand_over(self, env: &Env) -> Self {
        let host = self.host.clone();
        Self::take(self.give(), env, host, &[])
    }

    /// Makes the successor of `old`: with its state if that is of the same scheduler, or else `new`.
    pub fn after(old: Box<dyn Policy>, env: &Env, new: impl FnOnce() -> Self) -> (Self, Knows) {
        match old.into_any().downcast::<Self>() {
            Ok(old) => (old.hand_over(env), Knows::All),
            Err(_) => (new(), Knows::Nothing),
        }
    }

    /// Ends this instance.
    pub fn give(self) -> Handover<S::State> {
        let state = self.scheduler.reregister_prep();
        // Its place goes to the successor, with what was dropped and not reported.
        let instance = ManuallyDrop::new(self.tenant).0.number();
        Handover { state, topology: self.topology, instance, figures: self.figures }
    }

    /// Makes the successor of an instance from what it left. `dropped` are tokens that the old one dropped, if it was in
    /// another program.
    pub fn take(left: Handover<S::State>, env: &Env, host: Arc<dyn Host + Send>, dropped: &[RawToken]) -> Self {
        let tenant = Tenant(Instance::with_number(left.instance));
        dropped.iter().for_each(|token| tenant.0.note_dropped(*token));
        let scheduler = S::reregister_init(env, left.state);
        let figures = env.take_figures().with_older(left.figures);
        Self { scheduler, topology: env.topology().clone(), host, figures, tenant }
    }

    /// Figures that it counts for people, CPU by CPU.
    pub fn counted(&self) -> &Figures {
        &self.figures
    }

    /// The policy itself, for tests that look into it.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }

    #[inline]
    fn token(&self, message: &Message) -> Schedulable<S> {
        Schedulable::from_raw(message.token(), self.tenant.0)
    }

    /// Every call that is not one of those of a task switch.
    #[inline(never)]
    fn answer_rare(&self, message: &Message, payload: &[u8], cx: &Cx<'_>, task: &Task, answer: &mut Answer<'_>) {
        let scheduler = &self.scheduler;
        let cpu = message.cpu;
        let reason = || RefusalReason::from_number(message.flags);
        match Call::from_number(message.call) {
            Some(Call::PntErr) => scheduler.pnt_err(cx, cpu, task, reason(), self.token(message)),
            Some(Call::TaskNew) => scheduler.task_new(cx, task, self.token(message)),
            Some(Call::TaskYield) => scheduler.task_yield(cx, task, self.token(message)),
            Some(Call::TaskDead) => scheduler.task_dead(cx, task.id),
            Some(Call::TaskDeparted) => *answer.token = raw(scheduler.task_departed(cx, task)),
            Some(Call::TaskTick) => scheduler.task_tick(cx, task),
            Some(Call::TaskAffinityChanged) => scheduler.task_affinity_changed(cx, task),
            Some(Call::TaskPrioChanged) => scheduler.task_prio_changed(cx, task),
            Some(Call::SelectTaskRq) => {
                let suggested = message.arg as u32;
                *answer.cpu = scheduler.select_task_rq(cx, task, cpu, suggested, WakeFlags(message.flags));
            }
            Some(Call::MigrateTaskRq) => *answer.token = raw(scheduler.migrate_task_rq(cx, task, self.token(message))),
            Some(Call::Balance) => *answer.task = scheduler.balance(cx, cpu).unwrap_or(TaskId::NONE),
            Some(Call::BalanceErr) => scheduler.balance_err(cx, cpu, task.id, reason()),
            Some(Call::RegisterQueue) => {
                scheduler.register_queue(cx, message.arg as u32, (message.arg >> 32) as u32);
            }
            Some(Call::EnterQueue) => {
                let refused = Cell::new(0);
                scheduler.enter_queue(cx, message.arg as u32, Hints::new(payload, &refused));
                if refused.get() > 0 {
                    *answer.cpu = refused.get();
                }
            }
            Some(Call::UnregisterQueue) => scheduler.unregister_queue(cx, message.arg as u32),
            Some(Call::ParseHint) => {
                let teller = (!task.id.is_none()).then_some(task);
                let hint = S::Hint::try_read_from_bytes(payload).ok();
                let taken = hint.is_some_and(|hint| scheduler.parse_hint(cx, teller, hint).is_ok());
                *answer.cpu = if taken { 0 } else { NO_CPU };
            }
            Some(Call::EnterIdle) => scheduler.enter_idle(cx, cpu),
            Some(Call::ExitIdle) => scheduler.exit_idle(cx, cpu),
            Some(Call::CpuOnline) => scheduler.cpu_online(cx, cpu),
            Some(Call::CpuOffline) => scheduler.cpu_offline(cx, cpu),
            Some(Call::Timer) => scheduler.timer(cx, cpu),
            Some(Call::TaskParams) => {
                let raw = RawParams::read_from_bytes(payload).ok();
                if let Some(params) = raw.and_then(|raw| TaskParams::from_raw::<S>(&raw)) {
                    scheduler.task_params(cx, task, &params);
                }
            }
            // The last two replace the policy, so they are not calls into a living one: see `hand_over`. The others
            // are in `deliver`.
            _ => {}
        }
    }

    /// [`Policy::deliver`] for a host that has room for the reply.
    // Always, as the kernel host has two callers, with a call log and without, and each task switch goes through one of them.
    #[inline(always)]
    pub fn answer<'a>(&self, message: &Message, payload: &[u8], reply: &'a mut MaybeUninit<Reply>) -> &'a mut Reply {
        const PICK: u32 = Call::PickNextTask as u32;
        const WAKEUP: u32 = Call::TaskWakeup as u32;
        const PREEMPT: u32 = Call::TaskPreempt as u32;
        const BLOCKED: u32 = Call::TaskBlocked as u32;
        let reply = reply.write(Reply { cpu: NO_CPU, ..Reply::default() });
        let Reply { token, task: wish, slice_ns, timer_ns, kicks, cpu, .. } = &mut *reply;
        let cx = &Cx::new(message, &self.topology, &self.host, slice_ns, timer_ns, kicks);
        // The calls of a task switch first; the compiler makes a search of the rest.
        if message.call == PICK {
            *token = raw(self.scheduler.pick_next_task(cx, message.cpu));
            if token.is_none() && message.flags & BALANCE_TOO != 0 {
                *wish = self.scheduler.balance(cx, message.cpu).unwrap_or(TaskId::NONE);
            }
        } else {
            let task = &Task {
                id: message.task,
                pid: message.pid,
                runtime_ns: message.runtime_ns,
                weight: message.weight,
                nice: message.nice,
            };
            if message.call == WAKEUP {
                self.scheduler.task_wakeup(cx, task, self.token(message));
            } else if message.call == PREEMPT {
                self.scheduler.task_preempt(cx, task, self.token(message));
            } else if message.call == BLOCKED {
                self.scheduler.task_blocked(cx, task);
            } else {
                self.answer_rare(message, payload, cx, task, &mut Answer { token, task: wish, cpu });
            }
        }
        if any_dropped() {
            self.report_dropped(reply);
        }
        reply
    }

    /// Apart, so that no call keeps an address for it.
    #[cold]
    #[inline(never)]
    fn report_dropped(&self, reply: &mut Reply) {
        reply.dropped = self.tenant.0.take_dropped();
    }
}

impl<S: Scheduler> Policy for Adapter<S> {
    fn calls(&self) -> Calls {
        S::CALLS
    }

    fn task_params(&self, settings: &str) -> Result<RawParams, String> {
        TaskParams::parse::<S>(settings).map(TaskParams::to_raw::<S>)
    }

    fn params_declared(&self) -> u64 {
        TaskParams::fingerprint::<S>()
    }

    fn figures(&self) -> Figures {
        self.figures.clone()
    }

    fn save(&self, to: &mut Saved<'_>) {
        self.scheduler.save(to);
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        self.scheduler.restore(saved)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn deliver(&self, message: &Message, payload: &[u8]) -> Reply {
        *self.answer(message, payload, &mut MaybeUninit::uninit())
    }

    fn deliver_to<'a>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
        _: bool,
    ) -> &'a mut Reply {
        self.answer(message, payload, reply)
    }
}

#[inline]
fn raw<S>(token: Option<Schedulable<S>>) -> RawToken {
    token.map_or(RawToken::NONE, Schedulable::into_raw)
}
