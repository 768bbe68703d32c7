//! Turns messages into calls of the trait.

use alloc::sync::Arc;

use ekiden_abi::{Call, Calls, Message, NO_CPU, RawToken, RefusalReason, Reply, TaskId};
use zerocopy::TryFromBytes;

use crate::{
    Cx, Env, Host, Schedulable, Scheduler, Task, Topology, WakeFlags, hint::Hints, token::Instance,
};

/// A policy as the engine knows it: something that answers messages.
pub trait Policy: Send + Sync {
    /// The calls that are worth delivering; the others would do nothing.
    fn calls(&self) -> Calls;
    /// Delivers one call. `payload` carries the bytes of hints, and is empty otherwise.
    fn deliver(&self, message: &Message, payload: &[u8], reply: &mut Reply);
}

/// A policy with its surroundings.
pub struct Adapter<S> {
    scheduler: S,
    topology: Arc<Topology>,
    host: Arc<dyn Host + Send>,
    instance: Instance,
}

impl<S: Scheduler> Adapter<S> {
    /// Makes the policy.
    pub fn new(env: &Env, host: Arc<dyn Host + Send>) -> Self {
        Self { scheduler: S::new(env), topology: env.topology().clone(), host, instance: Instance::next() }
    }

    /// Ends this instance and makes its successor from what it hands over. Tokens stay good: they now belong to the
    /// successor.
    pub fn hand_over(self, env: &Env) -> Self {
        let state = self.scheduler.reregister_prep();
        Self {
            scheduler: S::reregister_init(env, state),
            topology: env.topology().clone(),
            host: self.host,
            instance: self.instance,
        }
    }

    /// The policy itself, for tests that look into it.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }

    fn token(&self, raw: RawToken) -> Schedulable<S> {
        Schedulable::from_raw(raw, self.instance).expect("the engine sends a token with this call")
    }
}

impl<S: Scheduler> Policy for Adapter<S> {
    fn calls(&self) -> Calls {
        S::CALLS
    }

    #[inline]
    fn deliver(&self, message: &Message, payload: &[u8], reply: &mut Reply) {
        let Some(call) = Call::from_number(message.call) else { return };
        let scheduler = &self.scheduler;
        let cpu = message.cpu;
        let task = Task {
            id: message.task,
            pid: message.pid,
            runtime_ns: message.runtime_ns,
            weight: message.weight,
            nice: message.nice,
        };
        let reason = || RefusalReason::from_number(message.flags);
        let mut answer = Answer { token: RawToken::NONE, task: TaskId::NONE, cpu: NO_CPU };
        {
            let cx = &Cx::new(cpu, &self.topology, &*self.host, reply);
            match call {
                Call::PickNextTask => {
                    answer.token = scheduler.pick_next_task(cx, cpu).map_or(RawToken::NONE, Schedulable::into_raw);
                }
                Call::PntErr => scheduler.pnt_err(cx, cpu, &task, reason(), self.token(message.token)),
                Call::TaskNew => scheduler.task_new(cx, &task, self.token(message.token)),
                Call::TaskWakeup => scheduler.task_wakeup(cx, &task, self.token(message.token)),
                Call::TaskPreempt => scheduler.task_preempt(cx, &task, self.token(message.token)),
                Call::TaskYield => scheduler.task_yield(cx, &task, self.token(message.token)),
                Call::TaskBlocked => scheduler.task_blocked(cx, &task),
                Call::TaskDead => scheduler.task_dead(cx, task.id),
                Call::TaskDeparted => {
                    answer.token = scheduler.task_departed(cx, &task).map_or(RawToken::NONE, Schedulable::into_raw);
                }
                Call::TaskTick => scheduler.task_tick(cx, &task),
                Call::TaskAffinityChanged => scheduler.task_affinity_changed(cx, &task),
                Call::TaskPrioChanged => scheduler.task_prio_changed(cx, &task),
                Call::SelectTaskRq => {
                    let suggested = message.args[0] as u32;
                    answer.cpu = scheduler.select_task_rq(cx, &task, cpu, suggested, WakeFlags(message.flags));
                }
                Call::MigrateTaskRq => {
                    let new = self.token(message.token);
                    answer.token = scheduler.migrate_task_rq(cx, &task, new).map_or(RawToken::NONE, Schedulable::into_raw);
                }
                Call::Balance => answer.task = scheduler.balance(cx, cpu).unwrap_or(TaskId::NONE),
                Call::BalanceErr => scheduler.balance_err(cx, cpu, task.id, reason()),
                Call::RegisterQueue => scheduler.register_queue(cx, message.args[0] as u32),
                Call::EnterQueue => scheduler.enter_queue(cx, message.args[0] as u32, Hints::new(payload)),
                Call::UnregisterQueue => scheduler.unregister_queue(cx, message.args[0] as u32),
                Call::ParseHint => {
                    let teller = (!task.id.is_none()).then_some(&task);
                    let taken = match S::Hint::try_read_from_bytes(payload) {
                        Ok(hint) => scheduler.parse_hint(cx, teller, hint).is_ok(),
                        Err(_) => false,
                    };
                    // Any CPU number says "taken".
                    answer.cpu = if taken { 0 } else { NO_CPU };
                }
                Call::EnterIdle => scheduler.enter_idle(cx, cpu),
                Call::ExitIdle => scheduler.exit_idle(cx, cpu),
                Call::CpuOnline => scheduler.cpu_online(cx, cpu),
                Call::CpuOffline => scheduler.cpu_offline(cx, cpu),
                Call::Timer => scheduler.timer(cx, cpu),
                // These two replace the policy, so they are not calls into a living one: see `hand_over`.
                Call::ReregisterPrep | Call::ReregisterInit => {}
            }
        }
        reply.token = answer.token;
        reply.task = answer.task;
        reply.cpu = answer.cpu;
        reply.dropped = self.instance.take_dropped().unwrap_or(RawToken::NONE);
    }
}

/// What a call returned, kept apart from the reply while a [`Cx`] holds that.
struct Answer {
    token: RawToken,
    task: TaskId,
    cpu: u32,
}
