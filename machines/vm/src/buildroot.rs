//! Builds kernel modules: with this machine's tools if its C library is new enough for kbuild's, else in a small Debian root.

use crate::{
    Cache, Error, Kernel, Result,
    apt::{self, Progress},
    error::Context,
    process,
};
use nix::unistd::{getgid, getuid};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The release that the root is made of.
const SUITE: &str = "trixie";

/// What a root needs beyond a bare system.
const PACKAGES: &str = "make,gcc,gcc-14,libc6-dev,kmod,pahole,libelf1t64";

/// The first glibc that kbuild's programs in Debian's packages run with.
const NEEDED_GLIBC: (u32, u32) = (2, 38);

/// Where modules are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildRoot {
    /// On this machine itself.
    Native,
    /// In a Debian system in this directory; it serves all kernels.
    Root(PathBuf),
}

impl BuildRoot {
    /// Finds or makes the place to build modules.
    pub fn prepare(cache: &Cache, progress: Progress<'_>) -> Result<Self> {
        if native_is_enough() {
            return Ok(Self::Native);
        }
        let root = cache.path().join("roots").join(SUITE);
        cache.complete(&root, progress, |partial, progress| {
            progress("making a Debian root to build kernel modules in, as this machine's C library is too old for kbuild (about a minute)");
            let mut make = as_root("mmdebstrap", "make a Debian root")?;
            make.args(["--variant=apt", "--mode=root", &format!("--include={PACKAGES}"), SUITE])
                .arg(partial)
                .arg(apt::mirror()?);
            process::output(&mut make).map(drop)
        })?;
        Ok(Self::Root(root))
    }

    /// Runs kbuild for the out-of-tree module in `module_dir`, where the results appear. `make_args` come last, as in
    /// `KCFLAGS=-g0`. Returns what kbuild printed, warnings among it.
    ///
    /// In a root, headers and module directory are bind-mounted in a mount namespace of kbuild's own, which ends with it.
    /// The module directory keeps its path, so messages name real files.
    pub fn kbuild(&self, kernel: &Kernel, module_dir: &Path, make_args: &[&str]) -> Result<String> {
        let module_dir = module_dir.canonicalize().context("find", module_dir)?;
        let tools = kernel.kbuild_tools()?;
        let tools_name = tools.file_name().unwrap_or_default();
        let compiler = wanted_compiler(kernel)?;
        let mut command;
        match self {
            Self::Native => {
                // Debian's makefile in the headers has their installed path in it; this goes round it.
                let headers = kernel.headers();
                let mut output = OsString::from("KBUILD_OUTPUT=");
                output.push(&headers);
                command = process::mortal("make")?;
                command.arg("-C").arg(&headers).arg("-f");
                command.arg(kernel.common_headers().join("Makefile")).arg(output);
                let found = process::find(&compiler, &[]).is_ok();
                command.arg(format!("CC={}", if found { &compiler } else { "gcc" }));
            }
            Self::Root(root) => {
                let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
                let mounts = [
                    (kernel.directory().join("usr/src"), root.join("usr/src")),
                    (tools.clone(), root.join("usr/lib").join(tools_name)),
                    (module_dir.clone(), inside(&module_dir)),
                ];
                command = as_root("sh", "enter the Debian root")?;
                command.args(["-ec", IN_ROOT, "sh"]).arg(root);
                // The user whose module it is builds it.
                command.arg(format!("{}:{}", getuid(), getgid()));
                for (from, to) in &mounts {
                    command.arg(from).arg(to);
                }
                command.args(["make", "-C"]).arg(format!("/usr/src/linux-headers-{}", kernel.release()));
                let found = root.join("usr/bin").join(&compiler).exists();
                command.arg(format!("CC={}", if found { &compiler } else { "gcc" }));
            }
        }
        let mut module_arg = OsString::from("M=");
        module_arg.push(&module_dir);
        command.arg(module_arg).args(make_args).arg("modules");
        // Some programs of kbuild decide by the language what to print.
        command.env("LC_ALL", "C");
        let output = process::output(&mut command)?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }
}

/// Arguments: root, the user and the group that run the command, three pairs of what to mount where, the command to run in the root.
const IN_ROOT: &str = r#"root=$1 user=$2; shift 2
mount -t proc proc "$root/proc"
for _ in 1 2 3; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done
exec env LC_ALL=C chroot --userspec="$user" "$root" "$@""#;

/// The compiler that the kernel was built with, as in `gcc-14`.
fn wanted_compiler(kernel: &Kernel) -> Result<String> {
    let file = kernel.headers().join(".kernelvariables");
    let variables = fs::read_to_string(&file).context("read", file)?;
    Ok(compiler_in(&variables).unwrap_or("gcc").to_owned())
}

fn compiler_in(variables: &str) -> Option<&str> {
    let line = variables.lines().find(|line| line.starts_with("CC "))?;
    line.rsplit_once("$(CROSS_COMPILE)").map(|(_, compiler)| compiler.trim())
}

/// A command that root runs in namespaces of its own: through sudo, if this is another user whom sudo asks for no password.
fn as_root(program: &str, what: &'static str) -> Result<Command> {
    if nix::unistd::geteuid().is_root() {
        return process::contained(program);
    }
    if !crate::sudo_works() {
        return Err(Error::NeedRoot(what));
    }
    let mut command = Command::new("sudo");
    command.args(["-n", "--", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(process::find(program, process::SYSTEM_PATHS)?);
    Ok(command)
}

/// Whether kbuild's programs from Debian's packages run here, and all that they call is installed.
fn native_is_enough() -> bool {
    let glibc = process::stdout(Command::new("getconf").arg("GNU_LIBC_VERSION")).unwrap_or_default();
    glibc_version(&glibc).is_some_and(|version| version >= NEEDED_GLIBC)
        && ["make", "gcc", "x86_64-linux-gnu-ld", "pahole"].iter().all(|program| process::find(program, &[]).is_ok())
}

/// Reads what getconf prints, `glibc 2.36`.
fn glibc_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_is_new_enough_from_the_version_that_kbuild_was_linked_with() {
        assert!(glibc_version("glibc 2.36\n").unwrap() < NEEDED_GLIBC);
        assert!(glibc_version("glibc 2.41\n").unwrap() >= NEEDED_GLIBC);
        assert_eq!(glibc_version("musl"), None);
    }

    #[test]
    fn the_kernels_compiler_is_read_from_its_headers() {
        let variables = "override ARCH = x86\nCCACHE = ccache\n\
                         CC = $(if $(DEBIAN_KERNEL_USE_CCACHE),$(CCACHE)) $(CROSS_COMPILE)gcc-14\n";
        assert_eq!(compiler_in(variables), Some("gcc-14"));
        assert_eq!(compiler_in(""), None);
    }
}
