//! A running virtual machine: booted, used, shut down.

use super::{
    Console, Running,
    channel::{Channel, SHOWN_LINES},
    console::Silence,
    daemon::{Daemon, connect_to},
    initramfs::Initramfs,
    qmp,
    repair::Repair,
    share,
};
use crate::{
    Cache, Error, GuestCommand, Holder, Kernel, Mode, Output, Qemu, Result, Scratch, Stopped, VmSpec, error::Context,
    lock::Lock,
};
use ekiden_guest::{PORT_NAME, Request, SHARE_TAG};
use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
    process::Stdio,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long init may take to answer when the machine is already up.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a guest may take to switch itself off.
const POWEROFF_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a guest may take to answer when it is to be switched off.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// How often a machine whose CPUs run at once is booted anew, which has nothing of ours in its kernel yet: of some dozen boots, one ends
/// by a fault of the emulator ([`Console::has_emulator_fault`]), with QEMU itself by an assertion, or hangs ([`SILENCE_MOST`]); and on a busy
/// machine, of ten boots one has a wrong clock ([`Console::wrong_clock`]).
const PARALLEL_RETRIES: usize = 5;

/// How long such a machine may print nothing while it boots. One that hangs does so in its first seconds, where the kernel has all CPUs
/// stop for each other; one that is slow prints a line in each of them.
const SILENCE_MOST: Duration = Duration::from_secs(30);

/// How long a guest may take to come up with KVM before it is taken for unusable.
const KVM_PROBE_TIMEOUT: Duration = Duration::from_secs(8);

/// A running virtual machine. One that was made by [`Vm::boot`] is killed when it is dropped.
#[derive(Debug)]
pub struct Vm {
    channel: Arc<Channel>,
    console: Console,
    qemu: Daemon,
    release: String,
    problems: Vec<String>,
    /// Its files, if they are deleted with it.
    files: Option<Scratch>,
    /// Keeps other processes from using a machine that stays.
    lock: Option<Lock>,
}

impl Vm {
    /// Boots a kernel and waits until commands can be run.
    pub fn boot(kernel: &Kernel, spec: &VmSpec) -> Result<Self> {
        let files = Scratch::new()?;
        let booted = Self::boot_in(files.path(), kernel, spec, false);
        match booted {
            Ok(mut vm) => {
                vm.files = Some(files);
                Ok(vm)
            }
            Err(error) => {
                if matches!(error, Error::Boot { .. }) {
                    // The error names the console's file.
                    files.keep();
                }
                Err(error)
            }
        }
    }

    /// Boots a kernel in a machine that outlives this process. [`Vm::attach`] finds it by the directory, whose name is
    /// the machine's; dropping the `Vm` disconnects and pauses the machine, [`Vm::shutdown`] ends it.
    pub fn boot_detached(directory: &Path, kernel: &Kernel, spec: &VmSpec) -> Result<Self> {
        fs::create_dir_all(directory).context("create", directory)?;
        let directory = &directory.canonicalize().context("find", directory)?;
        let lock = lock(directory)?;
        if Self::look(directory).is_some() {
            return Err(Error::Runs(what(directory)));
        }
        let mut vm = Self::boot_in(directory, kernel, spec, true)?;
        vm.lock = Some(lock);
        Ok(vm)
    }

    /// Connects to a machine that [`Vm::boot_detached`] left running.
    pub fn attach(directory: &Path) -> Result<Self> {
        Self::attach_within(directory, lock(directory)?, ATTACH_TIMEOUT)
    }

    fn attach_within(directory: &Path, lock: Lock, timeout: Duration) -> Result<Self> {
        let qemu = daemon(directory, "qemu")?;
        let console = Console { log: directory.join("console.log") };
        let release_file = directory.join("release");
        let release = fs::read_to_string(&release_file).context("read", release_file)?;
        let socket = directory.join("qmp.sock");
        let connected = match qmp::execute(&socket, "cont") {
            Ok(_) => connect(directory, &qemu, &console, timeout, None),
            Err(error) => Err(format!("no machine runs in {}: {error}", directory.display())),
        };
        let (channel, problems) = connected.map_err(|reason| Error::Gone {
            reason,
            console: console.tail(SHOWN_LINES),
            log: console.log.clone(),
        })?;
        Ok(Self { channel, console, qemu, release, problems, files: None, lock: Some(lock) })
    }

    /// The process id of the QEMU of a machine that [`Vm::boot_detached`] left, if it runs, and who uses the machine.
    /// Disturbs neither.
    pub fn look(directory: &Path) -> Option<(i32, Option<Holder>)> {
        let qemu = daemon(directory, "qemu").ok().filter(Daemon::is_running)?;
        Some((qemu.pid(), Holder::now(&directory.join("lock"))))
    }

    /// Ends a machine that [`Vm::boot_detached`] left: it is switched off, or killed if it does not obey. One that is
    /// used is left alone unless `though_used`, then it is killed. None if it does not run.
    pub fn stop(directory: &Path, though_used: bool) -> Result<Option<Stopped>> {
        if Self::look(directory).is_none() {
            return Ok(None);
        }
        let reason = match (Lock::try_take(&directory.join("lock"))?, though_used) {
            (Err(holder), false) => return Err(Error::Busy { what: what(directory), holder }),
            (Err(holder), true) => {
                format!("it was used by {}", holder.map_or("another process".to_owned(), |holder| holder.to_string()))
            }
            (Ok(lock), _) => match Self::attach_within(directory, lock, STOP_TIMEOUT) {
                Ok(vm) if vm.power_off() => return Ok(Some(Stopped::Obeyed)),
                Ok(_) => format!("it did not switch itself off within {} s", POWEROFF_TIMEOUT.as_secs()),
                Err(_) => "it did not answer".to_owned(),
            },
        };
        for name in ["qemu", "share"] {
            // There need not be a share.
            if let Ok(daemon) = daemon(directory, name) {
                daemon.kill();
            }
        }
        Ok(Some(Stopped::Forced(reason)))
    }

    fn boot_in(directory: &Path, kernel: &Kernel, spec: &VmSpec, outlives: bool) -> Result<Self> {
        spec.check()?;
        let mode = spec.resolve_mode(kernel)?;
        let repair = Repair::of(mode, kernel);
        let mut left = if mode == Mode::Parallel { PARALLEL_RETRIES } else { 0 };
        loop {
            let start = Instant::now();
            match Self::try_boot_in(directory, kernel, spec, mode, repair.module.as_deref(), outlives) {
                Err(Error::Boot { .. }) if left > 0 && start.elapsed() < spec.boot_timeout => left -= 1,
                Ok(mut vm) => {
                    vm.problems.extend(repair.problem);
                    return Ok(vm);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn try_boot_in(
        directory: &Path,
        kernel: &Kernel,
        spec: &VmSpec,
        mode: Mode,
        repair: Option<&Path>,
        outlives: bool,
    ) -> Result<Self> {
        let path = |name: &str| directory.join(name);
        for stale in ["channel.sock", "qmp.sock", "share.sock", "console.log", "qemu.pid", "share.pid"] {
            // Usually there is none.
            let _ = fs::remove_file(path(stale));
        }
        let emulator = Qemu::prepare(&Cache::from_env()?, mode, spec.fair_turns, &mut |_| {})?.command();
        let initramfs = path("initramfs.cpio");
        Initramfs::new(kernel, spec, repair)?.write(&initramfs)?;
        let share = match &spec.share_dir {
            Some(share_dir) => {
                let server = share::start(share_dir, directory, outlives)?;
                server.save(&path("share.pid"))?;
                Some(server)
            }
            None => None,
        };
        let console = Console { log: path("console.log") };
        let failed = |reason: String| Error::Boot {
            reason: console.with_emulator_fault(&reason),
            console: console.tail(SHOWN_LINES),
            log: console.log.clone(),
        };
        let args: Vec<OsString> = emulator
            .get_args()
            .map(ToOwned::to_owned)
            .chain(qemu_args(kernel, spec, mode).into_iter().map(OsString::from))
            .collect();
        let qemu = Daemon::start(Path::new(emulator.get_program()), &args, Stdio::null(), &path("qemu.log"), outlives)?;
        qemu.save(&path("qemu.pid"))?;
        fs::write(path("release"), kernel.release()).context("write", path("release"))?;
        let silence = (mode == Mode::Parallel).then_some(SILENCE_MOST);
        let connected = connect(directory, &qemu, &console, spec.boot_timeout, silence);
        let connected = connected.and_then(|it| match console.wrong_clock().filter(|_| mode == Mode::Parallel) {
            Some(line) => Err(format!("its clock is wrong, as this machine was too busy while it booted ({line})")),
            None => Ok(it),
        });
        // QEMU has read it into the guest's memory.
        let _ = fs::remove_file(initramfs);
        match connected {
            Ok((channel, problems)) => Ok(Self {
                channel,
                console,
                qemu,
                release: kernel.release().to_owned(),
                problems,
                files: None,
                lock: None,
            }),
            Err(reason) => {
                qemu.kill();
                if let Some(share) = share {
                    share.kill();
                }
                Err(failed(reason))
            }
        }
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// If it cannot be started, takes too long, or the machine goes away; not if it fails.
    pub fn run(&self, command: &GuestCommand) -> Result<Output> {
        self.spawn(command)?.wait()
    }

    /// Runs a command that has to succeed and returns its standard output.
    pub fn run_ok(&self, command: &GuestCommand) -> Result<String> {
        let output = self.run(command)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Error::Failed {
            command: command.to_string(),
            status: output.status,
            // Its errors first: a summary of many tests shows the first lines.
            output: output.stderr + &output.stdout,
            console: self.console.tail(SHOWN_LINES),
        })
    }

    /// Starts a command; others may run meanwhile.
    pub fn spawn(&self, command: &GuestCommand) -> Result<Running> {
        self.channel.start(command)
    }

    /// What the kernel said.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// The release of its kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// What init could not do while booting; none for a good kernel.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Stops the machine's time until [`Vm::resume`]. An emulated guest with nothing to do keeps a processor of the host busy, as
    /// its clock jumps from timer to timer; a paused one costs nothing.
    pub fn pause(&self) -> Result<()> {
        self.qmp("stop").map(drop)
    }

    /// Lets a paused machine go on.
    pub fn resume(&self) -> Result<()> {
        self.qmp("cont").map(drop)
    }

    /// The time that the emulator has had on this machine's processors, in seconds.
    pub fn processor_seconds(&self) -> f64 {
        self.qemu.processor_seconds()
    }

    /// How many instructions its CPUs have executed so far, all together. Only of one whose clock counts them ([`Mode::Icount`]).
    ///
    /// # Errors
    /// Its emulator does not count, or does not answer.
    pub fn instructions(&self) -> Result<u64> {
        let counted = self.qmp("query-replay")?["icount"].as_u64().filter(|instructions| *instructions > 0);
        counted.ok_or_else(|| Error::Spec("its clock counts no instructions; it has to be booted with --icount".into()))
    }

    fn qmp(&self, command: &str) -> Result<serde_json::Value> {
        let socket = self.console.log.with_file_name("qmp.sock");
        qmp::execute(&socket, command).context("speak to QEMU through", socket)
    }

    /// Switches the machine off, by force if it does not obey.
    pub fn shutdown(self) -> Result<()> {
        if !self.power_off() {
            self.qemu.kill();
        }
        Ok(())
    }

    /// Whether it has switched itself off, as it was asked to.
    fn power_off(&self) -> bool {
        self.channel.send(&Request::Poweroff).is_ok() && self.qemu.wait(POWEROFF_TIMEOUT)
    }

    /// The process id of its QEMU.
    pub fn qemu_pid(&self) -> i32 {
        self.qemu.pid()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.channel.close();
        if self.lock.is_some() {
            // It may have been shut down.
            let _ = self.pause();
        }
        if self.files.is_some() {
            // The share's server ends with it.
            self.qemu.kill();
        }
    }
}

impl VmSpec {
    /// Its mode, with [`Mode::Auto`] decided. Whether KVM works is found by booting, once per boot of this machine: a device node alone
    /// says nothing on a machine that is itself virtual.
    pub fn resolve_mode(&self, kernel: &Kernel) -> Result<Mode> {
        if self.mode != Mode::Auto {
            return Ok(self.mode);
        }
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Mode::Icount);
        }
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let note = Cache::from_env()?.path().join(format!("kvm-{}", boot_id.trim()));
        let usable = match fs::read_to_string(&note) {
            Ok(text) => text == "usable",
            Err(_) => {
                let probe = VmSpec {
                    cpus: 1,
                    memory_mib: 512,
                    mode: Mode::Kvm,
                    init: self.init.clone(),
                    boot_timeout: KVM_PROBE_TIMEOUT,
                    ..VmSpec::default()
                };
                let files = Scratch::new()?;
                let usable = match Vm::boot_in(files.path(), kernel, &probe, false) {
                    Ok(vm) => vm.shutdown().is_ok(),
                    Err(Error::Boot { .. }) => false,
                    Err(error) => return Err(error),
                };
                fs::write(&note, if usable { "usable" } else { "unusable" }).context("write", &note)?;
                usable
            }
        };
        Ok(if usable { Mode::Kvm } else { Mode::Icount })
    }
}

/// Connects to init, waiting for QEMU and then for the kernel; an error says why not.
fn connect(
    directory: &Path,
    qemu: &Daemon,
    console: &Console,
    timeout: Duration,
    silence: Option<Duration>,
) -> std::result::Result<(Arc<Channel>, Vec<String>), String> {
    let silence = silence.map(|most| Silence::new(console, most));
    let alive = || {
        if qemu.is_running() {
            return silence.as_ref().map_or(Ok(()), Silence::check);
        }
        let words = qemu.last_words();
        if words.trim().is_empty() {
            return Err("the machine has stopped".to_owned());
        }
        Err(format!("QEMU ended, saying: {words}"))
    };
    let deadline = Instant::now() + timeout;
    let socket = directory.join("channel.sock");
    let stream = loop {
        match connect_to(&socket) {
            Ok(stream) => break stream,
            Err(error) => {
                alive()?;
                if Instant::now() > deadline {
                    return Err(format!("{}: {error}", socket.display()));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    };
    let left = deadline.saturating_duration_since(Instant::now());
    Channel::open(stream, console.clone(), left, &alive)
}

/// Everything that QEMU is started with, in the directory of the machine's files.
fn qemu_args(kernel: &Kernel, spec: &VmSpec, mode: Mode) -> Vec<String> {
    let mut args = spec.machine_args(mode);
    args.extend("-nodefaults -no-user-config -display none -no-reboot".split(' ').map(str::to_owned));
    let mut pair = |name: &str, value: String| args.extend([name.to_owned(), value]);
    let image = kernel.unpacked_image().unwrap_or_else(|| kernel.image());
    pair("-kernel", image.display().to_string());
    pair("-initrd", "initramfs.cpio".into());
    pair("-append", spec.kernel_args(mode));
    pair("-chardev", "file,id=console,path=console.log".into());
    pair("-serial", "chardev:console".into());
    pair("-chardev", "socket,id=channel,path=channel.sock,server=on,wait=off".into());
    pair("-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off".into());
    pair("-mon", "chardev=qmp,mode=control".into());
    pair("-device", "virtio-serial-pci".into());
    pair("-device", format!("virtserialport,chardev=channel,name={PORT_NAME}"));
    if let Some(disk) = &spec.disk {
        pair("-blockdev", blockdev(disk));
        pair("-device", "virtio-blk-pci,drive=disk".into());
    }
    if spec.share_dir.is_some() {
        pair("-chardev", "socket,id=share,path=share.sock".into());
        pair("-device", format!("vhost-user-fs-pci,chardev=share,tag={SHARE_TAG}"));
    }
    args
}

/// A comma in a file's name would begin another option.
fn blockdev(disk: &Path) -> String {
    let name = disk.display().to_string().replace(',', ",,");
    format!("driver=raw,node-name=disk,read-only=on,file.driver=file,file.filename={name}")
}

/// Makes sure that one process at a time uses a machine that stays.
fn lock(directory: &Path) -> Result<Lock> {
    Lock::try_take(&directory.join("lock"))?.map_err(|holder| Error::Busy { what: what(directory), holder })
}

/// A machine by its name.
fn what(directory: &Path) -> String {
    format!("machine {}", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Starts one of the programs of a machine that stays.
fn daemon(directory: &Path, name: &str) -> Result<Daemon> {
    Daemon::load(&directory.join(format!("{name}.pid")), &directory.join(format!("{name}.log")))
}
