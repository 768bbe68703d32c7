//! What a policy counts itself, and that a control group is what it is told of a task.

use std::path::Path;

use anyhow::{Context, Result};
use ekiden_host::{Figure, Value};
use ekiden_loader::{Session, Status, Succession, load_copy};
use serde::Serialize;

use crate::{
    groups::Group,
    load::{Worker, pause},
    trials::{config, module_of},
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

fn figure() -> Result<Figure> {
    let status = Status::read()?.unwrap_or_default();
    let policy = status.main().context("no policy runs")?;
    policy.figures.first().cloned().context("the policy has no figures")
}

/// Values of the root's weight, and of twice that.
fn counted() -> Result<(u64, u64)> {
    let Value::Buckets(buckets) = figure()?.value else { anyhow::bail!("it is no histogram") };
    let of = |least| buckets.iter().find(|bucket| bucket.0 == least).map_or(0, |bucket| bucket.1);
    Ok((of(1024), of(2048)))
}

/// Two tasks share a CPU, one of them in a group.
pub(crate) fn figures(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "faulty"))?;
    let group = Group::top("weighty")?;
    group.set("cpu.weight", "200")?;
    let workers = [Worker::start("spin")?, group.start("spin")?];
    workers.iter().try_for_each(|worker| worker.pin(0))?;
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
