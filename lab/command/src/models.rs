//! How machines behave, as `ekiden fidelity --calibrate` writes it and `ekiden sim --model` reads it.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail};
use ekiden_sim::Model;
use serde::{Deserialize, Serialize};

/// Models by policy: what a switch costs is also the policy's doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// Where it was measured.
    pub kernel: String,
    /// The model of each.
    pub policies: BTreeMap<String, Model>,
}

impl Models {
    /// What [`write`](Self::write) wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not what `ekiden fidelity --calibrate` wrote", path.display()))
    }

    /// Writes them for `--model`.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)?).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The model of a policy.
    pub fn of(&self, policy: &str) -> Result<Model> {
        let Some(model) = self.policies.get(policy) else {
            bail!("the costs are not of {policy}; calibrate with --policy {policy}");
        };
        Ok(model.clone())
    }
}
