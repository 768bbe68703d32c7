//! `ekiden reproduce wasted-cores`: what papers/002 measured of its four bugs, measured again in the simulator, side by side.

mod cases;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use ekiden_bench::table;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_page::Notes;
use ekiden_sim::{Jitter, Machine, Model};
use ekiden_workload::loads;
use serde::Serialize;

use crate::{failure::Exit, parallel, policies, progress::Progress, report};

use self::cases::{Case, cases};

const MS: u64 = 1_000_000;

/// The checks for wasted cores, for loads that are over in less than the second that the paper waits.
fn limits() -> Limits {
    Limits { every_ns: 50 * MS, persists_ns: 20 * MS, window_ns: 100 * MS, ..Limits::default() }
}

/// A fix that wastes more is none; a tenth is chance.
const MOST_WASTE: f64 = 1.1;

/// A figure agrees with the paper's if it is at most this many times greater or smaller.
const WITHIN: f64 = 1.5;

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden reproduce wasted-cores                   the tables of papers/002
  ekiden reproduce wasted-cores missing-domains   one of the bugs
  ekiden reproduce wasted-cores --report pages    and a page of each run")]
pub(super) struct WastedCores {
    /// One of the bugs; all if absent
    bug: Option<Bug>,
    /// What decides what is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many runs a figure is the mean of, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if a figure is not in its range
    #[arg(long)]
    check: bool,
    /// Write a page of the first run of each row to this directory, with the bug and without, and an index.html
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Bug {
    GroupImbalance,
    GroupConstruction,
    OverloadOnWakeup,
    MissingDomains,
}

impl Bug {
    const ALL: [Self; 4] =
        [Self::GroupImbalance, Self::GroupConstruction, Self::OverloadOnWakeup, Self::MissingDomains];

    fn title(self) -> &'static str {
        match self {
            Self::GroupImbalance => "Group Imbalance (section 3.1)",
            Self::GroupConstruction => "Scheduling Group Construction (section 3.2, table 1): threads on nodes 1 and 2",
            Self::OverloadOnWakeup => "Overload-on-Wakeup (section 3.3, table 2)",
            Self::MissingDomains => "Missing Scheduling Domains (section 3.4, table 3): after CPU 3 was off and on",
        }
    }
}

/// The parameters of the policy that switch the bugs on: group imbalance, group construction, overload on wake-up,
/// missing domains. The papers' kernel has them all, and fixes are added one by one.
#[derive(Clone, Copy)]
struct Bugs([bool; 4]);

const ALL_BUGS: Bugs = Bugs([true, true, true, true]);

impl Bugs {
    fn without(self, fixed: &[Bug]) -> Self {
        let mut bugs = self;
        for bug in fixed {
            bugs.0[*bug as usize] = false;
        }
        bugs
    }

    fn params(self) -> String {
        let names = ["group_imbalance", "group_construction", "overload_on_wakeup", "missing_domains"];
        let params: Vec<String> =
            names.iter().zip(self.0).map(|(name, on)| format!("{name}={}", u8::from(on))).collect();
        params.join(" ")
    }
}

/// How a run went.
#[derive(Clone, Copy, Debug, Serialize)]
struct Run {
    /// From the load's beginning to its end, in milliseconds of simulated time.
    ms: f64,
    /// How often the checks for wasted cores fired, in all runs together.
    wasted: usize,
    /// CPU time wasted in a run, in milliseconds.
    wasted_cpu_ms: f64,
}

#[derive(Serialize)]
struct Row {
    bug: Bug,
    program: &'static str,
    load: String,
    with_bug: Run,
    without: Run,
    ratio: f64,
    paper_ratio: f64,
    least: f64,
    most: f64,
    met: bool,
    /// Why the ratio is not near the paper's.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<&'static str>,
}

#[derive(Serialize)]
struct Report {
    machine: &'static str,
    model: Model,
    limits: Limits,
    seed: u64,
    runs: u32,
    passed: bool,
    rows: Vec<Row>,
}

impl WastedCores {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let cases = cases(self.bug);
        if let Some(directory) = &self.report {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut progress = Progress::new();
        progress.step(format!("simulating {} loads, each with a bug and without", cases.len()));
        let rows = self.rows(&cases, &mut progress)?;
        drop(progress);
        let report = Report {
            machine: "bulldozer64",
            model: model(),
            limits: limits(),
            seed: self.seed,
            runs: self.runs,
            passed: rows.iter().all(|row| row.met),
            rows,
        };
        if let Some(directory) = &self.report {
            let index = directory.join("index.html");
            fs::write(&index, list_pages(&report)).with_context(|| format!("cannot write {}", index.display()))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", describe(&report));
            match &self.report {
                Some(directory) => println!("next: open {} in a browser", directory.join("index.html").display()),
                None => println!("next: ekiden reproduce wasted-cores --report pages"),
            }
        }
        Ok(if self.check && !report.passed { Exit::LimitMissed.into() } else { ExitCode::SUCCESS })
    }

    /// All rows, with as many simulations at a time as there are CPUs.
    fn rows(&self, cases: &[Case], progress: &mut Progress) -> Result<Vec<Row>> {
        let told = |index: usize| progress.note(&format!("{}: {}", cases[index].bug.title(), cases[index].name));
        parallel::map(cases, |case| self.row(case), told).into_iter().collect()
    }

    fn row(&self, case: &Case) -> Result<Row> {
        let with_bug = self.simulate(case, ALL_BUGS, true)?;
        let without = self.simulate(case, ALL_BUGS.without(&case.fixed), false)?;
        let ratio = with_bug.ms / without.ms;
        let (least, most) = case.range();
        let is_no_more = without.wasted_cpu_ms <= MOST_WASTE * with_bug.wasted_cpu_ms;
        Ok(Row {
            bug: case.bug,
            program: case.name,
            load: case.load.clone(),
            with_bug,
            without,
            ratio,
            paper_ratio: case.paper_ratio(),
            least,
            most,
            // A fix that wastes more is none.
            met: ratio > 1.0 && (least..=most).contains(&ratio) && is_no_more,
            why_not: case.off.map(|off| off.why),
        })
    }

    /// The mean of all runs.
    fn simulate(&self, case: &Case, bugs: Bugs, has_bug: bool) -> Result<Run> {
        let mut all = Run { ms: 0.0, wasted: 0, wasted_cpu_ms: 0.0 };
        let runs = self.runs * case.starts;
        for seed in (self.seed..).take(runs as usize) {
            let page = self.report.as_deref().filter(|_| seed == self.seed);
            let page = page.map(|directory| directory.join(page_name(case.bug, case.name, has_bug)));
            let run = simulate(case, bugs, seed, page.as_deref())?;
            all.ms += run.ms / f64::from(runs);
            all.wasted += run.wasted;
            all.wasted_cpu_ms += run.wasted_cpu_ms / f64::from(runs);
        }
        Ok(all)
    }
}

/// What the simulator takes for any machine, and some chance, without which all runs would be one.
fn model() -> Model {
    Model { jitter: Jitter { sleep_ns: 50_000, work_permille: 20 }, ..Model::default() }
}

/// One run; `page` is where a page of it goes, if there is to be one.
fn simulate(case: &Case, bugs: Bugs, seed: u64, page: Option<&Path>) -> Result<Run> {
    let topology = ekiden_machine::preset("bulldozer64").context("the machine of papers/002 has no preset")?;
    // Only those bugs that the case is about can be told apart: the others have conditions of their own.
    let bugs = match case.bug {
        Bug::MissingDomains => bugs.without(&[Bug::GroupConstruction]),
        Bug::GroupConstruction => bugs.without(&[Bug::MissingDomains]),
        Bug::GroupImbalance | Bug::OverloadOnWakeup => bugs.without(&[Bug::GroupConstruction, Bug::MissingDomains]),
    };
    let load = case.load_of(seed, topology.nr_cpus());
    let load = loads::make(&load, topology.nr_cpus()).map_err(|error| anyhow!("{load}: {error}"))?;
    let machine = Machine::new(topology).with_model(model());
    let simulation = policies::simulate("cfs", machine, &bugs.params()).context("cfs is not linked in")?;
    let mut simulation = simulation.seed(seed).traced();
    if page.is_some() {
        simulation = simulation.with_considered();
    }
    let result = simulation.run(&load)?;
    if let Some(fault) = &result.fault {
        return Err(anyhow!("{}: the policy was taken out: {fault}", case.load));
    }
    let of_case = result.report.tasks.iter().filter(|task| task.name.starts_with(case.until));
    let (begin_ns, end_ns) = of_case.fold((u64::MAX, 0), |(begin, end), task| {
        (begin.min(task.start_ns.unwrap_or(u64::MAX)), end.max(task.finish_ns.unwrap_or(u64::MAX)))
    });
    let header = result.trace.header().context("the trace has no header")?;
    let records = result.trace.records().take_while(|record| record.time_ns <= end_ns);
    let verdict = match page {
        Some(path) => {
            let has_bug = case.fixed.iter().all(|bug| bugs.0[*bug as usize]);
            let heading = format!("{}, {}", case.bug.title(), if has_bug { "with the bug" } else { "fixed" });
            let notes = Notes { heading: Some(heading), ..Notes::default() };
            report::write_report(path, &header, records, &limits(), notes)?
        }
        None => {
            let mut checker = Checker::new(&header, &limits());
            records.for_each(|record| checker.record(&record));
            checker.verdict()
        }
    };
    let is_waste = |violation: &&Violation| ["work-conservation", "wasted-time"].contains(&violation.check);
    let wasted = verdict.violations.iter().filter(is_waste).count();
    let ms = |ns: u64| ns as f64 / MS as f64;
    Ok(Run { ms: ms(end_ns.saturating_sub(begin_ns)), wasted, wasted_cpu_ms: ms(verdict.waste.sum_ns()) })
}

/// The file of a page.
fn page_name(bug: Bug, program: &str, has_bug: bool) -> String {
    let words = format!("{bug:?} {program} {}", if has_bug { "bug" } else { "fixed" });
    let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase() + ".html"
}

/// The page that leads to the others.
fn list_pages(report: &Report) -> String {
    let mut text = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Wasted cores</title><style>body{font:16px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;\
         padding:0 1em}td,th{text-align:left;padding:0 1.5em 0 0}</style><h1>Wasted cores</h1><p>The four bugs of \
         papers/002, simulated: the same load with the bug, and without it.</p>",
    );
    for bug in Bug::ALL {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bug == bug).collect();
        if rows.is_empty() {
            continue;
        }
        text += &format!("<h2>{}</h2><table><tr><th>load<th>with the bug<th>fixed<th>times slower", bug.title());
        for Row { program, with_bug, without, ratio, .. } in rows {
            let link =
                |has_bug, ms: f64| format!("<td><a href=\"{}\">{ms:.0} ms</a>", page_name(bug, program, has_bug));
            text += &format!("<tr><td>{program}{}{}<td>{ratio:.2}", link(true, with_bug.ms), link(false, without.ms));
        }
        text += "</table>";
    }
    text
}

fn describe(report: &Report) -> String {
    let Limits { every_ns, persists_ns, window_ns, waste_permille, patience_ns, .. } = report.limits;
    let ms = |ns: u64| ns / MS;
    let mut text = format!(
        "CFS on {} (simulated), mean of {} runs, seeds from {} on; a ? in a load is a CPU that the seed draws\n\
         model: the simulator's default; sleeps last up to {} us longer, work varies by {} %\n\
         found are CPUs idle beside waiting tasks: S = {} ms and M = {} ms; and over {} % of the CPU time of {} ms wasted in turn, \
         from {} ms of a wait on\n",
        report.machine,
        report.runs,
        report.seed,
        report.model.jitter.sleep_ns / 1_000,
        report.model.jitter.work_permille / 10,
        ms(every_ns),
        ms(persists_ns),
        waste_permille / 10,
        ms(window_ns),
        ms(patience_ns),
    );
    for bug in Bug::ALL {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bug == bug).collect();
        if rows.is_empty() {
            continue;
        }
        let cells = rows.iter().map(|row| {
            [
                row.program.to_owned(),
                format!("{:.0} ms", row.with_bug.ms),
                format!("{:.0} ms", row.without.ms),
                format!("{:.2}", row.ratio),
                format!("{:.2}", row.paper_ratio),
                format!("{:.2} to {:.2}", row.least, row.most),
                match row.why_not {
                    _ if !row.met => "MISSED",
                    Some(_) => "as said below",
                    None => "ok",
                }
                .to_owned(),
                format!("{} / {}", row.with_bug.wasted, row.without.wasted),
                format!("{:.0} / {:.0}", row.with_bug.wasted_cpu_ms, row.without.wasted_cpu_ms),
            ]
        });
        let heading = [
            "",
            "with the bug",
            "without",
            "ratio",
            "paper's",
            "wanted",
            "",
            "found, with / without",
            "wasted CPU ms, with / without",
        ];
        text += &format!("\n{}\n{}\n", bug.title(), table(&heading, cells));
        for row in &rows {
            text += &format!("{}: {}\n", row.program, row.load);
        }
        for row in &rows {
            if let Some(why) = row.why_not {
                text += &format!("{} is not within {WITHIN} times of the paper's: {why}\n", row.program);
            }
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(seed: u64) -> WastedCores {
        WastedCores { bug: None, seed, runs: 3, json: false, check: true, report: None }
    }

    #[test]
    fn every_row_is_where_the_paper_or_the_reason_why_not_puts_it() {
        // Others by hand: for seed in $(seq 20); do ./ekiden reproduce wasted-cores --check --seed $seed; done
        for seed in [1, 1_000] {
            let rows = parallel::map(&cases(None), |case| all(seed).row(case), |_| {});
            for row in rows.into_iter().map(Result::unwrap) {
                let Row { bug, program, ratio, least, most, with_bug, without, .. } = row;
                let says =
                    format!("{bug:?}, {program}, seed {seed}: {ratio} of {least} to {most}, {with_bug:?}, {without:?}");
                assert!(row.met, "{says}");
            }
        }
    }

    #[test]
    fn the_checks_see_each_bug_and_little_without_it() {
        for (bug, name) in [
            (Bug::GroupImbalance, "make beside two R"),
            (Bug::GroupConstruction, "ep"),
            (Bug::OverloadOnWakeup, "database, wake-up fixed"),
            (Bug::MissingDomains, "ep"),
        ] {
            let case = cases(Some(bug)).into_iter().find(|case| case.name == name).unwrap();
            let row = all(1).row(&case).unwrap();
            // Threads that all begin on one node waste what it takes to spread them, whatever spreads them.
            let (bug, fixed) = (row.with_bug.wasted, row.without.wasted);
            assert!(bug > 0 && bug > 4 * fixed, "{name}: {:?} {:?}", row.with_bug, row.without);
        }
    }

    #[test]
    fn a_question_mark_is_a_cpu_that_the_seed_draws() {
        let case = &cases(Some(Bug::GroupImbalance))[0];
        let [one, again, other] = [1, 1, 2].map(|seed| case.load_of(seed, 64));
        assert!(one == again && one != other && !one.contains('?'), "{one} {other}");
    }
}
