//! Everything that can go wrong here, each with what to do next.

use std::{io, path::PathBuf, time::Duration};

use crate::cargo::advice;

/// Short for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a module was not built, a project not made, or a package not installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}; check the path, its permissions and the free space", path.display())]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// Its object.
        path: PathBuf,
        /// The operating system's word.
        source: io::Error,
    },
    /// A program is not installed.
    #[error("`{0}` is not installed; `ekiden doctor` says which package has it")]
    MissingProgram(String),
    /// A program that was run failed.
    #[error("`{command}` failed ({status}):\n{output}\nrun it by hand to see more")]
    Program {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// A program was stopped because it took too long.
    #[error(
        "{doing} took longer than {limit:?} and was stopped; check the network and what else keeps the machine busy, or \
         run it by hand: `{command}`; the end of what it printed:\n{output}"
    )]
    TimedOut {
        /// Its task in words.
        doing: String,
        /// The command line.
        command: String,
        /// The time it had.
        limit: Duration,
        /// The end of what it printed.
        output: String,
    },
    /// The compiler is older than what this project is written in.
    #[error("{} is Rust {release}, older than {oldest}; with rustup run: rustup update stable", rustc.display())]
    OldRust {
        /// The compiler.
        rustc: PathBuf,
        /// Its release.
        release: String,
        /// The oldest that would do.
        oldest: &'static str,
    },
    /// Library sources that belong to another compiler.
    #[error(
        "the sources of Rust's library in {} are those of {sources}, but {} is {release}: they have to be of one version; \
         with rustup run: rustup component add rust-src; with packages `make prepare` installs both",
        library.display(), rustc.display()
    )]
    OtherLibrary {
        /// Where the sources are.
        library: PathBuf,
        /// The toolchain that the sources belong to.
        sources: String,
        /// The compiler.
        rustc: PathBuf,
        /// Its release.
        release: String,
    },
    /// There are no library sources for any rustc that is installed.
    #[error(
        "no sources of Rust's library were found for any rustc that is installed ({tried}); with rustup run: rustup \
         component add rust-src; else `ekiden doctor` names the packages"
    )]
    NoLibrarySources {
        /// The places that were looked at.
        tried: String,
    },
    /// No linker that makes one object of a library of them.
    #[error("no ld.lld of version {0} or newer was found; install LLVM's linker (`ekiden doctor` names the package)")]
    NoLinker(u32),
    /// Something in the kernel's configuration that modules cannot be built for.
    #[error("{0}")]
    Kernel(String),
    /// The kernel's headers are not there.
    #[error(
        "the headers of kernel {release} are not installed ({} is missing); `ekiden doctor` names the package",
        path.display()
    )]
    NoHeaders {
        /// What `uname -r` says.
        release: String,
        /// Where they should be.
        path: PathBuf,
    },
    /// The policy, or something under it, does not compile.
    #[error("{what} does not compile for the kernel:\n{output}\n{advice}")]
    Compile {
        /// The crate or project that was compiled.
        what: String,
        /// The compiler's word.
        output: String,
        /// What to do.
        advice: String,
    },
    /// A project does not compile for this machine's user space.
    #[error("the project in {} does not compile:\n{output}\n{}", root.display(), advice(output))]
    CompileProject {
        /// The project.
        root: PathBuf,
        /// The compiler's word.
        output: String,
    },
    /// The policy needs what the kernel does not have.
    #[error("the policy `{policy}` {unfit}")]
    Unfit {
        /// The policy.
        policy: String,
        /// What, where, and what to do.
        unfit: crate::Unfit,
    },
    /// The policy brings unsafe code along.
    #[error(
        "the policy `{policy}` depends on unsafe code, which can stop the kernel whatever Ekiden checks:\n{}\nuse other crates, or allow \
         those that you have read or trust",
        list(crates)
    )]
    Unsafe {
        /// The policy.
        policy: String,
        /// The crates that have it.
        crates: Vec<crate::review::UnsafeCrate>,
    },
    /// Code that is not Ekiden's would run as root.
    #[error(
        "to build the policy `{policy}` is to run {runs}, and this is root: build it as an ordinary user and take the modules from there \
         (`ekiden build`, then `--modules DIR`), start this with sudo from such a user, or say --as-root if you have read what it runs"
    )]
    RunsAsRoot {
        /// The policy.
        policy: String,
        /// What runs.
        runs: String,
    },
    /// The compiler's assembly has something that may be a loop without fuel.
    #[error(
        "the assembly of the policy cannot be given fuel: {source} ({}); no module was made. Assembly of a dependency's own may be the cause: \
         policies and what they use have none; else report it, with the compiler's version",
        assembly.display()
    )]
    Fuel {
        /// The assembly's file.
        assembly: PathBuf,
        /// What it was.
        source: crate::NotUnderstood,
    },
    /// The kernel's build system failed.
    #[error("building {module} failed:\n{output}\ncorrect the cause and run the same command again")]
    Kbuild {
        /// The module.
        module: String,
        /// The end of what was printed.
        output: String,
    },
    /// The build of a module said something that must not be passed over.
    #[error(
        "building {module} gave warnings, which are errors here:\n{warnings}\n(an undefined symbol or an objtool warning \
         means that the compiler made something that the kernel does not take; run `ekiden doctor`)"
    )]
    Warnings {
        /// The module.
        module: String,
        /// The lines.
        warnings: String,
    },
    /// A directory is no policy project.
    #[error("{} is no policy project: {reason}; `ekiden new NAME` makes one", path.display())]
    NoProject {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No policy of that name.
    #[error("there is no policy `{name}`; known are: {known}")]
    NoPolicy {
        /// The name that was asked for.
        name: String,
        /// The known names.
        known: String,
    },
    /// A name that a project cannot have.
    #[error("`{name}` cannot be the name of a policy: {reason}; take for example `my-policy`")]
    BadName {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A project would overwrite something.
    #[error("{} exists already; choose another name, or remove it", .0.display())]
    Exists(PathBuf),
    /// The files that modules are made from are not there.
    #[error(
        "{} is not a checkout of Ekiden (it has no hosts/kernel/Cargo.toml); set EKIDEN_ROOT to one", .0.display()
    )]
    NoCheckout(PathBuf),
    /// Packages cannot be installed by this user or on this system.
    #[error("{0}")]
    Install(String),
    /// Fetching or building in a kernel's surroundings failed.
    #[error(transparent)]
    Vm(#[from] ekiden_vm::Error),
}

fn list(crates: &[crate::review::UnsafeCrate]) -> String {
    crates.iter().map(|one| format!("  {one}")).collect::<Vec<_>>().join("\n")
}

/// Attaches what was attempted to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File { what, path: path.into(), source: source.into() })
    }
}
