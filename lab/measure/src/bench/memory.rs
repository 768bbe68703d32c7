//! `ekiden bench memory`: what tasks cost in kernel memory under a policy, beyond what they cost anyway.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ekiden_bench::{KernelMemory, MemoryReport};
use serde::{Deserialize, Serialize};

use super::{
    Unit, Verdict,
    asked::{Benchmark, Shown},
    candidates::{Candidate, Candidates, PolicyArgs},
    guest::Clock,
    load,
};
use crate::{machine::Shape, progress::Progress, request::Measurement};

/// How long the kernel may take to put away what it no longer needs.
const QUIET: Duration = Duration::from_secs(2);

/// Memory that this many sleeping tasks need in a guest.
const GUEST_MIB: u32 = 2048;

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench memory --vm --check
  sudo ekiden bench memory --policy fifo --tasks 5000")]
pub(crate) struct MemoryBench {
    /// The policy
    #[arg(long, value_name = "POLICY", default_value = "wfq")]
    policy: String,
    /// How many tasks to make
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=30_000))]
    tasks: u32,
    #[command(flatten)]
    source: PolicyArgs,
}

impl Benchmark for MemoryBench {
    const NAME: &'static str = "memory";
    const CLOCK: Clock = Clock::Quick;

    fn candidates(&self) -> Candidates {
        Candidates::new(std::slice::from_ref(&self.policy), &self.source)
    }

    fn fit(&self, shape: &mut Shape) {
        shape.memory_mib = shape.memory_mib.max(GUEST_MIB);
    }
}

impl Measurement for MemoryBench {
    type Figures = MemoryReport;

    fn measure(&self, _unit: Unit) -> Result<MemoryReport> {
        let mut progress = Progress::new();
        let (_, modules) = self.candidates().prepare(&mut progress)?;
        let policy = Candidate::Policy(self.policy.clone());
        // The kernel keeps some of what it had to get for so many tasks: the second time costs less under any scheduler.
        progress.step(format!("{} sleeping tasks for nothing", self.tasks));
        cost(self.tasks)?;
        progress.step(format!("{} sleeping tasks under the kernel's own scheduler", self.tasks));
        let before = memory()?;
        let under_default = cost(self.tasks)?;
        progress.step(format!("{} sleeping tasks under {}", self.tasks, self.policy));
        let (figures, stayed) = policy.run(&modules, || self.under_policy(&before))?;
        let Some([under_policy, fixed]) = figures else { bail!("{} was taken out; see `ekiden status`", self.policy) };
        let figures = [under_default, under_policy, fixed];
        Ok(MemoryReport::new(&load::kernel_release()?, &self.policy, self.tasks, figures, stayed))
    }
}

impl Shown for MemoryReport {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of_limits(&self.limits, self.still_scheduler)
    }
}

impl MemoryBench {
    fn under_policy(&self, before: &KernelMemory) -> Result<[KernelMemory; 2]> {
        let fixed = memory()?.minus(before);
        Ok([cost(self.tasks)?, fixed])
    }
}

/// What this many tasks take in kernel memory.
fn cost(tasks: u32) -> Result<KernelMemory> {
    let before = memory()?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let mut sleepers = Command::new(this)
        .args(["sleepers", &tasks.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run this program again")?;
    let mut line = String::new();
    let stdout = sleepers.stdout.take().context("the sleepers have no output")?;
    BufReader::new(stdout).read_line(&mut line).context("the sleepers say nothing")?;
    let with_tasks = if line == READY { memory() } else { bail!("{tasks} tasks could not be made: see ulimit -u") };
    // They end when their input does.
    drop(sleepers.stdin.take());
    sleepers.wait().context("the sleepers do not end")?;
    Ok(with_tasks?.minus(&before))
}

fn memory() -> Result<KernelMemory> {
    thread::sleep(QUIET);
    // The best that can be done about memory that is only not put away yet; without the right to, it stays.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    let path = Path::new("/proc/meminfo");
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    KernelMemory::parse(&text).with_context(|| format!("{} lacks a line that was expected", path.display()))
}

const READY: &str = "ready\n";

/// Tasks that sleep until standard input ends.
#[derive(Args)]
pub struct Sleepers {
    tasks: u32,
}

impl Sleepers {
    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        for _ in 0..self.tasks {
            thread::Builder::new().stack_size(16 << 10).spawn(thread::park).context("cannot make a thread")?;
        }
        print!("{READY}");
        std::io::stdout().flush().context("nobody listens")?;
        let mut nothing = String::new();
        std::io::stdin().read_line(&mut nothing).context("cannot wait")?;
        Ok(ExitCode::SUCCESS)
    }
}
