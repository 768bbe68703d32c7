//! What a policy counts itself, and that a control group is what it is told of a task, in the kernel and in an agent.

use std::path::Path;

use anyhow::{Context, Result};
use ekiden_agent::{Agent, Config};
use ekiden_host::{Figure, Value};
use ekiden_linked::make;
use ekiden_loader::{Session, Status, Succession, load_copy};
use ekiden_test_policies::Faulty;
use serde::Serialize;

use crate::{
    groups::Group,
    guest_tests::{config, module_of},
    load::{Worker, pause},
};

#[derive(Serialize)]
struct FiguresReport {
    help: String,
    /// Preempted tasks of the root, and of a group of twice the weight, one after the other: by then; after an upgrade to the same module, and to
    /// a copy of it, which outlives the one that named the figure; and later.
    root: [u64; 4],
    group: [u64; 4],
    still_running: bool,
}

#[derive(Serialize)]
struct InAgent {
    /// Preempted tasks of the root, of a group of twice the weight, and of that group with four times the weight; after one half of the time,
    /// in which it has the former, and after the other.
    weights: [[u64; 3]; 2],
    still_running: bool,
}

fn figure() -> Result<Figure> {
    let status = Status::read()?.unwrap_or_default();
    let policy = status.main().context("no policy runs")?;
    policy.figures.first().cloned().context("the policy has no figures")
}

/// Values of the root's weight, of twice and of four times that.
fn weights(figure: Figure) -> Result<[u64; 3]> {
    let Value::Buckets(buckets) = figure.value else { anyhow::bail!("it is no histogram") };
    Ok([1024, 2048, 4096].map(|least| buckets.iter().find(|bucket| bucket.0 == least).map_or(0, |bucket| bucket.1)))
}

fn counted() -> Result<(u64, u64)> {
    let [root, group, _] = weights(figure()?)?;
    Ok((root, group))
}

/// Two tasks that share a CPU, one of them in a group.
fn sharing() -> Result<(Group, [Worker; 2])> {
    let group = Group::top("weighty")?;
    group.set("cpu.weight", "200")?;
    let workers = [Worker::start("spin")?, group.start("spin")?];
    workers.iter().try_for_each(|worker| worker.pin(0))?;
    Ok((group, workers))
}

pub(crate) fn figures(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "faulty"))?;
    let _sharing = sharing()?;
    pause(500);
    let mut counts = vec![counted()?];
    let upgrade = |module| {
        session.control().upgrade(&Succession { module, ..Succession::default() })?;
        counted()
    };
    counts.push(upgrade(None)?);
    counts.push(upgrade(Some(&load_copy(&module_of(modules, "faulty"))?))?);
    pause(500);
    counts.push(counted()?);
    let report = FiguresReport {
        help: figure()?.help,
        root: std::array::from_fn(|look| counts[look].0),
        group: std::array::from_fn(|look| counts[look].1),
        still_running: session.is_running(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Reads the figures of that policy in a process.
pub(crate) fn figures_in_agent() -> Result<()> {
    let agent = Agent::start(&Config::new("faulty"), make::<Faulty>)?;
    let (group, _workers) = sharing()?;
    let counted = || weights(agent.figures().first().cloned().context("the policy has no figures")?);
    pause(500);
    let first = counted()?;
    group.set("cpu.weight", "400")?;
    pause(500);
    let report = InAgent { weights: [first, counted()?], still_running: agent.is_running() };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
