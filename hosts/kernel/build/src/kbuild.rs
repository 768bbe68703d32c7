//! Makes one kernel module of C sources and a linked Rust object, if any of them has changed.

use crate::{Error, Linker, Progress, Result, Target, error::Context, files};
use ekiden_vm::Cache;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A module and what it is made of.
pub(crate) struct Unit<'a> {
    /// Its name, without `.ko`.
    pub(crate) name: String,
    /// Where it is made; nothing else uses this directory.
    pub(crate) directory: PathBuf,
    /// Files that belong there, and the names that they have there.
    pub(crate) sources: Vec<(PathBuf, String)>,
    /// The Rust half.
    pub(crate) archive: &'a Path,
    /// What of it has been changed since it was compiled.
    pub(crate) changed: Option<&'a Path>,
    /// Which of its symbols are called from C.
    pub(crate) keep: &'static str,
    /// Settings for make.
    pub(crate) make_args: Vec<String>,
}

/// What a module was made of, written when it is complete.
const STAMP: &str = ".made-of";

/// The Rust half, as the Kbuild files name it.
const RUST_OBJECT: &str = "rust_linked";

impl Unit<'_> {
    /// Makes the module unless it is up to date. Its file, and whether it was made anew.
    pub(crate) fn make(
        &self,
        cache: &Cache,
        target: &Target,
        linker: &Linker,
        progress: Progress<'_>,
    ) -> Result<(PathBuf, bool)> {
        let stamp = self.directory.join(STAMP);
        let module = self.directory.join(format!("{}.ko", self.name));
        if !stamp.exists() && self.directory.exists() {
            // An interrupted build may have left half a file that make would take for a whole one.
            fs::remove_dir_all(&self.directory).context("clear", &self.directory)?;
        }
        for (from, name) in &self.sources {
            files::copy(from, &self.directory.join(name))?;
        }
        self.link(linker)?;
        let made_of = self.made_of(target);
        if module.exists() && fs::read_to_string(&stamp).is_ok_and(|old| old == made_of) {
            return Ok((module, false));
        }
        if stamp.exists() {
            fs::remove_file(&stamp).context("remove", &stamp)?;
        }
        progress(&format!("building {}.ko for {}", self.name, target.release()));
        let mut make_args: Vec<&str> = vec!["KCFLAGS=-g0"];
        make_args.extend(self.make_args.iter().map(String::as_str));
        let printed =
            target.kbuild(cache, &self.directory, &make_args, progress).map_err(|error| self.explain(error))?;
        let warnings = warnings(&printed, &self.directory);
        if !warnings.is_empty() {
            return Err(Error::Warnings { module: self.name.clone(), warnings: warnings.join("\n") });
        }
        files::write(&stamp, made_of.as_bytes())?;
        Ok((module, true))
    }

    /// Links the Rust half, unless its library is the one that was linked last.
    fn link(&self, linker: &Linker) -> Result<()> {
        let object = self.directory.join(RUST_OBJECT);
        let (linked, of) = (self.directory.join(".rust_linked.new"), self.directory.join(".rust_linked.of"));
        let inputs: Vec<String> = self.changed.into_iter().chain([self.archive]).map(files::identity).collect();
        let inputs = inputs.join("\n");
        if object.exists() && fs::read_to_string(&of).is_ok_and(|old| old == inputs) {
            return Ok(());
        }
        linker.link(self.changed, self.archive, self.keep, &linked)?;
        files::copy(&linked, &object)?;
        files::write(&of, inputs.as_bytes()).map(drop)
    }

    /// Leaves the command line out of the report of a failure of kbuild: it is of no use there.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Program { output, .. } | Error::Vm(ekiden_vm::Error::Program { output, .. }) => {
                Error::Kbuild { module: self.name.clone(), output }
            }
            other => other,
        }
    }

    fn made_of(&self, target: &Target) -> String {
        let inputs = self.sources.iter().map(|(_, name)| name.as_str()).chain([RUST_OBJECT]);
        let mut made_of: Vec<String> = inputs.map(|name| files::identity(&self.directory.join(name))).collect();
        made_of.push(target.identity());
        made_of.extend(self.make_args.iter().cloned());
        made_of.join("\n")
    }
}

/// What a build of a module printed that must not be overlooked. Objtool's and modpost's warnings mean that the kernel may
/// not be able to run or unwind the code; without BTF, no BPF program could call the module.
fn warnings<'a>(printed: &'a str, directory: &Path) -> Vec<&'a str> {
    let directory = directory.to_string_lossy();
    // Warnings about the kernel's own headers, which kbuild names in full or from where it runs.
    let is_foreign = |line: &str| {
        ["/", "./", "include/", "arch/"].iter().any(|start| line.starts_with(start)) && !line.starts_with(&*directory)
    };
    printed
        .lines()
        .filter(|line| {
            let lower = line.to_ascii_lowercase();
            let warns = ["warning:", "error:", "skipping btf"].iter().any(|word| lower.contains(word));
            // Said of another version of gcc or pahole, by design only once for each build.
            warns && !is_foreign(line) && !lower.contains("differs from the one used to build the kernel")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_about_our_code_are_found_and_others_are_not() {
        let printed = "\
make: Entering directory '/usr/src/linux-headers-7.2.13+deb14-cloud-amd64'
warning: the compiler differs from the one used to build the kernel
warning: pahole version differs from the one used to build the kernel
  The kernel was built by: x86_64-linux-gnu-gcc-16 (Debian 16.2.0-9) 16.2.0
/usr/src/linux-headers-7.2.13+deb14-common/include/linux/fs.h:9:2: warning: 'counted_by' attribute ignored
  CC [M]  main.o
main.c:12:3: warning: unused variable 'x'
/cache/core/main.c:13:3: warning: unused variable 'y'
./include/linux/fs.h:9:2: warning: 'counted_by' attribute ignored
ekiden.o: warning: objtool: ekiden_rs_deliver+0x12: unsupported stack register modification
WARNING: modpost: missing MODULE_LICENSE() in ekiden.o
ERROR: modpost: \"memcpy2\" [ekiden.ko] undefined!
Skipping BTF generation for ekiden.ko due to unavailability of vmlinux
";
        expect_test::expect![[r#"
            main.c:12:3: warning: unused variable 'x'
            /cache/core/main.c:13:3: warning: unused variable 'y'
            ekiden.o: warning: objtool: ekiden_rs_deliver+0x12: unsupported stack register modification
            WARNING: modpost: missing MODULE_LICENSE() in ekiden.o
            ERROR: modpost: "memcpy2" [ekiden.ko] undefined!
            Skipping BTF generation for ekiden.ko due to unavailability of vmlinux"#]]
        .assert_eq(&warnings(printed, "/cache/core".as_ref()).join("\n"));
    }
}
