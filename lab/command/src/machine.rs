//! The virtual machine that commands run in: what it is made of, what is in it, and how a command of it is followed.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_build::Checkout;
use ekiden_vm::{
    Cache, GuestCommand, Kernel, Mode, Qemu, Signaller, Status, Stream, Vm, VmSpec, can_boot, fetch,
    fetch_newest_passing, prepare_repair,
};
use signal_hook::consts::{SIGHUP, SIGKILL, SIGTERM};

use crate::{
    failure::{Exit, Failure},
    invoker::Invoker,
    modules,
    progress::{PLAIN, Progress},
    session::JUDGED,
    signals,
};

/// The program that is the first process of a guest.
const GUEST: &str = "ekiden-guest";

/// Where the modules are in the guest.
pub const GUEST_MODULES: &str = "/host/modules";

/// A command may take as long as it takes.
const NO_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a command in a guest may take to end when it is asked to, and how long the guest may take to say that it
/// was killed.
const TIME_TO_END: Duration = Duration::from_secs(30);
const TIME_TO_DIE: Duration = Duration::from_secs(10);

/// How long a command in a terminal may take to end by SIGTERM before it is told that its terminal is gone.
const TIME_BEFORE_HANGUP: Duration = Duration::from_secs(3);

/// A shift that lets a second of an emulated guest take an eighth of the work.
const QUICK_SHIFT: u32 = 3;

/// What a virtual machine looks like.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=255))]
    pub cpus: u32,
    /// Memory
    #[arg(
        id = "memory",
        long = "memory",
        value_name = "MIB",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(256..)
    )]
    pub memory_mib: u32,
    /// NUMA nodes, among which processors and memory are shared evenly
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nodes: u32,
    /// Its kernel's release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    pub kernel: Option<String>,
    /// Run on the processor itself; by default only if that works here
    #[arg(long, conflicts_with = "icount")]
    pub kvm: bool,
    /// Emulate, with a clock that counts instructions: the same everywhere
    #[arg(long)]
    pub icount: bool,
    /// Emulate, each CPU in a thread of its own: CPUs really run at once. For correctness; what things cost there says
    /// nothing
    #[arg(long, conflicts_with_all = ["kvm", "icount", "shift"])]
    pub parallel: bool,
    /// With --icount, an instruction takes 2 to the power of this many nanoseconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub shift: Option<u32>,
    /// Programs of this machine that the guest has besides ours.
    #[arg(skip)]
    pub others: Vec<PathBuf>,
    /// A file system of this machine that the guest may read.
    #[arg(skip)]
    pub disk: Option<PathBuf>,
}

impl Shape {
    /// The kernel, fetched if it has to be; likewise the emulator.
    pub fn fetch(&self, progress: &mut Progress) -> Result<Kernel> {
        can_boot()?;
        let cache = Cache::from_env()?;
        progress.step("finding the kernel");
        let kernel = match &self.kernel {
            Some(release) => fetch(&cache, release, &mut progress.sink())?,
            None => fetch_newest_passing(&cache, &mut progress.sink())?,
        };
        progress.step("finding the emulator");
        Qemu::prepare(&cache, self.mode(), false, &mut progress.sink())?;
        if std::env::var_os("EKIDEN_GUEST").is_none() {
            build_missing(GUEST, &[GUEST, "ekiden-workload"], progress)?;
        }
        if self.parallel {
            // If it cannot be made, the boot of the guest says so.
            let _ = prepare_repair(&cache, &kernel, &mut progress.sink());
        }
        Ok(kernel)
    }

    /// Fetches the kernel and builds the programs for guests of [`fair_spec`](Self::fair_spec).
    pub fn fetch_fair(&self, progress: &mut Progress) -> Result<Kernel> {
        let kernel = self.fetch(progress)?;
        let spec = VmSpec { mode: self.mode(), init: Some(program(GUEST)), ..VmSpec::default() };
        let mode = spec.resolve_mode(&kernel)?;
        Qemu::prepare(&Cache::from_env()?, mode, true, &mut progress.sink())?;
        Ok(kernel)
    }

    /// The specification of the virtual machine, for work that is not measured.
    pub fn spec(&self, share: &Path) -> VmSpec {
        self.spec_with(share, QUICK_SHIFT)
    }

    /// A machine in which every CPU has turns: a CPU without one would be taken for a policy's fault.
    pub fn fair_spec(&self, share: &Path) -> VmSpec {
        VmSpec { fair_turns: true, ..self.spec(share) }
    }

    /// A machine for work that is measured: a nanosecond of the guest is an instruction.
    pub fn exact_spec(&self, share: &Path) -> VmSpec {
        self.spec_with(share, 0)
    }

    fn mode(&self) -> Mode {
        match (self.kvm, self.icount, self.parallel) {
            (true, ..) => Mode::Kvm,
            (_, true, _) => Mode::Icount,
            (.., true) => Mode::Parallel,
            _ => Mode::Auto,
        }
    }

    fn spec_with(&self, share: &Path, shift: u32) -> VmSpec {
        VmSpec {
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            numa_nodes: self.nodes,
            mode: self.mode(),
            icount_shift: self.shift.unwrap_or(shift),
            share_dir: Some(share.to_owned()),
            disk: self.disk.clone(),
            init: Some(program(GUEST)),
            programs: [programs(), self.others.clone()].concat(),
            // Emulated CPUs boot one after the other.
            boot_timeout: Duration::from_secs(120 + 15 * u64::from(self.cpus)),
            ..VmSpec::default()
        }
    }
}

/// Boots a guest, and says what did not work there though it came up.
pub fn boot(kernel: &Kernel, spec: &VmSpec) -> Result<Vm> {
    let vm = Vm::boot(kernel, spec)?;
    warn(&vm);
    Ok(vm)
}

/// Says what did not work while a guest booted.
pub fn warn(vm: &Vm) {
    for problem in vm.problems() {
        eprintln!("ekiden: in the guest: {problem}");
    }
}

/// The programs of ours that a guest has: this one, and the one that makes loads.
fn programs() -> Vec<PathBuf> {
    let this = std::env::current_exe().ok();
    [this, Some(load_program())].into_iter().flatten().filter(|program| program.exists()).collect()
}

/// The program that makes loads, or its name for `PATH` if it is not built.
pub fn load_program() -> PathBuf {
    let program = program("ekiden-load");
    if program.exists() { program } else { "ekiden-load".into() }
}

/// A program of ours for guests: beside this one or, where this one was installed without it, where it is built, by [`Shape::fetch`] for one.
pub fn program(name: &str) -> PathBuf {
    let built = || Checkout::find().map(|checkout| checkout.programs().join(name));
    beside(name).or_else(|| built().ok()).unwrap_or_else(|| name.into())
}

/// Builds the programs of packages in the checkout if the one of this name is not beside this one.
pub fn build_missing(name: &str, packages: &[&str], progress: &mut Progress) -> Result<()> {
    if beside(name).is_some() {
        return Ok(());
    }
    refuse_by_sudo(name)?;
    progress.step("building the programs for guests");
    Ok(Checkout::find()?.build_programs(packages, &mut progress.sink())?)
}

/// Refuses to build this program for root by sudo.
pub fn refuse_by_sudo(name: &str) -> Result<()> {
    if Invoker::find().is_some() {
        let message = format!(
            "{name} has to be built first, and root by sudo leaves no files in another user's tree; run the same command without sudo, which guests do \
             not need"
        );
        return Err(Failure::new(Exit::Missing, message).into());
    }
    Ok(())
}

/// The program of this name beside this one, if there is one.
fn beside(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    Some(this.with_file_name(name)).filter(|program| program.exists())
}

/// What tells this build of our programs from others.
pub(crate) fn programs_identity() -> String {
    let identity = |program: PathBuf| {
        let metadata = fs::metadata(&program).ok()?;
        Some(format!("{} {} {:?}\n", program.display(), metadata.len(), metadata.modified().ok()?))
    };
    programs().into_iter().filter_map(identity).collect()
}

/// Puts modules into the directory that the guest sees, and nothing else there.
pub fn install_modules(from: &Path, share: &Path) -> Result<()> {
    let to = share.join("modules");
    let failed = || format!("cannot put the modules into {}", to.display());
    if to.exists() {
        fs::remove_dir_all(&to).with_context(failed)?;
    }
    fs::create_dir_all(&to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "ko") {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default())).with_context(failed)?;
        }
    }
    Ok(())
}

/// Puts our programs there too, for a guest that was booted with older ones.
pub(crate) fn install_programs(share: &Path) -> Result<()> {
    let to = share.join("bin");
    let failed = || format!("cannot put our programs into {}", to.display());
    fs::create_dir_all(&to).with_context(failed)?;
    for program in programs() {
        let name = program.file_name().unwrap_or_default();
        // A file in use is not overwritten but replaced.
        let new = to.join(format!(".{}.new", name.to_string_lossy()));
        fs::copy(&program, &new).with_context(failed)?;
        fs::rename(&new, to.join(name)).with_context(failed)?;
    }
    Ok(())
}

/// A command for the guest, which finds the modules there.
pub fn guest_command<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> GuestCommand {
    GuestCommand::new(argv).env(modules::DIRECTORY, GUEST_MODULES).env(PLAIN, "1").env(JUDGED, "1").timeout(NO_LIMIT)
}

/// Runs a command with its output on ours; Ctrl-C and SIGTERM go to the command.
pub fn follow(vm: &Vm, command: &GuestCommand) -> Result<Status> {
    follow_with(vm, command, &mut print)
}

/// Follows a command in a guest, and hands over its output.
pub fn follow_with(vm: &Vm, command: &GuestCommand, sink: &mut dyn FnMut(Stream, &[u8])) -> Result<Status> {
    let running = vm.spawn(command)?;
    let command = running.signaller();
    passing_signals_on(&command, || Ok(running.stream(sink)?))
}

/// Puts what a command in a guest wrote where this one writes.
pub fn print(stream: Stream, bytes: &[u8]) {
    // A reader that has gone away is no reason to stop.
    let _ = match stream {
        Stream::Stdout => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
        Stream::Stderr => std::io::stderr().write_all(bytes),
    };
}

/// Waits for a command, to which Ctrl-C and SIGTERM go meanwhile.
pub fn passing_signals_on(command: &Signaller, wait: impl FnOnce() -> Result<Status>) -> Result<Status> {
    let (sender, signals) = channel();
    let told = sender.clone();
    let handling = signals::handle(move |signal| told.send(Some(signal)).unwrap_or_default())
        .context("cannot watch for signals")?;
    thread::scope(move |scope| {
        scope.spawn(move || pass_on(command, &signals));
        let status = wait();
        drop(handling);
        // The thread waits for this, unless it has given up.
        let _ = sender.send(None);
        status
    })
}

/// Passes the first signal on to a command in a guest, kills it at the second or when it has had time enough, and
/// gives up a guest that does not even say that the command is dead. A shell in a terminal, which ignores SIGTERM, is told in between that
/// its terminal is gone.
fn pass_on(command: &Signaller, signals: &Receiver<Option<i32>>) {
    let Ok(Some(signal)) = signals.recv() else { return };
    let asked = match signal == SIGTERM && command.in_terminal() {
        true => vec![(SIGTERM, TIME_BEFORE_HANGUP), (SIGHUP, TIME_TO_END)],
        false => vec![(signal, TIME_TO_END)],
    };
    for (signal, patience) in asked.into_iter().chain([(SIGKILL, TIME_TO_DIE)]) {
        // The command may have ended just now.
        let _ = command.signal(signal);
        if let Ok(None) | Err(RecvTimeoutError::Disconnected) = signals.recv_timeout(patience) {
            return;
        }
    }
    command.abandon();
}

/// A guest's exit code as ours.
pub fn exit_code(status: Status) -> ExitCode {
    match status {
        Status::Code(code) => u8::try_from(code).map_or(Exit::Other.into(), ExitCode::from),
        Status::Signal(signal) => ExitCode::from(128_u8.saturating_add(signal as u8)),
    }
}
