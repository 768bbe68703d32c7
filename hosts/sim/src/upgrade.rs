//! Policies that take over from others while tasks run (papers/000, section 3.3).

use std::sync::Arc;

use ekiden::{Env, ParamError, Scheduler, Topology};
use ekiden_contain::contained;
use ekiden_engine::Fault;
use ekiden_host::abi::{Event, EventKind, Outcome};
use ekiden_host::{Adapter, Host, Knows, Policy};
use ekiden_recording::{Instance, Mark};

use crate::alarm::Alarm;
use crate::kernel::Kernel;
use crate::recorded;
use crate::trace::What;

/// A policy that takes over from another one.
pub struct Successor {
    name: &'static str,
    params: String,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    make: Box<dyn FnOnce(Box<dyn Policy>, &Env, Arc<dyn Host + Send>) -> (Box<dyn Policy>, Knows)>,
    env: Box<dyn Fn(Topology, u32) -> Result<Env, ParamError>>,
}

impl Successor {
    /// `S` with these parameters. From a policy of the same type it takes over the state
    /// ([`reregister_init`](Scheduler::reregister_init)); others know nothing of it, and their tasks are new to it.
    pub fn of<S: Scheduler>(params: &str) -> Self {
        let owned = params.to_owned();
        let make = |old: Box<dyn Policy>, env: &Env, host| {
            let (policy, knows) = Adapter::<S>::after(old, env, || Adapter::new(env, host));
            (Box::new(policy) as Box<dyn Policy>, knows)
        };
        let env = move |topology, max_tasks| Env::new(topology, max_tasks, S::PARAMS, &owned);
        Self { name: S::NAME, params: params.to_owned(), make: Box::new(make), env: Box::new(env) }
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Whether its parameters are such as it declares.
    pub(crate) fn check(&self, topology: &Topology, max_tasks: u32) -> Result<(), ParamError> {
        (self.env)(topology.clone(), max_tasks).map(drop)
    }
}

impl Kernel {
    /// All policies take over whose time has come.
    pub(crate) fn upgrade_due(&mut self) {
        while let Some((at_ns, _)) = self.successors.last() {
            if *at_ns > self.now_ns {
                self.alarms.set(Alarm::Upgrade, *at_ns);
                return;
            }
            if let Some((_, successor)) = self.successors.pop().filter(|_| self.in_charge) {
                self.upgrade(successor);
            }
        }
    }

    fn upgrade(&mut self, successor: Successor) {
        let Some(mut engine) = self.engine.take() else { return };
        let topology = (*self.machine.topology).clone();
        let env = (successor.env)(topology, self.max_tasks).expect("its parameters were looked at before the start");
        let questions = self.questions.clone();
        let host: Arc<dyn Host + Send> = questions.clone();
        let mut outcome = Outcome::default();
        self.push_record(What::Upgrade, 0, None, 1);
        let instance = Instance { policy: successor.name.into(), params: successor.params };
        // A panic in either half ends the policy: what it handed over is gone.
        let now_ns = self.now_ns;
        let done = contained(|| {
            let mut knows = Knows::All;
            engine.replace_policy(0, |old| {
                let (policy, known) = (successor.make)(old, &env, host.clone());
                knows = known;
                let mark = if knows == Knows::All { Mark::HandOver } else { Mark::Begin };
                recorded::next_instance(policy, mark, now_ns, &questions, &instance)
            });
            if knows == Knows::Nothing {
                engine.start_over(0, &mut outcome);
                engine.introduce(0, u32::MAX, &mut outcome);
            }
            knows
        });
        if let Err(message) = &done {
            engine.take_out(Fault { message: message.clone(), cpu: 0 });
        }
        self.calls = engine.calls();
        let failed = engine.fault().is_some();
        self.engine = Some(engine);
        self.push_notes();
        self.push_record(What::Upgrade, 0, None, 0);
        if failed {
            return self.fall_back(0);
        }
        self.carry_out(0, &outcome);
        if done == Ok(Knows::Nothing) {
            let all = 0..self.machine.topology.nr_cpus();
            let offline: Vec<_> = all.filter(|cpu| !self.masks.online().contains(*cpu)).collect();
            for cpu in offline {
                self.deliver(&Event::new(EventKind::CpuOffline, cpu), &[]);
            }
        }
    }
}
