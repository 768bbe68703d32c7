//! State per CPU and per task, without hashing.

use alloc::vec::Vec;
use core::ops::Index;

use crate::{CpuId, Env, TaskId};

/// One `T` per CPU, each on cache lines of its own.
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

/// One `T` per task, found by the task's slot. A slot is used again when its task is gone: reset what must not be
/// inherited in [`task_new`](crate::Scheduler::task_new).
#[derive(Debug)]
pub struct PerTask<T> {
    slots: Vec<T>,
}

impl<T> PerTask<T> {
    /// Makes every slot's `T`. Memory: the table's capacity times the size of `T`, taken at once.
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
