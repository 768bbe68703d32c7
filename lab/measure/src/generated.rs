//! `ekiden faults --vm --generated N`: policies of a generator, by seed, in virtual machines. What does not come to an end is found by its silence.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use ekiden_build::{Builder, Checkout, Error, Project, Target};
use ekiden_guest_test::GuestTest;
use ekiden_hostile::{BODIES_MAX, Host};
use ekiden_vm::{Cache, Kernel, Scratch, Status, Stream, Vm};
use serde::{Deserialize, Serialize};

use crate::{
    failure::Exit,
    faults::{Faults, Saved},
    guest_test::{command, install, program},
    machine::{boot, follow_with},
    progress::Progress,
};

/// For so long a guest may take for one policy, on average of those that are left, before it counts as hanging.
const EACH: Duration = Duration::from_secs(30);
/// And for what comes before the first.
const BEGINNING: Duration = Duration::from_secs(120);

/// What the guest test says of one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    body: u64,
    outcome: String,
    reason: String,
    contract_violations: u64,
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
    /// The refused ones of which no module could be made.
    not_built: Vec<Seen>,
    problems: Vec<Seen>,
}

impl Faults {
    /// Goes through this many generated policies, on each number of CPUs.
    pub(crate) fn generated(&self, policies: u64, saved: &mut Saved) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let kernel = self.shape(1).fetch_fair(&mut progress)?;
        let mut outcomes = Vec::new();
        for cpus in &self.cpus {
            let mut outcome = Outcome::new(kernel.release(), self.seed, *cpus, self.parallel);
            let mut first = 0;
            while first < policies {
                let bodies = first..policies.min(first + BODIES_MAX);
                first = bodies.end;
                let share = Scratch::new()?;
                let refused = install_bodies(self.seed, &bodies, &kernel, share.path(), &mut progress)?;
                for those in built(&bodies, &refused) {
                    self.bodies(&kernel, *cpus, &share, bodies.start, those, &mut outcome, saved, &mut progress)?;
                }
                for (body, reason) in refused {
                    let seen = Seen::not_built(body, reason);
                    saved.line(&seen)?;
                    outcome.add_not_built(seen, &mut progress);
                }
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

    /// Some of a module whose first body is `first`: in one guest, or in another one after each that was lost.
    #[allow(clippy::too_many_arguments)]
    fn bodies(
        &self,
        kernel: &Kernel,
        cpus: u32,
        share: &Scratch,
        first: u64,
        bodies: Range<u64>,
        outcome: &mut Outcome,
        saved: &mut Saved,
        progress: &mut Progress,
    ) -> Result<()> {
        let mut next = bodies.start;
        while next < bodies.end {
            progress.step(format!("booting Linux {} on {cpus} CPUs", kernel.release()));
            let mut spec = self.shape(cpus).fair_spec(share.path());
            spec.programs = vec![program(progress)?];
            spec.cmdline = "nohz=off".into();
            let vm = boot(kernel, &spec)?;
            let lost = self.in_one_guest(&vm, first, &bodies, &mut next, outcome, saved, progress)?;
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
                contract_violations: 0,
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
    #[allow(clippy::too_many_arguments)]
    fn in_one_guest(
        &self,
        vm: &Vm,
        first: u64,
        bodies: &Range<u64>,
        next: &mut u64,
        outcome: &mut Outcome,
        saved: &mut Saved,
        progress: &mut Progress,
    ) -> Result<Option<String>> {
        let generated = GuestTest::Generated { first, from: *next, count: bodies.end - first };
        let limit = BEGINNING + EACH * u32::try_from(bodies.end - *next).unwrap_or(u32::MAX);
        let (mut printed, mut said, mut result) = (Vec::new(), String::new(), Ok(()));
        // What the kernel complains of counts against the policy before it, and not against those that follow.
        let mut known = vm.console().findings().len();
        let status = follow_with(vm, &command(generated)?.timeout(limit), &mut |stream, bytes| match stream {
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
            Ok(status) => Some(format!("the guest test ended with {status}: {}", said.trim())),
            Err(error) => Some(format!("the guest is lost: {error:#}")),
        })
    }
}

/// Builds a module of these bodies, and puts it where a guest sees it, beside that of a good policy. Returns which of them are not in it, as
/// `ekiden build` refuses them, and why.
fn install_bodies(
    seed: u64,
    bodies: &Range<u64>,
    kernel: &Kernel,
    share: &Path,
    progress: &mut Progress,
) -> Result<BTreeMap<u64, String>> {
    let checkout = Checkout::find()?;
    // One place for all: only the policy itself is compiled anew.
    let directory = Cache::from_env()?.directory("hostile")?;
    install(&[("policies", "wfq")], kernel, share, progress)?;
    let cache = Cache::from_env()?;
    let builder = Builder::new(&cache, &mut progress.sink())?;
    let build = |without: &BTreeSet<u64>| -> Result<Result<PathBuf, Error>> {
        ekiden_hostile::write(&directory, checkout.root(), seed, bodies.clone(), without, Host::Kernel)
            .with_context(|| format!("cannot write policies to {}", directory.display()))?;
        let left_out = if without.is_empty() { String::new() } else { format!(", without {}", without.len()) };
        progress.step(format!("building policies {} to {} of seed {seed}{left_out}", bodies.start, bodies.end - 1));
        let project = Project::open(&directory)?;
        let built = builder.build(&Target::fetched(kernel), &project, project.policies(), &mut progress.sink());
        Ok(match built {
            Ok(modules) => Ok(modules.policies.into_iter().next().context("there is no module")?.1),
            Err(error) if is_refusal(&error) => Err(error),
            Err(error) => return Err(error.into()),
        })
    };
    let source = |without: &BTreeSet<u64>| ekiden_hostile::source(seed, bodies.clone(), without, Host::Kernel);
    let named = |reason: &str, without: &BTreeSet<u64>| {
        lines_named(reason).find_map(|line| ekiden_hostile::body_at(&source(without), line))
    };
    let (file, refused) = sift(bodies, build, named)?;
    fs::copy(file, share.join("modules").join(format!("ekiden_{}.ko", ekiden_hostile::POLICY)))
        .context("cannot copy a module")?;
    Ok(refused)
}

/// Whether it is because of what a policy does that no module was made of it.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::Compile { .. }
            | Error::Unfit { .. }
            | Error::Fuel { .. }
            | Error::Kbuild { .. }
            | Error::Warnings { .. }
    )
}

/// The lines of the bodies' source that a refusal names.
fn lines_named(reason: &str) -> impl Iterator<Item = usize> {
    let places = reason.split("src/bodies.rs:").skip(1);
    places.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
}

/// Leaves out what is refused until the rest can be built. `build` builds all but some; `named` says which body a refusal names. Where it names
/// none that is left, they are halved until one is refused by itself.
///
/// # Errors
/// If the build fails for another reason, or without any of them.
fn sift<T, E: std::error::Error + Send + Sync + 'static>(
    bodies: &Range<u64>,
    mut build: impl FnMut(&BTreeSet<u64>) -> Result<Result<T, E>>,
    named: impl Fn(&str, &BTreeSet<u64>) -> Option<u64>,
) -> Result<(T, BTreeMap<u64, String>)> {
    let (mut without, mut refused) = (BTreeSet::new(), BTreeMap::new());
    loop {
        let error = match build(&without)? {
            Ok(built) => return Ok((built, refused)),
            Err(error) => error,
        };
        let reason = error.to_string();
        let named = named(&reason, &without).filter(|body| bodies.contains(body) && !without.contains(body));
        let (body, reason) = match named {
            Some(body) => (body, reason),
            None => {
                build(&bodies.clone().collect())?.context("not even without any of the policies")?;
                let left: Vec<u64> = bodies.clone().filter(|body| !without.contains(body)).collect();
                alone(bodies, &left, &mut build)?.ok_or(error).context("only some of the policies together")?
            }
        };
        without.insert(body);
        refused.insert(body, reason);
    }
}

/// Finds a body that is refused without the others, and the reason.
fn alone<T, E: std::error::Error>(
    bodies: &Range<u64>,
    left: &[u64],
    build: &mut impl FnMut(&BTreeSet<u64>) -> Result<Result<T, E>>,
) -> Result<Option<(u64, String)>> {
    let without = bodies.clone().filter(|body| !left.contains(body)).collect();
    let Err(error) = build(&without)? else { return Ok(None) };
    if let [body] = left {
        return Ok(Some((*body, error.to_string())));
    }
    let (first, second) = left.split_at(left.len() / 2);
    let found = alone(bodies, first, build)?;
    if found.is_some() { Ok(found) } else { alone(bodies, second, build) }
}

/// Bodies that a module has, in ranges without the refused ones.
fn built(bodies: &Range<u64>, refused: &BTreeMap<u64, String>) -> Vec<Range<u64>> {
    let ends = refused.keys().copied().chain([bodies.end]);
    let begins = [bodies.start].into_iter().chain(refused.keys().map(|body| body + 1));
    begins.zip(ends).map(|(begin, end)| begin..end).filter(|those| !those.is_empty()).collect()
}

impl Seen {
    fn not_built(body: u64, reason: String) -> Self {
        Self { body, outcome: "refused".into(), reason, contract_violations: 0, ms: 0, problem: None }
    }
}

impl Outcome {
    fn new(kernel: &str, seed: u64, cpus: u32, parallel: bool) -> Self {
        Self {
            kernel: kernel.to_owned(),
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
            not_built: Vec::new(),
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

    /// Adds a policy of which no module could be made.
    fn add_not_built(&mut self, seen: Seen, progress: &mut Progress) {
        progress.note(&format!("policy {} of seed {} cannot be built: {}", seen.body, self.seed, seen.reason));
        self.not_built.push(seen.clone());
        self.add(seen, progress);
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
        for seen in &self.not_built {
            text += &format!("policy {} was not built: {}\n", seen.body, seen.reason);
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

    /// A compiler that refuses some bodies, one at a time, and names those that it can.
    fn sifted(bad: &[u64], names: bool) -> (Result<BTreeMap<u64, String>>, usize) {
        let mut builds = 0;
        let build = |without: &BTreeSet<u64>| {
            builds += 1;
            let found = bad.iter().find(|body| !without.contains(body));
            Ok(found.map_or(Ok(()), |body| Err(std::io::Error::other(format!("b{body} has a frame of 9000 bytes")))))
        };
        let named = |reason: &str, _: &BTreeSet<u64>| {
            reason.strip_prefix('b').filter(|_| names)?.split(' ').next()?.parse().ok()
        };
        let refused = sift(&(100..120), build, named).map(|(_, refused)| refused);
        (refused, builds)
    }

    #[test]
    fn policies_that_are_refused_are_named_and_the_rest_is_built() {
        assert_eq!(sifted(&[], true).0.unwrap(), BTreeMap::new());
        for names in [true, false] {
            let (refused, builds) = sifted(&[104, 119, 100], names);
            let reason = |body: u64| (body, format!("b{body} has a frame of 9000 bytes"));
            assert_eq!(refused.unwrap(), BTreeMap::from([100, 104, 119].map(reason)));
            assert!(builds <= if names { 4 } else { 40 }, "{builds} builds");
        }
    }

    #[test]
    fn what_is_no_policys_fault_ends_the_search() {
        // Outside of all bodies: it is there whatever is left out.
        let (refused, builds) = sifted(&[7], true);
        let told = format!("{:#}", refused.unwrap_err());
        assert!(told.starts_with("not even without any of the policies: b7"), "{told}");
        assert_eq!(builds, 2);
    }

    #[test]
    fn what_is_not_refused_is_run_in_pieces_around_what_is() {
        let refused = |bodies: &[u64]| bodies.iter().map(|body| (*body, String::new())).collect();
        let whole = built(&(10..20), &refused(&[]));
        assert_eq!((whole.len(), &whole[0]), (1, &(10..20)));
        assert_eq!(built(&(10..20), &refused(&[10, 13, 14, 19])), [11..13, 15..19]);
        assert!(built(&(10..12), &refused(&[10, 11])).is_empty());
    }

    #[test]
    fn what_cannot_be_built_counts_as_refused_with_its_reason() {
        let mut outcome = Outcome::new("", 7, 1, false);
        outcome.add_not_built(Seen::not_built(3, "a frame of 9000 bytes".into()), &mut Progress::new());
        assert_eq!((outcome.policies, outcome.refused, outcome.problems.len()), (1, 1, 0));
        assert_eq!((outcome.not_built[0].body, outcome.reasons["a frame of #### bytes"]), (3, 1));
    }

    #[test]
    fn lines_that_a_refusal_names_are_found() {
        let lines: Vec<_> = lines_named("at src/bodies.rs:17:5, called in src/bodies.rs:9, not src/lib.rs:3").collect();
        assert_eq!(lines, [17, 9]);
    }

    #[test]
    fn reasons_are_counted_by_kind() {
        assert_eq!(kind("an endless loop, or nearly, at src/bodies.rs:7"), "an endless loop, or nearly,");
        assert_eq!(kind("task 17 has waited for 1000 ms"), "task ## has waited for #### ms");
    }
}
