//! Makes kernel modules of policies, starts policy projects, and tells what a machine lacks for either.
//!
//! ```no_run
//! use ekiden_build::{Builder, Project, Target};
//! use ekiden_vm::Cache;
//!
//! let progress = &mut |line: &str| eprintln!("{line}");
//! let cache = Cache::from_env()?;
//! let kernel = ekiden_vm::fetch_newest_passing(&cache, progress)?;
//! let project = Project::open("my-policy".as_ref())?;
//! let modules = Builder::new(&cache, progress)?.build(&Target::fetched(&kernel), &project, project.policies(), progress)?;
//! println!("{}", modules.directory.display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A policy module is made in five steps: the policy and the crates under it are compiled for a target without an
//! operating system, against library sources that were compiled with the kernel's own compiler flags ([`Sysroot`]); the
//! program gets fuel, so that every call ends, and a limit of its stack (`hosts/kernel/fuel`); the result is linked into one
//! object; and the kernel's own build system makes a module of that object and one page of C.
#![forbid(unsafe_code)]

mod cargo;
mod checkout;
mod command;
pub mod doctor;
mod error;
mod files;
mod flags;
mod install;
mod kbuild;
mod linker;
mod modules;
mod new;
mod programs;
mod project;
mod review;
mod runner;
mod sysroot;
mod target;
mod toolchain;
mod unsafe_code;
mod wrapper;

pub use checkout::Checkout;
pub use command::{Running, STILL, end_running, running};
pub use ekiden_fuel::{NotUnderstood, Unfit};
pub use error::{Error, Result};
pub use flags::Flags;
pub use install::{Installed, install_missing};
pub use linker::Linker;
pub use modules::{Builder, Core, Modules};
pub use new::{new_project, new_project_from};
pub use project::{Policy, Project};
pub use review::{Trust, UnsafeCrate};
pub use runner::{Built, Runner};
pub use sysroot::Sysroot;
pub use target::Target;
pub use toolchain::Toolchain;
pub use unsafe_code::{CountError, UnsafeCount, c_lines, code_lines, count_text, count_tree, find_unsafe};

/// Told each step, one line at a time.
pub type Progress<'a> = &'a mut dyn FnMut(&str);
