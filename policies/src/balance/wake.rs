//! Where a woken or new task goes (papers/002, sections 2.2.2 and 3.3).

use ekiden::prelude::*;

use super::Balancer;

impl Balancer {
    /// The CPU for a task, or `None` to leave it to the host.
    pub(crate) fn place(&self, cx: &Cx, task: TaskId, previous: CpuId, flags: WakeFlags) -> Option<CpuId> {
        let topology = cx.topology();
        let mut idle = cx.idle_cpus();
        let stays = !(self.bugs.overload_on_wakeup || flags.is_fork());
        if stays && idle.contains(previous) && cx.may_run(task, previous) {
            return Some(previous);
        }
        let allowed = cx.allowed_cpus(task);
        idle.intersect(&allowed);
        if flags.is_fork() {
            // Threads begin on the node of their parent: section 3.2.
            let node = topology.node(previous).iter().filter(|cpu| allowed.contains(*cpu));
            return node.min_by_key(|cpu| (!idle.contains(*cpu), self.len(*cpu)));
        }
        if !self.bugs.overload_on_wakeup {
            let longest = idle.iter().min_by_key(|cpu| self.cpus[*cpu].idle_turn.get());
            if longest.is_some() {
                return longest;
            }
        }
        // Near the waker, whose cache has what the two share, unless that CPU has more to do (the kernel's `wake_affine`): no other
        // node is looked at, however idle it is.
        let load = |cpu: CpuId| self.cpus[cpu].load();
        let is_elsewhere = |waker: &CpuId| topology.cpu(*waker).node != topology.cpu(previous).node;
        let target = flags.waker().filter(|waker| is_elsewhere(waker) && load(*waker) <= load(previous));
        let target = target.unwrap_or(previous);
        if idle.contains(target) {
            return Some(target);
        }
        idle.intersect(topology.llc(target));
        idle.first().or_else(|| Some(target).filter(|cpu| allowed.contains(*cpu)))
    }
}
