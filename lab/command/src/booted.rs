//! The machines that stay booted between commands, each by its name.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_vm::{Cache, Holder, Kernel, Stopped, Vm, VmSpec};
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Exit, Failure},
    machine::{install_programs, programs_identity},
};

/// Where they are in the cache.
const PLACE: &str = "machines";

/// Which machine.
#[derive(Args, Clone, Debug)]
pub struct Name {
    /// The machine's name, of letters, digits, dashes and underscores; by default each checkout has one of its own
    #[arg(long, value_name = "NAME", value_parser = check_name)]
    name: Option<String>,
}

fn check_name(name: &str) -> Result<String, String> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match name.len() {
        1..=40 if name.chars().all(is_fit) => Ok(name.to_owned()),
        _ => Err("a name has 1 to 40 letters, digits, dashes and underscores".into()),
    }
}

impl Name {
    /// The machine of this name.
    pub fn of(name: String) -> Self {
        Self { name: Some(name) }
    }

    /// The name of the machine of this checkout.
    pub fn of_checkout() -> Self {
        Self { name: None }
    }

    /// The name, which is never empty.
    pub fn get(&self) -> String {
        self.name.clone().unwrap_or_else(|| default_name(&checkout()))
    }
}

/// The checkout that this program belongs to.
fn checkout() -> PathBuf {
    let root = std::env::var_os("EKIDEN_ROOT").filter(|root| !root.is_empty());
    let root = root.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), PathBuf::from);
    root.canonicalize().unwrap_or(root)
}

/// As in `ekiden-3f2a`: two checkouts whose directories have the same name do not share a machine.
fn default_name(checkout: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    checkout.hash(&mut hasher);
    let directory = checkout.file_name().unwrap_or_default().to_string_lossy();
    let directory: String = directory.chars().filter(|c| c.is_ascii_alphanumeric()).take(20).collect();
    format!("{}-{:04x}", if directory.is_empty() { "ekiden" } else { &directory }, hasher.finish() & 0xffff)
}

/// A machine that `ekiden vm start` left, and this process has to itself.
pub struct Booted {
    /// The machine, to run commands in.
    pub vm: Vm,
    /// The note that its start left.
    pub note: Note,
}

/// A machine as its start has noted it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// Its name.
    pub name: String,
    /// The release of its kernel, as in 7.2.13.
    pub release: String,
    /// How many processors it has.
    pub cpus: u32,
    /// Its memory.
    pub memory_mib: u32,
    /// `kvm`, `parallel`, or how instructions are counted.
    pub clock: String,
    /// The directory of this machine that is `/host` there.
    pub share: PathBuf,
    /// When it was booted, in seconds since 1970.
    since_s: u64,
    /// Which build of our programs it was booted with.
    programs: String,
}

/// A machine as it is seen without being used.
#[derive(Serialize)]
pub struct Seen {
    #[serde(flatten)]
    /// The note that its start left.
    pub note: Note,
    /// The process id of its QEMU.
    pub pid: i32,
    /// The process that has it to itself, if one does.
    pub used_by: Option<Holder>,
}

/// The files of it that are in the cache.
struct Files {
    name: String,
    machine: PathBuf,
    note: PathBuf,
}

impl Files {
    fn of(name: &Name) -> Result<Self> {
        let name = name.get();
        let machine = Cache::from_env()?.path().join(PLACE).join(&name);
        Ok(Self { note: machine.join("machine.json"), machine, name })
    }

    fn share(&self) -> Result<PathBuf> {
        let share = self.machine.join("share");
        fs::create_dir_all(&share).with_context(|| format!("cannot create {}", share.display()))?;
        Ok(share)
    }
}

impl Booted {
    /// The directory that it shares.
    pub fn share(name: &Name) -> Result<PathBuf> {
        Files::of(name)?.share()
    }

    /// Boots it.
    pub fn boot(name: &Name, kernel: &Kernel, spec: &VmSpec, clock: String) -> Result<Self> {
        let files = Files::of(name)?;
        let vm = Vm::boot_detached(&files.machine, kernel, spec)?;
        let note = Note {
            release: kernel.release().to_owned(),
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            clock,
            share: files.share()?,
            since_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            programs: programs_identity(),
            name: files.name,
        };
        fs::write(&files.note, serde_json::to_vec_pretty(&note)?)
            .with_context(|| format!("cannot write {}", files.note.display()))?;
        Ok(Self { vm, note })
    }

    /// Connects to it, if there is one.
    pub fn find(name: &Name) -> Result<Option<Self>> {
        let files = Files::of(name)?;
        let Some(seen) = Seen::of(name)? else { return Ok(None) };
        match Vm::attach(&files.machine) {
            Ok(vm) => Ok(Some(Self { vm, note: seen.note })),
            // It ends by itself at times.
            Err(_) if Vm::look(&files.machine).is_none() => Ok(None),
            Err(error @ ekiden_vm::Error::Busy { .. }) => Err(error.into()),
            Err(error) => {
                let message = format!(
                    "machine {} (PID {}) does not answer: `ekiden vm stop --name {0}` ends it by force\n{error}",
                    files.name, seen.pid
                );
                Err(Failure::new(Exit::NoMachine, message).into())
            }
        }
    }

    /// The path of one of our programs there: as it is now, though the machine may have been booted with an older build.
    pub fn program(&self, name: &str) -> Result<String> {
        if self.note.programs == programs_identity() {
            return Ok(format!("/bin/{name}"));
        }
        install_programs(&self.note.share)?;
        Ok(format!("/host/bin/{name}"))
    }

    /// Switches it off; says how, if there was one. Files in the directory that it shares stay, and the console of
    /// one that was ended by force.
    pub fn stop(name: &Name, though_used: bool) -> Result<Option<Stopped>> {
        let files = Files::of(name)?;
        let stopped = Vm::stop(&files.machine, though_used).map_err(|error| match error {
            ekiden_vm::Error::Busy { .. } => {
                let message = format!(
                    "{error}. `ekiden vm stop --name {} --force` ends the machine though it is used",
                    files.name
                );
                Failure::new(Exit::Busy, message).into()
            }
            error => anyhow::Error::from(error),
        })?;
        match fs::remove_file(&files.note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", files.note.display()));
            }
            _ => {}
        }
        if stopped == Some(Stopped::Obeyed) && fs::remove_dir(files.machine.join("share")).is_ok() {
            // Nothing in it is worth keeping. What resists is found by the next machine of that name.
            let _ = fs::remove_dir_all(&files.machine);
        }
        Ok(stopped)
    }
}

impl Seen {
    /// A machine of that name that runs. Does not disturb it.
    pub fn of(name: &Name) -> Result<Option<Self>> {
        let files = Files::of(name)?;
        let Some((pid, used_by)) = Vm::look(&files.machine) else { return Ok(None) };
        // One without is being booted.
        Ok(Note::read(&files.note)?.map(|note| Self { note, pid, used_by }))
    }

    /// All that run, by name.
    pub fn all() -> Result<Vec<Self>> {
        let place = Cache::from_env()?.directory(PLACE)?;
        let entries = fs::read_dir(&place).with_context(|| format!("cannot read {}", place.display()))?;
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names.into_iter().filter_map(|name| Self::of(&Name::of(name)).transpose()).collect()
    }
}

impl Note {
    fn read(path: &Path) -> Result<Option<Self>> {
        match fs::read(path) {
            // What another version of this program wrote is as good as nothing.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// How long ago it was booted, for people.
    pub fn age(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seconds = now.saturating_sub(self.since_s);
        match seconds {
            0..120 => format!("{seconds} s"),
            120..7200 => format!("{} min", seconds / 60),
            _ => format!("{} h", seconds / 3600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkouts_have_machines_of_their_own() {
        let [one, other] = ["/a/ekiden", "/b/ekiden"].map(|path| default_name(Path::new(path)));
        assert_ne!(one, other);
        assert!(one.starts_with("ekiden-") && check_name(&one).is_ok(), "{one}");
        assert!(default_name(Path::new("/")).starts_with("ekiden-"));
    }

    #[test]
    fn a_name_that_is_a_path_is_refused() {
        for name in ["", "..", "a/b", ".hidden", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("lab_2-a").is_ok());
    }
}
