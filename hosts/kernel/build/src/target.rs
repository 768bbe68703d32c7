//! The kernel that modules are built for.

use crate::{Error, Progress, Result, command, error::Context};
use ekiden_vm::{BuildRoot, Cache, Kernel};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// How long the kernel's build system may take for one module.
const LIMIT: Duration = Duration::from_secs(1200);

/// A kernel with its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    release: String,
    headers: PathBuf,
    fetched: Option<Kernel>,
}

impl Target {
    /// A kernel in the cache.
    pub fn fetched(kernel: &Kernel) -> Self {
        Self { release: kernel.release().to_owned(), headers: kernel.headers(), fetched: Some(kernel.clone()) }
    }

    /// The kernel of this machine, with the headers that its distribution installs.
    pub fn running() -> Result<Self> {
        let release = running_release()?;
        let headers = Path::new("/lib/modules").join(&release).join("build");
        if !headers.join("Makefile").exists() {
            return Err(Error::NoHeaders { release, path: headers });
        }
        Ok(Self { release, headers, fetched: None })
    }

    /// What `uname -r` says there.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The headers' build configuration.
    pub(crate) fn config(&self) -> Result<String> {
        let path = self.headers.join(".config");
        fs::read_to_string(&path).context("read", path)
    }

    /// What changes when other headers are installed under the same name.
    pub(crate) fn identity(&self) -> String {
        crate::files::identity(&self.headers.join("Module.symvers"))
    }

    /// Runs kbuild for the module in a directory and returns what it printed.
    pub(crate) fn kbuild(
        &self,
        cache: &Cache,
        module_dir: &Path,
        make_args: &[&str],
        progress: Progress<'_>,
    ) -> Result<String> {
        if let Some(kernel) = &self.fetched {
            return Ok(BuildRoot::prepare(cache, progress)?.kbuild(kernel, module_dir, make_args)?);
        }
        let mut make = Command::new("make");
        make.arg("-C").arg(&self.headers).arg(format!("M={}", module_dir.display()));
        make.args(compiler_args(&self.config()?)).args(make_args).arg("modules").env("LC_ALL", "C");
        let output = command::patient(&mut make, "building the module", LIMIT, progress)?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }
}

/// What `uname -r` says on this machine.
pub(crate) fn running_release() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    fs::read_to_string(path).map(|release| release.trim().to_owned()).context("read", path)
}

/// How to make kbuild use the compiler that the kernel was built with, if it is here: then the module's types are the
/// kernel's own.
fn compiler_args(config: &str) -> Vec<String> {
    let text = config.lines().find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT=")).unwrap_or_default();
    let text = text.trim_matches('"');
    if text.contains("clang version") {
        return vec!["LLVM=1".into()];
    }
    let compiler = text.split(' ').next().unwrap_or_default();
    let found = !compiler.is_empty() && command::find(compiler).is_some();
    if found { vec![format!("CC={compiler}")] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_of_the_kernel_is_used_where_it_is() {
        assert_eq!(compiler_args("CONFIG_CC_VERSION_TEXT=\"sh (Debian 14.2.0-19) 14.2.0\"\n"), ["CC=sh"]);
        assert_eq!(compiler_args("CONFIG_CC_VERSION_TEXT=\"no-such-gcc-99 (X) 99\"\n"), [""; 0]);
        assert_eq!(compiler_args("CONFIG_CC_VERSION_TEXT=\"Debian clang version 19.1.7\"\n"), ["LLVM=1"]);
        assert_eq!(compiler_args(""), [""; 0]);
    }
}
