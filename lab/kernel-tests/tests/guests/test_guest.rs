//! A booted stock kernel with our modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use ekiden_build::{Builder, Project, Target};
use ekiden_hostile::{BODIES_MAX, Host};
use ekiden_vm::{Cache, GuestCommand, Kernel, Mode, Scratch, Vm, VmSpec};
use serde_json::Value;

/// A guest with our modules and programs in `/lab`. Its time passes while it does what it is told, and only then: an emulated guest that is
/// idle keeps a processor busy, from which builds, browsers and replays of a test would have to take theirs.
pub(crate) struct TestGuest {
    vm: Vm,
    share: Scratch,
    runs_at_once: bool,
}

/// A machine that tests name: its kernel, its CPUs, and what it has besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// The newest kernel that passes the pre-flight, with this many CPUs.
    Newest(u32),
    /// The newest kernel with two CPUs that have fair turns, for tests that judge how long tasks wait, or what share of the time anything has. What
    /// other tests leave to the kernel's workers, such as hundreds of control groups that have ended, would wait with them.
    Calm,
    /// The newest kernel with this many CPUs that run at once, each in a thread of the emulator: more than this machine has processors, which
    /// are taken from them again and again.
    Parallel(u32),
    /// The newest kernel with four CPUs that run at once, which checks what it allocates.
    ParallelChecked,
    /// The newest kernel with two CPUs, and a clock that counts instructions, one a nanosecond.
    Exact,
    /// A guest like [`Calm`](Self::Calm), but for tests that leave such things.
    Crowded,
    /// The newest kernel with four CPUs that have fair turns, and stress-ng.
    Storm,
    /// Another kernel that passes the pre-flight, of another version than the newest.
    Older,
    /// The newest kernel with four CPUs, which checks what it allocates: slabs are poisoned and have room around objects that is watched.
    Checked,
    /// The newest kernel with two CPUs and memory for tens of thousands of tasks.
    Roomy,
    /// Like `Roomy` with one CPU, so that nothing else has a turn while it does something, and a clock that counts instructions, one a nanosecond.
    RoomyExact,
    /// For the long run of alarms.
    Alarms,
}

const STRESS_NG: &str = "/usr/bin/stress-ng";
const SLAB_DEBUG: &str = "slub_debug=FZPU";

impl Machine {
    /// Boots one.
    pub(crate) fn boot(self) -> TestGuest {
        match self {
            Self::Newest(cpus) => TestGuest::boot(&newest_kernel(), VmSpec { cpus, ..spec() }),
            Self::Calm | Self::Crowded => TestGuest::boot(&newest_kernel(), with_fair_turns()),
            Self::Parallel(cpus) => TestGuest::boot(
                &newest_kernel(),
                VmSpec { cpus, mode: Mode::Parallel, programs: vec![PathBuf::from(STRESS_NG)], ..VmSpec::default() },
            ),
            Self::ParallelChecked => TestGuest::boot(
                &newest_kernel(),
                VmSpec { cpus: 4, mode: Mode::Parallel, cmdline: SLAB_DEBUG.into(), ..VmSpec::default() },
            ),
            Self::Exact => TestGuest::boot(&newest_kernel(), VmSpec { mode: Mode::Icount, ..VmSpec::default() }),
            // Its CPUs are half as fast: no cost is judged there, and a storm lasts as long by the guest's clock.
            Self::Storm => TestGuest::boot(
                &newest_kernel(),
                VmSpec { cpus: 4, icount_shift: 4, programs: vec![PathBuf::from(STRESS_NG)], ..with_fair_turns() },
            ),
            Self::Checked => {
                let cmdline = format!("{} {SLAB_DEBUG}", spec().cmdline);
                TestGuest::boot(&newest_kernel(), VmSpec { cpus: 4, cmdline, ..spec() })
            }
            Self::Roomy => TestGuest::boot(&newest_kernel(), VmSpec { memory_mib: 3_072, ..spec() }),
            Self::RoomyExact => {
                let spec = VmSpec { cpus: 1, memory_mib: 3_072, mode: Mode::Icount, ..VmSpec::default() };
                TestGuest::boot(&newest_kernel(), spec)
            }
            Self::Older => TestGuest::boot(&older_kernel(), with_fair_turns()),
            Self::Alarms => TestGuest::boot(&newest_kernel(), crate::alarms::machine()),
        }
    }
}

/// The usual machine. Nothing is measured here, so the guest's clock may run ahead of its instructions. Without `nohz=off`, timers of
/// idle CPUs come late when the emulator takes turns.
pub(crate) fn spec() -> VmSpec {
    VmSpec { icount_shift: 3, cmdline: "nohz=off".into(), ..VmSpec::default() }
}

/// An emulator whose turns are not fair leaves a CPU without one for seconds, and what is judged by the second, or as a share of the time, is
/// judged wrong then. One whose turns are takes longer where tasks sleep and wake up much.
fn with_fair_turns() -> VmSpec {
    VmSpec { fair_turns: true, ..spec() }
}

/// What [`Machine::Older`] has.
const OLDER_POLICIES: &[&str] = &["fifo", "wfq", "cfs", "faulty"];

/// How long a guest test may take, by the clock of this machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1500);

/// Says something on the terminal; tests that boot take a while.
fn say(line: &str) {
    eprintln!("{line}");
}

impl TestGuest {
    /// Boots `kernel` in such a machine, with our programs besides those of `spec`.
    fn boot(kernel: &Kernel, spec: VmSpec) -> Self {
        let cache = Cache::from_env().unwrap();
        let share = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
        for directory in modules(&cache, kernel) {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                fs::copy(&path, share.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        let programs = [programs(), spec.programs].concat();
        let spec = VmSpec { share_dir: Some(share.path().to_owned()), programs, ..spec };
        let vm = Vm::boot(kernel, &spec).unwrap_or_else(|error| panic!("{error}"));
        assert!(vm.problems().is_empty(), "{:?}", vm.problems());
        let guest = Self { vm, share, runs_at_once: spec.mode == Mode::Parallel };
        guest.shell("mkdir /lab && cp /host/*.ko /lab/");
        guest
    }

    /// What it fell over if that is its emulator's fault or its kernel's.
    pub(crate) fn outside_fault(&self) -> Option<String> {
        let console = self.vm.console();
        let known = [
            (console.has_emulator_fault(), "a fault of QEMU's own"),
            (console.has_fork_race(), "a race of the kernel's own between a fork and sched_setscheduler()"),
            (console.has_lost_timer(), "a timer of an idle CPU that did not expire, before there was any scheduler"),
            (
                console.has_forwarded_timer(),
                "the kernel's own timer of a deadline server, forwarded while it was queued",
            ),
        ];
        let known = known.into_iter().find_map(|(is_it, what)| is_it.then(|| what.to_owned()));
        // A storm has left it there.
        known.or_else(|| fs::read_to_string(self.host("stood-still.txt")).ok())
    }

    /// How often each CPU's timers were held back since it booted, and for how long at most: the kernel does so after an interrupt that
    /// met expired timers three times, and all that is late then is late because of the emulator's turns.
    pub(crate) fn timers_held_back(&self) -> String {
        let lines = self.shell("grep -E 'nr_hangs|max_hang_time' /proc/timer_list");
        lines
            .split_whitespace()
            .filter(|word| word.ends_with(|digit: char| digit.is_ascii_digit()))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// How often the kernel would have met a breakpoint that it had removed, by a fault of its emulator, since it booted.
    pub(crate) fn repaired(&self) -> u32 {
        let file = "/sys/module/stale_int3/parameters/repaired";
        self.shell(&format!("[ ! -e {file} ] || cat {file}")).trim().parse().unwrap_or_default()
    }

    /// Whether its CPUs run at once, and lose their processors at any moment and for as long as others of this machine want them.
    pub(crate) fn runs_at_once(&self) -> bool {
        self.runs_at_once
    }

    /// The time that its emulator has had on this machine's processors, however busy they are.
    pub(crate) fn processor_seconds(&self) -> f64 {
        self.vm.processor_seconds()
    }

    /// Where a file is that the guest has as `/host/NAME`.
    pub(crate) fn host(&self, name: &str) -> PathBuf {
        self.share.path().join(name)
    }

    /// Keeps recordings and texts that the guest has left in `/host`, and what its kernel said, in a directory of this name. Returns it.
    pub(crate) fn keep(&self, name: &str) -> PathBuf {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // That of the last time, if there is one.
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("console.log"), self.vm.console().text()).unwrap();
        for path in fs::read_dir(self.share.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "ekirec" || extension == "txt") {
                fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
            }
        }
        to
    }

    /// Has a program of ours, and the libraries that it needs, in the guest's `/lab/programs`. Read from `/host`, each page of it would cost the
    /// guest a request to this machine each time it starts. Without what only a debugger reads.
    pub(crate) fn bring(&self, package: &str, name: &str) {
        // The run of all tests has just built everything.
        let is_built = std::env::var_os("EKIDEN_BUILT").is_some();
        let program = if is_built { built() } else { build(&[package]) }.join(name);
        let status = Command::new("strip").arg("-o").arg(self.host(name)).arg(&program).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot strip {}", program.display());
        let names = [self.bring_libraries(&program), vec![name.to_owned()]].concat().join(" ");
        // An earlier test may have brought it.
        self.shell(&format!(
            "mkdir -p /lab/programs; cd /host; [ -e /lab/programs/{name} ] || cp {names} /lab/programs/"
        ));
    }

    /// Has the libraries of a program, or of one of them, in `/host`. Returns their names.
    pub(crate) fn bring_libraries(&self, of: &Path) -> Vec<String> {
        let listing = String::from_utf8(Command::new("ldd").arg(of).output().unwrap().stdout).unwrap();
        let libraries = listing.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        let bring = |file: &str| {
            let name = Path::new(file).file_name().unwrap().to_str().unwrap();
            fs::copy(file, self.host(name)).unwrap();
            name.to_owned()
        };
        libraries.map(bring).collect()
    }

    /// Has the module of generated policies among the others.
    pub(crate) fn bring_generated(&self, seed: u64, bodies: Range<u64>) {
        let cache = Cache::from_env().unwrap();
        let module = generated(&cache, &newest_kernel(), seed, bodies);
        fs::write(self.share.path().join("ekiden_hostile.ko"), module).unwrap();
        self.shell("cp /host/ekiden_hostile.ko /lab/");
    }

    /// Runs a guest test, and returns what it printed, a JSON value per line.
    pub(crate) fn guest_test(&self, arguments: &str) -> Vec<Value> {
        self.guest_test_within(arguments, PATIENCE)
    }

    /// Runs a guest test that may take as long as `most`.
    pub(crate) fn guest_test_within(&self, arguments: &str, most: Duration) -> Vec<Value> {
        let output = self.shell_within(&format!("ekiden-test {arguments}"), most);
        output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{output}"))).collect()
    }

    /// Runs a shell line in the guest; it must succeed, and the kernel must have nothing to complain about.
    pub(crate) fn shell(&self, line: &str) -> String {
        self.shell_within(line, PATIENCE)
    }

    fn shell_within(&self, line: &str, most: Duration) -> String {
        let command = GuestCommand::shell(line).timeout(most);
        let run = || {
            self.vm.resume()?;
            let output = self.vm.run_ok(&command)?;
            self.vm.pause()?;
            Ok::<_, ekiden_vm::Error>(output)
        };
        let output = run().unwrap_or_else(|error| panic!("{error}"));
        let finding = self.vm.console().first_finding(200);
        assert!(finding.is_empty(), "after `{line}` the kernel says:\n{finding}");
        output
    }
}

/// Where the modules of each kernel are, after `--prepare`. With `EKIDEN_PREPARED`, which a run sets that has just done so, they are not
/// compared with their sources again.
fn prepared() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("prepared.json")
}

/// Builds what guests need, without booting any.
pub(crate) fn prepare() {
    let cache = Cache::from_env().unwrap();
    // A file of the last time, if there is one.
    let _ = fs::remove_file(prepared());
    let of = |kernel: Kernel| (kernel.release().to_owned(), modules(&cache, &kernel));
    let built: Modules = [newest_kernel(), older_kernel()].map(of).into();
    fs::write(prepared(), serde_json::to_string(&built).unwrap()).unwrap();
    generated(&cache, &newest_kernel(), crate::generated::seed(), 0..crate::generated::count().min(BODIES_MAX));
    programs();
}

/// Builds the module of generated policies for a kernel. Returns what is in its file.
fn generated(cache: &Cache, kernel: &Kernel, seed: u64, bodies: Range<u64>) -> Vec<u8> {
    // The next one may write others.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile");
    ekiden_hostile::write(&directory, &root(), seed, bodies, &BTreeSet::new(), Host::Kernel).unwrap();
    let project = Project::open(&directory).unwrap();
    let builder = Builder::new(cache, &mut say).unwrap_or_else(|error| panic!("{error}"));
    let modules = builder.build(&Target::fetched(kernel), &project, project.policies(), &mut say);
    fs::read(&modules.unwrap_or_else(|error| panic!("{error}")).policies[0].1).unwrap()
}

/// Where modules are, by the release of their kernel.
type Modules = BTreeMap<String, Vec<PathBuf>>;

/// Builds our modules for a kernel, once: to see that nothing has changed takes half a minute. Returns where they are.
fn modules(cache: &Cache, kernel: &Kernel) -> Vec<PathBuf> {
    static BUILT: LazyLock<Mutex<Modules>> = LazyLock::new(|| {
        let text = std::env::var_os("EKIDEN_PREPARED").and_then(|_| fs::read_to_string(prepared()).ok());
        Mutex::new(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    });
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(kernel.release().to_owned()).or_insert_with(|| build_modules(cache, kernel)).clone()
}

/// For any other kernel than the newest, those policies only that its tests run: what differs from kernel to kernel is in `ekiden.ko`.
fn build_modules(cache: &Cache, kernel: &Kernel) -> Vec<PathBuf> {
    let builder = Builder::new(cache, &mut say).unwrap_or_else(|error| panic!("{error}"));
    let is_newest = kernel.release() == newest_kernel().release();
    let core = builder.core(&Target::fetched(kernel), &mut say).unwrap_or_else(|error| panic!("{error}"));
    let build = |directory| {
        let project = Project::open(&root().join(directory)).unwrap();
        let mut policies = project.policies().to_vec();
        policies.retain(|policy| is_newest || OLDER_POLICIES.contains(&policy.name.as_str()));
        let modules = builder.policies(&core, &project, &policies, &mut say);
        modules.unwrap_or_else(|error| panic!("{error}")).directory
    };
    ["policies", "lab/test-policies"].map(build).into()
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

/// What runs in the guest, built once.
fn programs() -> Vec<PathBuf> {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| build(&["ekiden-guest", "ekiden-workload"]));
    vec![BUILT.join("ekiden-load"), BUILT.join("ekiden-test")]
}

/// Builds programs that belong to other packages, which cargo does not do for this test by itself. Returns where they are. By themselves, always:
/// with the features that other packages ask for, a load takes more instructions.
fn build(packages: &[&str]) -> PathBuf {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let status =
        Command::new(env!("CARGO")).args(["build", "--quiet"]).args(packages).current_dir(root()).status().unwrap();
    assert!(status.success(), "cannot build the guest's programs");
    built()
}

/// Where cargo puts programs.
pub(crate) fn built() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_ekiden-test")).parent().unwrap().to_owned()
}
