//! A process that may open `/dev/ekiden` for writing, without CAP_SYS_ADMIN.

use std::{fs::OpenOptions, io, os::fd::AsRawFd, path::Path, ptr, thread};

use anyhow::{Context, Result};
use ekiden_loader::Session;
use serde::Serialize;

use crate::trials::config;

/// The numbers of what only root may ask, in kernel/include/ekiden_control.h.
const COMMANDS: [u32; 7] = [1, 2, 4, 5, 6, 8, 9];
const CAP_SYS_ADMIN: u32 = 21;

#[derive(Serialize)]
struct IntruderReport {
    /// Why each was refused, as the number of an error; 0 where it was not. A map of a tape comes last.
    errors: Vec<i32>,
    still_running: bool,
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// From here on this thread is root without the rights of an administrator, as in a container.
fn give_up_rights() -> io::Result<()> {
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    // Effective, permitted and inheritable, of the first 32 and of the others.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both are as large as this version says.
    if unsafe { libc::syscall(libc::SYS_capget, &header, &mut sets) } != 0 {
        return Err(io::Error::last_os_error());
    }
    sets[0].iter_mut().for_each(|set| *set &= !(1 << CAP_SYS_ADMIN));
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_capset, &header, &sets) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn error_of(failed: bool) -> i32 {
    if failed { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
}

/// Tries everything that is root's.
fn intrude() -> Result<Vec<i32>> {
    give_up_rights().context("cannot give up rights")?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/ekiden").context("cannot open the device")?;
    // Larger than any request: what is refused is not read.
    let mut request = [0_u64; 64];
    let mut errors = Vec::new();
    for command in COMMANDS {
        let sizes: Vec<u32> = match command {
            5 | 8 => vec![0],
            _ => (8..256).step_by(8).collect(),
        };
        // Whatever is not a command is ENOTTY: the right size is among them.
        for size in sizes {
            for direction in if size == 0 { vec![0_u32] } else { vec![1, 3] } {
                let number = direction << 30 | size << 16 | u32::from(b'E') << 8 | command;
                // SAFETY: the request is larger than the size says.
                let failed = unsafe { libc::ioctl(device.as_raw_fd(), number.into(), request.as_mut_ptr()) } < 0;
                errors.push(error_of(failed));
            }
        }
    }
    // SAFETY: a new map, which is never read.
    let map = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, device.as_raw_fd(), 0) };
    errors.push(error_of(map == libc::MAP_FAILED));
    Ok(errors)
}

pub(crate) fn intruder(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    // Rights are a thread's own.
    let errors = thread::spawn(intrude).join().ok().context("the intruder panicked")??;
    println!("{}", serde_json::to_string(&IntruderReport { errors, still_running: session.is_running() })?);
    Ok(())
}
