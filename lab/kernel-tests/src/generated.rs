//! Policies of the generator (lab/hostile), one after the other: each ends with a reason, or behaves. After each a good one loads, and a program
//! runs.

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_loader::{
    ChooseOptions, Config, Hint, Inherit, LoadError, Program, Session, Status, Succession, Who, choose, sysfs,
    unload_all,
};
use serde::Serialize;

use crate::{
    bound::Bound,
    latency_probe::LatencyProbe,
    list::{STARVED_AFTER_MS, config},
    load::{Worker, pause, set_online},
};

/// The policy that has to load after each.
const GOOD: &str = "wfq";
/// How long sched_ext may take to let go of a policy.
const PATIENCE: Duration = Duration::from_secs(10);

/// The report of one policy.
#[derive(Serialize)]
struct Report {
    body: u64,
    /// `ended`, `refused` or `harmless`.
    outcome: &'static str,
    reason: String,
    contract_violations: u64,
    ms: u64,
    /// What must not be; nothing if all is well.
    problem: Option<String>,
}

/// The end of a policy, and its reason.
struct End {
    outcome: &'static str,
    reason: String,
    contract_violations: u64,
}

struct GuestTest<'a> {
    modules: &'a Path,
    cpus: usize,
    probe: LatencyProbe,
    program: Option<Program>,
    good_program: Option<Program>,
}

/// Runs `count` bodies; the first of the module is called `first`, and all before `from` are left out.
pub(crate) fn generated(modules: &Path, first: u64, from: u64, count: u64) -> Result<()> {
    let cpus = thread::available_parallelism()?.get();
    let probe = LatencyProbe::start(cpus)?;
    let mut guest_test = GuestTest { modules, cpus, probe, program: None, good_program: None };
    guest_test.good_one().context("before all of them")?;
    let bound = Bound::of_ms(STARVED_AFTER_MS)?;
    for index in from.saturating_sub(first)..count {
        let start = Instant::now();
        let (end, problem) = match guest_test.hostile_one(index) {
            Ok(end) => (end, None),
            Err(error) => {
                (End { outcome: "ended", reason: String::new(), contract_violations: 0 }, Some(format!("{error:#}")))
            }
        };
        let after = guest_test.is_well().and_then(|()| guest_test.good_one()).context("afterwards");
        let problem = problem.or(after.err().map(|error| format!("{error:#}")));
        let End { outcome, reason, contract_violations } = end;
        let report = Report {
            body: first + index,
            outcome,
            reason,
            contract_violations,
            ms: start.elapsed().as_millis() as u64,
            problem,
        };
        println!("{}", serde_json::to_string(&report)?);
    }
    // The next module has the same name.
    drop((bound, guest_test));
    unload_all(PATIENCE).map_err(Into::into)
}

impl GuestTest<'_> {
    fn hostile_one(&mut self, index: u64) -> Result<End> {
        let params = format!("body={index}");
        let config = Config { params, ..config(self.modules, "hostile") };
        let session = match Session::start_with(&config, &mut self.program) {
            Ok(session) => session,
            Err(LoadError::Refused(reason)) => return named("refused", reason, 0),
            Err(LoadError::TakenOut(reason) | LoadError::TakenOutOfSeveral(reason)) => {
                return named("ended", reason, 0);
            }
            // All tasks of the machine come to it at once.
            Err(error) => {
                let reason = Status::read()?.unwrap_or_default().fault;
                return named(
                    "ended",
                    reason.with_context(|| format!("it does not start, without a reason: {error}"))?,
                    0,
                );
            }
        };
        let done = self.everything(&session, index);
        let contract_violations = counted(&session);
        // A policy that is held back is found meanwhile.
        let runs = self.probe.all_run();
        self.probe.end();
        let checked = session.check();
        let end = match checked {
            Err(LoadError::TakenOutOfSeveral(reason) | LoadError::TakenOut(reason)) => {
                named("ended", reason, contract_violations)
            }
            Err(error) => Err(error.into()),
            // Its own hand on a control is not the point; that tasks run is.
            Ok(()) => done.and(runs.map(drop)).and_then(|()| named("harmless", String::new(), contract_violations)),
        };
        let program = session.stop();
        self.program = program.or(self.program.take());
        end
    }

    /// Has every call of the trait come, as long as the policy is there.
    fn everything(&self, session: &Session, index: u64) -> Result<()> {
        let gone = || !session.is_running();
        self.probe.begin()?;
        let worker = Worker::anywhere("nap")?;
        worker.nice(5);
        let steps: [&dyn Fn() -> Result<()>; 6] = [
            &|| self.probe.crowd(),
            &|| {
                worker.class(libc::SCHED_FIFO)?;
                worker.class(libc::SCHED_OTHER)
            },
            &|| {
                let params = ChooseOptions { inherit: Inherit::Yes, params: "rank=3" };
                choose(&Who::Process(worker.pid().as_raw()), Some(session.slot()), params).map(drop).map_err(Into::into)
            },
            &|| {
                let hints = [2_u64.to_ne_bytes(), 3_u64.to_ne_bytes()].concat();
                for hint in [Hint::Open(7), Hint::Ready(7, &hints), Hint::Now(&hints[..8]), Hint::Close(7)] {
                    session.control().hint(Some(session.slot()), hint)?;
                }
                Ok(())
            },
            &|| {
                let again = Succession { slot: Some(session.slot()), ..Succession::default() };
                session.control().upgrade(&again).map(drop).map_err(Into::into)
            },
            &|| {
                if self.cpus > 1 && index % 2 == 0 {
                    set_online(1, false)?;
                    set_online(1, true)?;
                }
                Ok(())
            },
        ];
        for step in steps {
            if gone() {
                return Ok(());
            }
            let done = step();
            // What it answers to those who ask it is its own business, as long as it answers.
            if done.is_err() && gone() {
                return Ok(());
            }
            done?;
        }
        pause(20);
        Ok(())
    }

    /// Nothing of the last one is left.
    fn is_well(&self) -> Result<()> {
        let start = Instant::now();
        while sysfs::state().as_deref() != Some("disabled") {
            ensure!(start.elapsed() < PATIENCE, "sched_ext holds on to the policy");
            pause(1);
        }
        self.probe.all_run().map(drop)
    }

    /// A good policy loads, a program runs, and the policy is still there.
    fn good_one(&mut self) -> Result<()> {
        let session = Session::start_with(&config(self.modules, GOOD), &mut self.good_program)
            .context("no good policy can be loaded")?;
        let status = Command::new(std::env::current_exe()?).args(["child", "exit"]).status()?;
        ensure!(status.success(), "a program does not run: {status}");
        self.probe.all_run()?;
        session.check().context("the good policy is gone")?;
        let program = session.stop();
        self.good_program = program.or(self.good_program.take());
        self.is_well()
    }
}

fn counted(session: &Session) -> u64 {
    let status = Status::read().ok().flatten().unwrap_or_default();
    let of = status.policies.into_iter().find(|policy| policy.slot == session.slot());
    of.map_or(0, |policy| policy.counts.contract_violations)
}

/// An end whose reason says something. What sched_ext finds after half a minute is no reason of ours.
fn named(outcome: &'static str, reason: String, contract_violations: u64) -> Result<End> {
    let is_ours = !["watchdog", "runnable task stall", "no reason given"].iter().any(|word| reason.contains(word));
    if outcome != "harmless" && (reason.trim().is_empty() || !is_ours) {
        bail!("it ended without a reason of ours: {reason:?}");
    }
    Ok(End { outcome, reason, contract_violations })
}
