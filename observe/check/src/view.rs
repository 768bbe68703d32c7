//! What is known of the machine at one moment, from the records so far.

use std::collections::{BTreeSet, HashMap};

use ekiden::CpuMask;
use ekiden_trace::{Header, Host, Record, What};

use crate::{TaskName, wasted_cpus};

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whereabouts {
    /// It sleeps, or has not begun.
    #[default]
    Away,
    /// It waits for this CPU.
    Waiting(u32),
    /// It runs on this CPU.
    Running(u32),
    /// It is gone.
    Gone,
}

/// What is known of a task.
#[derive(Clone, Debug, Default)]
pub struct TaskView {
    /// Where it is.
    pub whereabouts: Whereabouts,
    /// Since when; for one that waits, since it began to wait, wherever that was.
    pub since_ns: u64,
    /// CPU time so far, up to the last time that it left a CPU.
    pub ran_ns: u64,
    /// Its nice value.
    pub nice: i32,
    /// Whether another scheduling class has it.
    pub departed: bool,
    allowed: Vec<u64>,
    name: Vec<u8>,
}

impl TaskView {
    /// Whether it may run on `cpu`, as far as its affinity says.
    pub fn may_run(&self, cpu: u32) -> bool {
        self.allowed.is_empty() || self.allowed.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).trim_end_matches('\0').to_owned()
    }
}

/// What is known of a CPU.
#[derive(Clone, Debug, Default)]
pub struct CpuView {
    /// What runs there.
    pub running: Option<u32>,
    /// What waits there, in the order of PIDs.
    pub waiting: BTreeSet<u32>,
    /// Since when something has always waited there; meaningless while nothing does.
    pub waiting_since_ns: u64,
    /// Since when it has nothing to run.
    pub idle_since_ns: Option<u64>,
    /// Whether it is part of the machine.
    pub online: bool,
    /// What it adds to [`View::spare`] and [`View::left_waiting`].
    counted: (bool, usize),
}

/// What is known of the machine.
#[derive(Clone, Debug)]
pub struct View {
    /// The time of the last record, in nanoseconds since the trace began.
    pub now_ns: u64,
    /// The CPUs, from 0.
    pub cpus: Vec<CpuView>,
    /// Whether a scheduler is in charge that is to be judged: a policy that has not been taken out, or a kernel's own.
    pub in_charge: bool,
    /// CPUs that could run a task: they are online, run nothing, and nothing waits for them.
    pub spare: CpuMask,
    /// How many tasks wait, without the one that each idle CPU is about to run.
    nr_left: usize,
    tasks: HashMap<u32, TaskView>,
}

impl View {
    pub(crate) fn new(header: &Header) -> Self {
        let cpu = |online| CpuView { online, idle_since_ns: Some(0), ..CpuView::default() };
        let mut view = Self {
            now_ns: 0,
            cpus: header.cpus.iter().map(|entry| cpu(entry.online)).collect(),
            in_charge: header.policy.is_some() || header.host == Host::Kernel,
            spare: CpuMask::new(),
            nr_left: 0,
            tasks: HashMap::new(),
        };
        (0..header.cpus.len() as u32).for_each(|cpu| view.count(cpu));
        view
    }

    /// What is known of a task; nothing if it was never seen.
    pub fn task(&self, pid: u32) -> Option<&TaskView> {
        self.tasks.get(&pid)
    }

    /// All tasks, in no order.
    pub fn tasks(&self) -> impl Iterator<Item = (u32, &TaskView)> {
        self.tasks.iter().map(|(pid, task)| (*pid, task))
    }

    /// A task as people call it.
    pub fn name(&self, pid: u32) -> TaskName {
        TaskName { pid, name: self.task(pid).map(TaskView::name).unwrap_or_default() }
    }

    /// CPU time of a task up to now.
    pub fn ran_ns(&self, pid: u32) -> u64 {
        self.task(pid).map_or(0, |task| match task.whereabouts {
            Whereabouts::Running(_) => task.ran_ns + (self.now_ns - task.since_ns),
            _ => task.ran_ns,
        })
    }

    /// Lets time pass without anything happening.
    pub(crate) fn pass(&mut self, now_ns: u64) {
        // A damaged trace may go backwards; then time stands still.
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes in what happened. What cannot be is taken as it is; the checks have something to say about it.
    pub(crate) fn apply(&mut self, record: &Record) {
        let Record { cpu, what, pid, value, .. } = *record;
        match what {
            What::Enqueue => self.put(pid, Whereabouts::Waiting(cpu)),
            What::Run => self.put(pid, Whereabouts::Running(cpu)),
            // Where it goes is in the records that follow.
            What::Preempt | What::Block | What::Throttle => self.put(pid, Whereabouts::Away),
            What::Exit => {
                self.put(pid, Whereabouts::Gone);
                self.tasks.remove(&pid);
            }
            What::New => {
                // A PID may be used again.
                self.put(pid, Whereabouts::Gone);
                self.tasks.insert(pid, TaskView { since_ns: self.now_ns, ..TaskView::default() });
            }
            What::Nice => self.tasks.entry(pid).or_default().nice = value as i32,
            What::Affinity => self.tasks.entry(pid).or_default().allowed.clear(),
            What::Depart => self.tasks.entry(pid).or_default().departed = true,
            What::Return => self.tasks.entry(pid).or_default().departed = false,
            What::Name => {
                let name = &mut self.tasks.entry(pid).or_default().name;
                if cpu == 0 {
                    name.clear();
                }
                name.extend(value.to_le_bytes());
            }
            What::Allowed => {
                let allowed = &mut self.tasks.entry(pid).or_default().allowed;
                if cpu == 0 {
                    allowed.clear();
                }
                allowed.push(value);
            }
            What::Online | What::Offline => {
                self.cpus[cpu as usize].online = what == What::Online;
                self.count(cpu);
            }
            What::Fault => self.in_charge = false,
            _ => {}
        }
    }

    fn put(&mut self, pid: u32, to: Whereabouts) {
        let now_ns = self.now_ns;
        let task = self.tasks.entry(pid).or_default();
        let from = std::mem::replace(&mut task.whereabouts, to);
        if let Whereabouts::Running(_) = from {
            task.ran_ns += now_ns - task.since_ns;
        }
        let still_waits = matches!((from, to), (Whereabouts::Waiting(_), Whereabouts::Waiting(_)));
        if !still_waits {
            task.since_ns = now_ns;
        }
        match from {
            Whereabouts::Waiting(cpu) => {
                self.cpus[cpu as usize].waiting.remove(&pid);
            }
            Whereabouts::Running(cpu) => {
                let cpu = &mut self.cpus[cpu as usize];
                if cpu.running == Some(pid) {
                    (cpu.running, cpu.idle_since_ns) = (None, Some(now_ns));
                }
            }
            Whereabouts::Away | Whereabouts::Gone => {}
        }
        match to {
            Whereabouts::Waiting(cpu) => {
                let cpu = &mut self.cpus[cpu as usize];
                if cpu.waiting.is_empty() {
                    cpu.waiting_since_ns = now_ns;
                }
                cpu.waiting.insert(pid);
            }
            Whereabouts::Running(cpu) => {
                let cpu = &mut self.cpus[cpu as usize];
                (cpu.running, cpu.idle_since_ns) = (Some(pid), None);
            }
            Whereabouts::Away | Whereabouts::Gone => {}
        }
        for place in [from, to] {
            if let Whereabouts::Waiting(cpu) | Whereabouts::Running(cpu) = place {
                self.count(cpu);
            }
        }
    }

    /// Counts a CPU anew that may have changed.
    fn count(&mut self, number: u32) {
        let cpu = &mut self.cpus[number as usize];
        let is_idle = cpu.online && cpu.running.is_none();
        let is_spare = is_idle && cpu.waiting.is_empty();
        let left = cpu.waiting.len().saturating_sub(usize::from(is_idle));
        let (was_spare, was_left) = std::mem::replace(&mut cpu.counted, (is_spare, left));
        self.nr_left = self.nr_left + left - was_left;
        match (was_spare, is_spare) {
            (false, true) => self.spare.set(number),
            (true, false) => self.spare.clear(number),
            _ => {}
        }
    }

    /// How many spare CPUs could each run a task of its own that has waited for another CPU since `since_ns` or longer.
    pub fn wasted_cpus(&self, since_ns: u64) -> u32 {
        if !self.may_waste() {
            return 0;
        }
        let (mut anywhere, mut choosy) = (0, Vec::new());
        for task in self.left_waiting(since_ns).filter_map(|pid| self.task(pid)) {
            match task.allowed.as_slice() {
                [] => anywhere += 1,
                words => choosy.push(CpuMask::from_words(words)),
            }
        }
        wasted_cpus(&self.spare, anywhere, &choosy)
    }

    /// Whether any CPU could run a task that waits for another, as far as affinities allow it.
    pub(crate) fn may_waste(&self) -> bool {
        !self.spare.is_empty() && self.nr_left > 0
    }

    /// When the first of those tasks began to wait that did so after `since_ns`; the first of all without that.
    pub(crate) fn next_since_ns(&self, since_ns: Option<u64>) -> Option<u64> {
        let waiting = self.cpus.iter().filter(|cpu| cpu.counted.1 > 0).flat_map(|cpu| &cpu.waiting);
        waiting
            .filter_map(|pid| self.task(*pid))
            .map(|task| task.since_ns)
            .filter(|at_ns| Some(*at_ns) > since_ns)
            .min()
    }

    /// The tasks that have waited since `since_ns` or longer, without the one that each idle CPU is about to run.
    pub fn left_waiting(&self, since_ns: u64) -> impl Iterator<Item = u32> + '_ {
        let waits = move |pid: &u32| self.task(*pid).is_some_and(|task| !task.departed && task.since_ns <= since_ns);
        let of_cpu = move |cpu: &CpuView| {
            let (_, left) = cpu.counted;
            cpu.waiting.iter().copied().filter(waits).take(left).collect::<Vec<u32>>()
        };
        self.cpus.iter().filter(|cpu| cpu.counted.1 > 0).flat_map(of_cpu)
    }

    /// The CPUs for which something holds.
    pub fn cpus_where(&self, mut holds: impl FnMut(&CpuView) -> bool) -> CpuMask {
        (0..).zip(&self.cpus).filter(|(_, cpu)| holds(cpu)).map(|(number, _)| number).collect()
    }
}
