//! What has to be done once after boot: modules, file systems, the loopback network.

use ekiden_guest::{MODULE_LIST, SHARE_TAG};
use nix::{
    kmod::{ModuleInitFlags, finit_module},
    mount::{MsFlags, mount},
};
use std::{
    fs::{self, File},
    process::Command,
};

/// Source, target, type, whether a kernel without it is worth a word.
const MOUNTS: &[(&str, &str, &str, bool)] = &[
    ("proc", "/proc", "proc", true),
    ("sysfs", "/sys", "sysfs", true),
    ("devtmpfs", "/dev", "devtmpfs", true),
    ("devpts", "/dev/pts", "devpts", true),
    ("tmpfs", "/dev/shm", "tmpfs", true),
    ("tmpfs", "/tmp", "tmpfs", true),
    ("tmpfs", "/run", "tmpfs", true),
    ("bpf", "/sys/fs/bpf", "bpf", true),
    ("debugfs", "/sys/kernel/debug", "debugfs", true),
    ("tracefs", "/sys/kernel/tracing", "tracefs", true),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2", true),
    (SHARE_TAG, "/host", "virtiofs", false),
];

/// Prepares the machine and returns what went wrong.
pub(crate) fn prepare() -> Vec<String> {
    let mut problems = Vec::new();
    for line in fs::read_to_string(MODULE_LIST).unwrap_or_default().lines() {
        let loaded = File::open(line)
            .map_err(|error| error.to_string())
            .and_then(|file| finit_module(&file, c"", ModuleInitFlags::empty()).map_err(|error| error.to_string()));
        if let Err(error) = loaded {
            problems.push(format!("module {line}: {error}"));
        }
    }
    for &(source, target, kind, needed) in MOUNTS {
        // Inside sysfs the directory exists or cannot be made; the mount says so.
        let _ = fs::create_dir_all(target);
        if let Err(error) = mount(Some(source), target, Some(kind), MsFlags::empty(), None::<&str>) {
            if needed {
                problems.push(format!("mount {target}: {error}"));
            }
        }
    }
    match Command::new("/bin/busybox").args(["ip", "link", "set", "lo", "up"]).status() {
        Ok(status) if status.success() => {}
        Ok(status) => problems.push(format!("loopback network: {status}")),
        Err(error) => problems.push(format!("loopback network: {error}")),
    }
    problems
}
