//! `ekiden reproduce dispersive`: figure 2 of papers/000, short requests among a few very long ones, alone and beside a batch
//! program, simulated at the paper's own times.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Judged, Limit, number, table};
use ekiden_sim::{Machine, Model, SimReport, Simulation};
use ekiden_workload::{Step, TaskSpec, Workload, random::Random};
use serde::Serialize;

use super::requests::{Requests, Served, percentile_us, simulate, waits_between};
use crate::{failure::Exit, parallel, policies, progress::Progress};

/// The load as the paper has it: workers on this many CPUs, one more for who sends requests, and one for everything else.
const WORKERS: u32 = 50;
const CPUS: u32 = 5;
const SENDER: u32 = CPUS;
const ALL_CPUS: u32 = CPUS + 2;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const SHORT_NS: u64 = 4 * US;
const LONG_NS: u64 = 10 * MS;

/// Two of this many requests to a worker are long, at random places; then the sequence repeats.
const BLOCK: usize = 400;
const LONG_OF_BLOCK: usize = 2;

/// Requests a second that use up all CPUs of the workers, if nothing else costs anything.
const CAPACITY: f64 = CPUS as f64 * 1e9 / (0.995 * SHORT_NS as f64 + 0.005 * LONG_NS as f64);

/// Simulated time before it counts, in nanoseconds.
const WARM_UP_NS: u64 = 50 * MS;

/// Loads, in percent of [`CAPACITY`].
const LOADS: [u64; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95];

/// Beyond all: what comes out then is what a scheduler can do at most.
const TOO_MUCH: u64 = 120;

#[derive(Args)]
#[command(after_help = "\
Requests arrive at random times (Poisson), whether or not the last ones have
been served: 99.5 % take 4 us, 0.5 % take 10 ms. 50 workers on 5 CPUs serve
them; who sends them has a CPU of its own. With a batch program, five tasks of
nice 19 want the workers' CPUs all the time: under `eevdf` beside Shinjuku, and
in the same scheduler otherwise, where workers have nice -20, as in the paper.
The kernel's own scheduler is `eevdf` here, and `cfs` what it was in the paper.
Examples:
  ekiden reproduce dispersive                 figure 2, a, b and c
  ekiden reproduce dispersive --json --check
See also: ekiden sim requests:workers=50 -p shinjuku")]
pub(super) struct Dispersive {
    /// What is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated time of each point
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    ms: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if a limit is missed
    #[arg(long)]
    check: bool,
}

/// Who schedules the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
enum Who {
    Shinjuku,
    Wfq,
    Eevdf,
    Cfs,
}

impl Who {
    const ALL: [Self; 4] = [Self::Shinjuku, Self::Wfq, Self::Eevdf, Self::Cfs];

    fn name(self) -> &'static str {
        match self {
            Self::Shinjuku => "shinjuku",
            Self::Wfq => "wfq",
            Self::Eevdf => "eevdf",
            Self::Cfs => "cfs",
        }
    }

    fn simulation(self, machine: Machine) -> Result<Simulation> {
        let simulation = policies::simulate(self.name(), machine, "").context("a policy is not linked in")?;
        match self {
            Self::Shinjuku => {
                policies::simulate_beside(simulation, "eevdf", &["batch"]).context("eevdf is not linked in")
            }
            Self::Wfq | Self::Eevdf | Self::Cfs => Ok(simulation),
        }
    }
}

/// A point of the figure.
#[derive(Clone, Debug, Serialize)]
struct Point {
    scheduler: Who,
    /// Whether the batch program is there.
    batch: bool,
    /// Requests a second that arrive, in percent of what all CPUs could do, and as they did.
    load_percent: u64,
    offered_per_s: f64,
    /// And that were served.
    served_per_s: f64,
    /// The time from arrival to answer, of all requests.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    /// The time from arrival to answer, of short requests.
    short_p999_us: Option<f64>,
    /// What the batch program had of the workers' CPUs.
    batch_share: Option<f64>,
    /// Requests that count.
    n: usize,
}

#[derive(Serialize)]
struct Report {
    machine: String,
    model: Model,
    seed: u64,
    ms: u64,
    points: Vec<Point>,
    limits: Vec<Judged>,
    passed: bool,
}

/// What must be reached; `The kernel's own` is `eevdf`.
const SHORT: Limit = Limit {
    name: "short requests, 99.9 %, at 80 % of the kernel's own most: shinjuku ÷ the kernel's own",
    at_most: 0.02,
};
const BATCH: [(u64, Limit); 3] = [
    (10, Limit { name: "batch share at 10 % load: shinjuku beside eevdf, off the kernel's own by", at_most: 0.1 }),
    (50, Limit { name: "batch share at 50 % load: shinjuku beside eevdf, off the kernel's own by", at_most: 0.1 }),
    (80, Limit { name: "batch share at 80 % load: shinjuku beside eevdf, off the kernel's own by", at_most: 0.1 }),
];
const IDLE: Limit = Limit { name: "batch share without requests: what is lost", at_most: 0.05 };

impl Dispersive {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let mut points = Vec::new();
        for batch in [false, true] {
            let all = Who::ALL.iter().flat_map(|who| LOADS.iter().chain([&TOO_MUCH]).map(|load| (*who, *load)));
            let all: Vec<(Who, u64)> = all.filter(|(_, load)| batch || *load > 0).collect();
            let what = if batch { "beside a batch program" } else { "alone" };
            progress.step(format!("simulating {} points {what}", all.len()));
            let told = |index: usize| {
                let (who, load): (Who, u64) = all[index];
                progress.note(&format!("{}: {load} % {what}", who.name()));
            };
            let done = parallel::map(&all, |(who, load)| self.point(*who, *load, batch), told);
            points.extend(done.into_iter().collect::<Result<Vec<Point>>>()?);
        }
        progress.step("simulating what short requests wait at 80 % of the kernel's own most");
        let most = most_of(&points, Who::Eevdf);
        let load = (most / CAPACITY * 80.0).round() as u64;
        let both = parallel::map(&[Who::Shinjuku, Who::Eevdf], |who| self.point(*who, load, false), |_| {});
        let both = both.into_iter().collect::<Result<Vec<Point>>>()?;
        drop(progress);
        let limits = judge(&points, &both);
        points.extend(both);
        let report = Report {
            machine: format!("{ALL_CPUS} CPUs, one cache; {WORKERS} workers on {CPUS} of them"),
            model: Model::default(),
            seed: self.seed,
            ms: self.ms,
            passed: limits.iter().all(|judged| judged.met),
            points,
            limits,
        };
        super::requests::tell(&report, self.json, describe)?;
        Ok(if self.check && !report.passed { Exit::LimitMissed.into() } else { ExitCode::SUCCESS })
    }

    fn point(&self, who: Who, load_percent: u64, batch: bool) -> Result<Point> {
        let model = Model::default();
        let costs = model.costs;
        let lasts_ns = WARM_UP_NS + self.ms * MS;
        let plan = Plan::new(self.seed, load_percent, lasts_ns, costs.syscall_ns, costs.wakeup_ns);
        let load = plan.workload(who, batch, lasts_ns);
        let simulation = who.simulation(Machine::flat(ALL_CPUS).with_model(model))?;
        let result = simulate(simulation.seed(self.seed), &load, || format!("{}, {load_percent} %", who.name()))?;
        Ok(plan.point(who, load_percent, batch, lasts_ns, &result))
    }
}

/// Requests as they come, and who serves them.
struct Plan {
    /// Time between two.
    gaps_ns: Vec<u64>,
    /// For each worker, which of its requests are long.
    long: Vec<Vec<bool>>,
    syscall_ns: u64,
}

impl Plan {
    fn new(seed: u64, load_percent: u64, lasts_ns: u64, syscall_ns: u64, wakeup_ns: u64) -> Self {
        let mut random = Random::new(seed);
        let mut gaps_ns = Vec::new();
        if load_percent > 0 {
            let mean_ns = (1e9 * 100.0 / (CAPACITY * load_percent as f64)) as u64;
            // Noting the time, writing and waking up a worker take the sender some time as well.
            let own_ns = 2 * syscall_ns + wakeup_ns;
            gaps_ns = waits_between(&mut random, mean_ns, own_ns, lasts_ns);
        }
        let long = (0..WORKERS).map(|_| {
            let mut block = vec![false; BLOCK];
            while block.iter().filter(|long| **long).count() < LONG_OF_BLOCK {
                block[random.up_to(BLOCK as u64 - 1) as usize] = true;
            }
            block
        });
        Self { gaps_ns, long: long.collect(), syscall_ns }
    }

    fn workload(&self, who: Who, batch: bool, lasts_ns: u64) -> Workload {
        let workers_on: Vec<u32> = (0..CPUS).collect();
        let sends =
            self.gaps_ns.iter().flat_map(|ns| [Step::RunFor { ns: *ns }, Step::Mark, Step::PipeWrite { pipe: 0 }]);
        let sender = TaskSpec::new("sender", sends.collect()).on([SENDER]);
        let nice = if batch && who != Who::Shinjuku { -20 } else { 0 };
        let workers = self.long.iter().enumerate().map(|(number, long)| {
            let serve = long.iter().flat_map(|long| {
                // Padded to the time: a mark before and one after are in it.
                let ns = if *long { LONG_NS } else { SHORT_NS } - 2 * self.syscall_ns;
                [Step::PipeRead { pipe: 0 }, Step::Mark, Step::Run { ns }, Step::Mark]
            });
            let worker = TaskSpec::new(format!("worker-{number}"), vec![Step::forever(serve)]);
            worker.on(workers_on.iter().copied()).nice(nice)
        });
        let hog =
            TaskSpec::new("batch", vec![Step::forever([Step::Run { ns: MS }])]).nice(19).on(workers_on.iter().copied());
        let tasks = [sender].into_iter().chain(workers).chain(batch.then(|| hog.copies(CPUS)));
        Workload::new("dispersive", ALL_CPUS, tasks).lasting(lasts_ns)
    }

    /// Results of the requests.
    fn point(&self, who: Who, load_percent: u64, batch: bool, lasts_ns: u64, result: &SimReport) -> Point {
        let requests = Requests::of(&result.trace, 1);
        let seconds = (lasts_ns - WARM_UP_NS) as f64 / 1e9;
        let counts = |at_ns: &u64| (WARM_UP_NS..lasts_ns).contains(at_ns);
        let is_long = |it: &Served| self.long[it.worker][it.nth % BLOCK];
        let waited: Vec<(u64, bool)> = requests.times(WARM_UP_NS).map(|(ns, it)| (ns, is_long(&it))).collect();
        let percentile = |part: f64, of: &dyn Fn(bool) -> bool| {
            percentile_us(waited.iter().filter(|(_, long)| of(*long)).map(|(ns, _)| *ns), part)
        };
        let batch_ns: u64 =
            result.report.tasks.iter().filter(|task| task.name.starts_with("batch")).map(|task| task.cpu_ns).sum();
        Point {
            scheduler: who,
            batch,
            load_percent,
            offered_per_s: requests.arrivals_ns.iter().filter(|at_ns| counts(at_ns)).count() as f64 / seconds,
            served_per_s: requests.served.iter().filter(|it| counts(&it.end_ns)).count() as f64 / seconds,
            p50_us: percentile(0.5, &|_| true),
            p99_us: percentile(0.99, &|_| true),
            p999_us: percentile(0.999, &|_| true),
            short_p999_us: percentile(0.999, &|long| !long),
            batch_share: batch.then(|| batch_ns as f64 / (lasts_ns * u64::from(CPUS)) as f64),
            n: waited.len(),
        }
    }
}

fn most_of(points: &[Point], who: Who) -> f64 {
    let of = points.iter().filter(|point| point.scheduler == who && !point.batch);
    of.map(|point| point.served_per_s).fold(0.0, f64::max)
}

fn judge(points: &[Point], both: &[Point]) -> Vec<Judged> {
    let short = |who: Who| both.iter().find(|point| point.scheduler == who)?.short_p999_us;
    let share = |who: Who, load: u64| {
        points.iter().find(|point| point.batch && point.scheduler == who && point.load_percent == load)?.batch_share
    };
    let off = |load: u64| Some((share(Who::Shinjuku, load)? / share(Who::Eevdf, load)? - 1.0).abs());
    let mut limits = vec![SHORT.judge(short(Who::Shinjuku).zip(short(Who::Eevdf)).map(|(this, own)| this / own))];
    limits.extend(BATCH.iter().map(|(load, limit)| limit.judge(off(*load))));
    limits.push(IDLE.judge(share(Who::Shinjuku, 0).map(|share| 1.0 - share)));
    limits
}

fn describe(report: &Report) -> String {
    let us = |us: Option<f64>| us.map_or("–".to_owned(), number);
    let mut text = format!("{}, seed {}, {} ms each\n", report.machine, report.seed, report.ms);
    for (batch, what) in [(false, "alone (figure 2a)"), (true, "beside a batch program (figures 2b and 2c)")] {
        let rows = report.points.iter().filter(|point| point.batch == batch).map(|point| {
            let mut row = vec![
                point.scheduler.name().to_owned(),
                format!("{} %", point.load_percent),
                number(point.served_per_s),
                us(point.p50_us),
                us(point.p99_us),
                us(point.p999_us),
                us(point.short_p999_us),
            ];
            row.extend(point.batch_share.map(|share| format!("{:.1} %", share * 100.0)));
            row
        });
        let mut heading =
            vec!["", "load", "served a second", "50 %, us", "99 %, us", "99.9 %, us", "short, 99.9 %, us"];
        heading.extend(batch.then_some("batch"));
        text += &format!("\n{what}\n{}\n", table(&heading, rows));
    }
    let limits = report.limits.iter().map(Judged::cells);
    text + &format!("\n{}\n", table(&["limit", "figure", "at most", ""], limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_requests_wait_for_long_ones_under_eevdf_and_not_under_shinjuku() {
        let dispersive = Dispersive { seed: 1, ms: 200, json: false, check: false };
        let [shinjuku, eevdf] = [Who::Shinjuku, Who::Eevdf].map(|who| dispersive.point(who, 70, false).unwrap());
        assert!(shinjuku.n > 10_000 && eevdf.n > 10_000, "{shinjuku:?} {eevdf:?}");
        // All requests that come are served, and they come as often as they should.
        let expected = CAPACITY * 0.7;
        assert!((shinjuku.offered_per_s / expected - 1.0).abs() < 0.05, "{shinjuku:?}, of {expected}");
        assert!(shinjuku.short_p999_us.unwrap() * 10.0 < eevdf.short_p999_us.unwrap(), "{shinjuku:?} {eevdf:?}");
    }

    #[test]
    fn a_batch_program_has_what_is_left_beside_shinjuku() {
        let dispersive = Dispersive { seed: 1, ms: 200, json: false, check: false };
        let idle = dispersive.point(Who::Shinjuku, 0, true).unwrap();
        assert!(idle.batch_share.unwrap() > 0.95, "{idle:?}");
        let half = dispersive.point(Who::Shinjuku, 50, true).unwrap();
        assert!((0.2..0.6).contains(&half.batch_share.unwrap()), "{half:?}");
    }
}
