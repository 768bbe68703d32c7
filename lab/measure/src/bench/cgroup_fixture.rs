//! A hundred control groups, for as long as something is measured.

use std::{fs, io, path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";
const GROUPS: usize = 100;

/// They are removed with this; processes in them must have left before.
pub(super) struct CgroupFixture(Vec<PathBuf>);

impl CgroupFixture {
    /// Makes them, each with this in its `cpu.max`.
    pub(super) fn new(limit: Option<&str>) -> Result<Self> {
        let write = |path: PathBuf, value: &str| {
            fs::write(&path, value).with_context(|| {
                format!("cannot write {value} to {}; this needs root, and control groups of version 2", path.display())
            })
        };
        write(PathBuf::from(ROOT).join("cgroup.subtree_control"), "+cpu")?;
        let mut fixture = Self(Vec::with_capacity(GROUPS));
        for number in 0..GROUPS {
            let path = PathBuf::from(ROOT).join(format!("ekiden-bench-{}-{number}", std::process::id()));
            fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
            fixture.0.push(path.clone());
            if let Some(limit) = limit {
                write(path.join("cpu.max"), limit)?;
            }
        }
        Ok(fixture)
    }

    /// Two of them, as an argument of the load.
    pub(super) fn two(&self) -> String {
        format!("{},{}", self.0[GROUPS / 5].display(), self.0[GROUPS * 4 / 5].display())
    }
}

impl Drop for CgroupFixture {
    fn drop(&mut self) {
        for path in &self.0 {
            // A process that was in it may take a moment to leave.
            for _ in 0..100 {
                if !fs::remove_dir(path).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
