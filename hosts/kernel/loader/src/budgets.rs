//! Control groups that have used up the CPU time that they may use. The kernel's own scheduler does not have their tasks wait; a
//! sched_ext scheduler keeps limits in its own way, which is reported nowhere. What a group has used, the kernel counts in any case.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ekiden_check::{CpuLimit, Snapshot};
use walkdir::WalkDir;

use crate::sysfs;

/// This share of what a group may use counts as all of it: it is not known when its periods begin.
const USED_UP: f64 = 0.8;

/// What limited groups use of their CPU time.
#[derive(Debug, Default)]
pub struct Budgets(HashMap<u64, Budget>);

/// What one of them does.
#[derive(Debug)]
struct Budget {
    directory: Option<PathBuf>,
    asked: Instant,
    used: Option<Duration>,
    is_used_up: bool,
}

impl Budgets {
    /// The groups of waiting tasks that have used up their CPU time, by what they have used since an earlier call, a period ago or more.
    /// Until that is known of a group, it may have, and is among them.
    ///
    /// Cost: nothing without limits; else two files, and a walk over all groups for a new one.
    pub fn used_up(&mut self, now: &Snapshot) -> HashSet<u64> {
        let waiting = now.tasks.iter().filter(|task| task.is_waiting);
        let limits: HashMap<u64, CpuLimit> =
            waiting.filter_map(|task| task.limit).map(|limit| (limit.group, limit)).collect();
        if limits.is_empty() || sysfs::scheduler().is_none() {
            return HashSet::new();
        }
        let root = Path::new("/sys/fs/cgroup");
        limits.into_values().filter(|limit| self.is_used_up(root, limit)).map(|limit| limit.group).collect()
    }

    fn is_used_up(&mut self, root: &Path, limit: &CpuLimit) -> bool {
        let now = Instant::now();
        let budget = self.0.entry(limit.group).or_insert_with(|| {
            let directory = directory(root, limit.group);
            let used = directory.as_deref().and_then(used);
            Budget { directory, asked: now, used, is_used_up: true }
        });
        let passed = now - budget.asked;
        if passed.as_nanos() >= limit.period_ns.into() {
            let used = budget.directory.as_deref().and_then(used);
            let may = passed.mul_f64(limit.quota_ns as f64 / limit.period_ns as f64);
            // What cannot be read may be anything.
            let spent = used.zip(budget.used).map(|(now, before)| now.saturating_sub(before));
            budget.is_used_up = spent.is_none_or(|spent| spent >= may.mul_f64(USED_UP));
            (budget.asked, budget.used) = (now, used);
        }
        budget.is_used_up
    }
}

/// Where the kernel shows a group.
fn directory(root: &Path, group: u64) -> Option<PathBuf> {
    let directories = WalkDir::new(root).into_iter().flatten().filter(|entry| entry.file_type().is_dir());
    let mut is_it = directories.filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.ino() == group));
    // Other file systems below have numbers of their own.
    is_it.find(|entry| used(entry.path()).is_some()).map(walkdir::DirEntry::into_path)
}

/// How much CPU time the tasks of a group have used, in groups below it too.
fn used(directory: &Path) -> Option<Duration> {
    let text = fs::read_to_string(directory.join("cpu.stat")).ok()?;
    let usec = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(usec.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_group_has_used_up_its_time_if_it_used_most_of_it_since_it_was_asked_about() {
        let root = TempDir::new().unwrap();
        let group = root.path().join("above/group");
        fs::create_dir_all(&group).unwrap();
        let has_used =
            |usec: u64| fs::write(group.join("cpu.stat"), format!("usage_usec {usec}\nuser_usec 0\n")).unwrap();
        // 1 ms of 10 ms.
        let ino = fs::metadata(&group).unwrap().ino();
        let limit = CpuLimit { group: ino, quota_ns: 1_000_000, period_ns: 10_000_000 };
        let mut budgets = Budgets::default();
        let mut later = |ms| {
            thread::sleep(Duration::from_millis(ms));
            budgets.is_used_up(root.path(), &limit)
        };
        has_used(500_000);
        assert!(later(0), "nothing is known yet");
        assert!(later(0), "less than a period is too short");
        assert!(!later(10), "it has used nothing");
        has_used(501_000_000);
        assert!(!later(0) && later(10), "it has used all and more");
        assert!(!later(10), "nothing more");
        fs::remove_dir_all(&group).unwrap();
        assert!(later(10), "nobody knows");
    }

    #[test]
    fn a_group_that_is_nowhere_may_have_used_up_its_time() {
        let root = TempDir::new().unwrap();
        let limit = CpuLimit { group: 1, quota_ns: 1, period_ns: 1 };
        let mut budgets = Budgets::default();
        assert!(budgets.is_used_up(root.path(), &limit) && budgets.is_used_up(root.path(), &limit));
    }
}
