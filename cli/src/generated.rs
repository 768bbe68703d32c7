//! `ekiden faults --vm --generated N`: policies of a generator, by seed, in virtual machines. What does not come to an end is found by its silence.

use std::{collections::BTreeMap, fs, io::Write as _, ops::Range, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use ekiden_build::{Builder, Checkout, Project, Target};
use ekiden_hostile::{BODIES_MAX, Host};
use ekiden_vm::{Cache, Kernel, Scratch, Status, Stream, Vm};
use serde::{Deserialize, Serialize};

use crate::{
    failure::Exit,
    faults::{Faults, Saved},
    machine::{GUEST_MODULES, follow_with, guest_command},
    progress::Progress,
    trial::{TRIAL, install, program},
};

/// For so long a guest may take for one policy, on average of those that are left, before it counts as hanging.
const EACH: Duration = Duration::from_secs(30);
/// And for what comes before the first.
const BEGINNING: Duration = Duration::from_secs(120);

/// What the trial says of one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    body: u64,
    outcome: String,
    reason: String,
    mistakes: u64,
    ms: u64,
    problem: Option<String>,
}

#[derive(Serialize)]
struct Outcome {
    kernel: String,
    seed: u64,
    cpus: u32,
    parallel: bool,
    policies: u64,
    ended: usize,
    refused: usize,
    harmless: usize,
    /// How often a guest fell over a fault of QEMU's own, and the policy was tried again.
    emulator_faults: u64,
    ms_max: u64,
    reasons: BTreeMap<String, usize>,
    problems: Vec<Seen>,
}

impl Faults {
    /// Goes through so many generated policies, on each number of CPUs.
    pub(crate) fn generated(&self, policies: u64, saved: &mut Saved) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let kernel = self.shape(1).fetch(&mut progress)?;
        let mut outcomes = Vec::new();
        for cpus in &self.cpus {
            let mut outcome = Outcome::new(&kernel, self.seed, *cpus, self.parallel);
            let mut first = 0;
            while first < policies {
                let bodies = first..policies.min(first + BODIES_MAX);
                first = bodies.end;
                let share = Scratch::new()?;
                install_bodies(self.seed, &bodies, &kernel, share.path(), &mut progress)?;
                self.bodies(&kernel, *cpus, &share, bodies, &mut outcome, saved, &mut progress)?;
            }
            outcomes.push(outcome);
        }
        progress.end_step();
        for outcome in &outcomes {
            if self.json {
                println!("{}", serde_json::to_string(outcome)?);
            } else {
                outcome.show();
            }
        }
        let is_good = outcomes.iter().all(|outcome| outcome.problems.is_empty());
        Ok(if is_good { ExitCode::SUCCESS } else { Exit::BrokenPromise.into() })
    }

    /// Those of one module: in one guest, or in another one after each that was lost.
    #[allow(clippy::too_many_arguments)]
    fn bodies(
        &self,
        kernel: &Kernel,
        cpus: u32,
        share: &Scratch,
        bodies: Range<u64>,
        outcome: &mut Outcome,
        saved: &mut Saved,
        progress: &mut Progress,
    ) -> Result<()> {
        let mut next = bodies.start;
        while next < bodies.end {
            progress.step(format!("booting Linux {} on {cpus} CPUs", kernel.release()));
            let mut spec = self.shape(cpus).spec(share.path());
            spec.programs = vec![program()?];
            spec.cmdline = "nohz=off".into();
            let vm = Vm::boot(kernel, &spec)?;
            let lost = self.in_one_guest(&vm, &bodies, &mut next, outcome, saved, progress)?;
            let Some(lost) = lost else {
                vm.shutdown()?;
                continue;
            };
            if vm.console().has_emulator_fault() {
                outcome.emulator_faults += 1;
                continue;
            }
            let problem = format!("{lost}; the guest's console:\n{}", vm.console().tail(40));
            let seen = Seen {
                body: next,
                outcome: "lost".into(),
                reason: String::new(),
                mistakes: 0,
                ms: 0,
                problem: Some(problem),
            };
            saved.line(&seen)?;
            outcome.add(seen, progress);
            next += 1;
        }
        Ok(())
    }

    /// Returns why a guest was lost, while the policy `next` was tried.
    fn in_one_guest(
        &self,
        vm: &Vm,
        bodies: &Range<u64>,
        next: &mut u64,
        outcome: &mut Outcome,
        saved: &mut Saved,
        progress: &mut Progress,
    ) -> Result<Option<String>> {
        let numbers = [("--first", bodies.start), ("--from", *next), ("--count", bodies.end - bodies.start)];
        let mut argv: Vec<String> = [TRIAL, "generated", "--modules", GUEST_MODULES].map(str::to_owned).to_vec();
        argv.extend(numbers.iter().flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]));
        let limit = BEGINNING + EACH * u32::try_from(bodies.end - *next).unwrap_or(u32::MAX);
        let (mut printed, mut said, mut result) = (Vec::new(), String::new(), Ok(()));
        // What the kernel complains of counts against the policy before it, and not against those that follow.
        let mut known = vm.console().findings().len();
        let status = follow_with(vm, &guest_command(argv).timeout(limit), &mut |stream, bytes| match stream {
            Stream::Stderr => said.push_str(&String::from_utf8_lossy(bytes)),
            Stream::Stdout => {
                printed.extend_from_slice(bytes);
                while let Some(end) = printed.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = printed.drain(..=end).collect();
                    let Ok(mut seen) = serde_json::from_slice::<Seen>(&line) else { continue };
                    *next = seen.body + 1;
                    let findings = vm.console().findings();
                    if let (None, Some(finding)) = (&seen.problem, findings.get(known)) {
                        seen.problem = Some(format!("the kernel says: {finding}"));
                    }
                    known = findings.len();
                    progress
                        .step(format!("policy {} of seed {}: {} {}", seen.body, self.seed, seen.outcome, seen.reason));
                    if result.is_ok() {
                        result = saved.line(&seen);
                    }
                    outcome.add(seen, progress);
                }
            }
        });
        result?;
        Ok(match status {
            Ok(Status::Code(0)) => None,
            // Ctrl-C goes to the command, and it is all that is meant.
            Ok(Status::Signal(signal)) => bail!("ended by signal {signal}"),
            Ok(status) => Some(format!("the trial ended with {status}: {}", said.trim())),
            Err(error) => Some(format!("the guest is lost: {error:#}")),
        })
    }
}

/// Builds a module of these bodies, and puts it where a guest sees it, beside that of a good policy.
fn install_bodies(
    seed: u64,
    bodies: &Range<u64>,
    kernel: &Kernel,
    share: &Path,
    progress: &mut Progress,
) -> Result<()> {
    let checkout = Checkout::find()?;
    // One place for all: only the policy itself is compiled anew.
    let directory = Cache::from_env()?.directory("hostile")?;
    ekiden_hostile::write(&directory, checkout.root(), seed, bodies.clone(), Host::Kernel)
        .with_context(|| format!("cannot write policies to {}", directory.display()))?;
    install(&[("policies", "wfq")], kernel, share, progress)?;
    progress.step(format!("building policies {} to {} of seed {seed}", bodies.start, bodies.end - 1));
    let project = Project::open(&directory)?;
    let builder = Builder::new(&Cache::from_env()?, &mut progress.sink())?;
    let modules = builder.build(&Target::fetched(kernel), &project, project.policies(), &mut progress.sink())?;
    let (name, file) = modules.policies.first().context("there is no module")?;
    fs::copy(file, share.join("modules").join(format!("ekiden_{name}.ko"))).context("cannot copy a module")?;
    Ok(())
}

impl Outcome {
    fn new(kernel: &Kernel, seed: u64, cpus: u32, parallel: bool) -> Self {
        Self {
            kernel: kernel.release().to_owned(),
            seed,
            cpus,
            parallel,
            policies: 0,
            ended: 0,
            refused: 0,
            harmless: 0,
            emulator_faults: 0,
            ms_max: 0,
            reasons: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    fn add(&mut self, seen: Seen, progress: &mut Progress) {
        self.policies += 1;
        self.ms_max = self.ms_max.max(seen.ms);
        match seen.outcome.as_str() {
            "ended" => self.ended += 1,
            "refused" => self.refused += 1,
            "harmless" => self.harmless += 1,
            _ => {}
        }
        if !seen.reason.is_empty() {
            *self.reasons.entry(kind(&seen.reason)).or_default() += 1;
        }
        if let Some(problem) = &seen.problem {
            progress.note(&format!("policy {} of seed {} on {} CPUs: {problem}", seen.body, self.seed, self.cpus));
            self.problems.push(seen);
        }
    }

    fn show(&self) {
        let Self { kernel, seed, cpus, policies, ended, refused, harmless, .. } = self;
        let mut text = format!(
            "Linux {kernel}, {cpus} CPUs, seed {seed}: of {policies} generated policies {ended} were taken out with a reason, {refused} did not start, \
             {harmless} did no harm, and {} did what must not be\n",
            self.problems.len()
        );
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons {
            text += &format!("{count:6}  {reason}\n");
        }
        for seen in &self.problems {
            text += &format!("policy {}: {}\n", seen.body, seen.problem.as_deref().unwrap_or_default());
        }
        // A reader that has gone away is no reason to fail.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

/// A reason without what is different each time.
fn kind(reason: &str) -> String {
    let place = reason.find(" at ").or_else(|| reason.find(": ")).unwrap_or(reason.len());
    reason[..place].chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_by_kind() {
        assert_eq!(kind("an endless loop, or nearly, at src/bodies.rs:7"), "an endless loop, or nearly,");
        assert_eq!(kind("task 17 has waited for 1000 ms"), "task ## has waited for #### ms");
    }
}
