//! The agent's thread: takes messages, asks the engine, has what it answers carried out, and gives way when there is
//! nothing to do. It holds no lock that a task which it schedules could have, does no input or output, and its memory
//! is locked.

mod asked;
mod clock;
mod decisions;
mod groups;
mod upgrade;

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use ekiden::{CpuId, CpuMask, Group, TaskId};
use ekiden_contain::contained;
use ekiden_engine::{Engine, Fault, Scan};
use ekiden_host::abi::{Event, EventKind, Outcome, RefusalReason, Status, enqueue_flags};

use crate::host::{AgentHost, now_ns};
use crate::wire::{Message, Seen, Shared, Shot, flag, kind, state};

use asked::Asked;
pub(crate) use asked::Counted;
use groups::Groups;
pub(crate) use upgrade::Succeed;

/// How many messages are taken, and CPUs looked after, before decisions go out.
const MESSAGES: u64 = 256;
const SEARCHES: u32 = 64;

/// A task that has waited through so many scans over the table, these milliseconds apart, has waited for too long, as
/// in the kernel.
const SCANS: u32 = 8;
const SCANS_APART_MS: u32 = 1_000;
const LOOKED_AT_AT_ONCE: u32 = 256;

/// Reading the clock takes as long as a call of a small policy, and is seldom worth it.
const ROUNDS_WITHOUT_CLOCK: u32 = 64;

/// Wake-ups after the last for which the policy has preempted a task, from which on it is not called at once for others.
const EAGER_FOR: u32 = 256;

/// Says when to end, and how it goes.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) stop: AtomicBool,
    pub(crate) asked: Asked,
    pub(crate) messages: AtomicU64,
    pub(crate) decisions: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) kicks: AtomicU64,
    pub(crate) stocks: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    // Written by one thread.
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// State of the task in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// [`TaskId::NONE`] if the engine does not know it.
    id: TaskId,
    /// The number of the newest message about it.
    seq: u64,
    began: u64,
    /// The CPU that it was decided for, and the number that this rests on.
    decided: Option<(CpuId, u64)>,
}

/// See the head of this file.
pub(crate) struct Mind {
    engine: Engine,
    questions: Arc<AgentHost>,
    shared: Arc<Shared>,
    talk: Arc<Talk>,
    tasks: Vec<Known>,
    groups: Groups,
    nr_cpus: u32,
    /// CPUs that look for work and were not decided for since, and those of them for which the engine has to be asked.
    looking: CpuMask,
    searches: CpuMask,
    kicked: CpuMask,
    has_kicked: bool,
    batch: Vec<Shot>,
    tail: u64,
    lost: u64,
    /// When the timer of each CPU goes off, 0 for never.
    timers_ns: Vec<u64>,
    has_timers: bool,
    /// When the engine wants to be told of the time on each CPU, and the first of these moments.
    refills_ns: Vec<u64>,
    refill_ns: u64,
    alarm_ns: u64,
    scan: Scan,
    scan_next: u32,
    scan_at_ns: u64,
    /// What stood in the way of a task that a scan has found to have waited for too long.
    starved: String,
    wakeups_since_kick: u32,
    rounds: u32,
    /// Something was decided for the CPU that this thread is on.
    gives_way: bool,
}

impl Mind {
    pub(crate) fn new(
        engine: Engine,
        questions: Arc<AgentHost>,
        shared: Arc<Shared>,
        talk: Arc<Talk>,
        max_tasks: u32,
    ) -> Self {
        let nr_cpus = engine.nr_cpus();
        let batch = Vec::with_capacity(shared.batch());
        Self {
            engine,
            questions,
            shared,
            talk,
            tasks: vec![Known::default(); max_tasks as usize + 1],
            groups: Groups::new(),
            nr_cpus,
            looking: CpuMask::new(),
            searches: CpuMask::new(),
            kicked: CpuMask::new(),
            has_kicked: false,
            batch,
            tail: 0,
            lost: 0,
            timers_ns: vec![0; nr_cpus as usize],
            has_timers: false,
            refills_ns: vec![u64::MAX; nr_cpus as usize],
            refill_ns: u64::MAX,
            alarm_ns: u64::MAX,
            scan: Scan { number: 0, most: SCANS, apart_ms: SCANS_APART_MS, hears_ticks: false },
            scan_next: 0,
            scan_at_ns: 0,
            starved: String::new(),
            wakeups_since_kick: 0,
            rounds: 0,
            gives_way: false,
        }
    }

    /// Works until it is told to stop, the kernel has let go, or the policy has gone; why, in this last case.
    pub(crate) fn work(&mut self) -> Option<Fault> {
        while !self.talk.stop.load(Acquire) && self.shared.control().ended.load(Acquire) == 0 {
            self.round();
            self.does_what_is_asked();
            if let Some(fault) = self.engine.fault() {
                self.shared.give_up(&(fault.message.clone() + &self.starved));
                return Some(fault);
            }
            if self.gives_way || self.is_done() {
                self.gives_way = false;
                self.set_alarm();
                self.pause();
                // As long as the kernel has this thread in another class, nothing goes out by that.
                let is_out = self.shared.is_out();
                self.collect();
                self.gives_way &= !is_out;
            }
        }
        None
    }

    fn is_done(&self) -> bool {
        self.shared.head() == self.tail && self.searches.is_empty()
    }

    fn round(&mut self) {
        let control = self.shared.control();
        self.rounds = self.rounds.wrapping_add(1);
        let went_off = control.due.swap(0, Acquire) != 0;
        if went_off {
            // It is set anew, also if it was another thread's.
            self.alarm_ns = u64::MAX;
        }
        let is_due = went_off || self.rounds % ROUNDS_WITHOUT_CLOCK == 0;
        let lost = control.lost.load(Acquire);
        if lost != self.lost {
            self.lost = lost;
            self.take_stock();
        }
        let mut taken = 0;
        while taken < MESSAGES {
            let Some(message) = self.shared.message(self.tail + taken) else { break };
            taken += 1;
            self.hear(&message);
        }
        count(&self.talk.messages, taken);
        self.look_at_time(is_due);
        self.search();
        self.aim_kicks();
        self.say_held();
        self.tail += taken;
        let control = self.shared.control();
        control.tail.store(self.tail, Release);
        self.shared.beats();
        if self.is_done() {
            // It goes out with the system call by which this thread gives way.
            self.shared.lay(&self.batch);
        } else {
            self.fire();
        }
    }

    /// Tells the engine. What every outcome can ask for is noted.
    fn deliver(&mut self, event: &Event, payload: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        let engine = &self.engine;
        if let Err(message) = contained(|| engine.deliver(event, payload, &mut outcome)) {
            engine.take_out(Fault { message, cpu: event.cpu });
            return Outcome { status: Status::Fault as i32, ..Outcome::default() };
        }
        // Also for a message for which the policy was not called.
        self.shared.beats();
        if let Some(at_ns) = self.questions.take_refill_ns() {
            if let Some(refill_ns) = self.refills_ns.get_mut(event.cpu as usize) {
                *refill_ns = at_ns.min(*refill_ns);
                self.refill_ns = at_ns.min(self.refill_ns);
            }
        }
        self.carry_out(event.cpu, &outcome);
        outcome
    }

    /// The timer that a policy has asked for on a CPU, and its kicks.
    fn carry_out(&mut self, cpu: CpuId, outcome: &Outcome) {
        if outcome.timer_ns != 0 {
            if let Some(timer_ns) = self.timers_ns.get_mut(cpu as usize) {
                *timer_ns = now_ns().saturating_add(outcome.timer_ns);
                self.has_timers = true;
            }
        }
        self.kick(outcome);
    }

    /// CPUs that look for work already are looked after here; tasks elsewhere have to give way first.
    fn kick(&mut self, outcome: &Outcome) {
        if outcome.kicks.is_empty() {
            return;
        }
        if outcome.kicks.is_all() {
            (0..self.nr_cpus).for_each(|cpu| self.kick_one(cpu));
        } else {
            outcome.kicks.iter().for_each(|cpu| self.kick_one(cpu));
        }
    }

    fn kick_one(&mut self, cpu: CpuId) {
        if self.looking.contains(cpu) {
            self.searches.set(cpu);
        } else if self.questions.is_online(cpu) {
            self.kicked.set(cpu);
            self.has_kicked = true;
        }
    }

    fn event(&self, kind: EventKind, message: &Message) -> Event {
        let known = &self.tasks[message.slot as usize];
        let mut event = Event::new(kind, message.cpu);
        (event.task, event.runtime_ns) = (known.id, message.runtime_ns);
        event
    }

    fn hear(&mut self, message: &Message) {
        match message.kind {
            kind::LOOKS => return self.looks(message.cpu),
            kind::ONLINE | kind::OFFLINE => return self.comes_or_goes(message.cpu, message.kind == kind::ONLINE),
            kind::GROUP => return self.look_at_group(message.slot, message.cpu),
            _ => {}
        }
        let Some(known) = self.tasks.get_mut(message.slot as usize) else { return };
        if message.kind == kind::REFUSED {
            return self.refused(message.cpu, message.slot, message.seq, RefusalReason::NotAllowed);
        }
        // Tasks that existed when stock was taken are known.
        let is_old = match message.kind {
            kind::TICKED | kind::YIELDED => message.seq < known.seq,
            _ => message.seq <= known.seq,
        };
        if is_old {
            return;
        }
        known.seq = message.seq;
        if message.kind == kind::NEW {
            return self.comes(message);
        }
        if known.id.is_none() {
            return;
        }
        match message.kind {
            kind::RUNNABLE if message.flags & flag::PLACED != 0 => self.runs_already(message),
            kind::RUNNABLE => self.waits(message),
            kind::BLOCKED => {
                known.decided = None;
                let event = self.event(EventKind::Block, message);
                self.deliver(&event, &[]);
            }
            kind::YIELDED => {
                let event = self.event(EventKind::Yield, message);
                self.deliver(&event, &[]);
            }
            kind::TICKED => {
                let event = self.event(EventKind::Tick, message);
                self.deliver(&event, &[]);
            }
            kind::DEAD => self.leaves(message.slot, EventKind::TaskExit, message.cpu, message.runtime_ns),
            kind::DEPARTED => self.leaves(message.slot, EventKind::TaskDisable, message.cpu, message.runtime_ns),
            kind::RENICED => {
                let args = [i64::from(message.nice) as u64, message.arg];
                let event = Event { args, ..self.event(EventKind::Nice, message) };
                self.deliver(&event, &[]);
            }
            kind::JOINED => {
                let event = self.event(EventKind::TaskMove, message);
                self.joins(event, message.arg as u32);
            }
            kind::MOVED => {
                let id = known.id;
                self.questions.set_allowed(id, &self.shared.allowed(message.slot));
                let event = self.event(EventKind::Affinity, message);
                self.deliver(&event, &[]);
            }
            _ => {}
        }
    }

    fn comes(&mut self, message: &Message) {
        let seen = Seen {
            seq: message.seq,
            state: state::FREE,
            began: message.seq,
            runtime_ns: message.runtime_ns,
            pid: message.pid,
            cpu: message.cpu,
            nice: message.nice,
            is_idle_policy: message.flags != 0,
            group: message.arg as u32,
        };
        self.begins(message.slot, &seen);
    }

    fn begins(&mut self, slot: u32, seen: &Seen) {
        let Seen { began, cpu, pid, runtime_ns, nice, is_idle_policy, group, .. } = *seen;
        let init = Event { args: [0, pid.into()], ..Event::new(EventKind::TaskInit, cpu) };
        let id = self.deliver(&init, &u64::from(slot).to_ne_bytes()).task;
        let known = &mut self.tasks[slot as usize];
        (known.id, known.began, known.decided) = (id, began, None);
        if id.is_none() {
            return;
        }
        self.questions.set_allowed(id, &self.shared.allowed(slot));
        let enable = Event {
            task: id,
            runtime_ns,
            args: [i64::from(nice) as u64, is_idle_policy.into()],
            ..Event::new(EventKind::TaskEnable, cpu)
        };
        self.deliver(&enable, &[]);
        // It is in the root until it is said to be elsewhere.
        self.questions.set_group(id, Group::ROOT);
        if group != 0 {
            self.joins(Event { task: id, runtime_ns, ..Event::new(EventKind::TaskMove, cpu) }, group);
        }
    }

    fn leaves(&mut self, slot: u32, kind: EventKind, cpu: CpuId, runtime_ns: u64) {
        let known = &mut self.tasks[slot as usize];
        let task = std::mem::take(&mut known.id);
        known.decided = None;
        self.deliver(&Event { task, runtime_ns, ..Event::new(kind, cpu) }, &[]);
    }

    /// A task waits for a CPU. Which one is asked here: the kernel cannot wait for the answer, and has it wait where
    /// it would go by itself.
    fn waits(&mut self, message: &Message) {
        let known = &mut self.tasks[message.slot as usize];
        known.decided = None;
        let id = known.id;
        let mut cpu = message.cpu;
        if message.flags & flag::SELECTED != 0 && self.engine.chooses_cpu(id) {
            let mut event = self.event(EventKind::SelectCpu, message);
            event.cpu = (message.arg >> 32) as u32;
            event.flags = message.arg & u64::from(u32::MAX);
            event.args[0] = message.cpu.into();
            let chosen = self.deliver(&event, &[]).cpu as u32;
            if chosen < self.nr_cpus {
                cpu = chosen;
            }
        }
        let is_woken = message.flags & flag::WOKEN != 0;
        self.has_kicked = false;
        let mut event = self.event(EventKind::Enqueue, message);
        event.cpu = cpu;
        event.flags = if is_woken { enqueue_flags::WAKEUP } else { 0 }
            | if self.looking.contains(cpu) { enqueue_flags::MAY_PLACE } else { 0 };
        self.questions.set_at_user(message.flags & flag::AT_USER != 0);
        let outcome = self.deliver(&event, &[]);
        self.questions.set_at_user(false);
        self.decide(cpu, &outcome);
        if is_woken {
            self.learn(self.has_kicked);
        }
        if message.flags & flag::LEAVES_CPU != 0 {
            self.looks(message.cpu);
        }
    }

    /// A task was woken for a CPU that had nothing to run while no other waited, and runs there: the policy is asked
    /// as if it had not been. If it wants something else there, it gets that.
    fn runs_already(&mut self, message: &Message) {
        let Message { cpu, slot, .. } = *message;
        self.tasks[slot as usize].decided = None;
        if cpu >= self.nr_cpus {
            return;
        }
        // It has looked before.
        if self.searches.contains(cpu) {
            self.search_for(cpu);
        }
        let mut event = self.event(EventKind::Enqueue, message);
        event.flags = enqueue_flags::WAKEUP | enqueue_flags::MAY_PLACE;
        let mut outcome = self.deliver(&event, &[]);
        if outcome.status == Status::Done as i32 {
            outcome = self.deliver(&Event::new(EventKind::Pick, cpu), &[]);
        }
        self.looking.clear(cpu);
        self.searches.clear(cpu);
        if outcome.status == Status::Run as i32 && outcome.host_task == u64::from(slot) {
            self.questions.set_running(cpu, outcome.task);
            self.slice_of(&outcome);
            return;
        }
        self.decide(cpu, &outcome);
        // It runs until it is made to give way, and the policy hears of it when it waits again.
        let event = self.event(EventKind::Block, message);
        self.deliver(&event, &[]);
        self.kicked.set(cpu);
    }

    /// What the policy does with tasks that wake up is not known yet.
    fn begins_eager(&mut self) {
        self.wakeups_since_kick = 0;
        self.shared.control().eager.store(1, Relaxed);
    }

    /// Whether the policy has tasks give way for those that wake up: if it does, it is called at once for each.
    fn learn(&mut self, has_kicked: bool) {
        self.wakeups_since_kick = if has_kicked { 0 } else { self.wakeups_since_kick.saturating_add(1) };
        let eager = &self.shared.control().eager;
        let wanted = u32::from(self.wakeups_since_kick < EAGER_FOR);
        if eager.load(Relaxed) != wanted {
            eager.store(wanted, Relaxed);
        }
    }

    fn looks(&mut self, cpu: CpuId) {
        if cpu < self.nr_cpus {
            self.looking.set(cpu);
            self.searches.set(cpu);
        }
    }

    /// One that leaves says so before it is offline, and again when it is. It still looks for work, for its own threads: they take it offline, and
    /// have to run there before it is online again.
    pub(super) fn comes_or_goes(&mut self, cpu: CpuId, is_online: bool) {
        if self.questions.is_online(cpu) == is_online {
            return;
        }
        self.questions.set_online(cpu, is_online);
        let kind = if is_online { EventKind::CpuOnline } else { EventKind::CpuOffline };
        self.deliver(&Event::new(kind, cpu), &[]);
    }

    /// Asks what CPUs that look for work are to run.
    fn search(&mut self) {
        for _ in 0..SEARCHES {
            let Some(cpu) = self.searches.first() else { return };
            self.search_for(cpu);
        }
    }

    fn search_for(&mut self, cpu: CpuId) {
        self.searches.clear(cpu);
        if self.looking.contains(cpu) {
            let outcome = self.deliver(&Event::new(EventKind::Pick, cpu), &[]);
            self.decide(cpu, &outcome);
        }
    }
}
