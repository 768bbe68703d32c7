//! Which QEMU a guest runs in: the one that is named, the one that is installed, or a newer one in the cache.
//!
//! The newer one is Debian's, with all libraries that it needs, unpacked beside each other and started by its own
//! loader: it needs neither root nor anything of this machine's but the kernel.

use crate::{
    Cache, Error, Mode, Result,
    apt::{Apt, Progress, STABLE},
    error::Context,
    process,
};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The program, as distributions call it.
const PROGRAM: &str = "qemu-system-x86_64";

/// Asks for the one in the cache, whatever is installed.
const NEWER: &str = "newer";

/// Files of the packages that a guest has no use for.
const DROPPED: [&str; 6] = ["doc", "man", "locale", "info", "lintian", "bug"];

/// How long, in seconds, the first start of a new QEMU may take; it takes one where nothing else runs.
const TRIAL_S: &str = "120";

/// The program in the first sector of a floppy disk: writes 0x10 to port 0xf4 and waits.
const BOOT_SECTOR: [u8; 7] = [0xb0, 0x10, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd];

/// What QEMU's debug-exit device makes of 0x10.
const BOOTED: i32 = 0x10 << 1 | 1;

/// Where a QEMU is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `EKIDEN_QEMU` names it.
    Named,
    /// It is in `PATH`.
    Installed,
    /// It was fetched into the cache.
    Cache,
}

/// A QEMU that runs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    origin: Origin,
    program: PathBuf,
    /// What its words come after, if it is in a root of its own: the root's loader and libraries.
    loader: Option<PathBuf>,
    version: (u32, u32),
    line: String,
}

impl Qemu {
    /// The variable that names the QEMU to use, by its path, or asks for one in the cache with `newer`.
    pub const VARIABLE: &str = "EKIDEN_QEMU";

    /// The oldest QEMU whose emulated CPUs run in threads of their own here. 7.2 lets them race when the guest patches
    /// its own code; those between have not been tried.
    pub const THREADS: (u32, u32) = (10, 0);

    /// The oldest QEMU that shares the time until the next timer among CPUs that take turns. An older one gives it to one of them after the
    /// other, so that those behind the first may have none for seconds.
    pub const FAIR_TURNS: (u32, u32) = (8, 1);

    /// The QEMU for guests of a mode. If none that is here will do, a newer one is fetched into the cache, once.
    ///
    /// With `fair_turns`, that is one of [`FAIR_TURNS`](Self::FAIR_TURNS) for CPUs that take turns; if it cannot be fetched, an older one has
    /// to do. So does one that [`VARIABLE`](Self::VARIABLE) names.
    pub fn prepare(cache: &Cache, mode: Mode, fair_turns: bool, progress: Progress<'_>) -> Result<Self> {
        match Self::choose(mode)? {
            Choice::Here(qemu) if fair_turns && mode != Mode::Kvm && qemu.takes_unfair_turns() => {
                Self::fetch(cache, progress).or_else(|error| {
                    progress(&format!(
                        "{}: one of its CPUs may have no turn for seconds; no newer QEMU: {error}",
                        qemu.line
                    ));
                    Ok(qemu)
                })
            }
            Choice::Here(qemu) => Ok(qemu),
            Choice::Newer(why) => Self::fetch(cache, progress).map_err(|error| match why {
                None => error,
                Some(found) => Error::Qemu { found, needed: format!("{}. Fetching one failed: {error}", needed()) },
            }),
        }
    }

    /// The QEMU that [`Qemu::prepare`] would give without fair turns, as far as it is here already. Changes nothing.
    pub fn find(cache: &Cache, mode: Mode) -> Result<Option<Self>> {
        match Self::choose(mode)? {
            Choice::Here(qemu) => Ok(Some(qemu)),
            Choice::Newer(_) => Ok(Self::fetched_in(cache)),
        }
    }

    fn choose(mode: Mode) -> Result<Choice> {
        let named = std::env::var_os(Self::VARIABLE).filter(|name| !name.is_empty());
        if let Some(name) = named {
            return if name == NEWER { Ok(Choice::Newer(None)) } else { Self::named(&name, mode).map(Choice::Here) };
        }
        let Ok(program) = process::find(PROGRAM, &[]) else { return Ok(Choice::Newer(None)) };
        let qemu = Self::of(Origin::Installed, program, None)?;
        Ok(match qemu.refusal(mode) {
            None => Choice::Here(qemu),
            Some(found) => Choice::Newer(Some(found)),
        })
    }

    fn named(name: &OsString, mode: Mode) -> Result<Self> {
        let path = Path::new(name);
        let program = if path.components().count() > 1 {
            std::path::absolute(path).context("find", path)?
        } else {
            process::find(&name.to_string_lossy(), &[])?
        };
        let qemu = Self::of(Origin::Named, program, None).map_err(|error| Error::Qemu {
            found: format!("EKIDEN_QEMU names {}, which does not run: {error}", path.display()),
            needed: "name another, or unset EKIDEN_QEMU".into(),
        })?;
        match qemu.refusal(mode) {
            None => Ok(qemu),
            Some(found) => Err(Error::Qemu { found, needed: needed() }),
        }
    }

    /// Asks a program for its version.
    fn of(origin: Origin, program: PathBuf, loader: Option<PathBuf>) -> Result<Self> {
        let mut qemu = Self { origin, program, loader, version: (0, 0), line: String::new() };
        let text = process::stdout(qemu.command().arg("--version"))?;
        qemu.line = text.lines().next().unwrap_or_default().trim().to_owned();
        qemu.version = version(&qemu.line).ok_or_else(|| Error::Qemu {
            found: format!("{} says {:?} when it is asked for its version", qemu.program.display(), qemu.line),
            needed: "name another QEMU in EKIDEN_QEMU".into(),
        })?;
        Ok(qemu)
    }

    /// The version that was found, if it is too old for a mode.
    fn refusal(&self, mode: Mode) -> Option<String> {
        (mode == Mode::Parallel && !self.has_threads())
            .then(|| format!("{} is QEMU {}.{}", self.program.display(), self.version.0, self.version.1))
    }

    fn takes_unfair_turns(&self) -> bool {
        self.origin == Origin::Installed && self.version < Self::FAIR_TURNS
    }

    fn fetched(root: &Path) -> Result<Self> {
        let program = root.join("usr/bin").join(PROGRAM);
        Self::of(Origin::Cache, program, Some(root.to_owned()))
    }

    /// The QEMU in the cache, if it is there.
    pub fn fetched_in(cache: &Cache) -> Option<Self> {
        Self::fetched(&root(cache)).ok()
    }

    fn fetch(cache: &Cache, progress: Progress<'_>) -> Result<Self> {
        let root = root(cache);
        let packages = cache.path().join("packages/qemu");
        cache.complete(&root, progress, |partial, progress| {
            progress("fetching a newer QEMU from Debian, once: about 50 MB");
            let apt = Apt::new(cache, &STABLE)?;
            apt.update(cache, progress)?;
            progress("downloading QEMU and its libraries");
            apt.download_whole(&["qemu-system-x86", "virtiofsd"], &packages)?;
            progress("unpacking QEMU");
            process::unpack(&packages, partial, |name| name.ends_with(".deb"))?;
            for name in DROPPED {
                // It need not be there.
                let _ = fs::remove_dir_all(partial.join("usr/share").join(name));
            }
            progress("trying QEMU");
            Self::fetched(partial)?.try_out(partial)
        })?;
        // They have served their purpose; a failure to remove them does no harm.
        let _ = fs::remove_dir_all(packages);
        Self::fetched(&root)
    }

    /// Boots two CPUs, in threads of their own, from a floppy disk that does nothing but say so.
    fn try_out(&self, directory: &Path) -> Result<()> {
        let disk = directory.join("trial.img");
        let mut sector = [0; 512];
        sector[..BOOT_SECTOR.len()].copy_from_slice(&BOOT_SECTOR);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&disk, sector).context("write", &disk)?;
        let own = self.command();
        let mut trial = process::mortal("timeout")?;
        trial.arg(TRIAL_S).arg(own.get_program()).args(own.get_args()).current_dir(directory);
        trial
            .args("-machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 64M -nodefaults -no-user-config".split(' '));
        trial.args("-display none -no-reboot -device virtio-serial-pci".split(' '));
        trial.args("-device isa-debug-exit,iobase=0xf4,iosize=1 -drive file=trial.img,format=raw,if=floppy".split(' '));
        let output = trial.output().map_err(|error| process::cannot_start(&trial, &error))?;
        fs::remove_file(&disk).context("remove", disk)?;
        if output.status.code() == Some(BOOTED) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Qemu {
            found: format!("{} from Debian does not boot here ({}): {}", self.line, output.status, said.trim()),
            needed: "name another QEMU in EKIDEN_QEMU".into(),
        })
    }

    /// How it is started.
    pub(crate) fn command(&self) -> Command {
        let Some(root) = &self.loader else { return Command::new(&self.program) };
        let mut command = loaded(root, &self.program);
        for data in ["qemu", "seabios"] {
            command.arg("-L").arg(root.join("usr/share").join(data));
        }
        command
    }

    /// How the server of shared directories is started that came with a fetched QEMU. Fetches both if they are not there.
    pub(crate) fn fetched_share_server(cache: &Cache, progress: Progress<'_>) -> Result<Command> {
        Self::fetch(cache, progress)?;
        let root = root(cache);
        Ok(loaded(&root, &root.join("usr/libexec/virtiofsd")))
    }

    /// Where it is from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The program's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Major and minor number.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// What it says when it is asked for its version.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Whether its emulated CPUs may run in threads of their own, as [`Mode::Parallel`] wants.
    pub fn has_threads(&self) -> bool {
        self.version >= Self::THREADS
    }
}

/// What [`Qemu::choose`] finds.
enum Choice {
    Here(Qemu),
    /// QEMU of the cache, and the version of the installed one, if it was too old.
    Newer(Option<String>),
}

/// A program of a root, with the root's own loader and libraries.
fn loaded(root: &Path, program: &Path) -> Command {
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(root.join("usr/lib/x86_64-linux-gnu")).arg(program);
    command
}

fn root(cache: &Cache) -> PathBuf {
    cache.path().join("roots/emulator")
}

fn needed() -> String {
    let (major, minor) = Qemu::THREADS;
    let variable = Qemu::VARIABLE;
    format!(
        "emulated CPUs run in parallel in QEMU {major}.{minor} or newer; install one, name it in {variable}, or set \
         {variable}={NEWER} to have Debian's fetched"
    )
}

/// As in `QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)`.
fn version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split_once(" version ")?.1.split(['.', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(line: &str) -> (tempfile::TempDir, OsString) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qemu");
        // Written by another process: if this one had it open for writing while another test forks, it could not be executed then.
        let write = format!("printf '#!/bin/sh\necho \"{line}\"\n' >{0}; chmod 755 {0}", path.display());
        assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success());
        (directory, path.into())
    }

    #[test]
    fn the_version_is_read_from_what_qemu_prints() {
        assert_eq!(version("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)"), Some((10, 0)));
        assert_eq!(version("QEMU emulator version 8.1"), Some((8, 1)));
        assert_eq!(version("something else"), None);
    }

    #[test]
    fn a_qemu_without_safe_threads_is_refused_for_parallel_guests_only() {
        let (_directory, old) = says("QEMU emulator version 7.2.22 (Debian)");
        assert_eq!(Qemu::named(&old, Mode::Icount).unwrap().version(), (7, 2));
        let error = Qemu::named(&old, Mode::Parallel).unwrap_err().to_string();
        assert!(error.contains("is QEMU 7.2; ") && error.contains("EKIDEN_QEMU=newer"), "{error}");
        let (_directory, new) = says("QEMU emulator version 10.0.2");
        assert_eq!(Qemu::named(&new, Mode::Parallel).unwrap().origin(), Origin::Named);
    }

    #[test]
    fn an_installed_qemu_that_gives_all_time_to_one_cpu_is_told_from_others() {
        let (_directory, old) = says("QEMU emulator version 8.0.4");
        let (_other_directory, new) = says("QEMU emulator version 8.1.0");
        let of = |name: &OsString, origin| Qemu::of(origin, PathBuf::from(name), None).unwrap().takes_unfair_turns();
        assert!(of(&old, Origin::Installed) && !of(&new, Origin::Installed));
        assert!(!of(&old, Origin::Named), "who names one has chosen");
    }

    #[test]
    fn a_named_program_that_is_no_qemu_is_refused() {
        let (_directory, other) = says("GNU sed 4.9");
        let error = Qemu::named(&other, Mode::Icount).unwrap_err().to_string();
        assert!(error.contains("EKIDEN_QEMU names") && error.contains("GNU sed"), "{error}");
        let error = Qemu::named(&"/no/such/qemu".into(), Mode::Icount).unwrap_err().to_string();
        assert!(error.contains("/no/such/qemu, which does not run"), "{error}");
    }
}
