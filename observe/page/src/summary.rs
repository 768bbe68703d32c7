//! What a page shows besides what it draws: of what it is, counters, waits, violations.

use std::{borrow::Cow, collections::BTreeMap};

use ekiden_check::{Verdict, Violation, WasteCurve};
use ekiden_trace::{Header, Host};
use serde::Serialize;

use crate::{Model, QueueCounts, Waits, tile::BINS};

/// Programs whose waits are shown one by one; the rest is in the sum.
const PROGRAMS_MAX: usize = 200;

/// Queues of hints that are shown one by one.
const QUEUES_MAX: usize = 20;

/// Names of notes whose numbers are shown one by one.
const NOTE_NAMES_MAX: usize = 40;

/// What only the program that made the trace knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The machine, as people call it.
    pub machine: Option<String>,
    /// A line that stands above all, for example which bug is to be seen.
    pub heading: Option<String>,
    /// The policy's own counters, and what else is worth a line.
    pub counters: Vec<(String, String)>,
}

/// What a page shows besides what it draws. The program in the browser reads it as JSON.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    heading: Option<&'a str>,
    host: Host,
    policy: Option<&'a str>,
    params: &'a str,
    workload: &'a str,
    seed: u64,
    machine: String,
    end_ns: u64,
    bins: usize,
    bin_ns: u64,
    depth_max: u32,
    /// NUMA node, last-level cache and core of each CPU.
    cpus: Vec<[u32; 3]>,
    tasks_max: u32,
    load_max: u32,
    has_decisions: bool,
    pids: Vec<u32>,
    names: Vec<&'a str>,
    /// Names of the notes.
    note_names: Vec<&'a str>,
    counters: Vec<(Cow<'a, str>, String)>,
    waits: Vec<(String, Waits)>,
    violations: Option<&'a [Violation]>,
    waste: Option<&'a WasteCurve>,
}

impl<'a> Summary<'a> {
    /// Summarises a trace; without what the checks say if that is not known yet.
    pub fn of(header: &'a Header, model: &'a Model, verdict: Option<&'a Verdict>, notes: &'a Notes) -> Self {
        let division = model.division();
        let changes = || model.lanes.iter().flat_map(|lane| &lane.changes);
        Self {
            heading: notes.heading.as_deref(),
            host: header.host,
            policy: header.policy.as_deref(),
            params: &header.params,
            workload: &header.workload,
            seed: header.seed,
            machine: machine(header, notes.machine.as_deref()),
            end_ns: model.end_ns,
            bins: BINS,
            bin_ns: division.bin_ns,
            depth_max: division.deepest(),
            cpus: header.cpus.iter().map(|cpu| [cpu.node, cpu.llc, cpu.core]).collect(),
            tasks_max: changes().map(|change| change.tasks).max().unwrap_or_default(),
            load_max: changes().map(|change| change.load).max().unwrap_or_default(),
            has_decisions: !model.decisions.is_empty(),
            pids: model.tasks.iter().map(|task| task.pid).collect(),
            names: model.tasks.iter().map(|task| task.name.as_str()).collect(),
            note_names: model.note_kinds.iter().map(|kind| kind.name.as_str()).collect(),
            counters: counters(model, notes),
            waits: waits(model),
            violations: verdict.map(|verdict| verdict.violations.as_slice()),
            waste: verdict.map(|verdict| &verdict.waste),
        }
    }

    /// The JSON that the browser reads.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }
}

/// The machine in words.
fn machine(header: &Header, name: Option<&str>) -> String {
    let count = |of: fn(&ekiden_trace::HeaderCpu) -> u32, what: &str| {
        let different: std::collections::BTreeSet<u32> = header.cpus.iter().map(of).collect();
        let count = different.len();
        format!("{count} {what}{}", if count == 1 { "" } else { "s" })
    };
    let shape = format!(
        "{} CPUs, {}, {}, {}",
        header.cpus.len(),
        count(|cpu| cpu.core, "core"),
        count(|cpu| cpu.llc, "cache"),
        count(|cpu| cpu.node, "NUMA node")
    );
    name.map_or(shape.clone(), |name| format!("{name}: {shape}"))
}

fn counters<'a>(model: &Model, notes: &'a Notes) -> Vec<(Cow<'a, str>, String)> {
    let counted = model.counters;
    let all_ns = u128::from(model.end_ns) * model.lanes.len() as u128;
    let busy = 100.0 * counted.busy_ns as f64 / all_ns.max(1) as f64;
    let own = [
        ("records", counted.records),
        ("tasks", model.tasks.len() as u64),
        ("switches", counted.switches),
        ("wake-ups", counted.wakeups),
        ("migrations", counted.migrations),
        ("preemptions", counted.preemptions),
        ("kicks", counted.kicks),
        ("refused picks", counted.refusals),
        ("decisions with CPUs considered", model.decisions.len() as u64),
    ];
    let mut all: Vec<_> = own.into_iter().map(|(name, count)| (name.into(), count.to_string())).collect();
    all.push(("CPUs busy".into(), format!("{busy:.1} %")));
    if counted.lost > 0 {
        all.push(("records lost, at least".into(), counted.lost.to_string()));
    }
    if counted.calls > 0 {
        let mean_ns = counted.calls_ns / u128::from(counted.calls);
        all.push(("calls into the policy".into(), counted.calls.to_string()));
        all.push(("mean and longest call".into(), format!("{mean_ns} ns, {} ns", counted.call_ns_max)));
    }
    let mut by_kind = vec![0_u64; model.note_kinds.len()];
    model.notes.iter().for_each(|note| by_kind[note.kind as usize] += 1);
    let noted = model.note_kinds.iter().zip(by_kind).filter(|(kind, _)| !kind.is_of_queue).take(NOTE_NAMES_MAX);
    all.extend(noted.map(|(kind, count)| (format!("notes {}", kind.name).into(), count.to_string())));
    for (queue, counts) in model.queues.iter().take(QUEUES_MAX) {
        let QueueCounts { owner, hints, refused, full, notices, lost, .. } = counts;
        let name = owner.map_or("a program", |task| model.tasks[task as usize].name.as_str());
        let what = format!(
            "of {name}: {hints} hints, {refused} refused, {full} had no room; {notices} notices, {lost} had no room"
        );
        all.push((format!("queue of hints {queue}").into(), what));
    }
    if !model.queues.is_empty() {
        let opened: u64 = model.queues.values().map(|counts| counts.opened).sum();
        all.push(("queues of hints opened".into(), opened.to_string()));
    }
    all.extend(notes.counters.iter().map(|(name, value)| (name.as_str().into(), value.clone())));
    all
}

/// The program that a task belongs to: its name without the number at its end.
fn program(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() { name } else { stem.trim_end_matches(['-', '/', ':', '_', '#']) }
}

/// Waits of all tasks, then by program, those that waited most often first.
fn waits(model: &Model) -> Vec<(String, Waits)> {
    let mut all = Waits::default();
    let mut by_program: BTreeMap<&str, Waits> = BTreeMap::new();
    for (task, waits) in model.tasks.iter().zip(&model.waits) {
        for sum in [&mut all, by_program.entry(program(&task.name)).or_default()] {
            sum.wake.merge(&waits.wake);
            sum.queue.merge(&waits.queue);
        }
    }
    let mut programs: Vec<(String, Waits)> = by_program
        .into_iter()
        .filter(|(name, waits)| !name.is_empty() && waits.queue.count > 0)
        .map(|(name, waits)| (name.to_owned(), waits))
        .collect();
    programs.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.queue.count));
    programs.truncate(PROGRAMS_MAX);
    programs.insert(0, ("all tasks".into(), all));
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_name_without_its_number() {
        for (name, of) in
            [("make-12", "make"), ("r-0", "r"), ("worker", "worker"), ("kworker/3", "kworker"), ("42", "")]
        {
            assert_eq!(program(name), of);
        }
    }
}
