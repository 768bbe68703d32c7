//! Loads under several schedulers, interleaved: how much each took, against the kernel's own scheduler and
//! against plain BPF.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BPF, DEFAULT, Judged, Limit, Summary, number, table};

/// Values as they are taken: by scheduler, by place, one per repeat.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    schedulers: Vec<(String, bool, BTreeMap<String, Vec<f64>>)>,
}

impl Measurements {
    /// Notes one value; `place` says what was measured, as in `one_cpu`.
    pub fn add(&mut self, scheduler: &str, place: &str, value: f64) {
        self.entry(scheduler).2.entry(place.to_owned()).or_default().push(value);
    }

    /// Notes whether the scheduler was still in charge after a repeat. Once it was not, that stays.
    pub fn was_still_scheduler(&mut self, scheduler: &str, still: bool) {
        self.entry(scheduler).1 &= still;
    }

    /// Whether something was noted of the scheduler.
    pub fn has(&self, scheduler: &str) -> bool {
        self.schedulers.iter().any(|(name, ..)| name == scheduler)
    }

    fn entry(&mut self, scheduler: &str) -> &mut (String, bool, BTreeMap<String, Vec<f64>>) {
        let position = self.schedulers.iter().position(|(name, ..)| name == scheduler).unwrap_or_else(|| {
            self.schedulers.push((scheduler.to_owned(), true, BTreeMap::new()));
            self.schedulers.len() - 1
        });
        &mut self.schedulers[position]
    }
}

/// One scheduler's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name: a policy's, [`DEFAULT`] or [`BPF`].
    pub scheduler: String,
    /// Whether it was still the scheduler after every repeat, by what the kernel says.
    pub still_scheduler: bool,
    /// Its figures, by place.
    pub figures: BTreeMap<String, Figure>,
}

/// One figure of one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The measured values.
    #[serde(flatten)]
    pub summary: Summary,
    /// The median by that of the kernel's own scheduler.
    pub ratio_to_default: Option<f64>,
    /// The median by that of plain BPF.
    pub ratio_to_bpf: Option<f64>,
}

/// A load under several schedulers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Which load.
    pub bench: String,
    /// What the figures count.
    pub unit: String,
    /// The kernel's release.
    pub kernel: String,
    /// Each scheduler, in the order in which they ran.
    pub schedulers: Vec<Row>,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether every limit is met and every scheduler stayed.
    pub passed: bool,
}

impl Comparison {
    /// Makes a comparison of measurements. A limit comes with the scheduler, the place and the reference that it is about.
    pub fn new(
        bench: &str,
        unit: &str,
        kernel: &str,
        measurements: &Measurements,
        limits: &[(Limit, &str, &str, &str)],
    ) -> Self {
        let median = |scheduler: &str, place: &str| {
            let (.., figures) = measurements.schedulers.iter().find(|(name, ..)| name == scheduler)?;
            Some(Summary::of(figures.get(place)?)?.median)
        };
        let figure = |place: &String, values: &Vec<f64>| {
            let summary = Summary::of(values)?;
            let ratio = |reference: &str| Some(summary.median / median(reference, place)?);
            let figure = Figure { summary, ratio_to_default: ratio(DEFAULT), ratio_to_bpf: ratio(BPF) };
            Some((place.clone(), figure))
        };
        let schedulers: Vec<Row> = measurements
            .schedulers
            .iter()
            .map(|(scheduler, still_scheduler, figures)| Row {
                scheduler: scheduler.clone(),
                still_scheduler: *still_scheduler,
                figures: figures.iter().filter_map(|(place, values)| figure(place, values)).collect(),
            })
            .collect();
        let limits: Vec<Judged> = limits
            .iter()
            .map(|(limit, scheduler, place, reference)| {
                limit.judge(median(scheduler, place).zip(median(reference, place)).map(|(this, other)| this / other))
            })
            .collect();
        let passed = limits.iter().all(|judged| judged.met) && schedulers.iter().all(|row| row.still_scheduler);
        Self { bench: bench.into(), unit: unit.into(), kernel: kernel.into(), schedulers, limits, passed }
    }

    /// As tables: figures, then limits.
    pub fn to_text(&self) -> String {
        let rows = self.schedulers.iter().flat_map(|row| {
            row.figures.iter().map(|(place, figure)| {
                let Summary { median, min, max, n } = figure.summary;
                let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.3}"));
                vec![
                    row.scheduler.clone(),
                    place.replace('_', " "),
                    number(median),
                    format!("{} … {}", number(min), number(max)),
                    n.to_string(),
                    ratio(figure.ratio_to_default),
                    ratio(figure.ratio_to_bpf),
                    if row.still_scheduler { "yes" } else { "TAKEN OUT" }.to_owned(),
                ]
            })
        });
        let heading = ["scheduler", "where", "median", "range", "n", "÷ default", "÷ BPF", "still there"];
        let mut text = format!("{}, {}, Linux {}\n", self.bench, self.unit, self.kernel);
        text += &table(&heading, rows);
        if !self.limits.is_empty() {
            text += "\n\n";
            text += &table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { name: "fifo, one CPU ÷ the kernel's own", at_most: 0.98 };

    fn measured(fifo: f64, still: bool) -> Comparison {
        let mut measurements = Measurements::default();
        for repeat in 0..5 {
            measurements.add(DEFAULT, "one_cpu", 100.0 + f64::from(repeat));
            measurements.add("fifo", "one_cpu", fifo);
            measurements.was_still_scheduler("fifo", still || repeat != 2);
        }
        Comparison::new("pipe", "ns", "7.3.4", &measurements, &[(LIMIT, "fifo", "one_cpu", DEFAULT)])
    }

    #[test]
    fn ratios_are_of_medians() {
        let comparison = measured(51.0, true);
        let figure = &comparison.schedulers[1].figures["one_cpu"];
        assert_eq!((figure.ratio_to_default, figure.ratio_to_bpf), (Some(0.5), None));
        assert_eq!(figure.summary.n, 5);
        assert!(comparison.passed);
    }

    #[test]
    fn a_missed_limit_fails_the_comparison() {
        let comparison = measured(102.0, true);
        assert!(!comparison.limits[0].met && !comparison.passed);
        assert!(comparison.to_text().contains("MISSED"));
    }

    #[test]
    fn one_that_was_taken_out_fails_the_comparison_whatever_its_figures() {
        let comparison = measured(51.0, false);
        assert!(comparison.limits[0].met && !comparison.passed);
        assert!(comparison.to_text().contains("TAKEN OUT"));
    }

    #[test]
    fn a_limit_on_what_was_not_measured_is_missed() {
        let limits = [(LIMIT, "fifo", "one_cpu", DEFAULT)];
        let comparison = Comparison::new("pipe", "ns", "7.3.4", &Measurements::default(), &limits);
        assert!(!comparison.passed);
    }
}
