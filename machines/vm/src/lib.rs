//! Virtual machines with stock kernels: find and fetch a kernel, check it, build modules for it, boot it, run commands in it.
//!
//! ```no_run
//! use ekiden_vm::{Cache, GuestCommand, Vm, VmSpec};
//!
//! let kernel = ekiden_vm::fetch_newest_passing(&Cache::from_env()?, &mut |line| eprintln!("{line}"))?;
//! let vm = Vm::boot(&kernel, &VmSpec::default())?;
//! let output = vm.run(&GuestCommand::new(["uname", "-r"]))?;
//! assert_eq!(output.stdout.trim(), kernel.release());
//! vm.shutdown()?;
//! # Ok::<(), ekiden_vm::Error>(())
//! ```
//!
//! Without the feature `boot` kernels are found, fetched and built for as with it, and what would boot one says what is missing
//! ([`Error::WithoutVm`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "boot"), allow(dead_code, reason = "what only machines need"))]

mod apt;
#[cfg_attr(not(feature = "boot"), path = "without_boot.rs")]
mod boot;
mod btf;
mod buildroot;
mod cache;
mod command;
mod error;
mod kernel;
mod kernels;
mod lock;
mod preflight;
mod process;
mod qemu;
mod scratch;
mod spec;
mod version;

pub use apt::package_lists;
#[cfg(feature = "boot")]
pub use boot::console_findings;
pub use boot::{Console, Running, Signaller, Terminal, Vm, can_boot, prepare_repair, program_disk};
pub use buildroot::BuildRoot;
pub use cache::Cache;
pub use command::{GuestCommand, Output, Stopped};
pub use ekiden_guest::{Size, Status, Stream};
pub use error::{Error, Result};
pub use kernel::Kernel;
pub use kernels::{Candidate, cached, candidates, fetch, fetch_newest_passing, fetch_newest_passing_of, judge};
pub use lock::{Holder, Lock};
pub use preflight::{Reason, Verdict, preflight, preflight_file, preflight_running};
pub use process::sudo_works;
pub use qemu::{Origin, Qemu};
pub use scratch::Scratch;
pub use spec::{Mode, VmSpec};
pub use version::Version;
