//! How long tasks may wait before their policy is taken out.

use std::fs;

use anyhow::{Context, Result};

/// How long tasks may wait, until this is dropped.
pub(crate) struct Bound(String);

impl Bound {
    const FILE: &str = "/sys/module/ekiden/parameters/starved_after_ms";

    pub(crate) fn of_ms(ms: u64) -> Result<Self> {
        let before = fs::read_to_string(Self::FILE).context("cannot read how long a task may wait")?;
        fs::write(Self::FILE, ms.to_string()).context("cannot say how long a task may wait")?;
        Ok(Self(before))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // It has worked before.
        let _ = fs::write(Self::FILE, &self.0);
    }
}
