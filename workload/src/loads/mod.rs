//! Loads by name and parameters, such as `nas-lu:threads=60`, and several of them at once, as in `make:jobs=64+r:count=2`.
//!
//! Each stands for a kind of program that schedulers are judged by. They are models: how long a step takes is chosen, and
//! said there; how the steps of different tasks depend on each other is what the load is about.

mod apps;
mod nas;

use crate::spec::{Group, SpecError, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A parameter of a load.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name; a unit, if it has one, comes last.
    pub name: &'static str,
    /// A description in a few words.
    pub help: &'static str,
    /// Its default.
    pub default: Default,
    /// The largest value.
    pub max: u64,
}

/// The default of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// This.
    Is(u64),
    /// As many as the machine has CPUs.
    Cpus,
}

/// A kind of load.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The name that people choose it by.
    pub name: &'static str,
    /// A description in one sentence.
    pub about: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    make: fn(&Args) -> Workload,
}

/// The parameters of one load.
#[derive(Debug)]
pub(crate) struct Args {
    cpus: u32,
    values: Vec<(&'static str, u64)>,
}

impl Args {
    fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
    }

    fn count(&self, name: &str) -> u32 {
        u32::try_from(self.get(name)).unwrap_or(u32::MAX)
    }

    fn workload(&self, name: &str, tasks: impl IntoIterator<Item = crate::TaskSpec>) -> Workload {
        Workload::new(name, self.cpus, tasks)
    }
}

/// What can be said of every load besides its own parameters.
#[derive(Debug, std::default::Default)]
struct Manner {
    start_ms: u64,
    on: Option<Vec<u32>>,
    from: Option<Vec<u32>>,
    nice: Option<i32>,
    group: Option<String>,
}

/// The parameters of [`Manner`], for people.
const MANNER: &str = "start_ms=MS (begin later), on=0-3/8 (these CPUs only), from=0/8 (begin there, one after the other, and may leave), \
                      nice=N, group=NAME (if not in one already)";

impl Manner {
    /// Takes `name=value` if it is one of these. `Some(false)`: it is, but not with this value.
    fn take(&mut self, name: &str, value: &str) -> Option<bool> {
        let taken = match name {
            "start_ms" => value.parse().map(|ms| self.start_ms = ms).is_ok() && self.start_ms <= 1_000_000_000,
            "on" => {
                self.on = ranges(value);
                self.on.is_some()
            }
            "from" => {
                self.from = ranges(value);
                self.from.is_some()
            }
            "nice" => value.parse().map(|nice| self.nice = Some(nice)).is_ok(),
            "group" => {
                self.group = Some(value.to_owned()).filter(|name| !name.is_empty());
                self.group.is_some()
            }
            _ => return None,
        };
        Some(taken)
    }

    fn apply(self, mut load: Workload) -> Workload {
        for (number, task) in load.tasks.iter_mut().enumerate() {
            // As a program begins where the shell was that started it.
            if let Some(from) = &self.from {
                let leave = crate::Step::SetAffinity { cpus: self.on.clone().or(task.affinity.take()) };
                task.program.insert(0, leave);
                task.affinity = Some(vec![from[number % from.len()]]);
                task.group = task.group.take().or(self.group.clone());
                task.start_ns += self.start_ms * MS;
                task.nice = self.nice.unwrap_or(task.nice);
                continue;
            }
            task.start_ns += self.start_ms * MS;
            task.nice = self.nice.unwrap_or(task.nice);
            task.affinity = self.on.clone().or(task.affinity.take());
            task.group = task.group.take().or(self.group.clone());
        }
        if let Some(name) = self.group.filter(|name| load.group_number(name).is_none()) {
            load.groups.push(Group::new(name));
        }
        load
    }
}

/// The numbers of `0-3/8`: ranges and single ones, with `/` between them.
fn ranges(text: &str) -> Option<Vec<u32>> {
    const CPUS_MAX: u32 = 65_536;
    let mut all = Vec::new();
    for range in text.split('/') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Why there is no such load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing of that name.
    #[error("there is no load `{name}`; known are {}", names())]
    NoKind {
        /// The name that was asked for.
        name: String,
    },
    /// Not a parameter of that load, or not a value for it.
    #[error("`{text}` is no parameter of the load `{kind}`; it takes {}", params(kind))]
    NoParam {
        /// The load.
        kind: &'static str,
        /// The text that was asked for.
        text: String,
    },
    /// The loads can be made, but not run together.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

fn names() -> String {
    ALL.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

fn params(name: &str) -> String {
    let kind = ALL.iter().find(|kind| kind.name == name);
    let list = kind.map_or(&[] as &[Param], |kind| kind.params).iter();
    let list = list.map(|param| format!("{} (at most {}: {})", param.name, param.max, param.help));
    list.chain([MANNER.to_owned()]).collect::<Vec<_>>().join(", ")
}

/// Every kind of load.
pub const ALL: &[Kind] = &[
    apps::PIPE,
    apps::MESSAGING,
    apps::HOGS,
    apps::PERIODIC,
    apps::FORKS,
    apps::LIMITED,
    apps::HOTPLUG,
    apps::SCHBENCH,
    apps::REQUESTS,
    apps::ACTIVATIONS,
    nas::BT,
    nas::CG,
    nas::EP,
    nas::FT,
    nas::IS,
    nas::LU,
    nas::MG,
    nas::SP,
    nas::UA,
    apps::MAKE,
    apps::R,
    apps::DATABASE,
    apps::DESKTOP,
];

impl Kind {
    /// The load with these parameters, written `name=value` with `:` or `,` between them.
    ///
    /// # Errors
    /// Names the first that is not one, with those that are.
    pub fn make(&self, params: &str, cpus: u32) -> Result<Workload, LoadError> {
        let default = |param: &Param| match param.default {
            Default::Is(value) => value,
            Default::Cpus => cpus.into(),
        };
        let mut values: Vec<_> = self.params.iter().map(|param| (param.name, default(param))).collect();
        let mut manner = Manner::default();
        for text in params.split([':', ',']).filter(|text| !text.is_empty()) {
            let wrong = || LoadError::NoParam { kind: self.name, text: text.to_owned() };
            let (name, value) = text.split_once('=').ok_or_else(wrong)?;
            if let Some(taken) = manner.take(name, value) {
                if !taken {
                    return Err(wrong());
                }
                continue;
            }
            let place = self.params.iter().position(|param| param.name == name).ok_or_else(wrong)?;
            let value = value.replace('_', "").parse().ok().filter(|value| *value <= self.params[place].max);
            values[place].1 = value.ok_or_else(wrong)?;
        }
        Ok(manner.apply((self.make)(&Args { cpus: cpus.max(1), values })))
    }
}

/// Every kind with its parameters and their defaults, a line each, for people.
pub fn overview() -> String {
    let default = |param: &Param| match param.default {
        Default::Is(value) => format!("{}={value}", param.name),
        Default::Cpus => format!("{}=CPUs", param.name),
    };
    let line = |kind: &Kind| {
        let params: Vec<String> = kind.params.iter().map(default).collect();
        format!("{:14} {}\n{:14}   {}\n", kind.name, kind.about, "", params.join(":"))
    };
    let lines: String = ALL.iter().map(line).collect();
    format!("{lines}All of them take {MANNER}.\n")
}

/// The loads of `text`, all at once, for a machine with this many CPUs: `name`, `name:param=value:…`, and several of
/// these with `+` between them.
///
/// # Errors
/// When a name or a parameter is unknown, and when what results cannot be run.
pub fn make(text: &str, cpus: u32) -> Result<Workload, LoadError> {
    let mut all: Option<Workload> = None;
    for part in text.split('+') {
        let (name, params) = part.split_once(':').unwrap_or((part, ""));
        let kind = ALL.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| LoadError::NoKind { name: name.to_owned() })?;
        let load = kind.make(params, cpus)?;
        all = Some(match all {
            Some(others) => others.beside(load),
            None => load,
        });
    }
    let mut load = all.expect("splitting gives at least one part");
    load.name = text.to_owned();
    load.check()?;
    Ok(load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Step;

    #[test]
    fn every_kind_can_run_on_any_machine() {
        for cpus in [1, 2, 8, 64] {
            for kind in ALL {
                let load = make(kind.name, cpus).unwrap();
                assert_eq!(load.cpus, cpus, "{}", kind.name);
                assert_eq!(Workload::parse(&load.to_json()).unwrap(), load);
            }
        }
    }

    #[test]
    fn parameters_are_read_and_wrong_ones_named() {
        let tasks = |text| make(text, 4).unwrap().instances().count();
        assert_eq!((tasks("hogs"), tasks("hogs:count=7"), tasks("hogs:ms=5,count=1_0")), (4, 7, 10));
        let why = |text| make(text, 4).unwrap_err().to_string();
        assert!(why("hog").contains("no load `hog`") && why("hog").contains("nas-lu"));
        for wrong in ["hogs:count", "hogs:count=-1", "hogs:count=x", "hogs:colour=1", "hogs:count=99999999"] {
            assert!(why(wrong).contains("no parameter of the load `hogs`; it takes count"), "{}", why(wrong));
        }
        assert!(why("hogs:count=0").contains("cannot run"), "{}", why("hogs:count=0"));
    }

    #[test]
    fn loads_beside_each_other_share_nothing() {
        let both = make("nas-lu:threads=3+nas-lu:threads=2+hogs+hogs", 4).unwrap();
        assert_eq!(both.barriers(), make("nas-lu:threads=3", 4).unwrap().barriers() * 2 - 1);
        let names: Vec<_> = both.tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["lu", "lu-2", "hog", "hog-2"]);
        let groups: Vec<_> = make("r:count=1+r:count=1", 4).unwrap().groups.into_iter().map(|g| g.name).collect();
        assert_eq!(groups, ["r-0", "r-0-2"]);
    }

    #[test]
    fn where_when_and_with_whom_can_be_said_of_every_load() {
        let load = make("nas-lu:threads=2:start_ms=3:on=0-2/5:nice=-4:group=lu+r:count=1:group=other", 8).unwrap();
        let lu = &load.tasks[0];
        assert_eq!((lu.start_ns, lu.nice, lu.group.as_deref()), (3 * MS, -4, Some("lu")));
        assert_eq!(lu.affinity, Some(vec![0, 1, 2, 5]));
        // It has a group of its own already.
        assert_eq!(load.tasks[1].group.as_deref(), Some("r-0"));
        for wrong in ["start_ms=x", "on=", "on=3-1", "on=0-70000", "nice=y", "group="] {
            let why = make(&format!("hogs:{wrong}"), 8).unwrap_err().to_string();
            assert!(why.contains(wrong) && why.contains("start_ms=MS"), "{why}");
        }
        assert!(make("hogs:on=8", 8).unwrap_err().to_string().contains("CPU 8 in a load for 8 CPUs"));
    }

    #[test]
    fn one_seed_is_one_load() {
        for name in ["requests", "make", "database", "desktop"] {
            let of = |seed| make(&format!("{name}:seed={seed}"), 4).unwrap().tasks;
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
        }
    }

    #[test]
    fn every_request_that_is_sent_is_served() {
        let load = make("requests:requests=101:workers=7", 4).unwrap();
        let (mut sent, mut served) = (0, 0);
        load.each_step(|step| match step {
            Step::PipeWrite { .. } => sent += 1,
            Step::PipeRead { .. } => served += 1,
            _ => {}
        });
        assert_eq!((sent, served), (101, 101));
    }
}
