//! `ekiden-load`: runs loads on the kernel of this machine and prints what they showed.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand};
use ekiden_workload::builtin::{self, Case};
use ekiden_workload::direct::{self, Measured, Messaging, Pipe, Setting};
use ekiden_workload::exec::{self, Class, Options};
use ekiden_workload::hints::{self, Beside, Costs, Kept};
use ekiden_workload::spin::Spin;
use ekiden_workload::wakeups::{self, Wakeups};
use ekiden_workload::{Report, Step, TaskSpec, Workload, loads, rt_app, threads, turns};
use serde::Serialize;

#[derive(Parser)]
#[command(
    version,
    about = "Runs loads on the kernel of this machine and prints what they showed",
    after_help = "\
Examples:
  ekiden-load pipe --round-trips 100000 --cpus 0,0 --repeat 5   ns per round trip on one CPU, five times
  ekiden-load messaging --groups 10 --json                      as hackbench, one JSON object
  ekiden-load list                                              the built-in loads
  ekiden-load run fair-share --check                            run one and judge it
  ekiden-load show churn > mine.json; ekiden-load run mine.json a load of your own
  ekiden-load exec --ext -- make -j4                            a program in class SCHED_EXT
Exit status: 0 well, 1 a check failed or a task did not finish, 2 the command line is wrong."
)]
struct Cli {
    #[command(subcommand)]
    command: Do,
}

#[derive(Subcommand)]
enum Do {
    /// Time a byte going to and fro between two processes
    #[command(after_help = "Example: ekiden-load pipe --round-trips 100000 --cpus 0,1 --repeat 5 --ext")]
    Pipe(PipeArgs),
    /// Time groups of senders that each write to every receiver, as hackbench does
    #[command(after_help = "Example: ekiden-load messaging --groups 4 --pairs 20 --loops 100 --threads")]
    Messaging(MessagingArgs),
    /// Run a built-in load, or one from a JSON file, and print its report
    #[command(after_help = "Example: ekiden-load run weights --check --json")]
    Run(RunArgs),
    /// List the built-in loads
    List(Json),
    /// Print a built-in load as JSON, to start one's own from
    #[command(after_help = "Example: ekiden-load show pipe > mine.json")]
    Show {
        /// Name, as `ekiden-load list` shows it
        name: String,
    },
    /// Run a program, in class SCHED_EXT if asked
    #[command(after_help = "Example: ekiden-load exec --ext -- nice -n 5 make -j4")]
    Exec {
        /// Put it, and what it starts, into class SCHED_EXT
        #[arg(long)]
        ext: bool,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Keep CPUs busy for a while and print who had how much
    #[command(after_help = "Example: ekiden-load spin --tasks 5 --cpu 0 --seconds 2")]
    Spin(SpinArgs),
    /// Start threads that each use so much CPU time, and print how long that took
    #[command(after_help = "Example: ekiden-load threads --count 16 --cpu-ms 40")]
    Threads(ThreadsArgs),
    /// Measure what a hint costs that a program writes for a policy which runs
    #[command(after_help = "Example: ekiden-load hints --policy locality --json")]
    Hints(HintsArgs),
    /// Have queues to a policy open, in which nothing is said, until the standard input ends
    #[command(after_help = "Example: sleep 10 | ekiden-load hold-queues --policy locality --count 100")]
    HoldQueues {
        /// The policy, which has to run
        #[arg(long)]
        policy: String,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4_096))]
        count: u32,
    },
    /// Flood a policy with hints beside a process that works, and print how much that did
    #[command(after_help = "Example: ekiden-load flood --policy locality --cpus 0,1 --duration-ms 1000")]
    Flood(FloodArgs),
    /// Have two threads want the same CPU, and print how long their turns are
    #[command(after_help = "Example: ekiden-load turns --cpu 0 --turns 2000 --json")]
    Turns(TurnsArgs),
    /// Have message threads wake up workers, as schbench does, and print how long that takes
    #[command(after_help = "Example: ekiden-load wakeups --messages 2 --workers 2 --told locality")]
    Wakeups(WakeupsArgs),
    /// Measure the work loop, for --loops-per-ms
    Calibrate(Json),
}

#[derive(Args)]
struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Common {
    /// Put the tasks into class SCHED_EXT
    #[arg(long)]
    ext: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seconds after which what has not finished is killed and named
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watchdog: u64,
}

impl Common {
    fn class(&self) -> Class {
        if self.ext { Class::Ext } else { Class::Inherited }
    }

    fn setting(&self) -> Setting {
        Setting { class: self.class(), watchdog: Duration::from_secs(self.watchdog) }
    }
}

#[derive(Args)]
struct Repeat {
    /// How often to measure; each time in new processes
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
}

#[derive(Args)]
struct PipeArgs {
    /// Round trips that are timed; a tenth as many run before
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    round_trips: u64,
    /// The CPUs of the two sides, counting those this process may use; by default wherever the scheduler puts them
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    cpus: Option<[u32; 2]>,
    /// The control groups of the two sides, as directories; by default that of this process
    #[arg(long, value_name = "DIR,DIR", value_parser = two_directories)]
    cgroups: Option<[PathBuf; 2]>,
    #[command(flatten)]
    repeat: Repeat,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct MessagingArgs {
    /// Groups, independent of each other
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    groups: u32,
    /// Senders, and as many receivers, in each group
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: u32,
    /// Messages from each sender to each receiver
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    loops: u64,
    /// Threads of one process instead of processes
    #[arg(long)]
    threads: bool,
    #[command(flatten)]
    repeat: Repeat,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct RunArgs {
    /// A built-in load (see `ekiden-load list`) or a JSON file, in Ekiden's format or rt-app's
    load: String,
    /// Judge a built-in load by its own check, any other by whether all finished that ends; exit with 1 if it fails
    #[arg(long)]
    check: bool,
    /// Size built-in loads for this many CPUs; by default all that this process may use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    cpus: Option<u32>,
    /// Stop the load after this time, whatever it says itself
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    duration_ms: Option<u64>,
    /// Speed of the work loop, as `ekiden-load calibrate` prints it; measured at the start by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    loops_per_ms: Option<u64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct SpinArgs {
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// For how long
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Keep them on this CPU
    #[arg(long, value_name = "CPU", value_parser = clap::value_parser!(u32).range(0..1_024))]
    cpu: Option<u32>,
    /// Their nice value
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: i32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct ThreadsArgs {
    /// How many threads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// CPU time of each
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    cpu_ms: u64,
}

#[derive(Args)]
struct HintsArgs {
    /// The policy, which has to run
    #[arg(long)]
    policy: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct FloodArgs {
    /// The policy, which has to run
    #[arg(long)]
    policy: String,
    /// The CPUs of who works and who floods, counting those this process may use
    #[arg(long, value_name = "A,B", default_value = "0,0", value_parser = two_cpus)]
    cpus: [u32; 2],
    /// Work, too, instead: for comparison
    #[arg(long)]
    work: bool,
    /// For how long
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    duration_ms: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct TurnsArgs {
    /// The CPU, counting those this process may use
    #[arg(long, default_value_t = 0)]
    cpu: u32,
    /// Turns of each thread
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    turns: u32,
    /// After so long it ends in any case
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    most_ms: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct WakeupsArgs {
    /// Message threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    messages: u32,
    /// Workers of each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    workers: u32,
    /// How often each message thread wakes up its workers
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    rounds: u32,
    /// What each thread does when it is awake
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    work_us: u64,
    /// Tell this policy which threads belong together
    #[arg(long, value_name = "POLICY")]
    told: Option<String>,
    /// Keep all of them on one CPU
    #[arg(long)]
    one_cpu: bool,
    /// Speed of the work loop, as `ekiden-load calibrate` prints it; measured at the start by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    loops_per_ms: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

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
        spin: args.loops_per_ms.map(|loops_per_ms| Spin { loops_per_ms }),
        told: args.told.as_deref(),
    };
    Spread::of(wakeups::run(&load)?)?.show(args.json)
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

fn two_directories(text: &str) -> Result<[PathBuf; 2], String> {
    let wrong = || format!("`{text}` is not two directories; write for example /sys/fs/cgroup/a,/sys/fs/cgroup/b");
    let (first, second) = text.split_once(',').ok_or_else(wrong)?;
    Ok([first.into(), second.into()])
}

fn two_cpus(text: &str) -> Result<[u32; 2], String> {
    let wrong = || format!("`{text}` is not two CPU numbers; write for example 0,1");
    let (first, second) = text.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse().map_err(|_| wrong());
    Ok([number(first)?, number(second)?])
}
