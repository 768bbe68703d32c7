//! `ekiden-load`: runs loads on the kernel of this machine and prints what they showed.
#![forbid(unsafe_code)]

mod args;

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser as _;
use ekiden_workload::builtin::{self, Case};
use ekiden_workload::real::delegation::{self, Delegated, Delegation};
use ekiden_workload::real::direct::{self, Measured, Messaging, Pipe};
use ekiden_workload::real::exec::{self, Options};
use ekiden_workload::real::hints::{self, Beside, Costs, Kept};
use ekiden_workload::real::judge::{self, Judge, Judged};
use ekiden_workload::real::spin::Spin;
use ekiden_workload::real::wakeups::{self, Wakeups};
use ekiden_workload::real::{threads, turns};
use ekiden_workload::{Report, Step, TaskSpec, Workload, loads, rt_app};
use serde::Serialize;

use crate::args::{
    Cli, Common, DelegationArgs, Do, FloodArgs, HintsArgs, Json, JudgeArgs, MessagingArgs, PipeArgs, Repeat, RunArgs,
    SpinArgs, ThreadsArgs, WakeupsArgs,
};

/// Many times, in microseconds.
#[derive(Serialize)]
struct Spread {
    scheduler: Option<String>,
    n: usize,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl Spread {
    fn of(mut ns: Vec<u64>) -> Result<Self> {
        if ns.is_empty() {
            bail!("nothing was measured: it took too long");
        }
        ns.sort_unstable();
        let at = |part: f64| ns[((ns.len() as f64 * part) as usize).min(ns.len() - 1)] as f64 / 1e3;
        Ok(Self {
            scheduler: exec::scheduler(),
            n: ns.len(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
        })
    }

    fn show(&self, json: bool) -> Result<()> {
        if json {
            return print(&serde_json::to_string(self)?);
        }
        let Self { n, p50_us, p90_us, p99_us, p999_us, max_us, .. } = self;
        print(&format!(
            "{n} times, us: 50 % {p50_us:.1}, 90 % {p90_us:.1}, 99 % {p99_us:.1}, 99.9 % {p999_us:.1}, most {max_us:.1}"
        ))
    }
}

/// Figures of a load that was timed several times.
#[derive(Serialize)]
struct Figures {
    load: &'static str,
    /// What `values` count.
    unit: &'static str,
    class: &'static str,
    /// The sched_ext scheduler, the same before and after each; absent: the kernel's own.
    scheduler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<[u32; 2]>,
    values: Vec<f64>,
    median: f64,
    min: f64,
    max: f64,
}

fn main() -> ExitCode {
    // What `Step::Exec` starts, as fast as can be.
    if std::env::args_os().nth(1).is_some_and(|first| first == exec::NOTHING) {
        return ExitCode::SUCCESS;
    }
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ekiden-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Do) -> Result<()> {
    match command {
        Do::Pipe(args) => time_pipe(&args),
        Do::Messaging(args) => time_messaging(&args),
        Do::Run(args) => run_load(&args),
        Do::List(Json { json }) => list(json),
        Do::Show { name } => {
            // Sized for this machine, but any that needs two CPUs can be shown on a machine of one.
            let case = builtin::find(&name, cpus()).or_else(|| builtin::find(&name, 2));
            print(&case.ok_or_else(|| unknown(&name))?.workload.to_json())
        }
        Do::Exec { ext, command } => {
            if ext {
                exec::enter_ext_class()?;
            }
            let error = Command::new(&command[0]).args(&command[1..]).exec();
            Err(error)
                .with_context(|| format!("could not run `{}`; is it installed?", Path::new(&command[0]).display()))
        }
        Do::Spin(args) => spin(&args),
        Do::Threads(ThreadsArgs { count, cpu_ms }) => {
            let took_ns = threads::run(count, cpu_ms * 1_000_000).context("cannot start a thread; take fewer")?;
            print(&format!("{:.1} ms", took_ns as f64 / 1e6))
        }
        Do::Hints(args) => hint_costs(&args),
        Do::HoldQueues { policy, count } => {
            let queues = hints::hold(&policy, count)?;
            print(&format!("{} queues are open", queues.len()))?;
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).context("cannot read the standard input")?;
            Ok(())
        }
        Do::Flood(args) => flood(&args),
        Do::Turns(args) => {
            Spread::of(turns::run(args.cpu, args.turns as usize, args.most_ms * 1_000_000)?)?.show(args.json)
        }
        Do::Wakeups(args) => wake_up(&args),
        Do::Delegation(args) => delegate(&args),
        Do::Judge(args) => judge(&args),
        Do::Calibrate(Json { json }) => {
            let loops_per_ms = Spin::calibrate().loops_per_ms;
            if json {
                return print(&serde_json::json!({ "loops_per_ms": loops_per_ms }).to_string());
            }
            print(&format!("{loops_per_ms} passes of the work loop a millisecond"))
        }
    }
}

fn hint_costs(args: &HintsArgs) -> Result<()> {
    let Costs { send, ring, heard } = hints::costs(&args.policy)?;
    if args.json {
        let scheduler = exec::scheduler();
        let costs = serde_json::json!({ "scheduler": scheduler, "send": send, "ring": ring, "heard": heard });
        return print(&costs.to_string());
    }
    print(&format!("to write a hint {send:.1} ns, to ring {ring:.1} ns, and {heard:.1} ns for each that is heard"))
}

fn flood(args: &FloodArgs) -> Result<()> {
    let beside = if args.work { Beside::Work } else { Beside::Flood };
    let Kept { work, written, heard } = hints::flood(&args.policy, beside, args.cpus, args.duration_ms * 1_000_000)?;
    if args.json {
        let kept =
            serde_json::json!({ "scheduler": exec::scheduler(), "work": work, "written": written, "heard": heard });
        return print(&kept.to_string());
    }
    print(&format!("{work} pieces of work beside {written} hints, of which {heard} were heard"))
}

fn wake_up(args: &WakeupsArgs) -> Result<()> {
    if args.one_cpu {
        exec::stay_on_one_cpu()?;
    }
    let load = Wakeups {
        messages: args.messages,
        workers: args.workers,
        rounds: args.rounds,
        work_ns: args.work_us * 1_000,
        sleep_ns: args.sleep_us * 1_000,
        spin: args.loops_per_ms.map(|loops_per_ms| Spin { loops_per_ms }),
        told: args.told.as_deref(),
    };
    Spread::of(wakeups::run(&load)?)?.show(args.json)
}

fn delegate(args: &DelegationArgs) -> Result<()> {
    let one =
        |tasks: &u32| delegation::run(Delegation { tasks: *tasks, times: args.times, sleep_ns: args.sleep_us * 1_000 });
    // A thread's nice value and CPU are its own: each has a thread that ends with it.
    let each = |tasks| std::thread::scope(|scope| scope.spawn(|| one(tasks)).join());
    let all = args.tasks.iter().map(|tasks| Ok(each(tasks).map_err(|_| anyhow!("a thread panicked"))??));
    let all = all.collect::<Result<Vec<Delegated>>>()?;
    if args.json {
        let all = serde_json::json!({ "scheduler": exec::scheduler(), "measured": all });
        return print(&all.to_string());
    }
    all.iter().try_for_each(|measured| {
        let pairs = measured.woken_ns.iter().zip(&measured.began_ns);
        let us: Vec<f64> = pairs.map(|(woken, began)| began.saturating_sub(*woken) as f64 / 1e3).collect();
        let (mean, most) = (us.iter().sum::<f64>() / us.len() as f64, us.iter().copied().fold(0.0, f64::max));
        let Delegated { tasks, .. } = measured;
        print(&format!("beside {tasks} threads, us from wake-up to first instruction: mean {mean:.1}, most {most:.1}"))
    })
}

fn judge(args: &JudgeArgs) -> Result<()> {
    let [limited, unlimited] = &args.cgroups;
    let JudgeArgs { programs, times, .. } = *args;
    let load = Judge { programs, cpu_ns: args.cpu_ms * 1_000_000, times, cgroups: [limited, unlimited] };
    let judged = judge::run(&load)?;
    if args.json {
        return print(&serde_json::json!({ "scheduler": exec::scheduler(), "measured": judged }).to_string());
    }
    let Judged { alone_ns, limited_ns, unlimited_ns } = &judged;
    [("alone", alone_ns), ("beside the first group", limited_ns), ("beside the second", unlimited_ns)]
        .into_iter()
        .try_for_each(|(how, ns)| {
            let ms: Vec<String> = ns.iter().map(|ns| format!("{:.1}", *ns as f64 / 1e6)).collect();
            print(&format!("{how}, ms: {}", ms.join(" ")))
        })
}

fn time_pipe(args: &PipeArgs) -> Result<()> {
    let pipe = Pipe { round_trips: args.round_trips, cpus: args.cpus, cgroups: args.cgroups.clone() };
    let figures = Figures { load: "pipe", unit: "ns per round trip", cpus: args.cpus, ..Figures::new(&args.common) };
    let per_trip = |measured: &Measured| measured.ns as f64 / args.round_trips as f64;
    figures.take(&args.common, &args.repeat, per_trip, || Ok(direct::pipe(pipe.clone(), args.common.setting())?))
}

fn time_messaging(args: &MessagingArgs) -> Result<()> {
    let MessagingArgs { groups, pairs, loops, threads, .. } = *args;
    let load = Messaging { groups, pairs, loops, threads };
    let figures = Figures { load: "messaging", unit: "ms", ..Figures::new(&args.common) };
    let ms = |measured: &Measured| measured.ns as f64 / 1e6;
    figures.take(&args.common, &args.repeat, ms, || Ok(direct::messaging(load, args.common.setting())?))
}

impl Figures {
    fn new(common: &Common) -> Self {
        Figures {
            load: "",
            unit: "",
            class: if common.ext { "SCHED_EXT" } else { "inherited" },
            scheduler: None,
            cpus: None,
            values: Vec::new(),
            median: 0.0,
            min: 0.0,
            max: 0.0,
        }
    }

    /// Measures as often as asked and prints: a line each time, or one JSON object at the end.
    fn take(
        mut self,
        common: &Common,
        repeat: &Repeat,
        value: impl Fn(&Measured) -> f64,
        measure: impl Fn() -> Result<Measured>,
    ) -> Result<()> {
        for number in 0..repeat.repeat {
            let measured = measure()?;
            if number > 0 && measured.scheduler != self.scheduler {
                bail!("the scheduler changed between two repeats; see `dmesg` and run it again");
            }
            let value = value(&measured);
            self.values.push(value);
            self.scheduler = measured.scheduler;
            if !common.json {
                print(&format!("{value:.1} {}", self.unit))?;
            }
        }
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        (self.min, self.max) = (sorted[0], sorted[sorted.len() - 1]);
        self.median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        if common.json {
            print(&serde_json::to_string_pretty(&self)?)?;
        }
        Ok(())
    }
}

fn run_load(args: &RunArgs) -> Result<()> {
    let Case { mut workload, check, .. } = find(&args.load, args.cpus)?;
    if let Some(ms) = args.duration_ms {
        workload.duration_ns = Some(ms * 1_000_000);
    }
    let report = execute(&workload, &args.common, args.loops_per_ms)?;
    show(&report, args.common.json)?;
    if args.check {
        check(&report).map_err(|why| anyhow!("check failed: {why}"))?;
        eprintln!("check passed");
    }
    Ok(())
}

/// A built-in load by its name, or the load in a file, which is judged by whether it finished.
fn find(name: &str, cpus_wanted: Option<u32>) -> Result<Case> {
    let file = PathBuf::from(name);
    if file.extension().is_none() && !file.exists() {
        return builtin::find(name, cpus_wanted.unwrap_or_else(cpus)).ok_or_else(|| unknown(name));
    }
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read `{name}`; give a JSON file or a name of `ekiden-load list`"))?;
    let (workload, remarks) = rt_app::read(name, &text).with_context(|| format!("`{name}`"))?;
    remarks.iter().for_each(|remark| eprintln!("{name}: {remark}"));
    let check = builtin::check_of(&workload);
    Ok(Case { about: "", workload, check, compare: None })
}

fn unknown(name: &str) -> anyhow::Error {
    let why = loads::make(name, cpus()).err().map_or_else(String::new, |why| why.to_string());
    anyhow!("no load for {} CPUs: {why}; `ekiden-load list` shows all", cpus())
}

fn execute(workload: &Workload, common: &Common, loops_per_ms: Option<u64>) -> Result<Report> {
    let spin = loops_per_ms.map(|loops_per_ms| Spin { loops_per_ms });
    let options = Options { class: common.class(), watchdog: Duration::from_secs(common.watchdog), spin };
    Ok(exec::execute(workload, &options)?)
}

fn list(json: bool) -> Result<()> {
    let cases = builtin::all(cpus());
    if json {
        let entry = |case: &Case| {
            let Workload { name, cpus, duration_ns, .. } = &case.workload;
            serde_json::json!({ "name": name, "about": case.about, "cpus": cpus, "duration_ns": duration_ns })
        };
        return print(&serde_json::to_string_pretty(&cases.iter().map(entry).collect::<Vec<_>>())?);
    }
    let mut text = String::new();
    for case in &cases {
        writeln!(text, "{:14} {}", case.workload.name, case.about)?;
    }
    write!(text, "\nWith parameters, and several at once, as in make:jobs=64+r:count=2\n{}", loads::overview())?;
    print(&format!("{text}\nRun one: ekiden-load run {} --check", cases[0].workload.name))
}

fn spin(args: &SpinArgs) -> Result<()> {
    if !(0.001..=86_400.0).contains(&args.seconds) {
        bail!("--seconds {}: choose from 0.001 to 86400", args.seconds);
    }
    let mut hog = TaskSpec::new("hog", vec![Step::forever([Step::Run { ns: 1_000_000 }])]);
    hog = hog.copies(args.tasks).nice(args.nice);
    hog.affinity = args.cpu.map(|cpu| vec![cpu]);
    let needed = args.cpu.map_or(1, |cpu| cpu + 1);
    let workload = Workload::new("spin", needed, [hog]).lasting((args.seconds * 1e9) as u64);
    show(&execute(&workload, &args.common, None)?, args.common.json)
}

fn show(report: &Report, json: bool) -> Result<()> {
    print(if json { report.to_json() } else { report.to_string() }.trim_end())
}

/// One line, or several, to standard output. That the reader has gone away is an error, not a panic.
fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{text}").context("could not write the result")
}

/// How many CPUs this process may use.
fn cpus() -> u32 {
    exec::usable_cpus().unwrap_or(1)
}
