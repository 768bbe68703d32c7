//! Whether a kernel can run Ekiden at all, told from its BTF alone, before anything is loaded or booted.
//!
//! Not checked: the rights of the user, lockdown, module signatures, and whether another scheduler is loaded; a running
//! machine has to be asked for these.

use crate::{Error, Kernel, Result, Version, btf::Btf, error::Context};
use std::{collections::BTreeSet, fmt, fs, path::Path};

/// Kernels from the first up to, not including, the second lose a hard-locked-up CPU that sched_ext should recover.
const BROKEN_LOCKUP_RECOVERY: (Version, Version) = (Version::new(7, 1, 0), Version::new(7, 2, 6));

/// What a kernel's BTF says about running Ekiden in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The kernel's release.
    pub release: String,
    /// Why it cannot; none if it can.
    pub reasons: Vec<Reason>,
    /// The public `scx_bpf_*` functions that it has.
    pub kfuncs: BTreeSet<String>,
    /// The fields of its `struct sched_ext_ops`.
    pub ops_fields: BTreeSet<String>,
}

impl Verdict {
    /// Whether nothing speaks against the kernel.
    pub fn passes(&self) -> bool {
        self.reasons.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.passes() {
            return write!(f, "{} passes", self.release);
        }
        write!(f, "{}: ", self.release)?;
        for (position, reason) in self.reasons.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            write!(f, "{separator}{reason}")?;
        }
        Ok(())
    }
}

/// One thing that speaks against a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It was built without sched_ext.
    NoSchedExt,
    /// The prototypes of these functions still have the argument that only the kernel may pass, so that no BPF program
    /// can call them.
    MalformedKfuncs {
        /// The functions.
        names: Vec<String>,
        /// How many `scx_bpf_*` functions there are in all.
        of: usize,
    },
    /// Recovery from a hard lockup is broken (CVE-2026-90432).
    BrokenLockupRecovery,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSchedExt => f.write_str("sched_ext is off; a kernel with CONFIG_SCHED_CLASS_EXT=y is needed"),
            Self::MalformedKfuncs { names, of } => write!(
                f,
                "{} of {of} sched_ext functions have a malformed prototype (such as {}), so BPF schedulers do not load; take another release",
                names.len(),
                names.first().map_or("", String::as_str)
            ),
            Self::BrokenLockupRecovery => {
                let (first, fixed) = BROKEN_LOCKUP_RECOVERY;
                write!(
                    f,
                    "kernels from {first} up to {fixed} do not recover from a hard lockup (CVE-2026-90432); take {fixed} or newer"
                )
            }
        }
    }
}

/// Judges a fetched kernel.
pub fn preflight(kernel: &Kernel) -> Result<Verdict> {
    preflight_file(kernel.release(), &kernel.vmlinux())
}

/// Judges the kernel of this machine.
pub fn preflight_running() -> Result<Verdict> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("read", "/proc/sys/kernel/osrelease")?;
    preflight_file(release.trim(), Path::new("/sys/kernel/btf/vmlinux"))
}

/// Judges the kernel called `release` by a file with its BTF.
pub fn preflight_file(release: &str, btf: &Path) -> Result<Verdict> {
    let unreadable = |reason| Error::Btf { what: btf.display().to_string(), reason };
    let bytes = fs::read(btf).map_err(|error| unreadable(error.to_string()))?;
    Ok(judge(release, &Btf::parse(&bytes).map_err(unreadable)?))
}

fn judge(release: &str, btf: &Btf) -> Verdict {
    let mut reasons = Vec::new();
    let ops_fields = btf.structures.get("sched_ext_ops").cloned().unwrap_or_default();
    if ops_fields.is_empty() {
        reasons.push(Reason::NoSchedExt);
    }
    let kfuncs: BTreeSet<String> =
        btf.functions.keys().filter(|name| name.starts_with("scx_bpf_") && !name.ends_with("_impl")).cloned().collect();
    let names: Vec<String> = kfuncs.iter().filter(|name| is_malformed(btf, name)).cloned().collect();
    if !names.is_empty() {
        reasons.push(Reason::MalformedKfuncs { names, of: kfuncs.len() });
    }
    let (first, fixed) = BROKEN_LOCKUP_RECOVERY;
    if Version::of_release(release).is_some_and(|version| first <= version && version < fixed) {
        reasons.push(Reason::BrokenLockupRecovery);
    }
    Verdict { release: release.to_owned(), reasons, kfuncs, ops_fields: ops_fields.into_iter().collect() }
}

/// The build of a kernel gives each function that takes `aux` a twin called `…_impl`, which gets it from the kernel, and
/// takes the argument off the public prototype. Where that step has missed a function, the argument is still there, the
/// twin is usually absent, and libbpf finds neither prototype compatible. (Arguments called `aux__prog` are in order.)
fn is_malformed(btf: &Btf, kfunc: &str) -> bool {
    btf.functions[kfunc].iter().any(|parameter| parameter == "aux")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::tests::write;

    fn check(
        release: &str,
        functions: &[(&str, &[&str])],
        structures: &[(&str, &[&str])],
        expected: expect_test::Expect,
    ) {
        let btf = Btf::parse(&write(functions, structures)).unwrap();
        expected.assert_eq(&judge(release, &btf).to_string());
    }

    const OPS: (&str, &[&str]) = ("sched_ext_ops", &["select_cpu", "enqueue"]);

    #[test]
    fn a_healthy_kernel_passes() {
        check(
            "7.3.4",
            &[
                ("scx_bpf_kick_cpu", &["cpu", "flags"]),
                ("scx_bpf_kick_cpu_impl", &["cpu", "flags", "aux"]),
                ("scx_bpf_now", &["aux__prog"]),
            ],
            &[OPS],
            expect_test::expect!["7.3.4 passes"],
        );
    }

    #[test]
    fn each_fault_is_named() {
        let malformed: &[(&str, &[&str])] = &[("scx_bpf_kick_cpu", &["cpu", "flags", "aux"]), ("scx_bpf_now", &[])];
        check(
            "7.2.12",
            malformed,
            &[OPS],
            expect_test::expect![
                "7.2.12: 1 of 2 sched_ext functions have a malformed prototype (such as scx_bpf_kick_cpu), so BPF schedulers do not load; take another release"
            ],
        );
        check(
            "6.12.1",
            &[],
            &[],
            expect_test::expect!["6.12.1: sched_ext is off; a kernel with CONFIG_SCHED_CLASS_EXT=y is needed"],
        );
        check(
            "7.2.5+x",
            &[],
            &[OPS],
            expect_test::expect![
                "7.2.5+x: kernels from 7.1.0 up to 7.2.6 do not recover from a hard lockup (CVE-2026-90432); take 7.2.6 or newer"
            ],
        );
    }

    #[test]
    fn the_range_without_lockup_recovery_has_both_its_ends() {
        for (release, passes) in
            [("7.0.99", true), ("7.1", false), ("7.2.5", false), ("7.2.6", true), ("7.3-rc1", true)]
        {
            let btf = Btf::parse(&write(&[], &[OPS])).unwrap();
            assert_eq!(judge(release, &btf).passes(), passes, "{release}");
        }
    }
}
