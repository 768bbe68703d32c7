//! Real programs under several schedulers, on machines with different numbers of CPUs: what each costs there beside the kernel's own.

mod limits;
mod markdown;
mod page;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BPF, DEFAULT, Judged, Summary, number, table};

/// Measurements of one boot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel's release.
    pub kernel: String,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Whether a nanosecond of its clock is an instruction.
    pub counts_instructions: bool,
    /// Every value, in the order in which they were taken.
    pub samples: Vec<Sample>,
    /// Programs that could not be measured, and what went wrong in turns.
    pub incidents: Vec<Incident>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which program.
    pub program: String,
    /// What of it.
    #[serde(flatten)]
    pub measure: Measure,
    /// Under which scheduler.
    pub scheduler: String,
    /// How much.
    pub value: f64,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Measure {
    /// As in `p99`.
    pub measure: String,
    /// As in `us`.
    pub unit: String,
    /// Which values are good.
    pub kind: Kind,
}

/// What a value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The program's own figure, by which schedulers are compared; more is better.
    Rate,
    /// The program's own figure, by which schedulers are compared; less is better.
    Time,
    /// A latency; less is better.
    Latency,
    /// Something that explains the others.
    Count,
}

impl Kind {
    /// Whether it counts for means over programs.
    pub fn is_main(self) -> bool {
        matches!(self, Self::Rate | Self::Time)
    }
}

/// Something that stood in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// Which program.
    pub program: String,
    /// Under which scheduler; absent if the program could not be measured at all.
    pub scheduler: Option<String>,
    /// Whether the kernel had taken the scheduler out afterwards.
    pub was_taken_out: bool,
    /// What happened.
    pub what: String,
}

/// All boots, what they say, and verdicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applications {
    /// The measurements.
    pub boots: Vec<Boot>,
    /// The figures, by number of CPUs, program and measure.
    pub lines: Vec<Line>,
    /// Each scheduler over all programs.
    pub totals: Vec<Total>,
    /// What must be reached.
    pub limits: Vec<Judged>,
    /// Whether all limits are met, and no scheduler was taken out.
    pub passed: bool,
}

/// One measure of one program on one number of CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Which program.
    pub program: String,
    /// What of it.
    #[serde(flatten)]
    pub measure: Measure,
    /// Under each scheduler, the kernel's own first.
    pub cells: Vec<Cell>,
}

/// What a program reached under one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Which scheduler.
    pub scheduler: String,
    /// All turns.
    #[serde(flatten)]
    pub summary: Summary,
    /// What it costs beside the kernel's own: more than 1 is worse, also where more is better. Absent if that is not known.
    pub cost: Option<f64>,
}

/// One scheduler over the programs, on one number of CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// CPUs of the machine.
    pub cpus: u32,
    /// Which scheduler.
    pub scheduler: String,
    /// Beside which other; the kernel's own, or plain BPF.
    pub beside: String,
    /// Geometric mean of what its programs cost.
    pub mean: f64,
    /// The most.
    pub worst: f64,
    /// Where that was.
    pub worst_program: String,
    /// How many programs these figures are of.
    pub programs: usize,
}

impl Total {
    /// What stands above its cells in every table.
    const HEADING: [&str; 5] = ["scheduler", "beside", "CPUs", "programs", "geometric mean"];

    /// A row of a table; `worst` says in its way what cost the most.
    fn cells(&self, worst: impl IntoIterator<Item = String>) -> Vec<String> {
        let Self { cpus, scheduler, beside, mean, programs, .. } = self;
        let cells = [scheduler.clone(), beside.clone(), cpus.to_string(), programs.to_string(), format!("{mean:.3}")];
        cells.into_iter().chain(worst).collect()
    }
}

impl Line {
    /// Under one scheduler.
    pub fn cell(&self, scheduler: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.scheduler == scheduler)
    }

    /// What a value is worth beside another: more than 1 is worse.
    fn cost(&self, value: f64, beside: f64) -> Option<f64> {
        let cost = if self.measure.kind == Kind::Rate { beside / value } else { value / beside };
        (cost.is_finite() && cost > 0.0).then_some(cost)
    }

    /// Least and most cost of the turns beside the kernel's own median.
    fn costs(&self, cell: &Cell) -> Option<(f64, f64)> {
        let beside = self.cell(DEFAULT)?.summary.median;
        let ends = [self.cost(cell.summary.min, beside)?, self.cost(cell.summary.max, beside)?];
        Some((ends[0].min(ends[1]), ends[0].max(ends[1])))
    }
}

impl Applications {
    /// What boots say together.
    pub fn new(boots: Vec<Boot>) -> Self {
        let lines = lines(&boots);
        let totals = totals(&lines);
        let limits = limits::judge(&lines, &totals);
        let stayed = !boots.iter().flat_map(|boot| &boot.incidents).any(|incident| incident.was_taken_out);
        let passed = stayed && limits.iter().all(|judged| judged.met);
        Self { boots, lines, totals, limits, passed }
    }

    /// Whether every scheduler was in charge until its turns ended.
    pub fn all_stayed(&self) -> bool {
        !self.incidents().any(|(_, incident)| incident.was_taken_out)
    }

    /// Everything that went wrong, with the number of CPUs.
    fn incidents(&self) -> impl Iterator<Item = (u32, &Incident)> {
        self.boots.iter().flat_map(|boot| boot.incidents.iter().map(|incident| (boot.cpus, incident)))
    }

    /// The numbers of CPUs.
    fn machines(&self) -> Vec<u32> {
        let mut cpus: Vec<u32> = self.boots.iter().map(|boot| boot.cpus).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// The schedulers that were measured on this many CPUs, the kernel's own first.
    fn schedulers(&self, cpus: u32) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for cell in self.lines.iter().filter(|line| line.cpus == cpus).flat_map(|line| &line.cells) {
            if !names.contains(&cell.scheduler.as_str()) {
                names.push(&cell.scheduler);
            }
        }
        names
    }

    /// One self-contained page with pictures.
    pub fn to_page(&self) -> String {
        page::page(self)
    }

    /// As tables of a document in Markdown.
    pub fn to_markdown(&self) -> String {
        markdown::markdown(self)
    }

    /// As tables, one for each number of CPUs.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for cpus in self.machines() {
            let schedulers = self.schedulers(cpus);
            let own = schedulers.first().copied().unwrap_or(DEFAULT);
            let unit = if self.boots.iter().any(|boot| boot.cpus == cpus && boot.counts_instructions) {
                "; the clock counts instructions"
            } else {
                ""
            };
            text += &format!("{cpus} CPUs: {own} as measured, others as cost ÷ {own} (less is better){unit}\n");
            let mut heading = vec!["program", "figure", "n"];
            heading.extend(&schedulers);
            let rows = self.lines.iter().filter(|line| line.cpus == cpus && line.measure.kind != Kind::Count);
            text += &table(&heading, rows.map(|line| row(line, &schedulers)));
            text += "\n\n";
        }
        let worst = |total: &Total| [format!("{:.3}", total.worst), total.worst_program.clone()];
        let totals = self.totals.iter().map(|total| total.cells(worst(total)));
        text += &table(&[&Total::HEADING[..], &["worst", "which"]].concat(), totals);
        if !self.limits.is_empty() {
            text += "\n\n";
            text += &table(&["limit", "figure", "at most", "verdict"], self.limits.iter().map(Judged::cells));
        }
        for (cpus, Incident { program, scheduler, what, .. }) in self.incidents() {
            let scheduler = scheduler.as_deref().unwrap_or("every scheduler");
            text += &format!("\n{cpus} CPUs, {program}, {scheduler}: {what}");
        }
        text
    }
}

fn row(line: &Line, schedulers: &[&str]) -> Vec<String> {
    let figure = |(place, scheduler): (usize, &&str)| match line.cell(scheduler) {
        None => "–".to_owned(),
        Some(cell) if place == 0 => format!("{} {}", number(cell.summary.median), line.measure.unit),
        Some(cell) => match (cell.cost, line.costs(cell)) {
            (Some(cost), Some((least, most))) => format!("{cost:.2} ({least:.2}–{most:.2})"),
            _ => format!("{} {}", number(cell.summary.median), line.measure.unit),
        },
    };
    let n = line.cells.iter().map(|cell| cell.summary.n).min().unwrap_or(0);
    let mut row = vec![line.program.clone(), line.measure.measure.clone(), n.to_string()];
    row.extend(schedulers.iter().enumerate().map(figure));
    row
}

/// Puts values together that are of one thing.
fn lines(boots: &[Boot]) -> Vec<Line> {
    // In the order in which programs and schedulers came first.
    let (mut order, mut values) = (Vec::new(), BTreeMap::<_, Vec<(&str, Vec<f64>)>>::new());
    for boot in boots {
        for sample in &boot.samples {
            let key = (boot.cpus, &sample.program, &sample.measure);
            if !values.contains_key(&key) {
                order.push(key);
            }
            let of_key = values.entry(key).or_default();
            match of_key.iter_mut().find(|(scheduler, _)| *scheduler == sample.scheduler) {
                Some((_, values)) => values.push(sample.value),
                None => of_key.push((&sample.scheduler, vec![sample.value])),
            }
        }
    }
    order.sort_by_key(|(cpus, ..)| *cpus);
    let line = |key: &(u32, &String, &Measure)| {
        let summaries = values[key].iter().filter_map(|(name, values)| Some((*name, Summary::of(values)?)));
        let cell = |(name, summary): (&str, Summary)| Cell { scheduler: name.to_owned(), summary, cost: None };
        let (cpus, program, measure) = *key;
        let mut line =
            Line { cpus, program: program.clone(), measure: measure.clone(), cells: summaries.map(cell).collect() };
        line.cells.sort_by_key(|cell| cell.scheduler != DEFAULT);
        if let Some(own) = line.cell(DEFAULT).map(|cell| cell.summary.median) {
            let costs: Vec<_> = line.cells.iter().map(|cell| line.cost(cell.summary.median, own)).collect();
            line.cells.iter_mut().zip(costs).for_each(|(cell, cost)| cell.cost = cost);
        }
        line
    };
    order.iter().map(line).collect()
}

/// Means over programs, beside the kernel's own; for the two that do the same thing in two languages, also beside each other.
fn totals(lines: &[Line]) -> Vec<Total> {
    let mut pairs: Vec<(u32, &str, &str)> = Vec::new();
    for line in lines {
        for cell in line.cells.iter().filter(|cell| cell.scheduler != DEFAULT) {
            let is_fifo = cell.scheduler.split(',').next() == Some("fifo");
            for beside in [DEFAULT].into_iter().chain(is_fifo.then_some(BPF)) {
                if !pairs.contains(&(line.cpus, &cell.scheduler, beside)) {
                    pairs.push((line.cpus, &cell.scheduler, beside));
                }
            }
        }
    }
    pairs.sort_by_key(|(cpus, ..)| *cpus);
    let total = |(cpus, scheduler, beside): (u32, &str, &str)| {
        let costs: Vec<(f64, &str)> = lines
            .iter()
            .filter(|line| line.cpus == cpus && line.measure.kind.is_main())
            .filter_map(|line| {
                let median = |name: &str| line.cell(name).map(|cell| cell.summary.median);
                Some((line.cost(median(scheduler)?, median(beside)?)?, line.program.as_str()))
            })
            .collect();
        let (worst, program) = costs.iter().copied().max_by(|one, other| one.0.total_cmp(&other.0))?;
        let mean = (costs.iter().map(|(cost, _)| cost.ln()).sum::<f64>() / costs.len() as f64).exp();
        Some(Total {
            cpus,
            scheduler: scheduler.into(),
            beside: beside.into(),
            mean,
            worst,
            worst_program: program.into(),
            programs: costs.len(),
        })
    };
    pairs.into_iter().filter_map(total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sample(program: &str, kind: Kind, scheduler: &str, value: f64) -> Sample {
        let measure = Measure { measure: "figure".into(), unit: "s".into(), kind };
        Sample { program: program.into(), measure, scheduler: scheduler.into(), value }
    }

    pub(super) fn boot(cpus: u32, samples: Vec<Sample>) -> Boot {
        Boot { kernel: "7.3.4".into(), cpus, counts_instructions: true, samples, incidents: Vec::new() }
    }

    #[test]
    fn a_lower_rate_and_a_longer_time_cost_more() {
        let samples = vec![
            sample("nginx", Kind::Rate, "eevdf", 80.0),
            sample("nginx", Kind::Rate, DEFAULT, 100.0),
            sample("pipe", Kind::Time, DEFAULT, 2.0),
            sample("pipe", Kind::Time, "eevdf", 3.2),
        ];
        let all = Applications::new(vec![boot(2, samples)]);
        assert_eq!(all.lines[0].cells[0].scheduler, DEFAULT);
        assert_eq!(all.lines[0].cell("eevdf").unwrap().cost, Some(1.25));
        let total = &all.totals[0];
        assert!((total.mean - 2.0_f64.sqrt()).abs() < 1e-9, "{}", total.mean);
        assert_eq!((total.worst, total.worst_program.as_str(), total.programs), (1.6, "pipe", 2));
    }

    #[test]
    fn boots_with_as_many_cpus_are_put_together_and_others_are_not() {
        let of = |cpus, value| boot(cpus, vec![sample("pipe", Kind::Time, DEFAULT, value)]);
        let all = Applications::new(vec![of(4, 1.0), of(1, 5.0), of(4, 3.0)]);
        let figures: Vec<_> = all.lines.iter().map(|line| (line.cpus, line.cells[0].summary.median)).collect();
        assert_eq!(figures, [(1, 5.0), (4, 2.0)]);
        assert_eq!(all.lines[1].cells[0].summary.n, 2);
    }

    #[test]
    fn a_scheduler_that_was_taken_out_fails_everything() {
        let mut boot = boot(1, vec![sample("pipe", Kind::Time, DEFAULT, 1.0)]);
        assert!(Applications::new(vec![boot.clone()]).passed);
        let what = "the kernel has taken it out".to_owned();
        let scheduler = Some("wfq".to_owned());
        boot.incidents.push(Incident { program: "pipe".into(), scheduler, was_taken_out: true, what });
        let all = Applications::new(vec![boot]);
        assert!(!all.passed && !all.all_stayed());
        assert!(all.to_text().contains("1 CPUs, pipe, wfq: the kernel has taken it out"));
    }
}
