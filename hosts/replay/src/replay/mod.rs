//! The replay itself: what begins when, and what is compared.

mod compare;

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ekiden::{Env, Topology};
use ekiden_contain::contained;
use ekiden_host::abi::{Call, Message, RawToken, Reply};
use ekiden_host::{Host, Policy};
use ekiden_recording::{Entry, Instance, Item, Mark, Recorded, RecordedCall, RecordedMark, RecordingReader};

use crate::ahead::Ahead;
use crate::flight::{Flight, Job, Order};
use crate::outcome::{Exact, Outcome, Past};
use crate::policy::{self, Maker};
use crate::recorded_state::{RecordedState, ReplayHost};
use crate::{Considered, EKIDEN_REPLAY_METHODS, Options, ReplayError, ekiden_replay_stop};

/// Calls that are kept in mind, for the report of a difference.
const HISTORY: usize = 512;
/// How many calls a report shows of each kind.
const SHOWN: usize = 5;
/// How many stale tokens a policy may pick one after the other.
const PICKS_MAX: u32 = 64;
/// How many calls begin before one that waits for its turn continues without, where turns are not known for sure.
const PATIENCE: u64 = 64;

pub(crate) fn run<'a, R: Read>(
    reader: RecordingReader<R>,
    policies: &'a [Maker],
    params: Option<&'a str>,
    options: &'a Options,
    considered: Option<&'a mut dyn FnMut(Considered)>,
) -> Result<Outcome, ReplayError> {
    let topology = reader.header().topology().expect("the reader has looked at it");
    let questions = Arc::new(ReplayHost::new(&topology));
    let max_tasks = reader.header().max_tasks;
    let of_header = reader.header().instance.clone();
    let flight = Flight::new(considered.is_some()).ok_or(ReplayError::Observed)?;
    let makers = Makers { policies, params, topology, max_tasks };
    // Refused before anything is read: most recordings have one policy.
    makers.find(&of_header)?;
    let mut ahead = Ahead::new(reader);
    let of_instance = ahead.before_marks().cloned();
    let mut replay = Run {
        makers,
        options,
        considered,
        flight,
        questions,
        recorded_state: RecordedState::new(max_tasks),
        policy: None,
        instance: 0,
        of_instance,
        mode: Mode::Lost,
        made_up: false,
        gaps: BTreeSet::new(),
        pending: Vec::new(),
        history: VecDeque::with_capacity(HISTORY),
        outcome: Outcome::default(),
        exact: None,
        first_ns: None,
        after: 0,
    };
    while let Some(recorded) = ahead.next() {
        match recorded {
            Ok(recorded) => replay.take(recorded, &mut ahead)?,
            Err(error) => replay.outcome.remark(error.to_string()),
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
            let known = policy::names(self.policies);
            return Err(ReplayError::OtherPolicy { policy: instance.policy.clone(), known });
        };
        let params = self.params.unwrap_or(&instance.params);
        let env = maker.env(&self.topology, self.max_tasks, params);
        let env = env.map_err(|source| ReplayError::Params { policy: instance.policy.clone(), source })?;
        Ok((*maker, env))
    }
}

/// How much is known of the policy's state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing: an instance is made of what can be told, as soon as no CPU lacks records any more.
    Lost,
    /// Nor which policy it is, until the next instance.
    Unknown,
    /// The policy was taken out. Nothing is asked of it until the next instance.
    TakenOut,
    /// That it is as it was.
    Exact,
    /// Number of calls that have agreed, one after the other.
    Unsure(u64),
}

/// A call that is under way.
#[derive(Clone)]
struct Pending {
    call: Past,
    /// How often the policy has picked since.
    picks: u32,
}

struct Run<'a> {
    makers: Makers<'a>,
    options: &'a Options,
    /// Is told what decisions looked at.
    considered: Option<&'a mut dyn FnMut(Considered)>,
    flight: Flight,
    questions: Arc<ReplayHost>,
    recorded_state: RecordedState,
    policy: Option<Rc<Box<dyn Policy>>>,
    /// The number of the instance, and what it is, if that is known.
    instance: u64,
    of_instance: Option<Instance>,
    mode: Mode,
    /// The instance was not there from its beginning: its state is what could be told of it.
    made_up: bool,
    /// CPUs of which records are missing up to here.
    gaps: BTreeSet<u32>,
    /// The call that is under way on each CPU, or that ended although it did not in the recording.
    pending: Vec<Option<Pending>>,
    history: VecDeque<Past>,
    outcome: Outcome,
    exact: Option<Exact>,
    first_ns: Option<u64>,
    /// How many calls the first difference is still to be shown after it.
    after: usize,
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        let stopped = self.options.stop_on_difference && self.outcome.first.is_some() && self.after == 0;
        stopped || self.outcome.calls >= self.options.until
    }

    fn take<R: Read>(&mut self, recorded: Recorded, ahead: &mut Ahead<R>) -> Result<(), ReplayError> {
        let Recorded { cpu, time_ns, .. } = recorded;
        // A gap before the first call has no time.
        if matches!(recorded.item, Item::Entry(Entry::Call(_) | Entry::Mark(_))) {
            let first_ns = *self.first_ns.get_or_insert(time_ns);
            self.outcome.span_ns = time_ns - first_ns.min(time_ns);
        }
        match &recorded.item {
            Item::Gap { lost } => {
                self.outcome.lost += lost;
                let at = self.first_ns.map_or_else(String::new, |_| format!(" (at {time_ns} ns)"));
                self.outcome.remark(format!(
                    "{lost} records of CPU {cpu} are missing before call {}{at}",
                    self.outcome.calls + 1
                ));
                self.lose();
                self.gaps.insert(cpu);
                return Ok(());
            }
            Item::Torn => {
                self.outcome.remark(format!(
                    "after call {} some CPUs lack calls that others have: these are not replayed",
                    self.outcome.calls
                ));
                self.lose();
                self.mode = Mode::TakenOut;
                return Ok(());
            }
            // The rest of a call whose beginning is missing: it may be from long before what the others have.
            Item::Entry(Entry::Stray(records)) => {
                self.outcome.lost += records;
                if self.gaps.insert(cpu) {
                    self.lose();
                }
                return Ok(());
            }
            Item::Entry(_) if !self.gaps.is_empty() => {
                self.gaps.remove(&cpu);
            }
            Item::Entry(_) => {}
        }
        if self.mode == Mode::Lost && self.gaps.is_empty() && matches!(recorded.item, Item::Entry(Entry::Call(_))) {
            self.make_up(&recorded, ahead)?;
        }
        match recorded.item {
            Item::Entry(Entry::Call(call)) => self.call(cpu, time_ns, call),
            Item::Entry(Entry::Mark(mark)) => {
                let instance = ahead.instance(mark.instance).cloned();
                return self.mark(cpu, mark, instance);
            }
            Item::Entry(Entry::Stray(_)) | Item::Gap { .. } | Item::Torn => {}
        }
        Ok(())
    }

    fn mark(&mut self, cpu: u32, mark: RecordedMark, instance: Option<Instance>) -> Result<(), ReplayError> {
        if mark.mark == Mark::Fault {
            self.fault(cpu);
            return Ok(());
        }
        if mark.mark == Mark::GoOn {
            // Nothing is known of what was before, or of what another version has saved.
            self.lose();
            (self.instance, self.of_instance) = (mark.instance.max(self.instance), instance);
            return Ok(());
        }
        // It stands in the stream of each CPU.
        if mark.instance <= self.instance {
            return Ok(());
        }
        self.instance = mark.instance;
        self.of_instance = instance;
        let found = self.of_instance.as_ref().map(|instance| self.makers.find(instance)).transpose()?;
        self.end_all();
        let Some((maker, env)) = found else {
            self.lose();
            return Ok(());
        };
        let is_known = matches!(self.mode, Mode::Exact | Mode::Unsure(_));
        let old = self.policy.take().and_then(Rc::into_inner);
        if !self.gaps.is_empty() || mark.mark == Mark::HandOver && (!is_known || old.is_none()) {
            self.lose();
            return Ok(());
        }
        let (questions, is_fresh) = (self.questions.clone() as Arc<dyn Host + Send>, mark.mark == Mark::Begin);
        let made = contained(|| match old.filter(|_| !is_fresh) {
            Some(old) => maker.hand_over(old, &env),
            None => Some(maker.make(&env, questions)),
        });
        if is_fresh {
            self.flight.start_over();
            if self.mode != Mode::Exact {
                self.exact = None;
                self.mode = Mode::Exact;
            }
            self.made_up = false;
        }
        match made {
            Ok(Some(policy)) => self.policy = Some(Rc::new(policy)),
            Ok(None) => self.lose(),
            Err(panic) => {
                self.outcome.remark(format!("instance {} panicked when it was made: {panic}", self.instance));
                self.lose();
                self.mode = Mode::TakenOut;
            }
        }
        Ok(())
    }

    /// The policy was taken out on this CPU, in the recording.
    fn fault(&mut self, cpu: u32) {
        if self.mode == Mode::TakenOut {
            return;
        }
        let pending = self.pending.get_mut(cpu as usize).and_then(Option::take);
        // It waited for a lock until it gave up, or did something else that it does not do now.
        let waits = self.flight.waiting(cpu);
        let waits = waits.is_some_and(|(wait, _)| self.flight.held().iter().any(|held| held.lock == wait.lock));
        if let Some(Pending { call, .. }) = pending.filter(|_| self.mode == Mode::Exact && !waits) {
            self.differs(call, "the policy was taken out here, and goes on in the replay".into(), None);
        }
        self.lose();
        self.mode = Mode::TakenOut;
    }

    /// From here on the policy's state is not known.
    fn lose(&mut self) {
        self.stop_being_exact();
        self.flight.start_over();
        self.pending.clear();
        self.policy = None;
        self.mode = Mode::Lost;
    }

    /// Makes an instance that has the tasks that must be waiting before this call.
    fn make_up<R: Read>(&mut self, now: &Recorded, ahead: &mut Ahead<R>) -> Result<(), ReplayError> {
        let Some(instance) = &self.of_instance else {
            self.outcome.remark(format!(
                "from call {} on the recording does not say of which policy they are: these are not replayed",
                self.outcome.calls + 1
            ));
            self.mode = Mode::Unknown;
            return Ok(());
        };
        let (maker, env) = self.makers.find(instance)?;
        self.flight.start_over();
        self.flight.order(Order::Loose);
        self.questions.set_now_ns(now.time_ns);
        let questions: Arc<dyn Host + Send> = self.questions.clone();
        let made = contained(|| maker.make(&env, questions));
        let Ok(policy) = made else { return Ok(()) };
        let calls = policy.calls();
        self.policy = Some(Rc::new(policy));
        (self.mode, self.made_up, self.after) = (Mode::Unsure(0), true, 0);
        let tasks = ahead.tasks(now);
        self.outcome.remark(format!(
            "before call {} a new instance was given the {} tasks that wait then, as what follows tells",
            self.outcome.calls + 1,
            tasks.waiting.len()
        ));
        for task in tasks.others {
            // It has been there and gone, so that the policy knows of it.
            let message = tasks.first.get(&task).copied().unwrap_or_default();
            // Where it was: if it slept, that is known from before the gap at best.
            let slept = message.call == Call::TaskWakeup as u32;
            let before = self.recorded_state.known(task).filter(|_| slept).map(|known| known.message.token_cpu);
            let cpu = before.unwrap_or(message.cpu);
            let token = RawToken { task, cpu, serial: u32::MAX };
            let new = Message { call: Call::TaskNew as u32, flags: 0, arg: 0, ..message }.with_token(token);
            if calls.has(Call::TaskDeparted) && self.tell(0, new).is_some() {
                let gone = Message { call: Call::TaskDeparted as u32, flags: 0, arg: 0, ..message };
                self.tell(0, gone.with_token(RawToken::NONE));
            }
        }
        for token in tasks.waiting {
            let message = tasks.first.get(&token.task).copied();
            let message = message.unwrap_or(Message { task: token.task, weight: 1024, ..Message::default() });
            let new = Message { call: Call::TaskNew as u32, cpu: token.cpu, flags: 0, arg: 0, ..message };
            let new = new.with_token(token);
            self.recorded_state.begins(now.time_ns, &new);
            self.tell(0, new);
        }
        Ok(())
    }

    /// Delivers a call that is not in the recording.
    fn tell(&mut self, cpu: u32, message: Message) -> Option<Reply> {
        let policy = self.policy.clone()?;
        if self.flight.waiting(cpu).is_some() {
            return None;
        }
        let done = self.flight.begin(cpu, Job::told(policy, message));
        match done {
            Some(done) => done.reply.ok(),
            None => {
                self.flight.give_up(cpu);
                None
            }
        }
    }

    fn call(&mut self, cpu: u32, time_ns: u64, call: RecordedCall) {
        self.outcome.calls += 1;
        let number = self.outcome.calls;
        let RecordedCall { thread, message, notes, noted, reply, .. } = call;
        let past = Past { number, cpu, time_ns, thread, message, recorded: reply };
        if self.after > 0 {
            self.after -= 1;
            let first = if self.made_up { &mut self.outcome.first_not_exact } else { &mut self.outcome.first };
            if let Some(first) = first {
                first.after.push(past.clone());
            }
        }
        if self.flight.any_waiting() {
            self.see_to_those_that_wait(cpu, number);
        }
        self.recorded_state.begins(time_ns, &message);
        let Some(policy) = &self.policy else { return self.remember(past) };
        let call = Some((number, time_ns));
        let job = Job { policy: policy.clone(), message, call, notes, noted, is_ordered: true };
        let index = cpu as usize;
        if self.pending.len() <= index {
            self.pending.resize(index + 1, None);
        }
        self.outcome.replayed += 1;
        self.questions.set_now_ns(time_ns);
        self.pending[index] = Some(Pending { call: past, picks: 0 });
        if self.options.before_call == Some(number) {
            self.stop(&message);
        }
        if let Some(done) = self.flight.begin(cpu, job) {
            self.ended(cpu, done);
        }
        self.go_on();
    }

    /// Lets a debugger in.
    fn stop(&self, message: &Message) {
        let maker = self.of_instance.as_ref().and_then(|instance| self.makers.find(instance).ok());
        if let (Some((maker, _)), Some(call)) = (maker, Call::from_number(message.call)) {
            for (place, method) in EKIDEN_REPLAY_METHODS.iter().zip(maker.methods(call)) {
                place.store(method, Relaxed);
            }
            ekiden_replay_stop();
        }
    }

    #[inline]
    fn remember(&mut self, call: Past) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(call);
    }

    #[inline]
    fn go_on(&mut self) {
        while let Some((cpu, done)) = self.flight.go_on() {
            self.ended(cpu, done);
        }
    }

    /// A call begins on `cpu`, so that the one before must have ended.
    #[cold]
    fn see_to_those_that_wait(&mut self, cpu: u32, number: u64) {
        let is_unsure = matches!(self.mode, Mode::Unsure(_));
        for index in 0..self.pending.len() as u32 {
            let Some(pending) = &self.pending[index as usize] else { continue };
            let waits_too_long = is_unsure && pending.call.number + PATIENCE < number;
            if index == cpu || waits_too_long {
                self.end(index);
            }
        }
        self.go_on();
    }

    /// The call that waits on `cpu`, if one does, has to end.
    fn end(&mut self, cpu: u32) {
        let Some((wait, _)) = self.flight.waiting(cpu) else { return };
        let Some(pending) = self.pending[cpu as usize].clone() else { return };
        if pending.call.recorded.is_some() {
            let at = wait.place.map_or_else(|| "that it tries".into(), |at| format!("at {}:{}", at.file(), at.line()));
            let what = format!(
                "it waits for ever for the lock {at}: to be number {} to have it, and {} have had it",
                wait.turn, wait.taken
            );
            self.differs(pending.call, what, None);
        }
        self.pending[cpu as usize] = None;
        self.flight.force(cpu);
    }

    /// No call may be under way from here on.
    fn end_all(&mut self) {
        if self.flight.any_waiting() {
            (0..self.pending.len() as u32).for_each(|cpu| self.end(cpu));
        }
    }

    fn finish(mut self) -> Outcome {
        self.end_all();
        self.stop_being_exact();
        self.outcome
    }
}
