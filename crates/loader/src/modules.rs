//! Loads and unloads kernel modules.

use std::{
    ffi::{CStr, CString},
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use ekiden::abi::ABI_VERSION;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module};

use crate::error::{Context, LoadError, Result};

/// Loads a module unless one of that name is loaded.
pub(crate) fn load(path: &Path) -> Result<()> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LoadError::NoModule(path.to_owned())),
        Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
    };
    check(path, &bytes)?;
    let file = fs::File::open(path).context(format!("cannot open {}", path.display()))?;
    let no_parameters = CString::default();
    match finit_module(&file, &no_parameters, ModuleInitFlags::empty()) {
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(nix::Error::EKEYREJECTED | nix::Error::ENOKEY) => {
            Err(LoadError::Signature { reason: "module signatures are enforced".into(), module: path.to_owned() })
        }
        Err(nix::Error::EPERM) => Err(LoadError::Signature { reason: lockdown(), module: path.to_owned() }),
        Err(error) => Err(LoadError::Module { module: path.to_owned(), source: error.into() }),
    }
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
