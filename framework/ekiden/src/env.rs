//! What a policy is born into: the machine and its parameters.

use alloc::{collections::BTreeMap, string::String, sync::Arc};
use core::fmt;

use crate::{
    Counter, CpuId, Histogram, Note, Topology,
    figures::{Declared, Figures},
};

/// A parameter that a policy declares, so that the framework can check it and `--help` can explain it.
///
/// ```
/// use ekiden::{Env, Param, Topology};
///
/// const PARAMS: &[Param] =
///     &[Param { name: "slice_us", help: "how long a task runs at a time", default: 3_000, min: 100, max: 100_000 }];
///
/// let env = Env::new(Topology::flat(2), 16, PARAMS, "").unwrap();
/// assert_eq!(env.param("slice_us"), 3_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name, with its unit last: `slice_us`.
    pub name: &'static str,
    /// Its purpose in one sentence.
    pub help: &'static str,
    /// Value if it is not set.
    pub default: u64,
    /// Smallest value taken.
    pub min: u64,
    /// Largest value taken.
    pub max: u64,
}

/// Why parameters were refused.
///
/// ```
/// use ekiden::{Env, Param, ParamError, Topology};
///
/// const SLICE: Param = Param { name: "slice_us", help: "how long a task runs at a time", default: 3_000, min: 100, max: 100_000 };
///
/// let error = |params| Env::new(Topology::flat(2), 16, &[SLICE], params).unwrap_err();
/// assert_eq!(error("slice_us"), ParamError::Malformed("slice_us".into()));
/// assert_eq!(error("colour=3"), ParamError::Unknown("colour".into()));
/// assert_eq!(error("slice_us=1"), ParamError::OutOfRange { param: SLICE, value: 1 });
/// assert_eq!(error("slice_us=1").to_string(), "slice_us=1 is outside 100..=100000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamError {
    /// Not of the form `name=number`.
    Malformed(String),
    /// The policy has no such parameter.
    Unknown(String),
    /// The value is outside the declared range.
    OutOfRange {
        /// The parameter.
        param: Param,
        /// The value that was asked for.
        value: u64,
    },
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => write!(f, "{text:?} is not of the form name=number"),
            Self::Unknown(name) => write!(f, "the policy has no parameter {name:?}"),
            Self::OutOfRange { param, value } => {
                write!(f, "{}={value} is outside {}..={}", param.name, param.min, param.max)
            }
        }
    }
}

impl core::error::Error for ParamError {}

/// Reads settings (`name=number`, separated by blanks or commas) of what is declared, and hands on the place of each and its value.
pub(crate) fn each_setting(
    declared: &[Param],
    settings: &str,
    mut set: impl FnMut(usize, u64),
) -> Result<(), ParamError> {
    for text in settings.split([' ', ',', '\n']).filter(|text| !text.is_empty()) {
        let parsed = text.split_once('=').and_then(|(name, value)| Some((name, value.parse::<u64>().ok()?)));
        let (name, value) = parsed.ok_or_else(|| ParamError::Malformed(text.into()))?;
        let index = declared.iter().position(|param| param.name == name);
        let index = index.ok_or_else(|| ParamError::Unknown(name.into()))?;
        let param = declared[index];
        if !(param.min..=param.max).contains(&value) {
            return Err(ParamError::OutOfRange { param, value });
        }
        set(index, value);
    }
    Ok(())
}

/// The machine and the parameters that a policy is created for.
///
/// ```
/// use ekiden::{Env, Param, Topology};
///
/// let slice = Param { name: "slice_us", help: "how long a task runs at a time", default: 3_000, min: 100, max: 100_000 };
/// let env = Env::new(Topology::flat(2), 16, &[slice], "slice_us=500").unwrap();
/// assert_eq!((env.nr_cpus(), env.max_tasks(), env.param("slice_us")), (2, 16, 500));
/// assert_eq!(env.topology().llcs().len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Env {
    topology: Arc<Topology>,
    max_tasks: u32,
    params: BTreeMap<&'static str, u64>,
    figures: Declared,
}

impl Env {
    /// An environment for a policy that declares `declared`, with the settings in `params` (`name=number`, separated
    /// by blanks or commas).
    pub fn new(
        topology: impl Into<Arc<Topology>>,
        max_tasks: u32,
        declared: &[Param],
        params: &str,
    ) -> Result<Self, ParamError> {
        let mut values: BTreeMap<_, _> = declared.iter().map(|param| (param.name, param.default)).collect();
        each_setting(declared, params, |index, value| _ = values.insert(declared[index].name, value))?;
        Ok(Self { topology: topology.into(), max_tasks, params: values, figures: Declared::default() })
    }

    /// How many CPUs the machine can have, offline ones included.
    pub fn nr_cpus(&self) -> CpuId {
        self.topology.nr_cpus()
    }

    /// How many tasks there can be at once.
    pub fn max_tasks(&self) -> u32 {
        self.max_tasks
    }

    /// The machine's caches, cores and nodes.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// A counter that every host shows by this name: see [`Counter`].
    ///
    /// # Panics
    ///
    /// If the name is not of 1 to 32 lower-case letters, digits and underscores, or is there already; if the help is no line of at most 120
    /// bytes; if there are 16 figures.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.figures.counter(self.nr_cpus(), name, help)
    }

    /// A histogram that every host shows by this name, which ends with the unit of its values: see [`Histogram`].
    ///
    /// # Panics
    ///
    /// As [`counter`](Self::counter).
    pub fn histogram(&self, name: &str, help: &str) -> Histogram {
        self.figures.histogram(self.nr_cpus(), name, help)
    }

    /// A name for values that the policy notes in its calls, with their unit last, as in `stolen_from_cpu`: see [`Note`].
    ///
    /// # Panics
    ///
    /// If the name is not of 1 to 32 lower-case letters, digits and underscores.
    pub fn note(&self, name: &str) -> Note {
        Note::named(name)
    }

    /// What the policy that was made here counts.
    pub(crate) fn take_figures(&self) -> Figures {
        self.figures.take()
    }

    /// The value of a declared parameter.
    ///
    /// # Panics
    ///
    /// If the policy did not declare it.
    pub fn param(&self, name: &str) -> u64 {
        match self.params.get(name) {
            Some(value) => *value,
            None => panic!("parameter {name} is not in the policy's PARAMS"),
        }
    }
}
