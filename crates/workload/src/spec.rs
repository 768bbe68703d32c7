//! What a load is made of: tasks, each with a small program. Plain data, so that whoever runs it (real processes or the
//! simulator) runs the same thing.
//!
//! Rules that every runner keeps:
//! - **Work is fixed, time is not.** `Run { ns }` is the work that takes `ns` on an otherwise idle CPU. With competition it
//!   takes longer on the wall, and the time it takes is what the scheduler decides.
//! - All tasks exist before time 0, waiting. At time 0 all are released at once; a task with `start_ns` sleeps until then.
//! - CPU numbers count the CPUs that the runner may use, from 0.
//! - A task's end does not end its children. The load is over when every task and every child has ended, or at
//!   `duration_ns`, when what still runs is killed.

use serde::{Deserialize, Serialize};

/// Bytes that a pipe holds before its writers block. Linux's own default.
pub const PIPE_CAPACITY: usize = 65_536;

/// Most tasks in one load, copies counted.
pub const TASKS_MAX: u64 = 65_536;

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
    /// What runs.
    pub tasks: Vec<TaskSpec>,
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
    /// When it begins its program, after the load's time 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_ns: u64,
    /// What it does, in order; its end is an [`Step::Exit`].
    pub program: Vec<Step>,
}

/// One thing a task does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Use the CPU: the work of `ns` nanoseconds on an idle CPU, however long that takes here.
    Run {
        /// Nanoseconds of undisturbed CPU time.
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
        /// What is wrong there and what to write instead.
        why: String,
    },
}

impl Workload {
    /// A load that ends with its last task.
    pub fn new(name: impl Into<String>, cpus: u32, tasks: impl IntoIterator<Item = TaskSpec>) -> Self {
        Workload { name: name.into(), cpus, duration_ns: None, tasks: tasks.into_iter().collect() }
    }

    /// The same load, stopped after `duration_ns`.
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

    /// How many pipes there are: one more than the highest that a step names.
    pub fn pipes(&self) -> u32 {
        let mut pipes = 0;
        for task in &self.tasks {
            visit(&task.program, &mut |step| {
                if let Step::PipeWrite { pipe } | Step::PipeRead { pipe } = step {
                    pipes = pipes.max(pipe.saturating_add(1));
                }
            });
        }
        pipes
    }

    /// Whether the load can be run at all.
    ///
    /// # Errors
    /// The first place that makes no sense: a CPU or nice value out of range, two tasks of one name, a loop that never
    /// ends in a load without a duration, a loop in which no time passes.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_places().map_err(|(place, why)| SpecError::Invalid { workload: self.name.clone(), place, why })
    }

    fn check_places(&self) -> Result<(), (String, String)> {
        let whole = |why: &str| Err(("the load".to_string(), why.to_string()));
        if self.cpus == 0 {
            return whole("it needs at least one CPU: set `cpus`");
        }
        if self.tasks.is_empty() {
            return whole("it has no tasks: add one to `tasks`");
        }
        if self.tasks.iter().map(|t| u64::from(t.count)).sum::<u64>() > TASKS_MAX {
            return whole(&format!("it has more than {TASKS_MAX} tasks: lower `count`"));
        }
        if self.pipes() > TASKS_MAX as u32 {
            return whole(&format!("it names a pipe above {}: number pipes from 0", TASKS_MAX - 1));
        }
        let mut names = std::collections::HashSet::new();
        for (name, _) in self.instances() {
            if !names.insert(name.clone()) {
                return whole(&format!("two tasks are called `{name}`: give each its own name"));
            }
        }
        for task in &self.tasks {
            let place = format!("task `{}`", task.name);
            let fail = |why: &str| Err((place.clone(), why.to_string()));
            if task.count == 0 {
                return fail("`count` is 0: leave the task out or ask for at least one copy");
            }
            check_nice(task.nice).map_err(|why| (place.clone(), why))?;
            self.check_cpus(&task.affinity).map_err(|why| (place.clone(), why))?;
            self.check_program(&task.program, &place, 1)?;
        }
        Ok(())
    }

    fn check_program(&self, steps: &[Step], above: &str, depth: usize) -> Result<(), (String, String)> {
        for (number, step) in steps.iter().enumerate() {
            let place = format!("{above}, step {number}");
            let fail = |why: &str| Err((place.clone(), why.to_string()));
            if depth > DEPTH_MAX {
                return fail(&format!("nested deeper than {DEPTH_MAX}: flatten it"));
            }
            match step {
                Step::SetNice { nice } => check_nice(*nice).map_err(|why| (place.clone(), why))?,
                Step::SetAffinity { cpus } => self.check_cpus(cpus).map_err(|why| (place.clone(), why))?,
                Step::Fork { program: inner } | Step::Repeat { steps: inner, .. } => {
                    self.check_program(inner, &place, depth + 1)?;
                }
                Step::Forever { steps: inner } => {
                    if self.duration_ns.is_none() {
                        return fail("`forever` in a load that nothing ends: set `duration_ns`");
                    }
                    if !takes_time(inner) {
                        return fail("`forever` around steps that take no time: put a `run` or `sleep` in it");
                    }
                    let (mut forks, mut waits) = (false, false);
                    visit(inner, &mut |s| forks |= matches!(s, Step::Fork { .. }));
                    visit(inner, &mut |s| waits |= matches!(s, Step::Wait));
                    if forks && !waits {
                        return fail("`forever` forks but never waits, so tasks pile up: add a `wait`");
                    }
                    self.check_program(inner, &place, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_cpus(&self, cpus: &Option<Vec<u32>>) -> Result<(), String> {
        let Some(cpus) = cpus else { return Ok(()) };
        if cpus.is_empty() {
            return Err("a set of no CPUs: leave it out to allow any".into());
        }
        match cpus.iter().find(|cpu| **cpu >= self.cpus) {
            Some(cpu) => Err(format!("CPU {cpu} in a load for {} CPUs: raise `cpus` or name a lower one", self.cpus)),
            None => Ok(()),
        }
    }
}

impl TaskSpec {
    /// One task of nice value 0 that may use any CPU and starts at once.
    pub fn new(name: impl Into<String>, program: Vec<Step>) -> Self {
        TaskSpec { name: name.into(), count: 1, nice: 0, affinity: None, start_ns: 0, program }
    }

    /// The same task, `count` times.
    #[must_use]
    pub fn copies(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// The same task, allowed on these CPUs only.
    #[must_use]
    pub fn on(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        self.affinity = Some(cpus.into_iter().collect());
        self
    }

    /// The same task with this nice value.
    #[must_use]
    pub fn nice(mut self, nice: i32) -> Self {
        self.nice = nice;
        self
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

/// Whether one pass over `steps` certainly takes CPU or wall time, or may block.
fn takes_time(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Run { ns } | Step::Sleep { ns } => *ns > 0,
        Step::Repeat { times, steps } => *times > 0 && takes_time(steps),
        Step::Forever { steps } => takes_time(steps),
        Step::PipeRead { .. } | Step::PipeWrite { .. } | Step::Exit | Step::Exec => true,
        _ => false,
    })
}

/// Calls `with` on every step, nested ones too.
pub(crate) fn visit(steps: &[Step], with: &mut impl FnMut(&Step)) {
    for step in steps {
        with(step);
        if let Step::Fork { program: inner } | Step::Repeat { steps: inner, .. } | Step::Forever { steps: inner } = step
        {
            visit(inner, with);
        }
    }
}

fn check_nice(nice: i32) -> Result<(), String> {
    match nice {
        -20..=19 => Ok(()),
        _ => Err(format!("nice value {nice}: choose one from -20 to 19")),
    }
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
