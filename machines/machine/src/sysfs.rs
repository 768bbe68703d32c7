//! Reads the kinds of files that sysfs has. A file that is missing is no error.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use ekiden::CpuMask;

use crate::MachineError;

/// A directory of sysfs, which need not exist.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn dir(&self, name: &str) -> Self {
        Self(self.0.join(name))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// The directories `prefix`N in the directory `name`, by N.
    pub(crate) fn numbered(&self, name: &str, prefix: &str) -> Result<BTreeMap<u32, Dir>, MachineError> {
        let path = self.0.join(name);
        let mut found = BTreeMap::new();
        let Some(entries) = if_there(&path, fs::read_dir(&path))? else { return Ok(found) };
        for entry in entries {
            let entry = entry.map_err(|source| MachineError::Read { path: path.clone(), source })?;
            let name = entry.file_name();
            if let Some(number) = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok()) {
                found.insert(number, Dir(entry.path()));
            }
        }
        Ok(found)
    }

    /// A list of CPUs. An empty one counts as missing: the kernel writes it where it knows nothing.
    pub(crate) fn cpus(&self, name: &str) -> Result<Option<CpuMask>, MachineError> {
        let Some((path, text)) = self.text(name)? else { return Ok(None) };
        match text.parse::<CpuMask>() {
            Ok(cpus) => Ok((!cpus.is_empty()).then_some(cpus)),
            Err(source) => Err(MachineError::CpuList { path, source }),
        }
    }

    /// A number. A negative one counts as missing: the kernel writes −1 where it knows nothing.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u32>, MachineError> {
        let numbers: Vec<i64> = self.numbers(name)?;
        Ok(numbers.first().and_then(|number| u32::try_from(*number).ok()))
    }

    /// Numbers with blanks between them.
    pub(crate) fn numbers<T: FromStr>(&self, name: &str) -> Result<Vec<T>, MachineError> {
        let Some((path, text)) = self.text(name)? else { return Ok(Vec::new()) };
        let numbers: Result<_, _> = text.split_whitespace().map(T::from_str).collect();
        numbers.map_err(|_| MachineError::Malformed { path, text })
    }

    fn text(&self, name: &str) -> Result<Option<(PathBuf, String)>, MachineError> {
        let path = self.0.join(name);
        let text = if_there(&path, fs::read_to_string(&path))?;
        Ok(text.map(|text| (path, text)))
    }
}

fn if_there<T>(path: &Path, result: io::Result<T>) -> Result<Option<T>, MachineError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MachineError::Read { path: path.into(), source }),
    }
}
