//! Papers/004, section 4.2: from the decision that a thread runs on a CPU to its first instruction in user space.

use std::{collections::HashSet, fs::File, path::Path};

use anyhow::{Context, Result};
use ekiden_abi::{Call, TaskId};
use ekiden_bench::{Judged, Limit, number};
use ekiden_recording::{Entry, Item, RecordedCall, RecordingReader};
use serde::{Deserialize, Serialize};

use super::{Cos, hosts::Host};
use crate::machine::load_program;

const MEAN: Limit = Limit { name: "delegation, mean: most competing tasks ÷ none", at_most: 1.1 };
const LONGEST: Limit = Limit { name: "delegation, longest: most competing tasks ÷ none", at_most: 1.5 };

/// What `ekiden-load delegation` prints.
#[derive(Deserialize)]
struct Printed {
    measured: Vec<Delegated>,
}

#[derive(Deserialize)]
struct Delegated {
    tasks: u32,
    thread: u32,
    woken_ns: Vec<u64>,
    began_ns: Vec<u64>,
}

/// Mean and longest of many times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) mean_us: f64,
    pub(crate) longest_us: f64,
    /// How many there were.
    pub(crate) n: usize,
}

impl Spread {
    /// `None` if there is no time.
    fn of(ns: &[u64]) -> Option<Self> {
        let longest_us = *ns.iter().max()? as f64 / 1e3;
        Some(Self { mean_us: ns.iter().sum::<u64>() as f64 / ns.len() as f64 / 1e3, longest_us, n: ns.len() })
    }
}

/// A point of the paper's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) host: Host,
    /// How many tasks competed.
    pub(crate) tasks: u32,
    /// From the decision to the first instruction; absent under the kernel's own scheduler, which tells of none.
    pub(crate) decision: Option<Spread>,
    /// From the wake-up to the first instruction.
    pub(crate) wakeup: Option<Spread>,
}

/// Measures under one host; nothing if the policy was taken out.
pub(super) fn measure(cos: &Cos, host: Host) -> Result<Option<Vec<Point>>> {
    let directory = tempfile::tempdir().context("cannot make a directory for a recording")?;
    let file = directory.path().join("calls.ekirec");
    let recording = (host != Host::Own).then_some(file.as_path());
    let tasks: Vec<String> = cos.tasks.iter().map(u32::to_string).collect();
    let load = ["delegation", "--json", "--times", &cos.times.to_string(), "--tasks", &tasks.join(",")];
    let printed = host.run(cos.policy(), recording, &load_program(), &load.map(str::to_owned))?;
    let Some(printed) = printed else { return Ok(None) };
    let printed: Printed = serde_json::from_str(&printed).context("ekiden-load says something strange")?;
    let calls = recording.map(calls).transpose()?;
    Ok(Some(printed.measured.iter().map(|delegated| point(host, delegated, calls.as_deref())).collect()))
}

fn calls(recording: &Path) -> Result<Vec<RecordedCall>> {
    let mut calls = Vec::new();
    for recorded in RecordingReader::new(File::open(recording).context("there is no recording")?)? {
        if let Item::Entry(Entry::Call(call)) = recorded?.item {
            calls.push(call);
        }
    }
    Ok(calls)
}

/// When the policy began to decide for the thread with this PID, each time, in the order of time.
fn decisions(calls: &[RecordedCall], pid: u32) -> Vec<u64> {
    let about_it = calls.iter().filter(|call| call.message.pid == pid).map(|call| call.message.task.to_bits());
    let ids: HashSet<u64> = about_it.filter(|id| *id != TaskId::NONE.to_bits()).collect();
    let is_pick = |call: &&RecordedCall| call.message.call == Call::PickNextTask as u32;
    let picks_it = |call: &&RecordedCall| {
        call.reply.is_some_and(|reply| !reply.token.is_none() && ids.contains(&reply.token.task.to_bits()))
    };
    calls.iter().filter(is_pick).filter(picks_it).map(|call| call.time_ns).collect()
}

/// What was measured beside so many tasks. Of several decisions between wake-up and first instruction the first counts: those before the last
/// came to nothing.
fn point(host: Host, delegated: &Delegated, calls: Option<&[RecordedCall]>) -> Point {
    let Delegated { tasks, thread, woken_ns, began_ns } = delegated;
    let decisions = calls.map_or_else(Vec::new, |calls| decisions(calls, *thread));
    let (mut since_decision, mut since_wakeup) = (Vec::new(), Vec::new());
    for (woken, began) in woken_ns.iter().zip(began_ns) {
        since_wakeup.push(began.saturating_sub(*woken));
        since_decision.extend(decisions.iter().find(|at| (woken..began).contains(at)).map(|at| began - at));
    }
    Point { host, tasks: *tasks, decision: Spread::of(&since_decision), wakeup: Spread::of(&since_wakeup) }
}

/// What is limited, under one host: both figures of the most competing tasks, divided by those without any.
pub(super) fn judge(points: &[Point], host: Host) -> [Judged; 2] {
    let at = |tasks: u32| points.iter().find(|point| (point.host, point.tasks) == (host, tasks))?.decision;
    let most = points.iter().map(|point| point.tasks).max().filter(|tasks| *tasks > 0).and_then(at);
    let ratio = |figure: fn(&Spread) -> f64| Some(figure(&most?) / figure(&at(0)?));
    [MEAN.judge(ratio(|spread| spread.mean_us)), LONGEST.judge(ratio(|spread| spread.longest_us))]
}

/// A line of the table.
pub(super) fn cells(point: &Point, policy: &str) -> Vec<String> {
    let figures = |spread: &Option<Spread>| match spread {
        Some(Spread { mean_us, longest_us, n }) => [number(*mean_us), number(*longest_us), n.to_string()],
        None => ["", "", ""].map(str::to_owned),
    };
    let [mean, longest, n] = figures(&point.decision);
    let [woken_mean, woken_longest, woken_n] = figures(&point.wakeup);
    vec![point.host.name(policy), point.tasks.to_string(), mean, longest, n, woken_mean, woken_longest, woken_n]
}

#[cfg(test)]
mod tests {
    use ekiden_abi::{Message, RawToken, Reply};

    use super::*;

    const OTHER: u32 = 7;
    const IT: u32 = 8;

    fn id(pid: u32) -> TaskId {
        TaskId { slot: pid, generation: 1 }
    }

    fn call(time_ns: u64, message: Message, picked: Option<u32>) -> RecordedCall {
        let token = picked.map_or(RawToken::NONE, |pid| RawToken { task: id(pid), cpu: 1, serial: 1 });
        let reply = Some(Reply { token, ..Reply::default() });
        RecordedCall { time_ns, thread: 0, message, notes: Vec::new(), noted: Vec::new(), reply }
    }

    fn pick(time_ns: u64, pid: Option<u32>) -> RecordedCall {
        call(time_ns, Message::about_cpu(Call::PickNextTask, 1), pid)
    }

    fn wakeup(time_ns: u64, pid: u32) -> RecordedCall {
        let message = Message { call: Call::TaskWakeup as u32, task: id(pid), pid, ..Message::default() };
        call(time_ns, message, None)
    }

    #[test]
    fn the_first_decision_for_the_thread_counts_and_no_one_elses() {
        let calls = [
            wakeup(1_000, IT),
            pick(1_500, None),
            wakeup(1_600, OTHER),
            pick(1_700, Some(OTHER)),
            pick(2_000, Some(IT)),
            pick(2_500, Some(IT)),
            pick(9_000, Some(IT)),
        ];
        let delegated = Delegated {
            tasks: 5,
            thread: IT,
            woken_ns: vec![900, 8_000, 20_000],
            began_ns: vec![3_000, 12_000, 20_500],
        };
        let point = point(Host::Agent, &delegated, Some(&calls));
        // There was no decision before the third time.
        assert_eq!(point.decision, Some(Spread { mean_us: 2.0, longest_us: 3.0, n: 2 }));
        assert_eq!(point.wakeup, Some(Spread { mean_us: 2.2, longest_us: 4.0, n: 3 }));
    }

    #[test]
    fn without_a_recording_there_is_no_decision() {
        let delegated = Delegated { tasks: 0, thread: IT, woken_ns: vec![900], began_ns: vec![3_000] };
        let point = point(Host::Own, &delegated, None);
        assert_eq!((point.decision, point.wakeup.map(|spread| spread.n)), (None, Some(1)));
    }

    #[test]
    fn the_most_competing_tasks_are_divided_by_none() {
        let point = |tasks, mean_us, longest_us| {
            let decision = Some(Spread { mean_us, longest_us, n: 50 });
            Point { host: Host::Agent, tasks, decision, wakeup: None }
        };
        let judged = |points: &[Point]| judge(points, Host::Agent).map(|judged| (judged.figure, judged.met));
        let points = [point(0, 10.0, 20.0), point(5, 90.0, 90.0), point(9, 11.0, 31.0)];
        assert_eq!(judged(&points), [(Some(1.1), true), (Some(1.55), false)]);
        assert_eq!(judged(&points[1..]), [(None, false); 2], "there has to be one without");
        assert_eq!(judged(&points[..1]), [(None, false); 2], "and one with");
    }
}
