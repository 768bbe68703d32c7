//! `ekiden reproduce ekiben-tables`: tables 2, 3 and 4 of papers/000. How much code there is, how long a message through a pipe takes and
//! how long workers wait that are woken up, under each policy and under the kernel's own scheduler, in a stock kernel.

mod sources;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Figure, Row, number, table};
use ekiden_build::Checkout;
use serde::{Deserialize, Serialize};

use self::sources::Sources;
use super::turns::{Load, SLEEP_US, Turns, clock};
use crate::{
    bench::{
        Unit, Verdict,
        candidates::{Candidate, Values, Variant},
        hints::wakeups,
        load,
    },
    request::Measurement,
};

/// Message threads of table 4.
const MESSAGES: u32 = 2;

/// Where the two processes of the pipe are, as a place and as the load has it.
const PIPES: [(&str, &str); 2] = [("pipe_one_cpu", "0,0"), ("pipe_two_cpus", "0,1")];

/// Workers of each message thread: how many, and the places of both figures.
const WORKERS: [(u32, &str, &str); 2] =
    [(2, "workers_2_p50", "workers_2_p99"), (40, "workers_40_p50", "workers_40_p99")];

/// Rows in the paper's order, and their names in tables.
const TABLE_3: [(&str, &str); 2] = [("pipe_one_cpu", "one CPU"), ("pipe_two_cpus", "two CPUs")];
const TABLE_4: [(&str, &str); 4] = [
    ("workers_2_p50", "2 workers, 50 %"),
    ("workers_2_p99", "2 workers, 99 %"),
    ("workers_40_p50", "40 workers, 50 %"),
    ("workers_40_p99", "40 workers, 99 %"),
];

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Table 3: a byte goes to and fro between two processes, on one CPU and on two;
a figure is a round trip. Table 4: two message threads wake up 2 or 40 workers
each, as schbench does; a figure is how long a worker waits. Each figure stands
beside the paper's, both divided by the kernel's own scheduler, which was CFS in
the paper. Table 2 and the lines of each policy are counted in the sources, as
`ekiden bench count-unsafe` does, without comments and unit tests.
It boots a stock kernel on 4 CPUs, with the flight recorder on, and takes about
five minutes. The guest's clock counts instructions, so times say nothing beside
the paper's. The paper had 8 CPUs for table 3 and 80 for table 4: on 4, threads
wait for a CPU as well where there are 40 workers. Left out are both columns of
ghOSt, another framework. Arachne's figures are those of threads in user space;
the threads under `arbiter` are the kernel's, and ask for no CPUs. `fifo` and
`cfs` are not in the paper.
Examples:
  ekiden reproduce ekiben-tables
  ekiden reproduce ekiben-tables --policy wfq --policy locality --repeat 1
  ekiden reproduce ekiben-tables --json --check
      exits with 101 if a policy was taken out, with 116 if there is unsafe
      code where none may be
  sudo ekiden reproduce ekiben-tables --here
      microseconds, in the kernel of this machine
See also: ekiden bench count-unsafe, for each part; ekiden reproduce locality,
for table 6")]
pub(crate) struct EkibenTables {
    /// The policies to measure
    #[arg(long = "policy", value_name = "POLICY", default_values = ["wfq", "shinjuku", "locality", "arbiter", "fifo", "cfs"])]
    policies: Vec<String>,
    /// Round trips through the pipe that are timed in each turn
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
    /// Wake-ups of workers that are timed in each turn, about
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1_600..=1_000_000))]
    wakeups: u32,
    #[command(flatten)]
    turns: Turns,
}

/// A column of the paper's tables 3 and 4, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paper {
    /// Ours that it stands beside.
    scheduler: &'static str,
    name: &'static str,
    /// As in [`TABLE_3`] and [`TABLE_4`].
    pipe_us: [f64; 2],
    workers_us: [f64; 4],
    /// Lines of code; sections 4.2.1 to 4.2.4.
    lines: u32,
}

/// Papers/000.
const PAPER: [Paper; 5] = [
    Paper {
        scheduler: DEFAULT,
        name: "CFS",
        pipe_us: [3.0, 3.6],
        workers_us: [74.0, 101.0, 139.0, 320.0],
        lines: 6_247,
    },
    Paper { scheduler: "wfq", name: "WFQ", pipe_us: [3.6, 4.0], workers_us: [78.0, 104.0, 170.0, 323.0], lines: 646 },
    Paper {
        scheduler: "shinjuku",
        name: "Shinjuku",
        pipe_us: [4.0, 4.4],
        workers_us: [79.0, 109.0, 168.0, 307.0],
        lines: 285,
    },
    Paper {
        scheduler: "locality",
        name: "Locality",
        pipe_us: [3.5, 3.9],
        workers_us: [80.0, 105.0, 175.0, 324.0],
        lines: 203,
    },
    Paper { scheduler: "arbiter", name: "Arachne", pipe_us: [0.1, 0.2], workers_us: [1.0; 4], lines: 579 },
];

#[derive(Serialize)]
struct Report {
    round_trips: u64,
    wakeups: u32,
    /// Tables 3 and 4.
    measured: Comparison,
    paper: [Paper; 5],
    /// Table 2, where the sources are.
    sources: Option<Sources>,
}

impl Measurement for EkibenTables {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        self.turns.measure_here(&self.load(), unit)
    }
}

impl EkibenTables {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let measured = self.turns.measure(self, &self.load())?;
        // An installed program has none, and neither has the guest.
        let sources =
            Checkout::find().ok().map(|checkout| Sources::count(checkout.root(), &self.policies)).transpose()?;
        let limits = sources.as_ref().map_or(&[] as &[_], |sources| sources.limits.as_slice());
        let stayed = measured.schedulers.iter().all(|row| row.still_scheduler);
        let verdict = Verdict::of_limits(limits, stayed);
        let Self { round_trips, wakeups, .. } = *self;
        let report = Report { round_trips, wakeups, measured, paper: PAPER, sources };
        self.turns.output.show(&report, &describe(&report), &verdict)
    }

    fn load(&self) -> Load<'_> {
        let policies = self.policies.iter().cloned().map(Candidate::Policy);
        Load {
            name: "ekiben-tables",
            variants: [Candidate::Default].into_iter().chain(policies).map(Variant::of).collect(),
            limits: &[],
            work: Box::new(|variant, speed| self.time(&variant.candidate, speed)),
        }
    }

    fn time(&self, candidate: &Candidate, speed: &str) -> Result<Values> {
        let (mut values, round_trips) = (Values::new(), self.round_trips.to_string());
        for (place, cpus) in PIPES {
            let args = ["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"];
            values.push((place, load::time(candidate, &args)? / 1e3));
        }
        let sleep = SLEEP_US.to_string();
        for (workers, median, tail) in WORKERS {
            let rounds = self.wakeups / (MESSAGES * workers);
            let [messages, workers, rounds_each] = [MESSAGES, workers, rounds].map(|count| count.to_string());
            let counts =
                ["--messages", &messages, "--workers", &workers, "--rounds", &rounds_each, "--sleep-us", &sleep];
            let spread = wakeups(candidate, speed, &counts)?;
            ensure!(spread.n > 0.9 * f64::from(self.wakeups), "only {} wake-ups were measured", spread.n);
            values.extend([(median, spread.p50_us), (tail, spread.p99_us)]);
        }
        Ok(values)
    }
}

/// A scheduler's figures of one table, a line each, beside the paper's.
fn lines(row: &Row, places: &[(&str, &str)], of_paper: impl Fn(&Paper) -> Vec<f64>) -> Vec<Vec<String>> {
    let paper = PAPER.iter().find(|paper| paper.scheduler == row.scheduler);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let line = |(number_of, (place, what)): (usize, &(&str, &str))| {
        let figure: Option<&Figure> = row.figures.get(*place);
        let theirs = paper.map(|paper| of_paper(paper)[number_of]);
        let of_cfs = theirs.map(|theirs| theirs / of_paper(&PAPER[0])[number_of]);
        vec![
            row.scheduler.clone(),
            (*what).to_owned(),
            figure.map_or("none".to_owned(), |figure| number(figure.summary.median)),
            ratio(figure.and_then(|figure| figure.ratio_to_default)),
            theirs.map_or_else(String::new, |theirs| theirs.to_string()),
            ratio(of_cfs),
            if row.still_scheduler { "yes" } else { "TAKEN OUT" }.to_owned(),
        ]
    };
    places.iter().enumerate().map(line).collect()
}

fn describe(report: &Report) -> String {
    let Report { round_trips, wakeups, measured, sources, .. } = report;
    let turns = measured.schedulers.iter().flat_map(|row| row.figures.values()).map(|figure| figure.summary.n).max();
    let show = |places: &[(&str, &str)], of_paper: &dyn Fn(&Paper) -> Vec<f64>| {
        let heading = ["", "us", "median", "÷ default", "paper", "÷ CFS", "still there"];
        table(&heading, measured.schedulers.iter().flat_map(|row| lines(row, places, of_paper)))
    };
    let table_3 = show(&TABLE_3, &|paper| paper.pipe_us.to_vec());
    let table_4 = show(&TABLE_4, &|paper| paper.workers_us.to_vec());
    let counted = sources.as_ref().map_or_else(
        || "Table 2 is left out: the sources are not here; run it in a checkout.".to_owned(),
        |sources| sources.to_text(),
    );
    format!(
        "Linux {}; medians of {} turns\n{}\n\n\
         Table 3: a round trip through a pipe, of {round_trips}\n{table_3}\n\n\
         Table 4: how long workers of {MESSAGES} message threads wait, of about {wakeups} wake-ups\n{table_4}\n\n{counted}",
        measured.kernel,
        turns.unwrap_or(0),
        clock(measured),
    )
}

#[cfg(test)]
mod tests {
    use ekiden_bench::Measurements;
    use expect_test::expect;

    use super::*;

    fn comparison(measured: &[(&str, [f64; 6])], taken_out: Option<&str>) -> Comparison {
        let mut measurements = Measurements::default();
        for (scheduler, figures) in measured {
            for ((place, _), figure) in TABLE_3.iter().chain(&TABLE_4).zip(figures) {
                measurements.add(scheduler, place, *figure);
            }
            measurements.was_still_scheduler(scheduler, taken_out != Some(scheduler));
        }
        Comparison::new("ekiben-tables", "thousand instructions", "7.3.4", &measurements, &[])
    }

    fn describe_without_sources(measured: Comparison) -> String {
        describe(&Report { round_trips: 2_000, wakeups: 4_000, measured, paper: PAPER, sources: None })
    }

    /// What a guest showed: programs built for debugging, on CPUs that take turns in one stream of instructions.
    #[test]
    fn figures_stand_beside_the_papers_and_both_are_divided_by_the_kernels_own() {
        let measured = [
            (DEFAULT, [16.778, 19.113, 16.290, 29.812, 129.0, 480.0]),
            ("wfq", [17.461, 22.771, 17.059, 33.895, 185.0, 798.0]),
            ("arbiter", [19.381, 23.791, 19.227, 37.691, 197.0, 785.0]),
            ("fifo", [16.984, 21.730, 16.313, 32.024, 175.0, 767.0]),
        ];
        expect![[r#"
            Linux 7.3.4; medians of 1 turns
            A us is a thousand instructions of an emulator: compare ratios, not times.

            Table 3: a round trip through a pipe, of 2000
            ───────────────────────────────────────────────────────────────────────
                             us   median   ÷ default   paper   ÷ CFS   still there
            ═══════════════════════════════════════════════════════════════════════
             default    one CPU   16.778        1.00       3    1.00           yes
             default   two CPUs   19.113        1.00     3.6    1.00           yes
             wfq        one CPU   17.461        1.04     3.6    1.20           yes
             wfq       two CPUs   22.771        1.19       4    1.11           yes
             arbiter    one CPU   19.381        1.16     0.1    0.03           yes
             arbiter   two CPUs   23.791        1.24     0.2    0.06           yes
             fifo       one CPU   16.984        1.01                           yes
             fifo      two CPUs   21.730        1.14                           yes
            ───────────────────────────────────────────────────────────────────────

            Table 4: how long workers of 2 message threads wait, of about 4000 wake-ups
            ───────────────────────────────────────────────────────────────────────────────
                                     us   median   ÷ default   paper   ÷ CFS   still there
            ═══════════════════════════════════════════════════════════════════════════════
             default    2 workers, 50 %   16.290        1.00      74    1.00           yes
             default    2 workers, 99 %   29.812        1.00     101    1.00           yes
             default   40 workers, 50 %      129        1.00     139    1.00           yes
             default   40 workers, 99 %      480        1.00     320    1.00           yes
             wfq        2 workers, 50 %   17.059        1.05      78    1.05           yes
             wfq        2 workers, 99 %   33.895        1.14     104    1.03           yes
             wfq       40 workers, 50 %      185        1.43     170    1.22           yes
             wfq       40 workers, 99 %      798        1.66     323    1.01           yes
             arbiter    2 workers, 50 %   19.227        1.18       1    0.01           yes
             arbiter    2 workers, 99 %   37.691        1.26       1    0.01           yes
             arbiter   40 workers, 50 %      197        1.53       1    0.01           yes
             arbiter   40 workers, 99 %      785        1.64       1    0.00           yes
             fifo       2 workers, 50 %   16.313        1.00                           yes
             fifo       2 workers, 99 %   32.024        1.07                           yes
             fifo      40 workers, 50 %      175        1.36                           yes
             fifo      40 workers, 99 %      767        1.60                           yes
            ───────────────────────────────────────────────────────────────────────────────

            Table 2 is left out: the sources are not here; run it in a checkout."#]]
        .assert_eq(&describe_without_sources(comparison(&measured, None)));
    }

    #[test]
    fn what_was_not_measured_or_was_taken_out_is_told() {
        let text = describe_without_sources(comparison(&[(DEFAULT, [1.0; 6]), ("wfq", [2.0; 6])], Some("wfq")));
        assert_eq!(text.matches("TAKEN OUT").count(), TABLE_3.len() + TABLE_4.len(), "{text}");
        // A policy that was taken out in each of its turns has no figures.
        let mut measurements = Measurements::default();
        measurements.was_still_scheduler("wfq", false);
        let text = describe_without_sources(Comparison::new("ekiben-tables", "us", "7.3.4", &measurements, &[]));
        assert_eq!(text.matches("none").count(), TABLE_3.len() + TABLE_4.len(), "{text}");
        assert!(text.contains("one of this machine's clock"), "{text}");
    }

    #[test]
    fn tables_have_the_places_that_are_measured_and_the_policies_that_there_are() {
        assert_eq!(PIPES.map(|(place, _)| place), TABLE_3.map(|(place, _)| place));
        let places: Vec<&str> = WORKERS.iter().flat_map(|(_, median, tail)| [*median, *tail]).collect();
        assert_eq!(places, TABLE_4.map(|(place, _)| place));
        let of_ours = PAPER[1..].iter().map(|paper| paper.scheduler);
        assert_eq!(of_ours.filter(|name| ekiden_policies::NAMES.contains(name)).count(), PAPER.len() - 1);
    }
}
