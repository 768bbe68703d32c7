//! Makes records of what happened.

use std::collections::HashMap;

use ekiden::Topology;
use ekiden_trace::{Header, Host, Record, Tidy, What, names};

use crate::{
    About,
    event::{Event, Leaves, Moment, Name, Task},
};

/// Priorities of the kernel: of nice 0, and the first that is not of a real-time task.
const NICE_0_PRIO: i32 = 120;
const FIRST_NORMAL_PRIO: i32 = 100;

/// Makes records of what happened, as the bytes of a trace.
pub(crate) struct Teller {
    pub(crate) told: Vec<u8>,
    nr_cpus: u32,
    has_wakeup: bool,
    has_waking: bool,
    tasks: HashMap<u32, Known>,
    tidy: Tidy,
    /// When the recording begins; unknown before its first moment.
    begin_ns: Option<u64>,
    /// The tasks that run then.
    first: Vec<(u32, Task)>,
}

/// What has been told of a task.
#[derive(Clone, Copy)]
struct Known {
    name: Name,
    prio: i32,
}

impl Teller {
    pub(crate) fn new(about: About, first: Vec<(u32, Task)>) -> Self {
        let About { nr_cpus, workload, has_wakeup, has_waking } = about;
        let header = Header { host: Host::Kernel, workload, ..Header::of(&Topology::flat(nr_cpus)) };
        Self {
            told: header.to_bytes(),
            nr_cpus,
            has_wakeup,
            has_waking,
            tasks: HashMap::new(),
            tidy: Tidy::healing(),
            begin_ns: None,
            first,
        }
    }

    /// Tells of what happened next.
    pub(crate) fn tell(&mut self, moment: &Moment) {
        let begin_ns = *self.begin_ns.get_or_insert(moment.time_ns);
        for (cpu, task) in std::mem::take(&mut self.first) {
            self.learn(0, cpu, &task);
            self.put(Record { time_ns: 0, cpu, what: What::Enqueue, pid: task.pid, value: 0 });
            self.put(Record { time_ns: 0, cpu, what: What::Run, pid: task.pid, value: 0 });
        }
        let (time_ns, cpu) = (moment.time_ns.saturating_sub(begin_ns), moment.cpu);
        let on = |cpu, what, pid, value| Record { time_ns, cpu, what, pid, value };
        match &moment.event {
            Event::Switch { prev, leaves, next } => {
                self.learn(time_ns, cpu, prev);
                match leaves {
                    _ if prev.pid == 0 => {}
                    Leaves::Ready => {
                        self.put(on(cpu, What::Preempt, prev.pid, 0));
                        self.put(on(cpu, What::Enqueue, prev.pid, 0));
                    }
                    Leaves::Asleep => self.put(on(cpu, What::Block, prev.pid, 0)),
                    Leaves::Dead => {
                        self.put(on(cpu, What::Exit, prev.pid, 0));
                        self.tasks.remove(&prev.pid);
                    }
                }
                self.learn(time_ns, cpu, next);
                self.put(if next.pid == 0 { on(cpu, What::Idle, 0, 0) } else { on(cpu, What::Run, next.pid, 0) });
            }
            Event::Waking { task, target, by } => {
                self.learn(time_ns, cpu, task);
                self.put(on(*target, What::Wake, task.pid, waker(cpu, *by)));
                if !self.has_wakeup {
                    self.put(on(*target, What::Enqueue, task.pid, 0));
                }
            }
            Event::Wakeup { task, target, by, is_new } => {
                self.learn(time_ns, cpu, task);
                if !self.has_waking && !is_new {
                    self.put(on(*target, What::Wake, task.pid, waker(cpu, *by)));
                }
                self.put(on(*target, What::Enqueue, task.pid, 0));
            }
            Event::Migrate { task, from, to } => {
                self.learn(time_ns, cpu, task);
                self.put(on(*to, What::Migrate, task.pid, (*from).into()));
            }
            Event::Fork { parent, child, name } => {
                self.tasks.remove(child);
                self.introduce(time_ns, cpu, *child, *parent, name);
            }
            Event::Rename { pid, name } => {
                if self.tasks.contains_key(pid) {
                    self.rename(time_ns, *pid, name);
                }
            }
            Event::Idle => self.put(on(cpu, What::Idle, 0, 0)),
            Event::Hotplug { target, is_online } => {
                self.put(on(*target, if *is_online { What::Online } else { What::Offline }, 0, 0));
            }
            Event::Lost { count } => self.put(on(cpu, What::Lost, 0, *count)),
        }
    }

    /// Takes in what an event says of a task, and tells what is new.
    fn learn(&mut self, time_ns: u64, cpu: u32, task: &Task) {
        let Task { pid, ref name, prio } = *task;
        if pid == 0 {
            return;
        }
        match self.tasks.get(&pid) {
            None => self.introduce(time_ns, cpu, pid, 0, name),
            Some(known) if known.name != *name => self.rename(time_ns, pid, name),
            Some(_) => {}
        }
        let Some((prio, known)) = prio.zip(self.tasks.get_mut(&pid)) else { return };
        let before = std::mem::replace(&mut known.prio, prio);
        if before == prio {
            return;
        }
        let tell = |what, value| Record { time_ns, cpu, what, pid, value };
        let is_real_time = |prio| prio < FIRST_NORMAL_PRIO;
        if is_real_time(before) != is_real_time(prio) {
            self.put(tell(if is_real_time(prio) { What::Depart } else { What::Return }, 0));
        }
        if !is_real_time(prio) {
            self.put(tell(What::Nice, i64::from(prio - NICE_0_PRIO) as u64));
        }
    }

    fn introduce(&mut self, time_ns: u64, cpu: u32, pid: u32, parent: u32, name: &Name) {
        self.put(Record { time_ns, cpu, what: What::New, pid, value: parent.into() });
        self.rename(time_ns, pid, name);
    }

    fn rename(&mut self, time_ns: u64, pid: u32, name: &Name) {
        let known = self.tasks.entry(pid).or_insert(Known { name: *name, prio: NICE_0_PRIO });
        known.name = *name;
        let text = String::from_utf8_lossy(name);
        for (cpu, value) in (0..).zip(names(text.trim_end_matches('\0'))) {
            self.put(Record { time_ns, cpu, what: What::Name, pid, value });
        }
    }

    /// Tells of it if it can be: a damaged recording may name any CPU, and the idle task.
    fn put(&mut self, record: Record) {
        let is_about_task = !matches!(record.what, What::Idle | What::Online | What::Offline | What::Lost);
        if record.cpu < self.nr_cpus && is_about_task == (record.pid != 0) {
            let told = &mut self.told;
            self.tidy.pass(record, &mut |record| told.extend_from_slice(&record.to_bytes()));
        }
    }
}

/// What wakes a task up: its CPU and one, or zero. What runs when a CPU is idle is an interrupt, mostly the timer's.
fn waker(cpu: u32, by: u32) -> u64 {
    if by == 0 { 0 } else { u64::from(cpu) + 1 }
}
