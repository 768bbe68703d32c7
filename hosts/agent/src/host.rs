//! What a policy may ask in the middle of a call, answered from what the kernel has told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ekiden::{CpuId, CpuMask, Group, RefusalReason, Running, TaskId};
use ekiden_engine::{Answers, EngineHost, IdleCpus};
use ekiden_host::Host;
use ekiden_host::abi::RawToken;
use nix::time::{ClockId, clock_gettime};

use crate::heartbeat::Beats;
use crate::wire::WORDS;

const NEVER: u64 = u64::MAX;

/// A set of CPUs that is written by one thread.
#[derive(Debug, Default)]
struct Cpus([AtomicU64; WORDS]);

impl Cpus {
    fn store(&self, words: &[u64; WORDS]) {
        self.0.iter().zip(words).for_each(|(to, word)| to.store(*word, Relaxed));
    }

    fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.0[word].load(Relaxed))
    }

    fn contains(&self, cpu: CpuId) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word.load(Relaxed) >> (cpu % 64) & 1 != 0)
    }
}

/// The host as policies and the engine see it.
#[derive(Debug)]
pub(crate) struct AgentHost {
    idle: Arc<IdleCpus>,
    engine: OnceLock<Answers>,
    beats: OnceLock<Arc<Beats>>,
    online: Cpus,
    /// The CPUs that each task may run on, by the index of its entry in the engine's table.
    allowed: Vec<Cpus>,
    /// The control group of each task, likewise: its number, and below that 32 bits of its weight.
    groups: Vec<AtomicU64>,
    /// What each CPU was told to run last, and when.
    ran: Vec<(AtomicU64, AtomicU64)>,
    refill_ns: AtomicU64,
    /// The task of the message under way gave way in user mode.
    at_user: AtomicBool,
}

/// The time by the clock that the kernel's messages go by, too.
pub(crate) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn bits_of(group: Group) -> u64 {
    u64::from(group.id) << 32 | u64::from(group.weight)
}

impl AgentHost {
    pub(crate) fn new(idle: Arc<IdleCpus>, online: &CpuMask, nr_cpus: u32, max_tasks: u32) -> Self {
        let this = Self {
            idle,
            engine: OnceLock::new(),
            beats: OnceLock::new(),
            online: Cpus::default(),
            allowed: (0..max_tasks).map(|_| Cpus::default()).collect(),
            groups: (0..max_tasks).map(|_| AtomicU64::new(bits_of(Group::ROOT))).collect(),
            ran: (0..nr_cpus).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            refill_ns: AtomicU64::new(NEVER),
            at_user: AtomicBool::new(false),
        };
        online.iter().for_each(|cpu| this.set_online(cpu, true));
        this
    }

    /// There is an engine now.
    pub(crate) fn set_engine(&self, answers: Answers) {
        // There is one in an agent.
        let _ = self.engine.set(answers);
    }

    /// Questions about tasks count as signs of life from now on.
    pub(crate) fn set_beats(&self, beats: Arc<Beats>) {
        let _ = self.beats.set(beats);
    }

    pub(crate) fn set_online(&self, cpu: CpuId, is_online: bool) {
        let Some(word) = self.online.0.get(cpu as usize / 64) else { return };
        let bit = 1 << (cpu % 64);
        if is_online {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
    }

    pub(crate) fn is_online(&self, cpu: CpuId) -> bool {
        self.online.contains(cpu)
    }

    pub(crate) fn set_allowed(&self, task: TaskId, words: &[u64; WORDS]) {
        if let Some(allowed) = self.allowed.get(task.slot as usize) {
            allowed.store(words);
        }
    }

    pub(crate) fn set_group(&self, task: TaskId, group: Group) {
        if let Some(bits) = self.groups.get(task.slot as usize) {
            bits.store(bits_of(group), Relaxed);
        }
    }

    pub(crate) fn set_running(&self, cpu: CpuId, task: TaskId) {
        let (runs, since) = &self.ran[cpu as usize];
        runs.store(task.to_bits(), Relaxed);
        since.store(now_ns(), Relaxed);
    }

    /// Whether the task of the next event has given way in user mode, without a lock of the kernel's.
    pub(crate) fn set_at_user(&self, at_user: bool) {
        self.at_user.store(at_user, Relaxed);
    }

    /// When the engine wants the event *refill*, if it has said so since the last time.
    pub(crate) fn take_refill_ns(&self) -> Option<u64> {
        if self.refill_ns.load(Relaxed) == NEVER {
            return None;
        }
        Some(self.refill_ns.swap(NEVER, Relaxed))
    }

    fn is_usable(&self, task: TaskId, cpu: CpuId) -> bool {
        self.allowed.get(task.slot as usize).is_some_and(|allowed| allowed.contains(cpu)) && self.is_online(cpu)
    }

    fn asks(&self) {
        if let Some(beats) = self.beats.get() {
            beats.asks();
        }
    }

    /// The CPUs that a task may use and that are there.
    fn usable(&self, task: TaskId) -> [u64; WORDS] {
        let mut words = self.allowed.get(task.slot as usize).map_or([0; WORDS], Cpus::words);
        words.iter_mut().zip(self.online.words()).for_each(|(word, online)| *word &= online);
        words
    }
}

impl Host for AgentHost {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        self.asks();
        self.is_usable(task, cpu)
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::from_words(&self.usable(task));
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
        cpus.intersect(&CpuMask::from_words(&self.online.words()));
    }

    fn group(&self, task: TaskId) -> Group {
        let bits = self.groups.get(task.slot as usize).map_or(bits_of(Group::ROOT), |bits| bits.load(Relaxed));
        Group { id: (bits >> 32) as u32, weight: bits as u32 }
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        self.asks();
        let answers = self.engine.get().ok_or(RefusalReason::Gone)?;
        answers.claim(token, cpu, |task, cpu| self.is_usable(task, cpu))
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        self.idle.take(task, Some(&self.usable(task)), among.map(CpuMask::as_words), |_| true)
    }

    fn running(&self, cpu: CpuId) -> Option<Running> {
        let (runs, since) = self.ran.get(cpu as usize)?;
        let task = TaskId::from_bits(runs.load(Relaxed));
        let weight = self.engine.get()?.weight_of_running(task, cpu)?;
        Some(Running { task, weight, since_ns: since.load(Relaxed) })
    }
}

impl EngineHost for AgentHost {
    fn refill_at(&self, at_ns: u64) {
        self.refill_ns.fetch_min(at_ns, Relaxed);
    }

    /// There is nothing to do for that: the slice of a task that has no time left ends at each tick, and so at the first one that finds
    /// it in user mode.
    fn look_at_return(&self) -> bool {
        true
    }

    fn is_at_user(&self, _task: TaskId) -> bool {
        self.at_user.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_away_can_be_used_by_no_task() {
        let idle = Arc::new(IdleCpus::new(130));
        let questions = AgentHost::new(idle, &CpuMask::first_n(130), 130, 2);
        let task = TaskId { slot: 1, generation: 1 };
        questions.set_allowed(task, &[1, 0, 2, 0]);
        assert!(questions.may_run(task, 0) && questions.may_run(task, 129) && !questions.may_run(task, 1));
        questions.set_online(129, false);
        assert!(!questions.may_run(task, 129));
        let mut cpus = CpuMask::new();
        questions.allowed_cpus(task, &mut cpus);
        assert_eq!(cpus.iter().collect::<Vec<_>>(), [0]);
        assert!(!questions.may_run(TaskId { slot: 2, generation: 1 }, 0), "an index beyond the table");
    }

    #[test]
    fn the_group_of_a_task_is_the_root_until_it_is_said_to_be_another() {
        let questions = AgentHost::new(Arc::new(IdleCpus::new(1)), &CpuMask::first_n(1), 1, 2);
        let [task, beyond] = [1, 2].map(|slot| TaskId { slot, generation: 1 });
        assert_eq!(questions.group(task), Group::ROOT);
        let group = Group { id: u32::MAX, weight: 1 };
        questions.set_group(task, group);
        questions.set_group(beyond, group);
        assert_eq!((questions.group(task), questions.group(beyond)), (group, Group::ROOT));
    }

    #[test]
    fn the_earliest_wish_for_a_refill_counts_once() {
        let questions = AgentHost::new(Arc::new(IdleCpus::new(1)), &CpuMask::first_n(1), 1, 1);
        questions.refill_at(7);
        questions.refill_at(5);
        questions.refill_at(9);
        assert_eq!((questions.take_refill_ns(), questions.take_refill_ns()), (Some(5), None));
    }

    #[test]
    fn a_task_is_at_user_only_while_the_message_says_so() {
        let questions = AgentHost::new(Arc::new(IdleCpus::new(1)), &CpuMask::first_n(1), 1, 1);
        let task = TaskId { slot: 0, generation: 1 };
        assert!(!questions.is_at_user(task));
        questions.set_at_user(true);
        assert!(questions.is_at_user(task));
        questions.set_at_user(false);
        assert!(!questions.is_at_user(task));
    }
}
