//! Policies whose type is not known where they are replayed.

use std::sync::Arc;

use ekiden::{Call, Env, ParamError, Scheduler, Topology};
use ekiden_host::{Adapter, Host, Policy};

/// Makes instances of a policy.
#[derive(Clone, Copy)]
pub(crate) struct Maker {
    pub(crate) name: &'static str,
    env: fn(Topology, u32, &str) -> Result<Env, ParamError>,
    make: fn(&Env, Arc<dyn Host + Send>) -> Box<dyn Policy>,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    hand_over: fn(Box<dyn Policy>, &Env) -> Option<Box<dyn Policy>>,
    methods: fn(Call) -> [usize; 2],
}

/// What they are called.
pub(crate) fn names(makers: &[Maker]) -> String {
    makers.iter().map(|maker| maker.name).collect::<Vec<_>>().join(", ")
}

impl Maker {
    pub(crate) fn of<S: Scheduler>() -> Self {
        Self {
            name: S::NAME,
            env: |topology, max_tasks, params| Env::new(topology, max_tasks, S::PARAMS, params),
            make: |env, host| Box::new(Adapter::<S>::new(env, host)),
            hand_over: |old, env| {
                let old = old.into_any().downcast::<Adapter<S>>().ok()?;
                Some(Box::new(old.hand_over(env)))
            },
            methods: methods::<S>,
        }
    }

    pub(crate) fn env(&self, topology: &Topology, max_tasks: u32, params: &str) -> Result<Env, ParamError> {
        (self.env)(topology.clone(), max_tasks, params)
    }

    pub(crate) fn make(&self, env: &Env, host: Arc<dyn Host + Send>) -> Box<dyn Policy> {
        (self.make)(env, host)
    }

    /// The addresses of the policy's method for a call, and of the one that queues tasks if it may have none of its own.
    pub(crate) fn methods(&self, call: Call) -> [usize; 2] {
        (self.methods)(call)
    }

    /// The successor of an instance; nothing if it was of another policy.
    pub(crate) fn hand_over(&self, old: Box<dyn Policy>, env: &Env) -> Option<Box<dyn Policy>> {
        (self.hand_over)(old, env)
    }
}

fn methods<S: Scheduler>(call: Call) -> [usize; 2] {
    let method = match call {
        Call::PickNextTask => S::pick_next_task as *const (),
        Call::PntErr => S::pnt_err as *const (),
        Call::TaskNew => S::task_new as *const (),
        Call::TaskWakeup => S::task_wakeup as *const (),
        Call::TaskPreempt => S::task_preempt as *const (),
        Call::TaskYield => S::task_yield as *const (),
        Call::TaskBlocked => S::task_blocked as *const (),
        Call::TaskDead => S::task_dead as *const (),
        Call::TaskDeparted => S::task_departed as *const (),
        Call::TaskTick => S::task_tick as *const (),
        Call::TaskAffinityChanged => S::task_affinity_changed as *const (),
        Call::TaskPrioChanged => S::task_prio_changed as *const (),
        Call::SelectTaskRq => S::select_task_rq as *const (),
        Call::MigrateTaskRq => S::migrate_task_rq as *const (),
        Call::Balance => S::balance as *const (),
        Call::BalanceErr => S::balance_err as *const (),
        Call::RegisterQueue => S::register_queue as *const (),
        Call::EnterQueue => S::enter_queue as *const (),
        Call::UnregisterQueue => S::unregister_queue as *const (),
        Call::ParseHint => S::parse_hint as *const (),
        Call::ReregisterPrep => S::reregister_prep as *const (),
        Call::ReregisterInit => S::reregister_init as *const (),
        Call::EnterIdle => S::enter_idle as *const (),
        Call::ExitIdle => S::exit_idle as *const (),
        Call::CpuOnline => S::cpu_online as *const (),
        Call::CpuOffline => S::cpu_offline as *const (),
        Call::Timer => S::timer as *const (),
        Call::TaskParams => S::task_params as *const (),
    };
    let queues = brings_token(call).then_some(S::enqueue as *const ());
    [method.addr(), queues.unwrap_or(method).addr()]
}

/// Whether a token moves into the policy with this call.
pub(crate) fn brings_token(call: Call) -> bool {
    use Call::{MigrateTaskRq, PntErr, TaskNew, TaskPreempt, TaskWakeup, TaskYield};
    [TaskNew, TaskWakeup, TaskPreempt, TaskYield, PntErr, MigrateTaskRq].contains(&call)
}
