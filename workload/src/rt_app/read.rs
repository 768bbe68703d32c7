//! What rt-app's keys mean.

mod events;
mod value;

use std::collections::HashMap;

use events::{absolute_timers, is_event};
use value::At;

use super::json::{Data, Entry, Position, Value};
use super::{Place, Remark, RtAppError};
use crate::spec::{Group, Step, TaskSpec, Workload};

type Result<T> = std::result::Result<T, RtAppError>;

/// Largest number of a CPU.
const CPU_MAX: u32 = 8_191;

/// The binding of memory to nodes, by all the names that versions of rt-app and its users have for it.
const MEMORY_KEYS: [&str; 4] = ["nodes_membind", "membind_nodes", "nodes_membership", "numa_nodes_membind"];

/// Numbers for names, in the order in which they come.
#[derive(Default)]
struct Numbers(HashMap<String, u32>);

impl Numbers {
    fn of(&mut self, name: &str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name.to_owned()).or_insert(next)
    }
}

/// A barrier: how many tasks come to it, and the last task that named it.
struct Barrier {
    parties: u64,
    named_by: usize,
}

struct Reader<'a> {
    remarks: Vec<Remark>,
    tasks: Vec<(String, At<'a>)>,
    duration_ns: Option<u64>,
    mem_buffer_bytes: u64,
    to_dev_null: bool,
    mutexes: Numbers,
    conditions: Numbers,
    barrier_numbers: Numbers,
    barriers: Vec<Barrier>,
    /// Which task uses each timer that is not its own.
    shared_timers: HashMap<String, usize>,
    groups: Vec<Group>,
    cpus: u32,
    steps: usize,
}

/// Everything about a task that is not an event.
#[derive(Clone, Default)]
struct Properties {
    nice: Option<i32>,
    cpus: Option<Vec<u32>>,
    group: Option<String>,
    loops: Option<Option<u64>>,
}

/// A task while it is read.
struct Actor {
    index: usize,
    instances: u64,
    /// The tasks that fork each other, down to this one.
    above: Vec<usize>,
    timers: Numbers,
    /// Timers that count on from their own times and not from the present.
    absolute: Vec<String>,
}

pub(super) fn load(name: &str, root: &Value) -> Result<(Workload, Vec<Remark>)> {
    let mut reader = Reader {
        remarks: Vec::new(),
        tasks: Vec::new(),
        duration_ns: None,
        mem_buffer_bytes: 4_194_304,
        to_dev_null: true,
        mutexes: Numbers::default(),
        conditions: Numbers::default(),
        barrier_numbers: Numbers::default(),
        barriers: Vec::new(),
        shared_timers: HashMap::new(),
        groups: Vec::new(),
        cpus: 1,
        steps: 0,
    };
    let root = At { value: root, path: String::new() };
    let mut tasks = None;
    for (entry, at) in reader.once_each(&root, root.object()?) {
        match entry.key.as_str() {
            "tasks" => tasks = Some(at),
            "global" => reader.global(&at)?,
            "resources" => reader.resources(&at)?,
            key => reader.remark(entry, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
        }
    }
    let Some(tasks) = tasks else {
        return root.fail("there is no object `tasks`, without which rt-app does nothing: add it");
    };
    reader.name_tasks(&tasks)?;
    let mut specs = Vec::new();
    for index in 0..reader.tasks.len() {
        specs.extend(reader.task(index)?);
    }
    reader.set_parties(&mut specs);
    let mut load = Workload::new(name, reader.cpus, specs);
    load.duration_ns = reader.duration_ns;
    load.groups = reader.groups;
    Ok((load, reader.remarks))
}

impl<'a> Reader<'a> {
    fn remark(&mut self, entry: &Entry, at: &At<'_>, what: impl Into<String>) {
        self.remark_at(entry.at, at, what);
    }

    fn remark_at(&mut self, position: Position, at: &At<'_>, what: impl Into<String>) {
        self.remarks.push(Remark { place: Place::new(position, at.path.as_str()), what: what.into() });
    }

    /// The entries of an object, of those with one key only the first. The script that prepares files for rt-app gives
    /// the others names that rt-app does not know.
    fn once_each(&mut self, parent: &At<'a>, entries: &'a [Entry]) -> Vec<(&'a Entry, At<'a>)> {
        let mut kept: Vec<(&Entry, At<'a>)> = Vec::new();
        for entry in entries {
            let at = parent.under(&entry.key, &entry.value);
            match kept.iter().any(|(other, _)| other.key == entry.key) {
                true => self.remark(entry, &at, "given before; the first counts"),
                false => kept.push((entry, at)),
            }
        }
        kept
    }

    fn global(&mut self, global: &At<'a>) -> Result<()> {
        const OUTPUT: &str = "concerns what rt-app writes, and changes nothing here";
        for (entry, at) in self.once_each(global, global.object()?) {
            match entry.key.as_str() {
                "duration" => {
                    let seconds = at.integer(i32::MIN.into())?;
                    self.duration_ns = (seconds > 0).then(|| seconds.unsigned_abs() * 1_000_000_000);
                }
                "default_policy" => policy(&at)?,
                "pi_enabled" if at.bool()? => return at.fail("priority inheritance is not modelled: say false"),
                "pi_enabled" => {}
                "calibration" => {
                    if !matches!(at.value.data, Data::Integer(_)) && !at.text()?.starts_with("CPU") {
                        return at.fail("neither nanoseconds per loop nor a CPU, as in \"CPU0\"");
                    }
                    self.remark(entry, &at, "work is given in time, and needs no calibration");
                }
                "lock_pages" => {
                    at.bool()?;
                    self.remark(entry, &at, "memory is not modelled, and is always there");
                }
                "mem_buffer_size" => {
                    self.mem_buffer_bytes = at.integer(1)?.unsigned_abs();
                }
                "io_device" => self.to_dev_null = at.text()? == "/dev/null",
                "logdir" | "log_basename" => {
                    at.text()?;
                    self.remark(entry, &at, OUTPUT);
                }
                "log_size" => {
                    if !matches!(at.value.data, Data::Integer(_)) {
                        at.text()?;
                    }
                    self.remark(entry, &at, OUTPUT);
                }
                "ftrace" => {
                    if !matches!(at.value.data, Data::Bool(_)) {
                        at.text()?;
                    }
                    self.remark(entry, &at, OUTPUT);
                }
                "gnuplot" | "cumulative_slack" => {
                    at.bool()?;
                    self.remark(entry, &at, OUTPUT);
                }
                key => self.remark(entry, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
            }
        }
        Ok(())
    }

    /// Nothing has to be declared: what is named exists.
    fn resources(&mut self, resources: &At<'a>) -> Result<()> {
        if let Data::Integer(_) = resources.value.data {
            self.remark_at(resources.value.at, resources, "the oldest form, of which rt-app makes nothing any more");
            return Ok(());
        }
        const TYPES: [&str; 12] = [
            "mutex",
            "timer",
            "wait",
            "signal",
            "broadcast",
            "sync",
            "sleep",
            "run",
            "suspend",
            "mem",
            "iorun",
            "barrier",
        ];
        for entry in resources.object()? {
            let at = resources.under(&entry.key, &entry.value);
            for (inner, at) in self.once_each(&at, at.object()?) {
                match inner.key.as_str() {
                    "type" if TYPES.contains(&at.text()?) => {}
                    "type" => return at.fail(format!("no type of resource; known are {}", TYPES.join(", "))),
                    key => self.remark(inner, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
                }
            }
        }
        Ok(())
    }

    /// Gives every task its name. One that is taken gets a number behind it, as from the script that prepares files.
    fn name_tasks(&mut self, tasks: &At<'a>) -> Result<()> {
        for entry in tasks.object()? {
            let at = tasks.under(&entry.key, &entry.value);
            at.object()?;
            let is_taken = |name: &String, all: &[(String, At<'_>)]| all.iter().any(|(other, _)| other == name);
            let mut name = entry.key.clone();
            for number in 1.. {
                if !is_taken(&name, &self.tasks) {
                    break;
                }
                name = format!("{}{number}", entry.key);
            }
            if name != entry.key {
                self.remark(entry, &at, format!("there is a task of this name already; this one is called `{name}`"));
            }
            self.tasks.push((name, at));
        }
        if self.tasks.is_empty() {
            return tasks.fail("there are no tasks: add one");
        }
        Ok(())
    }

    /// What the load's task of this number is; nothing if it only exists to be forked.
    fn task(&mut self, index: usize) -> Result<Option<TaskSpec>> {
        let (name, at) = self.tasks[index].clone();
        let instances = match at.property("instance")? {
            Some(at) => at.count()?,
            None => 1,
        };
        if instances == 0 {
            return Ok(None);
        }
        if instances > crate::spec::TASKS_MAX {
            return at.fail(format!("{instances} instances: choose at most {}", crate::spec::TASKS_MAX));
        }
        let (properties, start_ns, program) = self.behaviour(index, instances, Vec::new())?;
        let spec = TaskSpec {
            count: instances as u32,
            affinity: properties.cpus,
            group: properties.group,
            start_ns,
            ..TaskSpec::new(name, program).nice(properties.nice.unwrap_or(0))
        };
        Ok(Some(spec))
    }

    /// How a task begins, when, and what it does.
    fn behaviour(&mut self, index: usize, instances: u64, above: Vec<usize>) -> Result<(Properties, u64, Vec<Step>)> {
        let at = self.tasks[index].1.clone();
        let absolute = absolute_timers(at.value);
        let mut actor = Actor { index, instances, above, timers: Numbers::default(), absolute };
        let start_ns = match at.property("delay")? {
            Some(at) => at.us()?,
            None => 0,
        };
        let phases = at.property("phases")?;
        let own = self.properties(&at, &["instance", "delay", "phases"], phases.is_none())?;
        let mut program = Vec::new();
        if let Some(phases) = phases {
            let entries = phases.object()?;
            let changes_cpus = entries.iter().any(|entry| has_key(&entry.value, "cpus"));
            for entry in entries {
                let phase = phases.under(&entry.key, &entry.value);
                let properties = self.properties(&phase, &[], true)?;
                if properties.group.is_some() && properties.group != own.group {
                    return phase.fail("a task cannot change its `taskgroup` yet: say it at the task");
                }
                if changes_cpus {
                    let cpus = properties.cpus.clone().or_else(|| own.cpus.clone());
                    program.push(Step::SetAffinity { cpus });
                }
                program.extend(properties.nice.map(|nice| Step::SetNice { nice }));
                let events = self.events(&phase, &mut actor)?;
                match properties.loops.unwrap_or(Some(1)) {
                    Some(0) => return phase.fail("`loop` 0: rt-app then never ends; say -1, or leave the phase out"),
                    Some(1) => program.extend(events),
                    Some(times) => program.push(Step::repeat(times, events)),
                    None => program.push(self.for_ever(&phase, events)?),
                }
            }
        } else {
            program = self.events(&at, &mut actor)?;
        }
        let program = match own.loops.unwrap_or(None) {
            Some(1) => program,
            Some(times) => vec![Step::repeat(times, program)],
            None => vec![self.for_ever(&at, program)?],
        };
        Ok((own, start_ns, program))
    }

    fn for_ever(&self, at: &At<'_>, steps: Vec<Step>) -> Result<Step> {
        if self.duration_ns.is_none() {
            return at.fail("this goes on for ever: set `duration` in `global`, or `loop` here");
        }
        Ok(Step::forever(steps))
    }

    /// What a task or phase says besides its events.
    fn properties(&mut self, object: &At<'a>, known: &[&str], has_events: bool) -> Result<Properties> {
        let mut properties = Properties::default();
        let entries = object.object()?;
        let plain: Vec<&Entry> = entries.iter().filter(|entry| !is_event(&entry.key)).collect();
        for (place, entry) in plain.iter().enumerate() {
            let at = object.under(&entry.key, &entry.value);
            if plain[..place].iter().any(|other| other.key == entry.key) {
                self.remark(entry, &at, "given before; the first counts");
                continue;
            }
            match entry.key.as_str() {
                "loop" => properties.loops = Some(at.times()?),
                "policy" => policy(&at)?,
                "priority" => properties.nice = Some(nice(&at)?),
                "cpus" => properties.cpus = Some(self.cpus(&at)?),
                "taskgroup" => properties.group = self.group(&at)?,
                "dl-runtime" | "dl-period" | "dl-deadline" | "period" | "deadline" => {
                    return at.fail("reservations and slices of single tasks are not modelled: leave it out");
                }
                "util_min" | "util_max" => {
                    return at.fail("clamping of utilisation is not modelled: leave it out");
                }
                key if MEMORY_KEYS.contains(&key) => {
                    return at.fail("memory and its nodes are not modelled: leave it out");
                }
                key if known.contains(&key) => {}
                key => self.remark(entry, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
            }
        }
        let stray = entries.iter().find(|entry| !has_events && is_event(&entry.key));
        if let Some(entry) = stray {
            let at = object.under(&entry.key, &entry.value);
            return at.fail("rt-app passes over events beside `phases`: put it into a phase");
        }
        if has_events && !entries.iter().any(|entry| is_event(&entry.key)) {
            return object.fail("there are no events, which rt-app does not take: add one");
        }
        Ok(properties)
    }

    fn cpus(&mut self, at: &At<'a>) -> Result<Vec<u32>> {
        let Data::List(list) = &at.value.data else { return at.wrong("a list of CPUs") };
        let mut cpus = Vec::new();
        for (number, value) in list.iter().enumerate() {
            let at = At { value, path: format!("{}.{number}", at.path) };
            let cpu = u32::try_from(at.count()?).unwrap_or(u32::MAX);
            if cpu > CPU_MAX {
                return at.fail(format!("CPU {cpu}: choose at most {CPU_MAX}"));
            }
            self.cpus = self.cpus.max(cpu + 1);
            cpus.push(cpu);
        }
        if cpus.is_empty() {
            return at.fail("a list of no CPUs: leave it out to allow all");
        }
        Ok(cpus)
    }

    fn group(&mut self, at: &At<'_>) -> Result<Option<String>> {
        let name = at.text()?;
        let Some(inner) = name.strip_prefix('/') else {
            return match name {
                "" => Ok(None),
                _ => at.fail(format!("a task group begins with `/`: write `/{name}`")),
            };
        };
        if inner.trim_end_matches('/').contains('/') {
            return at.fail("groups within groups are not modelled: take one name behind the first `/`");
        }
        if inner.is_empty() {
            return Ok(None);
        }
        if !self.groups.iter().any(|group| group.name == name) {
            self.groups.push(Group::new(name));
        }
        Ok(Some(name.to_owned()))
    }
}

fn policy(at: &At<'_>) -> Result<()> {
    match at.text()? {
        "SCHED_OTHER" => Ok(()),
        name @ ("SCHED_IDLE" | "SCHED_RR" | "SCHED_FIFO" | "SCHED_DEADLINE") => at.fail(format!(
            "{name} is not modelled: policies of Ekiden schedule SCHED_OTHER; say that, or leave it out"
        )),
        name => at.fail(format!("`{name}` is no scheduling policy: say \"SCHED_OTHER\"")),
    }
}

fn nice(at: &At<'_>) -> Result<i32> {
    match at.integer(i32::MIN.into())? {
        nice @ -20..=19 => Ok(nice as i32),
        nice => at.fail(format!("nice value {nice}: choose one from -20 to 19")),
    }
}

fn has_key(value: &Value, key: &str) -> bool {
    matches!(&value.data, Data::Object(entries) if entries.iter().any(|entry| entry.key == key))
}
