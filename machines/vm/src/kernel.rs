//! One kernel, unpacked: where its parts are.

use crate::{Result, error::Context, process};
use object::{Object, ObjectSection};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::NamedTempFile;

/// A kernel with its modules and headers, unpacked in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    release: String,
    directory: PathBuf,
}

impl Kernel {
    /// The kernel unpacked in `directory`, whose name is its release.
    pub fn unpacked_in(directory: &Path) -> Self {
        Self {
            release: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            directory: directory.to_owned(),
        }
    }

    /// What `uname -r` says, for example `7.3.4+deb13-cloud-amd64`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The directory that its packages were unpacked in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The image to boot. Its place has moved over the years, and unsigned images have another name.
    pub fn image(&self) -> PathBuf {
        let modules = self.modules();
        [
            modules.join("vmlinuz"),
            modules.join("vmlinuz.unsigned"),
            self.directory.join("boot").join(format!("vmlinuz-{}", self.release)),
        ]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| modules.join("vmlinuz"))
    }

    /// The image as an ELF file, which QEMU starts without the kernel's own unpacking: seconds less where instructions are
    /// emulated. Made once, beside the image; none if it cannot be made, then [`Kernel::image`] has to do.
    pub(crate) fn unpacked_image(&self) -> Option<PathBuf> {
        let target = self.directory.join("vmlinux.elf");
        if target.exists() {
            return Some(target);
        }
        let bytes = fs::read(self.image()).ok()?;
        let payload = payload(&bytes)?;
        let mut packed = NamedTempFile::new_in(&self.directory).ok()?;
        packed.write_all(payload).ok()?;
        let elf = NamedTempFile::new_in(&self.directory).ok()?;
        let done = Command::new("zstd").arg("-dc").arg(packed.path()).stdout(elf.reopen().ok()?).status();
        // A kernel that is packed otherwise, or that cannot be started directly, is left as it is.
        let header = fs::read(self.config()).ok()?;
        let direct = String::from_utf8_lossy(&header).lines().any(|line| line == "CONFIG_PVH=y");
        (done.ok()?.success() && direct).then(|| elf.persist(&target).ok())??;
        Some(target)
    }

    /// The build configuration.
    pub fn config(&self) -> PathBuf {
        self.headers().join(".config")
    }

    /// The directory to run kbuild in (`make -C`).
    pub fn headers(&self) -> PathBuf {
        self.directory.join("usr/src").join(format!("linux-headers-{}", self.release))
    }

    /// The headers that its flavours share, with the kernel's top makefile.
    pub fn common_headers(&self) -> PathBuf {
        let base = self.release.split("-cloud-").next().unwrap_or(&self.release);
        self.directory.join("usr/src").join(format!("linux-headers-{base}-common"))
    }

    /// The ELF file with the kernel's BTF.
    pub fn vmlinux(&self) -> PathBuf {
        self.headers().join("vmlinux")
    }

    /// The directory of its modules.
    pub fn modules(&self) -> PathBuf {
        let usr = self.directory.join("usr/lib/modules").join(&self.release);
        if usr.exists() {
            return usr;
        }
        self.directory.join("lib/modules").join(&self.release)
    }

    /// The directory of kbuild's own programs, as `linux-kbuild-…` in `usr/lib`.
    pub fn kbuild_tools(&self) -> Result<PathBuf> {
        let scripts = self.headers().join("scripts");
        let link = fs::read_link(&scripts).context("read the link", &scripts)?;
        // As in ../../lib/linux-kbuild-7.3.4+deb13/scripts.
        let name = link.parent().and_then(Path::file_name).unwrap_or_default();
        Ok(self.directory.join("usr/lib").join(name))
    }

    /// A module and those that it needs, unpacked, in the order to load them; none if it is built in.
    pub(crate) fn module_closure(&self, module: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let directory = self.modules();
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).context("read", path)
        };
        if read("modules.builtin")?.lines().any(|line| is_module(line, module)) {
            return Ok(Vec::new());
        }
        let order = read("modules.order")?;
        let Some(file) = order.lines().find(|line| is_module(line, module)) else {
            // This kernel lacks it; what needs it will fail.
            return Ok(Vec::new());
        };
        let file = directory.join(file);
        let packed = file.with_extension("ko.xz");
        let content = if packed.exists() {
            process::output(Command::new("xz").arg("-dc").arg(&packed))?.stdout
        } else {
            fs::read(&file).context("read", &file)?
        };
        let mut closure: Vec<(String, Vec<u8>)> = Vec::new();
        for needed in dependencies(&content) {
            for part in self.module_closure(&needed)? {
                if !closure.iter().any(|(name, _)| *name == part.0) {
                    closure.push(part);
                }
            }
        }
        closure.push((module.to_owned(), content));
        Ok(closure)
    }
}

/// The packed kernel in an image for x86, as told by the header that the kernel's Documentation/arch/x86/boot.rst describes. The last
/// word, the size when unpacked, is no part of it.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?) as usize);
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let len = word(0x24c)?.checked_sub(4)?;
    image.get(start..)?.get(..len)
}

/// The modules that a module says it needs.
fn dependencies(module: &[u8]) -> Vec<String> {
    let file = object::File::parse(module).ok();
    let section = file.as_ref().and_then(|file| file.section_by_name(".modinfo"));
    let info = section.and_then(|section| section.data().ok()).unwrap_or_default();
    info.split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="))
        .flat_map(|list| list.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether a file is the module of that name; dashes and underscores are the same.
fn is_module(file: &str, module: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    let name = name.split('.').next().unwrap_or(name);
    name.replace('-', "_") == module.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_known_by_either_spelling_of_its_name() {
        assert!(is_module("kernel/drivers/char/virtio-console.ko", "virtio_console"));
        assert!(!is_module("kernel/drivers/virtio/virtio.ko", "virtio_console"));
    }

    #[test]
    fn the_packed_kernel_is_found_in_its_image() {
        let mut image = vec![0; 1024 + 16];
        image[0x1f1] = 1;
        image[0x248] = 4;
        image[0x24c] = 9;
        image[1028..1033].copy_from_slice(b"zstd!");
        assert_eq!(payload(&image), Some(&b"zstd!"[..]));
        assert_eq!(payload(&image[..1030]), None);
        assert_eq!(payload(&[]), None);
    }

    #[test]
    fn a_kernel_without_the_module_gives_nothing_to_load() {
        let directory = tempfile::tempdir().unwrap();
        let kernel = Kernel::unpacked_in(&directory.path().join("7.3"));
        let modules = directory.path().join("7.3/usr/lib/modules/7.3");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.builtin"), "kernel/drivers/virtio/virtio_pci.ko\n").unwrap();
        fs::write(modules.join("modules.order"), "kernel/fs/fuse/fuse.ko\n").unwrap();
        assert!(kernel.module_closure("virtio_pci").unwrap().is_empty());
        assert!(kernel.module_closure("virtiofs").unwrap().is_empty());
        assert!(kernel.module_closure("fuse").is_err(), "its file is not there");
    }
}
