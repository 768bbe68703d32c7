//! Runs checks over what happened.

use ekiden_trace::{Header, Record};

use serde::Serialize;

use crate::{Limits, View, Violation, WasteCurve, invariants};

/// Most violations that are kept of one check: a reader of these has seen enough.
const KEPT: usize = 1_000;

/// One invariant.
pub trait Check: Send {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Something happens. `view` is the machine right before, with its clock at the moment of the record.
    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>);

    /// Nothing more happens.
    fn finish(&mut self, view: &View, found: &mut Vec<Violation>) {
        let _ = (view, found);
    }

    /// Waste over time, if the check is about that.
    fn waste(&self) -> Option<WasteCurve> {
        None
    }
}

/// What checks say of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Violations in the order of time; a check that found very much stops looking.
    pub violations: Vec<Violation>,
    /// Waste over time.
    pub waste: WasteCurve,
}

/// All checks, over one trace. Memory grows with the tasks, not with the records.
pub struct Checker {
    view: View,
    checks: Vec<(Box<dyn Check>, Vec<Violation>)>,
}

impl Checker {
    /// Every invariant of this crate.
    pub fn new(header: &Header, limits: &Limits) -> Self {
        Self::with(header, invariants::all(header, limits))
    }

    /// Some invariants.
    pub fn with(header: &Header, checks: Vec<Box<dyn Check>>) -> Self {
        Self { view: View::new(header), checks: checks.into_iter().map(|check| (check, Vec::new())).collect() }
    }

    /// Something happened.
    pub fn record(&mut self, record: &Record) {
        self.view.pass(record.time_ns);
        for (check, found) in &mut self.checks {
            if found.len() < KEPT {
                check.record(&self.view, record, found);
            }
        }
        self.view.apply(record);
    }

    /// State of the machine.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Nothing more happens. Returns what was found, in the order of time; a check that found very much stops looking.
    pub fn finish(self) -> Vec<Violation> {
        self.verdict().violations
    }

    /// The violations, with the waste over time.
    pub fn verdict(mut self) -> Verdict {
        for (check, found) in &mut self.checks {
            check.finish(&self.view, found);
        }
        let waste = self.checks.iter().find_map(|(check, _)| check.waste()).unwrap_or_default();
        let mut all: Vec<Violation> = self.checks.into_iter().flat_map(|(_, found)| found).collect();
        all.sort_by_key(|violation| violation.at_ns);
        Verdict { violations: all, waste }
    }
}
