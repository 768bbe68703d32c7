//! Which packages bring what, for each distribution.

use super::rust_set::{self, Role};
use serde::Serialize;

/// A distribution with its own names for packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Debian 12, whose own Rust and clang are too old but which has newer ones beside them.
    Debian12,
    /// Debian 13 and newer.
    Debian,
    /// Ubuntu and its relatives.
    Ubuntu,
    /// Fedora and its relatives.
    Fedora,
    /// Arch and its relatives.
    Arch,
    /// Any other: things are named, packages are not.
    Other,
}

/// Something that packages bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Rust,
    RustLibrary,
    Gcc,
    Certificates,
    Make,
    PkgConfig,
    Clang,
    Lld,
    LibElf,
    Zlib,
    Qemu,
    Virtiofsd,
    Busybox,
    Mmdebstrap,
    Keyring,
    Apt,
    Pahole,
    Xz,
    Zstd,
    UtilLinux,
    Headers,
    Rustfmt,
    Clippy,
    Node,
    Npm,
    Chromium,
    StressNg,
    ClangFormat,
    Gdb,
    Python,
    RocksDb,
}

impl Need {
    /// All that packages bring.
    pub(crate) const ALL: [Self; 30] = [
        Self::Rust,
        Self::RustLibrary,
        Self::Gcc,
        Self::Make,
        Self::PkgConfig,
        Self::Clang,
        Self::Lld,
        Self::LibElf,
        Self::Zlib,
        Self::Qemu,
        Self::Virtiofsd,
        Self::Busybox,
        Self::Mmdebstrap,
        Self::Keyring,
        Self::Apt,
        Self::Pahole,
        Self::Xz,
        Self::Zstd,
        Self::UtilLinux,
        Self::Headers,
        Self::Rustfmt,
        Self::Clippy,
        Self::Node,
        Self::Npm,
        Self::Chromium,
        Self::StressNg,
        Self::ClangFormat,
        Self::Gdb,
        Self::Python,
        Self::RocksDb,
    ];
}

impl Distribution {
    /// Which one an `os-release` file speaks of, and what it calls itself.
    pub(crate) fn of(os_release: &str) -> (Self, String) {
        let value = |name: &str| {
            let value = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
        };
        let title =
            Some(value("PRETTY_NAME")).filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown Linux".into());
        let (id, like) = (value("ID"), value("ID_LIKE"));
        let is = |name: &str| id == name || like.split(' ').any(|word| word == name);
        let family = if is("ubuntu") {
            Self::Ubuntu
        } else if is("debian") {
            // Testing and sid have no number.
            if value("VERSION_ID") == "12" { Self::Debian12 } else { Self::Debian }
        } else if is("fedora") || is("rhel") {
            Self::Fedora
        } else if is("arch") {
            Self::Arch
        } else {
            Self::Other
        };
        (family, title)
    }

    /// Whether packages are installed by apt.
    pub fn has_apt(self) -> bool {
        matches!(self, Self::Debian12 | Self::Debian | Self::Ubuntu)
    }

    /// The command that installs packages.
    pub fn install_command(self, packages: &[String]) -> Option<String> {
        let start = match self {
            Self::Debian12 | Self::Debian | Self::Ubuntu => "sudo apt-get install",
            Self::Fedora => "sudo dnf install",
            Self::Arch => "sudo pacman -S --needed",
            Self::Other => return None,
        };
        Some(format!("{start} {}", packages.join(" ")))
    }

    /// The packages that bring something. Packages of Rust are what a distribution usually has: apt itself knows better, see
    /// `rust_set.rs`. `release` is that of the running kernel.
    pub(crate) fn packages(self, need: Need, release: &str) -> Vec<String> {
        if let (true, Some(roles)) = (self.has_apt(), rust_roles(need)) {
            let usual = if self == Self::Debian12 { "web" } else { "plain" };
            return rust_set::packages(usual, roles);
        }
        let [debian12, debian, ubuntu, fedora, arch] = names(need);
        let names = match self {
            Self::Debian12 => debian12,
            Self::Debian => debian,
            Self::Ubuntu => ubuntu,
            Self::Fedora => fedora,
            Self::Arch => arch,
            Self::Other => "",
        };
        names.split_whitespace().map(|name| name.replace("RELEASE", release)).collect()
    }
}

/// Which parts of a toolchain something takes; nothing if it is no part of Rust.
pub(crate) fn rust_roles(need: Need) -> Option<&'static [Role]> {
    match need {
        Need::Rust => Some(&[Role::Cargo, Role::Rustc]),
        Need::RustLibrary => Some(&[Role::Rustc, Role::Library]),
        Need::Rustfmt => Some(&[Role::Rustfmt]),
        Need::Clippy => Some(&[Role::Clippy]),
        _ => None,
    }
}

/// In the order Debian 12, Debian 13 and newer, Ubuntu, Fedora, Arch.
fn names(need: Need) -> [&'static str; 5] {
    let same = |name| [name; 5];
    match need {
        // Where there is apt, the table of scripts/rust-packages has these four.
        Need::Rust => ["", "", "", "cargo rust", "rust"],
        Need::RustLibrary => ["", "", "", "rust-src", "rust-src"],
        Need::Rustfmt => ["", "", "", "rustfmt", "rust"],
        Need::Clippy => ["", "", "", "clippy", "rust"],
        Need::Gcc => ["gcc libc6-dev", "gcc libc6-dev", "gcc libc6-dev", "gcc glibc-devel", "gcc"],
        Need::Certificates => same("ca-certificates"),
        Need::Make => same("make"),
        Need::PkgConfig => ["pkg-config", "pkg-config", "pkg-config", "pkgconf-pkg-config", "pkgconf"],
        Need::Clang => ["clang-19", "clang", "clang", "clang", "clang"],
        Need::Lld => ["lld-19", "lld", "lld", "lld", "lld"],
        Need::LibElf => ["libelf-dev", "libelf-dev", "libelf-dev", "elfutils-libelf-devel", "libelf"],
        Need::Zlib => ["zlib1g-dev", "zlib1g-dev", "zlib1g-dev", "zlib-devel", "zlib"],
        Need::Qemu => {
            ["qemu-system-x86", "qemu-system-x86", "qemu-system-x86", "qemu-system-x86-core", "qemu-system-x86"]
        }
        Need::Virtiofsd => ["qemu-system-common", "virtiofsd", "virtiofsd", "virtiofsd", "virtiofsd"],
        Need::Busybox => ["busybox-static", "busybox-static", "busybox-static", "busybox", "busybox"],
        // Arch has it among its users' recipes only.
        Need::Mmdebstrap => same("mmdebstrap"),
        Need::Keyring => [
            "debian-archive-keyring",
            "debian-archive-keyring",
            "debian-archive-keyring",
            "debian-keyring",
            "debian-archive-keyring",
        ],
        Need::Apt => ["apt dpkg", "apt dpkg", "apt dpkg", "apt dpkg", "apt dpkg"],
        Need::Pahole => ["dwarves", "pahole", "pahole", "dwarves", "pahole"],
        Need::Xz => ["xz-utils", "xz-utils", "xz-utils", "xz", "xz"],
        Need::Zstd => same("zstd"),
        Need::UtilLinux => same("util-linux"),
        Need::Node => same("nodejs"),
        Need::Npm => ["npm", "npm", "npm", "nodejs-npm", "npm"],
        Need::Chromium => same("chromium"),
        Need::StressNg => same("stress-ng"),
        // Version 19 where there is a choice: another one may break lines elsewhere.
        Need::ClangFormat => ["clang-format-19", "clang-format-19", "clang-format-19", "clang-tools-extra", "clang"],
        Need::Gdb => same("gdb"),
        Need::Python => ["python3", "python3", "python3", "python3", "python"],
        Need::RocksDb => ["librocksdb-dev", "librocksdb-dev", "librocksdb-dev", "rocksdb-devel", "rocksdb"],
        Need::Headers => [
            "linux-headers-RELEASE",
            "linux-headers-RELEASE",
            "linux-headers-RELEASE",
            "kernel-devel-RELEASE",
            "linux-headers",
        ],
    }
}
