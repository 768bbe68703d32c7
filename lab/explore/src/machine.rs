//! The machine of a case: it tells the engine what happens, as sched_ext would, and keeps in mind which task runs where.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ekiden::{CpuId, CpuMask, RefusalReason, SpinLock, TaskId};
use ekiden_engine::{Answers, Engine, EngineHost, IdleCpus};
use ekiden_host::Host;
use ekiden_host::abi::{Event, EventKind, Outcome, RawToken, Status, enqueue_flags};

use crate::{Case, MAX_TASKS, PolicyMaker, Step};

/// PIDs begin here, as in the simulator.
const FIRST_PID: usize = 1_000;

/// How far the clock advances whenever it is read.
const STEP_NS: u64 = 1_000;

/// No event *refill* is due.
const NEVER: u64 = u64::MAX;

/// Answers what policies ask.
struct ExplorerHost {
    idle: Arc<IdleCpus>,
    engine: OnceLock<Answers>,
    now_ns: AtomicU64,
    /// When the engine wants the event *refill*.
    refill_ns: AtomicU64,
    nr_cpus: u32,
}

impl Host for ExplorerHost {
    fn now_ns(&self) -> u64 {
        self.now_ns.fetch_add(STEP_NS, Relaxed)
    }

    fn may_run(&self, _: TaskId, cpu: CpuId) -> bool {
        cpu < self.nr_cpus
    }

    fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
        *cpus = CpuMask::first_n(self.nr_cpus);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        self.idle.copy_to(cpus);
    }

    fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
        let answers = self.engine.get().ok_or(RefusalReason::Gone)?;
        answers.claim(token, cpu, |task, cpu| self.may_run(task, cpu))
    }

    fn take_idle(&self, task: TaskId, among: Option<&CpuMask>) -> Option<CpuId> {
        self.idle.take(task, None, among.map(CpuMask::as_words), |_| true)
    }
}

impl EngineHost for ExplorerHost {
    fn refill_at(&self, at_ns: u64) {
        self.refill_ns.fetch_min(at_ns, Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Waits,
    Runs,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    id: TaskId,
    cpu: CpuId,
    state: State,
}

/// What the kernel keeps in mind. Never held while the engine is asked, so a plain lock without contention.
#[derive(Debug, Default)]
struct Books {
    tasks: Vec<Task>,
    running: Vec<Option<usize>>,
    kicked: CpuMask,
    ran: Vec<bool>,
}

/// A machine in the middle of a case.
pub(crate) struct Machine {
    engine: Engine,
    questions: Arc<ExplorerHost>,
    books: std::sync::Mutex<Books>,
    /// The kernel's own locks, taken as it takes them: around an enqueue and a search for work, not for select_cpu.
    run_queues: Vec<SpinLock<()>>,
}

impl Machine {
    /// The machine at the beginning of `case`.
    pub(crate) fn new(case: &Case, policy: &PolicyMaker) -> Self {
        let nr_cpus = case.cpus.len() as u32;
        let idle = Arc::new(IdleCpus::new(nr_cpus));
        let host = Arc::new(ExplorerHost {
            idle: idle.clone(),
            engine: OnceLock::new(),
            now_ns: AtomicU64::new(STEP_NS),
            refill_ns: AtomicU64::new(NEVER),
            nr_cpus,
        });
        let engine = Engine::new(policy.make(nr_cpus, host.clone()), host.clone(), idle, nr_cpus, MAX_TASKS);
        let _ = host.engine.set(engine.answers());
        let books =
            Books { running: vec![None; nr_cpus as usize], ran: vec![true; case.tasks.len()], ..Books::default() };
        let machine = Self {
            engine,
            questions: host,
            books: std::sync::Mutex::new(books),
            run_queues: (0..nr_cpus).map(|_| SpinLock::default()).collect(),
        };
        for (index, (cpu, sleeps)) in case.tasks.iter().enumerate() {
            let pid = (FIRST_PID + index) as u64;
            let id = machine.tell(&Event { args: [index as u64, pid], ..Event::new(EventKind::TaskInit, *cpu) }).task;
            machine.books().tasks.push(Task { id, cpu: *cpu, state: State::Asleep });
            machine.tell(&machine.event(EventKind::TaskEnable, *cpu, index));
            if !sleeps {
                machine.enqueue(index, *cpu, 0);
                if machine.books().running[*cpu as usize].is_none() {
                    machine.pick(*cpu, None);
                }
            }
        }
        machine
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().expect("nobody panics with the books open")
    }

    /// Lets something happen on `cpu`.
    pub(crate) fn step(&self, cpu: CpuId, step: Step) {
        let running = self.books().running[cpu as usize];
        match (step, running) {
            (Step::Wake(task), _) => self.wake(task),
            (Step::Sleep, Some(task)) => self.sleep(task, cpu),
            (Step::Tick, Some(task)) => {
                let _rq = self.run_queues[cpu as usize].lock();
                self.tell(&self.event(EventKind::Tick, cpu, task));
            }
            (Step::Sleep | Step::Tick, None) => {}
        }
    }

    fn wake(&self, task: usize) {
        let before = self.books().tasks[task].cpu;
        let event = Event { args: [before.into(), 0], ..self.event(EventKind::SelectCpu, before, task) };
        let chosen = self.tell(&event).cpu as CpuId;
        let _rq = self.run_queues[chosen as usize].lock();
        self.enqueue(task, chosen, enqueue_flags::WAKEUP);
        // The kernel itself sends the CPU of the run queue there.
        let mut books = self.books();
        if books.running[chosen as usize].is_none() {
            books.kicked.set(chosen);
        }
    }

    fn sleep(&self, task: usize, cpu: CpuId) {
        let _rq = self.run_queues[cpu as usize].lock();
        {
            let mut books = self.books();
            books.tasks[task].state = State::Asleep;
            books.running[cpu as usize] = None;
        }
        self.tell(&self.event(EventKind::Block, cpu, task));
        self.pick(cpu, Some(task));
    }

    fn enqueue(&self, task: usize, cpu: CpuId, flags: u64) {
        {
            let mut books = self.books();
            books.tasks[task] = Task { cpu, state: State::Waits, ..books.tasks[task] };
            books.ran[task] = false;
        }
        self.tell(&Event { flags, ..self.event(EventKind::Enqueue, cpu, task) });
    }

    /// Whether `cpu` found something to run.
    fn pick(&self, cpu: CpuId, left: Option<usize>) -> bool {
        self.books().kicked.clear(cpu);
        let event = left.map_or(Event::new(EventKind::Pick, cpu), |task| self.event(EventKind::Pick, cpu, task));
        let outcome = self.tell(&event);
        if outcome.status != Status::Run as i32 {
            return false;
        }
        let mut books = self.books();
        let task = outcome.host_task as usize;
        assert_eq!(books.tasks[task].state, State::Waits, "task {task} is picked on CPU {cpu}, and does not wait");
        books.tasks[task] = Task { cpu, state: State::Runs, ..books.tasks[task] };
        books.running[cpu as usize] = Some(task);
        books.ran[task] = true;
        true
    }

    fn event(&self, kind: EventKind, cpu: CpuId, task: usize) -> Event {
        Event { task: self.books().tasks[task].id, ..Event::new(kind, cpu) }
    }

    /// Tells the engine, and keeps its kicks in mind.
    fn tell(&self, event: &Event) -> Outcome {
        let mut outcome = Outcome::default();
        // The name of a new task.
        self.engine.deliver(event, &event.args[0].to_ne_bytes(), &mut outcome);
        let mut books = self.books();
        if outcome.kicks.is_all() {
            (0..self.run_queues.len() as CpuId).for_each(|cpu| books.kicked.set(cpu));
        } else {
            outcome.kicks.iter().for_each(|cpu| books.kicked.set(cpu));
        }
        outcome
    }

    /// Nothing is under way any more: carries out the kicks, then looks what has gone wrong.
    pub(crate) fn verdict(&self) -> Option<String> {
        let nr_cpus = self.run_queues.len() as CpuId;
        self.carry_out_kicks();
        for cpu in 0..nr_cpus {
            self.step(cpu, Step::Tick);
        }
        self.carry_out_kicks();
        for cpu in 0..nr_cpus {
            let waiting = self.waiting();
            if self.books().running[cpu as usize].is_none() && !waiting.is_empty() && self.pick(cpu, None) {
                let pids: Vec<_> = waiting.iter().map(|task| format!("PID {}", FIRST_PID + task)).collect();
                return Some(format!("lost wake-up: CPU {cpu} stays idle while {} waits", pids.join(", ")));
            }
        }
        self.drain();
        if let Some(lost) = self.books().ran.iter().position(|ran| !ran) {
            return Some(format!("lost task: no CPU ever picks PID {}", FIRST_PID + lost));
        }
        match self.engine.contract_violations() {
            (0, _) => None,
            (_, Some(contract_violation)) => Some(format!("contract violation: {contract_violation:?}")),
            (count, None) => Some(format!("{count} contract_violations")),
        }
    }

    fn waiting(&self) -> Vec<usize> {
        let books = self.books();
        (0..books.tasks.len()).filter(|task| books.tasks[*task].state == State::Waits).collect()
    }

    /// Idle CPUs that were kicked look for work, also if they were kicked late. CPUs that run something would, at the end of a
    /// slice, as well.
    fn carry_out_kicks(&self) {
        for _ in 0..2 * MAX_TASKS {
            let cpu = {
                let books = self.books();
                books.kicked.iter().find(|cpu| books.running[*cpu as usize].is_none())
            };
            match cpu {
                Some(cpu) => _ = self.pick(cpu, None),
                None if self.refill() => {}
                None => return,
            }
        }
    }

    /// Lets the time come that the engine waits for. Whether there is one.
    fn refill(&self) -> bool {
        let at_ns = self.questions.refill_ns.swap(NEVER, Relaxed);
        if at_ns != NEVER {
            self.questions.now_ns.fetch_max(at_ns, Relaxed);
            self.tell(&Event::new(EventKind::Refill, 0));
        }
        at_ns != NEVER
    }

    /// All that runs sleeps, until nothing runs any more.
    fn drain(&self) {
        for _ in 0..MAX_TASKS {
            for cpu in 0..self.run_queues.len() as CpuId {
                let running = self.books().running[cpu as usize];
                match running {
                    Some(task) => self.sleep(task, cpu),
                    None => {
                        self.pick(cpu, None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod loud {
        use ekiden::prelude::*;

        /// A queue for all, which has every CPU look whenever a task wakes up.
        pub(super) struct Loud {
            queue: SpinLock<FifoQueue<Self>>,
        }

        #[policy]
        impl Scheduler for Loud {
            fn new(_: &Env) -> Self {
                Self { queue: SpinLock::default() }
            }

            fn select_task_rq(&self, _: &Cx, _: &Task, _: CpuId, _: CpuId, _: WakeFlags) -> CpuId {
                0
            }

            fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
                self.queue.lock().push_back(token);
                (0..3).for_each(|cpu| cx.resched(cpu));
            }

            fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
                self.queue.lock().claim_first(cx)
            }
        }
    }

    #[test]
    fn kicks_beyond_what_a_policy_has_come_late_and_are_not_lost() {
        let case = Case { name: "loud", tasks: &[(0, false), (0, true)], cpus: &[&[], &[], &[]] };
        let machine = Machine::new(&case, &PolicyMaker::of::<loud::Loud>("").unwrap());
        let mut late = 0;
        for time in 0..400 {
            machine.wake(1);
            late += u32::from(machine.questions.refill_ns.load(Relaxed) != NEVER);
            machine.carry_out_kicks();
            let Task { cpu, state, .. } = machine.books().tasks[1];
            assert_eq!(state, State::Runs, "wake-up {time} is lost");
            machine.sleep(1, cpu);
            machine.carry_out_kicks();
        }
        assert!(late > 0, "no kick came late");
        assert_eq!(machine.verdict(), None);
    }
}
