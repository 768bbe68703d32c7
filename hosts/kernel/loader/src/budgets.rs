//! Control groups that have used up the CPU time that they may use. The kernel's own scheduler does not have their tasks wait; a
//! sched_ext scheduler keeps limits in its own way, which is reported nowhere. What a group has used, the kernel counts in any case.

use std::{
    collections::{HashMap, HashSet, VecDeque},
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

/// So many looks at what a group has used are kept for each of its periods.
const LOOKS: u32 = 8;

/// What limited groups use of their CPU time.
#[derive(Debug, Default)]
pub struct Budgets(HashMap<u64, Budget>);

/// What one of them has used, as it was found.
#[derive(Debug)]
struct Budget {
    directory: Option<PathBuf>,
    used: VecDeque<(Instant, Option<Duration>)>,
}

impl Budgets {
    /// The groups of waiting tasks that have used up their CPU time, by what they have used since an earlier call, a period ago or more.
    /// Until that is known of a group, it may have, and is among them.
    ///
    /// Cost: nothing without limits; else a file for each group, and a walk over all groups for a new one.
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
        let find = || Budget { directory: directory(root, limit.group), used: VecDeque::new() };
        let budget = self.0.entry(limit.group).or_insert_with(find);
        let used = budget.directory.as_deref().and_then(used);
        budget.is_used_up(Instant::now(), used, limit)
    }
}

impl Budget {
    /// Whether the group waits for its next period now, if it waits. By then it has used all of this period, which began at most one ago. Of
    /// those before, the time of the first one may have been used before the look that this is compared with.
    fn is_used_up(&mut self, now: Instant, used: Option<Duration>, limit: &CpuLimit) -> bool {
        let period = Duration::from_nanos(limit.period_ns.max(1));
        let is_a_period_ago = |(at, _): &(Instant, _)| now - *at >= period;
        while self.used.get(1).is_some_and(is_a_period_ago) {
            self.used.pop_front();
        }
        let before = self.used.front().copied().filter(is_a_period_ago);
        if self.used.back().is_none_or(|(at, _)| now - *at >= period / LOOKS) {
            self.used.push_back((now, used));
        }
        let Some((at, before)) = before else { return true };
        let periods = (now - at).as_nanos() / period.as_nanos();
        let may = Duration::from_nanos(limit.quota_ns).mul_f64(periods as f64 * USED_UP);
        // What cannot be read may be anything.
        used.zip(before).is_none_or(|(used, before)| used.saturating_sub(before) >= may)
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

    const MS: u64 = 1_000_000;
    const PERIOD_MS: u64 = 100;
    const QUOTA_MS: u64 = 20;

    /// Looks every so often at a group that uses so much in the first part of each period, from the middle of one on. How often it was
    /// said that it has used up its time, and how often that it has not.
    fn looks(every_ms: u64, uses_ms: u64) -> [usize; 2] {
        let limit = CpuLimit { group: 1, quota_ns: QUOTA_MS * MS, period_ns: PERIOD_MS * MS };
        let mut budget = Budget { directory: None, used: VecDeque::new() };
        let begin = Instant::now();
        let mut look = |ms: u64| {
            let used_ms = ms / PERIOD_MS * uses_ms + (ms % PERIOD_MS).min(uses_ms);
            budget.is_used_up(begin + Duration::from_millis(ms), Some(Duration::from_millis(used_ms)), &limit)
        };
        // In the first period nothing is known yet.
        let times = (PERIOD_MS / 2..).step_by(every_ms as usize).take(1_000);
        let said: Vec<bool> = times
            .map(|ms| (ms, look(ms)))
            .filter(|(ms, _)| ms % PERIOD_MS >= uses_ms && *ms > 2 * PERIOD_MS)
            .map(|(_, said)| said)
            .collect();
        [true, false].map(|it| said.iter().filter(|said| **said == it).count())
    }

    #[test]
    fn a_group_without_time_left_has_used_it_up_whenever_it_is_looked_at() {
        for every_ms in [1, 3, 7, 20, 97, 100, 101, 149, 151, 190, 199, 201, 263] {
            let [used_up, not] = looks(every_ms, QUOTA_MS);
            assert!(used_up > 100 && not == 0, "every {every_ms} ms: {used_up} times, and {not} times not");
        }
    }

    #[test]
    fn a_group_that_uses_a_third_of_its_time_has_not_used_it_up() {
        for every_ms in [1, 3, 7, 20, 97] {
            let [used_up, not] = looks(every_ms, QUOTA_MS / 3);
            assert!(not > 100 && used_up == 0, "every {every_ms} ms: {used_up} times, and {not} times not");
        }
    }

    #[test]
    fn what_a_group_has_used_is_read_from_its_directory() {
        let root = TempDir::new().unwrap();
        let group = root.path().join("above/group");
        fs::create_dir_all(&group).unwrap();
        let has_used =
            |usec: u64| fs::write(group.join("cpu.stat"), format!("usage_usec {usec}\nuser_usec 0\n")).unwrap();
        // 1 ms of 10 ms.
        let ino = fs::metadata(&group).unwrap().ino();
        let limit = CpuLimit { group: ino, quota_ns: MS, period_ns: 10 * MS };
        let mut budgets = Budgets::default();
        let mut later = |ms| {
            thread::sleep(Duration::from_millis(ms));
            budgets.is_used_up(root.path(), &limit)
        };
        has_used(500_000);
        assert!(later(0), "nothing is known yet");
        assert!(!later(10), "it has used nothing");
        has_used(501_000_000);
        assert!(later(0), "it has used all and more");
        assert!(later(10) && !later(10), "nothing more");
        fs::remove_dir_all(&group).unwrap();
        assert!(later(10), "what it uses is unknown");
    }

    #[test]
    fn a_group_that_is_nowhere_may_have_used_up_its_time() {
        let root = TempDir::new().unwrap();
        let limit = CpuLimit { group: 1, quota_ns: 1, period_ns: 1 };
        let mut budgets = Budgets::default();
        assert!(budgets.is_used_up(root.path(), &limit) && budgets.is_used_up(root.path(), &limit));
    }
}
