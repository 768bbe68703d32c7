//! A booted stock kernel with our modules, shared by the tests of one file.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError},
    thread,
    time::Duration,
};

use ekiden_build::{Builder, Project, Target};
use ekiden_vm::{Cache, GuestCommand, Kernel, Vm, VmSpec};
use serde_json::Value;
use tempfile::TempDir;

/// A guest with our modules and programs in `/lab`.
pub(crate) struct Lab {
    vm: Vm,
    share: TempDir,
}

/// The usual machine. Nothing is measured here, so the guest's clock may run ahead of its instructions. Without `nohz=off`, timers of
/// idle CPUs come late when the emulator takes turns.
pub(crate) fn spec() -> VmSpec {
    VmSpec { icount_shift: 3, cmdline: "nohz=off".into(), ..VmSpec::default() }
}

/// How long a trial may take, by the clock of this machine.
const PATIENCE: Duration = Duration::from_secs(1500);

/// Says something on the terminal; tests that boot take a while.
fn say(line: &str) {
    eprintln!("{line}");
}

impl Lab {
    /// Boots `kernel` with two CPUs.
    pub(crate) fn boot(kernel: &Kernel) -> Self {
        Self::boot_with(kernel, 2)
    }

    /// Boots `kernel` with this many CPUs.
    pub(crate) fn boot_with(kernel: &Kernel, cpus: u32) -> Self {
        Self::boot_of(kernel, VmSpec { cpus, ..spec() })
    }

    /// Boots `kernel` in such a machine, with our programs besides those of `spec`.
    pub(crate) fn boot_of(kernel: &Kernel, spec: VmSpec) -> Self {
        let cache = Cache::from_env().unwrap();
        let share = TempDir::new().unwrap();
        let builder = Builder::new(&cache, &mut say).unwrap_or_else(|error| panic!("{error}"));
        for crate_name in ["policies", "test-policies"] {
            let project = Project::open(&root().join("crates").join(crate_name)).unwrap();
            let modules = builder
                .build(&Target::fetched(kernel), &project, project.policies(), &mut say)
                .unwrap_or_else(|error| panic!("{error}"));
            for entry in fs::read_dir(&modules.directory).unwrap() {
                let path = entry.unwrap().path();
                fs::copy(&path, share.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        let programs = [programs(), spec.programs].concat();
        let spec = VmSpec { share_dir: Some(share.path().to_owned()), programs, ..spec };
        let vm = Vm::boot(kernel, &spec).unwrap_or_else(|error| panic!("{error}"));
        assert!(vm.problems().is_empty(), "{:?}", vm.problems());
        let lab = Self { vm, share };
        lab.shell("mkdir /lab && cp /host/*.ko /lab/");
        lab
    }

    /// Where a file is that the guest has as `/host/NAME`.
    pub(crate) fn host(&self, name: &str) -> PathBuf {
        self.share.path().join(name)
    }

    /// Keeps recordings that the guest has left in `/host`, and what its kernel said, in a directory of this name. Returns it.
    pub(crate) fn keep(&self, name: &str) -> PathBuf {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // That of the last time, if there is one.
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("console.log"), self.vm.console().text()).unwrap();
        for path in fs::read_dir(self.share.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "ekirec") {
                fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
        }
        to
    }

    /// Has a program of ours, which is too large for the guest's memory, as `/host/NAME`, and its libraries beside it.
    pub(crate) fn bring(&self, package: &str, name: &str) {
        let program = build(&[package]).join(name);
        let listing = String::from_utf8(Command::new("ldd").arg(&program).output().unwrap().stdout).unwrap();
        let libraries = listing.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        for file in libraries.map(Path::new).chain([program.as_path()]) {
            fs::copy(file, self.share.path().join(file.file_name().unwrap())).unwrap();
        }
    }

    /// Runs a trial, and returns what it printed, a JSON value per line.
    pub(crate) fn trial(&self, arguments: &str) -> Vec<Value> {
        self.trial_within(arguments, PATIENCE)
    }

    /// The same for one that may take so long.
    pub(crate) fn trial_within(&self, arguments: &str, most: Duration) -> Vec<Value> {
        let output = self.shell_within(&format!("ekiden-trial {arguments}"), most);
        output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{output}"))).collect()
    }

    /// Runs a shell line in the guest; it must succeed, and the kernel must have nothing to complain about.
    pub(crate) fn shell(&self, line: &str) -> String {
        self.shell_within(line, PATIENCE)
    }

    fn shell_within(&self, line: &str, most: Duration) -> String {
        let command = GuestCommand::shell(line).timeout(most);
        let output = self.vm.run_ok(&command).unwrap_or_else(|error| panic!("{error}"));
        let finding = self.vm.console().first_finding(200);
        assert!(finding.is_empty(), "after `{line}` the kernel says:\n{finding}");
        output
    }
}

/// Two tests run at a time, each in a lab of its own.
static LABS: [Mutex<Option<Lab>>; 2] = [const { Mutex::new(None) }; 2];

/// One of the two labs, for one test.
pub(crate) struct Borrowed(MutexGuard<'static, Option<Lab>>);

impl Deref for Borrowed {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        self.0.as_ref().expect("it was booted when it was borrowed")
    }
}

/// A lab of the newest kernel that passes the pre-flight.
pub(crate) fn newest() -> Borrowed {
    static FIRST: Once = Once::new();
    // SAFETY: the function may be called at any time, and does not unwind: it would abort.
    FIRST.call_once(|| assert_eq!(unsafe { libc::atexit(end_labs) }, 0));
    loop {
        for lab in &LABS {
            if let Some(mut lab) = free(lab) {
                lab.get_or_insert_with(boot_newest);
                return Borrowed(lab);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// A lab that no test has now. A test that failed has said so; the guest is still there for the next one.
fn free(lab: &'static Mutex<Option<Lab>>) -> Option<MutexGuard<'static, Option<Lab>>> {
    match lab.try_lock() {
        Ok(lab) => Some(lab),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// One after the other, as both use the modules that are built for it.
fn boot_newest() -> Lab {
    static BOOTING: Mutex<()> = Mutex::new(());
    let _turn = BOOTING.lock().unwrap_or_else(PoisonError::into_inner);
    Lab::boot(&newest_kernel())
}

/// Statics are not dropped, and every lab has files.
extern "C" fn end_labs() {
    for lab in &LABS {
        drop(free(lab).and_then(|mut lab| lab.take()));
    }
}

/// The newest kernel that passes the pre-flight.
pub(crate) fn newest_kernel() -> Kernel {
    let cache = Cache::from_env().unwrap();
    ekiden_vm::fetch_newest_passing(&cache, &mut say).unwrap_or_else(|error| panic!("{error}"))
}

/// Another kernel that passes the pre-flight, of another version than the newest.
pub(crate) fn older_kernel() -> Kernel {
    let cache = Cache::from_env().unwrap();
    let newest = ekiden_vm::fetch_newest_passing(&cache, &mut say).unwrap_or_else(|error| panic!("{error}"));
    let version = |release: &str| release.split('.').take(2).collect::<Vec<_>>().join(".");
    let other = |release: &str| version(release) != version(newest.release());
    ekiden_vm::fetch_newest_passing_of(&cache, other, &mut say).unwrap_or_else(|error| panic!("{error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What runs in the guest.
fn programs() -> Vec<PathBuf> {
    let directory = build(&["ekiden-guest", "ekiden-workload"]);
    vec![directory.join("ekiden-load"), directory.join("ekiden-trial")]
}

/// Builds programs that belong to other packages, which cargo does not do for this test by itself. Returns where they are.
fn build(packages: &[&str]) -> PathBuf {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let status =
        Command::new(env!("CARGO")).args(["build", "--quiet"]).args(packages).current_dir(root()).status().unwrap();
    assert!(status.success(), "cannot build the guest's programs");
    Path::new(env!("CARGO_BIN_EXE_ekiden-trial")).parent().unwrap().to_owned()
}
