//! Parameters of one task: declared by its policy, set by a program with the right to, checked before they take effect.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use ekiden_abi::{Call, Calls, RawParams, TASK_PARAMS_MAX};

use crate::{Cx, Fingerprint, Param, Scheduler, Task, env::each_setting};

/// A policy of whose tasks something can be set, one by one.
///
/// `#[policy]` belongs here, too: it says which of the calls are implemented, and has no parameters where none are declared.
///
/// ```
/// use ekiden::{Call, prelude::*};
/// # use zerocopy::IntoBytes;
///
/// /// A program with the right to may say on which CPU a task runs.
/// struct Pinned;
///
/// #[policy(TaskSettings)]
/// impl Scheduler for Pinned {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// }
///
/// #[policy]
/// impl TaskSettings for Pinned {
///     const TASK_PARAMS: &'static [Param] = &[Param { name: "cpu", help: "where it runs", default: 0, min: 0, max: 7 }];
///
///     fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
///         if params.get("cpu") == 7 { Err("CPU 7 is kept free") } else { Ok(()) }
///     }
///
///     fn task_params(&self, cx: &Cx, _: &Task, params: &TaskParams) {
///         cx.resched(params.get("cpu") as CpuId);
///     }
/// }
///
/// let error = |settings| TaskParams::parse::<Pinned>(settings).unwrap_err();
/// assert_eq!(error("cpu=7"), "CPU 7 is kept free");
/// assert_eq!(error("cpu=8"), "cpu=8 is outside 0..=7; for a task there is cpu (0 to 7)");
/// assert_eq!(TaskParams::defaults::<Pinned>().get("cpu"), 0);
///
/// // As they arrive with the call.
/// let raw = TaskParams::parse::<Pinned>("cpu=3").unwrap().to_raw::<Pinned>();
/// assert_eq!(raw.declared, TaskParams::fingerprint::<Pinned>());
/// let mut machine = ekiden_example_host::Machine::<Pinned>::flat(4);
/// assert!(machine.call_with(Call::TaskParams, 3, raw.as_bytes()).kicks.contains(3));
/// ```
pub trait TaskSettings: Sized {
    /// What can be set for each task, as with `ekiden exec --set`; four at most.
    const TASK_PARAMS: &'static [Param];

    /// The calls of this trait that it implements itself; filled in by `#[policy]`.
    const SETTING_CALLS: Calls = Calls::NONE.with(Call::TaskParams);

    /// Checks parameters before a task gets them; each value is in its range. An error is the reason
    /// that the caller is told, and so is a panic: the policy stays. Not so if it has a lock then, which it need not take, as it has no
    /// state of the policy's. (The `checkparam_attr` of papers/001, table I.)
    fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
        let _ = params;
        Ok(())
    }

    /// Parameters of a task of ours were set: comes after [`task_new`](Scheduler::task_new) for a task that has some, and when
    /// they are set anew. As with hints, other calls about the task may be under way.
    fn task_params(&self, cx: &Cx<'_>, task: &Task, params: &TaskParams) {
        let _ = (cx, task, params);
    }
}

/// The parameters of one task.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// Tasks have a rank, and all of them have 3 until others are set.
/// struct Ranked;
///
/// # #[policy(TaskSettings)]
/// # impl Scheduler for Ranked {
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// # }
/// #[policy]
/// impl TaskSettings for Ranked {
///     const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "0 is best", default: 3, min: 0, max: 9 }];
/// }
///
/// assert_eq!(TaskParams::defaults::<Ranked>().get("rank"), 3);
/// assert_eq!(TaskParams::parse::<Ranked>("rank=5").unwrap().get("rank"), 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskParams {
    declared: &'static [Param],
    values: [u64; TASK_PARAMS_MAX],
}

impl TaskParams {
    /// The parameters of a task for which none were set.
    pub fn defaults<S: Scheduler>() -> Self {
        const { assert!(S::TASK_PARAMS.len() <= TASK_PARAMS_MAX, "a task cannot have so many parameters") };
        let mut values = [0; TASK_PARAMS_MAX];
        values.iter_mut().zip(S::TASK_PARAMS).for_each(|(value, param)| *value = param.default);
        Self { declared: S::TASK_PARAMS, values }
    }

    /// Reads the parameters that are set by `settings` (`name=number`, separated by blanks or commas); the others are as by default. An error is
    /// for people, and says what could be set.
    pub fn parse<S: Scheduler>(settings: &str) -> Result<Self, String> {
        let mut params = Self::defaults::<S>();
        each_setting(S::TASK_PARAMS, settings, |index, value| params.values[index] = value)
            .map_err(|error| format!("{error}; {}", known(S::TASK_PARAMS)))?;
        S::check_task_params(&params).map_err(ToString::to_string)?;
        Ok(params)
    }

    /// The value of a declared parameter.
    ///
    /// # Panics
    ///
    /// If the policy did not declare it in `TASK_PARAMS`.
    pub fn get(&self, name: &str) -> u64 {
        match self.declared.iter().position(|param| param.name == name) {
            Some(index) => self.values[index],
            None => panic!("parameter {name} is not in the policy's TASK_PARAMS"),
        }
    }

    /// A number for what the policy declares, so that values are not taken for those of something else; 0 for nothing.
    pub const fn fingerprint<S: Scheduler>() -> u64 {
        fingerprint(S::TASK_PARAMS)
    }

    /// As they travel.
    pub fn to_raw<S: Scheduler>(self) -> RawParams {
        RawParams { declared: Self::fingerprint::<S>(), values: self.values }
    }

    /// As they arrive; `None` if they were checked for another declaration.
    pub(crate) fn from_raw<S: Scheduler>(raw: &RawParams) -> Option<Self> {
        let is_ours = raw.declared == Self::fingerprint::<S>();
        is_ours.then_some(Self { declared: S::TASK_PARAMS, values: raw.values })
    }
}

fn known(declared: &[Param]) -> String {
    if declared.is_empty() {
        return "this policy has none for a task".into();
    }
    let known = declared.iter().map(|Param { name, min, max, .. }| format!("{name} ({min} to {max})"));
    format!("for a task there is {}", known.collect::<Vec<_>>().join(", "))
}

const fn fingerprint(declared: &[Param]) -> u64 {
    if declared.is_empty() {
        return 0;
    }
    let mut hash = Fingerprint::EMPTY;
    let mut i = 0;
    while i < declared.len() {
        let param = &declared[i];
        hash = hash.text(param.name).word(param.min as usize).word(param.max as usize);
        i += 1;
    }
    hash.number()
}
