//! How much of the CPU each task had, against what was due.

use serde::{Deserialize, Serialize};

use crate::{DEFAULT, Judged, Limit, table};

/// One load under one scheduler, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FairnessRow {
    /// The load.
    pub load: String,
    /// What it is for.
    pub about: String,
    /// The scheduler.
    pub scheduler: String,
    /// The largest distance of a task's share from what was due, as a part of what was due; absent where the load is
    /// not about shares.
    pub off_by: Option<f64>,
    /// The most that is allowed of that.
    pub limit: Option<f64>,
    /// Why the load's own check failed, if it did.
    pub failed: Option<String>,
    /// Why it is too far from the kernel's own scheduler, if it is.
    pub unlike_default: Option<String>,
}

impl FairnessRow {
    /// Whether there is nothing to complain of.
    pub fn passed(&self) -> bool {
        self.failed.is_none() && self.unlike_default.is_none()
    }
}

/// The tests of appendix A.1 of papers/000, side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fairness {
    /// Always `fairness`.
    pub bench: String,
    /// The kernel's release.
    pub kernel: String,
    /// Each load under each scheduler.
    pub rows: Vec<FairnessRow>,
    /// Whether every policy was still the scheduler after each of its loads.
    pub all_stayed: bool,
    /// Whether every policy passed, and stayed. The kernel's own scheduler is there to compare with.
    pub passed: bool,
}

impl Fairness {
    /// Judges the policies among the rows.
    pub fn new(kernel: &str, rows: Vec<FairnessRow>, all_stayed: bool) -> Self {
        let mut policies = rows.iter().filter(|row| row.scheduler != DEFAULT).peekable();
        let passed = policies.peek().is_some() && policies.all(FairnessRow::passed) && all_stayed;
        Self { bench: "fairness".into(), kernel: kernel.into(), rows, all_stayed, passed }
    }

    /// As a table.
    pub fn to_text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let percent = |part: Option<f64>| part.map_or(String::new(), |part| format!("{:.2} %", 100.0 * part));
            let verdict = if row.passed() { "passed" } else { "FAILED" };
            [row.load.clone(), row.scheduler.clone(), percent(row.off_by), percent(row.limit), verdict.to_owned()]
        });
        let heading = ["load", "scheduler", "off by", "at most", "verdict"];
        let mut text = format!("fairness, Linux {}\n{}", self.kernel, table(&heading, rows));
        for row in &self.rows {
            for why in row.failed.iter().chain(&row.unlike_default) {
                text += &format!("\n{} under {}: {why}", row.load, row.scheduler);
            }
        }
        if !self.all_stayed {
            text += "\na policy was TAKEN OUT";
        }
        text
    }
}

/// The largest distance of a share from what is due by weight, as a part of what is due: `(got, weight)` of each task.
pub fn off_by(tasks: &[(f64, f64)]) -> Option<f64> {
    let (got, weights): (Vec<f64>, Vec<f64>) = tasks.iter().copied().unzip();
    let (got_in_all, weight_in_all) = (got.iter().sum::<f64>(), weights.iter().sum::<f64>());
    if got_in_all <= 0.0 || weight_in_all <= 0.0 {
        return None;
    }
    let distance = |(got, weight): &(f64, f64)| {
        let due = weight / weight_in_all;
        (got / got_in_all - due).abs() / due
    };
    tasks.iter().map(distance).max_by(f64::total_cmp)
}

/// What tasks of the default class get next to a policy's tasks on one CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// Always `share`.
    pub bench: String,
    /// The kernel's release.
    pub kernel: String,
    /// The policy.
    pub policy: String,
    /// One for each amount that the policy's tasks want.
    pub rows: Vec<SharingRow>,
    /// Whether the policy was still the scheduler at the end.
    pub still_scheduler: bool,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether it is, and the policy stayed.
    pub passed: bool,
}

/// Parts of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharingRow {
    /// What the policy's tasks want.
    pub wanted: f64,
    /// What they have where nothing else runs.
    pub policy_alone: f64,
    /// What they have next to batch work of the default class.
    pub policy: f64,
    /// What the batch work has.
    pub batch: f64,
}

impl Sharing {
    /// How much of the CPU may have been idle while both wanted it.
    pub const LIMIT: Limit = Limit { name: "part of the CPU that was lost with batch work waiting", at_most: 0.05 };

    /// How much of what the policy's tasks have alone batch work may take from them.
    pub const TAKEN: Limit = Limit { name: "part of the policy's time that batch work takes from it", at_most: 0.05 };

    /// Judges.
    pub fn new(kernel: &str, policy: &str, rows: Vec<SharingRow>, still_scheduler: bool) -> Self {
        let lost = rows.iter().map(|row| 1.0 - row.policy - row.batch).max_by(f64::total_cmp);
        // Without any time alone there is nothing to compare with, and nothing is met.
        let taken_of =
            |row: &SharingRow| if row.policy_alone > 0.0 { 1.0 - row.policy / row.policy_alone } else { 1.0 };
        let taken = rows.iter().map(taken_of).max_by(f64::total_cmp);
        let limits = vec![Self::LIMIT.judge(lost), Self::TAKEN.judge(taken)];
        Self {
            bench: "share".into(),
            kernel: kernel.into(),
            policy: policy.into(),
            rows,
            still_scheduler,
            passed: limits.iter().all(|limit| limit.met) && still_scheduler,
            limits,
        }
    }

    /// As tables.
    pub fn to_text(&self) -> String {
        let percent = |part: f64| format!("{:.1} %", 100.0 * part);
        let rows = self.rows.iter().map(|row| [row.wanted, row.policy_alone, row.policy, row.batch].map(percent));
        let heading = ["the policy's tasks want", "alone they have", "next to batch work", "batch work has"];
        format!(
            "share of one CPU, {} in attached mode, Linux {}\n{}\n\n{}\n{}",
            self.policy,
            self.kernel,
            table(&heading, rows),
            table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells)),
            "(Linux runs the default class before SCHED_EXT; what is left to SCHED_EXT then is its server's part. With the batch \
             work in a second policy, `ekiden order` says which comes first.)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scheduler: &str, failed: Option<&str>) -> FairnessRow {
        FairnessRow {
            load: "fair-share".into(),
            about: "five hogs".into(),
            scheduler: scheduler.into(),
            off_by: Some(0.01),
            limit: Some(0.02),
            failed: failed.map(str::to_owned),
            unlike_default: None,
        }
    }

    #[test]
    fn the_task_that_is_farthest_off_counts() {
        assert_eq!(off_by(&[(50.0, 1.0), (50.0, 1.0)]), Some(0.0));
        let off = off_by(&[(40.0, 1.0), (60.0, 1.0)]).unwrap();
        assert!((off - 0.2).abs() < 1e-9, "{off}");
        let off = off_by(&[(75.0, 3.0), (25.0, 1.0)]).unwrap();
        assert!(off.abs() < 1e-9, "{off}");
        assert_eq!(off_by(&[]), None);
        assert_eq!(off_by(&[(0.0, 1.0)]), None);
    }

    #[test]
    fn only_policies_are_judged_and_one_must_be_there() {
        assert!(Fairness::new("7", vec![row(DEFAULT, Some("x")), row("wfq", None)], true).passed);
        assert!(!Fairness::new("7", vec![row(DEFAULT, None), row("wfq", Some("x"))], true).passed);
        assert!(!Fairness::new("7", vec![row(DEFAULT, None)], true).passed);
        assert!(!Fairness::new("7", vec![row("wfq", None)], false).passed);
    }

    #[test]
    fn lost_time_fails_the_sharing_and_so_does_what_batch_work_takes_from_the_policy() {
        let row = |policy, batch| SharingRow { wanted: 0.5, policy_alone: 0.5, policy, batch };
        assert!(Sharing::new("7", "fifo", vec![row(0.49, 0.5)], true).passed);
        let met = |policy, batch| {
            Sharing::new("7", "fifo", vec![row(0.49, 0.5), row(policy, batch)], true)
                .limits
                .iter()
                .map(|limit| limit.met)
                .collect::<Vec<_>>()
        };
        assert_eq!(met(0.49, 0.4), [false, true]);
        assert_eq!(met(0.05, 0.94), [true, false]);
        // It had no time alone.
        let none = SharingRow { wanted: 0.5, policy_alone: 0.0, policy: 0.0, batch: 1.0 };
        assert!(!Sharing::new("7", "fifo", vec![row(0.49, 0.5), none], true).passed);
        assert!(!Sharing::new("7", "fifo", Vec::new(), true).passed);
    }
}
