//! What happened, ordered the way it is drawn: by CPU, and there by time.

use std::collections::{BTreeMap, HashMap};

use ekiden::weight_of_nice;
use ekiden_trace::{At, ByPid, Header, InQueue, Machine, Moved, QueueNote, Record, What};

use crate::{Histogram, Note, NoteKind, note::Kinds};

/// Stands for no task.
pub const NO_TASK: u32 = u32::MAX;

/// A browser counts nanoseconds exactly up to here: 104 days. What comes later is drawn there.
const END_NS_MAX: u64 = 1 << 53;

/// The state of a run queue from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The moment, in nanoseconds.
    pub time_ns: u64,
    /// How many tasks wait for the CPU or run there.
    pub tasks: u32,
    /// Their weights together; 1024 is a task of nice 0. That of a task in a group is divided by the tasks that the group
    /// had when the task came to this run queue, as CFS divides it among the tasks of an autogroup (papers/002, section
    /// 2.2.1).
    pub load: u32,
}

/// A task had a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When it begins, in nanoseconds.
    pub begin_ns: u64,
    /// Until when.
    pub end_ns: u64,
    /// The task: its place in [`Model::tasks`].
    pub task: u32,
    /// How long it had waited for a CPU, in nanoseconds.
    pub waited_ns: u64,
    /// Whether it had been woken up.
    pub woken: bool,
}

/// A scheduler looked at CPUs to decide something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// The CPU that it is for, or from.
    pub cpu: u32,
    /// About which task, or [`NO_TASK`].
    pub task: u32,
    /// The result.
    pub what: What,
    /// The CPUs, 64 in a word.
    pub considered: Vec<u64>,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Its PID.
    pub pid: u32,
    /// Its name; empty if the trace does not tell.
    pub name: String,
}

/// All about one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Every change of its run queue, in the order of time, from 0 on.
    pub changes: Vec<Change>,
    /// What ran there.
    pub runs: Vec<Run>,
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records of the trace.
    pub records: u64,
    /// Another task got a CPU.
    pub switches: u64,
    /// A task was woken up.
    pub wakeups: u64,
    /// A task moved to another CPU.
    pub migrations: u64,
    /// A task lost the CPU.
    pub preemptions: u64,
    /// A CPU was asked to look for work.
    pub kicks: u64,
    /// The host could not run what the policy picked.
    pub refusals: u64,
    /// Records that were lost.
    pub lost: u64,
    /// CPU time of all tasks, in nanoseconds.
    pub busy_ns: u64,
    /// Calls into the policy, if the trace tells of them.
    pub calls: u64,
    /// How long they took together, in nanoseconds.
    pub calls_ns: u128,
    /// How long the longest took.
    pub call_ns_max: u64,
}

/// Counts of hints and notices in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// The first task of its program, if the trace says that.
    pub owner: Option<u32>,
    /// How often it was opened.
    pub opened: u64,
    /// Hints that the policy heard, those that were none among them.
    pub hints: u64,
    /// Hints that were no values of their type.
    pub refused: u64,
    /// Hints for which there was no room.
    pub full: u64,
    /// What the policy said.
    pub notices: u64,
    /// And what there was no room for.
    pub lost: u64,
}

/// How long the tasks of one program waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Waits {
    /// The times from being woken up to running.
    pub wake: Histogram,
    /// From standing in a run queue to running, whatever made it wait.
    pub queue: Histogram,
}

/// What happened, as it is drawn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The CPUs, from 0.
    pub lanes: Vec<Lane>,
    /// The tasks, in the order in which they were first seen.
    pub tasks: Vec<Task>,
    /// Decisions, in the order of time.
    pub decisions: Vec<Decision>,
    /// What the policy noted and what was said in queues of hints, in the order of time.
    pub notes: Vec<Note>,
    /// What that can be, in the order in which it was first seen.
    pub note_kinds: Vec<NoteKind>,
    /// When the trace ends, in nanoseconds.
    pub end_ns: u64,
    /// How often things happened.
    pub counters: Counters,
    /// What programs said to the policy and it to them, by queue of hints.
    pub queues: BTreeMap<u32, QueueCounts>,
    /// The waits of each task.
    pub waits: Vec<Waits>,
}

/// State of a task that is drawn and that [`Machine`] does not have.
#[derive(Clone, Debug)]
struct Extra {
    woken_ns: Option<u64>,
    weight: u32,
    /// 0 is no group.
    group: u64,
    /// What it counts for in the load of the run queue that it is in.
    load: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    tasks: u32,
    load: u64,
    /// What runs, as the run that will be noted when it ends.
    run: Option<Run>,
}

/// Takes in records one after the other. Costs some tens of nanoseconds each.
#[derive(Debug)]
pub struct Builder {
    model: Model,
    machine: Machine,
    /// The places of tasks in [`Model::tasks`]. That of one which is gone stays until its PID is used again.
    numbers: ByPid,
    extras: Vec<Extra>,
    queues: Vec<Queue>,
    /// How many tasks a group has.
    groups: HashMap<u64, u32>,
    considered: Vec<u64>,
    kinds: Kinds,
}

impl Builder {
    /// For a trace with this header.
    pub fn new(header: &Header) -> Self {
        let nr_cpus = header.nr_cpus() as usize;
        let first = Lane { changes: vec![Change { time_ns: 0, tasks: 0, load: 0 }], runs: Vec::new() };
        Self {
            model: Model { lanes: vec![first; nr_cpus], ..Model::default() },
            machine: Machine::new(header),
            numbers: ByPid::default(),
            extras: Vec::new(),
            queues: vec![Queue { tasks: 0, load: 0, run: None }; nr_cpus],
            groups: HashMap::new(),
            considered: Vec::new(),
            kinds: Kinds::default(),
        }
    }

    fn note(&mut self, record: &Record, (kind, value): (u32, u64)) {
        let task = if record.pid == 0 { NO_TASK } else { self.task(record.pid) };
        self.model.notes.push(Note { time_ns: self.model.end_ns, cpu: record.cpu, task, kind, value });
    }

    fn note_queue(&mut self, record: &Record) {
        let Some(said) = QueueNote::from_value(record.value) else { return };
        let noted = self.kinds.said(said, &mut self.model.note_kinds);
        self.note(record, noted);
        let QueueNote { queue, what, times } = said;
        let task = if record.pid == 0 { None } else { Some(self.task(record.pid)) };
        let counts = self.model.queues.entry(queue).or_default();
        counts.owner = counts.owner.or(task);
        let count = match what {
            InQueue::Opened => &mut counts.opened,
            InQueue::Closed => return,
            InQueue::Heard => &mut counts.hints,
            InQueue::Refused => &mut counts.refused,
            InQueue::Full => &mut counts.full,
            InQueue::Told => &mut counts.notices,
            InQueue::NotTold => &mut counts.lost,
        };
        *count = count.saturating_add(if what == InQueue::Opened { 1 } else { times.into() });
    }

    /// Takes in what happened. What cannot be is taken as it is.
    pub fn record(&mut self, record: &Record) {
        let Record { cpu, what, pid, value, .. } = *record;
        self.model.counters.records += 1;
        // A damaged trace may go backwards; then time stands still.
        self.model.end_ns = self.model.end_ns.max(record.time_ns.min(END_NS_MAX));
        if what == What::Considered {
            self.considered.push(value);
            return;
        }
        // These tell how long the deciding took, or what the policy noted in it.
        let is_about_calls = matches!(what, What::Call | What::Lock | What::Unlock | What::Note | What::NoteName);
        if !self.considered.is_empty() && !is_about_calls {
            let task = if pid == 0 { NO_TASK } else { self.task(pid) };
            let considered = std::mem::take(&mut self.considered);
            self.model.decisions.push(Decision { time_ns: self.model.end_ns, cpu, task, what, considered });
        }
        if let Some(moved) = self.machine.apply(&Record { time_ns: self.model.end_ns, ..*record }) {
            self.moved(moved);
        }
        match what {
            What::Preempt => self.model.counters.preemptions += 1,
            What::Exit => self.join(pid, 0),
            What::Group => self.join(pid, value),
            What::Call => {
                self.model.counters.calls += 1;
                self.model.counters.calls_ns += u128::from(value);
                self.model.counters.call_ns_max = self.model.counters.call_ns_max.max(value);
            }
            What::New => {
                // A PID may be used again.
                if self.numbers.get(pid).is_some() {
                    self.join(pid, 0);
                }
                self.add(pid);
            }
            What::Wake => {
                self.model.counters.wakeups += 1;
                let task = self.task(pid) as usize;
                if self.machine.at(pid) == At::Away {
                    self.extras[task].woken_ns = Some(self.model.end_ns);
                }
            }
            What::Queue => self.note_queue(record),
            What::Note | What::NoteName => {
                if let Some(noted) = self.kinds.noted(record, &mut self.model.note_kinds) {
                    self.note(record, noted);
                }
            }
            What::Migrate => self.model.counters.migrations += 1,
            What::Kick => self.model.counters.kicks += 1,
            What::Refuse => self.model.counters.refusals += 1,
            // Some were, even if they were not counted.
            What::Lost => self.model.counters.lost = self.model.counters.lost.saturating_add(value.max(1)),
            What::Nice => {
                let task = self.task(pid);
                self.extras[task as usize].weight = weight_of_nice((value as i64).clamp(-20, 19) as i32);
                self.weigh(pid);
            }
            What::Name => {
                let task = self.task(pid);
                self.model.tasks[task as usize].name = self.machine.name(pid).into_owned();
            }
            _ => {}
        }
    }

    /// Nothing more happens.
    pub fn finish(mut self) -> Model {
        let end_ns = self.model.end_ns;
        for (lane, queue) in self.model.lanes.iter_mut().zip(&self.queues) {
            lane.runs.extend(queue.run.map(|run| Run { end_ns, ..run }));
            lane.runs.retain(|run| run.begin_ns < run.end_ns);
            self.model.counters.busy_ns += lane.runs.iter().map(|run| run.end_ns - run.begin_ns).sum::<u64>();
        }
        self.model
    }

    fn add(&mut self, pid: u32) -> u32 {
        let task = self.model.tasks.len() as u32;
        self.model.tasks.push(Task { pid, name: String::new() });
        self.model.waits.push(Waits::default());
        let weight = weight_of_nice(0);
        self.extras.push(Extra { woken_ns: None, weight, group: 0, load: weight });
        self.numbers.set(pid, task);
        task
    }

    fn task(&mut self, pid: u32) -> u32 {
        self.numbers.get(pid).unwrap_or_else(|| self.add(pid))
    }

    fn moved(&mut self, moved: Moved) {
        let now_ns = self.model.end_ns;
        let Moved { pid, from, to, .. } = moved;
        let task = self.task(pid);
        if let At::Running(cpu) = to {
            let waited_ns = moved.waited_ns().unwrap_or(0);
            let woken_ns = self.extras[task as usize].woken_ns.take();
            let waits = &mut self.model.waits[task as usize];
            waits.queue.add(waited_ns);
            if let Some(woken_ns) = woken_ns {
                waits.wake.add(now_ns - woken_ns);
            }
            self.model.counters.switches += 1;
            let run = Run { begin_ns: now_ns, end_ns: now_ns, task, waited_ns, woken: woken_ns.is_some() };
            let before = self.queues[cpu as usize].run.replace(run);
            // Two at once cannot be; the one that came later counts.
            self.end(cpu, before);
        }
        if let At::Running(cpu) = from {
            let queue = &mut self.queues[cpu as usize];
            let stays = to == from;
            if !stays && queue.run.is_some_and(|run| run.task == task) {
                let run = queue.run.take();
                self.end(cpu, run);
            }
        }
        if from.cpu() == to.cpu() {
            return;
        }
        if let Some(cpu) = from.cpu() {
            let load = self.extras[task as usize].load;
            let queue = &mut self.queues[cpu as usize];
            (queue.tasks, queue.load) = (queue.tasks - 1, queue.load - u64::from(load));
            self.change(cpu);
        }
        if let Some(cpu) = to.cpu() {
            let load = self.load(task);
            self.extras[task as usize].load = load;
            let queue = &mut self.queues[cpu as usize];
            (queue.tasks, queue.load) = (queue.tasks + 1, queue.load + u64::from(load));
            self.change(cpu);
        }
    }

    /// A run is over.
    fn end(&mut self, cpu: u32, run: Option<Run>) {
        let end_ns = self.model.end_ns;
        self.model.lanes[cpu as usize].runs.extend(run.map(|run| Run { end_ns, ..run }));
    }

    /// A task changes its group.
    fn join(&mut self, pid: u32, group: u64) {
        let task = self.task(pid);
        let before = std::mem::replace(&mut self.extras[task as usize].group, group);
        if before == group {
            return;
        }
        if let Some(count) = self.groups.get_mut(&before) {
            *count -= 1;
        }
        if group != 0 {
            *self.groups.entry(group).or_default() += 1;
        }
        self.weigh(pid);
    }

    /// What a task counts for in a load from now on.
    fn load(&self, task: u32) -> u32 {
        let Extra { weight, group, .. } = self.extras[task as usize];
        let tasks = if group == 0 { 1 } else { self.groups.get(&group).copied().unwrap_or(1) };
        (weight / tasks.max(1)).max(1)
    }

    /// The weight of a task has changed.
    fn weigh(&mut self, pid: u32) {
        let task = self.task(pid);
        let load = self.load(task);
        let before = std::mem::replace(&mut self.extras[task as usize].load, load);
        if let Some(cpu) = self.machine.at(pid).cpu() {
            let queue = &mut self.queues[cpu as usize];
            queue.load = queue.load - u64::from(before) + u64::from(load);
            self.change(cpu);
        }
    }

    /// Notes how the run queue of a CPU is from now on. What lasts no time at all is not seen.
    fn change(&mut self, cpu: u32) {
        let Queue { tasks, load, .. } = self.queues[cpu as usize];
        let load = load.min(u32::MAX.into()) as u32;
        let change = Change { time_ns: self.model.end_ns, tasks, load };
        let changes = &mut self.model.lanes[cpu as usize].changes;
        if changes.last().is_some_and(|last| last.time_ns == change.time_ns) {
            changes.pop();
        }
        if changes.last().is_none_or(|last| (last.tasks, last.load) != (tasks, load)) {
            changes.push(change);
        }
    }
}
