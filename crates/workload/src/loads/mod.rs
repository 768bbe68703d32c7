//! Loads by name and parameters, such as `nas-lu:threads=60`, and several of them at once, as in `make:jobs=64+r:count=2`.
//!
//! Each stands for a kind of program that schedulers are judged by. They are models: how long a step takes is chosen, and
//! said here; how the steps of different tasks depend on each other is what the load is about.

mod apps;
mod nas;

use crate::spec::{SpecError, Workload};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A parameter of a load.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name; a unit, if it has one, comes last.
    pub name: &'static str,
    /// What it is, in a few words.
    pub help: &'static str,
    /// Its value if nobody says one.
    pub default: Default,
    /// The largest value.
    pub max: u64,
}

/// What a parameter is if nobody says it.
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
    /// What it is, in a sentence.
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

/// Why there is no such load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing of that name.
    #[error("there is no load `{name}`; known are {}", names())]
    NoKind {
        /// What was asked for.
        name: String,
    },
    /// Not a parameter of that load, or not a value for it.
    #[error("`{text}` is no parameter of the load `{kind}`; it takes {}", params(kind))]
    NoParam {
        /// The load.
        kind: &'static str,
        /// What was asked for.
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
    list.collect::<Vec<_>>().join(", ")
}

/// Every kind of load.
pub const ALL: &[Kind] = &[
    apps::PIPE,
    apps::MESSAGING,
    apps::HOGS,
    apps::SCHBENCH,
    apps::REQUESTS,
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
        for text in params.split([':', ',']).filter(|text| !text.is_empty()) {
            let wrong = || LoadError::NoParam { kind: self.name, text: text.to_owned() };
            let (name, value) = text.split_once('=').ok_or_else(wrong)?;
            let place = self.params.iter().position(|param| param.name == name).ok_or_else(wrong)?;
            let value = value.replace('_', "").parse().ok().filter(|value| *value <= self.params[place].max);
            values[place].1 = value.ok_or_else(wrong)?;
        }
        Ok((self.make)(&Args { cpus: cpus.max(1), values }))
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
    ALL.iter().map(line).collect()
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
