//! A host that answers nothing: in replay, the answers to a policy are in the recording.

use ekiden::{CpuId, CpuMask, TaskId};
use ekiden_host::Host;

pub(crate) struct NoHost;

impl Host for NoHost {
    fn now_ns(&self) -> u64 {
        0
    }

    fn may_run(&self, _: TaskId, _: CpuId) -> bool {
        false
    }

    fn allowed_cpus(&self, _: TaskId, _: &mut CpuMask) {}

    fn idle_cpus(&self, _: &mut CpuMask) {}
}
