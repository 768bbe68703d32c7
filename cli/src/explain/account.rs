//! What a trace comes to, as far as it may explain why programs were slower or faster.

use std::collections::HashMap;

use ekiden::{CpuMask, Topology};
use ekiden_check::Checker;
use ekiden_loader::Whom;
use ekiden_page::Histogram;
use ekiden_trace::{Header, Host, Record, What};
use serde::Serialize;

use crate::trace::Name;

/// A CPU that was idle for so long may have slept, and its caches may be others' by then.
const COLD_NS: u64 = 100_000;

/// A CPU counts as used if it was busy for so much of the time.
const USED_PERMILLE: u64 = 10;

/// How far tasks moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Moves {
    pub(super) within_core: u64,
    pub(super) within_llc: u64,
    pub(super) within_node: u64,
    pub(super) to_other_node: u64,
}

/// What the tasks that are asked for did, and what their CPUs did. Times are in nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Account {
    pub(super) scheduler: String,
    pub(super) span_ns: u64,
    pub(super) cpus: u32,
    /// CPUs that were busy for a hundredth of the time or more.
    pub(super) cpus_used: u32,
    /// CPU time of these tasks, and of all.
    pub(super) ran_ns: u64,
    pub(super) busy_ns: u64,
    /// How often one of them began to run, lost its CPU, gave way, slept, was woken up.
    pub(super) switches: u64,
    pub(super) preemptions: u64,
    pub(super) yields: u64,
    pub(super) sleeps: u64,
    pub(super) wakeups: u64,
    /// How often one of them began to run on another CPU than the last time, by distance.
    pub(super) moves: Moves,
    /// How often one of them began to run on a CPU that had been idle for a tenth of a millisecond or longer.
    pub(super) cold: u64,
    pub(super) waited_ns: u64,
    pub(super) wait_p50_ns: u64,
    pub(super) wait_p99_ns: u64,
    pub(super) wait_max_ns: u64,
    /// CPU time that was idle while a task waited that could have used it.
    pub(super) wasted_ns: u64,
    /// Records that are missing in the trace.
    pub(super) lost: u64,
}

#[derive(Default)]
struct Task {
    name: Name,
    waits_since_ns: Option<u64>,
    runs_since_ns: Option<u64>,
    /// Where it ran last.
    cpu: Option<u32>,
}

#[derive(Clone, Copy, Default)]
struct Cpu {
    busy_ns: u64,
    idle_since_ns: Option<u64>,
}

/// Makes an account of records as they come. Memory grows with the tasks that live.
pub(super) struct Accountant<'a> {
    whom: &'a Whom,
    /// Whether it is of a kernel. There, a wait that took no time was put in, as it was not seen how the task got its CPU.
    is_real: bool,
    topology: Option<Topology>,
    checker: Checker,
    tasks: HashMap<u32, Task>,
    cpus: Vec<Cpu>,
    waits: Histogram,
    account: Account,
    begin_ns: Option<u64>,
    now_ns: u64,
}

impl<'a> Accountant<'a> {
    pub(super) fn new(header: &Header, whom: &'a Whom) -> Self {
        let scheduler = header.policy.clone().unwrap_or_else(|| "the host's own scheduler".into());
        Self {
            whom,
            is_real: header.host == Host::Kernel,
            topology: header.topology().ok(),
            checker: Checker::with(header, Vec::new()),
            tasks: HashMap::new(),
            cpus: vec![Cpu::default(); header.cpus.len()],
            waits: Histogram::default(),
            account: Account { scheduler, cpus: header.nr_cpus(), ..Account::default() },
            begin_ns: None,
            now_ns: 0,
        }
    }

    pub(super) fn record(&mut self, record: &Record) {
        let Record { time_ns, cpu, what, pid, .. } = *record;
        let begin_ns = *self.begin_ns.get_or_insert(time_ns);
        self.now_ns = self.now_ns.max(begin_ns);
        if time_ns > self.now_ns {
            let wasted = u64::from(self.checker.view().wasted_cpus(self.now_ns));
            self.account.wasted_ns += wasted * (time_ns - self.now_ns);
            self.now_ns = time_ns;
        }
        self.checker.record(record);
        self.account.lost = self.account.lost.saturating_add(record.lost());
        match what {
            What::New => drop(self.tasks.insert(pid, Task::default())),
            What::Name => self.task(pid).name.add(record),
            What::Wake => self.account.wakeups += u64::from(self.is_wanted(pid)),
            What::Yield => self.account.yields += u64::from(self.is_wanted(pid)),
            What::Enqueue => drop(self.task(pid).waits_since_ns.get_or_insert(time_ns)),
            What::Run => self.runs(time_ns, cpu, pid),
            What::Preempt | What::Throttle => {
                self.account.preemptions += u64::from(self.is_wanted(pid) && self.leaves(time_ns, cpu, pid));
            }
            What::Block | What::Exit => {
                let was_running = self.leaves(time_ns, cpu, pid);
                self.account.sleeps += u64::from(was_running && what == What::Block && self.is_wanted(pid));
                if what == What::Exit {
                    self.tasks.remove(&pid);
                }
            }
            _ => {}
        }
    }

    fn runs(&mut self, time_ns: u64, cpu: u32, pid: u32) {
        let is_wanted = self.is_wanted(pid);
        let idle_since_ns = self.cpus.get_mut(cpu as usize).and_then(|cpu| cpu.idle_since_ns.take());
        let is_real = self.is_real;
        let task = self.task(pid);
        let waited_ns = task.waits_since_ns.take().map(|since_ns| time_ns.saturating_sub(since_ns));
        task.runs_since_ns = Some(time_ns);
        let from = task.cpu.replace(cpu).filter(|from| *from != cpu);
        if !is_wanted {
            return;
        }
        if let Some(waited_ns) = waited_ns.filter(|waited_ns| !is_real || *waited_ns > 0) {
            self.waits.add(waited_ns);
        }
        self.account.switches += 1;
        let is_cold = idle_since_ns.is_some_and(|since_ns| time_ns.saturating_sub(since_ns) >= COLD_NS);
        self.account.cold += u64::from(is_cold);
        if let Some(from) = from {
            self.moves(from, cpu);
        }
    }

    fn moves(&mut self, from: u32, to: u32) {
        let moves = &mut self.account.moves;
        let Some(topology) = self.topology.as_ref().filter(|topology| from.max(to) < topology.nr_cpus()) else {
            return;
        };
        let shares = |cpus: &CpuMask| cpus.contains(to);
        *if shares(topology.smt_siblings(from)) {
            &mut moves.within_core
        } else if shares(topology.llc(from)) {
            &mut moves.within_llc
        } else if shares(topology.node(from)) {
            &mut moves.within_node
        } else {
            &mut moves.to_other_node
        } += 1;
    }

    /// Its CPU is idle until another one runs there. Whether it ran.
    fn leaves(&mut self, time_ns: u64, cpu: u32, pid: u32) -> bool {
        let is_wanted = self.is_wanted(pid);
        let task = self.task(pid);
        task.waits_since_ns = None;
        let Some(since_ns) = task.runs_since_ns.take() else { return false };
        let ran_ns = time_ns.saturating_sub(since_ns);
        self.account.busy_ns += ran_ns;
        self.account.ran_ns += if is_wanted { ran_ns } else { 0 };
        if let Some(cpu) = self.cpus.get_mut(cpu as usize) {
            cpu.busy_ns += ran_ns;
            cpu.idle_since_ns = Some(time_ns);
        }
        true
    }

    fn task(&mut self, pid: u32) -> &mut Task {
        self.tasks.entry(pid).or_default()
    }

    fn is_wanted(&self, pid: u32) -> bool {
        self.tasks.get(&pid).unwrap_or(&Task::default()).name.is_of(self.whom, pid)
    }

    /// All that there is to say. Tasks that run to the end have run until then.
    pub(super) fn finish(mut self) -> Account {
        let running: Vec<(u32, u32)> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.runs_since_ns.is_some())
            .filter_map(|(pid, task)| Some((*pid, task.cpu?)))
            .collect();
        for (pid, cpu) in running {
            self.leaves(self.now_ns, cpu, pid);
        }
        let span_ns = self.now_ns - self.begin_ns.unwrap_or(self.now_ns);
        let is_used = |cpu: &&Cpu| cpu.busy_ns * 1000 >= span_ns.max(1) * USED_PERMILLE;
        Account {
            span_ns,
            cpus_used: self.cpus.iter().filter(is_used).count() as u32,
            waited_ns: u64::try_from(self.waits.sum_ns).unwrap_or(u64::MAX),
            wait_p50_ns: self.waits.percentile_ns(0.5),
            wait_p99_ns: self.waits.percentile_ns(0.99),
            wait_max_ns: self.waits.max_ns,
            ..self.account
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_waits_cold_cpus_and_waste_are_those_of_the_records() {
        use What::{Block, Enqueue, New, Preempt, Run, Wake};
        let header = Header::of(&Topology::regular(2, 1, 1, 1));
        let whom = Whom::default();
        let mut accountant = Accountant::new(&header, &whom);
        let record = |time_ns, cpu, what, pid| Record { time_ns, cpu, what, pid, value: 0 };
        for record in [
            record(0, 0, New, 1),
            record(0, 0, Enqueue, 1),
            record(0, 0, Run, 1),
            record(10, 0, New, 2),
            record(10, 0, Enqueue, 2),
            // CPU 1 has nothing to do, and the second task waits for CPU 0.
            record(10, 1, What::Idle, 0),
            record(30, 0, Preempt, 1),
            record(30, 0, Enqueue, 1),
            record(30, 0, Run, 2),
            record(40, 1, Run, 1),
            record(50, 1, Block, 1),
            record(60, 0, Block, 2),
            record(200_060, 0, Wake, 2),
            record(200_060, 0, Enqueue, 2),
            record(200_070, 0, Run, 2),
            record(200_080, 0, Block, 2),
        ] {
            accountant.record(&record);
        }
        let account = accountant.finish();
        assert_eq!((account.switches, account.preemptions, account.sleeps, account.wakeups), (4, 1, 3, 1));
        assert_eq!((account.ran_ns, account.busy_ns), (80, 80));
        // From one node to the other.
        assert_eq!(account.moves, Moves { to_other_node: 1, ..Moves::default() });
        assert_eq!((account.cold, account.waited_ns, account.wait_max_ns), (1, 20 + 10 + 10, 20));
        assert_eq!(account.wasted_ns, 20 + 10);
    }
}
