//! A disk with programs of Debian's for guests: packages with all that they need, unpacked beside each other.
//!
//! No script of a package is run and nothing is installed, so neither root nor another tool than apt and dpkg is needed. What such
//! scripts would have made and programs ask for, [`ROOT_LINKS`] and [`ROOT_FILES`] have.

use crate::{
    Cache, Result,
    apt::{Apt, Progress, STABLE},
    error::Context,
    process,
};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// How large the file system may grow. The file has holes where nothing was written.
const SIZE: &str = "4G";

/// Directories of `usr/share` that programs do without.
const DROPPED: [&str; 7] = ["doc", "man", "locale", "info", "lintian", "bug", "i18n"];

/// Links in the root, and where they lead: those of every Debian, and some that alternatives make.
const ROOT_LINKS: [(&str, &str); 7] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("usr/bin/gcc", "gcc-14"),
    ("usr/lib/x86_64-linux-gnu/libblas.so.3", "blas/libblas.so.3"),
    ("usr/lib/x86_64-linux-gnu/liblapack.so.3", "lapack/liblapack.so.3"),
];

/// What a guest mounts things on.
const MOUNT_POINTS: [&str; 6] = ["proc", "sys", "dev", "tmp", "run", "root"];

/// Small files that C libraries read.
const ROOT_FILES: [(&str, &str); 3] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost guest\n"),
];

/// The image of a file system that has these packages of Debian's stable release, made once for each list of them.
pub fn program_disk(cache: &Cache, packages: &[&str], progress: Progress<'_>) -> Result<PathBuf> {
    let mut sorted = packages.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let directory = cache.path().join("roots").join(name(&sorted));
    let downloaded = cache.path().join("packages/programs");
    cache.complete(&directory, progress, |partial, progress| {
        progress("making a disk with programs of Debian's, once: about 290 MB");
        let apt = Apt::new(cache, &STABLE)?;
        apt.update(cache, progress)?;
        progress("downloading the programs and their libraries");
        {
            let _lock = apt.lock(cache, progress)?;
            apt.download_whole(&sorted, &downloaded)?;
        }
        progress("unpacking the programs");
        let root = partial.join("root");
        process::unpack(&downloaded, &root, |name| name.ends_with(".deb"))?;
        furnish(&root)?;
        progress("writing the disk");
        let mut make = process::mortal("mke2fs")?;
        // It is only read.
        make.args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0", "-d"]);
        process::output(make.arg(&root).arg(image(partial)).arg(SIZE))?;
        fs::remove_dir_all(&root).context("remove", &root)
    })?;
    // They have served their purpose; a failure to remove them does no harm.
    let _ = fs::remove_dir_all(downloaded);
    Ok(image(&directory))
}

fn image(directory: &Path) -> PathBuf {
    directory.join("programs.ext4")
}

/// Another list is another disk, and so is what is made of it in another way.
fn name(packages: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    (packages, ROOT_LINKS, ROOT_FILES).hash(&mut hasher);
    format!("programs-{:016x}", hasher.finish())
}

/// Makes a root of what packages have in them.
fn furnish(root: &Path) -> Result<()> {
    for name in DROPPED {
        // It need not be there.
        let _ = fs::remove_dir_all(root.join("usr/share").join(name));
    }
    for (name, target) in ROOT_LINKS {
        let link = root.join(name);
        let from = link.parent().unwrap_or(root);
        // A target outside of these packages needs no link.
        if !link.exists() && from.join(target).exists() {
            symlink(target, &link).context("create", link)?;
        }
    }
    for name in MOUNT_POINTS {
        fs::create_dir_all(root.join(name)).context("create", root.join(name))?;
    }
    fs::create_dir_all(root.join("etc")).context("create", root.join("etc"))?;
    for (name, content) in ROOT_FILES {
        fs::write(root.join(name), content).context("write", root.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_of_packages_is_another_disk() {
        assert_ne!(name(&["dash", "wrk"]), name(&["dash"]));
        assert_ne!(name(&["ab", "c"]), name(&["a", "bc"]));
    }

    #[test]
    fn links_are_made_to_what_is_there() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for directory in ["usr/bin", "usr/lib", "usr/share/doc/x"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("usr/bin/gcc-14"), "").unwrap();
        furnish(root).unwrap();
        assert!(root.join("bin/gcc").exists() && root.join("etc/passwd").exists() && root.join("proc").is_dir());
        assert!(!root.join("lib64").exists() && !root.join("usr/share/doc").exists());
    }
}
