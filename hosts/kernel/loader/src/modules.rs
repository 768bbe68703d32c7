//! Loads and unloads kernel modules.

use std::{
    ffi::{CStr, CString},
    fs, io, iter,
    ops::Range,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ekiden_host::abi::ABI_VERSION;
use nix::kmod::{DeleteModuleFlags, delete_module, init_module};

use crate::error::{Context, LoadError, Result};

/// Loads a module unless one of that name is loaded.
pub(crate) fn load(path: &Path) -> Result<()> {
    let image = read(path)?;
    match insert(path, &image)? {
        Inserted::Now | Inserted::Before => Ok(()),
    }
}

/// Loads the module of a policy beside those that are loaded, and returns its name. One that is loaded under that name and
/// not in use goes first; if it is in use, and another version than the file, the new one gets a name of its own.
pub fn load_beside(path: &Path) -> Result<String> {
    load_under_a_name(path, false)
}

/// The same, but not even a module of the same build is taken if it is in use: for an instance beside that one's.
pub fn load_copy(path: &Path) -> Result<String> {
    load_under_a_name(path, true)
}

fn load_under_a_name(path: &Path, copy: bool) -> Result<String> {
    let mut image = read(path)?;
    let place = name_in(&image).ok_or_else(|| LoadError::NotAModule(path.to_owned()))?;
    let first = String::from_utf8_lossy(&image[place.clone()]).trim_end_matches('\0').to_owned();
    let own_id = build_id(&image);
    let mut names = iter::once(first.clone()).chain((2..100).map(|version| format!("{first}_{version}")));
    names
        .find_map(|name| {
            let notes = fs::read(format!("/sys/module/{name}/notes/.note.gnu.build-id")).unwrap_or_default();
            if !copy && own_id.as_ref().is_some_and(|id| *id == notes) {
                return Some(Ok(name));
            }
            if loaded().contains(&name) && unload(&name, Duration::ZERO).is_err() {
                return None;
            }
            if name.len() >= place.len() {
                return None;
            }
            image[place.clone()].fill(0);
            image[place.start..place.start + name.len()].copy_from_slice(name.as_bytes());
            match insert(path, &image) {
                Ok(Inserted::Now) => Some(Ok(name)),
                Ok(Inserted::Before) => None,
                Err(error) => Some(Err(error)),
            }
        })
        .unwrap_or_else(|| Err(LoadError::Other(format!("there are too many versions of {first}; `rmmod` some"))))
}

enum Inserted {
    Now,
    Before,
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LoadError::NoModule(path.to_owned())),
        Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
    };
    check(path, &bytes)?;
    Ok(bytes)
}

fn insert(path: &Path, image: &[u8]) -> Result<Inserted> {
    let no_parameters = CString::default();
    match init_module(image, &no_parameters) {
        Ok(()) => Ok(Inserted::Now),
        Err(nix::Error::EEXIST) => Ok(Inserted::Before),
        Err(nix::Error::EKEYREJECTED | nix::Error::ENOKEY) => {
            Err(LoadError::Signature { reason: "module signatures are enforced".into(), module: path.to_owned() })
        }
        Err(nix::Error::EPERM) => Err(LoadError::Signature { reason: lockdown(), module: path.to_owned() }),
        Err(error) => Err(LoadError::Module { module: path.to_owned(), source: error.into() }),
    }
}

/// Where a module's own name is in its file: the kernel takes it from `struct module`, of which this section is the image.
fn name_in(image: &[u8]) -> Option<Range<usize>> {
    let section = section(image, b".gnu.linkonce.this_module")?;
    let name = modinfo(image, b"name=")?;
    let at = image[section.clone()]
        .windows(name.len() + 1)
        .position(|window| window[..name.len()] == *name.as_bytes() && window[name.len()] == 0)?;
    let start = section.start + at;
    Some(start..start + MODULE_NAME_LEN)
}

/// Room for a module's name: MODULE_NAME_LEN of a 64-bit kernel.
const MODULE_NAME_LEN: usize = 56;

/// The note that tells one build from another, as the kernel shows it.
fn build_id(image: &[u8]) -> Option<Vec<u8>> {
    section(image, b".note.gnu.build-id").map(|section| image[section].to_vec())
}

/// Where a section is in a file of 64-bit ELF.
fn section(image: &[u8], name: &[u8]) -> Option<Range<usize>> {
    let word = |at: usize, len: usize| {
        let bytes = image.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)) as usize)
    };
    let (table, entry, count, names) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?, word(0x3e, 2)?);
    let header = |index: usize| table.checked_add(entry.checked_mul(index)?);
    let body = |index: usize| {
        let at = header(index)?;
        let (start, len) = (word(at.checked_add(0x18)?, 8)?, word(at.checked_add(0x20)?, 8)?);
        image.get(start..start.checked_add(len)?).map(|_| start..start + len)
    };
    let names = &image[body(names)?];
    let is_it = |index: &usize| {
        let text = header(*index).and_then(|at| word(at, 4)).and_then(|at| names.get(at..));
        text.is_some_and(|text| text.starts_with(name) && text.get(name.len()) == Some(&0))
    };
    (0..count).find(is_it).and_then(body)
}

fn lockdown() -> String {
    match fs::read_to_string("/sys/kernel/security/lockdown") {
        Ok(text) => format!("lockdown: {}", text.trim()),
        Err(_) => "modules are switched off: /proc/sys/kernel/modules_disabled".into(),
    }
}

/// Compares what a module was built for with what is here, so that the message can say more than the kernel's.
fn check(path: &Path, bytes: &[u8]) -> Result<()> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err(LoadError::NotAModule(path.to_owned()));
    }
    let Some(magic) = modinfo(bytes, b"vermagic=") else { return Err(LoadError::NotAModule(path.to_owned())) };
    let running =
        nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let built = magic.split(' ').next().unwrap_or_default();
    if built != running {
        return Err(LoadError::OtherKernel { module: path.to_owned(), built: built.to_owned(), running });
    }
    let built = modinfo(bytes, b"ekiden_abi=").unwrap_or_else(|| "none".into());
    if built != ABI_VERSION.to_string() {
        return Err(LoadError::OtherInterface { module: path.to_owned(), built, ours: ABI_VERSION });
    }
    Ok(())
}

/// The value of a `key=` entry in a module's `.modinfo`. Entries are strings that follow each other.
fn modinfo(bytes: &[u8], key: &[u8]) -> Option<String> {
    let start = bytes.windows(key.len() + 1).position(|window| window[0] == 0 && &window[1..] == key)?;
    let value = CStr::from_bytes_until_nul(&bytes[start + 1 + key.len()..]).ok()?;
    Some(value.to_string_lossy().into_owned())
}

/// The names of our modules that are loaded, policies first, in the order in which they can be unloaded.
pub fn loaded() -> Vec<String> {
    let Ok(text) = fs::read_to_string("/proc/modules") else { return Vec::new() };
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("ekiden"))
        .map(str::to_owned)
        .collect();
    names.sort_by_key(|name| name == "ekiden");
    names
}

/// Unloads a module. The kernel frees BPF programs, and with them their hold on a module, a moment after they are
/// detached: waits for that up to `patience`.
pub fn unload(name: &str, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let c_name = CString::new(name).map_err(|_| LoadError::Other(format!("{name:?} is no module name")))?;
    loop {
        match delete_module(&c_name, DeleteModuleFlags::O_NONBLOCK) {
            Ok(()) => return Ok(()),
            Err(nix::Error::ENOENT) => return Ok(()),
            Err(nix::Error::EAGAIN | nix::Error::EWOULDBLOCK | nix::Error::EBUSY) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(io::Error::from(error)).context(format!("cannot unload module {name}")),
        }
    }
}

/// Unloads all of our modules.
pub fn unload_all(patience: Duration) -> Result<()> {
    loaded().iter().try_for_each(|name| unload(name, patience))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_of_another_kernel_or_interface_is_refused_before_it_is_loaded() {
        let running = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
        let of = |kernel: &str, interface: &str| {
            let image = format!("\x7fELF\0vermagic={kernel} SMP\0{interface}\0");
            check(Path::new("ekiden_wfq.ko"), image.as_bytes())
        };
        assert!(of(&running, &format!("ekiden_abi={ABI_VERSION}")).is_ok());
        let other = of(&running, &format!("ekiden_abi={}", ABI_VERSION + 1));
        assert!(
            matches!(other, Err(LoadError::OtherInterface { built, .. }) if built == (ABI_VERSION + 1).to_string())
        );
        assert!(matches!(of(&running, "name=x"), Err(LoadError::OtherInterface { built, .. }) if built == "none"));
        assert!(
            matches!(of("6.1.0-none", "name=x"), Err(LoadError::OtherKernel { built, .. }) if built == "6.1.0-none")
        );
        assert!(matches!(check(Path::new("x"), b"text"), Err(LoadError::NotAModule(_))));
    }
}
