//! Booting kernels: QEMU and what serves it, the guest's first file system, its console, and the channel by which commands run in it.

mod channel;
mod console;
mod daemon;
mod initramfs;
mod machine;
mod programs;
mod qmp;
mod repair;
mod share;

pub use channel::{Running, Signaller, Terminal};
pub use console::{Console, console_findings};
pub use machine::Vm;
pub use programs::program_disk;
pub use repair::prepare_repair;

/// Whether this was built to boot machines. What prepares one asks first.
pub const fn can_boot() -> crate::Result<()> {
    Ok(())
}
