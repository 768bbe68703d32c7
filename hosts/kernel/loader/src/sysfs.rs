//! What the kernel says of its sched_ext state. A run whose policy was taken out must not pass for one that worked.

use std::fs;

const DIRECTORY: &str = "/sys/kernel/sched_ext";

/// Whether this kernel has sched_ext.
pub fn supported() -> bool {
    fs::metadata(DIRECTORY).is_ok()
}

/// `enabled`, `disabled` or a step between them; `None` without sched_ext.
pub fn state() -> Option<String> {
    read("state")
}

/// The name of the sched_ext scheduler that runs, if one does.
pub fn scheduler() -> Option<String> {
    if state()? != "enabled" {
        return None;
    }
    read("root/ops")
}

/// Whether the kernel's own scheduler has ordinary tasks and moves them about: not if a sched_ext scheduler has all of them.
pub fn kernel_balances() -> bool {
    scheduler().is_none() || read("switch_all").as_deref() == Some("0")
}

/// How often schedulers were enabled since boot.
pub fn enable_seq() -> Option<u64> {
    read("enable_seq")?.parse().ok()
}

fn read(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("{DIRECTORY}/{name}")).ok()?.trim().to_owned())
}
