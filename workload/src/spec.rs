//! What a load is made of: tasks, each with a small program. Plain data, so that either host (real processes or the
//! simulator) runs the same thing.
//!
//! Rules that every runner keeps:
//! - **Work is fixed, time is not.** `Run { ns }` is the work that takes `ns` on an otherwise idle CPU. With competition it
//!   takes longer on the wall, and the time it takes is what the scheduler decides.
//! - All tasks exist before time 0, waiting. At time 0 all are released at once; a task with `start_ns` sleeps until then.
//! - CPU numbers count the CPUs that the runner may use, from 0.
//! - Locks, barriers, conditions and pipes exist because they are named, by number from 0, and are shared by all tasks.
//!   A lock belongs to no task: any task that unlocks it frees it, and a task that ends does not.
//! - A task's end does not end its children. The load is over when every task and every child has ended, or at
//!   `duration_ns`, when what still runs is killed.

mod check;
pub(crate) mod numbers;

use serde::{Deserialize, Serialize};

/// Bytes that a pipe holds before its writers block. Linux's own default.
pub const PIPE_CAPACITY: usize = 65_536;

/// Most tasks in one load, copies counted.
pub const TASKS_MAX: u64 = 4_194_304;

/// A group's weight if it says nothing, and if a task has none: cgroups' own default of `cpu.weight`.
pub const GROUP_WEIGHT: u32 = 100;

/// Most timers of one task.
pub const TIMERS_MAX: u32 = 256;

/// The least quota and period of a [`Limit`], as in the kernel.
pub const LIMIT_NS_MIN: u64 = 1_000_000;

/// Deepest nesting of `Repeat`, `Forever` and `Fork`.
pub const DEPTH_MAX: usize = 16;

/// A load: tasks that start together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name, as reports show it.
    pub name: String,
    /// How many CPUs it needs: every CPU number in it is below this.
    pub cpus: u32,
    /// When set, the load is stopped at this time; when not, it ends with its last task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Groups of tasks, as control groups or the kernel's autogroups are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Devices that [`Step::Io`] waits for, numbered from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// What runs.
    pub tasks: Vec<TaskSpec>,
}

/// Tasks whose CPU time is shared out, or limited, together. One level: groups hold no groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name, by which tasks say that they belong to it.
    pub name: String,
    /// Its share, as a cgroup's `cpu.weight`: 1 to 10,000. A policy decides what to make of it.
    #[serde(default = "group_weight", skip_serializing_if = "is_group_weight")]
    pub weight: u32,
    /// The most CPU time that it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

/// CPU time that a group has in every period, as a cgroup's `cpu.max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Nanoseconds of CPU time, all CPUs together.
    pub quota_ns: u64,
    /// Nanoseconds until there is a new quota; what is left of the old one is lost.
    pub period_ns: u64,
}

/// Something that serves requests at its own pace, such as a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// How many requests it serves at once; others wait in the order in which they came.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub servers: u32,
    /// Time that one request takes, in nanoseconds.
    pub service_ns: u64,
    /// Whether that is only the mean of an exponential distribution.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exponential: bool,
}

/// How a task waits for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WaitMode {
    /// Asleep (a futex).
    #[default]
    Block,
    /// On its CPU, looking again and again, which uses CPU time and nothing else.
    Spin,
    /// First one, then the other.
    SpinThenBlock {
        /// CPU time after which it goes to sleep, in nanoseconds.
        spin_ns: u64,
    },
}

/// One task, or several equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its name. With `count` above one, copies are called `name.0`, `name.1` and so on.
    pub name: String,
    /// How many copies there are.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
    /// Nice value at the start, −20 to 19.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nice: i32,
    /// The CPUs it may use at the start; absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Vec<u32>>,
    /// The group that it and its children belong to; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// When it begins its program, after the load's time 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_ns: u64,
    /// What it does, in order; its end is an [`Step::Exit`].
    pub program: Vec<Step>,
}

/// Four bytes of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HintWord {
    /// This number.
    Value(u32),
    /// The thread id of the task that writes it.
    OwnPid,
    /// How many bytes a pipe holds when the hint is written: a count that tasks keep together. Not on a real kernel yet.
    Held {
        /// Which pipe, from 0.
        pipe: u32,
    },
}

/// Most bytes of a hint, as in the kernel.
pub const HINT_BYTES_MAX: usize = 256;

/// One thing a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Use the CPU: the work of `ns` nanoseconds on an idle CPU, however long that takes here.
    Run {
        /// Nanoseconds of undisturbed CPU time.
        ns: u64,
    },
    /// Use the CPU until `ns` of wall time have passed, no matter which task had the CPU meanwhile.
    RunFor {
        /// Nanoseconds.
        ns: u64,
    },
    /// Block for `ns` of wall time.
    Sleep {
        /// Nanoseconds.
        ns: u64,
    },
    /// Put one byte into a pipe; blocks while it holds [`PIPE_CAPACITY`] bytes.
    PipeWrite {
        /// Which pipe, from 0. Pipes exist because they are named, and stay until the load is over.
        pipe: u32,
    },
    /// Take one byte from a pipe; blocks while it is empty, even if all who might write have ended.
    PipeRead {
        /// Which pipe, from 0.
        pipe: u32,
    },
    /// Take a byte from a pipe without going to sleep for it, as programs do that have CPUs of their own: while there is none, look for one
    /// on the CPU. If none has come for `spin_ns` of CPU time, do `idle`, and begin anew. If several tasks look, the one that began
    /// last has the next byte, so that the others come to `idle`. Not on a real kernel yet.
    PipePoll {
        /// Which pipe, from 0.
        pipe: u32,
        /// Nanoseconds.
        spin_ns: u64,
        /// What to do when nothing comes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        idle: Vec<Step>,
    },
    /// Do `steps` if a pipe holds this many bytes. Not on a real kernel yet.
    IfHeld {
        /// Which pipe, from 0.
        pipe: u32,
        /// How many bytes it holds at least.
        at_least: u32,
        /// What to do then.
        steps: Vec<Step>,
    },
    /// Take a lock, waiting while another task has it. There is no queue for it: when it is freed, a task that spins for it
    /// on a CPU has it at once; else the one that has slept longest is woken up and tries again.
    Lock {
        /// Which lock, from 0.
        lock: u32,
        /// How to wait.
        #[serde(default, skip_serializing_if = "is_zero")]
        mode: WaitMode,
    },
    /// Free a lock.
    Unlock {
        /// Which lock, from 0.
        lock: u32,
    },
    /// Wait until `parties` tasks have come to this barrier. The last to come continues at once.
    Barrier {
        /// Which barrier, from 0.
        barrier: u32,
        /// How many tasks it takes.
        parties: u32,
        /// How to wait.
        #[serde(default, skip_serializing_if = "is_zero")]
        mode: WaitMode,
    },
    /// Free `lock`, sleep until a task signals `condition`, and take `lock` again. A signal without a waiter is
    /// lost.
    Await {
        /// Which condition, from 0.
        condition: u32,
        /// The lock; absent: none is freed or taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lock: Option<u32>,
    },
    /// Wake up the task that has waited longest for `condition`.
    Signal {
        /// Which condition, from 0.
        condition: u32,
    },
    /// Wake up all tasks that wait for `condition`.
    Broadcast {
        /// Which condition, from 0.
        condition: u32,
    },
    /// Sleep until `device` has served a request.
    Io {
        /// Which of the load's devices.
        device: u32,
    },
    /// Write a hint for the policy into a queue, without a system call. The task that first uses a queue opens it; it and its children may
    /// use it, and it closes when that task ends. A hint for which there is no room is lost. On a real kernel each process has a queue
    /// of its own by each number, a child as well, and the policy is the default one.
    WriteHint {
        /// Which queue, from 0; to the policy it is one more.
        queue: u32,
        /// What the hint is made of.
        hint: Vec<HintWord>,
        /// Have the policy look at once, by a system call.
        #[serde(default, skip_serializing_if = "is_zero")]
        ring: bool,
    },
    /// Take the oldest notice of the policy's from a queue; sleeps while there is none. Goes on without one if the queue is closed.
    ReadNotice {
        /// Which queue, from 0.
        queue: u32,
    },
    /// Sleep until the next of the times that lie `period_ns` apart, beginning when this task first comes to a step
    /// with this timer. Returns at once if that time has passed.
    Timer {
        /// Which of the task's own timers, from 0.
        timer: u32,
        /// Nanoseconds.
        period_ns: u64,
        /// After a time that has passed, count on from now; otherwise missed periods are caught up on.
        #[serde(default, skip_serializing_if = "is_zero")]
        restart: bool,
    },
    /// Take a CPU out of the machine. Tasks there go elsewhere; those that may run nowhere else may then run anywhere.
    CpuOffline {
        /// The CPU that leaves.
        cpu: u32,
    },
    /// Put it back.
    CpuOnline {
        /// The CPU that comes back.
        cpu: u32,
    },
    /// `sched_yield`: let others run, staying runnable.
    Yield,
    /// Change the task's own nice value.
    SetNice {
        /// −20 to 19. To go below the present value takes privilege.
        nice: i32,
    },
    /// Change the CPUs the task may use.
    SetAffinity {
        /// The CPUs; absent means any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpus: Option<Vec<u32>>,
    },
    /// Start a child that runs `program`. It inherits nice value and affinity.
    Fork {
        /// What the child does.
        program: Vec<Step>,
    },
    /// Block until all of this task's own children have ended.
    Wait,
    /// Replace the program image (`execve`) by one that exits at once; what follows is not reached.
    Exec,
    /// Do `steps` this many times.
    Repeat {
        /// How many times; 0 skips them.
        times: u64,
        /// What to do each time.
        steps: Vec<Step>,
    },
    /// Do `steps` until the load's `duration_ns` ends it.
    Forever {
        /// What to do each time.
        steps: Vec<Step>,
    },
    /// Note the present time in the report of the task that the load names (a child's marks count as its ancestor's).
    Mark,
    /// End here. Children live on.
    Exit,
}

/// Why a load was refused.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Not the JSON of a load. The inner error names line and column.
    #[error("the load is not valid: {0}; correct that place (`ekiden-load show pipe` prints one that is valid)")]
    Json(#[from] serde_json::Error),
    /// Well-formed, but cannot be run.
    #[error("the load `{workload}` cannot run: {place}: {why}")]
    Invalid {
        /// Name of the load.
        workload: String,
        /// Where: which task, which step.
        place: String,
        /// The mistake there and what to write instead.
        why: String,
    },
}

impl Workload {
    /// A load that ends with its last task.
    pub fn new(name: impl Into<String>, cpus: u32, tasks: impl IntoIterator<Item = TaskSpec>) -> Self {
        Workload {
            name: name.into(),
            cpus,
            duration_ns: None,
            groups: Vec::new(),
            devices: Vec::new(),
            tasks: tasks.into_iter().collect(),
        }
    }

    /// Stops the load after `duration_ns`.
    #[must_use]
    pub fn lasting(mut self, duration_ns: u64) -> Self {
        self.duration_ns = Some(duration_ns);
        self
    }

    /// Reads and checks the JSON form.
    ///
    /// # Errors
    /// With line and column where the text is not a load; with task and step where it cannot be run.
    pub fn parse(json: &str) -> Result<Self, SpecError> {
        let load: Workload = serde_json::from_str(json)?;
        load.check()?;
        Ok(load)
    }

    /// The JSON form, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data with string keys always has a JSON form")
    }

    /// Every task under its own name, copies told apart, in the order of the spec.
    pub fn instances(&self) -> impl Iterator<Item = (String, &TaskSpec)> {
        self.tasks.iter().flat_map(|task| {
            (0..task.count).map(move |copy| match task.count {
                1 => (task.name.clone(), task),
                _ => (format!("{}.{copy}", task.name), task),
            })
        })
    }

    /// Adds this group, which tasks join by its name.
    #[must_use]
    pub fn with_group(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Adds one more device.
    #[must_use]
    pub fn with_device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Where the group of this name stands in the list.
    pub fn group_number(&self, name: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.name == name)
    }
}

impl TaskSpec {
    /// One task of nice value 0 that may use any CPU and starts at once.
    pub fn new(name: impl Into<String>, program: Vec<Step>) -> Self {
        TaskSpec { name: name.into(), count: 1, nice: 0, affinity: None, group: None, start_ns: 0, program }
    }

    /// Copies the task: `count` tasks in all.
    #[must_use]
    pub fn copies(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Allows the task on these CPUs only.
    #[must_use]
    pub fn on(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        self.affinity = Some(cpus.into_iter().collect());
        self
    }

    /// Sets the task's nice value.
    #[must_use]
    pub fn nice(mut self, nice: i32) -> Self {
        self.nice = nice;
        self
    }

    /// Puts the task into the group of this name.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }
}

impl Group {
    /// A group of the usual weight and without a limit.
    pub fn new(name: impl Into<String>) -> Self {
        Group { name: name.into(), weight: GROUP_WEIGHT, limit: None }
    }
}

impl Step {
    /// `steps`, this many times.
    pub fn repeat(times: u64, steps: impl IntoIterator<Item = Step>) -> Self {
        Step::Repeat { times, steps: steps.into_iter().collect() }
    }

    /// `steps`, until the load is stopped.
    pub fn forever(steps: impl IntoIterator<Item = Step>) -> Self {
        Step::Forever { steps: steps.into_iter().collect() }
    }

    /// A child that does `steps`.
    pub fn fork(steps: impl IntoIterator<Item = Step>) -> Self {
        Step::Fork { program: steps.into_iter().collect() }
    }
}

fn group_weight() -> u32 {
    GROUP_WEIGHT
}

fn is_group_weight(weight: &u32) -> bool {
    *weight == GROUP_WEIGHT
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
