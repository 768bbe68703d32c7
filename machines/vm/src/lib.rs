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
#![forbid(unsafe_code)]

mod apt;
mod btf;
mod buildroot;
mod cache;
mod channel;
mod console;
mod daemon;
mod error;
mod initramfs;
mod kernel;
mod kernels;
mod lock;
mod machine;
mod preflight;
mod process;
mod programs;
mod qemu;
mod qmp;
mod repair;
mod scratch;
mod share;
mod spec;
mod version;

pub use apt::package_lists;
pub use buildroot::BuildRoot;
pub use cache::Cache;
pub use channel::{GuestCommand, Output, Running, Signaller, Terminal};
pub use console::{Console, console_findings};
pub use ekiden_guest::{Size, Status, Stream};
pub use error::{Error, Result};
pub use kernel::Kernel;
pub use kernels::{Candidate, cached, candidates, fetch, fetch_newest_passing, fetch_newest_passing_of, judge};
pub use lock::{Holder, Lock};
pub use machine::{Stopped, Vm};
pub use preflight::{Reason, Verdict, preflight, preflight_file, preflight_running};
pub use process::sudo_works;
pub use programs::program_disk;
pub use qemu::{Origin, Qemu};
pub use repair::prepare_repair;
pub use scratch::Scratch;
pub use spec::{Mode, VmSpec};
pub use version::Version;
