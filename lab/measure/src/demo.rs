//! `ekiden demo`: from nothing to a table of figures.

use std::{fs, path::Path, process::ExitCode, sync::Mutex, thread};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ekiden_bench::{BPF, BPF_LOCAL, Comparison, DEFAULT, Fairness, number, table};
use ekiden_build::{doctor, install_missing};
use ekiden_loader::Beside;
use ekiden_vm::{Cache, Kernel, Scratch, Vm};
use serde::Serialize;

use crate::{
    bench::{
        Unit, Verdict,
        candidates::{Candidates, PolicyArgs},
        fairness::FairnessBench,
        guest::{Clock, InVm, unit_of},
        messaging::MessagingBench,
        pipe::PipeBench,
    },
    failure::{Exit, Failure},
    machine::{Shape, install_modules},
    modules::{self, Allowed},
    progress::Progress,
    request::ask,
    session,
};

/// How often each scheduler gets its turn; a demonstration of messaging does with less.
const PIPE_TURNS: u32 = 5;
const MESSAGING_TURNS: u32 = 3;
const ROUND_TRIPS: u64 = 2_000;

/// `ekiden demo`: from nothing to a table of figures.
#[derive(Args)]
#[command(after_help = "\
Examples:
  make demo   the same after installing what is needed to build this program
  ekiden demo
It can be interrupted anywhere and started again: what took time is kept in the
cache.")]
pub struct Demo {
    #[command(flatten)]
    shape: Shape,
}

#[derive(Serialize)]
struct Results {
    kernel: String,
    pipe: Comparison,
    messaging: Comparison,
    fairness: Fairness,
}

impl Demo {
    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        InVm { vm: true, shape: self.shape.clone() }.refuse_parallel()?;
        let mut progress = Progress::new();
        let cache = Cache::from_env()?;
        prepare(&mut progress)?;
        let kernel = self.shape.fetch(&mut progress)?;
        let candidates = Candidates::new(&["fifo".to_owned(), "wfq".to_owned()], &PolicyArgs::default());
        let modules = modules::for_kernel(None, &kernel, candidates.policies(), &Allowed::default(), &mut progress)?;
        let results = self.measure(&kernel, &modules, &candidates, &mut progress)?;
        progress.end_step();
        println!("\n{}", results.table());
        let verdicts = [&results.pipe, &results.messaging].map(Verdict::of_comparison);
        let kept = cache.directory("results")?.join("demo.json");
        fs::write(&kept, serde_json::to_vec_pretty(&results)?)
            .with_context(|| format!("cannot write {}", kept.display()))?;
        self.conclude(&results, &cache, &modules, &kept);
        eprintln!("\nall in all: {:.0} s", progress.elapsed().as_secs_f64());
        // Limits that are missed are shown; `ekiden bench` judges them.
        let exit = verdicts.iter().any(|verdict| !verdict.all_stayed).then_some(Exit::TakenOut);
        let exit = exit.or((!results.fairness.passed).then_some(Exit::LimitMissed));
        Ok(exit.map_or(ExitCode::SUCCESS, ExitCode::from))
    }

    /// Costs in one machine, whose clock counts instructions; shares in another, whose clock is quicker.
    fn measure(
        &self,
        kernel: &Kernel,
        modules: &Path,
        candidates: &Candidates,
        progress: &mut Progress,
    ) -> Result<Results> {
        let share = Scratch::new()?;
        install_modules(modules, share.path())?;
        let vm = InVm { vm: true, shape: self.shape.clone() };
        let boot = |clock| -> Result<(Vm, Unit)> {
            let spec = vm.spec(kernel, share.path(), clock)?;
            Ok((Vm::boot(kernel, &spec)?, unit_of(&spec)))
        };
        // Whether KVM works is found out once, not by both at the same time.
        vm.spec(kernel, share.path(), Clock::Exact)?;
        progress.step(format!("measuring in Linux {}, twice booted", kernel.release()));
        let told = Mutex::new(progress);
        let tell = |line: &str| {
            if let Ok(mut progress) = told.lock() {
                progress.note(line);
            }
        };
        thread::scope(|scope| {
            let fairness = scope.spawn(|| -> Result<Fairness> {
                let (vm, unit) = boot(Clock::Quick)?;
                let fairness = FairnessBench::new(&["wfq".to_owned()]);
                ask(&vm, &fairness, unit, &mut |line| tell(&format!("fairness: {line}")))
            });
            let costs = || -> Result<(Comparison, Comparison)> {
                let (vm, unit) = boot(Clock::Exact)?;
                let pipe = PipeBench::new(candidates.clone(), PIPE_TURNS, ROUND_TRIPS);
                let pipe = ask(&vm, &pipe, unit, &mut |line| tell(&format!("pipe: {line}")))?;
                let messaging = MessagingBench::new(candidates.clone(), MESSAGING_TURNS);
                let messaging = ask(&vm, &messaging, unit, &mut |line| tell(&format!("messaging: {line}")))?;
                Ok((pipe, messaging))
            };
            let costs = costs();
            let fairness = fairness.join().map_err(|_| anyhow!("the measurement of fairness panicked"))??;
            let (pipe, messaging) = costs?;
            Ok(Results { kernel: kernel.release().to_owned(), pipe, messaging, fairness })
        })
    }

    fn conclude(&self, results: &Results, cache: &Cache, modules: &Path, kept: &Path) {
        let limits = results.pipe.limits.iter().chain(&results.messaging.limits);
        for judged in limits.filter(|judged| !judged.met) {
            println!("MISSED: {}", judged.cells().join("  "));
        }
        println!("\nwhere things are:");
        println!("  the policies        policies/src/fifo.rs, wfq.rs");
        println!("  their modules       {}", modules.display());
        println!("  kernels, build root {} (may be deleted at any time)", cache.path().display());
        println!("  these figures       {}", kept.display());
        println!("\nwhat to try next:");
        println!("  ./ekiden vm run wfq -- ekiden-load run weights --check   a load under a policy");
        println!("  ./ekiden sim weights -p wfq                              the same in the simulator");
        println!("  ./ekiden new my-policy                                   a policy of your own");
        println!("  ./ekiden bench pipe --vm --check                         figures with their limits");
        match session::preflight(Beside::Nobody) {
            Ok(()) => println!(
                "  sudo ./ekiden run wfq                                    in the kernel of this machine: it will do"
            ),
            Err(error) => println!("the kernel of this machine will not do: {}", crate::failure::explain(&error)),
        }
    }
}

/// Installs what is missing; `make demo` has done so already.
fn prepare(progress: &mut Progress) -> Result<()> {
    progress.step("looking for what is missing");
    if !doctor::examine().is_ready_for(doctor::Purpose::Vm) {
        install_missing(doctor::Purpose::Vm, &mut progress.sink())?;
    }
    let left: Vec<String> =
        doctor::examine().missing(doctor::Purpose::Vm).map(|finding| finding.what.clone()).collect();
    if left.is_empty() {
        return Ok(());
    }
    let message = format!("still missing: {}; `ekiden doctor` says more", left.join(", "));
    Err(Failure::new(Exit::Missing, message).into())
}

impl Results {
    /// The results as a table.
    fn table(&self) -> String {
        let schedulers = [DEFAULT, BPF_LOCAL, BPF, "fifo", "fifo, recorder off", "wfq", "wfq, recorder off"];
        let costs = [
            (&self.pipe, "one_cpu", "pipe, one CPU"),
            (&self.pipe, "two_cpus_across", "pipe, two CPUs"),
            (&self.messaging, "all_cpus", "messaging"),
        ];
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (comparison, place, what) in costs {
            let cells = schedulers.map(|scheduler| cost(comparison, scheduler, place));
            rows.push([what.to_owned(), comparison.unit.clone()].into_iter().chain(cells).collect());
        }
        let mut loads: Vec<&str> = self.fairness.rows.iter().map(|row| row.load.as_str()).collect();
        loads.dedup();
        for load in loads {
            let cells = schedulers.map(|scheduler| fair(&self.fairness, scheduler, load));
            let is_share = self.fairness.rows.iter().any(|row| row.load == load && row.off_by.is_some());
            let unit = if is_share { "share off by" } else { "check" };
            rows.push([load.to_owned(), unit.to_owned()].into_iter().chain(cells).collect());
        }
        let heading = [
            "",
            "",
            "the kernel's own",
            "BPF, local queue",
            "plain BPF FIFO",
            "fifo (Rust)",
            "recorder off",
            "wfq (Rust)",
            "recorder off",
        ];
        let mut text = format!("Linux {}, median (÷ the kernel's own)\n{}", self.kernel, table(&heading, rows));
        for why in self.fairness.rows.iter().flat_map(|row| row.failed.iter().chain(&row.unlike_default)) {
            text += &format!("\n{why}");
        }
        text
    }
}

fn cost(comparison: &Comparison, scheduler: &str, place: &str) -> String {
    let Some(row) = comparison.schedulers.iter().find(|row| row.scheduler == scheduler) else { return String::new() };
    if !row.still_scheduler {
        return "TAKEN OUT".into();
    }
    let Some(figure) = row.figures.get(place) else { return String::new() };
    let median = number(figure.summary.median);
    match figure.ratio_to_default {
        Some(ratio) if scheduler != DEFAULT => format!("{median} ({ratio:.2})"),
        _ => median,
    }
}

fn fair(fairness: &Fairness, scheduler: &str, load: &str) -> String {
    let row = fairness.rows.iter().find(|row| row.scheduler == scheduler && row.load == load);
    let verdict = |passed| if passed { "passed" } else { "FAILED" };
    row.map_or(String::new(), |row| match row.off_by {
        Some(off_by) if row.passed() => format!("{:.2} %", 100.0 * off_by),
        Some(off_by) => format!("{:.2} % FAILED", 100.0 * off_by),
        None => verdict(row.passed()).to_owned(),
    })
}
