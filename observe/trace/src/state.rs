//! Where tasks and CPUs stand between two records, and the records that say so to whoever begins to read there.

use std::collections::{BTreeMap, HashMap};

use crate::{Header, Record, What};

/// Most locks that a CPU is believed to hold: more is a damaged trace.
const HELD_MAX: usize = 64;

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum At {
    #[default]
    Away,
    Waiting(u32),
    Running(u32),
}

impl At {
    pub(crate) fn cpu(self) -> Option<u32> {
        match self {
            Self::Away => None,
            Self::Waiting(cpu) | Self::Running(cpu) => Some(cpu),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Task {
    parent: u64,
    name: Vec<u64>,
    nice: u64,
    allowed: Vec<u64>,
    group: u64,
    departed: bool,
    at: At,
    slice_ns: u64,
}

/// Where all stand. Memory grows with the tasks that live, not with the records.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) online: Vec<bool>,
    running: Vec<Option<u32>>,
    tasks: HashMap<u32, Task>,
    limits: BTreeMap<u32, [u64; 2]>,
    /// By CPU, in the order in which they were taken.
    held: Vec<Vec<u64>>,
    is_over: bool,
    is_upgrading: bool,
}

impl State {
    pub(crate) fn new(header: &Header) -> Self {
        Self {
            online: header.cpus.iter().map(|cpu| cpu.online).collect(),
            running: vec![None; header.cpus.len()],
            tasks: HashMap::new(),
            limits: BTreeMap::new(),
            held: vec![Vec::new(); header.cpus.len()],
            is_over: false,
            is_upgrading: false,
        }
    }

    /// Where a task is; away if it is not known.
    pub(crate) fn at(&self, pid: u32) -> At {
        self.tasks.get(&pid).map(|task| task.at).unwrap_or_default()
    }

    /// What runs on a CPU.
    pub(crate) fn running(&self, cpu: u32) -> Option<u32> {
        self.running[cpu as usize]
    }

    /// A task's name, as far as it is known.
    pub(crate) fn name(&self, pid: u32) -> String {
        let bytes: Vec<u8> = self
            .tasks
            .get(&pid)
            .into_iter()
            .flat_map(|task| &task.name)
            .flat_map(|piece| piece.to_le_bytes())
            .collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    /// The tasks that live, the lowest PID first.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.tasks.keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// Takes in what happened. What cannot be is taken as it is.
    pub(crate) fn apply(&mut self, record: &Record) {
        let Record { cpu, what, pid, value, .. } = *record;
        match what {
            What::Limit => self.limits.entry(pid).or_default()[usize::from(cpu != 0)] = value,
            What::Online | What::Offline => self.online[cpu as usize] = what == What::Online,
            What::Fault => self.is_over = true,
            What::Upgrade => self.is_upgrading = value == 1,
            What::Lock if self.held[cpu as usize].len() < HELD_MAX => self.held[cpu as usize].push(value),
            What::Unlock => {
                let held = &mut self.held[cpu as usize];
                if let Some(place) = held.iter().rposition(|class| *class == value) {
                    held.remove(place);
                }
            }
            What::Exit => {
                self.put(pid, At::Away);
                self.tasks.remove(&pid);
            }
            What::New => {
                // A PID may be used again.
                self.put(pid, At::Away);
                self.tasks.insert(pid, Task { parent: value, ..Task::default() });
            }
            What::Enqueue => self.put(pid, At::Waiting(cpu)),
            What::Run => {
                self.put(pid, At::Running(cpu));
                self.task(pid).slice_ns = value;
            }
            What::Keep => self.task(pid).slice_ns = value,
            What::Preempt | What::Block | What::Throttle => self.put(pid, At::Away),
            What::Nice => self.task(pid).nice = value,
            What::Group => self.task(pid).group = value,
            What::Depart | What::Return => self.task(pid).departed = what == What::Depart,
            What::Affinity => self.task(pid).allowed.clear(),
            What::Name => add_piece(&mut self.task(pid).name, record),
            What::Allowed => add_piece(&mut self.task(pid).allowed, record),
            _ => {}
        }
    }

    fn task(&mut self, pid: u32) -> &mut Task {
        self.tasks.entry(pid).or_default()
    }

    fn put(&mut self, pid: u32, to: At) {
        if let At::Running(cpu) = std::mem::replace(&mut self.task(pid).at, to) {
            let running = &mut self.running[cpu as usize];
            *running = running.filter(|other| *other != pid);
        }
        if let At::Running(cpu) = to {
            self.running[cpu as usize] = Some(pid);
        }
    }

    /// What groups may use.
    pub(crate) fn limits(&self, time_ns: u64) -> Vec<Record> {
        let pieces = |(group, values): (&u32, &[u64; 2])| {
            let record = Record { time_ns, cpu: 0, what: What::Limit, pid: *group, value: values[0] };
            [record, Record { cpu: 1, value: values[1], ..record }]
        };
        self.limits.iter().flat_map(pieces).collect()
    }

    /// Who a task is: its name, nice value, CPUs, group and class.
    pub(crate) fn introduce(&self, pid: u32, time_ns: u64) -> Vec<Record> {
        let Some(task) = self.tasks.get(&pid) else { return Vec::new() };
        let cpu = task.at.cpu().unwrap_or(0);
        let record = |what, value| Record { time_ns, cpu, what, pid, value };
        let pieces = |what, values: &[u64]| {
            let record = record(what, 0);
            (0..).zip(values.to_vec()).map(move |(cpu, value)| Record { cpu, value, ..record })
        };
        let mut records = vec![record(What::New, task.parent)];
        records.extend(pieces(What::Name, &task.name));
        records.extend((task.nice != 0).then(|| record(What::Nice, task.nice)));
        if !task.allowed.is_empty() {
            let count: u32 = task.allowed.iter().map(|word| word.count_ones()).sum();
            records.push(record(What::Affinity, count.into()));
            records.extend(pieces(What::Allowed, &task.allowed));
        }
        records.extend((task.group != 0).then(|| record(What::Group, task.group)));
        records.extend(task.departed.then(|| record(What::Depart, 0)));
        records
    }

    /// Where a task is: that it waits, and that it runs.
    pub(crate) fn place(&self, pid: u32, time_ns: u64) -> Vec<Record> {
        let Some(task) = self.tasks.get(&pid) else { return Vec::new() };
        let Some(cpu) = task.at.cpu() else { return Vec::new() };
        let waits = Record { time_ns, cpu, what: What::Enqueue, pid, value: 0 };
        let runs = Record { what: What::Run, value: task.slice_ns, ..waits };
        if matches!(task.at, At::Running(_)) { vec![waits, runs] } else { vec![waits] }
    }

    /// What is under way beside the tasks: locks that are held, a policy that is being replaced or was taken out.
    pub(crate) fn under_way(&self, time_ns: u64) -> Vec<Record> {
        let record = |what, cpu, value| Record { time_ns, cpu, what, pid: 0, value };
        let held = (0..).zip(&self.held).flat_map(|(cpu, held)| held.iter().map(move |class| (cpu, *class)));
        let mut records: Vec<Record> = held.map(|(cpu, class)| record(What::Lock, cpu, class)).collect();
        records.extend(self.is_upgrading.then(|| record(What::Upgrade, 0, 1)));
        records.extend(self.is_over.then(|| record(What::Fault, 0, 0)));
        records
    }
}

/// Piece 0 begins anew.
fn add_piece(pieces: &mut Vec<u64>, record: &Record) {
    if record.cpu == 0 {
        pieces.clear();
    }
    pieces.push(record.value);
}
