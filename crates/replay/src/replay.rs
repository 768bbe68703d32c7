//! The replay itself: what begins when, and what is compared.

use std::collections::VecDeque;
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use ekiden::abi::{RawToken, Reply};
use ekiden::{Env, Policy, Topology};
use ekiden_recording::{Entry, Instance, Item, Mark, Recorded, RecordedCall, RecordingReader};

use crate::contain::{contained, inside};
use crate::flight::{Done, Flight, Job};
use crate::host::NoHost;
use crate::outcome::{self, Difference, Exact, Outcome, Past};
use crate::policy::Maker;
use crate::{Options, ReplayError};

/// Calls that are kept in mind, for the report of a difference.
const HISTORY: usize = 4_096;
/// How many calls a report shows of each kind.
const SHOWN: usize = 5;

pub(crate) fn run<R: Read>(
    mut reader: RecordingReader<R>,
    policies: &[Maker],
    params: Option<&str>,
    options: &Options,
) -> Result<Outcome, ReplayError> {
    let topology = reader.header().topology().expect("the reader has looked at it");
    let max_tasks = reader.header().max_tasks;
    let flight = Flight::new().ok_or(ReplayError::Observed)?;
    let makers = Makers { policies, params, topology, max_tasks };
    // Refused before anything is read: most recordings have one policy.
    makers.find(&reader.header().instance)?;
    let mut replay = Run {
        makers,
        options,
        flight,
        policy: None,
        instance: 0,
        pending: Vec::new(),
        history: VecDeque::with_capacity(HISTORY),
        outcome: Outcome::default(),
        exact: None,
        first_ns: None,
        after: 0,
    };
    while let Some(recorded) = reader.next() {
        match recorded {
            Ok(recorded) => {
                let instance = match &recorded.item {
                    Item::Entry(Entry::Mark(mark)) => Some(reader.instance(mark.instance).clone()),
                    _ => None,
                };
                replay.take(recorded, instance.as_ref())?;
            }
            Err(error) => replay.remark(error.to_string()),
        }
        if replay.is_over() {
            break;
        }
    }
    Ok(replay.finish())
}

/// What it takes to make policies.
struct Makers<'a> {
    policies: &'a [Maker],
    params: Option<&'a str>,
    topology: Topology,
    max_tasks: u32,
}

impl Makers<'_> {
    fn find(&self, instance: &Instance) -> Result<(Maker, Env), ReplayError> {
        let Some(maker) = self.policies.iter().find(|maker| maker.name == instance.policy) else {
            let known = self.policies.iter().map(|maker| maker.name).collect::<Vec<_>>().join(", ");
            return Err(ReplayError::OtherPolicy { policy: instance.policy.clone(), known });
        };
        let params = self.params.unwrap_or(&instance.params);
        let env = maker.env(&self.topology, self.max_tasks, params);
        let env = env.map_err(|source| ReplayError::Params { policy: instance.policy.clone(), source })?;
        Ok((*maker, env))
    }
}

struct Run<'a> {
    makers: Makers<'a>,
    options: &'a Options,
    flight: Flight,
    /// The instance that answers, with its number.
    policy: Option<Rc<Box<dyn Policy>>>,
    instance: u64,
    /// The call that is under way on each CPU.
    pending: Vec<Option<Past>>,
    history: VecDeque<Past>,
    outcome: Outcome,
    exact: Option<Exact>,
    first_ns: Option<u64>,
    /// How many calls the first difference is still to be shown after it.
    after: usize,
}

impl Run<'_> {
    fn remark(&mut self, remark: String) {
        self.outcome.remarks.push(remark);
    }

    fn is_over(&self) -> bool {
        let stopped = self.options.stop_on_difference && self.outcome.first.is_some() && self.after == 0;
        stopped || self.outcome.calls >= self.options.until
    }

    fn take(&mut self, recorded: Recorded, instance: Option<&Instance>) -> Result<(), ReplayError> {
        let Recorded { cpu, time_ns, item } = recorded;
        let first_ns = *self.first_ns.get_or_insert(time_ns);
        self.outcome.span_ns = time_ns - first_ns.min(time_ns);
        match (item, instance) {
            (Item::Entry(Entry::Call(call)), _) => self.call(cpu, time_ns, call),
            (Item::Entry(Entry::Mark(mark)), Some(instance)) => match mark.mark {
                Mark::Begin | Mark::HandOver if mark.instance > self.instance => {
                    self.next_instance(mark.mark, mark.instance, instance)?;
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn next_instance(&mut self, mark: Mark, number: u64, instance: &Instance) -> Result<(), ReplayError> {
        self.instance = number;
        let (maker, env) = self.makers.find(instance)?;
        let old = self.policy.take().and_then(Rc::into_inner);
        inside(true);
        let made = contained(|| match (mark, old) {
            (Mark::HandOver, Some(old)) => maker.hand_over(old, &env),
            _ => Some(maker.make(&env, Arc::new(NoHost))),
        });
        inside(false);
        self.policy = made.ok().flatten().map(Rc::new);
        Ok(())
    }

    fn call(&mut self, cpu: u32, time_ns: u64, call: RecordedCall) {
        self.outcome.calls += 1;
        let number = self.outcome.calls;
        let RecordedCall { message, notes, reply, .. } = call;
        let past = Past { number, cpu, time_ns, message, recorded: reply };
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(past.clone());
        if self.after > 0 {
            self.after -= 1;
            if let Some(first) = &mut self.outcome.first {
                first.after.push(past.clone());
            }
        }
        let Some(policy) = &self.policy else { return };
        let job = Job { policy: policy.clone(), message, notes, is_ordered: true };
        let index = cpu as usize;
        if self.pending.len() <= index {
            self.pending.resize(index + 1, None);
        }
        self.outcome.replayed += 1;
        self.pending[index] = Some(past);
        if let Some((at, stop)) = self.options.before_call {
            if at == number {
                stop();
            }
        }
        if let Some(done) = self.flight.begin(cpu, job) {
            self.ended(cpu, done);
        }
        while let Some((cpu, done)) = self.flight.go_on() {
            self.ended(cpu, done);
        }
    }

    fn ended(&mut self, cpu: u32, done: Done) {
        let Some(past) = self.pending[cpu as usize].take() else { return };
        let Done { job, reply, taken } = done;
        let same = |reply: &Reply| Some(Reply { dropped: RawToken::NONE, ..*reply }) == past.recorded;
        if reply.as_ref().is_ok_and(same) && taken == job.notes.len() {
            self.agrees(&past);
            return;
        }
        let what = match &reply {
            Err(panic) => format!("the policy panicked: {panic}"),
            Ok(reply) if !same(reply) => "it answered differently".to_owned(),
            Ok(_) => format!("it learnt {} things, and {taken} in the replay", job.notes.len()),
        };
        self.differs(past, what, reply.ok());
    }

    fn agrees(&mut self, past: &Past) {
        match &mut self.exact {
            Some(exact) => (exact.to, exact.to_ns) = (past.number, past.time_ns),
            None => {
                let Past { number, time_ns, .. } = *past;
                self.exact =
                    Some(Exact { from: number, to: number, from_ns: time_ns, to_ns: time_ns, from_beginning: true });
            }
        }
    }

    #[cold]
    fn differs(&mut self, past: Past, what: String, replayed: Option<Reply>) {
        self.outcome.differences += 1;
        self.outcome.exact.extend(self.exact.take());
        if self.outcome.first.is_some() {
            return;
        }
        let earlier = || self.history.iter().rev().filter(|call| call.number < past.number);
        let mut before: Vec<Past> = earlier().take(SHOWN).cloned().collect();
        let task = if past.message.task.is_none() {
            past.recorded.map_or(past.message.task, |reply| reply.token.task)
        } else {
            past.message.task
        };
        let is_about = |call: &&Past| {
            call.message.task == task || call.recorded.is_some_and(|reply| reply.token.task == task)
        };
        let mut history: Vec<Past> = if task.is_none() {
            Vec::new()
        } else {
            earlier().filter(is_about).take(SHOWN).cloned().collect()
        };
        before.reverse();
        history.reverse();
        let waiting = self.flight.all_waiting().map(|(cpu, wait, _)| (cpu, wait));
        let locks = outcome::locks(&self.flight.held(), waiting);
        self.after = SHOWN;
        let after = self.history.iter().filter(|call| call.number > past.number).take(SHOWN).cloned().collect();
        self.outcome.first = Some(Difference { call: past, what, replayed, before, after, locks, history });
    }

    fn finish(mut self) -> Outcome {
        self.outcome.exact.extend(self.exact.take());
        self.outcome
    }
}
