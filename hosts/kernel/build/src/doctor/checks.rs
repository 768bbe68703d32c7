//! The single checks.

use super::{
    Finding, Purpose, State,
    distribution::{Distribution, Need, rust_roles},
    machine::Machine,
};
use crate::toolchain::OLDEST;
use ekiden_vm::Qemu;
use std::path::Path;

/// Where distributions keep the certificates that programs trust.
const CERTIFICATES: [&str; 3] =
    ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/cert.pem"];

/// The oldest clang that compiles the BPF programs.
const CLANG: u32 = 16;

/// The first glibc that the build programs in Debian's kernel packages run with.
const GLIBC: (u32, u32) = (2, 38);

/// The first QEMU that shares the instructions of a turn out among emulated CPUs.
const FAIR_QEMU: (u32, u32) = (8, 1);

/// The first QEMU whose emulated CPUs run in threads of their own here.
const PARALLEL_QEMU: (u32, u32) = Qemu::THREADS;

/// Where distributions keep the libraries that programs are linked with.
pub const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Space for a kernel with its headers, a Debian root, and Rust's library.
const SPACE_GIB: f64 = 4.0;

/// What one check found out; where it is missing, `seen` may still say more.
struct Check {
    purpose: Purpose,
    what: &'static str,
    why: &'static str,
    need: Option<Need>,
}

impl Check {
    fn new(purpose: Purpose, what: &'static str, why: &'static str) -> Self {
        Self { purpose, what, why, need: None }
    }

    fn from(self, need: Need) -> Self {
        Self { need: Some(need), ..self }
    }

    /// `seen` is what was found if it is there, else what was found instead, which may be nothing.
    fn result(self, machine: &Machine, seen: Result<String, String>) -> Finding {
        let family = Distribution::of(&machine.read("etc/os-release").unwrap_or_default()).0;
        let (state, seen) = match seen {
            Ok(seen) => (State::Ok, seen),
            Err(seen) => (State::Missing, seen),
        };
        let mut finding = Finding {
            purpose: self.purpose,
            what: self.what.into(),
            why: self.why.into(),
            state,
            seen,
            fix: None,
            packages: self.need.map(|need| family.packages(need, &machine.release())).unwrap_or_default(),
            is_installable: self.need.is_some(),
        };
        if finding.state == State::Missing && family.has_apt() && self.need.and_then(rust_roles).is_some() {
            rust(machine, &mut finding);
        }
        finding
    }

    /// Finds whether one of several programs is there.
    fn program(self, machine: &Machine, names: &[&str]) -> Finding {
        let seen = machine.program(names).map(|path| path.display().to_string());
        self.result(machine, seen.ok_or_else(|| format!("no {}", names.join(", no "))))
    }

    /// A file is there.
    fn file(self, machine: &Machine, path: &str) -> Finding {
        let seen = if machine.has(path) { Ok(format!("/{path}")) } else { Err(format!("no /{path}")) };
        self.result(machine, seen)
    }
}

impl Finding {
    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Says what to do by hand, where packages would be of no use.
    fn by_hand(mut self, fix: &str) -> Self {
        self.packages.clear();
        self.fix(fix)
    }

    /// Things go on without it.
    fn optional(mut self) -> Self {
        if self.state == State::Missing {
            self.state = State::Note;
        }
        self
    }
}

/// Which packages bring a part of Rust that is missing: those of one set, all that lack of it.
fn rust(machine: &Machine, finding: &mut Finding) {
    let Some(set) = (machine.rust_set)(finding.purpose == Purpose::Tests) else { return };
    finding.packages.clear();
    match set {
        Ok(set) if set.install.is_empty() => {
            finding.fix = Some(format!(
                "the packages of Rust {} ({}) are installed, but another Rust comes first: look at PATH, RUSTC and \
                 EKIDEN_RUST_LIBRARY",
                set.version, set.name
            ));
        }
        Ok(set) => finding.packages = set.install,
        Err(error) => finding.fix = Some(error.to_string()),
    }
}

pub(super) fn simulator(machine: &Machine, findings: &mut Vec<Finding>) {
    let check = |what, why| Check::new(Purpose::Simulator, what, why);
    let seen = match machine.program(&["cargo"]).and_then(|cargo| machine.output(&cargo, "--version")) {
        Some(text) if version(&text) >= version(OLDEST) => Ok(text.trim().to_owned()),
        Some(text) => Err(format!("{}, older than {OLDEST}", text.trim())),
        None => Err("no cargo".into()),
    };
    let has_cargo = machine.program(&["cargo"]).is_some();
    let rust = check("Rust 1.85 or newer", "everything here is built by cargo").from(Need::Rust).result(machine, seen);
    findings.push(match machine.program(&["rustup"]) {
        // A package would come after it in PATH, or be refused.
        Some(_) if has_cargo => rust.by_hand("rustup update stable"),
        _ => rust,
    });
    // Linking needs what comes with the headers of the C library.
    let seen = match machine.program(&["gcc", "cc"]) {
        Some(path) if machine.has("usr/include/stdio.h") => Ok(path.display().to_string()),
        Some(path) => Err(format!("{}, but no /usr/include/stdio.h", path.display())),
        None => Err("no gcc, no cc".into()),
    };
    findings.push(check("C compiler", "cargo links programs with it").from(Need::Gcc).result(machine, seen));
    let seen = CERTIFICATES.into_iter().find(|path| machine.has(path));
    findings.push(
        check("certificates", "cargo fetches crates over TLS")
            .from(Need::Certificates)
            .result(machine, seen.map(|path| format!("/{path}")).ok_or_else(|| "no bundle of them".into())),
    );
}

pub(super) fn vm(machine: &Machine, findings: &mut Vec<Finding>) {
    let check = |what, why| Check::new(Purpose::Vm, what, why);
    let library = check(super::RUST_LIBRARY, "the parts of it that policies use are compiled for the kernel")
        .from(Need::RustLibrary)
        .result(machine, machine.library.clone());
    findings.push(match machine.program(&["rustup"]) {
        Some(_) => library.fix("rustup component add rust-src"),
        None => library,
    });
    findings.push(check("LLVM's linker", "it links a policy into one object").from(Need::Lld).result(
        machine,
        if machine.linker { Ok("ld.lld".into()) } else { Err("no ld.lld of version 14 or newer".into()) },
    ));
    findings.push(
        check("clang 16 or newer", "it compiles the BPF programs").from(Need::Clang).result(machine, clang(machine)),
    );
    let libbpf = "libbpf, which loads BPF programs, is built with it";
    findings.push(check("make", libbpf).from(Need::Make).program(machine, &["make"]));
    findings.push(check("pkg-config", libbpf).from(Need::PkgConfig).program(machine, &["pkg-config", "pkgconf"]));
    findings.push(check("libelf", libbpf).from(Need::LibElf).file(machine, "usr/include/libelf.h"));
    findings.push(check("zlib", libbpf).from(Need::Zlib).file(machine, "usr/include/zlib.h"));

    qemu(machine, findings);
    let elsewhere = ["usr/libexec/virtiofsd", "usr/lib/qemu/virtiofsd"].into_iter().find(|path| machine.has(path));
    let virtiofsd = check("virtiofsd", "it shares a directory with the virtual machine").from(Need::Virtiofsd);
    findings.push(match elsewhere {
        Some(path) => virtiofsd.file(machine, path),
        None => virtiofsd.program(machine, &["virtiofsd"]),
    });
    findings.push(
        check("busybox, static", "it is most of the virtual machine's userland")
            .from(Need::Busybox)
            .program(machine, &["busybox"]),
    );
    findings.push(
        check("setpriv, unshare", "they keep what is started from outliving us")
            .from(Need::UtilLinux)
            .result(machine, all(machine, &["setpriv", "unshare"])),
    );
    findings.push(check("xz", "the kernel's modules are packed with it").from(Need::Xz).program(machine, &["xz"]));
    findings.push(
        check("zstd", "kernels unpacked beforehand boot seconds faster")
            .from(Need::Zstd)
            .program(machine, &["zstd"])
            .optional(),
    );
    findings.push(
        check("apt and dpkg", "stock kernels come from Debian's mirrors")
            .from(Need::Apt)
            .result(machine, all(machine, &["apt-get", "apt-cache", "dpkg-deb"])),
    );
    findings.push(
        check("Debian's keys", "what comes from the mirrors is checked against them")
            .from(Need::Keyring)
            .file(machine, "usr/share/keyrings/debian-archive-keyring.gpg"),
    );
    build_root(machine, findings);

    let seen = machine.kvm.clone().map(|()| "/dev/kvm".into());
    findings.push(
        check("KVM", "without it the virtual machine is emulated: exact, but several times slower")
            .result(machine, seen)
            .optional()
            .fix("load kvm_intel or kvm_amd, and add yourself to the group kvm (in a virtual machine: allow nesting)"),
    );
    if let Some(free_bytes) = machine.free_bytes {
        let free_gib = free_bytes as f64 / f64::from(1 << 30);
        let seen = format!("{free_gib:.1} GiB free in the cache");
        findings.push(
            check("disk space", "a kernel, its headers and the place to build for it take 4 GiB")
                .result(machine, if free_gib < SPACE_GIB { Err(seen) } else { Ok(seen) })
                .fix("make room, or name a directory with more in EKIDEN_CACHE"),
        );
    }
}

/// Which QEMU guests run in, where it is from, and what it cannot do.
fn qemu(machine: &Machine, findings: &mut Vec<Finding>) {
    let check = |what, why| Check::new(Purpose::Vm, what, why);
    let installed = machine.program(&["qemu-system-x86_64"]);
    let asked = installed.as_ref().and_then(|qemu| machine.output(qemu, "--version"));
    let installed_line = asked.and_then(|text| text.lines().next().map(|line| line.trim().to_owned()));
    let qemu = check("QEMU", "it is the virtual machine");
    findings.push(match &machine.named_qemu {
        None => qemu.from(Need::Qemu).program(machine, &["qemu-system-x86_64"]),
        Some((name, Ok(line))) => qemu.result(machine, Ok(format!("{line}, as EKIDEN_QEMU={name} says"))),
        Some((name, Err(error))) => {
            let fix = "name another, or unset EKIDEN_QEMU";
            qemu.result(machine, Err(format!("EKIDEN_QEMU={name}: {error}"))).fix(fix)
        }
    });
    let is_at_least = |line: &str, least| version(line).is_some_and(|version| version >= least);
    let named_line = machine.named_qemu.as_ref().and_then(|(_, line)| line.clone().ok());
    if let Some(line) = named_line.clone().or_else(|| installed_line.clone()) {
        findings.push(
            check(
                "QEMU 8.1 or newer",
                "before, a busy emulated CPU keeps others waiting, and the longest waits are its own",
            )
            .result(machine, if is_at_least(&line, FAIR_QEMU) { Ok(line) } else { Err(line) })
            .optional()
            .fix(
                "only for waits on several emulated CPUs: set EKIDEN_QEMU=newer, which fetches one (50 MB), and boots \
                 slower",
            ),
        );
    }
    let parallel = check("QEMU for --parallel", "emulated CPUs run at once, each in a thread, in QEMU 10.0 or newer");
    let place = installed.unwrap_or_default().display().to_string();
    findings.push(match (named_line, installed_line, &machine.fetched_qemu) {
        (Some(line), ..) if is_at_least(&line, PARALLEL_QEMU) => parallel.result(machine, Ok(line)),
        (Some(line), ..) => {
            parallel.result(machine, Err(format!("{line}, too old"))).fix("name another, or unset EKIDEN_QEMU")
        }
        (_, Some(line), _) if is_at_least(&line, PARALLEL_QEMU) => {
            parallel.result(machine, Ok(format!("{line}, {place}")))
        }
        (_, _, Some(line)) => parallel.result(machine, Ok(format!("{line}, in the cache"))),
        (_, line, None) => {
            let seen = line.map_or_else(|| "no qemu-system-x86_64".into(), |line| format!("{line}, too old"));
            let fix = "nothing: the first `ekiden vm start --parallel` fetches Debian's into the cache (50 MB)";
            parallel.result(machine, Err(seen)).optional().fix(fix)
        }
    });
}

/// Modules are built on the machine itself, or in a Debian root where its C library is too old for that.
fn build_root(machine: &Machine, findings: &mut Vec<Finding>) {
    let check = |what, why| Check::new(Purpose::Vm, what, why);
    let glibc = machine.program(&["getconf"]).and_then(|getconf| machine.output(&getconf, "GNU_LIBC_VERSION"));
    let native = glibc.as_deref().and_then(version).is_some_and(|version| version >= GLIBC);
    if native {
        findings.push(
            check("C compiler for modules", "the kernel's build system calls it")
                .from(Need::Gcc)
                .program(machine, &["gcc"]),
        );
        findings.push(
            check("pahole", "it writes the type information that BPF programs need")
                .from(Need::Pahole)
                .program(machine, &["pahole"]),
        );
        return;
    }
    let why = "the C library is older than 2.38, so modules are built in a small Debian root made with it";
    findings.push(check("mmdebstrap", why).from(Need::Mmdebstrap).program(machine, &["mmdebstrap"]));
    let why = "the Debian root that modules are built in is entered with chroot";
    let seen = if machine.is_root {
        Ok("you are root".into())
    } else if machine.has_sudo {
        Ok("sudo asks for no password".into())
    } else {
        Err("you are not root, and sudo asks for a password".into())
    };
    findings.push(check("root", why).result(machine, seen).fix("run `sudo -v` or the same command with sudo"));
}

pub(super) fn tests(machine: &Machine, findings: &mut Vec<Finding>) {
    for (what, program, need, why) in [
        ("rustfmt", "cargo-fmt", Need::Rustfmt, "`make test` checks the formatting"),
        ("clippy", "cargo-clippy", Need::Clippy, "`make test` lets it look for mistakes"),
    ] {
        // Rustup has a program of this name even where it has not installed the component.
        let works = machine.program(&[program]).and_then(|path| machine.output(&path, "--version"));
        let seen = works.map(|version| version.trim().to_owned()).ok_or_else(|| format!("{program} does not run"));
        let finding = Check::new(Purpose::Tests, what, why).from(need).result(machine, seen);
        findings.push(match machine.program(&["rustup"]) {
            Some(_) => finding.by_hand(super::RUSTUP_COMPONENTS),
            None => finding,
        });
    }
    let format = "`make test` checks the formatting of C";
    findings.push(
        Check::new(Purpose::Tests, "clang-format", format)
            .from(Need::ClangFormat)
            .program(machine, &["clang-format-19", "clang-format"]),
    );
    let page = "the page of `ekiden view` is tested in a real browser";
    for (what, programs, need) in [
        ("Node.js", &["node"][..], Need::Node),
        ("npm", &["npm"], Need::Npm),
        ("Chromium", &["chromium", "chromium-browser", "google-chrome"], Need::Chromium),
    ] {
        findings.push(Check::new(Purpose::Tests, what, page).from(need).program(machine, programs));
    }
    let storm = "policies go through a storm of it in a virtual machine";
    findings.push(Check::new(Purpose::Tests, "stress-ng", storm).from(Need::StressNg).program(machine, &["stress-ng"]));
    let stops = "a replay stops in a policy under a debugger";
    findings.push(Check::new(Purpose::Tests, "gdb", stops).from(Need::Gdb).program(machine, &["gdb"]));
    let hints = "a program in Python talks to its policy in a virtual machine";
    findings.push(Check::new(Purpose::Tests, "Python", hints).from(Need::Python).program(machine, &["python3"]));
    let requests = "requests to it are measured in a virtual machine";
    let mut places = LIBRARIES.iter().map(|directory| format!("{directory}/librocksdb.so"));
    let library = places.find(|path| machine.has(path.trim_start_matches('/')));
    findings.push(
        Check::new(Purpose::Tests, "RocksDB", requests)
            .from(Need::RocksDb)
            .result(machine, library.ok_or_else(|| "no librocksdb.so".into())),
    );
}

pub(super) fn native(machine: &Machine, findings: &mut Vec<Finding>) {
    let check = |what, why| Check::new(Purpose::Native, what, why);
    let release = machine.release();
    let has_sched_ext = machine.has("sys/kernel/sched_ext");
    let seen = if has_sched_ext { Ok(release.clone()) } else { Err(format!("{release} has no /sys/kernel/sched_ext")) };
    findings.push(
        check("sched_ext", "policies run in this scheduling class")
            .result(machine, seen)
            .fix("boot a kernel with CONFIG_SCHED_CLASS_EXT=y (6.16 or newer), or use `ekiden vm run`"),
    );
    findings.push(
        check("BTF", "BPF programs find the kernel's types by it")
            .file(machine, "sys/kernel/btf/vmlinux")
            .fix("boot a kernel with CONFIG_DEBUG_INFO_BTF=y"),
    );
    if has_sched_ext {
        findings.push(
            check("sound sched_ext", "some releases refuse every BPF scheduler, or do not recover from lockups")
                .result(machine, machine.preflight.clone().map(|()| "the pre-flight passes".into()))
                .fix("boot another release, or use `ekiden vm run`"),
        );
    }
    let headers = Path::new("lib/modules").join(&release).join("build/Makefile");
    let seen = if machine.has(&headers) { Ok(release.clone()) } else { Err(format!("no /{}", headers.display())) };
    findings.push(
        check("kernel headers", "modules are built for one kernel only").from(Need::Headers).result(machine, seen),
    );
    findings.push(root(machine, check("root", "only root may load modules and schedulers")));
    findings.push(modules_allowed(machine));
    findings.push(other_scheduler(machine));
}

fn root(machine: &Machine, check: Check) -> Finding {
    let seen = if machine.is_root { Ok("you are root".into()) } else { Err("you are not root".into()) };
    check.result(machine, seen).fix("run the same command with sudo")
}

/// Signatures, lockdown, and the switch that forbids modules for good.
fn modules_allowed(machine: &Machine) -> Finding {
    let check =
        Check::new(Purpose::Native, "unsigned modules", "modules that you build are not signed by your distribution");
    let lockdown = machine.read("sys/kernel/security/lockdown").unwrap_or_default();
    let (seen, fix) = if machine.read("proc/sys/kernel/modules_disabled").as_deref() == Some("1") {
        (Err("loading modules was switched off until the next boot".into()), "boot without kernel.modules_disabled=1")
    } else if lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        (Err(format!("lockdown: {lockdown}")), "switch Secure Boot off, or use `ekiden vm run`")
    } else if machine.read("sys/module/module/parameters/sig_enforce").as_deref() == Some("Y") {
        (Err("signatures are enforced".into()), "boot without module.sig_enforce=1, or use `ekiden vm run`")
    } else {
        (Ok("allowed".into()), "")
    };
    check.result(machine, seen).fix(fix)
}

fn other_scheduler(machine: &Machine) -> Finding {
    let check = Check::new(Purpose::Native, "no other scheduler", "sched_ext runs one scheduler at a time");
    let enabled = machine.read("sys/kernel/sched_ext/state").as_deref() == Some("enabled");
    let name = machine.read("sys/kernel/sched_ext/root/ops").unwrap_or_else(|| "a scheduler".into());
    let seen = match enabled {
        true if !name.starts_with("ekiden") => Err(format!("{name} is loaded")),
        true => Ok(format!("{name} is ours")),
        false => Ok("none is loaded".into()),
    };
    check.result(machine, seen).fix("stop it (with systemd: systemctl stop scx, scx_loader or the like)")
}

fn all(machine: &Machine, programs: &[&str]) -> Result<String, String> {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| machine.program(&[name]).is_none()).collect();
    if missing.is_empty() { Ok(programs.join(", ")) } else { Err(format!("no {}", missing.join(", no "))) }
}

/// A clang that is new enough: called after its version, or plain and asked for it.
fn clang(machine: &Machine) -> Result<String, String> {
    let names: Vec<String> = (CLANG..40).rev().map(|version| format!("clang-{version}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if let Some(path) = machine.program(&names) {
        return Ok(path.display().to_string());
    }
    let Some(path) = machine.program(&["clang"]) else { return Err("no clang".into()) };
    let text = machine.output(&path, "--version").unwrap_or_default();
    match version(&text) {
        Some((major, _)) if major >= CLANG => Ok(path.display().to_string()),
        Some((major, _)) => Err(format!("{} is version {major}", path.display())),
        None => Err(format!("{} does not tell its version", path.display())),
    }
}

/// The first number with a point in it: `cargo 1.95.0 (f2d3ce0bd 2026-03-21)` is 1.95.
fn version(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}
