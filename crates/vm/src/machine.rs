//! A running virtual machine: booted, used, shut down.

use crate::{
    Cache, Console, Error, GuestCommand, Kernel, Mode, Output, Result, Running, VmSpec,
    channel::{Channel, SHOWN_LINES},
    daemon::Daemon,
    error::Context,
    initramfs::Initramfs,
    process, qmp,
};
use ekiden_guest::{PORT_NAME, Request, SHARE_TAG};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How long init may take to answer when the machine is already up.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a guest may take to switch itself off.
const POWEROFF_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Its files, if nobody else needs them.
    files: Option<TempDir>,
    /// Keeps other processes from using a machine that stays.
    lock: Option<Flock<File>>,
}

impl Vm {
    /// Boots a kernel and waits until commands can be run.
    pub fn boot(kernel: &Kernel, spec: &VmSpec) -> Result<Self> {
        let files = TempDir::with_prefix("ekiden-vm-").context("create", std::env::temp_dir())?;
        let booted = Self::boot_in(files.path(), kernel, spec, false);
        match booted {
            Ok(mut vm) => {
                vm.files = Some(files);
                Ok(vm)
            }
            Err(error) => {
                // The error names the console's file.
                let _ = files.keep();
                Err(error)
            }
        }
    }

    /// Boots a kernel in a machine that outlives this process. [`Vm::attach`] finds it by the directory, which must
    /// hold nothing else; dropping the `Vm` disconnects and pauses the machine, [`Vm::shutdown`] ends it.
    pub fn boot_detached(directory: &Path, kernel: &Kernel, spec: &VmSpec) -> Result<Self> {
        fs::create_dir_all(directory).context("create", directory)?;
        let lock = lock(directory)?;
        if let Ok(running) = Daemon::load(&directory.join("qemu.pid"), &directory.join("qemu.log")) {
            if running.is_running() {
                return Err(Error::Busy(directory.to_owned()));
            }
        }
        let mut vm = Self::boot_in(directory, kernel, spec, true)?;
        vm.lock = Some(lock);
        Ok(vm)
    }

    /// Connects to a machine that [`Vm::boot_detached`] left running.
    pub fn attach(directory: &Path) -> Result<Self> {
        let lock = lock(directory)?;
        let qemu = Daemon::load(&directory.join("qemu.pid"), &directory.join("qemu.log"))?;
        let console = Console { log: directory.join("console.log") };
        let release_file = directory.join("release");
        let release = fs::read_to_string(&release_file).context("read", release_file)?;
        let socket = directory.join("qmp.sock");
        let connected = match qmp::execute(&socket, "cont") {
            Ok(()) => connect(directory, &qemu, &console, ATTACH_TIMEOUT),
            Err(error) => Err(format!("no machine runs in {}: {error}", directory.display())),
        };
        let (channel, problems) = connected.map_err(|reason| Error::Gone {
            reason,
            console: console.tail(SHOWN_LINES),
            log: console.log.clone(),
        })?;
        Ok(Self { channel, console, qemu, release, problems, files: None, lock: Some(lock) })
    }

    fn boot_in(directory: &Path, kernel: &Kernel, spec: &VmSpec, outlives: bool) -> Result<Self> {
        spec.check()?;
        let mode = spec.mode.resolve(kernel)?;
        let path = |name: &str| directory.join(name);
        for stale in ["channel.sock", "qmp.sock", "share.sock", "console.log", "qemu.pid"] {
            // Usually there is none.
            let _ = fs::remove_file(path(stale));
        }
        let program = process::find("qemu-system-x86_64", &[])?;
        let initramfs = path("initramfs.cpio");
        Initramfs::new(kernel, &spec.programs)?.write(&initramfs)?;
        let share = match &spec.share_dir {
            Some(share_dir) => Some(start_share_server(share_dir, directory, outlives)?),
            None => None,
        };
        let console = Console { log: path("console.log") };
        let failed =
            |reason: String| Error::Boot { reason, console: console.tail(SHOWN_LINES), log: console.log.clone() };
        let args = qemu_args(directory, kernel, spec, mode);
        let qemu = Daemon::start(&program, &args, &path("qemu.log"), outlives)?;
        qemu.save(&path("qemu.pid"))?;
        fs::write(path("release"), kernel.release()).context("write", path("release"))?;
        let connected = connect(directory, &qemu, &console, spec.boot_timeout);
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
            output: output.stdout + &output.stderr,
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
        self.qmp("stop")
    }

    /// Lets a paused machine go on.
    pub fn resume(&self) -> Result<()> {
        self.qmp("cont")
    }

    /// The time that the emulator has had on this machine's processors, in seconds.
    pub fn processor_seconds(&self) -> f64 {
        self.qemu.processor_seconds()
    }

    fn qmp(&self, command: &str) -> Result<()> {
        let socket = self.console.log.with_file_name("qmp.sock");
        qmp::execute(&socket, command).context("speak to QEMU through", socket)
    }

    /// Switches the machine off, by force if it does not obey.
    pub fn shutdown(self) -> Result<()> {
        if self.channel.send(&Request::Poweroff).is_err() || !self.qemu.wait(POWEROFF_TIMEOUT) {
            self.qemu.kill();
        }
        Ok(())
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

impl Mode {
    /// Decides [`Mode::Auto`]. Whether KVM works is found by booting, once per boot of this machine: a device node alone
    /// says nothing on a machine that is itself virtual.
    pub fn resolve(self, kernel: &Kernel) -> Result<Self> {
        if self != Self::Auto {
            return Ok(self);
        }
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Self::Icount);
        }
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let note = Cache::from_env()?.path().join(format!("kvm-{}", boot_id.trim()));
        let usable = match fs::read_to_string(&note) {
            Ok(text) => text == "usable",
            Err(_) => {
                let probe = VmSpec {
                    cpus: 1,
                    memory_mib: 512,
                    mode: Self::Kvm,
                    boot_timeout: KVM_PROBE_TIMEOUT,
                    ..VmSpec::default()
                };
                let files = TempDir::with_prefix("ekiden-kvm-").context("create", std::env::temp_dir())?;
                let usable = match Vm::boot_in(files.path(), kernel, &probe, false) {
                    Ok(vm) => vm.shutdown().is_ok(),
                    Err(Error::Boot { .. }) => false,
                    Err(error) => return Err(error),
                };
                fs::write(&note, if usable { "usable" } else { "unusable" }).context("write", &note)?;
                usable
            }
        };
        Ok(if usable { Self::Kvm } else { Self::Icount })
    }
}

/// Connects to init, waiting for QEMU and then for the kernel; an error says why not.
fn connect(
    directory: &Path,
    qemu: &Daemon,
    console: &Console,
    timeout: Duration,
) -> std::result::Result<(Arc<Channel>, Vec<String>), String> {
    let alive = || {
        if qemu.is_running() {
            return Ok(());
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
        match UnixStream::connect(&socket) {
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

/// Everything that QEMU is started with.
fn qemu_args(directory: &Path, kernel: &Kernel, spec: &VmSpec, mode: Mode) -> Vec<String> {
    let path = |name: &str| directory.join(name).display().to_string();
    let mut args = spec.machine_args(mode);
    args.extend("-nodefaults -no-user-config -display none -no-reboot".split(' ').map(str::to_owned));
    let mut pair = |name: &str, value: String| args.extend([name.to_owned(), value]);
    let image = kernel.unpacked_image().unwrap_or_else(|| kernel.image());
    pair("-kernel", image.display().to_string());
    pair("-initrd", path("initramfs.cpio"));
    pair("-append", spec.kernel_args());
    pair("-chardev", format!("file,id=console,path={}", path("console.log")));
    pair("-serial", "chardev:console".into());
    pair("-chardev", format!("socket,id=channel,path={},server=on,wait=off", path("channel.sock")));
    pair("-chardev", format!("socket,id=qmp,path={},server=on,wait=off", path("qmp.sock")));
    pair("-mon", "chardev=qmp,mode=control".into());
    pair("-device", "virtio-serial-pci".into());
    pair("-device", format!("virtserialport,chardev=channel,name={PORT_NAME}"));
    if spec.share_dir.is_some() {
        pair("-chardev", format!("socket,id=share,path={}", path("share.sock")));
        pair("-device", format!("vhost-user-fs-pci,chardev=share,tag={SHARE_TAG}"));
    }
    args
}

/// Starts the program that serves the shared directory; it ends when QEMU disconnects.
fn start_share_server(share_dir: &Path, directory: &Path, outlives: bool) -> Result<Daemon> {
    let program = process::find("virtiofsd", &["/usr/libexec", "/usr/lib/qemu"])?;
    let share_dir = share_dir.canonicalize().context("find", share_dir)?.display().to_string();
    let socket = directory.join("share.sock");
    let socket_arg = format!("--socket-path={}", socket.display());
    // Nothing is cached in the guest: a file replaced here must be the new one there at once.
    // QEMU's own server, written in C, and its successor differ in their options.
    let is_c = process::output(std::process::Command::new(&program).arg("--version")).map(|output| {
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).contains("FUSE kernel interface")
    })?;
    let args = if is_c {
        vec![socket_arg, format!("-osource={share_dir}"), "-ocache=none".into(), "-osandbox=chroot".into()]
    } else {
        let sandbox = if nix::unistd::geteuid().is_root() { "chroot" } else { "none" };
        vec![socket_arg, format!("--shared-dir={share_dir}"), "--cache=never".into(), format!("--sandbox={sandbox}")]
    };
    let server = Daemon::start(&program, &args, &directory.join("share.log"), outlives)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while !socket.exists() {
        if !server.is_running() || Instant::now() > deadline {
            server.kill();
            return Err(Error::Boot {
                reason: format!("the share's server did not start: {}", server.last_words()),
                console: String::new(),
                log: server.log,
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

/// Makes sure that one process at a time uses a machine that stays.
fn lock(directory: &Path) -> Result<Flock<File>> {
    let path: PathBuf = directory.join("lock");
    let file = File::create(&path).context("create", &path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| Error::Busy(directory.to_owned()))
}
