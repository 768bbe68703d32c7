//! `ekiden soak`: everything that policies have to live through, in an order that a seed says, for as long as one likes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::table;
use ekiden_vm::{Kernel, Scratch, Status, Stream, Vm};
use serde::Serialize;
use serde_json::Value;

use crate::{
    failure::{Exit, Failure},
    machine::{GUEST_MODULES, Shape, follow_with, guest_command},
    policies,
    progress::Progress,
    trial::{TRIAL, install, program},
};

/// The policies that have to live through it.
const POLICIES: [&str; 4] = ["fifo", "wfq", "cfs", "eevdf"];
/// All whose modules are needed, with the projects that they are of.
const MODULES: [(&str, &str); 5] = [
    ("policies", "fifo"),
    ("policies", "wfq"),
    ("policies", "cfs"),
    ("policies", "eevdf"),
    ("test-policies", "faulty"),
];
/// For so much longer than when nothing happens a task may stand still because of a fault, in milliseconds.
const GAP_MS_MAX: f64 = 50.0;
/// Where the guest and this side both see a recording.
const RECORDING: &str = "soak.ekirec";

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden soak --vm --parallel --minutes 60            four CPUs that run at once, beside a busy process
  ekiden soak --vm --parallel --minutes 60 --seed 7   the same in another order
  ekiden soak --vm --icount --minutes 5 --json        on CPUs that take turns in one stream of instructions
It goes through what follows again and again, each time in another order: churn and messaging under each policy, recorded and replayed;
a storm under each; policies that replace each other, that come and go beside others, and whose modules are loaded anew; every fault
there is, beside another policy and alone. The same seed takes the same order. Ctrl-C ends it with what was found so far.
Exits with 118 if something was found.")]
pub(crate) struct Soak {
    /// In a virtual machine; nowhere else, as what is tried here may end in the loss of a machine
    #[arg(long, required = true)]
    vm: bool,
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
    /// Exit with 116 if tasks stood still for too long after a fault
    #[arg(long)]
    check: bool,
    /// Write what each trial said to this file as soon as it is known, a line of JSON each
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    if minutes > 0.0 && minutes <= 10_000.0 { Ok(minutes) } else { Err("it is not between 0 and 10000".into()) }
}

/// Something that policies have to live through.
#[derive(Clone)]
struct Step {
    /// As a table says it.
    name: String,
    /// What the trial is told.
    argv: Vec<String>,
    /// Whether it records, to be replayed.
    records: bool,
}

fn step(name: impl Into<String>, argv: &str) -> Step {
    Step { name: name.into(), argv: argv.split(' ').map(str::to_owned).collect(), records: false }
}

/// All of them.
fn steps() -> Vec<Step> {
    let mut steps = vec![
        step("policies replace each other", "upgrades --rounds 100"),
        step("policies beside others", "several"),
        step("modules loaded anew", "reload --rounds 5"),
        step("every fault", "list --rounds 1"),
    ];
    for policy in POLICIES {
        steps.push(Step {
            records: true,
            ..step(format!("loads under {policy}"), &format!("recorded --policy {policy} --to /host/{RECORDING}"))
        });
        steps.push(step(format!("storm under {policy}"), &format!("storm --policy {policy}")));
    }
    steps
}

/// Something that must not be.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    step: String,
    /// Which step it was, counted from 1.
    number: u64,
    what: String,
}

#[derive(Default, Serialize)]
struct Outcome {
    kernel: String,
    seed: u64,
    cpus: u32,
    parallel: bool,
    minutes: f64,
    interrupted: bool,
    /// How often each was gone through.
    steps: BTreeMap<String, u64>,
    /// Of policies that did nothing wrong.
    taken_out: u64,
    faults: u64,
    faults_not_contained: u64,
    /// How long a task stood still at most when nothing happened, and because of a fault.
    quiet_gap_ms: f64,
    fault_gap_ms: f64,
    gap_ms_over: f64,
    gap_ms_over_max: f64,
    /// Which fault it was.
    fault_gap_of: String,
    /// The longest of all beyond what a CPU itself stood still in the same trial, as a real-time task saw it: what no host takes.
    gap_ms_of_ours: f64,
    upgrades: u64,
    /// How often modules were loaded, and changes of all kinds refused.
    loads: u64,
    refused: u64,
    /// How often a guest fell over a fault of QEMU's own and what was going on began anew.
    emulator_faults: u64,
    calls_replayed: u64,
    differences: u64,
    /// For how long interrupts were off at most, per kind of event, in nanoseconds.
    off_ns_max: BTreeMap<String, u64>,
    findings: Vec<Finding>,
}

impl Outcome {
    /// Takes account of what a trial said. Returns what must not be.
    fn read(&mut self, report: &Value) -> Vec<String> {
        let is = |key: &str, value: bool| report[key].as_bool() == Some(value);
        let number = |key: &str| report[key].as_u64().unwrap_or_default();
        let mut wrong = Vec::new();
        if let Some(fault) = report["fault"].as_str().filter(|_| report["contained"].is_boolean()) {
            self.faults += 1;
            if is("contained", false) {
                self.faults_not_contained += 1;
                wrong.push(format!("{fault}: {}", report["reported"].as_str().unwrap_or_default()));
            }
            let gap_ms = report["gap_ms"].as_f64().unwrap_or_default();
            if gap_ms > self.fault_gap_ms {
                (self.fault_gap_ms, self.fault_gap_of) = (gap_ms, fault.to_owned());
            }
            let cpu_ms = report["cpu_ms"].as_f64().unwrap_or_default();
            self.gap_ms_of_ours = self.gap_ms_of_ours.max(gap_ms - cpu_ms);
        }
        if is("still_running", false) {
            self.taken_out += 1;
            wrong.push(format!("the policy was taken out: {report}"));
        }
        if is("back_after_kill", false) {
            wrong.push("tasks were not given back when the loader was killed".into());
        }
        for what in ["mistakes", "surprises", "lost"] {
            if number(what) > 0 {
                wrong.push(format!("{} {what}: {report}", number(what)));
            }
        }
        self.upgrades += number("upgrades");
        self.loads += u64::from(report["unload_ms"].is_u64());
        for (kind, ns) in report["off_ns_max"].as_object().into_iter().flatten() {
            let longest = self.off_ns_max.entry(kind.clone()).or_default();
            *longest = (*longest).max(ns.as_u64().unwrap_or_default());
        }
        wrong
    }
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
    trial: &'a Path,
    vm: Option<Vm>,
}

/// What a trial came to.
struct Ran {
    reports: Vec<Value>,
    status: Status,
    wrong: Option<String>,
}

impl Guest<'_> {
    fn vm(&mut self, progress: &mut Progress) -> Result<&Vm> {
        if self.vm.is_none() {
            progress.step(format!("booting Linux {} on {} CPUs", self.kernel.release(), self.soak.cpus));
            let mut spec = self.soak.shape().spec(self.share);
            spec.programs.push(self.trial.to_owned());
            self.vm = Some(Vm::boot(self.kernel, &spec)?);
        }
        self.vm.as_ref().context("there is no guest")
    }

    /// Runs a trial. Returns what it reported, how it ended, and what must not be; none if the guest fell over its emulator.
    fn run(&mut self, argv: &[String], progress: &mut Progress) -> Result<Option<Ran>> {
        let vm = self.vm(progress)?;
        let mut all = vec![TRIAL.to_owned()];
        all.extend_from_slice(argv);
        all.extend(["--modules".to_owned(), GUEST_MODULES.to_owned()]);
        let (mut printed, mut said) = (Vec::new(), String::new());
        let status = follow_with(vm, &guest_command(all), &mut |stream, bytes| match stream {
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
            (Ok(Status::Signal(_)), None) => None,
            (Ok(status), None) => Some(format!("the trial ended with {status}: {}{}", said.trim(), tail())),
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
            memory: 1024,
            kernel: self.kernel.clone(),
            kvm: false,
            icount: !self.parallel,
            parallel: self.parallel,
            shift: None,
            others: Vec::new(),
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
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
        let steps: Vec<Step> = steps().into_iter().filter(|step| self.wants(&step.name)).collect();
        if steps.is_empty() {
            let names = self::steps().into_iter().map(|step| step.name).collect::<Vec<_>>().join("; ");
            return Err(Failure::new(Exit::Usage, format!("nothing is called like that: {names}")).into());
        }
        let mut progress = Progress::new();
        let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        let mut saved = self.save.as_ref().map(create).transpose()?;
        let kernel = self.shape().fetch(&mut progress)?;
        let share = Scratch::new()?;
        install(&MODULES, &kernel, share.path(), &mut progress)?;
        let trial = program()?;
        let mut guest = Guest { soak: self, kernel: &kernel, share: share.path(), trial: &trial, vm: None };
        let mut outcome = Outcome {
            kernel: kernel.release().to_owned(),
            seed: self.seed,
            cpus: self.cpus,
            parallel: self.parallel,
            gap_ms_over_max: GAP_MS_MAX,
            ..Outcome::default()
        };
        guest.vm(&mut progress)?;
        let start = Instant::now();
        let mut order = fastrand::Rng::with_seed(self.seed);
        let (mut left, mut number) = (Vec::new(), 0);
        while start.elapsed() < Duration::from_secs_f64(60.0 * self.minutes) {
            if left.is_empty() {
                left = steps.clone();
                order.shuffle(&mut left);
                // How long tasks stand still when nothing happens, before each round.
                left.push(step("nothing", "still --seconds 10"));
            }
            let Some(next) = left.pop() else { break };
            number += 1;
            let so_far = match outcome.findings.len() {
                0 => "nothing found".to_owned(),
                found => format!("{found} found"),
            };
            progress.step(format!("{number}: {}; {so_far}", next.name));
            let Some(Ran { reports, status, wrong }) = guest.run(&next.argv, &mut progress)? else {
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
                if next.name == "nothing" {
                    outcome.quiet_gap_ms = outcome.quiet_gap_ms.max(report["gap_ms"].as_f64().unwrap_or_default());
                }
            }
            if matches!(status, Status::Signal(_)) {
                outcome.interrupted = true;
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
        outcome.minutes = start.elapsed().as_secs_f64() / 60.0;
        outcome.gap_ms_over = (outcome.fault_gap_ms - outcome.quiet_gap_ms).max(0.0);
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
            outcome if self.check && outcome.gap_ms_over > GAP_MS_MAX => Exit::LimitMissed.into(),
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
    let file = File::open(recording).context("the trial has left no recording")?;
    let replayed = policies::replay().run(file)?;
    outcome.calls_replayed += replayed.replayed;
    outcome.differences += replayed.differences;
    fs::remove_file(recording).context("cannot remove a recording")?;
    Ok(replayed.first.map(|first| format!("{} differences in a replay; the first: {first}", replayed.differences)))
}

fn text(outcome: &Outcome) -> String {
    let Outcome { kernel, seed, cpus, minutes, .. } = outcome;
    let how = if outcome.parallel { "that run at once" } else { "that take turns" };
    let steps =
        table(&["what", "times"], outcome.steps.iter().map(|(name, times)| vec![name.clone(), times.to_string()]));
    let figure = |name: &str, figure: String, at_most: &str| vec![name.to_owned(), figure, at_most.to_owned()];
    let figures = table(
        &["figure", "reached", "at most"],
        [
            figure("policies taken out that did nothing wrong", outcome.taken_out.to_string(), "0"),
            figure("faults", outcome.faults.to_string(), ""),
            figure("faults not contained", outcome.faults_not_contained.to_string(), "0"),
            figure("upgrades", outcome.upgrades.to_string(), ""),
            figure("modules loaded anew", outcome.loads.to_string(), ""),
            figure("trials that could not be gone through", outcome.refused.to_string(), "0"),
            figure("guests lost by a fault of QEMU's own", outcome.emulator_faults.to_string(), ""),
            figure("calls replayed", outcome.calls_replayed.to_string(), ""),
            figure("replayed with a difference", outcome.differences.to_string(), "0"),
            figure("longest gap when nothing happens, ms", format!("{:.0}", outcome.quiet_gap_ms), ""),
            figure(
                &format!("beyond that after a fault ({}), ms", outcome.fault_gap_of),
                format!("{:.0}", outcome.gap_ms_over),
                &format!("{GAP_MS_MAX:.0}"),
            ),
            figure("beyond what the CPU itself stood still, ms", format!("{:.0}", outcome.gap_ms_of_ours), ""),
        ],
    );
    let findings: Vec<String> = outcome
        .findings
        .iter()
        .map(|finding| format!("step {}, {}: {}", finding.number, finding.step, finding.what))
        .collect();
    let end = match (findings.as_slice(), outcome.interrupted) {
        ([], false) => "nothing was found".to_owned(),
        ([], true) => "nothing was found until it was interrupted".to_owned(),
        (findings, _) => format!("FOUND:\n{}", findings.join("\n")),
    };
    format!("Linux {kernel}, {cpus} CPUs {how}, {minutes:.1} minutes, seed {seed}\n\n{steps}\n\n{figures}\n\n{end}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(report: Value) -> (Outcome, Vec<String>) {
        let mut outcome = Outcome::default();
        let wrong = outcome.read(&report);
        (outcome, wrong)
    }

    #[test]
    fn a_fault_that_is_contained_is_no_finding_and_its_gap_counts() {
        let (outcome, wrong) =
            read(json!({ "fault": "loop", "contained": true, "gap_ms": 12.5, "reported": "an endless loop" }));
        assert!(wrong.is_empty());
        assert_eq!((outcome.faults, outcome.faults_not_contained), (1, 0));
        assert_eq!((outcome.fault_gap_ms, outcome.fault_gap_of.as_str()), (12.5, "loop"));
    }

    #[test]
    fn what_a_cpu_itself_stood_still_is_not_ours() {
        let mut outcome = Outcome::default();
        for (gap_ms, cpu_ms) in [(700.0, 690.0), (40.0, 5.0), (3.0, 8.0)] {
            outcome.read(&json!({ "fault": "loop", "contained": true, "gap_ms": gap_ms, "cpu_ms": cpu_ms }));
        }
        assert_eq!((outcome.fault_gap_ms, outcome.gap_ms_of_ours), (700.0, 35.0));
    }

    #[test]
    fn what_must_not_be_is_found_in_what_a_trial_says() {
        let (outcome, wrong) =
            read(json!({ "fault": "loop", "contained": false, "gap_ms": 1.0, "reported": "nobody saw it" }));
        assert_eq!((outcome.faults_not_contained, wrong), (1, vec!["loop: nobody saw it".to_owned()]));
        let (outcome, wrong) = read(json!({ "still_running": false, "mistakes": 2 }));
        assert_eq!((outcome.taken_out, wrong.len()), (1, 2));
        assert_eq!(read(json!({ "lost": 3 })).1.len(), 1);
        assert_eq!(read(json!({ "back_after_kill": false })).1.len(), 1);
    }

    #[test]
    fn the_longest_times_are_kept() {
        let mut outcome = Outcome::default();
        for ns in [5, 9, 7] {
            assert!(outcome.read(&json!({ "still_running": true, "off_ns_max": { "pick": ns } })).is_empty());
        }
        assert_eq!(outcome.off_ns_max["pick"], 9);
    }

    #[test]
    fn every_policy_that_is_linked_in_is_among_them() {
        let all: Vec<&str> = policies::ALL.iter().map(|linked| linked.name).collect();
        assert_eq!(all, POLICIES);
    }
}
