//! Policies whose type is not known where they are replayed.

use std::sync::Arc;

use ekiden::{Adapter, Env, Host, ParamError, Policy, Scheduler, Topology};

/// Makes instances of a policy.
#[derive(Clone, Copy)]
pub(crate) struct Maker {
    pub(crate) name: &'static str,
    env: fn(Topology, u32, &str) -> Result<Env, ParamError>,
    make: fn(&Env, Arc<dyn Host + Send>) -> Box<dyn Policy>,
    hand_over: fn(Box<dyn Policy>, &Env) -> Option<Box<dyn Policy>>,
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
        }
    }

    pub(crate) fn env(&self, topology: &Topology, max_tasks: u32, params: &str) -> Result<Env, ParamError> {
        (self.env)(topology.clone(), max_tasks, params)
    }

    pub(crate) fn make(&self, env: &Env, host: Arc<dyn Host + Send>) -> Box<dyn Policy> {
        (self.make)(env, host)
    }

    /// The successor of an instance; nothing if it was of another policy.
    pub(crate) fn hand_over(&self, old: Box<dyn Policy>, env: &Env) -> Option<Box<dyn Policy>> {
        (self.hand_over)(old, env)
    }
}
