//! What can be asked of an agent while it runs: how its policy fares, and to let another one take over.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, mpsc::sync_channel},
    time::{Duration, Instant},
};

use ekiden_contain::contained;
use ekiden_engine::Totals;
use ekiden_host::{Knows, Surrounded, abi::ABI_VERSION};
use ekiden_loader::{LoadError, NumberedInstance, PolicyStatus, Result, Status, Upgrade, saved_most};
use ekiden_recording::{Instance, Mark};

use super::{Agent, PATIENCE};
use crate::{
    call_log::{self, FIRST_INSTANCE},
    config::{MakeNext, Next},
    heartbeat::EachCall,
    mind::{Counted, Mind, Succeed},
};

/// How long the agent's thread may take to answer until it is called again.
const ASKS_AGAIN: Duration = Duration::from_millis(10);

/// How many instances the status tells of, the newest ones, and how long their parameters are at most.
const TOLD_MOST: usize = 32;
const PARAMS_MOST: usize = 1 << 10;

/// The policies that were to take over, the first one among them, and how it went.
pub(super) struct Instances(Mutex<Had>);

struct Had {
    instances: Vec<Instance>,
    /// Those that have not taken over, and will not.
    never: Vec<usize>,
    /// The place of the instance that decides.
    now: usize,
    upgrades: u64,
    wait_ns: u64,
    wait_ns_max: u64,
}

impl Instances {
    pub(super) fn of(first: Instance) -> Self {
        let instances = vec![first];
        Self(Mutex::new(Had { instances, never: Vec::new(), now: 0, upgrades: 0, wait_ns: 0, wait_ns_max: 0 }))
    }

    fn had(&self) -> MutexGuard<'_, Had> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Had {
    /// One is to take over. Its place.
    fn put(&mut self, next: &Next) -> usize {
        self.instances.push(Instance { policy: next.policy.clone(), params: next.params.clone() });
        self.instances.len() - 1
    }

    fn took_over(&mut self, place: usize, wait_ns: u64) {
        self.now = place;
        self.upgrades += 1;
        self.wait_ns = wait_ns;
        self.wait_ns_max = self.wait_ns_max.max(wait_ns);
    }

    /// Those from a place on to which calls may belong, the oldest first. One that is about to take over is among them.
    fn from(&self, place: usize) -> Vec<NumberedInstance> {
        let all = self.instances.iter().enumerate().skip(place).filter(|(place, _)| !self.never.contains(place));
        all.map(|(place, instance)| NumberedInstance::new(number_of(place) as u32, instance)).collect()
    }

    /// What the status tells of them. Without its parameters, an instance is not known.
    fn newest(&self) -> Vec<NumberedInstance> {
        let mut newest = self.from(0);
        newest.reverse();
        newest.truncate(TOLD_MOST);
        for instance in newest.iter_mut().filter(|instance| instance.params.len() > PARAMS_MOST) {
            (instance.name, instance.params) = (String::new(), String::new());
        }
        newest
    }
}

/// By this, recordings and `ekiden status` know it.
fn number_of(place: usize) -> u64 {
    FIRST_INSTANCE + place as u64
}

impl Agent {
    /// Another policy takes over, or a new instance of the same. One of the same type takes over the state of the old one, unless it is to start
    /// over; to any other all tasks are new. No task is under the kernel's own scheduler in between.
    ///
    /// # Errors
    /// Its parameters are refused, or it panics while it is made: the old one stays. Or one of them panics while it hands over or takes over,
    /// or the agent is gone: [`LoadError::TakenOut`].
    pub fn upgrade(&self, next: &Next, make: MakeNext) -> Result<Upgrade> {
        self.check()?;
        let next = &self.with_params_of_now(next);
        let (topology, host) = (self.topology.clone(), self.questions.clone());
        let made = contained(|| make(topology, self.max_tasks, &next.params, host, next.start_over));
        let takes_over = made.map_err(LoadError::Refused)?.map_err(|error| LoadError::Refused(error.to_string()))?;
        // A recording has to know of it before it comes to its calls.
        let place = self.instances.had().put(next);
        let number = number_of(place);
        let (beats, is_recorded) = (self.beats.clone(), self.flight.is_some());
        let succeed: Succeed = Box::new(move |old| {
            let (mut policy, knows) = takes_over(old);
            if is_recorded {
                call_log::next_instance(if knows == Knows::All { Mark::HandOver } else { Mark::Begin }, number);
                policy = call_log::recorded(policy);
            }
            (Box::new(Surrounded::new(policy, EachCall(beats))), knows)
        });
        let asked = self.ask(|mind| mind.upgrade(succeed));
        if matches!(asked, Err(LoadError::Other(_))) {
            self.instances.had().never.push(place);
        }
        let Some((done, figures)) = asked? else { return Err(self.taken_out()) };
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = figures;
        self.instances.had().took_over(place, done.wait_ns);
        Ok(done)
    }

    /// Without parameters of its own, one that takes over the state keeps those in it.
    fn with_params_of_now(&self, next: &Next) -> Next {
        let now = self.instance();
        let keeps = next.params.is_empty() && !next.start_over && next.policy == now.policy;
        if keeps { Next { params: now.params, ..next.clone() } } else { next.clone() }
    }

    /// Has the agent's thread do something between two rounds, and waits for it.
    fn ask<T: Send + 'static>(&self, wish: impl FnOnce(&mut Mind) -> T + Send + 'static) -> Result<T> {
        let (done, is_done) = sync_channel(1);
        self.talk.asked.put(Box::new(move |mind| {
            // Where this is not heard any more, it is done all the same.
            let _ = done.send(wish(mind));
        }));
        let start = Instant::now();
        loop {
            // That thread may have nothing to do, or set an alarm of its own in the same moment.
            self.shared.set_alarm(1);
            match is_done.recv_timeout(ASKS_AGAIN) {
                Ok(result) => return Ok(result),
                Err(_) if !self.is_running() => return Err(self.taken_out()),
                Err(_) if start.elapsed() < PATIENCE => {}
                // What it has taken it is about to do.
                Err(_) if !self.talk.asked.take_back() => {}
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(LoadError::Other(format!(
                        "the agent has not answered for {seconds} s; nothing has changed"
                    )));
                }
            }
        }
    }

    /// What the policy saves for one of its name in the kernel, if it saves anything.
    ///
    /// # Errors
    /// There is no room for it, or it panics, which takes it out: [`LoadError::TakenOut`].
    pub fn save(&self) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let mut room = vec![0; saved_most(self.max_tasks)];
        let Some(saved) = self.ask(move |mind| {
            let len = mind.save(&mut room)?;
            Some((room, len))
        })?
        else {
            return Err(self.taken_out());
        };
        match saved {
            (_, Some(0)) => Ok(None),
            (mut room, Some(len)) => {
                room.truncate(len);
                Ok(Some(room))
            }
            (_, None) => Err(LoadError::NoRoomToSave),
        }
    }

    pub(super) fn taken_out(&self) -> LoadError {
        LoadError::TakenOut(self.exit_reason().unwrap_or_else(|| "no reason given".into()))
    }

    /// The policy of now, and its parameters.
    pub fn instance(&self) -> Instance {
        let had = self.instances.had();
        had.instances[had.now].clone()
    }

    /// How the policy fares, as `ekiden.ko` says it of those in the kernel.
    ///
    /// # Errors
    /// [`LoadError::TakenOut`], or the agent does not answer.
    pub fn status(&self) -> Result<Status> {
        let Counted { calls, tasks, totals, contract_violations } = self.ask(|mind| mind.counted())?;
        let Totals { picks, idles, migrations, refusals, unexpected_transitions, slowed, turns, ticks } = totals;
        let (contract_violations, last_contract_violation) = contract_violations;
        let contract_violations = contract_violations.into();
        let counts = ekiden_loader::Counts {
            tasks,
            picks,
            idles,
            migrations,
            refusals,
            unexpected_transitions,
            slowed,
            turns,
            ticks,
            contract_violations,
            last_contract_violation,
            engine_fault: None,
        };
        let had = self.instances.had();
        let Instance { policy, params } = had.instances[had.now].clone();
        let records = self.flight.as_ref().map_or(0, |flight| flight.records);
        let policy = PolicyStatus {
            policy,
            params,
            alive: true,
            default: true,
            calls: calls.0,
            instance: number_of(had.now) as u32,
            instances: had.newest(),
            upgrades: had.upgrades,
            upgrade_wait_ns: had.wait_ns,
            upgrade_wait_ns_max: had.wait_ns_max,
            call_log_records: records,
            call_log_cpus: u32::from(records != 0),
            call_log_runs: records != 0,
            counts: counts.clone(),
            figures: self.figures(),
            ..PolicyStatus::default()
        };
        Ok(Status {
            abi: ABI_VERSION,
            attached: self.is_running(),
            policies: vec![policy],
            capacity: self.max_tasks.into(),
            beyond: self.shared.beyond(),
            counts,
            ..Status::default()
        })
    }

    /// The policies of which calls may be recorded, the first one among them, the oldest first.
    pub fn instances(&self) -> Vec<NumberedInstance> {
        self.instances.had().from(0)
    }

    /// For a recording: says of each of them once.
    pub fn tells_instances(&self) -> impl FnMut() -> Result<Vec<NumberedInstance>> + Send + use<> {
        let (instances, mut told) = (self.instances.clone(), 0);
        move || {
            let had = instances.had();
            let new = had.from(told);
            told = had.instances.len();
            Ok(new)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_instances_are_told_and_none_that_never_took_over() {
        let instance = |number: usize| Instance { policy: "wfq".into(), params: format!("slice_min_us={number}") };
        let instances = Instances::of(instance(1));
        let next = |params: String| Next { policy: "wfq".into(), params, start_over: false };
        for number in 2..=40 {
            let place = instances.had().put(&next(instance(number).params));
            instances.had().took_over(place, 1);
        }
        let place = instances.had().put(&next("refused".into()));
        instances.had().never.push(place);
        let place = instances.had().put(&next("x".repeat(PARAMS_MOST + 1)));
        assert_eq!(
            instances.had().from(39),
            [
                NumberedInstance::new(40, &instance(40)),
                NumberedInstance::new(42, &Instance { policy: "wfq".into(), params: "x".repeat(PARAMS_MOST + 1) })
            ]
        );
        let newest = instances.had().newest();
        assert_eq!((place, newest.len()), (41, TOLD_MOST));
        assert_eq!(
            newest[..2],
            [NumberedInstance::new(42, &Instance::default()), NumberedInstance::new(40, &instance(40))]
        );
    }
}
