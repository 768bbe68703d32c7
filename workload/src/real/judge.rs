//! A server that has programs of others run, and works itself: how long its worker takes for a certain CPU time, alone, beside programs in
//! one control group, and beside programs in another (papers/004, section 4.3).
//!
//! CPU time as the kernel counts it, for the reason that [`crate::real::threads`] has.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use serde::Serialize;

use crate::real::exec::{ExecError, check_one_thread, system};
use crate::real::process_group::{ProcessGroup, now_ns};
use crate::real::threads::use_cpu;

/// How long the programs run before the worker begins: some periods of `cpu.max`.
const AHEAD: Duration = Duration::from_millis(300);

/// What a program uses in one go; it is killed before it is done.
const PROGRAM_NS: u64 = 3_600_000_000_000;

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judge<'a> {
    /// Programs that use all the CPU time that they can have.
    pub programs: u32,
    /// CPU time that the worker needs, in nanoseconds.
    pub cpu_ns: u64,
    /// How often it works in each way.
    pub times: u32,
    /// The directory of the control group with a limit, and of the one without.
    pub cgroups: [&'a Path; 2],
}

/// How long the worker took, in nanoseconds, time after time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Alone.
    pub alone_ns: Vec<u64>,
    /// Beside programs in the first control group.
    pub limited_ns: Vec<u64>,
    /// Beside programs in the second.
    pub unlimited_ns: Vec<u64>,
}

/// Works in the three ways in turns. The caller is the worker; it must have one thread.
///
/// # Errors
/// If a program cannot be started or put into its control group.
pub fn run(load: &Judge<'_>) -> Result<Judged, ExecError> {
    check_one_thread()?;
    let mut judged = Judged::default();
    for _ in 0..load.times {
        judged.alone_ns.push(work(load));
        judged.limited_ns.push(beside(load, load.cgroups[0])?);
        judged.unlimited_ns.push(beside(load, load.cgroups[1])?);
    }
    Ok(judged)
}

fn beside(load: &Judge<'_>, cgroup: &Path) -> Result<u64, ExecError> {
    let procs = cgroup.join("cgroup.procs");
    let mut programs = ProcessGroup::new().map_err(system("make a pipe"))?;
    for number in 0..load.programs {
        let program = programs.spawn(format!("program-{number}"), |gate| {
            let joined = fs::write(&procs, "0");
            gate.wait(joined.is_ok());
            use_cpu(PROGRAM_NS);
            0
        });
        program.map_err(system("start a program"))?;
    }
    if !programs.ready().map_err(system("start a program"))? {
        let message = format!("cannot write to {}; this needs root", procs.display());
        return Err(system("put a program into its control group")(std::io::Error::other(message)));
    }
    programs.open_gate();
    thread::sleep(AHEAD);
    // What is left of the programs ends with them.
    Ok(work(load))
}

fn work(load: &Judge<'_>) -> u64 {
    let begin_ns = now_ns();
    use_cpu(load.cpu_ns);
    now_ns() - begin_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_its_cpu_time_at_least_and_each_way_has_its_turns() {
        let cgroup = tempfile::tempdir().unwrap();
        // As in a control group, where the file is there.
        fs::write(cgroup.path().join("cgroup.procs"), "").unwrap();
        let load = Judge { programs: 0, cpu_ns: 1_000_000, times: 2, cgroups: [cgroup.path(); 2] };
        // Tests run in threads of one process, which must not be forked.
        let measured = [work(&load), work(&load)];
        assert!(measured.iter().all(|ns| *ns >= 1_000_000), "{measured:?}");
        assert!(run(&load).is_err(), "it has threads");
    }
}
