//! `ekiden reproduce arbiter`: figure 3 of papers/000, short requests to a server that asks the policy `arbiter` for CPUs as it needs them,
//! and to one with a thread per CPU under the kernel's own scheduler; simulated, with a model of the server and of its clients.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Judged, Limit, number, table};
use ekiden_sim::{Machine, Model, SimReport, What};
use ekiden_workload::{HintWord, Step, TaskSpec, Workload, random::Random};
use serde::Serialize;

use super::requests::{Requests, percentile_us, simulate, waits_between};
use crate::{failure::Exit, parallel, policies, progress::Progress};

/// CPUs that the server may have, the first ones.
const MOST: u32 = 7;
/// And has at least under `arbiter`.
const LEAST: u32 = 2;
/// The eighth is for everything else, here the thread of the server that asks.
const BACKGROUND: u32 = MOST;
/// Clients are on machines of their own, as in the paper; here each is on a CPU of its own behind those. There are enough that what it costs one of
/// them to wake a thread up does not hold the next request up.
const CLIENTS: u32 = 16;
const ALL_CPUS: u32 = MOST + 1 + CLIENTS;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// What serving a request takes at least, and more than that on average (exponentially), reading it and writing the answer included. An
/// update takes twice as long.
const BASE_NS: u64 = 6 * US;
const MORE_NS: u64 = 2 * US;
const UPDATE_TIMES: u64 = 2;
/// Updates among 100 requests, at random places.
const UPDATES: u64 = 3;
/// Each thread of the server draws this many requests; then the same come again.
const DRAWN: usize = 1_000;

/// Requests a second that use up all CPUs of the server, if nothing else costs anything.
const CAPACITY: f64 =
    MOST as f64 * 1e9 / ((BASE_NS + MORE_NS) as f64 * (100 + UPDATES * (UPDATE_TIMES - 1)) as f64 / 100.0);

/// How long an activation looks for requests before it gives its CPU back: what it costs to come back from a deep idle state.
const PATIENCE_NS: u64 = 100 * US;
/// Where this many requests wait, one for each CPU that there may be, another activation begins.
const TOO_MANY: u32 = MOST;

/// Simulated time before it counts, in nanoseconds.
const WARM_UP_NS: u64 = 50 * MS;

/// Loads, in percent of [`CAPACITY`].
const LOADS: [u64; 13] = [1, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100];
/// The least share of arriving requests that must be served, or the load is too much.
const KEEPS_UP: f64 = 0.99;

/// Numbers in the load: pipes of requests, of activations that are awake, of changes of that, and of those that sleep, whose condition is the
/// last.
const REQUESTS: u32 = 0;
const AWAKE: u32 = 1;
const CHANGES: u32 = 2;
const ASLEEP: u32 = 3;
const NEEDED: u32 = 0;
const QUEUE: u32 = 0;

/// What hints of `arbiter` begin with: `Ask` of the policy.
const CPUS: u32 = 1;
const ENROLL: u32 = 2;

#[derive(Args)]
#[command(after_help = "\
This is a model in the simulator: no memcached, no Mutilate, no network, no
guest. Left out of the figure are the original Arachne and the measured
distributions of keys, values and arrivals (Facebook's ETC). Requests arrive at
random times (Poisson), whether or not the last ones have been served; each
takes 6 us and 2 us more on average (exponentially), 3 % are updates, which take
twice as long: assumed, not measured. All threads take requests from one queue,
where memcached's have connections of their own, which is in favour of the
baseline. The baseline has seven CPUs and a thread for each, where the paper's
has eight; its threads sleep in the kernel when there is nothing to do. Under
`arbiter` the server has two activations that look for requests all the time,
and five more that begin where seven requests wait, and give their CPU back when
nothing has come for 100 us; what it wants it says by hints. Who looks for
requests uses its CPU. The kernel's own scheduler is `eevdf` here, and `cfs`
what it was in the paper.
Examples:
  ekiden reproduce arbiter                    figure 3
  ekiden reproduce arbiter --json --check
See also: ekiden sim activations -p arbiter")]
pub(super) struct Arbiter {
    /// What is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulated time of each point
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(50..=10_000))]
    ms: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if a limit is missed
    #[arg(long)]
    check: bool,
}

/// Who schedules the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Who {
    Arbiter,
    Eevdf,
    Cfs,
}

impl Who {
    const ALL: [Self; 3] = [Self::Arbiter, Self::Eevdf, Self::Cfs];

    fn name(self) -> &'static str {
        match self {
            Self::Arbiter => "arbiter",
            Self::Eevdf => "eevdf",
            Self::Cfs => "cfs",
        }
    }
}

/// A point of the figure.
#[derive(Clone, Debug, Serialize)]
struct Point {
    scheduler: Who,
    /// Requests a second that arrive, in percent of what all CPUs could do, and as they did.
    load_percent: u64,
    offered_per_s: f64,
    /// And that were served.
    served_per_s: f64,
    /// The time from arrival to answer.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    /// How many CPUs its threads used on average, to look for requests as well.
    cpus_used: f64,
    /// Requests that count.
    n: usize,
}

impl Point {
    fn keeps_up(&self) -> bool {
        self.served_per_s >= KEEPS_UP * self.offered_per_s
    }
}

#[derive(Serialize)]
struct Report {
    machine: String,
    left_out: &'static str,
    model: Model,
    seed: u64,
    ms: u64,
    points: Vec<Point>,
    limits: Vec<Judged>,
    passed: bool,
}

const LEFT_OUT: &str = "a model in the simulator: no memcached, no network, no guest, and not the original Arachne";

/// What must be reached; `the kernel's own` is `eevdf`.
const TAIL: Limit =
    Limit { name: "99 % at the highest load that both keep up with: arbiter ÷ the kernel's own", at_most: 1.0 };
const USED: Limit = Limit { name: "CPUs used at 20 % load, of 7: arbiter", at_most: 3.0 };

impl Arbiter {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let all: Vec<(Who, u64)> = Who::ALL.iter().flat_map(|who| LOADS.map(|load| (*who, load))).collect();
        progress.step(format!("simulating {} points", all.len()));
        let told = |index: usize| {
            let (who, load): (Who, u64) = all[index];
            progress.note(&format!("{}: {load} %", who.name()));
        };
        let points = parallel::map(&all, |(who, load)| self.point(*who, *load), told);
        let points = points.into_iter().collect::<Result<Vec<Point>>>()?;
        drop(progress);
        let limits = judge(&points);
        let report = Report {
            machine: format!("8 CPUs, one cache, {MOST} of them for the server; {CLIENTS} clients on others"),
            left_out: LEFT_OUT,
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

    fn point(&self, who: Who, load_percent: u64) -> Result<Point> {
        let model = Model::default();
        let lasts_ns = WARM_UP_NS + self.ms * MS;
        let load = workload(who, self.seed, load_percent, lasts_ns, &model);
        let machine = Machine::flat(ALL_CPUS).with_model(model);
        let simulation = policies::simulate(who.name(), machine, "").context("a policy is not linked in")?;
        let result = simulate(simulation.seed(self.seed), &load, || format!("{}, {load_percent} %", who.name()))?;
        Ok(point(who, load_percent, lasts_ns, &result))
    }
}

/// The clients, and the server.
fn workload(who: Who, seed: u64, load_percent: u64, lasts_ns: u64, model: &Model) -> Workload {
    let syscall_ns = model.costs.syscall_ns;
    // To look at the clock, to note the time and to write takes a client some time as well.
    let own_ns = model.costs.atomic_ns + 2 * syscall_ns;
    let mean_ns = (1e9 * 100.0 * f64::from(CLIENTS) / (CAPACITY * load_percent as f64)) as u64;
    let clients = (0..CLIENTS).map(|client| {
        let mut random = Random::stream(seed, client.into());
        let gaps_ns = waits_between(&mut random, mean_ns, own_ns, lasts_ns);
        let send = |ns| [Step::RunFor { ns }, Step::Mark, Step::PipeWrite { pipe: REQUESTS }];
        TaskSpec::new(format!("client-{client}"), gaps_ns.into_iter().flat_map(send).collect())
            .on([BACKGROUND + 1 + client])
    });
    let servings = |thread: u32| {
        let mut random = Random::stream(seed, (CLIENTS + thread).into());
        let servings: Vec<[Step; 3]> = (0..DRAWN)
            .map(|_| {
                let times = if random.up_to(99) < UPDATES { UPDATE_TIMES } else { 1 };
                // Padded to the time: a mark before and one after are in it.
                let ns = times * (BASE_NS + random.exponential(MORE_NS)) - 2 * syscall_ns;
                [Step::Mark, Step::Run { ns }, Step::Mark]
            })
            .collect();
        servings
    };
    let tasks: Vec<TaskSpec> = match who {
        Who::Arbiter => clients.chain([server(servings)]).collect(),
        Who::Eevdf | Who::Cfs => {
            let threads = (0..MOST).map(|thread| {
                let take = |serving| [Step::PipeRead { pipe: REQUESTS }].into_iter().chain(serving);
                let steps = Step::forever(servings(thread).into_iter().flat_map(take));
                TaskSpec::new(format!("thread-{thread}"), vec![steps]).on(0..MOST)
            });
            clients.chain(threads).collect()
        }
    };
    Workload::new("arbiter", ALL_CPUS, tasks).lasting(lasts_ns)
}

/// A server over activations, the threads that its own first thread starts. That one asks for a CPU for each that is awake. Threads that
/// have nothing to do are asleep by then, so that it is their CPUs that are taken.
fn server(servings: impl Fn(u32) -> Vec<[Step; 3]>) -> TaskSpec {
    let ask = |ask: u32, thread: HintWord, cpus: HintWord| {
        let hint = vec![HintWord::Value(ask), thread, cpus, HintWord::Value(1)];
        Step::WriteHint { queue: QUEUE, hint, ring: true }
    };
    let want = ask(CPUS, HintWord::Value(0), HintWord::Held { pipe: AWAKE });
    let enroll = ask(ENROLL, HintWord::OwnPid, HintWord::Value(0));
    let change = Step::PipeWrite { pipe: CHANGES };
    let begin = [Step::PipeWrite { pipe: AWAKE }, change.clone()];
    let sleep = [
        Step::PipeWrite { pipe: ASLEEP },
        Step::Await { condition: NEEDED, lock: None },
        Step::PipeRead { pipe: ASLEEP },
    ];
    let rest: Vec<Step> =
        [Step::PipeRead { pipe: AWAKE }, change].into_iter().chain(sleep).chain(begin.clone()).collect();
    // A program knows of its own threads whether one sleeps, and goes to the kernel only if one does.
    let wake = Step::IfHeld { pipe: ASLEEP, at_least: 1, steps: vec![Step::Signal { condition: NEEDED }] };
    let more = Step::IfHeld { pipe: REQUESTS, at_least: TOO_MANY, steps: vec![wake] };
    let activation = |thread: u32| {
        let stays = thread < LEAST;
        let idle = if stays { vec![] } else { rest.clone() };
        let take = Step::PipePoll { pipe: REQUESTS, spin_ns: PATIENCE_NS, idle };
        let serve =
            servings(thread).into_iter().flat_map(|it| [take.clone()].into_iter().chain(it).chain([more.clone()]));
        let work = Step::forever(serve);
        let place = Step::SetAffinity { cpus: Some((0..MOST).collect()) };
        Step::fork([place, enroll.clone()].into_iter().chain(begin.clone()).chain([work]))
    };
    // The first that uses a queue opens it, so the first thread does.
    let asks = Step::forever([Step::PipeRead { pipe: CHANGES }, want.clone()]);
    let steps = [want].into_iter().chain((0..MOST).map(activation)).chain([asks]);
    TaskSpec::new("server", steps.collect()).on([BACKGROUND])
}

/// Results of the requests.
fn point(who: Who, load_percent: u64, lasts_ns: u64, result: &SimReport) -> Point {
    let requests = Requests::of(&result.trace, CLIENTS as usize);
    let seconds = (lasts_ns - WARM_UP_NS) as f64 / 1e9;
    let counts = |at_ns: &u64| (WARM_UP_NS..lasts_ns).contains(at_ns);
    let times_ns: Vec<u64> = requests.times(WARM_UP_NS).map(|(ns, _)| ns).collect();
    let percentile = |part: f64| percentile_us(times_ns.iter().copied(), part);
    Point {
        scheduler: who,
        load_percent,
        offered_per_s: requests.arrivals_ns.iter().filter(|at_ns| counts(at_ns)).count() as f64 / seconds,
        served_per_s: requests.served.iter().filter(|it| counts(&it.end_ns)).count() as f64 / seconds,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        cpus_used: used_ns(result, lasts_ns) as f64 / (lasts_ns - WARM_UP_NS) as f64,
        n: times_ns.len(),
    }
}

/// How long tasks ran on CPUs of the server, all of them together. Only its own threads may.
fn used_ns(result: &SimReport, lasts_ns: u64) -> u64 {
    let mut busy_since_ns = [None; MOST as usize];
    let within = |since_ns: Option<u64>, until_ns: u64| {
        since_ns.map_or(0, |since_ns| until_ns.max(WARM_UP_NS) - since_ns.max(WARM_UP_NS))
    };
    let mut used_ns = 0;
    for record in result.trace.records() {
        let runs = matches!(record.what, What::Run | What::Keep);
        if record.cpu < MOST && (runs || record.what == What::Idle) {
            let now = runs.then_some(record.time_ns);
            used_ns += within(std::mem::replace(&mut busy_since_ns[record.cpu as usize], now), record.time_ns);
        }
    }
    used_ns + busy_since_ns.into_iter().map(|since_ns| within(since_ns, lasts_ns)).sum::<u64>()
}

fn judge(points: &[Point]) -> Vec<Judged> {
    let at = |who: Who, load: u64| points.iter().find(|point| point.scheduler == who && point.load_percent == load);
    let both = |load: u64| at(Who::Arbiter, load).zip(at(Who::Eevdf, load));
    let common = LOADS.iter().rev().filter_map(|load| both(*load));
    let highest = common.into_iter().find(|(this, own)| this.keeps_up() && own.keeps_up());
    let ratio = highest.and_then(|(this, own)| Some(this.p99_us? / own.p99_us?));
    vec![TAIL.judge(ratio), USED.judge(at(Who::Arbiter, 20).map(|point| point.cpus_used))]
}

fn describe(report: &Report) -> String {
    let us = |us: Option<f64>| us.map_or("–".to_owned(), number);
    let mut text = format!("{}, seed {}, {} ms each\n{}\n", report.machine, report.seed, report.ms, report.left_out);
    let rows = report.points.iter().map(|point| {
        [
            point.scheduler.name().to_owned(),
            format!("{} %", point.load_percent),
            number(point.offered_per_s),
            number(point.served_per_s),
            us(point.p50_us),
            us(point.p99_us),
            us(point.p999_us),
            number(point.cpus_used),
        ]
    });
    let heading =
        ["", "load", "offered a second", "served a second", "50 %, us", "99 %, us", "99.9 %, us", "CPUs used"];
    text += &format!("\n{}\n", table(&heading, rows));
    let limits = report.limits.iter().map(Judged::cells);
    text + &format!("\n{}\n", table(&["limit", "figure", "at most", ""], limits))
}

#[cfg(test)]
mod tests {
    use ekiden_policies::Ask;

    use super::*;

    fn point(who: Who, load_percent: u64) -> Point {
        Arbiter { seed: 1, ms: 50, json: false, check: false }.point(who, load_percent).unwrap()
    }

    #[test]
    fn a_server_under_arbiter_has_two_cpus_for_few_requests_and_all_seven_for_many() {
        let [few, many] = [10, 90].map(|load| point(Who::Arbiter, load));
        assert!((1.9..2.5).contains(&few.cpus_used) && many.cpus_used > 6.5, "{few:?} {many:?}");
        assert!(few.keeps_up() && many.keeps_up(), "{few:?} {many:?}");
        // All requests that come are served, and they come as often as they should.
        let expected = CAPACITY * 0.9;
        assert!(many.n > 30_000 && (many.offered_per_s / expected - 1.0).abs() < 0.05, "{many:?}, of {expected}");
    }

    #[test]
    fn a_request_waits_longer_for_a_sleeping_thread_than_for_one_that_looks() {
        let [arbiter, eevdf] = [Who::Arbiter, Who::Eevdf].map(|who| point(who, 10));
        assert!(arbiter.p50_us.unwrap() < eevdf.p50_us.unwrap(), "{arbiter:?} {eevdf:?}");
        assert!(eevdf.cpus_used < 1.0, "{eevdf:?}");
    }

    #[test]
    fn hints_begin_with_the_numbers_of_the_policy() {
        assert_eq!([CPUS, ENROLL], [Ask::Cpus as u32, Ask::Enroll as u32]);
    }
}
