//! Whether a load can be run at all, and if not, the first place that makes no sense.

use std::collections::{HashMap, HashSet};

use super::{
    DEPTH_MAX, HINT_BYTES_MAX, LIMIT_NS_MIN, Limit, SpecError, Step, TASKS_MAX, TIMERS_MAX, Workload, numbers::visit,
};

impl Workload {
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
        let named = [
            ("pipe", self.pipes()),
            ("lock", self.locks()),
            ("barrier", self.barriers()),
            ("condition", self.conditions()),
            ("queue", self.queues()),
        ];
        if let Some((what, _)) = named.iter().find(|(_, count)| u64::from(*count) > TASKS_MAX) {
            return whole(&format!("it names a {what} above {}: number them from 0", TASKS_MAX - 1));
        }
        if self.timers() > TIMERS_MAX {
            return whole(&format!("it names a timer above {}: number each task's own from 0", TIMERS_MAX - 1));
        }
        self.check_groups()?;
        for (number, device) in self.devices.iter().enumerate() {
            if device.servers == 0 || device.service_ns == 0 {
                let why = "it never serves anybody: give it at least one of `servers` and 1 of `service_ns`";
                return Err((format!("device {number}"), why.into()));
            }
        }
        let mut parties = HashMap::new();
        let mut names = HashSet::new();
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
            if let Some(group) = task.group.as_ref().filter(|group| self.group_number(group).is_none()) {
                return fail(&format!("it belongs to `{group}`, which is none of `groups`: add it there"));
            }
            self.check_program(&task.program, &place, 1)?;
            let mut disagree = None;
            visit(&task.program, &mut |step| {
                if let Step::Barrier { barrier, parties: wanted, .. } = step {
                    if *parties.entry(*barrier).or_insert(*wanted) != *wanted {
                        disagree = Some(*barrier);
                    }
                }
            });
            if let Some(barrier) = disagree {
                return fail(&format!("barrier {barrier} has other `parties` elsewhere: they must be the same"));
            }
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<(), (String, String)> {
        for (number, group) in self.groups.iter().enumerate() {
            let place = format!("group `{}`", group.name);
            if self.group_number(&group.name) != Some(number) {
                return Err((place, "there are two of that name: give each its own".into()));
            }
            if !(1..=10_000).contains(&group.weight) {
                return Err((place, format!("weight {}: choose one from 1 to 10000", group.weight)));
            }
            let too_short = |limit: Limit| limit.quota_ns < LIMIT_NS_MIN || limit.period_ns < LIMIT_NS_MIN;
            if group.limit.is_some_and(too_short) {
                let why = "a limit below what the kernel takes: `quota_ns` and `period_ns` are at least 1000000";
                return Err((place, why.into()));
            }
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
                Step::CpuOffline { cpu } | Step::CpuOnline { cpu } => {
                    self.check_cpus(&Some(vec![*cpu])).map_err(|why| (place.clone(), why))?;
                }
                Step::Barrier { parties: 0, .. } => return fail("a barrier for nobody: set `parties` to at least 1"),
                Step::Timer { period_ns: 0, .. } => return fail("a timer without a period: set `period_ns`"),
                Step::Io { device } if *device as usize >= self.devices.len() => {
                    return fail(&format!("there is no device {device}: add it to `devices`, counted from 0"));
                }
                Step::WriteHint { hint, .. } if hint.is_empty() || hint.len() * 4 > HINT_BYTES_MAX => {
                    return fail(&format!("a hint of {} bytes: choose 4 to {HINT_BYTES_MAX}", hint.len() * 4));
                }
                Step::PipePoll { spin_ns: 0, idle, .. } if !takes_time(idle) => {
                    return fail("a look at a pipe that is over at once: set `spin_ns`, or put a `sleep` into `idle`");
                }
                Step::Fork { program: inner }
                | Step::Repeat { steps: inner, .. }
                | Step::PipePoll { idle: inner, .. }
                | Step::IfHeld { steps: inner, .. } => {
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

/// Whether one pass over `steps` certainly takes CPU or wall time, or may block.
fn takes_time(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Run { ns } | Step::RunFor { ns } | Step::Sleep { ns } => *ns > 0,
        Step::Repeat { times, steps } => *times > 0 && takes_time(steps),
        Step::Forever { steps } => takes_time(steps),
        Step::PipeRead { .. } | Step::PipeWrite { .. } | Step::PipePoll { .. } | Step::Exit | Step::Exec => true,
        Step::Await { .. } | Step::Io { .. } | Step::ReadNotice { .. } => true,
        Step::Timer { period_ns, .. } => *period_ns > 0,
        _ => false,
    })
}

fn check_nice(nice: i32) -> Result<(), String> {
    match nice {
        -20..=19 => Ok(()),
        _ => Err(format!("nice value {nice}: choose one from -20 to 19")),
    }
}
