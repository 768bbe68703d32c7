//! `ekiden bench applications`: programs that people know, under the kernel's own scheduler, plain BPF, policies, and others.

mod programs;
mod read;
mod scx;
mod turn;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Applications, Boot, Incident, Sample};
use ekiden_loader::{Beside, Queues, Recording, ShortRecorder, sysfs};
use ekiden_vm::{Cache, GuestCommand, Vm, program_disk};
use serde::{Deserialize, Serialize};

use self::{
    programs::{ALL, Program},
    turn::{Interrupted, Place},
};
use super::{
    Output, Unit, Verdict,
    candidates::{Candidate, PolicyArgs, UNRECORDED},
    guest::{Clock, InVm},
    load,
};
use crate::{
    failure::{Exit, Failure},
    fidelity::{RING_BYTES, copy_traces, keep_trace},
    markdown,
    progress::Progress,
    request::{Measurement, ask},
    session,
};

/// Where the disk with programs is in a guest.
const ROOT: &str = "/programs";

/// Makes it a root: read-only but for what is temporary.
const MOUNT: &str = "mkdir -p /programs; mount -t ext4 -o ro,noatime /dev/vda /programs
for name in proc sys dev; do mount --bind /$name /programs/$name; done
mount -t tmpfs tmpfs /programs/tmp; mount -t tmpfs tmpfs /programs/run";

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench applications --vm --report page.html
      everything, with 1, 2, 4 and 8 CPUs: takes hours where the CPUs are
      emulated
  ekiden bench applications --vm --cpus 2 --only redis --policy wfq
  ekiden bench applications --vm --cpus 4 --json > four.json
      one part of it, and later:
  ekiden bench applications --from two.json --from four.json --report page.html
  sudo ekiden bench applications --only nginx
      the programs that this machine has
  ekiden bench applications --vm --cpus 2 --only hackbench --traces traces
  ekiden explain traces/2-cpus-default-hackbench traces/2-cpus-wfq-hackbench
      why it was slower or faster there
Each scheduler gets its turn with all programs, one scheduler after the other,
and once before for nothing but counts of migrations. Programs are described in
lab/measure/src/bench/applications/programs.rs.")]
pub(crate) struct ApplicationsBench {
    #[command(flatten)]
    what: Programs,
    /// Measure in virtual machines with Debian's programs instead of on this one
    #[arg(long)]
    vm: bool,
    /// Processors of the virtual machines, one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_values = ["1", "2", "4", "8"],
          value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: Vec<u32>,
    /// Their memory
    #[arg(
        id = "memory",
        long = "memory",
        value_name = "MIB",
        default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(512..)
    )]
    memory_mib: u32,
    /// Their kernel's release, or the beginning of one; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Run them on the processor itself instead of counting instructions
    #[arg(long)]
    kvm: bool,
    /// Measure nothing; show what was printed with --json earlier; may be given several times
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Write one page with pictures for the browser
    #[arg(long, value_name = "PAGE")]
    report: Option<PathBuf>,
    /// Put the tables into this document, in the place that is marked there
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Which programs are measured under which schedulers, and how often.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Programs {
    /// The policies to compare
    #[arg(long = "policy", value_name = "POLICY", default_values = ["fifo", "wfq", "eevdf", "cfs"])]
    policies: Vec<String>,
    /// A scheduler of sched_ext's own kind, as a program that runs until it is interrupted: scx_bpfland, for example
    #[arg(long, value_name = "PROGRAM")]
    scx: Vec<PathBuf>,
    #[command(flatten)]
    source: PolicyArgs,
    /// Run policies without their flight recorder
    #[arg(long)]
    unrecorded: bool,
    /// Measure this program only; may be given several times
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(ALL.iter().map(|program| program.name)))]
    only: Vec<String>,
    /// How often each scheduler gets its turn; one more turn comes before
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Record each program's first turn under each scheduler, and keep the traces in this directory, for `ekiden explain`
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Where the root of the programs is, if it is not that of the machine.
    #[arg(skip)]
    root: Option<PathBuf>,
}

impl ApplicationsBench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let boots = if !self.from.is_empty() {
            self.from.iter().map(|file| earlier(file)).collect::<Result<Vec<_>>>()?.concat()
        } else if self.vm {
            self.in_guests()?
        } else {
            match self.what.measure(Unit::Ns) {
                Ok(boot) => vec![boot],
                Err(error) => return interrupted(error),
            }
        };
        let all = Applications::new(boots);
        if let Some(page) = &self.report {
            fs::write(page, all.to_page()).with_context(|| format!("cannot write {}", page.display()))?;
        }
        if let Some(document) = &self.markdown {
            markdown::write_into(document, "ekiden bench applications", &all.to_markdown())?;
        }
        let verdict = Verdict { all_stayed: all.all_stayed(), limits_met: all.passed || !all.all_stayed() };
        self.output.show(&all, &all.to_text(), &verdict)
    }

    /// One machine after the other.
    fn in_guests(&self) -> Result<Vec<Boot>> {
        let mut progress = Progress::new();
        progress.step("finding the programs");
        let disk = program_disk(&Cache::from_env()?, &programs::packages(), &mut progress.sink())?;
        progress.end_step();
        drop(progress);
        self.cpus.iter().map(|cpus| self.in_guest(*cpus, &disk)).collect()
    }

    fn in_guest(&self, cpus: u32, disk: &Path) -> Result<Boot> {
        let mut vm = InVm::of(cpus, 1, self.memory_mib, self.kernel.clone(), self.what.scx.clone());
        vm.shape.kvm = self.kvm;
        vm.shape.disk = Some(disk.to_owned());
        // Programs of several tasks show when each has its turn. Where a busy CPU leaves the others none, they show nothing else.
        vm.with_guest(&self.what.source, &self.what.policies, Clock::Fair, |vm, share, unit, progress| {
            progress.step(format!("measuring programs on {cpus} CPUs"));
            mount(vm)?;
            let there = Programs {
                scx: self.what.scx.iter().map(|program| scx::name(program).into()).collect(),
                traces: self.what.traces.as_ref().map(|_| "/host/traces".into()),
                root: Some(ROOT.into()),
                ..self.what.clone()
            };
            let boot = ask(vm, &there, unit, &mut |line| progress.note(line))?;
            if let Some(traces) = &self.what.traces {
                copy_traces(&share.join("traces"), traces)?;
            }
            Ok(boot)
        })
    }
}

impl Measurement for Programs {
    type Figures = Boot;

    /// On the machine that this runs on.
    fn measure(&self, unit: Unit) -> Result<Boot> {
        let mut progress = Progress::new();
        session::preflight(Beside::Nobody)?;
        let mut directory = PathBuf::new();
        for policy in &self.policies {
            directory = self.source.for_this_machine(policy, &mut progress)?;
        }
        let scratch = tempfile::Builder::new()
            .prefix("ekiden-applications-")
            // One of the programs is no program of root's.
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir_in(self.root.as_deref().unwrap_or(Path::new("/")).join("tmp"))
            .context("cannot create a directory for the programs")?;
        let inside = Path::new("/tmp").join(scratch.path().file_name().unwrap_or_default());
        let place = Place::new(self.root.as_deref(), &inside)?;
        let cpus = std::thread::available_parallelism().context("cannot tell the number of CPUs")?.get() as u32;
        let counts_instructions = unit == Unit::Instructions;
        let mut boot = Boot { kernel: load::kernel_release()?, cpus, counts_instructions, ..Boot::default() };
        let programs = self.prepare(&place, &mut boot, &mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        for turn in 0..=self.repeat {
            for scheduler in self.schedulers() {
                let name = scheduler.name();
                let work = || {
                    for program in &programs {
                        progress.step(format!("turn {turn} of {}: {name}, {}", self.repeat, program.name));
                        let traces = self.traces.as_deref().filter(|_| turn == 0);
                        let recorder = traces.map(|_| ShortRecorder::start(RING_BYTES, program.name)).transpose()?;
                        let stayed = one(&place, program, &scheduler, turn == 0, &mut boot)?;
                        if let (Some(traces), Some(recorder)) = (traces, recorder) {
                            keep(&recorder.stop(), traces, program, &name, &mut boot)?;
                        }
                        if !stayed {
                            break;
                        }
                    }
                    Ok(())
                };
                match &scheduler {
                    Scheduler::Ours(candidate) => drop(candidate.run(&directory, work)?),
                    Scheduler::Other(program) => scx::run(program, work)?,
                }
            }
        }
        Ok(boot)
    }
}

impl Programs {
    fn chosen(&self) -> impl Iterator<Item = &'static Program> {
        ALL.iter().filter(|program| self.only.is_empty() || self.only.iter().any(|name| name == program.name))
    }

    /// The programs that can be measured.
    fn prepare(&self, place: &Place, boot: &mut Boot, progress: &mut Progress) -> Result<Vec<&'static Program>> {
        let mut ready = Vec::new();
        for program in self.chosen() {
            progress.step(format!("preparing {}", program.name));
            let prepared = match place.lacks(program) {
                Some(name) => {
                    let packages = program.packages.join(" ");
                    Err(anyhow::anyhow!("`{name}` is not installed: apt-get install {packages}, or measure with --vm"))
                }
                None => place.prepare(program),
            };
            match prepared {
                Ok(()) => ready.push(program),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => note(boot, program, None, false, format!("{error:#}")),
            }
        }
        if ready.is_empty() {
            let whats: Vec<&str> = boot.incidents.iter().map(|incident| incident.what.as_str()).collect();
            let message = format!("there is nothing to measure: {}", whats.join("; "));
            return Err(Failure::new(Exit::Missing, message).into());
        }
        Ok(ready)
    }

    /// The schedulers in the order in which they take turns.
    fn schedulers(&self) -> Vec<Scheduler> {
        let policy = |policy: &String| match self.unrecorded {
            true => Candidate::Unrecorded { policy: policy.clone(), name: format!("{policy}{UNRECORDED}") },
            false => Candidate::Policy(policy.clone()),
        };
        let plain = [Candidate::Default, Candidate::Bpf(Queues::PerCpu)];
        let ours = plain.into_iter().chain(self.policies.iter().map(policy)).map(Scheduler::Ours);
        ours.chain(self.scx.iter().cloned().map(Scheduler::Other)).collect()
    }
}

/// A signal that asked for the end gives the exit code; any other error stays one.
pub(crate) fn interrupted(error: anyhow::Error) -> Result<ExitCode> {
    match error.downcast_ref() {
        Some(Interrupted(signal)) => {
            eprintln!("ekiden: {error}");
            Ok(ExitCode::from(128_u8.saturating_add(*signal as u8)))
        }
        None => Err(error),
    }
}

/// What takes turns.
enum Scheduler {
    Ours(Candidate),
    Other(PathBuf),
}

impl Scheduler {
    fn name(&self) -> String {
        match self {
            Self::Ours(candidate) => candidate.name().to_owned(),
            Self::Other(program) => scx::name(program),
        }
    }

    /// Whether the kernel uses it.
    fn is_in_charge(&self) -> bool {
        let now = sysfs::scheduler();
        match self {
            Self::Ours(candidate) => now == candidate.kernel_name(),
            Self::Other(_) => now.is_some(),
        }
    }
}

/// Measures one program once. False if the scheduler is gone.
fn one(place: &Place, program: &Program, scheduler: &Scheduler, counting: bool, boot: &mut Boot) -> Result<bool> {
    let name = scheduler.name();
    let measured = place.measure(program, counting);
    let stayed = scheduler.is_in_charge();
    match measured {
        Err(error) if error.is::<Interrupted>() => return Err(error),
        _ if !stayed => note(boot, program, Some(&name), true, "the kernel has taken the scheduler out".to_owned()),
        Err(error) => note(boot, program, Some(&name), false, format!("{error:#}")),
        Ok(figures) => boot.samples.extend(figures.into_iter().map(|(measure, value)| Sample {
            program: program.name.to_owned(),
            measure,
            scheduler: name.clone(),
            value,
        })),
    }
    Ok(stayed)
}

/// Keeps a trace, which is called after the number of CPUs, the scheduler and the program.
fn keep(recording: &Recording, traces: &Path, program: &Program, scheduler: &str, boot: &mut Boot) -> Result<()> {
    if recording.lost > 0 {
        let what = format!("{} records of its trace were lost, so there is none", recording.lost);
        note(boot, program, Some(scheduler), false, what);
        return Ok(());
    }
    keep_trace(&recording.trace, traces, &format!("{}-cpus", boot.cpus), scheduler, program.name)
}

fn note(boot: &mut Boot, program: &Program, scheduler: Option<&str>, was_taken_out: bool, what: String) {
    eprintln!("ekiden: {}, {}: {what}", program.name, scheduler.unwrap_or("every scheduler"));
    let scheduler = scheduler.map(str::to_owned);
    boot.incidents.push(Incident { program: program.name.to_owned(), scheduler, was_taken_out, what });
}

fn mount(vm: &Vm) -> Result<()> {
    let script = GuestCommand::new(["sh", "-ec", MOUNT]);
    vm.run_ok(&script).context("the guest cannot read its disk of programs")?;
    Ok(())
}

/// What an earlier run has measured.
fn earlier(file: &Path) -> Result<Vec<Boot>> {
    let failed = || format!("{} is not what --json printed", file.display());
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let all: Applications = serde_json::from_str(&text).with_context(failed)?;
    Ok(all.boots)
}
