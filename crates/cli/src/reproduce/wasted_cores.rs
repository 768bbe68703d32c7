//! `ekiden reproduce wasted-cores`: what papers/002 measured of its four bugs, measured again in the simulator, side by side.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use ekiden_bench::table;
use ekiden_check::{Checker, Limits};
use ekiden_page::Notes;
use ekiden_sim::{Jitter, Machine, Model};
use ekiden_workload::loads;
use serde::Serialize;

use crate::{failure::Exit, parallel, policies, progress::Progress, view};

const MS: u64 = 1_000_000;

/// The check for wasted cores, for loads that are over in less than the second that the paper waits. Where wake-ups are
/// to blame, waste is short and comes again and again.
fn limits(bug: Bug) -> Limits {
    let (every_ns, persists_ns) = if bug == Bug::OverloadOnWakeup { (5 * MS, MS) } else { (50 * MS, 20 * MS) };
    Limits { every_ns, persists_ns, ..Limits::default() }
}

#[derive(Args)]
pub(super) struct WastedCores {
    /// One of the bugs; all if absent
    bug: Option<Bug>,
    /// What decides what is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many runs a figure is the mean of, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
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

/// One row of a table: a load with a bug and without.
struct Case {
    bug: Bug,
    name: &'static str,
    load: String,
    /// The task whose end counts; others may go on.
    until: &'static str,
    fixed: Vec<Bug>,
    /// Times with and without as the paper has them; for section 3.1 only their ratio is known.
    paper: (f64, f64),
    /// What the ratio has to be.
    least: f64,
    most: Option<f64>,
    /// Why it is not.
    note: &'static str,
}

/// The programs of tables 1 and 3, with the seconds that the paper gives: with the bug and without, in each.
const NAS: [(&str, [f64; 2], [f64; 2]); 9] = [
    ("bt", [99.0, 56.0], [122.0, 23.0]),
    ("cg", [42.0, 15.0], [134.0, 5.4]),
    ("ep", [73.0, 36.0], [72.0, 18.0]),
    ("ft", [96.0, 50.0], [110.0, 14.0]),
    ("is", [271.0, 202.0], [283.0, 53.0]),
    ("lu", [1040.0, 38.0], [2196.0, 16.0]),
    ("mg", [49.0, 24.0], [81.0, 9.0]),
    ("sp", [31.0, 14.0], [109.0, 12.0]),
    ("ua", [206.0, 56.0], [906.0, 14.0]),
];

fn cases(only: Option<Bug>) -> Vec<Case> {
    let mut cases = vec![
        Case {
            bug: Bug::GroupImbalance,
            name: "make beside two R",
            load: "make:jobs=64:files=40:ms=20:start_ms=20+r:count=2:ms=3000".into(),
            until: "make",
            fixed: vec![Bug::GroupImbalance],
            paper: (1.0, 0.87),
            least: 1.05,
            most: Some(1.20),
            note: "",
        },
        // The R have a node of their own, which is not near the one that lu begins on: who shares a node with whom, and with
        // that whether there is an imbalance, would otherwise be decided by the millisecond in which lu begins.
        Case {
            bug: Bug::GroupImbalance,
            name: "lu beside four R",
            load: "nas-lu:threads=60:start_ms=20:group=lu+r:count=4:ms=3000:on=56-63".into(),
            until: "lu",
            fixed: vec![Bug::GroupImbalance],
            paper: (13.0, 1.0),
            least: 5.0,
            most: None,
            note: "",
        },
    ];
    let database = |name, fixed: &[Bug], paper, least, most, note| Case {
        bug: Bug::OverloadOnWakeup,
        name,
        load: "database:workers=64:containers=3:queries=10:transients=2".into(),
        until: "worker-",
        fixed: fixed.to_vec(),
        paper,
        least,
        most,
        note,
    };
    cases.extend([
        database("database, wake-up fixed", &[Bug::OverloadOnWakeup], (55.9, 43.5), 1.11, Some(1.34), ""),
        database(
            "database, imbalance fixed",
            &[Bug::GroupImbalance],
            (55.9, 48.6),
            1.0,
            None,
            "here a CPU looks for work each time that it goes idle, so that comparing the least loaded CPUs makes many \
             more moves between nodes, which wake-ups beside the waker undo at once; the paper says itself that this \
             fix hardly matters once wake-ups are fixed",
        ),
        database(
            "database, both fixed",
            &[Bug::OverloadOnWakeup, Bug::GroupImbalance],
            (55.9, 43.3),
            1.11,
            Some(1.34),
            "",
        ),
    ]);
    for (name, table_1, table_3) in NAS {
        let (least, most) = match name {
            "ep" => (1.8, Some(2.2)),
            "lu" => (10.0, None),
            _ => (1.0, None),
        };
        cases.push(Case {
            bug: Bug::GroupConstruction,
            name,
            load: format!("nas-{name}:threads=16:on=8-23"),
            until: name,
            fixed: vec![Bug::GroupConstruction],
            paper: table_1.into(),
            least,
            most,
            note: "",
        });
        cases.push(Case {
            bug: Bug::MissingDomains,
            name,
            load: format!("nas-{name}:threads=64:start_ms=5+hotplug:cpu=3"),
            until: name,
            fixed: vec![Bug::MissingDomains],
            paper: table_3.into(),
            least: if name == "lu" { 20.0 } else { 4.0 },
            most: None,
            note: "",
        });
    }
    cases.retain(|case| only.is_none_or(|only| only == case.bug));
    cases.sort_by_key(|case| Bug::ALL.iter().position(|bug| *bug == case.bug));
    cases
}

/// How a run went.
#[derive(Clone, Copy, Debug, Serialize)]
struct Run {
    /// From the load's beginning to its end, in milliseconds of simulated time.
    ms: f64,
    /// How often the check for wasted cores fired, in all runs together.
    wasted: usize,
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
    most: Option<f64>,
    met: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct Report {
    machine: &'static str,
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
        let met = ratio > 1.0 && ratio >= case.least && case.most.is_none_or(|most| ratio <= most);
        Ok(Row {
            bug: case.bug,
            program: case.name,
            load: case.load.clone(),
            with_bug,
            without,
            ratio,
            paper_ratio: case.paper.0 / case.paper.1,
            least: case.least,
            most: case.most,
            met,
            note: Some(case.note).filter(|note| !met && !note.is_empty()),
        })
    }

    /// The mean of all runs.
    fn simulate(&self, case: &Case, bugs: Bugs, has_bug: bool) -> Result<Run> {
        let mut all = Run { ms: 0.0, wasted: 0 };
        for seed in (self.seed..).take(self.runs as usize) {
            let page = self.report.as_deref().filter(|_| seed == self.seed);
            let page = page.map(|directory| directory.join(page_name(case.bug, case.name, has_bug)));
            let run = simulate(case, bugs, seed, page.as_deref())?;
            all.ms += run.ms / f64::from(self.runs);
            all.wasted += run.wasted;
        }
        Ok(all)
    }
}

/// How the paper's machine behaves, as far as it differs from others. Two cores of a module share their front end and
/// their floating point unit. Deep idle states are left out: they make it slow to bring an idle node back, so that
/// Overload-on-Wakeup and the fix of Group Imbalance cost several times what the paper saw.
fn model() -> Model {
    let jitter = Jitter { sleep_ns: 50_000, work_permille: 20 };
    // Sleeps that last up to as much longer by chance are the timer slack.
    Model { jitter, timer_slack_ns: 0, smt_percent: 180, idle_states: Vec::new(), ..Model::default() }
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
    let load = loads::make(&case.load, topology.nr_cpus()).map_err(|error| anyhow!("{}: {error}", case.load))?;
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
    let violations = match page {
        Some(path) => {
            let has_bug = case.fixed.iter().all(|bug| bugs.0[*bug as usize]);
            let heading = format!("{}, {}", case.bug.title(), if has_bug { "with the bug" } else { "fixed" });
            let notes = Notes { heading: Some(heading), ..Notes::default() };
            view::write_report(path, &header, records, &limits(case.bug), notes)?.violations
        }
        None => {
            let mut checker = Checker::new(&header, &limits(case.bug));
            records.for_each(|record| checker.record(&record));
            checker.finish()
        }
    };
    let wasted = violations.iter().filter(|violation| violation.check == "work-conservation").count();
    Ok(Run { ms: end_ns.saturating_sub(begin_ns) as f64 / MS as f64, wasted })
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
    let mut text = format!("CFS on {} (simulated), mean of {} runs\n", report.machine, report.runs);
    for bug in Bug::ALL {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bug == bug).collect();
        if rows.is_empty() {
            continue;
        }
        let cells = rows.iter().map(|row| {
            let range = match row.most {
                Some(most) => format!("{:.2} to {most:.2}", row.least),
                None => format!("over {:.0}", row.least),
            };
            [
                row.program.to_owned(),
                format!("{:.0} ms", row.with_bug.ms),
                format!("{:.0} ms", row.without.ms),
                format!("{:.2}", row.ratio),
                format!("{:.2}", row.paper_ratio),
                range,
                if row.met { "ok" } else { "MISSED" }.to_owned(),
                format!("{} / {}", row.with_bug.wasted, row.without.wasted),
            ]
        });
        let heading =
            ["", "with the bug", "without", "ratio", "paper's", "wanted", "", "wasted cores found, with / without"];
        text += &format!("\n{}\n{}\n", bug.title(), table(&heading, cells));
        for row in rows {
            if let Some(note) = row.note {
                text += &format!("{}: {note}\n", row.program);
            }
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bug_makes_its_victim_slower_and_is_seen_by_the_checker() {
        let seed = WastedCores { bug: None, seed: 1, runs: 3, json: false, check: false, report: None };
        for (bug, name) in [
            (Bug::GroupImbalance, "lu beside four R"),
            (Bug::GroupConstruction, "ep"),
            (Bug::OverloadOnWakeup, "database, wake-up fixed"),
            (Bug::MissingDomains, "ep"),
        ] {
            let case = cases(Some(bug)).into_iter().find(|case| case.name == name).unwrap();
            let row = seed.row(&case).unwrap();
            assert!(row.met, "{name}: {} of {:?}", row.ratio, (case.least, case.most));
            assert!(row.with_bug.wasted > 0 && row.without.wasted == 0, "{name}");
        }
    }
}
