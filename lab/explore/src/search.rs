//! Runs until one goes wrong, and makes that one as short as it can.

use serde::Serialize;

use crate::run::{Finding, Schedule, replay, run};
use crate::{Case, PolicyMaker, Strategy};

/// A schedule under which a policy goes wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// What goes wrong.
    pub finding: Finding,
    /// The shortest schedule that was found.
    pub schedule: Schedule,
    /// How many choices the first one had.
    pub choices_before: usize,
}

/// What a search came to.
#[derive(Clone, Debug, Serialize)]
pub struct Exploration {
    /// Runs until then, without those for shortening.
    pub runs: u64,
    /// Whether there is no other order (only [`Mode::Exhaustive`](crate::Mode::Exhaustive) knows).
    pub complete: bool,
    /// The first that went wrong.
    pub found: Option<Found>,
}

/// Runs `case` up to `runs_max` times.
pub fn explore(case: &Case, policy: &PolicyMaker, strategy: &mut Strategy, runs_max: u64) -> Exploration {
    for runs in 0..runs_max {
        if !strategy.next_run(case.cpus.len()) {
            return Exploration { runs, complete: true, found: None };
        }
        let outcome = run(case, policy, |able| strategy.choose(able));
        if let Some(finding) = outcome.finding {
            let found = shrink(case, policy, outcome.schedule, finding);
            return Exploration { runs: runs + 1, complete: false, found: Some(found) };
        }
    }
    Exploration { runs: runs_max, complete: false, found: None }
}

/// Leaves out of a schedule what it takes not to go wrong in the same way: its end, then switches from one CPU to another.
fn shrink(case: &Case, policy: &PolicyMaker, schedule: Schedule, finding: Finding) -> Found {
    let choices_before = schedule.0.len();
    let fails =
        |schedule: &Schedule| replay(case, policy, schedule).finding.is_some_and(|other| other.is_like(&finding));
    let mut best = schedule;
    loop {
        let before = best.clone();
        while let Some((_, shorter)) = best.0.split_last() {
            let shorter = Schedule(shorter.to_vec());
            if !fails(&shorter) {
                break;
            }
            best = shorter;
        }
        for at in 1..best.0.len() {
            let mut calmer = best.clone();
            calmer.0[at] = calmer.0[at - 1];
            if calmer != best && fails(&calmer) {
                best = calmer;
            }
        }
        if best == before {
            break;
        }
    }
    // What it comes to now may name other tasks.
    let finding = replay(case, policy, &best).finding.unwrap_or(finding);
    Found { finding, schedule: best, choices_before }
}
