//! What a soak comes to.

use std::collections::BTreeMap;

use ekiden_bench::table;
use serde::Serialize;
use serde_json::Value;

/// For so much longer than when nothing happens a task may stand still because of a fault, in milliseconds.
pub(super) const GAP_MS_MAX: f64 = 50.0;
/// So much of what they get beside a hostile neighbour under the kernel's own scheduler, others get under every policy. FIFO misses it
/// by its rule: the user with the most tasks has the most of the CPUs.
pub(super) const SHARE_MIN: f64 = 0.9;

/// Something that must not be.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) step: String,
    /// Which step it was, counted from 1.
    pub(super) number: u64,
    pub(super) what: String,
}

/// What programs of one kind did in all turns of a scheduler, and in how many seconds.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    count: f64,
    seconds: f64,
}

impl Work {
    /// None if nothing was measured.
    fn per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.count / self.seconds)
    }
}

#[derive(Default, Serialize)]
pub(super) struct Outcome {
    pub(super) kernel: String,
    pub(super) seed: u64,
    pub(super) cpus: u32,
    pub(super) parallel: bool,
    pub(super) minutes: f64,
    pub(super) interrupted: bool,
    /// How often each was gone through.
    pub(super) steps: BTreeMap<String, u64>,
    /// How many policies were taken out that did nothing wrong.
    pub(super) taken_out: u64,
    pub(super) faults: u64,
    pub(super) faults_not_contained: u64,
    /// How long a task stood still at most when nothing happened, and because of a fault.
    pub(super) quiet_gap_ms: f64,
    pub(super) fault_gap_ms: f64,
    pub(super) gap_ms_over: f64,
    pub(super) gap_ms_over_max: f64,
    /// Which fault it was.
    pub(super) fault_gap_of: String,
    /// The longest of all beyond what a CPU itself stood still in the same guest test, as a real-time task saw it: what no host takes.
    pub(super) gap_ms_of_ours: f64,
    pub(super) upgrades: u64,
    /// How often modules were loaded, and changes of all kinds refused.
    pub(super) loads: u64,
    pub(super) refused: u64,
    /// How often a guest fell over a fault of QEMU's own and what was going on began anew.
    pub(super) emulator_faults: u64,
    pub(super) calls_replayed: u64,
    pub(super) differences: u64,
    /// For how long interrupts were off at most, per kind of event, in nanoseconds.
    pub(super) off_ns_max: BTreeMap<String, u64>,
    /// What the programs of a user came to beside a hostile neighbour, by scheduler, over all turns.
    #[serde(skip)]
    pub(super) work: BTreeMap<String, BTreeMap<String, Work>>,
    /// Work per second under each policy ÷ work per second under the kernel's own scheduler.
    pub(super) beside_neighbour: BTreeMap<String, BTreeMap<String, f64>>,
    pub(super) beside_neighbour_min: f64,
    pub(super) findings: Vec<Finding>,
}

impl Outcome {
    /// Takes account of what a guest test said. Returns what must not be.
    pub(super) fn read(&mut self, report: &Value) -> Vec<String> {
        let is = |key: &str, value: bool| report[key].as_bool() == Some(value);
        let number = |key: &str| report[key].as_u64().unwrap_or_default();
        let mut wrong = Vec::new();
        if let Some(fault) = report["fault"].as_str().filter(|_| report["contained"].is_boolean()) {
            self.faults += 1;
            if is("contained", false) {
                self.faults_not_contained += 1;
                wrong.push(format!("{fault}: {}", report["reported"].as_str().unwrap_or_default()));
            }
            let gap_ms = report["gap_ms"].as_f64().unwrap_or_default();
            if gap_ms > self.fault_gap_ms {
                (self.fault_gap_ms, self.fault_gap_of) = (gap_ms, fault.to_owned());
            }
            let cpu_ms = report["cpu_ms"].as_f64().unwrap_or_default();
            self.gap_ms_of_ours = self.gap_ms_of_ours.max(gap_ms - cpu_ms);
        }
        if is("still_running", false) {
            self.taken_out += 1;
            wrong.push(format!("the policy was taken out: {report}"));
        }
        if is("back_after_kill", false) {
            wrong.push("tasks were not given back when the loader was killed".into());
        }
        for what in ["contract_violations", "unexpected_transitions", "lost"] {
            if number(what) > 0 {
                wrong.push(format!("{} {what}: {report}", number(what)));
            }
        }
        if is("loads_again", false) {
            wrong.push(format!("no policy could be loaded any more: {report}"));
        }
        if number("control_gained") > 0 {
            wrong.push(format!("an ordinary user got what is root's: {report}"));
        }
        if is("slab_debug", false) {
            wrong.push("the kernel does not check what it allocates".into());
        }
        // If the policy was taken out, part of the turn was another scheduler's.
        let turn = report["scheduler"].as_str().filter(|_| !is("still_running", false));
        if let (Some(scheduler), Some(work)) = (turn, report["work"].as_object()) {
            let all = self.work.entry(scheduler.to_owned()).or_default();
            for (what, turn) in work {
                let of = all.entry(what.clone()).or_default();
                of.count += turn["count"].as_f64().unwrap_or_default();
                of.seconds += turn["seconds"].as_f64().unwrap_or_default();
            }
        }
        self.upgrades += number("upgrades");
        self.loads += u64::from(report["unload_ms"].is_u64());
        for (kind, ns) in report["off_ns_max"].as_object().into_iter().flatten() {
            let longest = self.off_ns_max.entry(kind.clone()).or_default();
            *longest = (*longest).max(ns.as_u64().unwrap_or_default());
        }
        wrong
    }

    /// What follows from all of it.
    pub(super) fn conclude(&mut self) {
        self.gap_ms_over = (self.fault_gap_ms - self.quiet_gap_ms).max(0.0);
        let mut work = std::mem::take(&mut self.work);
        let Some(own) = work.remove("kernel") else { return };
        for (policy, counts) in work {
            // Not every scheduler has as many turns, nor turns of one length: a guest test may end early, and CPUs that run at once keep no time.
            let ratio = |(what, of): (String, Work)| {
                let own = own.get(&what)?.per_second().filter(|own| *own > 0.0)?;
                Some((what, of.per_second()? / own))
            };
            self.beside_neighbour.insert(policy, counts.into_iter().filter_map(ratio).collect());
        }
    }

    /// Whether all who were judged kept to the limits.
    pub(super) fn is_within_limits(&self) -> bool {
        let shares = self.beside_neighbour.values().flat_map(BTreeMap::values).all(|ratio| *ratio >= SHARE_MIN);
        self.gap_ms_over <= GAP_MS_MAX && shares
    }
}

/// The result of a soak, for a terminal.
pub(super) fn text(outcome: &Outcome) -> String {
    let Outcome { kernel, seed, cpus, minutes, .. } = outcome;
    let how = if outcome.parallel { "that run at once" } else { "that take turns" };
    let steps =
        table(&["what", "times"], outcome.steps.iter().map(|(name, times)| vec![name.clone(), times.to_string()]));
    let figure = |name: &str, figure: String, at_most: &str| vec![name.to_owned(), figure, at_most.to_owned()];
    let figures = table(
        &["figure", "reached", "at most"],
        [
            figure("policies taken out that did nothing wrong", outcome.taken_out.to_string(), "0"),
            figure("faults", outcome.faults.to_string(), ""),
            figure("faults not contained", outcome.faults_not_contained.to_string(), "0"),
            figure("upgrades", outcome.upgrades.to_string(), ""),
            figure("modules loaded anew", outcome.loads.to_string(), ""),
            figure("guest tests that could not be gone through", outcome.refused.to_string(), "0"),
            figure("guests lost by a fault of QEMU's own", outcome.emulator_faults.to_string(), ""),
            figure("calls replayed", outcome.calls_replayed.to_string(), ""),
            figure("replayed with a difference", outcome.differences.to_string(), "0"),
            figure("longest gap when nothing happens, ms", format!("{:.0}", outcome.quiet_gap_ms), ""),
            figure(
                &format!("beyond that after a fault ({}), ms", outcome.fault_gap_of),
                format!("{:.0}", outcome.gap_ms_over),
                &format!("{GAP_MS_MAX:.0}"),
            ),
            figure("beyond what the CPU itself stood still, ms", format!("{:.0}", outcome.gap_ms_of_ours), ""),
        ],
    );
    let beside = outcome.beside_neighbour.iter().flat_map(|(policy, ratios)| {
        ratios.iter().map(move |(what, ratio)| {
            vec![policy.clone(), what.clone(), format!("{ratio:.3}"), format!("{SHARE_MIN:.2}")]
        })
    });
    let beside = match outcome.beside_neighbour.is_empty() {
        true => String::new(),
        false => {
            let heading = ["policy", "of another user, beside a hostile neighbour", "÷ the kernel's own", "at least"];
            format!("\n\n{}", table(&heading, beside))
        }
    };
    let findings: Vec<String> = outcome
        .findings
        .iter()
        .map(|finding| format!("step {}, {}: {}", finding.number, finding.step, finding.what))
        .collect();
    let end = match (findings.as_slice(), outcome.interrupted) {
        ([], false) => "nothing was found".to_owned(),
        ([], true) => "nothing was found until it was interrupted".to_owned(),
        (findings, _) => format!("FOUND:\n{}", findings.join("\n")),
    };
    format!(
        "Linux {kernel}, {cpus} CPUs {how}, {minutes:.1} minutes, seed {seed}\n\n{steps}\n\n{figures}{beside}\n\n{end}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(report: Value) -> (Outcome, Vec<String>) {
        let mut outcome = Outcome::default();
        let wrong = outcome.read(&report);
        (outcome, wrong)
    }

    #[test]
    fn a_fault_that_is_contained_is_no_finding_and_its_gap_counts() {
        let (outcome, wrong) =
            read(json!({ "fault": "loop", "contained": true, "gap_ms": 12.5, "reported": "an endless loop" }));
        assert!(wrong.is_empty());
        assert_eq!((outcome.faults, outcome.faults_not_contained), (1, 0));
        assert_eq!((outcome.fault_gap_ms, outcome.fault_gap_of.as_str()), (12.5, "loop"));
    }

    #[test]
    fn what_a_cpu_itself_stood_still_is_not_ours() {
        let mut outcome = Outcome::default();
        for (gap_ms, cpu_ms) in [(700.0, 690.0), (40.0, 5.0), (3.0, 8.0)] {
            outcome.read(&json!({ "fault": "loop", "contained": true, "gap_ms": gap_ms, "cpu_ms": cpu_ms }));
        }
        assert_eq!((outcome.fault_gap_ms, outcome.gap_ms_of_ours), (700.0, 35.0));
    }

    #[test]
    fn what_must_not_be_is_found_in_what_a_guest_test_says() {
        let (outcome, wrong) =
            read(json!({ "fault": "loop", "contained": false, "gap_ms": 1.0, "reported": "nobody saw it" }));
        assert_eq!((outcome.faults_not_contained, wrong), (1, vec!["loop: nobody saw it".to_owned()]));
        let (outcome, wrong) = read(json!({ "still_running": false, "contract_violations": 2 }));
        assert_eq!((outcome.taken_out, wrong.len()), (1, 2));
        assert_eq!(read(json!({ "lost": 3 })).1.len(), 1);
        assert_eq!(read(json!({ "back_after_kill": false })).1.len(), 1);
    }

    #[test]
    fn the_longest_times_are_kept() {
        let mut outcome = Outcome::default();
        for ns in [5, 9, 7] {
            assert!(outcome.read(&json!({ "still_running": true, "off_ns_max": { "pick": ns } })).is_empty());
        }
        assert_eq!(outcome.off_ns_max["pick"], 9);
    }

    #[test]
    fn what_others_get_beside_a_neighbour_is_compared_with_the_kernels_own_scheduler() {
        let mut outcome = Outcome::default();
        for (scheduler, count) in [("kernel", 10), ("wfq", 9), ("fifo", 9), ("kernel", 10), ("wfq", 10), ("fifo", 10)] {
            assert!(outcome.read(&turn(scheduler, count, 1.0)).is_empty());
        }
        outcome.conclude();
        assert_eq!(outcome.beside_neighbour["wfq"]["wakeups"], 0.95);
        assert!(outcome.is_within_limits());
        outcome.beside_neighbour.get_mut("wfq").unwrap().insert("wakeups".into(), 0.89);
        assert!(!outcome.is_within_limits());
    }

    fn turn(scheduler: &str, count: u64, seconds: f64) -> Value {
        json!({ "scheduler": scheduler, "work": { "wakeups": { "count": count, "seconds": seconds } } })
    }

    #[test]
    fn turns_that_were_lost_or_took_longer_change_nothing_in_what_others_get_a_second() {
        let mut outcome = Outcome::default();
        // The kernel's own scheduler had a turn more, and one of those of the policy took three times as long.
        for (scheduler, count, seconds) in
            [("kernel", 20, 2.0), ("wfq", 57, 6.0), ("kernel", 20, 2.0), ("wfq", 19, 2.0), ("kernel", 20, 2.0)]
        {
            assert!(outcome.read(&turn(scheduler, count, seconds)).is_empty());
        }
        // Where a policy was taken out, what follows is the kernel's.
        let mut lost = turn("wfq", 9_000, 2.0);
        lost["still_running"] = false.into();
        assert_eq!(outcome.read(&lost).len(), 1);
        outcome.conclude();
        assert!((outcome.beside_neighbour["wfq"]["wakeups"] - 0.95).abs() < 1e-9, "{:?}", outcome.beside_neighbour);
    }

    #[test]
    fn without_a_turn_of_the_kernels_own_scheduler_nothing_is_compared() {
        let mut outcome = Outcome::default();
        for report in [turn("wfq", 10, 2.0), turn("kernel", 0, 0.0)] {
            assert!(outcome.read(&report).is_empty());
        }
        outcome.conclude();
        assert!(outcome.beside_neighbour["wfq"].is_empty());
    }

    #[test]
    fn what_an_ordinary_user_or_the_device_must_not_do_is_found() {
        assert_eq!(read(json!({ "control_gained": 1 })).1.len(), 1);
        assert_eq!(read(json!({ "loads_again": false, "slab_debug": false })).1.len(), 2);
    }
}
