//! What the program is told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ekiden_workload::real::direct::Setting;
use ekiden_workload::real::exec::Class;

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
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Do,
}

#[derive(Subcommand)]
pub(crate) enum Do {
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
    /// Have a thread of nice -20 woken up beside threads that compete, and print when it ran
    #[command(after_help = "Example: ekiden-load delegation --tasks 0,9 --times 50 --json")]
    Delegation(DelegationArgs),
    /// Have a worker work alone, beside programs in a control group, and beside some in another, in turns
    #[command(after_help = "Example: ekiden-load judge --cgroups /sys/fs/cgroup/a,/sys/fs/cgroup/b --programs 40")]
    Judge(JudgeArgs),
    /// Measure the work loop, for --loops-per-ms
    Calibrate(Json),
}

#[derive(Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Common {
    /// Put the tasks into class SCHED_EXT
    #[arg(long)]
    pub(crate) ext: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds after which what has not finished is killed and named
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) watchdog: u64,
}

impl Common {
    pub(crate) fn class(&self) -> Class {
        if self.ext { Class::Ext } else { Class::Inherited }
    }

    pub(crate) fn setting(&self) -> Setting {
        Setting { class: self.class(), watchdog: Duration::from_secs(self.watchdog) }
    }
}

#[derive(Args)]
pub(crate) struct Repeat {
    /// How often to measure; each time in new processes
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,
}

#[derive(Args)]
pub(crate) struct PipeArgs {
    /// Round trips that are timed; a tenth as many run before
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) round_trips: u64,
    /// The CPUs of the two sides, counting those this process may use; by default wherever the scheduler puts them
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    pub(crate) cpus: Option<[u32; 2]>,
    /// The control groups of the two sides, as directories; by default that of this process
    #[arg(long, value_name = "DIR,DIR", value_parser = two_directories)]
    pub(crate) cgroups: Option<[PathBuf; 2]>,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args)]
pub(crate) struct MessagingArgs {
    /// Groups, independent of each other
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) groups: u32,
    /// Senders, and as many receivers, in each group
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) pairs: u32,
    /// Messages from each sender to each receiver
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops: u64,
    /// Threads of one process instead of processes
    #[arg(long)]
    pub(crate) threads: bool,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A built-in load (see `ekiden-load list`) or a JSON file, in Ekiden's format or rt-app's
    pub(crate) load: String,
    /// Judge a built-in load by its own check, any other by whether all finished that ends; exit with 1 if it fails
    #[arg(long)]
    pub(crate) check: bool,
    /// Size built-in loads for this many CPUs; by default all that this process may use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) cpus: Option<u32>,
    /// Stop the load after this time, whatever it says itself
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub(crate) duration_ms: Option<u64>,
    /// Speed of the work loop, as `ekiden-load calibrate` prints it; measured at the start by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops_per_ms: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args)]
pub(crate) struct SpinArgs {
    /// How many tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,
    /// For how long
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Keep them on this CPU
    #[arg(long, value_name = "CPU", value_parser = clap::value_parser!(u32).range(0..1_024))]
    pub(crate) cpu: Option<u32>,
    /// Their nice value
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: i32,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args)]
pub(crate) struct ThreadsArgs {
    /// How many threads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) count: u32,
    /// CPU time of each
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub(crate) cpu_ms: u64,
}

#[derive(Args)]
pub(crate) struct HintsArgs {
    /// The policy, which has to run
    #[arg(long)]
    pub(crate) policy: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct FloodArgs {
    /// The policy, which has to run
    #[arg(long)]
    pub(crate) policy: String,
    /// The CPUs of who works and who floods, counting those this process may use
    #[arg(long, value_name = "A,B", default_value = "0,0", value_parser = two_cpus)]
    pub(crate) cpus: [u32; 2],
    /// Work, too, instead: for comparison
    #[arg(long)]
    pub(crate) work: bool,
    /// For how long
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) duration_ms: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TurnsArgs {
    /// The CPU, counting those this process may use
    #[arg(long, default_value_t = 0)]
    pub(crate) cpu: u32,
    /// Turns of each thread
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub(crate) turns: u32,
    /// After so long it ends in any case
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) most_ms: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct WakeupsArgs {
    /// Message threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) messages: u32,
    /// Workers of each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) workers: u32,
    /// How often each message thread wakes up its workers
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pub(crate) rounds: u32,
    /// What each thread does when it is awake
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) work_us: u64,
    /// How long a message thread sleeps when it has all answers; up to a quarter more is drawn
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) sleep_us: u64,
    /// Tell this policy which threads belong together
    #[arg(long, value_name = "POLICY")]
    pub(crate) told: Option<String>,
    /// Keep all of them on one CPU
    #[arg(long)]
    pub(crate) one_cpu: bool,
    /// Speed of the work loop, as `ekiden-load calibrate` prints it; measured at the start by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops_per_ms: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DelegationArgs {
    /// How many threads compete, one number after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,9", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub(crate) tasks: Vec<u32>,
    /// How often the thread is woken up beside each of them
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) times: u32,
    /// How long it sleeps before; up to as much more is drawn
    #[arg(long, value_name = "US", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) sleep_us: u64,
    /// Print JSON, with each time
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct JudgeArgs {
    /// The control groups of the programs, as directories
    #[arg(long, value_name = "DIR,DIR", value_parser = two_directories)]
    pub(crate) cgroups: [PathBuf; 2],
    /// Programs in each
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) programs: u32,
    /// CPU time that the worker needs
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) cpu_ms: u64,
    /// How often it works in each way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) times: u32,
    /// Print JSON, with each time
    #[arg(long)]
    pub(crate) json: bool,
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
