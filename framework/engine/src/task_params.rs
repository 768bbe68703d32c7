//! The parameters of one task, and how long its entry is kept from the next one.

use alloc::vec::Vec;

use ekiden::TaskId;
use ekiden_host::abi::RawParams;

use crate::lock::Lock;
use crate::table::TaskTable;

/// The parameters of one task. A caller that sets some has found the entry before, and another task may have it by now: so its task is noted. While a
/// policy is told of some, no other task gets the entry, as what policies keep of tasks is found by it.
#[derive(Debug, Default)]
pub(crate) struct Kept(Lock<Params>);

#[derive(Debug, Default)]
struct Params {
    /// 0 for none.
    generation: u32,
    /// How many are about to tell the policy.
    telling: u32,
    /// All zeros for none.
    raw: RawParams,
}

impl Kept {
    pub(crate) fn for_tasks(max_tasks: u32) -> Vec<Self> {
        let mut kept = Vec::new();
        kept.resize_with(max_tasks as usize, Self::default);
        kept
    }

    /// None for a task that does not have the entry any more.
    pub(crate) fn get(&self, task: TaskId) -> RawParams {
        let params = self.0.lock();
        if params.generation == task.generation { params.raw } else { RawParams::default() }
    }

    /// Sets the parameters that a task begins with.
    pub(crate) fn begin(&self, task: TaskId, raw: RawParams) {
        *self.0.lock() = Params { generation: task.generation, telling: 0, raw };
    }

    /// Whether the task has the entry still. If so, the entry goes to no other one before [`told`](Self::told).
    pub(crate) fn set(&self, task: TaskId, raw: RawParams) -> bool {
        let mut params = self.0.lock();
        let is_same = params.generation == task.generation;
        if is_same {
            params.raw = raw;
            params.telling += 1;
        }
        is_same
    }

    /// Whether the task has died meanwhile, and its entry is to be freed now.
    pub(crate) fn told(&self) -> bool {
        let mut params = self.0.lock();
        params.telling -= 1;
        params.telling == 0 && params.generation == 0
    }

    /// The task has died. Whether its entry can be freed now.
    pub(crate) fn end(&self) -> bool {
        let mut params = self.0.lock();
        params.generation = 0;
        params.telling == 0
    }
}

/// Holds the entry of a task while its policy is told of parameters. If the policy ends in that, its call returns here; if it was the only
/// one, the engine ends with it.
pub(crate) struct Telling<'a> {
    kept: &'a Kept,
    tasks: &'a TaskTable,
    slot: u32,
}

impl<'a> Telling<'a> {
    /// Parameters of `task` were [set](Kept::set).
    pub(crate) fn of(kept: &'a Kept, tasks: &'a TaskTable, task: TaskId) -> Self {
        Self { kept, tasks, slot: task.slot }
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if self.kept.told() {
            self.tasks.free(self.slot);
        }
    }
}
