//! Runs cargo for the target that the kernel is.

use crate::{Error, Progress, Result, Sysroot, Toolchain, command, error::Context, flags::TRIPLE, review::Artifact};
use cargo_metadata::{
    CompilerMessage, Message, Metadata, MetadataCommand, TargetKind,
    diagnostic::{Diagnostic, DiagnosticLevel},
};
use std::{
    fs,
    io::{Cursor, IsTerminal},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// How long cargo may take for one package, with those under it and the time to fetch them.
const LIMIT: Duration = Duration::from_secs(3600);

/// The compiler is asked for what is unstable, and cargo believes that it is, too. Settings could then give the compiler flags that come after ours, such
/// as not to look at what is forbidden, or code to run.
const STABLE: [&str; 2] = ["unstable.profile-rustflags=false", "unstable.codegen-backend=false"];

/// A program that runs the compiler as it is.
const NO_WRAPPER: &str = "/usr/bin/env";

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
    /// A program that runs instead of the compiler, with the compiler as its first argument.
    pub(crate) wrapper: Option<PathBuf>,
    /// Where cargo runs, and looks for settings: they can name programs, which it starts.
    pub(crate) runs_in: PathBuf,
}

/// What cargo has made.
pub(crate) struct Made {
    /// The static library.
    pub(crate) library: PathBuf,
    /// The libraries that it is made of, or by.
    pub(crate) parts: Vec<Artifact>,
}

impl Cargo<'_> {
    /// Builds one package, a static library, of the workspace in `directory`. `what` is what people call it.
    pub(crate) fn build(&self, directory: &Path, package: &str, what: &str, progress: Progress<'_>) -> Result<Made> {
        let mut output = self.run(directory, package, true, progress)?;
        if !output.status.success() && needs_network(&output) {
            output = self.run(directory, package, false, progress)?;
        }
        let mut library = None;
        let mut parts = Vec::new();
        let mut errors = String::new();
        let mut told = None;
        for message in Message::parse_stream(Cursor::new(&output.stdout)).flatten() {
            match message {
                Message::CompilerArtifact(artifact) if artifact.target.kind.contains(&TargetKind::StaticLib) => {
                    library = artifact.filenames.into_iter().find(|file| file.extension() == Some("a"));
                }
                Message::CompilerArtifact(artifact) if !artifact.target.kind.contains(&TargetKind::CustomBuild) => {
                    parts.push(Artifact { package: artifact.package_id, files: artifact.filenames });
                }
                Message::CompilerMessage(message)
                    if matches!(message.message.level, DiagnosticLevel::Error | DiagnosticLevel::Ice) =>
                {
                    told = told.or_else(|| explain(&message));
                    errors.push_str(message.message.rendered.as_deref().unwrap_or(&message.message.message));
                }
                _ => {}
            }
        }
        if output.status.success() {
            if let Some(library) = library {
                return Ok(Made { library: library.into_std_path_buf(), parts });
            }
        }
        if errors.is_empty() {
            errors = command::last_lines(&String::from_utf8_lossy(&output.stderr), 80);
        }
        let advice = told.unwrap_or_else(|| advice(&errors).to_owned());
        Err(Error::Compile { what: what.to_owned(), advice, output: errors })
    }

    /// What cargo knows of the workspace in `directory`: its packages, and which of them are used for the kernel.
    pub(crate) fn metadata(&self, directory: &Path, what: &str, progress: Progress<'_>) -> Result<Metadata> {
        fs::create_dir_all(&self.target_dir).context("create", &self.target_dir)?;
        let run = |offline: bool, progress: Progress<'_>| {
            let mut command = self.command("metadata", directory);
            command.args(["--format-version", "1", "--filter-platform", TRIPLE]);
            // Where it keeps what the compiler told it.
            command.env("CARGO_TARGET_DIR", &self.target_dir);
            command.args(offline.then_some("--offline"));
            command::watched(&mut command, "reading what the policy depends on", LIMIT, progress, &|_| None)
        };
        let mut output = run(true, progress)?;
        if !output.status.success() && needs_network(&output) {
            output = run(false, progress)?;
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match text.lines().find(|line| line.starts_with('{')).map(MetadataCommand::parse) {
            Some(Ok(metadata)) if output.status.success() => Ok(metadata),
            _ => {
                let output = command::last_lines(&String::from_utf8_lossy(&output.stderr), 80);
                Err(Error::Compile { what: what.to_owned(), advice: advice(&output).to_owned(), output })
            }
        }
    }

    /// A command of cargo's on the workspace in `directory`.
    fn command(&self, what: &str, directory: &Path) -> Command {
        let mut command = Command::new(self.toolchain.cargo());
        // Settings for other builds, which this one may be part of.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
                command.env_remove(name);
            }
        }
        // Whatever the settings say. Without a program here, cargo does not keep what the compiler told it, and asks four times for each build.
        command.env("RUSTC_WORKSPACE_WRAPPER", NO_WRAPPER);
        command.env("RUSTC_WRAPPER", self.wrapper.as_deref().unwrap_or(Path::new(NO_WRAPPER)));
        command.env("RUSTC", self.toolchain.rustc()).env("RUSTC_BOOTSTRAP", "1");
        let mut flags = vec![format!("--sysroot={}", self.sysroot.directory().display())];
        flags.extend(self.rustflags.iter().cloned());
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        command.current_dir(&self.runs_in).arg(what).arg("--manifest-path").arg(directory.join("Cargo.toml"));
        command
    }

    fn run(&self, directory: &Path, package: &str, offline: bool, progress: Progress<'_>) -> Result<Output> {
        let mut command = self.command("rustc", directory);
        let colour = if std::io::stderr().is_terminal() { "json-diagnostic-rendered-ansi" } else { "json" };
        command.args(["--release", "--target", TRIPLE, "--package", package]);
        command.arg("--message-format").arg(colour).arg("--target-dir").arg(&self.target_dir);
        for setting in self.settings.iter().map(String::as_str).chain(STABLE) {
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

/// Whether something is not here yet; then the network has to be asked.
fn needs_network(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("--offline")
}

/// What an error of the compiler means for a policy, with its place, where the compiler cannot know.
fn explain(message: &CompilerMessage) -> Option<String> {
    let Diagnostic { message: text, code, spans, .. } = &message.message;
    let place = spans
        .iter()
        .find(|span| span.is_primary)
        .map_or_else(|| message.target.src_path.to_string(), |span| format!("{}:{}", span.file_name, span.line_start));
    meaning(text, code.as_ref().map_or("", |code| &code.code), &place, &message.target.name)
}

/// Explains an error by the text and code that the compiler gave, with its place in a crate.
fn meaning(text: &str, code: &str, place: &str, in_crate: &str) -> Option<String> {
    const PRINTS: [&str; 5] = ["`println`", "`print`", "`eprintln`", "`eprint`", "`dbg`"];
    let is_macro =
        |names: &[&str]| text.starts_with("cannot find macro") && names.iter().any(|name| text.contains(name));
    Some(match code {
        "E0463" if text.contains("`std`") => format!(
            "there is no `std` in the kernel, and `{in_crate}` uses it ({place}): begin the policy's src/lib.rs with #![no_std], use `core` and `alloc`, \
             and turn off the `std` feature of the crates that it uses (default-features = false)"
        ),
        "E0432" | "E0433" if text.contains("`std`") => format!(
            "there is no `std` in the kernel: use `core`, or `alloc` after `extern crate alloc;`, or do without, at {place}"
        ),
        "unsafe_code" | "E0453" if code == "unsafe_code" || text.contains("unsafe_code") => format!(
            "a policy and the crates beside it are compiled without unsafe code, whatever their source says: do without it in `{in_crate}` at \
             {place}. What cannot be written otherwise can be a crate of its own; one that you trust is allowed by its name: \
             --allow-unsafe {in_crate}, which never counts for the policy itself"
        ),
        "E0725" => format!(
            "unstable features of Rust are not for policies, as they go round what is safe: do without it at {place}"
        ),
        _ if is_macro(&PRINTS) => format!(
            "nothing can be printed in the kernel: remove it at {place}. The simulator shows what a policy does, and `ekiden record` keeps every call"
        ),
        _ if is_macro(&["`vec`", "`format`"]) => {
            format!(
                "policies have no `std`: write `extern crate alloc;` and `alloc::vec!` or `alloc::format!` at {place}"
            )
        }
        _ => return None,
    })
}

/// What to do about any other failure.
pub(crate) fn advice(errors: &str) -> &'static str {
    if errors.contains("--offline") || errors.contains("failed to download") || errors.contains("failed to get") {
        return "a crate has to be downloaded: check the network, then run the same command again";
    }
    "correct it and run the same command again"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkout, Flags, Target, files};
    use ekiden_vm::Cache;

    /// A crate outside of the library's program would be linked without fuel.
    #[test]
    fn settings_do_not_keep_a_crate_out_of_the_whole_program() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| files::write(&place.path().join(name), text.as_bytes()).unwrap();
        let package = |name: &str, more: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{more}")
        };
        write("inner/Cargo.toml", &package("inner", ""));
        write(
            "inner/src/lib.rs",
            "#![no_std]\n#[inline(never)]\npub fn turns(n: u64) -> u64 {\n    (0..n).fold(0, |all, one| core::hint::black_box(all ^ one))\n}\n",
        );
        let more = "[lib]\ncrate-type = [\"staticlib\"]\n[dependencies]\ninner = { path = \"inner\" }\n[workspace]\n";
        write("Cargo.toml", &package("outer", more));
        write(
            "src/lib.rs",
            "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! {\n    loop {}\n}\n\
             #[no_mangle]\npub extern \"C\" fn outer(n: u64) -> u64 {\n    inner::turns(n)\n}\n",
        );
        let progress = &mut |line: &str| eprintln!("{line}");
        let (checkout, toolchain) = (Checkout::find().unwrap(), Toolchain::find(progress).unwrap());
        let cache = Cache::from_env().unwrap();
        let kernel = ekiden_vm::fetch_newest_passing(&cache, progress).unwrap();
        let flags = Flags::for_config(&Target::fetched(&kernel).config().unwrap(), &toolchain).unwrap();
        let sysroot = Sysroot::prepare(&cache, &checkout, &toolchain, &flags, progress).unwrap();
        for (settings, is_refused) in [
            ("", false),
            ("[profile.release]\nlto = false\n", false),
            ("[profile.release]\nlto = \"off\"\ncodegen-units = 16\nincremental = true\n", false),
            ("[profile.release.package.\"*\"]\ncodegen-units = 16\n", false),
            (
                "[build]\nrustflags = [\"-Clto=off\"]\n[target.x86_64-unknown-none]\nrustflags = [\"-Clto=off\"]\n",
                false,
            ),
            ("[unstable]\nprofile-rustflags = true\n[profile.release]\nrustflags = [\"-Clto=off\"]\n", true),
            (
                "[unstable]\nprofile-rustflags = true\n[profile.release.package.inner]\nrustflags = [\"-Clto=off\"]\n",
                true,
            ),
            ("[unstable]\ncodegen-backend = true\n[profile.release]\ncodegen-backend = \"/mine.so\"\n", true),
        ] {
            write(".cargo/config.toml", settings);
            let assembly = place.path().join("outer.s");
            let cargo = Cargo {
                toolchain: &toolchain,
                sysroot: &sysroot,
                target_dir: place.path().join("target"),
                rustflags: flags.as_args().to_vec(),
                settings: checkout.kernel_settings().unwrap(),
                features: &[],
                assembly: Some(assembly.clone()),
                wrapper: None,
                runs_in: place.path().to_owned(),
            };
            let made = cargo.build(place.path(), "outer", "a program", progress).map(|_| ());
            if is_refused {
                let said = made.map_err(|error| error.to_string());
                assert!(said.as_ref().is_err_and(|error| error.contains("is required")), "{said:?} with {settings}");
                continue;
            }
            made.unwrap();
            let text = std::fs::read_to_string(assembly).unwrap();
            let is_whole = text.lines().any(|line| line.contains("turns") && line.ends_with(':'));
            assert!(is_whole, "with these settings the program lacks a crate:\n{settings}");
        }
    }

    #[test]
    fn what_policies_do_not_have_is_told_with_its_line() {
        let told = |text: &str, code: &str| meaning(text, code, "src/lib.rs:7", "mine").unwrap_or_default();
        assert!(told("can't find crate for `std`", "E0463").contains("src/lib.rs with #![no_std]"));
        assert!(told("cannot find module or crate `std` in this scope", "E0433").contains("`core`, or `alloc`"));
        assert!(told("unresolved import `std`", "E0432").contains("at src/lib.rs:7"));
        assert!(told("usage of an `unsafe` block", "unsafe_code").contains("in `mine` at src/lib.rs:7. What"));
        assert!(told("allow(unsafe_code) incompatible with previous forbid", "E0453").contains("--allow-unsafe mine"));
        assert!(told("cannot find macro `println` in this scope", "").contains("nothing can be printed"));
        assert_eq!(told("mismatched types", "E0308"), "");
    }

    #[test]
    fn other_failures_have_an_advice_too() {
        assert!(advice("error: failed to download `x`").contains("network"));
        assert!(advice("error[E0308]: mismatched types").starts_with("correct it"));
    }
}
