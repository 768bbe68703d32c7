//! Control groups under a policy in a process: limits and weights that hold, while tasks run, sleep, move, and while limits change.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ekiden_agent::{Agent, Config};
use ekiden_linked::find;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::{
    groups::{Group, percent},
    load::{Worker, pause},
};

/// Twenty periods and more.
const TIME: Duration = Duration::from_millis(2_500);

/// What tasks of two groups, and this process, which is the agent, used in that time, in percent of a CPU.
fn used(groups: [&Group; 2]) -> Result<[f64; 3]> {
    let look = || -> Result<[u64; 3]> {
        let own_us = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?).as_micros() as u64;
        Ok([groups[0].used_us()?, groups[1].used_us()?, own_us])
    };
    // What has been going on before, such as a quota that a new limit begins with, is over.
    pause(300);
    let (before, start) = (look()?, Instant::now());
    thread::sleep(TIME);
    let (after, whole_ns) = (look()?, start.elapsed().as_nanos() as u64);
    Ok([0, 1, 2].map(|at| percent((after[at] - before[at]) * 1_000, whole_ns)))
}

fn tell(what: &str, [limited, other, agent]: [f64; 3]) {
    println!("{}", json!({ "what": what, "limited": limited, "other": other, "agent": agent }));
}

/// `idle` groups are there besides, from before the agent begins.
pub(crate) fn agent_groups(policy: &str, messages: u32, idle: u32) -> Result<()> {
    let crowd = (0..idle).map(|number| Group::top(&format!("idle{number}"))).collect::<Result<Vec<_>>>()?;
    let (limited, other) = (Group::top("limited")?, Group::top("other")?);
    limited.set("cpu.max", "50000 100000")?;
    let linked = find(policy).with_context(|| format!("there is no policy {policy}"))?;
    let agent = Agent::start(&Config { messages, ..Config::new(policy) }, linked.make)?;
    let both = [&limited, &other];

    let alone = limited.start("spin")?;
    tell("alone", used(both)?);
    limited.set("cpu.max", "40000 100000")?;
    let one = [alone, other.start("spin")?];
    one.iter().try_for_each(|worker| worker.pin(0))?;
    tell("one", used(both)?);
    one.iter().try_for_each(Worker::must_run)?;
    agent.check()?;

    // On both CPUs.
    one.iter().try_for_each(Worker::unpin)?;
    let more = [limited.start("spin")?, limited.start("spin")?, other.start("spin")?];
    limited.set("cpu.max", "50000 100000")?;
    let must_run = || one.iter().chain(&more).try_for_each(Worker::must_run);
    tell("several", used(both)?);
    limited.set("cpu.max", "20000 100000")?;
    tell("less", used(both)?);
    must_run().context("with a fifth of a CPU")?;
    limited.set("cpu.max", "70000 100000")?;
    tell("more", used(both)?);
    limited.set("cpu.max", "max")?;
    tell("lifted", used(both)?);
    limited.set("cpu.max", "30000 100000")?;
    tell("again", used(both)?);
    must_run().context("with a limit again")?;
    agent.check()?;

    // All of them leave a group with a limit for one without, and come back.
    one.iter().chain(&more).try_for_each(|worker| other.take(worker))?;
    tell("left", used(both)?);
    one.iter().chain(&more).try_for_each(|worker| limited.take(worker))?;
    tell("joined", used(both)?);
    must_run().context("after they have moved")?;
    drop((one, more));
    agent.check()?;

    // The limit is that of the group above, and its tasks sleep between short turns.
    limited.set("cgroup.subtree_control", "+cpu")?;
    let inner = Group::new(limited.path(), "inner")?;
    let dozes = [inner.start("doze")?, inner.start("doze")?];
    limited.set("cpu.max", "max")?;
    tell("doze without a limit", used(both)?);
    limited.set("cpu.max", "20000 100000")?;
    tell("doze", used(both)?);
    dozes.iter().try_for_each(Worker::must_run).context("those that sleep")?;
    drop((dozes, inner));
    agent.check()?;

    limited.set("cpu.max", "max")?;
    limited.set("cpu.weight", "300")?;
    let two = [limited.start("spin")?, other.start("spin")?];
    two.iter().try_for_each(|worker| worker.pin(0))?;
    tell("300 to 100", used(both)?);
    two.iter().try_for_each(Worker::must_run)?;
    drop(two);
    agent.check()?;
    drop(crowd);
    println!("{}", json!({ "still_running": agent.is_running(), "counts": agent.counts() }));
    Ok(())
}
