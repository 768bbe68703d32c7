//! Runs a program's scripts: on this machine, or in a root of their own, and ends what they leave running.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_bench::Kind;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

use super::{
    programs::{PERF, Program},
    read::{self, Figures, Ran},
};
use crate::signals::{self, Handling};

/// Where programs of Debian's are besides the usual places.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/lib/postgresql/17/bin:/usr/local/sbin";

/// How long, in seconds, what is measured may take, and what prepares it.
const DRIVE_S: &str = "120";
const ONCE_S: &str = "600";

/// How long what serves may take to end when it is asked to, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// Lines of a program's output that are worth showing.
const SHOWN_LINES: usize = 5;

/// Where programs are, and what they know of the machine.
pub(super) struct Place {
    /// Their root, if it is not this machine's.
    root: Option<PathBuf>,
    /// Their directory, as they see it.
    directory: PathBuf,
    cpus: usize,
    stop: Stop,
}

/// A signal asked for the end.
#[derive(Debug, thiserror::Error)]
#[error("it was interrupted; what it had started is gone")]
pub(super) struct Interrupted(pub(super) i32);

/// Ends what runs when a signal asks for the end.
struct Stop {
    signal: Arc<AtomicI32>,
    groups: Arc<Mutex<Vec<Pid>>>,
    _handling: Handling,
}

impl Stop {
    fn listen() -> Result<Self> {
        let (signal, groups) = (Arc::<AtomicI32>::default(), Arc::<Mutex<Vec<Pid>>>::default());
        let (noted, known) = (Arc::clone(&signal), Arc::clone(&groups));
        let handling = signals::handle(move |signal| {
            noted.store(signal, Relaxed);
            for group in lock(&known).iter() {
                // It may have ended just now.
                let _ = killpg(*group, Signal::SIGKILL);
            }
        })
        .context("cannot watch for signals")?;
        Ok(Self { signal, groups, _handling: handling })
    }

    fn check(&self) -> Result<()> {
        match self.signal.load(Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal).into()),
        }
    }
}

/// A program leads a process group of its own, which ends with this.
struct Group<'a> {
    child: Child,
    stop: &'a Stop,
}

impl<'a> Group<'a> {
    fn start(mut command: Command, stop: &'a Stop) -> Result<Self> {
        let mut groups = lock(&stop.groups);
        stop.check()?;
        let child = command.process_group(0).spawn().with_context(|| {
            format!("cannot run {}; it comes with coreutils", command.get_program().to_string_lossy())
        })?;
        groups.push(pid(&child));
        drop(groups);
        Ok(Self { child, stop })
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().context("cannot wait for a program")?;
        self.stop.check()?;
        Ok(status)
    }

    /// Asks its leader to end, and waits.
    fn end(mut self) {
        // It may have ended by itself.
        let _ = kill(pid(&self.child), Signal::SIGTERM);
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let leader = pid(&self.child);
        // Whatever the leader has left.
        let _ = killpg(leader, Signal::SIGKILL);
        let _ = self.child.wait();
        lock(&self.stop.groups).retain(|group| *group != leader);
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

fn lock(groups: &Mutex<Vec<Pid>>) -> MutexGuard<'_, Vec<Pid>> {
    groups.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// In a directory that is new, which the caller removes.
    pub(super) fn new(root: Option<&Path>, directory: &Path) -> Result<Self> {
        let cpus = thread::available_parallelism().context("cannot tell the number of CPUs")?.get();
        Ok(Self { root: root.map(Path::to_owned), directory: directory.to_owned(), cpus, stop: Stop::listen()? })
    }

    /// A path of theirs, as this process sees it.
    fn outside(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    fn of(&self, program: &Program) -> PathBuf {
        self.directory.join(program.name)
    }

    /// The program that it needs and that is not here, if any.
    pub(super) fn lacks(&self, program: &Program) -> Option<&'static str> {
        program.needs.iter().copied().find(|name| !self.has(name))
    }

    fn has(&self, name: &str) -> bool {
        PATH.split(':').any(|directory| self.outside(&Path::new(directory).join(name)).exists())
    }

    /// As a path where there is a root: a guest's `chroot` is busybox's, which takes what has no slash for a command of its own, and so
    /// would each script.
    fn timeout(&self) -> &'static str {
        if self.root.is_some() { "/usr/bin/timeout" } else { "timeout" }
    }

    /// `sh` with a script that is ended after a time.
    fn shell(&self, program: &Program, script: &str, limit: &str, before: &[&str]) -> Result<Command> {
        let mut command = Command::new(if self.root.is_some() { "chroot" } else { "env" });
        command.args(&self.root).args([self.timeout(), "-k", "5", limit]);
        command.args(before).args(["sh", "-ec", script]).current_dir("/");
        command.env("PATH", PATH).env("LC_ALL", "C").env("D", self.of(program)).env("CPUS", self.cpus.to_string());
        let output = File::create(self.output(program)).context("cannot create a file for the output of a program")?;
        let error = output.try_clone().context("cannot share a file")?;
        command.stdin(Stdio::null()).stdout(output).stderr(error);
        Ok(command)
    }

    fn output(&self, program: &Program) -> PathBuf {
        self.outside(&self.directory).join(format!("{}.out", program.name))
    }

    /// Runs a script to its end.
    fn run(&self, program: &Program, script: &str, limit: &str, before: &[&str]) -> Result<Ran> {
        let command = self.shell(program, script, limit, before)?;
        let begin = Instant::now();
        let status = Group::start(command, &self.stop)?.wait()?;
        let elapsed = begin.elapsed();
        let output = fs::read(self.output(program)).context("cannot read what a program printed")?;
        let output = String::from_utf8_lossy(&output).into_owned();
        if !status.success() {
            let why =
                if status.code() == Some(124) { format!("it took more than {limit} s") } else { status.to_string() };
            bail!("{why}: {}", last_lines(&output));
        }
        Ok(Ran { output, elapsed })
    }

    /// What has to be done before anything is measured.
    pub(super) fn prepare(&self, program: &Program) -> Result<()> {
        let directory = self.outside(&self.of(program));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        if !program.once.is_empty() {
            self.run(program, program.once, ONCE_S, &[])?;
        }
        Ok(())
    }

    /// Runs a program under whichever scheduler is in charge. With `counting`, what only perf can count is counted, too, which makes
    /// the other figures worse.
    pub(super) fn measure(&self, program: &Program, counting: bool) -> Result<Figures> {
        let server = if program.serve.is_empty() { None } else { Some(self.serve(program)?) };
        let counted = self.of(program).join("counted");
        let counted_name = counted.display().to_string();
        let perf = [PERF, "stat", "-a", "-x,", "-e", "context-switches,cpu-migrations", "-o", &counted_name, "--"];
        let before: &[&str] = if counting && self.has(PERF) { &perf } else { &[] };
        let switches = switches();
        let ran = self.run(program, program.drive, DRIVE_S, before)?;
        let switches = switches.zip(self::switches()).map(|(before, after)| after.saturating_sub(before));
        if let Some(server) = server {
            server.end();
        }
        self.stop.check()?;
        if !before.is_empty() {
            let text = fs::read_to_string(self.outside(&counted)).context("perf stat has counted nothing")?;
            return Ok(read::perf_stat(&text));
        }
        let mut figures =
            (program.read)(&ran).with_context(|| format!("strange output: {}", last_lines(&ran.output)))?;
        ensure!(
            figures.iter().all(|(_, value)| value.is_finite()),
            "a figure is no number: {}",
            last_lines(&ran.output)
        );
        figures.push((read::measure("whole run", "ms", Kind::Count), ran.elapsed.as_secs_f64() * 1e3));
        figures.extend(switches.map(|count| (read::measure("switches", "", Kind::Count), count as f64)));
        Ok(figures)
    }

    /// Starts what serves, and waits until it does.
    fn serve(&self, program: &Program) -> Result<Group<'_>> {
        let mut command = self.shell(program, program.serve, DRIVE_S, &[])?;
        let log = self.outside(&self.directory).join(format!("{}.log", program.name));
        let log = File::create(&log).context("cannot create a log")?;
        command.stdout(log.try_clone().context("cannot share a log")?).stderr(log);
        let server = Group::start(command, &self.stop)?;
        let ready = format!("until {} > /dev/null 2>&1; do sleep 0.01; done", program.ready);
        let waited = self.run(program, &ready, "30", &[]);
        waited.with_context(|| format!("what serves {} is not ready", program.name))?;
        Ok(server)
    }
}

/// Task switches of the whole machine since it was started.
fn switches() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("ctxt "))?.trim().parse().ok()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::{super::programs::ALL, *};

    #[test]
    fn in_a_root_of_their_own_scripts_run_programs_of_that_root() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("tmp")).unwrap();
        let place = Place::new(Some(root.path()), Path::new("/tmp")).unwrap();
        let command = place.shell(&ALL[0], "true", "7", &[]).unwrap();
        let args: Vec<_> = command.get_args().skip(1).collect();
        assert_eq!(args, ["/usr/bin/timeout", "-k", "5", "7", "sh", "-ec", "true"]);
    }
}
