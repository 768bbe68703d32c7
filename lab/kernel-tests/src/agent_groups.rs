//! Control groups under a policy in a process: limits and weights that hold, while tasks run, sleep, move, and while limits change.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ekiden_agent::{Agent, Config};
use ekiden_linked::find;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use serde_json::json;

use crate::{
    groups::{Group, percent},
    load::{Worker, pause, used_us},
};

/// Twenty periods. A small limit is used in turns of a slice on each CPU: one more or less is to be far below five percent.
const TIME: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(6);

/// What tasks of two groups, this process, which is the agent, and all there are used in `time`, in percent of a CPU.
fn used(groups: [&Group; 2], time: Duration) -> Result<[f64; 4]> {
    let look = || -> Result<[u64; 4]> {
        let own_us = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?).as_micros() as u64;
        Ok([groups[0].used_us()?, groups[1].used_us()?, own_us, used_us("/sys/fs/cgroup".as_ref())?])
    };
    // What has been going on before, such as a quota that a new limit begins with, is over.
    pause(300);
    let (before, start) = (look()?, Instant::now());
    thread::sleep(time);
    let (after, whole_ns) = (look()?, start.elapsed().as_nanos() as u64);
    Ok([0, 1, 2, 3].map(|at| percent((after[at] - before[at]) * 1_000, whole_ns)))
}

fn tell(what: &str, [limited, other, agent, all]: [f64; 4]) {
    println!("{}", json!({ "what": what, "limited": limited, "other": other, "agent": agent, "all": all }));
}

/// Threads of a process that does nothing.
const CROWD: u32 = 700;

/// All of a crowd want the first CPU, and may run on no other; a policy with one queue asks about each of them for the second one, in one call.
pub(crate) fn agent_asks() -> Result<()> {
    const POLICY: &str = "global-fifo";
    // More than took 25 ms, after which a call counts as one that does not end.
    const THREADS: u32 = 1_000;
    let linked = find(POLICY).context("there is no global FIFO")?;
    let agent = Agent::start(&Config::new(POLICY), linked.make)?;
    let mut first = CpuSet::new();
    first.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &first)?;
    let crowd = Worker::crowd(THREADS)?;
    crowd.release()?;
    let ran = ["nap", "spin"].into_iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    pause(1_000);
    agent.check()?;
    ran.iter().try_for_each(Worker::must_run)?;
    println!("{}", json!({ "still_running": agent.is_running(), "counts": agent.counts() }));
    Ok(())
}

/// `idle` groups are there besides, from before the agent begins; with them, a crowd of tasks that sleep moves from group to group.
pub(crate) fn agent_groups(policy: &str, messages: u32, idle: u32) -> Result<()> {
    let idle_groups = (0..idle).map(|number| Group::top(&format!("idle{number}"))).collect::<Result<Vec<_>>>()?;
    let (limited, other) = (Group::top("limited")?, Group::top("other")?);
    limited.set("cpu.max", "50000 100000")?;
    let linked = find(policy).with_context(|| format!("there is no policy {policy}"))?;
    let agent = Agent::start(&Config { messages, ..Config::new(policy) }, linked.make)?;
    let both = [&limited, &other];
    // Sleeping tasks that move at once: their messages have the agent called where most of the room is used.
    let crowd = if idle == 0 { None } else { Some(Worker::crowd(CROWD)?) };
    if let Some(crowd) = &crowd {
        other.take(crowd)?;
        limited.take(crowd)?;
    }

    let alone = limited.start("spin")?;
    tell("alone", used(both, TIME)?);
    limited.set("cpu.max", "40000 100000")?;
    let one = [alone, other.start("spin")?];
    one.iter().try_for_each(|worker| worker.pin(0))?;
    tell("one", used(both, TIME)?);
    one.iter().try_for_each(Worker::must_run)?;
    agent.check()?;

    // On both CPUs.
    one.iter().try_for_each(Worker::unpin)?;
    let more = [limited.start("spin")?, limited.start("spin")?, other.start("spin")?];
    limited.set("cpu.max", "50000 100000")?;
    let must_run = || one.iter().chain(&more).try_for_each(Worker::must_run);
    tell("several", used(both, TIME)?);
    limited.set("cpu.max", "20000 100000")?;
    tell("less", used(both, LONG)?);
    must_run().context("with a fifth of a CPU")?;
    limited.set("cpu.max", "70000 100000")?;
    tell("more", used(both, TIME)?);
    limited.set("cpu.max", "max")?;
    tell("lifted", used(both, TIME)?);
    limited.set("cpu.max", "30000 100000")?;
    tell("again", used(both, LONG)?);
    must_run().context("with a limit again")?;
    agent.check()?;

    // All of them leave a group with a limit for one without, and come back.
    one.iter().chain(&more).try_for_each(|worker| other.take(worker))?;
    tell("left", used(both, TIME)?);
    one.iter().chain(&more).try_for_each(|worker| limited.take(worker))?;
    tell("joined", used(both, LONG)?);
    must_run().context("after they have moved")?;
    drop((one, more, crowd));
    agent.check()?;

    // The limit is that of the group above, and its tasks sleep between short turns.
    limited.set("cgroup.subtree_control", "+cpu")?;
    let inner = Group::new(limited.path(), "inner")?;
    let dozes = [inner.start("doze")?, inner.start("doze")?];
    limited.set("cpu.max", "max")?;
    tell("doze without a limit", used(both, TIME)?);
    limited.set("cpu.max", "20000 100000")?;
    tell("doze", used(both, LONG)?);
    dozes.iter().try_for_each(Worker::must_run).context("those that sleep")?;
    drop((dozes, inner));
    agent.check()?;

    limited.set("cpu.max", "max")?;
    limited.set("cpu.weight", "300")?;
    let two = [limited.start("spin")?, other.start("spin")?];
    two.iter().try_for_each(|worker| worker.pin(0))?;
    tell("300 to 100", used(both, TIME)?);
    two.iter().try_for_each(Worker::must_run)?;
    drop(two);
    agent.check()?;
    drop(idle_groups);
    println!("{}", json!({ "still_running": agent.is_running(), "counts": agent.counts() }));
    Ok(())
}
