//! `ekiden soak`: everything that policies have to live through, in an order that a seed says, for as long as one likes.

mod chosen;
mod outcome;
mod steps;

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use chosen::{Chosen, names_or_own};
use clap::Args;
use ekiden_guest_test::GuestTest;
use ekiden_vm::{Kernel, Scratch, Status, Stream, Vm};
use outcome::{Finding, GAP_MS_MAX, Outcome, SHARE_MIN, text};
use serde_json::Value;
use steps::{RECORDING, Step};

use crate::{
    failure::{Exit, Failure},
    guest_test::{command, install, install_with, program},
    machine::{Shape, boot, follow_with},
    modules::{self, Allowed},
    own::Needs,
    policies,
    progress::Progress,
    signals,
};

/// `ekiden soak`: all that policies have to live through, in an order that a seed says.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden soak --vm --parallel --minutes 60
      four CPUs that run at once, beside a busy process
  ekiden soak --vm --parallel --minutes 60 --seed 7
      the same in another order
  ekiden soak --vm --icount --minutes 5 --json
      on CPUs that take turns in one stream of instructions
  ekiden soak --vm --neighbour --minutes 60 --check
      beside a hostile user: do others get 0.9 of what they get elsewhere?
  ekiden soak --vm --device --parallel --minutes 60
      random requests for /dev/ekiden, while policies come and go
  ekiden soak --vm --policy my-policy --minutes 60
      a policy of your own, in the directory of its project
It goes through what follows again and again, each time in another order: churn
and messaging under each policy, recorded and replayed; a storm under each;
policies that replace each other, that come and go beside others, and whose
modules are loaded anew; every fault there is, beside another policy and alone.
In a project these are its policies, and the others are FIFO, WFQ and CFS; the
faults are the same everywhere. The same seed takes the same order. Ctrl-C ends
it with what was found so far.
Exits with 118 if something was found.")]
pub struct Soak {
    /// In a virtual machine; nowhere else, as what is tried here may end in the loss of a machine
    #[arg(long, required = true)]
    vm: bool,
    /// Only this policy, and what it does beside others; may be given again. By default all of the project in the current directory or,
    /// elsewhere, all that come with Ekiden
    #[arg(long = "policy", value_name = "POLICY", conflicts_with = "device")]
    policies: Vec<String>,
    /// For how long at least: what was begun is gone through
    #[arg(long, value_name = "MINUTES", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Which order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// With how many processors
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    cpus: u32,
    /// CPUs that really run at once, each in a thread of the emulator; otherwise they take turns
    #[arg(long)]
    parallel: bool,
    /// CPUs that take turns in one stream of instructions; the default
    #[arg(long, conflicts_with = "parallel")]
    icount: bool,
    /// Only storms beside a hostile neighbour, and what other users get beside it under each policy and under the kernel's own scheduler
    #[arg(long)]
    neighbour: bool,
    /// Only requests of any kind for /dev/ekiden, by root and by others, in a kernel that checks what it allocates
    #[arg(long)]
    device: bool,
    /// How many threads of this program do nothing but use processors meanwhile; by default one with --parallel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    busy: Option<u32>,
    /// Only what has one of these in its name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// The kernel's release, or the beginning of one; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if tasks stood still for too long after a fault, or others got too little beside a neighbour
    #[arg(long)]
    check: bool,
    /// Write what each guest test said to this file as soon as it is known, a line of JSON each
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    #[command(flatten)]
    allowed: Allowed,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    if minutes > 0.0 && minutes <= 10_000.0 { Ok(minutes) } else { Err("it is not between 0 and 10000".into()) }
}

/// Threads that use processors, until this is dropped.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A guest, and what it takes to have another one if it is lost.
struct Guest<'a> {
    soak: &'a Soak,
    kernel: &'a Kernel,
    share: &'a Path,
    guest_test: &'a Path,
    vm: Option<Vm>,
    /// Set by SIGINT and SIGTERM.
    is_over: Arc<AtomicBool>,
}

/// What a guest test came to.
struct Ran {
    reports: Vec<Value>,
    status: Status,
    wrong: Option<String>,
}

impl Guest<'_> {
    fn vm(&mut self, progress: &mut Progress) -> Result<&Vm> {
        if self.vm.is_none() {
            progress.step(format!("booting Linux {} on {} CPUs", self.kernel.release(), self.soak.cpus));
            let mut spec = self.soak.shape().fair_spec(self.share);
            spec.programs.push(self.guest_test.to_owned());
            if self.soak.device {
                // The kernel checks every object that it allocates.
                spec.cmdline = "slub_debug=FZPU".into();
            }
            self.vm = Some(boot(self.kernel, &spec)?);
        }
        self.vm.as_ref().context("there is no guest")
    }

    /// Runs a guest test. Returns what it reported, how it ended, and what must not be; none if the guest fell over its emulator.
    fn run(&mut self, guest_test: GuestTest, progress: &mut Progress) -> Result<Option<Ran>> {
        let is_over = self.is_over.clone();
        let vm = self.vm(progress)?;
        let command = command(guest_test)?;
        let (mut printed, mut said) = (Vec::new(), String::new());
        let status = follow_with(vm, &command, &mut |stream, bytes| match stream {
            Stream::Stderr => said.push_str(&String::from_utf8_lossy(bytes)),
            Stream::Stdout => printed.extend_from_slice(bytes),
        });
        if vm.console().has_emulator_fault() {
            self.vm = None;
            return Ok(None);
        }
        let complaint = vm.console().findings().first().map(|finding| format!("the kernel says: {finding}"));
        let tail = || format!("; the guest's console:\n{}", vm.console().tail(40));
        let wrong = match (&status, complaint) {
            (_, Some(complaint)) => Some(complaint + &tail()),
            (Ok(Status::Code(0)), None) => None,
            // The guest test got the signal, too. One killed by any other is a finding.
            (_, None) if is_over.load(Relaxed) => None,
            (Ok(status), None) => Some(format!("the guest test ended with {status}: {}{}", said.trim(), tail())),
            (Err(error), None) => Some(format!("the guest is lost: {error:#}{}", tail())),
        };
        let reports =
            printed.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        // What goes wrong next shall be its own fault.
        if wrong.is_some() {
            self.vm = None;
        }
        Ok(Some(Ran { reports, status: status.unwrap_or(Status::Code(1)), wrong }))
    }
}

impl Soak {
    fn shape(&self) -> Shape {
        Shape {
            cpus: self.cpus,
            nodes: 1,
            memory_mib: 1024,
            kernel: self.kernel.clone(),
            kvm: false,
            icount: !self.parallel,
            parallel: self.parallel,
            shift: None,
            others: Vec::new(),
            disk: None,
        }
    }

    /// The policies that have to be in this process, to replay what was recorded.
    pub fn needs(&self) -> Needs {
        let policies = if self.device { Vec::new() } else { names_or_own(&self.policies) };
        Needs::of(policies, (&self.allowed).into())
    }

    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _busy = Busy(&over);
            for _ in 0..self.busy.unwrap_or(self.parallel.into()) {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            self.go()
        })
    }

    fn go(&self) -> Result<ExitCode> {
        let chosen = if self.device { Chosen::of_ekiden() } else { Chosen::of(&self.policies)? };
        let mut all = match (self.neighbour, self.device) {
            (false, false) => steps::usual(&chosen),
            _ => Vec::new(),
        };
        all.extend(self.neighbour.then(|| steps::beside_neighbour(&chosen.policies)).into_iter().flatten());
        all.extend(self.device.then(steps::of_device).into_iter().flatten());
        let steps: Vec<&Step> = all.iter().filter(|step| self.wants(&step.name)).collect();
        if steps.is_empty() {
            let names = all.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join("; ");
            return Err(Failure::new(Exit::Usage, format!("nothing is called like that: {names}")).into());
        }
        let mut progress = Progress::new();
        let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        let mut saved = self.save.as_ref().map(create).transpose()?;
        let kernel = self.shape().fetch_fair(&mut progress)?;
        let share = Scratch::new()?;
        let ours = chosen.ours();
        let ours = ours.iter().map(|name| ("policies", name.as_str()));
        let ours: Vec<_> = ours.chain([("lab/test-policies", "faulty")]).collect();
        match chosen.own() {
            own if own.is_empty() => install(&ours, &kernel, share.path(), &mut progress)?,
            own => {
                let own = modules::for_kernel(None, &kernel, &own, &self.allowed, &mut progress)?;
                install_with(&own, &ours, &kernel, share.path(), &mut progress)?;
            }
        }
        let guest_test = program(&mut progress)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut guest = Guest {
            soak: self,
            kernel: &kernel,
            share: share.path(),
            guest_test: &guest_test,
            vm: None,
            is_over: is_over.clone(),
        };
        let mut outcome = Outcome {
            kernel: kernel.release().to_owned(),
            seed: self.seed,
            cpus: self.cpus,
            parallel: self.parallel,
            gap_ms_over_max: GAP_MS_MAX,
            beside_neighbour_min: SHARE_MIN,
            ..Outcome::default()
        };
        guest.vm(&mut progress)?;
        // The findings so far are reported, also if it boots or replays at the moment.
        let told = is_over.clone();
        let _handling = signals::handle(move |_| told.store(true, Relaxed)).context("cannot handle signals")?;
        let start = Instant::now();
        let mut order = fastrand::Rng::with_seed(self.seed);
        let (nothing, mut left, mut number) = (steps::nothing(), Vec::new(), 0);
        while start.elapsed() < Duration::from_secs_f64(60.0 * self.minutes) && !is_over.load(Relaxed) {
            if left.is_empty() {
                left = steps.clone();
                order.shuffle(&mut left);
                // How long tasks stand still when nothing happens, before each round.
                left.push(&nothing);
            }
            let Some(next) = left.pop() else { break };
            let guest_test = next.guest_test(&mut order);
            number += 1;
            let so_far = match outcome.findings.len() {
                0 => "nothing found".to_owned(),
                found => format!("{found} found"),
            };
            guest.vm(&mut progress)?;
            progress.step(format!("{number}: {}; {so_far}", next.name));
            let Some(Ran { reports, status, wrong }) = guest.run(guest_test, &mut progress)? else {
                outcome.emulator_faults += 1;
                progress.note(&format!("{}: the guest fell over a fault of QEMU's own; in another one", next.name));
                left.push(next);
                continue;
            };
            *outcome.steps.entry(next.name.clone()).or_default() += 1;
            let mut found: Vec<String> = wrong.into_iter().collect();
            for report in &reports {
                if let Some(file) = &mut saved {
                    let line = serde_json::json!({ "step": next.name, "number": number, "report": report });
                    writeln!(file, "{line}").context("cannot save a result")?;
                }
                found.extend(outcome.read(report));
                if next.name == nothing.name {
                    outcome.quiet_gap_ms = outcome.quiet_gap_ms.max(report["gap_ms"].as_f64().unwrap_or_default());
                }
            }
            if is_over.load(Relaxed) {
                break;
            }
            if matches!(status, Status::Code(code) if code != 0) {
                outcome.refused += 1;
            }
            if next.records && found.is_empty() {
                found.extend(replay(&share.path().join(RECORDING), &mut outcome, &mut progress)?);
            }
            for what in found {
                progress.note(&format!("{}: {what}", next.name));
                outcome.findings.push(Finding { step: next.name.clone(), number, what });
            }
        }
        progress.end_step();
        outcome.interrupted = is_over.load(Relaxed);
        outcome.minutes = start.elapsed().as_secs_f64() / 60.0;
        outcome.conclude();
        if let Some(vm) = guest.vm.take() {
            vm.shutdown()?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&outcome)?);
        } else {
            println!("{}", text(&outcome));
        }
        Ok(match &outcome {
            outcome if !outcome.findings.is_empty() => Exit::BrokenPromise.into(),
            outcome if self.check && !outcome.is_within_limits() => Exit::LimitMissed.into(),
            Outcome { interrupted: true, .. } => ExitCode::from(130),
            _ => ExitCode::SUCCESS,
        })
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// Replays what was recorded in the guest. Returns what must not be.
fn replay(recording: &Path, outcome: &mut Outcome, progress: &mut Progress) -> Result<Option<String>> {
    progress.step("replaying");
    let file = File::open(recording).context("the guest test has left no recording")?;
    let replayed = policies::replay().run(file)?;
    outcome.calls_replayed += replayed.replayed;
    outcome.differences += replayed.differences;
    fs::remove_file(recording).context("cannot remove a recording")?;
    Ok(replayed.first.map(|first| format!("{} differences in a replay; the first: {first}", replayed.differences)))
}
