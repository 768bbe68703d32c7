//! `ekiden faults`: has a policy go wrong in every way there is, in virtual machines, and says what came of it.

use std::{collections::BTreeMap, fs::File, io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::table;
use ekiden_guest_test::{GuestTest, Part};
use ekiden_vm::{Scratch, Status, Stream, Vm};
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Exit, Failure},
    guest_test::{command, install, program},
    machine::{Shape, boot, follow_with},
    progress::Progress,
};

/// The policy that goes wrong, and the one beside it, with the projects that they are of.
const POLICIES: [(&str, &str); 2] = [("policies", "wfq"), ("lab/test-policies", "faulty")];
/// No task may stand still for longer, in milliseconds.
const GAP_MS_MAX: f64 = 50.0;
/// Lines that are shown of what the kernel complains about: its first warning with the calls that led to it.
const FINDING_LINES: usize = 40;

/// `ekiden faults`: what comes of a policy that goes wrong.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden faults --vm
      the whole list, on 1, 2 and 4 CPUs
  ekiden faults --vm --cpus 2 --only loop,lock
      those whose names have one of these words
  ekiden faults --vm --rounds 20 --save out.json
      takes an hour or two; what is known so far is in the file
  ekiden faults --vm --generated 1000 --seed 7 --cpus 4
      policies of a generator instead of the list
Each happens beside another policy, which has to keep running, and to a policy
that is alone, whose tasks the kernel's own scheduler takes over. The figures
are the longest time, in the guest's milliseconds, that any of some threads
which are always runnable or about to be stood still. Exits with 118 if a fault
was not contained, and with 116 if that took longer than 50 ms.")]
pub struct Faults {
    /// In virtual machines; nowhere else, as what is tried here may end in the loss of a machine
    #[arg(long, required = true)]
    vm: bool,
    /// With how many processors, one machine after the other
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: Vec<u32>,
    /// How often each fault happens, in another call of the policy each time
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Only faults whose names have one of these in them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// So many policies that a generator writes, instead of the list: each ends with a reason or does no harm, and a good one loads after it
    #[arg(long, value_name = "N", conflicts_with_all = ["rounds", "only"], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    generated: Option<u64>,
    /// Which policies these are
    #[arg(long, value_name = "N", default_value_t = 1, requires = "generated")]
    pub(crate) seed: u64,
    /// On CPUs that run at once, each in a thread of the emulator
    #[arg(long, requires = "generated")]
    pub(crate) parallel: bool,
    /// The kernel's release, or the beginning of one; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write each result to this file as soon as it is known, a line of JSON each
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// What the guest test says of one fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    fault: String,
    beside: bool,
    round: u32,
    cpus: u32,
    contained: bool,
    gap_ms: f64,
    who: String,
    until_ms: f64,
    cpu_ms: f64,
    after_ms: f64,
    reported: String,
}

#[derive(Serialize)]
struct Table {
    kernel: String,
    gap_ms_max: f64,
    all_contained: bool,
    all_in_time: bool,
    faults: Vec<Seen>,
}

/// The file for results, if there is one.
pub(crate) struct Saved(Option<File>);

impl Saved {
    fn new(path: Option<&PathBuf>) -> Result<Self> {
        let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        path.map(create).transpose().map(Self)
    }

    /// Writes a result.
    pub(crate) fn line(&mut self, result: &impl Serialize) -> Result<()> {
        match &mut self.0 {
            Some(file) => writeln!(file, "{}", serde_json::to_string(result)?).context("cannot save a result"),
            None => Ok(()),
        }
    }
}

impl Faults {
    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let mut saved = Saved::new(self.save.as_ref())?;
        if let Some(policies) = self.generated {
            return self.generated(policies, &mut saved);
        }
        let kernel = self.shape(1).fetch_fair(&mut progress)?;
        let share = Scratch::new()?;
        install(&POLICIES, &kernel, share.path(), &mut progress)?;
        let guest_test = program(&mut progress)?;
        let mut seen: Vec<Seen> = Vec::new();
        for cpus in &self.cpus {
            progress.step(format!("booting Linux {} on {cpus} CPUs", kernel.release()));
            let mut spec = self.shape(*cpus).exact_spec(share.path());
            spec.fair_turns = true;
            // Nothing else is needed there, and all of it has to be unpacked.
            spec.programs = vec![guest_test.clone()];
            // Timers of idle CPUs come late otherwise when the emulator takes turns.
            spec.cmdline = "nohz=off".into();
            let vm = boot(&kernel, &spec)?;
            self.in_guest(&vm, &mut |one| {
                progress.step(format!(
                    "{cpus} CPUs, round {}: {} {}: {:.0} ms",
                    one.round,
                    one.fault,
                    place(one.beside),
                    one.gap_ms
                ));
                if !one.contained {
                    let (fault, reported, console) = (&one.fault, &one.reported, vm.console().tail(40));
                    progress.note(&format!("{fault} on {cpus} CPUs: {reported}; the guest's console:\n{console}"));
                }
                saved.line(&one)?;
                seen.push(one);
                Ok(())
            })?;
            vm.shutdown()?;
        }
        progress.end_step();
        let result = Table {
            kernel: kernel.release().to_owned(),
            gap_ms_max: GAP_MS_MAX,
            all_contained: seen.iter().all(|seen| seen.contained),
            all_in_time: seen.iter().all(|seen| seen.gap_ms <= GAP_MS_MAX),
            faults: seen,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&result)?);
        } else {
            println!("{}", self.text(&result));
        }
        Ok(match &result {
            Table { all_contained: false, .. } => Exit::BrokenPromise.into(),
            Table { all_in_time: false, .. } => Exit::LimitMissed.into(),
            _ => ExitCode::SUCCESS,
        })
    }

    /// A machine with this many CPUs.
    pub(crate) fn shape(&self, cpus: u32) -> Shape {
        Shape {
            cpus,
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

    /// Goes through the list in a guest. What the kernel complains of counts against the last fault.
    fn in_guest(&self, vm: &Vm, report: &mut dyn FnMut(Seen) -> Result<()>) -> Result<()> {
        let list = GuestTest::List { rounds: self.rounds, only: self.only.clone(), beside: None, part: Part::ALL };
        let (mut printed, mut said, mut reported) = (Vec::new(), String::new(), Ok(()));
        let status = follow_with(vm, &command(list)?, &mut |stream, bytes| match stream {
            Stream::Stderr => said.push_str(&String::from_utf8_lossy(bytes)),
            Stream::Stdout => {
                printed.extend_from_slice(bytes);
                while let Some(end) = printed.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = printed.drain(..=end).collect();
                    let Ok(mut one) = serde_json::from_slice::<Seen>(&line) else { continue };
                    let finding = vm.console().first_finding(FINDING_LINES);
                    if one.contained && !finding.is_empty() {
                        (one.contained, one.reported) = (false, format!("the kernel says:\n{finding}"));
                    }
                    if reported.is_ok() {
                        reported = report(one);
                    }
                }
            }
        })?;
        reported?;
        if status != Status::Code(0) {
            let message =
                format!("the guest test ended with {status}: {said}; the guest's console:\n{}", vm.console().tail(40));
            return Err(Failure::new(Exit::BrokenPromise, message).into());
        }
        Ok(())
    }

    /// A row for each fault: the longest gap for each number of CPUs, and the final report.
    fn text(&self, result: &Table) -> String {
        let mut order = Vec::new();
        let mut rows: BTreeMap<(&str, bool), Vec<&Seen>> = BTreeMap::new();
        for seen in &result.faults {
            let row = rows.entry((&seen.fault, seen.beside)).or_default();
            if row.is_empty() {
                order.push((seen.fault.as_str(), seen.beside));
            }
            row.push(seen);
        }
        let counts: Vec<String> = self.cpus.iter().map(|cpus| format!("{cpus} CPUs")).collect();
        let heading: Vec<&str> =
            ["fault", "policy"].into_iter().chain(counts.iter().map(String::as_str)).chain(["reported"]).collect();
        let mut lines = Vec::new();
        for (fault, beside) in order {
            let row = &rows[&(fault, beside)];
            let mut line = vec![fault.to_owned(), place(beside).to_owned()];
            line.extend(self.cpus.iter().map(|cpus| cell(row.iter().filter(|seen| seen.cpus == *cpus))));
            let worst = row.iter().find(|seen| !seen.contained).or(row.last());
            line.push(worst.map_or_else(String::new, |seen| seen.reported.clone()));
            lines.push(line);
        }
        let sum = |what: bool, good: &str, bad: &str| if what { good.to_owned() } else { bad.to_owned() };
        format!(
            "Linux {}: longest gap of any task, in ms of the guest's time; – where a fault cannot be\n\n{}\n{}; {}",
            result.kernel,
            table(&heading, lines),
            sum(result.all_contained, "all are contained", "NOT ALL ARE CONTAINED"),
            sum(result.all_in_time, "none took longer than 50 ms", "some took longer than 50 ms"),
        )
    }
}

fn place(beside: bool) -> &'static str {
    if beside { "beside another" } else { "alone" }
}

fn cell<'a>(seen: impl Iterator<Item = &'a &'a Seen>) -> String {
    let (mut gap_ms, mut any, mut contained) = (0_f64, false, true);
    for seen in seen {
        (any, contained, gap_ms) = (true, contained && seen.contained, gap_ms.max(seen.gap_ms));
    }
    match (any, contained) {
        (false, _) => "–".into(),
        (true, true) => format!("{gap_ms:.0}"),
        (true, false) => "LOST".into(),
    }
}
