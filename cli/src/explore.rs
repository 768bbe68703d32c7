//! `ekiden explore`: in which order of lock operations a policy goes wrong.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ekiden_explore::{CASES, Case, Found, Mode, PolicyMaker, Schedule, Strategy, explore, replay};
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::own::{self, AsRoot, Needs};
use crate::policies;
use crate::progress::Progress;

#[derive(Args)]
#[command(after_help = "\
A small machine has a few things happen at once on its CPUs, and changes between
them wherever a lock is taken or released.
Examples:
  ekiden explore wfq
  ekiden explore wfq --mode exhaustive   every order, as far as --runs goes
  ekiden explore drowsy
      a policy with a race, planted to be found
  ekiden explore my-policy
      a policy of your own, in the directory of its project
Cases: wake-and-sleep, two-sleepers, two-wakers. It exits with 118 if the policy
goes wrong.")]
pub(crate) struct Explore {
    /// The policy
    policy: String,
    /// Its parameters, `name=number`
    #[arg(long, default_value = "")]
    params: String,
    /// What happens at once; all cases, one after the other, if absent
    #[arg(long)]
    case: Option<String>,
    /// How to choose the call that continues
    #[arg(long, value_enum, default_value = "pct")]
    mode: Modes,
    /// What decides whatever is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs of each case
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Run this order only, as an earlier search printed it
    #[arg(long, requires = "case")]
    schedule: Option<Schedule>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    as_root: AsRoot,
}

#[derive(Clone, Copy, ValueEnum)]
enum Modes {
    Random,
    Pct,
    Exhaustive,
}

#[derive(Serialize)]
struct Report {
    case: &'static str,
    runs: u64,
    complete: bool,
    #[serde(flatten)]
    found: Option<Found>,
}

impl Explore {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of([&self.policy], self.as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let policy = self.maker()?;
        let mut reports = Vec::new();
        for case in self.cases()? {
            let busy = Progress::brief(format!("exploring {} under {}", case.name, self.policy));
            let report = self.try_case(case, &policy);
            drop(busy);
            if !self.json {
                self.show(&report);
            }
            reports.push(report);
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reports)?);
        }
        let good = reports.iter().all(|report| report.found.is_none());
        Ok(if good { ExitCode::SUCCESS } else { Exit::BrokenPromise.into() })
    }

    fn maker(&self) -> Result<PolicyMaker> {
        match policies::explorable(&self.policy, &self.params) {
            Some(Ok(maker)) => Ok(maker),
            Some(Err(error)) => Err(Failure::new(Exit::BadParameters, format!("bad parameters: {error}")).into()),
            None => {
                let message = format!("{}; drowsy, too, can be explored", own::unknown(&self.policy));
                Err(Failure::new(Exit::NoPolicy, message).into())
            }
        }
    }

    fn cases(&self) -> Result<Vec<&'static Case>> {
        let Some(name) = &self.case else { return Ok(CASES.iter().collect()) };
        let known = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
        let missing = || anyhow::anyhow!("there is no case `{name}`; choose one of {}", known());
        Ok(vec![Case::find(name).ok_or_else(missing)?])
    }

    fn try_case(&self, case: &'static Case, policy: &PolicyMaker) -> Report {
        if let Some(schedule) = &self.schedule {
            let outcome = replay(case, policy, schedule);
            let found = outcome.finding.map(|finding| Found {
                finding,
                schedule: schedule.clone(),
                choices_before: outcome.schedule.0.len(),
            });
            return Report { case: case.name, runs: 1, complete: false, found };
        }
        let mode = match self.mode {
            Modes::Random => Mode::Random,
            Modes::Pct => Mode::Pct,
            Modes::Exhaustive => Mode::Exhaustive,
        };
        let result = explore(case, policy, &mut Strategy::new(mode, self.seed), self.runs);
        Report { case: case.name, runs: result.runs, complete: result.complete, found: result.found }
    }

    fn show(&self, report: &Report) {
        let Report { case, runs, complete, found } = report;
        match found {
            None if *complete => println!("{case}: nothing goes wrong in any of {runs} orders"),
            None => println!("{case}: nothing goes wrong in {runs} runs"),
            Some(Found { finding, schedule, .. }) => {
                println!("{case}: {} (run {runs})", finding.0);
                let params =
                    if self.params.is_empty() { String::new() } else { format!(" --params '{}'", self.params) };
                println!("  replay: ekiden explore {}{params} --case {case} --schedule '{schedule}'", self.policy);
            }
        }
    }
}
