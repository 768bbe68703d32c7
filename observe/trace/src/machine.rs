//! Where tasks and CPUs are between two records: the one account of it, for all that read traces.

use std::{borrow::Cow, collections::BTreeMap};

use crate::{ByPid, Header, Record, What};

/// Most locks that a CPU is believed to hold: more is a damaged trace.
const HELD_MAX: usize = 64;

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// It sleeps, has not begun, or is throttled.
    #[default]
    Away,
    /// It waits for this CPU.
    Waiting(u32),
    /// It runs on this CPU.
    Running(u32),
}

impl At {
    /// The CPU whose run queue it is in.
    pub fn cpu(self) -> Option<u32> {
        match self {
            Self::Away => None,
            Self::Waiting(cpu) | Self::Running(cpu) => Some(cpu),
        }
    }
}

/// State of a task.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Its PID.
    pub pid: u32,
    /// Where it is.
    pub at: At,
    /// Since when; for one that waits, since it began to wait, wherever that was.
    pub since_ns: u64,
    /// CPU time so far, up to the last time that it left a CPU.
    pub ran_ns: u64,
    /// The CPU that it got last.
    pub last_cpu: Option<u32>,
    /// Its nice value.
    pub nice: i32,
    /// Whether another scheduling class has it.
    pub departed: bool,
    /// The CPUs that it may use, 64 in a word; empty if the trace does not tell.
    pub allowed: Vec<u64>,
    /// The name as it came, eight bytes at a time.
    pub(crate) name: Vec<u8>,
    pub(crate) parent: u64,
    pub(crate) group: u64,
    pub(crate) slice_ns: u64,
}

impl Task {
    /// Its name; empty if the trace does not tell.
    pub fn name(&self) -> Cow<'_, str> {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len])
    }

    /// Whether it may run on `cpu`, as far as its affinity says.
    pub fn may_run(&self, cpu: u32) -> bool {
        self.allowed.is_empty() || self.allowed.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }
}

/// State of a CPU.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    /// What runs there.
    pub running: Option<u32>,
    /// Since when it has nothing to run.
    pub idle_since_ns: Option<u64>,
    /// Whether it is part of the machine.
    pub online: bool,
    /// The locks that it holds, in the order in which they were taken.
    pub(crate) held: Vec<u64>,
}

/// A record told where a task is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The task.
    pub pid: u32,
    /// Where it was.
    pub from: At,
    /// Where it is.
    pub to: At,
    /// How long it was where it was: see [`Task::since_ns`].
    pub for_ns: u64,
}

impl Moved {
    /// How long it had waited, if it did until it got this CPU.
    pub fn waited_ns(&self) -> Option<u64> {
        matches!((self.from, self.to), (At::Waiting(_), At::Running(_))).then_some(self.for_ns)
    }

    /// For how long it ran, if it did until now, and on which CPU.
    pub fn ran_ns(&self) -> Option<(u32, u64)> {
        if let At::Running(cpu) = self.from { Some((cpu, self.for_ns)) } else { None }
    }
}

/// State of the machine. Memory grows with the tasks that live, not with the records.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The time of the last record, in nanoseconds since the trace began.
    pub now_ns: u64,
    /// The CPUs, from 0.
    pub cpus: Vec<Cpu>,
    tasks: Vec<Option<Task>>,
    /// Places in `tasks`, by PID, and those that are free.
    places: ByPid,
    free: Vec<u32>,
    pub(crate) limits: BTreeMap<u32, [u64; 2]>,
    /// Whether the policy was taken out, and whether it is being replaced.
    pub(crate) is_over: bool,
    pub(crate) is_upgrading: bool,
}

impl Machine {
    /// Before the first record of a trace with this header: nothing runs.
    pub fn new(header: &Header) -> Self {
        let cpu = |online| Cpu { online, idle_since_ns: Some(0), ..Cpu::default() };
        Self {
            now_ns: 0,
            cpus: header.cpus.iter().map(|entry| cpu(entry.online)).collect(),
            tasks: Vec::new(),
            places: ByPid::default(),
            free: Vec::new(),
            limits: BTreeMap::new(),
            is_over: false,
            is_upgrading: false,
        }
    }

    /// State of a task; nothing if it was never seen, or is gone.
    #[inline]
    pub fn task(&self, pid: u32) -> Option<&Task> {
        self.tasks[self.places.get(pid)? as usize].as_ref()
    }

    /// All tasks, in no order.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().flatten()
    }

    /// Where a task is; away if it is not known.
    pub fn at(&self, pid: u32) -> At {
        self.task(pid).map(|task| task.at).unwrap_or_default()
    }

    /// A task's name, as far as it is known.
    pub fn name(&self, pid: u32) -> Cow<'_, str> {
        self.task(pid).map(Task::name).unwrap_or_default()
    }

    /// CPU time of a task up to now.
    pub fn ran_ns(&self, pid: u32) -> u64 {
        self.task(pid).map_or(0, |task| match task.at {
            At::Running(_) => task.ran_ns + (self.now_ns - task.since_ns),
            _ => task.ran_ns,
        })
    }

    /// Lets time pass without anything happening.
    pub fn pass(&mut self, now_ns: u64) {
        // A damaged trace may go backwards; then time stands still.
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes in what happened, and returns the task that it moved. What cannot be is taken as it is: invariants are the
    /// checker's.
    pub fn apply(&mut self, record: &Record) -> Option<Moved> {
        let Record { time_ns, cpu, what, pid, value } = *record;
        self.pass(time_ns);
        match what {
            What::Enqueue => return Some(self.put(pid, At::Waiting(cpu))),
            What::Run => {
                let moved = self.put(pid, At::Running(cpu));
                let task = self.task_mut(pid);
                (task.slice_ns, task.last_cpu) = (value, Some(cpu));
                return Some(moved);
            }
            // Where it goes is in the records that follow.
            What::Preempt | What::Block | What::Throttle => return Some(self.put(pid, At::Away)),
            What::Exit => {
                let moved = self.places.get(pid).map(|_| self.put(pid, At::Away));
                self.remove(pid);
                return moved;
            }
            What::New => {
                // A PID may be used again.
                let moved = self.places.get(pid).map(|_| self.put(pid, At::Away));
                let now_ns = self.now_ns;
                *self.task_mut(pid) = Task { pid, parent: value, since_ns: now_ns, ..Task::default() };
                return moved;
            }
            What::Keep => self.task_mut(pid).slice_ns = value,
            What::Nice => self.task_mut(pid).nice = value as i32,
            What::Group => self.task_mut(pid).group = value,
            What::Depart | What::Return => self.task_mut(pid).departed = what == What::Depart,
            What::Affinity => self.task_mut(pid).allowed.clear(),
            // Piece 0 begins anew.
            What::Allowed => {
                let allowed = &mut self.task_mut(pid).allowed;
                allowed.truncate(if cpu == 0 { 0 } else { allowed.len() });
                allowed.push(value);
            }
            What::Name => {
                let name = &mut self.task_mut(pid).name;
                name.truncate(if cpu == 0 { 0 } else { name.len() });
                name.extend(value.to_le_bytes());
            }
            What::Online | What::Offline => self.cpus[cpu as usize].online = what == What::Online,
            What::Lock => {
                let held = &mut self.cpus[cpu as usize].held;
                held.extend((held.len() < HELD_MAX).then_some(value));
            }
            What::Unlock => {
                let held = &mut self.cpus[cpu as usize].held;
                if let Some(place) = held.iter().rposition(|class| *class == value) {
                    held.remove(place);
                }
            }
            What::Limit => self.limits.entry(pid).or_default()[usize::from(cpu != 0)] = value,
            What::Upgrade => self.is_upgrading = value == 1,
            What::Fault => self.is_over = true,
            _ => {}
        }
        None
    }

    #[inline]
    fn task_mut(&mut self, pid: u32) -> &mut Task {
        let place = self.places.get(pid).unwrap_or_else(|| {
            let place = self.free.pop().unwrap_or_else(|| {
                self.tasks.push(None);
                self.tasks.len() as u32 - 1
            });
            self.places.set(pid, place);
            place
        });
        self.tasks[place as usize].get_or_insert_with(|| Task { pid, ..Task::default() })
    }

    fn remove(&mut self, pid: u32) {
        if let Some(place) = self.places.remove(pid) {
            self.tasks[place as usize] = None;
            self.free.push(place);
        }
    }

    fn put(&mut self, pid: u32, to: At) -> Moved {
        let now_ns = self.now_ns;
        let task = self.task_mut(pid);
        let from = std::mem::replace(&mut task.at, to);
        let for_ns = now_ns - task.since_ns;
        if let At::Running(_) = from {
            task.ran_ns += for_ns;
        }
        if !matches!((from, to), (At::Waiting(_), At::Waiting(_))) {
            task.since_ns = now_ns;
        }
        if let At::Running(cpu) = from {
            let cpu = &mut self.cpus[cpu as usize];
            if cpu.running == Some(pid) {
                (cpu.running, cpu.idle_since_ns) = (None, Some(now_ns));
            }
        }
        if let At::Running(cpu) = to {
            let cpu = &mut self.cpus[cpu as usize];
            (cpu.running, cpu.idle_since_ns) = (Some(pid), None);
        }
        Moved { pid, from, to, for_ns }
    }
}

#[cfg(test)]
mod tests {
    use ekiden::Topology;

    use super::*;

    #[test]
    fn waits_and_times_on_cpus_follow_a_task_wherever_it_goes() {
        let mut machine = Machine::new(&Header::of(&Topology::regular(1, 1, 2, 1)));
        let mut told = |time_ns, cpu, what| machine.apply(&Record { time_ns, cpu, what, pid: 7, value: 0 });
        assert_eq!(told(1, 0, What::New), None);
        assert_eq!(told(2, 0, What::Enqueue).and_then(|moved| moved.waited_ns()), None);
        // It waits on, elsewhere.
        assert_eq!(told(5, 1, What::Enqueue).map(|moved| moved.to), Some(At::Waiting(1)));
        assert_eq!(told(9, 1, What::Run).and_then(|moved| moved.waited_ns()), Some(7));
        // A damaged trace goes backwards.
        assert_eq!(told(8, 1, What::Run).and_then(|moved| moved.ran_ns()), Some((1, 0)));
        assert_eq!(told(19, 1, What::Block).and_then(|moved| moved.ran_ns()), Some((1, 10)));
        assert_eq!(machine.ran_ns(7), 10);
        assert_eq!((machine.cpus[1].running, machine.cpus[1].idle_since_ns), (None, Some(19)));
        assert!(machine.apply(&Record { time_ns: 20, cpu: 0, what: What::Exit, pid: 7, value: 0 }).is_some());
        assert!(machine.task(7).is_none() && machine.tasks().next().is_none());
    }

    #[test]
    fn a_name_ends_at_its_first_zero_and_the_first_piece_begins_it_anew() {
        let mut machine = Machine::new(&Header::of(&Topology::regular(1, 1, 1, 1)));
        let mut told = |cpu, text: &[u8; 8]| {
            let value = u64::from_le_bytes(*text);
            machine.apply(&Record { time_ns: 0, cpu, what: What::Name, pid: 7, value });
            machine.name(7).into_owned()
        };
        assert_eq!(told(0, b"postgres"), "postgres");
        assert_eq!(told(1, b": a\0b\0\0\0"), "postgres: a");
        assert_eq!(told(0, b"sh\0\0\0\0\0\0"), "sh");
    }
}
