//! A simulation goes, and ends.

use ekiden_engine::{Engine, Totals};
use ekiden_workload::{Report, Workload};

use crate::alarm::Alarm;
use crate::error::{SimError, Stuck, Unfinished};
use crate::kernel::Kernel;
use crate::notes::Listening;
use crate::recorded::Recording;
use crate::task::State;

use super::SimReport;

/// How the simulation came to its end.
pub(super) enum End {
    /// All tasks are gone, or the load was stopped.
    Over,
    Unfinished(Unfinished),
}

pub(super) struct Running {
    pub(super) kernel: Kernel,
    pub(super) time_limit_ns: u64,
    pub(super) recording: Option<Recording>,
    pub(super) listening: Listening,
}

impl Running {
    pub(super) fn go(&mut self, time_limit_ns: u64) -> End {
        let kernel = &mut self.kernel;
        while kernel.live > 0 && kernel.trouble.is_none() {
            let Some((at_ns, alarm)) = kernel.alarms.pop() else { return End::Unfinished(Unfinished::Deadlock) };
            if at_ns > time_limit_ns {
                kernel.now_ns = time_limit_ns;
                return End::Unfinished(Unfinished::TimeLimit);
            }
            kernel.now_ns = at_ns;
            kernel.questions.set_now_ns(at_ns);
            if alarm == Alarm::Stop {
                break;
            }
            kernel.handle(alarm);
        }
        End::Over
    }

    pub(super) fn conclude(
        mut self,
        end: End,
        workload: &Workload,
        scheduler: Option<String>,
    ) -> Result<SimReport, SimError> {
        let kernel = &mut self.kernel;
        if let Some(trouble) = kernel.trouble.take() {
            return Err(trouble);
        }
        (0..kernel.machine.topology.nr_cpus()).for_each(|cpu| kernel.account(cpu));
        for root in 0..kernel.roots.len() as u32 {
            if kernel.roots[root as usize].0.finish_ns.is_none() {
                kernel.fill_in(root);
            }
        }
        let stuck = kernel.stuck();
        let kernel = self.kernel;
        if let Some(recording) = self.recording {
            recording.finish(kernel.now_ns)?;
        }
        self.listening.finish().map_err(SimError::Debug)?;
        let engine = kernel.engine.as_ref();
        let (contract_violations, last_contract_violation) = engine.map_or((0, None), Engine::contract_violations);
        let report = SimReport {
            report: Report {
                workload: workload.name.clone(),
                scheduler,
                wall_ns: kernel.now_ns,
                zero_ns: None,
                tasks: kernel.roots.into_iter().map(|(report, _)| report).collect(),
            },
            trace: kernel.sink.end()?,
            stats: kernel.stats,
            totals: engine.map_or_else(Totals::default, Engine::totals),
            figures: engine
                .and_then(|engine| engine.policy(0))
                .map_or_else(Vec::new, |policy| policy.figures().totals()),
            contract_violations,
            last_contract_violation,
            fault: engine.and_then(Engine::fault),
        };
        match end {
            End::Over => Ok(report),
            End::Unfinished(why) => {
                Err(SimError::Unfinished { at_ns: kernel.now_ns, why, stuck, so_far: Box::new(report) })
            }
        }
    }
}

impl Kernel {
    fn stuck(&self) -> Vec<Stuck> {
        let alive = self.tasks.iter().filter(|task| task.state != State::Dead);
        let describe = |task: &crate::task::Task| {
            let root = &self.roots[task.root as usize].0.name;
            let name = if task.parent.is_some() { format!("{root} (child)") } else { root.clone() };
            Stuck { name, pid: task.pid, state: task.doing(), cpu_ns: task.cpu_ns }
        };
        alive.map(describe).collect()
    }
}
