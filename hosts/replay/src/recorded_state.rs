//! State of the recorded machine: which tasks wait where, and what a policy is told that asks. In an exact replay
//! no host is asked, as the answers are in the recording.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ekiden::{CpuId, CpuMask, RefusalReason, TaskId, Topology};
use ekiden_host::Host;
use ekiden_host::abi::{Call, Message, RawToken, Reply};

/// Answers as well as can be told from the recording: affinity is not in it, and groups are not.
pub(crate) struct ReplayHost {
    now_ns: AtomicU64,
    idle: Vec<AtomicU64>,
    nr_cpus: u32,
}

impl Host for ReplayHost {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Relaxed)
    }

    fn may_run(&self, _: TaskId, cpu: CpuId) -> bool {
        cpu < self.nr_cpus
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(self.nr_cpus);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        let is_idle = |cpu: &u32| self.idle[(cpu / 64) as usize].load(Relaxed) & 1 << (cpu % 64) != 0;
        (0..self.nr_cpus).filter(is_idle).for_each(|cpu| cpus.set(cpu));
    }

    /// As with affinity: wherever it is wished.
    fn claim(&self, _: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        if cpu < self.nr_cpus { Ok(()) } else { Err(RefusalReason::NotAllowed) }
    }

    fn take_idle(&self, _: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        let mut idle = CpuMask::new();
        self.idle_cpus(&mut idle);
        match among {
            Some(among) => idle.first_in(among),
            None => idle.first(),
        }
    }
}

impl ReplayHost {
    pub(crate) fn new(topology: &Topology) -> Self {
        let nr_cpus = topology.nr_cpus();
        let idle = (0..nr_cpus.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { now_ns: AtomicU64::new(0), idle, nr_cpus }
    }

    #[inline]
    pub(crate) fn set_now_ns(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Relaxed);
    }

    fn set_idle(&self, cpu: CpuId, idle: bool) {
        let Some(word) = self.idle.get((cpu / 64) as usize) else { return };
        let bit = 1 << (cpu % 64);
        let before = word.load(Relaxed);
        word.store(if idle { before | bit } else { before & !bit }, Relaxed);
    }
}

/// State of one task.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The last message about it, with the token that counts.
    pub(crate) message: Message,
    pub(crate) waits: bool,
    /// Since when it waits, or did.
    pub(crate) since_ns: u64,
}

/// The tasks of the recorded machine.
pub(crate) struct RecordedState {
    tasks: Vec<Known>,
    max_tasks: u32,
}

impl RecordedState {
    pub(crate) fn new(max_tasks: u32) -> Self {
        Self { tasks: Vec::new(), max_tasks }
    }

    /// A call begins.
    #[inline]
    pub(crate) fn begins(&mut self, time_ns: u64, message: &Message) {
        let Message { task, token_serial, call, .. } = *message;
        if task.is_none() {
            return;
        }
        let Some(known) = self.known_mut(task) else { return };
        let issued = if token_serial != 0 { message.token() } else { known.message.token() };
        let was_waiting = known.waits && known.message.task == task;
        known.message = message.with_token(RawToken { task, ..issued });
        if token_serial != 0 {
            if !was_waiting {
                known.since_ns = time_ns;
            }
            known.waits = true;
        } else if [Call::TaskBlocked as u32, Call::TaskDead as u32, Call::TaskDeparted as u32].contains(&call) {
            known.waits = false;
        }
    }

    /// A call has picked this token.
    #[inline]
    pub(crate) fn picked(&mut self, token: RawToken) {
        if self.waits(token) {
            self.tasks[token.task.slot as usize].waits = false;
        }
    }

    /// Whether a task waits whose newest token is this.
    pub(crate) fn waits(&self, token: RawToken) -> bool {
        self.known(token.task).is_some_and(|known| known.waits && known.message.token_serial == token.serial)
    }

    /// State of a task, if the recording tells it.
    pub(crate) fn known(&self, task: TaskId) -> Option<&Known> {
        self.tasks.get(task.slot as usize).filter(|known| known.message.task == task)
    }

    /// A call about a task as it was told the last time.
    pub(crate) fn about(&self, call: Call, cpu: CpuId, token: RawToken) -> Message {
        let known = self
            .known(token.task)
            .map_or_else(|| Message { task: token.task, weight: 1024, ..Message::default() }, |known| known.message);
        Message { call: call as u32, cpu, flags: 0, arg: 0, ..known }.with_token(token)
    }

    fn known_mut(&mut self, task: TaskId) -> Option<&mut Known> {
        let slot = task.slot as usize;
        if slot >= self.tasks.len() {
            if task.slot >= self.max_tasks {
                return None;
            }
            self.tasks.resize(slot + 1, Known::default());
        }
        let known = &mut self.tasks[slot];
        if known.message.task != task {
            *known = Known { message: Message { task, ..Message::default() }, ..Known::default() };
        }
        Some(known)
    }
}

/// Keeps in mind whether a CPU found something to run.
pub(crate) fn note_idle(questions: &ReplayHost, message: &Message, reply: &Reply) {
    if message.call == Call::PickNextTask as u32 {
        questions.set_idle(message.cpu, reply.token.is_none());
    }
}
