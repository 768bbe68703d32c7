//! State per CPU, per last-level cache, per node and per task, without hashing.

use alloc::vec::Vec;
use core::ops::Index;

use crate::{Cpu, CpuId, Env, TaskId};

/// One `T` per CPU, each on cache lines of its own.
///
/// ```
/// use ekiden::{Env, PerCpu, Shared, Topology};
///
/// let env = Env::new(Topology::flat(4), 16, &[], "").unwrap();
/// let waiting = PerCpu::new(&env, |_| Shared::new(0_u32));
/// waiting[3].add(2);
/// let longest = waiting.iter().max_by_key(|(_, waiting)| waiting.get());
/// assert_eq!(longest.map(|(cpu, _)| cpu), Some(3));
/// ```
#[derive(Debug)]
pub struct PerCpu<T> {
    slots: Vec<CacheLine<T>>,
}

#[derive(Debug)]
#[repr(align(64))]
struct CacheLine<T>(T);

impl<T> PerCpu<T> {
    /// Makes each CPU's `T` by calling `make` with its number.
    pub fn new(env: &Env, make: impl FnMut(CpuId) -> T) -> Self {
        Self { slots: (0..env.nr_cpus()).map(make).map(CacheLine).collect() }
    }

    /// All of them, in the order of the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = (CpuId, &T)> {
        (0..self.slots.len() as CpuId).map(|cpu| (cpu, &self[cpu]))
    }
}

impl<T> Index<CpuId> for PerCpu<T> {
    type Output = T;

    #[inline]
    fn index(&self, cpu: CpuId) -> &T {
        #[cfg(feature = "observe")]
        crate::observe::look(cpu);
        &self.slots[cpu as usize].0
    }
}

/// One `T` for all CPUs of a group, each on cache lines of its own.
#[derive(Debug)]
struct Grouped<T> {
    slots: Vec<CacheLine<T>>,
    of_cpu: Vec<u32>,
}

impl<T> Grouped<T> {
    fn new(env: &Env, len: usize, of: impl Fn(&Cpu) -> u32, make: impl FnMut(u32) -> T) -> Self {
        Self {
            slots: (0..len as u32).map(make).map(CacheLine).collect(),
            of_cpu: env.topology().cpus().iter().map(of).collect(),
        }
    }

    #[inline]
    fn of(&self, cpu: CpuId) -> &T {
        &self.slots[self.of_cpu[cpu as usize] as usize].0
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.slots.iter().map(|slot| &slot.0))
    }
}

macro_rules! grouped {
    ($(#[$doc:meta])* $name:ident, $groups:ident, $of:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<T>(Grouped<T>);

        impl<T> $name<T> {
            /// Makes each `T` by calling `make` with the number of what it is for.
            pub fn new(env: &Env, make: impl FnMut(u32) -> T) -> Self {
                Self(Grouped::new(env, env.topology().$groups().len(), |cpu| cpu.$of, make))
            }

            /// All of them, by number.
            pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
                self.0.iter()
            }
        }

        impl<T> Index<CpuId> for $name<T> {
            type Output = T;

            #[inline]
            fn index(&self, cpu: CpuId) -> &T {
                self.0.of(cpu)
            }
        }
    };
}

grouped! {
    /// One `T` per last-level cache, found by any CPU that shares it; [`Topology::llc`](crate::Topology::llc) names the others. For a queue
    /// that they share. One queue for the whole machine needs no container: a [`SpinLock`](crate::SpinLock) around it.
    ///
    /// ```
    /// use ekiden::{Env, PerLlc, Shared, Topology};
    ///
    /// // Two caches of two CPUs.
    /// let env = Env::new(Topology::regular(1, 2, 2, 1), 16, &[], "").unwrap();
    /// let waiting = PerLlc::new(&env, |_| Shared::new(0_u32));
    /// waiting[2].add(1);
    /// assert_eq!((waiting[3].get(), waiting[1].get(), waiting.iter().count()), (1, 0, 2));
    /// ```
    PerLlc, llcs, llc
}

grouped! {
    /// One `T` per NUMA node, found by any CPU of it; [`Topology::node`](crate::Topology::node) names the others. A node without CPUs has one
    /// too.
    ///
    /// ```
    /// use ekiden::{Env, PerNode, Topology};
    ///
    /// // Two nodes of one cache of two CPUs.
    /// let env = Env::new(Topology::regular(2, 1, 2, 1), 16, &[], "").unwrap();
    /// let names = PerNode::new(&env, |node| format!("node {node}"));
    /// assert_eq!((names[1].as_str(), names[2].as_str(), names.iter().count()), ("node 0", "node 1", 2));
    /// ```
    PerNode, nodes, node
}

/// One `T` per task, found by the index of the task's entry. An entry is used again when its task is gone: reset what must not be
/// inherited in [`task_new`](crate::Scheduler::task_new).
///
/// ```
/// use ekiden::{Env, PerTask, Shared, TaskId, Topology};
///
/// let env = Env::new(Topology::flat(1), 16, &[], "").unwrap();
/// let vruntime = PerTask::new(&env, || Shared::new(0_u64));
/// let task = TaskId { slot: 7, generation: 1 };
/// vruntime[task].set(1_000);
/// // The next task in this entry finds what that one left.
/// assert_eq!(vruntime[TaskId { slot: 7, generation: 2 }].get(), 1_000);
/// ```
#[derive(Debug)]
pub struct PerTask<T> {
    slots: Vec<T>,
}

impl<T> PerTask<T> {
    /// Makes every entry's `T`. Memory: the table's capacity times the size of `T`, taken at once.
    pub fn new(env: &Env, make: impl FnMut() -> T) -> Self {
        let mut slots = Vec::with_capacity(env.max_tasks() as usize);
        slots.resize_with(env.max_tasks() as usize, make);
        Self { slots }
    }
}

impl<T> Index<TaskId> for PerTask<T> {
    type Output = T;

    #[inline]
    fn index(&self, task: TaskId) -> &T {
        &self.slots[task.slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;

    #[test]
    fn cpus_of_one_group_find_the_same_and_those_of_others_another() {
        let topology = Topology::regular(2, 2, 2, 2);
        let env = Env::new(topology.clone(), 1, &[], "").unwrap();
        let (llcs, nodes) = (PerLlc::new(&env, |llc| llc), PerNode::new(&env, |node| node));
        for cpu in topology.cpus() {
            assert_eq!((llcs[cpu.id], nodes[cpu.id]), (cpu.llc, cpu.node));
        }
        assert!(llcs.iter().eq([(0, &0), (1, &1), (2, &2), (3, &3)]));
        assert!(nodes.iter().eq([(0, &0), (1, &1)]));
    }
}
