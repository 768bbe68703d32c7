//! `ekiden reproduce locality`: table 6 of papers/000, how long workers wait that message threads wake up, with hints which threads
//! belong together and without, in a stock kernel.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Judged, Row, number, table};
use ekiden_loader::Status;
use serde::{Deserialize, Serialize};

use super::turns::{Load, SLEEP_US, Turns, clock};
use crate::{
    bench::{
        Unit, Verdict,
        candidates::{Candidate, Values, Variant},
        hints::{Spread, TOLD, WAKEUP, wakeups},
    },
    request::Measurement,
};

/// Message threads, and the workers of each, as in the paper.
const MESSAGES: u32 = 2;
const WORKERS: u32 = 2;

/// Who is measured, as reports call it.
const ONE_CPU: &str = "default, one CPU";
const WITHOUT: &str = "locality, no hints";
const WITH: &str = "locality, hints";

const MEDIAN: &str = "p50";
const TAIL: &str = "p99";

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Two message threads wake up two workers each, wait for their answers and sleep,
by futexes, of which the kernel is not told that the waker will sleep (no
WF_SYNC). Workers only answer. A wait is from before a worker is woken up until
it runs. It is measured under the kernel's own scheduler, there on one CPU, and
under `locality` without hints and with them: each message thread shares a set
with its workers. One CPU is the affinity of all threads (sched_setaffinity);
the paper has a cpuset, which narrows the same mask. CFS, in the paper, was the
kernel's own scheduler before 6.6.
It boots a stock kernel on 4 CPUs, with the flight recorder on, and takes about
two minutes. The guest's clock counts instructions: to wake up a CPU that idles
costs next to nothing there, and hints gain less. The limit is one of the 99 %:
with hints, at most half of the wait under the kernel's own scheduler. With
--sleep-us 0 and hints, no CPU that has a set ever idles, and the 99 % are the
turns of emulated CPUs.
Examples:
  ekiden reproduce locality --check
      exits with 116 if the limit is missed, with 101 if a policy was taken out
  ekiden reproduce locality --repeat 9 --rounds 5000 --json
  sudo ekiden reproduce locality --here
      microseconds, in the kernel of this machine
See also: ekiden bench hints, for what hints cost")]
pub(crate) struct Locality {
    /// How often each message thread wakes up its workers, in each turn
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    rounds: u32,
    /// How long a message thread sleeps when it has all answers; up to a quarter more is drawn, as by schbench
    #[arg(long, value_name = "US", default_value_t = SLEEP_US, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    sleep_us: u64,
    #[command(flatten)]
    turns: Turns,
}

/// A column of the paper's table.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paper {
    /// Ours that it stands beside.
    scheduler: &'static str,
    name: &'static str,
    p50_us: f64,
    p99_us: f64,
}

/// Papers/000, table 6.
const PAPER: [Paper; 4] = [
    Paper { scheduler: DEFAULT, name: "CFS", p50_us: 33.0, p99_us: 50.0 },
    Paper { scheduler: ONE_CPU, name: "CFS One Core", p50_us: 17.0, p99_us: 32_032.0 },
    Paper { scheduler: WITHOUT, name: "Random", p50_us: 46.0, p99_us: 49.0 },
    Paper { scheduler: WITH, name: "Hints", p50_us: 2.0, p99_us: 4.0 },
];

#[derive(Serialize)]
struct Report {
    messages: u32,
    workers: u32,
    rounds: u32,
    sleep_us: u64,
    measured: Comparison,
    paper: [Paper; 4],
}

impl Measurement for Locality {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        self.turns.measure_here(&self.load(), unit)
    }
}

impl Locality {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let measured = self.turns.measure(self, &self.load())?;
        let Self { rounds, sleep_us, .. } = *self;
        let report = Report { messages: MESSAGES, workers: WORKERS, rounds, sleep_us, measured, paper: PAPER };
        self.turns.output.show(&report, &describe(&report), &Verdict::of_comparison(&report.measured))
    }

    fn load(&self) -> Load<'_> {
        let policy = || Candidate::Policy(TOLD.to_owned());
        let variant = |name: &str, candidate, options| Variant { name: name.to_owned(), candidate, options };
        Load {
            name: "locality",
            variants: vec![
                variant(DEFAULT, Candidate::Default, &[]),
                variant(ONE_CPU, Candidate::Default, &["--one-cpu"]),
                variant(WITHOUT, policy(), &[]),
                variant(WITH, policy(), &["--told", TOLD]),
            ],
            limits: &[(WAKEUP, WITH, TAIL, DEFAULT)],
            work: Box::new(|variant, speed| self.wait(variant, speed)),
        }
    }

    fn wait(&self, variant: &Variant, speed: &str) -> Result<Values> {
        let [messages, workers, rounds] = [MESSAGES, WORKERS, self.rounds].map(|count| count.to_string());
        let sleep = self.sleep_us.to_string();
        let counts = ["--messages", &messages, "--workers", &workers, "--rounds", &rounds, "--sleep-us", &sleep];
        let spread: Spread = wakeups(&variant.candidate, speed, &[&counts, variant.options].concat())?;
        let expected = f64::from(MESSAGES * WORKERS * self.rounds);
        ensure!(spread.n == expected, "{} wake-ups were measured instead of {expected}", spread.n);
        if variant.name == WITH {
            let status = Status::read()?.unwrap_or_default();
            let heard = status.find(Some(TOLD))?.queues.as_ref().map_or(0, |queues| queues.counts.hints);
            let threads = u64::from(MESSAGES * (WORKERS + 1));
            ensure!(heard == threads, "the policy heard {heard} hints instead of {threads}");
        }
        Ok(vec![(MEDIAN, spread.p50_us), (TAIL, spread.p99_us)])
    }
}

fn cells(row: &Row) -> Vec<String> {
    let figure = |place: &str| row.figures.get(place);
    let median = |place| figure(place).map_or("none".to_owned(), |figure| number(figure.summary.median));
    let tail = figure(TAIL);
    let range = tail
        .map_or_else(String::new, |figure| format!("{} … {}", number(figure.summary.min), number(figure.summary.max)));
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let paper = PAPER.iter().find(|paper| paper.scheduler == row.scheduler);
    let of_paper = |figure: fn(&Paper) -> f64| paper.map_or_else(String::new, |paper| format!("{:.0}", figure(paper)));
    vec![
        row.scheduler.clone(),
        median(MEDIAN),
        median(TAIL),
        range,
        ratio(tail.and_then(|figure| figure.ratio_to_default)),
        of_paper(|paper| paper.p50_us),
        of_paper(|paper| paper.p99_us),
        ratio(paper.map(|paper| paper.p99_us / PAPER[0].p99_us)),
        if row.still_scheduler { "yes" } else { "TAKEN OUT" }.to_owned(),
    ]
}

fn describe(report: &Report) -> String {
    let Report { messages, workers, rounds, measured, .. } = report;
    let turns = measured.schedulers.first().and_then(|row| Some(row.figures.get(TAIL)?.summary.n)).unwrap_or(0);
    let heading = ["us", "50 %", "99 %", "range", "÷ default", "paper 50 %", "99 %", "÷ CFS", "still there"];
    format!(
        "Linux {}: {messages} message threads wake up {workers} workers each {rounds} times; medians of {turns} turns\n{}\n{}\n\n{}",
        measured.kernel,
        clock(measured),
        table(&heading, measured.schedulers.iter().map(cells)),
        table(&["limit", "figure", "at most", ""], measured.limits.iter().map(Judged::cells)),
    )
}

#[cfg(test)]
mod tests {
    use ekiden_bench::{Limit, Measurements};
    use expect_test::expect;

    use super::*;

    /// What three turns in a guest showed: programs built for debugging, on CPUs that take turns in one stream of instructions.
    const MEASURED: [(&str, [f64; 3], [f64; 3]); 4] = [
        (DEFAULT, [15.795, 16.07, 16.294], [29.196, 29.84, 29.875]),
        (ONE_CPU, [11.194, 11.194, 11.194], [15.335, 18.541, 19.9]),
        (WITHOUT, [18.099, 18.11, 18.11], [35.424, 35.449, 35.487]),
        (WITH, [20.893, 20.893, 20.893], [30.973, 31.039, 31.178]),
    ];

    fn report(measured: &[(&str, [f64; 3], [f64; 3])], taken_out: Option<&str>) -> Report {
        let mut measurements = Measurements::default();
        for (scheduler, medians, tails) in measured {
            for (median, tail) in medians.iter().zip(tails) {
                measurements.add(scheduler, MEDIAN, *median);
                measurements.add(scheduler, TAIL, *tail);
            }
            measurements.was_still_scheduler(scheduler, taken_out != Some(scheduler));
        }
        let limits: [(Limit, &str, &str, &str); 1] = [(WAKEUP, WITH, TAIL, DEFAULT)];
        let measured = Comparison::new("locality", "thousand instructions", "7.3.4", &measurements, &limits);
        Report { messages: MESSAGES, workers: WORKERS, rounds: 1_000, sleep_us: SLEEP_US, measured, paper: PAPER }
    }

    #[test]
    fn each_scheduler_stands_beside_the_column_of_the_paper() {
        expect![[r#"
            Linux 7.3.4: 2 message threads wake up 2 workers each 1000 times; medians of 3 turns
            A us is a thousand instructions of an emulator: compare ratios, not times.
            ────────────────────────────────────────────────────────────────────────────────────────────────────────────────
             us                     50 %     99 %             range   ÷ default   paper 50 %    99 %    ÷ CFS   still there
            ════════════════════════════════════════════════════════════════════════════════════════════════════════════════
             default              16.070   29.840   29.196 … 29.875        1.00           33      50     1.00           yes
             default, one CPU     11.194   18.541   15.335 … 19.900        0.62           17   32032   640.64           yes
             locality, no hints   18.110   35.449   35.424 … 35.487        1.19           46      49     0.98           yes
             locality, hints      20.893   31.039   30.973 … 31.178        1.04            2       4     0.08           yes
            ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

            ───────────────────────────────────────────────────────────────────────────────────────────────
             limit                                                               figure   at most
            ═══════════════════════════════════════════════════════════════════════════════════════════════
             locality with hints ÷ the kernel's own, wake-up of a worker, 99 %    1.040     0.500   MISSED
            ───────────────────────────────────────────────────────────────────────────────────────────────"#]].assert_eq(&describe(&report(&MEASURED, None)));
    }

    #[test]
    fn half_of_the_wait_meets_the_limit_and_more_does_not() {
        let of = |tail: f64| report(&[(DEFAULT, [10.0; 3], [50.0; 3]), (WITH, [2.0; 3], [tail; 3])], None);
        let code = |report: &Report| Verdict::of_comparison(&report.measured).exit().map(|exit| exit as u8);
        assert_eq!([25.0, 25.1].map(|tail| code(&of(tail))), [None, Some(116)]);
        // A figure that was not measured meets no limit.
        assert_eq!(code(&report(&MEASURED[..2], None)), Some(116));
    }

    #[test]
    fn a_policy_that_was_taken_out_is_told_and_counts_more_than_a_limit() {
        let report = report(&MEASURED, Some(WITH));
        assert_eq!(Verdict::of_comparison(&report.measured).exit().map(|exit| exit as u8), Some(101));
        assert!(describe(&report).contains("TAKEN OUT"));
    }

    #[test]
    fn every_scheduler_has_a_column_of_the_paper() {
        assert_eq!(PAPER.map(|paper| paper.scheduler), MEASURED.map(|(scheduler, ..)| scheduler));
        assert_eq!(PAPER[0].scheduler, DEFAULT, "the others are divided by it");
    }
}
