//! What another policy would have decided.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

use ekiden::{Env, TaskId};
use ekiden_contain::contained;
use ekiden_host::abi::{Call, Message, RawToken, RefusalReason, Reply};
use ekiden_host::{Host, Policy};
use ekiden_recording::{Entry, Item, Mark, Recorded, RecordedCall, RecordingReader, call_log_of_thread};
use serde::Serialize;

use crate::ReplayError;
use crate::ahead::Ahead;
use crate::flight::payload;
use crate::policy::{Maker, brings_token};
use crate::recorded_state::{RecordedState, ReplayHost, note_idle};

/// How many stale tokens a policy may pick one after the other.
const PICKS_MAX: u32 = 64;

/// How often two policies agree in one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// How many such calls there are.
    pub calls: u64,
    /// In how many the decision is the same: the task that was picked, or that was wanted from elsewhere; the CPU that was
    /// chosen; the CPUs that were kicked.
    pub same: u64,
}

/// The longest time for which a task waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LongestWait {
    /// How long, in nanoseconds.
    pub ns: u64,
    /// The task's PID.
    pub pid: u32,
    /// When it ended.
    pub end_ns: u64,
}

/// What another policy would have decided, where the recorded machine went on as it did.
///
/// The other policy is asked what the recorded one was asked, and told what happened next: if it picked another task than
/// the one that ran, it gets that one back ([`pnt_err`](ekiden::Scheduler::pnt_err)), and a task that ran is waiting no
/// more. It is asked nothing that the recorded policy does not implement. Affinity and groups are not in a recording: it is
/// told that every task may run everywhere, and that all are in one group.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WhatIf {
    /// The other policy.
    pub policy: String,
    /// How many calls there are.
    pub calls: u64,
    /// How far the policies agree, by the name of the call.
    pub agreement: BTreeMap<&'static str, Agreement>,
    /// Times that a task waited which the other policy would have ended earlier than they did end.
    pub earlier: u64,
    /// Times that a task waited which the other policy would have ended at the same moment.
    pub same: u64,
    /// Times that a task waited which the other policy would have ended later.
    pub later: u64,
    /// The longest wait in the recording.
    pub longest: LongestWait,
    /// The longest wait under the other policy, as far as can be told: up to the moment at which it picked the task. Where
    /// the recorded policy was first, the wait counts up to that, and would have been longer; so this figure is never
    /// larger than the recorded one, and says something only if it is smaller.
    pub longest_other: LongestWait,
    /// Further remarks, in order.
    pub remarks: Vec<String>,
}

impl WhatIf {
    /// The part of all picks in which the same task was picked.
    pub fn same_picks(&self) -> f64 {
        let picks = self.agreement.get(Call::PickNextTask.name()).copied().unwrap_or_default();
        picks.same as f64 / picks.calls.max(1) as f64
    }
}

pub(crate) fn run<R: Read>(
    reader: RecordingReader<R>,
    maker: &Maker,
    params: &str,
    until: u64,
) -> Result<WhatIf, ReplayError> {
    let topology = reader.header().topology().expect("the reader has looked at it");
    let max_tasks = reader.header().max_tasks;
    let env = maker.env(&topology, max_tasks, params);
    let env = env.map_err(|source| ReplayError::Params { policy: maker.name.into(), source })?;
    let mut other = Other {
        maker,
        env,
        policy: None,
        questions: Arc::new(ReplayHost::new(&topology)),
        recorded_state: RecordedState::new(max_tasks),
        picked: Vec::new(),
        instance: 0,
        outcome: WhatIf { policy: maker.name.into(), ..WhatIf::default() },
    };
    // What the recorded policy learnt is nothing to this one.
    let before = call_log_of_thread(None);
    let mut ahead = Ahead::new(reader);
    while let Some(recorded) = ahead.next() {
        match recorded {
            Ok(recorded) => other.take(recorded, &mut ahead),
            Err(error) => other.outcome.remarks.push(error.to_string()),
        }
        if other.outcome.calls >= until {
            break;
        }
    }
    call_log_of_thread(before);
    Ok(other.outcome)
}

struct Other<'a> {
    maker: &'a Maker,
    env: Env,
    policy: Option<Box<dyn Policy>>,
    questions: Arc<ReplayHost>,
    recorded_state: RecordedState,
    /// By task index: the serial number of the token that the other policy picked last.
    picked: Vec<u32>,
    instance: u64,
    outcome: WhatIf,
}

impl Other<'_> {
    fn take<R: Read>(&mut self, recorded: Recorded, ahead: &mut Ahead<R>) {
        match &recorded.item {
            Item::Gap { lost } => {
                let Recorded { cpu, time_ns, .. } = recorded;
                self.outcome.remarks.push(format!("{lost} records of CPU {cpu} are missing at {time_ns} ns"));
                self.policy = None;
            }
            Item::Entry(Entry::Mark(mark)) if mark.mark != Mark::Fault && mark.instance > self.instance => {
                self.instance = mark.instance;
                if mark.mark == Mark::Begin || self.policy.is_none() {
                    self.begin();
                }
            }
            Item::Entry(Entry::Call(_)) if self.policy.is_none() => {
                self.begin();
                self.questions.set_now_ns(recorded.time_ns);
                for token in ahead.tasks(&recorded).waiting {
                    let new = self.recorded_state.about(Call::TaskNew, token.cpu, token);
                    self.recorded_state.begins(recorded.time_ns, &new);
                    self.tell(&new, &[]);
                }
            }
            _ => {}
        }
        if let Item::Entry(Entry::Call(call)) = recorded.item {
            self.call(recorded.time_ns, &call);
        }
    }

    fn begin(&mut self) {
        let questions: Arc<dyn Host + Send> = self.questions.clone();
        let made = contained(|| self.maker.make(&self.env, questions));
        match made {
            Ok(policy) => self.policy = Some(policy),
            Err(panic) => self.panicked(&panic),
        }
    }

    fn panicked(&mut self, panic: &str) {
        self.policy = None;
        let remarks = &mut self.outcome.remarks;
        let remark =
            format!("before call {} {} panics, and begins anew: {panic}", self.outcome.calls + 1, self.maker.name);
        // It may go on like this.
        if remarks.len() < 100 {
            remarks.push(remark);
        }
    }

    fn tell(&mut self, message: &Message, payload: &[u8]) -> Option<Reply> {
        let policy = self.policy.as_ref()?;
        let call = Call::from_number(message.call)?;
        if !policy.calls().has(call) && !brings_token(call) && call != Call::PickNextTask {
            return None;
        }
        let reply = contained(|| policy.deliver(message, payload));
        match reply {
            Ok(reply) => Some(reply),
            Err(panic) => {
                self.panicked(&panic);
                None
            }
        }
    }

    fn call(&mut self, time_ns: u64, call: &RecordedCall) {
        let message = &call.message;
        self.outcome.calls += 1;
        self.questions.set_now_ns(time_ns);
        self.recorded_state.begins(time_ns, message);
        let (Some(kind), Some(recorded)) = (Call::from_number(message.call), &call.reply) else { return };
        note_idle(&self.questions, message, recorded);
        let (payload, _) = payload(message, &call.notes);
        let Some(mut reply) = self.tell(message, &payload) else { return };
        let mut is_same = reply.kicks == recorded.kicks;
        if kind == Call::PickNextTask {
            for _ in 0..PICKS_MAX {
                if reply.token.is_none() || self.recorded_state.waits(reply.token) {
                    break;
                }
                self.hand_back(message.cpu, reply.token, RefusalReason::Stale);
                reply = self.tell(message, &[]).unwrap_or_default();
            }
            is_same = (reply.token.task, reply.task) == (recorded.token.task, recorded.task);
            self.picks(time_ns, reply.token, recorded.token);
            if !reply.token.is_none() && reply.token != recorded.token {
                self.hand_back(message.cpu, reply.token, RefusalReason::NotAllowed);
            }
        } else if kind == Call::SelectTaskRq {
            is_same = reply.cpu == recorded.cpu;
        }
        let agreement = self.outcome.agreement.entry(kind.name()).or_default();
        agreement.calls += 1;
        agreement.same += u64::from(is_same);
    }

    fn hand_back(&mut self, cpu: u32, token: RawToken, reason: RefusalReason) {
        let message = self.recorded_state.about(Call::PntErr, cpu, token);
        self.tell(&Message { flags: reason as u32, ..message }, &[]);
    }

    /// What the other policy picks, and what the recorded one did.
    fn picks(&mut self, now_ns: u64, other: RawToken, recorded: RawToken) {
        if self.recorded_state.waits(other) && self.picked(other.task) != other.serial {
            let wait = self.wait(other.task, now_ns);
            keep_longest(&mut self.outcome.longest_other, wait);
            if other != recorded {
                self.outcome.earlier += 1;
            }
            let slot = other.task.slot as usize;
            self.picked.resize(self.picked.len().max(slot + 1), 0);
            self.picked[slot] = other.serial;
        }
        if self.recorded_state.waits(recorded) {
            let wait = self.wait(recorded.task, now_ns);
            keep_longest(&mut self.outcome.longest, wait);
            if other == recorded {
                self.outcome.same += u64::from(self.picked(recorded.task) == recorded.serial);
            } else if self.picked(recorded.task) != recorded.serial {
                self.outcome.later += 1;
                keep_longest(&mut self.outcome.longest_other, wait);
            }
            self.recorded_state.picked(recorded);
        }
    }

    fn picked(&self, task: TaskId) -> u32 {
        self.picked.get(task.slot as usize).copied().unwrap_or(0)
    }

    fn wait(&self, task: TaskId, now_ns: u64) -> LongestWait {
        let Some(known) = self.recorded_state.known(task) else { return LongestWait::default() };
        LongestWait { ns: now_ns.saturating_sub(known.since_ns), pid: known.message.pid, end_ns: now_ns }
    }
}

fn keep_longest(longest: &mut LongestWait, wait: LongestWait) {
    if wait.ns > longest.ns {
        *longest = wait;
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (call, Agreement { calls, same }) in &self.agreement {
            writeln!(f, "{call:24} {same:>10} of {calls:>10} decisions are the same")?;
        }
        let Self { policy, earlier, same, later, longest, longest_other, .. } = self;
        let ms = |wait: &LongestWait| wait.ns as f64 / 1e6;
        writeln!(f, "tasks that waited: {policy} picks {earlier} earlier, {same} at the same moment, {later} later")?;
        writeln!(f, "longest wait: {:.3} ms (PID {}) as recorded", ms(longest), longest.pid)?;
        writeln!(
            f,
            "longest wait up to where {policy} picks the task, or it ran as recorded: {:.3} ms (PID {})",
            ms(longest_other),
            longest_other.pid
        )?;
        self.remarks.iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }
}
