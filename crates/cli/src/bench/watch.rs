//! `ekiden bench watch`: what it costs to watch a kernel and to record what its scheduler does, and whether all is recorded.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Judged, Limit, Measurements};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    Output, Verdict,
    contest::{Contest, Contestant, PolicyArgs},
    guest::{Clock, InVm},
    load,
};
use crate::progress::Progress;

const CHECKER: &str = "checker";
const RECORDER: &str = "recorder";

/// Where things are measured: two processes on one CPU, and 10,000 threads.
const PIPE: &str = "pipe";
const MESSAGING: &str = "hackbench_10000";

/// Groups of twenty senders and twenty receivers each.
const GROUPS: &str = "250";

const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "pipe: checker running ÷ not", at_most: 1.005 }, CHECKER, PIPE, DEFAULT),
    (Limit { name: "hackbench, 10,000 threads: checker running ÷ not", at_most: 1.005 }, CHECKER, MESSAGING, DEFAULT),
    (Limit { name: "pipe: trace recording ÷ not", at_most: 1.15 }, RECORDER, PIPE, DEFAULT),
];

/// On each CPU a pipe, all at once.
const LOST: Limit = Limit { name: "events lost, a pipe on each of 4 CPUs", at_most: 0.0 };
const CPUS: u32 = 4;

/// What a guest needs for so many threads.
const GUEST_MEMORY_MIB: u32 = 3_072;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Under the kernel's own scheduler; the checker looks ten times a second, which is ten times as often as it does by default.
hackbench takes some percent more or less from turn to turn without any checker: compare the ratio with the range, and give it
more turns. What the checker did in each turn is told meanwhile; one that watched nothing costs what its looks cost.
Examples:
  ekiden bench watch --vm --check     instructions, in a virtual machine of its own; exits with 116 if a limit is missed
  sudo ekiden bench watch             nanoseconds, in the kernel of this machine")]
pub(crate) struct WatchBench {
    /// How often each variant gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

/// A command of ours that goes on beside what is measured.
struct Beside {
    child: Child,
    messages: BufReader<ChildStderr>,
    results: ChildStdout,
}

impl Beside {
    /// Starts one that says a line when it has begun.
    fn start(args: &[&str]) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(this);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run ekiden {}", args.join(" ")))?;
        let mut messages = BufReader::new(child.stderr.take().context("a child without messages")?);
        let mut line = String::new();
        messages.read_line(&mut line).context("cannot read what a child says")?;
        ensure!(line.contains("Ctrl-C"), "ekiden {} does not begin: {line}", args.join(" "));
        let results = child.stdout.take().context("a child without results")?;
        Ok(Self { child, messages, results })
    }

    /// Ends it; what it said, and then what it printed.
    fn stop(mut self) -> Result<String> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).context("cannot end a child")?;
        let mut text = String::new();
        self.messages.read_to_string(&mut text).context("cannot read what a child says")?;
        self.results.read_to_string(&mut text).context("cannot read what a child prints")?;
        self.child.wait().context("cannot wait for a child")?;
        Ok(text)
    }
}

impl WatchBench {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let comparison = if self.vm.vm {
            self.vm.shape.cpus = self.vm.shape.cpus.max(CPUS);
            self.vm.shape.memory = self.vm.shape.memory.max(GUEST_MEMORY_MIB);
            let args = [
                "watch".to_owned(),
                format!("--repeat={}", self.repeat),
                format!("--round-trips={}", self.round_trips),
            ];
            self.vm.bench(&Contest::new(&[], &PolicyArgs::default()), &args, Clock::Exact)?
        } else {
            self.measure()?
        };
        self.output.show(&comparison, &comparison.to_text(), &Verdict::of_comparison(&comparison))
    }

    fn measure(&self) -> Result<Comparison> {
        let mut progress = Progress::new();
        progress.step("waiting until the machine has settled");
        load::settle();
        let mut measurements = Measurements::default();
        let directory = tempfile::tempdir().context("cannot create a directory for traces")?;
        let file = directory.path().join("trace");
        let trace = file.to_string_lossy();
        let variants: [(&str, &[&str]); 3] =
            [(DEFAULT, &[]), (CHECKER, &["check", "--live", "--every=100"]), (RECORDER, &["trace", "record", &trace])];
        for turn in 0..=self.repeat {
            for (name, args) in variants {
                progress.step(format!("turn {turn} of {}: {name}", self.repeat));
                let beside = if args.is_empty() { None } else { Some(Beside::start(args)?) };
                let mut values = vec![(PIPE, self.pipe("0,0")?)];
                // So many threads at once take long, and nothing was promised of recording them.
                if name != RECORDER {
                    values.push((MESSAGING, messaging()?));
                }
                let said = beside.map(Beside::stop).transpose()?.unwrap_or_default();
                said.lines().filter(|line| line.contains(" looks, ")).for_each(|line| progress.note(line));
                measurements.was_still_scheduler(name, true);
                // The first turn warms caches of all kinds.
                for (place, value) in values.into_iter().filter(|_| turn > 0) {
                    measurements.add(name, place, value);
                }
            }
        }
        progress.step("recording a pipe on each CPU");
        let lost = LOST.judge(Some(self.lost(&file)?));
        let unit = format!("{} per round trip, {} in all", self.output.unit.name(), self.output.unit.million());
        let comparison = Comparison::new("watch", &unit, &load::kernel_release()?, &measurements, LIMITS);
        Ok(with(comparison, lost))
    }

    fn pipe(&self, cpus: &str) -> Result<f64> {
        let round_trips = self.round_trips.to_string();
        load::time(&Contestant::Default, &["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"])
    }

    /// How many records are lost while all CPUs are busy with pipes.
    fn lost(&self, file: &Path) -> Result<f64> {
        let beside = Beside::start(&["trace", "record", &file.to_string_lossy()])?;
        let cpus = thread::available_parallelism().map_or(1, usize::from).min(CPUS as usize);
        thread::scope(|scope| {
            let pipes: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || self.pipe(&format!("{cpu},{cpu}")))).collect();
            pipes.into_iter().try_for_each(|pipe| pipe.join().expect("a pipe does not panic").map(drop))
        })?;
        let said = beside.stop()?;
        let lost = said.lines().find_map(|line| line.split(" records were lost").next().filter(|head| *head != line));
        match lost {
            None => Ok(0.0),
            Some(head) => head.rsplit(' ').next().and_then(|count| count.parse().ok()).context("a strange message"),
        }
    }
}

fn messaging() -> Result<f64> {
    load::time(&Contestant::Default, &["messaging", "--groups", GROUPS, "--loops", "1", "--threads", "--json"])
}

fn with(mut comparison: Comparison, judged: Judged) -> Comparison {
    comparison.passed &= judged.met;
    comparison.limits.push(judged);
    comparison
}
