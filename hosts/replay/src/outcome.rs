//! What a replay found.

use std::fmt;

use ekiden::{CpuId, TaskId};
use ekiden_host::abi::{Call, Message, NO_CPU, Reply};
use serde::{Serialize, Serializer};

use crate::flight::{Held, Wait};

/// How much is said of a kind at most: a recording may be of any length, and have any number of gaps.
const SAID: usize = 1_000;

/// A call as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Which call of the recording, counted from 1.
    pub number: u64,
    /// The CPU that was busy with it.
    pub cpu: CpuId,
    /// When it began, on the host's clock.
    pub time_ns: u64,
    /// The PID of the thread that ran on that CPU then; 0 if it was idle.
    pub thread: u32,
    /// The message that was delivered.
    pub message: Message,
    /// The recorded reply, if the call ended.
    pub recorded: Option<Reply>,
}

/// A call that did not do what it did before.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The call.
    pub call: Past,
    /// How it differs.
    pub what: String,
    /// What the policy answered in the replay, if it did.
    #[serde(serialize_with = "reply")]
    pub replayed: Option<Reply>,
    /// The calls that began before it.
    pub before: Vec<Past>,
    /// The calls that began after it.
    pub after: Vec<Past>,
    /// Which locks were held and waited for at that moment, one a line.
    pub locks: Vec<String>,
    /// The last calls about its task.
    pub history: Vec<Past>,
}

/// Calls that were replayed exactly: each answered as it did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exact {
    /// How many: of calls that are under way at once, one may differ and the others not.
    pub calls: u64,
    /// The number of the first one.
    pub from: u64,
    /// The number of the last one.
    pub to: u64,
    /// When the first one began.
    pub from_ns: u64,
    /// When the last one began.
    pub to_ns: u64,
    /// Whether the policy's state was known to be that of the recording: from the beginning of an instance on. Otherwise
    /// it was made up of what the recording tells, and as many calls as were asked for have agreed.
    pub from_beginning: bool,
}

/// What a replay found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// How many calls there are in the recording, as far as it was read.
    pub calls: u64,
    /// How many of them were delivered again.
    pub replayed: u64,
    /// How many did not do what they did before. What follows a first difference may be its consequence.
    pub differences: u64,
    /// How many did not, of those after a gap: the state of the policy is not known there, but made up of what the recording
    /// tells, so that it may be that.
    pub not_exact: u64,
    /// The first difference.
    pub first: Option<Difference>,
    /// The first one after a gap, when enough calls had agreed.
    pub first_not_exact: Option<Difference>,
    /// How many were replayed exactly.
    pub exact_calls: u64,
    /// Where the exact ones begin and end; of very many pieces, the first.
    pub exact: Vec<Exact>,
    /// Records that are missing in the recording.
    pub lost: u64,
    /// Further remarks, in order; of very many, the first and the last.
    pub remarks: Vec<String>,
    /// Time that the recording spans.
    pub span_ns: u64,
}

impl Exact {
    pub(crate) fn at(call: &Past, from_beginning: bool) -> Self {
        let Past { number, time_ns, .. } = *call;
        Self { calls: 1, from: number, to: number, from_ns: time_ns, to_ns: time_ns, from_beginning }
    }

    /// A call that began before others may end after them.
    pub(crate) fn goes_on(&mut self, call: &Past) {
        let Past { number, time_ns, .. } = *call;
        self.calls += 1;
        (self.from, self.to) = (self.from.min(number), self.to.max(number));
        (self.from_ns, self.to_ns) = (self.from_ns.min(time_ns), self.to_ns.max(time_ns));
    }
}

impl Outcome {
    /// Whether all calls were replayed, and none did anything else.
    pub fn is_exact(&self) -> bool {
        self.differences == 0 && self.not_exact == 0 && self.replayed == self.calls && self.lost == 0
    }

    pub(crate) fn was_exact(&mut self, exact: Exact) {
        self.exact_calls += exact.calls;
        if self.exact.len() < SAID {
            self.exact.push(exact);
        }
    }

    pub(crate) fn remark(&mut self, remark: String) {
        if self.remarks.len() == SAID {
            self.remarks.pop();
        }
        self.remarks.push(remark);
    }
}

fn reply<S: Serializer>(reply: &Option<Reply>, serializer: S) -> Result<S::Ok, S::Error> {
    match reply {
        Some(reply) => serializer.collect_str(&Shown(reply)),
        None => serializer.serialize_none(),
    }
}

impl Serialize for Past {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A reply in words.
pub(crate) struct Shown<'a>(pub(crate) &'a Reply);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reply { token, task, slice_ns, timer_ns, kicks, cpu, .. } = self.0;
        let mut parts = Vec::new();
        if !token.is_none() {
            parts.push(format!("{} (token {} for CPU {})", token.task, token.serial, token.cpu));
        }
        if !task.is_none() {
            parts.push(format!("bring {task}"));
        }
        if *cpu != NO_CPU {
            parts.push(format!("CPU {cpu}"));
        }
        if *slice_ns != 0 {
            parts.push(format!("slice {slice_ns} ns"));
        }
        if *timer_ns != 0 {
            parts.push(format!("timer in {timer_ns} ns"));
        }
        if !kicks.is_empty() {
            parts.push(format!("kick {kicks:?}"));
        }
        if parts.is_empty() {
            parts.push("nothing".into());
        }
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { call, cpu, task, token_cpu, token_serial, runtime_ns, weight, nice, pid, flags, arg } =
            self.message;
        let name = Call::from_number(call).map_or("?", Call::name);
        let Self { number, time_ns, thread, .. } = self;
        write!(f, "#{number} at {time_ns} ns, CPU {} in PID {thread}: {name}(cpu {cpu}", self.cpu)?;
        if task != TaskId::NONE {
            write!(f, ", {task}, PID {pid}, ran {runtime_ns} ns, weight {weight}, nice {nice}")?;
        }
        if token_serial != 0 {
            write!(f, ", token {token_serial} for CPU {token_cpu}")?;
        }
        if flags != 0 {
            write!(f, ", flags {flags:#x}")?;
        }
        if arg != 0 {
            write!(f, ", {arg}")?;
        }
        match &self.recorded {
            Some(reply) => write!(f, ") -> {}", Shown(reply)),
            None => write!(f, ") and did not end"),
        }
    }
}

/// Locks in words. They are named by the place in the policy where they were taken last.
pub(crate) fn locks(held: &[Held], waiting: impl Iterator<Item = (CpuId, Wait)>) -> Vec<String> {
    let holders = held.iter().map(|held| match held.place {
        Some(at) => format!("CPU {} holds the lock that it took at {}:{}", held.cpu, at.file(), at.line()),
        None => format!("CPU {} holds a lock that it tried", held.cpu),
    });
    let waiters = waiting.map(|(cpu, wait)| {
        let at = wait.place.map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let holder = held.iter().find(|held| held.lock == wait.lock);
        let holder = holder.map_or_else(|| "nobody holds it".into(), |held| format!("CPU {} holds it", held.cpu));
        format!("CPU {cpu} wants a lock{at} as number {}, {} have had it, {holder}", wait.turn, wait.taken)
    });
    holders.chain(waiters).collect()
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, calls: &[Past]) -> fmt::Result {
    if !calls.is_empty() {
        writeln!(f, "  {title}")?;
    }
    calls.iter().try_for_each(|call| writeln!(f, "    {call}"))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        writeln!(f, "  {}", self.call)?;
        if let Some(reply) = &self.replayed {
            writeln!(f, "  in the replay -> {}", Shown(reply))?;
        }
        list(f, "before it:", &self.before)?;
        list(f, "after it:", &self.after)?;
        list(f, "the last calls about its task:", &self.history)?;
        match &self.locks[..] {
            [] => writeln!(f, "  no call held or waited for a lock"),
            locks => locks.iter().try_for_each(|lock| writeln!(f, "  {lock}")),
        }
    }
}
