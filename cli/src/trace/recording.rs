//! Contents of recordings of a policy's calls: `ekiden trace info`, `cat` and `export` read those too.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::File,
    io::{BufReader, Write},
    path::Path,
};

use anyhow::{Context, Result};
use ekiden_host::abi::{Call, NO_CPU, Noted, TaskId};
use ekiden_recording::{Entry, Header, Host, Item, Mark, RecordedCall, RecordingError, RecordingReader};
use serde::Serialize;

use super::filter::Filter;

/// A recording that is being read, with a name for each task.
pub(super) struct Recording {
    reader: RecordingReader<BufReader<File>>,
    /// When the first call in it, or mark, was.
    begin_ns: Option<u64>,
    /// By index: the tasks that had it last, with their PIDs.
    pids: HashMap<u32, (TaskId, u32)>,
}

/// Something in a recording. What it does not have is absent.
#[derive(Default, Serialize)]
pub(super) struct Told {
    /// When it began, in nanoseconds since the first call.
    time_ns: u64,
    /// The CPU that a call is about; of something else, that in whose stream it is.
    cpu: u32,
    /// The call, or what else there is.
    what: &'static str,
    /// The task that the call is about.
    pid: Option<u32>,
    /// The thread that ran where the call was made, and, in a kernel, on which CPU that was; 0 if it was idle.
    by_pid: Option<u32>,
    by_cpu: Option<u32>,
    /// The CPU of the token that goes to the policy.
    token_cpu: Option<u32>,
    /// CPU time of the task so far.
    runtime_ns: Option<u64>,
    nice: Option<i32>,
    flags: u32,
    arg: u64,
    /// Whether it was answered.
    answered: bool,
    /// The task whose token the policy hands over, and for how long it may run.
    picked_pid: Option<u32>,
    slice_ns: Option<u64>,
    /// The task that is to be moved here.
    pulled_pid: Option<u32>,
    /// The CPU that is chosen.
    chosen_cpu: Option<u32>,
    timer_ns: Option<u64>,
    /// The CPUs that are to look for work.
    kicks: Option<String>,
    /// What the policy noted, each with its value.
    notes: Option<String>,
    /// Records that were lost here, or make no sense.
    lost: Option<u64>,
}

impl Recording {
    /// Opens it, if it is one: nothing if it is something else.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
        match RecordingReader::new(BufReader::with_capacity(1 << 16, file)) {
            Ok(reader) => Ok(Some(Self { reader, begin_ns: None, pids: HashMap::new() })),
            Err(RecordingError::Foreign) => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn pid(&self, task: TaskId) -> Option<u32> {
        self.pids.get(&task.slot).filter(|(known, _)| *known == task).map(|(_, pid)| *pid)
    }

    fn call(&mut self, cpu: u32, call: &RecordedCall) -> Told {
        let message = call.message;
        let is_about_task = !message.task.is_none();
        if is_about_task {
            self.pids.insert(message.task.slot, (message.task, message.pid));
        }
        let told = Told {
            cpu: message.cpu,
            what: Call::from_number(message.call).map_or("unknown", Call::name),
            pid: is_about_task.then_some(message.pid),
            by_pid: Some(call.thread),
            by_cpu: Some(cpu).filter(|_| self.reader.header().host == Host::Kernel),
            token_cpu: (message.token_serial != 0).then_some(message.token_cpu),
            runtime_ns: is_about_task.then_some(message.runtime_ns),
            nice: is_about_task.then_some(message.nice),
            flags: message.flags,
            arg: message.arg,
            notes: (!call.noted.is_empty()).then(|| listed(&call.noted)),
            ..Told::default()
        };
        let Some(reply) = call.reply else { return told };
        let kicks: Vec<String> = reply.kicks.iter().map(|cpu| cpu.to_string()).collect();
        Told {
            answered: true,
            picked_pid: self.pid(reply.token.task).filter(|_| message.call == Call::PickNextTask as u32),
            slice_ns: Some(reply.slice_ns).filter(|slice_ns| *slice_ns > 0),
            pulled_pid: self.pid(reply.task),
            chosen_cpu: Some(reply.cpu).filter(|cpu| *cpu != NO_CPU && message.call == Call::SelectTaskRq as u32),
            timer_ns: Some(reply.timer_ns).filter(|timer_ns| *timer_ns > 0),
            kicks: if reply.kicks.is_all() { Some("all".into()) } else { (!kicks.is_empty()).then(|| kicks.join(" ")) },
            ..told
        }
    }
}

fn listed(notes: &[Noted]) -> String {
    notes.iter().map(Noted::to_string).collect::<Vec<_>>().join(", ")
}

impl Iterator for Recording {
    type Item = Result<Told, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let recorded = match self.reader.next()? {
            Ok(recorded) => recorded,
            Err(error) => return Some(Err(error)),
        };
        // A loss before the first call has no time.
        if matches!(recorded.item, Item::Entry(Entry::Call(_) | Entry::Mark(_))) {
            self.begin_ns.get_or_insert(recorded.time_ns);
        }
        let begin_ns = self.begin_ns.unwrap_or(recorded.time_ns);
        let plain = |what, lost| Told { cpu: recorded.cpu, what, lost, ..Told::default() };
        let told = match &recorded.item {
            Item::Entry(Entry::Call(call)) => self.call(recorded.cpu, call),
            Item::Entry(Entry::Mark(mark)) => match mark.mark {
                Mark::Begin => plain("begin", None),
                Mark::HandOver => plain("hand_over", None),
                Mark::Fault => plain("fault", None),
                Mark::GoOn => plain("go_on", None),
            },
            Item::Entry(Entry::Stray(count)) => plain("stray", Some(*count)),
            Item::Gap { lost } => plain("gap", Some(*lost)),
            Item::Torn => plain("torn", None),
        };
        Some(Ok(Told { time_ns: recorded.time_ns.saturating_sub(begin_ns), ..told }))
    }
}

/// One line for people, as that of a trace.
impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, ns) = (self.time_ns / 1_000, self.time_ns % 1_000);
        write!(f, "{us:>10}.{ns:03} [{:>3}] {:<21}", self.cpu, self.what)?;
        if let Some(lost) = self.lost {
            return write!(f, " {lost} records");
        }
        if let Some(pid) = self.pid {
            write!(f, " pid {pid}")?;
        }
        if let Some(cpu) = self.token_cpu {
            write!(f, " token for CPU {cpu}")?;
        }
        let picks = self.what == Call::PickNextTask.name();
        match (self.picked_pid, self.pulled_pid, self.chosen_cpu) {
            (Some(pid), ..) => {
                write!(f, " -> pid {pid}")?;
                self.slice_ns.map_or(Ok(()), |slice_ns| write!(f, " for {} us", slice_ns / 1_000))?;
            }
            (_, Some(pid), _) => write!(f, " -> pull pid {pid}")?,
            (.., Some(cpu)) => write!(f, " -> CPU {cpu}")?,
            _ if picks && self.answered => f.write_str(" -> nothing")?,
            _ if self.pid.is_some() && !self.answered => f.write_str(" -> no answer")?,
            _ => {}
        }
        if let Some(kicks) = &self.kicks {
            write!(f, ", kicks {kicks}")?;
        }
        if let Some(notes) = &self.notes {
            write!(f, ", notes {notes}")?;
        }
        self.timer_ns.map_or(Ok(()), |timer_ns| write!(f, ", timer in {} us", timer_ns / 1_000))?;
        self.by_pid.map_or(Ok(()), |pid| write!(f, ", by pid {pid}"))?;
        self.by_cpu.map_or(Ok(()), |cpu| write!(f, " on CPU {cpu}"))
    }
}

#[derive(Serialize)]
struct Info<'a> {
    header: &'a Header,
    calls: u64,
    tasks: u32,
    lost: u64,
    until_ns: u64,
    kinds: BTreeMap<&'static str, u64>,
}

pub(super) fn info(path: &Path, mut recording: Recording, json: bool) -> Result<()> {
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut calls, mut lost, mut until_ns) = (0, 0, 0);
    let mut tasks: BTreeMap<u32, u64> = BTreeMap::new();
    for told in recording.by_ref() {
        let told = told.with_context(|| path.display().to_string())?;
        *kinds.entry(told.what).or_default() += 1;
        calls += u64::from(told.answered);
        lost += told.lost.unwrap_or(0);
        until_ns = until_ns.max(told.time_ns);
        if let Some(pid) = told.pid {
            *tasks.entry(pid / 64).or_default() |= 1 << (pid % 64);
        }
    }
    let header = recording.reader.header();
    let tasks = tasks.values().map(|word| word.count_ones()).sum();
    let info = Info { header, calls, tasks, lost, until_ns, kinds };
    if json {
        println!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(());
    }
    let policy = format!("{} {}", header.instance.policy, header.instance.params);
    println!("calls of {}, {}", policy.trim_end(), header.workload);
    println!("{} CPUs, {tasks} tasks, {calls} calls, {lost} records lost", header.topology()?.nr_cpus());
    println!("from 0 us until {} us", until_ns / 1_000);
    for (what, count) in &info.kinds {
        println!("{count:>12} {what}");
    }
    println!("next: ekiden replay {}", path.display());
    Ok(())
}

pub(super) fn cat(path: &Path, recording: Recording, filter: &Filter, mut out: impl Write) -> Result<()> {
    for told in recording {
        let told = told.with_context(|| path.display().to_string())?;
        let pids = [told.pid, told.picked_pid, told.pulled_pid];
        if filter.has_part(told.time_ns, Some(told.cpu), pids.into_iter().flatten()) {
            writeln!(out, "{}", told.to_string().trim_end())?;
        }
    }
    out.flush()?;
    Ok(())
}
