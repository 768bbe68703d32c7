//! What a run leaves behind on the machine: processes, mounts, loop devices, and files outside `target` and the cache.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Where programs leave files that they forget.
const PLACES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// How long what is ending may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The machine before a run.
pub(crate) struct Before {
    root: PathBuf,
    temporary: PathBuf,
    mounts: BTreeSet<String>,
    loops: BTreeSet<String>,
    files: BTreeSet<String>,
    tree: BTreeSet<String>,
}

impl Before {
    pub(crate) fn now(root: &Path, temporary: &Path) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            temporary: temporary.to_owned(),
            mounts: mounts(),
            loops: loops(),
            files: files(),
            tree: tree(root),
        })
    }

    /// Describes mounts, loop devices and files that were not there before.
    pub(crate) fn compare(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let left = self.look();
            if left.is_empty() || start.elapsed() > PATIENCE {
                return left;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn look(&self) -> Vec<String> {
        let new = |what: &str, now: BTreeSet<String>, before: &BTreeSet<String>| -> Vec<String> {
            now.difference(before).map(|thing| format!("{what} {thing}")).collect()
        };
        [
            processes(&self.temporary),
            new("mount", mounts(), &self.mounts),
            new("loop device", loops(), &self.loops),
            new("file", files(), &self.files),
            new("change in the source tree:", tree(&self.root), &self.tree),
            entries(&self.temporary).into_iter().map(|file| format!("temporary file {file}")).collect(),
        ]
        .concat()
    }
}

/// Processes whose temporary files are those of this run. Ones of other users cannot be seen, and are not ours.
fn processes(temporary: &Path) -> Vec<String> {
    let own = format!("TMPDIR={}", temporary.display());
    let pids = entries(Path::new("/proc")).into_iter().filter(|name| name.parse::<u32>().is_ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == own.as_bytes())
    })
    .map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        format!("process {pid}: {}", line.chars().take(160).collect::<String>())
    })
    .collect()
}

fn mounts() -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

fn loops() -> BTreeSet<String> {
    let names = entries(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop"));
    let backing = |name: &String| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
    names.filter_map(|name| backing(&name).map(|file| format!("{name} of {}", file.trim()))).collect()
}

/// Files where temporary ones are, by names that are ours or those that libraries give.
fn files() -> BTreeSet<String> {
    let is_ours = |name: &String| name.contains("ekiden") || name.starts_with(".tmp") || name.contains("mmdebstrap");
    PLACES
        .iter()
        .flat_map(|place| {
            entries(Path::new(place)).into_iter().filter(is_ours).map(move |name| format!("{place}/{name}"))
        })
        .collect()
}

/// What git does not know in the checkout.
fn tree(root: &Path) -> BTreeSet<String> {
    let output = Command::new("git").args(["status", "--porcelain"]).current_dir(root).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_a_file_that_stay_are_found() {
        let (root, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let before = Before::now(root.path(), temporary.path()).unwrap();
        let ours = |left: Vec<String>| -> Vec<String> {
            left.into_iter().filter(|thing| thing.contains("sleep 60") || thing.contains("forgotten")).collect()
        };
        assert_eq!(ours(before.look()), [""; 0]);
        let mut sleeper = Command::new("sleep").arg("60").env("TMPDIR", temporary.path()).spawn().unwrap();
        fs::write(temporary.path().join("forgotten"), "").unwrap();
        // The kernel shows a program's environment a moment after it has started it.
        let start = Instant::now();
        let mut left = ours(before.look());
        while left.len() < 2 && start.elapsed() < PATIENCE {
            left = ours(before.look());
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(
            left.len() == 2 && left[0].starts_with("process ") && left[1] == "temporary file forgotten",
            "{left:?}"
        );
        assert_eq!(ours(before.look()), ["temporary file forgotten"]);
    }
}
