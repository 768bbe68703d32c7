//! Runs cargo for the target that the kernel is.

use crate::{Error, Progress, Result, Sysroot, Toolchain, command, flags::TRIPLE};
use cargo_metadata::{Message, TargetKind, diagnostic::DiagnosticLevel};
use std::{
    io::{Cursor, IsTerminal},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// How long cargo may take for one package, with those under it and the time to fetch them.
const LIMIT: Duration = Duration::from_secs(3600);

/// What a build needs to know besides what to build.
pub(crate) struct Cargo<'a> {
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) sysroot: &'a Sysroot,
    pub(crate) target_dir: PathBuf,
    pub(crate) rustflags: Vec<String>,
    /// The profile, as settings: the user's own files of settings, which cargo finds, may have other ones.
    pub(crate) settings: Vec<String>,
    pub(crate) features: &'a [&'a str],
    /// Where the library's program is to be written as assembly text, too.
    pub(crate) assembly: Option<PathBuf>,
}

impl Cargo<'_> {
    /// Builds one package, a static library, of the workspace in `directory`. Where the library is. `what` is what people
    /// call it.
    pub(crate) fn build(&self, directory: &Path, package: &str, what: &str, progress: Progress<'_>) -> Result<PathBuf> {
        let mut output = self.run(directory, package, true, progress)?;
        if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("--offline") {
            // Something is not here yet; then the network has to be asked.
            output = self.run(directory, package, false, progress)?;
        }
        let mut library = None;
        let mut errors = String::new();
        for message in Message::parse_stream(Cursor::new(&output.stdout)).flatten() {
            match message {
                Message::CompilerArtifact(artifact) if artifact.target.kind.contains(&TargetKind::StaticLib) => {
                    library = artifact.filenames.into_iter().find(|file| file.extension() == Some("a"));
                }
                Message::CompilerMessage(message)
                    if matches!(message.message.level, DiagnosticLevel::Error | DiagnosticLevel::Ice) =>
                {
                    errors.push_str(message.message.rendered.as_deref().unwrap_or(&message.message.message));
                }
                _ => {}
            }
        }
        if output.status.success() {
            if let Some(library) = library {
                return Ok(library.into_std_path_buf());
            }
        }
        if errors.is_empty() {
            errors = command::last_lines(&String::from_utf8_lossy(&output.stderr), 80);
        }
        Err(Error::Compile { what: what.to_owned(), advice: advice(&errors), output: errors })
    }

    fn run(&self, directory: &Path, package: &str, offline: bool, progress: Progress<'_>) -> Result<Output> {
        let mut command = Command::new(self.toolchain.cargo());
        // Settings for other builds, which this one may be part of.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
                command.env_remove(name);
            }
        }
        command.env_remove("RUSTC_WORKSPACE_WRAPPER");
        command.env("RUSTC", self.toolchain.rustc()).env("RUSTC_BOOTSTRAP", "1");
        let mut flags = vec![format!("--sysroot={}", self.sysroot.directory().display())];
        flags.extend(self.rustflags.iter().cloned());
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        let colour = if std::io::stderr().is_terminal() { "json-diagnostic-rendered-ansi" } else { "json" };
        command.current_dir(directory).args(["rustc", "--release", "--target", TRIPLE, "--package", package]);
        command.arg("--message-format").arg(colour).arg("--target-dir").arg(&self.target_dir);
        for setting in &self.settings {
            command.arg("--config").arg(setting);
        }
        if offline {
            command.arg("--offline");
        }
        for feature in self.features {
            command.args(["--features", feature]);
        }
        if let Some(assembly) = &self.assembly {
            command.arg("--").arg(format!("--emit=asm={}", assembly.display()));
        }
        let what = format!("compiling {package} for the kernel");
        command::watched(&mut command, &what, LIMIT, progress, &|line| {
            let what = line.trim_start().strip_prefix("Compiling ")?;
            // Without the version and the place.
            Some(format!("compiling {} for the kernel", what.split(' ').next().unwrap_or(what)))
        })
    }
}

/// What to do about a compiler error.
fn advice(errors: &str) -> &'static str {
    if errors.contains("can't find crate for `std`") {
        return "there is no `std` in the kernel: begin the policy's src/lib.rs with #![no_std], and turn off the `std` \
                feature of the crates that it uses (default-features = false)";
    }
    if errors.contains("--offline") || errors.contains("failed to download") || errors.contains("failed to get") {
        return "a crate has to be downloaded: check the network, then run the same command again";
    }
    "correct it and run the same command again"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_uses_std_is_told_of_no_std() {
        assert!(advice("error[E0463]: can't find crate for `std`").contains("#![no_std]"));
        assert!(advice("error: failed to download `x`").contains("network"));
        assert!(advice("error[E0308]: mismatched types").starts_with("correct it"));
    }
}
