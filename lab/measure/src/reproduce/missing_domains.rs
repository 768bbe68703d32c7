//! `ekiden reproduce missing-domains`: figure 5 of papers/002 in a stock kernel, with the bug and without, in a virtual machine
//! of eight NUMA nodes.
//!
//! The threads use CPU time and not work, because emulated CPUs share one of the host's: see `ekiden_workload::real::threads`.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::table;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_page::Notes;
use ekiden_trace::{Header, Record, What};
use ekiden_vm::{Scratch, Status, Vm};
use ekiden_workload::real::threads;
use serde::Serialize;

use crate::{
    bench::{
        candidates::PolicyArgs,
        guest::{Clock, InVm},
    },
    considered,
    failure::{Exit, Failure},
    guest_run::GuestRun,
    machine::{follow_with, guest_command},
    output::{Output, open_trace},
    progress::Progress,
    report,
};

const POLICY: &str = "cfs";

/// The machine: as many nodes as the paper's, each as small as can be.
const CPUS: u32 = 16;
const NODES: u32 = 8;
const MEMORY_MIB: u32 = 2_048;

/// How much longer it has to take: the least that table 3 of papers/002 has.
const LEAST: f64 = 4.0;

/// A node had work if its CPUs were busy with threads of the load for so much of the time of one CPU.
const BUSY: f64 = 0.1;

/// The shell of the guest: a CPU leaves and comes back, then the threads are started, and recorded; the calls too, from the start of
/// the policy on, so that a replay tells at which CPUs it looked.
const SCRIPT: &str = "set -e; cpu=/sys/devices/system/cpu/cpu3/online; echo 0 > $cpu; echo 1 > $cpu; \
    ekiden trace record \"$0.zst\" -- ekiden-load threads --count \"$1\" --cpu-ms \"$2\"; \
    exec ekiden record --dump -o \"$0.ekirec\"";

/// Room for all calls of a CPU.
const FLIGHT_KIB: u64 = 4_096;

#[derive(Args)]
#[command(after_help = "\
It boots a stock kernel on 16 CPUs in 8 NUMA nodes, with cfs as its scheduler. A
CPU is taken out and put back, which is when the papers' kernel lost the domains
that span nodes; then one process starts 16 threads. It takes about two minutes.
Examples:
  ekiden reproduce missing-domains
  ekiden reproduce missing-domains --report pages
      and a page of each run, as in figure 5
  ekiden reproduce missing-domains --json --check
See also: ekiden reproduce wasted-cores missing-domains, the same simulated,
with the paper's programs")]
pub(super) struct MissingDomains {
    /// How many threads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// CPU time that each of them uses
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    cpu_ms: u64,
    /// The guest's kernel: its release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    #[command(flatten)]
    source: PolicyArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit with 116 if the bug does not show, or shows without it
    #[arg(long)]
    check: bool,
    /// Write the two traces, the calls of the policy and a page of each run to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// How a run went, as its trace tells.
#[derive(Debug, PartialEq, Serialize)]
struct Run {
    /// From the first thread's first moment on a CPU until the last one ended.
    ms: f64,
    /// On how many nodes threads ran.
    nodes: u32,
    /// How often the check for wasted cores fired.
    wasted: usize,
    /// In how many decisions the policy looked at other CPUs than the one that decided, and at how many nodes at most in one.
    decisions: usize,
    nodes_considered: usize,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    cpus: u32,
    nodes: u32,
    threads: u32,
    cpu_ms: u64,
    with_bug: Run,
    without: Run,
    ratio: f64,
    at_least: f64,
    met: bool,
}

impl MissingDomains {
    pub(super) fn run(self) -> Result<ExitCode> {
        let kept = match &self.report {
            Some(directory) => {
                fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
                None
            }
            None => Some(Scratch::new()?),
        };
        let directory = self.report.as_deref().or(kept.as_ref().map(|kept| kept.path())).unwrap_or(Path::new("."));
        let machine = InVm::of(CPUS, NODES, MEMORY_MIB, self.kernel.clone(), Vec::new());
        let policies = [POLICY.to_owned()];
        let kernel = machine.with_guest(&self.source, &policies, Clock::Quick, |vm, share, _, progress| {
            for has_bug in [true, false] {
                self.record(vm, has_bug, progress)?;
                if self.report.is_some() {
                    let [from, to] = [share, directory].map(|at| stem(at, has_bug).with_extension("ekirec"));
                    fs::copy(&from, &to).with_context(|| format!("cannot write {}", to.display()))?;
                }
                put_considered(share, directory, has_bug)?;
            }
            Ok(vm.release().to_owned())
        })?;
        let [with_bug, without] = [true, false].map(|has_bug| self.judge(directory, has_bug));
        let (with_bug, without) = (with_bug?, without?);
        let ratio = with_bug.ms / without.ms;
        let is_seen = with_bug.wasted > 0 && without.wasted == 0 && with_bug.nodes < without.nodes;
        let is_why = with_bug.nodes_considered == 1 && without.nodes_considered == NODES as usize;
        let (threads, cpu_ms, met) = (self.threads, self.cpu_ms, ratio >= LEAST && is_seen && is_why);
        let report = Report {
            kernel,
            cpus: CPUS,
            nodes: NODES,
            threads,
            cpu_ms,
            with_bug,
            without,
            ratio,
            at_least: LEAST,
            met,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", describe(&report));
            match &self.report {
                Some(directory) => println!("next: open {} in a browser", page_of(directory, true).display()),
                None => println!("next: ekiden reproduce missing-domains --report pages"),
            }
        }
        Ok(if self.check && !met { Exit::LimitMissed.into() } else { ExitCode::SUCCESS })
    }

    /// One run in the guest, which leaves a trace in the directory that is shared with it.
    fn record(&self, vm: &Vm, has_bug: bool, progress: &mut Progress) -> Result<()> {
        progress.step(format!("{} threads, {}", self.threads, title(has_bug)));
        // With the paper's kernel, threads that wake up stay near the waker: else they would leave the node by that.
        let set = vec![format!("missing_domains={}", u8::from(has_bug)), "overload_on_wakeup=1".into()];
        let to = stem(Path::new("/host"), has_bug).display().to_string();
        let (threads, cpu_ms) = (self.threads.to_string(), self.cpu_ms.to_string());
        let mut run = GuestRun::new("ekiden", POLICY, ["sh", "-c", SCRIPT, &to, &threads, &cpu_ms]);
        (run.options.set, run.flight_kib) = (set, Some(FLIGHT_KIB));
        let mut said = String::new();
        let status = follow_with(vm, &guest_command(run.argv()), &mut |_, bytes| {
            said.push_str(&String::from_utf8_lossy(bytes));
        })?;
        if status == Status::Code(0) {
            return Ok(());
        }
        let message = format!("it failed in the guest ({status}): {said}\nits console:\n{}", vm.console().tail(20));
        Err(Failure::new(Exit::Other, message).into())
    }

    /// Reads the trace of a run, and makes a page of it if pages are wanted.
    fn judge(&self, directory: &Path, has_bug: bool) -> Result<Run> {
        let path = trace_of(directory, has_bug);
        let reader = open_trace(&path)?;
        let header = reader.header().clone();
        let records = reader.collect::<Result<Vec<Record>, _>>().with_context(|| path.display().to_string())?;
        // All is over in about the second that the paper waits. Emulated CPUs have to wait for their turn to see a kick.
        let limits = Limits { every_ns: 50_000_000, persists_ns: 20_000_000, kick_ns: 50_000_000, ..Limits::default() };
        let mut hogs = Hogs::default();
        records.iter().for_each(|record| hogs.record(record));
        let end_ns = hogs.end_ns();
        let until_end = records.iter().take_while(|record| record.time_ns <= end_ns).copied();
        let violations = match &self.report {
            Some(directory) => {
                let heading = format!("Missing Scheduling Domains (papers/002, figure 5), {}", title(has_bug));
                let notes = Notes { heading: Some(heading), ..Notes::default() };
                report::write_report(&page_of(directory, has_bug), &header, until_end, &limits, notes)?.violations
            }
            None => {
                let mut checker = Checker::new(&header, &limits);
                until_end.for_each(|record| checker.record(&record));
                checker.finish()
            }
        };
        // Waste from before the threads were there is not theirs.
        let is_theirs = |violation: &&Violation| violation.since_ns >= hogs.begin_ns();
        let wasted = violations.iter().filter(is_theirs).filter(|found| found.check == "work-conservation").count();
        let (decisions, nodes_considered) = considered_in(&header, &records);
        let (ms, nodes) = (hogs.took_ns() as f64 / 1e6, hogs.nodes(&header));
        Ok(Run { ms, nodes, wasted, decisions, nodes_considered })
    }
}

/// When and where the threads of the load ran.
#[derive(Default)]
struct Hogs {
    /// The threads of the load.
    pids: HashSet<u32>,
    /// Since when each task runs, on which CPU.
    runs_since: HashMap<u32, (u64, u32)>,
    /// Each time that a task ran: who, where, from when until when.
    ran: Vec<(u32, u32, u64, u64)>,
}

impl Hogs {
    fn record(&mut self, record: &Record) {
        let Record { time_ns, cpu, what, pid, value } = *record;
        match what {
            What::Name if cpu == 0 && value.to_le_bytes().starts_with(threads::NAME.as_bytes()) => {
                self.pids.insert(pid);
            }
            What::Run => {
                self.runs_since.insert(pid, (time_ns, cpu));
            }
            What::Preempt | What::Block | What::Exit => {
                let since = self.runs_since.remove(&pid);
                self.ran.extend(since.map(|(since_ns, cpu)| (pid, cpu, since_ns, time_ns)));
            }
            _ => {}
        }
    }

    /// Threads get their names when they run already, so who is one is known in the end only.
    fn ran(&self) -> impl Iterator<Item = &(u32, u32, u64, u64)> {
        self.ran.iter().filter(|(pid, ..)| self.pids.contains(pid))
    }

    fn end_ns(&self) -> u64 {
        self.ran().map(|(.., end_ns)| *end_ns).max().unwrap_or(0)
    }

    fn begin_ns(&self) -> u64 {
        self.ran().map(|(.., since_ns, _)| *since_ns).min().unwrap_or(0)
    }

    fn took_ns(&self) -> u64 {
        self.end_ns() - self.begin_ns()
    }

    fn nodes(&self, header: &Header) -> u32 {
        let mut busy_ns: HashMap<u32, u64> = HashMap::new();
        for (_, cpu, since_ns, end_ns) in self.ran() {
            if let Some(entry) = header.cpus.get(*cpu as usize) {
                *busy_ns.entry(entry.node).or_default() += end_ns - since_ns;
            }
        }
        let enough_ns = self.took_ns() as f64 * BUSY;
        busy_ns.values().filter(|busy_ns| **busy_ns as f64 >= enough_ns).count() as u32
    }
}

/// Puts the CPUs at which the policy looked into the trace.
fn put_considered(from: &Path, to: &Path, has_bug: bool) -> Result<()> {
    let recording = stem(from, has_bug).with_extension("ekirec");
    let output = Output::create(&trace_of(to, has_bug))?;
    let (_, outcome) = considered::put(&trace_of(from, has_bug), &recording, output.clone())?;
    output.finish()?;
    let first = outcome.first.map(|first| first.to_string()).unwrap_or_default();
    anyhow::ensure!(
        outcome.differences == 0,
        "{} calls were answered differently in the replay; the first: {first}",
        outcome.differences
    );
    Ok(())
}

/// How many decisions looked at other CPUs, and at how many nodes the widest search for work did. A task that wakes up is compared
/// with its waker wherever that one is; domains are of searches.
fn considered_in(header: &Header, records: &[Record]) -> (usize, usize) {
    let sets = records.iter().filter(|record| record.what == What::Considered);
    let nodes = |word: u64| {
        let cpus = header.cpus.iter().enumerate().filter(|(cpu, _)| word >> cpu & 1 == 1);
        cpus.map(|(_, cpu)| cpu.node).collect::<HashSet<_>>().len()
    };
    // One piece each, on so few CPUs.
    let searched = |set: &Record| if set.pid == 0 { nodes(set.value) } else { 0 };
    sets.fold((0, 0), |(count, most), set| (count + 1, searched(set).max(most)))
}

fn title(has_bug: bool) -> &'static str {
    if has_bug { "with the bug" } else { "fixed" }
}

/// The name of its files, without the extension.
fn stem(directory: &Path, has_bug: bool) -> PathBuf {
    directory.join(if has_bug { "missing-domains-bug" } else { "missing-domains-fixed" })
}

fn trace_of(directory: &Path, has_bug: bool) -> PathBuf {
    stem(directory, has_bug).with_extension("zst")
}

fn page_of(directory: &Path, has_bug: bool) -> PathBuf {
    stem(directory, has_bug).with_extension("html")
}

fn describe(report: &Report) -> String {
    let Report { kernel, cpus, nodes, threads, cpu_ms, ratio, at_least, met, .. } = report;
    let row = |has_bug, Run { ms, nodes, wasted, decisions, nodes_considered }: &Run| {
        let numbers = [*nodes as usize, *wasted, *decisions, *nodes_considered].map(|number| number.to_string());
        [title(has_bug).to_owned(), format!("{ms:.0} ms")].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows = [row(true, &report.with_bug), row(false, &report.without)];
    format!(
        "CFS in Linux {kernel} on {cpus} CPUs in {nodes} nodes: {threads} threads that use {cpu_ms} ms each, after CPU 3 was off \
         and on\n\n{}\nratio {ratio:.2}, wanted at least {at_least:.0}, and waste found only with the bug: {}\n",
        table(&["", "took", "nodes with work", "wasted cores found", "decisions", "nodes considered, most"], rows),
        if *met { "ok" } else { "MISSED" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ekiden_trace::names;

    #[test]
    fn time_and_nodes_are_those_of_the_threads_of_the_load() {
        let record = |time_ns, cpu, what, pid| Record { time_ns, cpu, what, pid, value: 0 };
        let named = |time_ns, pid, name: &str| Record {
            value: names(name).next().unwrap(),
            ..record(time_ns, 0, What::Name, pid)
        };
        let mut hogs = Hogs::default();
        for record in [
            record(0, 7, What::Run, 3),
            record(10, 0, What::Run, 1),
            named(12, 1, "hog-0"),
            record(20, 5, What::Run, 2),
            named(20, 2, "hog-15"),
            named(20, 3, "shell"),
            record(60, 0, What::Preempt, 1),
            record(61, 2, What::Run, 1),
            record(62, 2, What::Exit, 1),
            record(110, 5, What::Exit, 2),
            record(200, 7, What::Block, 3),
        ] {
            hogs.record(&record);
        }
        let header = Header::of(&ekiden_machine::parse("4x1x2x1").unwrap_or_else(|error| panic!("{error}")));
        // One ran on CPU 2 so briefly that its node does not count.
        assert_eq!((hogs.took_ns(), hogs.end_ns()), (100, 110));
        assert_eq!(hogs.nodes(&header), 2);
    }
}
