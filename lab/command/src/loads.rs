//! Loads as commands name them.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use ekiden_workload::{Workload, builtin, loads, rt_app};

use crate::failure::{Exit, Failure};

/// A built-in load with its check, or the load in a file, which is judged by whether it finished.
pub fn load(name: &str, cpus: u32) -> Result<(Workload, builtin::Check)> {
    if let Some(case) = builtin::find(name, cpus) {
        return Ok((case.workload, case.check));
    }
    let path = Path::new(name);
    if path.extension().is_none() && !path.exists() {
        let why = loads::make(name, cpus).err().map_or_else(String::new, |why| why.to_string());
        let message = format!("no load for {cpus} CPUs: {why}; `ekiden sim list` shows all");
        return Err(Failure::new(Exit::Usage, message).into());
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the load {name}"))?;
    let (load, remarks) = rt_app::read(name, &text).with_context(|| name.to_owned())?;
    remarks.iter().for_each(|remark| eprintln!("{name}: {remark}"));
    let check = builtin::check_of(&load);
    Ok((load, check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_load_is_a_contract_violation_on_the_command_line() {
        assert_eq!(Exit::of(&load("no-such-load", 2).unwrap_err()), Exit::Usage);
        assert!(load("pipe:same", 2).is_ok() || load("fair-share", 2).is_ok());
    }
}
