//! Sets of CPUs that tasks may use. Each different set exists once, and tasks name it by number.

use std::iter::zip;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, RwLock};

use ekiden::{CpuId, CpuMask, Group, NotTold, ProcessId, QueueId, RefusalReason, Running, TaskId};
use ekiden_engine::{Answers, EngineHost, IdleCpus};
use ekiden_host::Host;
use ekiden_host::abi::RawToken;

use crate::queues::Notices;

/// Number of a set in [`Masks`].
pub(crate) type MaskId = u32;

/// Every set of CPUs that the load names.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    named: Vec<CpuMask>,
    usable: Vec<Usable>,
    online: CpuMask,
}

/// What of a set can be used now; nothing, if all its CPUs are offline.
#[derive(Clone, Debug)]
pub(crate) struct Usable {
    pub(crate) cpus: CpuMask,
    /// The only CPU, if it is only one: then the policy is not asked where to run.
    pub(crate) only: Option<CpuId>,
}

/// The set of all CPUs.
pub(crate) const ANY: MaskId = 0;

impl Masks {
    pub(crate) fn new(nr_cpus: u32, online: CpuMask) -> Self {
        let mut masks = Self { named: vec![CpuMask::first_n(nr_cpus)], usable: Vec::new(), online };
        masks.refresh();
        masks
    }

    /// The number of the set of `cpus`; absent means any.
    pub(crate) fn intern(&mut self, cpus: Option<&[CpuId]>) -> MaskId {
        let Some(cpus) = cpus else { return ANY };
        let mask: CpuMask = cpus.iter().copied().collect();
        let known = self.named.iter().position(|named| *named == mask);
        let id = known.unwrap_or_else(|| {
            self.usable.push(Usable::of(&mask, &self.online));
            self.named.push(mask);
            self.named.len() - 1
        });
        id as MaskId
    }

    #[inline]
    pub(crate) fn get(&self, id: MaskId) -> &Usable {
        &self.usable[id as usize]
    }

    /// The set itself, offline CPUs included.
    pub(crate) fn named(&self, id: MaskId) -> &CpuMask {
        &self.named[id as usize]
    }

    pub(crate) fn online(&self) -> &CpuMask {
        &self.online
    }

    /// Notes that `cpu` comes or goes.
    pub(crate) fn set_online(&mut self, cpu: CpuId, online: bool) {
        if online {
            self.online.set(cpu)
        } else {
            self.online.clear(cpu)
        }
        self.refresh();
    }

    fn refresh(&mut self) {
        self.usable = self.named.iter().map(|named| Usable::of(named, &self.online)).collect();
    }
}

impl Usable {
    fn of(named: &CpuMask, online: &CpuMask) -> Self {
        let cpus = named & online;
        let only = cpus.first().filter(|_| cpus.count() == 1);
        Self { cpus, only }
    }
}

/// The lowest CPU that is in all three sets.
pub(crate) fn first_in_all(a: &CpuMask, b: &CpuMask, c: &CpuMask) -> Option<CpuId> {
    let words = zip(zip(a.as_words(), b.as_words()), c.as_words());
    (0..).step_by(64).zip(words).find_map(|(base, ((a, b), c))| {
        let common = a & b & c;
        (common != 0).then(|| base + common.trailing_zeros())
    })
}

/// What a policy may ask in the middle of a call.
#[derive(Debug)]
pub(crate) struct SimHost {
    now_ns: AtomicU64,
    /// When the engine wants to be called again; [`NEVER`] for not at all.
    late_ns: AtomicU64,
    /// The PID of the task on whose time things happen; 0 if there is none.
    thread: AtomicU32,
    idle: Arc<IdleCpus>,
    engine: OnceLock<Answers>,
    /// What each CPU switched to last, and when.
    ran: Vec<(AtomicU64, AtomicU64)>,
    /// The set of each task, by the index of its entry in the engine's table.
    of_task: Vec<AtomicU32>,
    /// The group of each task, likewise.
    group_of_task: Vec<AtomicU32>,
    groups: Vec<Group>,
    /// The process of each task, likewise.
    process_of_task: Vec<AtomicU32>,
    masks: RwLock<Masks>,
    /// What each call costs, by its number, if calls cost anything.
    call_costs_ns: Option<Vec<u64>>,
    /// What calls have cost since the last time that this was asked.
    calls_ns: AtomicU64,
    /// What the policy has said in queues, how many of these there are, and whether it has said anything that was not looked at.
    pub(crate) notices: Notices,
    pub(crate) queues: AtomicU32,
    pub(crate) has_told: AtomicBool,
}

impl SimHost {
    pub(crate) fn new(
        masks: Masks,
        groups: Vec<Group>,
        idle: Arc<IdleCpus>,
        max_tasks: u32,
        call_costs_ns: Option<Vec<u64>>,
    ) -> Self {
        let of_task = (0..max_tasks).map(|_| AtomicU32::new(ANY)).collect();
        let [group_of_task, process_of_task] = [(); 2].map(|()| (0..max_tasks).map(|_| AtomicU32::new(0)).collect());
        Self {
            now_ns: AtomicU64::new(0),
            late_ns: AtomicU64::new(NEVER),
            thread: AtomicU32::new(0),
            idle,
            engine: OnceLock::new(),
            ran: masks.named(ANY).iter().map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            of_task,
            group_of_task,
            groups,
            process_of_task,
            masks: RwLock::new(masks),
            call_costs_ns,
            calls_ns: AtomicU64::new(0),
            notices: Notices::default(),
            queues: AtomicU32::new(0),
            has_told: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn set_now_ns(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Relaxed);
    }

    /// When the engine wants to be called again about what it has kept, if it has said so since the last time.
    #[inline]
    pub(crate) fn take_late_ns(&self) -> Option<u64> {
        if self.late_ns.load(Relaxed) == NEVER {
            return None;
        }
        Some(self.late_ns.swap(NEVER, Relaxed))
    }

    pub(crate) fn call_costs_ns(&self) -> Option<Vec<u64>> {
        self.call_costs_ns.clone()
    }

    /// A call has cost so much.
    #[inline]
    pub(crate) fn add_call_ns(&self, ns: u64) {
        self.calls_ns.fetch_add(ns, Relaxed);
    }

    /// What calls have cost since the last time.
    #[inline]
    pub(crate) fn take_calls_ns(&self) -> u64 {
        if self.calls_ns.load(Relaxed) == 0 {
            return 0;
        }
        self.calls_ns.swap(0, Relaxed)
    }

    /// There is an engine now.
    pub(crate) fn set_engine(&self, answers: Answers) {
        // There is one in a simulation.
        let _ = self.engine.set(answers);
    }

    #[inline]
    pub(crate) fn set_running(&self, cpu: CpuId, task: TaskId, since_ns: u64) {
        let (runs, since) = &self.ran[cpu as usize];
        runs.store(task.to_bits(), Relaxed);
        since.store(since_ns, Relaxed);
    }

    #[inline]
    pub(crate) fn set_thread(&self, pid: u32) {
        self.thread.store(pid, Relaxed);
    }

    #[inline]
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Relaxed)
    }

    pub(crate) fn set_mask(&self, task: TaskId, mask: MaskId) {
        self.of_task[task.slot as usize].store(mask, Relaxed);
    }

    pub(crate) fn set_group(&self, task: TaskId, group: u32) {
        self.group_of_task[task.slot as usize].store(group, Relaxed);
    }

    pub(crate) fn set_process(&self, task: TaskId, process: ProcessId) {
        self.process_of_task[task.slot as usize].store(process, Relaxed);
    }

    pub(crate) fn set_masks(&self, masks: Masks) {
        *self.masks.write().expect(UNSHARED) = masks;
    }

    fn with_cpus<R>(&self, task: TaskId, ask: impl FnOnce(&CpuMask) -> R) -> Option<R> {
        let mask = self.of_task.get(task.slot as usize)?.load(Relaxed);
        Some(ask(&self.masks.read().expect(UNSHARED).get(mask).cpus))
    }
}

const NEVER: u64 = u64::MAX;

/// A simulation runs in one thread, and no lock is held across foreign code.
const UNSHARED: &str = "nobody panics with this lock held";

impl Host for SimHost {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Relaxed)
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        self.with_cpus(task, |cpus| cpus.contains(cpu)).unwrap_or(false)
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        if let Some(allowed) = self.with_cpus(task, CpuMask::clone) {
            *cpus = allowed;
        }
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        let answers = self.engine.get().ok_or(RefusalReason::Gone)?;
        answers.claim(token, cpu, |task, cpu| self.may_run(task, cpu))
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        let take =
            |allowed: &CpuMask| self.idle.take(task, Some(allowed.as_words()), among.map(CpuMask::as_words), |_| true);
        self.with_cpus(task, take).flatten()
    }

    fn notify(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        self.tell(queue, notice)
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        let (runs, since) = self.ran.get(cpu as usize)?;
        let task = TaskId::from_bits(runs.load(Relaxed));
        let weight = self.engine.get()?.weight_of_running(task, cpu)?;
        Some(Running { task, weight, since_ns: since.load(Relaxed) })
    }

    fn process(&self, task: TaskId) -> Option<ProcessId> {
        Some(self.process_of_task.get(task.slot as usize)?.load(Relaxed)).filter(|process| *process != 0)
    }

    fn group(&self, task: TaskId) -> Group {
        let group = self.group_of_task.get(task.slot as usize).map_or(0, |group| group.load(Relaxed));
        self.groups[group as usize]
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
        cpus.intersect(self.masks.read().expect(UNSHARED).online());
    }
}

impl EngineHost for SimHost {
    fn refill_at(&self, at_ns: u64) {
        self.late_ns.fetch_min(at_ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_one_number() {
        let mut masks = Masks::new(4, CpuMask::first_n(4));
        assert_eq!(masks.intern(None), ANY);
        let some = masks.intern(Some(&[1, 3]));
        assert_eq!(masks.intern(Some(&[3, 1, 3])), some);
        assert_ne!(masks.intern(Some(&[1])), some);
        assert_eq!(masks.intern(Some(&[0, 1, 2, 3])), ANY);
    }

    #[test]
    fn cpus_that_are_offline_cannot_be_used() {
        let mut masks = Masks::new(4, CpuMask::first_n(4));
        let two = masks.intern(Some(&[2, 3]));
        assert_eq!(masks.get(two).only, None);
        masks.set_online(2, false);
        assert_eq!((masks.get(two).only, masks.get(ANY).cpus.count()), (Some(3), 3));
        masks.set_online(3, false);
        assert!(masks.get(two).cpus.is_empty());
        masks.set_online(2, true);
        assert_eq!(masks.get(two).only, Some(2));
    }

    #[test]
    fn the_first_common_cpu_is_found_beyond_the_first_word() {
        let set = |cpus: &[CpuId]| cpus.iter().copied().collect::<CpuMask>();
        assert_eq!(first_in_all(&set(&[1, 70, 200]), &set(&[2, 70, 200]), &set(&[3, 70])), Some(70));
        assert_eq!(first_in_all(&set(&[1]), &set(&[1, 2]), &set(&[2])), None);
    }
}
