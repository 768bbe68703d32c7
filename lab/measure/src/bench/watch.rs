//! `ekiden bench watch`: what it costs to watch a kernel and to record what its scheduler does, and whether all is recorded.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Judged, Limit, Measurements};
use nix::{
    sys::signal::{Signal, kill},
    time::ClockId,
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates, PolicyArgs},
    guest::Clock,
    load,
};
use crate::{machine::Shape, output::open_trace, progress::Progress, request::Measurement};

const CHECKER: &str = "checker";
const RECORDER: &str = "recorder";

/// Where things are measured: two processes on one CPU, and 10,000 threads.
const PIPE: &str = "pipe";
const MESSAGING: &str = "hackbench_10000";

/// Groups of twenty senders and twenty receivers each.
const GROUPS: &str = "250";

/// Where the checker is measured, what it cost there itself, and what that may be.
const CHECKED: [(&str, &str, Limit); 2] = [
    (PIPE, "pipe_checker_itself", Limit { name: "pipe: what the checker counts of itself", at_most: 1.005 }),
    (
        MESSAGING,
        "hackbench_10000_checker_itself",
        Limit { name: "hackbench, 10,000 threads: what the checker counts of itself", at_most: 1.005 },
    ),
];

const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "pipe: checker running ÷ not", at_most: 1.005 }, CHECKER, PIPE, DEFAULT),
    (Limit { name: "hackbench, 10,000 threads: checker running ÷ not", at_most: 1.005 }, CHECKER, MESSAGING, DEFAULT),
    (Limit { name: "pipe: trace recording ÷ not", at_most: 1.15 }, RECORDER, PIPE, DEFAULT),
];

/// Lets the kernel count how long BPF programs run.
const BPF_STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// On each CPU a pipe, all at once.
const LOST: Limit = Limit { name: "events lost, a pipe on each of 4 CPUs", at_most: 0.0 };
const CPUS: u32 = 4;

/// What a guest needs for this many threads.
const GUEST_MEMORY_MIB: u32 = 3_072;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Under the kernel's own scheduler. The checker looks once a second, as it does by
default; --every 100 is ten times as often. Judged is what a load takes beside
it ÷ alone; turns of hackbench differ by some percent without any checker. So
what it takes is counted where it is spent, too: the CPU time of its process
while the load runs, in which looks and snapshots are taken, and the time of its
programs that run in others while it watches. Its ratio is the CPU time of all
CPUs ÷ the same without that, over all turns. Emulated CPUs take turns, and each
one's clock runs during those of others, so it is a ratio of CPU times, too.
Not in it: switches to it and from it, what a program takes to be called, and
what kernel threads do to free programs.
Examples:
  ekiden bench watch --vm --check
      instructions, in a virtual machine of its own; exits with 116 if a limit
      is missed
  sudo ekiden bench watch   nanoseconds, in the kernel of this machine")]
pub(crate) struct WatchBench {
    /// How often each variant gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
    /// Messages from each of hackbench's senders to each receiver; each takes half a second of the guest's
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    loops: u64,
    /// Milliseconds from one look of the checker to the next
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    every: u64,
}

/// A command of ours that runs beside what is measured.
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

    /// What it has cost so far: the time of its process, and that of its programs which ran in others.
    fn cost(&self) -> Result<Duration> {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.child.id() as i32));
        let process = clock.and_then(ClockId::now).context("cannot read the CPU time of a child")?;
        Ok(Duration::from(process) + programs_time(self.child.id())?)
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

/// How long the BPF programs of a process have run, without those that it runs itself to read what they write.
fn programs_time(pid: u32) -> Result<Duration> {
    let directory = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))?;
    let files: Vec<String> = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect();
    let number =
        |text: &str, key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    let iterators = files.iter().filter(|text| text.contains("link_type:\titer"));
    let iterators: HashSet<u64> = iterators.filter_map(|text| number(text, "prog_id:")).collect();
    let others = files.iter().filter(|text| number(text, "prog_id:").is_some_and(|id| !iterators.contains(&id)));
    Ok(Duration::from_nanos(others.filter_map(|text| number(text, "run_time_ns:")).sum()))
}

/// How long all CPUs together have not been idle.
fn busy_time() -> Result<Duration> {
    const PATH: &str = "/proc/stat";
    let text = fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
    // The first line is that of all: user, nice, system, idle, iowait and others, in hundredths of a second.
    let of_all = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let times: Vec<u64> = of_all.filter_map(|number| number.parse().ok()).collect();
    let idle = times.get(3..5).context("there is no idle time in /proc/stat")?.iter().sum::<u64>();
    let cpus = text.lines().filter(|line| line.starts_with("cpu")).count() as u32 - 1;
    let uptime = Duration::from(ClockId::CLOCK_MONOTONIC.now().context("cannot read the clock")?);
    Ok((uptime * cpus).saturating_sub(Duration::from_millis(idle * 10)))
}

/// As long as this is there, the kernel counts how long BPF programs run; which costs them something.
struct BpfStats {
    before: String,
}

impl BpfStats {
    fn start() -> Result<Self> {
        let before = fs::read_to_string(BPF_STATS).with_context(|| format!("cannot read {BPF_STATS}"))?;
        fs::write(BPF_STATS, "1").with_context(|| format!("cannot write {BPF_STATS}"))?;
        Ok(Self { before })
    }
}

impl Drop for BpfStats {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::write(BPF_STATS, &self.before);
    }
}

/// What the checker took in all turns, and of how much.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    taken: Duration,
    all: Duration,
}

impl Share {
    /// All ÷ what it would be without.
    fn ratio(self) -> f64 {
        self.all.as_secs_f64() / self.all.saturating_sub(self.taken).as_secs_f64()
    }
}

impl Benchmark for WatchBench {
    const NAME: &'static str = "watch";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        Candidates::new(&[], &PolicyArgs::default())
    }

    fn fit(&self, shape: &mut Shape) {
        shape.cpus = shape.cpus.max(CPUS);
        shape.memory_mib = shape.memory_mib.max(GUEST_MEMORY_MIB);
    }
}

impl Measurement for WatchBench {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        let mut progress = Progress::new();
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let mut measurements = Measurements::default();
        let directory = tempfile::tempdir().context("cannot create a directory for traces")?;
        let file = directory.path().join("trace");
        let trace = file.to_string_lossy();
        let every = format!("--every={}", self.every);
        let variants: [(&str, &[&str]); 3] =
            [(DEFAULT, &[]), (CHECKER, &["check", "--live", &every]), (RECORDER, &["trace", "record", &trace])];
        let mut shares: BTreeMap<&str, Share> = BTreeMap::new();
        // The first turn warms caches of all kinds; a load that is as long as hackbench does not mind.
        for turn in 0..=self.repeat {
            for (name, args) in variants {
                progress.step(format!("turn {turn} of {}: {name}", self.repeat));
                let beside = if args.is_empty() { None } else { Some(Beside::start(args)?) };
                let checker = beside.as_ref().filter(|_| name == CHECKER);
                let _stats = checker.map(|_| BpfStats::start()).transpose()?;
                for (place, own, _) in CHECKED {
                    // Threads in such numbers take long, and nothing was promised of recording them.
                    if place == MESSAGING && (name == RECORDER || turn == 0) {
                        continue;
                    }
                    let (start, before) = (busy_time()?, checker.map(Beside::cost).transpose()?);
                    let value = if place == PIPE { self.pipe("0,0")? } else { self.messaging()? };
                    let all = busy_time()?.saturating_sub(start);
                    let taken =
                        checker.map(Beside::cost).transpose()?.zip(before).map(|(after, before)| after - before);
                    if turn > 0 {
                        measurements.add(name, place, value);
                        if let Some(taken) = taken {
                            measurements.add(name, own, taken.as_secs_f64() * 1e3);
                            let share = shares.entry(place).or_default();
                            (share.taken, share.all) = (share.taken + taken, share.all + all);
                        }
                    }
                }
                let said = beside.map(Beside::stop).transpose()?.unwrap_or_default();
                said.lines().filter(|line| line.contains(" looks, ")).for_each(|line| progress.note(line));
                measurements.was_still_scheduler(name, true);
            }
        }
        progress.step("recording a pipe on each CPU");
        let lost = LOST.judge(Some(self.lost(&file)?));
        let unit = format!("{} per round trip, {} in all", unit.name(), unit.million());
        let comparison = Comparison::new("watch", &unit, &load::kernel_release()?, &measurements, LIMITS);
        let checked = CHECKED.map(|(place, _, limit)| limit.judge(shares.get(place).map(|share| share.ratio())));
        Ok(checked.into_iter().chain([lost]).fold(comparison, with))
    }
}

impl WatchBench {
    fn pipe(&self, cpus: &str) -> Result<f64> {
        let round_trips = self.round_trips.to_string();
        load::time(&Candidate::Default, &["pipe", "--round-trips", &round_trips, "--cpus", cpus, "--json"])
    }

    fn messaging(&self) -> Result<f64> {
        let loops = self.loops.to_string();
        load::time(&Candidate::Default, &["messaging", "--groups", GROUPS, "--loops", &loops, "--threads", "--json"])
    }

    /// How many records are lost while all CPUs are busy with pipes.
    fn lost(&self, file: &Path) -> Result<f64> {
        let beside = Beside::start(&["trace", "record", &file.to_string_lossy()])?;
        let cpus = thread::available_parallelism().map_or(1, usize::from).min(CPUS as usize);
        thread::scope(|scope| {
            let pipes: Vec<_> = (0..cpus).map(|cpu| scope.spawn(move || self.pipe(&format!("{cpu},{cpu}")))).collect();
            pipes.into_iter().try_for_each(|pipe| pipe.join().expect("a pipe does not panic").map(drop))
        })?;
        beside.stop()?;
        // What the recording itself has: a recorder that died has lost everything, whatever it said.
        let (mut records, mut lost) = (0, 0_u64);
        for record in open_trace(file)? {
            let record = record.with_context(|| file.display().to_string())?;
            records += 1;
            lost = lost.saturating_add(record.lost());
        }
        ensure!(records > 0, "nothing was recorded");
        Ok(lost as f64)
    }
}

fn with(mut comparison: Comparison, judged: Judged) -> Comparison {
    comparison.passed &= judged.met;
    comparison.limits.push(judged);
    comparison
}
