//! The checks on machines that are directories.

use super::*;
use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use tempfile::TempDir;

const DEBIAN_12: &str = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=\"12\"\n";
const DEBIAN_13: &str = "PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nID=debian\nVERSION_ID=\"13\"\n";
const UBUNTU: &str = "PRETTY_NAME=\"Ubuntu 26.04\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"26.04\"\n";
const FEDORA: &str = "PRETTY_NAME=\"Fedora Linux 44\"\nID=fedora\nVERSION_ID=44\n";
const ARCH: &str = "PRETTY_NAME=\"EndeavourOS\"\nID=endeavouros\nID_LIKE=arch\n";

/// A machine on which nothing is installed.
struct Bare {
    directory: TempDir,
    machine: Machine,
}

impl Bare {
    fn new(os_release: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let machine = Machine {
            root: directory.path().into(),
            path: vec![directory.path().join("bin")],
            library: Err("for no rustc that is installed".into()),
            rust_set: |_| None,
            linker: false,
            preflight: Ok(()),
            is_root: false,
            has_sudo: false,
            kvm: Err("no /dev/kvm".into()),
            fetched_qemu: None,
            named_qemu: None,
            free_bytes: Some(10 << 30),
        };
        let bare = Self { directory, machine };
        bare.file("etc/os-release", os_release);
        bare.file("proc/sys/kernel/osrelease", "7.3.4-test\n");
        bare
    }

    fn file(&self, path: &str, content: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A program that prints a text.
    fn program(&self, name: &str, prints: &str) {
        let path = Path::new("bin").join(name);
        self.file(path.to_str().unwrap(), &format!("#!/bin/sh\necho '{prints}'\n"));
        fs::set_permissions(self.directory.path().join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn finding(&self, what: &str) -> Finding {
        let findings = examine_machine(&self.machine).findings;
        findings.into_iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("nothing called {what}"))
    }

    fn check(&self, what: &str, state: State, seen: &str) {
        let finding = self.finding(what);
        assert_eq!((finding.state, finding.seen.as_str()), (state, seen), "{finding:?}");
        assert_eq!(finding.state == State::Ok, finding.fix.is_none(), "{finding:?}");
    }
}

#[test]
fn a_bare_machine_is_told_its_distributions_packages() {
    let command = |os_release| examine_machine(&Bare::new(os_release).machine).install_command(Purpose::Vm).unwrap();
    expect_test::expect![[r#"
        sudo apt-get install apt busybox-static ca-certificates cargo-web clang-19 debian-archive-keyring dpkg gcc libc6-dev libelf-dev lld-19 make mmdebstrap pkg-config qemu-system-common qemu-system-x86 rust-web-src rustc-web util-linux xz-utils zlib1g-dev
        sudo apt-get install apt busybox-static ca-certificates cargo clang debian-archive-keyring dpkg gcc libc6-dev libelf-dev lld make mmdebstrap pkg-config qemu-system-x86 rust-src rustc util-linux virtiofsd xz-utils zlib1g-dev
        sudo apt-get install apt busybox-static ca-certificates cargo clang debian-archive-keyring dpkg gcc libc6-dev libelf-dev lld make mmdebstrap pkg-config qemu-system-x86 rust-src rustc util-linux virtiofsd xz-utils zlib1g-dev
        sudo dnf install apt busybox ca-certificates cargo clang debian-keyring dpkg elfutils-libelf-devel gcc glibc-devel lld make mmdebstrap pkgconf-pkg-config qemu-system-x86-core rust rust-src util-linux virtiofsd xz zlib-devel
        sudo pacman -S --needed apt busybox ca-certificates clang debian-archive-keyring dpkg gcc libelf lld make mmdebstrap pkgconf qemu-system-x86 rust rust-src util-linux virtiofsd xz zlib
    "#]]
    .assert_eq(&([DEBIAN_12, DEBIAN_13, UBUNTU, FEDORA, ARCH].map(command).join("\n") + "\n"));
}

#[test]
fn what_is_said_of_a_machine_fits_80_columns_but_for_commands() {
    for os_release in [DEBIAN_12, FEDORA, "ID=plan9\n"] {
        let said = examine_machine(&Bare::new(os_release).machine).to_string();
        let is_command = |line: &&str| line.trim_start().starts_with("do: sudo ") || line.starts_with("  sudo ");
        let long: Vec<&str> =
            said.lines().filter(|line| !is_command(line)).filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty() && said.lines().count() > 30, "{long:#?}");
    }
}

#[test]
fn an_unknown_distribution_gets_names_of_things_only() {
    let diagnosis = examine_machine(&Bare::new("ID=plan9\n").machine);
    assert_eq!((diagnosis.family, diagnosis.install_command(Purpose::Native)), (Distribution::Other, None));
    assert!(diagnosis.missing(Purpose::Vm).count() > 5 && diagnosis.to_string().contains("MISSING"));
}

#[test]
fn the_simulator_needs_rust_and_a_linker_only() {
    let bare = Bare::new(DEBIAN_12);
    bare.program("gcc", "");
    assert_eq!(bare.finding("C compiler").packages, ["gcc", "libc6-dev"]);
    bare.file("usr/include/stdio.h", "");
    assert_eq!(bare.finding("certificates").packages, ["ca-certificates"]);
    bare.file("etc/ssl/certs/ca-certificates.crt", "");
    bare.program("cargo", "cargo 1.84.1 (66221abde 2024-11-19)");
    bare.check("Rust 1.85 or newer", State::Missing, "cargo 1.84.1 (66221abde 2024-11-19), older than 1.85");
    bare.program("cargo", "cargo 1.85.0 (d73d2caf9 2024-12-31)");
    let diagnosis = examine_machine(&bare.machine);
    assert!(diagnosis.is_ready_for(Purpose::Simulator) && !diagnosis.is_ready_for(Purpose::Vm));
}

#[test]
fn a_plain_clang_is_asked_for_its_version() {
    let bare = Bare::new(DEBIAN_12);
    bare.program("clang", "Debian clang version 14.0.6");
    let path = bare.directory.path().join("bin").display().to_string();
    bare.check("clang 16 or newer", State::Missing, &format!("{path}/clang is version 14"));
    assert_eq!(bare.finding("clang 16 or newer").packages, ["clang-19"]);
    bare.program("clang", "Debian clang version 19.1.7 (3+b1)");
    bare.check("clang 16 or newer", State::Ok, &format!("{path}/clang"));
    bare.program("clang", "Debian clang version 14.0.6");
    bare.program("clang-16", "");
    bare.check("clang 16 or newer", State::Ok, &format!("{path}/clang-16"));
}

#[test]
fn with_rustup_its_own_component_is_proposed_for_the_library() {
    let bare = Bare::new(DEBIAN_13);
    assert_eq!(bare.finding(RUST_LIBRARY).fix.unwrap(), "sudo apt-get install rustc rust-src");
    bare.program("rustup", "");
    assert_eq!(bare.finding(RUST_LIBRARY).fix.unwrap(), "rustup component add rust-src");
}

#[test]
fn what_apt_offers_of_rust_is_named_as_one_set() {
    let mut bare = Bare::new(DEBIAN_13);
    bare.machine.rust_set = |tests| {
        let install = if tests { "cargo-web rustc-web rust-web-src rustfmt-web" } else { "cargo-web rust-web-src" };
        let install = install.split(' ').map(str::to_owned).collect();
        Some(Ok(rust_set::RustSet { name: "web".into(), version: "1.96.0".into(), install }))
    };
    assert_eq!(bare.finding("Rust 1.85 or newer").packages, ["cargo-web", "rust-web-src"]);
    assert_eq!(bare.finding(RUST_LIBRARY).packages, ["cargo-web", "rust-web-src"]);
    assert_eq!(bare.finding("clippy").packages.len(), 4);
    // With rustup the components are its own; packages are for a machine that cannot ask it.
    bare.program("rustup", "");
    bare.program("cargo", "cargo 1.80.0");
    assert_eq!(bare.finding("clippy").packages, [""; 0]);
    assert_eq!(bare.finding("Rust 1.85 or newer").fix.unwrap(), "rustup update stable");
}

#[test]
fn where_no_set_of_packages_will_do_the_reason_is_said() {
    let mut bare = Bare::new(DEBIAN_13);
    bare.machine.rust_set = |_| Some(Err(crate::Error::Install("web 1.96.0 would remove rustup".into())));
    let finding = bare.finding(RUST_LIBRARY);
    assert_eq!((finding.fix.unwrap().as_str(), finding.packages.len()), ("web 1.96.0 would remove rustup", 0));
}

#[test]
fn a_package_that_is_needed_must_not_be_removed() {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let needed = |removed, installed| needed_among(Distribution::Debian, &words(removed), &words(installed)).join(" ");
    assert_eq!(needed("cargo-web rustc-web vim", "rustc rust-src"), "");
    assert_eq!(needed("cargo-web rustc-web vim", "clang"), "cargo-web rustc-web");
    assert_eq!(needed("lld pahole vim", "rustc clang"), "lld pahole");
}

#[test]
fn an_old_c_library_needs_a_debian_root_and_a_new_one_pahole() {
    let mut bare = Bare::new(DEBIAN_12);
    bare.program("getconf", "glibc 2.36");
    assert_eq!(bare.finding("mmdebstrap").state, State::Missing);
    assert!(bare.finding("root").state == State::Missing);
    bare.machine.has_sudo = true;
    bare.check("root", State::Ok, "sudo asks for no password");
    bare.machine.is_root = true;
    let roots = examine_machine(&bare.machine).findings;
    assert!(roots.iter().filter(|finding| finding.what == "root").all(|finding| finding.state == State::Ok));
    bare.program("getconf", "glibc 2.41");
    assert_eq!(bare.finding("pahole").packages, ["dwarves"]);
}

#[test]
fn what_only_makes_things_slower_is_no_obstacle() {
    let bare = Bare::new(DEBIAN_12);
    bare.check("KVM", State::Note, "no /dev/kvm");
    bare.check("zstd", State::Note, "no zstd");
    assert!(examine_machine(&bare.machine).missing(Purpose::Native).all(|finding| finding.what != "KVM"));
}

#[test]
fn an_emulator_that_is_not_fair_is_named() {
    let bare = Bare::new(DEBIAN_12);
    bare.program("qemu-system-x86_64", "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)");
    let seen = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)";
    bare.check("QEMU 8.1 or newer", State::Note, seen);
    bare.program("qemu-system-x86_64", "QEMU emulator version 10.0.2");
    bare.check("QEMU 8.1 or newer", State::Ok, "QEMU emulator version 10.0.2");
}

#[test]
fn the_emulator_in_use_is_told_with_where_it_is_from() {
    let mut bare = Bare::new(DEBIAN_12);
    bare.check("QEMU", State::Missing, "no qemu-system-x86_64");
    bare.check("QEMU for --parallel", State::Note, "no qemu-system-x86_64");
    bare.program("qemu-system-x86_64", "QEMU emulator version 7.2.22");
    let path = bare.directory.path().join("bin/qemu-system-x86_64").display().to_string();
    bare.check("QEMU", State::Ok, &path);
    bare.check("QEMU for --parallel", State::Note, "QEMU emulator version 7.2.22, too old");
    bare.machine.fetched_qemu = Some("QEMU emulator version 10.0.13".into());
    bare.check("QEMU for --parallel", State::Ok, "QEMU emulator version 10.0.13, in the cache");
    bare.program("qemu-system-x86_64", "QEMU emulator version 10.1.0");
    bare.check("QEMU for --parallel", State::Ok, &format!("QEMU emulator version 10.1.0, {path}"));
    bare.machine.named_qemu = Some(("/opt/qemu".into(), Ok("QEMU emulator version 9.2.0".into())));
    bare.check("QEMU", State::Ok, "QEMU emulator version 9.2.0, as EKIDEN_QEMU=/opt/qemu says");
    bare.check("QEMU for --parallel", State::Missing, "QEMU emulator version 9.2.0, too old");
    bare.machine.named_qemu = Some(("/opt/qemu".into(), Err("it does not run".into())));
    bare.check("QEMU", State::Missing, "EKIDEN_QEMU=/opt/qemu: it does not run");
}

#[test]
fn a_full_disk_is_found() {
    let mut bare = Bare::new(DEBIAN_12);
    bare.check("disk space", State::Ok, "10.0 GiB free in the cache");
    bare.machine.free_bytes = Some(1 << 30);
    bare.check("disk space", State::Missing, "1.0 GiB free in the cache");
}

#[test]
fn a_kernel_without_sched_ext_is_found() {
    let bare = Bare::new(DEBIAN_12);
    bare.check("sched_ext", State::Missing, "7.3.4-test has no /sys/kernel/sched_ext");
    bare.file("sys/kernel/sched_ext/state", "disabled\n");
    bare.check("sched_ext", State::Ok, "7.3.4-test");
}

#[test]
fn a_kernel_that_fails_the_preflight_is_found() {
    let mut bare = Bare::new(DEBIAN_12);
    bare.file("sys/kernel/sched_ext/state", "disabled\n");
    bare.check("sound sched_ext", State::Ok, "the pre-flight passes");
    bare.machine.preflight = Err("7.3.4-test: broken".into());
    bare.check("sound sched_ext", State::Missing, "7.3.4-test: broken");
}

#[test]
fn missing_headers_are_asked_for_by_the_kernels_release() {
    let bare = Bare::new(FEDORA);
    bare.check("kernel headers", State::Missing, "no /lib/modules/7.3.4-test/build/Makefile");
    assert_eq!(bare.finding("kernel headers").fix.unwrap(), "sudo dnf install kernel-devel-7.3.4-test");
    bare.file("lib/modules/7.3.4-test/build/Makefile", "");
    bare.check("kernel headers", State::Ok, "7.3.4-test");
}

#[test]
fn whatever_keeps_unsigned_modules_out_is_found() {
    let bare = Bare::new(DEBIAN_12);
    bare.check("unsigned modules", State::Ok, "allowed");
    bare.file("sys/module/module/parameters/sig_enforce", "Y\n");
    bare.check("unsigned modules", State::Missing, "signatures are enforced");
    bare.file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    bare.check("unsigned modules", State::Missing, "lockdown: none [integrity] confidentiality");
    bare.file("proc/sys/kernel/modules_disabled", "1\n");
    bare.check("unsigned modules", State::Missing, "loading modules was switched off until the next boot");
}

#[test]
fn another_scheduler_is_found_and_ours_is_not_another() {
    let bare = Bare::new(DEBIAN_12);
    bare.check("no other scheduler", State::Ok, "none is loaded");
    bare.file("sys/kernel/sched_ext/state", "enabled\n");
    bare.file("sys/kernel/sched_ext/root/ops", "lavd_1.0\n");
    bare.check("no other scheduler", State::Missing, "lavd_1.0 is loaded");
    bare.file("sys/kernel/sched_ext/root/ops", "ekiden\n");
    bare.check("no other scheduler", State::Ok, "ekiden is ours");
}

#[test]
fn a_diagnosis_can_be_read_by_programs() {
    let json = serde_json::to_value(examine_machine(&Bare::new(DEBIAN_12).machine)).unwrap();
    assert_eq!(json["family"], "debian12");
    let first = &json["findings"][0];
    assert_eq!((&first["purpose"], &first["state"]), (&"simulator".into(), &"missing".into()));
    assert_eq!(first["packages"], serde_json::json!(["cargo-web", "rustc-web"]));
}
