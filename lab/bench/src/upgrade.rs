//! What it costs that one policy can take over from another, and how long CPUs wait when one does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Judged, Limit, Summary, number, table};

/// A place of the pipe benchmark under a policy, with and without what an upgrade needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machinery {
    /// The policy.
    pub policy: String,
    /// Where the two processes are.
    pub place: String,
    /// A round trip with it.
    pub present: Summary,
    /// A round trip without.
    pub absent: Summary,
    /// How much longer it takes, by the medians.
    pub ratio: f64,
}

/// The longest that a CPU waited in any of some upgrades, by turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The policy before and the one after.
    pub what: String,
    /// How many upgrades there were in each turn.
    pub upgrades: u32,
    /// The longest wait of each turn.
    pub longest: Summary,
    /// All waits of all turns.
    pub all: Summary,
    /// The longest of all by the median of round trips in the same boot.
    pub in_round_trips: f64,
    /// The median of the longest of each turn by the same.
    pub median_in_round_trips: f64,
}

/// Both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// Always `upgrade`.
    pub bench: String,
    /// What the figures count.
    pub unit: String,
    /// The kernel's release.
    pub kernel: String,
    /// How many CPUs there were.
    pub cpus: u32,
    /// How many tasks there were besides those of the machine.
    pub tasks: u32,
    /// What it costs while there is no upgrade.
    pub machinery: Vec<Machinery>,
    /// How long CPUs waited.
    pub waits: Vec<Wait>,
    /// Whether a policy was the scheduler at every end.
    pub still_scheduler: bool,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether it is, and the policies stayed.
    pub passed: bool,
}

/// Values as they are taken.
#[derive(Clone, Debug, Default)]
pub struct UpgradeValues {
    /// By policy and place: round trips with the machinery and without.
    round_trips: BTreeMap<(String, String), [Vec<f64>; 2]>,
    /// The waits of each turn, by what took over.
    waits: BTreeMap<String, Vec<Vec<f64>>>,
}

impl UpgradeValues {
    /// Notes a round trip, with the machinery or without.
    pub fn round_trip(&mut self, policy: &str, place: &str, present: bool, value: f64) {
        self.round_trips.entry((policy.into(), place.into())).or_default()[usize::from(present)].push(value);
    }

    /// Notes the waits of one turn.
    pub fn waits(&mut self, what: &str, waits: Vec<f64>) {
        self.waits.entry(what.into()).or_default().push(waits);
    }
}

impl UpgradeReport {
    const MACHINERY: &'static str = "pipe round trip, upgrades possible ÷ not";
    const WAIT: &'static str = "longest wait of a CPU, in pipe round trips";

    /// Judges values. Waits are compared with a round trip on one CPU under the policy in `reference`.
    pub fn new(
        (kernel, unit): (&str, &str),
        (cpus, tasks): (u32, u32),
        values: &UpgradeValues,
        reference: &str,
        still_scheduler: bool,
    ) -> Self {
        let machinery: Vec<Machinery> = values
            .round_trips
            .iter()
            .filter_map(|((policy, place), [absent, present])| {
                let (absent, present) = (Summary::of(absent)?, Summary::of(present)?);
                let ratio = present.median / absent.median;
                Some(Machinery { policy: policy.clone(), place: place.clone(), present, absent, ratio })
            })
            .collect();
        let round_trip = machinery
            .iter()
            .find(|row| row.policy == reference && row.place == "one_cpu")
            .map_or(f64::NAN, |row| row.present.median);
        let waits: Vec<Wait> = values
            .waits
            .iter()
            .filter_map(|(what, turns)| {
                let longest: Vec<f64> =
                    turns.iter().filter_map(|waits| waits.iter().copied().reduce(f64::max)).collect();
                let longest = Summary::of(&longest)?;
                Some(Wait {
                    what: what.clone(),
                    upgrades: turns[0].len() as u32,
                    longest,
                    all: Summary::of(&turns.concat())?,
                    in_round_trips: longest.max / round_trip,
                    median_in_round_trips: longest.median / round_trip,
                })
            })
            .collect();
        let limits: Vec<Judged> = machinery
            .iter()
            .map(|row| {
                (format!("{}, {}, {}", Self::MACHINERY, row.policy, row.place.replace('_', " ")), 1.01, row.ratio)
            })
            .chain(waits.iter().map(|row| (format!("{}, {}", Self::WAIT, row.what), 1.0, row.in_round_trips)))
            .map(|(name, at_most, figure)| Judged { name, ..Limit { name: "", at_most }.judge(Some(figure)) })
            .collect();
        let complete = !machinery.is_empty() && !waits.is_empty();
        Self {
            bench: "upgrade".into(),
            unit: unit.into(),
            kernel: kernel.into(),
            cpus,
            tasks,
            passed: complete && still_scheduler && limits.iter().all(|judged| judged.met),
            machinery,
            waits,
            still_scheduler,
            limits,
        }
    }

    /// As tables: the machinery, the waits, the limits.
    pub fn to_text(&self) -> String {
        let range = |summary: &Summary| format!("{} … {}", number(summary.min), number(summary.max));
        let machinery = self.machinery.iter().map(|row| {
            let [present, absent] = [&row.present, &row.absent].map(|summary| number(summary.median));
            [row.policy.clone(), row.place.replace('_', " "), present, absent, range(&row.present), number(row.ratio)]
        });
        let waits = self.waits.iter().map(|row| {
            let [longest, all] = [&row.longest, &row.all].map(|summary| number(summary.median));
            let [in_round_trips, by_median] = [row.in_round_trips, row.median_in_round_trips].map(number);
            [row.what.clone(), all, longest, range(&row.longest), by_median, in_round_trips]
        });
        let parts = [
            format!("upgrade, {}, Linux {}, {} CPUs, {} tasks", self.unit, self.kernel, self.cpus, self.tasks),
            table(&["policy", "where", "possible", "not", "range", "ratio"], machinery),
            table(
                &["takes over", "median wait", "longest of a turn", "range", "in round trips", "longest of all"],
                waits,
            ),
            table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells)),
        ];
        let end = if self.still_scheduler { "" } else { "\n\na policy was TAKEN OUT" };
        parts.join("\n\n") + end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(present: f64, longest: f64, stayed: bool) -> UpgradeReport {
        let mut values = UpgradeValues::default();
        for _ in 0..5 {
            values.round_trip("fifo", "one_cpu", true, present);
            values.round_trip("fifo", "one_cpu", false, 1000.0);
            values.waits("fifo → wfq", vec![10.0, longest, 20.0]);
        }
        UpgradeReport::new(("7.3", "instructions"), (4, 1000), &values, "fifo", stayed)
    }

    #[test]
    fn limits_are_on_the_ratio_and_on_the_longest_wait() {
        assert!(report(1005.0, 900.0, true).passed);
        assert!(!report(1020.0, 900.0, true).passed);
        assert!(!report(1005.0, 1100.0, true).passed);
        assert!(!report(1005.0, 900.0, false).passed);
        assert_eq!(report(1000.0, 500.0, true).waits[0].in_round_trips, 0.5);
    }

    #[test]
    fn one_long_wait_in_one_turn_is_the_longest() {
        let mut values = UpgradeValues::default();
        for turn in 0..5 {
            values.round_trip("fifo", "one_cpu", true, 1000.0);
            values.round_trip("fifo", "one_cpu", false, 1000.0);
            values.waits("fifo → wfq", vec![10.0, if turn == 3 { 1100.0 } else { 500.0 }]);
        }
        let report = UpgradeReport::new(("7.3", "instructions"), (4, 1000), &values, "fifo", true);
        assert_eq!((report.waits[0].in_round_trips, report.waits[0].median_in_round_trips), (1.1, 0.5));
        assert!(!report.passed);
    }

    #[test]
    fn nothing_measured_is_not_good_enough() {
        assert!(!UpgradeReport::new(("7.3", "ns"), (4, 1000), &UpgradeValues::default(), "fifo", true).passed);
    }
}
