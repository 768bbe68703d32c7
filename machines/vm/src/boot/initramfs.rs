//! The guest's root file system: busybox, the init process, kernel modules, programs with their libraries; a newc archive.

use super::repair;
use crate::{Error, Kernel, Result, VmSpec, error::Context, process};
use cpio::newc;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// Modules without which the guest has neither channel nor share; in Debian's cloud kernels they are built in.
const NEEDED_MODULES: &[&str] = &["virtio_pci", "virtio_console", "virtiofs"];

/// Without this one, it does not see its disk.
const DISK_MODULE: &str = "virtio_blk";

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// Collects what goes into the archive; paths are absolute paths in the guest.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    entries: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl Initramfs {
    /// What every guest has, plus programs of this machine, put into `/bin` by their file name, and what repairs the emulator's faults.
    pub(crate) fn new(kernel: &Kernel, spec: &VmSpec, repair: Option<&Path>) -> Result<Self> {
        let mut archive = Self::default();
        let busybox = process::find("busybox", &["/bin", "/usr/bin"])?;
        archive.program(&busybox)?;
        for applet in process::stdout(Command::new(&busybox).arg("--list"))?.lines() {
            let path = Path::new("/bin").join(applet);
            if applet != "busybox" {
                archive.add(&path, LINK, b"busybox".to_vec());
            }
        }
        let guest = find_guest(spec.init.as_deref())?;
        archive.program(&guest)?;
        let init = fs::read(&guest).context("read", &guest)?;
        archive.entries.remove(Path::new("/bin/ekiden-guest"));
        archive.add(Path::new("/init"), PROGRAM, init);
        for program in &spec.programs {
            archive.program(program)?;
        }
        let config = fs::read(kernel.config()).context("read", kernel.config())?;
        let config_path = format!("/boot/config-{}", kernel.release());
        archive.add(Path::new(&config_path), FILE, config);
        archive.modules(kernel, spec.disk.as_ref().map(|_| DISK_MODULE), repair)?;
        for (name, content) in [
            ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
            ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
            ("/etc/hosts", "127.0.0.1 localhost guest\n"),
        ] {
            archive.add(Path::new(name), FILE, content.into());
        }
        for directory in ["/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/host", "/sbin", "/var/tmp"] {
            archive.add(Path::new(directory), DIRECTORY, Vec::new());
        }
        Ok(archive)
    }

    fn add(&mut self, path: &Path, mode: u32, content: Vec<u8>) {
        for parent in path.ancestors().skip(1).filter(|parent| parent.parent().is_some()) {
            self.entries.entry(parent.to_owned()).or_insert_with(|| (DIRECTORY, Vec::new()));
        }
        self.entries.insert(path.to_owned(), (mode, content));
    }

    /// Adds a program and the shared libraries it needs.
    fn program(&mut self, program: &Path) -> Result<()> {
        let content = fs::read(program).context("read", program)?;
        let name = program.file_name().unwrap_or(program.as_os_str());
        self.add(&Path::new("/bin").join(name), PROGRAM, content);
        // ldd fails for a static program, which needs nothing.
        let Ok(listing) = process::stdout(Command::new("ldd").arg(program)) else {
            return Ok(());
        };
        for library in libraries(&listing) {
            if !self.entries.contains_key(&library) {
                let content = fs::read(&library).context("read", &library)?;
                self.add(&library, PROGRAM, content);
            }
        }
        Ok(())
    }

    fn modules(&mut self, kernel: &Kernel, more: Option<&str>, repair: Option<&Path>) -> Result<()> {
        let mut all = Vec::new();
        if let Some(file) = repair {
            // The other modules change the kernel's code when they are loaded.
            all.push((repair::MODULE.to_owned(), fs::read(file).context("read", file)?));
        }
        for module in NEEDED_MODULES.iter().copied().chain(more) {
            all.extend(kernel.module_closure(module)?);
        }
        let mut list = String::new();
        let mut done = BTreeSet::new();
        for (name, content) in all {
            if done.insert(name.clone()) {
                let path = format!("/modules/{name}.ko");
                self.add(Path::new(&path), FILE, content);
                list.push_str(&path);
                list.push('\n');
            }
        }
        self.add(Path::new(ekiden_guest::MODULE_LIST), FILE, list.into());
        Ok(())
    }

    /// Writes the archive. It is not compressed: unpacking is the guest's work, and an emulated guest copies faster than it inflates.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        self.archive().and_then(|bytes| fs::write(file, bytes)).context("write", file)
    }

    fn archive(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (inode, (path, (mode, content))) in (1..).zip(&self.entries) {
            let name = path.to_string_lossy();
            let size = u32::try_from(content.len()).map_err(std::io::Error::other)?;
            let builder = newc::Builder::new(name.trim_start_matches('/')).ino(inode).mode(*mode).nlink(1);
            let mut entry = builder.write(&mut bytes, size);
            entry.write_all(content)?;
            entry.finish()?;
        }
        newc::trailer(&mut bytes)?;
        Ok(bytes)
    }
}

/// The files in the output of `ldd`.
fn libraries(listing: &str) -> Vec<PathBuf> {
    listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// The init process: named by `EKIDEN_GUEST`, or the given one, or beside the running program, or where cargo puts it.
fn find_guest(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("EKIDEN_GUEST") {
        return Ok(path.into());
    }
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let this = std::env::current_exe().context("find", "the running program")?;
    // Tests and examples stand one directory below the programs.
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("ekiden-guest"))
        .find(|file| file.is_file())
        .ok_or(Error::NoGuest { beside: this })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)\n\
                       \tnot.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            libraries(listing),
            ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
    }

    #[test]
    fn the_archive_lists_directories_before_what_is_in_them() {
        let mut archive = Initramfs::default();
        archive.add(Path::new("/a/b/file"), FILE, b"hello".to_vec());
        archive.add(Path::new("/a/link"), LINK, b"b/file".to_vec());
        let bytes = archive.archive().unwrap();
        let mut rest = &bytes[..];
        let mut names = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_owned(), reader.entry().mode(), reader.entry().file_size()));
            rest = reader.finish().unwrap();
        }
        expect_test::expect![[r#"
            a 40755 0
            a/b 40755 0
            a/b/file 100644 5
            a/link 120777 6
        "#]]
        .assert_eq(&names.iter().map(|(name, mode, size)| format!("{name} {mode:o} {size}\n")).collect::<String>());
    }
}
