//! What a trace comes to, as far as it may explain why programs were slower or faster.

use ekiden::{CpuMask, Topology};
use ekiden_check::View;
use ekiden_loader::Whom;
use ekiden_page::Histogram;
use ekiden_trace::{Header, Host, Record, What};
use serde::Serialize;

use crate::trace::is_wanted;

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

/// Makes an account of records as they come. Memory grows with the tasks that live.
pub(super) struct Accountant<'a> {
    whom: &'a Whom,
    /// Whether it is of a kernel. There, a wait that took no time was put in, as it was not seen how the task got its CPU.
    is_real: bool,
    topology: Option<Topology>,
    view: View,
    /// How long each CPU ran tasks, in nanoseconds.
    busy_ns: Vec<u64>,
    waits: Histogram,
    account: Account,
    begin_ns: Option<u64>,
}

impl<'a> Accountant<'a> {
    pub(super) fn new(header: &Header, whom: &'a Whom) -> Self {
        let scheduler = header.policy.clone().unwrap_or_else(|| "the host's own scheduler".into());
        Self {
            whom,
            is_real: header.host == Host::Kernel,
            topology: header.topology().ok(),
            view: View::new(header),
            busy_ns: vec![0; header.cpus.len()],
            waits: Histogram::default(),
            account: Account { scheduler, cpus: header.nr_cpus(), ..Account::default() },
            begin_ns: None,
        }
    }

    pub(super) fn record(&mut self, record: &Record) {
        let Record { time_ns, cpu, what, pid, .. } = *record;
        let before_ns = self.view.now_ns.max(*self.begin_ns.get_or_insert(time_ns));
        if time_ns > before_ns {
            self.account.wasted_ns += u64::from(self.view.wasted_cpus(before_ns)) * (time_ns - before_ns);
        }
        self.account.lost = self.account.lost.saturating_add(record.lost());
        // It may be gone afterwards.
        let is_wanted = is_wanted(self.whom, &self.view, pid);
        let last_cpu = self.view.task(pid).and_then(|task| task.last_cpu);
        // A CPU that has run nothing yet may have been idle for any time.
        let idle_since_ns = self.view.cpus.get(cpu as usize).and_then(|cpu| cpu.idle_since_ns);
        let idle_since_ns = idle_since_ns.filter(|_| self.busy_ns[cpu as usize] > 0);
        let moved = self.view.apply(record);
        let ran_ns = moved.and_then(|moved| moved.ran_ns());
        if let Some((cpu, ran_ns)) = ran_ns {
            self.busy_ns[cpu as usize] += ran_ns;
            self.account.ran_ns += if is_wanted { ran_ns } else { 0 };
        }
        if !is_wanted {
            return;
        }
        match what {
            What::Wake => self.account.wakeups += 1,
            What::Yield => self.account.yields += 1,
            What::Preempt | What::Throttle => self.account.preemptions += u64::from(ran_ns.is_some()),
            What::Block => self.account.sleeps += u64::from(ran_ns.is_some()),
            What::Run => {
                self.account.switches += 1;
                let is_cold = idle_since_ns.is_some_and(|since_ns| self.view.now_ns - since_ns >= COLD_NS);
                self.account.cold += u64::from(is_cold);
                let waited_ns = moved.and_then(|moved| moved.waited_ns());
                if let Some(waited_ns) = waited_ns.filter(|waited_ns| !self.is_real || *waited_ns > 0) {
                    self.waits.add(waited_ns);
                }
                if let Some(from) = last_cpu.filter(|from| *from != cpu) {
                    self.moves(from, cpu);
                }
            }
            _ => {}
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

    /// All that there is to say. Tasks that run to the end have run until then.
    pub(super) fn finish(mut self) -> Account {
        for (cpu, busy_ns) in self.view.cpus.iter().zip(&mut self.busy_ns) {
            let Some(task) = cpu.running.and_then(|pid| self.view.task(pid)) else { continue };
            let ran_ns = self.view.now_ns - task.since_ns;
            *busy_ns += ran_ns;
            self.account.ran_ns += if is_wanted(self.whom, &self.view, task.pid) { ran_ns } else { 0 };
        }
        let span_ns = self.view.now_ns - self.begin_ns.unwrap_or(self.view.now_ns);
        let is_used = |busy_ns: &&u64| **busy_ns * 1000 >= span_ns.max(1) * USED_PERMILLE;
        Account {
            span_ns,
            cpus_used: self.busy_ns.iter().filter(is_used).count() as u32,
            busy_ns: self.busy_ns.iter().sum(),
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
