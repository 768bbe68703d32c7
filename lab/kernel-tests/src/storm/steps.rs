//! What happens in the storm, one thing at a time.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    time::Instant,
};

use anyhow::{Context, Result};
use ekiden_loader::{Beside, Inherit, LoadError, Session, Succession, Who, choose, load_copy};
use ekiden_policies::NAMES as POLICIES;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{guest_tests::module_of, load::pause};

use super::{
    BOMB_PROCESSES, DAILY, Storm, gone_or,
    group::{Group, start_in},
    say, set_class, small, unload_unused, wait,
};

pub(super) type Step = fn(&mut Storm) -> Result<()>;

pub(super) const STEPS: &[(&str, Step)] = &[
    ("taskset", Storm::taskset),
    ("nice", Storm::nice),
    ("real_time", Storm::real_time),
    ("group_move", Storm::group_move),
    ("group_limits", Storm::group_limits),
    ("cpuset", Storm::cpuset),
    ("cpu_away", Storm::cpu_away),
    ("one_cpu", Storm::one_cpu),
    ("frozen_group", Storm::freeze_group),
    ("stopped_processes", Storm::stop_processes),
    ("frozen_machine", Storm::freeze_machine),
    ("fork_bomb", Storm::fork_bomb),
    ("come", Storm::come),
    ("choose", Storm::choose),
    ("take_over", Storm::take_over),
    ("order", Storm::order),
    ("choose_again", Storm::choose),
    ("go", Storm::go),
];

impl Storm {
    fn group(&mut self) -> usize {
        self.rng.usize(0..2)
    }

    /// Some processes of the storm.
    fn some(&mut self) -> Vec<i32> {
        let mut processes: Vec<i32> = self.groups.iter().flat_map(Group::processes).collect();
        self.rng.shuffle(&mut processes);
        processes.truncate(4);
        processes
    }

    fn session(&mut self) -> usize {
        self.rng.usize(0..self.sessions.len())
    }

    fn taskset(&mut self) -> Result<()> {
        for pid in self.some() {
            let mut cpus = CpuSet::new();
            let wanted = self.rng.u32(1..1 << self.cpus);
            (0..self.cpus).filter(|cpu| wanted >> cpu & 1 == 1).try_for_each(|cpu| cpus.set(cpu as usize))?;
            gone_or(sched_setaffinity(Pid::from_raw(pid), &cpus));
        }
        Ok(())
    }

    fn nice(&mut self) -> Result<()> {
        for pid in self.some() {
            // SAFETY: it takes numbers, and gets at no memory of ours.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, pid as u32, self.rng.i32(self.breadth.nice.clone())) };
        }
        Ok(())
    }

    /// Out of the policies' care and back. What it starts meanwhile stays in their care: it would never come back.
    fn real_time(&mut self) -> Result<()> {
        for pid in self.some() {
            if set_class(pid, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1).is_ok() {
                // It may have gone since.
                let _ = set_class(pid, libc::SCHED_OTHER, 0);
            }
        }
        Ok(())
    }

    fn group_move(&mut self) -> Result<()> {
        for pid in self.some() {
            let to = self.group();
            // It may have gone.
            let _ = self.groups[to].set("cgroup.procs", &pid.to_string());
        }
        Ok(())
    }

    fn group_limits(&mut self) -> Result<()> {
        let group = self.group();
        self.groups[group].set("cpu.weight", &self.rng.u32(self.breadth.weights.clone()).to_string())?;
        self.groups[group].set("cpu.max", &format!("{} 50000", self.rng.u32(10_000..100_000)))?;
        pause(100);
        self.groups[group].set("cpu.max", "max")
    }

    fn cpuset(&mut self) -> Result<()> {
        let (group, cpu) = (self.group(), self.rng.u32(0..self.cpus));
        self.groups[group].set("cpuset.cpus", &cpu.to_string())?;
        pause(50);
        self.groups[group].set("cpuset.cpus", &format!("0-{}", self.cpus - 1))
    }

    fn set_online(&self, cpu: u32, online: bool) -> Result<()> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        fs::write(path, if online { "1" } else { "0" }).with_context(|| format!("CPU {cpu}, online: {online}"))
    }

    fn cpu_away(&mut self) -> Result<()> {
        let cpu = self.rng.u32(1..self.cpus);
        self.set_online(cpu, false)?;
        pause(self.rng.u64(0..50));
        self.set_online(cpu, true)
    }

    fn one_cpu(&mut self) -> Result<()> {
        (1..self.cpus).try_for_each(|cpu| self.set_online(cpu, false))?;
        pause(100);
        (1..self.cpus).try_for_each(|cpu| self.set_online(cpu, true))
    }

    fn freeze_group(&mut self) -> Result<()> {
        let group = self.group();
        self.groups[group].set("cgroup.freeze", "1")?;
        self.groups[group].must_say("frozen 1", &[])?;
        pause(self.rng.u64(0..100));
        self.groups[group].set("cgroup.freeze", "0")?;
        self.groups[group].must_say("frozen 0", &[])
    }

    fn stop_processes(&mut self) -> Result<()> {
        let processes: Vec<i32> = self.groups.iter().flat_map(Group::processes).collect();
        let tell = |signal| processes.iter().for_each(|pid| gone_or(kill(Pid::from_raw(*pid), signal)));
        tell(Signal::SIGSTOP);
        pause(self.rng.u64(0..100));
        tell(Signal::SIGCONT);
        Ok(())
    }

    /// As for a suspend: sched_ext bypasses policies, and all processes but us freeze. The kernel has file systems synchronised first, for which
    /// it once took nine seconds where hundreds of tasks waited in sched_ext's own queue. Devices go on, because the port through
    /// which our results go does not always come back from where the kernel's driver puts it.
    fn freeze_machine(&mut self) -> Result<()> {
        // What the kernel calls SNAPSHOT_FREEZE and SNAPSHOT_UNFREEZE; closing the file ends it all too.
        let begin = Instant::now();
        let snapshot = File::open("/dev/snapshot").context("cannot prepare for a suspend")?;
        // SAFETY: plain system call without a parameter.
        let ask = |request: libc::c_ulong| match unsafe { libc::ioctl(snapshot.as_raw_fd(), request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        ask(0x3301).context("some process does not freeze")?;
        pause(self.rng.u64(0..100));
        ask(0x3302).context("processes stay frozen")?;
        drop(snapshot);
        self.bypassed_ms = self.bypassed_ms.max(begin.elapsed().as_millis() as u64);
        Ok(())
    }

    /// Processes that make more of themselves, as many as may be, until all are killed.
    fn fork_bomb(&mut self) -> Result<()> {
        let bomb = Group::make("bomb", self.breadth.patience)?;
        bomb.set("pids.max", &BOMB_PROCESSES.to_string())?;
        bomb.set("cpu.weight", &DAILY.weights.start.to_string())?;
        let mut first = start_in(&bomb, "sh", &["-c", "b() { b & b & wait; }; b 2>/dev/null"])?;
        bomb.must_say("populated 1", &[first.id()])?;
        pause(150);
        bomb.end()?;
        wait(&mut first, self.breadth.patience * 3).map(drop)
    }

    fn policy(&mut self) -> Result<&'static str> {
        let policy = POLICIES[self.rng.usize(0..POLICIES.len())];
        say(policy)?;
        Ok(policy)
    }

    fn come(&mut self) -> Result<()> {
        if self.sessions.len() < 3 {
            let beside = if self.rng.bool() { Beside::Others } else { Beside::OthersAsDefault };
            let policy = self.policy()?;
            self.join(Session::start(&small(&self.modules, policy, beside))?)?;
        }
        Ok(())
    }

    /// Whichever, also the one that came first, but never the last; and its module with it.
    fn go(&mut self) -> Result<()> {
        if self.sessions.len() > 1 {
            let gone = self.session();
            let gone = self.sessions.swap_remove(gone);
            self.call_logs.remove(&gone.slot());
            drop(gone);
        }
        unload_unused()
    }

    fn choose(&mut self) -> Result<()> {
        let (session, inherits) = (self.session(), self.rng.bool());
        let slot = self.sessions[session].slot();
        for pid in self.some() {
            match choose(
                &Who::Process(pid),
                self.rng.bool().then_some(slot),
                if inherits { Inherit::Yes } else { Inherit::No },
            ) {
                // Processes end while one looks at them.
                Ok(_) | Err(LoadError::Nobody | LoadError::User(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A policy, another one or a copy of the same, takes over.
    fn take_over(&mut self) -> Result<()> {
        let (policy, session) = (self.policy()?, self.session());
        let module = load_copy(&module_of(&self.modules, policy))?;
        let session = &self.sessions[session];
        let succession = Succession { slot: Some(session.slot()), module: Some(&module), ..Succession::default() };
        session.control().upgrade(&succession)?;
        unload_unused()
    }

    fn order(&mut self) -> Result<()> {
        let mut slots: Vec<u32> = self.sessions.iter().map(Session::slot).collect();
        self.rng.shuffle(&mut slots);
        Ok(self.sessions[0].control().reorder(&slots)?)
    }
}
