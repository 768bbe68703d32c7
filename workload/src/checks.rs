//! Judgements over reports: functions of what was observed, the same for a real kernel and a simulation.
//!
//! A tolerance is a fraction: 0.02 is 2 %. A failed check says which task, what it got and what it should have got.

use crate::report::{Report, TaskReport};

/// Result of a check: what is wrong, in words.
pub type Verdict = Result<(), String>;

/// Every task, and every child, reached the end of its program.
pub fn all_finished(report: &Report) -> Verdict {
    for task in &report.tasks {
        if task.finish_ns.is_none() {
            let cpu_ms = task.cpu_ns as f64 / 1e6;
            return Err(format!("`{}` did not finish; it had {cpu_ms:.2} ms of CPU time", task.name));
        }
        if task.forked_finished != task.forked {
            let (ended, forked) = (task.forked_finished, task.forked);
            return Err(format!("of the {forked} children of `{}` only {ended} ended", task.name));
        }
    }
    some_tasks(report)
}

/// The share of all CPU time that one task used, 0 to 1; `None` without such a task.
pub fn share_of(report: &Report, task: &str) -> Option<f64> {
    let total_ns = report.cpu_ns();
    Some(if total_ns == 0 { 0.0 } else { report.task(task)?.cpu_ns as f64 / total_ns as f64 })
}

/// Every task used as much CPU time as the mean of all.
pub fn equal_shares(report: &Report, tolerance: f64) -> Verdict {
    shares(report, tolerance, |_| Ok(1.0))
}

/// Every task used CPU time in proportion to the weight of its nice value.
pub fn shares_by_weight(report: &Report, tolerance: f64) -> Verdict {
    shares(report, tolerance, |task| weight_of_nice(task.nice).map(|weight| weight as f64))
}

/// Every task used the share of CPU time that it had in `reference`, a run of the same load elsewhere.
pub fn shares_match(report: &Report, reference: &Report, tolerance: f64) -> Verdict {
    same_load(report, reference)?;
    shares(report, tolerance, |task| {
        share_of(reference, &task.name).ok_or_else(|| format!("`{}` is not in the reference", task.name))
    })
}

/// CPU times are in the proportions that `weight` tells.
fn shares(report: &Report, tolerance: f64, weight: impl Fn(&TaskReport) -> Result<f64, String>) -> Verdict {
    some_tasks(report)?;
    let weights = report.tasks.iter().map(weight).collect::<Result<Vec<f64>, _>>()?;
    let (total_ns, total_weight) = (report.cpu_ns() as f64, weights.iter().sum::<f64>());
    if total_ns == 0.0 || total_weight == 0.0 {
        return Err("no task used any CPU time".into());
    }
    for (task, weight) in report.tasks.iter().zip(weights) {
        let (share, due) = (task.cpu_ns as f64 / total_ns, weight / total_weight);
        if !near(share, due, tolerance) {
            let (share, due, tolerance) = (100.0 * share, 100.0 * due, 100.0 * tolerance);
            return Err(format!("`{}` had {share:.2} % of the CPU time; due {due:.2} % ± {tolerance} %", task.name));
        }
    }
    Ok(())
}

/// All tasks finished, each within `tolerance` of their mean time.
pub fn finish_together(report: &Report, tolerance: f64) -> Verdict {
    all_finished(report)?;
    let names: Vec<&str> = report.tasks.iter().map(|task| task.name.as_str()).collect();
    these_finish_together(report, &names, tolerance)
}

/// The tasks of these names finished, each within `tolerance` of their mean time.
pub fn these_finish_together(report: &Report, names: &[&str], tolerance: f64) -> Verdict {
    let mean_ns = mean_finish_ns(report, names)?;
    for name in names {
        let finish_ns = finish_ns(report, name)?;
        if !near(finish_ns, mean_ns, tolerance) {
            let (finish_ms, mean_ms, tolerance) = (finish_ns / 1e6, mean_ns / 1e6, 100.0 * tolerance);
            return Err(format!("`{name}` finished at {finish_ms:.2} ms; the mean is {mean_ms:.2} ms ± {tolerance} %"));
        }
    }
    Ok(())
}

/// Every task finished when it did in `reference`, a run of the same load elsewhere on the same machine.
pub fn finish_times_match(report: &Report, reference: &Report, tolerance: f64) -> Verdict {
    same_load(report, reference)?;
    for task in &report.tasks {
        let (here_ns, there_ns) = (finish_ns(report, &task.name)?, finish_ns(reference, &task.name)?);
        if !near(here_ns, there_ns, tolerance) {
            let (here_ms, there_ms, tolerance) = (here_ns / 1e6, there_ns / 1e6, 100.0 * tolerance);
            return Err(format!(
                "`{}` finished at {here_ms:.2} ms; in the reference at {there_ms:.2} ms ± {tolerance} %",
                task.name
            ));
        }
    }
    Ok(())
}

/// No two tasks were on the same CPU last, and each had a CPU for all but a part `tolerance` of its time. For loads that
/// are stopped: a task that runs on after others have finished may well move to the CPU of one of them.
pub fn each_on_its_own_cpu(report: &Report, tolerance: f64) -> Verdict {
    some_tasks(report)?;
    for (index, task) in report.tasks.iter().enumerate() {
        let cpu = task.last_cpu.ok_or_else(|| format!("nobody knows on which CPU `{}` ran", task.name))?;
        if let Some(other) = report.tasks[..index].iter().find(|other| other.last_cpu == Some(cpu)) {
            return Err(format!("`{}` and `{}` both ended on CPU {cpu}", other.name, task.name));
        }
        let present_ns = present_ns(report, task)?;
        if (task.cpu_ns as f64) < (1.0 - tolerance) * present_ns {
            let (cpu_ms, present_ms) = (task.cpu_ns as f64 / 1e6, present_ns / 1e6);
            return Err(format!("`{}` had a CPU for {cpu_ms:.2} ms only of its {present_ms:.2} ms", task.name));
        }
    }
    Ok(())
}

/// No task spends a larger share of its time without a CPU than the unluckiest one does in `reference`, by more than `tolerance`.
pub fn waits_match(report: &Report, reference: &Report, tolerance: f64) -> Verdict {
    some_tasks(report)?;
    same_load(report, reference)?;
    let longest = |report: &Report| {
        let shares = report.tasks.iter().map(|task| Ok(1.0 - task.cpu_ns as f64 / present_ns(report, task)?));
        shares.collect::<Result<Vec<f64>, String>>().map(|shares| shares.into_iter().fold(0.0, f64::max))
    };
    let (longest, of_reference) = (longest(report)?, longest(reference)?);
    if longest <= of_reference + tolerance {
        return Ok(());
    }
    let [longest, of_reference] = [longest, of_reference].map(|share| 100.0 * share);
    Err(format!(
        "a task was without a CPU for {longest:.1} % of its time; under the other scheduler {of_reference:.1} %"
    ))
}

/// How long a task was there.
fn present_ns(report: &Report, task: &TaskReport) -> Result<f64, String> {
    let begin_ns = task.start_ns.ok_or_else(|| format!("`{}` never ran", task.name))?;
    match task.finish_ns.unwrap_or(report.wall_ns).saturating_sub(begin_ns) {
        0 => Err(format!("`{}` was there for no time", task.name)),
        present_ns => Ok(present_ns as f64),
    }
}

/// The kernel's weight of a nice value (`sched_prio_to_weight` in kernel/sched/core.c): a step of 1 is about 10 % of
/// CPU time between two tasks.
pub fn weight_of_nice(nice: i32) -> Result<u64, String> {
    const WEIGHTS: [u64; 40] = [
        88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121, 2501,
        1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
    ];
    let weight = nice.checked_add(20).and_then(|index| WEIGHTS.get(usize::try_from(index).ok()?));
    weight.copied().ok_or_else(|| format!("there is no nice value {nice}"))
}

/// Mean finish time of the tasks of these names.
pub fn mean_finish_ns(report: &Report, names: &[&str]) -> Result<f64, String> {
    if names.is_empty() {
        return Err("no tasks were named".into());
    }
    let sum_ns = names.iter().map(|name| finish_ns(report, name)).sum::<Result<f64, _>>()?;
    Ok(sum_ns / names.len() as f64)
}

/// When the task of this name finished.
pub fn finish_ns(report: &Report, name: &str) -> Result<f64, String> {
    let task = report.task(name).ok_or_else(|| format!("there is no task `{name}`"))?;
    Ok(task.finish_ns.ok_or_else(|| format!("`{name}` did not finish"))? as f64)
}

/// Whether `value` is within a fraction `tolerance` of `due`.
pub fn near(value: f64, due: f64, tolerance: f64) -> bool {
    (value - due).abs() <= tolerance * due.abs()
}

/// Nothing can be said about a report of no tasks.
pub(crate) fn some_tasks(report: &Report) -> Verdict {
    if report.tasks.is_empty() { Err("the report has no tasks".into()) } else { Ok(()) }
}

fn same_load(report: &Report, reference: &Report) -> Verdict {
    if report.workload != reference.workload || report.tasks.len() != reference.tasks.len() {
        return Err(format!("`{}` cannot be compared with `{}`", report.workload, reference.workload));
    }
    some_tasks(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cpu_ms: &[u64]) -> Report {
        let tasks = cpu_ms.iter().enumerate().map(|(index, ms)| TaskReport {
            name: format!("t{index}"),
            cpu_ns: ms * 1_000_000,
            start_ns: Some(0),
            finish_ns: Some(ms * 1_000_000),
            last_cpu: Some(index as u32),
            ..TaskReport::default()
        });
        Report { tasks: tasks.collect(), ..Report::default() }
    }

    #[test]
    fn equal_shares_hold_up_to_the_tolerance_and_no_further() {
        assert_eq!(equal_shares(&report(&[99, 101]), 0.02), Ok(()));
        let why = equal_shares(&report(&[90, 110]), 0.02).unwrap_err();
        assert!(why.contains("`t0` had 45.00 %"), "{why}");
    }

    #[test]
    fn a_wait_counts_by_how_much_longer_it_is_than_the_others() {
        let (mut waited, mut longer) = (report(&[100, 100]), report(&[100, 100]));
        waited.tasks[1].cpu_ns = 90_000_000;
        longer.tasks[0].cpu_ns = 84_000_000;
        assert_eq!(waits_match(&waited, &waited, 0.0), Ok(()));
        assert_eq!(waits_match(&longer, &waited, 0.07), Ok(()));
        assert_eq!(waits_match(&waited, &longer, 0.0), Ok(()));
        let why = waits_match(&longer, &waited, 0.05).unwrap_err();
        assert!(why.contains("16.0 %") && why.contains("10.0 %"), "{why}");
    }

    #[test]
    fn a_report_of_nothing_passes_no_check() {
        let nothing = Report::default();
        assert!(all_finished(&nothing).is_err());
        assert!(equal_shares(&nothing, 1.0).is_err());
        assert!(finish_together(&nothing, 1.0).is_err());
        assert!(each_on_its_own_cpu(&nothing, 1.0).is_err());
        assert!(shares_match(&nothing, &nothing, 1.0).is_err());
        assert!(waits_match(&nothing, &nothing, 1.0).is_err());
        assert!(equal_shares(&report(&[0, 0]), 1.0).is_err());
    }

    #[test]
    fn weights_are_those_of_the_kernel() {
        assert_eq!(weight_of_nice(0), Ok(1024));
        assert_eq!(weight_of_nice(-20), Ok(88761));
        assert_eq!(weight_of_nice(19), Ok(15));
        assert!(weight_of_nice(20).is_err() && weight_of_nice(-21).is_err() && weight_of_nice(i32::MAX).is_err());
    }

    #[test]
    fn shares_follow_weights() {
        let mut both = report(&[1024, 335]);
        both.tasks[1].nice = 5;
        assert_eq!(shares_by_weight(&both, 0.001), Ok(()));
        both.tasks[1].nice = 4;
        assert!(shares_by_weight(&both, 0.05).is_err());
    }

    #[test]
    fn a_task_that_did_not_finish_is_named() {
        let mut one = report(&[5, 5]);
        one.tasks[1].finish_ns = None;
        assert!(all_finished(&one).unwrap_err().contains("`t1`"));
        assert!(finish_together(&one, 0.5).unwrap_err().contains("`t1`"));
    }

    #[test]
    fn a_child_that_did_not_end_is_noticed() {
        let mut one = report(&[5]);
        (one.tasks[0].forked, one.tasks[0].forked_finished) = (3, 2);
        assert_eq!(all_finished(&one).unwrap_err(), "of the 3 children of `t0` only 2 ended");
    }

    #[test]
    fn two_tasks_on_one_cpu_and_a_task_that_waited_are_noticed() {
        assert_eq!(each_on_its_own_cpu(&report(&[5, 5]), 0.0), Ok(()));
        let mut shared = report(&[5, 5]);
        shared.tasks[1].last_cpu = Some(0);
        assert!(each_on_its_own_cpu(&shared, 0.0).unwrap_err().contains("both ended on CPU 0"));
        let mut waited = report(&[5, 5]);
        waited.tasks[1].cpu_ns /= 2;
        assert!(each_on_its_own_cpu(&waited, 0.1).unwrap_err().contains("`t1`"));
    }

    #[test]
    fn a_run_matches_itself_and_not_another() {
        let (one, other) = (report(&[10, 20]), report(&[20, 10]));
        assert_eq!(shares_match(&one, &one, 0.0), Ok(()));
        assert_eq!(finish_times_match(&one, &one, 0.0), Ok(()));
        assert!(shares_match(&one, &other, 0.05).is_err());
        assert!(finish_times_match(&one, &other, 0.05).is_err());
        assert!(shares_match(&one, &report(&[10]), 0.05).unwrap_err().contains("compared"));
    }
}
